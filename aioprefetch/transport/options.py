"""The options of a client: trust, timeouts, and limits on connections."""

from __future__ import annotations

from aioprefetch.lean_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of an ``HttpClient``; the services that expose them check their values.

    Parameters
    ----------
    connect_timeout_seconds
        The time for name resolution, connecting, the proxy and TLS together.
    next_address_seconds
        The second address of a name is tried when the first one has not responded for this time (RFC 8305).
    first_byte_timeout_seconds
        The time from the request to the head of its response.
    stall_timeout_seconds
        A body that stays below ``stall_bytes_per_second`` for this time has stalled. Pauses by its receiver are not
        counted.
    stall_bytes_per_second
        The lowest rate of a body that has not stalled.
    connections_max
        The maximum of open connections, including connections being made.
    connections_per_host_max
        The maximum of them to one host.
    wait_timeout_seconds
        The time that a request waits for a connection to become free.
    idle_seconds_max
        An idle connection is closed after this time: sooner than servers close it (S3 after 20 seconds).
    age_seconds_max
        A connection of this age is not reused, so that names are resolved again and load moves to new servers.
    addresses_seconds_max
        The time for which a resolved name is cached.
    ca_bundle
        A PEM file of the authorities to trust instead of the system's.
    refuses_link_local
        Refuse names that resolve to link-local or metadata addresses, except ``link_local_host``: a redirect could
        name one.
    """

    connect_timeout_seconds: float = 5.0
    next_address_seconds: float = 0.25
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
        """The interval between two checks of the connections: no limit is exceeded by more than a quarter."""
        shortest = min(self.first_byte_timeout_seconds, self.stall_timeout_seconds, self.idle_seconds_max)
        return shortest / 4
