"""The layer in real Operators: a cache of files, a reader, pickling."""

import asyncio
import os
import pickle
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aioprefetch as ap
from aioprefetch.runtime.events import Event
from aioprefetch.values import WriteRequest

DATA = os.urandom(3 << 20)


class Filled:
    """Waits until a number of entries are in the cache."""

    def __init__(self, op: ap.Operator) -> None:
        self._count = 0
        self._changed = asyncio.Event()
        op.runtime().events.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.name == "cache.filled":
            self._count += 1
            self._changed.set()

    async def wait(self, count: int) -> None:
        while self._count < count:
            self._changed.clear()
            await self._changed.wait()


async def test_a_cache_of_files(tmp_path: Path) -> None:
    """Filled, read in parts and whole, found again by a new Operator, damaged and mended."""
    folder = tmp_path / "not" / "there" / "yet"
    name = uuid.uuid4().hex
    for first in (True, False):
        async with ap.Operator.from_uri(f"file://{folder}") as cache, ap.Operator.from_uri(f"memory://{name}") as bare:
            if first:
                await bare.write("k", DATA)
                await bare.write("empty", b"")
            layer = ap.layers.LruCacheLayer(cache=cache, revalidate_seconds=None)
            op = bare.layer(layer)
            filled = Filled(op)
            assert await op.read("k", offset=5, size=10) == DATA[5:15]
            if first:
                await filled.wait(1)
            gets = op.runtime().counters["action_http_get_request"]
            assert await op.read("k") == DATA
            assert await op.read("k", suffix=100) == DATA[-100:]
            assert await asyncio.gather(*(op.read("k", offset=i, size=9) for i in range(20))) == [
                DATA[i : i + 9] for i in range(20)
            ]
            assert await op.read("empty") == b""
            counters = op.runtime().counters
            assert counters["action_http_get_request"] - gets == first  # the empty object's, stored at closing
            assert counters["cache_failures"] == 0
            assert counters["cache_misses"] == (2 if first else 0)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    async with ap.Operator.from_uri(f"file://{folder}") as cache, ap.Operator.from_uri(f"memory://{name}") as bare:
        op = bare.layer(ap.layers.LruCacheLayer(cache=cache, revalidate_seconds=None))
        assert await op.read("k") == DATA
        assert op.runtime().counters["cache_failures"] == 1


async def test_a_reader_revalidates_once() -> None:
    """It pins the version by its first response, and pinned reads need no question."""
    name = uuid.uuid4().hex
    options: dict[str, Any] = {"block_bytes": 64 << 10, "memory_bytes": 16 << 20}
    async with ap.Operator.from_uri("memory://" + uuid.uuid4().hex) as cache:
        layer = ap.layers.LruCacheLayer(cache=cache)
        for state in ("miss", "hit"):
            async with ap.Operator.from_uri(f"memory://{name}", **options) as bare:
                op = bare.layer(layer)
                filled = Filled(op)
                if state == "miss":
                    await bare.write("k", DATA)
                async with op.reader("k") as reader:
                    for offset in range(0, len(DATA), 100_000):
                        assert await reader.read_at(offset, 1000) == DATA[offset : offset + 1000]
                counters = op.runtime().counters
                if state == "miss":
                    await filled.wait(1)
                    assert counters["action_http_get_request"] == 1
                else:
                    assert counters["action_http_get_request"] == 1  # It is answered "not modified".
                    assert counters["stream_read_total_bytes"] == 0
                    assert counters["cache_revalidations"] == 1
                    assert counters["cache_misses"] == 0


async def test_an_operator_with_the_layer_pickles(tmp_path: Path) -> None:
    """The copy fills the same cache, by its own runtime."""
    name = uuid.uuid4().hex
    cache = ap.Operator.from_uri(f"file://{tmp_path / 'cache'}")
    op = ap.Operator.from_uri(f"memory://{name}").layer(ap.layers.LruCacheLayer(cache=cache, capacity_bytes=1 << 20))
    copy = pickle.loads(pickle.dumps(op))
    await op.write("k", b"data")
    async with op, cache:
        filled = Filled(copy)
        assert await copy.read("k") == b"data"
        await filled.wait(1)
    (layer,) = [one for one in copy.layers if isinstance(one, ap.layers.LruCacheLayer)]
    async with layer.cache:  # type: ignore[attr-defined]
        await copy.aclose()
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


