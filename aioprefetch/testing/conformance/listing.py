"""Conformance of `stat`, `exists` and `list`."""

from __future__ import annotations

from aioprefetch.errors import NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import SPECIAL_KEYS, ConformanceSuite, checks, needs
from aioprefetch.testing.oracle import content, raises
from aioprefetch.values import Entry, ListRequest


class StatChecks(ConformanceSuite):
    """Tests of `Operator.stat`."""

    @checks("opendal:S1")
    @needs("stat")
    async def test_stat_of_a_file_tells_its_exact_size(self, operator: Operator) -> None:
        """A file has kind, path and size; ETag and time, where the store sends them, are the same each time."""
        await self.put_directly("a/file", content(1234))
        metadata = await operator.stat("a/file")
        assert (metadata.path, metadata.kind, metadata.size) == ("a/file", "file", 1234)
        assert await operator.stat("a/file") == metadata

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
        with raises(NotFound):
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
        with raises(NotFound) as caught:
            await operator.stat("no/such/file")
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.path == "no/such/file"

    @checks("opendal:S7")
    @needs("stat", "stat_directory")
    async def test_stat_of_a_missing_directory(self, operator: Operator) -> None:
        """A missing directory raises `NotFound`."""
        with raises(NotFound):
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


TREE = {"dir/a": 1, "dir/b": 2, "dir/sub/c": 3, "dir/sub/deep/d": 4, "dir2/e": 5, "top": 6}


