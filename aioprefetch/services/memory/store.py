"""The objects of a memory store. A stored object never changes: a write replaces it, so a read sees one version."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import field
from datetime import UTC, datetime

from aioprefetch.accessor.http_headers import described_by
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.values import Metadata, WriteRequest


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object: its bytes, and its metadata with the ETag."""

    data: bytes
    metadata: Metadata


@dataclass(slots=True)
class Store:
    """The objects of one store by key."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    _etags: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    # A cache on a disk outlives the process: the stores of two processes must not give one ETag to different bytes.
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _sorted: list[str] | None = None

    def put(self, request: WriteRequest, data: bytes) -> Metadata:
        """Store an object under its key, in place of an existing one."""
        metadata = Metadata(
            path=request.path,
            size=len(data),
            etag=f"{next(self._etags):x}-{len(data):x}-{self._token}",
            last_modified=datetime.now(UTC),
            **described_by(request),
        )
        if request.path not in self.objects:
            self._sorted = None
        self.objects[request.path] = StoredObject(data, metadata)
        return metadata

    def remove(self, key: str) -> None:
        """Remove a key. A missing key is ignored."""
        if self.objects.pop(key, None) is not None:
            self._sorted = None

    def keys(self) -> list[str]:
        """All keys in order."""
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        return self._sorted
