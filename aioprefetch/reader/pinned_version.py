"""Which version of an object a reader reads: pinned by its first answer, held to in every later one.

Nothing is sent until bytes are wanted. The first request brings size, ETag and bytes together; whoever comes
meanwhile waits for its head alone. Afterwards every request carries the ETag, and every answer is compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aioprefetch.accessor import Accessor
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
from aioprefetch.headers import is_weak
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import REQUEST_BYTES_MAX, Policy, first_request
from aioprefetch.runtime import Runtime
from aioprefetch.statistics import Account, Timer
from aioprefetch.values import ReadHead, ReadRequest, StatRequest


class PinnedVersion:
    """Which version of an object a reader reads, found out by its first request. Bound to one runtime.

    ``size`` is what reads may reach: the declared size if there is one, as long as no answer tells that the object is
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
        self.etag = etag = options.etag
        self.version = options.version
        self.file: BlockFile | None = None
        self.cursor = Cursor()
        self.closed = False
        self._accessor = accessor
        self._store = BlockStore.of(runtime)
        self._block_bytes = options.block_bytes
        self._declared = size
        self._tail_bytes = options.footer_bytes
        self._opening: Fetch | None = None
        self._waits: set[Wait] = set()
        self._end_error: Callable[[], Error] = self._was_closed
        self._opening_timer: Timer | None = None
        # A size that the caller declares together with an ETag is believed until an answer contradicts it.
        self._is_size_confirmed = size is None or etag is None
        if size is not None and etag is not None:
            self._set_file(size, is_current=False)

    def start(self, offset: int) -> None:
        """Send the first request without waiting for anything: it will be wanted."""
        if self.file is None and self._opening is None and self.size != 0:
            self._opening = self._start_opening(offset, self._block_bytes)

    async def open(self, offset: int | None, size: int) -> None:
        """Make size and version known: by the first request, which also brings the bytes wanted there."""
        while self.file is None:
            if self.closed:
                raise self._end_error()
            fetch = self._opening
            is_own = fetch is None or fetch.finished
            if fetch is None or is_own:
                fetch = self._opening = self._start_opening(offset, size)
            try:
                await self._wait(fetch.join(0))
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

    def _opening_ended(self, error: Exception | None) -> None:
        timer, self._opening_timer = self._opening_timer, None
        if timer is not None:
            timer.end(error)

    def _start_opening(self, offset: int | None, size: int) -> Fetch:
        if self.size is not None:  # Declared by the caller: only the version is still open.
            if self.policy.keeps_footer:
                return self._start_first(self._footer_start(self.size), max(1, self.size), suffix=False)
            low = min(offset or 0, max(0, self.size - 1))
            blocks = self.policy.fill != "exact"
            start = low - low % self._block_bytes if blocks else low
            stop = start + self._block_bytes if blocks else low + min(size, self.request_bytes_max)
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
        call = self._call(start, end, suffix=suffix, resident=self._resident(start, end, suffix=suffix))
        if self._opening_timer is None:
            self._opening_timer = Timer(self.account.counters, "action_file_opened", self.runtime.now).begin()
        return self._store.start_fetch(
            start, end, call, self._file_of, lane="demand", label=self.path, account=self.account
        )

    def _resident(self, start: int, end: int, *, suffix: bool) -> BlockFile | None:
        """What is held of the object since an earlier reader, if the bytes of the first request are among it."""
        file = self._store.newest(self._name, self._block_bytes)
        if file is None or self.is_shared or self._declared is not None:
            return None
        low, high = (max(0, file.size - end), file.size) if suffix else (start, min(end, file.size))
        held = file.version[1] is not None and low < high and file.holds(low, high)
        return file if held and self._accessor.capability.read_if_none_match else None

    def _file_of(self, head: ReadHead) -> BlockFile:
        if head.total is None:
            raise Unexpected("the store does not tell the size of the object", operation="read", path=self.path)
        self.etag = head.etag
        self.version = self.version or head.version
        return self._set_file(head.total)

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

        Without a version nothing tells whether another reader's bytes are of the same object, and a weak ETag may
        stand for two that differ (RFC 9110, 8.8.1).
        """
        return bool(self.version) or (self.etag is not None and not is_weak(self.etag))

    def _check_same(self, file: BlockFile, head: ReadHead) -> None:
        """A later answer must be of the pinned object, whether or not the store understands conditions."""
        if head.etag == self.etag and self._is_size_of(file, head.total):
            return
        self.runtime.counters["stream_read_version_mismatches"] += 1
        raise ObjectChanged(
            f"the object has {head.total} bytes now where it had {file.size}; reopen() reads the new version",
            expected_etag=self.etag,
            actual_etag=head.etag,
            operation="read",
            path=self.path,
        )

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

    def _call(self, start: int, end: int, *, suffix: bool = False, resident: BlockFile | None = None) -> FetchCall:
        """The request for ``[start, end)``; with ``resident`` only if the object is not that version any more."""
        version, etag = resident.version[:2] if resident is not None else (None, None)

        async def call(fetch: Fetch) -> None:
            request = ReadRequest(
                path=self.path,
                offset=0 if suffix else start,
                size=None if suffix else end - start,
                suffix=end - start if suffix else None,
                if_match=self.etag,
                if_none_match=etag,
                version=self.version,
                lane=fetch.lane,
            )
            try:
                await self._accessor.read(request, fetch)
            except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
                if resident is not None and isinstance(error, ConditionNotMatch):
                    self.version, self.etag, self._opening = version, etag, None
                    self._set_file(resident.size)
                    return
                meant = await self._changed(error)
                if meant is error:
                    raise
                raise meant from error

        return call

    async def _changed(self, error: Error) -> Error:
        """What these errors mean to a reader: once a version is pinned, that the object is another one now."""
        pinned = self.etag if self.etag is not None else self.version
        first = self.file is None and not self.closed  # Another reader may still wait for what a closed one asked for.
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
        self.runtime.counters["stream_read_version_mismatches"] += 1
        what = "deleted" if isinstance(error, NotFound) else "overwritten"
        return ObjectChanged(
            f"the object was {what} after its version was pinned; reopen() reads the new version",
            expected_etag=self.etag,
            actual_etag=str(actual) if actual is not None else None,
            operation="read",
            path=self.path,
        )

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
        return ObjectChanged(
            "the reader was reopened while this read of the version before was under way",
            expected_etag=self.etag,
            operation="read",
            path=self.path,
        )
