"""The requests for one object or one page of a listing, which go one of two ways.

``signed_requests`` signs them and sends them over our transport. ``client_requests`` leaves them to aiobotocore, for
configurations that only it knows (``endpoint.why_aiobotocore``). Both have these operations and raise the same errors.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Protocol

from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import InvalidArgument, ProtocolError
from aioprefetch.services.s3.list_page import ListedPage
from aioprefetch.values import (
    Checksum,
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

# Error codes that mean the keys have expired. A new signature may help, once.
EXPIRED_KEY_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
# A longer body is hashed in a thread.
LOOP_HASH_BYTES_MAX = 256 << 10


class ObjectRequests(Protocol):
    """The requests of one recipe within a runtime. ``key`` is the key of the request's path."""

    async def read(self, request: ReadRequest, sink: Sink, range_text: str | None) -> ReadReply:
        """Read into a sink. ``range_text`` is the ``Range`` header."""
        ...

    async def stat(self, request: StatRequest, key: str) -> Metadata:
        """The metadata of an object."""
        ...

    async def list_page(self, request: Request, root: str, path: str, parameters: Mapping[str, str]) -> ListedPage:
        """One page of the keys that begin with ``root`` and ``path``.

        ``parameters`` are those of ListObjectsV2, under their names in a query, or with ``versions`` of
        ListObjectVersions; the prefix is added to them.
        """
        ...

    async def put(self, request: WriteRequest, key: str, data: bytes | bytearray | memoryview) -> Metadata:
        """Write an object whole."""
        ...

    async def put_part(self, request: PartRequest, key: str, data: bytes | bytearray | memoryview) -> UploadedPart:
        """Send a part of an upload."""
        ...

    async def delete(self, request: DeleteRequest, key: str) -> None:
        """Delete an object, which may be missing, or one version of it."""
        ...


def checksum_of(body: bytes | bytearray | memoryview, algorithm: Checksum) -> str:
    """The checksum of a body as S3 writes it, in base64."""
    if algorithm == "sha256":
        return base64.b64encode(hashlib.sha256(body).digest()).decode()
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


def uploaded_part(request: PartRequest, etag: object, size: int, checksum: str | None) -> UploadedPart:
    """The part that the store has. ``ProtocolError`` for a response without an ETag."""
    if not isinstance(etag, str) or not etag:
        raise ProtocolError("the store gives the part no ETag", operation=request.operation, path=request.path)
    return UploadedPart(number=request.number, etag=etag, size=size, checksum=checksum)


def described(request: WriteRequest, etag: str | None, version: str | None, size: int) -> Metadata:
    """The metadata of an object that has just been written."""
    return Metadata(
        path=request.path,
        size=size,
        etag=etag,
        version=version,
        content_type=request.content_type,
        content_encoding=request.content_encoding,
        content_disposition=request.content_disposition,
        cache_control=request.cache_control,
        user_metadata=dict(request.user_metadata),
    )


def checked_metadata(request: WriteRequest) -> None:
    """Raise ``InvalidArgument`` for metadata of a user that no header can hold."""
    seen: dict[str, str] = {}
    for name, value in request.user_metadata.items():
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidArgument(
                f"the user metadata has {other!r} and {name!r}: names travel as headers, in which case makes no "
                "difference; give one of them",
                operation=request.operation,
                path=request.path,
            )
        for text in (name, value):
            if not text.isascii():
                raise InvalidArgument(
                    f"Non ascii characters in the user metadata {name!r}: names and values travel as headers; encode "
                    "them, for example in base64",
                    operation=request.operation,
                    path=request.path,
                )
