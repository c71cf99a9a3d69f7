"""A disk that does not respond, or too slowly: reads go round it, memory is not held back, closing does not wait."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioprefetch.cache.write_behind import SPILL_WAIT_SECONDS_MAX, SPILL_WAIT_SHARE, SpillWaitBudget
from aioprefetch.testing.conformance.suite import checks
from tests.probes.descriptors import descriptors_below, needs_proc
from tests.stores.disk_tier import (
    BLOCK,
    READ_TIMEOUT_SECONDS,
    counts,
    disk_bench,
    key_in,
    on_disk,
    pass_time,
    read_all_over,
    read_block,
    reader_of,
    tier_of,
    warnings,
    written,
)
from tests.stores.failing_disk import FailingCalls, file_of, files_in, overwrite, until
from tests.stores.gated_reader import settle


class Hang:
    """Calls of an operation hang while it is set."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.hanging = threading.Event()
        self.released = threading.Event()
        self.returned = threading.Event()
        self.on = False

    def __call__(self, operation: str) -> None:
        if self.on and operation == self.operation:
            self.hanging.set()
            self.released.wait(20)
            self.returned.set()


@pytest.fixture
def hang() -> Iterator[Hang]:
    """A hang that ends with the test."""
    made = Hang("read")
    yield made
    made.released.set()


@checks("reliability:D27")
async def test_a_disk_that_does_not_respond_is_bypassed(
    tmp_path: Path, hang: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    """The read waits for its deadline, the next ones not at all; when the disk responds again it is used again."""
    async with disk_bench(tmp_path, calls=FailingCalls(hang), disk={"cool_down_seconds": 0.001}) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0, 1)
        hang.on = True
        reading = asyncio.create_task(read_block(b, reader, 0))
        await until(hang.hanging.is_set)
        assert b.ranges == []
        pass_time(READ_TIMEOUT_SECONDS)
        await reading
        assert b.ranges == [(0, BLOCK)]
        calls = tier_of(b).calls
        assert calls.is_off
        hang.hanging.clear()
        for index in (1, 2, 3, 4, 0):
            await read_block(b, reader, index)
        assert not hang.hanging.is_set()
        assert calls.is_off
        assert counts(b)[2] == 1
        assert "did not respond" in warnings(caplog)[0]
        hang.on = False
        hang.released.set()
        await until(lambda: not calls.is_off)
        await on_disk(b, reader, 5)
        await read_block(b, reader, 5)
        assert b.calls == []
        await reader.aclose()


@checks("reliability:D27")
async def test_a_late_thread_writes_into_no_readers_memory(tmp_path: Path, hang: Hang) -> None:
    async with disk_bench(tmp_path, calls=FailingCalls(hang)) as b:
        reader = reader_of(b)
        await on_disk(b, reader, 0)
        hang.on = True
        key = key_in(b, reader, 0)
        reading = asyncio.ensure_future(reader.view_at(0, BLOCK))
        await until(hang.hanging.is_set)
        pass_time(READ_TIMEOUT_SECONDS)
        view = await reading
        del reading
        overwrite(file_of(tmp_path, key), 0, b"\xff" * key.file_bytes)
        hang.released.set()
        await until(lambda: tier_of(b).calls.hanging_count == 0)
        assert bytes(view) == b.data[:BLOCK]
        assert await reader.read_at(0, BLOCK) == b.data[:BLOCK]
        del view
        await reader.aclose()


async def test_half_of_the_threads_may_hang(tmp_path: Path, hang: Hang) -> None:
    """Other users of the executor go on."""
    async with disk_bench(tmp_path, memory_blocks=8, calls=FailingCalls(hang), executor_threads=4) as b:
        first = reader_of(b)
        for index in range(8):
            await read_block(b, first, index)
            await written(b)
        known = [index for index in range(8) if key_in(b, first, index).name in tier_of(b).cache]
        assert len(known) >= 4
        await first.unbuffer()
        hang.on = True
        reads = asyncio.gather(*(read_block(b, first, index) for index in known))
        await until(hang.hanging.is_set)
        await settle()  # All of them wait.
        assert await b.runtime.run_blocking(lambda: "free") == "free"
        pass_time(READ_TIMEOUT_SECONDS)
        await reads
        assert await b.runtime.run_blocking(lambda: "free") == "free"
        assert tier_of(b).calls.hanging_count <= 2
        await first.aclose()


