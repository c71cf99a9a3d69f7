"""Whether an object is at its destination already: by size and by proof, or by times where the caller says so.

1. Different sizes, or a size that is not known: not the same.
2. In s3 the ETag of an object that was written at once is its MD5, and that of one written in parts follows from those
   of the parts. Where both sides are of s3, equal ETags mean the same, and two different MD5s mean not the same.
3. By time, where the caller says so. A local file gets the time of its object: an equal time means the same.
   Elsewhere a destination that was written after the source means the same, as for ``aws s3 sync``.
4. Between s3 and a local file the MD5 of the file is compared with the ETag.

A time counts for nothing where the source may have changed again within it, because stores tell whole seconds. All that
is not the same by one of these rules is copied.
"""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, datetime, timedelta
from typing import BinaryIO

from aioprefetch.operator.download import nanoseconds_of
from aioprefetch.operator.transfer.sides import Side
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import Entry, Metadata

_DIGEST = re.compile(r"([0-9a-f]{32})(?:-([1-9][0-9]{0,4}))?")
_READ_BYTES = 1 << 20


class Comparison:
    """Compares the objects of two sides. ``has_proofs`` tells whether the bytes of any can be proven to be the same."""

    def __init__(self, source: Side, target: Side, runtime: Runtime, *, by_time: bool) -> None:
        self._source = source
        self._target = target
        self._runtime = runtime
        self._by_time = by_time
        self._have_digests = _has_digests(source) and _has_digests(target)
        sides = ((source, target), (target, source))
        self.has_proofs = self._have_digests or any(_has_digests(one) and two.root is not None for one, two in sides)

    async def is_same(self, found: Entry | Metadata, there: Entry | Metadata) -> bool:
        """Whether the object at the destination is a copy of the one in the source."""
        if found.size is None or found.size != there.size:
            return False
        if self._have_digests:
            known = _by_digests(found.etag, there.etag)
            if known is not None:
                return known
        target_file = self._file(self._target, there.path)
        if self._by_time and await self._looks_same(found, there, target_file):
            return True
        if target_file is not None and _has_digests(self._source):
            return await self._has_digest(target_file, found.etag, self._source)
        source_file = self._file(self._source, found.path)
        if source_file is not None and _has_digests(self._target):
            return await self._has_digest(source_file, there.etag, self._target)
        return False

    async def _looks_same(self, found: Entry | Metadata, there: Entry | Metadata, file: str | None) -> bool:
        if file is None:
            return _is_later(there.last_modified, found.last_modified)
        return await self._runtime.run_blocking(_has_time, file, found.last_modified)

    @staticmethod
    def _file(side: Side, path: str) -> str | None:
        return None if side.root is None else os.path.join(side.root, path)

    async def _has_digest(self, file: str, etag: str | None, other: Side) -> bool:
        part_bytes = other.operator.capability.write_part_bytes
        return await self._runtime.run_blocking(_file_has_digest, file, etag, part_bytes)


def _has_digests(side: Side) -> bool:
    return side.operator.info.scheme in ("s3", "s3a")


def _by_digests(first: str | None, second: str | None) -> bool | None:
    """Whether two ETags of s3 are of the same bytes, ``None`` if they do not tell."""
    if first is None or second is None:
        return None
    one, other = _DIGEST.fullmatch(first), _DIGEST.fullmatch(second)
    if one is None or other is None:
        return None
    if first == second:
        return True
    return False if one[2] is other[2] is None else None


def _resolution(time: datetime) -> timedelta:
    """Within which a store may have changed an object again without another time."""
    return timedelta(microseconds=1) if time.microsecond else timedelta(seconds=1)


def _is_later(there: datetime | None, found: datetime | None) -> bool:
    return there is not None and found is not None and there >= found + _resolution(found)


def _has_time(file: str, modified: datetime | None) -> bool:
    """On a thread: whether a file has the time of an object that did not change after the file was written."""
    if modified is None:
        return False
    try:
        status = os.stat(file)
    except OSError:
        return False
    written = datetime.fromtimestamp(status.st_ctime_ns // 1000 / 1e6, UTC)
    return status.st_mtime_ns // 1000 * 1000 == nanoseconds_of(modified) and _is_later(written, modified)


def _file_has_digest(file: str, etag: str | None, part_bytes: int) -> bool:
    """On a thread: whether a file has the bytes of an ETag of s3; ``False`` too for an ETag of another form."""
    match = _DIGEST.fullmatch(etag or "")
    if match is None:
        return False
    try:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if match[2] is None:
                return _md5_of_next(opened, size) == bytes.fromhex(match[1])
            if not part_bytes or -(-size // part_bytes) != int(match[2]):
                return False
            digests = b"".join(_md5_of_next(opened, part_bytes) for _ in range(int(match[2])))
    except OSError:
        return False
    return hashlib.md5(digests, usedforsecurity=False).hexdigest() == match[1]


def _md5_of_next(file: BinaryIO, size: int) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    while size > 0:
        data = file.read(min(size, _READ_BYTES))
        if not data:
            break
        digest.update(data)
        size -= len(data)
    return digest.digest()
