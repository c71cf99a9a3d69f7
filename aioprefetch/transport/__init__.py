"""Range requests over HTTP/1.1, straight into the caller's memory: the data plane of the s3 and http services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.transport.connection import Connection, Destination
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
    from aioprefetch.transport.pool import HttpClient
    from aioprefetch.transport.responses import ResponseHead

__all__ = [
    "DEFAULT_PORTS",
    "ClientOptions",
    "Connection",
    "Destination",
    "HttpClient",
    "Origin",
    "Proxy",
    "ResponseHead",
    "Route",
    "Target",
    "encoded_fields",
    "is_link_local_or_metadata",
    "origin_of",
]

load_at_first_use(
    __name__,
    {
        "connection": ("Connection", "Destination"),
        "options": ("ClientOptions",),
        "origin": (
            "DEFAULT_PORTS",
            "Origin",
            "Proxy",
            "Route",
            "Target",
            "encoded_fields",
            "is_link_local_or_metadata",
            "origin_of",
        ),
        "pool": ("HttpClient",),
        "responses": ("ResponseHead",),
    },
)
