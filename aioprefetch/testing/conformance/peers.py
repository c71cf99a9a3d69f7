"""Conformance of presigned URLs, of parts, and of several clients of one key: lines of OpenDAL and object_store."""

from __future__ import annotations

import asyncio
import http.client
from typing import Any
from urllib.parse import urlsplit

from aioprefetch.errors import AlreadyExists, ConditionNotMatch, InvalidArgument, ObjectChanged, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import ConformanceSuite, checks, needs
from aioprefetch.testing.oracle import assert_same_bytes, content, raises
from aioprefetch.values import CompleteUploadRequest, PartRequest, PresignMethod, WriteRequest


async def _fetched(url: str, method: str, body: bytes | None = None) -> tuple[http.client.HTTPResponse, bytes]:
    """The response to a client that knows the URL alone."""

    def fetch() -> tuple[http.client.HTTPResponse, bytes]:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=30)
        try:
            connection.request(method, f"{parts.path}?{parts.query}", body)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    return await asyncio.to_thread(fetch)


class PresignChecks(ConformanceSuite):
    """Tests of `Operator.presign`."""

    @checks("opendal:G1", "opendal:G2", "opendal:G3", "opendal:G4")
    @needs("presign")
    async def test_presigned_urls_serve_a_plain_client(self, operator: Operator) -> None:
        """Written, described, read and deleted by nothing but the URL; each is for its method alone."""
        key, data = "signed/ä b+c%20", content(1000)

        async def call(method: PresignMethod, body: bytes | None = None) -> tuple[http.client.HTTPResponse, bytes]:
            response, received = await _fetched(await operator.presign(key, method=method), method, body)
            assert response.status in (200, 204), method
            return response, received

        await call("PUT", data)
        assert_same_bytes(await self.get_directly(key) or b"", data)
        head, _ = await call("HEAD")
        assert head.headers["content-length"] == "1000"
        assert_same_bytes((await call("GET"))[1], data)
        await call("DELETE")
        assert await self.get_directly(key) is None

    @checks("opendal:G5")
    @needs("presign", "presigns_headers")
    async def test_presigned_headers_of_the_response(self, operator: Operator) -> None:
        """A URL may set them, in place of the object's own."""
        await self.put_directly("k", b"x")
        wanted = {"content_type": "text/x-test", "content_disposition": "attachment", "cache_control": "no-store"}
        response, data = await _fetched(await operator.presign("k", **wanted), "GET")  # type: ignore[arg-type]
        assert data == b"x"
        assert {name: response.headers[name.replace("_", "-")] for name in wanted} == wanted


