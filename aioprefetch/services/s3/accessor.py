"""The live S3 service: each operation as requests of S3.

The buckets of an account are listed, made and deleted here too. Each is one request, without the layers of an operator.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aioprefetch import errors
from aioprefetch.accessor.counted_requests import OPERATIONS
from aioprefetch.accessor.http_headers import range_header
from aioprefetch.accessor.service_base import ServiceAccessor, not_deleted
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, InvalidArgument, IsSameFile, RangeNotSatisfied, Unsupported, copy_of
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.services.keys import dot_segment, is_directory_bucket, no_object
from aioprefetch.services.s3.errors import Explainer, ListBucketsRequest
from aioprefetch.services.s3.key_source import KeySource, SingleFlight
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.outcomes import decided, etag_of_data, etag_of_parts
from aioprefetch.services.s3.requests import GONE_KEYS, Requests, Version, of_pair
from aioprefetch.services.s3.responses import list_page_of, version_markers
from aioprefetch.services.s3.signed_targets import configuration_of
from aioprefetch.values import (
    AbortUploadRequest,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListPage,
    ListRequest,
    ListUploadsRequest,
    Metadata,
    PartRequest,
    PresignRequest,
    ReadReply,
    ReadRequest,
    RenameRequest,
    Request,
    StatRequest,
    UploadedPart,
    UploadPage,
    WriteRequest,
)

PAGE_ENTRIES_MAX = 1000
DELETE_KEYS_MAX = 1000
# The deletions of single objects by one call that are in flight.
DELETES_AT_ONCE = 8
PRESIGN_SECONDS_MAX = 7 * 24 * 3600


class S3Live:
    """The live parts of one recipe for one principal. ``requests`` are there once the configuration has been read."""

    def __init__(self, options: S3Options, runtime: Runtime, principal: str) -> None:
        self.options = options
        self.explainer = Explainer(options, principal)
        self.keys = KeySource(options, runtime, principal, self.explainer)
        self.requests: Requests | None = None
        self.deletes_unconditionally = False  # The store has refused a condition of a deletion.
        self.deletes_alone = False  # It has refused a deletion of many.
        self.copy_refusal: int | None = None  # The status by which it has refused to copy.
        self._runtime = runtime
        self._opening = SingleFlight(runtime, self._open, "s3 configuration")

    async def opened(self, request: Request) -> Requests:
        """The requests, once the configuration is there. Raises ``ConfigInvalid`` if it cannot work."""
        if self.requests is not None:
            return self.requests
        try:
            return await self._opening.get()
        except Exception as error:
            explained = self.explainer.explained(error, request)
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

    async def of_account(self, request: Request) -> Requests:
        """The requests for the account, with the same keys. Raises as ``opened``."""
        await self.opened(request)
        configuration = await self._runtime.run_blocking(partial(configuration_of, self.options, of_account=True))
        return Requests(self.options, configuration, self.keys, self.explainer, self._runtime)

    async def _open(self) -> Requests:
        configuration = await self._runtime.run_blocking(configuration_of, self.options)
        if configuration.why_asked:
            self._runtime.events.publish("s3.endpoint_asked", "", why=configuration.why_asked)
        self.requests = Requests(self.options, configuration, self.keys, self.explainer, self._runtime)
        return self.requests


class S3Accessor(ServiceAccessor):
    """The live S3 service. Accessors of one recipe share their live parts within a runtime, which closes them."""

    reports_requests = OPERATIONS

    def __init__(self, options: S3Options, runtime: Runtime) -> None:
        info = options.info
        super().__init__(info, options.capability, runtime)
        self._options = options
        # Files and variables may name another principal by the time that a second accessor is made.
        shared = ("s3", options, info.principal)
        self.live: S3Live = runtime.shared(shared, lambda: S3Live(options, runtime, info.principal))
        # The transport ends a wait without progress by itself.
        self.stall_seconds = options.read_timeout_seconds

    def _key(self, path: str, request: Request) -> str:
        return self._options.key_of(path, operation=request.operation)

    async def stat(self, request: StatRequest) -> Metadata:
        if not request.path.strip("/"):
            return Metadata(path=request.path, kind="directory")
        key = self._key(request.path, request)
        requests = self.live.requests or await self.live.opened(request)
        if not request.path.endswith("/"):
            return await requests.stat(request, key)
        if request.version is request.if_match is None:  # These are of an object.
            page = await requests.list_page(request, self._options.root, request.path, {"max-keys": "1"})
            if not page.entries:
                raise errors.NotFound("there is no such directory", operation=request.operation, path=request.path)
            if page.entries[0].is_directory or page.entries[0].path != request.path:
                return Metadata(path=request.path, kind="directory")
        found = await requests.stat(request, key)
        return found if found.size else Metadata(path=request.path, kind="directory")

    def read(self, request: ReadRequest, sink: Sink) -> Coroutine[Any, Any, ReadReply]:
        # The coroutine of the way itself is returned, which saves a step.
        requests = self.live.requests
        if requests is not None and request.suffix is None:
            return requests.read(request, sink, range_header(request))
        return self._read(request, sink)

    async def _read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        """The first read; and one of a suffix, which is read as the whole object if the store finds it too long."""
        text = range_header(request)
        requests = self.live.requests or await self.live.opened(request)
        try:
            return await requests.read(request, sink, text)
        except RangeNotSatisfied as error:
            # The response is checked against the suffix anyway, so that a longer object is refused at its head.
            if request.suffix is None or error.total is not None or sink.head is not None:
                raise
        return await requests.read(request, sink, None)

    async def list_page(self, request: ListRequest) -> ListPage:
        root, after = self._options.root, request.start_after
        limit = min(request.page_entries_max or PAGE_ENTRIES_MAX, PAGE_ENTRIES_MAX)
        parameters = {"max-keys": str(limit)}
        if request.versions:
            parameters["versions"] = ""
        if not request.recursive:
            parameters["delimiter"] = "/"
        token = request.page_token
        if token is not None:
            parameters |= version_markers(request, token) if request.versions else {"continuation-token": token}
        elif after:
            parameters["key-marker" if request.versions else "start-after"] = root + after
        requests = self.live.requests or await self.live.opened(request)
        prefix = request.path
        if is_directory_bucket(self._options.bucket):
            prefix = prefix[: prefix.rfind("/") + 1]
        page = await requests.list_page(request, root, prefix, parameters)
        received = page.entries
        if prefix != request.path:
            page.entries = [entry for entry in received if entry.path.startswith(request.path)]
        left_out = hash(tuple(received)) if len(page.entries) < len(received) else 0
        page.entries = requests.etags.dated_entries(page.entries)
        return replace(list_page_of(page, request), left_out=left_out)

    def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Coroutine[Any, Any, Metadata]:
        requests = self.live.requests
        if requests is not None and not request.if_not_exists and request.if_match is None:
            return requests.put(request, self._key(request.path, request), data)
        return self._write(request, data)

    async def _write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        key, size = self._key(request.path, request), len(memoryview(data))
        requests = self.live.requests or await self.live.opened(request)
        send = partial(requests.put, request, key, data)
        return await decided(self, request, send, size, partial(etag_of_data, data))

    async def begin_upload(self, request: WriteRequest) -> str:
        key = self._key(request.path, request)
        return await (await self.live.opened(request)).begin(request, key)

    async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
        requests = self.live.requests or await self.live.opened(request)
        return await requests.put_part(request, self._key(request.path, request), data)

    async def complete_upload(self, request: CompleteUploadRequest) -> Metadata:
        key = self._key(request.path, request)
        send = partial((await self.live.opened(request)).complete, request, key)
        return await decided(self, request, send, request.size, partial(etag_of_parts, request.parts))

    async def abort_upload(self, request: AbortUploadRequest) -> None:
        key = self._key(request.path, request)
        await (await self.live.opened(request)).abort(request, key)

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        return await (await self.live.opened(request)).uploads_page(request)

    async def copy(self, request: CopyRequest) -> Metadata:
        if request.if_not_exists and not self.capability.copy_if_not_exists:
            self._unsupported(request, "if_not_exists of a copy")
        key, status = self._key(request.target, request), self.live.copy_refusal
        if status is not None:
            facts: dict[str, Any] = {"operation": request.operation, "path": request.path}
            raise Unsupported("the store does not copy", context={"http_status": status}, **facts)
        send = partial((await self.live.opened(request)).copy, request, key)
        try:
            # The copy has the ETag of the object too, unless that was written in parts.
            return await decided(self, request, send, request.size, lambda: request.if_match)
        except Unsupported as error:
            if isinstance(said := error.context.get("http_status"), int):
                self.live.copy_refusal = said
            raise

    async def rename(self, request: RenameRequest) -> Metadata:
        if not self.capability.rename:
            self._unsupported(request)
        source, target = self._key(request.path, request), self._key(request.target, request)
        for path in (request.path, request.target):
            if path.endswith("/"):
                raise no_object(path, request.operation)
        if source == target:
            raise IsSameFile("source and target are the same object", operation=request.operation, path=request.path)
        await (await self.live.opened(request)).rename(request, target)
        return await self.stat(StatRequest(path=request.target, deadline=request.deadline))

    async def copy_part(self, request: CopyPartRequest) -> UploadedPart:
        key = self._key(request.path, request)
        return await (await self.live.opened(request)).copy_part(request, key)

    async def delete(self, request: DeleteRequest) -> None:
        if request.if_match and not self.live.deletes_unconditionally:
            try:
                await self._delete(request)
                return
            except Error as error:
                if not _is_for_condition(error):
                    raise
        if await self._delete(replace(request, if_match=None), request):
            self.live.deletes_unconditionally |= bool(request.if_match)

    async def _delete(self, request: DeleteRequest, given: DeleteRequest | None = None) -> bool:
        """Delete without a further attempt. ``given``, with conditions, was refused as it is.

        ``False``: the store takes no deletions of many, so ``given`` was carried out one by one.
        """
        pairs = zip(request.paths, request.versions or (None,) * len(request.paths), strict=True)
        left: dict[Version, Error | None] = dict.fromkeys(pairs)
        keys = {pair: self._options.key_of(pair[0], operation=request.operation, dots_allowed=True) for pair in left}
        # XML 1.0 has no way to write most control characters, so these keys go one by one. A key with the segment . or
        # .. goes in a body alone: its URL names another object.
        plain = [pair for pair, key in keys.items() if key.isprintable()]
        is_body_needed = not self.live.deletes_alone and (len(plain) > 1 or any(dot_segment(pair[0]) for pair in plain))
        requests = self.live.requests or await self.live.opened(request)
        for start in range(0, len(plain) if is_body_needed else 0, DELETE_KEYS_MAX):
            batch = {pair: keys[pair] for pair in plain[start : start + DELETE_KEYS_MAX]}
            try:
                outcomes = await requests.delete_many(request, batch)  # What it does not name is deleted alone.
            except Error as error:
                if not _is_for_many(error) or (request.if_match and _is_for_condition(error)):
                    raise
                self.live.deletes_alone = True
                if given is not None and given.if_match:  # Not the conditions were refused.
                    await self.delete(given)
                    return False
                break
            left |= outcomes
            for pair in [pair for pair, error in outcomes.items() if error is None]:
                del left[pair]

        async def delete_one(pair: Version) -> None:
            try:
                await requests.delete(of_pair(request, pair), self._key(pair[0], request))
            except Error as error:
                if isinstance(error, errors.ProtocolError):  # The next one would bring the same.
                    raise
                if error.context.get("code") not in GONE_KEYS:
                    left[pair] = copy_of(error)
                    return
            del left[pair]

        unnamed = [partial(delete_one, pair) for pair, error in left.items() if error is None]
        await gather_all(unnamed, at_once=DELETES_AT_ONCE)
        if failures := {pair if pair[1] else pair[0]: error for pair, error in left.items() if error is not None}:
            raise not_deleted(failures, request)
        return True

    async def create_dir(self, request: CreateDirRequest) -> None:
        marker = WriteRequest(path=request.path, if_not_exists=True, deadline=request.deadline)
        try:
            # Stores over a file system fail where the directory is there already, and S3 has no need of a marker.
            await self.stat(StatRequest(path=request.path, deadline=request.deadline))
            return
        except (errors.NotFound, errors.PermissionDenied) as error:
            is_missing = isinstance(error, errors.NotFound)
        try:
            with suppress(errors.AlreadyExists):  # Such a key may have bytes, which no look has shown.
                await self.write(marker, b"")
        except Error as error:
            if not (is_missing and _is_for_condition(error)):
                raise
            await self.write(replace(marker, if_not_exists=False), b"")

    async def presign(self, request: PresignRequest) -> str:
        if not self.capability.presign:
            self._unsupported(request, "presigned URLs together with anonymous, sse_customer_key or request_payer")
        if not 1 <= request.expires_seconds <= PRESIGN_SECONDS_MAX:
            raise InvalidArgument(
                f"expires_seconds={request.expires_seconds!r} must lie between 1 and {PRESIGN_SECONDS_MAX}",
                operation=request.operation,
                path=request.path,
            )
        key = self._key(request.path, request)
        return await (await self.live.opened(request)).presigned_url(request, key)


def _is_for_many(error: Error) -> bool:
    """Whether a store has refused a deletion of many, which some do not have."""
    lacking = ("NotImplemented", "MethodNotAllowed", "MissingContentMD5")
    return error.context.get("http_status") in (405, 501) or error.context.get("code") in lacking


def _is_for_condition(error: Error) -> bool:
    """Whether a store may have refused a change for its condition."""
    facts: Mapping[str, Any] = error.context
    if error.is_temporary or len({*facts.get("failures", {}).values()}) > 1:  # One was refused for another reason.
        return False
    return facts.get("http_status") in (400, 501) or facts.get("code") == "NotImplemented"


# --- buckets ----------------------------------------------------------------------------------------------------------


class Buckets:
    """The buckets at the endpoint of a recipe, for its principal, by the connections of its operators."""

    def __init__(self, options: S3Options, runtime: Runtime) -> None:
        principal = options.info.principal
        self._live: S3Live = runtime.shared(("s3", options, principal), lambda: S3Live(options, runtime, principal))

    async def names(self) -> list[str]:
        """All buckets of the account, in order. Raises ``PermissionDenied`` where they may not be listed."""
        request = ListBucketsRequest(path="")
        return await (await self._live.of_account(request)).bucket_names(request)

    async def create(self) -> None:
        """Make the bucket of the recipe, in its region. ``AlreadyExists`` if it is there, or is another account's."""
        request = CreateDirRequest(path="")
        await (await self._live.opened(request)).create_bucket(request)

    async def is_versioned(self) -> bool:
        """Whether the bucket of the recipe keeps the versions of its objects."""
        request = StatRequest(path="")
        return await (await self._live.opened(request)).is_versioned(request)

    async def delete(self) -> None:
        """Delete the bucket of the recipe. ``IsADirectory`` if there is something in it."""
        request = DeleteRequest(path="", paths=("",))
        await (await self._live.opened(request)).delete_bucket(request)
