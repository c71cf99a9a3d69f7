"""Run as a program: one of several processes that read the same object through one cache.

    python -m tests.probes.shared_reader URL DIRECTORY BLOCK_BYTES MEMORY_BYTES [KEY=VALUE ...]

It says "ready", waits for a line, reads the object in order, and says the CRC32 of its bytes and the seconds it took.
"""

import asyncio
import json
import sys
import time
import zlib
from typing import Any

import aioprefetch as ap


async def read(url: str, directory: str, block_bytes: int, memory_bytes: int, options: dict[str, Any]) -> None:
    """Read the object once."""
    store, _, key = url.rpartition("/")
    more: dict[str, Any] = {"disk_cache": directory} if directory != "none" else {}
    operator = ap.Operator.from_uri(store, block_bytes=block_bytes, memory_bytes=memory_bytes, **more, **options)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began, checksum = time.perf_counter(), 0
    async with operator:
        async with operator.reader(key) as reader:
            while chunk := await reader.read(1 << 20):
                checksum = zlib.crc32(chunk, checksum)
        took = time.perf_counter() - began
        statistics = {name: count for name, count in operator.statistics.items() if count}
    closed = time.perf_counter() - began
    sys.stdout.write(json.dumps({"crc": checksum, "seconds": took, "closed": closed, "counts": statistics}) + "\n")


if __name__ == "__main__":
    url, directory, block, memory, *rest = sys.argv[1:]
    asyncio.run(read(url, directory, int(block), int(memory), json.loads(rest[0]) if rest else {}))
