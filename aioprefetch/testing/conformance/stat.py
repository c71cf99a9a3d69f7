"""Conformance of `stat` and `exists`."""

import pytest

from aioprefetch.errors import NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.keys import SPECIAL_KEYS
from aioprefetch.testing.conformance.suite import ConformanceSuite, needs
from aioprefetch.testing.oracle import content


class StatChecks(ConformanceSuite):
    """Tests of `Operator.stat`."""

    @checks("opendal:S1")
    @needs("stat")
    async def test_stat_of_a_file_tells_its_exact_size(self, operator: Operator) -> None:
        """A file has kind, path, size and an ETag or a time."""
        await self.put_directly("a/file", content(1234))
        metadata = await operator.stat("a/file")
        assert (metadata.path, metadata.kind, metadata.size) == ("a/file", "file", 1234)
        assert metadata.etag or metadata.last_modified

    @checks("opendal:S1")
    @needs("stat")
    async def test_stat_of_an_empty_file_tells_zero(self, operator: Operator) -> None:
        """Zero is a size, not an unknown one."""
        await self.put_directly("empty", b"")
        assert (await operator.stat("empty")).size == 0

    @checks("opendal:S2")
    @needs("stat", "stat_directory")
    async def test_stat_of_a_file_with_a_slash_is_not_found(self, operator: Operator) -> None:
        """`file/` names a directory, which does not exist."""
        await self.put_directly("file", b"x")
        with pytest.raises(NotFound):
            await operator.stat("file/")

    @checks("opendal:S3", "opendal:S5")
    @needs("stat", "stat_directory")
    async def test_stat_of_a_parent_is_a_directory(self, operator: Operator) -> None:
        """Every parent of an object is a directory, whether or not it was created."""
        await self.put_directly("one/two/file", b"x")
        for path in ("one/", "one/two/"):
            metadata = await operator.stat(path)
            assert (metadata.path, metadata.kind) == (path, "directory")

    @checks("opendal:S3")
    @needs("stat", "stat_directory", "create_dir", "empty_directories")
    async def test_stat_of_a_created_directory(self, operator: Operator) -> None:
        """A directory made by `create_dir` has that kind."""
        await operator.create_dir("made/")
        assert (await operator.stat("made/")).is_directory

    @checks("opendal:S4")
    @needs("stat", "stat_directory")
    async def test_stat_of_a_directory_without_slash(self, operator: Operator) -> None:
        """Without its slash a directory is a directory or missing, never a file."""
        await self.put_directly("folder/file", b"x")
        try:
            metadata = await operator.stat("folder")
        except NotFound:
            return
        assert metadata.is_directory

    @checks("opendal:S6")
    @needs("stat", "double_slash_keys")
    async def test_stat_keys_are_kept_as_given(self, operator: Operator) -> None:
        """`a//b` is another object than `a/b`: keys are not normalised."""
        await self.put_directly("a//b", content(3))
        await self.put_directly("a/b", content(5))
        assert (await operator.stat("a//b")).size == 3
        assert (await operator.stat("a/b")).size == 5

    @checks("opendal:S7")
    @needs("stat")
    async def test_stat_of_what_is_missing(self, operator: Operator) -> None:
        """A missing file raises `FileNotFoundError` with its path."""
        with pytest.raises(NotFound) as caught:
            await operator.stat("no/such/file")
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.path == "no/such/file"

    @checks("opendal:S7")
    @needs("stat", "stat_directory")
    async def test_stat_of_a_missing_directory(self, operator: Operator) -> None:
        """A missing directory raises `NotFound`."""
        with pytest.raises(NotFound):
            await operator.stat("no/such/directory/")

    @checks("opendal:S9")
    async def test_stat_of_the_root_is_a_directory(self, operator: Operator) -> None:
        """The root always exists, without a request."""
        for path in ("", "/"):
            assert (await operator.stat(path)).is_directory

    @checks("opendal:S10")
    @needs("stat")
    async def test_stat_of_special_keys(self, operator: Operator) -> None:
        """Keys with spaces, percent signs and umlauts reach the store unchanged."""
        for key in SPECIAL_KEYS:
            await self.put_directly(key, content(7))
            metadata = await operator.stat(key)
            assert (metadata.path, metadata.size) == (key, 7)

    @checks("opendal:S7")
    @needs("stat")
    async def test_stat_exists(self, operator: Operator) -> None:
        """`exists` returns a bool and does not raise."""
        await self.put_directly("here", b"x")
        assert await operator.exists("here") is True
        assert await operator.exists("not here") is False
