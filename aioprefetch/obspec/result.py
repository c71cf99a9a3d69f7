"""The result of a get: its conditions, the object, its body, fetched as it is taken; errors that are obspec's too."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from obspec import Attributes, ObjectMeta, exceptions

from aioprefetch import errors
from aioprefetch.accessor.http_headers import quote_etag, unquote_etag
from aioprefetch.accessor.response_check import check_times
from aioprefetch.errors import ConditionNotMatch, Error, InvalidArgument
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import Range
from aioprefetch.runtime.buffers import Lease
from aioprefetch.scheduler.pinned_file import PinnedFile, read_ahead
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.values import Capability, Entry, Metadata, ReadHead, StatRequest
from aioprefetch.verbs.arguments import Arguments

T = TypeVar("T")


# obspec's exceptions go by the names of their classes, hence the same names.


class NotFoundError(errors.NotFound, exceptions.NotFoundError):
    """``NotFound`` for consumers of obspec."""


class InvalidPathError(errors.InvalidPath, exceptions.InvalidPathError):
    """``InvalidPath`` for consumers of obspec."""


class NotSupportedError(errors.Unsupported, exceptions.NotSupportedError):
    """``Unsupported`` for consumers of obspec."""


class AlreadyExistsError(errors.AlreadyExists, exceptions.AlreadyExistsError):
    """``AlreadyExists`` for consumers of obspec."""


class PreconditionError(errors.ConditionNotMatch, exceptions.PreconditionError):
    """``ConditionNotMatch`` for consumers of obspec: the object is another one than was named."""


class NotModifiedError(errors.ConditionNotMatch, exceptions.NotModifiedError):
    """``ConditionNotMatch`` for consumers of obspec: the object is the one named."""


class PermissionDeniedError(errors.PermissionDenied, exceptions.PermissionDeniedError):
    """``PermissionDenied`` for consumers of obspec."""


_CLASSES: tuple[tuple[type[Error], type[Error]], ...] = (
    (errors.NotFound, NotFoundError),
    (errors.InvalidPath, InvalidPathError),
    (errors.Unsupported, NotSupportedError),
    (errors.AlreadyExists, AlreadyExistsError),
    (errors.ConditionNotMatch, PreconditionError),
)


async def translated(work: Awaitable[T], *, unmodified: bool = False) -> T:
    """The result of ``work``; its error as one of obspec too, where that has a name for it.

    ``unmodified``: a condition that fails says that the object has not changed.
    """
    try:
        return await work
    except Error as error:
        known = as_obspec(error, unmodified=unmodified)
        try:
            if known is error:
                raise
            raise known from error
        finally:
            del known  # Its traceback holds this frame.


def as_obspec(error: Error, *, unmodified: bool = False) -> Error:
    """An error that obspec knows too, with all that the first one says; otherwise the error itself."""
    kind = next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), None)
    if type(error) is errors.PermissionDenied:  # Its subclasses say more.
        kind = PermissionDeniedError
    if kind is PreconditionError and unmodified:
        kind = NotModifiedError
    if kind is None or isinstance(error, exceptions.BaseError):
        return error
    return kind(
        error.message,
        operation=error.operation,
        path=error.path,
        status=error.status,
        context=error.context,
        head=error.head,
        received=error.received,
        retry_after_seconds=error.retry_after_seconds,
    )


# --- conditions -------------------------------------------------------------------------------------------------------


class Conditions:
    """The conditions among the options of obspec.

    As in RFC 9110 a time counts where no ETags are given beside it. ``InvalidArgument`` for a time without a zone.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        arguments = Arguments("read", path)
        until = arguments.time("if_unmodified_since", options.get("if_unmodified_since"))
        since = arguments.time("if_modified_since", options.get("if_modified_since"))
        self._path = path
        self._match = _etags(arguments.text("if_match", options.get("if_match")))
        self._none_match = _etags(arguments.text("if_none_match", options.get("if_none_match")))
        self._until = until if self._match is None else None
        self._since = since if self._none_match is None else None

    @property
    def can_say_unchanged(self) -> bool:
        """Whether the object must have changed."""
        return self._none_match is not None or self._since is not None

    def fields(self) -> dict[str, Any]:
        """These conditions as fields of a request."""
        return {
            "if_match": self._match[0] if self._match and self._match != ["*"] else None,
            "if_none_match": self._none_match[0] if self._none_match else None,
            "if_modified_since": self._since,
            "if_unmodified_since": self._until,
        }

    def can_be_sent(self, capability: Capability) -> bool:
        """Whether a read with these conditions tells all: it has one ETag, and its failure says which one failed."""
        if self.can_say_unchanged and not (self._match in (None, ["*"]) and self._until is None):
            return False
        if len(self._match or ()) > 1 or len(self._none_match or ()) > 1 or self._none_match == ["*"]:
            return False
        return all(getattr(capability, f"read_{name}") for name, value in self.fields().items() if value is not None)

    def check(self, found: Metadata) -> None:
        """``PreconditionError`` or ``NotModifiedError`` for a condition that does not hold, in the order of RFC 9110.

        ``Unsupported`` for a time, where the store tells none.
        """
        if self._match is not None and self._match != ["*"] and found.etag not in self._match:
            raise as_obspec(self._failed(f"the object's ETag is {found.etag!r}, and none of {self._match}"))
        self._check_time(found, StatRequest(path=self._path, if_unmodified_since=self._until), unmodified=False)
        if self._none_match is not None and (self._none_match == ["*"] or found.etag in self._none_match):
            raise as_obspec(self._failed(f"the object's ETag is still {found.etag!r}"), unmodified=True)
        self._check_time(found, StatRequest(path=self._path, if_modified_since=self._since), unmodified=True)

    def _check_time(self, found: Metadata, request: StatRequest, *, unmodified: bool) -> None:
        try:
            check_times(request, found.last_modified)
        except ConditionNotMatch as error:
            raise as_obspec(error, unmodified=unmodified) from error

    def _failed(self, why: str) -> ConditionNotMatch:
        return ConditionNotMatch(why, operation="read", path=self._path)


