"""A long run of reads, writes and scans at once, of which one response in twenty is a fault: nothing may pile up.

``python -m tests.soak --seconds 600``: a hundred readers and scans of a server that breaks responses off, and writers
of a bucket that spoils them. Every read must be exact. Memory, tasks and descriptors are looked at every second: they
must end where the first fifth of the run has left them.
"""

import argparse
import asyncio
import io
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import aioprefetch as ap
from aioprefetch.errors import Error
from aioprefetch.reader.policy import PolicyName
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.faults import ReceivedRequest
from aioprefetch.testing.oracle import assert_same_bytes, content
from tests.benchmarks.meter import memory_bytes
from tests.stores.faulty_bucket import FAULTS, FaultyBucket

T = TypeVar("T")

READERS, SCANS, WRITERS = 80, 10, 10
FAULT_SHARE = 0.05
POLICIES: list[PolicyName] = ["random", "adaptive", "sequential"]
OBJECTS = {f"bucket/k{n}": content(900_000 + 77_777 * n, version=n) for n in range(12)}
TABLE = pa.table({"n": pa.array(range(60_000)), "s": pa.array([str(n) for n in range(60_000)])})
BROKEN = (
    Fault(status=503, code="SlowDown"),
    Fault(status=500),
    Fault(reset_before_head=True),
    Fault(close_after_bytes=3_000),
    Fault(reset_after_bytes=20_000),
    Fault(short_by_bytes=5),
)
LOSSES = [FAULTS[name] for name in ("cut", "500", "503", "lost", "hollow", "500 after the deed")]
# What the allocator of C and the caches of Python may still grow by after the first fifth.
ROOM_BYTES = 24 << 20
STATE_OF_PROCESS = "/proc/self/fd"


@dataclass
class Soak:
    """What is done until ``end``, and what was counted."""

    end: float
    dice: random.Random
    done: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Whether the time is not over."""
        return time.monotonic() < self.end

    def strikes(self, request: object) -> bool:
        """Whether a response is a fault."""
        return self.dice.random() < FAULT_SHARE

    def fails(self, fault: Fault) -> Rule:
        """The rule for one kind of fault, which has its part of the share."""

        def matches(request: ReceivedRequest) -> bool:
            return request.method == "GET" and self.dice.random() < FAULT_SHARE / len(BROKEN)

        return Rule(fault=fault, matches=matches, times=None)

    async def read(self, op: ap.Operator) -> None:
        """Open readers again and again; every policy, sizes of all kinds."""
        while self.goes_on:
            key = self.dice.choice(list(OBJECTS))
            data, policy = OBJECTS[key], self.dice.choice(POLICIES)
            try:
                async with op.reader(key.removeprefix("bucket/"), policy=policy) as reader:
                    for _ in range(self.dice.randrange(1, 12)):
                        offset, size = self.dice.randrange(len(data)), self.dice.choice([10, 5_000, 300_000])
                        assert_same_bytes(await reader.read_at(offset, size), data[offset : offset + size])
                        self.done["reads"] += 1
            except Error as error:
                self.done[f"reads that ended with {type(error).__name__}"] += 1

    async def scan(self, op: ap.Operator) -> None:
        """Scan the table, whole or left early."""
        while self.goes_on:
            leaves_at = self.dice.choice([None, 10_000])
            rows = 0
            try:
                async with ap.parquet.scan(op, "t.parquet", columns=["n"]) as batches:
                    async for batch in batches:
                        assert batch["n"].to_pylist() == list(range(rows, rows + batch.num_rows))
                        rows += batch.num_rows
                        if leaves_at is not None and rows >= leaves_at:
                            break
                self.done["scans"] += 1
            except Error as error:
                self.done[f"scans that ended with {type(error).__name__}"] += 1

    async def write(self, op: ap.Operator, key: str) -> None:
        """Write one key: a read brings the value of the last write, or of one that may have happened."""
        values = {b""}
        await _until_done(lambda: op.write(key, b""))
        while self.goes_on:
            value = self.dice.randbytes(self.dice.choice([10, 50_000]))
            try:
                await op.write(key, value)
                values = {value}
                self.done["writes"] += 1
            except Error as error:
                values.add(value)
                self.done[f"writes that ended with {type(error).__name__}"] += 1
            found = await _until_done(lambda: op.read(key))
            assert found in values, f"{key} has a value that was not written, or an old one"
            values = {found}

    async def watch(self, server: FaultServer, bucket: FaultyBucket) -> None:
        """Note memory, tasks and descriptors every second, without what the servers have noted."""
        while self.goes_on:
            await asyncio.sleep(1)
            for notes in (server.requests, server.body_bytes_sent, bucket.calls):
                notes.clear()
            self.samples.append((memory_bytes("VmRSS"), len(asyncio.all_tasks()), len(os.listdir(STATE_OF_PROCESS))))

    def verdict(self) -> list[str]:
        """What has grown."""
        first, last = self.samples[: len(self.samples) // 5 + 1], self.samples[-len(self.samples) // 5 :]
        allowed = (ROOM_BYTES, READERS, READERS)
        return [
            f"{what}: {max(one[n] for one in first)} in the first fifth, {min(one[n] for one in last)} in the last"
            for n, what in enumerate(("bytes of memory", "tasks", "descriptors"))
            if min(one[n] for one in last) > max(one[n] for one in first) + allowed[n]
        ]


async def _until_done(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except Error:
            continue


async def soak(seconds: float, seed: int) -> Soak:
    """The run, and what is left when all is closed."""
    run = Soak(time.monotonic() + seconds, random.Random(seed))
    table = io.BytesIO()
    pq.write_table(TABLE, table, row_group_size=6_000)
    objects = {**OBJECTS, "bucket/t.parquet": table.getvalue()}
    keys = {"access_key_id": FaultServer.access_key_id, "secret_access_key": FaultServer.secret_access_key}
    before = len(os.listdir(STATE_OF_PROCESS))
    async with FaultServer(objects, [run.fails(fault) for fault in BROKEN]) as server, FaultyBucket() as bucket:
        bucket.fault = lambda call, deed: run.dice.choice(LOSSES)(call, deed)
        bucket.strikes = run.strikes
        target: dict[str, Any] = {"endpoint_url": server.url, "region": "us-east-1", "memory_bytes": 8 << 20, **keys}
        async with ap.Operator.from_uri("s3://bucket", **target) as op, bucket.operator() as writer:
            await asyncio.gather(
                run.watch(server, bucket),
                *(run.read(op) for _ in range(READERS)),
                *(run.scan(op) for _ in range(SCANS)),
                *(run.write(writer, f"w{number}") for number in range(WRITERS)),
            )
        run.done["faults"] = server.faults
    await asyncio.sleep(0.2)  # What was closed leaves the loop a moment later.
    assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()
    assert len(os.listdir(STATE_OF_PROCESS)) <= before + 2
    return run


def main() -> int:
    """1 if something has piled up."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    run = asyncio.run(soak(options.seconds, options.seed))
    resident, tasks, descriptors = run.samples[-1]
    print(f"seed {options.seed}:", ", ".join(f"{count} {what}" for what, count in sorted(run.done.items())))
    print(f"at the end {resident >> 20} MiB, {tasks} tasks, {descriptors} descriptors")
    grown = run.verdict()
    print("\n".join(grown) or "nothing has piled up")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
