"""Writes of an object: one put for a small object, a multipart upload for a larger one."""

from __future__ import annotations

import asyncio
from typing import Any

from aioprefetch.accessor.http_headers import quote_etag, unquote_etag
from aioprefetch.errors import Closed, Error, InvalidArgument
from aioprefetch.runtime.events import logger
from aioprefetch.services.s3.client import Response, S3Client
from aioprefetch.services.s3.object_requests import ObjectRequests, described
from aioprefetch.services.s3.responses import version_of
from aioprefetch.values import Metadata, WriteRequest

PARTS_AT_ONCE = 4
PARTS_MAX = 10_000


def write_parameters(request: WriteRequest) -> dict[str, Any]:
    """The attributes of a new object, under botocore's names; ``None`` for a parameter that is not sent."""
    return {
        "ContentType": request.content_type,
        "ContentEncoding": request.content_encoding,
        "ContentDisposition": request.content_disposition,
        "CacheControl": request.cache_control,
        "Metadata": dict(request.user_metadata) or None,
    }


def condition_parameters(request: WriteRequest) -> dict[str, str | None]:
    """The preconditions of a write. They belong to the request that lets the object appear."""
    return {
        "IfMatch": None if request.if_match is None else quote_etag(request.if_match),
        "IfNoneMatch": "*" if request.if_not_exists else None,
    }


class S3WriteBody:
    """Collects up to four parts and sends them together, so that nothing of it runs in the background.

    An object of at most one part is a single put at ``close``. A failed or cancelled call leaves an upload behind that
    ``abort`` removes; the store keeps (and charges for) its parts until then. More than ``parts_max`` parts (S3
    allows 10,000) are ``InvalidArgument``.
    """

    def __init__(
        self,
        client: S3Client,
        requests: ObjectRequests,
        request: WriteRequest,
        key: str,
        *,
        parts_max: int = PARTS_MAX,
    ) -> None:
        self._parts_max = parts_max
        self._client = client
        self._requests = requests
        self._request = request
        self._key = key
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._size = 0
        self._ended = False

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes, and send full parts. If cancelled, call ``abort``."""
        self._check_open()
        data = memoryview(chunk).cast("B")
        batch_bytes = PARTS_AT_ONCE * self._client.options.part_bytes
        while len(data):
            room = batch_bytes - len(self._buffer)
            self._buffer += data[:room]
            data = data[room:]
            if len(self._buffer) == batch_bytes:
                await self._send_buffer()

    async def close(self) -> Metadata:
        """Let the object appear."""
        self._check_open()
        if self._upload_id is None and len(self._buffer) <= self._client.options.part_bytes:
            metadata = await self._requests.put(self._request, self._key, self._buffer)
        else:
            await self._send_buffer()
            response = await self._call(
                "complete_multipart_upload",
                MultipartUpload={"Parts": self._parts},
                **condition_parameters(self._request),
            )
            etag, version = unquote_etag(response.get("ETag")), version_of(response.get("VersionId"))
            metadata = described(self._request, etag, version, self._size)
        self._ended = True
        self._buffer = bytearray()
        return metadata

    async def abort(self) -> None:
        """Remove the sent parts. A second cancellation does not stop it."""
        if self._ended:
            return
        self._ended = True
        self._buffer = bytearray()
        if self._upload_id is None or self._client.runtime.closed:
            return
        done = asyncio.Event()
        self._client.runtime.supervisor.spawn(self._abort(), name="s3 abort upload", on_end=done.set)
        await done.wait()

    async def _abort(self) -> None:
        try:
            await self._call("abort_multipart_upload")
        except Error as error:
            logger.warning("a multipart upload could not be aborted, its parts stay until they expire: %s", error)

    async def _send_buffer(self) -> None:
        """Send the buffer as parts, together; the first failure stops the others."""
        buffer, self._buffer = self._buffer, bytearray()
        if not buffer:
            return
        if self._upload_id is None:
            await self._begin()
        part_bytes = self._client.options.part_bytes
        first = len(self._parts) + 1
        pieces = [buffer[start : start + part_bytes] for start in range(0, len(buffer), part_bytes)]
        if first + len(pieces) - 1 > self._parts_max:
            raise InvalidArgument(
                f"the object needs more than {self._parts_max} parts of part_bytes={part_bytes};"
                " make part_bytes larger",
                operation=self._request.operation,
                path=self._request.path,
            )
        try:
            async with asyncio.TaskGroup() as group:
                sent = [group.create_task(self._send_part(first + i, piece)) for i, piece in enumerate(pieces)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures.exceptions[0].__cause__
        self._parts += [task.result() for task in sent]
        self._size += len(buffer)

    async def _begin(self) -> None:
        response = await self._client.call(
            self._request, "create_multipart_upload", Key=self._key, **write_parameters(self._request)
        )
        self._upload_id = response["UploadId"]

    async def _send_part(self, number: int, piece: bytearray) -> dict[str, Any]:
        response = await self._call("upload_part", PartNumber=number, Body=piece)
        self._client.runtime.counters["stream_write_bytes"] += len(piece)
        return {"PartNumber": number, "ETag": response["ETag"]}

    async def _call(self, method: str, **parameters: Any) -> Response:
        return await self._client.call(self._request, method, Key=self._key, UploadId=self._upload_id, **parameters)

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("the object was closed or aborted", operation=self._request.operation, path=self._request.path)
