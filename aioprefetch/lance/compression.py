"""Compressed buffers of a page: decompressed whole, or, in FSST, decoded value by value.

A buffer states its decompressed size. A size that the compressed bytes cannot expand to is refused.

**FSST** has strings as one-byte codes of symbols of 1 to 8 bytes, with one symbol table per page. Code 255 escapes the
next byte, which belongs to the same value. The codes of many values are decoded at once: escapes are found by the
parity of runs of 255, and one Arrow ``take`` from a table of 256 symbols and 256 single bytes writes the text without
the interpreter lock.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata

SCHEMES = ("zstd", "lz4")

# The maximum expansion of a byte: a zstd block of 4 bytes fills 128 KiB, an lz4 length byte adds 255.
_RATIO_MAX = {"zstd": 1 << 15, "lz4": 255}
_SLACK_BYTES = 1 << 17

# The maximum decompressed size of a page, to protect memory. Writers end pages at 32 MiB by default.
DECOMPRESSED_BYTES_MAX = 1 << 30

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_RESERVED_BIT = 0x08


def check_scheme(scheme: str) -> None:
    """Raise ``Unsupported`` for an unknown compression."""
    if scheme not in SCHEMES:
        raise Unsupported(f"buffers compressed with {scheme[:40]!r} are not supported")


def decompressed_bytes(scheme: str, data: memoryview) -> int:
    """The decompressed size that a buffer states. ``UntrustedMetadata`` for an impossible size."""
    if not len(data):
        return 0
    return _size_and_body(scheme, data)[0]


def decompress(scheme: str, data: memoryview) -> npt.NDArray[np.uint8]:
    """The decompressed buffer, uint8. ``UntrustedMetadata`` if it is damaged or has another size than it states."""
    if not len(data):
        return np.zeros(0, np.uint8)
    size_bytes, body = _size_and_body(scheme, data)
    if not size_bytes:
        return np.zeros(0, np.uint8)
    codec = pa.Codec("lz4_raw" if scheme == "lz4" else "zstd")
    try:
        content = codec.decompress(pa.py_buffer(body), size_bytes)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UntrustedMetadata(f"a buffer compressed with {scheme} is damaged: {error}") from error
    if content.size != size_bytes:
        raise UntrustedMetadata(f"a compressed buffer has {content.size} bytes and claims {size_bytes}")
    return np.frombuffer(content, np.uint8)


def _size_and_body(scheme: str, data: memoryview) -> tuple[int, memoryview]:
    """Split a buffer into its stated size and its compressed bytes."""
    if scheme == "zstd" and _is_bare_frame(data):
        size_bytes, body = _frame_size(data), data
    else:
        head = 4 if scheme == "lz4" else 8
        if len(data) < head:
            raise UntrustedMetadata(f"a compressed buffer of {len(data)} bytes")
        size_bytes, body = int.from_bytes(data[:head], "little"), data[head:]
    if size_bytes > len(body) * _RATIO_MAX[scheme] + _SLACK_BYTES:
        raise UntrustedMetadata(f"{len(body)} bytes of {scheme} cannot hold the {size_bytes} bytes that they claim")
    if size_bytes > DECOMPRESSED_BYTES_MAX:
        raise Unsupported(f"a compressed buffer of {size_bytes} bytes is more than is decompressed at once")
    return size_bytes, body


def _is_bare_frame(data: memoryview) -> bool:
    """Whether a buffer is a bare zstd frame, as early writers stored it: by magic number and reserved bit."""
    return (
        len(data) > 5
        and struct.unpack_from("<I", data)[0] == _ZSTD_MAGIC
        and not data[4] & _ZSTD_RESERVED_BIT
        and struct.unpack_from("<I", data, min(8, len(data) - 4))[0] != _ZSTD_MAGIC
    )


def _frame_size(data: memoryview) -> int:
    """The content size in the header of a zstd frame."""
    descriptor = data[4]
    code, is_single_segment = descriptor >> 6, bool(descriptor & 0x20)
    width = (1 if is_single_segment else 0, 2, 4, 8)[code]
    at = 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(data) < at + width:
        raise Unsupported("a zstd frame that does not say how large its content is, is not supported")
    return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)


def decompress_within(scheme: str, data: npt.NDArray[np.uint8], bytes_max: int) -> npt.NDArray[np.uint8]:
    """The content of a buffer of ``lz4`` or ``zstd``.

    ``UntrustedMetadata`` if it is damaged, or states more than ``bytes_max`` or than its bytes can expand to.
    """
    view = memoryview(data)  # type: ignore[arg-type]  # numpy arrays are buffers
    claimed = decompressed_bytes(scheme, view)
    if claimed > bytes_max:
        raise UntrustedMetadata(
            f"a buffer compressed with {scheme} claims {claimed} bytes, and its page holds at most {bytes_max}"
        )
    return decompress(scheme, view)


# --- FSST -------------------------------------------------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

FSST_MAGIC = 0x46535354
FSST_HEADER_BYTES = 8
SYMBOL_BYTES_MAX = 8
ESCAPE = 255
# The number of codes of one take, at most 128 KiB of text. Larger takes are hardly faster and keep more memory.
CODES_PER_TAKE = 1 << 14


def decode_fsst(
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
        raise _bad_text("FSST values without offsets")
    bounds = offsets.astype(np.int64)
    if bounds[0] < 0 or bounds[-1] > size or bool(np.any(bounds[1:] < bounds[:-1])):
        raise _bad_text(f"offsets of FSST values leave the {size} bytes of codes, or do not ascend")
    return bounds


def _symbols(stored: bytes) -> tuple[pa.Array | None, int]:
    """The table of 256 symbols and 256 single bytes, and the number of symbols; no table for plain text."""
    if len(stored) < FSST_HEADER_BYTES:
        raise _bad_text(f"an FSST symbol table of {len(stored)} bytes")
    header = int.from_bytes(stored[:FSST_HEADER_BYTES], "little")
    if header >> 32 != FSST_MAGIC:
        raise _bad_text("an FSST symbol table without its magic number")
    count = header & 0xFF
    if not header >> 24 & 1:
        return None, count
    if len(stored) < FSST_HEADER_BYTES + count * (SYMBOL_BYTES_MAX + 1):
        raise _bad_text(f"an FSST symbol table of {len(stored)} bytes cannot hold {count} symbols")
    symbols_end = FSST_HEADER_BYTES + count * SYMBOL_BYTES_MAX
    symbols = np.frombuffer(stored, np.uint8, count * SYMBOL_BYTES_MAX, FSST_HEADER_BYTES).reshape(
        count, SYMBOL_BYTES_MAX
    )
    lengths = np.frombuffer(stored, np.uint8, count, symbols_end)
    if count and not 1 <= int(lengths.min()) <= int(lengths.max()) <= SYMBOL_BYTES_MAX:
        raise _bad_text("an FSST symbol that is not 1 to 8 bytes long")
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
            raise _bad_text("an FSST escape at the end of a value")
        indices[escapes + 1] += 256
        indices = np.delete(indices, escapes)
        bounds = bounds - np.searchsorted(escapes, bounds)
    # Unsigned: numbers below ``symbols`` wrap around to large numbers.
    if symbols < 256 and bool(np.any(indices - np.uint16(symbols) < np.uint16(256 - symbols))):
        raise _bad_text(f"an FSST code beyond the {symbols} symbols")
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


def _bad_text(message: str) -> UntrustedMetadata:
    return UntrustedMetadata(message, operation="scan")
