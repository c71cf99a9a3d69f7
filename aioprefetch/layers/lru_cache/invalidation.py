"""Writes through the layer: what changes an object drops its entry.

Before the change, so that no crash leaves the entry behind, and after it, for entries of reads in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.accessor.write_body import WriteBody
from aioprefetch.layers.lru_cache.entry import slot_of
from aioprefetch.layers.lru_cache.lookup import CacheState
from aioprefetch.values import CopyRequest, DeleteRequest, Metadata, WriteRequest


class InvalidatingAccessor(WrappedAccessor):
    """Forwards writes, and keeps the cache from serving the objects that they replaced."""

    def __init__(self, inner: Accessor, state: CacheState) -> None:
        super().__init__(inner)
        self._state = state

    async def invalidate(self, paths: Iterable[str]) -> list[str]:
        """Drop the entries of these paths; returns their names. The files are gone unless the cache fails."""
        names = [slot_of(self.inner.info.namespace, path, None).name for path in paths]
        self._stop_fills(names)
        await self._state.cache.invalidate(names)
        return names

    def forget(self, names: list[str]) -> None:
        """Drop these entries, and let no fill that is on its way become one of them."""
        self._stop_fills(names)
        self._state.cache.forget(names)

    def _stop_fills(self, names: list[str]) -> None:
        for name in names:
            self._state.fills.invalidate(name)
            self._state.bypassed.forget(name)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        names = await self.invalidate((request.path,))
        try:
            return await self.inner.write(request, data)
        finally:
            self.forget(names)

    async def copy(self, request: CopyRequest) -> Metadata:
        names = await self.invalidate((request.target,))
        try:
            return await self.inner.copy(request)
        finally:
            self.forget(names)

    async def delete(self, request: DeleteRequest) -> None:
        names = await self.invalidate(request.paths)
        try:
            await self.inner.delete(request)
        finally:
            self.forget(names)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return InvalidatingWriteBody(await self.inner.open_write(request), self, request.path)


class InvalidatingWriteBody:
    """A body being written; the entry of its object is dropped when it is closed."""

    def __init__(self, body: WriteBody, layer: InvalidatingAccessor, path: str) -> None:
        self._body = body
        self._layer = layer
        self._path = path

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        await self._body.write(chunk)

    async def close(self) -> Metadata:
        names = await self._layer.invalidate((self._path,))
        try:
            return await self._body.close()
        finally:
            self._layer.forget(names)

    async def abort(self) -> None:
        await self._body.abort()
