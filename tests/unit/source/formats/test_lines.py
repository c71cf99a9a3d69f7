"""Cutting at line ends without I/O, compared with splitting the whole."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.formats.csv_records import Quoting, RecordCutter, record_spans
from aioprefetch.source.formats.records import LineCutter, LineEnds
from aioprefetch.testing.conformance.suite import checks

CONTENT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"|", b"||", b"\n\n", b"x" * 9])).map(b"".join)
SEPARATORS = st.sampled_from([None, b"\n", b"\r\n", b"|", b"a|", b"bc\n"])


def oracle(data: bytes, separator: bytes | None) -> list[tuple[int, bytes]]:
    """Each line with its end and its position."""
    end = rb"\r\n|\r|\n" if separator is None else re.escape(separator)
    pieces = re.split(b"(" + end + b")", data)
    found, at = [], 0
    for text, stop in zip(pieces[::2], [*pieces[1::2], b""], strict=True):
        if text or stop:
            found.append((at, text + stop))
        at += len(text) + len(stop)
    return found


def cut(data: bytes, sizes: list[int], cutter: LineCutter | RecordCutter) -> list[tuple[int, bytes]]:
    """Push pieces of these sizes, over and over, until it is done or the data ends."""
    found = []
    at, turn = cutter.begin, 0
    while at < len(data) and not cutter.is_done:
        size = sizes[turn % len(sizes)]
        found.append(cutter.push(data[at : at + size]))
        at, turn = at + size, turn + 1
    found.append(cutter.finish())
    return [(one.offset, one.data) for one in found if one is not None]


@checks("source:F5")
@given(CONTENT, st.lists(st.integers(0, 100), max_size=4), st.lists(st.integers(1, 12), min_size=1), SEPARATORS)
def test_every_line_is_in_the_range_in_which_it_starts(
    data: bytes, cuts: list[int], sizes: list[int], separator: bytes | None
) -> None:
    whole = oracle(data, separator)
    places = sorted({0, *(one % (len(data) + 1) for one in cuts)})
    for start, end in zip(places, [*places[1:], None], strict=True):
        ends = LineEnds(separator)
        found = cut(data, sizes, LineCutter(ends, path="k", start=start, end=end))
        lines = [one for offset, part in found for one in [(offset + at, line) for at, line in oracle(part, separator)]]
        assert lines == [one for one in whole if start <= one[0] < (len(data) if end is None else end)]


@given(CONTENT, SEPARATORS)
def test_spans_are_the_lines_without_their_ends(data: bytes, separator: bytes | None) -> None:
    end = rb"\r\n|\r|\n" if separator is None else re.escape(separator)
    expected = [
        (at, at + len(re.sub(b"(" + end + b")$(?![\\s\\S])", b"", line))) for at, line in oracle(data, separator)
    ]
    assert LineEnds(separator).spans(data) == expected


@given(st.text("a|").map(str.encode), st.lists(st.integers(1, 5), min_size=1))
def test_a_separator_that_overlaps_itself_is_found_from_the_left(data: bytes, sizes: list[int]) -> None:
    found = cut(data, sizes, LineCutter(LineEnds(b"||"), path="k"))
    assert b"".join(part for _, part in found) == data
    assert [line for _, part in found for _, line in oracle(part, b"||")] == [one for _, one in oracle(data, b"||")]


def test_a_line_longer_than_memory_allows_is_an_error_with_its_place() -> None:
    cutter = LineCutter(LineEnds(None), path="dir/k", record_bytes_max=100)
    cutter.push(b"short\n")
    with pytest.raises(UntrustedMetadata, match="longer than 100 bytes") as caught:
        cut(b"x" * 200, [10], cutter)
    assert caught.value.path == "dir/k"
    assert caught.value.context["offset"] == 6


FIELD = st.text('ab,"\n\r', max_size=6)


@given(st.lists(st.lists(FIELD, min_size=2, max_size=2)), st.lists(st.integers(1, 12), min_size=1))
def test_records_in_quotes_are_never_cut(rows: list[list[str]], sizes: list[int]) -> None:
    quoting = Quoting(delimiter=",", quote='"', escape=None)
    records = [",".join('"' + one.replace('"', '""') + '"' for one in row).encode() for row in rows]
    data = b"".join(record + b"\r\n" for record in records)
    found = cut(data, sizes, RecordCutter(quoting, path="k"))
    assert b"".join(part for _, part in found) == data
    lines = [
        (offset + start, part[start:stop])
        for offset, part in found
        for start, stop in record_spans(part, quoting, LineEnds(None))
    ]
    starts = [sum(len(one) + 2 for one in records[:index]) for index in range(len(records))]
    assert lines == list(zip(starts, records, strict=True))
