"""Column chunks of a file: from names to leaves, and byte ranges that are checked before any request.

``footer_walk`` reads the numbers of each chunk from the footer; here they are checked against the file, and only for
the chunks that a scan wants: the other chunks of a file with a bad one can be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from aioprefetch.errors import InvalidArgument, InvalidType, Unsupported, UntrustedMetadata
from aioprefetch.ranges import Range

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer
    from aioprefetch.parquet.footer_walk import ChunkNumbers

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
    ``None`` if there are none or if they were not requested. ``uncompressed_bytes`` is the size of the pages by the
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

    A name is that of a top-level column or a dotted path below one, as in ``pyarrow.parquet``; a parent means all its
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
                offset_index = _located(footer, number, leaf, said.offset_index, said.offset_index_bytes)
                column_index = _located(footer, number, leaf, said.column_index, said.column_index_bytes)
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
    for chunk in sorted((chunk for chunk in chunks if chunk.start < chunk.end), key=_start_of):
        if chunk.start < position and before is not None:
            other = f"that of row group {before.row_group}, column {_name(footer, before.column)}"
            _refuse(
                footer, chunk.row_group, chunk.column, f"overlaps {other}: it begins at {chunk.start} before {position}"
            )
        position, before = chunk.end, chunk


def _start_of(chunk: ColumnChunk) -> int:
    return chunk.start


def _padded(chunk: ColumnChunk, padding: int, limit: int) -> ColumnChunk:
    return chunk._replace(end=min(chunk.end + padding, limit))


def _name(footer: Footer, leaf: int) -> str:
    return repr(".".join(footer.shape.paths[leaf]))


def _refuse(footer: Footer, number: int, leaf: int, what: str) -> NoReturn:
    raise UntrustedMetadata(
        f"the chunk of row group {number}, column {_name(footer, leaf)} {what}", operation="footer", path=footer.path
    )


def _located(footer: Footer, number: int, leaf: int, offset: int, length: int) -> Range | None:
    """The range of a page index, checked against the file; ``None`` if there is none."""
    if offset <= 0 and length <= 0:
        return None
    if offset < DATA_START or length < 0 or offset + length > footer.start:
        claim = f"has a page index at [{offset}, {offset + length}) of data that end at {footer.start}"
        _refuse(footer, number, leaf, claim)
    return (offset, offset + length) if length else None
