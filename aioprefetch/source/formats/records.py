"""Lines as Arrow arrays: their texts and their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.source.formats.lines import LineEnds, Lines
from aioprefetch.source.formats.record_format import FoundBatch

# Parses the records of whole lines, of one file part by part. Returns ``None`` without any record.
ParseLines = Callable[[Lines], FoundBatch | None]


@dataclass(frozen=True, slots=True)
class JoinedRecords:
    """The records of several files in order.

    Offsets count from the start of each file; ``rows`` are the numbers of records.
    """

    found: FoundBatch
    rows: Sequence[int]


def parse_joined(texts: Sequence[bytes], parse: ParseLines, *, header_bytes: int = 0) -> JoinedRecords | None:
    r"""Parse whole files as one. Each line is a record; lines end with ``\n``, which the last line may lack.

    Each file begins with a header of ``header_bytes``. ``None`` if ``parse`` finds another number of records.
    """
    bodies = [text[header_bytes:] if text.endswith(b"\n") else text[header_bytes:] + b"\n" for text in texts]
    rows = [body.count(b"\n") for body in bodies]
    records = parse(Lines(b"".join(bodies), 0))
    if records is None or records.batch.num_rows != sum(rows):
        return None
    if records.offsets is not None:
        begins = np.repeat([0, *accumulate(map(len, bodies))][:-1], rows) - header_bytes
        records = replace(
            records, offsets=pa.array(records.offsets.to_numpy(zero_copy_only=False) - begins, pa.int64())
        )
    return JoinedRecords(records, rows)


def split_lines(data: bytes, ends: LineEnds) -> pa.StringArray:
    """The lines of valid UTF-8, without their ends."""
    end = ends.plain_end(data)
    if end is None:
        return pa.array([data[start:stop] for start, stop in ends.spans(data)], pa.binary()).cast(pa.string())
    if not data:
        return pa.array([], pa.string())
    text = pa.StringArray.from_buffers(1, pa.py_buffer(bytes(4) + len(data).to_bytes(4, "little")), pa.py_buffer(data))
    lines = pc.split_pattern(text, end.decode()).values
    return lines.slice(0, len(lines) - 1) if data.endswith(end) else lines


def line_starts(lines: Lines, ends: LineEnds, *, with_empty: bool = True) -> pa.Int64Array:
    """The position in the file of each line; of empty lines only if ``with_empty``."""
    data = lines.data
    end = ends.plain_end(data)
    is_newline = end == b"\n" or (end == b"\r\n" and ends.separator is None)
    if end is None or not is_newline or lines.length is not len:
        return starts_of(lines, [start for start, stop in ends.spans(data) if with_empty or start < stop])
    after = newlines(data) + 1
    starts = np.concatenate([np.zeros(1, after.dtype), after])
    starts = starts[:-1] if starts[-1] == len(data) else starts
    if not with_empty:
        starts = starts[np.diff(starts, append=len(data) + (not data.endswith(end)) * len(end)) > len(end)]
    return pa.array(starts + lines.offset, pa.int64())


def newlines(data: bytes) -> np.typing.NDArray[np.intp]:
    r"""The position of each ``\n``."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))


def count_lines(data: bytes) -> int:
    r"""The number of lines that end with ``\n``."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n"))) + (not data.endswith(b"\n"))


def starts_of(lines: Lines, starts: list[int]) -> pa.Int64Array:
    """Positions in the data as positions in the file."""
    if lines.length is len:
        return pa.array([lines.offset + start for start in starts], pa.int64())
    if not starts:
        return pa.array([], pa.int64())
    stops = [*starts[1:], len(lines.data)]
    sizes = (lines.length(lines.data[start:stop]) for start, stop in zip(starts, stops, strict=True))
    places = accumulate(sizes, initial=lines.place(starts[0]))
    return pa.array(list(places)[: len(starts)], pa.int64())


def is_narrow(kind: pa.DataType) -> bool:
    """Whether a type is, or contains, floating-point numbers with fewer than 64 bits."""
    if pa.types.is_nested(kind):
        return any(is_narrow(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) and kind.bit_width < 64)


def has_infinity(array: pa.Array) -> bool:
    """Whether an array contains an infinity, which pyarrow makes of a number that is too large for its type."""
    if pa.types.is_struct(array.type):
        return any(has_infinity(child) for child in array.flatten())
    if pa.types.is_nested(array.type):
        return has_infinity(array.flatten())
    return pa.types.is_floating(array.type) and pc.any(pc.is_inf(array)).as_py() is True


def only_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as one batch."""
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table.combine_chunks().to_batches()[0]


def only_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table as one array."""
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else array.chunk(0)


def in_batches(records: FoundBatch, rows: int) -> Iterator[FoundBatch]:
    """Records divided into batches of at most ``rows``."""
    count = records.batch.num_rows
    if count <= rows:
        if count:
            yield records
        return
    for start in range(0, count, rows):
        yield FoundBatch(
            records.batch.slice(start, rows),
            None if records.offsets is None else records.offsets.slice(start, rows),
            None if records.unknown is None else records.unknown.slice(start, rows),
        )
