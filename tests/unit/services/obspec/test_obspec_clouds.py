"""Azure's and Google's stores of obstore, against a server that answers as theirs do."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from obstore.store import MemoryStore

from aioprefetch.errors import ConditionNotMatch, Error, InvalidArgument, NotFound, RangeNotSatisfied, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from tests.unit.services.obspec.plain import GetOnly
from tests.unit.services.obspec.stores import SECRET, azure_store, gcs_store, response, s3_store, serving

DATA = bytes(range(250)) * 40
WHEN = "Wed, 21 Oct 2015 07:28:00 GMT"
LISTING = b"""<?xml version="1.0" encoding="utf-8"?>
<EnumerationResults ServiceEndpoint="x" ContainerName="container"><Blobs>
<Blob><Name>d/k</Name><Properties><Last-Modified>Wed, 21 Oct 2015 07:28:00 GMT</Last-Modified><Etag>0x1</Etag>
<Content-Length>10000</Content-Length><Content-Type>x/y</Content-Type></Properties></Blob>
<BlobPrefix><Name>d/sub/</Name></BlobPrefix></Blobs><NextMarker/></EnumerationResults>"""


class Cloud:
    """One object, `k`; keeps the requests."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    async def __call__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        text = head.decode()
        self.heads.append(text)
        path = text.split(" ")[1].partition("?")[0]
        if "comp=list" in text:
            writer.write(response("200 OK", LISTING))
        elif not path.endswith("/k"):
            writer.write(response("404 Not Found", b"<Error><Code>BlobNotFound</Code></Error>"))
        elif (wanted := re.search(r"(?im)^if-match: (.*)\r$", text)) and wanted[1] != '"0x1"':
            writer.write(response("412 Precondition Failed"))
        else:
            writer.write(self._object(text))

    def _object(self, text: str) -> bytes:
        facts: dict[str, Any] = {"ETag": '"0x1"', "Last_Modified": WHEN}
        bounds = re.search(r"(?im)^(?:x-ms-)?range: bytes=(\d+)-(\d*)\r$", text)
        if text.startswith("HEAD"):
            return response("200 OK", **facts, Content_Length=str(len(DATA)))
        if bounds is None:
            return response("200 OK", DATA, **facts)
        start, end = int(bounds[1]), min(int(bounds[2] or len(DATA)) + 1, len(DATA))
        if start >= end:
            body = b"<?xml version='1.0'?><Error><Code>InvalidRange</Code></Error>"
            return response("416 The range specified is invalid", body)
        return response("206 Partial", DATA[start:end], **facts, Content_Range=f"bytes {start}-{end - 1}/{len(DATA)}")

    def methods(self) -> list[str]:
        """Of all requests so far, which are forgotten."""
        methods = [head.split(" ")[0] for head in self.heads]
        self.heads.clear()
        return methods


@pytest.mark.parametrize("make", [azure_store, gcs_store])
async def test_reads_and_readers(make: Callable[[int], Any]) -> None:
    """Ranges with one request each, no HEAD; the version pinned; the edges in our words."""
    cloud = Cloud()
    async with serving(cloud) as port, Operator(ObspecStore(make(port))) as op:
        assert await op.read("k") == DATA
        assert await op.read("k", offset=100, size=50) == DATA[100:150]
        async with op.reader("k", block_bytes=4096, prefetch_blocks=0) as reader:
            assert await reader.read_at(0, 10) == DATA[:10]
            assert await reader.read_at(9000, 2000) == DATA[9000:]
        assert cloud.methods() == ["GET"] * 4
        with pytest.raises(ConditionNotMatch):
            await op.read("k", if_match="0x2")
        with pytest.raises(RangeNotSatisfied) as caught:
            await op.read("k", offset=len(DATA))
        assert caught.value.total == len(DATA)
        with pytest.raises(NotFound):
            await op.read("other")
        found = await op.stat("k")
        assert (found.size, found.etag) == (len(DATA), "0x1")


async def test_azure_has_no_suffix_ranges() -> None:
    """Complete asks for the size first, and pins what it belongs to."""
    cloud = Cloud()
    async with serving(cloud) as port, Operator(ObspecStore(azure_store(port))) as op:
        assert await op.read("k", suffix=100) == DATA[-100:]
        assert 'if-match: "0x1"' in cloud.heads[-1].lower()
        assert cloud.methods() == ["HEAD", "GET"]


async def test_google_has_them() -> None:
    """One request, in the form of HTTP."""
    cloud = Cloud()
    async with serving(cloud) as port, Operator.bare(ObspecStore(gcs_store(port))) as op:
        with pytest.raises(Error):
            await op.read("k", suffix=100)  # this server does not know the form
        assert "range: bytes=-100" in cloud.heads[0].lower()


async def test_azure_lists() -> None:
    """Files and directories of one level."""
    cloud = Cloud()
    async with serving(cloud) as port, Operator(ObspecStore(azure_store(port))) as op:
        found = [(entry.path, entry.kind, entry.size) async for entry in op.list("d/")]
    assert found == [("d/k", "file", 10_000), ("d/sub/", "directory", None)]


async def test_a_shared_access_signature_stays_secret() -> None:
    """It travels in the query of each request and stands in no error."""
    cloud = Cloud()
    async with serving(cloud) as port, Operator(ObspecStore(azure_store(port))) as op:
        with pytest.raises(NotFound) as caught:
            await op.read("other")
        assert SECRET in cloud.heads[0]
        assert SECRET not in str(caught.value) + repr(caught.value.__cause__)
        assert SECRET not in repr(op.info)


async def test_presigned_urls() -> None:
    """Where the store has something to sign with; they do what they say for as long as they say."""
    async with Operator(ObspecStore(s3_store(1), prefix="p")) as op:
        assert op.capability.presign
        url = await op.presign("a b", expires_seconds=60)
        assert url.startswith("http://127.0.0.1:1/bucket/p/a%20b?")
        assert "X-Amz-Expires=60&" in url
        for wrong in (0, 8 * 24 * 3600):
            with pytest.raises(InvalidArgument):
                await op.presign("k", expires_seconds=wrong)
    for store in (azure_store(1), gcs_store(1), MemoryStore(), GetOnly()):
        async with Operator(ObspecStore(store)) as op:
            assert not op.capability.presign
            with pytest.raises(Unsupported):
                await op.presign("k")
