"""Column chunks of a file: byte ranges that are checked before any request, wanted rows, and memory for the bytes.

``layout`` reads the numbers of each chunk from the footer; here they are checked against the file, and only for
the chunks that a scan wants: the other chunks of a file with a bad one can be read.

**Memory.** A ``SparseFile`` is a file in memory that holds only the bytes in use. Requested bytes are received at their
true offsets into a private mapping as large as the file. pyarrow reads the mapping as if it were the file, without a
copy, and bytes that are no longer needed go back to the kernel page by page. Untouched pages cost nothing, so a mapping
of many gigabytes is as cheap as its resident part.
"""

from __future__ import annotations

import mmap
import platform
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import pyarrow as pa

from aioprefetch.errors import InvalidArgument, InvalidType, Unsupported, UntrustedMetadata
from aioprefetch.ranges import Range

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer
    from aioprefetch.parquet.layout import ChunkNumbers


class WantedRows:
    """Wanted rows ``[start, end)``, ``count`` of them. The n-th wanted row is counted from 0 over all ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges = tuple(pair for pair in ranges if pair[0] < pair[1])
        self._starts = [start for start, _ in self.ranges]
        self._ends = [end for _, end in self.ranges]
        self._before = list(accumulate((end - start for start, end in self.ranges), initial=0))
        self.count = self._before[-1]

    @classmethod
    def all(cls, rows: int) -> WantedRows:
        """All of ``rows`` rows."""
        return cls(((0, rows),))

    @property
    def end(self) -> int:
        """The row behind the last wanted one."""
        return self._ends[-1] if self._ends else 0

    def before(self, row: int) -> int:
        """The number of wanted rows before ``row``."""
        index = bisect_right(self._starts, row) - 1
        if index < 0:
            return 0
        return self._before[index] + min(row, self._ends[index]) - self._starts[index]

    def end_of(self, wanted: int) -> int:
        """The row behind the first ``wanted`` wanted ones; 0 for none."""
        if wanted <= 0:
            return 0
        index = bisect_left(self._before, min(wanted, self.count)) - 1
        return self._starts[index] + min(wanted, self.count) - self._before[index]

    def cut(self, first: int, last: int) -> list[Range]:
        """The rows of the wanted rows number ``first`` to ``last`` (excluded)."""
        ranges: list[Range] = []
        index = max(bisect_right(self._before, first) - 1, 0)
        while index < len(self.ranges) and self._before[index] < last:
            start, before = self._starts[index], self._before[index]
            low = start + max(first - before, 0)
            high = min(start + last - before, self._ends[index])
            if low < high:
                ranges.append((low, high))
            index += 1
        return ranges

    def within(self, start: int, end: int) -> WantedRows:
        """The wanted rows of ``[start, end)``, counted from ``start`` on."""
        return WantedRows((max(low, start) - start, min(high, end) - start) for low, high in self.ranges)


# The magic bytes come first; no chunk begins before them.
DATA_START = 4

# A dictionary page of parquet-mr before 1.2.9 may be longer than its chunk claims, by at most this size (PARQUET-816).
# The first releases do not state their version.
_UNCOUNTED_BYTES = 100
_MISCOUNTING_WRITER = re.compile(r"parquet-mr(?: version (?:0|1\.(?:[01]\.|2\.[0-8](?!\d)))|(?! version))")

# The maximum number of column names in a message.
_NAMES_MAX = 30

# Parquet's numbers for codecs, by their names in pyarrow.
CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")


class ColumnChunk(NamedTuple):
    """The pages of one leaf column in one row group: bytes ``[start, end)``, which lie within the file's data.

    ``first_row`` counts from the file's first row. ``num_values`` counts nulls and items of lists. ``codec`` is
    pyarrow's name of the compression. ``offset_index`` and ``column_index`` are the ranges of the page indexes,
    ``None`` if there are no indexes, or none were requested. ``uncompressed_bytes`` is the size of the pages by the
    footer, 0 if it has none. ``is_nullable``: the schema allows nulls.
    """

    row_group: int
    column: int
    path: tuple[str, ...]
    start: int
    end: int
    first_row: int
    rows: int
    num_values: int
    max_repetition: int
    codec: str = "UNCOMPRESSED"
    offset_index: Range | None = None
    column_index: Range | None = None
    uncompressed_bytes: int = 0
    is_nullable: bool = True

    @property
    def size(self) -> int:
        """Bytes of the chunk."""
        return self.end - self.start


# --- names ------------------------------------------------------------------------------------------------------------


def leaf_paths(footer: Footer) -> list[tuple[str, ...]]:
    """The path of each leaf, from the top-level column down. Names with dots in them stay whole."""
    return footer.shape.paths


def resolve_columns(footer: Footer, columns: Iterable[str] | None, *, operation: str = "scan") -> tuple[int, ...]:
    """The leaves that ``columns`` name, ascending; all without ``columns``.

    A name is a top-level column or a dotted path below one, as in ``pyarrow.parquet``; a parent means all its
    leaves. ``InvalidArgument`` for an unknown name, with the names in the file.
    """
    paths = leaf_paths(footer)
    if columns is None:
        return tuple(range(len(paths)))
    if isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
        raise InvalidType(f"columns must be a list of names, not {columns!r}", operation=operation, path=footer.path)
    leaves: set[int] = set()
    by_name = _leaves_by_name(paths)
    for name in columns:
        if not isinstance(name, str):
            raise InvalidType(f"a column is a name, not {name!r}", operation=operation, path=footer.path)
        if name not in by_name:
            raise _unknown(name, footer, operation)
        leaves.update(by_name[name])
    return tuple(sorted(leaves))


def _leaves_by_name(paths: Sequence[tuple[str, ...]]) -> dict[str, list[int]]:
    leaves: dict[str, list[int]] = {}
    for leaf, path in enumerate(paths):
        for depth in range(1, len(path) + 1):
            leaves.setdefault(".".join(path[:depth]), []).append(leaf)
    return leaves


def _unknown(name: str, footer: Footer, operation: str) -> InvalidArgument:
    names = list(dict.fromkeys(path[0] for path in leaf_paths(footer)))
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_MAX else ""
    return InvalidArgument(
        f"there is no column {name!r}; the file has {', '.join(map(repr, names[:_NAMES_MAX]))}{more}",
        operation=operation,
        path=footer.path,
    )


# --- chunks -----------------------------------------------------------------------------------------------------------


def column_chunks(
    footer: Footer, row_groups: Iterable[int], leaves: Sequence[int], *, with_indexes: bool = False
) -> list[ColumnChunk]:
    """The chunks of ``leaves`` in ``row_groups``, row group by row group, each in the order of ``leaves``.

    ``with_indexes``: with the ranges of their page indexes. ``UntrustedMetadata`` for chunks that leave the file's data
    or overlap, and for counts and types that contradict each other; ``Unsupported`` for encrypted columns, unknown
    codecs and chunks that lie in another file.
    """
    padding = _UNCOUNTED_BYTES if _MISCOUNTING_WRITER.match(footer.created_by) else 0
    repetitions = [footer.shape.max_repetitions[leaf] for leaf in leaves]
    paths = [footer.shape.paths[leaf] for leaf in leaves]
    chunks: list[ColumnChunk] = []
    for number in row_groups:
        group = footer.chunks[number]
        if len(group) != len(footer.shape.paths):
            raise UntrustedMetadata(
                f"row group {number} has {len(group)} column chunks, the schema {len(footer.shape.paths)} leaves",
                operation="footer",
                path=footer.path,
            )
        first_row = footer.first_rows[number]
        rows = footer.first_rows[number + 1] - first_row
        for leaf, path, repetition in zip(leaves, paths, repetitions, strict=True):
            said = group[leaf]
            start, end = _checked(footer, number, leaf, said)
            if said.values < 0 or (repetition == 0 and said.values != rows):
                _refuse(footer, number, leaf, f"has {said.values} values for {rows} rows")
            offset_index = column_index = None
            if with_indexes:
                offset_index = _located(footer, said.offset_index, said.offset_index_bytes)
                column_index = _located(footer, said.column_index, said.column_index_bytes)
            chunks.append(
                ColumnChunk(
                    number,
                    leaf,
                    path,
                    start,
                    end,
                    first_row,
                    rows,
                    said.values,
                    repetition,
                    CODECS[said.codec],
                    offset_index,
                    column_index,
                    max(said.uncompressed_bytes, 0),
                    footer.shape.max_definitions[leaf] > 0,
                )
            )
    _check_disjoint(footer, chunks)
    return [_padded(chunk, padding, footer.start) for chunk in chunks] if padding else chunks


def _checked(footer: Footer, number: int, leaf: int, said: ChunkNumbers) -> Range:
    """Start and end of a chunk, within the file's data."""
    if said.elsewhere or said.is_encrypted or not 0 <= said.codec < len(CODECS):
        what = (
            f"lies in another file, {said.elsewhere!r}"
            if said.elsewhere
            else "is encrypted"
            if said.is_encrypted
            else f"has the unknown codec {said.codec}"
        )
        raise Unsupported(
            f"row group {number}, column {_name(footer, leaf)} {what}", operation="footer", path=footer.path
        )
    if said.physical_type != footer.shape.physical_types[leaf]:
        wanted = footer.shape.physical_types[leaf]
        _refuse(footer, number, leaf, f"is of type {said.physical_type} where the schema says {wanted}")
    start = said.data_page
    if 0 < said.dictionary_page < start:  # Old writers wrote 0 here, or arbitrary numbers.
        start = said.dictionary_page
    end = start + said.compressed_bytes
    if not DATA_START <= start <= end <= footer.start:
        _refuse(footer, number, leaf, f"claims [{start}, {end}) of data that end at {footer.start}")
    return start, end


