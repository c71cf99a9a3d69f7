"""The footer of a Parquet file: read with the file's tail in one request, checked, parsed, kept while it is current.

The first request is for the last bytes, and brings size and ETag. Its size depends on the purpose: the tail of a scan
is so large that a small file arrives whole; the tail for a footer alone holds most footers. An object whose size is
known to be at most a block arrives whole for a scan.

Footers of files in one directory are alike, so their sizes are remembered and the next one comes in one request. A
footer that is larger than the tail takes a second request for exactly the missing bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.errors import ConditionNotMatch, Unsupported, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator
from aioprefetch.parquet.decoded_values import Int96
from aioprefetch.parquet.layout import Outline, chunk_pattern, walk_footer
from aioprefetch.parquet.row_groups import open_reader
from aioprefetch.parquet.thrift import MalformedThrift
from aioprefetch.ranges import ByteCount, bytes_at_least
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.verbs.arguments import check_file

# The tail if only the footer is read: it holds a footer of a thousand column chunks. It takes 1.5 ms at 90 MB/s, and a
# second request, for a larger footer, 20 to 50 ms. (polars requests twice this size.)
TAIL_BYTES = 128 << 10
# The tail if data will be read too: a file of up to this size is one request. Its additional time, 10 ms at 90 MB/s, is
# less than for another request.
TAIL_BYTES_EVERYTHING = 1 << 20
# The maximum tail, however large remembered footers are.
TAIL_BYTES_MAX = 16 << 20

# A footer larger than this is refused. A hundred thousand column chunks take some 10 MiB.
FOOTER_BYTES_MAX = 64 << 20

# The maximum memory of parsed footers and their tails together, estimated, in each runtime.
CACHE_BYTES_MAX = 64 << 20

# A parsed footer takes several times the memory of its bytes: pyarrow's metadata, and our numbers of each chunk.
_PARSED_SHARE = 10
# Footers of at least this size are parsed on another thread: pyarrow takes about 8 ms for 1 MiB.
_THREAD_BYTES_MIN = 256 << 10
# The number of footer sizes that are remembered of a directory, and the number of directories.
_SIZES_MAX = 8
_DIRECTORIES_MAX = 256
_SIZE_STEP_BYTES = 16 << 10

MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
# Length of the footer and magic bytes come last; a file has magic bytes at the beginning too.
_END_BYTES = 8
_FILE_BYTES_MIN = 12

_CACHE = "parquet_footers"

# The number of the physical type; the pairs whose value is the Arrow schema of the columns, and Spark's version.
_INT96 = 3
ARROW_SCHEMA = b"ARROW:schema"
_SPARK_VERSION = b"org.apache.spark.version"

# Takes some milliseconds, which the first footer would wait for.
chunk_pattern()


class Footer:
    """The metadata of one version of a file, checked, and the bytes it came from.

    ``metadata`` is pyarrow's, ``schema`` the Arrow schema of the whole file. ``start`` is the first byte of the footer:
    the data end there. ``raw`` are its bytes in Thrift's compact protocol, and ``row_groups_end`` is the end of the
    list of row groups in them. ``first_rows`` has the file's row number of each row group's first row, and the number
    of rows at the end. ``shape`` are paths and levels of the leaves. ``chunks`` has the metadata of each column chunk,
    by row group and leaf, unchecked: ``column_chunks`` checks it. (Do not ask ``metadata`` for column chunks: a hostile
    footer can end the process that way.) ``pinned`` reads the file at this version, and holds the tail.
    """

    __slots__ = (
        *("chunks", "first_rows", "int96", "metadata", "pinned", "raw", "row_groups_end", "schema", "shape", "start"),
    )

    def __init__(self, pinned: PinnedFile, start: int, raw: memoryview, parsed: Parsed) -> None:
        self.pinned = pinned
        self.start = start
        self.raw = raw
        self.shape = parsed.outline.shape
        self.metadata = parsed.metadata
        self.schema = parsed.schema
        self.first_rows = parsed.first_rows
        self.chunks = parsed.outline.chunks
        self.row_groups_end = parsed.outline.row_groups_end
        self.int96 = parsed.int96

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.pinned.path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.pinned.size

    @property
    def etag(self) -> str | None:
        """The ETag that every read of the file must match."""
        return self.pinned.etag

    @property
    def version(self) -> str | None:
        """The version of the object, where the store keeps versions."""
        return self.pinned.version

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self.first_rows[-1]

    @property
    def row_groups(self) -> int:
        """The number of row groups."""
        return len(self.first_rows) - 1

    @property
    def created_by(self) -> str:
        """The name of the program that wrote the file, from the file."""
        try:
            return self.metadata.created_by or ""
        except UnicodeDecodeError:
            return ""

    def with_int96_unit(self, unit: str | None, *, is_checked: bool = True) -> Footer:
        """The footer for scans that read timestamps of 96 bits in ``unit``; ``None`` leaves it as it is.

        ``is_checked``: a value that the unit does not hold is an error.
        """
        if unit is None or self.int96 is None:
            return self
        copy = self._copy()
        copy.int96 = _int96(self.int96.leaves, self.metadata, unit, is_checked=is_checked)
        copy.schema = _schema(self.metadata, copy.int96)
        return copy

    def _copy(self) -> Footer:
        copy = object.__new__(Footer)
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def held_by(self, pinned: PinnedFile) -> Footer:
        """A copy of the footer for reads through another ``PinnedFile`` of the same version."""
        copy = self._copy()
        copy.pinned = pinned
        copy.raw = pinned.resident(self.start, self.size - _END_BYTES) or self.raw
        return copy

    def __repr__(self) -> str:
        return f"<Footer {self.path!r} rows={self.rows} row_groups={self.row_groups} columns={len(self.shape.paths)}>"


async def footer(
    operator: Operator,
    path: str,
    *,
    version: str | None = None,
    if_match: str | None = None,
    tail_bytes: ByteCount | None = None,
    everything: bool = False,
    size: int | None = None,
) -> Footer:
    """The footer of a Parquet file, by one request (two if it is larger than the tail).

    A footer that was read before is kept by path and ETag: if the store supports ``If-None-Match`` it is asked whether
    the file is still the same, and no bytes travel if it is. A footer asked for by its ``version`` or its ETag
    (``if_match``) costs no request then. Footers of stores without ETags are read every time.

    Raises ``UntrustedMetadata`` for a file that is not Parquet, a damaged footer or one above ``FOOTER_BYTES_MAX``,
    ``Unsupported`` for encrypted footers and types that pyarrow does not read, ``ConditionNotMatch`` if the file is
    not the one of ``if_match``, ``NotFound``. A cancelled call leaves nothing behind.

    Parameters
    ----------
    tail_bytes
        The size of the first request, instead of the default.
    everything
        Data are going to be read too: a larger tail pays, and a small file comes whole.
    size
        The size of the object, if it is known. An object of at most a block is read whole if there is memory.
    """
    checked_operator(operator, "footer")
    check_file(path, "footer")
    accessor, runtime = operator.accessor(), operator.runtime()
    cache: FooterCache = runtime.shared(_CACHE, FooterCache)
    place = (accessor.info.namespace, path)
    cached = cache.find(place, version=version, etag=if_match)
    if cached is not None and (version is not None or if_match is not None):
        return cached.held_by(_repinned(cached.pinned, operator))
    if tail_bytes is not None:
        tail_bytes = bytes_at_least(0, tail_bytes, "tail_bytes", operation="footer", path=path)
    tail = tail_bytes or cache.tail_bytes(place, everything=everything)
    whole = size if size is not None and tail_bytes is None and size <= runtime.options.block_bytes else 0
    if whole > tail and runtime.budget.room(whole, "prefetch") < whole:
        whole = 0  # The data are read in pieces, as memory becomes free.
    condition = cached.etag if cached is not None and operator.capability.read_if_none_match else None
    if cached is not None and tail < whole and cached.pinned.tail_start > 0:
        condition = None  # The data are wanted too, and arrive with the same request.
    try:
        pinned = await PinnedFile.open(
            accessor,
            runtime,
            path,
            tail_bytes=max(tail, whole),
            version=version,
            if_match=if_match,
            if_none_match=condition,
        )
    except ConditionNotMatch:
        if condition is None or cached is None:
            raise
        return cached.held_by(_repinned(cached.pinned, operator))
    if cached is not None and pinned.etag == cached.etag and pinned.size == cached.size:
        current = cached.held_by(pinned if pinned.tail_start <= cached.start else _repinned(cached.pinned, operator))
    else:
        current = await read_footer(pinned, runtime)
    cache.add(place, current if len(pinned.tail) <= TAIL_BYTES_EVERYTHING else without_data(current, operator))
    return current


def seen_size(operator: Operator, path: str) -> int | None:
    """The size of an object when its footer or a block was last read; ``None`` if it was never read."""
    runtime, place = operator.runtime(), (operator.accessor().info.namespace, path)
    cache: FooterCache = runtime.shared(_CACHE, FooterCache)
    cached = cache.find(place)
    if cached is not None:
        return cached.size
    store = runtime.peek("block_store")
    file = None if store is None else store.newest(place, runtime.options.block_bytes)
    return None if file is None else int(file.size)


def without_data(footer: Footer, operator: Operator) -> Footer:
    """A copy that holds only the footer's own bytes, so that the cache does not hold data."""
    end = memoryview(bytes(footer.pinned.tail[footer.start - footer.pinned.tail_start :]))
    return footer.held_by(_repinned(footer.pinned, operator, end))


