# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""Record a read, print the advice, and write the picture: a page that needs no network.

Runs over ``memory://``; give a URL and a path as arguments (``s3://bucket/prefix`` ``key``) to trace your own object.
"""

import asyncio
import random
import sys
import tempfile
from pathlib import Path

import aioprefetch as ap

MIB = 1 << 20


async def main(url: str = "memory://trace", path: str = "") -> None:
    """Small reads all over an object, as a table format makes them, without saying so in advance."""
    async with ap.Operator.from_uri(url) as op:
        if not path:
            path = "numbers.bin"
            await op.write(path, bytes(range(256)) * (16 * MIB // 256))
        size = (await op.stat(path)).size or 0
        draw = random.Random(1)

        with ap.trace.record(op) as trace:
            async with op.reader(path, policy="random") as reader:
                for _ in range(50):
                    await reader.read_at(draw.randrange(size), 1000)

        print(trace)
        for advice in trace.advice:
            print("-", advice)
        page = Path(tempfile.gettempdir()) / "read.html"
        trace.write_html(page)
        trace.write_chrome_json(page.with_suffix(".json"))
        print(f"open {page} in a browser, {page.stem}.json in https://ui.perfetto.dev")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
