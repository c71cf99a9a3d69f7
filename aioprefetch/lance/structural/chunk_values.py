"""The values of mini-block chunks. Each compression decodes all wanted chunks of a page at once.

**FastLanes bit-packing** has groups of 1024 numbers of 8, 16, 32 or 64 bits, packed into fewer bits each. A group of
words of T bits has 1024 / T lanes. Packed to W bits it is a matrix of W rows of one word per lane; number r of a lane
starts at bit r * W of that lane's column. All groups of equal W are unpacked together by a few array operations: pick
the words, shift them, add the bits of the next word, mask, and move every number to its place.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.compression import decompress_within
from aioprefetch.lance.structural.layouts import (
    ByteStreamSplit,
    Encoding,
    FixedSizeListCompression,
    Flat,
    Fsst,
    General,
    InlineBitpacked,
    OutOfLineBitpacked,
    PackedStruct,
    Rle,
    Same,
    Variable,
    row_bits,
)
from aioprefetch.lance.structural.values import (
    Bytes,
    Fixed,
    FixedLists,
    Flags,
    Nulls,
    Positions,
    Texts,
    damaged,
    exclusive_sum,
    joined,
    little_endian,
    runs,
)

GROUP = 1024
# The size of a packed group is W times this, for any T.
ROW_BYTES = GROUP // 8
# The number of groups that are unpacked together: the temporary arrays fit into the nearest CPU caches.
GROUPS_AT_ONCE = 128

_ORDER = (0, 4, 2, 6, 1, 5, 3, 7)
_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {
    8: np.dtype("<u1"),
    16: np.dtype("<u2"),
    32: np.dtype("<u4"),
    64: np.dtype("<u8"),
}

Words = npt.NDArray[np.unsignedinteger]


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """The little-endian unsigned type of ``bits`` bits (8, 16, 32 or 64)."""
    return _DTYPES[bits]


def unpack(
    data: Bytes, starts: Positions, widths: Positions, bits: int, *, groups_at_once: int = GROUPS_AT_ONCE
) -> Words:
    """The numbers of all groups, shape ``(groups, 1024)``, of words of ``bits`` bits.

    ``starts`` are the positions in ``data`` of each group's packed bytes, at multiples of 8 counted from the first.
    ``widths`` are the bits of a packed number of each group. ``UntrustedMetadata`` if either is impossible.
    ``groups_at_once`` groups of equal width are unpacked together.
    """
    if starts.size and (
        int(widths.min()) < 0 or int(widths.max()) > bits or int((starts + widths * ROW_BYTES).max()) > data.size
    ):
        raise UntrustedMetadata("bit-packed numbers wider than they may be, or beyond their buffer", operation="scan")
    out = np.empty((starts.size, GROUP), word_type(bits))
    first = int(widths[0]) if starts.size else 0
    if bool(np.all(widths == first)):
        _unpack_equal(data, starts, first, bits, out, None, groups_at_once)
        return out
    for width in np.unique(widths):
        rows = np.flatnonzero(widths == width)
        _unpack_equal(data, starts[rows], int(width), bits, out, rows, groups_at_once)
    return out


def _unpack_equal(
    data: Bytes,
    starts: Positions,
    width: int,
    bits: int,
    out: Words,
    rows: npt.NDArray[np.intp] | None,
    groups_at_once: int,
) -> None:
    """Unpack groups of equal width into ``rows`` of ``out``, or into all rows."""
    for first in range(0, starts.size, groups_at_once):
        part = slice(first, min(first + groups_at_once, starts.size))
        if rows is None:
            _unpack_few(data, starts[part], width, bits, out[part])
            continue
        unpacked = np.empty((part.stop - part.start, GROUP), out.dtype)
        _unpack_few(data, starts[part], width, bits, unpacked)
        out[rows[part]] = unpacked


def _unpack_few(data: Bytes, starts: Positions, width: int, bits: int, out: Words) -> None:
    groups, lanes, word = starts.size, GROUP // bits, out.dtype
    if width == 0:
        out[:] = 0
        return
    plan = _plan(bits, width)
    # [width][groups * lanes]: each number's words of all groups are one contiguous run.
    packed = _gather(data, starts, width).view(word).reshape(groups, width, lanes)
    columns = np.ascontiguousarray(packed.transpose(1, 0, 2)).reshape(width, groups * lanes)
    numbers = columns[plan.rows]
    np.right_shift(numbers, plan.shifts, out=numbers)
    if plan.split.size:
        upper = columns[plan.upper_rows]
        np.left_shift(upper, plan.upper_shifts, out=upper)
        numbers[plan.split] |= upper
    if width < bits:
        np.bitwise_and(numbers, word.type((1 << width) - 1), out=numbers)
    blocks = bits // 8
    out.reshape(groups, 8, blocks, lanes)[:] = numbers.reshape(8, blocks, groups, lanes).transpose(2, 0, 1, 3)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to unpack a lane: the word and the shift of each of its T numbers, in the order of the output.

    ``split`` are the numbers that continue in the next word.
    """

    rows: npt.NDArray[np.intp]
    shifts: Words
    split: npt.NDArray[np.intp]
    upper_rows: npt.NDArray[np.intp]
    upper_shifts: Words


