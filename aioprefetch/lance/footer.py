"""The metadata of a Lance file: footer, offset tables, schema, and column metadata on demand.

For most files one suffix request brings the metadata and the size of the file. If the metadata is larger than that
request, a second read follows, and the next files of the same runtime are opened with a longer tail.

Column metadata are pages with their buffers and encodings. Every buffer is checked against the size of the file here,
once. Encodings stay bytes, which the decoders of the file's version parse.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa

from aioprefetch.errors import Error, Unsupported, UntrustedMetadata
from aioprefetch.lance.schema import SCHEMA_TABLE, Field, arrow_schema, build_fields, number_columns
from aioprefetch.lance.wire import FieldRule, MessageTable, ParsedMessage, message, one_of, parse, uint
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator
from aioprefetch.ranges import OFFSET_MAX, ByteCount, Range, bytes_at_least, coalesce
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.scheduler.pinned_file import PinnedFile

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

    ``rows`` is the number of values of the page, which are items in a column of list items. ``first_row`` is the
    top-level row of its first value, or ``None`` in version 2.0, which does not state it. ``buffers`` are absolute
    byte ranges ``[start, end)``. ``encoding`` is a serialized message of type ``type_url``; both are empty if the file
    has none.
    """

    rows: int
    first_row: int | None
    buffers: tuple[Range, ...]
    encoding: bytes
    type_url: str


@dataclass(frozen=True, slots=True)
class ColumnMetadata:
    """The pages of a column in row order, and the column's own encoding and buffers, which real files lack."""

    encoding: bytes
    type_url: str
    buffers: tuple[Range, ...]
    pages: tuple[PageMetadata, ...]


