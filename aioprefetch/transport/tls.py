"""TLS: the context that connections are made with, and the state of TLS on one connection."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast

from aioprefetch.errors import ConfigInvalid

# TLS decrypts whole records, so the first part of a record may have been received earlier.
RECORD_BYTES_MAX = (16 << 10) + 256


def tls_context(ca_bundle: str | None) -> ssl.SSLContext:
    """A context that checks certificate and host name, by the authorities of the system or of a PEM file.

    Raises ``ConfigInvalid`` for an unreadable or invalid file.
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
        """The number of bytes received and not decrypted yet."""


class TlsState:
    """The state of TLS on one connection, for asyncio's loop and for uvloop.

    Both loops fill one buffer of ours at a time, and when the connection ends they drop the bytes that did not fit. So
    each buffer has at least ``room_bytes``, and a pause stops the transport below TLS instead.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("_Buffered", transport)
        self._object: ssl.SSLObject = transport.get_extra_info("ssl_object")

    @staticmethod
    def room_bytes(sizehint: int) -> int:
        """The memory for all bytes that may be decrypted now; ``sizehint`` bytes are received and not decrypted."""
        return max(sizehint, 0) + RECORD_BYTES_MAX

    def has_more(self) -> bool:
        """Whether bytes were received and not taken. Part of an incomplete record is not seen."""
        return self._object.pending() > 0 or self._transport.get_read_buffer_size() > 0

    def was_ended(self) -> bool:
        """Whether the server has ended its data (close_notify), and all of them were taken.

        For ``eof_received``, which asyncio also calls for a connection that was cut (uvloop does not).
        """
        try:
            return not self._object.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:  # TLS waits for more bytes, which do not come.
            return False
