"""A bucket of the counting server, reached by s3fs's words."""

from typing import Any

from aioprefetch.fsspec import S3FileSystem
from aioprefetch.testing import CountingS3Server


class Bucket:
    """A bucket, and our file system over its server."""

    def __init__(self, server: CountingS3Server, name: str) -> None:
        self.server = server
        server.create_bucket(name)
        self.name = name
        self.words: dict[str, Any] = {
            "key": server.access_key_id,
            "secret": server.secret_access_key,
            "client_kwargs": {"endpoint_url": server.endpoint_url, "region_name": server.region},
        }
        self.fs = S3FileSystem(**self.words)

    def requests(self) -> list[str]:
        """Methods and statuses of the requests since the last call."""
        found = [f"{request.method} {request.status}" for request in self.server.requests]
        self.server.reset()
        return found
