"""Which version of an object a reader reads: pinned by its first response, held to in every later one.

Nothing is sent until bytes are wanted. The first request brings size, ETag and bytes together; whoever comes
meanwhile waits for its head alone. Afterwards every request carries the ETag, and every response is compared with it.

Readers that open one object at once share that request as long as it was not sent. Who comes later waits for its head
and then asks whether the object is still that version: what was written before a reader was opened is always seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import NoReturn
from weakref import WeakValueDictionary

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.version_pin import VersionPin
from aioprefetch.blocks.block_file import BlockFile, Cursor
from aioprefetch.blocks.fetch import Fetch, FetchCall, Wait
from aioprefetch.blocks.store import BlockStore
from aioprefetch.errors import (
    Closed,
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Unexpected,
)
from aioprefetch.ranges import Range
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import REQUEST_BYTES_MAX, FirstRequest, Policy, first_request
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Account, Timer
from aioprefetch.values import ReadHead, ReadRequest, StatRequest


class Opening:
    """A first request for ``[start, end)``, or for the last bytes of the object, and the ``readers`` that share it."""

    __slots__ = ("__weakref__", "end", "fetch", "is_suffix", "readers", "start", "was_sent")

    fetch: Fetch

    def __init__(self, start: int, end: int, *, is_suffix: bool) -> None:
        self.start = start
        self.end = end
        self.is_suffix = is_suffix
        self.was_sent = False
        self.readers: list[PinnedVersion] = []

    def brings(self, offset: int | None, size: int) -> bool:
        """Whether it certainly asks for all of ``size`` bytes at ``offset``; ``None`` is the end."""
        if self.is_suffix or offset is None:
            return self.is_suffix and offset is None
        return self.start <= offset and max(offset + 1, offset + size) <= self.end

    def equals(self, first: FirstRequest) -> bool:
        """Whether it asks for the same."""
        return (self.start, self.end, self.is_suffix) == (first.offset, first.offset + first.size, first.suffix)

    def found(self, etag: str | None, version: str | None, total: int) -> BlockFile:
        """The response names the version: every reader that may share it has pinned it from now on."""
        first, *others = self.readers
        file = first._pin(etag, version, total)
        for reader in others:
            if first.is_shared:
                reader._pin(etag, version, total)
            else:  # Nothing tells that two answers are of one version: each reader asks for itself.
                reader._opening, reader._opens_alone = None, True
        return file

    def leave(self, reader: PinnedVersion) -> None:
        """A reader is closed. With the last one the request is given up."""
        if reader in self.readers:
            self.readers.remove(reader)
        if not self.readers:
            self.fetch.give_up()


class PinnedVersion:
    """Which version of an object a reader reads, found out by its first request. Bound to one runtime.

    ``size`` is what reads may reach: the declared size if there is one, as long as no response tells that the object is
    shorter, else the real size, ``None`` until known.
    """

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        path: str,
        options: ReaderOptions,
        policy: Policy,
        account: Account,
    ) -> None:
        self.runtime = runtime
        self.account = account
        self.path = path
        self.policy = policy
        self.size = size = options.size
        self.pin = VersionPin(
            options.etag,
            options.version,
            path=path,
            advice="; reopen() reads the new version",
            counters=runtime.counters,
        )
        self.file: BlockFile | None = None
        self.cursor = Cursor()
        self.closed = False
        self._accessor = accessor
        self._store = BlockStore.of(runtime)
        self._block_bytes = options.block_bytes
        self._declared = size
        self._tail_bytes = options.footer_bytes
        self._split = options.split
        self._opening: Opening | None = None
        self._opens_alone = False
        self._openings = runtime.shared("openings", WeakValueDictionary[Hashable, Opening])
        self._waits: set[Wait] = set()
        self._end_error: Callable[[], Error] = self._was_closed
        self._opening_timer: Timer | None = None
        # A size that the caller declares together with an ETag is believed until a response contradicts it.
        self._is_size_confirmed = size is None or options.etag is None
        if size is not None and options.etag is not None:
            self._set_file(size, is_current=False)

    @property
    def etag(self) -> str | None:
        """The pinned ETag, ``None`` until known."""
        return self.pin.etag

    @property
    def version(self) -> str | None:
        """The pinned version id, ``None`` until known."""
        return self.pin.version

    def start(self, offset: int) -> None:
        """Send the first request without waiting for anything: it will be wanted."""
        if self.file is None and self._opening is None and self.size != 0:
            self._opening = self._joined_opening(offset, 0) or self._start_opening(offset, 0)

    async def open(self, offset: int | None, size: int) -> None:
        """Make size and version known: by the first request, which also brings the bytes wanted there."""
        has_waited = False
        while self.file is None:
            if self.closed:
                raise self._end_error()
            opening, is_own = self._opening, False
            if opening is None or opening.fetch.finished:
                opening = self._joined_opening(offset, size)
                other = None if opening is not None or has_waited else self._sent_opening(offset, size)
                if other is not None:
                    has_waited = True
                    await self._wait_for_head(other)
                    continue
                is_own = opening is None
                self._opening = opening = opening or self._start_opening(offset, size)
            try:
                await self._wait(opening.fetch.join(0))
            except RangeNotSatisfied as error:
                self._opening_ended(error)
                if error.total is None:
                    raise
                # Nothing is there, but now we know the size; the next read pins the version.
                self.size = self._reachable(error.total)
                if is_own or offset is None or offset >= error.total:
                    return
            except Exception as error:
                self._opening_ended(error)
                raise

    def _joined_opening(self, offset: int | None, size: int) -> Opening | None:
        """The request of another reader that brings what is wanted and was not sent yet, shared from now on."""
        found = self._opening_of_others(offset, size)
        if found is None or found.was_sent:
            return None
        found.readers.append(self)
        self.account.counters["stream_read_block_joins"] += 1
        self._begin_opening()
        return found

    def _sent_opening(self, offset: int | None, size: int) -> Opening | None:
        """The request of another reader that brings what is wanted, was sent already and has no response yet."""
        found = self._opening_of_others(offset, size)
        return None if found is None or found.fetch.head is not None or not self._may_ask_after else found

    def _opening_of_others(self, offset: int | None, size: int) -> Opening | None:
        found = None if self._opens_alone else self._openings.get(self._opening_key)
        if found is None or found.fetch.finished:
            return None
        return found if found.brings(offset, size) or found.equals(self._first_range(offset, size)) else None

    async def _wait_for_head(self, other: Opening) -> None:
        """Wait until another reader knows a version, so as to ask whether it still is the one. How it fares is its."""
        try:
            await self._wait(other.fetch.join(0))
        except Error:
            if self.closed:
                raise

    @property
    def _opening_key(self) -> Hashable:
        return (self._name, id(self._accessor), self._block_bytes, self._declared, self.etag, self.version)

    @property
    def _may_ask_after(self) -> bool:
        """Whether a first request may say which version is held already."""
        return not self.is_shared and self._declared is None and self._accessor.capability.read_if_none_match

    def _begin_opening(self) -> None:
        if self._opening_timer is None:
            self._opening_timer = Timer(self.account.counters, "action_file_opened", self.runtime.now).begin()

    def _opening_ended(self, error: Exception | None) -> None:
        timer, self._opening_timer = self._opening_timer, None
        if timer is not None:
            timer.end(error)

    def _start_opening(self, offset: int | None, size: int) -> Opening:
        first = self._first_range(offset, size)
        opening = Opening(first.offset, first.offset + first.size, is_suffix=first.suffix)
        opening.readers.append(self)
        if not self._opens_alone:
            self._openings[self._opening_key] = opening
        self._begin_opening()
        opening.fetch = self._store.start_fetch(
            opening.start,
            opening.end,
            self._first_call(opening, self._resident(opening, offset, size)),
            partial(self._first_file, opening),
            lane="demand",
            label=self.path,
            account=self.account,
        )
        return opening

    def _first_range(self, offset: int | None, size: int) -> FirstRequest:
        if self.size is not None:  # Declared by the caller: only the version is still open.
            if self.policy.keeps_footer:
                start = self._footer_start(self.size)
                return FirstRequest(start, max(1, self.size - start), suffix=False)
            low = min(offset or 0, max(0, self.size - 1))
            blocks = self.policy.fill != "exact"
            start = low - low % self._block_bytes if blocks else low
            stop = start + self._block_bytes if blocks else low + min(size, self.request_bytes_max)
            return self._first_blocks(start, max(start + 1, min(stop, self.size)), offset, size)
        first = first_request(
            self.policy,
            offset=offset,
            size=min(size, self.request_bytes_max),
            block_bytes=self._block_bytes,
            tail_bytes=self._tail_bytes,
        )
        return first if first.suffix else self._first_blocks(first.offset, first.offset + first.size, offset, size)

    def _within_share(self, start: int, end: int, blocks: Range) -> Range:
        """So much of the ``blocks`` that ``[start, end)`` touches as may be brought with it while memory is short."""
        cell = self._store.cell_bytes(self._block_bytes, opening=len(self._openings))
        if cell >= self._block_bytes or start >= end:
            return blocks
        # Counted from the first of these blocks, so that the cells of one block are the same for all.
        low = blocks[0] + (start - blocks[0]) // cell * cell
        return low, min(blocks[1], low - (low - end) // cell * cell)

    def _first_blocks(self, start: int, end: int, offset: int | None, size: int) -> FirstRequest:
        """A first request by blocks, without what memory is too short for, and without what lies out of a split.

        Nothing is asked for behind what the caller is going to use, unless the read itself goes on there.

        Nor before it, unless the two are about a block together: then it is as well to have the block.
        """
        if offset is not None and self.policy.fill != "exact":
            start, end = self._within_share(offset, max(offset + 1, min(end, offset + size)), (start, end))
        split = self._split
        if split is not None and offset is not None and split[0] <= offset < split[1]:
            end = min(end, max(split[1], offset + size))
            if end - split[0] <= self._block_bytes // 2:
                start = max(start, split[0])
        return FirstRequest(start, end - start, suffix=False)

    def _resident(self, opening: Opening, offset: int | None, size: int) -> BlockFile | None:
        """What an earlier reader has of the object, or is about to, if the bytes that are wanted are among it."""
        file = self._store.newest(self._name, self._block_bytes)
        if file is None or not self._may_ask_after or file.version[1] is None:
            return None
        low, high = opening.start, min(opening.end, file.size)
        if opening.is_suffix:
            low, high = max(0, file.size - opening.end), file.size
        elif size and offset is not None:
            low, high = offset, min(offset + size, file.size)
        return file if low < high and not file.missing(low, high) else None

    def _first_file(self, opening: Opening, head: ReadHead) -> BlockFile:
        if head.total is None:
            raise Unexpected("the store does not tell the size of the object", operation="read", path=self.path)
        return opening.found(head.etag, head.version, head.total)

    def _pin(self, etag: str | None, version: str | None, total: int) -> BlockFile:
        self.pin = replace(self.pin, etag=etag, version=self.version or version)
        return self._set_file(total)

    def _set_file(self, total: int, *, is_current: bool = True) -> BlockFile:
        self.size = self._reachable(total)
        version = (self.version, self.etag) if self.is_shared else (None, None, object())
        file = self.file = self._store.file(
            self._name,
            version,
            size=total,
            block_bytes=self._block_bytes,
            label=self.path,
            is_current=is_current,
        )
        if self.policy.keeps_footer:
            file.footer_start = min(file.footer_start, self._footer_start(total))
        file.open(self.cursor)
        self._opening_ended(None)
        return file

    def _reachable(self, total: int) -> int:
        """What reads may reach of an object of ``total`` bytes."""
        return total if self._declared is None else min(self._declared, total)

    def _footer_start(self, total: int) -> int:
        return max(0, total - (self._tail_bytes or self._block_bytes))

    @property
    def _name(self) -> tuple[object, ...]:
        return (self._accessor.info.namespace, self.path)

    @property
    def is_shared(self) -> bool:
        """Whether readers of the same version may share its blocks.

        Without a version nothing tells whether another reader's bytes are of the same object.
        """
        return self.pin.is_strong

    def _check_same(self, file: BlockFile, head: ReadHead) -> None:
        """A later answer must be of the pinned object, whether or not the store understands conditions."""
        self.pin.check(head)
        if not self._is_size_of(file, head.total):
            replace(self.pin, size=file.size).check(head)

    def _is_size_of(self, file: BlockFile, total: int | None) -> bool:
        """Whether an object of the pinned version may have ``total`` bytes; reads end there if that is new."""
        if total is None or (self._declared is not None and total > file.size):
            return True
        if total == file.size:
            self._is_size_confirmed = True
            return True
        if self._is_size_confirmed:
            return False
        file.shorten(total)
        self.size = self._reachable(total)
        return True

    def _call(self, start: int, end: int) -> FetchCall:
        """A request for ``[start, end)`` of the pinned version."""

        async def call(fetch: Fetch) -> None:
            request = ReadRequest(
                path=self.path,
                offset=start,
                size=end - start,
                if_match=self.etag,
                version=self.version,
                lane=fetch.lane,
            )
            try:
                await self._accessor.read(request, fetch)
            except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
                await self._raise_meant(error, first=False)

        return call

    def _first_call(self, opening: Opening, resident: BlockFile | None) -> FetchCall:
        """The request of an opening; with ``resident`` only if the object is not that version any more."""
        version, etag = resident.version[:2] if resident is not None else (None, None)
        key = self._opening_key

        async def call(fetch: Fetch) -> None:
            opening.was_sent = True
            size = opening.end - opening.start
            request = ReadRequest(
                path=self.path,
                offset=0 if opening.is_suffix else opening.start,
                size=None if opening.is_suffix else size,
                suffix=size if opening.is_suffix else None,
                if_match=self.etag,
                if_none_match=etag,
                version=self.version,
                lane=fetch.lane,
            )
            try:
                await self._accessor.read(request, fetch)
            except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
                if resident is not None and isinstance(error, ConditionNotMatch):
                    opening.found(etag, version, resident.size)
                else:
                    await self._raise_meant(error, first=True)
            finally:
                if self._openings.get(key) is opening:
                    del self._openings[key]

        return call

    async def _raise_meant(self, error: Error, *, first: bool) -> NoReturn:
        meant = await self._changed(error, first=first)
        if meant is error:
            raise error
        raise meant from error

    async def _changed(self, error: Error, *, first: bool) -> Error:
        """What these errors mean to a reader: once a version is pinned, that the object is another one now."""
        pinned = self.etag if self.etag is not None else self.version
        if pinned is None or (first and not isinstance(error, ConditionNotMatch)):
            return error
        actual = error.context.get("etag")
        if actual is None and not isinstance(error, NotFound):
            try:
                actual = (await self._accessor.stat(StatRequest(path=self.path))).etag
            except Error:
                actual = None
        if isinstance(error, RangeNotSatisfied) and actual is not None and actual == self.etag:
            if self.file is not None and error.total is not None:
                self._is_size_of(self.file, error.total)
            return error  # Nothing has changed: the store refuses a range of the very version it has.
        return self.pin.explain(error, actual_etag=actual)

    def release(self, waits: Iterable[Wait]) -> None:
        """The bytes were used, or are not wanted any more."""
        for wait in waits:
            self._waits.discard(wait)
            wait.close()

    @property
    def request_bytes_max(self) -> int:
        """What is asked for at once ends here: all of it must fit into memory together, with room for others."""
        return max(self._block_bytes, min(REQUEST_BYTES_MAX, self.runtime.options.memory_bytes // 4))

    async def result(self, wait: Wait) -> None:
        """Wait until a wait is over; its error, if any, names this object (the block store knows no paths)."""
        try:
            if wait.future.done():
                await wait.future
            else:
                with self.waiting():
                    await wait.future
        except Error as error:
            error.add_context(operation="read", path=self.path)
            raise

    def waiting(self) -> Timer:
        """``with pinned.waiting():`` a read waits for bytes."""
        return Timer(
            self.account.counters,
            "stream_read_block_acquire_read",
            self.runtime.now,
            sum_name="demand_wait_microseconds",
        )

    async def _wait(self, wait: Wait) -> None:
        self._waits.add(wait)
        try:
            await self.result(wait)
        finally:
            self.release((wait,))

    def _file(self) -> BlockFile:
        if self.file is None:
            if self.closed:
                raise self._end_error()
            raise ProtocolError(
                f"the store says that the object has {self.size} bytes, and refuses every range of it",
                operation="read",
                path=self.path,
                status="permanent",
            )
        return self.file

    def close(self, reason: Callable[[], Error] | None = None) -> None:
        """Fail the reads under way, break off the requests nobody else needs. Needs no response from the network.

        ``reason`` makes the error of these reads, ``Closed`` by default.
        """
        self.closed = True
        if reason is not None:
            self._end_error = reason
        for wait in self._waits:
            if not wait.future.done():
                wait.future.set_exception(self._end_error())
        self.release(tuple(self._waits))  # At once, so that no request goes on until the reading tasks have a turn.
        if self._opening is not None and self.file is None:
            self._opening.leave(self)
        if self.file is not None:
            self.file.cancel_prefetches(self, 0, self.file.size)
            self.file.settle_for(self.account)
            self.file.close(self.cursor)
            if not self.is_shared:
                self.file.forget()
            self.file = None

    def _was_closed(self) -> Closed:
        return Closed("the reader was closed", operation="read", path=self.path)

    def left_behind(self) -> ObjectChanged:
        """What a read of this version meets when the reader goes on with another one."""
        pin = replace(self.pin, advice="", counters=None)
        return pin.changed(None, "the reader was reopened while this read of the version before was under way")