def _check_disjoint(footer: Footer, chunks: Sequence[ColumnChunk]) -> None:
    position, before = 0, None
    for chunk in sorted([chunk for chunk in chunks if chunk.start < chunk.end], key=attrgetter("start")):
        if chunk.start < position and before is not None:
            other = f"the chunk of row group {before.row_group}, column {_name(footer, before.column)}"
            _refuse(
                footer, chunk.row_group, chunk.column, f"overlaps {other}: it begins at {chunk.start} before {position}"
            )
        position, before = chunk.end, chunk


def _padded(chunk: ColumnChunk, padding: int, limit: int) -> ColumnChunk:
    return chunk._replace(end=min(chunk.end + padding, limit))


def _name(footer: Footer, leaf: int) -> str:
    return repr(".".join(footer.shape.paths[leaf]))


def _refuse(footer: Footer, number: int, leaf: int, what: str) -> NoReturn:
    raise UntrustedMetadata(
        f"the chunk of row group {number}, column {_name(footer, leaf)} {what}", operation="footer", path=footer.path
    )


def _located(footer: Footer, offset: int, length: int) -> Range | None:
    """The range of a page index; ``None`` if the file has none."""
    is_within = offset >= DATA_START and length > 0 and offset + length <= footer.start
    return (offset, offset + length) if is_within else None


