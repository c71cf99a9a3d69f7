# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[prometheus]", "prometheus-client"]
# ///
"""Requests, reads and memory of operators for Prometheus; a service would call ``prometheus_client.start_http_server``.

``grafana_dashboard.json`` beside this file shows these metrics.
"""

import asyncio

from prometheus_client import REGISTRY, generate_latest

import aioprefetch as ap


async def main() -> None:
    async with ap.Operator.from_uri("memory://example") as op:
        ap.prometheus.Collector(op)
        await op.write("k", bytes(10_000))
        async with op.reader("k") as reader:
            for offset in range(0, 10_000, 1000):
                await reader.read_at(offset, 1000)
        for line in generate_latest(REGISTRY).decode().splitlines():
            if line.startswith(
                ("aioprefetch_requests_total", "aioprefetch_reads_total", "aioprefetch_read_bytes_total")
            ):
                print(line)


asyncio.run(main())
