"""Requests through aiobotocore: one object or page, for configurations that only it knows, and uploads in parts.

Uploads are begun, completed, aborted and listed here for every configuration. The counter ``transport_fallbacks``
counts the reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from aioprefetch.accessor.http_headers import quote_etag
from aioprefetch.accessor.response_check import ETags, bare_etag
from aioprefetch.accessor.sink import Sink, copy_chunks
from aioprefetch.errors import Closed, Error, ProtocolError
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.client import Response, S3Client
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.object_requests import (
    LOOP_HASH_BYTES_MAX,
    checked_metadata,
    checksum_of,
    condition_of,
    described,
    uploaded_part,
)
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.outcomes import GONE, may_have_happened
from aioprefetch.services.s3.responses import (
    ListedPage,
    checked,
    headers_of,
    in_utc,
    metadata_of,
    no_success,
    no_token,
    unchecked_head,
    version_of,
    written_etag,
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
        self.etags = ETags()
        self._options = options
        self._client = client
        self._explainer = explainer
        self._runtime = runtime

    async def read(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        """Read into a sink, chunk by chunk."""
        etags, pin, unwanted = self.etags, request.if_match, request.if_none_match
        self._runtime.counters["transport_fallbacks"] += 1
        response, reported = await self._client.open(
            request,
            "get_object",
            sink,
            Key=self._options.key_of(request.path, operation="read"),
            Range=range_text,
            IfMatch=quote_etag(pin) if pin is not None and etags.can_be_sent(pin) else None,
            IfNoneMatch=None if unwanted is None or etags.prove_nothing(bare_etag(unwanted)) else quote_etag(unwanted),
            IfModifiedSince=request.if_modified_since,
            IfUnmodifiedSince=request.if_unmodified_since,
            VersionId=request.version,
        )
        stream = response["Body"].raw_stream
        before = sink.received
        try:
            head = checked(request, unchecked_head(response), etags)
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
        return metadata_of(headers_of(response), request, self.etags)

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
        parameters = {"Key": key, **write_parameters(request), **condition_parameters(request)}
        response, _ = await self._send(request, "put_object", data, parameters)
        etag, version = written_etag(response.get("ETag"), request), version_of(response.get("VersionId"))
        return described(request, etag, version, len(data))

    async def put_part(self, request: PartRequest, key: str, data: bytes | bytearray | memoryview) -> UploadedPart:
        """Send a part of an upload."""
        parameters = {"Key": key, "UploadId": request.upload_id, "PartNumber": request.number}
        response, checksum = await self._send(request, "upload_part", data, parameters)
        return uploaded_part(request, response.get("ETag"), len(data), checksum)

    async def _send(
        self, request: WriteRequest | PartRequest, method: str, data: bytes | bytearray | memoryview, parameters: Any
    ) -> tuple[Response, str | None]:
        """Send a body: the response, and the checksum that went with it.

        That is computed here: botocore would send it after the body, in an encoding that many stores do not take.
        """
        body = data if isinstance(data, (bytes, bytearray)) else bytes(data)
        algorithm, checksum = request.checksum or self._options.checksum, None
        if algorithm is not None:
            is_short = len(body) <= LOOP_HASH_BYTES_MAX
            compute = partial(checksum_of, body, algorithm)
            checksum = compute() if is_short else await self._runtime.run_blocking(compute)
            parameters |= {"ChecksumAlgorithm": algorithm.upper(), checksum_name(algorithm): checksum}
        response = await self._client.call(request, method, Body=body, **parameters)
        self._runtime.counters["stream_write_bytes"] += len(body)
        return response, checksum

    async def delete(self, request: DeleteRequest, key: str) -> None:
        """Delete an object, which may be missing, or one version of it."""
        await self._client.call(
            request, "delete_object", Key=key, VersionId=request.version, IfMatch=condition_of(request)
        )

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
        "IfMatch": condition_of(request),
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
        try:
            response = await self._client.call(
                request,
                "create_multipart_upload",
                Key=key,
                **write_parameters(request),
                **checksum_parameters(request, self._options),
            )
            upload_id = response.get("UploadId")
            if not isinstance(upload_id, str) or not upload_id:
                raise no_success("names no upload", request)
        except (Error, asyncio.CancelledError) as error:
            if not isinstance(error, Error) or may_have_happened(error):
                # It may have been begun, without a name here: any upload in a listing may be that of another client.
                runtime = self._client.runtime
                runtime.counters["uploads_unnamed"] += 1
                runtime.events.publish("s3.upload_unnamed", request.path)
            raise
        return upload_id

    async def complete(self, request: CompleteUploadRequest, key: str) -> Metadata:
        """Let the object appear. A failure with the code ``GONE`` may come after an attempt that has worked."""
        algorithm = request.checksum or self._options.checksum
        parts = [
            {"PartNumber": part.number, "ETag": part.etag}
            | ({checksum_name(algorithm): part.checksum} if algorithm and part.checksum else {})
            for part in request.parts
        ]
        response = await self._client.call(
            request,
            "complete_multipart_upload",
            Key=key,
            UploadId=request.upload_id,
            MultipartUpload={"Parts": parts},
            **condition_parameters(request),
        )
        etag, version = written_etag(response.get("ETag"), request), version_of(response.get("VersionId"))
        return described(request, etag, version, request.size)

    async def abort(self, request: AbortUploadRequest, key: str) -> None:
        """Forget an upload and its parts. One that is gone is ignored."""
        try:
            await self._client.call(request, "abort_multipart_upload", Key=key, UploadId=request.upload_id)
        except Error as error:
            if error.context.get("code") != GONE:
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
            if error.context.get("code") != GONE:
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
                raise no_success("names itself as the next page", request)
        return UploadPage(uploads=uploads, next_token=token)


def _markers_of(request: ListUploadsRequest) -> tuple[str | None, str | None]:
    try:
        key_marker, id_marker = (None, None) if request.page_token is None else json.loads(request.page_token)
    except ValueError:
        raise no_token(request) from None
    return key_marker, id_marker
