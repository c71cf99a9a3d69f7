"""A body in chunks: copied whole, at the pace of the sink, and never more of it than its head promised."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.sink import CollectSink, Sink, copy_chunks
from aioprefetch.errors import ProtocolError, Unavailable
from aioprefetch.values import ReadHead, ReadRequest

REQUEST = ReadRequest(path="k")


def one_by_one(chunks: Iterable[bytes]) -> Callable[[], Awaitable[bytes | None]]:
    """The chunks, and None at their end."""
    left = iter(chunks)

    async def next_chunk() -> bytes | None:
        return next(left, None)

    return next_chunk


async def copy(chunks: Iterable[bytes], sink: Sink, size: int) -> None:
    head = ReadHead(start=0, size=size, total=size, etag="e")
    sink.begin(head)
    await copy_chunks(one_by_one(chunks), REQUEST, sink, head)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_every_split_of_a_body(chunks: list[bytes]) -> None:
    """Empty chunks included."""
    sink, data = CollectSink(), b"".join(chunks)
    asyncio.run(copy(chunks, sink, len(data)))
    assert sink.to_bytes() == data


async def test_a_body_that_ends_early_keeps_what_has_come() -> None:
    sink = CollectSink()
    with pytest.raises(Unavailable, match="after 3 of 5 bytes"):
        await copy([b"abc"], sink, 5)
    assert sink.to_bytes() == b"abc"


async def test_nothing_of_a_chunk_that_is_too_long_reaches_the_sink() -> None:
    sink = CollectSink()
    with pytest.raises(ProtocolError, match="more bytes than were asked for: over 5"):
        await copy([b"abc", b"def"], sink, 5)
    assert sink.to_bytes() == b"abc"


async def test_chunks_behind_the_last_byte_are_not_asked_for() -> None:
    sink = CollectSink()
    await copy([b"abc", b"more"], sink, 3)
    assert sink.to_bytes() == b"abc"


class Slow(CollectSink):
    """Full after every piece, until `drained` is awaited."""

    is_paced = True
    is_full = False

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[int] = []

    def _advanced(self) -> None:
        self.is_full = True

    async def drained(self) -> None:
        self.waits.append(self.received)
        self.is_full = False


async def test_a_full_sink_is_awaited_before_the_next_chunk() -> None:
    sink = Slow()
    await copy([b"ab", b"c", b"", b"de"], sink, 5)
    assert sink.to_bytes() == b"abcde"
    assert sink.waits == [2, 3]


async def test_a_large_chunk_is_copied_at_the_pace_of_the_sink() -> None:
    class InPieces(Slow):
        piece_bytes_max = 2

    sink = InPieces()
    await copy([b"abcdefg"], sink, 7)
    assert sink.to_bytes() == b"abcdefg"
    assert sink.waits == [2, 4, 6]


async def test_a_cancellation_while_the_sink_is_full_asks_for_no_further_chunk() -> None:
    asked = []

    class Full(CollectSink):
        is_paced = True
        is_full = True

        async def drained(self) -> None:
            await asyncio.Event().wait()

    async def next_chunk() -> bytes | None:
        asked.append(1)
        return b"a"

    sink, head = Full(), ReadHead(start=0, size=5, total=5, etag="e")
    sink.begin(head)
    copying = asyncio.create_task(copy_chunks(next_chunk, REQUEST, sink, head))
    await asyncio.sleep(0)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert asked == [1]
