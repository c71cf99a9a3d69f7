"""Whether a store may be asked without TLS: what a network could listen to. Pure, no name is resolved."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aioprefetch.errors import ConfigInvalid


def check_transport(endpoint: str, *, allow_http: bool | None, carries: str) -> None:
    """Refuse plain http where secrets would travel: ``allow_http=None`` allows it to this machine alone.

    ``carries`` describes the values that would be sent, and is empty for none.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not carries or allow_http:
        return
    if allow_http is None and _is_loopback(parts.hostname or ""):
        return
    raise ConfigInvalid(
        f"endpoint_url={endpoint!r} would send {carries} without encryption; use https://, or allow_http=True "
        "where the network is trusted",
        operation="configure",
    )


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, judged by its name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
