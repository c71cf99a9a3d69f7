# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[otel]"]
# ///
"""Requests of an operator as OpenTelemetry's spans and metrics.

Here no SDK is set up, and OpenTelemetry drops what it gets. With one (``opentelemetry-instrument python
otel_spans.py``) each request is a span below the caller's, and metrics follow the conventions for HTTP clients.
"""

import asyncio

import aioprefetch as ap


async def main() -> None:
    async with ap.Operator.from_uri("memory://example") as op:
        stop = ap.otel.instrument(op)
        await op.write("k", b"0123456789")
        print("with spans:", await op.read("k", offset=3, size=4))
        stop()
        print("without:", await op.read("k", size=2))


asyncio.run(main())
