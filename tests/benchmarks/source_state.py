"""What the state of a source with many files costs: bytes, time, memory. Run by hand.

``python -m tests.benchmarks.source_state [--files 10000000] [--directory DIR]`` plans that many files in batches, as a
query would that lists a growing bucket, then opens the state in a fresh process and looks into it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aioprefetch.operator import Operator
from aioprefetch.services import Fs
from aioprefetch.source.cursor import TailAndSweep
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.record import Record
from aioprefetch.source.state import SourceIdentity, SourceState
from tests.benchmarks.process_usage import memory_bytes

IDENTITY = SourceIdentity("s3://bucket/landing", "*.jsonl", {"format": "jsonl"})
BATCH_FILES = 10_000
PAGE_KEYS = 1000


def key_of(number: int) -> str:
    """The key of a file; they sort as numbers do."""
    return f"2026/{number // 200_000:05}/{number // 5000 % 40:02}/part-{number:010}.jsonl"


def file_of(number: int) -> SourceFile:
    """One of the files, with a digest that cannot be compressed for an ETag."""
    digest = hashlib.md5(number.to_bytes(8, "big")).hexdigest()
    return SourceFile(key_of(number), 100_000 + number * 7919 % 90_000, digest, None, 1_790_000_000_000 + number * 250)


async def grow(directory: Path, files: int) -> dict[str, float]:
    """Plan the files, committing each batch; what it cost."""
    found: dict[str, float] = {}
    resident_bytes, started = memory_bytes("VmRSS"), time.perf_counter()
    async with Operator(Fs(directory)) as operator:
        state = await SourceState.open(operator, "", IDENTITY, first=TailAndSweep())
        slowest_seconds = 0.0
        for start in range(0, files, BATCH_FILES):
            items = tuple(FetchItem(file_of(number)) for number in range(start, min(files, start + BATCH_FILES)))
            begun = time.perf_counter()
            head = state.head
            assert head is not None
            record = Record(
                seq=head.seq + 1,
                writer=state.writer,
                cursor=TailAndSweep(items[-1].file.key),
                items=items,
                files=head.files + len(items),
                bytes=head.bytes + sum(item.bytes for item in items),
            )
            await state.append(record)
            await state.committed(record.seq)
            slowest_seconds = max(slowest_seconds, time.perf_counter() - begun)
        found["grow_seconds"] = time.perf_counter() - started
        found["slowest_append_seconds"] = slowest_seconds
        started = time.perf_counter()
        await state.compact()
        found["last_compaction_seconds"] = time.perf_counter() - started
        await state.aclose()
    found["grow_memory_bytes"] = memory_bytes("VmHWM") - resident_bytes
    return found


async def look(directory: Path, files: int) -> dict[str, float]:
    """Open the state anew and look into it; what it cost."""
    found: dict[str, float] = {}
    resident_bytes, started = memory_bytes("VmRSS"), time.perf_counter()
    async with Operator(Fs(directory)) as operator:
        state = await SourceState.open(operator, "", IDENTITY, first=TailAndSweep())
        found["open_seconds"] = time.perf_counter() - started
        found["open_memory_bytes"] = memory_bytes("VmHWM") - resident_bytes
        started = time.perf_counter()
        known = 0
        for start in range(0, files, PAGE_KEYS):
            last = key_of(min(files, start + PAGE_KEYS) - 1)
            known += len(await state.known.between(key_of(start - 1) if start else "", last))
        assert known == files, (known, files)
        found["sweep_seconds"] = time.perf_counter() - started
        started = time.perf_counter()
        wanted = [key_of(number * 7919 % files) for number in range(100)]
        assert len(await state.known.find(wanted)) == len(set(wanted))
        found["find_100_scattered_seconds"] = time.perf_counter() - started
        head = state.head
        assert head is not None
        # One change in each range of keys: everything is written anew.
        changed = tuple(FetchItem(file_of(number)) for number in range(0, files, 50_000))
        record = Record(head.seq + 1, state.writer, head.cursor, changed, files=head.files, bytes=head.bytes)
        await state.append(record)
        await state.committed(record.seq)
        started = time.perf_counter()
        await state.compact()
        found["compaction_of_all_seconds"] = time.perf_counter() - started
        await state.aclose()
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
        for name, value in measure(given.directory or Path(temporary), given.files).items():
            print(f"{name:28} {value:,.2f}" if "seconds" in name else f"{name:28} {value / 1e6:,.1f} MB")


if __name__ == "__main__":
    main()
