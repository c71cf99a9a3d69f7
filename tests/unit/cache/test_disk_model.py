"""Random reads beside the bytes themselves, while every n-th call of the disk fails."""

import asyncio
import errno
import gc
import random
from pathlib import Path
from typing import Any

from tests.profile import chosen
from tests.stores.disk_tier import (
    disk_bench,
    written,
)
from tests.stores.failing_disk import EveryNth, FailingCalls, WarmCalls, until
from tests.stores.gated_reader import KIB, Bench

SMALL = 4 * KIB
SMALL_BLOCKS: dict[str, Any] = {"blocks": 0, "block_bytes": SMALL, "disk": {"cool_down_seconds": 0.001}}


async def test_reads_are_right_with_every_nth_call_of_the_disk_failing(tmp_path: Path) -> None:
    """Against the bytes themselves, with little memory, views held and versions changing, for every n."""
    for n in chosen(quick=(1, 2, 3, 5, 7, 8, 12, 19, 33), full=(*range(1, 40), 53, 71, 97, 151)):
        for make_calls in chosen(quick=((FailingCalls, WarmCalls)[n % 2],), full=(FailingCalls, WarmCalls)):
            try:
                await read_while_calls_fail(tmp_path / f"{n}{make_calls.__name__}", n, make_calls)
            except BaseException as error:
                error.add_note(f"n={n}, {make_calls.__name__}")
                raise


async def read_while_calls_fail(path: Path, n: int, make_calls: type[FailingCalls]) -> None:
    """Read at random while every n-th call fails, and then on the same directory without failures."""
    rng = random.Random(n)
    fails = EveryNth(n, rng.choice((errno.EIO, errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.EAGAIN)))
    async with disk_bench(path, calls=make_calls(fails), memory_bytes=2 * SMALL, **SMALL_BLOCKS) as b:
        b.data = rng.randbytes(8 * SMALL)
        b.put(b.data)
        await read_at_random(b, rng, 50)
        b.data = rng.randbytes(8 * SMALL)
        b.put(b.data)
        await read_at_random(b, rng, 30)
        while fails.count < n:  # A slow disk is asked less often.
            await read_at_random(b, rng, 30)
        async with disk_bench(path, memory_bytes=2 * SMALL, **SMALL_BLOCKS) as later:
            later.store.objects["k"] = b.store.objects["k"]
            later.data = b.data
            await read_at_random(later, rng, 30)


async def read_at_random(b: Bench, rng: random.Random, steps: int) -> None:
    """Reads of any size anywhere, some as views that are held for a while."""
    size = len(b.data)
    held: list[tuple[memoryview, bytes]] = []
    async with b.reader(policy=rng.choice(("adaptive", "sequential", "random", "parquet"))) as reader:
        for step in range(steps):
            offset, length = rng.randrange(size + 10), rng.choice((1, 100, SMALL, 9000, size))
            if step % 7 == 3:
                held = [(await reader.view_at(offset, min(length, SMALL)), b.data[offset:][: min(length, SMALL)])]
            assert await reader.read_at(offset, length) == b.data[offset : offset + length]
            assert all(view == expected for view, expected in held)
        held.clear()
        await written(b)


async def test_many_tasks_of_which_some_are_cancelled(tmp_path: Path) -> None:
    """On a disk that fails now and then: right bytes, and in the end all memory comes back."""
    for seed in range(chosen(quick=4, full=12)):
        try:
            await read_by_many_tasks(tmp_path / str(seed), random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed={seed}")
            raise


async def read_by_many_tasks(path: Path, rng: random.Random) -> None:
    """Eight tasks read with one reader, and some of them are cancelled."""
    fails = EveryNth(rng.choice((7, 50, 10_000)))
    memory_bytes = rng.choice((1, 3, 6)) * SMALL
    calls = rng.choice((FailingCalls, WarmCalls))(fails)
    async with disk_bench(path, calls=calls, memory_bytes=memory_bytes, **SMALL_BLOCKS) as b:
        b.data = rng.randbytes(12 * SMALL)
        b.put(b.data)
        reader = b.reader(
            policy=rng.choice(("adaptive", "sequential", "whole-file")), prefetch_blocks=rng.choice((0, 2))
        )

        async def reads() -> None:
            for _ in range(15):
                offset, length = rng.randrange(len(b.data)), rng.choice((1, SMALL, 3 * SMALL))
                assert await reader.read_at(offset, length) == b.data[offset : offset + length]

        tasks = [asyncio.create_task(reads()) for _ in range(8)]
        for task in tasks[::3]:
            for _ in range(rng.randrange(200)):
                await asyncio.sleep(0)
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in results if one is not None and not isinstance(one, asyncio.CancelledError)] == []
        await written(b)
        await reader.unbuffer()
        await reader.aclose()
        gc.collect()
        await until(lambda: b.runtime.budget.used_bytes == 0)
