"""Sinks: memory by the head's size, and attempts that continue one another."""

import itertools
from array import array
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.sink import BufferSink, CollectSink, Sink
from aioprefetch.errors import ObjectChanged, ProtocolError
from aioprefetch.values import ReadHead
from tests.profile import each_of


def head(start: int, size: int, total: int | None = 100, etag: str | None = "e") -> ReadHead:
    """A checked head."""
    return ReadHead(start=start, size=size, total=total, etag=etag)


def pieces_of(count: int) -> CollectSink:
    """A sink that allocates this many bytes at a time."""

    class InPieces(CollectSink):
        piece_bytes_max = count

    return InPieces()


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 7))
def test_collects_every_split_of_a_body(chunks: list[bytes], piece_bytes: int) -> None:
    data = b"".join(chunks)
    sink = pieces_of(piece_bytes)
    sink.begin(head(0, len(data)))
    assert [sink.feed(chunk) for chunk in chunks] == [len(chunk) for chunk in chunks]
    assert sink.complete
    assert sink.to_bytes() == data == bytes(sink.to_view())
    assert sink.to_view().readonly


@pytest.mark.parametrize("is_paced", [False, True])
async def test_takes_no_more_than_the_head_says(is_paced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing before it. Of a chunk that goes beyond it not a byte counts: it may be any of them that is wrong."""
    monkeypatch.setattr(CollectSink, "is_paced", is_paced)
    sink = CollectSink()
    calls: list[Callable[[], object]] = [lambda: sink.feed(b"abc"), sink.writable]
    for call in calls:
        with pytest.raises(ProtocolError, match="before its head"):
            call()
    with pytest.raises(ProtocolError, match="before its head"):
        await sink.pour(memoryview(b"abc"))
    sink.begin(head(0, 3))
    for chunk in (b"abcd", b"ab", b"cd", b"c", b"x"):
        if chunk in (b"ab", b"c"):
            assert sink.feed(chunk) == len(chunk)
            continue
        with pytest.raises(ProtocolError, match="more bytes than were asked for"):
            sink.feed(chunk)
        with pytest.raises(ProtocolError, match="more bytes than were asked for"):
            await sink.pour(memoryview(chunk))
    assert sink.feed(b"") == 0
    assert sink.to_bytes() == b"abc"


def test_a_claimed_size_allocates_as_bytes_arrive() -> None:
    """An object that claims terabytes costs one piece, not terabytes."""
    sink = pieces_of(64)
    sink.begin(head(0, 1 << 50, total=1 << 50))
    sink.feed(b"x" * 65)
    assert sink.to_bytes() == b"x" * 65


def test_what_has_arrived_before_a_failure_stands() -> None:
    sink = CollectSink()
    sink.begin(head(10, 6))
    sink.feed(b"abc")
    assert not sink.complete
    assert sink.to_bytes() == b"abc"
    sink.begin(head(13, 3))
    sink.feed(b"def")
    assert sink.to_bytes() == b"abcdef"
    assert sink.head == head(10, 6)


@each_of(
    ("second", "error"),
    [
        (head(13, 3, etag="other"), ObjectChanged),
        (head(13, 3, etag=None), ObjectChanged),
        (head(13, 3, total=101), ObjectChanged),
        (head(10, 6), ProtocolError),
        (head(12, 4), ProtocolError),
        (head(13, 2), ProtocolError),
        (head(14, 2), ProtocolError),
    ],
)
def test_a_later_attempt_must_continue_the_first(second: ReadHead, error: type[Exception]) -> None:
    """S21 and S14: never bytes of two versions, never a byte twice or missing."""
    sink = CollectSink()
    sink.begin(head(10, 6))
    sink.feed(b"abc")
    with pytest.raises(error) as caught:
        sink.begin(second, path="k")
    if isinstance(caught.value, ObjectChanged):
        assert (caught.value.expected_etag, caught.value.actual_etag) == ("e", second.etag)
    assert sink.to_bytes() == b"abc"


@each_of(
    ("second", "is_same"),
    [
        ({}, True),
        ({"last_modified": datetime(2026, 1, 2, tzinfo=UTC)}, False),
        ({"last_modified": None}, False),
        ({"total": 101}, False),
        ({"total": None}, False),
        ({"etag": "e"}, False),
    ],
)
def test_without_an_etag_size_and_time_tell_versions_apart(second: dict[str, Any], is_same: bool) -> None:
    sink = CollectSink()
    first = replace(head(10, 6, etag=None), last_modified=datetime(2026, 1, 1, tzinfo=UTC))
    sink.begin(first)
    sink.feed(b"abc")
    rest = replace(first, start=13, size=3)
    if is_same:
        sink.begin(replace(rest, **second))
        assert sink.feed(b"def") == 3
        return
    with pytest.raises(ObjectChanged):
        sink.begin(replace(rest, **second), path="k")


def test_an_unknown_total_may_stay_unknown() -> None:
    sink = CollectSink()
    sink.begin(head(10, 6))
    sink.feed(b"abc")
    sink.begin(head(13, 3, total=None))
    assert sink.received == 3


def test_fills_the_callers_buffer() -> None:
    for target in (bytearray(8), array("H", [0] * 4), memoryview(bytearray(12))[2:10]):
        view = memoryview(target).cast("B")
        sink: Sink = BufferSink(view)
        sink.begin(head(0, 5))
        sink.feed(b"ab")
        sink.feed(b"cde")
        assert sink.complete
        assert bytes(view) == b"abcde\0\0\0"


def test_an_empty_response_needs_no_memory() -> None:
    sink = CollectSink()
    sink.begin(head(0, 0, total=0))
    assert sink.complete
    assert sink.feed(b"") == 0
    assert sink.to_bytes() == b""
    assert bytes(sink.to_view()) == b""


@each_of("kind", [bytes, bytearray, memoryview])
@each_of("cuts", [(), (3,), (0, 10), (2, 7)])
def test_what_was_fed_may_change_afterwards(kind: type, cuts: tuple[int, ...]) -> None:
    """Only ``bytes``, which cannot, are kept as they are: when they are all of the body."""
    body = b"0123456789"
    fed = kind(body)
    sink = CollectSink()
    sink.begin(ReadHead(start=0, size=10, total=10))
    for start, end in itertools.pairwise((0, *cuts, 10)):
        assert sink.feed(fed[start:end]) == end - start
    assert (sink.complete, sink.received) == (True, 10)
    if isinstance(fed, bytearray):
        fed[:] = b"x" * 10
    assert sink.to_view() == body
    assert sink.to_view().readonly
    assert sink.to_bytes() == body
    assert (sink.to_bytes() is fed) == (kind is bytes and cuts in ((), (0, 10)))
    with pytest.raises(ProtocolError):
        sink.feed(b"more")
