"""Heads of stores that do as S3 does, but for a detail: empty objects, empty ETags."""

import pytest

import aioprefetch as ap
from aioprefetch.errors import ProtocolError, Unavailable
from tests.stores.faulty_bucket import PAGE
from tests.stores.key_server import Asked, Bent, KeyServer, Said, error

NOTHING = '"d41d8cd98f00b204e9800998ecf8427e"'


@pytest.mark.parametrize(
    ("content_range", "etag"),
    [
        ("bytes 0--1/0", NOTHING),
        ("bytes 0--1/0", '"another"'),
        ("bytes 0-0/0", '"another"'),
        ("bytes */0", '"another"'),
        ("bytes NaN-NaN/0", '"another"'),
        ("bytes 0--1/*", NOTHING),
        ("bytes 0-7/8", NOTHING),
        (None, NOTHING),
    ],
)
async def test_an_empty_object_whatever_its_206_says(content_range: str | None, etag: str) -> None:
    """Whole, by a range, by a suffix, by a reader and by its stream."""
    headers = {"ETag": etag} | ({} if content_range is None else {"Content-Range": content_range})
    async with KeyServer({}, Bent("get", Said(206, b"", headers), times=99)) as server, server.operator() as op:
        assert await op.read("k") == b""
        assert await op.read("k", suffix=8) == b""
        assert await op.read("k", offset=0, size=10) == b""
        async with op.reader("k") as reader:
            assert await reader.read_at(0, 10) == b""
            assert reader.size == 0
            assert [bytes(chunk) async for chunk in reader.stream()] == []


@pytest.mark.parametrize("content_range", ["bytes 0-9/10", "bytes 0-9/*", "bytes */10", None])
async def test_no_bytes_of_another_object_are_not_an_empty_one(content_range: str | None) -> None:
    headers = {"ETag": '"e"'} | ({} if content_range is None else {"Content-Range": content_range})
    async with KeyServer({}, Bent("get", Said(206, b"", headers), times=99)) as server, server.operator() as op:
        with pytest.raises(ProtocolError):
            await op.read("k")


async def test_an_empty_etag_is_that_of_an_object_without_one() -> None:
    """A read and a look agree; a response without the header is another server's."""
    found = {"ETag": "", "Content-Length": "3", "Last-Modified": "Tue, 01 Jan 2030 00:00:00 GMT"}
    bent = (Bent("get", Said(200, b"one", found), times=9), Bent("head", Said(200, b"", found), times=9))
    async with KeyServer({}, *bent) as server, server.operator() as op:
        assert await op.read("k") == b"one"
        assert (await op.stat("k")).etag is None
        async with op.reader("k") as reader:
            assert await reader.read_at(0, 3) == b"one"
    page = Bent("get", Said(200, PAGE), times=9)
    async with KeyServer({}, page) as server, server.operator() as op:
        with pytest.raises(ProtocolError, match="no ETag"):
            await op.read("k")


@pytest.mark.parametrize("status", [460, 499])
@pytest.mark.parametrize("body", [b"", PAGE])
async def test_a_client_that_is_said_to_have_gone_asks_again(status: int, body: bytes) -> None:
    async with KeyServer({"k": b"one"}, Bent("get", Said(status, body))) as server, server.operator() as op:
        assert await op.read("k") == b"one"
        server.bent = [Bent("get", Said(status, body), times=99)]
        with pytest.raises(Unavailable):
            await op.read("k")


CODES = ["RequestThrottled", "KMS.ThrottlingException", "ProvisionedThroughputExceededException"]


@pytest.mark.parametrize("code", CODES)
async def test_throttling_has_many_names(code: str) -> None:
    async with KeyServer({"k": b"one"}, Bent("get", error(400, code))) as server, server.operator() as op:
        assert await op.read("k") == b"one"
        assert op.statistics["throttled"] == 1


NAMES = {"utf-8": 'attachment; filename="é 日本.csv"', "latin-1": 'attachment; filename="é.csv"', "ascii": "inline"}


@pytest.mark.parametrize("charset", NAMES)
async def test_headers_beyond_ascii_survive_a_copy(charset: str) -> None:
    """A text is what people read, in whichever of two charsets it comes; it goes out as UTF-8."""
    name = NAMES[charset]

    def described(asked: Asked, right: Said) -> Said:
        found = source.done(asked)
        sent = name.encode(charset).decode("latin-1")
        return Said(found.status, found.body, {**found.headers, "Content-Disposition": sent})

    bent = [Bent(verb, described, times=99) for verb in ("get", "head")]
    async with KeyServer({"k": b"one"}, *bent) as source, KeyServer() as target:
        async with source.operator() as a, target.operator() as b:
            assert (await a.stat("k")).content_disposition == name
            await ap.copy((a, "k"), (b, "k"))
        (put,) = [asked for asked in target.asked if asked.verb == "put"]
        assert put.headers["content-disposition"].encode("latin-1").decode() == name


async def test_what_gcs_decompresses_is_named() -> None:
    """Its response has no length, and a range of it no end."""

    def decompressed(asked: Asked, right: Said) -> Said:
        headers = {"ETag": '"e"', "x-goog-stored-content-encoding": "gzip", "Transfer-Encoding": "chunked"}
        return Said(200, b"3\r\none\r\n0\r\n\r\n", headers)

    async with KeyServer({}, Bent("get", decompressed, times=9)) as server, server.operator() as op:
        with pytest.raises(ProtocolError, match="GCS decompresses") as refused:
            await op.read("k")
        assert refused.value.status == "permanent"
        assert server.verbs == ["get"]
