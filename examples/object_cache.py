# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch"]
# ///
"""A cache of whole objects on the disk of this machine, around a store that is far away.

`LruCacheLayer` takes another operator as its cache. A second process, here a second operator, finds what the first
one has left. An object that was overwritten is fetched again: each first read asks whether the entry is still current.
"""

import asyncio
import tempfile
from pathlib import Path

import aioprefetch as ap

MIB = 1 << 20


def cached(store: ap.Operator, folder: str) -> ap.Operator:
    """The store behind a cache of at most 64 MiB."""
    disk = ap.Operator.from_uri(Path(folder))
    return store.layer(ap.layers.LruCacheLayer(cache=disk, capacity_bytes=64 * MIB))


def entries_in(folder: str) -> int:
    """The number of objects that the cache has on the disk."""
    return sum(path.is_file() for path in Path(folder).rglob("objects/*/*"))


def received(op: ap.Operator) -> str:
    """What came from the store so far, and what the cache had."""
    counts = op.statistics
    return f"{counts['stream_read_total_bytes'] // MIB} MiB received, {counts['cache_hits']} hits"


async def main() -> None:
    """Read all over two objects, restart, and overwrite one of them."""
    store = ap.Operator.from_uri("memory://far-away")
    for name in ("a", "b"):
        await store.write(name, name.encode() * (4 * MIB))
    with tempfile.TemporaryDirectory() as folder:
        async with cached(store, folder) as op:
            for name in ("a", "b", "a", "b"):
                async with op.reader(name) as reader:
                    await reader.read_ranges([(0, 100), (MIB, MIB + 100), (3 * MIB, 4 * MIB)])
            print("first process:", received(op))
        print("entries on the disk:", entries_in(folder))

        again = ap.Operator(store.service)
        async with cached(again, folder) as op:
            print("second process:", (await op.read("a", offset=5, size=3)).decode(), "-", received(op))
            await store.write("a", b"new" * MIB)  # Not through the cache: it asks the store, and sees another version.
            print("overwritten:", (await op.read("a", size=3)).decode(), "-", received(op))
        await again.aclose()
    await store.aclose()


asyncio.run(main())
