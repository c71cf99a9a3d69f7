# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""Block files on the local disk, as S3A's prefetching stream keeps them: `disk_cache`.

A reader has few blocks in memory here, and all of them on the disk: it seeks back without a request. The next process
finds them too, and asks with one request whether the object is still the same.
"""

import asyncio
import tempfile
from pathlib import Path

import aioprefetch as ap

MIB = 1 << 20
BLOCKS = 16


def operator(folder: str) -> ap.Operator:
    """A store with blocks of 1 MiB, four of them in memory."""
    disk = ap.DiskCache(folder, capacity_bytes=256 * MIB)
    return ap.Operator.from_uri("memory://block-files", block_bytes=MIB, memory_bytes=4 * MIB, disk_cache=disk)


def files_in(folder: str) -> int:
    """The number of files in it that are as long as a block."""
    return sum(path.is_file() and path.stat().st_size >= MIB for path in Path(folder).rglob("*"))


async def blocks(op: ap.Operator, numbers: range) -> int:
    """Read a bit of each of these blocks; the number of requests for bytes that this took."""
    before = op.statistics["stream_read_total_bytes"]
    async with op.reader("data", policy="random", prefetch_blocks=0) as reader:
        for number in numbers:
            await reader.read_at(number * MIB, MIB)
    return (op.statistics["stream_read_total_bytes"] - before) // MIB


async def main() -> None:
    """Forward, backward, and in another process."""
    with tempfile.TemporaryDirectory() as folder:
        async with operator(folder) as op:
            await op.write("data", b"".join(bytes([number]) * MIB for number in range(BLOCKS)))
            print("forward:", await blocks(op, range(BLOCKS)), "blocks fetched")
            print("backward:", await blocks(op, range(BLOCKS - 1, -1, -1)), "blocks fetched")
        print("block files:", files_in(folder))
        async with operator(folder) as op:  # Its memory is empty, as that of a new process.
            print("again:", await blocks(op, range(BLOCKS)), "blocks fetched")


asyncio.run(main())
