"""Connections that break: before the head, in the body, after it; and reads that go on at the exact byte."""

import random

import pytest

from aioprefetch.errors import Error, ProtocolError, Unavailable
from aioprefetch.testing import Fault, ReceivedRequest, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import assert_same_bytes
from tests.reliability.scripted import (
    ATTEMPTS,
    HANG_SECONDS,
    LENGTH,
    OFFSET,
    SIZE,
    Scripted,
    Serve,
    always,
    check_range,
    once,
)

LAST = OFFSET + LENGTH - 1
CUTS = [1, 4096, LENGTH - 1]
FIRST_BYTES = (OFFSET, LAST)


def check_resumed(scripted: Scripted, cut: int, *, exactly: bool) -> None:
    """The second request asked for the rest alone, of the same version, and on a connection of its own."""
    first, second = scripted.ranges()
    assert first == FIRST_BYTES
    assert second[1] == LAST
    # A reset may throw away what the kernel had not delivered; nothing that was delivered is asked for again.
    assert second[0] == OFFSET + cut if exactly else OFFSET <= second[0] <= OFFSET + cut
    requests = scripted.server.requests
    assert requests[1].headers.get("if-match") or second == first
    assert requests[1].connection_id != requests[0].connection_id


@pytest.mark.parametrize("fault", [Fault(reset_before_head=True), Fault(drop=True)], ids=["s09-RST", "s11-FIN"])
@checks("reliability:S09", "reliability:S11")
async def test_a_new_connection_breaks_before_the_head(serve: Serve, fault: Fault) -> None:
    async with serve(once(fault)) as scripted:
        await scripted.read()
        scripted.server.assert_requests("GET", "GET")


@pytest.mark.parametrize("fault", [Fault(reset_before_head=True), Fault(drop=True)], ids=["s09-RST", "s11-FIN"])
@checks("reliability:S09", "reliability:S11")
async def test_every_new_connection_breaks_before_the_head(serve: Serve, fault: Fault) -> None:
    async with serve(always(fault)) as scripted:
        error = await scripted.fail(Unavailable, requests=ATTEMPTS)
        assert (error.status, error.received) == ("persistent", 0)


def is_reused(request: ReceivedRequest) -> bool:
    """Whether the connection has served a request before."""
    return request.connection_index > 0


@pytest.mark.parametrize("fault", [Fault(reset_before_head=True), Fault(drop=True)], ids=["RST", "FIN"])
@checks("reliability:S10")
async def test_a_connection_that_was_kept_breaks(serve: Serve, fault: Fault) -> None:
    """It says nothing about the store: one request more, on a new connection."""
    async with serve(Rule(fault=fault, matches=is_reused, times=None)) as scripted:
        for number in range(4):
            await scripted.read(number, 100)
        assert scripted.server.count("GET") <= 4 + 3
        assert scripted.operator.statistics["retries"] == 0
        assert [request.connection_index for request in scripted.server.requests].count(0) == 4


@pytest.mark.parametrize("fault", [Fault(reset_before_head=True), Fault(drop=True)], ids=["RST", "FIN"])
@checks("reliability:S10")
async def test_the_requests_on_broken_connections_are_bounded(serve: Serve, fault: Fault) -> None:
    async with serve() as scripted:
        await scripted.read()
        scripted.server.add(always(fault))
        await scripted.fail(Unavailable)
        assert scripted.server.count("GET") - 1 <= 2 * ATTEMPTS


@checks("reliability:S12")
async def test_a_reset_between_head_and_body(serve: Serve) -> None:
    async with serve(once(Fault(reset_after_bytes=0))) as scripted:
        await scripted.read()
        assert scripted.ranges() == [FIRST_BYTES, FIRST_BYTES]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@checks("opendal:R29", "reliability:S13")
async def test_a_body_cut_by_fin_goes_on_at_the_exact_byte(serve: Serve, cut: int, chunked: bool) -> None:
    async with serve(once(Fault(close_after_bytes=cut, chunked=chunked))) as scripted:
        await scripted.read()
        check_resumed(scripted, cut, exactly=True)
        assert scripted.server.bytes_sent == LENGTH


@pytest.mark.parametrize("cut", CUTS)
@checks("opendal:R29", "reliability:S14")
async def test_a_body_cut_by_a_reset_goes_on(serve: Serve, cut: int) -> None:
    async with serve(once(Fault(reset_after_bytes=cut))) as scripted:
        await scripted.read()
        if len(scripted.server.requests) > 1:  # All but the last bytes may be lost, or none.
            check_resumed(scripted, cut, exactly=False)


