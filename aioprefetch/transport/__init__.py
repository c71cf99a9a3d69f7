"""Range requests over HTTP/1.1, straight into the caller's memory: the data plane of the s3 and http services."""

from aioprefetch.transport.client import HttpClient
from aioprefetch.transport.connection import Connection, Destination, Receiver
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import (
    DEFAULT_PORTS,
    Origin,
    Proxy,
    Route,
    Target,
    encoded_fields,
    is_link_local_or_metadata,
    origin_of,
)
from aioprefetch.transport.pool import ClientSnapshot, OriginSnapshot
from aioprefetch.transport.response_head import ResponseHead

__all__ = [
    "DEFAULT_PORTS",
    "ClientOptions",
    "ClientSnapshot",
    "Connection",
    "Destination",
    "HttpClient",
    "Origin",
    "OriginSnapshot",
    "Proxy",
    "Receiver",
    "ResponseHead",
    "Route",
    "Target",
    "encoded_fields",
    "is_link_local_or_metadata",
    "origin_of",
]
