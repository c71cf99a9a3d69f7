"""Responses that would pass for right ones: other bytes, other lengths, pages of another server, invalid heads."""

import asyncio
import gzip
import tracemalloc

import pytest

from aioprefetch.errors import ConditionNotMatch, ObjectChanged, ProtocolError, Unavailable
from aioprefetch.testing import Fault, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content
from tests.reliability.scripted import ATTEMPTS, LENGTH, OFFSET, PAGE, SIZE, Serve, always, once

# A response against the protocol is given one more chance, on another connection.
PROTOCOL_TRIES = 2
ERROR_DOCUMENT = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>We are sorry</Message></Error>'
LAST = OFFSET + LENGTH - 1
# Socket buffers of both sides take some megabytes on loopback before a sender notices that its peer does not read.
UNREAD_BYTES_MAX = 16 << 20


def page(body: bytes, content_type: str) -> Fault:
    """200 with a document that is no object."""
    return Fault(status=200, body=body, headers={"Content-Type": content_type})


PAGES = {"s08-error": page(ERROR_DOCUMENT, "application/xml"), "s55-html": page(PAGE, "text/html")}


@pytest.mark.parametrize("fault", PAGES.values(), ids=PAGES)
@checks("reliability:S08", "reliability:S55")
async def test_a_page_with_status_200_is_no_object(serve_s3: Serve, fault: Fault) -> None:
    """For a part and for the whole: objects of S3 have ETags."""
    async with serve_s3(once(fault)) as scripted:
        await scripted.read()
        scripted.server.add(once(fault, 2))
        await scripted.read(0, None)
        scripted.server.assert_requests("GET", "GET", "GET", "GET")
        scripted.server.add(always(fault))
        await scripted.fail(ProtocolError, requests=PROTOCOL_TRIES)


@pytest.mark.parametrize("fault", PAGES.values(), ids=PAGES)
@checks("reliability:S08", "reliability:S55")
async def test_a_page_instead_of_the_pinned_version(serve: Serve, fault: Fault) -> None:
    """Plain HTTP knows objects without ETags, but what has been pinned is held to."""
    async with serve() as scripted:
        meta = await scripted.operator.stat("k")
        async with scripted.operator.reader("k", size=meta.size, etag=meta.etag) as reader:
            scripted.server.add(always(fault))
            with pytest.raises((ProtocolError, ObjectChanged)):
                await reader.read_at(OFFSET, LENGTH)
        assert scripted.server.count("GET") <= PROTOCOL_TRIES


@pytest.mark.parametrize("fault", PAGES.values(), ids=PAGES)
@checks("reliability:S08", "reliability:S55")
async def test_a_page_instead_of_the_rest(serve: Serve, fault: Fault) -> None:
    """It is no response of S3, and of plain HTTP it is another version than the one that has begun to arrive."""
    async with serve(once(Fault(close_after_bytes=100)), once(fault, 1)) as scripted:
        if scripted.service == "s3":
            await scripted.read()
            scripted.server.assert_requests("GET", "GET", "GET")
        else:
            error = await scripted.fail(ObjectChanged, requests=2)
            assert error.received == 100


SHORT = {
    "s16-length": Fault(short_by_bytes=5),
    "s16-range": Fault(short_by_bytes=5, content_range=f"bytes {OFFSET}-{LAST - 5}/{SIZE}"),
    "s16-range-unknown-total": Fault(short_by_bytes=5, content_range=f"bytes {OFFSET}-{LAST - 5}/*"),
    "s17-empty": Fault(body=b""),
    "s19-forward": Fault(content_range_shift_bytes=1),
    "s19-backward": Fault(content_range_shift_bytes=-1),
    "s19-far": Fault(content_range_shift_bytes=4096),
    "s20-none": Fault(omit_content_range=True),
    "s20-nonsense": Fault(content_range="bytes some-more/all"),
    "s20-beyond-its-total": Fault(content_range=f"bytes {OFFSET}-{LAST}/{LAST}"),
}


@pytest.mark.parametrize("fault", SHORT.values(), ids=SHORT)
@checks("opendal:R31", "reliability:S16", "reliability:S17", "reliability:S19", "reliability:S20")
async def test_a_part_that_is_not_the_one_asked_for(serve: Serve, fault: Fault) -> None:
    """Once: asked for again, exact bytes. Always: an error, and not a byte delivered."""
    async with serve(once(fault)) as scripted:
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")
        scripted.server.add(always(fault))
        error = await scripted.fail(ProtocolError, requests=PROTOCOL_TRIES)
        assert (error.received, error.status) == (0, "persistent")