@functools.lru_cache(maxsize=256)
def _plan(bits: int, width: int) -> _Plan:
    # Number r of a lane goes to ORDER[r // 8] * 16 + r % 8 * 128: eight rows of 128, each of bits / 8 blocks.
    blocks = bits // 8
    places = np.argsort(_ORDER[:blocks], kind="stable")
    numbers = (places[None, :] * 8 + np.arange(8)[:, None]).reshape(-1)
    rows, shifts = numbers * width // bits, numbers * width % bits
    split = np.flatnonzero(shifts + width > bits)
    word = word_type(bits)
    return _Plan(
        rows,
        shifts.astype(word)[:, None],
        split,
        rows[split] + 1,
        (bits - shifts[split]).astype(word)[:, None],
    )


def _gather(data: Bytes, starts: Positions, width: int) -> Bytes:
    """The packed bytes of each group, ``(groups, width * 128)``, copied into one array."""
    record = np.dtype((np.void, width * ROW_BYTES))
    count = data.size - record.itemsize + 1
    windows = np.ndarray((count,), record, data, strides=(1,))
    return windows[starts].view(np.uint8).reshape(starts.size, record.itemsize)


def trimmed(groups: Words, lengths: Positions) -> Words:
    """The first ``lengths[i]`` numbers of each group, back to back. No copy is made if only the last group is short."""
    flat = groups.reshape(-1)
    total = int(lengths.sum())
    if bool(np.all(lengths[:-1] == GROUP)):
        return flat[:total]
    return np.concatenate([group[:length] for group, length in zip(groups, lengths.tolist(), strict=True)])


# --- compressions -----------------------------------------------------------------------------------------------------

# The maximum size of the strings of one chunk, far above the chunks of real writers.
CHUNK_TEXT_BYTES_MAX = 64 << 20

Pick = slice | Positions


@dataclass(frozen=True, slots=True)
class ChunkBuffer:
    """One buffer of every chunk: for chunk i it is ``data[starts[i]:starts[i] + sizes[i]]``."""

    data: Bytes
    starts: Positions
    sizes: Positions

    def picked(self, pick: Pick) -> ChunkBuffer:
        """The buffers of the picked chunks."""
        return ChunkBuffer(self.data, self.starts[pick], self.sizes[pick])


