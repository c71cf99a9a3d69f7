"""Requests through aiobotocore: one object or page, for configurations that only it knows, and uploads in parts.

Uploads are begun, completed, aborted and listed here for every configuration. The counter ``transport_fallbacks``
counts the reads.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aioprefetch.errors import Error
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.object_requests import (
    checked_metadata,
    condition_of,
    described,
)
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.outcomes import GONE, may_have_happened
from aioprefetch.services.s3.responses import (
    in_utc,
    no_success,
    no_token,
    version_of,
    written_etag,
)
from aioprefetch.values import (
    AbortUploadRequest,
    Checksum,
    CompleteUploadRequest,
    CopyRequest,
    ListUploadsRequest,
    Metadata,
    Upload,
    UploadPage,
    WriteRequest,
)

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