async def test_a_write_that_hangs_holds_up_reads_for_a_limited_time(tmp_path: Path, hang: Hang) -> None:
    """Memory goes on being used for reads: what is in writing is bounded, and waits end."""
    hang.operation = "write"
    async with disk_bench(tmp_path, memory_blocks=4, calls=FailingCalls(hang)) as b:
        hang.on = True
        reader = reader_of(b)
        for _ in range(3):
            for index in range(8):
                await read_block(b, reader, index)
        writer = tier_of(b).writer
        assert writer.writing_bytes == BLOCK
        assert writer.spill_wait_exhausted
        assert b.runtime.budget.peak_bytes <= 5 * BLOCK
        assert files_in(tmp_path) == [name for name in files_in(tmp_path) if name.endswith(".claim")]
        hang.released.set()
        await written(b)
        await reader.aclose()


async def test_an_exhausted_wait_is_over_whatever_the_clock_says(
    tmp_path: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer may be early by the resolution of its clock: this one is as early as can be."""
    hang.operation = "write"
    async with disk_bench(tmp_path, calls=FailingCalls(hang)) as b:
        hang.on = True
        reader = reader_of(b)
        await read_block(b, reader, 0)
        await read_block(b, reader, 1)
        writer = tier_of(b).writer
        with monkeypatch.context() as patch:
            patch.setattr(b.runtime.loop, "call_later", lambda delay, call: b.runtime.loop.call_soon(call))
            writer.wait()
        seen = [writer.spill_wait_exhausted]
        await asyncio.sleep(0)
        seen.append(writer.spill_wait_exhausted)
        hang.released.set()
        await written(b)
        assert [*seen, writer.spill_wait_exhausted] == [False, True, False]
        await reader.aclose()


@needs_proc
async def test_closing_waits_for_no_disk(tmp_path: Path, hang: Hang) -> None:
    """Neither for a read nor for a write that hangs; what they leave is nothing once they come back."""
    hang.operation = "write"
    async with disk_bench(tmp_path, calls=FailingCalls(hang)) as b:
        hang.on = True
        reader = reader_of(b)
        await read_block(b, reader, 0)
        await read_block(b, reader, 1)
        await until(hang.hanging.is_set)
        await reader.aclose()
        runtime = b.runtime
        await b.operator.aclose()
        assert not hang.returned.is_set()
        assert runtime.budget.used_bytes == BLOCK
        hang.released.set()
        await until(lambda: runtime.budget.used_bytes == 0)
    assert [name for name in files_in(tmp_path) if name.endswith(".claim")] == []
    assert descriptors_below(tmp_path) == []


@needs_proc
async def test_a_cache_that_is_closed_keeps_no_descriptor(tmp_path: Path) -> None:
    async with disk_bench(tmp_path) as b:
        await read_all_over(b)
        assert descriptors_below(tmp_path) != []
    await until(lambda: descriptors_below(tmp_path) == [])  # A late thread may still drop the last one.


def test_a_wait_takes_half_a_second_at_once_and_a_twentieth_of_the_time() -> None:
    budget = SpillWaitBudget(100.0)
    assert budget.left(100.0) == SPILL_WAIT_SECONDS_MAX
    budget.begin(100.0)
    budget.begin(100.2)
    assert budget.left(100.2) == pytest.approx(SPILL_WAIT_SECONDS_MAX - 0.2)
    assert budget.left(101.0) < 0
    budget.end(101.0)
    budget.end(102.0)
    owed = 1.0 - SPILL_WAIT_SECONDS_MAX
    assert budget.left(101.0) == pytest.approx(-owed)
    assert budget.left(101.0 + owed / SPILL_WAIT_SHARE + 1.0) == pytest.approx(SPILL_WAIT_SHARE)
    assert budget.left(10_000.0) == SPILL_WAIT_SECONDS_MAX
