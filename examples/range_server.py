# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3]", "fastapi", "httpx", "starlette", "uvicorn"]
# ///
"""Serve the objects of a store by ranges: `RangeApp` mounted in FastAPI, in Starlette, and alone.

python range_server.py                      # shows itself, over memory://
python range_server.py s3://bucket/prefix   # serves that on port 8000
"""

import asyncio
import sys

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import aioprefetch as ap


def in_fastapi(op: ap.Operator) -> FastAPI:
    """Beside the routes of an application."""
    app = FastAPI()
    app.mount("/objects", ap.asgi.RangeApp(op))
    return app


def in_starlette(op: ap.Operator) -> Starlette:
    """Only what lies below a directory, and kept by caches for an hour."""
    return Starlette(routes=[Mount("/public", ap.asgi.RangeApp(op, "public/", cache_control="max-age=3600"))])


async def main() -> None:
    """Ask each of them for a range."""
    async with ap.Operator.from_uri("memory://range-server") as op:
        await op.write("public/digits.txt", b"0123456789")
        apps = {
            "http://service/objects/public/digits.txt": in_fastapi(op),
            "http://service/public/digits.txt": in_starlette(op),
            "http://service/digits.txt": ap.asgi.RangeApp(op, "public"),
        }
        for url, app in apps.items():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
                response = await client.get(url, headers={"Range": "bytes=2-4"})
                print(response.status_code, response.headers["content-range"], response.text)
                again = await client.get(url, headers={"If-None-Match": response.headers["etag"]})
                print(again.status_code, again.headers.get("cache-control"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(ap.asgi.RangeApp(ap.Operator.from_uri(sys.argv[1])), port=8000)
    else:
        asyncio.run(main())
