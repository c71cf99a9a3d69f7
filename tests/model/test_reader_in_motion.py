"""Readers in motion: requests in flight, half received, drained or failing while everything else happens to them.

Several tasks share readers of one object, over a store that takes its time and fails in the middle of bodies. They read
by position and by cursor, stream, ask for several ranges, hint, unbuffer, change the policy, clone, reopen, open and
close further readers, read the object whole, and are cancelled anywhere. Sometimes the object is overwritten meanwhile.
Each result is of one version, the statistics balance, and nothing is left behind.
"""

import asyncio
import gc
import random
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.errors import ObjectChanged, RangeNotSatisfied, Unavailable
from aioprefetch.layers import ErrorContextLayer, RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.reader import RangeReader
from aioprefetch.reader.policy import PolicyName
from aioprefetch.services.memory import Memory
from aioprefetch.testing import run_virtual
from aioprefetch.testing.oracle import content
from aioprefetch.values import ReadReply, ReadRequest, WriteRequest
from tests.probes.search import scenario_seeds
from tests.stores.gated_reader import in_case
from tests.stores.verb_layer import VerbLayer

BLOCK = 64
SIZES = (1, BLOCK, 3 * BLOCK + 7, 20 * BLOCK, 50 * BLOCK + 1)
POLICIES: tuple[PolicyName, ...] = ("adaptive", "sequential", "whole-file", "random", "parquet", "vector")
STEPS = 14


@dataclass
class Sea(VerbLayer):
    """A store that takes its time for heads and for each piece of a body, and breaks off some of both.

    ``of_readers`` counts the requests of readers, ``in_flight`` all that have not ended.
    """

    dice: random.Random
    failure_rate: float
    of_readers: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        dice = self.dice
        self.of_readers += request.session is not None
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
        try:
            await asyncio.sleep(dice.choice((0, 0, 0.01, 0.03, 0.2)))
            self._fail(request)
            whole = CollectSink()
            reply = await inner.read(request, whole)
            body = whole.to_view()
            sink.begin(reply.head, path=request.path)
            while body:
                await asyncio.sleep(dice.choice((0, 0, 0.001, 0.01, 0.4)))
                self._fail(request)
                count = min(len(body), dice.randrange(1, 3 * BLOCK))
                sink.feed(body[:count])
                body = body[count:]
            return reply
        finally:
            self.in_flight -= 1

    def _fail(self, request: ReadRequest) -> None:
        if self.dice.random() < self.failure_rate:
            raise Unavailable("it broke off", operation="read", path=request.path)