def _repinned(pinned: PinnedFile, operator: Operator, tail: memoryview | None = None) -> PinnedFile:
    """The file for reads through the layers of this operator, which may differ from the layers that read the footer."""
    return PinnedFile(
        operator.accessor(),
        operator.runtime(),
        pinned.path,
        size=pinned.size,
        etag=pinned.etag,
        version=pinned.version,
        tail=pinned.tail if tail is None else tail,
    )


# --- reading ----------------------------------------------------------------------------------------------------------


async def read_footer(pinned: PinnedFile, runtime: Runtime) -> Footer:
    """The footer of an open file, whose tail has been read; one request for the part before the tail."""
    start, tail_start = footer_start(pinned), pinned.tail_start
    if start < tail_start:
        before = await pinned.read(start, tail_start)
        pinned.tail = memoryview(b"".join((before, pinned.tail)))
        pinned.tail_start = start
    raw = pinned.resident(start, pinned.size - _END_BYTES)
    assert raw is not None
    pinned.publish_served(max(start, tail_start), pinned.size, pinned.tail_tier, pinned.tail_seconds)
    end = pinned.tail[start - pinned.tail_start :]
    if len(raw) < _THREAD_BYTES_MIN:
        parsed = parse(raw, end, pinned.path)
    else:
        parsed = await runtime.run_blocking(parse, raw, end, pinned.path)
    return Footer(pinned, start, raw, parsed)


