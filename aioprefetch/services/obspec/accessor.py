"""The live service over a store: each operation as calls of obspec's methods, each response checked."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import anyio

from aioprefetch.accessor.counted_requests import CountedRequest
from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.accessor.protocols import WriteBody
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink, copy_chunks
from aioprefetch.errors import (
    Closed,
    Error,
    InvalidArgument,
    InvalidPath,
    IsADirectory,
    NotFound,
    ProtocolError,
    RangeNotSatisfied,
    WrongLoop,
)
from aioprefetch.local_files.identity import local_identity
from aioprefetch.local_files.threads import FileThreads, translated
from aioprefetch.runtime.runtime import Runtime, fork_generation
from aioprefetch.services.keys import KEY_BYTES_MAX, checked_key
from aioprefetch.services.obspec.errors import Explainer
from aioprefetch.services.obspec.options import ObspecOptions, describes_by_get, has, kind_of, known_secrets
from aioprefetch.services.obspec.responses import (
    Listings,
    attributes_of,
    head_of,
    metadata_of,
    raw_etag,
    read_options,
    sent_etag,
    sized,
    write_attributes,
    written,
)
from aioprefetch.services.obspec.writer import ObspecWriteBody, Parts, part_options
from aioprefetch.values import (
    CopyRequest,
    DeleteRequest,
    Identity,
    ListPage,
    ListRequest,
    Metadata,
    PresignRequest,
    ReadHead,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    WriteRequest,
)

T = TypeVar("T")

PRESIGN_SECONDS_MAX = 7 * 24 * 3600
# Smaller pieces of a body cost a switch between threads each; larger ones hide from a reader that bytes arrive slowly.
CHUNK_BYTES = 256 << 10
CLOSE_SECONDS_MAX = 5.0
# A thread of obstore's still holds Python objects when its call has returned. If it drops them while the interpreter
# ends, the process aborts (PyO3/pyo3-async-runtimes, issue 40): a short sleep before that lets it finish.
EXIT_SECONDS = 0.02

# obstore's threads belong to the process that first used it: in a forked child its calls never return.
_obstore_generation: list[int] = []


class ObspecAccessor(ServiceAccessor):
    """The live service. ``store`` is used from one runtime only where the recipe has a factory."""

    # Where a store refuses one request, the same call may be answered by another.
    reports_requests = frozenset(("read", "delete"))

    def __init__(self, options: ObspecOptions, store: Any, runtime: Runtime) -> None:
        super().__init__(options.info, options.capability, runtime)
        self._store = store
        self._kind = kind_of(store)
        self._root = f"{options.prefix}/" if options.prefix else ""
        self._part_bytes = options.part_bytes
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closer_registered = False
        self._has_ranges = options.capability.read_range
        self._explainer = Explainer(lambda: known_secrets(store))
        self._listings = Listings(store, self._root, self._called, is_ordered=options.capability.list_ordered)
        # obstore returns and expects ETags in quotes; for other stores the first response decides.
        self._etags_quoted: bool | None = True if self._kind else None

    def _key(self, path: str, request: Request) -> str:
        if not path:
            raise IsADirectory("the root is a directory", operation=request.operation, path=path)
        room = KEY_BYTES_MAX - len(self._root.encode())
        key = self._root + checked_key(path, operation=request.operation, bytes_max=room)
        if "" in key.split("/"):
            # obstore would take "a/" and "/a" for "a", which is another object.
            raise InvalidPath(
                "paths of obspec have no empty segments: no '//', and no '/' at their ends",
                operation=request.operation,
                path=path,
            )
        return key

    def _method(self, request: Request, name: str) -> Callable[..., Awaitable[Any]]:
        """A method of the store; ``Unsupported`` if it has none of that name."""
        if not has(self._store, name):
            self._unsupported(request)
        method: Callable[..., Awaitable[Any]] = getattr(self._store, name)
        return method

    async def _called(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call of the store. Raises errors of ours, with operation and path."""
        self._check_process(request)
        self._check_open(request)
        try:
            return await call()
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise self._explainer.broken_off(request) from None
        except Exception as error:
            explained = self._explainer.explain(error, request)
        # Raised here, so that the exception of the store is not its context: that may hold a secret.
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

    def _check_open(self, request: Request) -> None:
        if self.runtime.closed:
            raise Closed("the operator is closed", operation=request.operation, path=request.path)

    def _check_process(self, request: Request) -> None:
        if not self._kind:
            return
        if not _obstore_generation:
            _obstore_generation.append(fork_generation())
            atexit.register(time.sleep, EXIT_SECONDS)
        if _obstore_generation[0] != fork_generation():
            raise WrongLoop(
                "obstore was used before this process was forked, and does not work here: start processes by spawn or "
                "forkserver, or use it in the children alone",
                operation=request.operation,
                path=request.path,
            )

    async def stat(self, request: StatRequest) -> Metadata:
        if not request.path.strip("/"):
            return Metadata(path=request.path, kind="directory")
        key = self._key(request.path, request)
        if has(self._store, "head_async") and not describes_by_get(self._store) and request.version is None:
            return metadata_of(await self._called(request, lambda: self._store.head_async(key)), {}, request)
        options: dict[str, Any] = {"head": True}
        if request.version is not None:
            options["version"] = request.version
        # Unlike ``head_async`` this brings the content type and the metadata of the user.
        get = self._method(request, "get_async")
        result = await self._called(request, lambda: get(key, options=options))
        return metadata_of(result.meta, attributes_of(result), request)

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        try:
            if request.first_bytes is None or self._has_ranges:
                return await self._read_range(request.first_part(), sink)
        except ProtocolError as error:
            if "range_ignored" not in error.context or request.first_bytes is None or sink.head is not None:
                raise
            self._has_ranges = False
        # A server without ranges has everything in its one response.
        return await self._read_range(replace(request, first_bytes=None), sink)

    async def _read_range(self, request: ReadRequest, sink: Sink) -> ReadReply:
        key, get = self._key(request.path, request), self._method(request, "get_async")
        options = read_options(request) | self._conditions(request)
        try:
            return await self._read(request, sink, lambda: get(key, options=options or None))
        except RangeNotSatisfied as error:
            if request.suffix is None or error.total is not None or sink.head is not None:
                raise
            # Some stores refuse a suffix that is longer than the object, where the whole of it is meant.
            options.pop("range")
            return await self._read(request, sink, lambda: get(key, options=options or None))
        except ProtocolError as error:
            # obstore raises this too when a store responds to a range of an empty object with the whole object.
            if "range_ignored" not in error.context or await self._size(request) != 0:
                raise
            raise RangeNotSatisfied("the object is empty", total=0, operation="read", path=request.path) from None

    def _conditions(self, request: ReadRequest) -> dict[str, str]:
        """The conditions that can be sent. All are compared again when the response is here.

        Times are compared alone: stores in memory and of files compare nanoseconds, which no datetime holds.
        """
        conditions = {}
        if self._etags_quoted is not None:
            pinned, cached = request.if_match, request.if_none_match
            if pinned not in (None, "*") and not is_weak(pinned or ""):
                conditions["if_match"] = sent_etag(pinned or "", quoted=self._etags_quoted)
            if cached is not None and not is_weak(cached):
                conditions["if_none_match"] = sent_etag(cached, quoted=self._etags_quoted)
        return conditions

    async def _read(self, request: ReadRequest, sink: Sink, get: Callable[[], Awaitable[Any]]) -> ReadReply:
        with CountedRequest(self.runtime, request, sink) as counted:
            head, body = await self._opened(request, get)
            try:
                counted.begin(head, path=request.path)
                await copy_chunks(partial(self._next_chunk, body, request), request, counted, head)
            finally:
                await body.aclose()
        return ReadReply(head=head, received=head.size)

    async def _opened(self, request: ReadRequest, get: Callable[[], Awaitable[Any]]) -> tuple[ReadHead, _Body]:
        """The checked head of a response, and its body."""
        result: Any = None
        try:
            result = await self._called(request, get)
            self._check_open(request)
            return self._checked(result, request)
        finally:
            # An exception that is kept must not keep the connection, which ends with the last reference.
            del result

    def _checked(self, result: Any, request: ReadRequest) -> tuple[ReadHead, _Body]:
        try:
            meta = result.meta
            self._note_etag(meta)
            head = head_of(meta, result.range, attributes_of(result), request)
            return head, _Body(_stream_of(result, head) if head.size else None)
        except (AttributeError, TypeError, ValueError) as error:
            if isinstance(error, Error):
                raise
            raise ProtocolError(
                f"the response of the store cannot be understood: {type(error).__name__}",
                operation="read",
                path=request.path,
            ) from error
        finally:
            del result

    def _note_etag(self, meta: Any) -> None:
        etag = None if self._kind else raw_etag(meta)
        if etag is not None:
            self._etags_quoted = etag.startswith('"')

    async def _next_chunk(self, body: _Body, request: ReadRequest) -> memoryview | None:
        """The next bytes of a body, perhaps none; ``None`` at its end. ``Closed`` once the operator is closed."""
        try:
            if not self._closer_registered:
                self._closer_registered = True
                self.runtime.supervisor.on_close(self._break_off)
            waiting = asyncio.ensure_future(body.next())
            self._waiting.add(waiting)
            try:
                chunk = await waiting
            finally:
                self._waiting.discard(waiting)
                del waiting
            return memoryview(chunk).cast("B")
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            if _is_cancelled() or not self.runtime.closed:
                raise
            raise Closed("the operator was closed", operation="read", path=request.path) from None
        except Exception as error:
            explained = self._explainer.explain(error, request)
        # Raised here, so that the exception of the store is not its context: that may hold a secret.
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

    async def _break_off(self) -> None:
        """End the reads that wait for the store, when the operator is closed."""
        for waiting in tuple(self._waiting):
            waiting.cancel()

    async def _size(self, request: ReadRequest) -> int | None:
        asked = StatRequest(path=request.path, version=request.version, deadline=request.deadline)
        with CountedRequest(self.runtime, asked):
            return (await self.stat(asked)).size

    async def list_page(self, request: ListRequest) -> ListPage:
        checked_key(request.path, operation=request.operation)
        return await self._listings.page(request)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        # In one request, so that a cancelled write leaves nothing behind.
        return await self._put(request, bytes(data), {"use_multipart": False} if self._kind else {}, len(data))

    async def _put_parts(self, request: WriteRequest, parts: Parts) -> Metadata:
        metadata = await self._put(request, parts, part_options(self._kind, self._part_bytes), None)
        return sized(metadata, parts.sent_bytes)

    async def _put(self, request: WriteRequest, data: Any, options: dict[str, Any], size: int | None) -> Metadata:
        key, put = self._key(request.path, request), self._method(request, "put_async")
        attributes = write_attributes(request, self.capability)
        if attributes:
            options["attributes"] = attributes
        if request.if_not_exists:
            options["mode"] = "create"
        elif request.if_match is not None:
            options["mode"] = {"e_tag": sent_etag(request.if_match, quoted=self._etags_quoted is not False)}
        result = await self._called(request, lambda: put(key, data, **options))
        return written(request, result, size)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        self._key(request.path, request)
        self._method(request, "put_async")
        return ObspecWriteBody(self.runtime, request, self._part_bytes, self.write, self._put_parts)

    async def copy(self, request: CopyRequest) -> Metadata:
        source, target = self._key(request.path, request), self._key(request.target, request)
        copy = self._method(request, "copy_async")
        options = {"overwrite": False} if request.if_not_exists else {}
        await self._called(request, lambda: copy(source, target, **options))
        return Metadata(path=request.target)

    async def delete(self, request: DeleteRequest) -> None:
        # A path that ends with a slash is a directory, for which there is no object.
        keys = [self._key(path, request) for path in request.paths if not path.endswith("/")]
        if not keys:
            return
        try:
            await self._delete(request, keys)
        except NotFound:
            # Some stores refuse a missing key, and do not say where in the list they stopped.
            for key in keys if len(keys) > 1 else ():
                await self._delete_if_there(request, key)

    async def _delete_if_there(self, request: DeleteRequest, key: str) -> None:
        try:
            await self._delete(request, [key])
        except NotFound:
            return

    async def _delete(self, request: DeleteRequest, keys: list[str]) -> None:
        delete = self._method(request, "delete_async")
        with CountedRequest(self.runtime, request):
            await self._called(request, lambda: delete(keys))

    async def identity(self, path: str) -> Identity:
        """The identity of the file in a local store with a known root; elsewhere of the key."""
        if self._kind != "LocalStore":
            return await super().identity(path)
        request = StatRequest(path=path)
        file = os.path.join(self._store.prefix or "/", self._root + path)
        return await translated(request, FileThreads.of(self.runtime).call(local_identity, file))

    async def presign(self, request: PresignRequest) -> str:
        if not self.capability.presign or not self._kind:
            self._unsupported(request, "presigned URLs for this store")
        if request.version is not None:
            self._unsupported(request, "presigned URLs of versions")
        if not request.content_type is request.content_disposition is request.cache_control is None:
            self._unsupported(request, "presigned URLs with headers of their response")
        if not 1 <= request.expires_seconds <= PRESIGN_SECONDS_MAX:
            raise InvalidArgument(
                f"expires_seconds={request.expires_seconds!r} must lie between 1 and {PRESIGN_SECONDS_MAX}",
                operation=request.operation,
                path=request.path,
            )
        import obstore

        key, lifetime = self._key(request.path, request), timedelta(seconds=int(request.expires_seconds))
        url: str = await self._called(request, lambda: obstore.sign_async(self._store, request.method, key, lifetime))
        return url

    async def aclose(self) -> None:
        """Forget listings that were left half way; nothing else is held open."""
        self._listings.clear()


