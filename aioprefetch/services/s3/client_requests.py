"""Requests through aiobotocore: one object or page, for configurations that only it knows, and uploads in parts.

Uploads are begun, completed, aborted and listed here for every configuration. The counter ``transport_fallbacks``
counts the reads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from aioprefetch.accessor.http_headers import is_weak, quote_etag, unquote_etag
from aioprefetch.accessor.sink import Sink, copy_chunks
from aioprefetch.errors import Closed, Error, InvalidArgument, ProtocolError
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.object_requests import (
    LOOP_HASH_BYTES_MAX,
    ObjectRequests,
    checked_metadata,
    checksum_of,
    described,
    uploaded_part,
)
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import (
    ListedPage,
    checked,
    headers_of,
    in_utc,
    metadata_of,
    unchecked_head,
    version_of,
)
from aioprefetch.values import (
    AbortUploadRequest,
    Checksum,
    CompleteUploadRequest,
    CopyRequest,
    DeleteRequest,
    ListUploadsRequest,
    Metadata,
    PartRequest,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    Upload,
    UploadedPart,
    UploadPage,
    WriteRequest,
)

# The parameters of ListObjectsV2 and ListObjectVersions under botocore's names.
_LIST_NAMES = {
    "delimiter": "Delimiter",
    "start-after": "StartAfter",
    "continuation-token": "ContinuationToken",
    "key-marker": "KeyMarker",
    "version-id-marker": "VersionIdMarker",
}


class ClientRequests:
    """The requests of one recipe within a runtime."""

    def __init__(self, options: S3Options, client: S3Client, explainer: Explainer, runtime: Runtime) -> None:
        self._options = options
        self._client = client
        self._explainer = explainer
        self._runtime = runtime

    async def read(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        """Read into a sink, chunk by chunk."""
        # A condition that cannot be sent is compared when the response is here: a weak ETag never matches, and some
        # stores respond 412 to "*" although the object exists.
        pinned = request.if_match not in (None, "*") and not is_weak(request.if_match or "")
        self._runtime.counters["transport_fallbacks"] += 1
        response, reported = await self._client.open(
            request,
            "get_object",
            sink,
            Key=self._options.key_of(request.path, operation="read"),
            Range=range_text,
            IfMatch=quote_etag(request.if_match or "") if pinned else None,
            IfNoneMatch=None if request.if_none_match is None else quote_etag(request.if_none_match),
            IfModifiedSince=request.if_modified_since,
            IfUnmodifiedSince=request.if_unmodified_since,
            VersionId=request.version,
        )
        stream = response["Body"].raw_stream
        before = sink.received
        try:
            head = checked(request, unchecked_head(response))
            sink.begin(head, path=request.path)
            await copy_chunks(partial(self._next_chunk, stream, request), request, sink, head)
        except BaseException as error:
            if reported is not None:
                reported.failed(error)
            raise
        finally:
            # Without effect after the last byte, when aiohttp has taken the connection back.
            stream.close()
            self._runtime.counters["stream_read_total_bytes"] += sink.received - before
        if reported is not None:
            reported.finished()
        return ReadReply(head=head, received=head.size)

    async def stat(self, request: StatRequest, key: str) -> Metadata:
        """The metadata of an object."""
        response = await self._client.call(request, "head_object", Key=key, VersionId=request.version)
        return metadata_of(headers_of(response), request)

    async def list_page(self, request: Request, root: str, path: str, parameters: Mapping[str, str]) -> ListedPage:
        """One page of the keys that begin with ``root`` and ``path``."""
        named: dict[str, Any] = {_LIST_NAMES[name]: value for name, value in parameters.items() if name in _LIST_NAMES}
        named["MaxKeys"] = int(parameters["max-keys"])
        method = "list_object_versions" if "versions" in parameters else "list_objects_v2"
        response = await self._client.call(request, method, Prefix=root + path, **named)
        try:
            return ListedPage.of_botocore(response, root, path)
        except ProtocolError as error:
            raise error.add_context(operation=request.operation, path=request.path) from None

    async def put(self, request: WriteRequest, key: str, data: bytes | bytearray | memoryview) -> Metadata:
        """Write an object whole."""
        checked_metadata(request)
        body = data if isinstance(data, (bytes, bytearray)) else bytes(data)
        _, parameters = await self._checksum(request, body)
        response = await self._client.call(
            request,
            "put_object",
            Key=key,
            Body=body,
            **write_parameters(request),
            **condition_parameters(request),
            **parameters,
        )
        self._runtime.counters["stream_write_bytes"] += len(body)
        etag, version = unquote_etag(response.get("ETag")), version_of(response.get("VersionId"))
        return described(request, etag, version, len(body))

    async def put_part(self, request: PartRequest, key: str, data: bytes | bytearray | memoryview) -> UploadedPart:
        """Send a part of an upload."""
        body = data if isinstance(data, (bytes, bytearray)) else bytes(data)
        checksum, parameters = await self._checksum(request, body)
        response = await self._client.call(
            request,
            "upload_part",
            Key=key,
            UploadId=request.upload_id,
            PartNumber=request.number,
            Body=body,
            **parameters,
        )
        self._runtime.counters["stream_write_bytes"] += len(body)
        return uploaded_part(request, response.get("ETag"), len(body), checksum)

    async def _checksum(
        self, request: WriteRequest | PartRequest, body: bytes | bytearray
    ) -> tuple[str | None, dict[str, str]]:
        """The checksum of a body, and the parameters that send it.

        It is computed here: botocore would send it after the body, in an encoding that many stores do not take.
        """
        algorithm = request.checksum or self._options.checksum
        if algorithm is None:
            return None, {}
        if len(body) <= LOOP_HASH_BYTES_MAX:
            checksum = checksum_of(body, algorithm)
        else:
            checksum = await self._runtime.run_blocking(checksum_of, body, algorithm)
        return checksum, {"ChecksumAlgorithm": algorithm.upper(), checksum_name(algorithm): checksum}

    async def delete(self, request: DeleteRequest, key: str) -> None:
        """Delete an object, which may be missing, or one version of it."""
        await self._client.call(request, "delete_object", Key=key, VersionId=request.version)

    async def _next_chunk(self, stream: Any, request: ReadRequest) -> bytes | None:
        try:
            chunk: bytes = await stream.content.readany()
            return chunk or None
        except Exception as error:
            explained: Error = (
                Closed("the operator was closed", operation="read", path=request.path)
                if self._runtime.closed
                else self._explainer.explain(error, request)
            )
        # Outside of the handler, where Python does not chain the exception of aiohttp.
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.


# --- writes and uploads -----------------------------------------------------------------------------------------------

_MD5 = re.compile(r"[0-9a-f]{32}")
_GONE = "NoSuchUpload"


def write_parameters(request: WriteRequest) -> dict[str, Any]:
    """The attributes of a new object, under botocore's names; ``None`` for a parameter that is not sent."""
    return {
        "ContentType": request.content_type,
        "ContentEncoding": request.content_encoding,
        "ContentDisposition": request.content_disposition,
        "CacheControl": request.cache_control,
        "Metadata": dict(request.user_metadata) or None,
        **placement_parameters(request),
    }


