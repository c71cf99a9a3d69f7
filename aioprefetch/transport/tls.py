"""TLS: the context that connections are made with, and the state of TLS on one connection."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast

from aioprefetch.errors import ConfigInvalid

# TLS decrypts whole records. Part of one, received earlier, may come out with what has been received since.
RECORD_BYTES_MAX = (16 << 10) + 256


def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """A context that checks certificate and host name, by the system's authorities or those of a PEM file.

    Raises ``ConfigInvalid`` for a file that is none.
    """
    try:
        context = ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise ConfigInvalid(
            f"ca_bundle {ca_bundle!r} cannot be read as a PEM file of certificates: {error.strerror}"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


class _Buffered(Protocol):
    def get_read_buffer_size(self) -> int:
        """How many bytes were received and are not decrypted yet."""
        ...


class TlsState:
    """The TLS of one connection, on asyncio's loop and on uvloop.

    Both fill one buffer of ours at a time, and when the connection ends they throw away what did not fit into it. So
    ``room_bytes`` are offered always, and nothing waits there: to pause, the transport below is paused.
    """

    __slots__ = ("_object", "_transport")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("_Buffered", transport)
        self._object: ssl.SSLObject = transport.get_extra_info("ssl_object")

    @staticmethod
    def room_bytes(sizehint: int) -> int:
        """More memory than what is there can need. ``sizehint`` is what was received and is not decrypted yet."""
        return max(sizehint, 0) + RECORD_BYTES_MAX

    def has_more(self) -> bool:
        """Whether something was received and not taken. Part of a record that is not all there does not show."""
        return self._object.pending() > 0 or self._transport.get_read_buffer_size() > 0

    def was_ended(self) -> bool:
        """Whether the server said that it sends no more (close_notify), and all before that was taken.

        For ``eof_received``, which asyncio calls for a connection that was cut as well (uvloop does not).
        """
        try:
            return not self._object.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:  # It waits for more, which does not come.
            return False
