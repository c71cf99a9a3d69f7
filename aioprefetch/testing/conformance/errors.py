"""Conformance of errors: they name the operation, pickle with all fields, and contain no secret."""

import copy
import pickle
from collections.abc import Awaitable, Callable

import pytest

from aioprefetch.errors import Error, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.suite import ConformanceSuite
from aioprefetch.testing.oracle import content


async def _list(operator: Operator, path: str) -> list[object]:
    return [entry async for entry in operator.list(path)]


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
    "list out of the root": lambda operator: _list(operator, "../"),
}


class ErrorChecks(ConformanceSuite):
    """Tests of the errors of a store. `secrets` must not appear in any of them."""

    secrets: tuple[str, ...] = ()

    async def _failures(self, operator: Operator) -> dict[str, Error]:
        await self.put_directly("ten", content(10))
        failures = {}
        for name, fail in FAILURES.items():
            with pytest.raises(Error) as caught:
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
        with pytest.raises(NotFound) as caught:
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
