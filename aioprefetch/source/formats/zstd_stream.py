"""zstd, of any number of frames, by the standard library (from Python 3.14) or its backport.

pyarrow has zstd too, but pulls its input from a file that blocks, which an event loop cannot offer.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from aioprefetch.errors import MissingDependency
from aioprefetch.source.formats.corruption import corrupt

OUT_BYTES = 1 << 20

# What a frame does not use of its input is copied. So it gets little of it, and of a new frame less: as much again with
# each slice, so that all frames together cost what their bytes do.
SLICE_BYTES_MIN = 128
SLICE_BYTES_MAX = 64 << 10


class ZstdStream:
    """See ``Decompressor``. A frame that needs a window above 128 MiB is refused, as the ``zstd`` command does."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._module = _zstd(path)
        self._data = memoryview(b"")
        self._at = 0
        self._base = 0
        self._frames = 0
        self._slice_bytes = SLICE_BYTES_MIN
        self._frame: Any = None

    @property
    def position(self) -> int:
        """How many compressed bytes were used."""
        return self._base + self._at

    def feed(self, data: bytes) -> None:
        """See ``Decompressor``."""
        self._base += len(self._data)
        self._data, self._at = memoryview(data), 0

    def take(self) -> bytes:
        """See ``Decompressor``."""
        parts: list[bytes] = []
        room = OUT_BYTES
        while room > 0:
            if self._frame is None:
                if self._at >= len(self._data):
                    break
                self._frames += 1
                self._slice_bytes = SLICE_BYTES_MIN
                self._frame = self._module.ZstdDecompressor()
            elif self._frame.needs_input and self._at >= len(self._data):
                break
            found = self._decompress(room)
            parts.append(found)
            room -= len(found)
        return b"".join(parts)

    def finish(self) -> None:
        """See ``Decompressor``."""
        if self._frame is not None:
            raise corrupt("the zstd stream is cut short", path=self._path, offset=self.position)

    def _decompress(self, room: int) -> bytes:
        frame = self._frame
        piece = self._data[self._at : self._at + self._slice_bytes] if frame.needs_input else b""
        self._slice_bytes = min(2 * self._slice_bytes, SLICE_BYTES_MAX)
        try:
            found: bytes = frame.decompress(piece, room)
        except self._module.ZstdError as error:
            what = "this is no zstd" if self._frames == 1 else "what follows a zstd frame is no other one"
            raise corrupt(f"{what}, or it is damaged: {error}", path=self._path, offset=self.position) from error
        self._at += len(piece)
        if frame.eof:
            self._at -= len(frame.unused_data)
            self._frame = None
        return found


def _zstd(path: str) -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            "zstd needs Python 3.14 or the package backports.zstd: pip install 'aioprefetch[spark]'",
            operation="read_items",
            path=path,
        ) from error