@pytest.mark.parametrize("cut", CUTS)
@checks("reliability:S13")
async def test_a_stream_goes_on_too(serve: Serve, cut: int) -> None:
    async with (
        serve(once(Fault(close_after_bytes=cut))) as scripted,
        scripted.operator.reader("k") as reader,
    ):
        found = bytearray()
        async with reader.stream(chunk_bytes=10_000) as stream:
            async for chunk in stream:
                found += chunk
        assert_same_bytes(found, scripted.data)
        assert scripted.server.bytes_sent == SIZE


@checks("reliability:S13")
async def test_every_attempt_is_cut_and_every_one_brings_something(serve: Serve) -> None:
    """What was delivered is not asked for again; the end comes when the attempts do."""
    step = 5_000
    async with serve(always(Fault(close_after_bytes=step))) as scripted:
        error = await scripted.fail(Unavailable, requests=ATTEMPTS)
        assert (error.received, error.status) == (ATTEMPTS * step, "persistent")
        assert scripted.ranges() == [(OFFSET + number * step, LAST) for number in range(ATTEMPTS)]


@pytest.mark.parametrize("cut", [0, *CUTS])
@checks("reliability:S15")
async def test_a_body_without_length_that_ends_early_is_no_end_of_file(serve: Serve, cut: int) -> None:
    """`Content-Range` tells how long it has to be."""
    async with serve(once(Fault(omit_content_length=True, close_after_bytes=cut))) as scripted:
        await scripted.read()
        check_resumed(scripted, cut, exactly=True)


@checks("reliability:S15")
async def test_a_chunked_body_that_ends_properly_and_early(serve: Serve) -> None:
    short = Fault(chunked=True, short_by_bytes=5)
    async with serve(once(short)) as scripted:
        await scripted.read()
        assert scripted.ranges() == [FIRST_BYTES, (LAST - 4, LAST)]


@checks("reliability:S15")
async def test_a_whole_object_in_chunks_that_ends_early(serve_http: Serve) -> None:
    """Without its last chunk it is not whole. Nothing tells its length, so it is asked for from the start."""
    fault = Fault(chunked=True, ignore_range=True, close_after_bytes=CUTS[1])
    async with serve_http(once(fault), always(Fault(ignore_range=True))) as scripted:
        await scripted.read(0, None)
        scripted.server.assert_ranges("bytes=0-16777215", "bytes=0-16777215")
    async with serve_http(always(fault)) as scripted:
        await scripted.fail(Unavailable, requests=ATTEMPTS, offset=0, size=None)


@checks("reliability:S17")
async def test_an_announced_body_that_never_has_a_byte(serve: Serve) -> None:
    """No progress, and so no more attempts than for any other failure."""
    async with serve(always(Fault(close_after_bytes=0))) as scripted:
        error = await scripted.fail(Unavailable, requests=ATTEMPTS)
        assert error.received == 0


