"""Compressed buffers of a page, which are read and decompressed whole.

A buffer states its decompressed size. A size that the compressed bytes cannot expand to is refused.
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
    return _split(scheme, data)[0]


def decompress(scheme: str, data: memoryview) -> npt.NDArray[np.uint8]:
    """The decompressed buffer, uint8. ``UntrustedMetadata`` if it is damaged or has another size than it states."""
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
