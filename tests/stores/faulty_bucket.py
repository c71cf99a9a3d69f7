"""A bucket of S3 in memory, over HTTP on the running loop, whose responses a test spoils.

It does what S3 does for the requests of verbs. A ``Fault`` gets each request, and answers in the bucket's place, before
or after the deed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from email.utils import formatdate
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from aioprefetch import Operator
from aioprefetch.testing.bucket import Answer, Bucket, Call, failed
from aioprefetch.testing.fault_server import receive

PART_BYTES = 5 << 20
PAGE = b"<html><body>Please log in</body></html>"

# Gives the response to a request in place of the bucket's, which the second argument computes, once or never.
Fault = Callable[[Call, Callable[[], Answer]], Answer]
LOST = Answer(200, None)


def _lost(call: Call, deed: Callable[[], Answer]) -> Answer:
    deed()
    return LOST


def _hollow(call: Call, deed: Callable[[], Answer]) -> Answer:
    if call.verb == "DeleteObject":  # Some stores say so that it is done.
        deed()
    return Answer(200)


def _spoiled(body: Callable[[bytes], bytes]) -> Fault:
    def fault(call: Call, deed: Callable[[], Answer]) -> Answer:
        done = deed()
        return Answer(done.status, body(done.body or b""), {k: v for k, v in done.headers.items() if k != "ETag"})

    return fault


def _after(answer: Answer) -> Fault:
    def fault(call: Call, deed: Callable[[], Answer]) -> Answer:
        deed()
        return answer

    return fault


FAULTS: dict[str, Fault] = {
    "cut": lambda call, deed: LOST,
    "500": lambda call, deed: failed(500, "InternalError"),
    "503": lambda call, deed: failed(503, "SlowDown"),
    "403": lambda call, deed: failed(403, "AccessDenied"),
    "error in a 200": lambda call, deed: Answer(200, failed(200, "InternalError").body),
    "hollow": _hollow,
    "page": lambda call, deed: Answer(200, PAGE, {"Content-Type": "text/html"}),
    "cut XML": _spoiled(lambda body: body[: len(body) // 2]),
    "lost": _lost,
    "500 after the deed": _after(failed(500, "InternalError")),
    "no ETag": _spoiled(lambda body: body.replace(b"ETag", b"Etagg")),
}


class FaultyBucket(Bucket):
    """The bucket. ``calls`` are the requests so far; ``fault`` spoils those that ``strikes`` selects."""

    def __init__(self, *, name: str = "bucket") -> None:
        super().__init__()
        self.name = name
        self.calls: list[Call] = []
        self.fault: Fault | None = None
        self.strikes: Callable[[Call], bool] = lambda call: True
        self.on_call: Callable[[Call], object] = lambda call: None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def endpoint_url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of an operator of the bucket."""
        return options_at(self.endpoint_url)

    def operator(self, **options: Any) -> Operator:
        """An operator of the bucket, quick to try again."""
        return operator_at(self.endpoint_url, self.name, **options)

    async def wait_until_idle(self) -> None:
        """Wait until all clients are gone and their requests are done."""
        while self._connections:
            await asyncio.wait(self._connections)

    # --- the wire -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._respond(reader, writer):
                pass
        writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        method, target, headers, body = await receive(reader, writer)
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        key = unquote(url.path).removeprefix(f"/{self.name}").removeprefix("/")
        call = Call(len(self.calls), method, key, query, headers, body)
        self.calls.append(call)
        self.on_call(call)
        answer = self.respond(call)
        if answer.body is None:
            return False
        writer.write(on_the_wire(answer, is_head=method == "HEAD"))
        await writer.drain()
        return True

    def respond(self, call: Call) -> Answer:
        """The response to a request, spoiled where it is to be."""
        if self.fault is not None and self.strikes(call):
            return self.fault(call, lambda: self.answer(call))
        return self.answer(call)

    def answer(self, call: Call) -> Answer:
        return self.get_object(call) if call.verb in ("GetObject", "HeadObject") else super().answer(call)

    def described(self, key: str) -> Mapping[str, str]:
        """Headers that describe an object."""
        return {}

    # --- what it reads ------------------------------------------------------------------------------------------

    def get_object(self, call: Call) -> Answer:
        data = self.objects.get(call.key)
        if data is None:
            return failed(404, "NoSuchKey")
        etag = self.etag(data)
        if call.headers.get("if-match", f'"{etag}"').strip('"') not in ("*", etag):
            return failed(412, "PreconditionFailed")
        headers = {"ETag": f'"{etag}"', "Last-Modified": formatdate(self.times[call.key], usegmt=True)}
        headers |= self.described(call.key)
        if call.headers.get("if-none-match", "").strip('"') == etag:
            return Answer(304, b"", headers)
        asked = call.headers.get("range", "").removeprefix("bytes=")
        if not asked or call.method == "HEAD":
            return Answer(200, data, {**headers, "Content-Length": str(len(data))})
        first, _, last = asked.partition("-")
        start = max(0, len(data) - int(last)) if not first else int(first)
        end = len(data) if not first or not last else min(int(last) + 1, len(data))
        if start >= len(data):
            return Answer(416, failed(416, "InvalidRange").body, {"Content-Range": f"bytes */{len(data)}"})
        return Answer(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})


def on_the_wire(answer: Answer, *, is_head: bool) -> bytes:
    """The bytes of a response."""
    body = answer.body or b""
    headers = {"Content-Length": str(len(body)), "Date": formatdate(usegmt=True), **answer.headers}
    if answer.status == 204 or "Transfer-Encoding" in headers:
        headers.pop("Content-Length")
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} X\r\n{lines}\r\n".encode("latin-1") + (b"" if is_head else body)


def options_at(endpoint_url: str) -> dict[str, Any]:
    """The options of an operator of a bucket that is served there, quick to try again."""
    return {
        "endpoint_url": endpoint_url,
        "region": "us-east-1",
        "access_key_id": "AKIAEXAMPLE",
        "secret_access_key": "secret",
        "retry_seconds": 0.001,
        "attempts_max": 3,
        "part_bytes": PART_BYTES,
    }


def operator_at(endpoint_url: str, name: str = "bucket", **options: Any) -> Operator:
    """An operator of a bucket that is served there, quick to try again."""
    return Operator.from_uri(f"s3://{name}", **{**options_at(endpoint_url), **options})
