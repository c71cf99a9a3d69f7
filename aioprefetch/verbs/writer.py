"""Objects being written: an object appears whole at the end, or nothing of it is left.

Copies that the store makes by itself are one request, or parts where an object is too large for that.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aioprefetch.accessor.http_headers import described_by
from aioprefetch.accessor.path_hints import hint_at_directory
from aioprefetch.accessor.protocols import Accessor, WriteBody
from aioprefetch.accessor.read_copy import COPY_PART_BYTES, copy_by_reading
from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import (
    Closed,
    ConditionNotMatch,
    Error,
    InvalidType,
    IsADirectory,
    IsSameFile,
    NotFound,
    ObjectChanged,
    RangeNotSatisfied,
    TimedOut,
    Unsupported,
    copy_of,
    redact,
)
from aioprefetch.local_files.errors import from_os_error
from aioprefetch.local_files.files import etag_of
from aioprefetch.local_files.identity import refuse_same_file
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.closing import WITHOUT_AWAIT, refused
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import Runtime, fork_generation
from aioprefetch.runtime.threads import in_thread
from aioprefetch.services.keys import no_object
from aioprefetch.values import (
    HEADERS,
    Capability,
    CopyPartRequest,
    CopyRequest,
    Metadata,
    ReadRequest,
    ServiceInfo,
    StatRequest,
    WriteRequest,
)
from aioprefetch.verbs.arguments import check_file
from aioprefetch.verbs.listing import has_bytes
from aioprefetch.verbs.progress import reported
from aioprefetch.verbs.unclosed import report_unclosed
from aioprefetch.verbs.upload import (
    ABORT_SECONDS_MAX,
    PIECE_BYTES_MIN,
    BytesLike,
    MultipartBody,
    WriteSource,
    bytes_of,
    checked_chunk,
    left_bytes_of,
    pieces_of,
)

T = TypeVar("T")


async def write_data(
    connected: tuple[Accessor, Runtime],
    request: WriteRequest,
    data: BytesLike | WriteSource,
    on_piece: ProgressCallback | None = None,
) -> Metadata:
    """Write bytes at once, or in parts where they are more than one; or a file or an iterator piece by piece.

    ``InvalidType`` for anything else, or for an item that is not bytes; then nothing is left behind. ``on_piece`` gets
    the bytes of each piece once it was handed over, which is in flight or waits for the rest of its part then.
    """
    accessor, runtime = connected
    whole = None if hasattr(data, "read") else bytes_of(data, request.path)
    if whole is not None:
        part_bytes = accessor.capability.write_part_bytes
        if not part_bytes or len(whole) <= part_bytes:
            return await accessor.write(request, whole)
        body = MultipartBody(accessor, runtime, request)
        try:
            await body.write_kept(whole)
            return await body.close()
        except BaseException as error:
            await abort_after(error, body, request.path)
            raise
    pieces = pieces_of(data, request.path)
    opened = await open_body(accessor, runtime, request, left_bytes_of(data))
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                await opened.write(piece)
                if on_piece is not None:
                    on_piece(len(piece))
        return await opened.close()
    except BaseException as error:
        await abort_after(error, opened, request.path)
        raise


@hiding_frames
async def upload_file(
    connected: tuple[Accessor, Runtime],
    request: WriteRequest,
    source: str | os.PathLike[str],
    on_progress: ProgressCallback | None = None,
) -> Metadata:
    """Write an object from a local file. ``ObjectChanged``, and no object, if that is written to meanwhile.

    ``NotFound`` and the other errors of a file of this machine, whose path they name. ``on_progress`` gets the numbers
    of bytes as they are handed to the requests; where it raises, that is logged, and the upload goes on.
    """
    if not isinstance(source, str | os.PathLike):
        raise InvalidType(
            f"source must be the path of a local file, not {type(source).__name__}",
            operation="upload",
            path=request.path,
        )
    file = _UnchangedFile(source, request.path)
    with reported(on_progress, "upload", request.path) as reporter:
        try:
            await refuse_same_file(*connected, request.path, os.fspath(source), "upload")
            await in_thread(file.open)
            if reporter is not None and (size := left_bytes_of(file)):
                reporter.expect(size)
            return await write_data(connected, request, file, reporter)
        except Error as error:
            error.operation = "upload"  # Not the write within it.
            raise
        finally:
            file.close()


class _UnchangedFile:
    """A local file that is the same at its end as it was at its beginning.

    A thread that opens or reads it cannot be stopped: where ``close`` comes meanwhile, that thread closes the file.
    """

    def __init__(self, source: str | os.PathLike[str], path: str) -> None:
        self._source = source
        self._path = path
        self._lock = threading.Lock()
        self._is_ended = False

    def open(self) -> None:
        """Open it. On a thread."""
        self._carry_out(self._open)

    def close(self) -> None:
        """Close it now, or at the end of the call that is at work on a thread."""
        self._is_ended = True
        if self._lock.acquire(blocking=False):
            try:
                if hasattr(self, "_file"):
                    self._file.close()
            finally:
                self._lock.release()

    def fileno(self) -> int:
        """The descriptor, which tells the size."""
        return self._file.fileno()

    def tell(self) -> int:
        """The bytes read so far."""
        return self._file.tell()

    def read(self, size: int) -> bytes:
        """The next bytes. On a thread."""
        return self._carry_out(lambda: self._read(size))

    def _carry_out(self, call: Callable[[], T]) -> T:
        try:
            with self._lock:
                return call()
        except OSError as error:
            if isinstance(error, Error):
                raise
            raise self._failed(error) from error
        finally:
            if self._is_ended:
                self.close()

    def _failed(self, error: OSError) -> Error:
        failure = from_os_error(error, operation="upload", path=os.fsdecode(self._source))
        if isinstance(failure, IsADirectory):
            failure.add_context(hint="end the key with / to upload what is below the directory")
        return failure

    def _open(self) -> None:
        self._file = io.FileIO(self._source)
        self._before = os.fstat(self._file.fileno())

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if not data and stat.S_ISREG(self._before.st_mode):  # A pipe has no version.
            before, after = etag_of(self._before), etag_of(os.fstat(self._file.fileno()))
            if before != after:
                raise ObjectChanged(
                    "the local file was written to while it was uploaded",
                    expected_etag=before,
                    actual_etag=after,
                    operation="upload",
                    path=self._path,
                )
        return data


async def open_body(accessor: Accessor, runtime: Runtime, request: WriteRequest, size: int = 0) -> WriteBody:
    """A body of an object, of ``size`` bytes if that is known: in parts where the store takes them, else a stream."""
    if accessor.capability.write_part_bytes:
        return MultipartBody(accessor, runtime, request, size)
    return await accessor.open_write(request)


async def abort_after(error: BaseException, body: WriteBody, path: str) -> None:
    """Discard what was written, after ``error``, which will say what stays in the store if that fails."""
    import anyio

    try:
        with anyio.CancelScope(shield=True):
            await _abort(body, path)
    except Exception as failure:
        logger.warning("what was written of %r could not be removed: %s", path, failure)
        upload_id = failure.context.get("upload_id") if isinstance(failure, Error) else None
        if upload_id is None:
            return
        advice = f"its parts stay in the store and cost until abort_uploads({path!r}) removes them"
        if isinstance(error, Error):
            error.add_context(upload_id=upload_id, hint=advice)
        else:
            error.add_note(f"The upload {upload_id} of {path!r} could not be aborted: {advice}.")


async def _abort(body: WriteBody, path: str) -> None:
    """Discard what was written, within ``ABORT_SECONDS_MAX``, which an upload in parts keeps by itself."""
    if isinstance(body, MultipartBody):
        await body.abort()
        return
    limit = asyncio.timeout(ABORT_SECONDS_MAX)
    try:
        async with limit:
            await body.abort()
    except TimeoutError as error:
        if not limit.expired():
            raise
        why = f"what was written was not removed within {ABORT_SECONDS_MAX:g} seconds"
        raise TimedOut(why, operation="abort", path=path, status="persistent") from error


class ObjectWriter:
    """Writes one object piece by piece: ``async with operator.writer("k") as writer: await writer.write(b"...")``.

    The object appears when the block ends, or at ``close``; before that nothing is visible, and a block that fails or
    is cancelled leaves nothing. Then what was sent is removed within 5 s; where that fails, the error has the name of
    the upload (``upload_id``), whose parts ``Operator.abort_uploads`` removes.

    In s3 an object of more than one part of ``part_bytes`` goes in parts, up to 8 at a time while the caller goes on;
    each of them is repeated by itself. In memory are one part and those in flight, which take their memory from
    ``memory_bytes`` (half of it at most); while it has none, ``write`` waits. Calls of ``write`` by several tasks are
    carried out one after the other.
    """

    def __init__(self, connect: Callable[[], tuple[Accessor, Runtime]], request: WriteRequest) -> None:
        self._connect = connect
        self._request = request
        self._live: tuple[Accessor, Runtime] | None = None
        self._body: WriteBody | None = None
        self._buffer = bytearray()
        self._lock = asyncio.Lock()
        self._size = 0
        self._state: str = "open"
        self._metadata: Metadata | None = None

    if not TYPE_CHECKING:
        __await__ = refused("await", "write 'async with op.writer(...) as writer', and 'await op.write(...)' for bytes")
        __enter__ = __exit__ = refused("with", f"write 'async with'; {WITHOUT_AWAIT}")

    def __repr__(self) -> str:
        return f"<ObjectWriter {redact(self._request.path)!r} {self._state} size={self._size}>"

    @property
    def path(self) -> str:
        """The path of the object."""
        return self._request.path

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return self._size

    @property
    def metadata(self) -> Metadata | None:
        """The metadata of the object once it has appeared, ``None`` before."""
        return self._metadata

    @property
    def closed(self) -> bool:
        """Whether it was closed or aborted, or has failed."""
        return self._state != "open"

    async def write(self, data: BytesLike) -> int:
        """Append bytes; returns their number. The caller may change their memory as soon as the call returns.

        ``InvalidType`` for what is not bytes, which changes nothing. Any other failure, and a cancellation, ends the
        writer: the object will not appear.
        """
        chunk = checked_chunk(data, self.path)
        async with self._lock:
            live = self._check("write")
            try:
                await self._append(chunk, live)
            except BaseException as error:
                await self._give_up(error)
                raise
            self._size += len(chunk)
        return len(chunk)

    async def close(self) -> Metadata:
        """Let the object appear, and return its metadata. A second call returns the same.

        Raises ``AlreadyExists`` under ``if_not_exists``, ``ConditionNotMatch`` under ``if_match``. If it fails or is
        cancelled nothing is left behind (an attempt whose response was lost may have succeeded).
        """
        async with self._lock:
            if self._metadata is not None:
                return self._metadata
            live = self._check("close")
            try:
                body = await self._opened(live)
                if self._buffer:
                    await body.write(self._buffer)
                self._metadata = await body.close()
            except BaseException as error:
                await self._give_up(error)
                raise
            self._end("closed")
            return self._metadata

    async def abort(self) -> None:
        """Write no object, and remove what was sent. Without effect once it has ended.

        Raises the error of a removal that failed, with ``upload_id`` in its context.
        """
        async with self._lock:
            if self._state != "open":
                return
            body = self._body
            self._end("aborted")
            if body is not None:
                await _abort(body, self.path)

    async def __aenter__(self) -> Self:
        async with self._lock:
            await self._opened(self._check("open"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._state != "aborted":
                await self.close()
            return
        async with self._lock:
            if self._state == "open":
                await self._give_up(error)

    def __del__(self) -> None:
        body, live = self._body, self._live
        if body is None or live is None or live[1].generation != fork_generation():
            return
        runtime = live[1]
        report_unclosed(self.path)
        with suppress(RuntimeError):  # The loop has ended, and with it the upload.
            runtime.loop.call_soon_threadsafe(_abandon, body, runtime)

    async def _append(self, chunk: BytesLike, live: tuple[Accessor, Runtime]) -> None:
        body = await self._opened(live)
        buffer = self._buffer
        if isinstance(body, MultipartBody):  # It gathers parts by itself.
            await body.write(chunk)
            return
        if buffer and len(buffer) + len(chunk) > PIECE_BYTES_MIN:
            self._buffer = bytearray()
            await body.write(buffer)
        if len(chunk) > PIECE_BYTES_MIN:
            await body.write(chunk)
        else:
            self._buffer += chunk

    async def _opened(self, live: tuple[Accessor, Runtime]) -> WriteBody:
        if self._body is None:
            self._body = await open_body(*live, self._request)
        return self._body

    def _check(self, operation: str) -> tuple[Accessor, Runtime]:
        """The live parts of an open writer. Raises ``Closed``, and ``WrongLoop`` on another loop."""
        if self._state != "open":
            raise Closed(f"the writer was {self._state}", operation=operation, path=self.path)
        if self._live is None:
            self._live = self._connect()
        self._live[1].check_loop(operation=operation, path=self.path)
        return self._live

    async def _give_up(self, error: BaseException) -> None:
        body = self._body
        self._end("ended by an error")
        if body is not None:
            await abort_after(error, body, self.path)

    def _end(self, state: str) -> None:
        self._state = state
        self._body = None
        self._buffer = bytearray()


def _abandon(body: WriteBody, runtime: Runtime) -> None:
    """Abort a body whose writer was collected."""

    async def aborted() -> None:
        with suppress(Exception):
            await body.abort()

    if not runtime.closed:
        runtime.supervisor.spawn(aborted(), name="abandoned write")


# --- copies by the store ----------------------------------------------------------------------------------------------

# What says how an object is stored. A copy does not keep it: the store chooses, unless an option names it.
PLACEMENT = ("storage_class", "sse_kms_key_id", "checksum")
NO_PLACEMENT: Mapping[str, Any] = {}
# The codes by which S3 refuses to copy an object that is too large for one request.
_TOO_LARGE = ("InvalidRequest", "EntityTooLarge")


@hiding_frames
async def copy_object(
    connected: tuple[Accessor, Runtime],
    operation: str,
    source: str,
    target: str,
    on_progress: ProgressCallback | None = None,
    **conditions: Any,
) -> Metadata:
    """``copy_by_server`` within one store, for a verb that errors name. ``IsADirectory`` for a directory.

    ``on_progress`` costs a request for the size. ``conditions`` as for ``copy_by_server``.
    """
    advice = "aioprefetch.copy copies what is below a directory"
    check_file(source, operation, advice, is_read=True)
    check_file(target, operation, advice)
    try:
        if source.endswith("/") and not await has_bytes(connected[0], source):
            raise no_object(source, operation, advice)
        await check_two_objects(connected[0], source, target)
        with reported(on_progress, operation, source) as reporter:
            size: int | None = None
            if reporter is not None:
                size = (await connected[0].stat(StatRequest(path=source))).size or 0
                reporter.expect(size)
            return await copy_by_server(connected, source, target, size=size, on_bytes=reporter, **conditions)
    except Error as error:
        error.operation = operation
        if isinstance(error, NotFound):
            await hint_at_directory(connected[0], error, source, "aioprefetch.copy copies what is below it")
        raise


async def check_two_objects(accessor: Accessor, source: str, target: str) -> None:
    """Raise ``IsSameFile`` if two paths are of one object, which a copy would write over while it reads it."""
    if source == target or await accessor.identity(source) == await accessor.identity(target):
        raise IsSameFile("source and target are the same object", operation="copy", path=source)


async def copy_by_server(
    connected: tuple[Accessor, Runtime],
    path: str,
    target: str,
    *,
    source: Accessor | None = None,
    store: ServiceInfo | None = None,
    size: int | None = None,
    if_not_exists: bool = False,
    if_match: str | None = None,
    version: str | None = None,
    placement: Mapping[str, Any] = NO_PLACEMENT,
    on_bytes: ProgressCallback | None = None,
) -> Metadata:
    """Let the store copy an object, without its bytes coming here.

    ``source`` is the accessor of ``path`` and ``store`` its identity, where that is another store than the target's.
    ``placement`` has the options of ``PLACEMENT`` of the target; without them the store chooses. ``on_bytes`` gets the
    numbers of bytes of each part that was copied, or the ``size`` of all of it.
    ``if_match`` and ``version`` are the source's.
    An object of more than ``copy_bytes_max``, or a copy that must not replace another where a store has that for parts
    alone, goes in parts of one version: ``ObjectChanged`` if it is overwritten meanwhile, and then nothing is left.
    Where the store answers that it does not copy, the bytes come here after all.
    """
    accessor, runtime = connected
    capability = accessor.capability
    limit = capability.copy_bytes_max
    pinned: dict[str, Any] = {"if_match": if_match, "version": version}
    is_lacking = False
    is_large = bool(limit) and size is not None and size > limit
    needs_parts = if_not_exists and not capability.copy_if_not_exists and capability.copy_part_bytes > 0
    refused: Error | None = None
    if not (is_large or needs_parts):
        request = CopyRequest(
            path=path, target=target, store=store, size=size, if_not_exists=if_not_exists, **pinned, **placement
        )
        try:
            copied = await accessor.copy(request)
            if on_bytes is not None:
                on_bytes(size or 0)
            return copied
        except Error as error:
            is_lacking = _is_not_copied(error)
            if not is_lacking:
                if not limit or size is not None or error.context.get("code") not in _TOO_LARGE:
                    raise
                refused = copy_of(error)
    try:
        metadata = await (source or accessor).stat(StatRequest(path=path, **pinned))
        try:
            if refused is not None and (metadata.size or 0) <= limit:
                raise refused
        finally:
            del refused  # Its traceback holds this frame.
        written = WriteRequest(path=target, if_not_exists=if_not_exists, **described_by(metadata), **placement)
        size, pinned = metadata.size or 0, {"if_match": metadata.etag, "version": version}
        if not is_lacking:
            whole: dict[str, Any] = {"source": path, "start": 0, "end": size, "store": store}
            part = CopyPartRequest(path=target, upload_id="", number=0, **whole, **pinned)
            try:
                return await _copy_in_parts(connected, written, part, on_bytes)
            except Error as error:
                if not _is_not_copied(error):
                    raise
        return await copy_by_reading(
            source or accessor,
            ReadRequest(path=path, size=COPY_PART_BYTES, **pinned),
            lambda _: open_body(accessor, runtime, written, size),
            lambda error, body: abort_after(error, body, target),
            seen=metadata,
            on_bytes=on_bytes,
        )
    except Error as error:
        error.operation = "copy"  # Not the stat or the write within the copy.
        raise


def _is_not_copied(error: Error) -> bool:
    """Whether a store has answered that it does not copy."""
    return isinstance(error, Unsupported) and "http_status" in error.context


def description_of(metadata: Metadata, capability: Capability) -> dict[str, Any]:
    """The description of an object as options of a write, without what the target does not keep."""
    kept, described = ("user_metadata",) * capability.write_user_metadata, described_by(metadata)
    kept += HEADERS * capability.write_content_type
    return {name: described[name] for name in kept}


async def _copy_in_parts(
    connected: tuple[Accessor, Runtime], request: WriteRequest, part: CopyPartRequest, on_bytes: ProgressCallback | None
) -> Metadata:
    if not part.end:
        return await connected[0].write(request, b"")
    body = MultipartBody(*connected, request)
    try:
        try:
            await body.copy(part, on_bytes)
        except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
            raise ObjectChanged(
                "the object was overwritten while its parts were copied",
                expected_etag=part.if_match,
                operation="copy",
                path=part.source,
            ) from error
        return await body.close()
    except BaseException as error:
        await abort_after(error, body, request.path)
        raise