def _etags(text: str | None) -> list[str] | None:
    """The ETags of a list, without their quotes. ``["*"]`` stands for any, ``None`` for no condition."""
    if text is None:
        return None
    return [etag for part in text.split(",") if (etag := unquote_etag(part)) is not None]


# --- the result -------------------------------------------------------------------------------------------------------

CLOSE_SECONDS_MAX = 5.0
# Larger chunks are reserved in the budget, and have this size where it has no room: nothing waits for memory here, for
# the results that hold it may belong to the same caller.
UNRESERVED_BYTES = 1 << 20
# The store may send no time, which obspec demands.
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


class ReadResult:
    """A part of one version of an object, as obspec's ``GetResult`` and ``GetResultAsync``.

    ``first`` are its first bytes, in memory that ``lease`` reserves until they are taken. The rest is fetched by
    ``buffer`` in parallel, or chunk by chunk when it is iterated; an object that changes meanwhile is
    ``ObjectChanged``. A body is taken once.
    """

    def __init__(
        self,
        operator: Operator,
        meta: ObjectMeta,
        attributes: Attributes,
        wanted: Range,
        first: memoryview,
        *,
        chunk_bytes: int,
        lease: Lease | None = None,
    ) -> None:
        self._operator = operator
        self._meta = meta
        self._attributes = attributes
        self._wanted = wanted
        self._first: memoryview | None = first
        self._chunk_bytes = chunk_bytes
        self._lease = lease

    @property
    def meta(self) -> ObjectMeta:
        """Path, size, time, ETag and version of the object."""
        return self._meta

    @property
    def attributes(self) -> Attributes:
        """The content type and encoding, if the store has sent them; all attributes after ``head``."""
        return self._attributes

    @property
    def range(self) -> tuple[int, int]:
        """The range of the body: ``(start, end)``."""
        return self._wanted

    def __repr__(self) -> str:
        return f"<ReadResult {self._meta['path']!r} {self._wanted} of {self._meta['size']} bytes>"

    async def buffer_async(self) -> memoryview:
        """The whole body, read-only. Its memory is the caller's, and not reserved."""
        (first, lease), (start, end) = self._taken(), self._wanted
        if len(first) == end - start:
            return first
        whole = bytearray(end - start)
        target = memoryview(whole)
        target[: len(first)] = first
        position = start + len(first)
        del first, lease
        await translated(self._fill(position, target[position - start :]))
        return target.toreadonly()

    async def _fill(self, position: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes from ``position`` on."""
        operator, file = self._operator, self._file()
        if not file.pin.is_strong:  # One response is one version.
            await file.read_into(position, target)
            return
        await operator.read_into(file.path, position, target, if_match=file.etag, version=file.version)

    def buffer(self) -> memoryview:
        """The whole body, read-only. Blocks."""
        return loop_thread().run(self.buffer_async())

    async def __aiter__(self) -> AsyncGenerator[memoryview, None]:
        (first, lease), (start, end) = self._taken(), self._wanted
        chunk_bytes, ahead = self._chunk_bytes, None
        if len(first) < end - start and chunk_bytes > UNRESERVED_BYTES:
            taken_bytes = 0 if lease is None else lease.charged_bytes
            ahead = self._operator.runtime().budget.lease(2 * chunk_bytes - taken_bytes)  # One is in use.
            if ahead is None:
                chunk_bytes = UNRESERVED_BYTES
        chunks = read_ahead(self._file(), first, start, end, chunk_bytes=chunk_bytes)
        del first
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    def __iter__(self) -> Iterator[memoryview]:
        return blocking(self.__aiter__())

    def _taken(self) -> tuple[memoryview, Lease | None]:
        first, self._first = self._first, None
        lease, self._lease = self._lease, None
        if first is None:
            raise InvalidArgument(
                "the body was taken already: get the object again", operation="read", path=self._meta["path"]
            )
        return first, lease

    def _file(self) -> PinnedFile:
        operator, meta = self._operator, self._meta
        return PinnedFile(
            operator.accessor(),
            operator.runtime(),
            meta["path"],
            size=meta["size"],
            etag=unquote_etag(meta["e_tag"]),
            version=meta["version"],
        )


def blocking(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of an asynchronous generator of ours for code without a loop, each fetched when it is taken."""
    thread = loop_thread()

    async def step() -> T | None:
        return await anext(items, None)

    try:
        while (item := thread.run(step())) is not None:
            yield item
    finally:
        thread.finish(items.aclose, timeout_seconds=CLOSE_SECONDS_MAX)


def meta_of(found: Metadata | Entry, path: str) -> ObjectMeta:
    """The metadata of an object in obspec's form."""
    return _meta(path, found.size or 0, found.last_modified, found.etag, found.version)


def meta_of_head(head: ReadHead, total: int, path: str) -> ObjectMeta:
    """The metadata in the head of a response."""
    return _meta(path, total, head.last_modified, head.etag, head.version)


def _meta(path: str, size: int, modified: datetime | None, etag: str | None, version: str | None) -> ObjectMeta:
    return ObjectMeta(
        path=path,
        last_modified=modified or _NO_TIME,
        size=size,
        e_tag=None if etag is None else quote_etag(etag),
        version=version,
    )
