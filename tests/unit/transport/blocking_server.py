"""A server with a thread for each connection: what it has sent is in the kernel, whatever the test's loop does."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 10.0

Handler = Callable[[socket.socket], None]


class BlockingServer:
    """Calls ``handle`` for each connection, over TLS with a ``context``, and closes it when that returns."""

    def __init__(self, handle: Handler, context: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self._handle = handle
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE_SECONDS)  # From now on no more are accepted.
        for one in tuple(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        self._listener.close()

    def url(self, path: str = "/k") -> str:
        """An address on it."""
        scheme = "http" if self._context is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}{path}"

    def _start(self, call: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                # Otherwise the kernel keeps what is sent until the client has confirmed what was sent before.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                self._open.append(accepted)
                self._start(self._serve, accepted)

    def _serve(self, accepted: socket.socket) -> None:
        served = accepted
        try:
            with contextlib.suppress(OSError):
                if self._context is not None:
                    served = self._context.wrap_socket(accepted, server_side=True)
                    self._open.append(served)
                self._handle(served)
        finally:
            served.close()


def next_request(served: socket.socket) -> bool:
    """Read one request. ``False``: the client has hung up."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        received = served.recv(4096)
        if not received:
            return False
        head += received
    return True


def hang_up(served: socket.socket, *, says_so: bool) -> None:
    """Send no more, with or without TLS's word that this is the end, and wait until the client hangs up as well."""
    below = served
    if isinstance(served, ssl.SSLSocket):
        served.setblocking(False)
        if says_so:
            with contextlib.suppress(ssl.SSLError, ValueError):  # The latter where the test has ended meanwhile.
                served.unwrap()  # Sends the word, and does not wait for the client's.
        below = socket.socket(fileno=served.detach())
    with below, contextlib.suppress(OSError):
        below.settimeout(PATIENCE_SECONDS)
        below.shutdown(socket.SHUT_WR)
        while below.recv(4096):
            pass
