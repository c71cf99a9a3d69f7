"""What a stream of many files costs its driver: memory, time, bytes of state. Run by hand.

``python -m tests.benchmarks.source_state [--files 10000000] [--directory DIR]`` lists that many objects of a store that
exists by arithmetic alone, plans and commits them in batches of 10,000, then goes on in a fresh process and looks into
what is known.
"""

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from aioprefetch.operator.operator import Operator
from aioprefetch.services import Fs
from aioprefetch.source.fetch.source import FileSource
from aioprefetch.source.list.pages import file_of
from aioprefetch.source.options import AdmissionOptions
from aioprefetch.source.values import FetchItem, Offset, Record
from aioprefetch.values import Entry
from tests.benchmarks.meter import memory_bytes
from tests.stores.computed_listing import ArithmeticStore

BATCH = AdmissionOptions(files_max=10_000)
PAGE_KEYS = 1000
OFFSET_BYTES_MAX = 300


@dataclass
class Landing(ArithmeticStore):
    """Objects of all sizes, with digests for ETags, which cannot be compressed."""

    def entry(self, number: int) -> Entry:
        """The object of that number."""
        digest = hashlib.md5(number.to_bytes(8, "big")).hexdigest()
        return replace(super().entry(number), size=100_000 + number * 7919 % 90_000, etag=digest)


async def opened(store: Landing, state: Operator) -> FileSource:
    """The source over a store, as Spark's reader opens it."""
    return await FileSource.open(
        operator=Operator(store), state_operator=state, state_directory="", url="s3://bucket/landing"
    )


async def take_batch(source: FileSource, before: Offset) -> Offset:
    """One batch, as an engine takes it; ``before`` itself when there is none."""
    after = await source.latest_offset(before, BATCH)
    if after is not before:
        assert len(json.dumps(after.to_json())) < OFFSET_BYTES_MAX
        parts = await source.partitions(before, after)
        assert sum(len(part) for part in parts) == after.files - before.files
        await source.commit(after)
    return after


async def grow(directory: Path, files: int) -> dict[str, float]:
    """List, plan and commit all; what it cost."""
    found: dict[str, float] = {}
    resident_bytes, started = memory_bytes("VmRSS"), time.perf_counter()
    async with Operator(Fs(directory)) as operator:
        source = await opened(Landing(files), operator)
        offset, slowest_seconds = source.initial_offset(), 0.0
        while offset.files < files:
            begun = time.perf_counter()
            offset = await take_batch(source, offset)
            slowest_seconds = max(slowest_seconds, time.perf_counter() - begun)
        found["grow_seconds"] = time.perf_counter() - started
        found["slowest_batch_seconds"] = slowest_seconds
        started = time.perf_counter()
        await source.state.compact()
        found["last_compaction_seconds"] = time.perf_counter() - started
        await source.aclose()
    found["grow_memory_bytes"] = memory_bytes("VmHWM") - resident_bytes
    (directory.parent / "offset.json").write_text(json.dumps(offset.to_json()))
    return found


async def look(directory: Path, files: int) -> dict[str, float]:
    """Go on from the last offset when a file has come, then look into what is known; what it cost."""
    found: dict[str, float] = {}
    offset = Offset.from_json(json.loads((directory.parent / "offset.json").read_text()))
    resident_bytes, started = memory_bytes("VmRSS"), time.perf_counter()
    async with Operator(Fs(directory)) as operator:
        store = Landing(files + 1)
        source = await opened(store, operator)
        state = source.state
        found["open_seconds"] = time.perf_counter() - started
        found["open_memory_bytes"] = memory_bytes("VmHWM") - resident_bytes
        offset = await take_batch(source, offset)
        assert offset.files == files + 1
        found["restart_to_first_batch_seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        known = 0
        for start in range(0, files, PAGE_KEYS):
            known += len(await state.index.page(store.key(start - 1) if start else "", count=PAGE_KEYS))
        assert known == files, (known, files)
        found["sweep_seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        wanted = [store.key(number * 7919 % files) for number in range(100)]
        assert len(await state.index.find(wanted)) == len(set(wanted))
        found["find_100_scattered_seconds"] = time.perf_counter() - started
        head = state.head
        assert head is not None
        # One change in each range of keys: everything is written again.
        changed = tuple(FetchItem(file_of(store.entry(number))) for number in range(0, files, 50_000))
        record = Record(head.seq + 1, state.writer, head.cursor, changed, files=head.files, bytes=head.bytes)
        await state.append(record)
        await state.committed(record.seq)
        started = time.perf_counter()
        await state.compact()
        found["compaction_of_all_seconds"] = time.perf_counter() - started
        await source.aclose()
    found["look_memory_bytes"] = memory_bytes("VmHWM") - resident_bytes
    return found


def state_bytes(directory: Path) -> int:
    """What the files of the state take."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def in_a_process(part: str, directory: Path, files: int) -> dict[str, float]:
    """Run a part in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, "--files", str(files), "--directory", str(directory)]
    run = subprocess.run([*command, "--part", part], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def measure(directory: Path, files: int) -> dict[str, float]:
    """All parts, each in a process of its own."""
    found = in_a_process("grow", directory, files)
    found["state_bytes"] = state_bytes(directory)
    found |= in_a_process("look", directory, files)
    found["state_bytes_after_rewrite"] = state_bytes(directory)
    return found


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--part", choices=("grow", "look"))
    given = parser.parse_args()
    if given.part is not None:
        part = grow if given.part == "grow" else look
        print(json.dumps(asyncio.run(part(given.directory, given.files))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        directory = (given.directory or Path(temporary)) / "state"
        directory.mkdir(parents=True)
        for name, value in measure(directory, given.files).items():
            print(f"{name:28} {value:,.2f}" if "seconds" in name else f"{name:28} {value / 1e6:,.1f} MB")


if __name__ == "__main__":
    main()
