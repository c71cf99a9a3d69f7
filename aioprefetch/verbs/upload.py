"""An upload: the source of a write as a stream of large pieces, and the parts of it, several at a time.

**Sources** are bytes, files and iterators. Files are read by the part, and small items are put together. A source that
blocks is read on a worker thread.

**Parts** are uploaded several at a time, while the writer goes on. Each part is a request of its own through all
layers: Retry repeats it alone, ConcurrentLimit gives it a slot, Timeout bounds it by its size. An object of at most one
part is one ``write``.

**Memory.** One part is the writer's own: the part being filled, or, where there is no memory for more, the part
in flight. Each further part takes its bytes from the budget in the lane of prefetch until the store has it, up to half
of the budget and ``PARTS_AT_ONCE`` parts; where it gets none, ``write`` waits for a part that is in flight. So a writer
waits for its own parts alone, and many writers hold a part each and share the budget. Bytes that the caller keeps
until the end (``write_kept``) need no memory here.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from aioprefetch.accessor.http_headers import described_by
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import Closed, Error, InvalidArgument, InvalidType, TimedOut, copy_of
from aioprefetch.runtime.budget import Ticket
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.supervisor import Work
from aioprefetch.runtime.threads import in_thread
from aioprefetch.values import (
    AbortUploadRequest,
    CompleteUploadRequest,
    CopyPartRequest,
    Metadata,
    PartRequest,
    UploadedPart,
    WriteRequest,
)

# The size of a read from a file: a part of an upload.
FILE_PIECE_BYTES = 8 << 20
# Smaller items are put together: a step to another thread, or through the layers, costs more than copying this much.
PIECE_BYTES_MIN = 1 << 20

_MUST_YIELD_BYTES = "data must yield bytes"

T = TypeVar("T")
P = TypeVar("P")

BytesLike: TypeAlias = bytes | bytearray | memoryview


class ReadableFile(Protocol):
    """A file open for reading bytes; ``read`` may be asynchronous."""

    def read(self, size: int, /) -> Any:
        """The next bytes, ``b""`` at the end."""


WriteSource: TypeAlias = ReadableFile | Iterable[BytesLike] | AsyncIterable[BytesLike]


def bytes_of(data: object, path: str) -> BytesLike | None:
    """``data`` as bytes, copied only if it is not contiguous; ``None`` without the buffer protocol.

    ``InvalidType`` for a buffer that cannot be read, or that holds Python objects, which are addresses in this process.
    """
    if isinstance(data, bytes | bytearray):
        return data
    try:
        view = memoryview(data)  # type: ignore[arg-type]
        kind = view.format
    except TypeError:
        return None
    except (ValueError, BufferError) as error:
        raise _invalid(f"the buffer of a {type(data).__name__} cannot be read: {error}", path) from None
    if "O" in kind:
        raise _invalid(f"the {type(data).__name__} holds Python objects, not bytes", path)
    if not view.nbytes:
        return b""
    return view.cast("B") if view.c_contiguous else view.tobytes()


def is_asynchronous(data: object) -> bool:
    """Whether a source is read on an event loop, and not on a thread."""
    return hasattr(data, "__aiter__") or inspect.iscoroutinefunction(getattr(data, "read", None))


def left_bytes_of(data: Any) -> int:
    """The bytes that a local file has from its position on; 0 where its descriptor does not tell."""
    if is_asynchronous(data) or not hasattr(data, "fileno"):
        return 0
    try:
        status, position = os.fstat(data.fileno()), data.tell()
    except (AttributeError, OSError, TypeError, ValueError):  # A pipe, a file in memory, something else of that name.
        return 0
    return max(0, status.st_size - position) if stat.S_ISREG(status.st_mode) else 0


def pieces_of(data: Any, path: str) -> AsyncGenerator[BytesLike, None]:
    """The pieces of a source. Nothing is read before the first piece is awaited; ``InvalidType`` for anything else."""
    read = getattr(data, "read", None)
    if callable(read):
        if isinstance(data, io.TextIOBase) or isinstance(getattr(data, "encoding", None), str):
            raise _invalid("the file is open in text mode: open it with 'rb'", path)
        return _gathered(_read_here(read, path), path) if is_asynchronous(data) else _read_in_thread(read, path)
    if hasattr(data, "__aiter__"):
        return _gathered(data, path)
    if hasattr(data, "__iter__") and not isinstance(data, str | Mapping):
        return _iterated_in_thread(data, path)
    hint = ""
    if inspect.iscoroutine(data):
        data.close()
        hint = ": await it first"
    elif isinstance(data, str):
        hint = ": encode the text"
    elif isinstance(data, os.PathLike):
        hint = ": open the file with 'rb'"
    raise _invalid(f"data must be bytes, a binary file or an iterator of bytes, not {type(data).__name__}{hint}", path)


async def _gathered(items: AsyncIterable[object], path: str) -> AsyncGenerator[BytesLike, None]:
    gathered = bytearray()
    async for item in items:
        chunk = checked_chunk(item, path, _MUST_YIELD_BYTES)
        if len(chunk) >= PIECE_BYTES_MIN:
            if gathered:
                yield gathered
                gathered = bytearray()
            yield chunk
            continue
        gathered += chunk  # A copy: its owner may fill the same buffer again.
        if len(gathered) >= PIECE_BYTES_MIN:
            yield gathered
            gathered = bytearray()
    if gathered:
        yield gathered


async def _read_here(read: Callable[[int], Any], path: str) -> AsyncGenerator[BytesLike, None]:
    while True:
        chunk = read(FILE_PIECE_BYTES)
        chunk = checked_chunk(await chunk if inspect.isawaitable(chunk) else chunk, path, _MUST_YIELD_BYTES)
        if not chunk:
            return
        yield chunk


async def _read_in_thread(read: Callable[[int], Any], path: str) -> AsyncGenerator[BytesLike, None]:
    ended = False
    while not ended:
        piece, ended = await _in_thread(path, _next_of_file, read, path)
        if piece:
            yield piece


async def _in_thread(path: str, call: Callable[..., T], *args: object) -> T:
    """Run code of the user on a worker thread. A future cannot carry ``StopIteration``: it would never be done."""

    def guarded() -> T:
        try:
            return call(*args)
        except StopIteration as error:
            raise _invalid("the source raised StopIteration: at its end read() returns b''", path) from error

    return await in_thread(guarded)


def _next_of_file(read: Callable[[int], Any], path: str) -> tuple[BytesLike, bool]:
    """On a worker thread: the next piece, and whether it is the last. Pipes and sockets return a little at a time."""
    gathered = bytearray()
    while len(gathered) < PIECE_BYTES_MIN:
        chunk = checked_chunk(read(FILE_PIECE_BYTES), path, _MUST_YIELD_BYTES)
        if not chunk:
            return gathered, True
        if not gathered and len(chunk) >= PIECE_BYTES_MIN:
            return chunk, False
        gathered += chunk
    return gathered, False


async def _iterated_in_thread(items: Iterable[object], path: str) -> AsyncGenerator[BytesLike, None]:
    iterator: Iterator[object] = await _in_thread(path, iter, items)
    while pieces := await _in_thread(path, _next_items, iterator, path):
        for piece in pieces:
            yield piece


def _next_items(iterator: Iterator[object], path: str) -> list[BytesLike]:
    """On a worker thread: one piece, or two where a large item follows small ones; none at the end."""
    gathered = bytearray()
    for item in iterator:
        chunk = checked_chunk(item, path, _MUST_YIELD_BYTES)
        if len(chunk) >= PIECE_BYTES_MIN:
            return [gathered, chunk] if gathered else [chunk]
        gathered += chunk  # A copy: its owner may fill the same buffer again.
        if len(gathered) >= PIECE_BYTES_MIN:
            break
    return [gathered] if gathered else []


def checked_chunk(chunk: object, path: str, wanted: str = "data must be bytes") -> BytesLike:
    """A piece of an object as bytes. ``InvalidType`` for anything else."""
    data = bytes_of(chunk, path)
    if data is None:
        if inspect.iscoroutine(chunk):
            chunk.close()
        hint = ": encode the text" if isinstance(chunk, str) else ""
        raise _invalid(f"{wanted}, not {type(chunk).__name__}{hint}", path)
    return data


def _invalid(message: str, path: str) -> InvalidType:
    return InvalidType(message, operation="write", path=path)


# --- parts ------------------------------------------------------------------------------------------------------------

# The parts of one upload in flight.
PARTS_AT_ONCE = 8
# An abort is not cut off, and may not hang either.
ABORT_SECONDS_MAX = 5.0


class MultipartBody:
    """A body that is written to a store that takes parts of ``capability.write_part_bytes``.

    Parts are sent by the runtime: the failure of one ends the others, and is raised by the next call. After a failed or
    cancelled call ``abort`` removes what was sent; it raises if it cannot, with ``upload_id`` in the context.

    Parts are as large as it takes for the store to have them all; without ``size`` the second half of them grows.
    """

    def __init__(self, accessor: Accessor, runtime: Runtime, request: WriteRequest, size: int = 0) -> None:
        capability = accessor.capability
        self._accessor = accessor
        self._runtime = runtime
        self._request = request
        self._parts_max = capability.write_parts_max
        self._part_bytes = max(capability.write_part_bytes, -(-size // self._parts_max))
        self._grows = not size
        self._sent_bytes = 0
        self._buffer = bytearray()
        self._has_begun = False
        self._upload_id = ""
        self._count = 0
        self._parts: dict[int, UploadedPart] = {}
        self._works: dict[int, Work] = {}
        self._tickets: list[Ticket] = []
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes, and send what makes a part. If cancelled, call ``abort``."""
        self._check()
        data = memoryview(chunk).cast("B")
        while len(data):
            if len(self._buffer) == self._part_bytes:  # More follows, so this is not the last part.
                part, self._buffer = self._buffer, bytearray()
                await self._send(part)
                self._sent_bytes += len(part)
                if self._grows and self._count >= self._parts_max // 2:
                    larger = self._sent_bytes // max(1, self._parts_max // 12)
                    self._part_bytes = max(self._part_bytes, min(larger, 5 << 30))  # S3 takes no larger one.
                await self._until_fitting()
            room = self._part_bytes - len(self._buffer)
            self._buffer += data[:room]
            data = data[room:]

    async def write_kept(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes that the caller neither changes nor drops before the end of the write, without a copy."""
        self._check()
        view = memoryview(data)
        at_once = min(PARTS_AT_ONCE, self._runtime.options.concurrency)
        part_bytes = max(self._part_bytes, -(-len(view) // self._parts_max))
        for start in range(0, len(view), part_bytes):
            await self._send(view[start : start + part_bytes])
            await self._until(lambda: len(self._works) < at_once)

    async def copy(self, source: CopyPartRequest, on_bytes: Callable[[int], object] | None = None) -> None:
        """Let the store copy ``[source.start, source.end)`` of an object, cut into parts, and wait for all of them.

        ``on_bytes`` gets the size of each part when it is there.
        """
        self._check()
        send = partial(self._copy_part, on_bytes)
        at_once = min(PARTS_AT_ONCE, self._runtime.options.concurrency)
        size = source.end - source.start
        part_bytes = max(self._accessor.capability.copy_part_bytes, -(-size // self._parts_max))
        for start in range(source.start, source.end, part_bytes):
            await self._send_by(send, replace(source, start=start, end=min(source.end, start + part_bytes)))
            await self._until(lambda: len(self._works) < at_once)
        await self._until(lambda: not self._works)

    async def close(self) -> Metadata:
        """Let the object appear. If cancelled, it may appear or not."""
        self._check()
        if not self._has_begun:
            buffer, self._buffer = self._buffer, bytearray()
            metadata = await self._accessor.write(self._request, buffer)
            self._ended = True
            return metadata
        if self._buffer:
            part, self._buffer = self._buffer, bytearray()
            await self._send(part)
        await self._until(lambda: not self._works)
        request = self._request
        metadata = await self._accessor.complete_upload(
            CompleteUploadRequest(
                path=request.path,
                deadline=request.deadline,
                **described_by(request),
                if_match=request.if_match,
                if_none_match=request.if_none_match,
                if_not_exists=request.if_not_exists,
                storage_class=request.storage_class,
                sse_kms_key_id=request.sse_kms_key_id,
                checksum=request.checksum,
                upload_id=self._upload_id,
                parts=tuple(part for _, part in sorted(self._parts.items())),
            )
        )
        self._ended = True
        return metadata

    async def abort(self) -> None:
        """Remove what was sent, within ``ABORT_SECONDS_MAX``. If cancelled, that goes on in the background.

        Raises the error of an abort that failed, with ``upload_id`` in its context.
        """
        if self._ended:
            return
        self._ended = True
        self._buffer = bytearray()
        for number, work in tuple(self._works.items()):
            if number:  # What begins the upload is awaited: its name is needed to abort it.
                work.cancel()
        if not self._has_begun:
            return
        if self._runtime.closed:
            raise self._left(self._closed("the operator was closed while the object was written"))
        outcome: asyncio.Future[Error | None] = self._runtime.loop.create_future()

        def ended() -> None:
            if not outcome.done():  # It was cancelled with the runtime.
                outcome.set_result(self._closed("the operator was closed while the upload was aborted"))

        self._runtime.supervisor.spawn(self._clean_up(outcome), name="abort upload", on_end=ended)
        error = await asyncio.shield(outcome)
        if error is not None:
            raise self._left(error)

    # --- parts --------------------------------------------------------------------------------------------------

    async def _send(self, part: bytearray | memoryview) -> None:
        """Begin to send the next part."""
        await self._send_by(self._send_part, part)

    async def _send_by(self, send: Callable[[int, P], Coroutine[object, object, None]], part: P) -> None:
        self._count += 1
        number = self._count
        if number > self._parts_max:
            raise InvalidArgument(
                f"the object needs more than {self._parts_max} parts of part_bytes={self._part_bytes};"
                " make part_bytes larger",
                operation=self._request.operation,
                path=self._request.path,
            )
        if not self._has_begun:
            self._has_begun = True
            self._start(0, self._begin())
            await self._until(lambda: not self._works)
        self._start(number, send(number, part))

    def _start(self, number: int, request: Coroutine[object, object, None]) -> None:
        work = self._runtime.supervisor.spawn(request, name="upload", on_end=partial(self._over, number))
        if self._error is None:  # Where the runtime is closed, it has ended already.
            self._works[number] = work

    async def _begin(self) -> None:
        try:
            self._upload_id = await self._accessor.begin_upload(self._request)
        except Exception as error:
            self._fail(error)

    async def _send_part(self, number: int, part: bytearray | memoryview) -> None:
        whole = self._request
        request = PartRequest(
            path=whole.path,
            deadline=whole.deadline,
            upload_id=self._upload_id,
            number=number,
            checksum=whole.checksum,
        )
        try:
            self._parts[number] = await self._accessor.write_part(request, part)
        except Exception as error:
            self._fail(error)

    async def _copy_part(self, on_bytes: Callable[[int], object] | None, number: int, source: CopyPartRequest) -> None:
        request = replace(source, upload_id=self._upload_id, number=number, checksum=self._request.checksum)
        try:
            self._parts[number] = await self._accessor.copy_part(request)
        except Exception as error:
            self._fail(error)
        else:
            if on_bytes is not None:
                on_bytes(source.end - source.start)

    def _fail(self, error: Exception) -> None:
        """Keep the first error, and stop the other parts."""
        if self._error is None:
            self._error = copy_of(error)
            for work in tuple(self._works.values()):
                work.cancel()

    def _over(self, number: int) -> None:
        """A request has ended, or was cancelled."""
        self._works.pop(number, None)
        if self._error is None and not (self._parts.get(number) if number else self._upload_id) and not self._ended:
            self._error = self._closed("the operator was closed while the object was written")
        while len(self._tickets) > len(self._works):
            self._runtime.budget.cancel(self._tickets.pop())
        self._changed.set()

    async def _until_fitting(self) -> None:
        """Wait until there is memory for another part beside those in flight."""
        budget, options = self._runtime.budget, self._runtime.options
        further_max = min(PARTS_AT_ONCE, options.concurrency, options.memory_bytes // 2 // self._part_bytes)
        while len(self._works) > len(self._tickets):
            if len(self._tickets) < further_max:
                ticket = budget.request(self._part_bytes, "prefetch")
                if ticket.granted:
                    self._tickets.append(ticket)
                    continue
                budget.cancel(ticket)
            await self._until(partial(self._has_less_than, len(self._works)))

    def _has_less_than(self, in_flight: int) -> bool:
        return len(self._works) < in_flight

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until that is so. Raises the error of a part at once."""
        while self._error is None and not is_reached():
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise copy_of(self._error)

    # --- the end ------------------------------------------------------------------------------------------------

    async def _clean_up(self, outcome: asyncio.Future[Error | None]) -> None:
        error: Error | None = None
        try:
            async with asyncio.timeout(ABORT_SECONDS_MAX) as limit:
                while self._works:  # A part that arrives after the abort would stay.
                    self._changed.clear()
                    await self._changed.wait()
                if self._upload_id:
                    await self._accessor.abort_upload(
                        AbortUploadRequest(path=self._request.path, deadline=limit.when(), upload_id=self._upload_id)
                    )
        except TimeoutError:
            error = TimedOut(
                f"the upload was not aborted within {ABORT_SECONDS_MAX:g} seconds",
                operation="abort_upload",
                path=self._request.path,
                status="persistent",
            )
            for work in tuple(self._works.values()):
                work.cancel()
        except Error as failure:
            error = copy_of(failure)
        if not outcome.done():
            outcome.set_result(error)

    def _left(self, error: Error) -> Error:
        """An error that says what stays in the store."""
        return error.add_context(upload_id=self._upload_id) if self._upload_id else error

    def _check(self) -> None:
        if self._ended:
            raise self._closed("the object was closed or aborted")
        if self._error is not None:
            raise copy_of(self._error)

    def _closed(self, why: str) -> Closed:
        return Closed(why, operation=self._request.operation, path=self._request.path)
