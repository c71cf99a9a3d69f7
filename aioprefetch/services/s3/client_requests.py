"""Requests for one object or page through aiobotocore, for configurations that only it knows.

The counter ``transport_fallbacks`` counts these reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from aioprefetch.accessor.chunked_body import copy_chunks
from aioprefetch.accessor.http_headers import is_weak, quote_etag, unquote_etag
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Closed, Error, ProtocolError
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.list_page import ListedPage
from aioprefetch.services.s3.object_requests import (
    LOOP_HASH_BYTES_MAX,
    checked_metadata,
    checksum_of,
    described,
    uploaded_part,
)
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import checked, headers_of, metadata_of, unchecked_head, version_of
from aioprefetch.services.s3.writer import checksum_name, condition_parameters, write_parameters
from aioprefetch.values import (
    DeleteRequest,
    Metadata,
    PartRequest,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    UploadedPart,
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
        try:
            head = checked(request, unchecked_head(response))
            sink.begin(head, path=request.path)
            await copy_chunks(partial(self._next_chunk, stream, request), request, sink, head, self._runtime.counters)
        except BaseException as error:
            if reported is not None:
                reported.failed(error)
            raise
        finally:
            # Without effect after the last byte, when aiohttp has taken the connection back.
            stream.close()
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
        raise explained from explained.__cause__