def footer_start(pinned: PinnedFile) -> int:
    """The start of the footer, from the last eight bytes, which are in the tail. Raises as ``footer`` does."""
    size, path = pinned.size, pinned.path
    if size < _FILE_BYTES_MIN:
        raise _untrusted(f"{size} bytes are not a Parquet file", path)
    end = pinned.resident(size - _END_BYTES, size)
    if end is None:
        raise _untrusted("the tail does not hold the last eight bytes", path)
    length, magic = int.from_bytes(end[:4], "little"), bytes(end[4:])
    if magic == _MAGIC_ENCRYPTED:
        raise Unsupported("the footer is encrypted; encrypted Parquet is not read", operation="footer", path=path)
    if magic != MAGIC:
        raise _untrusted(f"a Parquet file ends with {MAGIC!r}, this one with {magic!r}", path)
    if not 0 < length <= size - _FILE_BYTES_MIN:
        raise _untrusted(f"a footer of {length} bytes is claimed in a file of {size}", path)
    if length > FOOTER_BYTES_MAX:
        raise _untrusted(f"a footer of {length} bytes is claimed; at most {FOOTER_BYTES_MAX} are read", path)
    return size - _END_BYTES - length


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of a footer; ``Footer`` explains it."""

    outline: Outline
    metadata: Any
    schema: pa.Schema
    int96: Int96 | None
    first_rows: list[int]


def parse(raw: memoryview, end: memoryview, path: str) -> Parsed:
    """Parse a footer: ``raw`` are its bytes, ``end`` the same with the eight bytes that follow. From any thread."""
    try:
        outline = walk_footer(raw)
        metadata = pq.ParquetFile(
            pa.BufferReader(pa.py_buffer(end)),
            thrift_string_size_limit=len(raw),
            thrift_container_size_limit=outline.list_max,
        ).metadata
        leaves96 = frozenset(leaf for leaf, kind in enumerate(outline.shape.physical_types) if kind == _INT96)
        int96 = _int96(leaves96, metadata) if leaves96 else None
        schema = _schema(metadata, int96)
        names = schema.names
    except pa.ArrowNotImplementedError as error:
        raise Unsupported(f"pyarrow does not read this file: {error}", operation="footer", path=path) from error
    except (MalformedThrift, pa.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        raise _untrusted(f"the footer is damaged: {error}", path) from error
    leaves, groups = len(outline.shape.paths), len(outline.chunks)
    if not (metadata.num_columns == leaves >= len(names) and metadata.num_row_groups == groups):
        raise _untrusted(
            f"the footer has {leaves} leaves in {groups} row groups, but {metadata.num_columns} columns in"
            f" {metadata.num_row_groups} are read from it",
            path,
        )
    return Parsed(outline, metadata, schema, int96, _first_rows(metadata, path))


def _int96(leaves: frozenset[int], metadata: Any, unit: str | None = None, *, is_checked: bool = True) -> Int96:
    """By default pyarrow's nanoseconds where the writer stored an Arrow schema, else microseconds, for any year."""
    pairs = metadata.metadata or {}
    unit = unit or ("ns" if ARROW_SCHEMA in pairs else "us")
    by_spark = _SPARK_VERSION in pairs and (metadata.created_by or "").startswith("parquet-mr")
    if not is_checked or (by_spark and unit == "us"):  # Spark has no time below the microsecond.
        return Int96(leaves, unit, None)
    return Int96(leaves, unit, "ns" if unit == "us" else "us")