def decode(encoding: Encoding, buffers: Sequence[ChunkBuffer], counts: Positions) -> Fixed | Texts | FixedLists:
    """The values of all chunks; chunk i has ``counts[i]`` values.

    ``UntrustedMetadata`` if the buffers do not hold them.
    """
    if len(buffers) != buffer_count(encoding):
        raise damaged(f"{type(encoding).__name__} in {len(buffers)} buffers")
    match encoding:
        case Flat(bits):
            return _flat(buffers[0], bits, counts)
        case InlineBitpacked(bits):
            return _inline_bitpacked(buffers[0], bits, counts)
        case OutOfLineBitpacked(bits, packed_bits):
            return _out_of_line_bitpacked(buffers[0], bits, packed_bits, counts)
        case Rle(bits):
            return _rle(buffers[0], buffers[1], bits, counts)
        case ByteStreamSplit(bits):
            return _byte_stream_split(buffers[0], bits, counts)
        case Variable(offset_bits):
            return _variable(buffers[0], offset_bits // 8, counts)
        case Fsst(table, inner):
            texts = _variable(buffers[0], inner.offset_bits // 8, counts)
            return Texts(texts.data, texts.offsets, table)
        case FixedSizeListCompression():
            return _fixed_lists(encoding, buffers, counts)
        case PackedStruct(bits):
            return _flat(buffers[0], sum(bits), counts)
        case General(scheme, inner):
            first = decompressed(scheme, buffers[0], first_buffer_bytes(inner, counts))
            return decode(inner, [first, *buffers[1:]], counts)
    raise Unsupported(f"{type(encoding).__name__} in a mini-block is not supported", operation="scan")


def buffer_count(encoding: Encoding) -> int:
    """The number of value buffers in a chunk."""
    match encoding:
        case Rle():
            return 2
        case General(_, values):
            return buffer_count(values)
        case FixedSizeListCompression(_, has_validity, values):
            return int(has_validity) + buffer_count(values)
        case Same():
            return 0
    return 1


def _need(pieces: ChunkBuffer, sizes: Positions, what: str) -> None:
    if bool(np.any(pieces.sizes < sizes)):
        raise damaged(f"a chunk is too small for its {what}")


def _flat(pieces: ChunkBuffer, bits: int, counts: Positions) -> Fixed:
    total = int(counts.sum())
    if bits == 1:
        return Fixed(_bits(pieces, counts), 1, total)
    sizes = counts * (bits // 8)
    _need(pieces, sizes, "values")
    return Fixed(joined(pieces.data, pieces.starts, sizes), bits, total)


def _bits(pieces: ChunkBuffer, counts: Positions) -> Bytes:
    """One byte per bit, 0 or 1; each chunk starts at a byte."""
    sizes = (counts + 7) // 8
    _need(pieces, sizes, "bits")
    if bool(np.all(counts[:-1] % 8 == 0)):
        packed = joined(pieces.data, pieces.starts, sizes)
        return np.unpackbits(packed, count=int(counts.sum()), bitorder="little")
    return np.concatenate(
        [
            np.unpackbits(pieces.data[start : start + (count + 7) // 8], count=count, bitorder="little")
            for start, count in zip(pieces.starts.tolist(), counts.tolist(), strict=True)
        ]
    )


def _inline_bitpacked(pieces: ChunkBuffer, bits: int, counts: Positions) -> Fixed:
    word = bits // 8
    _need(pieces, np.full_like(counts, word), "bit width")
    if counts.size and int(counts.max()) > GROUP:
        raise damaged(f"a bit-packed chunk of {int(counts.max())} values")
    at = (pieces.starts[:, None] + np.arange(word)).reshape(-1)
    widths = pieces.data[at].view(word_type(bits))
    if widths.size and int(widths.max()) > bits:
        raise damaged(f"numbers of {bits} bits packed into {int(widths.max())}")
    widths = widths.astype(np.int64)
    _need(pieces, word + widths * ROW_BYTES, "bit-packed values")
    groups = unpack(pieces.data, pieces.starts + word, widths, bits)
    return Fixed(trimmed(groups, counts).view(np.uint8), bits, int(counts.sum()))


def _out_of_line_bitpacked(pieces: ChunkBuffer, bits: int, packed_bits: int, counts: Positions) -> Fixed:
    """Values in packed groups of 1024. The remainder of a chunk is either a padded group or stored unpacked."""
    word, group_bytes = bits // 8, packed_bits * ROW_BYTES
    whole, left = counts // GROUP, counts % GROUP
    is_raw = (left > 0) & (pieces.sizes == whole * group_bytes + left * word)
    groups = whole + ((left > 0) & ~is_raw)
    _need(pieces, groups * group_bytes, "bit-packed values")
    first = np.cumsum(groups) - groups
    starts = runs(np.zeros_like(groups), groups) * group_bytes + np.repeat(pieces.starts, groups)
    unpacked = unpack(pieces.data, starts, np.full(starts.size, packed_bits, np.int64), bits)
    if not bool(np.any(is_raw)) and bool(np.all(left[:-1] == 0)):
        numbers = unpacked.reshape(-1)[: int(counts.sum())]
        return Fixed(numbers.view(np.uint8), bits, numbers.size)
    kind, flat, parts = word_type(bits), unpacked.reshape(-1), []
    for i, (count, begin) in enumerate(zip(counts.tolist(), (first * GROUP).tolist(), strict=True)):
        if is_raw[i]:
            parts.append(flat[begin : begin + int(whole[i]) * GROUP])
            at = int(pieces.starts[i] + whole[i] * group_bytes)
            parts.append(pieces.data[at : at + int(left[i]) * word].view(kind))
        else:
            parts.append(flat[begin : begin + count])
    numbers = np.concatenate(parts) if parts else np.zeros(0, kind)
    return Fixed(numbers.view(np.uint8), bits, numbers.size)


def _rle(values: ChunkBuffer, lengths: ChunkBuffer, bits: int, counts: Positions) -> Fixed:
    word = bits // 8
    run_counts = lengths.sizes
    if bool(np.any(values.sizes != run_counts * word)):
        raise damaged("run lengths and run values of a chunk differ in number")
    all_lengths = joined(lengths.data, lengths.starts, run_counts)
    ends = np.zeros(all_lengths.size + 1, np.int64)
    np.cumsum(all_lengths, out=ends[1:], dtype=np.int64)
    chunk_ends = ends[np.cumsum(run_counts)]
    if bool(np.any(np.diff(chunk_ends, prepend=0) != counts)):
        raise damaged("the runs of a chunk do not add up to its values")
    all_values = little_endian(joined(values.data, values.starts, values.sizes), word)
    return Fixed(np.repeat(all_values, all_lengths).view(np.uint8), bits, int(counts.sum()))


def split_runs(pieces: ChunkBuffer) -> list[ChunkBuffer]:
    """Split a block into run values and run lengths; it starts with the size of the run values (u64)."""
    if bool(np.any(pieces.sizes < 8)):
        raise damaged("a block of runs without its size")
    at = (pieces.starts[:, None] + np.arange(8)).reshape(-1)
    sizes = pieces.data[at].view(np.dtype("<i8")).astype(np.int64)
    if bool(np.any(sizes < 0)) or bool(np.any(sizes > pieces.sizes - 8)):
        raise damaged("the run values of a block are larger than the block")
    starts = pieces.starts + 8
    return [ChunkBuffer(pieces.data, starts, sizes), ChunkBuffer(pieces.data, starts + sizes, pieces.sizes - 8 - sizes)]


def _byte_stream_split(pieces: ChunkBuffer, bits: int, counts: Positions) -> Fixed:
    word = bits // 8
    _need(pieces, counts * word, "byte streams")
    out = np.empty((int(counts.sum()), word), np.uint8)
    position = 0
    for start, count in zip(pieces.starts.tolist(), counts.tolist(), strict=True):
        out[position : position + count] = pieces.data[start : start + count * word].reshape(word, count).T
        position += count
    return Fixed(out.reshape(-1), bits, position)


def _variable(pieces: ChunkBuffer, word: int, counts: Positions) -> Texts:
    """The texts of all chunks. A chunk has offsets, relative to its own start, and then bytes."""
    _need(pieces, (counts + 1) * word, "offsets")
    stored = joined(pieces.data, pieces.starts, (counts + 1) * word)
    positions = little_endian(stored, word).astype(np.int64)
    first = exclusive_sum(counts + 1)
    low, high = positions[first[:-1]], positions[first[1:] - 1]
    lengths = np.diff(positions)
    inner = np.ones(lengths.size, bool)
    # The difference between the last offset of a chunk and the first of the next is not a length.
    inner[first[1:-1] - 1] = False
    lengths = lengths[inner]
    # A 64-bit offset with its top bit set is a negative number here.
    if bool(np.any(low < 0)) or bool(np.any(high > pieces.sizes)) or bool(np.any(lengths < 0)):
        raise damaged("offsets of strings leave their chunk, or do not ascend")
    return Texts(joined(pieces.data, pieces.starts + low, high - low), exclusive_sum(lengths))


def _fixed_lists(encoding: FixedSizeListCompression, buffers: Sequence[ChunkBuffer], counts: Positions) -> FixedLists:
    dimension = encoding.items
    if int(counts.sum()) * row_bits(encoding) > 8 * sum(pieces.data.size for pieces in buffers):
        raise damaged("a chunk is too small for its fixed-size lists")
    item_counts = counts * dimension
    validity: Flags | None = None
    if encoding.has_validity:
        validity = _bits(buffers[0], item_counts).view(bool)
        buffers = buffers[1:]
    if isinstance(encoding.values, Same):
        return FixedLists(no_items(encoding.values, int(item_counts.sum())), dimension, validity, int(counts.sum()))
    items = decode(encoding.values, buffers, item_counts)
    assert isinstance(items, Fixed | FixedLists)
    return FixedLists(items, dimension, validity, int(counts.sum()))


def no_items(encoding: Same, count: int) -> Nulls:
    """The items of fixed-size lists if all items are null."""
    if encoding.value:
        raise Unsupported("a constant with a value within fixed-size lists is not supported", operation="scan")
    return Nulls(count)


def decompressed(scheme: str, pieces: ChunkBuffer, limits: Positions) -> ChunkBuffer:
    """The decompressed pieces, back to back; none may be larger than its limit."""
    contents = [
        decompress_within(scheme, pieces.data[start : start + size], bytes_max)
        for start, size, bytes_max in zip(pieces.starts.tolist(), pieces.sizes.tolist(), limits.tolist(), strict=True)
    ]
    sizes = np.array([content.size for content in contents], np.int64)
    data = contents[0] if len(contents) == 1 else np.concatenate(contents) if contents else np.zeros(0, np.uint8)
    return ChunkBuffer(data, np.cumsum(sizes) - sizes, sizes)


def first_buffer_bytes(encoding: Encoding, counts: Positions) -> Positions:
    """The maximum size of the first buffer of chunks with ``counts`` values."""
    match encoding:
        case Flat(bits) | Rle(bits) | ByteStreamSplit(bits):
            return (counts * bits + 7) // 8
        case InlineBitpacked(bits) | OutOfLineBitpacked(bits, _):
            return (counts + GROUP) * (bits // 8) + 8
        case PackedStruct(bits):
            return counts * (sum(bits) // 8)
        case FixedSizeListCompression(items, has_validity, values):
            return (counts * items + 7) // 8 if has_validity else first_buffer_bytes(values, counts * items)
    return (counts + 1) * 8 + CHUNK_TEXT_BYTES_MAX