class _Body:
    """Holds the stream of a body until it is closed: obstore closes a connection with the last reference to its stream.

    An exception that is kept holds the frames of the read, and so this object, but no stream.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def next(self) -> Awaitable[Any]:
        """The next piece. Raises ``StopAsyncIteration`` at the end."""
        following: Awaitable[Any] = anext(self._stream)
        return following

    async def aclose(self) -> None:
        """Close the stream. An async generator may fail or hang at its end, which does not concern the read."""
        stream, self._stream = self._stream, None
        closing = getattr(stream, "aclose", None)
        if closing is not None:
            with anyio.move_on_after(CLOSE_SECONDS_MAX), contextlib.suppress(Exception):
                await closing()


class _OnePiece:
    """The stream of a body that is short enough to be read at once, which costs obstore less."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __anext__(self) -> Awaitable[Any]:
        result, self._result = self._result, None
        if result is None:
            raise StopAsyncIteration
        piece: Awaitable[Any] = result.buffer_async()
        return piece


def _stream_of(result: Any, head: ReadHead) -> Any:
    if type(result).__name__ != "GetResult" or not hasattr(result, "buffer_async"):
        return aiter(result)
    # obstore's: by default its pieces are of 10 MiB.
    return _OnePiece(result) if head.size <= CHUNK_BYTES else aiter(result.stream(CHUNK_BYTES))


def _is_cancelled() -> bool:
    """Whether the running task is cancelled, and not only the future that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
