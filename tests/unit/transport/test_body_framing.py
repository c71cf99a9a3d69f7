"""Chunked bodies, in every split; and what is refused."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ProtocolError
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.transport.responses import LINE_BYTES_MAX, TRAILER_BYTES_MAX, ChunkedDecoder
from tests.profile import each_of


def decode(data: bytes, cuts: list[int] | None = None) -> tuple[bytes, bool, bytes]:
    """Body, whether it is at its end, what follows. ``cuts``: the sizes of the pieces in which the data comes."""
    decoder = ChunkedDecoder()
    body, position = b"", 0
    for size in (*(cuts or []), len(data)):
        piece = data[position : position + size]
        position += len(piece)
        if decoder.ended:
            return body, True, decoder.rest + piece + data[position:]
        body += b"".join(decoder.feed(memoryview(piece)))
    return body, decoder.ended, decoder.rest


@checks("reliability:C27")
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    extension=st.sampled_from([b"", b";a", b" ; a=b", b';a="b c"', b" "]),
    trailers=st.sampled_from([b"", b"X: 1\r\n", b"X:\r\nY: \xe9\r\n"]),
    rest=st.binary(max_size=10),
    cuts=st.lists(st.integers(1, 50), max_size=40),
    upper=st.booleans(),
)
def test_every_split_gives_the_same(
    chunks: list[bytes], extension: bytes, trailers: bytes, rest: bytes, cuts: list[int], upper: bool
) -> None:
    size = b"%X" if upper else b"%x"
    data = b"".join(size % len(chunk) + extension + b"\r\n" + chunk + b"\r\n" for chunk in chunks)
    data += b"0" + extension + b"\r\n" + trailers + b"\r\n"
    assert decode(data + rest, cuts) == (b"".join(chunks), True, rest)
    assert decode(data[:-1], cuts)[:2] == (b"".join(chunks), False)


def test_the_pieces_are_views_of_what_was_fed() -> None:
    data = bytearray(b"3\r\nabc\r\n2\r\nde\r\n")
    pieces = ChunkedDecoder().feed(memoryview(data))
    assert [bytes(piece) for piece in pieces] == [b"abc", b"de"]
    assert all(piece.obj is data for piece in pieces)


@each_of(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5_0\r\n",
        b"5 5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"5\r\nhello\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhell\r\no\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5;a\0b\r\nhello\r\n",
        b"5;a\rb\r\nhello\r\n",
        b"1" + b"0" * 15 + b"\r\n",
        b"f" * 100 + b"\r\n",
        b";a\r\n",
        b"0\r\nX\r\n\r\n",
        b"0\r\n X: 1\r\n\r\n",
        b"0\r\nX : 1\r\n\r\n",
        b"0\r\nX: \0\r\n\r\n",
        b"0\r\nX: 1\n\r\n",
        b"0\r\n\n",
        b"\xd9\xa3\r\nabc\r\n",
    ],
)
@each_of("cuts", [[], [1] * 200])
def test_what_is_refused(data: bytes, cuts: list[int]) -> None:
    with pytest.raises(ProtocolError):
        decode(data, cuts)


def test_nothing_is_given_on_that_came_after_the_error() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(memoryview(b"3\r\nabc\r")) == [memoryview(b"abc")]
    with pytest.raises(ProtocolError):
        decoder.feed(memoryview(b"X3\r\ndef\r\n"))
    assert not decoder.ended


@each_of("piece_bytes", [1 << 20, 1000, 1])
def test_lines_end_somewhere(piece_bytes: int) -> None:
    cuts = [piece_bytes] * 20_000
    assert decode(b"1;" + b"a" * (LINE_BYTES_MAX - 2) + b"\r\nx\r\n0\r\n\r\n", cuts) == (b"x", True, b"")
    with pytest.raises(ProtocolError):
        decode(b"1;" + b"a" * (LINE_BYTES_MAX + 1), cuts)


@pytest.mark.parametrize("line", [b"X: 1\r\n", b"X: " + b"v" * 4000 + b"\r\n"])
def test_trailers_end_somewhere(line: bytes) -> None:
    few = TRAILER_BYTES_MAX // len(line) // 2
    assert decode(b"0\r\n" + line * few + b"\r\n") == (b"", True, b"")
    with pytest.raises(ProtocolError):
        decode(b"0\r\n" + line * (TRAILER_BYTES_MAX // (len(line) - 2) + 1))


def test_a_size_that_no_memory_has_allocates_nothing() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(memoryview(b"f" * 15 + b"\r\nab")) == [memoryview(b"ab")]
    assert not decoder.ended


@pytest.mark.cost
def test_chunks_of_one_byte_cost_little_more_than_looking_at_them() -> None:
    """In CPU time, against a parser that only cuts at line ends: a server must not buy much of ours with few bytes."""
    chunks = 50_000
    data = memoryview(b"1\r\nx\r\n" * chunks)

    def decoded() -> int:
        decoder = ChunkedDecoder()
        return sum(
            len(piece)
            for start in range(0, len(data), 1 << 18)
            for piece in decoder.feed(data[start : start + (1 << 18)])
        )

    def cut() -> int:
        lines = bytes(data).split(b"\r\n")
        return sum(int(size, 16) for size in lines[:-1:2])

    assert decoded() == cut() == chunks
    assert min(map(cpu_seconds, [decoded] * 5)) < 20 * min(map(cpu_seconds, [cut] * 5))


def cpu_seconds(call: Callable[[], object]) -> float:
    """What it costs this thread."""
    began = time.thread_time()
    call()
    return time.thread_time() - began
