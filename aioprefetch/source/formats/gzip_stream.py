"""gzip, of any number of members, by zlib."""

from __future__ import annotations

import zlib

from aioprefetch.source.formats.corruption import corrupt

OUT_BYTES = 1 << 20

# What zlib does not use of its input is copied: little of it, however much a byte stands for.
_SLICE_BYTES = 32 << 10

_GZIP_WINDOW_BITS = 31


class GzipStream:
    """See ``Decompressor``. Zeros after a member are padding, as gzip has it; anything else begins another one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._data = b""
        self._at = 0
        self._base = 0
        self._members = 0
        self._member: zlib._Decompress | None = None

    @property
    def position(self) -> int:
        """How many compressed bytes were used."""
        return self._base + self._at

    def feed(self, data: bytes) -> None:
        """See ``Decompressor``."""
        self._base += len(self._data)
        self._data, self._at = data, 0

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
            rest = len(self._data) - len(self._data[self._at :].lstrip(b"\0"))
            self._at = max(self._at, rest)
        if self._at >= len(self._data):
            return None
        self._members += 1
        self._member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        return self._member

    def _inflate(self, member: zlib._Decompress, room: int) -> bytes:
        piece = self._data[self._at : self._at + _SLICE_BYTES]
        try:
            found = member.decompress(piece, room)
        except zlib.error as error:
            what = "this is no gzip" if self._members == 1 else "what follows a gzip member is no other one"
            raise corrupt(f"{what}, or it is damaged: {error}", path=self._path, offset=self.position) from error
        self._at += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
        if member.eof:
            self._member = None
        return found