@pytest.mark.parametrize(
    "extra", [b"x", b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\r\nbad"], ids=["byte", "forged"]
)
@checks("reliability:S18")
async def test_a_connection_with_bytes_after_the_body_is_not_used_again(serve: Serve, extra: bytes) -> None:
    async with serve(once(Fault(extra_body=extra))) as scripted:
        await scripted.read()
        await scripted.read(0, 100)
        first, second = scripted.server.requests
        assert second.connection_id != first.connection_id


@pytest.mark.parametrize("cut", [Fault(close_after_bytes=LENGTH), Fault(reset_after_bytes=LENGTH)], ids=["FIN", "RST"])
@checks("reliability:S66")
async def test_what_happens_after_the_last_byte_does_not_matter(serve: Serve, cut: Fault) -> None:
    """The server announces another body and closes: everything wanted has come."""
    async with serve(once(cut)) as scripted:
        await scripted.read()
        if cut.close_after_bytes is not None:
            scripted.server.assert_requests("GET")


@checks("reliability:S66")
async def test_a_slow_consumer_of_a_body_whose_server_has_gone(serve: Serve) -> None:
    """The last bytes are still on their way when the connection ends."""
    async with serve(once(Fault(close_after_bytes=SIZE))) as scripted, scripted.operator.reader("k") as reader:
        content = bytearray()
        async with reader.stream(chunk_bytes=10_000) as chunks:
            async for chunk in chunks:
                await scripted.server.wait_until_idle()
                content += chunk
        assert_same_bytes(content, scripted.data)
        scripted.server.assert_requests("GET")


@checks("reliability:S67")
async def test_a_server_that_closes_after_every_response(serve: Serve) -> None:
    async with serve(always(Fault(connection_close=True))) as scripted:
        for number in range(20):
            await scripted.read(number, 100)
        assert scripted.server.count("GET") == scripted.server.connections == 20


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
@checks("reliability:S68")
async def test_a_server_that_drops_idle_connections(serve: Serve, reset: bool) -> None:
    """A hundred gaps in which it does, without having said so: no read notices."""
    async with serve(always(Fault(close_after_reply=True))) as scripted:
        if reset:
            scripted.server.behave()
            scripted.server.add(Rule(fault=Fault(reset_before_head=True), matches=is_reused, times=None))
        for number in range(100):
            await scripted.read(number, 100)
            if not reset:
                await scripted.server.wait_until_idle()
        assert scripted.server.count("GET") <= 2 * 100
        assert scripted.operator.statistics["retries"] == 0


@checks("reliability:S69", "reliability:C27")
async def test_byte_by_byte_over_a_body_that_is_resumed(serve: Serve) -> None:
    """As many more requests as there were faults."""
    size, cuts = 300, 3
    script = [once(Fault(close_after_bytes=50 + number), index=number) for number in range(cuts)]
    async with serve(*script, size=size) as scripted, scripted.operator.reader("k") as reader:
        found = [await reader.read(1) for _ in range(size)]
        assert_same_bytes(b"".join(found), scripted.data)
        assert await reader.read(1) == b""
        assert scripted.server.count("GET") == 1 + cuts
        assert scripted.operator.statistics["retries_resumed"] == cuts
        assert scripted.server.bytes_sent == size


@checks("reliability:S26")
async def test_no_range_without_a_byte_is_ever_sent(serve: Serve) -> None:
    """Whatever is read and wherever it breaks, also after the last byte and in empty pieces."""
    draws = random.Random(26)
    size = 200
    async with serve(size=size) as scripted:
        for _ in range(40):
            scripted.server.behave()
            cuts = [draws.choice([None, 0, 1, draws.randrange(size), size]) for _ in range(2)]
            scripted.server.add(*(Rule(fault=Fault(close_after_bytes=cut)) for cut in cuts))
            offset = draws.choice([0, draws.randrange(size), size - 1])
            await scripted.read(offset, draws.choice([0, 1, size - offset, 2 * size, None]))
        for request in scripted.server.requests:
            check_range(request.range)
        assert len(scripted.server.requests) > 40
        assert all(first <= last for first, last in scripted.ranges())


@checks("reliability:S25")
async def test_nothing_is_asked_for_where_nothing_is(serve: Serve) -> None:
    """Empty pieces, and what lies at the known end of an object."""
    async with serve() as scripted:
        assert await scripted.operator.read("k", offset=5, size=0) == b""
        assert await scripted.operator.read("k", suffix=0) == b""
        assert await scripted.operator.read_ranges("k", [(7, 7), (SIZE, SIZE)]) == [b"", b""]
        async with scripted.operator.reader("k", size=SIZE, etag="pinned") as reader:
            assert await reader.read_at(SIZE, 10) == b""
            assert await reader.read_at(2 * SIZE, 10) == b""
        async with scripted.operator.reader("k", size=0, etag="pinned") as reader:
            assert await reader.read() == b""
        assert scripted.server.requests == []


@checks("reliability:S25")
async def test_an_empty_object(serve: Serve) -> None:
    """Its range is refused by the store; that is an empty answer and no error."""
    async with serve() as scripted:
        scripted.server.objects["bucket/empty"] = b""
        assert await scripted.operator.read("empty") == b""
        async with scripted.operator.reader("empty") as reader:
            assert await reader.read_at(0, 10) == b""
            assert await reader.read_at(5, 10) == b""
            assert reader.size == 0
        assert scripted.server.count() <= 3


BAD_CHUNKS = {
    "no size": b"xyz\r\n",
    "negative": b"-5\r\nhello\r\n",
    "too long": b"FFFFFFFFFFFFFFFFF\r\nhello",
    "no line end": b"5\r\nhelloworld\r\n0\r\n\r\n",
    "endless size": b"0" * 70_000,
    "bare line feed": b"5\nhello\n0\n\n",
}


@pytest.mark.parametrize("body", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
@checks("reliability:S58")
async def test_a_bad_chunk_is_refused_and_its_connection_closed(serve: Serve, body: bytes) -> None:
    async with serve(always(Fault(chunked=True, raw_body=body)), read_timeout_seconds=HANG_SECONDS) as scripted:
        with pytest.raises(Error) as caught:
            await scripted.operator.read("k", offset=OFFSET, size=LENGTH)
        assert isinstance(caught.value, ProtocolError | Unavailable)
        assert scripted.server.count("GET") <= ATTEMPTS
        await scripted.server.wait_until_idle()
