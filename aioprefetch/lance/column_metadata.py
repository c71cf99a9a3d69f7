"""What a Lance file says of one column: its pages, their buffers and encodings.

Every buffer is checked against the size of the file here, once, so that no later step has to. The encodings stay
bytes: they belong to the decoders of the file's version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from aioprefetch.errors import Error, Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import FieldRule, MessageTable, Parsed, message, one_of, parse, uint
from aioprefetch.ranges import OFFSET_MAX, Range

_NOTHING = MessageTable("Empty")
_INDIRECT = MessageTable("IndirectEncoding", {1: uint("position"), 2: uint("size")})
_DIRECT = MessageTable("DirectEncoding", {1: FieldRule("encoding", "bytes")})
_ENCODING = MessageTable(
    "Encoding", {1: message("indirect", _INDIRECT), 2: message("direct", _DIRECT), 3: message("none", _NOTHING)}
)
_ANY = MessageTable("Any", {1: FieldRule("type_url", "text"), 2: FieldRule("value", "bytes")})
_PAGE = MessageTable(
    "Page",
    {
        1: uint("buffer_offsets", repeated=True),
        2: uint("buffer_sizes", repeated=True),
        3: uint("rows"),
        4: FieldRule("encoding", "bytes"),
        5: uint("priority"),
    },
)
_COLUMN = MessageTable(
    "ColumnMetadata",
    {
        1: FieldRule("encoding", "bytes"),
        2: message("pages", _PAGE, repeated=True),
        3: uint("buffer_offsets", repeated=True),
        4: uint("buffer_sizes", repeated=True),
    },
)


@dataclass(frozen=True, slots=True)
class PageMetadata:
    """One page of a column.

    ``rows`` counts the values of the page (items, for the items of a list). ``first_row`` is the top-level row that
    its first value belongs to; version 2.0 does not say (``None``). ``buffers`` are absolute ``[start, end)`` within
    the file. ``encoding`` is the serialized message that ``type_url`` names; both are empty where the file has none.
    """

    rows: int
    first_row: int | None
    buffers: tuple[Range, ...]
    encoding: bytes
    type_url: str


@dataclass(frozen=True, slots=True)
class ColumnMetadata:
    """The pages of a column in row order, the column's own encoding and buffers (writers known here make none)."""

    encoding: bytes
    type_url: str
    buffers: tuple[Range, ...]
    pages: tuple[PageMetadata, ...]


def parse_column(
    data: bytes | memoryview, *, version: tuple[int, int], file_size: int, path: str = ""
) -> ColumnMetadata:
    """The metadata block of one column.

    ``UntrustedMetadata`` when it is no such message or a buffer leaves the file; ``Unsupported`` for an encoding that
    is stored elsewhere.
    """
    parsed = parse(_COLUMN, data, path=path)
    try:
        type_url, encoding = _encoding(parsed.get("encoding", b""))
        pages = tuple(_page(page, version, file_size, path) for page in parsed.get("pages", ()))
    except Error as error:
        error.add_context(path=path)
        raise
    _check_order(pages, path)
    return ColumnMetadata(encoding, type_url, _buffers(parsed, file_size, path), pages)


def _page(parsed: Parsed, version: tuple[int, int], file_size: int, path: str) -> PageMetadata:
    rows = parsed.get("rows", 0)
    first_row = None if version == (2, 0) else parsed.get("priority", 0)
    if rows > OFFSET_MAX or (first_row or 0) > OFFSET_MAX:
        raise UntrustedMetadata(f"a page claims {rows} rows from row {first_row} on", path=path)
    type_url, encoding = _encoding(parsed.get("encoding", b""))
    return PageMetadata(rows, first_row, _buffers(parsed, file_size, path), encoding, type_url)


def _check_order(pages: Sequence[PageMetadata], path: str) -> None:
    """Pages lie in row order: whoever maps rows to pages counts on it."""
    last = 0
    for page in pages:
        if page.first_row is not None:
            if page.first_row < last:
                raise UntrustedMetadata(f"a page of row {page.first_row} follows one of row {last}", path=path)
            last = page.first_row


def _buffers(parsed: Parsed, file_size: int, path: str) -> tuple[Range, ...]:
    offsets: list[int] = parsed.get("buffer_offsets", [])
    sizes: list[int] = parsed.get("buffer_sizes", [])
    if len(offsets) != len(sizes):
        raise UntrustedMetadata(f"{len(offsets)} buffer offsets stand beside {len(sizes)} sizes", path=path)
    for offset, size in zip(offsets, sizes, strict=True):
        if offset + size > file_size:
            raise UntrustedMetadata(
                f"a buffer of {size} bytes at {offset} leaves the file of {file_size} bytes", path=path
            )
    return tuple((offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))


@lru_cache(maxsize=256)
def _encoding(data: bytes) -> tuple[str, bytes]:
    """Type and serialized message of an encoding, both empty when there is none. Pages have few different ones."""
    parsed = parse(_ENCODING, data)
    if not parsed:
        return "", b""
    kind, content = one_of(parsed, _ENCODING)
    if kind == "indirect":
        raise Unsupported("an encoding that is stored outside the column's metadata is not supported")
    if kind == "none":
        return "", b""
    wrapped = parse(_ANY, content.get("encoding", b""))
    return wrapped.get("type_url", ""), wrapped.get("value", b"")
