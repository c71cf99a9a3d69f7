"""The S3 server of the demo, and what it counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioprefetch.errors import MissingDependency

if TYPE_CHECKING:
    from aioprefetch.testing.s3_server import CountingS3Server


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCount:
    """What a server was asked, and how many bytes of bodies it sent."""

    gets: int = 0
    heads: int = 0
    others: int = 0
    body_bytes: int = 0


@contextlib.contextmanager
def demo_server(bucket: str) -> Iterator[CountingS3Server]:
    """An S3 with one empty bucket on a free loopback port, for the time of the block."""
    try:
        from aioprefetch.testing.s3_server import CountingS3Server
    except ImportError as error:
        raise MissingDependency(
            "the embedded S3 server needs moto: pip install 'aioprefetch[testing-server]'; or give the URL of your own"
            " file",
            operation="demo",
        ) from error
    with CountingS3Server() as server:
        server.create_bucket(bucket)
        yield server


def take_count(server: CountingS3Server) -> RequestCount:
    """What was asked since the last call."""
    gets, heads = server.count("GET"), server.count("HEAD")
    count = RequestCount(gets=gets, heads=heads, others=server.count() - gets - heads, body_bytes=server.bytes_sent)
    server.reset()
    return count
