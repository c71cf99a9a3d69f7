"""How a connection is made: name, address, proxy, TLS. Whatever fails is one of our errors, and leaves no socket."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import select
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aioprefetch.errors import (
    ConfigInvalid,
    PermissionDenied,
    ProtocolError,
    RedirectRefused,
    TimedOut,
    Unavailable,
    Unsupported,
)
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport.connection import Connection
from aioprefetch.transport.errors import not_connected
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Origin, Proxy, Route, encoded_head, is_link_local_or_metadata
from aioprefetch.transport.response_head import HEAD_BYTES_MAX, parse_head
from aioprefetch.transport.tls import tls_context

# What ``socket.getaddrinfo`` returns.
AddressInfo = tuple[int, int, int, str, Any]
# A name whose servers do not answer holds its thread for half a minute, which nobody can end.
THREADS_MAX = 8
# The second address is tried when the first one has not answered for so long (RFC 8305).
NEXT_ADDRESS_SECONDS = 0.25


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


class Connector:
    """Makes connections for one client."""

    def __init__(self, runtime: Runtime, options: ClientOptions) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._options = options
        self._resolver = Resolver(runtime, options)
        self._context: ssl.SSLContext | None = None
        self._reading_context = asyncio.Lock()

    async def connect(self, route: Route, on_lost: Callable[[Connection], None]) -> Connection:
        """A connection to the origin. If cancelled, the socket is closed. ``on_lost`` is called only for what is made.

        Raises ``Unavailable``, ``TimedOut`` after ``connect_timeout_seconds``, ``ConfigInvalid`` for TLS that cannot
        work, ``RedirectRefused``.
        """
        origin, proxy = route.origin, route.proxy
        first = origin if proxy is None else proxy.origin
        if proxy is not None and proxy.origin.scheme == origin.scheme == "https":
            raise Unsupported(f"the proxy {proxy.origin} would need TLS within TLS; give its address with http://")
        context = await self._tls_context() if "https" in (origin.scheme, first.scheme) else None
        try:
            async with asyncio.timeout(self._options.connect_timeout_seconds):
                sock = await self._open_socket(first)
                return await self._connect_over(sock, route, context, on_lost)
        except TimeoutError:
            raise self._timed_out(first) from None
        except (OSError, ssl.SSLError) as error:
            self._resolver.forget(first.host, first.port)
            is_tls_within = isinstance(error, ssl.SSLError) and origin.scheme == "https"
            where = str(origin) if proxy is None or is_tls_within else f"the proxy {first}"
            raise not_connected(error, where) from None

    async def aclose(self) -> None:
        """Resolve no name any more."""
        await self._resolver.aclose()

    def _timed_out(self, first: Origin) -> TimedOut:
        limit = f"within connect_timeout_seconds={self._options.connect_timeout_seconds:g}"
        if self._resolver.is_asking(first.host, first.port):
            return TimedOut(f"the name of {first} was not resolved {limit}", context={"reason": "dns"})
        self._resolver.forget(first.host, first.port)
        return TimedOut(f"no connection to {first} {limit}")

    async def _open_socket(self, origin: Origin) -> socket.socket:
        from aiohappyeyeballs import start_connection

        addresses = await self._resolver.resolve(origin.host, origin.port)
        return await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_SECONDS, interleave=1)

    async def _connect_over(
        self, sock: socket.socket, route: Route, context: ssl.SSLContext | None, on_lost: Callable[[Connection], None]
    ) -> Connection:
        origin, proxy = route.origin, route.proxy
        if proxy is not None and origin.scheme == "https":
            try:
                await _open_tunnel(self._loop, sock, origin, proxy)
            except BaseException:
                sock.close()
                raise
        # From here on the socket belongs to its transport, which closes it whatever happens: were it closed beneath
        # that, the next socket with its number would be taken for it.
        transport, connection = await self._loop.create_connection(
            lambda: Connection(self._loop, route, on_lost, arrivals(sock)), sock=sock
        )
        if context is None:
            return connection
        server = origin if proxy is None or origin.scheme == "https" else proxy.origin
        try:
            secured = await self._loop.start_tls(
                transport,
                connection,
                context,
                server_hostname=server.host.rstrip("."),
                ssl_handshake_timeout=self._options.connect_timeout_seconds,
            )
        except BaseException as error:
            transport.abort()
            if isinstance(error, ValueError) and not isinstance(error, ssl.SSLError):  # Often a UnicodeError.
                # Where a proxy looks up the name, TLS is the first to read it.
                raise ConfigInvalid(f"the host of {server} is no name that a certificate could have") from None
            raise
        if secured is None:
            raise ConnectionAbortedError
        connection.connection_made(secured)
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        # Reading the system's authorities takes tens of milliseconds, so it is done once, and in a thread. It has as
        # long as a connection has, but takes none of that time: a slow disk is no matter of the network.
        if self._context is not None:
            return self._context
        limit_seconds = self._options.connect_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds), self._reading_context:
                if self._context is None:
                    self._context = await self._runtime.run_blocking(tls_context, self._options.ca_bundle)
                return self._context
        except TimeoutError:
            files = "of the system" if self._options.ca_bundle is None else f"in ca_bundle {self._options.ca_bundle!r}"
            raise TimedOut(
                f"the certificates {files} were not read within connect_timeout_seconds={limit_seconds:g}"
            ) from None


def arrivals(sock: socket.socket) -> Callable[[], object]:
    """A quick call that returns something true when the socket has bytes to receive, or has ended."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return functools.partial(poll.poll, 0)


async def _open_tunnel(loop: asyncio.AbstractEventLoop, sock: socket.socket, origin: Origin, proxy: Proxy) -> None:
    """Let the proxy connect us with the origin (RFC 9110, 9.3.6). Its response is read before TLS begins."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    address = f"{host}:{origin.port}"
    fields = {"Host": address}
    if proxy.authorization:
        fields["Proxy-Authorization"] = proxy.authorization
    await loop.sock_sendall(sock, encoded_head(f"CONNECT {address} HTTP/1.1", fields) + b"\r\n")
    head = bytearray()
    while (end := head.find(b"\r\n\r\n")) < 0:
        received = await loop.sock_recv(sock, 4096)
        head += received
        if not received:
            raise Unavailable(f"the proxy {proxy.origin} closed the connection")
        if len(head) > HEAD_BYTES_MAX:
            raise ProtocolError(f"the proxy {proxy.origin} answered CONNECT without end")
    status = parse_head(bytes(head[: end + 4]), is_head=True).status
    if status in (401, 403, 407):
        raise PermissionDenied(f"the proxy answered {status}: give its user and password in its URL")
    if not 200 <= status < 300:
        raise Unavailable(f"the proxy answered {status}")
    if len(head) > end + 4:
        # The server behind says nothing before we do, so all that comes is the proxy's.
        raise ProtocolError(f"the proxy {proxy.origin} answered CONNECT with more than a head")


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
