"""What the exceptions of aiohttp and of the sockets mean in our tree of errors: one table, from the special on."""

from __future__ import annotations

import errno
import ssl

import aiohttp

from aioprefetch.errors import (
    Closed,
    ConfigInvalid,
    Error,
    InvalidPath,
    PermissionDenied,
    ProtocolError,
    RedirectRefused,
    Stalled,
    TimedOut,
    Unavailable,
    Unexpected,
)


class LinkLocalRefused(OSError):
    """A name that is not the base's own leads to a link-local address."""


def translate(error: Exception, *, during_body: bool) -> Error:
    """The error of ours; it holds nothing of the original but words that cannot be secret."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(inner, LinkLocalRefused):
        return RedirectRefused("the server redirects to a name that leads to a link-local address")
    if isinstance(error, TimeoutError):
        return _timed_out(error, during_body=during_body)
    if isinstance(inner, ssl.SSLError):
        return _tls_failure(inner, during_body=during_body)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        if error.status in (401, 403, 407):
            return PermissionDenied(f"the proxy answered {error.status}: give its user and password in its URL")
        return Unavailable(f"the proxy answered {error.status}")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Unavailable("the name of the host could not be resolved; check its spelling and the network")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return Unavailable(f"no connection to the proxy: {_reason(inner)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unavailable(f"no connection: {_reason(inner)}")
    if isinstance(error, aiohttp.ClientResponseError):
        return ProtocolError(f"the answer is no valid HTTP ({type(error.__cause__ or error).__name__})")
    if isinstance(error, aiohttp.InvalidURL):
        return InvalidPath("the URL that the path makes is not valid")
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        when = "in the middle of the body" if during_body else "before the head of an answer came"
        return Unavailable(f"the connection broke off {when} ({_reason(inner)})")
    if isinstance(error, RuntimeError) and "closed" in str(error):
        return Closed("the operator was closed")
    return Unexpected(f"the request failed with a {type(error).__name__}")


def _timed_out(error: TimeoutError, *, during_body: bool) -> TimedOut:
    if during_body:
        return Stalled("no byte of the body came within read_timeout_seconds")
    if isinstance(error, aiohttp.SocketTimeoutError):
        return TimedOut("no answer came within read_timeout_seconds")
    return TimedOut("no connection was made within connect_timeout_seconds")


def _tls_failure(error: ssl.SSLError, *, during_body: bool) -> Error:
    if during_body or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return Unavailable(f"the TLS connection broke off ({type(error).__name__})")
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigInvalid(
            f"the server's certificate is not trusted: {error.verify_message}; "
            "check the host, or name its authority with ca_bundle"
        )
    return ConfigInvalid(f"TLS with the server failed: {error.reason or type(error).__name__}; check scheme and port")


def _reason(error: Exception) -> str:
    code = getattr(error, "errno", None)
    return errno.errorcode.get(code, type(error).__name__) if isinstance(code, int) else type(error).__name__