async def test_no_read_of_any_kind_gets_a_damaged_byte(tmp_path: Path) -> None:
    """Parts, a stream and readers over a damaged entry get the object's bytes, and the entry is stored again."""
    name = uuid.uuid4().hex
    folder = tmp_path
    options: dict[str, Any] = {"block_bytes": 256 << 10, "memory_bytes": 64 << 20}

    async def part(op: ap.Operator) -> None:
        assert await op.read("k", offset=2_000_000, size=10_000) == DATA[2_000_000:2_010_000]

    async def reader(op: ap.Operator) -> None:
        async with op.reader("k", policy="random") as opened:
            assert await opened.read_at(2_000_000, 10_000) == DATA[2_000_000:2_010_000]

    async def stream(op: ap.Operator) -> None:
        async with op.reader("k") as opened:
            assert b"".join([bytes(chunk) async for chunk in opened.stream()]) == DATA

    for use in (part, reader, stream):
        async with ap.Operator.from_uri(f"file://{tmp_path}") as cache:
            layer = ap.layers.LruCacheLayer(cache=cache)
            async with ap.Operator.from_uri(f"memory://{name}", **options).layer(layer) as op:
                await op.write("k", DATA)
                assert await op.read("k", size=1) == DATA[:1]
            (path,) = [path for path in folder.rglob("*") if path.is_file()]
            damaged = bytearray(path.read_bytes())
            damaged[len(damaged) - len(DATA) + 2_005_000] ^= 1
            path.write_bytes(damaged)
            async with ap.Operator.from_uri(f"memory://{name}", **options).layer(layer) as op:
                await use(op)
                assert op.statistics["cache_failures"] == 1
            assert path.read_bytes() != damaged


KILLED = """
import asyncio, os, signal, sys
import aioprefetch as ap
from aioprefetch.values import WriteRequest

async def main():
    async with ap.Operator.from_uri("file://" + sys.argv[1]) as cache:
        writer = await cache.accessor().open_write(WriteRequest(path="objects/ab/entry"))
        await writer.write(bytes(9 << 20))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def age(path: Path, seconds: float) -> None:
    """Make a file look as if it had not been written for some time."""
    then = time.time() - seconds
    os.utime(path, (then, then))


async def test_the_files_of_killed_writers_are_removed_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """They belong to no entry, so no eviction would ever find them. Files of other machines stay for an hour."""

    def temporaries() -> set[Path]:
        return set(tmp_path.rglob(".aioprefetch-*.tmp"))

    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=100)
    (killed,) = temporaries()
    assert killed.stat().st_size > 0
    age(killed, 60)
    elsewhere = [killed.with_name(f".aioprefetch-{digit * 16}.tmp") for digit in "01"]
    for path, hours in zip(elsewhere, (0.9, 1.1), strict=True):
        path.write_bytes(b"of another machine")
        age(path, 3600 * hours)
    async with ap.Operator.from_uri(f"file://{tmp_path}") as cache:
        writer = await cache.accessor().open_write(WriteRequest(path="objects/ab/alive"))
        await writer.write(bytes(9 << 20))
        (alive,) = temporaries() - {killed, *elsewhere}
        age(alive, 7200)
        op = ap.Operator.from_uri("memory://" + uuid.uuid4().hex).layer(ap.layers.LruCacheLayer(cache=cache))
        async with op:
            await op.write("k", DATA)
            assert await op.read("k") == DATA
        assert temporaries() == {alive, elsewhere[0]}
        await writer.close()
        assert (tmp_path / "objects/ab/alive").stat().st_size == 9 << 20
    assert temporaries() == {elsewhere[0]}
