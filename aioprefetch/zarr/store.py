"""``Store``: keys of zarr as objects below a prefix of an Operator.

zarr calls it on the loop thread of its own, or from tasks of any loop; the Operator has a runtime for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any, Self

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.abc.store import Store as ZarrStore
from zarr.core.buffer import Buffer, BufferPrototype

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    InvalidArgument,
    IsADirectory,
    NotFound,
    is_bucket_missing,
    printable,
    redact,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator, clone_with_hold
from aioprefetch.ranges import Range
from aioprefetch.runtime.buffers import Lease
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.scheduler.pinned_file import TAIL_BYTES, PinnedFile
from aioprefetch.values import ReadRequest
from aioprefetch.verbs.listing import delete_below, list_literally
from aioprefetch.verbs.ranged_read import view_ranges_cut
from aioprefetch.zarr.shard_reads import Part, PartsPlan, Piece, ShardReads, Surplus, plan_parts

# How long a task may take from one chunk of a shard to the next and still be reading that shard.
SHARD_SECONDS_MAX = 10.0
# What may come along with the chunks of a shard is this share of the memory: zarr reads ten at once by default.
SHARDS_AT_ONCE = 16
CLOSE_SECONDS_MAX = 5.0
_NOTHING = memoryview(b"")
# What zarr takes for a key without a value.
_ABSENT = (NotFound, IsADirectory)


class Store(ZarrStore):
    """A zarr store over an Operator: ``zarr.open_array(ap.zarr.Store(op, "path/of/the/array"))``.

    A value that is small comes by one GET; nothing is asked by HEAD but ``exists`` and ``getsize``. The index of a
    shard and its chunks are of one version: a shard that is overwritten while a task reads it is ``ObjectChanged``.
    Chunks of a shard that lie close together share requests. A write appears whole or not at all.

    The Operator stays the caller's. ``close`` gives up what this store uses on the loops it was used on, the one of
    zarr's thread among them; a store may be used again after it. It pickles as the Operator does, without secrets.

    Parameters
    ----------
    operator
        Where the objects are.
    prefix
        The directory of the store, ``""`` for the root of the Operator.
    read_only
        Whether writes and deletes are ``ValueError``, as zarr demands.
    """

    def __init__(self, operator: Operator, prefix: str = "", *, read_only: bool = False) -> None:
        super().__init__(read_only=read_only)
        checked_operator(operator, "open")
        if prefix.startswith("/") or "://" in prefix:
            raise InvalidArgument(
                f"prefix is a directory of the operator, such as 'data/a.zarr', not {printable(redact(prefix))!r}:"
                " bucket and root stand in the URL of the operator",
                operation="open",
            )
        self._operator = clone_with_hold(operator)
        self._prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        self._loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._generation = fork_generation()
        self._shards: weakref.WeakKeyDictionary[asyncio.Task[Any], ShardReads] = weakref.WeakKeyDictionary()
        self._surplus = Surplus()

    @property
    def operator(self) -> Operator:
        """The operator that it reads and writes through; its statistics count what the store did."""
        return self._operator

    @property
    def prefix(self) -> str:
        """The directory of the store in the operator: empty, or with a slash at its end."""
        return self._prefix

    @property
    def supports_writes(self) -> bool:
        """Whether the service can write."""
        return self._operator.capability.write

    @property
    def supports_deletes(self) -> bool:
        """Whether the service can delete."""
        return self._operator.capability.delete

    @property
    def supports_listing(self) -> bool:
        """Whether the service can list."""
        return self._operator.capability.list

    def with_read_only(self, read_only: bool = False) -> Self:
        """A store of the same objects that is read-only or not."""
        return type(self)(self._operator, self._prefix, read_only=read_only)

    def __eq__(self, value: object) -> bool:
        """Whether the other store has the same objects, reached in the same way."""
        if not isinstance(value, Store):
            return NotImplemented
        mine, other = self._operator, value._operator
        return (self._prefix, self.read_only, mine.service, mine.layers) == (
            value._prefix,
            value.read_only,
            other.service,
            other.layers,
        )

    def __repr__(self) -> str:
        url = self._operator.info.url.rstrip("/")
        return f"<Store {url}/{self._prefix}{' read-only' if self.read_only else ''}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._operator, self._prefix, self.read_only)

    # --- reading ------------------------------------------------------------------------------------------------

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The value of a key, or a part of it; ``None`` without one.

        A range that crosses the end is cut there; beyond it, it is ``RangeNotSatisfied``. A missing bucket
        is ``NotFound``: zarr takes ``None`` for a chunk of fill values.
        """
        operator = await self._live()
        path = self._prefix + key
        try:
            if byte_range is None:
                view = await operator.view(path)
            elif isinstance(byte_range, SuffixByteRequest):
                view = await self._read_last(path, byte_range.suffix)
            elif isinstance(byte_range, RangeByteRequest):
                view = await self._read_range(path, byte_range.start, byte_range.end)
            elif isinstance(byte_range, OffsetByteRequest):
                view = await operator.view(path, offset=byte_range.offset)
            else:
                raise TypeError(f"Unexpected byte_range, got {byte_range!r}")
        except _ABSENT as error:
            if is_bucket_missing(error):
                raise
            return None
        return _buffer(view, prototype)

    async def _read_last(self, path: str, size: int) -> memoryview:
        """The last bytes of an object: the index of a shard, with which its reads begin."""
        if size <= 0:
            return _NOTHING
        operator = self._operator
        self._forget_shard()
        (asked, lease), received = self._index_request(size), 0
        try:
            file = await PinnedFile.open(operator.accessor(), operator.runtime(), path, tail_bytes=asked)
            received = len(file.tail)
        finally:
            self._surplus.did_not_come(asked - max(size, received))
        tail_start, tail = file.tail_start, file.tail
        file.drop_tail()
        index_start = max(tail_start, file.size - size)
        file.publish_served(index_start, file.size, file.tail_tier, file.tail_seconds)
        kept = Piece(start=tail_start, view=tail, lease=lease)
        self._remember_shard(file, (tail_start, index_start), kept, has_index_first=False)
        return tail[index_start - tail_start :]

    async def _read_range(self, path: str, start: int, end: int) -> memoryview:
        """A range: a chunk of the shard that the task reads, the index of a shard that begins with it, or any other."""
        reads = self._shard_of(path)
        if reads is not None and not (reads.has_index_first and start == 0):
            reads.used_at = self._operator.runtime().now()
            return await reads.read(start, end)
        if 0 == start < end <= TAIL_BYTES:
            return await self._read_first(path, end)
        return await self._operator.view(path, offset=start, size=end - start)

    async def _read_first(self, path: str, size: int) -> memoryview:
        """The first bytes of an object, which are the index of a shard that has it there."""
        operator = self._operator
        accessor, runtime = operator.accessor(), operator.runtime()
        self._forget_shard()
        (asked, lease), view = self._index_request(size), _NOTHING
        try:
            request = ReadRequest(path=path, offset=0, size=asked)
            _, view, file = await PinnedFile.begin(accessor, runtime, request, wanted_bytes=size)
        finally:
            self._surplus.did_not_come(asked - max(size, len(view)))
        if file is not None:
            kept = Piece(start=0, view=view, lease=lease)
            self._remember_shard(file, (size, len(view)), kept, has_index_first=True)
        return view[:size]

    def _shard_of(self, path: str) -> ShardReads | None:
        """The reads of the running task in that shard, if it has read its index; ``None`` otherwise."""
        task = asyncio.current_task()
        reads = None if task is None else self._shards.get(task)
        if reads is None or reads.file.path != path:
            return None
        is_late = self._operator.runtime().now() > reads.used_at + SHARD_SECONDS_MAX
        return None if is_late else reads

    def _index_request(self, size: int) -> tuple[int, Lease | None]:
        """How much to ask for with an index of ``size`` bytes, and the memory to keep it, if there is some."""
        asked = self._surplus.ask(size)
        lease = self._operator.runtime().budget.lease(asked)
        if lease is None:
            self._surplus.did_not_come(asked - size)
            asked = size
        return asked, lease

    def _remember_shard(self, file: PinnedFile, beside_index: Range, kept: Piece, *, has_index_first: bool) -> None:
        task = asyncio.current_task()
        if task is not None and file.pin.is_strong:  # Else nothing would prove that a chunk is of this version.
            options = self._operator.options
            reads = ShardReads(
                file,
                self._surplus,
                beside_index,
                budget=self._operator.runtime().budget,
                around_bytes_max=min(options.block_bytes, options.memory_bytes // SHARDS_AT_ONCE),
                first=kept if kept.lease is not None and kept.view else None,
                has_index_first=has_index_first,
            )
            self._shards[task] = reads
            reads.used_at = self._operator.runtime().now()

    def _forget_shard(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._shards.pop(task, None)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """The parts of values, in the order asked for; ``None`` where a key has no value.

        Ranges of one key that lie close together share a request, a part inside of another one costs none, and all
        keys are read at once. The first failure cancels the other reads.
        """
        await self._live()
        wanted = list(key_ranges)
        by_key: dict[str, list[int]] = {}
        for index, (key, _) in enumerate(wanted):
            by_key.setdefault(key, []).append(index)
        found: list[Buffer | None] = [None] * len(wanted)

        async def read_key(key: str, indexes: list[int]) -> None:
            try:
                views = await self._read_parts(self._prefix + key, [wanted[index][1] for index in indexes])
            except _ABSENT as error:
                if is_bucket_missing(error):
                    raise
                return
            for index, view in zip(indexes, views, strict=True):
                found[index] = _buffer(view, prototype)

        await gather_all(partial(read_key, key, indexes) for key, indexes in by_key.items())
        return found

    async def _read_parts(self, path: str, parts: list[Part]) -> list[memoryview]:
        """The parts of one value, all of one version where the store names versions."""
        plan = plan_parts(parts)
        operator = self._operator
        from_offset = last = _NOTHING
        if plan.offset is None and plan.suffix is None:
            views = await view_ranges_cut(operator.accessor(), operator.runtime(), path, plan.ranges)
        elif plan.is_one_read:
            from_offset = last = await operator.view(path, offset=plan.offset or 0, suffix=plan.suffix)
            views = []
        else:
            file, first = await self._read_described(path, plan)
            beside, if_match = plan.ranges_beside(file.size), file.etag if file.pin.is_strong else None
            try:
                views = await operator.view_ranges(path, beside, if_match=if_match, version=file.version)
            except (ConditionNotMatch, NotFound) as error:
                raise file.pin.explain(error) from error
            from_offset, last = plan.ends(first, views)
        ranged = dict(zip(plan.ranges, views[: len(plan.ranges)], strict=True))
        return [plan.cut(part, from_offset, last, ranged) for part in parts]

    async def _read_described(self, path: str, plan: PartsPlan) -> tuple[PinnedFile, memoryview]:
        """The bytes from the plan's offset on, or its last ones, and the version that they are of."""
        accessor, runtime = self._operator.accessor(), self._operator.runtime()
        if plan.offset is None:
            tail = await PinnedFile.open(accessor, runtime, path, tail_bytes=max(1, plan.suffix or 0))
            tail.publish_served(tail.tail_start, tail.size, tail.tail_tier, tail.tail_seconds)
            return tail, tail.tail
        _, first, file = await PinnedFile.begin(accessor, runtime, ReadRequest(path=path, offset=plan.offset))
        assert file is not None  # A read to the end tells the size.
        return file, first

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        return await (await self._live()).exists(self._prefix + key)

    async def getsize(self, key: str) -> int:
        """The number of bytes of a value. ``NotFound``, a ``FileNotFoundError``, without one."""
        path = self._prefix + key
        metadata = await (await self._live()).stat(path)
        if metadata.size is None:
            raise NotFound("there is no value under this key", operation="getsize", path=path)
        return metadata.size

    # --- writing ------------------------------------------------------------------------------------------------

    async def set(self, key: str, value: Buffer) -> None:
        """Store a value; it appears whole or not at all."""
        await self._write(key, value, if_not_exists=False)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Store a value unless the key has one. The store decides, so one of two writers at once wins."""
        with contextlib.suppress(AlreadyExists):
            await self._write(key, value, if_not_exists=True)

    async def _write(self, key: str, value: Buffer, *, if_not_exists: bool) -> None:
        operator = await self._live()
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"a value of zarr is a Buffer, not {type(value).__name__}")
        self._forget_shard()
        await operator.write(self._prefix + key, value.as_buffer_like(), if_not_exists=if_not_exists)

    async def delete(self, key: str) -> None:
        """Delete a value. A key without one is ignored."""
        operator = await self._live()
        self._check_writable()
        self._forget_shard()
        await operator.delete(self._prefix + key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all values below a prefix, as many by one request as the service takes."""
        operator = await self._live()
        self._check_writable()
        self._forget_shard()
        await delete_below(operator, self._directory(prefix))

    # --- listing ------------------------------------------------------------------------------------------------

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that begin with ``prefix``."""
        operator = await self._live()
        async for entry in list_literally(operator, self._prefix + prefix, recursive=True):
            if not entry.is_directory:
                yield entry.path[len(self._prefix) :]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of the keys and directories directly below a directory."""
        operator = await self._live()
        base = self._directory(prefix)
        async for entry in list_literally(operator, base):
            name = entry.path[len(base) :].rstrip("/")
            if name:
                yield name

    async def getsize_prefix(self, prefix: str) -> int:
        """The number of bytes of all values below a directory, by listing alone."""
        operator = await self._live()
        base = self._directory(prefix)
        return sum([entry.size or 0 async for entry in list_literally(operator, base, recursive=True)])

    def _directory(self, prefix: str) -> str:
        path = self._prefix + prefix
        return path if not path or path.endswith("/") else f"{path}/"

    # --- life ---------------------------------------------------------------------------------------------------

    async def _live(self) -> Operator:
        if not self._is_open:
            await self._open()
        self._own_loops().add(asyncio.get_running_loop())
        return self._operator

    def _own_loops(self) -> weakref.WeakSet[asyncio.AbstractEventLoop]:
        """The loops that it was used on in this process: a parent's loops seem to run, and never end anything."""
        if self._generation != fork_generation():
            self._generation, self._loops = fork_generation(), weakref.WeakSet()
        return self._loops

    def close(self) -> None:
        """Give up the connections and memory that this store uses, on every loop that it was used on.

        Called where no loop runs it waits until they are closed, five seconds at most; on a loop they close soon after.
        """
        super().close()
        self._shards.clear()
        try:
            own: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            own = None
        loops, self._loops = list(self._own_loops()), weakref.WeakSet()
        closing = [
            asyncio.run_coroutine_threadsafe(self._operator.aclose(), loop) for loop in loops if loop.is_running()
        ]
        for future in closing if own is None else ():
            with contextlib.suppress(TimeoutError):
                future.result(CLOSE_SECONDS_MAX)


def _rebuild(kind: type[Store], operator: Operator, prefix: str, read_only: bool) -> Store:
    return kind(operator, prefix, read_only=read_only)


def _buffer(view: memoryview, prototype: BufferPrototype) -> Buffer:
    return prototype.buffer.from_bytes(view)


__all__ = ["Store"]
