"""One version of one object as a reader sees it: pinned by its first answer, its bytes kept in the block store.

Nothing is sent until bytes are wanted. The first request brings size, ETag and bytes together; whoever comes
meanwhile waits for its head alone. Afterwards each missing byte is requested once, with ``If-Match``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from aioprefetch.accessor import Accessor
from aioprefetch.blocks.fetch import Fetch, FetchCall, Wait
from aioprefetch.blocks.store import BlockFile, BlockStore, Cursor
from aioprefetch.errors import Closed, ConditionNotMatch, Error, NotFound, ObjectChanged, RangeNotSatisfied, Unexpected
from aioprefetch.ranges import Range
from aioprefetch.reader.policy import REQUEST_BYTES_MAX, Policy, extent, first_request, steps
from aioprefetch.runtime import Runtime
from aioprefetch.values import Lane, ReadHead, ReadRequest, StatRequest

# Bytes that were evicted before they could be copied, or whose prefetch failed, are asked for again this often.
_TRIES = 4


class PinnedObject:
    """The pinned version behind a RangeReader. Bound to one runtime; not for direct use.

    ``size`` is what reads may reach: the declared size if there is one (a minimum of the real one), else the real
    size, ``None`` until known.
    """

    def __init__(
        self,
        accessor: Accessor,
        runtime: Runtime,
        path: str,
        *,
        policy: Policy,
        block_bytes: int,
        size: int | None,
        etag: str | None,
        version: str | None,
        tail_bytes: int | None,
    ) -> None:
        self.runtime = runtime
        self.path = path
        self.policy = policy
        self.size = size
        self.etag = etag
        self.version = version
        self.file: BlockFile | None = None
        self.cursor = Cursor()
        self.closed = False
        self._accessor = accessor
        self._store = BlockStore.of(runtime)
        self._block_bytes = block_bytes
        self._declared = size
        self._tail_bytes = tail_bytes
        self._opening: Fetch | None = None
        self._waits: set[Wait] = set()
        self._end_error: Callable[[], Error] = self._was_closed
        if size is not None and etag is not None:
            self._set_file(size)

    # --- knowing the object -------------------------------------------------------------------------------------

    async def open(self, offset: int | None, size: int) -> None:
        """Make size and version known: by the first request, which also brings the bytes wanted there."""
        while self.file is None:
            if self.closed:
                raise self._end_error()
            fetch = self._opening
            if fetch is None or fetch.finished:
                fetch = self._opening = self._start_opening(offset, size)
            try:
                await self._wait(fetch.join(0))
            except RangeNotSatisfied as error:
                if error.total is None or self._declared is not None:
                    raise self._too_short(error.total) from error
                self.size = error.total  # Nothing is there, but now we know the size; the next read pins the version.
                return

    def _start_opening(self, offset: int | None, size: int) -> Fetch:
        if self.size is not None:  # Declared by the caller: only the version is still open.
            low = min(offset or 0, max(0, self.size - 1))
            start = low - low % self._block_bytes if self.policy.fill == "block" else low
            stop = start + self._block_bytes if self.policy.fill == "block" else low + min(size, self.request_bytes_max)
            return self._start_first(start, max(start + 1, min(stop, self.size)), suffix=False)
        first = first_request(
            self.policy,
            offset=offset,
            size=min(size, self.request_bytes_max),
            block_bytes=self._block_bytes,
            tail_bytes=self._tail_bytes,
        )
        return self._start_first(first.offset, first.offset + first.size, suffix=first.suffix)

    def _start_first(self, start: int, end: int, *, suffix: bool) -> Fetch:
        # Of an object of unknown size a block is asked for, but no more than a part of the budget is set aside.
        return self._store.start_fetch(start, end, self._call(start, end, suffix=suffix), self._file_of, lane="demand")

    def _file_of(self, head: ReadHead) -> BlockFile:
        if head.total is None:
            raise Unexpected("the store does not tell the size of the object", operation="read", path=self.path)
        if self._declared is not None and head.total < self._declared:
            raise self._too_short(head.total)
        self.etag = head.etag
        self.version = self.version or head.version
        return self._set_file(head.total)

    def _set_file(self, total: int) -> BlockFile:
        if self._declared is None:
            self.size = total
        # Without a version nothing tells whether another reader's bytes are of the same object: share nothing.
        identity = (self.version, self.etag) if self.is_pinned else (object(),)
        key = (self._accessor.info.namespace, self.path, *identity)
        file = self.file = self._store.file(key, size=total, block_bytes=self._block_bytes)
        file.open(self.cursor)
        return file

    @property
    def is_pinned(self) -> bool:
        """Whether the store told a version: without one, only the size can tell that the object is another."""
        return bool(self.version or self.etag)

    def _check_same(self, file: BlockFile, head: ReadHead) -> None:
        """A later answer must be of the pinned object, whether or not the store understands conditions."""
        same_size = head.total in (None, file.size) or (self._declared is not None and (head.total or 0) >= file.size)
        if head.etag == self.etag and same_size:
            return
        if head.etag == self.etag and self._declared is not None:
            raise self._too_short(head.total)
        self.runtime.counters["stream_read_version_mismatches"] += 1
        raise ObjectChanged(
            f"the object has {head.total} bytes now where it had {file.size}; reopen() reads the new version",
            expected_etag=self.etag,
            actual_etag=head.etag,
            operation="read",
            path=self.path,
        )

    def _too_short(self, total: int | None) -> RangeNotSatisfied:
        return RangeNotSatisfied(
            f"the object is shorter than the declared size of {self._declared} bytes",
            total=total,
            operation="read",
            path=self.path,
        )

    # --- requests -----------------------------------------------------------------------------------------------

    def _call(self, start: int, end: int, *, suffix: bool = False) -> FetchCall:
        async def call(fetch: Fetch) -> None:
            request = ReadRequest(
                path=self.path,
                offset=0 if suffix else start,
                size=None if suffix else end - start,
                suffix=end - start if suffix else None,
                if_match=self.etag,
                version=self.version,
                lane=fetch.lane,
            )
            try:
                await self._accessor.read(request, fetch)
            except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
                meant = await self._changed(error)
                if meant is error:
                    raise
                raise meant from error

        return call

    async def _changed(self, error: Error) -> Error:
        """What these errors mean to a reader: once a version is pinned, that the object is another one now."""
        if isinstance(error, RangeNotSatisfied) and self._declared is not None and error.total is not None:
            return self._too_short(error.total)
        pinned = self.etag if self.etag is not None else self.version
        first = self.file is None
        if pinned is None or (first and not isinstance(error, ConditionNotMatch)):
            return error
        actual = error.context.get("etag")
        if actual is None and not isinstance(error, NotFound):
            try:
                actual = (await self._accessor.stat(StatRequest(path=self.path))).etag
            except Error:
                actual = None
        self.runtime.counters["stream_read_version_mismatches"] += 1
        what = "deleted" if isinstance(error, NotFound) else "overwritten"
        return ObjectChanged(
            f"the object was {what} after its version was pinned; reopen() reads the new version",
            expected_etag=self.etag,
            actual_etag=str(actual) if actual is not None else None,
            operation="read",
            path=self.path,
        )

    def want(self, start: int, end: int, *, lane: Lane, exact: bool = False) -> None:
        """Start requests for what of ``[start, end)`` is neither resident nor on its way."""
        file = self._file()
        spans: Iterable[Range] = [(start, end)] if exact else extent(start, end, policy=self.policy, grid=file.grid)
        for low, high in spans:
            for gap_start, gap_end in file.missing(low, high):
                for position in range(gap_start, gap_end, self.request_bytes_max):
                    stop = min(gap_end, position + self.request_bytes_max)
                    call = self._call(position, stop)
                    file.start_fetch(position, stop, call, lane=lane, check=partial(self._check_same, file))

    # --- bytes --------------------------------------------------------------------------------------------------

    def ask(self, start: int, end: int, *, exact: bool = False) -> list[Wait]:
        """Want ``[start, end)`` now, and wait for what is on its way until ``release``."""
        file = self._file()
        under_way = set(map(id, file.fetches))
        self.want(start, end, lane="demand", exact=exact)
        waits = file.join(start, end)
        self._waits.update(waits)
        self.runtime.counters["stream_read_block_joins"] += sum(id(wait.fetch) in under_way for wait in waits)
        return waits

    def release(self, waits: Iterable[Wait]) -> None:
        """The bytes were used, or are not wanted any more."""
        for wait in waits:
            self._waits.discard(wait)
            wait.close()

    async def arrived(self, start: int, end: int, waits: list[Wait]) -> list[memoryview] | None:
        """``[start, end)`` in pieces of block memory once the waits are over. Copy them before the next ``await``.

        ``None`` when a byte is missing all the same: it was evicted, or its prefetch failed. ``copy`` brings it.
        """
        if len(waits) == 1:
            waits[0].pin()
        for wait in waits:
            await _over(wait)
        return self._file().find_pieces(start, end)

    async def copy(self, start: int, end: int, put: Callable[[memoryview], object]) -> bool:
        """Give ``[start, end)`` to ``put`` piece by piece, in order, with several requests ahead in flight.

        Returns whether a fetch had to be waited for. If it fails or is cancelled, what has arrived stays resident, and
        ``put`` may have been called for a beginning.
        """
        cuts = deque(steps(start, end, policy=self.policy, step_bytes=self._step_bytes))
        asked: deque[tuple[int, int, list[Wait]]] = deque()
        ahead = self.steps_ahead
        waited = False
        try:
            while cuts or asked:
                while cuts and len(asked) < ahead:
                    low, high = cuts.popleft()
                    asked.append((low, high, self.ask(low, high)))
                low, high, waits = asked[0]
                waited = waited or bool(waits)
                await self._hand_over(low, high, waits, put)
                self.release(waits)
                asked.popleft()
        finally:
            for _, _, waits in asked:
                self.release(waits)
        return waited

    async def _hand_over(self, start: int, end: int, waits: list[Wait], put: Callable[[memoryview], object]) -> None:
        """Give ``[start, end)`` to ``put`` as it arrives. Only what comes next is pinned, and used at once."""

        def take() -> None:
            nonlocal start
            for piece in self._file().find_prefix(start, end):
                put(piece)
                start += len(piece)

        take()
        tries = 0
        while start < end:
            before = start
            waits += () if waits else self.ask(start, end)
            while waits and start < end:
                waits[0].pin()
                await _over(waits[0])
                take()
                self.release((waits.pop(0),))
            take()
            tries = 0 if start > before else tries + 1
            if tries == _TRIES:
                raise Unexpected(
                    f"[{start}, {end}) was evicted {_TRIES} times before it could be used: memory_bytes is too small",
                    operation="read",
                    path=self.path,
                )

    @property
    def steps_ahead(self) -> int:
        """How many steps of a long read may be in flight: never more than half of the memory."""
        options = self.runtime.options
        return max(1, min(options.concurrency, options.memory_bytes // (2 * self._step_bytes)))

    @property
    def request_bytes_max(self) -> int:
        """What is asked for at once ends here: all of it must fit into memory together, with room for others."""
        return max(self._block_bytes, min(REQUEST_BYTES_MAX, self.runtime.options.memory_bytes // 4))

    @property
    def _step_bytes(self) -> int:
        return self._block_bytes if self.policy.fill == "block" else self.request_bytes_max

    async def _wait(self, wait: Wait) -> None:
        self._waits.add(wait)
        try:
            await wait.future
        finally:
            self.release((wait,))

    def _file(self) -> BlockFile:
        if self.file is None:
            raise self._end_error()
        return self.file

    # --- letting go ---------------------------------------------------------------------------------------------

    def unbuffer(self) -> None:
        """Give back the memory of what is resident, unless another reader has the same version open."""
        file = self.file
        if file is not None and len(file.cursors) == 1:
            for fetch in tuple(file.fetches):
                if not fetch.has_waiters:
                    fetch.cancel()
            for block in tuple(file.blocks.values()):
                if block.is_evictable:
                    file.drop(block)

    def close(self, reason: Callable[[], Error] | None = None) -> None:
        """Fail the reads under way, break off the requests nobody else needs. Needs no answer from the network.

        ``reason`` makes the error of these reads, ``Closed`` by default.
        """
        self.closed = True
        if reason is not None:
            self._end_error = reason
        for wait in self._waits:
            if not wait.future.done():
                wait.future.set_exception(self._end_error())
        self.release(tuple(self._waits))  # At once, so that no request goes on until the reading tasks have a turn.
        if self._opening is not None and not self._opening.finished and self.file is None:
            self._opening.cancel()
        if self.file is not None:
            self.file.close(self.cursor)
            if not self.is_pinned:
                self.file.forget()
            self.file = None

    def _was_closed(self) -> Closed:
        return Closed("the reader was closed", operation="read", path=self.path)

    def left_behind(self) -> ObjectChanged:
        """What a read of this version meets when the reader goes on with another one."""
        return ObjectChanged(
            "the reader was reopened while this read of the version before was under way",
            expected_etag=self.etag,
            operation="read",
            path=self.path,
        )


async def _over(wait: Wait) -> None:
    """Wait until a wait is over. A prefetch that failed says nothing about the read: it is tried again as demand."""
    try:
        await wait.future
    except Closed:
        raise
    except Exception:
        if not wait.fetch.prefetched:
            raise


async def first_completed(waits: Iterable[Wait]) -> None:
    """Wait until one of the waits has ended, well or not."""
    await asyncio.wait([wait.future for wait in waits], return_when=asyncio.FIRST_COMPLETED)
