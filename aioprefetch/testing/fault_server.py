"""An HTTP/1.1 server on loopback that injects faults by script, to the byte.

It serves objects from a dict with ETag, ranges, conditions and 416, and enough of S3 (path style, XML errors) for the
GET and HEAD of a real client, and with a ``bucket`` for its writes, copies, uploads in parts, deletions and listings.
It produces faults that SDK mocks cannot: a body cut by FIN or RST after n bytes, a head that never arrives, a wrong
Content-Range.

    objects = {"bucket/key": b"..."}
    async with FaultServer(objects, [Rule(fault=Fault(reset_after_bytes=100), index=0)]) as server:
        ...  # a client against server.url
        server.assert_requests("GET", "GET")

It belongs to the event loop that it was entered in, and imports only the standard library.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from aioprefetch.testing.bucket import Bucket
from aioprefetch.testing.faults import NO_FAULT, Fault, PlannedResponse, ReceivedRequest, Rule, plan_response

HEAD_BYTES_MAX = 64 << 10
PIECE_BYTES = 64 << 10
LINGER_RESET = struct.pack("ii", 1, 0)  # on, for 0 seconds: close() drops unsent bytes and sends RST


class _Cut(Exception):
    """The response was cut, and the connection cannot be reused."""


@dataclass(slots=True)
class _Connection:
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: int = 0
    is_replying: bool = False

    async def send(self, data: bytes) -> None:
        """Pass bytes to the kernel. Returns when none are left in this process (up to 64 KiB may be, over TLS)."""
        for start in range(0, len(data), PIECE_BYTES):
            self.writer.write(data[start : start + PIECE_BYTES])
            await self.writer.drain()

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self.writer.transport.abort()


class FaultServer:
    """Serves `objects`, and applies to each request the fault of the first matching rule in `script`.

    `objects` maps paths without their first slash to contents. It may be changed while the server runs, which changes
    ETags too. `requests` is the log, oldest first; a request is logged before its response is sent. `tls` is the
    context of a server of https. With the name of a ``bucket``, clients may change and list it, and keys and paths are
    those in it.
    """

    region = "us-east-1"
    access_key_id = "testing"
    secret_access_key = "testing"

    def __init__(
        self,
        objects: Mapping[str, bytes],
        script: Sequence[Rule] = (),
        *,
        tls: ssl.SSLContext | None = None,
        bucket: str = "",
    ) -> None:
        self.objects = dict(objects)
        self._root = f"/{bucket}" if bucket else ""
        self._bucket = Bucket(self.objects) if bucket else None
        self._tls = tls
        self.requests: list[ReceivedRequest] = []
        self.body_bytes_sent: dict[int, int] = {}
        self._rules: list[tuple[Rule, list[int]]] = []
        self._faults = 0
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], _Connection] = {}
        self._connections = 0
        self._released = asyncio.Event()
        self._arrival = asyncio.Condition()
        self._quiet = asyncio.Event()
        self.add(*script)

    def __repr__(self) -> str:
        state = self.url if self._server else "stopped"
        return f"<FaultServer {state} requests={len(self.requests)} open={self.connections_open}>"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        server, self._server = self._server, None
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        if self._server is None:
            raise RuntimeError("the server is not running")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address, without a slash at the end. It is also the endpoint for an S3 client (path style)."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    endpoint_url = url

    @property
    def bytes_sent(self) -> int:
        """The number of bytes of all bodies that were passed to the kernel."""
        return sum(self.body_bytes_sent.values())

    @property
    def connections(self) -> int:
        """The number of connections that clients have opened. Over TLS a connection counts after its handshake."""
        return self._connections

    @property
    def connections_open(self) -> int:
        """The number of connections that are still open on either side."""
        return len(self._tasks)

    @property
    def uploads(self) -> list[str]:
        """The keys of the uploads in parts that were begun, and neither completed nor aborted."""
        return [] if self._bucket is None else [key for key, _ in self._bucket.uploads.values()]

    def add(self, *rules: Rule) -> None:
        """Append rules to the script."""
        self._rules += [(rule, [0]) for rule in rules]

    def behave(self) -> None:
        """Clear the script: later requests have no faults."""
        self._rules.clear()

    @property
    def faults(self) -> int:
        """How many requests have met a rule so far. A test whose fault never happened shows nothing."""
        return self._faults

    def release(self) -> None:
        """Let hanging responses continue, current and later ones."""
        self._released.set()

    def count(self, method: str | None = None) -> int:
        """The number of requests, of one method or of all methods."""
        return sum(method is None or request.method == method for request in self.requests)

    def assert_requests(self, *methods: str) -> None:
        """Fail unless exactly these methods arrived, in this order."""
        seen = tuple(request.method for request in self.requests)
        assert seen == methods, f"expected {methods}, got {[(r.method, r.target, r.range) for r in self.requests]}"

    def assert_ranges(self, *ranges: str | None) -> None:
        """Fail unless exactly these Range headers arrived, in this order; None stands for no header."""
        seen = tuple(request.range for request in self.requests)
        assert seen == ranges, f"expected {ranges}, got {seen}"

    async def wait_for_requests(self, number: int, *, timeout_seconds: float = 5.0) -> None:
        """Wait until ``number`` requests have arrived in total.

        Raises:
            TimeoutError: fewer arrived within `timeout_seconds`.
        """
        async with asyncio.timeout(timeout_seconds), self._arrival:
            await self._arrival.wait_for(lambda: len(self.requests) >= number)

    async def wait_until_idle(self, *, connections_max: int = 0, timeout_seconds: float = 5.0) -> None:
        """Wait until at most ``connections_max`` connections are open.

        Raises:
            TimeoutError: more are still open after `timeout_seconds`.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                while len(self._tasks) > connections_max:
                    await asyncio.wait(list(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise TimeoutError(f"{len(self._tasks)} connections are still open") from None

    async def wait_until_quiet(self, *, timeout_seconds: float = 5.0) -> None:
        """Wait until no response is in flight: all open connections are idle.

        Raises:
            TimeoutError: a client neither reads nor drops a response within `timeout_seconds`.
        """
        async with asyncio.timeout(timeout_seconds):
            while any(connection.is_replying for connection in self._tasks.values()):
                self._quiet.clear()
                await self._quiet.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:
            writer.transport.abort()  # it was accepted just before the server stopped
            return
        connection = _Connection(self._connections, reader, writer)
        self._connections += 1
        self._tasks[task] = connection
        # With this limit drain() waits until the kernel has all bytes. Under TLS a limit of 0 would stay paused after
        # all bytes are written; there drain() waits for encryption, and the transport below keeps up to 64 KiB.
        writer.transport.set_write_buffer_limits(*((0,) if self._tls is None else (1, 0)))
        try:
            while await self._serve_one(connection):
                connection.is_replying = False
                self._quiet.set()
        except (_Cut, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()  # the server stops without a graceful close
        finally:
            writer.close()
            # A cancellation here means that the server stops while this connection is closing anyway. asyncio.streams
            # (Python 3.11) would report a cancelled task as a failed callback.
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            del self._tasks[task]
            self._quiet.set()

    async def _serve_one(self, connection: _Connection) -> bool:
        request = await self._receive(connection)
        connection.is_replying = True
        self.requests.append(request)
        self.body_bytes_sent[request.index] = 0
        async with self._arrival:
            self._arrival.notify_all()
        fault = self._fault_for(request)
        response = plan_response(request, self.objects, fault, self._bucket)
        if fault.delay_head_seconds:
            await asyncio.sleep(fault.delay_head_seconds)
        if fault.hang_before_head:
            await self._hang(connection)
        if fault.drop:
            raise _Cut
        if fault.reset_before_head:
            connection.reset()
            raise _Cut
        if fault.raw is None and fault.raw_body is None:
            await self._send_body(connection, request, response, fault)
        else:
            await connection.send(response.head() + (fault.raw_body or b"") if fault.raw is None else fault.raw)
        if fault.extra_body:
            await connection.send(fault.extra_body)
        if fault.close_after_reply:
            return False
        return "close" not in (response.headers.get("Connection", ""), request.headers.get("connection", ""))

    async def _receive(self, connection: _Connection) -> ReceivedRequest:
        method, target, headers, body = await receive(connection.reader, connection.writer)
        connection.requests += 1
        return ReceivedRequest(
            index=len(self.requests),
            method=method,
            target=target,
            path=unquote(target.partition("?")[0]).removeprefix(self._root),
            headers=headers,
            body=body,
            connection_id=connection.number,
            connection_index=connection.requests - 1,
        )

    def _fault_for(self, request: ReceivedRequest) -> Fault:
        for rule, used in self._rules:
            if (rule.times is None or used[0] < rule.times) and rule.applies(request):
                used[0] += 1
                self._faults += 1
                return rule.fault
        return NO_FAULT

    async def _send_body(
        self, connection: _Connection, request: ReceivedRequest, response: PlannedResponse, fault: Fault
    ) -> None:
        cut = fault.cut_after_bytes
        body = response.body if cut is None else response.body[:cut]
        piece_bytes = fault.drip_bytes or PIECE_BYTES
        # The head is sent with the first piece, as by a real server.
        waiting = response.head()
        for start in range(0, len(body), piece_bytes):
            piece = body[start : start + piece_bytes]
            framed = b"%x\r\n%b\r\n" % (len(piece), piece) if fault.chunked else piece
            await connection.send(waiting + framed)
            waiting = b""
            self.body_bytes_sent[request.index] += len(piece)
            if fault.drip_delay_seconds:
                await asyncio.sleep(fault.drip_delay_seconds)
        if cut is not None:
            await connection.send(waiting)
            await self._cut(connection, fault)
            # A released hang continues where it stopped.
            waiting, rest = b"", response.body[cut:]
            self.body_bytes_sent[request.index] += len(rest)
            await connection.send(b"%x\r\n%b\r\n" % (len(rest), rest) if fault.chunked and rest else rest)
        await connection.send(waiting + (b"0\r\n\r\n" if fault.chunked and request.method != "HEAD" else b""))

    async def _cut(self, connection: _Connection, fault: Fault) -> None:
        if fault.reset_after_bytes is not None:
            connection.reset()
            raise _Cut
        if fault.close_after_bytes is not None:
            raise _Cut
        await self._hang(connection)

    async def _hang(self, connection: _Connection) -> None:
        """Send nothing until `release`, or until the client hangs up."""
        released = asyncio.ensure_future(self._released.wait())
        gone = asyncio.ensure_future(connection.reader.read(1))
        try:
            await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise _Cut
        finally:
            for future in (released, gone):
                future.cancel()
            await asyncio.gather(released, gone, return_exceptions=True)


async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str, dict[str, str], bytes]:
    """The next request: its method, target, headers by their names in lower case, and body, in any framing."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    method, target, _version = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in headers.get("transfer-encoding", ""):
        body = await _received_in_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, target, headers, _unchunked(body) if "aws-chunked" in headers.get("content-encoding", "") else body


async def _received_in_chunks(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        data += (await reader.readexactly(size + 2))[:size]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return data


def _unchunked(body: bytes) -> bytes:
    data, position = b"", 0
    while True:
        end = body.index(b"\r\n", position)
        size = int(body[position:end].partition(b";")[0], 16)
        if size == 0:
            return data
        data += body[end + 2 : end + 2 + size]
        position = end + 2 + size + 2
