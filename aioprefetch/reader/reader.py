"""RangeReader: the bytes of one object by position or by cursor, for any number of tasks at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import writable_bytes
from aioprefetch.blocks.store import BlockStore
from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import Closed, InvalidArgument, InvalidType, RangeNotSatisfied, redact
from aioprefetch.ranges import ByteCount, bytes_at_least, checked_int, checked_ranges
from aioprefetch.reader.cursor import Cursor
from aioprefetch.reader.iterators import ChunkIterator, RangeIterator, check_ends
from aioprefetch.reader.object_reads import ObjectReads
from aioprefetch.reader.opening import OpenObject
from aioprefetch.reader.options import ReaderOptions
from aioprefetch.reader.policy import PLAIN, PolicyNames, coalescing, find_policy, policy_number
from aioprefetch.reader.window import Run
from aioprefetch.runtime.closing import WITHOUT_AWAIT, AsyncClosing, refused
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import READER_COUNTS, Account, Counters, StatisticsSnapshot
from aioprefetch.values import Metadata

_CAPABILITIES = frozenset(
    {"iostatistics", "in:unbuffer", "in:readvectored", "in:readbytebuffer", "in:preadbytebuffer", "in:readahead"}
)
# What a response says of an object beside its size and version.
_FACTS = ("last_modified", "content_type", "content_encoding", "user_metadata")

Connect = Callable[[], tuple[Accessor, Runtime]]


class RangeReader(AsyncClosing):
    """One open object. Made by ``operator.reader(path)``; use it with ``async with``, or call ``aclose``.

    Opening does no I/O: the first read brings size, ETag and bytes in one request. The version is pinned from then
    on: bytes of two versions never mix, another version is ``ObjectChanged``, and ``reopen`` continues with it. A read
    that fails or is cancelled leaves the reader usable, the cursor in place and received bytes resident.

    All methods belong to the event loop of the first use (``WrongLoop``). ``read_at`` and the other positional methods
    may run in any number of tasks; ``read`` and ``readinto`` share the cursor and take turns.
    """

    if not TYPE_CHECKING:
        __await__ = refused("await", "opening does no I/O: write 'async with op.reader(...) as reader'")
        __iter__ = refused("for", f"write 'async for chunk in reader.stream()'; {WITHOUT_AWAIT}")
        __aiter__ = refused("async for", "write 'async for chunk in reader.stream()'")

    def __init__(self, path: str, options: ReaderOptions, connect: Connect, *, url: Callable[[], str]) -> None:
        self.path = path
        self._options = options
        self._connect = connect
        self._url = url
        self._counters = Counters(READER_COUNTS)
        self._cursor = Cursor(path, self._counters, keeps_behind=options.keep_behind is True)
        self._reads: ObjectReads | None = None
        self._account: Account | None = None
        self._closed = False

    @property
    def options(self) -> ReaderOptions:
        """The options in force, checked and complete: frozen, and replaced by ``set_policy`` and ``reopen``."""
        return self._options

    @property
    def size(self) -> int | None:
        """The end of readable bytes: the declared size, or the size of the object if that is less.

        ``None`` before the first response, unless it was declared.
        """
        return self._options.size if self._reads is None else self._reads.opened.size

    @property
    def etag(self) -> str | None:
        """The pinned ETag, unquoted; ``None`` until known."""
        return self._options.etag if self._reads is None else self._reads.opened.etag

    @property
    def version(self) -> str | None:
        """The pinned version id on stores that have versions."""
        return self._options.version if self._reads is None else self._reads.opened.version

    @property
    def metadata(self) -> Metadata | None:
        """The object by the responses so far: its content type, time and user metadata cost no request.

        ``None`` before the first response. Of an empty object, and of an object unchanged since another process left
        its blocks in ``disk_cache``, only size and version are known; ``Operator.stat`` asks for all there is.
        """
        if self._reads is None:
            return None
        opened = self._reads.opened
        head = opened.last_head if opened.file is None else opened.file.head  # Also one to another reader of it.
        size = opened.total if head is None or opened.total is not None else head.total
        if size is None:
            return None
        facts: dict[str, Any] = {} if head is None else {name: getattr(head, name) for name in _FACTS}
        facts["user_metadata"] = dict(facts.get("user_metadata") or {})
        return Metadata(path=self.path, size=size, etag=opened.etag, version=opened.version, **facts)

    @property
    def closed(self) -> bool:
        """Whether the reader was closed."""
        return self._closed

    @property
    def policy(self) -> str:
        """The name of the policy in force; ``plain`` if prefetching is switched off."""
        return self._options.policy.name

    @property
    def statistics(self) -> StatisticsSnapshot:
        """The counts of this reader so far, under the names of ``aioprefetch.runtime.events``.

        Readable from any thread, and after closing too: then the gauges are 0. A reader that was never used has
        counted nothing, not even its seeks.
        """
        if self._account is None:
            return Counters().snapshot({})
        reads = self._reads
        is_live = reads is not None and not self._closed and not reads.runtime.closed
        return self._counters.snapshot(_gauges(reads) if reads is not None and is_live else {})

    def has_capability(self, name: str) -> bool:
        """Whether the reader has Hadoop's capability ``name`` (``in:readvectored``, ``in:unbuffer``, ...)."""
        return name.lower() in _CAPABILITIES

    def __repr__(self) -> str:
        cursor = self._cursor
        state = "closed" if self._closed else f"pos={cursor.position if cursor.from_end is None else 'end'}"
        held = "" if self._reads is None else _held(self._reads)
        return f"<{type(self).__name__} {redact(self._url())} {state} size={self.size}{held}>"

    def _repr_html_(self) -> str:
        return self._shown_at(None if self._cursor.from_end is not None else self._cursor.position)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidType(
            "a reader cannot be pickled; pickle the Operator and open the path again",
            operation="pickle",
            path=self.path,
        )

    # --- by position --------------------------------------------------------------------------------------------

    async def read_at(self, offset: int, size: int | None) -> bytes:
        """``size`` bytes from ``offset`` on, short only at the end of the object, ``b""`` beyond it.

        ``None`` reads to the end. Never moves the cursor. Raises ``InvalidRange``, ``ObjectChanged`` and the errors of
        the store.
        """
        reads = self._reads
        hit = None if reads is None else reads.hit(offset, size)
        if hit is not None:
            return bytes(hit)
        return await self._live("read_at").read(offset, size, "read_at")

    async def view_at(self, offset: int, size: int | None) -> memoryview:
        """Read like ``read_at``; returns a read-only view.

        The view lies on the block itself, whose memory stays accounted while any slice of the view lives. It is a
        copy, which is not accounted, if it is less than an eighth of its block, while views hold more than half of
        ``memory_bytes``, and if the range lies in more than one piece of memory. What is read of a local file past the
        blocks lies in memory of its own, which is not accounted either.
        """
        reads = self._reads
        hit = None if reads is None else reads.hit(offset, size)
        if reads is None or hit is None:
            return await self._live("view_at").read_view(offset, size, "view_at")
        view = reads.exported(offset, len(hit))
        return memoryview(bytes(hit)) if view is None else view

    async def read_exactly_at(self, offset: int, size: int) -> bytes:
        """Read like ``read_at``, but raise ``RangeNotSatisfied`` (an ``EOFError``) if the result would be short."""
        wanted = checked_int(size, "size", operation="read_exactly_at", path=self.path)
        self._counters["stream_read_fully_operations"] += 1
        data = await self.read_at(offset, wanted)
        if len(data) < wanted:
            self._counters["stream_read_exceptions"] += 1
            self._count_delivered(-len(data))  # The caller does not get them after all.
            raise RangeNotSatisfied(
                f"{wanted} bytes were demanded at {offset}, {len(data)} are there",
                total=self.size,
                operation="read_exactly_at",
                path=self.path,
            )
        return data

    @hiding_frames
    async def read_ranges(
        self,
        ranges: Iterable[Sequence[int]],
        *,
        gap_bytes: ByteCount | None = None,
        request_bytes_max: ByteCount | None = None,
    ) -> list[bytes]:
        """The bytes of each ``(start, end)``, in the order of the list. Overlaps and duplicates are served.

        Ranges up to ``gap_bytes`` apart share a request of up to ``request_bytes_max``. A range that ends past the
        end of the object is ``RangeNotSatisfied`` before anything is read.
        """
        async with self.iter_ranges(ranges, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max) as iterator:
            parts = {index: part async for index, part in iterator}
        return [parts[index] for index in range(len(parts))]

    def iter_ranges(
        self,
        ranges: Iterable[Sequence[int]],
        *,
        gap_bytes: ByteCount | None = None,
        request_bytes_max: ByteCount | None = None,
    ) -> RangeIterator:
        """``async for index, data in ...``: the ranges as they complete. Options and errors as in ``read_ranges``."""
        checked = checked_ranges(ranges, operation="read_ranges", path=self.path)
        limits = coalescing(gap_bytes, request_bytes_max, policy=self._options.policy, path=self.path)
        size = self.size
        if size is not None:
            check_ends(checked, size, path=self.path)
        return RangeIterator(partial(self._live, "read_ranges"), checked, limits, self._counters)

    @hiding_frames
    async def read_ranges_into(
        self,
        ranges: Iterable[Sequence[int]],
        buffers: Iterable[Any],
        *,
        gap_bytes: ByteCount | None = None,
        request_bytes_max: ByteCount | None = None,
    ) -> None:
        """Fill a writable buffer of its length with the bytes of each ``(start, end)``; as ``read_ranges`` reads.

        ``InvalidArgument``, and nothing is read, where a buffer is missing or has another length. If it fails or is
        cancelled, the content of the buffers is undefined.
        """
        targets = [writable_bytes(buffer, operation="read_ranges", path=self.path) for buffer in buffers]
        async with self.iter_ranges(ranges, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max) as iterator:
            if [len(target) for target in targets] != [end - start for start, end in iterator.ranges]:
                lengths = f"{[len(target) for target in targets]} bytes for the ranges {iterator.ranges}"
                why = f"each range needs a buffer of its length, not {lengths}"
                raise InvalidArgument(why, operation="read_ranges", path=self.path)
            iterator.targets = targets
            async for _ in iterator:
                pass

    # --- by cursor ----------------------------------------------------------------------------------------------

    async def read(self, n: int | None = -1) -> bytes:
        """The next ``n`` bytes (all up to the end for -1 or ``None``), short only at the end of the object."""
        self._live("read")  # A foreign loop must not even queue for the cursor.
        number = -1 if n is None else checked_int(n, "n", operation="read", path=self.path)
        cursor = self._cursor
        async with cursor.turn:
            if cursor.from_end is not None:
                cursor.settle(await self.ensure_size())
            position = cursor.position
            wanted = None if number < 0 else number
            reads = self._reads
            hit = None if reads is None else reads.hit(position, wanted, at_cursor=True)
            if hit is not None:
                data = bytes(hit)
            else:
                data = await self._live("read").read(position, wanted, "read", at_cursor=True)
            cursor.move(position + len(data))
            return data

    async def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` (anything writable with the buffer protocol) from the cursor on; returns how many bytes.

        If it fails or is cancelled the cursor stays, and the content of the buffer is undefined.
        """
        self._live("readinto")
        target = writable_bytes(buffer, operation="readinto", path=self.path)
        cursor = self._cursor
        async with cursor.turn:
            self._live("readinto")
            if cursor.from_end is not None:
                cursor.settle(await self.ensure_size())
            position = cursor.position
            filled = await self._live("readinto").read_into(position, target, "readinto")
            cursor.move(position + filled)
            return filled

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int | None:
        """Move the cursor; nothing is read or dropped, and it may lie beyond the end.

        Returns the new position, or ``None`` for ``SEEK_END`` while the size is unknown: the next read resolves it,
        by a request for the tail that also brings its bytes.
        """
        self._check_open("seek")
        number = checked_int(offset, "offset", operation="seek", path=self.path)
        return self._cursor.seek(number, whence, self.size)

    def tell(self) -> int:
        """The cursor. ``SizeUnknown`` after a seek relative to an end that is not known yet."""
        self._check_open("tell")
        return self._cursor.tell(self.size)

    def stream(self, chunk_bytes: ByteCount | None = None) -> ChunkIterator:
        """``async for chunk in ...`` from the cursor to the end, moving it; the next blocks are fetched meanwhile."""
        self._check_open("stream")
        size = (
            self._options.chunk_bytes
            if chunk_bytes is None
            else bytes_at_least(1, chunk_bytes, "chunk_bytes", operation="stream", path=self.path)
        )
        return ChunkIterator(self.read, self.tell, size, expect_run=self._expect_run, leave_run=self._leave_run)

    def _expect_run(self) -> Run | None:
        """Begin a run at the cursor that continues to the end; ``None`` if there is nothing to look ahead to."""
        reads = self._live("stream")
        if self._cursor.from_end is not None or self._options.policy.window == "none":
            return None
        return reads.ahead.expect_run(self._cursor.position)

    def _leave_run(self, run: Run | None, position: int) -> None:
        """End an expected run at ``position``, and cancel its requests ahead. Does nothing once closed.

        Received bytes stay resident, and the prefetches of other runs of this reader continue.
        """
        reads = self._reads
        if reads is not None and not self._closed and not reads.runtime.closed:
            reads.runtime.check_loop(operation="stream", path=self.path)
            reads.ahead.leave_run(run, position)

    # --- hints and life -----------------------------------------------------------------------------------------

    def will_need(self, ranges: Iterable[Sequence[int]]) -> None:
        """These ranges will be read soon: fetch their missing bytes in the prefetch lane. A hint, without result.

        Before the first response, and with prefetching switched off, it does nothing.
        """
        self._check_open("will_need")
        checked = checked_ranges(ranges, operation="will_need", path=self.path)
        reads = self._reads
        if reads is None or reads.file is None or not self._options.prefetch_enabled:
            return
        reads.runtime.check_loop(operation="will_need", path=self.path)
        left = reads.runtime.options.memory_bytes  # More would not fit into memory.
        for start, end in checked:
            stop = min(end, reads.opened.size or 0, start + left)
            if start < stop:
                reads.request_ahead(start, stop)
                left -= stop - start

    def set_policy(self, policy: PolicyNames) -> None:
        """Use another policy for later reads. Resident bytes are kept."""
        self._check_open("set_policy")
        chosen = find_policy(policy, operation="set_policy", path=self.path)
        before = self.policy
        self._options = replace(self._options, policy=chosen if self._options.prefetch_enabled else PLAIN)
        self._counters["stream_read_seek_policy_changed"] += self.policy != before
        if self._reads is not None:
            self._reads.set_policy(self._options.policy)

    def clone(self) -> RangeReader:
        """Another reader of the same version with a cursor of its own at 0. With an ETag the two share blocks."""
        self._check_open("clone")
        return self._twin()

    def _twin(self) -> RangeReader:
        """A clone, also of a reader of the process that this one was forked from."""
        total = self._options.total if self._reads is None else self._reads.opened.total
        options = replace(self._options, size=self.size, etag=self.etag, version=self.version, total=total)
        return RangeReader(self.path, options, self._connect, url=self._url)

    async def reopen(self) -> None:
        """Drop the pinned version and pin the one the store has now; the cursor stays.

        Reads of other tasks that wait for bytes of the version before fail with ``ObjectChanged``.
        """
        self._check_open("reopen")
        if self._reads is not None:
            self._reads.opened.close(OpenObject.left_behind)
            self._reads = None
        self._options = replace(self._options, size=None, etag=None, version=None, total=None)
        if await self.ensure_size() and self._live("reopen").file is None:
            # The cursor lies beyond the new end, where a response brings the size alone.
            await self._open(0)

    async def ensure_size(self) -> int:
        """The size in bytes, learnt from the first request if it is not known yet."""
        if self.size is None or not self._closed:  # A known size stays known after closing.
            self._check_open("ensure_size")
        if self.size is None:
            cursor = self._cursor
            await self._open(None if cursor.from_end is not None else cursor.position)
        assert self.size is not None
        return self.size

    async def unbuffer(self) -> None:
        """Release memory and cancel requests in flight. Cursor and version are kept, and the next read works.

        After closing it does nothing.
        """
        if not self._closed and self._reads is not None:
            self._check_open("unbuffer")
            self._counters["stream_read_unbuffered"] += 1
            self._reads.unbuffer()

    async def aclose(self) -> None:
        """Close: reads in progress fail with ``Closed``, requests are cancelled. Does not wait. May be called twice."""
        if self._closed:
            self._counters["stream_read_close_operations"] += 1
            return
        reads = self._reads
        if reads is not None and not (reads.runtime.is_usable() or reads.runtime.loop.is_closed()):
            reads.runtime.check_loop(operation="aclose", path=self.path)
        self._closed = True
        if self._account is not None:
            self._account.closed = True
            self._counters["stream_read_closed"] += 1
            self._counters["stream_read_close_operations"] += 1
        if reads is not None:
            reads.opened.close()
            events = reads.runtime.events
            if events.listeners:
                number = reads.opened.session.reader_id
                events.publish("reader.closed", self.path, reader_id=number, size=self.size, etag=self.etag)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("closed %r: %s", self, self.statistics.described())

    async def __aenter__(self) -> RangeReader:
        if self._closed or self._reads is not None:
            self._check_open("open")
        if self._options.policy.starts_at_open:
            split = self._options.split
            self._live("open").opened.start(self._cursor.position if split is None else split[0])
        return self

    # --- for files of the sync world ----------------------------------------------------------------------------

    def _peek(self, offset: int, size: int | None) -> bytes | None:
        """The result of ``read_at`` if all of it is resident, else ``None``. From any thread, never waits."""
        reads = self._reads
        view = None if reads is None else reads.resident(offset, size)
        if reads is None or view is None:
            return None
        reads.count_hit(offset, len(view), size)
        return bytes(view)

    def _peek_view(self, offset: int, size: int | None) -> memoryview | None:
        """The result of ``view_at`` if all of it is resident, else ``None``. From any thread, never waits."""
        reads = self._reads
        view = None if reads is None else reads.resident(offset, size)
        exported = None if reads is None or view is None else reads.exported(offset, len(view))
        if reads is not None and exported is not None and len(exported):
            reads.count_hit(offset, len(exported), size)
        return exported

    def _peek_into(self, offset: int, target: memoryview) -> int | None:
        """Fill ``target`` if all of it is resident; returns how many bytes, else ``None``. From any thread."""
        reads = self._reads
        view = None if reads is None else reads.resident(offset, len(target))
        if reads is None or view is None:
            return None
        count = len(view)
        target[:count] = view
        reads.count_hit(offset, count, len(target))
        return count

    def _shown_at(self, cursor: int | None) -> str:
        """The bar of the object as HTML, with a cursor. From any thread."""
        from aioprefetch.display.bars import ObjectBytes, object_html

        reads, counts, shown = self._reads, self.statistics, ObjectBytes(self.size, cursor=cursor)
        file = None if self._closed or reads is None or reads.runtime.closed else reads.file
        if reads is not None and file is not None:
            found, disk = file.residency(), BlockStore.of(reads.runtime).on_disk(file)
            shown = ObjectBytes(self.size, found.ranges, found.unread, found.requested, disk, cursor)
        return object_html(
            f"{type(self).__name__} {redact(self._url())}{' (closed)' if self._closed else ''}",
            shown,
            counts["prefetch_bytes_wasted"],
            f"policy {self.policy}; {counts['stream_read_bytes']:,} bytes read,"
            f" {counts['stream_read_total_bytes']:,} received in {counts['action_http_get_request']:,} requests",
            counts._repr_html_() if any(counts.values()) else "",
        )

    def _count_delivered(self, count: int, *, reads: int = 0) -> None:
        """Count bytes that went to the caller out of an earlier read; below 0, bytes that did not after all."""
        self._counters.hits += reads
        self._counters.hit_bytes += count

    def _count_seek(self, position: int, target: int) -> None:
        """Count the seek of a file over this reader."""
        self._cursor.count_seek(position, target)

    # --- within -------------------------------------------------------------------------------------------------

    def _live(self, operation: str) -> ObjectReads:
        """The reads of the pinned version; at the first use they are bound to the running loop."""
        reads = self._reads
        if reads is not None and not self._closed and reads.runtime.is_usable():
            return reads
        if self._closed:
            raise Closed("the reader is closed", operation=operation, path=self.path)
        if reads is not None:
            reads.runtime.check_loop(operation=operation, path=self.path)
            if reads.runtime.closed:
                raise Closed("the operator is closed", operation=operation, path=self.path)
            return reads
        accessor, runtime = self._connect()
        account = self._account
        if account is None:
            account = self._account = runtime.ledger.open(self._counters)
            self._counters["stream_read_opened"] += 1
        reads = self._reads = ObjectReads(accessor, runtime, self.path, self._options, account, url=self._url)
        self._cursor.mark = mark = reads.opened.position
        mark.keeps_behind = self._cursor.keeps_behind
        if runtime.events.listeners:
            number = reads.opened.session.reader_id
            runtime.events.publish("reader.opened", self.path, reader_id=number, policy=self.policy)
        return reads

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise Closed("the reader is closed", operation=operation, path=self.path)
        if self._reads is not None:
            self._reads.runtime.check_loop(operation=operation, path=self.path)

    async def _open(self, offset: int | None) -> None:
        """Learn the size, and pin the version if there is a byte at ``offset``; ``None`` is the end."""
        reads = self._live("read")
        try:
            await reads.opened.open(offset, 0)
        except Exception as error:
            reads.count_failure(error)
            raise


def _held(reads: ObjectReads) -> str:
    """For the reader's repr: blocks held, requests in flight, and how far each run looks ahead, in blocks."""
    file = reads.file
    if file is None:
        return ""
    windows = ",".join(str(run.blocks) for run in reads.ahead.windows.runs if run.blocks) or "0"
    return f" blocks={len(file.blocks)} fetching={len(file.fetches)} window={windows}"


def _gauges(reads: ObjectReads) -> dict[str, int]:
    """The memory and requests of the reader's object now. From any thread."""
    file = reads.file
    if file is None:
        return {}
    return {
        "stream_read_active_prefetch_operations": sum(
            fetch.source is reads.opened and fetch.prefetched for fetch in tuple(file.fetches)
        ),
        "stream_read_blocks_in_cache": len(file.blocks),
        "stream_read_bytes_in_cache": file.bytes_in_cache,
        "stream_read_gauge_input_policy": policy_number(reads.opened.policy),
    }