def checksum_parameters(request: WriteRequest | CopyRequest, options: S3Options) -> dict[str, str | None]:
    """The checksum that the store is to keep, where it is not sent with the bytes."""
    algorithm = request.checksum or options.checksum
    return {"ChecksumAlgorithm": None if algorithm is None else algorithm.upper()}


def checksum_name(algorithm: Checksum) -> str:
    """The name of a checksum in requests and responses of botocore."""
    return f"Checksum{algorithm.upper()}"


def placement_parameters(request: WriteRequest | CopyRequest) -> dict[str, str | None]:
    """How a new object is stored: its class, and the key that encrypts it."""
    return {
        "StorageClass": request.storage_class,
        "ServerSideEncryption": None if request.sse_kms_key_id is None else "aws:kms",
        "SSEKMSKeyId": request.sse_kms_key_id,
    }


def condition_parameters(request: WriteRequest) -> dict[str, str | None]:
    """The preconditions of a write. They belong to the request that lets the object appear."""
    return {
        "IfMatch": None if request.if_match is None else quote_etag(request.if_match),
        "IfNoneMatch": "*" if request.if_not_exists else None,
    }


class Uploads:
    """The uploads of one recipe within a runtime."""

    def __init__(self, options: S3Options, client: S3Client) -> None:
        self._options = options
        self._client = client

    async def begin(self, request: WriteRequest, key: str) -> str:
        """Begin an upload; returns its name."""
        checked_metadata(request)
        response = await self._client.call(
            request,
            "create_multipart_upload",
            Key=key,
            **write_parameters(request),
            **checksum_parameters(request, self._options),
        )
        upload_id = response.get("UploadId")
        if not isinstance(upload_id, str) or not upload_id:
            raise ProtocolError("the store names no upload", operation=request.operation, path=request.path)
        return upload_id

    async def complete(self, request: CompleteUploadRequest, key: str, requests: ObjectRequests) -> Metadata:
        """Let the object appear.

        An upload that is gone has been completed, where the response to an earlier attempt was lost: then the object
        has the ETag that follows from those of the parts.
        """
        algorithm = request.checksum or self._options.checksum
        parts: list[dict[str, int | str]] = [{"PartNumber": part.number, "ETag": part.etag} for part in request.parts]
        for named, part in zip(parts, request.parts, strict=True):
            if algorithm and part.checksum:
                named[checksum_name(algorithm)] = part.checksum
        try:
            response = await self._client.call(
                request,
                "complete_multipart_upload",
                Key=key,
                UploadId=request.upload_id,
                MultipartUpload={"Parts": parts},
                **condition_parameters(request),
            )
        except Error as error:
            if error.context.get("code") != _GONE:
                raise
            expected = _etag_of_parts([part.etag for part in request.parts])
            found = await self._found(request, key, requests)
            if expected is None or found is None or (found.etag, found.size) != (expected, request.size):
                raise
            return described(request, found.etag, found.version, request.size)
        etag, version = unquote_etag(response.get("ETag")), version_of(response.get("VersionId"))
        return described(request, etag, version, request.size)

    async def _found(self, request: CompleteUploadRequest, key: str, requests: ObjectRequests) -> Metadata | None:
        try:
            return await requests.stat(StatRequest(path=request.path, deadline=request.deadline), key)
        except Error:
            return None

    async def abort(self, request: AbortUploadRequest, key: str) -> None:
        """Forget an upload and its parts. One that is gone is ignored."""
        try:
            await self._client.call(request, "abort_multipart_upload", Key=key, UploadId=request.upload_id)
        except Error as error:
            if error.context.get("code") != _GONE:
                raise

    async def page(self, request: ListUploadsRequest) -> UploadPage:
        """One page of the uploads below a prefix."""
        root = self._options.root
        key_marker, id_marker = _markers_of(request)
        try:
            response = await self._client.call(
                request,
                "list_multipart_uploads",
                Prefix=root + request.path,
                KeyMarker=key_marker,
                UploadIdMarker=id_marker,
            )
        except Error as error:
            if error.context.get("code") != _GONE:
                raise
            return UploadPage(uploads=())  # rclone says so of a bucket that never had an upload.
        uploads = tuple(
            Upload(
                path=item["Key"].removeprefix(root), upload_id=item["UploadId"], started=in_utc(item.get("Initiated"))
            )
            for item in response.get("Uploads") or ()
            if item.get("Key", "").startswith(root + request.path) and item.get("UploadId")
        )
        token = None
        if response.get("IsTruncated") and response.get("NextKeyMarker"):
            token = json.dumps([response["NextKeyMarker"], response.get("NextUploadIdMarker")])
            if token == request.page_token:
                raise ProtocolError(
                    "the listing of uploads does not go on", operation=request.operation, path=request.path
                )
        return UploadPage(uploads=uploads, next_token=token)


def _markers_of(request: ListUploadsRequest) -> tuple[str | None, str | None]:
    if request.page_token is None:
        return None, None
    try:
        key_marker, id_marker = json.loads(request.page_token)
    except ValueError:
        raise InvalidArgument(
            "the page token is not a token of this listing", operation=request.operation, path=request.path
        ) from None
    return key_marker, id_marker


def _etag_of_parts(etags: Sequence[str]) -> str | None:
    """The ETag of an object made of parts with these ETags; ``None`` unless they are MD5 sums."""
    digests = [unquote_etag(etag) or "" for etag in etags]
    if not all(map(_MD5.fullmatch, digests)):
        return None
    return f"{hashlib.md5(bytes.fromhex(''.join(digests)), usedforsecurity=False).hexdigest()}-{len(digests)}"
