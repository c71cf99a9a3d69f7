"""Uploads in parts, by aiobotocore: begun, completed, aborted and listed; and the attributes of a new object."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from aioprefetch.accessor.http_headers import quote_etag, unquote_etag
from aioprefetch.errors import Error, InvalidArgument, ProtocolError
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.list_page import in_utc
from aioprefetch.services.s3.object_requests import ObjectRequests, checked_metadata, described
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import version_of
from aioprefetch.values import (
    AbortUploadRequest,
    Checksum,
    CompleteUploadRequest,
    CopyRequest,
    ListUploadsRequest,
    Metadata,
    StatRequest,
    Upload,
    UploadPage,
    WriteRequest,
)

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