def _schema(metadata: Any, int96: Int96 | None) -> pa.Schema:
    if int96 is None:
        return metadata.schema.to_arrow_schema()
    return open_reader(pa.BufferReader(b""), metadata, int96.unit).schema_arrow


def _first_rows(metadata: Any, path: str) -> list[int]:
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if any(count < 0 for count in rows):
        raise _untrusted(f"row group {next(i for i, count in enumerate(rows) if count < 0)} has a negative count", path)
    first_rows = list(accumulate(rows, initial=0))
    if metadata.num_rows not in (0, first_rows[-1]):  # Some old writers leave it at 0.
        raise _untrusted(f"{metadata.num_rows} rows are claimed, but its row groups have {first_rows[-1]}", path)
    return first_rows


def _untrusted(message: str, path: str) -> UntrustedMetadata:
    return UntrustedMetadata(message, operation="footer", path=path)


# --- keeping ----------------------------------------------------------------------------------------------------------

Place = tuple[tuple[str, ...], str]


class FooterCache:
    """Footers of a runtime by store, path and ETag, least recently used first; and recent footer sizes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._footers: OrderedDict[tuple[Place, str], Footer] = OrderedDict()
        self._latest: dict[Place, str] = {}
        self._sizes: OrderedDict[Place, deque[int]] = OrderedDict()

    def find(self, place: Place, *, version: str | None = None, etag: str | None = None) -> Footer | None:
        """The footer of a version or an ETag, or the last one read; ``None`` if it is not in the cache."""
        wanted = etag or self._latest.get(place)
        footer = self._footers.get((place, wanted)) if wanted is not None else None
        if footer is None or (version is not None and footer.version != version):
            return None
        self._footers.move_to_end((place, footer.etag or ""))
        return footer

    def add(self, place: Place, footer: Footer) -> None:
        """Keep a footer if its ETag is strong; drop the least recently used ones if the cache is too large."""
        self._remember(place, footer.size - footer.start)
        if not footer.etag or is_weak(footer.etag):
            return
        self._drop((place, footer.etag))
        self._footers[place, footer.etag] = footer
        self._latest[place] = footer.etag
        self.held_bytes += _held_bytes(footer)
        while self.held_bytes > self.bytes_max:
            self._drop(next(iter(self._footers)))

    def _drop(self, key: tuple[Place, str]) -> None:
        footer = self._footers.pop(key, None)
        if footer is not None:
            self.held_bytes -= _held_bytes(footer)
            if self._latest.get(key[0]) == key[1]:
                del self._latest[key[0]]

    def tail_bytes(self, place: Place, *, everything: bool) -> int:
        """The size of the first request: the largest recent footer of this directory, and at least a minimum."""
        least = TAIL_BYTES_EVERYTHING if everything else TAIL_BYTES
        sizes = self._sizes.get(_directory(place))
        largest = max(sizes) if sizes else 0
        stepped = -(-largest // _SIZE_STEP_BYTES) * _SIZE_STEP_BYTES
        return max(least, min(stepped, TAIL_BYTES_MAX))

    def _remember(self, place: Place, size: int) -> None:
        directory = _directory(place)
        self._sizes.setdefault(directory, deque(maxlen=_SIZES_MAX)).append(size)
        self._sizes.move_to_end(directory)
        if len(self._sizes) > _DIRECTORIES_MAX:
            self._sizes.popitem(last=False)


def _directory(place: Place) -> Place:
    return place[0], place[1].rpartition("/")[0]


def _held_bytes(footer: Footer) -> int:
    return len(footer.pinned.tail) + _PARSED_SHARE * len(footer.raw)
