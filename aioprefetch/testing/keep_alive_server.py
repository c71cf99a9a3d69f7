"""A WSGI server that keeps connections alive, responds without Nagle delays, and leaves no thread behind when it stops.

werkzeug's own handler waits 10 ms for stray input after each response and closes the connection, and its threads
outlive `shutdown()`. Both would disturb tests and benchmarks.

It may import werkzeug and moto (extra `demo`).
"""

import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import DechunkedInput, ThreadedWSGIServer

JOIN_SECONDS_MAX = 5.0
BODYLESS_STATUSES = frozenset({204, 304})

WSGIApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class KeepAliveHandler(MotoRequestHandler):
    """Serves many requests on one connection. Bodies of requests and responses are held in memory."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are sent at once; with Nagle a response can take 41 ms
    wbufsize = -1  # head and body in one segment if they fit

    def run_wsgi(self) -> None:
        """Serve one request."""
        if self.headers.get("Expect", "").strip().lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
        environ = self.make_environ()
        # The whole body is read before the application runs, so that the next request line follows.
        environ["wsgi.input"] = io.BytesIO(self._read_body())
        environ.pop("wsgi.input_terminated", None)
        status, headers, body = self._call(environ)
        self._reply(status, headers, body)

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - a name of werkzeug
        """Log nothing."""

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return DechunkedInput(cast(Any, self.rfile)).read()
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _call(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
            started[:] = [(status, headers)]

        try:
            parts = self.server.app(environ, cast(Any, start_response))
            try:
                body = b"".join(parts)
            finally:
                getattr(parts, "close", lambda: None)()
        except Exception as error:  # the thread must survive errors of the application
            return "500 Internal Server Error", [("Content-Type", "text/plain")], repr(error).encode()
        status, headers = started[0]
        return status, headers, body

    def _reply(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        code, _, reason = status.partition(" ")
        sized = any(name.lower() == "content-length" for name, _ in headers)
        self.send_response(int(code), reason)
        for name, value in headers:
            if name.lower() not in {"connection", "server", "date"}:
                self.send_header(name, value)
        if not sized and int(code) not in BODYLESS_STATUSES:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and int(code) not in BODYLESS_STATUSES:
            self.wfile.write(body)
        self.wfile.flush()


class KeepAliveServer(ThreadedWSGIServer):
    """Serves a WSGI application on a free loopback port, one thread per connection, until `stop`.

    `on_connection` is called for each connection before its first request is read.
    """

    daemon_threads = True  # an interrupted test run must not hang on an idle connection

    def __init__(self, app: WSGIApp, *, name: str, on_connection: Callable[[], None] = lambda: None) -> None:
        super().__init__("127.0.0.1", 0, cast(Any, app), handler=KeepAliveHandler)
        self._name = name
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._on_connection = on_connection
        self._acceptor = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)

    @property
    def url(self) -> str:
        """The address of the server, without a slash at the end."""
        return f"http://127.0.0.1:{self.server_port}"

    def start(self) -> None:
        """Begin to accept connections."""
        self._acceptor.start()

    def stop(self) -> None:
        """Stop accepting, cut the open connections and wait for every thread to end."""
        self.shutdown()
        self._acceptor.join(JOIN_SECONDS_MAX)
        with self._lock:
            connections = dict(self._connections)
        for connection in connections.values():
            _hang_up(connection)
        for thread in connections:
            thread.join(JOIN_SECONDS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread that `stop` can find."""
        thread = threading.Thread(
            target=self._serve_connection,
            args=(request, client_address),
            name=f"{self._name}-connection",
            daemon=True,
        )
        with self._lock:
            self._connections[thread] = request
        self._on_connection()
        thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients of tests hang up."""

    def _accept(self) -> None:
        # `shutdown` may take up to the poll interval. The listening socket is closed at the end.
        self.serve_forever(poll_interval=0.02)

    def _serve_connection(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # its thread may have closed it
        connection.shutdown(socket.SHUT_RDWR)
