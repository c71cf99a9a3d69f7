"""The live S3 service: each operation as requests of S3."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from aioprefetch.accessor.http_headers import is_weak, quote_etag, range_header, unquote_etag
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.accessor.write_body import ReadBody, WriteBody
from aioprefetch.errors import (
    InvalidArgument,
    IsADirectory,
    NotFound,
    PermissionDenied,
    RangeNotSatisfied,
)
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.keys import KEY_BYTES_MAX, checked_key
from aioprefetch.services.s3 import responses
from aioprefetch.services.s3.body import S3Body
from aioprefetch.services.s3.client import Reply, S3Client
from aioprefetch.services.s3.direct import DirectReads
from aioprefetch.services.s3.errors import Told
from aioprefetch.services.s3.multipart import S3WriteBody, put
from aioprefetch.values import (
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListPage,
    ListRequest,
    Metadata,
    PresignRequest,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    WriteRequest,
)

if TYPE_CHECKING:
    from aioprefetch.services.s3.service import S3

PAGE_ENTRIES_MAX = 1000
DELETE_KEYS_MAX = 1000
PRESIGN_SECONDS_MAX = 7 * 24 * 3600
_PRESIGNED = {"GET": "get_object", "HEAD": "head_object", "PUT": "put_object", "DELETE": "delete_object"}


class S3Accessor(ServiceAccessor):
    """The live S3 service. Accessors of one recipe share their connections within a runtime, which closes them."""

    def __init__(self, service: S3, runtime: Runtime) -> None:
        info = service.info
        super().__init__(info, service.capability, runtime)
        self._root = f"{service.prefix}/" if service.prefix else ""
        # Files and variables may name somebody else by the time that a second accessor is made.
        shared = (service, info.principal)
        self._client: S3Client = runtime.shared(("s3", *shared), lambda: S3Client(service, runtime, info))
        # The transport, and aiohttp where it is fallen back on, end what does not go on by themselves.
        self.stall_seconds = service.read_timeout_seconds
        self._direct: DirectReads = runtime.shared(
            ("s3 direct", *shared),
            lambda: DirectReads(
                self._client, runtime, lambda request: self._key(request.path, request), self._open_indirectly
            ),
        )

    def _key(self, path: str, request: Request) -> str:
        if not path:
            raise IsADirectory("the root is a directory", operation=request.operation, path=path)
        room = KEY_BYTES_MAX - len(self._root.encode())
        return self._root + checked_key(path, operation=request.operation, bytes_max=room)

    async def stat(self, request: StatRequest) -> Metadata:
        if not request.path.strip("/"):
            return Metadata(path=request.path, kind="directory")
        key = self._key(request.path, request)
        if request.path.endswith("/"):
            found = await self._client.call(request, "list_objects_v2", Prefix=key, MaxKeys=1)
            return responses.directory_of(found, request)
        reply = await self._client.call(request, "head_object", Key=key, VersionId=request.version)
        return responses.metadata_of(reply, request)

    def read(self, request: ReadRequest, sink: Sink) -> Coroutine[Any, Any, ReadReply]:
        # The direct read is handed out itself, so that this is no step on its way.
        if request.suffix is None and self._direct.is_possible:
            return self._direct.read(request, sink, range_header(request))
        return self._read_otherwise(request, sink)

    async def _read_otherwise(self, request: ReadRequest, sink: Sink) -> ReadReply:
        if not self._direct.is_possible:
            return await super().read(request, sink)
        try:
            return await self._direct.read(request, sink, range_header(request))
        except RangeNotSatisfied as error:
            if not _means_whole(request, error) or sink.head is not None:
                raise
            return await self._direct.read(request, sink, None)

    async def open_read(self, request: ReadRequest) -> ReadBody:
        try:
            return await self._open_read(request, range_header(request))
        except RangeNotSatisfied as error:
            if not _means_whole(request, error):
                raise
            return await self._open_read(request, None)

    async def _open_read(self, request: ReadRequest, range_text: str | None) -> ReadBody:
        if self._direct.is_possible:
            return await self._direct.open_read(request, range_text)
        return await self._open_indirectly(request, range_text)

    async def _open_indirectly(self, request: ReadRequest, range_text: str | None) -> ReadBody:
        """The way of aiobotocore."""
        # What cannot be sent is compared when the response is here: a weak ETag never matches, and some stores answer
        # 412 to "*" although the object exists.
        pinned = request.if_match not in (None, "*") and not is_weak(request.if_match or "")
        self.runtime.counters["transport_fallbacks"] += 1
        reply, end = await self._client.open(
            request,
            "get_object",
            Key=self._key(request.path, request),
            Range=range_text,
            IfMatch=quote_etag(request.if_match or "") if pinned else None,
            IfNoneMatch=None if request.if_none_match is None else quote_etag(request.if_none_match),
            VersionId=request.version,
        )
        response = reply["Body"].raw_stream
        try:
            return S3Body(
                response, responses.checked(request, responses.answer_head(reply)), self._client, request, end
            )
        except BaseException:
            response.close()
            end()
            raise

    async def list_page(self, request: ListRequest) -> ListPage:
        after = request.start_after
        limit = min(request.page_entries_max or PAGE_ENTRIES_MAX, PAGE_ENTRIES_MAX)
        reply = await self._client.call(
            request,
            "list_objects_v2",
            Prefix=self._root + request.path,
            Delimiter=None if request.recursive else "/",
            StartAfter=self._root + after if after and request.page_token is None else None,
            ContinuationToken=request.page_token,
            MaxKeys=limit,
        )
        return responses.list_page_of(reply, request, self._root, limit)

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        return await put(self._client, request, self._key(request.path, request), data)

    async def open_write(self, request: WriteRequest) -> WriteBody:
        return S3WriteBody(self._client, request, self._key(request.path, request))

    async def copy(self, request: CopyRequest) -> Metadata:
        source, target = self._key(request.path, request), self._key(request.target, request)
        reply = await self._client.call(
            request, "copy_object", Key=target, CopySource={"Bucket": self._client.service.bucket, "Key": source}
        )
        copied = reply.get("CopyObjectResult") or {}
        return Metadata(
            path=request.target,
            etag=unquote_etag(copied.get("ETag")),
            version=responses.version_of(reply.get("VersionId")),
            last_modified=responses.in_utc(copied.get("LastModified")),
        )

    async def delete(self, request: DeleteRequest) -> None:
        keys = [self._key(path, request) for path in request.paths]
        # XML 1.0 has no way to write most control characters, so these keys go one by one.
        plain = [key for key in keys if key.isprintable()]
        single = [key for key in keys if not key.isprintable()]
        if len(plain) == 1:
            single.append(plain.pop())
        for key in single:
            await self._client.call(request, "delete_object", Key=key)
        for start in range(0, len(plain), DELETE_KEYS_MAX):
            await self._delete_batch(request, plain[start : start + DELETE_KEYS_MAX])

    async def _delete_batch(self, request: DeleteRequest, keys: Sequence[str]) -> None:
        objects = [{"Key": key} for key in keys]
        reply = await self._client.call(request, "delete_objects", Delete={"Objects": objects, "Quiet": True})
        failures = [failure for failure in reply.get("Errors") or () if failure.get("Code") != "NoSuchKey"]
        if failures:
            raise self._not_deleted(request, reply, failures)

    def _not_deleted(self, request: DeleteRequest, reply: Reply, failures: Sequence[Any]) -> Exception:
        first = failures[0]
        told = Told.by({"Error": first, "ResponseMetadata": reply.get("ResponseMetadata")})
        error = self._client.explainer.answered(told, request)
        error.path = error.filename = str(first.get("Key", request.path)).removeprefix(self._root)
        return error.add_context(failed=len(failures), of=len(request.paths))

    async def create_dir(self, request: CreateDirRequest) -> None:
        try:
            # Stores over a file system fail where the directory is there already, and S3 has no need of a marker.
            await self.stat(StatRequest(path=request.path, deadline=request.deadline))
        except (NotFound, PermissionDenied):
            await self._client.call(request, "put_object", Key=self._key(request.path, request), Body=b"")

    async def presign(self, request: PresignRequest) -> str:
        if not self.capability.presign:
            self._unsupported(request, "presigned URLs together with anonymous, sse_customer_key or request_payer")
        if not 1 <= request.expires_seconds <= PRESIGN_SECONDS_MAX:
            raise InvalidArgument(
                f"expires_seconds={request.expires_seconds!r} must lie between 1 and {PRESIGN_SECONDS_MAX}",
                operation=request.operation,
                path=request.path,
            )
        return await self._client.presigned_url(
            request,
            _PRESIGNED[request.method],
            Key=self._key(request.path, request),
            VersionId=request.version if request.method in ("GET", "HEAD", "DELETE") else None,
            ExpiresIn=int(request.expires_seconds),
        )


def _means_whole(request: ReadRequest, error: RangeNotSatisfied) -> bool:
    """Whether a suffix was refused because it is longer than the object.

    HTTP and S3 mean the whole of it then. The response is checked against the suffix all the same, so that a longer
    object is refused at its head.
    """
    return request.suffix is not None and error.total is None
