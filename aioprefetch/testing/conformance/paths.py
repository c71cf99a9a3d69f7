"""Conformance of paths: they are kept as given, and never leave the root."""

from collections.abc import Awaitable, Callable

import pytest

from aioprefetch.errors import InvalidPath, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.keys import ESCAPING_PATHS
from aioprefetch.testing.conformance.probes import RecordingLayer
from aioprefetch.testing.conformance.suite import ConformanceSuite, needs
from aioprefetch.testing.oracle import content

CALLS: dict[str, Callable[[Operator, str], Awaitable[object]]] = {
    "read": lambda operator, path: operator.read(path),
    "view": lambda operator, path: operator.view(path),
    "read_ranges": lambda operator, path: operator.read_ranges(path, [(0, 1)]),
    "stat": lambda operator, path: operator.stat(path),
    "exists": lambda operator, path: operator.exists(path),
    "write": lambda operator, path: operator.write(path, b"x"),
    "delete": lambda operator, path: operator.delete(path),
    "copy from": lambda operator, path: operator.copy(path, "target"),
    "copy to": lambda operator, path: operator.copy("source", path),
    "list": lambda operator, path: _list(operator, path + "/"),
    "reader": lambda operator, path: _read_one_byte(operator, path),
    "create_dir": lambda operator, path: operator.create_dir(path + "/"),
}


class PathChecks(ConformanceSuite):
    """Tests of the handling of paths."""

    @checks("opendal:P3")
    @pytest.mark.parametrize("name", CALLS)
    async def test_path_dot_segments_are_refused(self, operator: Operator, name: str) -> None:
        """`.` and `..` are interpreted by proxies and file systems, so no call sends them."""
        log = RecordingLayer()
        watched = operator.layer(log)
        for path in ESCAPING_PATHS:
            with pytest.raises(InvalidPath) as caught:
                await CALLS[name](watched, path)
            assert isinstance(caught.value, ValueError)
        assert log.requests == []

    @checks("opendal:P3", "opendal:P1")
    async def test_path_dots_inside_a_name_are_nothing_special(self, operator: Operator) -> None:
        """`..a`, `a..` and `...` are ordinary names."""
        for key in ("..a", "a..", "...", "a/..b/c", ".hidden"):
            await self.put_directly(key, content(9))
            assert await operator.read(key) == content(9)

    @checks("opendal:P2")
    @needs("list")
    async def test_path_is_relative_to_the_root(self, operator: Operator) -> None:
        """The root is added to paths that are sent and removed from paths that are returned."""
        await self.put_directly("dir/k", content(9))
        assert await operator.read("dir/k") == content(9)
        assert [entry.path async for entry in operator.list("dir/")] == ["dir/k"]
        root = operator.info.root.strip("/")
        if root:
            with pytest.raises(NotFound):
                await operator.read(f"{root}/dir/k")

    @checks("opendal:P1")
    async def test_path_case_and_unicode_forms_are_kept(self, operator: Operator) -> None:
        """Case and Unicode forms are kept: the keys are different."""
        composed, decomposed = "caf\u00e9", "cafe\u0301"
        await self.put_directly(composed, content(5))
        await self.put_directly(decomposed, content(6))
        assert await operator.read(composed) == content(5)
        assert await operator.read(decomposed) == content(6)

    @checks("opendal:P1")
    async def test_path_long_key(self, operator: Operator) -> None:
        """A key of 1,024 bytes, the maximum of S3, in segments that a file system accepts."""
        room = 1024 - len(operator.info.root.strip("/")) - bool(operator.info.root.strip("/"))
        key = "/".join(["n" * 127] * 8)[: room - 1] + "k"
        await self.put_directly(key, content(11))
        assert await operator.read(key) == content(11)

    @checks("opendal:P3")
    async def test_path_that_is_no_text(self, operator: Operator) -> None:
        """A wrong type, an embedded zero and an unpaired surrogate are typed errors."""
        for path in (None, 5, b"bytes"):
            with pytest.raises(TypeError):
                await operator.read(path)  # type: ignore[arg-type]
        for text in ("zero\0byte", "half \ud800 pair"):
            with pytest.raises(ValueError) as caught:  # noqa: PT011  the type below is the narrower check
                await operator.read(text)
            assert isinstance(caught.value, InvalidPath)


async def _list(operator: Operator, path: str) -> list[object]:
    return [entry async for entry in operator.list(path)]


async def _read_one_byte(operator: Operator, path: str) -> bytes:
    async with operator.reader(path) as reader:
        return await reader.read_at(0, 1)