# --- memory -----------------------------------------------------------------------------------------------------------

PAGE_BYTES = mmap.PAGESIZE

_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)

# Without this flag the kernel may refuse a mapping larger than its free memory. Python knows its name since 3.13; its
# value differs by architecture.
_IS_GENERIC = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "riscv64")
_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if _IS_GENERIC else 0x40 if sys.platform == "darwin" else 0)


class Coverage:
    """The number of users of each byte: counts over half-open ranges. Pure.

    ``_starts[i]`` begins a stretch of ``_counts[i]`` that ends where the next one begins; the last one has no end.
    """

    def __init__(self) -> None:
        self._starts = [0]
        self._counts = [0]

    def add(self, start: int, end: int) -> None:
        """Increment the number of uses of every byte of ``[start, end)``."""
        self._change(start, end, 1)

    def remove(self, start: int, end: int) -> list[Range]:
        """Decrement the number of uses of every byte of ``[start, end)``. Returns the parts without uses, in order."""
        freed: list[Range] = []
        for low, high in self._change(start, end, -1):
            if freed and freed[-1][1] == low:
                freed[-1] = (freed[-1][0], high)
            else:
                freed.append((low, high))
        return freed

    def is_idle(self, start: int, end: int) -> bool:
        """Whether no byte of ``[start, end)`` is needed."""
        index = bisect_right(self._starts, start) - 1
        position = start
        while position < end:
            if self._counts[index]:
                return False
            index += 1
            if index == len(self._starts):
                break
            position = self._starts[index]
        return True

    def _change(self, start: int, end: int, step: int) -> list[Range]:
        """Add ``step`` to the counts of ``[start, end)``, never below 0; return the stretches with count 0 now."""
        if end <= start:
            return []
        first, last = self._cut(start), self._cut(end)
        emptied: list[Range] = []
        for index in range(first, last):
            if self._counts[index] + step >= 0:
                self._counts[index] += step
                if step < 0 and self._counts[index] == 0:
                    emptied.append((self._starts[index], self._starts[index + 1]))
        self._join(max(first, 1), last)
        return emptied

    def _cut(self, position: int) -> int:
        """The index of the stretch that begins at ``position``, made if need be."""
        index = bisect_right(self._starts, position) - 1
        if self._starts[index] != position:
            index += 1
            self._starts.insert(index, position)
            self._counts.insert(index, self._counts[index - 1])
        return index

    def _join(self, first: int, last: int) -> None:
        """Make neighbours of the same count one stretch, from stretch ``first`` to ``last``."""
        for index in range(min(last, len(self._starts) - 1), first - 1, -1):
            if self._counts[index] == self._counts[index - 1]:
                del self._starts[index], self._counts[index]


