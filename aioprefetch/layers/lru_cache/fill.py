"""The fill: one GET of a whole object, shared by everybody who reads the object meanwhile.

It opens the object (on condition that it is not the one the cache has), receives it into memory, and writes it to the
cache. Readers take their bytes out of its memory as soon as these have arrived. It belongs to the supervisor, not to
the reader that started it. When its last reader leaves unserved (cancelled, or a stream closed early) it dies, unless
at least half of the object has arrived: then it is worth finishing.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.write_body import ReadBody
from aioprefetch.errors import Closed, ConditionNotMatch, Error, NotFound, TimedOut, Unavailable
from aioprefetch.layers.lru_cache.cache_store import CacheStore
from aioprefetch.layers.lru_cache.entry import EntryHeader, encode_header
from aioprefetch.layers.lru_cache.index import IndexEntry
from aioprefetch.layers.lru_cache.reservation import ObjectMemory, Reservation
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.values import ReadHead, ReadRequest

FillState = Literal["opening", "fresh", "passed_by", "receiving", "complete", "failed"]


class Fill:
    """One object on its way from its store into the cache.

    ``opening``: the head has not come. Then ``fresh`` (``known`` is still the current version), ``passed_by`` (the
    object is too large or has no ETag: one reader gets the response that has begun, others read without the cache) or
    ``receiving``; ``complete`` when all of it is in memory and perhaps still being written; ``failed`` with ``error``.
    """

    def __init__(
        self,
        request: ReadRequest,
        *,
        slot: str,
        object_bytes_max: int,
        known: IndexEntry | None,
        inner: Accessor,
        cache: CacheStore,
        memory: ObjectMemory,
        runtime: Runtime,
    ) -> None:
        self.request = request
        self.slot = slot
        self.known = known
        self.state: FillState = "opening"
        self.head: ReadHead | None = None
        self.entry: IndexEntry | None = None
        self.error: Exception | None = None
        self.received = 0
        # Set when the object was written or replaced: it is not stored, and later readers do not join.
        self.is_doomed = False
        self.started_at = runtime.now()
        self.buffer = bytearray()
        self._object_bytes_max = object_bytes_max
        self._inner = inner
        self._cache = cache
        self._memory = memory
        self._runtime = runtime
        self._reservation: Reservation | None = None
        self._readers = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._work: Work | None = None
        self._on_end: Callable[[Fill], None] | None = None
        self._has_run = False
        self._begun: ReadBody | None = None

    @property
    def has_arrived(self) -> bool:
        """Whether all of the object is in memory, and only its way into the cache is left."""
        head = self.head
        return head is not None and self.state in ("receiving", "complete") and self.received >= head.size

    def start(self, on_end: Callable[[Fill], None]) -> None:
        """Begin; ``on_end`` is called once, when nobody can join any more."""
        self._on_end = on_end
        self._work = self._runtime.supervisor.spawn(self._run(), name="fill of the cache")

    def join(self) -> None:
        """One more reader. Each ``join`` needs a ``leave``."""
        self._readers += 1

    def leave(self, *, served: bool) -> None:
        """A reader goes; ``served`` tells whether it got what it came for."""
        self._readers -= 1
        if self._readers:
            return
        is_running = self.state in ("opening", "receiving")
        if is_running and not served and not (self.head and 2 * self.received >= self.head.size):
            self.is_doomed = True
            self.fail(Closed("the last reader of a fill left", operation="read", path=self.request.path))
            if self._work is not None:
                self._work.cancel()
        self._free()

    def take_begun(self) -> ReadBody | None:
        """The response with the beginning of an object that is passed by, for the first reader who comes for it.

        It is the caller's to close.
        """
        begun, self._begun = self._begun, None
        return begun

    async def wait_until(self, position: int, *, deadline: float | None) -> None:
        """Wait until the head and ``position`` bytes are there. Raises the fill's error, or ``TimedOut``."""
        while not self._has(position):
            waiter = self._runtime.loop.create_future()
            self._waiters.append((position, waiter))
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                raise TimedOut(
                    "the object did not arrive before the deadline", operation="read", path=self.request.path
                ) from None

    def _has(self, position: int) -> bool:
        if self.state in ("fresh", "passed_by"):
            return True
        if self.state != "opening" and self.head is not None and self.received >= position:
            return True
        if self.error is None:
            return False
        if isinstance(self.error, Error):
            # Every reader gets an error of its own: those who handle it write into it.
            raise copy.copy(self.error) from self.error.__cause__
        raise self.error

    def _wake(self) -> None:
        waiting: list[tuple[int, asyncio.Future[None]]] = []
        for position, waiter in self._waiters:
            if waiter.done():
                continue
            if self.state == "opening" or (self.state == "receiving" and self.received < position):
                waiting.append((position, waiter))
            else:
                waiter.set_result(None)
        self._waiters = waiting

    def _settled(self, state: FillState) -> None:
        self.state = state
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, which every reader gets whose bytes have not arrived."""
        if self.state in ("opening", "receiving"):
            self.error = error
            self.state = "failed"
        self._wake()
        self._end()

    def _end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _free(self) -> None:
        if self._has_run and not self._readers and self._reservation is not None:
            self._reservation.release()
            self._reservation = None
            self.buffer = bytearray()
        begun = self.take_begun() if not self._readers else None
        if begun is not None:
            self._runtime.supervisor.spawn(begun.aclose(), name="end of a response that nobody wants")

    async def _run(self) -> None:
        try:
            await self._fetch()
            if self.state == "receiving":
                await self._finish()
        except asyncio.CancelledError:
            self.fail(Closed("the operator was closed during the read", operation="read", path=self.request.path))
            raise
        except Exception as error:
            if self.state == "complete":
                raise
            self.fail(error)
        finally:
            self._has_run = True
            self._end()
            self._free()

    async def _fetch(self) -> None:
        body = await self._open()
        if body is None:
            return
        try:
            if self._settle(body.head):
                if self.state == "passed_by" and self._readers:
                    self._begun, body = body, None
                return
            self._reservation = await self._memory.reserve(body.head.size)
            if self._reservation is None:
                self.head = None  # Nothing to remember of the object: there was no memory just now.
                self._settled("passed_by")
                return
            self.buffer = bytearray(body.head.size)
            self._settled("receiving")
            await self._receive(body)
        finally:
            if body is not None:
                await body.aclose()

    async def _open(self) -> ReadBody | None:
        try:
            return await self._inner.open_read(self.request)
        except ConditionNotMatch:
            if self.request.if_none_match is None or self.known is None:
                raise
            self._proved_fresh(self.known)
            return None
        except NotFound:
            if self.known is not None:
                self._cache.drop(self.known)
            raise

    def _settle(self, head: ReadHead) -> bool:
        """Whether the head says that the body is not needed."""
        known = self.known
        # Not every store knows the condition: the ETag tells as well.
        if known is not None and known.header is not None and known.header.etag == head.etag:
            self._proved_fresh(known)
            return True
        if known is not None:
            self._cache.drop(known)
        self.head = head = replace(head, version=head.version or self.request.version)
        whole = head.start == 0 and head.total == head.size
        if not whole or head.size > self._object_bytes_max or (head.etag is None and head.size > 0):
            self._settled("passed_by")
            return True
        return False

    def _proved_fresh(self, known: IndexEntry) -> None:
        known.validated_at = self.started_at
        self._runtime.counters["cache_revalidations"] += 1
        self._runtime.events.publish("cache.revalidated", self.request.path)
        self._settled("fresh")

    async def _receive(self, body: ReadBody) -> None:
        room = memoryview(self.buffer)
        while self.received < len(room):
            chunk = await body.read_chunk()
            if not chunk:
                raise Unavailable(
                    f"the body ended after {self.received} of {len(room)} bytes",
                    operation="read",
                    path=self.request.path,
                )
            data = memoryview(chunk)[: len(room) - self.received]
            room[self.received : self.received + len(data)] = data
            self.received += len(data)
            self._wake()

    async def _finish(self) -> None:
        made = await self._make_entry()
        self.entry = made[0] if made is not None else None
        self._settled("complete")
        if made is None:
            return
        entry, encoded = made
        if not await self._cache.put(entry, encoded, memoryview(self.buffer)):
            return
        if self.is_doomed:  # Somebody wrote the object while its last version was being stored.
            self._cache.drop(entry)
            return
        self._runtime.counters["cache_fills"] += 1
        self._runtime.events.publish("cache.filled", self.request.path, size_bytes=entry.size_bytes)

    async def _make_entry(self) -> tuple[IndexEntry, bytes] | None:
        """The entry of the object and its encoded header; ``None`` when it cannot be stored."""
        head = self.head
        if head is None or head.etag is None:
            return None
        header = EntryHeader(
            namespace=self._inner.info.namespace,
            path=self.request.path,
            asked_version=self.request.version,
            etag=head.etag,
            version=head.version,
            total=head.size,
            last_modified=head.last_modified,
            content_type=head.content_type,
            filled_at=datetime.now(UTC),
            data_crc=await self._cache.checksum(self.buffer),
        )
        encoded = encode_header(header)
        if encoded is None or self.is_doomed:
            return None
        entry = IndexEntry(
            slot=self.slot,
            name=header.name,
            size_bytes=len(encoded) + head.size,
            header=header,
            data_offset=len(encoded),
            validated_at=self.started_at,
        )
        return entry, encoded
