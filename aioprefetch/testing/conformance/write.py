"""Conformance of `write`, `create_dir`, `delete`, `delete_all`, `copy` and renames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    IsADirectory,
    IsSameFile,
    NotADirectory,
    NotFound,
    Unsupported,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import SPECIAL_KEYS, ConformanceSuite, checks, needs
from aioprefetch.testing.oracle import assert_same_bytes, content, raises
from aioprefetch.values import CopyRequest, DeleteRequest, RenameRequest, WriteRequest

# More than the minimum part of a multipart upload (5 MiB), so that the upload has two parts.
LARGE = (5 << 20) + 12_345


async def pieces_of(data: bytes, piece_bytes: int) -> AsyncIterator[bytes | bytearray | memoryview]:
    """The data in pieces of several buffer types, some of them empty."""
    kinds = (bytes, bytearray, memoryview)
    for number, start in enumerate(range(0, len(data), piece_bytes)):
        yield kinds[number % 3](data[start : start + piece_bytes])
        yield b""


async def _stream(accessor: Accessor, request: WriteRequest, data: bytes) -> None:
    """Write by `open_write`, and abort on failure."""
    body = await accessor.open_write(request)
    try:
        await body.write(data)
        await body.close()
    except BaseException:
        await body.abort()
        raise


class WriteChecks(ConformanceSuite):
    """Tests of writing."""

    async def _stored(self, path: str) -> bytes:
        data = await self.get_directly(path)
        assert data is not None, f"{path} is not in the store"
        return data

    @checks("opendal:W1", "opendal:W10")
    @needs("write", "stat")
    async def test_write_write(self, operator: Operator) -> None:
        """The object is in the store, and the response agrees with `stat`."""
        written = await operator.write("w/k", content(1000))
        assert_same_bytes(await self._stored("w/k"), content(1000))
        assert (written.path, written.size) == ("w/k", 1000)
        metadata = await operator.stat("w/k")
        assert metadata.size == 1000
        assert written.etag in (None, metadata.etag)

    @checks("opendal:W2")
    @needs("write")
    async def test_write_empty_object(self, operator: Operator) -> None:
        """An empty object can be written, from a buffer and from an iterator."""
        await operator.write("empty", b"")
        assert await self._stored("empty") == b""
        await operator.write("empty iterator", pieces_of(b"", 1))
        assert await self._stored("empty iterator") == b""

    @checks("opendal:W3")
    @needs("write")
    async def test_write_directory_is_refused(self, operator: Operator) -> None:
        """A path with a slash at its end is not an object."""
        for path in ("folder/", "", "/"):
            with raises(IsADirectory):
                await operator.write(path, b"x")

    @checks("opendal:W4")
    @needs("write")
    async def test_write_special_keys(self, operator: Operator) -> None:
        """Special keys reach the store unchanged."""
        for key in SPECIAL_KEYS:
            await operator.write(key, content(50))
            assert_same_bytes(await self._stored(key), content(50), what=key)

    @checks("opendal:W5")
    @needs("write", "write_content_type", "stat")
    async def test_write_content_headers(self, operator: Operator) -> None:
        """Type, disposition, encoding and cache control are stored unchanged."""
        request = WriteRequest(
            path="typed",
            content_type="text/x-test",
            content_disposition='attachment; filename="a.txt"',
            content_encoding="identity",
            cache_control="max-age=60",
        )
        await operator.accessor().write(request, b"x")
        metadata = await operator.stat("typed")
        assert metadata.content_type == "text/x-test"
        assert metadata.content_disposition == 'attachment; filename="a.txt"'
        assert metadata.content_encoding == "identity"
        assert metadata.cache_control == "max-age=60"

    @checks("opendal:W5")
    @needs("write", "write_user_metadata", "stat")
    async def test_write_user_metadata(self, operator: Operator) -> None:
        """User metadata is stored."""
        await operator.accessor().write(WriteRequest(path="meta", user_metadata={"origin": "here"}), b"x")
        metadata = await operator.stat("meta")
        assert {name.lower(): value for name, value in metadata.user_metadata.items()} == {"origin": "here"}

    @checks("opendal:W5")
    @needs("write", without=("write_user_metadata",))
    async def test_write_user_metadata_is_refused_where_it_would_be_lost(self, operator: Operator) -> None:
        """User metadata that would be lost is refused, whole and streamed, and no object is written."""
        with raises(Unsupported):
            await operator.write("meta", b"x", user_metadata={"origin": "here"})
        with raises(Unsupported):
            await operator.write("meta", pieces_of(b"x", 1), user_metadata={"origin": "here"})
        assert await self.get_directly("meta") is None

    @checks("opendal:W5")
    @needs("write", "write_storage_class", "write_sse_kms")
    async def test_write_storage_class_and_key(self, operator: Operator) -> None:
        """An object of one request and one of several are written under both."""
        for size in (100, LARGE):
            await operator.write("kept", content(size), storage_class="STANDARD_IA", sse_kms_key_id="alias/a-key")
            assert_same_bytes(await self._stored("kept"), content(size))

    @checks("opendal:W5")
    @needs("write", "write_checksum")
    async def test_write_checksum(self, operator: Operator) -> None:
        """An object of one request and one of several are written with one."""
        for size in (100, LARGE):
            await operator.write("kept", content(size), checksum="crc32")
            assert_same_bytes(await self._stored("kept"), content(size))

    @checks("opendal:W5")
    @needs("write", without=("write_storage_class", "write_sse_kms", "write_checksum"))
    async def test_write_storage_class_key_and_checksum_are_refused_where_they_would_be_lost(
        self, operator: Operator
    ) -> None:
        """Whole, streamed and by a writer; no object is written."""
        chosen: list[dict[str, Any]] = [
            {"storage_class": "GLACIER"},
            {"sse_kms_key_id": "alias/a-key"},
            {"checksum": "sha256"},
        ]
        for options in chosen:
            for data in (b"x", pieces_of(b"x", 1)):
                with raises(Unsupported, match=next(iter(options))):
                    await operator.write("kept", data, **options)
            with raises(Unsupported):
                async with operator.writer("kept", **options) as writer:
                    await writer.write(b"x")
        assert await self.get_directly("kept") is None

    @checks("opendal:W6")
    @needs("write", "write_if_not_exists", "enforces_write_conditions")
    async def test_write_if_not_exists(self, operator: Operator) -> None:
        """The first write succeeds, the second is refused and the first object stays, whole and streamed."""
        accessor = operator.accessor()
        request = WriteRequest(path="once", if_not_exists=True)
        await accessor.write(request, b"first")
        with raises((AlreadyExists, ConditionNotMatch)):
            await accessor.write(request, b"second")
        with raises((AlreadyExists, ConditionNotMatch)):
            await _stream(accessor, request, b"third")
        assert await self._stored("once") == b"first"

    @checks("opendal:W6")
    @needs("write", "write_if_match", "enforces_write_conditions", "stat")
    async def test_write_if_match(self, operator: Operator) -> None:
        """Only the expected version is replaced."""
        await operator.write("k", b"first")
        etag = (await operator.stat("k")).etag
        with raises(ConditionNotMatch):
            await operator.accessor().write(WriteRequest(path="k", if_match="another"), b"second")
        assert await self._stored("k") == b"first"
        await operator.accessor().write(WriteRequest(path="k", if_match=etag), b"second")
        assert await self._stored("k") == b"second"

    @checks("opendal:W8")
    @needs("write", "write_stream")
    async def test_write_abort_leaves_no_object(self, operator: Operator) -> None:
        """An abort creates no object and changes none. It may be repeated."""
        await operator.write("old", b"old")
        for path in ("new", "old"):
            body = await operator.accessor().open_write(WriteRequest(path=path))
            await body.write(content(1000))
            await body.abort()
            await body.abort()
        assert await self.get_directly("new") is None
        assert await self._stored("old") == b"old"

    @checks("opendal:W8")
    @needs("write", "write_stream")
    async def test_write_source_that_fails_leaves_no_object(self, operator: Operator) -> None:
        """The error of an iterator is raised, and no object appears."""

        async def failing() -> AsyncIterator[bytes]:
            yield b"begun"
            raise ArithmeticError("the source failed")

        with raises(ArithmeticError, match="the source failed"):
            await operator.write("partial", failing())
        assert await self.get_directly("partial") is None

    @checks("opendal:W9", "opendal:W11")
    @needs("write", "write_stream")
    async def test_write_streamed_write(self, operator: Operator) -> None:
        """Small pieces of several buffer types make one object."""
        written = await operator.write("streamed", pieces_of(content(10_000), 777))
        assert_same_bytes(await self._stored("streamed"), content(10_000))
        assert written.size == 10_000

    @checks("opendal:W9")
    @needs("write", "write_stream")
    async def test_write_large_streamed_write(self, operator: Operator) -> None:
        """A streamed write may have more than one part."""
        await operator.write("large", pieces_of(content(LARGE), 1 << 20))
        assert_same_bytes(await self._stored("large"), content(LARGE))
        assert_same_bytes(await operator.read("large", offset=LARGE - 100, size=50), content(LARGE)[-100:-50])

    @checks("opendal:W11")
    @needs("write")
    async def test_write_any_buffer(self, operator: Operator) -> None:
        """`bytearray`, `memoryview` and slices can be written."""
        for data in (bytearray(content(100)), memoryview(content(100)), memoryview(content(200))[50:150]):
            await operator.write("buffer", data)
            assert_same_bytes(await self._stored("buffer"), bytes(data))

    @checks("opendal:W1")
    @needs("write")
    async def test_write_overwrite(self, operator: Operator) -> None:
        """The new object replaces the old one, and reads see it at once."""
        await operator.write("k", content(2000))
        assert_same_bytes(await operator.read("k"), content(2000))
        await operator.write("k", content(500, version=1))
        assert_same_bytes(await operator.read("k"), content(500, version=1))
        assert_same_bytes(await self._stored("k"), content(500, version=1))


class WriterChecks(ConformanceSuite):
    """Tests of `Operator.writer`, `delete` of several paths, and `move`."""

    @checks("opendal:W9", "opendal:W10")
    @needs("write", "stat")
    async def test_writer_appears_when_its_block_ends(self, operator: Operator) -> None:
        """Nothing is there before; then all of it is, under its metadata."""
        for data in map(content, (0, 10, 100_000, LARGE)):
            async with operator.writer("k") as writer:
                for start in range(0, len(data), 70_000):
                    await writer.write(data[start : start + 70_000])
                assert await self.get_directly("k") is None
            assert_same_bytes(await self.get_directly("k") or b"", data)
            metadata = await operator.stat("k")
            assert writer.metadata is not None
            assert writer.metadata.size == metadata.size == len(data)
            await operator.delete("k")

    @checks("opendal:W8")
    @needs("write")
    async def test_writer_of_a_failing_block_leaves_no_object(self, operator: Operator) -> None:
        """Neither a new one nor a change of an old one, whether it fails or is cancelled."""
        await operator.write("old", b"old")

        async def fail(path: str, size: int, error: BaseException) -> None:
            async with operator.writer(path) as writer:
                await writer.write(content(size))
                raise error

        for size in (10, LARGE):
            for path in ("new", "old"):
                for error in (ArithmeticError("no more"), asyncio.CancelledError()):
                    with raises(type(error)):
                        await fail(path, size, error)
        assert await self.get_directly("new") is None
        assert await self.get_directly("old") == b"old"

    @checks("opendal:W6")
    @needs("write", "write_if_not_exists", "enforces_write_conditions")
    async def test_writer_if_not_exists(self, operator: Operator) -> None:
        """Of several writers that were begun while there was no object, the first one to end wins."""
        writers = [operator.writer("once", if_not_exists=True) for _ in range(3)]
        for number, writer in enumerate(writers):
            await writer.write(bytes([number]) * 1000)
        await writers[1].close()
        late = await asyncio.gather(writers[0].close(), writers[2].close(), return_exceptions=True)
        assert all(isinstance(error, AlreadyExists | ConditionNotMatch) for error in late), late
        assert await self.get_directly("once") == b"\1" * 1000

    @checks("opendal:W6")
    @needs("write", "write_if_match", "enforces_write_conditions", "stat")
    async def test_writer_if_match(self, operator: Operator) -> None:
        """Only the expected version is replaced."""
        await operator.write("k", b"first")
        etag = (await operator.stat("k")).etag
        async with operator.writer("k", if_match=etag) as writer:
            await writer.write(b"second")
        late = operator.writer("k", if_match=etag)
        with raises(ConditionNotMatch):
            await late.close()
        assert await self.get_directly("k") == b"second"

    @checks("opendal:W8")
    @needs("write_part_bytes")
    async def test_writer_uploads_left_behind_are_removed(self, operator: Operator) -> None:
        """An upload that is neither completed nor aborted is listed and aborted, below its prefix."""
        for path in ("left/a", "other"):
            await operator.accessor().begin_upload(WriteRequest(path=path))
        assert await operator.abort_uploads("left/") == 1
        assert await operator.abort_uploads("left/") == 0
        assert await operator.abort_uploads() == 1


class CreateDirChecks(ConformanceSuite):
    """Tests of `Operator.create_dir`."""

    @checks("opendal:P4")
    @needs("create_dir")
    async def test_create_dir_name_without_slash_is_refused(self, operator: Operator) -> None:
        """The path of a directory ends with a slash."""
        with raises(NotADirectory):
            await operator.create_dir("folder")

    @checks("opendal:P4")
    @needs("create_dir", "stat_directory", "empty_directories")
    async def test_create_dir_existing_directory_is_no_error(self, operator: Operator) -> None:
        """An existing directory is valid, whether it was created or is a parent of an object."""
        await operator.create_dir("a/b/c/")
        await operator.create_dir("a/b/c/")
        await self.put_directly("d/file", b"x")
        await operator.create_dir("d/")
        for path in ("a/b/c/", "a/b/", "a/", "d/"):
            assert (await operator.stat(path)).is_directory
        assert await operator.read("d/file") == b"x"


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
        with raises(NotFound):
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

    @checks("opendal:D4")
    @needs("delete", "delete_if_match", "stat", "enforces_delete_conditions")
    async def test_delete_if_match(self, operator: Operator) -> None:
        """An object with another ETag stays, and the others of its batch go."""
        for path in ("a", "b", "c"):
            await self.put_directly(path, b"x")
        etags = {path: (await operator.stat(path)).etag or "" for path in ("a", "b")}
        await self.put_directly("b", b"newer")
        with raises(ConditionNotMatch) as caught:
            await operator.accessor().delete(DeleteRequest(path="a", paths=("a", "b", "c"), if_match=etags))
        assert caught.value.path == "b"
        assert [await self.get_directly(path) for path in ("a", "b", "c")] == [None, b"newer", None]

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
    """Tests of `Operator.copy`, and of renames by the accessor."""

    @checks("opendal:C1")
    @needs("copy")
    async def test_copy_missing_source(self, operator: Operator) -> None:
        """A missing source raises `NotFound` and creates no target."""
        with raises(NotFound) as caught:
            await operator.copy("no/such", "target")
        assert caught.value.operation == "copy"
        assert await self.get_directly("target") is None

    @checks("opendal:C2")
    @needs("copy")
    async def test_copy_directories_are_refused(self, operator: Operator) -> None:
        """Neither source nor target may be a directory."""
        await self.put_directly("k", b"x")
        for source, target in (("folder/", "target"), ("k", "folder/")):
            with raises(IsADirectory):
                await operator.copy(source, target)

    @checks("opendal:C3")
    @needs("copy")
    async def test_copy_to_itself_is_refused(self, operator: Operator) -> None:
        """A copy to itself is refused, and the object stays."""
        await self.put_directly("k", b"x")
        with raises(IsSameFile):
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
            with raises(NotFound):
                await operator.move("from", "to")

    @checks("opendal:C6")
    @needs("copy", "copy_if_not_exists")
    async def test_copy_if_not_exists(self, operator: Operator) -> None:
        """The object at a target stays; a free target gets the copy."""
        await self.put_directly("source", content(1000))
        await self.put_directly("taken", b"old")
        accessor = operator.accessor()
        with raises(AlreadyExists):
            await accessor.copy(CopyRequest(path="source", target="taken", if_not_exists=True))
        await accessor.copy(CopyRequest(path="source", target="free", if_not_exists=True))
        assert await self.get_directly("taken") == b"old"
        assert await self.get_directly("free") == content(1000)

    @checks("opendal:C6")
    @needs("copy", "copy_if_match", "stat", "replaces_at_once", "enforces_copy_conditions")
    async def test_copy_if_match(self, operator: Operator) -> None:
        """A source with another ETag is not copied."""
        await self.put_directly("source", b"x")
        etag = (await operator.stat("source")).etag
        await self.put_directly("source", b"newer")
        accessor = operator.accessor()
        with raises(ConditionNotMatch):
            await accessor.copy(CopyRequest(path="source", target="target", if_match=etag))
        assert await self.get_directly("target") is None
        newer = (await operator.stat("source")).etag
        await accessor.copy(CopyRequest(path="source", target="target", if_match=newer))
        assert await self.get_directly("target") == b"newer"

    @checks("opendal:C7")
    @needs("rename", "stat")
    async def test_rename(self, operator: Operator) -> None:
        """The object is only at the target, under all conditions, and is never renamed to itself."""
        await self.put_directly("from", content(1000))
        await self.put_directly("to", b"old")
        etag = (await operator.stat("from")).etag
        accessor = operator.accessor()
        for error, request in (
            (AlreadyExists, RenameRequest(path="from", target="to", if_not_exists=True)),
            (ConditionNotMatch, RenameRequest(path="from", target="to", if_match="another")),
            (IsSameFile, RenameRequest(path="from", target="from")),
            (IsADirectory, RenameRequest(path="from", target="to/")),
            (NotFound, RenameRequest(path="no/such", target="to")),
        ):
            with raises(error):
                await accessor.rename(request)
        assert [await self.get_directly(path) for path in ("from", "to")] == [content(1000), b"old"]
        await accessor.rename(RenameRequest(path="from", target="to", if_match=etag))
        metadata = await accessor.rename(RenameRequest(path="to", target="new/deep", if_not_exists=True))
        assert metadata.path == "new/deep"
        assert [await self.get_directly(path) for path in ("from", "to", "new/deep")] == [None, None, content(1000)]
