"""Page bridging: the rows of a batch as one Arrow array, whatever pages they lie in.

Rows of a single page become slices of its memory. Rows of several pages are decoded into buffers that are allocated
once, each page into its part: bitmaps at any bit, strings with offsets that go on from page to page and their bytes
back to back. Concatenated are alone:

* the values of dictionaries, where a batch of a ``dictionary`` type spans pages whose dictionaries differ; the indices
  are bridged like everything else.

Offsets and validity of lists, and of structs in versions that keep levels, are made by the callers, which know what
their pages say of them; the values below come from here.

The last small piece of a page is copied, so that a batch that the consumer keeps does not hold the memory of a page
whose other rows are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.physical.basic import AllNulls
from aioprefetch.lance.physical.memory import allocate
from aioprefetch.lance.physical.protocols import (
    Capacity,
    EncodedPage,
    PhysicalPageDecoder,
    Piece,
    Slice,
    Target,
)

# A last piece below this share of its page is copied, if the page is larger than what a batch may keep for free.
SMALL_SHARE = 4
KEPT_BYTES_MAX = 64 << 10

AnyPage = PhysicalPageDecoder | EncodedPage


@dataclass(frozen=True, slots=True)
class Slot:
    """One output buffer: a bitmap, fixed-width values, ``rows + 1`` offsets, or the bytes that they point into.

    ``width`` in bytes, of a value or an offset.
    """

    kind: Literal["bits", "values", "offsets", "bytes"]
    width: int = 1


def layout(kind: pa.DataType) -> list[Slot]:
    """The output buffers of a type, validity first. ``Unsupported`` for a type that no page can hold."""
    if pa.types.is_null(kind):
        return []
    validity = Slot("bits")
    if pa.types.is_dictionary(kind):
        return layout(kind.index_type)
    if pa.types.is_fixed_size_list(kind):
        return [validity, *layout(kind.value_type)]
    if pa.types.is_struct(kind):
        return [validity, *(slot for child in _children(kind) for slot in layout(child.type))]
    if offset_bytes(kind):
        return [validity, Slot("offsets", offset_bytes(kind)), Slot("bytes")]
    if pa.types.is_boolean(kind):
        return [validity, Slot("bits")]
    return [validity, Slot("values", fixed_width(kind))]


def offset_bytes(kind: pa.DataType) -> int:
    """Bytes of an offset of a string or binary type, 0 for other types."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 8
    return 0


def fixed_width(kind: pa.DataType) -> int:
    """Bytes of a value of a fixed-width type. ``Unsupported`` for others."""
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        bits = int(kind.bit_width)
        if bits % 8 == 0:
            return bits // 8
    raise Unsupported(f"values of type {kind} are not supported here")


