"""Complete: a successful read has exactly its bytes, and all services have the same operations.

It refuses options that the service would ignore, checks lengths, and replaces operations that a service lacks: suffix
ranges (by ``stat``), ``if_match`` and the conditions of a ``stat`` (by comparing the response), the ``stat`` of
directories (by listing one entry), recursive listing (directory by directory), copy (by reading and writing), streaming
writes (by collecting). Each costs requests of its own, which the counters show. After OpenDAL's CompleteLayer,
SimulateLayer and CorrectnessCheckLayer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aioprefetch.accessor.http_headers import described_by
from aioprefetch.accessor.list_pages import Paging, checked_page
from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor, WriteBody, stall_seconds_of
from aioprefetch.accessor.read_copy import COPY_PART_BYTES, copy_by_reading
from aioprefetch.accessor.response_check import check_etag, check_times
from aioprefetch.accessor.service_base import CollectedWriteBody, not_deleted
from aioprefetch.accessor.sink import ForwardingSink, Sink, check_delivered
from aioprefetch.errors import (
    ConditionNotMatch,
    Error,
    InOperation,
    InvalidPath,
    IsADirectory,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Unsupported,
    cause_of,
    copy_of,
    excerpt,
)
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.keys import checked_key, no_object
from aioprefetch.values import (
    Capability,
    CopyRequest,
    DeleteRequest,
    Entry,
    ListPage,
    ListRequest,
    Metadata,
    ReadHead,
    ReadReply,
    ReadRequest,
    RenameRequest,
    Request,
    StatRequest,
    WriteRequest,
)

# Options that change a result, and the capability that each of them needs. A lost content type is not a wrong result;
# an ignored condition is one, and so is lost metadata.
_READ_OPTIONS = {
    "if_none_match": "read_if_none_match",
    "if_modified_since": "read_if_modified_since",
    "if_unmodified_since": "read_if_unmodified_since",
    "version": "read_version",
}
_WRITE_OPTIONS = {
    "content_encoding": "write_content_type",  # Without it the bytes mean something else.
    "if_match": "write_if_match",
    "if_none_match": "write_if_none_match",
    "if_not_exists": "write_if_not_exists",
    "user_metadata": "write_user_metadata",
    "storage_class": "write_storage_class",
    "sse_kms_key_id": "write_sse_kms",
    "checksum": "write_checksum",
}
_COPY_OPTIONS = {name: _WRITE_OPTIONS[name] for name in ("storage_class", "sse_kms_key_id", "checksum")}


class CompleteLayer(Layer):
    """The recipe of Complete; it has no options."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return CompleteAccessor(inner)

    def adapt(self, capability: Capability) -> Capability:
        return replace(
            capability,
            read_if_match=capability.read,
            read_suffix=capability.read_suffix or (capability.read_range and capability.stat),
            stat_directory=capability.stat_directory or capability.list,
            list_recursive=capability.list,
            list_ordered=capability.list_ordered and capability.list_recursive,  # The walk goes by directories.
            list_start_after=capability.list,
            copy=capability.copy or (capability.read and capability.write),
            copy_if_not_exists=capability.copy_if_not_exists
            or (capability.read and capability.write_if_not_exists and not capability.copy_part_bytes),
            write_stream=capability.write,
        )