def parse_column(
    data: bytes | memoryview, *, version: tuple[int, int], file_size: int, path: str = ""
) -> ColumnMetadata:
    """Parse the metadata of one column.

    ``UntrustedMetadata`` if it is damaged or a buffer leaves the file; ``Unsupported`` for an encoding that
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


def _page(parsed: ParsedMessage, version: tuple[int, int], file_size: int, path: str) -> PageMetadata:
    rows = parsed.get("rows", 0)
    first_row = None if version == (2, 0) else parsed.get("priority", 0)
    if rows > OFFSET_MAX or (first_row or 0) > OFFSET_MAX:
        raise UntrustedMetadata(f"a page claims {rows} rows from row {first_row} on", path=path)
    type_url, encoding = _encoding(parsed.get("encoding", b""))
    return PageMetadata(rows, first_row, _buffers(parsed, file_size, path), encoding, type_url)


def _check_order(pages: Sequence[PageMetadata], path: str) -> None:
    """Check that pages are in row order, which the search for the page of a row requires."""
    last = 0
    for page in pages:
        if page.first_row is not None:
            if page.first_row < last:
                raise UntrustedMetadata(f"a page of row {page.first_row} follows one of row {last}", path=path)
            last = page.first_row


def _buffers(parsed: ParsedMessage, file_size: int, path: str) -> tuple[Range, ...]:
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
    """The type and the serialized message of an encoding, both empty if it is absent."""
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


class MetadataBytes:
    """The metadata bytes of one file: its tail, extended once if it is too short, and single reads.

    What is read of the tail is reported as what the request for it has brought, until ``is_opened`` is set.
    """

    def __init__(self, pinned: PinnedFile) -> None:
        self._pinned = pinned
        self._view = pinned.tail
        self.start = self._unreported_start = pinned.tail_start
        self._waited_seconds = pinned.tail_seconds
        self.is_opened = False

    def resident(self, start: int, end: int) -> memoryview | None:
        """The bytes ``[start, end)`` if all of them are in memory, otherwise ``None``."""
        if start == end:
            return memoryview(b"")
        if start < self.start:
            return None
        if end > self._unreported_start:
            tier = "memory" if self.is_opened else self._pinned.tail_tier
            waited_seconds, self._waited_seconds = None if self.is_opened else self._waited_seconds, None
            self._pinned.publish_served(max(start, self._unreported_start), end, tier, waited_seconds)
        return self._view[start - self.start : end - self.start]

    async def read(self, start: int, end: int) -> memoryview:
        """The bytes ``[start, end)``, by one request unless they are in memory."""
        view = self.resident(start, end)
        return await self._pinned.read(start, end) if view is None else view

    async def lengthen(self, start: int) -> None:
        """Extend the tail to begin at ``start``, by one request unless it already does. All of that counts as read."""
        if start < self.start:
            before = await self._pinned.read(start, self.start)
            self._view = memoryview(b"".join((before, self._view)))
            self.start = start


FOOTER = struct.Struct("<QQQIIHH4s")
MAGIC = b"LANC"

# The size of the first request, which holds the metadata of some hundred pages. A runtime adapts it to its files.
TAIL_BYTES = 64 << 10
TAIL_BYTES_MAX = 2 << 20
_FILES_REMEMBERED = 16

# Metadata up to this size is read by one second request. Of larger metadata only the needed parts are read.
SECOND_READ_BYTES_MAX = 1 << 20

# Schemas of at least this size, some hundred columns, are parsed on another thread: 2,000 columns take 70 ms.
_THREAD_BYTES_MIN = 16 << 10
_METADATA_GAP_BYTES = 64 << 10
_METADATA_REQUEST_BYTES_MAX = 16 << 20

_VERSIONS = {(0, 3): (2, 0), (2, 0): (2, 0), (2, 1): (2, 1), (2, 2): (2, 2)}
_DESCRIPTOR = MessageTable("FileDescriptor", {1: message("schema", SCHEMA_TABLE), 2: uint("rows")})


class TailMemory:
    """Adapts the size of the first request to the recent files of a runtime: the next file then needs one request."""

    def __init__(self) -> None:
        self._needed: deque[int] = deque(maxlen=_FILES_REMEMBERED)

    @property
    def tail_bytes(self) -> int:
        """The size of the first request."""
        return min(TAIL_BYTES_MAX, max(TAIL_BYTES, *self._needed, 0))

    def note(self, needed: int) -> None:
        """Record that the metadata of a file took ``needed`` bytes at its end."""
        self._needed.append(-(-needed // TAIL_BYTES) * TAIL_BYTES)


class LanceFile:
    """An open file: version, schema, row count, and the metadata of its loaded columns.

    ``version`` is ``(2, 0)``, ``(2, 1)`` or ``(2, 2)``. ``fields`` are the top-level fields of ``schema`` with their
    columns. It holds the tail of the file in memory and no connection, and need not be closed.
    """

    def __init__(
        self,
        pinned: PinnedFile,
        metadata: MetadataBytes,
        version: tuple[int, int],
        rows: int,
        fields: tuple[Field, ...],
        schema: pa.Schema,
        blocks: Sequence[Range],
        global_buffers: Sequence[Range],
    ) -> None:
        self.pinned = pinned
        self.version = version
        self.rows = rows
        self.fields = fields
        self.schema = schema
        self.global_buffers = tuple(global_buffers)
        self._metadata = metadata
        self._blocks = blocks
        self._data: dict[int, memoryview] = {}
        self._columns: dict[int, ColumnMetadata] = {}

    @property
    def path(self) -> str:
        """The path within the store."""
        return self.pinned.path

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.pinned.size

    @property
    def column_count(self) -> int:
        """The number of columns. A field may have several."""
        return len(self._blocks)

    async def load_columns(self, indices: Iterable[int]) -> None:
        """Load the metadata of columns for ``column``, without I/O if it is in the tail and by a few reads otherwise.

        ``UntrustedMetadata`` if the file lacks a column. A cancelled call leaves nothing behind.
        """
        missing: list[int] = []
        for index in dict.fromkeys(indices):
            self._check_index(index)
            if index in self._data:
                continue
            if (view := self._metadata.resident(*self._blocks[index])) is not None:
                self._data[index] = view
            else:
                missing.append(index)
        if missing:
            await self._read_blocks(missing)

    async def _read_blocks(self, indices: Sequence[int]) -> None:
        blocks = [self._blocks[index] for index in indices]
        requests = coalesce(blocks, gap_bytes=_METADATA_GAP_BYTES, request_bytes_max=_METADATA_REQUEST_BYTES_MAX)
        views = await gather_all(partial(self.pinned.read, request.start, request.end) for request in requests)
        for request, view in zip(requests, views, strict=True):
            for member in request.members:
                start, end = blocks[member]
                self._data[indices[member]] = view[start - request.start : end - request.start]
        for index, (start, end) in zip(indices, blocks, strict=True):
            if start == end:
                self._data[index] = memoryview(b"")

    def column(self, index: int) -> ColumnMetadata:
        """The metadata of a loaded column, parsed at the first call."""
        metadata = self._columns.get(index)
        if metadata is None:
            try:
                metadata = parse_column(self._data[index], version=self.version, file_size=self.size, path=self.path)
            except Error as error:
                error.add_context(operation="open", path=self.path)
                raise
            self._columns[index] = metadata
        return metadata

    def _check_index(self, index: int) -> None:
        if not 0 <= index < len(self._blocks):
            raise UntrustedMetadata(
                f"the schema needs column {index}, and the file has {len(self._blocks)}", path=self.path
            )


async def open_file(
    operator: Operator,
    path: str,
    *,
    size: int | None = None,
    version: str | None = None,
    if_match: str | None = None,
    tail_bytes: ByteCount | None = None,
) -> LanceFile:
    """Open a Lance file of version 2.0, 2.1 or 2.2, with one request for most files.

    ``size`` is the size in bytes, if known. ``version`` and ``if_match`` pin the object as for a read. ``tail_bytes``
    overrides the size of the first request. ``Unsupported`` for a Lance file of another version, ``UntrustedMetadata``
    for a file that is not a Lance file or contradicts itself, ``NotFound`` for a missing file. A cancelled call leaves
    nothing behind.
    """
    checked_operator(operator, "open")
    accessor, runtime = operator.accessor(), operator.runtime()
    memory = runtime.shared(("lance", "tail"), TailMemory)
    if tail_bytes is not None:
        tail_bytes = bytes_at_least(1, tail_bytes, "tail_bytes", operation="open", path=path)
    try:
        pinned = await PinnedFile.open(
            accessor,
            runtime,
            path,
            tail_bytes=tail_bytes or memory.tail_bytes,
            version=version,
            if_match=if_match,
            known_size=size,
        )
        return await describe(pinned, runtime, memory)
    except Error as error:
        error.add_context(operation="open", path=path)
        raise


async def describe(pinned: PinnedFile, runtime: Runtime, memory: TailMemory) -> LanceFile:
    """The Lance file in ``pinned``, whose tail is loaded. Raises as ``open_file`` does."""
    path = pinned.path
    metadata = MetadataBytes(pinned)
    footer = Footer.parse(await metadata.read(max(0, pinned.size - FOOTER.size), pinned.size), pinned.size, path)
    global_buffers = _table(await metadata.read(*footer.global_table), footer, path)
    start = min(global_buffers[0][0], footer.metadata_start)
    memory.note(pinned.size - start)
    if metadata.start - start <= SECOND_READ_BYTES_MAX:
        await metadata.lengthen(start)
    described, blocks = await gather_all(
        partial(metadata.read, *place) for place in (global_buffers[0], footer.column_table)
    )
    if len(described) < _THREAD_BYTES_MIN:
        rows, fields, schema = _describe(described, footer, len(blocks) // 16, path)
    else:
        rows, fields, schema = await runtime.run_blocking(_describe, described, footer, len(blocks) // 16, path)
    table = _table(blocks, footer, path)
    metadata.is_opened = True
    return LanceFile(pinned, metadata, footer.version, rows, fields, schema, table, global_buffers)


def _describe(
    described: memoryview, footer: Footer, column_count: int, path: str
) -> tuple[int, tuple[Field, ...], pa.Schema]:
    """Rows, fields and schema of a file, from its schema message."""
    descriptor = parse(_DESCRIPTOR, described, path=path)
    stored = descriptor.get("schema", {})
    fields, columns = number_columns(build_fields(stored.get("fields", ()), path=path), footer.version)
    if columns > column_count:
        raise UntrustedMetadata(f"the schema needs {columns} columns, and the file has {column_count}", path=path)
    rows = descriptor.get("rows", 0)
    if rows > OFFSET_MAX:
        raise UntrustedMetadata(f"the file claims {rows} rows", path=path)
    metadata: Mapping[str, bytes] = stored.get("metadata", {})
    return rows, fields, arrow_schema(fields, metadata)


class Footer:
    """The footer, the last 40 bytes of a file: the positions of the tables, checked against the size of the file."""

    def __init__(self, version: tuple[int, int], metadata_start: int, columns: Range, buffers: Range, end: int) -> None:
        self.version = version
        self.metadata_start = metadata_start
        self.column_table = columns
        self.global_table = buffers
        self.end = end

    @classmethod
    def parse(cls, data: bytes | memoryview, size: int, path: str) -> Footer:
        """Parse the footer from the last bytes of a file of ``size`` bytes. ``Unsupported`` names another version."""
        if len(data) < FOOTER.size:
            raise UntrustedMetadata(f"a file of {size} bytes is not a Lance file", path=path)
        start, columns_at, buffers_at, buffers, columns, major, minor, magic = FOOTER.unpack(data[-FOOTER.size :])
        if magic != MAGIC:
            raise UntrustedMetadata("not a Lance file: its last four bytes are not LANC", path=path)
        version = _VERSIONS.get((major, minor))
        if version is None:
            raise Unsupported(_version_message(major, minor), path=path)
        end = size - FOOTER.size
        tables = ((columns_at, columns_at + 16 * columns), (buffers_at, buffers_at + 16 * buffers))
        if start > end or any(last > end for _, last in tables):
            raise UntrustedMetadata(f"the footer points beyond the file of {size} bytes", path=path)
        if not buffers:
            raise UntrustedMetadata("the file does not describe itself: it has no global buffer", path=path)
        return cls(version, start, *tables, end)


def _version_message(major: int, minor: int) -> str:
    version = {(0, 2): "0.1 (the legacy format)", (2, 3): "2.3"}.get((major, minor), f"{major}.{minor}")
    return f"Lance files of version {version} are not supported; 2.0, 2.1 and 2.2 are"


def _table(data: memoryview, footer: Footer, path: str) -> list[Range]:
    """A table of (position, size) entries, each checked to lie before the footer."""
    entries = [(position, position + size) for position, size in struct.iter_unpack("<QQ", data)]
    for start, end in entries:
        if end > footer.end:
            raise UntrustedMetadata(f"an offset table points to [{start}, {end}), beyond its file", path=path)
    return entries