def null_bits(kind: pa.DataType) -> int:
    """The bits that a null of a type takes in Arrow's memory: validity, and what stands below it."""
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_struct(kind):
        return 1 + sum(null_bits(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return 1 + int(kind.list_size) * null_bits(kind.value_type)
    if pa.types.is_dictionary(kind):
        return null_bits(kind.index_type)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return 1 + 32
    if pa.types.is_large_list(kind):
        return 1 + 64
    if offset_bytes(kind):
        return 1 + 8 * offset_bytes(kind)
    return 1 + int(kind.bit_width)


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def assemble(kind: pa.DataType, pieces: Sequence[Piece[AnyPage]]) -> pa.Array:
    """The rows of ``pieces``, one after the other, as an array of type ``kind``.

    The pages decode to ``layout(kind)``. For a ``dictionary`` type that is its indices alone: see ``dictionary``.
    ``UntrustedMetadata`` for pages that contradict themselves, ``Unsupported`` for more than 32-bit offsets hold.
    """
    parts = [_plain(piece) for piece in pieces if piece.rows]
    rows = sum(part.rows for part in parts)
    if len(parts) == 1 and not is_small_rest(parts[0]):
        buffers = parts[0].page.slice(parts[0].skip, rows)
        if buffers is not None:
            return build(kind, rows, buffers)
    return build(kind, rows, bridge(layout(kind), parts))


def _plain(piece: Piece[AnyPage]) -> Piece[PhysicalPageDecoder]:
    page = piece.page
    decode = getattr(page, "decoded", None)
    if decode is None:
        return piece  # type: ignore[return-value]  # it is no EncodedPage
    decoded, skip = decode(piece.skip, piece.rows)
    return Piece(decoded, skip, piece.rows)  # The page's own memory is not in it.


def is_small_rest(piece: Piece[PhysicalPageDecoder]) -> bool:
    """Whether the piece is the last and small one of a large page. A page of nulls has no memory to hold."""
    if not piece.is_last or isinstance(piece.page, AllNulls) or piece.rows * SMALL_SHARE >= piece.page.rows:
        return False
    return piece.page.size_bytes(0, piece.page.rows) > KEPT_BYTES_MAX


def bridge(slots: Sequence[Slot], parts: Sequence[Piece[PhysicalPageDecoder]]) -> list[Slice | None]:
    """Decode all parts into one allocation for each buffer, which is ``None`` where no part needs it."""
    capacities = [Capacity() for _ in slots]
    for part in parts:
        part.page.update_capacity(part.skip, part.rows, capacities)
    targets = [_target(slot, capacity) for slot, capacity in zip(slots, capacities, strict=True)]
    for part in parts:
        part.page.decode_into(part.skip, part.rows, targets)
    return [None if target is None else target.memory for target in targets]


def _target(slot: Slot, capacity: Capacity) -> Target | None:
    match slot.kind:
        case "bits":
            return Target(allocate((capacity.size + 7) // 8)) if capacity.is_needed else None
        case "values":
            return Target(allocate(capacity.size))
        case "bytes":
            return Target(allocate(capacity.size))
        case "offsets":
            memory = allocate((capacity.size + 1) * slot.width).view(np.int32 if slot.width == 4 else np.int64)
            memory[0] = 0
            return Target(memory, 1)


# --- buffers to arrays ----------------------------------------------------------------------------------------------


def build(kind: pa.DataType, rows: int, buffers: Sequence[Slice | None]) -> pa.Array:
    """An array of buffers in the order of ``layout(kind)``, without a copy unless values are not aligned.

    Text that is no UTF-8 is ``UntrustedMetadata``: readers of Arrow count on it.
    """
    array, used = _build(kind, rows, buffers, 0)
    if used != len(buffers):
        raise UntrustedMetadata(f"a page of {len(buffers)} buffers cannot be of type {kind}")
    return array


def _build(kind: pa.DataType, rows: int, buffers: Sequence[Slice | None], at: int) -> tuple[pa.Array, int]:
    if pa.types.is_null(kind):
        return pa.nulls(rows), at
    validity = arrow_buffer(buffers[at])
    if pa.types.is_fixed_size_list(kind):
        items, at = _build(kind.value_type, rows * kind.list_size, buffers, at + 1)
        return pa.Array.from_buffers(kind, rows, [validity], children=[items]), at
    if pa.types.is_struct(kind):
        children: list[pa.Array] = []
        at += 1
        for child in _children(kind):
            array, at = _build(child.type, rows, buffers, at)
            children.append(array)
        return pa.Array.from_buffers(kind, rows, [validity], children=children), at
    if offset_bytes(kind):
        offsets, content = buffers[at + 1], buffers[at + 2]
        text = pa.Array.from_buffers(kind, rows, [validity, arrow_buffer(offsets), arrow_buffer(content)])
        if content is not None and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            check_text(text, content)
        return text, at + 3
    values = buffers[at + 1]
    return pa.Array.from_buffers(kind, rows, [validity, arrow_buffer(values, _alignment(kind))]), at + 2


def arrow_buffer(memory: Slice | None, alignment: int = 1) -> pa.Buffer | None:
    """The same memory for Arrow, a copy of it where it is not aligned."""
    if memory is None:
        return None
    if alignment > 1 and memory.__array_interface__["data"][0] % alignment:
        raw = memory.view(np.uint8)
        memory = allocate(raw.nbytes)
        memory[:] = raw
    return pa.py_buffer(memory)


def _alignment(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind) or pa.types.is_fixed_size_binary(kind):
        return 1
    return min(16, fixed_width(kind))


def check_text(text: pa.Array, content: npt.NDArray[np.uint8]) -> None:
    """``UntrustedMetadata`` unless every value is UTF-8. Where all bytes are ASCII nothing else is looked at."""
    if is_ascii(content):
        return
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UntrustedMetadata(f"a page of strings is damaged: {error}") from error


def is_ascii(content: npt.NDArray[np.uint8]) -> bool:
    """Whether no byte has its highest bit set."""
    words = len(content) // 8 * 8
    seen = int(np.bitwise_or.reduce(content[:words].view(np.uint64))) if words else 0
    seen |= int(np.bitwise_or.reduce(content[words:])) if words < len(content) else 0
    return not seen & 0x8080_8080_8080_8080


# --- dictionaries ---------------------------------------------------------------------------------------------------


def dictionary(
    kind: pa.DataType, pieces: Sequence[Piece[AnyPage]], dictionaries: Sequence[pa.Array]
) -> pa.DictionaryArray:
    """An array of a ``dictionary`` type: ``pieces`` decode to indices, each into its own one of ``dictionaries``.

    Pages with equal dictionaries share the first one. Where they differ the batch gets one of all their values. The
    indices were checked by their pages.
    """
    used = [(piece, values) for piece, values in zip(pieces, dictionaries, strict=True) if piece.rows]
    if not used:
        return pa.DictionaryArray.from_arrays(pa.array([], kind.index_type), pa.array([], kind.value_type))
    first = used[0][1]
    indices = assemble(kind.index_type, [piece for piece, _ in used])
    if all(values is first or values.equals(first) for _, values in used[1:]):
        return _with_dictionary(kind, indices, first)
    merged, renamings = merge_dictionaries(kind, [values for _, values in used])
    width = fixed_width(kind.index_type)
    validity, old = indices.buffers()
    numbers = np.frombuffer(old, f"u{width}", len(indices))
    memory = allocate(len(indices) * width).view(f"u{width}")
    start = 0
    for (piece, _), renamed in zip(used, renamings, strict=True):
        part = slice(start, start + piece.rows)
        memory[part] = renamed[numbers[part]]
        start = part.stop
    indices = pa.Array.from_buffers(kind.index_type, len(indices), [validity, pa.py_buffer(memory)])
    return _with_dictionary(kind, indices, merged)


def merge_dictionaries(kind: pa.DataType, dictionaries: Sequence[pa.Array]) -> tuple[pa.Array, list[npt.NDArray[Any]]]:
    """One dictionary of all values, nulls among them, and for each of ``dictionaries`` the new index of each old one.

    ``Unsupported`` when the index type of ``kind`` cannot count them.
    """
    both = pa.concat_arrays(dictionaries).dictionary_encode(null_encoding="encode")
    width = fixed_width(kind.index_type)
    if len(both.dictionary) > 1 << (8 * width - (0 if pa.types.is_unsigned_integer(kind.index_type) else 1)):
        raise Unsupported(f"the dictionaries of a batch have {len(both.dictionary)} values, too many for {kind}")
    renamed = np.asarray(both.indices).astype(f"u{width}")
    return both.dictionary, np.split(renamed, np.cumsum([len(values) for values in dictionaries])[:-1])


def _with_dictionary(kind: pa.DataType, indices: pa.Array, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered, safe=False)
