"""Conformance of every operation: its paths and its errors.

Paths are kept as given, and never leave the root. Errors name the operation, pickle with all fields, and contain no
secret.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
from collections.abc import Awaitable, Callable

from aioprefetch.errors import Error, InvalidPath, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import ESCAPING_PATHS, ConformanceSuite, RecordingLayer, checks, needs
from aioprefetch.testing.oracle import content, raises

CALLS: dict[str, Callable[[Operator, str], Awaitable[object]]] = {
    "read": lambda operator, path: operator.read(path),
    "view": lambda operator, path: operator.view(path),
    "read_ranges": lambda operator, path: operator.read_ranges(path, [(0, 1)]),
    "stat": lambda operator, path: operator.stat(path),
    "exists": lambda operator, path: operator.exists(path),
    "write": lambda operator, path: operator.write(path, b"x"),
    "copy from": lambda operator, path: operator.copy(path, "target"),
    "copy to": lambda operator, path: operator.copy("source", path),
    "reader": lambda operator, path: _read_one_byte(operator, path),
    "create_dir": lambda operator, path: operator.create_dir(path + "/"),
}


class PathChecks(ConformanceSuite):
    """Tests of the handling of paths."""

    @checks("opendal:P3", "reliability:I08")
    async def test_path_dot_segments_are_refused(self, operator: Operator) -> None:
        """`.` and `..` are interpreted by proxies and file systems, so no call sends them."""
        log = RecordingLayer()
        watched = operator.layer(log)
        for call, path in itertools.product(CALLS.values(), ESCAPING_PATHS):
            with raises(InvalidPath) as caught:
                await call(watched, path)
            assert isinstance(caught.value, ValueError)
        assert log.requests == []

    @checks("opendal:P3")
    @needs("delete")
    async def test_delete_of_dot_segments_takes_no_other_object(self, operator: Operator) -> None:
        """A name with `.` or `..` is that name: it is deleted, or refused alone, and so is a listing of it."""
        for key in ("outside", "a/b", "b"):
            await self.put_directly(key, content(9))
        for delete in (operator.delete, operator.delete_all):
            for path in ESCAPING_PATHS:
                with contextlib.suppress(Error):
                    await delete(f"{path}/")
        with contextlib.suppress(Error):
            await operator.delete([*ESCAPING_PATHS, "b"])
        assert [await self.get_directly(key) for key in ("outside", "a/b", "b")] == [content(9), content(9), None]

    @checks("opendal:P3", "opendal:P1")
    async def test_path_dots_inside_a_name_are_nothing_special(self, operator: Operator) -> None:
        """`..a`, `a..` and `...` are ordinary names."""
        for key in ("..a", "a..", "...", "a/..b/c", ".hidden"):
            await self.put_directly(key, content(9))
            assert await operator.read(key) == content(9)

    @checks("opendal:P2")
    async def test_path_names_one_object(self, operator: Operator) -> None:
        """No other path has its identity, which also shows its directory."""
        await self.put_directly("d/k", content(9))
        accessor = operator.accessor()
        identity, other = await accessor.identity("d/k"), await accessor.identity("d/j")
        assert identity == await accessor.identity("d/k") != other
        assert identity.store == other.store
        assert identity.kind in ("file", "unknown")
        assert identity.within[-1] == other.within[-1] == (await accessor.identity("d/")).name

    @checks("opendal:P2")
    @needs("list")
    async def test_path_is_relative_to_the_root(self, operator: Operator) -> None:
        """The root is added to paths that are sent and removed from paths that are returned."""
        await self.put_directly("dir/k", content(9))
        assert await operator.read("dir/k") == content(9)
        assert [entry.path async for entry in operator.list("dir/")] == ["dir/k"]
        root = operator.info.root.strip("/")
        if root:
            with raises(NotFound):
                await operator.read(f"{root}/dir/k")

    @checks("opendal:P1")
    async def test_path_case_and_unicode_forms_are_kept(self, operator: Operator) -> None:
        """Case and Unicode forms are kept: the keys are different."""
        composed, decomposed = "caf\u00e9", "cafe\u0301"
        await self.put_directly(composed, content(5))
        await self.put_directly(decomposed, content(6))
        assert await operator.read(composed) == content(5)
        assert await operator.read(decomposed) == content(6)

    @checks("opendal:P1", "reliability:I09")
    async def test_path_long_key(self, operator: Operator) -> None:
        """A key of 1,024 bytes, the maximum of S3, in segments that a file system accepts."""
        room = 1024 - len(operator.info.root.strip("/")) - bool(operator.info.root.strip("/"))
        key = "/".join(["n" * 127] * 8)[: room - 1] + "k"
        await self.put_directly(key, content(11))
        assert await operator.read(key) == content(11)

    @checks("opendal:P3", "reliability:I10")
    async def test_path_that_is_no_text(self, operator: Operator) -> None:
        """A wrong type, an embedded zero and an unpaired surrogate are typed errors."""
        for path in (None, 5, b"bytes"):
            with raises(TypeError):
                await operator.read(path)  # type: ignore[arg-type]
        for text in ("zero\0byte", "half \ud800 pair"):
            with raises(ValueError) as caught:
                await operator.read(text)
            assert isinstance(caught.value, InvalidPath)


async def _read_one_byte(operator: Operator, path: str) -> bytes:
    async with operator.reader(path) as reader:
        return await reader.read_at(0, 1)


async def _read_from(operator: Operator, path: str) -> bytes:
    async with operator.reader(path) as reader:
        return await reader.read_exactly_at(5, 100)


# Calls that fail on every service: with the named error, or as Unsupported.
FAILURES: dict[str, Callable[[Operator], Awaitable[object]]] = {
    "read of nothing": lambda operator: operator.read("no/such"),
    "read beyond the end": lambda operator: operator.read("ten", offset=10, size=1),
    "read of a directory": lambda operator: operator.read("folder/"),
    "read of a negative offset": lambda operator: operator.read("ten", offset=-1),
    "read with another ETag": lambda operator: operator.read("ten", if_match="another"),
    "read with a version": lambda operator: operator.read("no/such", version="none"),
    "read of ranges past the end": lambda operator: operator.read_ranges("ten", [(5, 50)]),
    "reader past the end": lambda operator: _read_from(operator, "ten"),
    "reader of nothing": lambda operator: _read_from(operator, "no/such"),
    "stat of nothing": lambda operator: operator.stat("no/such"),
    "write of a directory": lambda operator: operator.write("folder/", b"x"),
    "copy of nothing": lambda operator: operator.copy("no/such", "target"),
    "copy to itself": lambda operator: operator.copy("ten", "ten"),
    "create_dir without slash": lambda operator: operator.create_dir("folder"),
    "stat out of the root": lambda operator: operator.stat("../"),
}


class ErrorChecks(ConformanceSuite):
    """Tests of the errors of a store. `secrets` must not appear in any of them."""

    secrets: tuple[str, ...] = ()

    async def _failures(self, operator: Operator) -> dict[str, Error]:
        await self.put_directly("ten", content(10))
        failures = {}
        for name, fail in FAILURES.items():
            with raises(Error) as caught:
                await fail(operator)
            failures[name] = caught.value
        return failures

    @checks("opendal:E1")
    async def test_error_says_operation_and_path(self, operator: Operator) -> None:
        """Every error has operation and path, in its fields and in its text."""
        for name, error in (await self._failures(operator)).items():
            assert error.operation, name
            assert error.path, name
            assert error.operation in str(error), name
            assert error.path in str(error), name
            assert error.filename == error.path, name

    @checks("opendal:E1")
    async def test_error_of_the_store_says_the_service(self, operator: Operator) -> None:
        """An error of the store names the service."""
        with raises(NotFound) as caught:
            await operator.read("no/such")
        assert caught.value.context["service"] == operator.info.location

    @checks("opendal:E5")
    async def test_error_pickles_with_all_fields(self, operator: Operator) -> None:
        """Through a pickle and a copy, as multiprocessing and Spark need it."""
        for name, error in (await self._failures(operator)).items():
            for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
                assert type(twin) is type(error), name
                assert str(twin) == str(error), name
                for field in ("kind", "status", "operation", "path", "errno", "filename", "received"):
                    assert getattr(twin, field) == getattr(error, field), (name, field)

    @checks("opendal:E6")
    async def test_error_tells_no_secret(self, operator: Operator) -> None:
        """Text, repr and pickle contain neither credentials nor signatures, in the causes of an error too."""
        for name, first in (await self._failures(operator)).items():
            error: BaseException | None = first
            chain: list[BaseException] = []
            while error is not None:
                assert error not in chain, f"{name}: the error is its own cause"
                chain.append(error)
                shown = f"{error} {error!r} {error.args}"
                if isinstance(error, Error):
                    shown += repr(pickle.dumps(error))
                for secret in (*self.secrets, "X-Amz-Signature", "X-Amz-Credential", "Authorization"):
                    assert secret not in shown, name
                error = error.__cause__

    @checks("opendal:E6")
    async def test_error_operator_tells_no_secret(self, operator: Operator) -> None:
        """The reprs of the operator, its capability and its info contain no secret."""
        shown = f"{operator!r} {operator.info!r} {operator.capability!r} {operator.statistics!r}"
        for secret in self.secrets:
            assert secret not in shown
