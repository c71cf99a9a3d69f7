"""An S3 server in this process that records requests: moto behind a keep-alive WSGI server.

Where moto differs from S3 (measured, moto 5.2.5):

* 416 carries no `Content-Range: bytes */N`; the size is in the XML body as ActualObjectSize.
* A suffix range of an empty object is 200 with no bytes (S3: 416); `bytes=0-9` of it is 416.
* `bytes=5-4`, several ranges and nonsense are 200 with the whole object, as on S3 for the first.
* `If-Match: *` is 412 even for an object that exists. An unquoted ETag matches.
* HEAD with a false If-Match is 412 with the object's Content-Length; HEAD of a missing key is 404 text/html, no code.
* `PartNumber` in a GET is ignored: 200 with the whole object. CopySourceIfMatch is ignored: 200.
* Neither signature nor expiry of a presigned URL is checked. A HEAD with a URL signed for GET is 200 (S3: 403).
  A request without any signature is 403 with an empty text/html body (the object's ACL is private).
* A key with a newline is 404 on PUT; a key of 1025 bytes is accepted (S3: KeyTooLongError).
* x-amzn-requestid instead of x-amz-request-id. A GET costs about 1.9 ms of CPU in this process.
* A quiet DeleteObjects reports the deleted keys anyway.

As in S3: 206 with Content-Range, a range that crosses the end is cut, a suffix longer than the object is the whole
object with 206, 412 comes before 416, 304 has an ETag, 404 for a key is NoSuchKey and for a bucket NoSuchBucket,
multipart ETags end in -N, pages of list-objects-v2 with tokens, delimiter and start-after, keys with space + % # ?
// unicode and 1024 bytes, keys that start or end with a slash.

moto keeps its state per process: two servers in one process see the same buckets.

werkzeug's own handler waits 10 ms for stray input after each response and closes the connection, and its threads
outlive `shutdown()`. Both would disturb tests and benchmarks, so a handler of our own keeps connections alive, responds
without Nagle delays, and leaves no thread behind when it stops.

The demo uses it too. It may import werkzeug and moto (extra `demo`).
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import parse_qsl, unquote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import DechunkedInput, ThreadedWSGIServer

from aioprefetch.runtime.threads import never_collect_here

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
        never_collect_here()
        # `shutdown` may take up to the poll interval. The listening socket is closed at the end.
        self.serve_forever(poll_interval=0.02)

    def _serve_connection(self, request: Any, client_address: Any) -> None:
        never_collect_here()  # A client in the same process waits for this thread.
        try:
            self.process_request_thread(request, client_address)
        finally:
            with self._lock:
                del self._connections[threading.current_thread()]


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # its thread may have closed it
        connection.shutdown(socket.SHUT_RDWR)


# --- the server that counts -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request to the server.

    `target` is the request target as sent; `path` (decoded) and `query` are its parts.
    `body_bytes` is the size of the response's body as passed to the socket, zero for HEAD. `access_key_id` comes
    from its signature, in a header or in the URL; it is empty for an unsigned request.
    """

    method: str
    target: str
    path: str
    query: str
    range: str | None
    if_match: str | None
    status: int
    body_bytes: int
    access_key_id: str