@checks("reliability:S22")
async def test_a_total_that_the_server_does_not_know(serve: Serve) -> None:
    """The range is exact and the ETag the pinned one: that is enough."""
    fault = Fault(content_range=f"bytes {OFFSET}-{LAST}/*")
    async with serve(always(fault)) as scripted:
        await scripted.read()
        meta = await scripted.operator.stat("k")
        await scripted.read(if_match=meta.etag)
        scripted.server.assert_requests("GET", "HEAD", "GET")
        scripted.server.behave()
        scripted.server.add(always(Fault(content_range=f"bytes {OFFSET}-{LAST}/*", etag='"other"')))
        await scripted.fail(ConditionNotMatch, requests=1, if_match=meta.etag)


@checks("reliability:S23")
async def test_the_whole_object_for_all_of_it_is_taken(serve: Serve) -> None:
    async with serve(always(Fault(ignore_range=True))) as scripted:
        await scripted.read(0, SIZE)
        await scripted.read(0, 2 * SIZE)
        scripted.server.assert_requests("GET", "GET")


@pytest.mark.parametrize("offset", [0, OFFSET, 1 << 20])
@checks("opendal:R30", "reliability:S23")
async def test_the_whole_object_for_a_part_is_not_read(serve_s3: Serve, offset: int) -> None:
    """It is broken off at its head, both times."""
    async with serve_s3(always(Fault(ignore_range=True))) as scripted:
        scripted.server.objects["bucket/k"] = content(32 << 20)
        await scripted.fail(ProtocolError, requests=PROTOCOL_TRIES, offset=offset, size=100)
        await scripted.server.wait_until_idle()
        assert scripted.server.bytes_sent < PROTOCOL_TRIES * UNREAD_BYTES_MAX


@checks("opendal:R30", "reliability:S23")
async def test_a_server_that_obeyed_ranges_before(serve_http: Serve) -> None:
    """Plain HTTP has servers without ranges; of one that has them the whole object is a lapse."""
    async with serve_http(skip_bytes_max=0) as scripted:
        await scripted.read()
        scripted.server.objects["bucket/k"] = content(32 << 20)
        scripted.server.add(once(Fault(ignore_range=True), 1))
        await scripted.read()
        scripted.server.add(always(Fault(ignore_range=True)))
        await scripted.fail(ProtocolError, requests=PROTOCOL_TRIES)
        await scripted.server.wait_until_idle()
        assert scripted.server.bytes_sent < (1 + PROTOCOL_TRIES) * UNREAD_BYTES_MAX


