"""FSST: strings as one-byte codes of symbols of 1 to 8 bytes, with one symbol table per page.

Code 255 escapes the next byte, which belongs to the same value. The codes of many values are decoded at once: escapes
are found by the parity of runs of 255, and one Arrow ``take`` from a table of 256 symbols and 256 single bytes writes
the text without the interpreter lock.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import UntrustedMetadata

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

MAGIC = 0x46535354
HEADER_BYTES = 8
SYMBOL_BYTES_MAX = 8
ESCAPE = 255
# The number of codes of one take, at most 128 KiB of text. Larger takes are hardly faster and keep more memory.
CODES_PER_TAKE = 1 << 14


def decode(
    symbol_table: bytes,
    codes: memoryview | Bytes,
    offsets: npt.NDArray[np.integer],
    *,
    codes_per_take: int = CODES_PER_TAKE,
) -> tuple[Bytes, Offsets]:
    """Expand the values ``codes[offsets[i]:offsets[i + 1]]``.

    Returns the text of all values back to back (uint8) and ``n + 1`` int64 offsets into it, which start with 0.
    ``UntrustedMetadata`` for an invalid table or invalid codes. A code expands to at most 8 bytes.

    Parameters
    ----------
    symbol_table
        The table as the file stores it: a header, the symbols of 8 bytes each, their lengths.
    codes
        Bytes that hold the coded values, uint8.
    offsets
        ``n + 1`` positions in ``codes``; bytes before the first and after the last position are ignored.
    codes_per_take
        The number of codes that are expanded at once.
    """
    data = np.frombuffer(codes, np.uint8) if isinstance(codes, memoryview) else codes
    bounds = _checked_offsets(offsets, data.size)
    data = data[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    table, symbols = _symbols(symbol_table)
    if table is None:  # The text is stored without compression.
        return data, bounds
    indices, new_bounds = _indices(data, bounds, symbols)
    return _expand(table, indices, new_bounds, codes_per_take)


def _checked_offsets(offsets: npt.NDArray[np.integer], size: int) -> Offsets:
    if offsets.size == 0:
        raise _bad("FSST values without offsets")
    bounds = offsets.astype(np.int64)
    if bounds[0] < 0 or bounds[-1] > size or bool(np.any(bounds[1:] < bounds[:-1])):
        raise _bad(f"offsets of FSST values leave the {size} bytes of codes, or do not ascend")
    return bounds


def _symbols(stored: bytes) -> tuple[pa.Array | None, int]:
    """The table of 256 symbols and 256 single bytes, and the number of symbols; no table for plain text."""
    if len(stored) < HEADER_BYTES:
        raise _bad(f"an FSST symbol table of {len(stored)} bytes")
    header = int.from_bytes(stored[:HEADER_BYTES], "little")
    if header >> 32 != MAGIC:
        raise _bad("an FSST symbol table without its magic number")
    count = header & 0xFF
    if not header >> 24 & 1:
        return None, count
    if len(stored) < HEADER_BYTES + count * (SYMBOL_BYTES_MAX + 1):
        raise _bad(f"an FSST symbol table of {len(stored)} bytes cannot hold {count} symbols")
    symbols_end = HEADER_BYTES + count * SYMBOL_BYTES_MAX
    symbols = np.frombuffer(stored, np.uint8, count * SYMBOL_BYTES_MAX, HEADER_BYTES).reshape(count, SYMBOL_BYTES_MAX)
    lengths = np.frombuffer(stored, np.uint8, count, symbols_end)
    if count and not 1 <= int(lengths.min()) <= int(lengths.max()) <= SYMBOL_BYTES_MAX:
        raise _bad("an FSST symbol that is not 1 to 8 bytes long")
    text = symbols[np.arange(SYMBOL_BYTES_MAX) < lengths[:, None]]
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32), np.zeros(256 - count, np.int32)]).astype(np.int32)
    ends[count + 1 :] = ends[count]
    starts = np.concatenate([ends, ends[-1] + np.arange(1, 257, dtype=np.int32)]).astype(np.int32)
    values = np.concatenate([text, np.arange(256, dtype=np.uint8)])
    return pa.Array.from_buffers(pa.binary(), 512, [None, pa.py_buffer(starts), pa.py_buffer(values)]), count


def _indices(codes: Bytes, bounds: Offsets, symbols: int) -> tuple[npt.NDArray[np.uint16], Offsets]:
    """Indices into the table of 512, with escapes resolved, and the start of each value among them."""
    indices = codes.astype(np.uint16)
    escapes = _escapes(codes)
    if escapes.size:
        if escapes[-1] + 1 == codes.size or _any_ends_in(escapes, bounds):
            raise _bad("an FSST escape at the end of a value")
        indices[escapes + 1] += 256
        indices = np.delete(indices, escapes)
        bounds = bounds - np.searchsorted(escapes, bounds)
    # Unsigned: numbers below ``symbols`` wrap around to large numbers.
    if symbols < 256 and bool(np.any(indices - np.uint16(symbols) < np.uint16(256 - symbols))):
        raise _bad(f"an FSST code beyond the {symbols} symbols")
    return indices, bounds


def _escapes(codes: Bytes) -> npt.NDArray[np.int64]:
    """The positions of the escaping bytes 255: the first of each run, and every second one after it."""
    marks = np.flatnonzero(codes == ESCAPE)
    if marks.size == 0:
        return marks
    is_first = np.empty(marks.size, bool)
    is_first[0] = True
    np.not_equal(marks[1:], marks[:-1] + 1, out=is_first[1:])
    run_start = marks[is_first][np.cumsum(is_first) - 1]
    escapes: npt.NDArray[np.int64] = marks[(marks - run_start) & 1 == 0]
    return escapes


def _any_ends_in(escapes: npt.NDArray[np.int64], bounds: Offsets) -> bool:
    ends = bounds[1:][bounds[1:] > bounds[:-1]] - 1
    places = np.searchsorted(escapes, ends)
    inside = places < escapes.size
    return bool(np.any(escapes[places[inside]] == ends[inside]))


def _expand(
    table: pa.Array, indices: npt.NDArray[np.uint16], bounds: Offsets, codes_per_take: int
) -> tuple[Bytes, Offsets]:
    texts: list[Bytes] = []
    new_bounds = np.zeros(bounds.size, np.int64)
    written = first = 0
    for start in range(0, indices.size, codes_per_take):
        part = indices[start : start + codes_per_take]
        taken = table.take(pa.Array.from_buffers(pa.uint16(), part.size, [None, pa.py_buffer(part)]))
        ends = np.frombuffer(taken.buffers()[1], np.int32, part.size + 1)
        last = int(np.searchsorted(bounds, start + part.size, side="right"))
        new_bounds[first:last] = written + ends[bounds[first:last] - start]
        first = last
        texts.append(np.frombuffer(taken.buffers()[2], np.uint8, int(ends[-1])))
        written += int(ends[-1])
    text = texts[0] if len(texts) == 1 else np.concatenate(texts) if texts else np.zeros(0, np.uint8)
    return text, new_bounds


def _bad(message: str) -> UntrustedMetadata:
    return UntrustedMetadata(message, operation="scan")
