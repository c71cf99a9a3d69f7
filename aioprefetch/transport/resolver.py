"""Names to addresses: believed for a while, begun at another one each time, and forgotten when one does not answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aioprefetch.errors import RedirectRefused
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import is_link_local_or_metadata

# What ``socket.getaddrinfo`` returns.
AddressInfo = tuple[int, int, int, str, Any]


# A name whose servers do not answer holds its thread for half a minute, which nobody can end.
THREADS_MAX = 8


class Resolver:
    """Resolves names on threads of its own. Who asks for a name that is being resolved waits for the same response."""

    def __init__(self, runtime: Runtime, options: ClientOptions) -> None:
        self._runtime = runtime
        self._options = options
        self._known: dict[tuple[str, int], tuple[float, list[AddressInfo]]] = {}
        self._asking: dict[tuple[str, int], asyncio.Future[list[AddressInfo]]] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._turns = 0

    async def resolve(self, host: str, port: int) -> list[AddressInfo]:
        """The addresses in the order to try. ``OSError`` for none, ``RedirectRefused`` for link-local ones."""
        until, found = self._known.get((host, port), (0.0, []))
        if not found or self._runtime.now() >= until:
            found = await self._ask(host, port)
            self._check(host, found)
            self._known[host, port] = (self._runtime.now() + self._options.addresses_seconds_max, found)
        self._turns += 1
        first = self._turns % len(found)
        # The families stay in the system's order; who connects races them (RFC 8305).
        return found[first:] + found[:first]

    def forget(self, host: str, port: int) -> None:
        """Ask again at the next connection: one of the addresses did not answer, or not well."""
        self._known.pop((host, port), None)

    def is_asking(self, host: str, port: int) -> bool:
        """Whether this name is being resolved, or waits for that."""
        return (host, port) in self._asking

    async def aclose(self) -> None:
        """Wait for no name any more. A thread that still asks for one is not ended by that."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        asking = tuple(self._asking.values())
        for one in asking:
            one.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _ask(self, host: str, port: int) -> list[AddressInfo]:
        if _is_address(host):
            return _getaddrinfo(host, port)
        asking = self._asking.get((host, port))
        if asking is None:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="aioprefetch-names")
            try:
                asking = self._runtime.loop.run_in_executor(self._executor, _getaddrinfo, host, port)
            except RuntimeError:  # The interpreter is shutting down and starts no thread any more.
                return _getaddrinfo(host, port)
            self._asking[host, port] = asking
            asking.add_done_callback(lambda done: self._answered((host, port), done))
        # Who gives up takes the response from nobody else.
        return await asyncio.shield(asking)

    def _answered(self, key: tuple[str, int], done: asyncio.Future[list[AddressInfo]]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # Seen, even if nobody waits any more.

    def _check(self, host: str, found: list[AddressInfo]) -> None:
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if not self._options.refuses_link_local or host == self._options.link_local_host:
            return
        if any(is_link_local_or_metadata(str(info[4][0]).partition("%")[0]) for info in found):
            raise RedirectRefused("the server redirects to a name that leads to a link-local or metadata address")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _getaddrinfo(host: str, port: int) -> list[AddressInfo]:
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError:  # A label that is empty or too long cannot be asked for.
        raise socket.gaierror(socket.EAI_NONAME, "no name") from None
