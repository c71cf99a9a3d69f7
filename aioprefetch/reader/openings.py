"""The first requests of readers, each shared by all readers that open the object at that moment.

A first request is shared until its head arrives, and no longer than the turn of the loop in which it was sent: in that
time no reader can know of a write that the request does not see. A reader that comes later waits for the head and asks
whether the object is still of that version, so that every read sees all writes before its reader was opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from typing import Protocol

from aioprefetch.accessor.protocols import Accessor, stall_seconds_of
from aioprefetch.accessor.response_check import check_due
from aioprefetch.blocks.fetch import Fetch
from aioprefetch.blocks.file import BlockFile
from aioprefetch.blocks.store import BlockStore
from aioprefetch.errors import ConditionNotMatch, Error, Unexpected
from aioprefetch.reader.policy import FirstRequest
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account
from aioprefetch.values import ReadHead, ReadRequest, ReadSession


class Opener(Protocol):
    """An open object that has no version yet, as its first request sees it."""

    path: str
    etag: str | None
    version: str | None
    is_shared: bool
    account: Account
    session: ReadSession

    def pin_version(self, etag: str | None, version: str | None, total: int) -> BlockFile:
        """Pin the version of the response."""

    def open_alone(self) -> None:
        """Leave the shared request, and share none any more."""

    async def explain(self, error: Error, *, is_first: bool) -> Error:
        """The error that a refused request means."""


class Opening:
    """A first request for ``[start, end)``, or for the last bytes of the object, and the ``readers`` that share it.

    ``resident``: a version whose bytes memory or disk has here; the request asks for another one. ``is_open``: it
    may be shared. ``pinned``: ETag, version and size in the response, once it is there. Unless
    ``recalled_block_bytes`` is 0, a version may be found on the disk, which has blocks of that size.
    """

    def __init__(
        self,
        openings: Openings,
        key: Hashable,
        first: FirstRequest,
        sender: Opener,
        resident: BlockFile | None,
        *,
        recalled_block_bytes: int,
    ) -> None:
        self._openings = openings
        self.path = sender.path
        self.key = key
        self.start, self.end, self.is_suffix = first
        self.resident = resident
        self.is_open = True
        self._recalled_block_bytes = recalled_block_bytes
        self.pinned: tuple[str | None, str | None, int] | None = None
        self.readers: list[Opener] = [sender]
        self.fetch = Fetch(
            openings.store, self, self.start, self.end, lane="demand", label=sender.path, account=sender.account
        )
        self.fetch.on_end = self.ended

    def brings(self, offset: int | None, size: int) -> bool:
        """Whether the request covers ``size`` bytes at ``offset`` for certain; an offset of ``None`` is the end."""
        if self.is_suffix or offset is None:
            return self.is_suffix and offset is None
        return self.start <= offset and max(offset + 1, offset + size) <= self.end

    def equals(self, first: FirstRequest) -> bool:
        """Whether both requests are for the same bytes."""
        return (self.start, self.end, self.is_suffix) == first

    def join(self, reader: Opener) -> bool:
        """Let another reader share the request; ``False`` if it is too late, because its response began or it ended."""
        if self.pinned is not None or self.fetch.head is not None or self.fetch.finished:
            return False  # Something may have been written since the store answered.
        self.readers.append(reader)
        return True

    def leave(self, reader: Opener) -> None:
        """Forget a closed reader. The request is given up with the last one."""
        if reader in self.readers:
            self.readers.remove(reader)
        if not self.readers:
            self.fetch.give_up()

    @property
    def stall_seconds(self) -> float | None:
        """After how many seconds without a byte its request fails, ``None`` if that is not known."""
        return self._openings.stall_seconds

    def send(self, fetch: Fetch) -> Awaitable[object]:
        """Send the request; with a ``resident`` version, on condition that the object has changed."""
        if self._recalled_block_bytes and self.resident is None and self._openings.store.keeps_fetched:
            return self._recall_and_send(fetch)
        sender, resident = self.readers[0], self.resident
        etag = None if resident is None else resident.version[1]
        size = self.end - self.start
        self._openings.was_sent(self)
        self.request = request = ReadRequest(
            path=self.path,
            offset=0 if self.is_suffix else self.start,
            size=None if self.is_suffix else size,
            suffix=size if self.is_suffix else None,
            if_match=sender.etag,
            if_none_match=etag,
            version=sender.version,
            lane=fetch.lane,
            session=sender.session,
        )
        return self._openings.accessor.read(request, fetch)

    async def _recall_and_send(self, fetch: Fetch) -> None:
        self.resident = await self._recall()
        self._recalled_block_bytes = 0
        await self.send(fetch)

    async def _recall(self) -> BlockFile | None:
        """The version that another process has left on the disk, with bytes that the request is for."""
        store, block_bytes = self._openings.store, self._recalled_block_bytes
        assert store.disk is not None
        start, end, is_suffix = self.start, self.end, self.is_suffix
        name = (self._openings.namespace, self.path)
        facts = await store.disk.recall(
            self.fetch,
            name,
            block_bytes,
            lambda size: max(0, size - end) if is_suffix else start,
            claims=not (is_suffix or start % block_bytes) and end - start >= block_bytes,
        )
        if facts is None or facts.size <= start:
            return None
        version = (facts.version, facts.etag)
        return store.file(name, version, size=facts.size, block_bytes=block_bytes, label=self.path, is_current=False)

    async def refused(self, error: Error) -> Error | None:
        """The error that a refusal means; ``None`` if the object is still of the ``resident`` version."""
        resident = self.resident
        if resident is not None and isinstance(error, ConditionNotMatch):
            version, etag = resident.version[:2]
            self._pin(etag, version, resident.size)
            return None
        return await self.readers[0].explain(error, is_first=True) if self.readers else error

    def file_of(self, fetch: Fetch, head: ReadHead) -> BlockFile:
        """Pin the version that the head names, for every reader that shares the request."""
        if head.total is None:
            raise Unexpected("the response does not name the size of the object", operation="read", path=self.path)
        check_due(self.request, head)
        file = self._pin(head.etag, head.version, head.total)
        file.head = head
        return file

    def ended(self) -> None:
        """The request has ended: other readers find it no more, and it needs none of its own."""
        by_key = self._openings.by_key
        if by_key.get(self.key) is self:
            del by_key[self.key]
        self.readers = []
        if self.resident is not None:
            self.resident.forget_if_empty()
        self.fetch.on_end = None  # So that the memory of both is free without a collection.

    def _pin(self, etag: str | None, version: str | None, total: int) -> BlockFile:
        self.pinned = (etag, version, total)
        first, *others = self.readers
        file = first.pin_version(etag, version, total)
        for reader in others:
            if first.is_shared:
                reader.pin_version(etag, version, total)
            else:  # Without a version, two responses may be of two objects: each reader sends a request of its own.
                reader.open_alone()
        return file


class Openings:
    """The first requests over one stack of layers in one runtime, and what all readers over it have in common.

    ``by_key`` are the unfinished requests, which other readers may join.
    """

    def __init__(self, accessor: Accessor, runtime: Runtime) -> None:
        self.accessor = accessor
        self.store = BlockStore.of(runtime)
        self.namespace = accessor.info.namespace
        capability = accessor.capability
        self.revalidates, self.is_local = capability.read_if_none_match, capability.is_local
        self.stall_seconds = stall_seconds_of(accessor)
        self._loop = runtime.loop
        self.by_key: dict[Hashable, Opening] = {}
        self._sent_now: list[Opening] = []

    @classmethod
    def of(cls, accessor: Accessor, runtime: Runtime) -> Openings:
        """The openings of a runtime."""
        openings = runtime.peek(("openings", id(accessor)))  # Which holds the accessor, so that the number stays its.
        if not isinstance(openings, cls):
            openings = runtime.shared(("openings", id(accessor)), lambda: cls(accessor, runtime))
        return openings

    def __len__(self) -> int:
        return len(self.by_key)

    def was_sent(self, opening: Opening) -> None:
        """The request is being sent: it is shared until this turn of the loop has ended."""
        if not self._sent_now:
            self._loop.call_soon(self._end_turn)
        self._sent_now.append(opening)

    def _end_turn(self) -> None:
        sent, self._sent_now = self._sent_now, []
        for opening in sent:
            opening.is_open = False