class SparseFile:
    """Memory of ``size`` bytes at the offsets of a file: the ``memory`` that its reads are received into.

    ``Unsupported`` if the machine has no address space for it. Belongs to one thread, apart from the readers of
    ``source``: those may be in any thread, and must be done with bytes before they are discarded.
    """

    def __init__(self, size: int, *, path: str = "") -> None:
        self.size = size
        self._mapping = _new_mapping(size, path)
        self._view = memoryview(self._mapping)
        self._needed = Coverage()

    def allocate(self, start: int, end: int) -> memoryview:
        """Writable memory of exactly the file's ``[start, end)``, needed until it is discarded as often."""
        self._needed.add(start, end)
        return self._view[start:end]

    def discard(self, start: int, end: int) -> None:
        """``[start, end)`` is needed once less. Unneeded memory goes to the kernel, page by page, and reads as zeros.

        A page of the kernel stays while a neighbour needs a byte of it.
        """
        for low, high in self._needed.remove(start, end):
            self._drop(low, high)

    def put(self, start: int, data: bytes | memoryview) -> None:
        """Copy bytes that were received elsewhere (the file's tail) to their place; they are not discarded."""
        self.allocate(start, start + len(data))[:] = data

    def view(self, start: int, end: int) -> memoryview:
        """Read-only memory of ``[start, end)``, received or not."""
        return self._view[start:end].toreadonly()

    def source(self) -> pa.BufferReader:
        """The file for pyarrow: reading copies nothing. Each has a position of its own."""
        return pa.BufferReader(pa.py_buffer(self._view))

    def _drop(self, start: int, end: int) -> None:
        if _DONT_NEED is None:
            return
        low, high = start - start % PAGE_BYTES, -(-end // PAGE_BYTES) * PAGE_BYTES
        if not self._needed.is_idle(low, start):
            low += PAGE_BYTES
        if not self._needed.is_idle(end, high):
            high -= PAGE_BYTES
        if low < high:
            self._mapping.madvise(_DONT_NEED, low, high - low)


def _new_mapping(size: int, path: str) -> mmap.mmap:
    # An empty mapping is an error. Whole pages, so that the last one can be discarded as the others.
    whole = max(PAGE_BYTES, -(-size // PAGE_BYTES) * PAGE_BYTES)
    try:
        return mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except (OSError, OverflowError, ValueError) as error:
        raise Unsupported(
            f"this machine has no room for a mapping as large as the file, {size} bytes: {error}",
            operation="scan",
            path=path,
        ) from error
