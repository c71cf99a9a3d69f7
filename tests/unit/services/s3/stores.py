"""A bucket in the words of a test: short calls instead of requests."""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.accessor import S3Accessor, S3Live
from aioprefetch.services.s3.signed_targets import Signed
from aioprefetch.testing.faults import ReceivedRequest
from aioprefetch.values import (
    DeleteRequest,
    ListPage,
    ListRequest,
    Metadata,
    ReadRequest,
    Request,
    StatRequest,
    WriteRequest,
)
from tests.stores.raw_server import RawServer

# Secrets that no text may hold, and the forms in which a customer's key travels.
CANARIES: dict[str, Any] = {
    "access_key_id": "canary-access-key-id",
    "secret_access_key": "canary/secret+access=key",
    "session_token": "canary/session+token==",
    "sse_customer_key": b"canary-sse-c-key-of-32-bytes!!!!",
}
KEY_BASE64 = base64.b64encode(CANARIES["sse_customer_key"]).decode()
KEY_MD5 = base64.b64encode(hashlib.md5(CANARIES["sse_customer_key"], usedforsecurity=False).digest()).decode()


class Address:
    """What ``open_store`` wants to know of a server."""

    access_key_id = secret_access_key = "testing"

    def __init__(self, server: RawServer) -> None:
        self.endpoint_url = str(server.origin)


@dataclass(frozen=True, slots=True)
class Store:
    """A recipe and its live accessor."""

    service: S3
    accessor: Accessor
    runtime: Runtime
    server: Any

    async def create_bucket(self) -> None:
        """Create the bucket."""
        await self.service.buckets(self.runtime).create()

    async def open(self) -> None:
        """Read the configuration."""
        await self.live.opened(Request(path=""))

    @property
    def live(self) -> S3Live:
        """The live parts of the recipe."""
        assert isinstance(self.accessor, S3Accessor)
        return self.accessor.live

    async def put(self, path: str, data: bytes, **fields: Any) -> Metadata:
        """Write an object whole."""
        return await self.accessor.write(WriteRequest(path=path, **fields), data)

    async def get(self, path: str, **fields: Any) -> bytes:
        """Read into memory."""
        sink = CollectSink()
        await self.accessor.read(ReadRequest(path=path, **fields), sink)
        return sink.to_bytes()

    def signed(self, path: str) -> Signed:
        """The signature that is kept for an object."""
        assert self.live.requests is not None
        found = self.live.requests.targets.find(ReadRequest(path=path))
        assert found is not None
        return found

    async def stat(self, path: str, **fields: Any) -> Metadata:
        """Metadata."""
        return await self.accessor.stat(StatRequest(path=path, **fields))

    async def page(self, path: str = "", **fields: Any) -> ListPage:
        """One page of a listing."""
        return await self.accessor.list_page(ListRequest(path=path, **fields))

    async def names(self, path: str = "", **fields: Any) -> list[str]:
        """Every path of a listing, all its pages."""
        page = await self.page(path, **fields)
        names = [entry.path for entry in page.entries]
        while page.next_token is not None:
            page = await self.page(path, page_token=page.next_token, **fields)
            names += [entry.path for entry in page.entries]
        return names

    async def delete(self, *paths: str) -> None:
        """Delete objects."""
        await self.accessor.delete(DeleteRequest(path=paths[0], paths=paths))


def open_store(server: Any, bucket: str, runtime: Runtime, **options: Any) -> Store:
    """A bucket of a test server, with the server's keys unless the options say otherwise."""
    if not options.get("anonymous") and not options.get("profile"):
        options.setdefault("access_key_id", server.access_key_id)
        options.setdefault("secret_access_key", server.secret_access_key)
    service = S3(bucket=bucket, endpoint_url=server.endpoint_url, **options)
    accessor = service.build(runtime)
    assert isinstance(accessor, S3Accessor)
    return Store(service, accessor, runtime, server)


def signed_by(request: ReceivedRequest) -> str:
    """The credential of a signed request: key id, day, region, service."""
    query = parse_qs(urlsplit(request.target).query)
    if "X-Amz-Credential" in query:
        return query["X-Amz-Credential"][0]
    return request.headers["authorization"].partition("Credential=")[2].partition(",")[0]