@dataclass
class Voyage:
    """The readers of one object, and the tasks that use them."""

    seed: int
    dice: random.Random = field(init=False)
    versions: list[bytes] = field(init=False)
    delivered: int = 0
    is_certain: bool = True  # No read has failed or was cancelled: what it got before is counted too.
    problems: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        size = self.dice.choice(SIZES)
        self.versions = [content(size)]

    async def sail(self) -> None:
        """Run the tasks, close, and look at what is left."""
        dice = self.dice
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.problems.append(context))
        memory = Memory()
        self._store = memory.store
        self._store.put(WriteRequest(path="k"), self.versions[0])
        sea = Sea(random.Random(self.seed + 1), dice.choice((0.0, 0.0, 0.03, 0.1)))
        slots = dice.choice((1, 2, 4, 64))
        operator = (
            Operator(
                memory,
                memory_bytes=dice.choice((2, 4, 8, 40, 200)) * BLOCK,
                block_bytes=BLOCK,
                prefetch_blocks=dice.choice((0, 1, 3, 8)),
                drain_bytes=dice.choice((0, BLOCK, 8 * BLOCK, 8 * BLOCK)),
                concurrency=slots,
            )
            .layer(RetryLayer(base_seconds=0.01, attempts_max=3))
            .layer(sea, inside=ErrorContextLayer)
        )
        self._operator = operator
        overwrites = dice.random() < 0.3
        readers = [self._opened() for _ in range(dice.choice((1, 1, 2)))]
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(self._by_cursor(reader))
                for _ in range(dice.randrange(1, 4)):
                    group.create_task(self._by_position(reader))
            if overwrites:
                group.create_task(self._overwrite())
        runtime = operator.runtime()
        for reader in readers:
            await reader.aclose()
        await asyncio.sleep(dice.choice((0, 0.05, 10)))
        budget = runtime.budget
        await operator.aclose()
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (budget.used_bytes, budget.waiting, budget.queued_bytes) == (0, 0, 0)
        assert sea.in_flight == 0
        assert sea.in_flight_peak <= slots
        assert self.problems == []
        self._balance(operator.statistics, sea)

    def _balance(self, counts: Mapping[str, int], sea: Sea) -> None:
        assert [name for name, value in counts.items() if value < 0] == []
        assert counts["stream_read_active_prefetch_operations"] == counts["stream_read_active_memory_in_use"] == 0
        assert (counts["stream_read_opened"], counts["stream_leaks"]) == (counts["stream_read_closed"], 0)
        # A fetch that was cancelled while it queued for a slot was not sent.
        assert sea.of_readers <= counts["stream_read_block_read"] + counts["retries"]
        assert counts["stream_aborted"] + counts["stream_drained"] <= counts["stream_read_block_read"]
        assert counts["stream_read_bytes"] >= self.delivered
        if self.is_certain:
            assert counts["stream_read_bytes"] == self.delivered

    def _opened(self) -> RangeReader:
        options: dict[str, Any] = {"policy": self.dice.choice(POLICIES)}
        if self.dice.random() < 0.2:
            options["size"] = len(self.versions[0])
        if self.dice.random() < 0.2:
            start = self.dice.randrange(len(self.versions[0]) + 1)
            options["split"] = (start, start + self.dice.randrange(1, 5 * BLOCK))
        return self._operator.reader("k", **options)

    async def _overwrite(self) -> None:
        await asyncio.sleep(self.dice.choice((0, 0.1, 0.3)))
        size = len(self.versions[0])
        new = self.dice.choice((size, size, size + 3, max(1, size // 2)))
        self.versions.append(bytes(reversed(content(new))))
        self._store.put(WriteRequest(path="k"), self.versions[-1])

    # --- steps --------------------------------------------------------------------------------------------------

    async def _by_position(self, reader: RangeReader) -> None:
        for _ in range(STEPS):
            await self._tried(self._step_by_position(reader))

    async def _step_by_position(self, reader: RangeReader) -> None:
        dice, size = self.dice, len(self.versions[0])
        start, length = dice.randrange(size + BLOCK), dice.choice((1, 7, BLOCK, 5 * BLOCK, 30 * BLOCK))
        match dice.randrange(12):
            case 0 | 1 | 2 | 3:
                self._check(await self._perhaps_cancelled(reader.read_at(start, length)), start, length)
            case 4:
                self._check(await self._perhaps_cancelled(reader.view_at(start, length)), start, length)
            case 5:
                ranges = [(at, at + dice.randrange(2 * BLOCK)) for at in (dice.randrange(size) for _ in range(3))]
                ranges = [(low, min(high, size)) for low, high in ranges]
                parts = await self._perhaps_cancelled(reader.read_ranges(ranges))
                if parts is not None:
                    for (low, high), part in zip(ranges, parts, strict=True):
                        self._check(part, low, high - low)
            case 6:
                reader.will_need([(start, start + length)])
            case 7:
                reader.set_policy(dice.choice(POLICIES))
            case 8:
                await dice.choice((reader.unbuffer, reader.unbuffer, reader.reopen))()
            case 9:
                async with reader.clone() as clone:
                    self._check(await self._perhaps_cancelled(clone.read_at(start, length)), start, length)
            case 10:
                async with self._opened() as other:
                    at = dice.randrange(size)
                    data = await self._perhaps_cancelled(other.read_at(at, dice.choice((1, BLOCK))))
                    if data is not None:
                        self.delivered += len(data)
                        assert any(version[at : at + len(data)] == data for version in self.versions)
            case 11:
                data = await self._perhaps_cancelled(self._operator.read("k"))
                assert data is None or data in self.versions

    async def _by_cursor(self, reader: RangeReader) -> None:
        for _ in range(STEPS):
            await self._tried(self._step_by_cursor(reader))

    async def _step_by_cursor(self, reader: RangeReader) -> None:
        dice, size = self.dice, len(self.versions[0])
        start = dice.randrange(size + 1)
        match dice.randrange(4):
            case 0:
                reader.seek(start)
                assert reader.tell() == start
            case 1:
                start, length = reader.tell(), dice.choice((1, BLOCK // 2, 3 * BLOCK))
                data = await self._perhaps_cancelled(reader.read(length))
                self._check(data, start, length)
                if data is not None:
                    assert reader.tell() == start + len(data)
            case 2:
                start = reader.tell()
                async with reader.stream(chunk_bytes=dice.randrange(1, 3 * BLOCK)) as chunks:
                    for _ in range(dice.randrange(6)):
                        chunk = await anext(chunks, None)
                        if chunk is None:
                            break
                        self._check(chunk, start, len(chunk))
                        start += len(chunk)
            case 3:
                await asyncio.sleep(dice.choice((0, 0.01, 1.5)))

    async def _tried(self, step: Awaitable[None]) -> None:
        try:
            await step
        except (Unavailable, ObjectChanged):
            self.is_certain = False
        except RangeNotSatisfied:
            assert len(self.versions) > 1
        if self.dice.random() < 0.3:
            await asyncio.sleep(self.dice.choice((0, 0.005, 0.1)))

    async def _perhaps_cancelled(self, work: Any) -> Any:
        """The result of a read, ``None`` if it was cancelled: in a quarter of all cases, after any time."""
        if self.dice.random() < 0.75:
            return await work
        task = asyncio.ensure_future(work)
        for _ in range(self.dice.randrange(6)):
            await asyncio.sleep(0)
        await asyncio.sleep(self.dice.choice((0, 0.001, 0.02, 0.3)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self.is_certain = False
            return None

    def _check(self, data: Any, start: int, length: int) -> None:
        if data is not None:
            self.delivered += len(data)
            found = bytes(data)
            end = start + length
            # A reader with a declared size ends there.
            ends = (end, min(end, max(start, len(self.versions[0]))))
            assert any(found == version[start:end] for version in self.versions for end in ends), (start, length)


@pytest.mark.scenario
def test_readers_in_motion() -> None:
    gc.collect()  # s3fs closes what another test has left of it by a task of the loop in which it is collected.
    for seed in scenario_seeds(quick=25, full=100):
        with in_case(seed=seed):
            run_virtual(Voyage(seed).sail, seed=seed)
