"""The options of the S3 recipe, checked one by one. Pure: no I/O, no name resolution.

Each check returns the value as it is kept, and raises ``ConfigInvalid`` with the option, the value and what is right.
A value that may hold a secret is never part of a message.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidPath
from aioprefetch.services.keys import checked_key
from aioprefetch.transport import is_link_local_or_metadata

PART_BYTES_MIN = 5 << 20
PART_BYTES_MAX = 5 << 30
SSE_KEY_BYTES = 32

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[A-Za-z0-9-]{1,63}")


def invalid(message: str) -> ConfigInvalid:
    """The error of this module."""
    return ConfigInvalid(message, operation="configure")


def checked_bucket(bucket: object) -> str:
    """A bucket's plain name."""
    if not isinstance(bucket, str) or not bucket:
        raise invalid(f"bucket must be the name of a bucket, not {bucket!r}")
    if bucket.startswith("arn:"):
        raise invalid(f"bucket={bucket!r} is an ARN; give the bucket's name, or the alias of the access point")
    if "/" in bucket:
        raise invalid(f"bucket={bucket!r} holds a slash; what comes after the bucket's name is the prefix")
    if bucket != bucket.lower():
        raise invalid(f"bucket={bucket!r} has upper case letters; names of buckets are lower case")
    if _is_ipv4(bucket):
        raise invalid(f"bucket={bucket!r} looks like an IP address; give the address as endpoint_url")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise invalid(
            f"bucket={bucket!r} is no name of a bucket: 3 to 63 of a-z, 0-9, '.', '-', '_', "
            "a letter or digit at both ends"
        )
    return bucket


def checked_prefix(prefix: object) -> str:
    """A prefix without the slashes at its ends."""
    if not isinstance(prefix, str):
        raise invalid(f"prefix must be text, not {prefix!r}")
    try:
        return checked_key(prefix.strip("/"), operation="configure")
    except InvalidPath as error:
        raise invalid(f"prefix={prefix!r} cannot be used: {error.message}") from None


def checked_endpoint(url: object, *, option: str = "endpoint_url") -> str:
    """The address of a store: http or https, a host that is not link-local, no user, query or fragment."""
    if not isinstance(url, str) or not url:
        raise invalid(f"{option} must be a URL such as 'https://s3.example.com', not {url!r}")
    if any(character in url for character in "@?#"):
        # The value is not repeated: any part of it may be a password or a signature.
        raise invalid(
            f"{option} must be http(s)://host[:port] without user, query or fragment; keys are given as access_key_id "
            "and secret_access_key"
        )
    shown = f"{option}={url!r}"
    parts = _split(url, shown)
    if parts.scheme not in ("http", "https"):
        raise invalid(f"{shown} must begin with http:// or https://")
    host = parts.hostname
    if not host or not re.fullmatch(r"[\w.:%-]+", host):
        raise invalid(f"{shown} names no host")
    if is_link_local_or_metadata(host):
        raise invalid(f"{shown} is a link-local or metadata address; such hosts hand out credentials and are refused")
    return url.rstrip("/")


def check_transport(endpoint: str, *, allow_http: bool | None, carries: str) -> None:
    """Refuse plain http where secrets would travel: ``allow_http=None`` allows it to this machine alone.

    ``carries`` says what would be sent, and is empty for nothing.
    """
    parts = urlsplit(endpoint)
    if parts.scheme != "http" or not carries or allow_http:
        return
    if allow_http is None and is_loopback(parts.hostname or ""):
        return
    raise invalid(
        f"endpoint_url={endpoint!r} would send {carries} without encryption; use https://, or allow_http=True "
        "where the network is trusted"
    )


def checked_region(region: object) -> str:
    """A region's name: it becomes part of a host name."""
    if not isinstance(region, str) or not _REGION.fullmatch(region):
        raise invalid(f"region={region!r} is no region; one looks like 'eu-west-1'")
    return region


def checked_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise invalid(f"{option}={value!r} must be one of {', '.join(map(repr, choices))}")


def checked_flag(option: str, value: object) -> None:
    """``True`` or ``False``, and no text that merely says so."""
    if not isinstance(value, bool):
        raise invalid(f"{option}={value!r} must be True or False")


def checked_integer(option: str, value: object, *, minimum: int, maximum: int) -> None:
    """An integer within its bounds."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise invalid(f"{option}={value!r} must be an integer from {minimum} to {maximum}")


def checked_proxies(proxies: object) -> dict[str, str | Secret]:
    """Proxies by scheme. One with a user in it is kept as a secret, since it holds a password."""
    if not isinstance(proxies, Mapping):
        raise invalid(f"proxies must map 'http' and 'https' to URLs; it is a {type(proxies).__name__}")
    checked: dict[str, str | Secret] = {}
    for scheme, url in proxies.items():
        if scheme not in ("http", "https"):
            raise invalid(f"proxies has the key {scheme!r}; the keys are 'http' and 'https'")
        if isinstance(url, Secret) or (isinstance(url, str) and (url.startswith("env:") or "@" in url)):
            checked[scheme] = url if isinstance(url, Secret) else Secret(url)
        else:
            checked[scheme] = checked_endpoint(url, option=f"proxies[{scheme!r}]")
    return checked


def sse_secret(key: str | bytes | Secret | None) -> Secret | None:
    """A customer's key as a secret in base64, checked as far as it is known here."""
    if key is None:
        return None
    if isinstance(key, bytes):
        if len(key) != SSE_KEY_BYTES:
            raise invalid(f"sse_customer_key must have {SSE_KEY_BYTES} bytes, not {len(key)}")
        return Secret(base64.b64encode(key).decode())
    if not isinstance(key, (str, Secret)) or not key:
        raise invalid(f"sse_customer_key must be {SSE_KEY_BYTES} bytes, or their base64; it is a {type(key).__name__}")
    secret = key if isinstance(key, Secret) else Secret(key)
    if secret.is_literal and (value := secret.reveal()) is not None:
        sse_key_bytes(value)
    return secret


def sse_key_bytes(text: str) -> bytes:
    """The bytes of a customer's key from its base64."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"sse_customer_key is no base64; it must hold {SSE_KEY_BYTES} bytes") from None
    if len(key) != SSE_KEY_BYTES:
        raise invalid(f"sse_customer_key must hold {SSE_KEY_BYTES} bytes, not {len(key)}")
    return key


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as far as its name tells."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str, shown: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port that is no number
    except ValueError as error:
        raise invalid(f"{shown} is no URL: {error}") from None
    return parts


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
