"""gzip, of any number of members, by zlib."""

from __future__ import annotations

import re
import zlib

from aioprefetch.source.formats.corruption import corrupt

OUT_BYTES = 1 << 20

# What zlib does not use of its input is copied. So it gets little of it, and of a new member less: as much again with
# each slice, so that all members together cost what their bytes do.
SLICE_BYTES_MIN = 128
SLICE_BYTES_MAX = 32 << 10

_GZIP_WINDOW_BITS = 31
_ZEROS = re.compile(rb"\0*+")


class GzipStream:
    """See ``Decompressor``. Zeros after a member are padding, as gzip has it; anything else begins another one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = b""
        self._view = memoryview(b"")
        self._at = 0
        self._base = 0
        self._members = 0
        self._slice_bytes = SLICE_BYTES_MIN
        self._member: zlib._Decompress | None = None

    @property
    def position(self) -> int:
        """How many compressed bytes were used."""
        return self._base + self._at

    def feed(self, data: bytes) -> None:
        """See ``Decompressor``."""
        self._base += len(self._data)
        self._data, self._view, self._at = data, memoryview(data), 0

    def take(self) -> bytes:
        """See ``Decompressor``."""
        parts: list[bytes] = []
        room = OUT_BYTES
        while room > 0:
            member = self._member or self._next_member()
            if member is None:
                break
            found = self._inflate(member, room)
            if found:
                parts.append(found)
                room -= len(found)
            elif self._at == len(self._data) and not member.eof:
                break
        return b"".join(parts)

    def finish(self) -> None:
        """See ``Decompressor``."""
        if self._member is not None:
            raise corrupt("the gzip stream is cut short", path=self._path, offset=self.position)

    def _next_member(self) -> zlib._Decompress | None:
        if self._members:
            zeros = _ZEROS.match(self._data, self._at)
            self._at = self._at if zeros is None else zeros.end()
        if self._at >= len(self._data):
            return None
        self._members += 1
        self._slice_bytes = SLICE_BYTES_MIN
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        return self._member

    def _inflate(self, member: zlib._Decompress, room: int) -> bytes:
        piece = self._view[self._at : self._at + self._slice_bytes]
        self._slice_bytes = min(2 * self._slice_bytes, SLICE_BYTES_MAX)
        try:
            found = member.decompress(piece, room)
        except zlib.error as error:
            what = "this is no gzip" if self._members == 1 else "what follows a gzip member is no other one"
            raise corrupt(f"{what}, or it is damaged: {error}", path=self._path, offset=self.position) from error
        self._at += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            self._member = None
        return found
