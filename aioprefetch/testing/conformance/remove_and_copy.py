"""Conformance of `delete`, `delete_all` and `copy`."""

import pytest

from aioprefetch.errors import IsADirectory, IsSameFile, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.keys import SPECIAL_KEYS
from aioprefetch.testing.conformance.suite import ConformanceSuite, needs
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import DeleteRequest


class DeleteChecks(ConformanceSuite):
    """Tests of deleting."""

    @checks("opendal:D1")
    @needs("delete")
    async def test_delete(self, operator: Operator) -> None:
        """A deleted object is missing in the store and for reads."""
        await self.put_directly("k", content(10))
        assert await operator.read("k") == content(10)
        await operator.delete("k")
        assert await self.get_directly("k") is None
        with pytest.raises(NotFound):
            await operator.read("k")

    @checks("opendal:D2")
    @needs("delete")
    async def test_delete_what_is_missing_succeeds(self, operator: Operator) -> None:
        """Deleting a missing object succeeds."""
        await operator.delete("no/such")

    @checks("opendal:D3")
    @needs("delete", "create_dir", "stat_directory")
    async def test_delete_of_an_empty_directory(self, operator: Operator) -> None:
        """A directory made by `create_dir` is deleted by its path with a slash."""
        await operator.create_dir("folder/")
        await operator.delete("folder/")
        assert not await operator.exists("folder/")

    @checks("opendal:D4")
    @needs("delete")
    async def test_delete_batch(self, operator: Operator) -> None:
        """A batch deletes its paths, missing ones among them, and no other object."""
        for number in range(5):
            await self.put_directly(f"b/{number}", b"x")
        paths = ("b/0", "b/1", "b/missing", "b/3")
        await operator.accessor().delete(DeleteRequest(path=paths[0], paths=paths))
        left = [number for number in range(5) if await self.get_directly(f"b/{number}") is not None]
        assert left == [2, 4]

    @checks("opendal:D5")
    @needs("delete", "list")
    async def test_delete_all(self, operator: Operator) -> None:
        """All objects below a directory are deleted, and no others."""
        for path in ("all/a", "all/b/c", "all/b/d/e", "all2/f", "alls"):
            await self.put_directly(path, b"x")
        await operator.delete_all("all/")
        for path in ("all/a", "all/b/c", "all/b/d/e"):
            assert await self.get_directly(path) is None
        assert await self.get_directly("all2/f") == b"x"
        assert await self.get_directly("alls") == b"x"
        await operator.delete_all("no/such/")

    @checks("opendal:D1", "opendal:D4")
    @needs("delete")
    async def test_delete_several_paths(self, operator: Operator) -> None:
        """All of them are deleted, missing ones are ignored, and no others go."""
        for number in range(5):
            await self.put_directly(f"several/{number}", b"x")
        await operator.delete(f"several/{number}" for number in (0, 7, 2, 4))
        await operator.delete([])
        left = [number for number in range(5) if await self.get_directly(f"several/{number}") is not None]
        assert left == [1, 3]

    @checks("opendal:D1")
    @needs("delete")
    async def test_delete_special_keys(self, operator: Operator) -> None:
        """Special keys reach the store unchanged, and no other object is deleted."""
        await self.put_directly("other", b"y")
        for key in SPECIAL_KEYS:
            await self.put_directly(key, b"x")
            await operator.delete(key)
            assert await self.get_directly(key) is None, key
        assert await self.get_directly("other") == b"y"


class CopyChecks(ConformanceSuite):
    """Tests of `Operator.copy`."""

    @checks("opendal:C1")
    @needs("copy")
    async def test_copy_missing_source(self, operator: Operator) -> None:
        """A missing source raises `NotFound` and creates no target."""
        with pytest.raises(NotFound) as caught:
            await operator.copy("no/such", "target")
        assert caught.value.operation == "copy"
        assert await self.get_directly("target") is None

    @checks("opendal:C2")
    @needs("copy")
    async def test_copy_directories_are_refused(self, operator: Operator) -> None:
        """Neither source nor target may be a directory."""
        await self.put_directly("k", b"x")
        for source, target in (("folder/", "target"), ("k", "folder/")):
            with pytest.raises(IsADirectory):
                await operator.copy(source, target)

    @checks("opendal:C3")
    @needs("copy")
    async def test_copy_to_itself_is_refused(self, operator: Operator) -> None:
        """A copy to itself is refused, and the object stays."""
        await self.put_directly("k", b"x")
        with pytest.raises(IsSameFile):
            await operator.copy("k", "k")
        assert await self.get_directly("k") == b"x"

    @checks("opendal:C4", "opendal:C5")
    @needs("copy")
    async def test_copy(self, operator: Operator) -> None:
        """A copy creates missing directories or replaces the target, and keeps the source."""
        await self.put_directly("source", content(1000))
        await self.put_directly("old", content(10, version=1))
        for target in ("new/deep/target", "old"):
            await operator.copy("source", target)
            stored = await self.get_directly(target)
            assert stored is not None
            assert_same_bytes(stored, content(1000), what=target)
            assert_same_bytes(await operator.read(target), content(1000), what=target)
        assert await self.get_directly("source") == content(1000)

    @checks("opendal:C4")
    @needs("copy")
    async def test_copy_special_keys(self, operator: Operator) -> None:
        """Special keys work as source and as target."""
        for key in SPECIAL_KEYS[1:7:2]:  # A copy is slow on some servers, so only some keys are tried.
            await self.put_directly(key, content(20))
            await operator.copy(key, "copied/" + key)
            assert await self.get_directly("copied/" + key) == content(20), key

    @checks("opendal:C4")
    @needs("copy", "delete")
    async def test_copy_move(self, operator: Operator) -> None:
        """The object is at the target alone, which it replaces."""
        await self.put_directly("from", content(1000))
        await self.put_directly("to", b"old")
        await operator.move("from", "to")
        assert await self.get_directly("from") is None
        for _ in range(2):
            assert_same_bytes(await self.get_directly("to") or b"", content(1000))
            with pytest.raises(NotFound):
                await operator.move("from", "to")
