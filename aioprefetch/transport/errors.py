"""The errors for exceptions of sockets and TLS. Messages of these exceptions are not repeated in ours."""

from __future__ import annotations

import errno
import socket
import ssl

from aioprefetch.errors import ConfigInvalid, Error, Unavailable

# There is no file descriptor left, so the store is not even asked.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_ADVICE = {
    errno.ECONNREFUSED: ": nothing listens there; check host and port, and that the server runs",
    errno.EHOSTUNREACH: ": check the host and the network",
    errno.ENETUNREACH: ": check the host and the network",
    errno.EMFILE: ": this process has no file descriptor left; raise its limit (ulimit -n)",
    errno.ENFILE: ": this machine has no file descriptor left",
}


def broken_off(error: Exception | None, when: str) -> Error:
    """The error of a connection that ended at the point that ``when`` names."""
    if error is None:
        return Unavailable(f"the server closed the connection {when}")
    return Unavailable(f"the connection broke off {when} ({reason_of(error)})")


def not_connected(error: Exception, where: str) -> Error:
    """The error of a connection that could not be made; an untrusted certificate is an error of configuration."""
    if isinstance(error, Error):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigInvalid(
            f"the certificate of {where} is not trusted: {error.verify_message}; check the host, or name its "
            "authority with ca_bundle; it is never switched off"
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConfigInvalid(
            f"TLS with {where} failed: {error.reason or type(error).__name__}; it may not speak TLS at all: check "
            "scheme and port"
        )
    if isinstance(error, socket.gaierror):
        return Unavailable(
            f"the name of {where} could not be resolved; check its spelling and the network", context={"reason": "dns"}
        )
    name, code = reason_of(error), getattr(error, "errno", None) or 0
    failure = Unavailable(f"no connection to {where} ({name}){_ADVICE.get(code, '')}")
    return failure.add_context(errno=name) if code in (*NO_DESCRIPTOR, errno.ECONNREFUSED) else failure


def reason_of(error: BaseException) -> str:
    """The name of a system error: its errno, such as ``ECONNREFUSED``, or else its class."""
    code = getattr(error, "errno", None)
    return errno.errorcode.get(code, type(error).__name__) if isinstance(code, int) else type(error).__name__