class PeerChecks(ConformanceSuite):
    """Tests of conditions, parts and versions that the suites of others have."""

    @checks("opendal:W12")
    @needs("write", "write_if_none_match", "stat")
    async def test_write_if_none_match(self, operator: Operator) -> None:
        """The object with that ETag alone is not replaced, whole and streamed."""
        await operator.write("k", b"first", if_none_match="another")
        etag = (await operator.stat("k")).etag
        with raises(ConditionNotMatch):
            await operator.write("k", b"second", if_none_match=etag)
        with raises(ConditionNotMatch):
            async with operator.writer("k", if_none_match=etag) as writer:
                await writer.write(b"third")
        assert await self.get_directly("k") == b"first"
        await operator.write("k", b"fourth", if_none_match="another")
        assert await self.get_directly("k") == b"fourth"

    @checks("opendal:W12")
    @needs("write", without=("write_if_none_match",))
    async def test_write_if_none_match_is_refused_where_it_would_be_ignored(self, operator: Operator) -> None:
        """Before any request."""
        with self.counting(operator) as spent, raises(Unsupported, match="if_none_match"):
            await operator.write("k", b"x", if_none_match="another")
        assert spent.none
        assert await self.get_directly("k") is None

    @checks("opendal:W12")
    @needs("write", "write_if_not_exists", "enforces_write_conditions")
    async def test_write_if_none_match_of_any_is_if_not_exists(self, operator: Operator) -> None:
        """`"*"` is every ETag."""
        await operator.write("k", b"first", if_none_match="*")
        with raises(AlreadyExists):
            await operator.write("k", b"second", if_none_match="*")
        with raises(InvalidArgument):
            await operator.write("k", b"second", if_none_match="*", if_match="another")
        assert await self.get_directly("k") == b"first"

    @checks("opendal:D7")
    @needs("list_versions", "delete_version", "keeps_versions")
    async def test_delete_batch_with_versions(self, operator: Operator) -> None:
        """Some versions of two objects, a missing object, and one without a version, which gets a delete marker."""
        for path in ("a", "b", "c"):
            for number in range(3):
                await self.put_directly(path, content(10, version=number))
        entries = [entry async for entry in operator.list(versions=True)]
        newest = {entry.path: entry.version for entry in entries if entry.is_latest}
        oldest = {entry.path: entry.version for entry in entries}
        doomed: list[str | tuple[str, str | None]] = [
            ("a", newest["a"]),
            ("a", oldest["a"]),
            ("b", oldest["b"]),
            "c",
            ("b", oldest["b"]),
        ]
        for _ in range(2):
            await operator.delete(doomed)
        left = [entry async for entry in operator.list(versions=True) if not entry.is_delete_marker]
        gone = {name for name in doomed if isinstance(name, tuple)}
        assert {(entry.path, entry.version) for entry in left} == {
            (entry.path, entry.version) for entry in entries
        } - gone
        assert_same_bytes(await operator.read("a"), content(10, version=1))
        assert not await operator.exists("c")

    @checks("opendal:D7")
    @needs("delete", without=("delete_version",))
    async def test_delete_batch_with_versions_is_refused_where_there_are_none(self, operator: Operator) -> None:
        """The objects themselves would be deleted."""
        await self.put_directly("k", b"x")
        with raises(Unsupported):
            await operator.delete(["k", ("k", "1")])
        assert await self.get_directly("k") == b"x"
        await operator.delete([("k", None)])
        assert await self.get_directly("k") is None

    @checks("opendal:C8")
    @needs("copy", "list_versions", "read_version", "keeps_versions")
    async def test_copy_of_a_version(self, operator: Operator) -> None:
        """An older version is copied as it is, and becomes the current one by a copy to another name."""
        for number in range(2):
            await self.put_directly("k", content(1000, version=number))
        oldest = [entry async for entry in operator.list("k", versions=True)][-1].version
        await operator.copy("k", "target", version=oldest)
        assert_same_bytes(await operator.read("target"), content(1000))
        assert_same_bytes(await operator.read("k"), content(1000, version=1))

    @checks("opendal:C9")
    @needs(
        "copy", "copy_part_bytes", "write_if_not_exists", "enforces_write_conditions", without=("copy_if_not_exists",)
    )
    async def test_copy_in_parts(self, operator: Operator) -> None:
        """The target appears whole, or is kept; then nothing is left of the upload."""
        await self.put_directly("source", content(1000))
        await self.put_directly("taken", b"old")
        await operator.copy("source", "free", if_not_exists=True)
        assert await self.get_directly("free") == content(1000)
        with raises(AlreadyExists):
            await operator.copy("source", "taken", if_not_exists=True)
        assert await self.get_directly("taken") == b"old"
        assert await operator.abort_uploads() == 0

    @checks("opendal:C10")
    @needs("copy", "delete", "write_if_not_exists", "enforces_write_conditions")
    async def test_copy_move_if_not_exists(self, operator: Operator) -> None:
        """The object at the target stays, and the source too."""
        await self.put_directly("from", b"new")
        await self.put_directly("to", b"old")
        with raises(AlreadyExists):
            await operator.move("from", "to", if_not_exists=True)
        assert [await self.get_directly(path) for path in ("from", "to")] == [b"new", b"old"]
        await operator.move("from", "free", if_not_exists=True)
        assert [await self.get_directly(path) for path in ("from", "free")] == [None, b"new"]

    @checks("object_store:O1")
    @needs("write", "write_if_match", "write_if_not_exists", "stat", "atomic_conditions", "enforces_write_conditions")
    async def test_write_by_five_that_count(self, operator: Operator) -> None:
        """Each reads the number and replaces the version that it has read: none is lost."""
        await operator.write("count", b"0")

        async def count() -> None:
            done = 0
            while done < 10:
                etag = (await operator.stat("count")).etag
                try:
                    number = int(await operator.read("count", if_match=etag))
                    await operator.write("count", str(number + 1).encode(), if_match=etag)
                    done += 1
                except (ConditionNotMatch, ObjectChanged):  # Another one wrote: before this request, or while it read.
                    await asyncio.sleep(0)

        async with asyncio.TaskGroup() as counting:
            for _ in range(5):
                counting.create_task(count())
        assert await self.get_directly("count") == b"50"

    @checks("object_store:O2", "object_store:O3")
    @needs("write_part_bytes")
    async def test_writer_of_two_uploads_of_one_key(self, operator: Operator) -> None:
        """Their parts are sent in turns, the last one first; the upload that ends last is the object."""
        accessor = operator.accessor()
        sizes = accessor.capability.write_part_bytes, 1000
        uploads = [await accessor.begin_upload(WriteRequest(path="k")) for _ in range(2)]
        whole = [content(sum(sizes), version=number) for number in range(2)]
        parts: list[dict[int, Any]] = [{}, {}]
        for number, (start, end) in ((2, (sizes[0], sum(sizes))), (1, (0, sizes[0]))):
            for upload, data, sent in zip(uploads, whole, parts, strict=True):
                request = PartRequest(path="k", upload_id=upload, number=number)
                sent[number] = await accessor.write_part(request, data[start:end])
        for upload, data, sent in zip(uploads, whole, parts, strict=True):
            await accessor.complete_upload(CompleteUploadRequest(path="k", upload_id=upload, parts=(sent[1], sent[2])))
            assert_same_bytes(await self.get_directly("k") or b"", data)

    @checks("object_store:O5")
    @needs("write_part_bytes", "write_content_type", "write_user_metadata", "stat")
    async def test_writer_in_parts_keeps_what_describes(self, operator: Operator) -> None:
        """As a write of the whole does."""
        described: dict[str, Any] = {"content_type": "text/x-test", "content_encoding": "identity"}
        described |= {"content_disposition": "attachment", "cache_control": "max-age=60"}
        described["user_metadata"] = {"origin": "here"}
        for size in (10, operator.capability.write_part_bytes + 1):
            await operator.write("k", bytes(size), **described)
            metadata = await operator.stat("k")
            assert (metadata.size, {name: getattr(metadata, name) for name in described}) == (size, described)
