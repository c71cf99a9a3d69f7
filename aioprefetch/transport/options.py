"""How a client connects, how long it waits, and how much it opens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of an ``HttpClient``, checked by whoever offers them to people.

    Parameters
    ----------
    connect_timeout_seconds
        For name resolution, connecting, the proxy and TLS together.
    first_byte_timeout_seconds
        From the request to the head of its response.
    stall_timeout_seconds, stall_bytes_per_second
        A body that brings less than this rate for so long has stalled. Time in which its reader pauses it is not
        counted.
    connections_max, connections_per_host_max
        Open at once, those that are being made included.
    wait_timeout_seconds
        For one of these to become free.
    idle_seconds_max
        A connection unused for so long is closed: sooner than servers do it (S3 after 20 seconds).
    age_seconds_max
        A connection this old is not used again, so that names are resolved anew and load moves along.
    addresses_seconds_max
        How long a resolved name is believed.
    ca_bundle
        A PEM file of the authorities to trust instead of the system's.
    refuses_link_local
        Names may not lead to link-local or metadata addresses: redirects could name one. Except ``link_local_host``.
    """

    connect_timeout_seconds: float = 5.0
    first_byte_timeout_seconds: float = 30.0
    stall_timeout_seconds: float = 30.0
    stall_bytes_per_second: float = 1024.0
    connections_max: int = 256
    connections_per_host_max: int = 128
    wait_timeout_seconds: float = 60.0
    idle_seconds_max: float = 12.0
    age_seconds_max: float = 300.0
    addresses_seconds_max: float = 30.0
    ca_bundle: str | None = None
    refuses_link_local: bool = True
    link_local_host: str = ""

    @property
    def look_seconds(self) -> float:
        """How often connections are looked at, so that no limit is exceeded by more than a quarter."""
        shortest = min(self.first_byte_timeout_seconds, self.stall_timeout_seconds, self.idle_seconds_max)
        return shortest / 4