class CompleteAccessor(WrappedAccessor):
    """The live layer. A copy by reading and writing has ``copy_part_bytes`` of the object in memory at a time."""

    def __init__(self, inner: Accessor, *, copy_part_bytes: int = COPY_PART_BYTES) -> None:
        super().__init__(inner)
        self.stall_seconds = stall_seconds_of(inner)
        self._copy_part_bytes = copy_part_bytes
        self._native = inner.capability
        self._capability = CompleteLayer().adapt(inner.capability)

    @property
    def capability(self) -> Capability:
        return self._capability

    def _check(self, request: Request, options: Mapping[str, str]) -> None:
        """Raise ``Unsupported``, before any request, for an option that the service would silently ignore."""
        for option, capability in options.items():
            value = getattr(request, option)
            if value and not getattr(self._native, capability):
                raise self._unsupported(request, option if isinstance(value, Mapping) else f"{option}={value!r}")

    def _within(self, request: Request, **facts: object) -> InOperation:
        """An error in it is one of ``request``."""
        return InOperation(request.operation, path=request.path, service=self.info.location, **facts)

    def _unsupported(self, request: Request, what: str) -> Unsupported:
        return Unsupported(
            f"the {self.info.scheme} service does not support {what}",
            operation=request.operation,
            path=request.path,
            context={"service": self.info.location},
        )

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        since, until = request.if_modified_since, request.if_unmodified_since
        if request.if_none_match or request.version or since or until:
            self._check(request, _READ_OPTIONS)
        sent, size, compared = request, None, None
        target = sink if request.path[-1:] != "/" else _ObjectSink(sink)
        try:
            if request.suffix is not None and not self._native.read_suffix:
                if not self._capability.read_suffix:
                    raise self._unsupported(request, f"suffix={request.suffix}")
                sent, size = await self._with_known_range(request, request.suffix)
            if sent.if_match and not self._native.read_if_match:
                compared = sent.if_match
                sent = replace(sent, if_match=None)
            if compared is not None or size is not None:
                target = _ComparingSink(target, compared, size)
            response = await self.inner.read(sent, target)
            head, start, asked = response.head, sent.offset, sent.size
            is_due = head.size == asked or (start + head.size == head.total and (asked is None or head.size < asked))
            if not (is_due and head.start == start and head is sink.head and head.size == sink.received):
                check_delivered(sent, sink, response)  # What is usual needs no more than this.
            return response
        except ProtocolError as error:
            error.add_context(service=self.info.location)
            raise
        except (IsADirectory, NotFound, InvalidPath):
            if request.path[-1:] != "/":
                raise
            raise no_object(request.path, "read") from None
        except (ConditionNotMatch, RangeNotSatisfied) as error:
            if sink.head is not None:
                raise
            if isinstance(error, ConditionNotMatch):
                if size is None or request.if_match or request.if_none_match or since or until:
                    raise
                raise _overwritten(request.path).add_context(service=self.info.location) from cause_of(error)
            if size and error.total:
                raise _overwritten(request.path).add_context(service=self.info.location) from cause_of(error)
            head = await self._empty_head(request, error, needs_etag=compared is not None)
            target.begin(head, path=request.path)
            return ReadReply(head=head, received=0)

    async def _with_known_range(self, request: ReadRequest, suffix: int) -> tuple[ReadRequest, int]:
        metadata = await self._metadata(request)
        size = metadata.size or 0
        wanted = replace(request, suffix=None, if_match=request.if_match or metadata.etag)
        if size:
            wanted = replace(wanted, offset=max(0, size - suffix), size=min(size, suffix))
        return wanted, size

    async def _empty_head(self, request: ReadRequest, error: RangeNotSatisfied, *, needs_etag: bool) -> ReadHead:
        # Every range of an empty object is empty, but stores respond with 416, some of them without the size.
        etag = version = None
        if (error.total is None or (needs_etag and error.total == 0)) and self._native.stat:
            metadata = await self._metadata(request)
            error.total, etag, version = metadata.size, metadata.etag, metadata.version
            if metadata.is_directory:  # What stands for it is empty.
                error.total = 0
            error.context.setdefault("total", error.total)
        try:
            if error.total != 0:
                raise error
        finally:
            del error  # Its traceback holds this frame.
        return ReadHead(start=0, size=0, total=0, etag=etag, version=version)

    async def _metadata(self, request: ReadRequest) -> Metadata:
        """The size that a read has to know before; errors as for the read."""
        with self._within(request, range=request.describe()):
            return await self.inner.stat(
                StatRequest(path=request.path, version=request.version, deadline=request.deadline)
            )

    async def stat(self, request: StatRequest) -> Metadata:
        self._check(request, {"version": "read_version"})
        with self._within(request):
            metadata = await self._stat(request)
            check_etag(request, metadata.etag)
            check_times(request, metadata.last_modified)
        return metadata

    async def _stat(self, request: StatRequest) -> Metadata:
        path = request.path
        if path in ("", "/"):
            return Metadata(path=path, kind="directory")
        if not path.endswith("/") or self._native.stat_directory:
            return await self.inner.stat(request)
        paging = Paging(ListRequest(path=path, page_entries_max=1, deadline=request.deadline))
        while paging.request is not None:
            page = await self._page(paging.request)
            if page.entries and page.entries[0].path == path:  # A directory is not in its own listing.
                with suppress(InvalidPath):
                    return await self.inner.stat(request)
            if page.entries or page.has_marker:
                return Metadata(path=path, kind="directory")
            paging.turn(page.entries, page.next_token)
        raise NotFound("there is no such directory")

    async def list_page(self, request: ListRequest) -> ListPage:
        if request.versions and not self._native.list_versions:
            raise self._unsupported(request, "versions")
        is_walked, after = request.recursive and not self._native.list_recursive, request.start_after
        if is_walked or not self._native.list_start_after:
            request = replace(request, start_after=None)
        page = await (self._walk(request) if is_walked else self._page(request))
        if after is None or all(entry.path > after for entry in page.entries):
            return page
        # A directory before it, in which there are keys after it, is one of them.
        kept = tuple(entry for entry in page.entries if entry.path > after)
        return replace(page, entries=kept, left_out=hash((page.entries, page.left_out)))

    async def _walk(self, request: ListRequest) -> ListPage:
        """One page of a recursive listing; its token is the stack of directories that are to be listed."""
        stack = [request.path] if request.page_token is None else request.page_token.split("\0")
        directory = stack.pop()
        paging = Paging(replace(request, path=directory, recursive=False, page_token=None, page_entries_max=None))
        entries: dict[tuple[str, str | None], Entry] = {}
        passed_over: list[tuple[str, str]] = []
        while paging.request is not None:
            page = await self._page(paging.request)
            entries |= {(entry.path, entry.version): entry for entry in page.entries}
            passed_over += page.passed_over
            paging.turn(page.entries, page.next_token)
        stack += reversed([entry.path for entry in entries.values() if entry.is_directory])
        files = tuple(entry for entry in entries.values() if not entry.is_directory)
        token = "\0".join(stack) if stack else None
        return ListPage(entries=files, next_token=token, passed_over=tuple(passed_over), left_out=hash(directory))

    async def _page(self, request: ListRequest) -> ListPage:
        """A page of the service, by the rules of ``ListPage``, which not every service knows."""
        page = await self.inner.list_page(request)
        with self._within(request):
            return checked_page(page, request, is_walked=not self._native.list_recursive)

    async def copy(self, request: CopyRequest) -> Metadata:
        self._check(request, _COPY_OPTIONS)
        self._check(request, {"version": "read_version"})
        native = self._native
        is_unchecked = (request.if_match or request.version) and not native.copy_if_match
        if native.copy and not is_unchecked and (native.copy_if_not_exists or not request.if_not_exists):
            return await self.inner.copy(request)
        if not self._capability.copy:
            raise self._unsupported(request, "copy")
        with self._within(request):
            return await self._copy_by_writing(request)

    async def _copy_by_writing(self, request: CopyRequest) -> Metadata:
        pinned: dict[str, Any] = {"if_match": request.if_match, "version": request.version}
        seen = None
        if self._native.write_user_metadata and self._native.stat:
            seen = await self.stat(StatRequest(path=request.path, deadline=request.deadline, **pinned))
            pinned["if_match"] = seen.etag
        size = self._copy_part_bytes if self._native.read_range else None
        part = ReadRequest(path=request.path, size=size, deadline=request.deadline, **pinned)

        async def opened(first: ReadHead) -> WriteBody:
            found = {"content_type": first.content_type, "content_encoding": first.content_encoding}
            described = described_by(seen) if seen else found
            described |= {name: getattr(request, name) for name in _COPY_OPTIONS}
            return await self.open_write(
                WriteRequest(path=request.target, if_not_exists=request.if_not_exists, **described)
            )

        return await copy_by_reading(self, part, opened, lambda _, body: body.abort(), seen=seen)

    async def rename(self, request: RenameRequest) -> Metadata:
        if not self._native.rename:
            raise self._unsupported(request, "rename")
        return await self.inner.rename(request)

    async def delete(self, request: DeleteRequest) -> None:
        self._check(request, {"if_match": "delete_if_match"})
        version = next(filter(None, request.versions), None)
        if version is not None and not self._native.delete_version:
            raise self._unsupported(request, f"version={version!r}")
        paths, step = request.paths, self._native.delete_paths_max
        if step == len(paths) == 1:  # It may go into a URL.
            checked_key(paths[0], operation=request.operation)
        if len(paths) <= step:
            return await self.inner.delete(request)
        failures: dict[str, Error] = {}
        for start in range(0, len(paths), step):
            batch = paths[start : start + step]
            try:
                versions = request.versions[start : start + step]
                await self.delete(replace(request, path=batch[0], paths=batch, versions=versions))
            except Error as error:
                if error.status != "permanent":  # Nor would the store answer the rest.
                    if not start:
                        raise
                    batch = paths[start:]
                named = error.context.get("failures")
                failures |= dict.fromkeys(named if isinstance(named, Mapping) else batch, copy_of(error))
                if batch[-1] == paths[-1]:
                    break
        if failures:
            raise not_deleted(failures, request)
        return None

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        return await self.inner.write(self._completed(request), data)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        request = self._completed(request)
        if self._native.write_stream:
            return await self.inner.open_write(request)
        return CollectedWriteBody(self.inner, request)

    async def begin_upload(self, request: WriteRequest) -> str:
        return await self.inner.begin_upload(self._completed(request))

    def _completed(self, request: WriteRequest) -> WriteRequest:
        """A checked request, with the content type that its name suggests if it has none. ``""`` sends none."""
        self._check(request, _WRITE_OPTIONS)
        if request.content_type or not self._native.write_content_type:
            return request
        from aioprefetch.accessor.content_types import content_type_of

        found = None
        if request.content_type is None:
            found = content_type_of(request.path, is_unpacked=request.content_encoding is not None)
        return request if found == request.content_type else replace(request, content_type=found)


class _ObjectSink(ForwardingSink):
    """Refuses an empty object whose key ends with ``/``: it stands for a directory."""

    __slots__ = ()

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        if head.total == 0:
            raise no_object(path, "read")
        self.target.begin(head, path=path)


class _ComparingSink(ForwardingSink):
    """Passes a response on if its ETag is ``if_match``, for services that ignore the condition.

    ``size`` is the size of the object that was asked for before the request.
    """

    def __init__(self, target: Sink, if_match: str | None, size: int | None) -> None:
        super().__init__(target)
        self._if_match = if_match
        self._size = size

    def begin(self, head: ReadHead, *, path: str = "") -> None:
        if None not in (self._size, head.total) and head.total != self._size:
            raise _overwritten(path)
        if self._if_match not in (None, "*", head.etag):
            raise ConditionNotMatch(
                f"the object's ETag is {excerpt(head.etag)!r}, not {excerpt(self._if_match)!r}",
                operation="read",
                path=path,
                context={"etag": head.etag},
            )
        self.target.begin(head, path=path)


def _overwritten(path: str) -> ObjectChanged:
    why = "the object was overwritten between the requests for its size and for its end"
    return ObjectChanged(why, operation="read", path=path, status="temporary")  # The next attempt asks again.
