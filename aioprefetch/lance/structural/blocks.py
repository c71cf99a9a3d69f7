"""Blocks: values of a page that are one buffer, not divided into chunks. Dictionaries are stored so."""

from __future__ import annotations

import numpy as np

from aioprefetch.errors import Unsupported
from aioprefetch.lance import fsst
from aioprefetch.lance.structural import chunk_values
from aioprefetch.lance.structural.bytes_of import Bytes, damaged, little_endian
from aioprefetch.lance.structural.chunk_values import Pieces, split_runs
from aioprefetch.lance.structural.compressions import (
    ByteStreamSplit,
    Encoding,
    Flat,
    Fsst,
    General,
    InlineBitpacked,
    OutOfLineBitpacked,
    Rle,
    Same,
    Variable,
)
from aioprefetch.lance.structural.decompression import decompress
from aioprefetch.lance.structural.values import Fixed, Texts

# Writers give up on dictionaries long before.
DICTIONARY_BYTES_MAX = 256 << 20


def decode_dictionary(encoding: Encoding, data: Bytes, count: int) -> Fixed | Texts:
    """The ``count`` items of a dictionary, which ``data`` holds. ``UntrustedMetadata`` if it does not."""
    if isinstance(encoding, General):
        most = DICTIONARY_BYTES_MAX
        if isinstance(encoding.values, Flat):
            most = min(most, (count * encoding.values.bits + 7) // 8)
        return decode_dictionary(encoding.values, decompress(encoding.scheme, data, most), count)
    if isinstance(encoding, Variable):
        return _texts(data, count)
    if isinstance(encoding, Fsst):
        coded = _texts(data, count)
        return Texts(*fsst.decode(encoding.symbol_table, coded.data, coded.offsets))
    if isinstance(encoding, Flat | InlineBitpacked | OutOfLineBitpacked | ByteStreamSplit | Rle):
        # Few bytes can stand for many items: what they become is bounded, not what they are.
        if count * encoding.bits > 8 * DICTIONARY_BYTES_MAX:
            raise damaged(f"a dictionary of {count} items of {encoding.bits} bits")
        one = np.array([0, data.size, count], np.int64)
        whole = Pieces(data, one[:1], one[1:2])
        buffers = split_runs(whole) if isinstance(encoding, Rle) else [whole]
        values = chunk_values.decode(encoding, buffers, one[2:])
        assert isinstance(values, Fixed)
        return values
    if isinstance(encoding, Same) and encoding.value:
        width = len(encoding.value)
        if count * width > DICTIONARY_BYTES_MAX:
            raise damaged(f"a dictionary of {count} items of {width} bytes")
        return Fixed(np.tile(np.frombuffer(encoding.value, np.uint8), count), 8 * width, count)
    raise Unsupported(f"a dictionary in {type(encoding).__name__} is not supported", operation="scan")


def _texts(data: Bytes, count: int) -> Texts:
    """A word with the bits of an offset, a word with the start of the bytes, offsets, bytes."""
    if data.size < 8:
        raise damaged(f"a block of strings of {data.size} bytes")
    bits = int.from_bytes(data[:4].tobytes(), "little")
    if bits not in (32, 64):
        raise Unsupported(f"a block of strings with offsets of {bits} bits is not supported", operation="scan")
    word = bits // 8
    start = int.from_bytes(data[word : 2 * word].tobytes(), "little")
    if not 2 * word <= 2 * word + (count + 1) * word <= start <= data.size:
        raise damaged(f"a block of {count} strings whose bytes start at {start} of {data.size}")
    offsets = little_endian(data[2 * word : 2 * word + (count + 1) * word], word).astype(np.int64)
    texts = data[start:]
    if offsets[0] < 0 or offsets[-1] > texts.size or bool(np.any(offsets[1:] < offsets[:-1])):
        raise damaged("offsets of strings leave their block, or do not ascend")
    return Texts(texts, offsets)