class ListChecks(ConformanceSuite):
    """Tests of `Operator.list`."""

    async def _plant(self) -> None:
        for path, size in TREE.items():
            await self.put_directly(path, content(size))

    async def _list(self, operator: Operator, path: str, **options: object) -> dict[str, Entry]:
        entries = [entry async for entry in operator.list(path, **options)]  # type: ignore[arg-type]
        by_path = {entry.path: entry for entry in entries}
        assert len(by_path) == len(entries), "an entry was given twice"
        return by_path

    @checks("opendal:L1", "opendal:L12")
    @needs("list")
    async def test_list_entries_have_kind_and_size(self, operator: Operator) -> None:
        """Each file with its size, each directory with a slash."""
        await self._plant()
        listed = await self._list(operator, "dir/")
        assert {path: (entry.kind, entry.size) for path, entry in listed.items() if not entry.is_directory} == {
            "dir/a": ("file", 1),
            "dir/b": ("file", 2),
        }
        assert listed["dir/sub/"].is_directory

    @checks("opendal:L2", "opendal:L8")
    @needs("list")
    async def test_list_is_one_level_deep_and_leaves_the_directory_out(self, operator: Operator) -> None:
        """Deeper entries are folded into directories; the listed directory is not an entry of itself."""
        await self._plant()
        assert sorted(await self._list(operator, "dir/")) == ["dir/a", "dir/b", "dir/sub/"]

    @checks("opendal:L3")
    @needs("list")
    async def test_list_directory_without_slash_is_a_prefix(self, operator: Operator) -> None:
        """Keys that begin with the prefix are folded at the next slash."""
        await self._plant()
        assert sorted(await self._list(operator, "dir/su")) == ["dir/sub/"]
        assert sorted(await self._list(operator, "dir")) == ["dir/", "dir2/"]

    @checks("opendal:L4")
    @needs("list")
    async def test_list_prefix_that_is_a_file(self, operator: Operator) -> None:
        """The file is listed."""
        await self._plant()
        listed = await self._list(operator, "dir/a")
        assert {path: entry.size for path, entry in listed.items()} == {"dir/a": 1}

    @checks("opendal:L5")
    @needs("list")
    async def test_list_more_than_one_page(self, operator: Operator) -> None:
        """Over pages of three, each entry is listed once, and in the order of keys where the service promises it."""
        names = [f"many/{name}" for name in ("0", "00", "a-b", "a.b/c", "a/b", "a/b-c", "a/b.d/e", "a0", "b")]
        folded = [f"many/{name}" for name in ("0", "00", "a-b", "a.b/", "a/", "a0", "b")]
        for name in names:
            await self.put_directly(name, b"x")
        for recursive, expected in ((False, folded), (True, names)):
            accessor, paths, token = operator.accessor(), [], None
            for _ in range(20):
                page = await accessor.list_page(
                    ListRequest(path="many/", page_entries_max=3, page_token=token, recursive=recursive)
                )
                paths += [entry.path for entry in page.entries]
                token = page.next_token
                if token is None:
                    break
            assert sorted(paths) == expected
            assert paths == sorted(paths) or not operator.capability.list_ordered

    @checks("opendal:L6")
    @needs("list")
    async def test_list_what_does_not_exist_is_empty(self, operator: Operator) -> None:
        """A prefix without entries is an empty listing, not an error."""
        assert await self._list(operator, "no/such/") == {}
        assert await self._list(operator, "no-such") == {}
        assert await self._list(operator, "no/such/", recursive=True) == {}

    @checks("opendal:L7", "opendal:L2")
    @needs("list", "create_dir")
    async def test_list_empty_directory(self, operator: Operator) -> None:
        """An empty directory has no entries, not even itself."""
        await operator.create_dir("hollow/")
        assert await self._list(operator, "hollow/") == {}
        assert await self._list(operator, "hollow/", recursive=True) == {}

    @checks("opendal:L8")
    @needs("list", "list_recursive")
    async def test_list_recursive(self, operator: Operator) -> None:
        """Every file at any depth is listed with its size."""
        await self._plant()
        listed = await self._list(operator, "dir/", recursive=True)
        files = {path: entry.size for path, entry in listed.items() if not entry.is_directory}
        assert files == {path: size for path, size in TREE.items() if path.startswith("dir/")}

    @checks("opendal:L9", "opendal:L12")
    @needs("list", "list_recursive")
    async def test_list_root_recursive(self, operator: Operator) -> None:
        """The root may be written as the empty path; paths are relative to it."""
        await self._plant()
        listed = await self._list(operator, "", recursive=True)
        assert {path: entry.size for path, entry in listed.items() if not entry.is_directory} == TREE

    @checks("opendal:L8")
    @needs("list")
    async def test_list_root(self, operator: Operator) -> None:
        """A listing of the root is one level deep."""
        await self._plant()
        assert sorted(await self._list(operator, "")) == ["dir/", "dir2/", "top"]

    @checks("opendal:L10")
    @needs("list", "list_start_after")
    async def test_list_start_after_is_exclusive(self, operator: Operator) -> None:
        """The listing starts after the name, without the name itself."""
        for number in range(5):
            await self.put_directly(f"s/{number}", b"x")
        assert sorted(await self._list(operator, "s/", start_after="s/2")) == ["s/3", "s/4"]
        assert sorted(await self._list(operator, "s/", start_after="s/2a", recursive=True)) == ["s/3", "s/4"]
        assert await self._list(operator, "s/", start_after="s/9") == {}

    @checks("opendal:L1")
    @needs("list")
    async def test_list_left_early(self, operator: Operator) -> None:
        """A listing has `aclose`, leaves no request behind, and the next listing starts at the beginning."""
        await self._plant()
        async with operator.list("", recursive=False) as entries:
            async for _ in entries:
                break
        entries = operator.list("")
        await anext(aiter(entries))
        await entries.aclose()
        await entries.aclose()
        assert len(await self._list(operator, "")) == 3

    @checks("opendal:L8")
    @needs("list", "list_recursive")
    async def test_list_glob(self, operator: Operator) -> None:
        """A pattern selects paths."""
        await self._plant()
        listed = await self._list(operator, "dir/", recursive=True, glob="dir/**/[cd]")
        assert sorted(path for path, entry in listed.items() if not entry.is_directory) == [
            "dir/sub/c",
            "dir/sub/deep/d",
        ]
