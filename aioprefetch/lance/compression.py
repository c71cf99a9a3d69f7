"""Compressed buffers of a page. They are fetched and decompressed whole.

A buffer claims a decompressed size. A claim that the compressed bytes cannot fulfil is refused.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata

SCHEMES = ("zstd", "lz4")

# What a byte can stand for at most: a zstd block of 4 bytes fills 128 KiB, an lz4 length byte adds 255.
_RATIO_MAX = {"zstd": 1 << 15, "lz4": 255}
_SLACK_BYTES = 1 << 17

# Pages of a writer end at 32 MiB by default. A page that claims more than this is an attack on memory, or needs another
# reader.
DECOMPRESSED_BYTES_MAX = 1 << 30

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_RESERVED_BIT = 0x08


def check_scheme(scheme: str) -> None:
    """``Unsupported`` for a compression that is not known."""
    if scheme not in SCHEMES:
        raise Unsupported(f"buffers compressed with {scheme[:40]!r} are not supported")


def decompressed_bytes(scheme: str, data: memoryview) -> int:
    """The size that a compressed buffer claims to have, checked. ``UntrustedMetadata`` for one that cannot be."""
    if not len(data):
        return 0
    return _split(scheme, data)[0]


def decompress(scheme: str, data: memoryview) -> npt.NDArray[np.uint8]:
    """The bytes of a whole buffer, uint8. ``UntrustedMetadata`` when it is damaged or not as large as it claims."""
    if not len(data):
        return np.zeros(0, np.uint8)
    size_bytes, body = _split(scheme, data)
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


def _split(scheme: str, data: memoryview) -> tuple[int, memoryview]:
    """The claimed size and the compressed bytes behind it."""
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
    """Early writers put no size before the frame: the magic number stands first, and a bit that is always 0."""
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

    ``UntrustedMetadata`` when it claims more than ``bytes_max`` or than its bytes can hold, or is damaged.
    """
    view = memoryview(data)  # type: ignore[arg-type]  # numpy's arrays are buffers
    claimed = decompressed_bytes(scheme, view)
    if claimed > bytes_max:
        raise UntrustedMetadata(
            f"a buffer compressed with {scheme} claims {claimed} bytes, and its page holds at most {bytes_max}"
        )
    return decompress(scheme, view)
