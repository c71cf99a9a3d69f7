"""Making a connection: name, address, proxy, TLS. Each failure is an error of ours and leaves no socket open."""

from __future__ import annotations

import asyncio
import functools
import select
import socket
import ssl
from collections.abc import Callable
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
from aioprefetch.runtime.threads import in_thread
from aioprefetch.transport.connection import Connection
from aioprefetch.transport.errors import not_connected
from aioprefetch.transport.options import ClientOptions
from aioprefetch.transport.origin import Origin, Proxy, Route, encoded_head, is_address, is_link_local_or_metadata
from aioprefetch.transport.responses import HEAD_BYTES_MAX, parse_head
from aioprefetch.transport.tls import tls_context

# An item of ``socket.getaddrinfo``.
AddressInfo = tuple[int, int, int, str, Any]


class Resolver:
    """Resolves names in threads, each once for all requests that wait for it, and caches the addresses."""

    def __init__(self, runtime: Runtime, options: ClientOptions) -> None:
        self._runtime = runtime
        self._options = options
        self._cached: dict[tuple[str, int], tuple[float, list[AddressInfo]]] = {}
        self._resolving: dict[tuple[str, int], asyncio.Future[list[AddressInfo]]] = {}
        self._turns = 0

    async def resolve(self, host: str, port: int) -> list[AddressInfo]:
        """The addresses in the order to try, beginning at another one each time.

        Raises ``OSError`` for a name without addresses, ``RedirectRefused`` for link-local ones.
        """
        until, addresses = self._cached.get((host, port), (0.0, []))
        if not addresses or self._runtime.now() >= until:
            addresses = await self._ask(host, port)
            self._check(host, addresses)
            self._cached[host, port] = (self._runtime.now() + self._options.addresses_seconds_max, addresses)
        self._turns += 1
        first = self._turns % len(addresses)
        # The families keep the order of the system; connecting races them (RFC 8305).
        return addresses[first:] + addresses[:first]

    def forget(self, host: str, port: int) -> None:
        """Resolve the name again for the next connection, because one of its addresses failed."""
        self._cached.pop((host, port), None)

    def is_resolving(self, host: str, port: int) -> bool:
        """Whether a name is being resolved, or waits for a thread."""
        return (host, port) in self._resolving

    async def aclose(self) -> None:
        """Cancel the waits for names. Threads that are resolving continue until the system responds."""
        waits = tuple(self._resolving.values())
        for wait in waits:
            wait.cancel()
        if waits:
            await asyncio.wait(waits)

    async def _ask(self, host: str, port: int) -> list[AddressInfo]:
        if is_address(host):
            return _getaddrinfo(host, port)
        resolving = self._resolving.get((host, port))
        if resolving is None:
            resolving = in_thread(_getaddrinfo, host, port)
            if not resolving.done():  # It may be, from Python 3.14 on, and then its callbacks come after this call.
                self._resolving[host, port] = resolving
                resolving.add_done_callback(lambda done: self._resolved((host, port), done))
        try:
            return await asyncio.shield(resolving)  # A cancelled request must not end the wait of others.
        finally:
            del resolving  # The traceback of its error holds this frame.

    def _resolved(self, key: tuple[str, int], done: asyncio.Future[list[AddressInfo]]) -> None:
        del self._resolving[key]
        if not done.cancelled():
            done.exception()  # Retrieved here, because all waits may have been cancelled.

    def _check(self, host: str, addresses: list[AddressInfo]) -> None:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        if not self._options.refuses_link_local or host == self._options.link_local_host:
            return
        if any(is_link_local_or_metadata(str(info[4][0]).partition("%")[0]) for info in addresses):
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
        """Open a connection to the origin of a route; ``on_lost`` is called once it is lost, if it was returned.

        Raises ``Unavailable``, ``TimedOut`` after ``connect_timeout_seconds``, ``ConfigInvalid`` for unusable TLS,
        ``RedirectRefused`` for a link-local address. If cancelled, the socket is closed.
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
        except TimeoutError as late:
            late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
            raise self._timed_out(first) from None
        except (OSError, ssl.SSLError) as error:
            error.__traceback__ = None  # A frame of aiohappyeyeballs holds the error.
            self._resolver.forget(first.host, first.port)
            is_tls_within = isinstance(error, ssl.SSLError) and origin.scheme == "https"
            where = str(origin) if proxy is None or is_tls_within else f"the proxy {first}"
            raise not_connected(error, where) from None

    async def aclose(self) -> None:
        """Cancel the waits for names."""
        await self._resolver.aclose()

    def _timed_out(self, first: Origin) -> TimedOut:
        limit = f"within connect_timeout_seconds={self._options.connect_timeout_seconds:g}"
        if self._resolver.is_resolving(first.host, first.port):
            return TimedOut(f"the name of {first} was not resolved {limit}", context={"reason": "dns"})
        self._resolver.forget(first.host, first.port)
        return TimedOut(f"no connection to {first} {limit}")

    async def _open_socket(self, origin: Origin) -> socket.socket:
        from aiohappyeyeballs import start_connection

        addresses = await self._resolver.resolve(origin.host, origin.port)
        return await start_connection(addresses, happy_eyeballs_delay=self._options.next_address_seconds, interleave=1)

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
        # From here on the transport owns the socket and closes it. If it were closed here, the transport would use the
        # next socket with the same number.
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
                # If a proxy resolves the name, TLS is the first to read it here.
                raise ConfigInvalid(f"the host of {server} is not a valid name for a certificate") from None
            raise
        if secured is None:
            raise ConnectionAbortedError
        connection.connection_made(secured)
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        # Reading the authorities of the system takes tens of milliseconds, so a thread does it once. It has a limit of
        # its own, as long as a connection's: a slow disk is not a failure of the network.
        if self._context is not None:
            return self._context
        limit_seconds = self._options.connect_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds), self._reading_context:
                if self._context is None:
                    self._context = await self._runtime.run_blocking(tls_context, self._options.ca_bundle)
                return self._context
        except TimeoutError as late:
            late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
            files = "of the system" if self._options.ca_bundle is None else f"in ca_bundle {self._options.ca_bundle!r}"
            raise TimedOut(
                f"the certificates {files} were not read within connect_timeout_seconds={limit_seconds:g}"
            ) from None


def arrivals(sock: socket.socket) -> Callable[[], object]:
    """A quick call that returns a true value when the socket has bytes to receive, or has ended."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return functools.partial(poll.poll, 0)


async def _open_tunnel(loop: asyncio.AbstractEventLoop, sock: socket.socket, origin: Origin, proxy: Proxy) -> None:
    """Let the proxy open a tunnel to the origin (RFC 9110, 9.3.6); its response is read before TLS begins."""
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
            raise ProtocolError(f"the proxy {proxy.origin} sent an endless response to CONNECT")
    status = parse_head(bytes(head[: end + 4]), is_head=True).status
    if status in (401, 403, 407):
        raise PermissionDenied(f"the proxy responded {status}: give its user and password in its URL")
    if not 200 <= status < 300:
        raise Unavailable(f"the proxy responded {status}")
    if len(head) > end + 4:
        # The origin sends nothing before TLS begins, so these bytes are from the proxy.
        raise ProtocolError(f"the proxy {proxy.origin} sent more than a head in response to CONNECT")


def _getaddrinfo(host: str, port: int) -> list[AddressInfo]:
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except UnicodeError:  # A label is empty or too long.
        raise socket.gaierror(socket.EAI_NONAME, "not a valid name") from None
