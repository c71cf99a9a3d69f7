"""Compressed buffers of a page: decompressed whole, or, in FSST, decoded value by value.

A buffer states its decompressed size. A size that the compressed bytes cannot expand to is refused.

**FSST** has strings as one-byte codes of symbols of 1 to 8 bytes, with one symbol table per page. Code 255 escapes the
next byte, which belongs to the same value. The codes of many values are decoded at once: escapes are found by the
parity of runs of 255, and from a table of 256 symbols and 256 single bytes each code writes a word of 8 bytes where its
text begins. The next code overwrites the bytes behind the symbol.
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
# The number of codes that are expanded together, to at most 128 KiB of text: their positions stay in the CPU's cache.
CODES_AT_ONCE = 1 << 14


def decode_fsst(
    symbol_table: bytes,
    codes: memoryview | Bytes,
    offsets: npt.NDArray[np.integer],
    *,
    codes_at_once: int = CODES_AT_ONCE,
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
    codes_at_once
        The number of codes that are expanded at once.
    """
    data = np.frombuffer(codes, np.uint8) if isinstance(codes, memoryview) else codes
    bounds = _checked_offsets(offsets, data.size)
    data = data[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    words, lengths = _symbols(symbol_table)
    if not words.size:  # The text is stored without compression.
        return data, bounds
    return _expand(words, lengths, *_indices(data, bounds), codes_at_once)


def _checked_offsets(offsets: npt.NDArray[np.integer], size: int) -> Offsets:
    if offsets.size == 0:
        raise _bad_text("FSST values without offsets")
    bounds = offsets.astype(np.int64)
    if bounds[0] < 0 or bounds[-1] > size or bool(np.any(bounds[1:] < bounds[:-1])):
        raise _bad_text(f"offsets of FSST values leave the {size} bytes of codes, or do not ascend")
    return bounds


def _symbols(stored: bytes) -> tuple[npt.NDArray[np.uint64], Bytes]:
    """The table of 256 symbols and 256 single bytes, as words and lengths; empty for plain text."""
    if len(stored) < FSST_HEADER_BYTES:
        raise _bad_text(f"an FSST symbol table of {len(stored)} bytes")
    header = int.from_bytes(stored[:FSST_HEADER_BYTES], "little")
    if header >> 32 != FSST_MAGIC:
        raise _bad_text("an FSST symbol table without its magic number")
    count = header & 0xFF
    if not header >> 24 & 1:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint8)
    if len(stored) < FSST_HEADER_BYTES + count * (SYMBOL_BYTES_MAX + 1):
        raise _bad_text(f"an FSST symbol table of {len(stored)} bytes cannot hold {count} symbols")
    words, lengths = np.arange(-256, 256).astype(np.uint64), np.ones(512, np.uint8)
    lengths[count:256] = 0  # No such symbol.
    words[:count] = np.frombuffer(stored, "<u8", count, FSST_HEADER_BYTES)
    lengths[:count] = np.frombuffer(stored, np.uint8, count, FSST_HEADER_BYTES + count * SYMBOL_BYTES_MAX)
    if count and not 1 <= int(lengths[:count].min()) <= int(lengths[:count].max()) <= SYMBOL_BYTES_MAX:
        raise _bad_text("an FSST symbol that is not 1 to 8 bytes long")
    return words, lengths


def _indices(codes: Bytes, bounds: Offsets) -> tuple[Bytes | npt.NDArray[np.uint16], Offsets]:
    """Indices into the table of 512, with escapes resolved, and the start of each value among them."""
    escapes = _escapes(codes)
    if not escapes.size:
        return codes, bounds
    if escapes[-1] + 1 == codes.size or _any_ends_in(escapes, bounds):
        raise _bad_text("an FSST escape at the end of a value")
    indices = codes.astype(np.uint16)
    indices[escapes + 1] += 256
    return np.delete(indices, escapes), bounds - np.searchsorted(escapes, bounds)


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
    words: npt.NDArray[np.uint64],
    lengths: Bytes,
    indices: Bytes | npt.NDArray[np.uint16],
    bounds: Offsets,
    codes_at_once: int,
) -> tuple[Bytes, Offsets]:
    sizes = lengths.take(indices)
    if not sizes.all():
        raise _bad_text(f"an FSST code beyond the {np.count_nonzero(lengths[:256])} symbols")
    size_bytes = int(sizes.sum(dtype=np.int64))
    text = np.empty(size_bytes + SYMBOL_BYTES_MAX, np.uint8)
    places = np.ndarray((size_bytes + 1,), "<u8", text, strides=(1,))  # A word at every byte.
    new_bounds = np.full(bounds.size, size_bytes, np.int64)
    written = first = 0
    for start in range(0, indices.size, codes_at_once):
        part = slice(start, start + codes_at_once)
        ends = written + np.cumsum(sizes[part], dtype=np.int64)
        starts = ends - sizes[part]
        places[starts] = words.take(indices[part])  # In this order, so that the text of every code is whole.
        last = int(np.searchsorted(bounds, start + ends.size))
        new_bounds[first:last] = starts[bounds[first:last] - start]
        first, written = last, int(ends[-1])
    return text[:size_bytes], new_bounds


def _bad_text(message: str) -> UntrustedMetadata:
    return UntrustedMetadata(message, operation="scan")
