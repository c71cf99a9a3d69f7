"""The open object of a reader: its version is pinned by the first response and checked in each later one.

Nothing is sent before bytes are wanted. The first request brings size, ETag and bytes together; reads that arrive
meanwhile wait for its head alone. Each later request carries the ETag, and its response is compared with the pin.
Readers that open one object at the same time share the first request (``openings``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.response_check import VersionPin, check_due, is_strong
from aioprefetch.accessor.sink import BufferSink
from aioprefetch.blocks.fetch import Fetch, Wait
from aioprefetch.blocks.file import BlockFile, ReaderPosition
from aioprefetch.errors import (
    Closed,
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
)
from aioprefetch.ranges import Range
from aioprefetch.reader.openings import Opening, Openings
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import REQUEST_BYTES_MAX, FirstRequest, first_request, footer_start
from aioprefetch.runtime.runtime import TURN_BYTES, Runtime
from aioprefetch.runtime.statistics import TIER_NAMES, Account, Tier
from aioprefetch.values import Lane, ReadHead, ReadRequest, ReadSession, StatRequest

# A response may bring the size alone, if nothing lies at the requested place; the next request then lies within that
# size. An object that shrinks meanwhile refuses again; a store that refuses ranges of its own size does so forever.
_OPENINGS_MAX = 4


class OpenPart(BufferSink):
    """A part of the open object from ``start`` on, received into ``memory``; another version is refused."""

    def __init__(self, opened: OpenObject, start: int, memory: memoryview) -> None:
        BufferSink.__init__(self, memory)
        self._opened = opened
        self.start = start
        self.end = start + len(memory)
        self.memory = memory
        self.lane: Lane = "demand"

    def _begun(self, head: ReadHead) -> None:
        opened = self._opened
        opened.check_head(opened.open_file() if opened.proof is None else None, head)
        if head.size != len(self.memory):
            raise opened.pin.changed(head.etag, f"[{self.start}, {self.end}) has {head.size} bytes now")


class OpenObject:
    """The open object of a reader: the one version that it reads, and its size. Bound to one runtime.

    ``size`` is the end of readable bytes: the declared size, as long as no response shows that the object is shorter,
    otherwise the real size; ``None`` until known. ``file`` is the version's place in the block store, ``None`` until
    the version is pinned and again after closing. ``position`` tells the store where the reader stands. ``name`` is the
    object in the block store. ``etag`` and ``version`` are the pin's. ``is_shared``: readers of the same version
    may share its blocks, because a strong pin proves that bytes are equal. ``request_bytes_max`` is the longest
    request: all of it must fit into memory together, with room for others. ``waits`` are its reads' waits for
    requests, until they are released, ``long_reads`` what ends those past the blocks. ``passes_blocks``: reads of a
    local file are delivered past the blocks, which keep what is fetched ahead. ``total`` is the size of the object as a
    response has named it, from which no later one may differ. ``proof``: the turn to ask whether the object is still of
    the version that ``begin_with`` was given, as long as no response has shown it.
    """

    def __init__(
        self, accessor: Accessor, runtime: Runtime, path: str, options: ReaderOptions, account: Account
    ) -> None:
        self.runtime = runtime
        self.account = account
        self.path = path
        self.policy = options.policy
        self.etag = etag = options.etag
        self.version = version = options.version
        self.is_shared = not (etag is None and version is None) and is_strong(etag, version)
        self.size = size = options.size
        self.file: BlockFile | None = None
        self.last_head: ReadHead | None = None  # The head of the closed file.
        self.position = ReaderPosition()
        self.closed = False
        self._accessor = accessor
        self.session = ReadSession()
        self._openings = openings = Openings.of(accessor, runtime)
        self.stall_seconds = openings.stall_seconds
        self.store = store = openings.store
        self.passes_blocks = openings.is_local and store.disk is None and options.keep_behind is not True
        self._block_bytes = block_bytes = options.block_bytes
        self.request_bytes_max = max(block_bytes, min(REQUEST_BYTES_MAX, runtime.options.memory_bytes // 4))
        self.name = (openings.namespace, path)
        self._pin: VersionPin | None = None
        self._declared = size
        self.total = options.total
        self._opening_key: tuple[object, ...] = (path, block_bytes, size, etag, version, self.total)
        # The end of readable bytes for the first request: an end that a refusal has named binds nothing yet.
        self._likely_size = size
        self._tail_bytes = options.footer_bytes
        self._split = options.split
        self._opening: Opening | None = None
        self._opens_alone = False
        self._opening_started: float | None = None
        self.proof: asyncio.Lock | None = None
        self.waits = self.position.waits
        self.long_reads: list[Callable[[Exception], None]] = []
        self._end_reason: Callable[[OpenObject], Error] | None = None
        # A size that the caller declares together with an ETag is believed until a response contradicts it.
        if size is not None and etag is not None:
            self._set_file(size if self.total is None else self.total, is_current=False)

    @property
    def pin(self) -> VersionPin:
        """The pinned version, with which each later response is compared."""
        pin = self._pin
        if pin is None:
            pin = self._pin = VersionPin(
                self.etag,
                self.version,
                path=self.path,
                advice="; opened again it is read in its new version, and so by reopen() of a reader",
                counters=self.account.counters,
            )
        return pin

    # --- the first request --------------------------------------------------------------------------------------

    def start(self, offset: int) -> None:
        """Send the first request without waiting for its response."""
        if self.file is None and self._opening is None and self.size != 0:
            other = self._find_opening(offset, 0)
            self._opening = other if other is not None and self._joins(other) else self._start_opening(offset, 0)

    async def open(self, offset: int | None, size: int) -> None:
        """Get size and version by the first request, which also brings ``size`` bytes at ``offset``.

        An ``offset`` of ``None`` is the end of the object. If nothing lies at ``offset``, only the size is known
        afterwards, and the next read pins a version of that size; another one is ``ObjectChanged``.
        """
        turn = self.runtime.turn
        if turn.left_bytes <= 0:
            await turn.end()
        if self.proof is not None and self.total is not None:
            await self._prove(offset or 0, size, self.total, self.proof)
        has_waited = False
        refusals, refused = 0, self.total
        while self.file is None:
            if self.closed:
                raise self._end_error()
            opening, is_own = self._opening, False
            if opening is None or opening.fetch.finished:
                other = self._find_opening(offset, size) if self._opening_key in self._openings.by_key else None
                if other is not None and not self._joins(other):
                    is_begun = other.fetch.finished or other.fetch.head is not None
                    if not has_waited and self._may_revalidate and not is_begun:
                        has_waited = True
                        await self._wait_for_head(other)
                        continue
                    other = None
                is_own = other is None
                self._opening = opening = other or self._start_opening(offset, size)
            wait, size_before = opening.fetch.join(0), self._likely_size
            self.waits.add(wait)
            try:
                await self.result(wait)
            except RangeNotSatisfied as error:
                self._end_opening(error)
                if error.total is None:
                    raise
                refused = error.total
                self._likely_size = likely = self._reachable(refused)
                if not (is_own or offset is None or offset >= refused):
                    continue
                refusals += 1
                has_waited = False
                if offset is None or offset >= likely or likely == size_before or refusals == _OPENINGS_MAX:
                    break
            except Exception as error:
                self._end_opening(error)
                raise
            finally:
                self.release([wait])
                del wait
        if self.file is None and refused is not None:
            self._bind(refused, None)
            self._opening_key = (*self._opening_key[:-1], refused)  # Shared by readers that hold to the same size.

    def facts(self) -> BlockFile | None:
        """The version whose size and ETag another reader has left, unless the caller has named one or a size."""
        left = self.store.newest(self.name, self._block_bytes)
        return left if left is not None and left.has_facts and self._opening_key[2:] == (None,) * 4 else None

    def begin_with(self, left: BlockFile) -> None:
        """Begin with size and ETag of ``facts``, not with a version id, by which what was overwritten is served too."""
        self.etag, self.is_shared, self._pin, self.proof = left.version[1], True, None, asyncio.Lock()
        self._bind(left.size, self.etag)
        self._begin_opening()

    async def _prove(self, offset: int, size: int, total: int, turn: asyncio.Lock) -> None:
        """Before the first bytes: if all that is wanted is there, ask for one byte of it. Else the read itself asks."""
        async with turn:
            if self.file is not None or self.closed:
                return
            held = self.store.find(self.name, (self.version, self.etag), size=total, block_bytes=self._block_bytes)
            if self.store.disk or (held and held.holds(offset, min(offset + (size or total), total))):
                await self.receive(self.part(offset, memoryview(bytearray(1))))
            self._set_file(total, is_current=False)

    def open_alone(self) -> None:
        """Leave a shared first request, and share none any more."""
        self._opening, self._opens_alone = None, True

    def _find_opening(self, offset: int | None, size: int) -> Opening | None:
        """The request of another reader that brings these bytes."""
        opening = None if self._opens_alone else self._openings.by_key.get(self._opening_key)
        if opening is None or not (opening.brings(offset, size) or opening.equals(self._first_range(offset, size))):
            return None
        return opening

    def _joins(self, opening: Opening) -> bool:
        """Share the request of another reader from now on; ``False`` if it is too late."""
        if not opening.is_open or not opening.join(self):
            return False
        self.account.counters["stream_read_block_joins"] += 1
        if self.file is None:
            self._begin_opening()
        return True

    async def _wait_for_head(self, other: Opening) -> None:
        """Wait until another reader has pinned a version, or has failed to."""
        wait = other.fetch.join(0)
        self.waits.add(wait)
        try:
            await self.result(wait)
        except Error:  # An error of the other reader's request. This reader sends its own.
            if self.closed:
                raise
        finally:
            self.release([wait])
            del wait

    @property
    def _may_revalidate(self) -> bool:
        """Whether a first request may name the version that is resident already (``If-None-Match``)."""
        return self._declared is None and self._openings.revalidates and not self.is_shared

    def _begin_opening(self) -> None:
        if self._opening_started is None:
            self.account.counters["action_file_opened"] += 1
            self._opening_started = self.runtime.clock()

    def _end_opening(self, error: Exception | None) -> None:
        started, self._opening_started = self._opening_started, None
        if started is None:
            return
        if error is None:
            self.account.counters.succeeded("action_file_opened", self.runtime.clock() - started)
        elif not isinstance(error, Closed):
            self.account.counters.failed("action_file_opened")

    def _start_opening(self, offset: int | None, size: int) -> Opening:
        first = self._first_range(offset, size)
        newest = self.store.newest(self.name, self._block_bytes)
        resident = newest if newest is not None and self._has_resident(newest, first, offset, size) else None
        recalled = self._block_bytes if self._may_revalidate else 0
        opening = Opening(self._openings, self._opening_key, first, self, resident, recalled_block_bytes=recalled)
        if not self._opens_alone:
            self._openings.by_key[opening.key] = opening
        self._begin_opening()
        self.store.start(opening.fetch)
        return opening

    def _first_range(self, offset: int | None, size: int) -> FirstRequest:
        policy, end, cell = self.policy, self._likely_size, self._block_bytes
        if self.passes_blocks:  # The rest of the read comes past the blocks.
            cell = min(cell, TURN_BYTES)
        wanted = min(size, cell if self.passes_blocks else self.request_bytes_max)
        if end is None:
            first = first_request(policy, offset=offset, size=wanted, block_bytes=cell, tail_bytes=self._tail_bytes)
            return first if first.is_suffix else self._first_blocks(first, offset, size)
        # The caller or a refusal has named the size: only the version is still open.
        if policy.keeps_footer:
            start = self._footer_start(end)
            return FirstRequest(start, max(start + 1, end))
        low = min(offset or 0, max(0, end - 1))
        blocks = policy.fill != "exact"
        start = low - low % cell if blocks else low
        stop = start + cell if blocks else low + wanted
        return self._first_blocks(FirstRequest(start, max(start + 1, min(stop, end))), offset, size)

    def _first_blocks(self, first: FirstRequest, offset: int | None, size: int) -> FirstRequest:
        """A first request by blocks, cut to the free memory and to the split.

        It ends with the split, unless the read itself continues behind it. It begins with the split only if split and
        request together are longer than half a block: otherwise the whole block costs nothing more.
        """
        start, end = first.start, first.end
        if offset is not None and self.policy.fill != "exact" and not self.passes_blocks:
            start, end = self.within_share(offset, max(offset + 1, min(end, offset + size)), (start, end))
        split = self._split
        if split is not None and offset is not None and split[0] <= offset < split[1]:
            end = min(end, max(split[1], offset + size))
            if end - split[0] <= self._block_bytes // 2:
                start = max(start, split[0])
        return first if start == first.start and end == first.end else FirstRequest(start, end)

    def _has_resident(self, file: BlockFile, first: FirstRequest, offset: int | None, size: int) -> bool:
        """Whether the wanted bytes of a version are resident or in flight, and a first request may name it."""
        if not self._may_revalidate or file.version[1] is None:
            return False
        low, high = first.start, min(first.end, file.size)
        if first.is_suffix:
            low, high = max(0, file.size - first.end), file.size
        elif size and offset is not None:
            low, high = offset, min(offset + size, file.size)
        return low < high and not file.missing(low, high)

    # --- the pinned version -------------------------------------------------------------------------------------

    def pin_version(self, etag: str | None, version: str | None, total: int) -> BlockFile:
        """Pin the version of a first response, whose object has ``total`` bytes; ``ObjectChanged`` if it had others."""
        self._bind(total, etag)
        self.etag, self.version = etag, self.version or version
        self.is_shared = is_strong(etag, self.version)
        self._pin = None
        self._opening = None
        return self._set_file(total)

    def _set_file(self, total: int, *, is_current: bool = True) -> BlockFile:
        version = (self.version, self.etag) if self.is_shared else (None, None, object())
        file = self.file = self.store.file(
            self.name,
            version,
            size=total,
            block_bytes=self._block_bytes,
            label=self.path,
            is_current=is_current,
        )
        if self.policy.keeps_footer:
            file.footer_start = min(file.footer_start, self._footer_start(total))
        file.open(self.position)
        self._end_opening(None)
        return file

    def _bind(self, total: int, etag: str | None) -> None:
        """Keep the size of the object that a response names; ``ObjectChanged`` if an earlier one named another."""
        if self.total not in (None, total):
            raise self.pin.changed(
                etag, f"the object was overwritten: it had {self.total} bytes when it was read first, and has {total}"
            )
        self.total = total
        self.size = total if self._declared is None else self._reachable(total)

    def _reachable(self, total: int) -> int:
        """The end of readable bytes in an object of ``total`` bytes."""
        return total if self._declared is None else min(self._declared, total)

    def _footer_start(self, total: int) -> int:
        return footer_start(total, block_bytes=self._block_bytes, tail_bytes=self._tail_bytes)

    def open_file(self) -> BlockFile:
        """The version's file; raises ``Closed``, ``ObjectChanged`` after ``reopen``, or ``ProtocolError``."""
        if self.file is None:
            if self.closed:
                raise self._end_error()
            message = f"the store says that the object has {self.size} bytes, and refuses every range of it"
            raise ProtocolError(message, operation="read", path=self.path, status="permanent")
        return self.file

    def end_of_reads(self) -> int:
        """The end of reads and requests: the declared size, or the end of the object if that comes first."""
        file, size = self.file or self.open_file(), self.size
        if size is None or size > file.size:  # A reader with the same declared size met the end first.
            self.size = size = file.size
        return size

    def must_open(self, start: int, length: int | None) -> bool:
        """Whether a read from ``start`` on needs the first response, while there is no file."""
        return length != 0 and (self.size is None or start < self.size)

    def end_of(self, start: int, length: int | None) -> int:
        """The end of a read from ``start`` on, to the end for a length of ``None``; ``start`` if nothing is there."""
        file, total = self.file, self.size or 0
        if length == 0 or (self.size is not None and start >= total):
            return start
        if file is not None and (self.size is None or total > file.size):
            total = self.end_of_reads()
        if length is not None and start + length <= total:
            return start + length
        return total if total > start else start

    def within_share(self, start: int, end: int, blocks: Range) -> Range:
        """The part of ``blocks``, which ``[start, end)`` touches, that a request may bring while memory is short."""
        eviction = self.store.eviction
        cell = eviction.cell_bytes(self._block_bytes, opening=len(self._openings.by_key), reader=id(self.position))
        if cell >= self._block_bytes or start >= end:
            return blocks
        # Counted from the first of these blocks, so that every reader cuts a block into the same cells.
        low = blocks[0] + (start - blocks[0]) // cell * cell
        return low, min(blocks[1], low - (low - end) // cell * cell)

    def send(self, fetch: Fetch | OpenPart) -> Awaitable[object]:
        """Send a request for bytes of the pinned version. ``refused`` explains the error of a refusal."""
        start = fetch.start
        request = ReadRequest(
            path=self.path,
            offset=start,
            size=fetch.end - start,
            if_match=self.etag,
            version=self.version,
            lane=fetch.lane,
            session=self.session,
        )
        return self._accessor.read(request, fetch)

    async def refused(self, error: Error) -> Error:
        """The error that the refusal of a request from ``send`` means."""
        return await self.explain(error, is_first=self.proof is not None and isinstance(error, NotFound))

    async def receive(self, part: OpenPart) -> None:
        """Send the request for a part, and wait until it has arrived."""
        try:
            await self.send(part)
        except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
            refused = await self.refused(error)
            try:
                if refused is error:
                    raise
                raise refused from error
            finally:
                del refused  # Its traceback holds this frame.

    def part(self, start: int, memory: memoryview) -> OpenPart:
        """The sink of a request for the bytes of ``memory``, which begin at ``start``. For ``receive``."""
        return OpenPart(self, start, memory)

    def publish_served(self, start: int, count: int, tier: Tier, waited_seconds: float | None) -> None:
        """Publish that a caller got bytes: where they came from, and how long the read took. For listeners alone."""
        events = self.runtime.events
        events.publish_served(self.path, start, start + count, TIER_NAMES[tier], waited_seconds, self.session.reader_id)

    def publish_range(self, start: int, end: int, received: int, lane: Lane, error: str | None) -> None:
        """Publish the end of a request for ``[start, end)`` whose bytes are in no block. For listeners alone."""
        facts = {"start": start, "end": end, "received": received, "lane": lane, "error": error}
        self.runtime.events.publish("range.fetched", self.path, **facts, reader_id=self.session.reader_id)

    def file_of(self, fetch: Fetch, head: ReadHead) -> BlockFile:
        """The file that a response fills.

        Raises ``ObjectChanged`` for another version, also where a store ignores the condition, ``ProtocolError`` for
        another range.
        """
        file = fetch.file
        assert isinstance(file, BlockFile)
        start, size = fetch.start, fetch.end - fetch.start
        if head.start != start or head.size != size:
            check_due(ReadRequest(path=self.path, offset=start, size=size), head)
        self.check_head(file, head)
        return file

    def check_head(self, file: BlockFile | None, head: ReadHead) -> None:
        """Raise ``ObjectChanged`` unless a response is of the pinned version."""
        (self._pin or self.pin).check(head)
        self.proof = None
        if file is not None and file.head is None:
            file.head = head
        if head.total != self.total and head.total is not None:
            self._learn(file, head.total, head.etag)

    def _learn(self, file: BlockFile | None, total: int, etag: str | None) -> None:
        self._bind(total, etag)
        if file is not None and total < file.size:  # Which was declared.
            file.shorten(total)

    async def explain(self, error: Error, *, is_first: bool) -> Error:
        """``ObjectChanged`` in place of a refused request, once a version is pinned; otherwise the error itself."""
        is_pinned = not (self.etag is None and self.version is None)
        if is_first and not (is_pinned and isinstance(error, ConditionNotMatch)):
            return error
        if not (is_pinned or isinstance(error, RangeNotSatisfied)):
            return error
        actual = error.context.get("etag")
        if actual is None and not isinstance(error, NotFound):
            try:
                actual = (await self._accessor.stat(StatRequest(path=self.path))).etag
            except Error:
                actual = None
        if isinstance(error, RangeNotSatisfied) and actual == self.etag:
            if self.file is not None and error.total is not None:
                self._learn(self.file, error.total, self.etag)
            if actual is not None or error.total is not None:
                return error  # The object has not changed: the store refuses a range of the version that it has.
        return self.pin.explain(error, actual_etag=actual)

    # --- waiting and closing ------------------------------------------------------------------------------------

    def release(self, waits: list[Wait]) -> None:
        """Leave these waits: their bytes were used, or are not needed any more. The list is empty then.

        The frames of a failed read are kept by its error, and a wait keeps that: if a frame kept its waits, neither
        would end before the garbage collector comes, nor would what the frames of its callers hold.
        """
        for wait in waits:
            self.waits.discard(wait)
            wait.fetch.leave(wait)  # As ``Wait.close``.
        waits.clear()

    async def result(self, wait: Wait, *, ignores_prefetch: bool = False) -> None:
        """Wait until a wait has ended. Its error names this object, because the block store has no paths.

        With ``ignores_prefetch`` the error of a prefetch is dropped, because it says nothing about the read: the read
        sends a request of its own.
        """
        future = wait.future
        if future is None and wait.error is None:
            return
        try:
            if future is None:
                raise wait.error or AssertionError
            if future.done():
                future.result()
            else:
                await self.wait_for(future)
        except Error as error:
            if ignores_prefetch and wait.fetch.prefetched and not isinstance(error, Closed):
                return
            error.add_context(operation="read", path=self.path)
            raise
        except Exception:
            if not (ignores_prefetch and wait.fetch.prefetched):
                raise
        finally:
            del wait, future  # See ``release``.

    async def wait_for(self, bytes_arrive: Awaitable[object]) -> None:
        """Await the future of a wait, or of several, as a read that waits for bytes."""
        # As with a ``Timer``, which costs each miss twice as much.
        counters, now = self.account.counters, self.runtime.clock
        counters["stream_read_block_acquire_read"] += 1
        started = now()
        try:
            await bytes_arrive
        except BaseException as error:
            counters["demand_wait_microseconds"] += round((now() - started) * 1e6)
            if isinstance(error, Exception) and not isinstance(error, Closed):
                counters.failed("stream_read_block_acquire_read")
            raise
        finally:
            del bytes_arrive  # See ``release``.
        seconds = now() - started
        counters["demand_wait_microseconds"] += round(seconds * 1e6)
        counters.succeeded("stream_read_block_acquire_read", seconds)

    async def first_completed(self, waits: Iterable[Wait]) -> None:
        """Wait until one of the waits has ended, with or without an error."""
        futures = [wait.future for wait in waits if wait.future is not None]
        await self.wait_for(asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED))

    def close(self, reason: Callable[[OpenObject], Error] | None = None) -> None:
        """Fail the reads in progress, by the error of ``reason``, and cancel what no other reader needs."""
        self.closed = True
        self.session.close()
        self._end_reason = reason
        for end in self.long_reads:
            end(self._end_error())
        if self.waits:
            for wait in self.waits:
                wait.fail(self._end_error())
            self.release([*self.waits])  # At once, so that no request continues until reading tasks have a turn.
        file, self.file = self.file, None
        if file is None:
            if self._opening is not None:
                self._opening.leave(self)
            return
        self.last_head = file.head
        if self.account.counters["stream_read_prefetch_operations"]:
            file.cancel_prefetches(self, 0, file.size)
            file.settle_for(self.account)
        file.close(self.position)
        if not self.is_shared or (self.passes_blocks and not file.readers):
            file.forget()

    def _end_error(self) -> Error:
        """The error of a read that closing has ended."""
        if self._end_reason is not None:
            return self._end_reason(self)
        return Closed("the reader was closed", operation="read", path=self.path)

    def left_behind(self) -> ObjectChanged:
        """The error of a read of this version after its reader was reopened with another one."""
        pin = replace(self.pin, advice="", counters=None)
        return pin.changed(None, "the reader was reopened while this read of the version before was under way")