@checks("reliability:S56", "reliability:K13")
async def test_what_is_stored_compressed_is_not_inflated(serve: Serve) -> None:
    async with serve(always(Fault(headers={"Content-Encoding": "gzip"}))) as scripted:
        scripted.server.objects["bucket/k"] = packed = gzip.compress(content(SIZE))
        await scripted.read(0, None)
        await scripted.read(10, len(packed) // 2)
        assert all(request.headers["accept-encoding"] == "identity" for request in scripted.server.requests)


@checks("reliability:S57")
async def test_a_chunked_part_has_its_length_from_content_range(serve: Serve) -> None:
    async with serve(always(Fault(chunked=True))) as scripted:
        for _ in range(5):
            await scripted.read()
            await scripted.read(0, SIZE)
        scripted.server.assert_requests(*["GET"] * 10)
        assert scripted.server.connections <= 2


@checks("reliability:S57")
async def test_a_whole_object_without_a_length(serve_http: Serve) -> None:
    """Plain HTTP has such servers; S3 always tells the length."""
    async with serve_http(always(Fault(chunked=True))) as scripted:
        await scripted.read(0, None)
        scripted.server.assert_requests("GET")


FRAMINGS = {
    "two-lengths": Fault(header_lines=("Content-Length: 5",)),
    "two-lengths-in-one": Fault(headers={"Content-Length": f"{LENGTH}, 5"}),
    "length-and-chunks": Fault(chunked=True, header_lines=(f"Content-Length: {LENGTH}",)),
    "chunks-and-length": Fault(headers={"Transfer-Encoding": "chunked"}),
    "unknown-coding": Fault(chunked=True, headers={"Transfer-Encoding": "gzip, chunked"}),
    "chunked-twice": Fault(chunked=True, headers={"Transfer-Encoding": "chunked, chunked"}),
    "length-with-sign": Fault(headers={"Content-Length": f"+{LENGTH}"}),
    "length-of-nothing": Fault(headers={"Content-Length": ""}),
    "length-negative": Fault(headers={"Content-Length": "-1"}),
    "length-huge": Fault(headers={"Content-Length": str(1 << 70)}),
    "space-before-colon": Fault(headers={"Content-Length": None, "Content-Length ": str(LENGTH)}),
    "folded": Fault(header_lines=("X-Folded: one", " two")),
    "no-colon": Fault(header_lines=("nonsense",)),
    "null": Fault(header_lines=("X-Null: a\0b",)),
    "no-http": Fault(raw=b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "bad-status": Fault(raw=b"HTTP/1.1 2x6 Partial\r\n\r\n"),
}


@pytest.mark.parametrize("fault", FRAMINGS.values(), ids=FRAMINGS)
@checks("reliability:S58")
async def test_a_head_that_can_be_read_in_two_ways_is_refused(serve: Serve, fault: Fault) -> None:
    """Its connection is closed: what follows could be anything."""
    async with serve(always(fault)) as scripted:
        error = await scripted.fail(ProtocolError, requests=PROTOCOL_TRIES)
        assert error.received == 0
        await scripted.server.wait_until_idle()
        ids = [request.connection_id for request in scripted.server.requests]
        assert len(set(ids)) == PROTOCOL_TRIES


# Right answers but for their heads.
START = b'HTTP/1.1 206 Partial Content\r\nETag: "etag"\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n' % (
    LENGTH,
    OFFSET,
    LAST,
    SIZE,
)
END = b"\r\n" + bytes(LENGTH)
HEADS = {
    "one-line": START + b"X-Long: " + b"x" * (1 << 20) + b"\r\n" + END,
    "many-headers": START + b"".join(b"X-%d: y\r\n" % number for number in range(10_000)) + END,
    "many-short-headers": START + b"a:\r\n" * 10_000 + END,
    "a-line-without-end": START + b"X-Long: " + b"x" * (8 << 20),
    "a-status-without-end": b"HTTP/1.1 206 " + b"x" * (8 << 20),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@checks("reliability:S59", "reliability:K12")
async def test_a_head_without_measure_is_refused(serve: Serve, head: bytes) -> None:
    """Without reading it to its end, and with no more memory than a head may take."""
    async with serve() as scripted:
        await scripted.read()  # What the first request alone needs does not count.
        scripted.server.add(always(Fault(raw=head)))
        tracemalloc.start()
        try:
            await scripted.fail(ProtocolError, requests=PROTOCOL_TRIES)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 2 << 20
        await scripted.server.wait_until_idle()


ENTITIES = "".join(f'<!ENTITY e{n} "{"".join(f"&e{n - 1};" for _ in range(10))}">' for n in range(1, 12))
BOMB = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e0 "ha">{ENTITIES}]><Error><Code>&e11;</Code></Error>'.encode()


@pytest.mark.parametrize("kind", ["text/xml", "application/octet-stream"])
@checks("reliability:S60", "reliability:K30")
async def test_an_endless_error_is_reported_by_its_status(serve: Serve, kind: str) -> None:
    """The text of an error is read up to a measure; the rest is never received."""
    body = bytes(100 << 20)
    async with serve() as scripted:
        await scripted.read()
        scripted.server.add(always(Fault(status=500, body=body, headers={"Content-Type": kind})))
        tracemalloc.start()
        try:
            error = await scripted.fail(Unavailable, requests=ATTEMPTS)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 500 in error.context.values()
        assert peak_bytes < 4 << 20
        await scripted.server.wait_until_idle()
        assert scripted.server.bytes_sent < ATTEMPTS * UNREAD_BYTES_MAX


@checks("reliability:S60")
async def test_an_error_that_would_inflate_is_reported_by_its_status(serve: Serve) -> None:
    async with serve(always(Fault(status=500, body=BOMB))) as scripted, asyncio.timeout(5):
        error = await scripted.fail(Unavailable, requests=ATTEMPTS)
        assert 500 in error.context.values()
        assert len(str(error)) < 2000


LENGTHS = {"absent": None, "negative": "-1", "no number": "many", "beyond 64 bits": str(1 << 70)}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
@checks("reliability:S64", "reliability:K24")
async def test_a_stat_whose_size_is_none(serve: Serve, length: str | None) -> None:
    """Nothing is allocated for it. Plain HTTP asks by GET where a HEAD tells nothing."""
    fault = Fault(headers={"Content-Length": length})
    async with serve(Rule(fault=fault, times=None, method="HEAD")) as scripted:
        if scripted.service == "http" and length is None:
            assert (await scripted.operator.stat("k")).size == SIZE
            scripted.server.assert_requests("HEAD", "GET")
        else:
            with pytest.raises(ProtocolError):
                await scripted.operator.stat("k")
            scripted.server.assert_requests(*["HEAD"] * PROTOCOL_TRIES)


@checks("reliability:S65")
async def test_a_flipped_bit_is_the_limit_of_what_can_be_seen(serve: Serve) -> None:
    """A ranged answer carries no checksum: the bytes are the server's, and so is the error."""
    async with serve(once(Fault(flip_byte_at=77))) as scripted:
        found = await scripted.operator.read("k", offset=OFFSET, size=LENGTH)
        wrong = [at for at in range(LENGTH) if found[at] != scripted.data[OFFSET + at]]
        assert wrong == [77]
        scripted.server.assert_requests("GET")