class CountingS3Server:
    """moto's S3 on a free loopback port, with a record of each request.

    Any access key and secret are accepted, and unsigned requests too. Use it as a context manager, or call
    `start` and `stop`. Safe to use from any thread.
    """

    region = "us-east-1"
    access_key_id = "testing"
    secret_access_key = "testing"

    _running = 0
    _running_lock = threading.Lock()
    # One request at a time: moto reads the bytes of an object for its ETag while another thread may be reading them.
    _moto_lock = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorded: list[RecordedRequest] = []
        self._server: KeepAliveServer | None = None
        self._connections = 0

    def __repr__(self) -> str:
        state = self.endpoint_url if self._server else "stopped"
        return f"<CountingS3Server {state} requests={len(self.requests)}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The address for clients."""
        if self._server is None:
            raise RuntimeError("the server is not running")
        return self._server.url

    @property
    def requests(self) -> list[RecordedRequest]:
        """A copy of the record, oldest first. A request is recorded before its response is sent."""
        with self._lock:
            return list(self._recorded)

    @property
    def bytes_sent(self) -> int:
        """The number of bytes of response bodies since the last `reset`."""
        return sum(request.body_bytes for request in self.requests)

    @property
    def connections(self) -> int:
        """The number of connections opened since the last `reset`, each counted before its first request."""
        with self._lock:
            return self._connections

    def count(self, method: str | None = None) -> int:
        """The number of requests since the last `reset`, of one method or of all methods."""
        return sum(method is None or request.method == method for request in self.requests)

    def reset(self) -> None:
        """Forget the recorded requests and connections. Buckets and objects stay."""
        with self._lock:
            self._recorded.clear()
            self._connections = 0

    def create_bucket(self, name: str) -> None:
        """Create a bucket, without recording the request."""
        # moto checks the scope of a signature but not the signature, so an invalid one suffices.
        scope = f"{self.access_key_id}/20260101/{self.region}/s3/aws4_request"
        signature = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none"
        host = self.endpoint_url.removeprefix("http://")
        with contextlib.closing(http.client.HTTPConnection(host)) as connection:
            connection.request("PUT", f"/{name}", headers={"Authorization": signature})
            response = connection.getresponse()
            response.read()
        if response.status != 200:
            raise RuntimeError(f"moto did not create the bucket {name!r}: {response.status}")
        with self._lock:
            del self._recorded[-1]
            self._connections -= 1

    def start(self) -> Self:
        """Serve until `stop`."""
        if self._server is not None:
            raise RuntimeError("the server is already running")
        app = DomainDispatcherApplication(create_backend_app)
        self._server = KeepAliveServer(
            self._recording(app), name="aioprefetch-s3", on_connection=self._count_connection
        )
        self._server.start()
        with self._running_lock:
            CountingS3Server._running += 1
        return self

    def stop(self) -> None:
        """Stop serving. The last server of the process to stop drops all buckets. May be repeated."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.stop()
        with self._running_lock:
            CountingS3Server._running -= 1
            if CountingS3Server._running == 0:
                _drop_buckets()

    def _count_connection(self) -> None:
        with self._lock:
            self._connections += 1

    def _recording(self, app: Any) -> WSGIApp:
        def recording(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            status = 500

            def start(line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
                nonlocal status
                status = int(line.split(" ", 1)[0])
                return start_response(line, headers, exc_info)

            with self._moto_lock:
                body = b"".join(app(environ, start))
            self._record(environ, status, body)
            return [body]

        return recording

    def _record(self, environ: dict[str, Any], status: int, body: bytes) -> None:
        # WSGI passes the target as latin-1 text. The path is decoded from it, since PATH_INFO loses escapes.
        target = environ["RAW_URI"].encode("latin-1").decode("utf-8", "replace")
        path, _, query = target.partition("?")
        method = environ["REQUEST_METHOD"]
        request = RecordedRequest(
            method=method,
            target=target,
            path=unquote(path),
            query=query,
            range=environ.get("HTTP_RANGE"),
            if_match=environ.get("HTTP_IF_MATCH"),
            status=status,
            body_bytes=0 if method == "HEAD" else len(body),
            access_key_id=_access_key_id(environ.get("HTTP_AUTHORIZATION", ""), query),
        )
        with self._lock:
            self._recorded.append(request)


def _access_key_id(authorization: str, query: str) -> str:
    credential = authorization.partition("Credential=")[2] or dict(parse_qsl(query)).get("X-Amz-Credential", "")
    return credential.partition("/")[0]


def _drop_buckets() -> None:
    for _account, _region, backend in s3_backends.iter_backends():
        backend.reset()
