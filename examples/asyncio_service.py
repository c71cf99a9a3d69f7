# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3]", "httpx", "starlette", "uvicorn"]
# ///
"""An HTTP service that serves byte ranges of objects: Starlette, one Operator for the application's lifespan.

``GET`` and ``HEAD`` of ``/objects/<path>``, with ``Range``, ``If-Range`` and ``If-None-Match``; 206, 304, 404 and 416
as RFC 9110 says. A body is streamed block by block, of the one version that its ETag names.

    python asyncio_service.py                      # shows itself, over memory://
    python asyncio_service.py s3://bucket/prefix   # serves that on port 8000
"""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import aioprefetch as ap
from aioprefetch.accessor.http_headers import quote_etag

CHUNK_BYTES = 1 << 20
FAR = 1 << 62  # beyond the end of every object
ONE_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
STATUS_OF = {ap.NotFound: 404, ap.IsADirectory: 404, ap.InvalidPath: 400, ap.PermissionDenied: 403}


def make_app(url: str, **options: object) -> Starlette:
    """The application over one store. Its Operator lives as long as the application does."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with ap.Operator.from_uri(url, **options) as app.state.operator:
            yield

    routes = [Route("/objects/{path:path}", serve, methods=["GET", "HEAD"])]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={ap.Error: explain})


class ObjectResponse(StreamingResponse):
    """A streamed part of an object. Its reader is closed in any case, also when the client goes away."""

    def __init__(self, reader: ap.RangeReader, start: int, end: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(body_of(reader, start, end), status, headers, media_type="application/octet-stream")
        self.reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.reader:
            await super().__call__(scope, receive, send)


async def serve(request: Request) -> Response:
    """Open the object, answer, and close it unless its body is still to be sent.

    The reader gets the range of the request: its one GET asks for these bytes alone, and keeps its connection.
    """
    wanted = wanted_range(request.headers.get("range"))
    reader = request.app.state.operator.reader(request.path_params["path"], **range_options(wanted))
    response = None
    try:
        response = await answer(request, reader)
        return response
    finally:
        if not isinstance(response, ObjectResponse):
            await reader.aclose()


async def answer(request: Request, reader: ap.RangeReader) -> Response:
    """The object, or the part of it that was asked for."""
    wanted = wanted_range(request.headers.get("range"))
    if wanted is not None:
        # The first GET goes where the client wants to read, and brings the size as well.
        reader.seek(wanted[0], 0 if wanted[0] >= 0 else 2)
    size = await reader.ensure_size()
    if reader.etag is None:  # A range beyond the end gave the size alone; any byte gives the version.
        await reader.read_at(0, 1)
    headers = {"Accept-Ranges": "bytes"}
    if reader.etag is not None:
        headers["ETag"] = quote_etag(reader.etag)
        if headers["ETag"] in (request.headers.get("if-none-match") or "").split(", "):
            return Response(status_code=304, headers=headers)
    if request.headers.get("if-range", headers.get("ETag")) != headers.get("ETag"):
        wanted = None  # The client has a part of another version: it needs all of this one.
    start, end = bounds(wanted, size)
    if wanted is not None and start >= end:
        return Response(status_code=416, headers=headers | {"Content-Range": f"bytes */{size}"})
    headers["Content-Length"] = str(end - start)
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    return ObjectResponse(reader, start, end, status, headers)


async def body_of(reader: ap.RangeReader, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes of ``[start, end)``. Each block is fetched once, however small the chunks are."""
    while start < end:
        chunk = await reader.read_at(start, min(CHUNK_BYTES, end - start))
        start += len(chunk)
        yield chunk


def wanted_range(header: str | None) -> tuple[int, int | None] | None:
    """First and last byte of ``bytes=a-b``; ``(-n, None)`` for the last ``n``; ``None`` for all, as for several."""
    match = ONE_RANGE.fullmatch(header or "")
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return (-min(int(last), FAR), None) if int(last) else (FAR, None)
    if last and int(last) < int(first):
        return None
    return min(int(first), FAR), int(last) if last else None


def range_options(wanted: tuple[int, int | None] | None) -> dict[str, Any]:
    """Options of a reader for one range: the range itself, or how much of the tail to begin with."""
    if wanted is None or wanted[0] == FAR:
        return {}
    first, last = wanted
    if first < 0:
        return {"footer_cache": -first} if -first <= CHUNK_BYTES else {}
    return {} if last is None else {"split": (first, min(last, FAR) + 1)}


def bounds(wanted: tuple[int, int | None] | None, size: int) -> tuple[int, int]:
    """The half-open range of bytes to send; an empty one where the range does not meet the object."""
    if wanted is None:
        return 0, size
    first, last = wanted
    if first < 0:
        return max(0, size + first), size
    return first, size if last is None else min(size, last + 1)


async def explain(request: Request, error: Exception) -> Response:
    """What our errors mean in HTTP. The message names operation and path, and never a secret."""
    for kind, status in STATUS_OF.items():
        if isinstance(error, kind):
            return PlainTextResponse(str(error), status)
    temporary = isinstance(error, ap.Error) and error.status != "permanent"
    return PlainTextResponse(str(error), 503 if temporary else 500, {"Retry-After": "1"} if temporary else None)


async def main() -> None:
    """Serve an object from memory to a client in this process."""
    app = make_app("memory://service")
    async with app.router.lifespan_context(app):
        await app.state.operator.write("digits.txt", b"0123456789")
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            for header in (None, "bytes=2-4", "bytes=-3", "bytes=10-"):
                answer = await client.get("/objects/digits.txt", headers={"Range": header} if header else None)
                print(header, "->", answer.status_code, answer.headers.get("content-range"), answer.text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(make_app(sys.argv[1]), port=8000)
    else:
        asyncio.run(main())
