"""Compressed buffers within pages: the size that one claims is bounded by what its page can need, before it is made."""

from __future__ import annotations

from aioprefetch.lance import compression
from aioprefetch.lance.structural.bytes_of import Bytes, damaged


def decompress(scheme: str, data: Bytes, bytes_max: int) -> Bytes:
    """The content of a buffer of ``lz4`` or ``zstd``.

    ``UntrustedMetadata`` when it claims more than ``bytes_max`` or than its bytes can hold, or is damaged.
    """
    view = memoryview(data)  # type: ignore[arg-type]  # numpy's arrays are buffers
    claimed = compression.decompressed_bytes(scheme, view)
    if claimed > bytes_max:
        raise damaged(f"a buffer compressed with {scheme} claims {claimed} bytes, and no more than {bytes_max} can be")
    return compression.decompress(scheme, view)
