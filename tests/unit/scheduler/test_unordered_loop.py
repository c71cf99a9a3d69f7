"""Parts that are decoded at once: batches as they are ready, errors, and what closing leaves behind."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from aioprefetch.errors import Closed
from aioprefetch.operator.operator import Operator
from aioprefetch.scheduler.decode_loop import PARTS_AT_ONCE, BatchOptions, UnorderedLoop
from aioprefetch.scheduler.pages import PreparedScan, ScanPart
from aioprefetch.services.memory import Memory
from tests.stores.gated_reader import settle
from tests.stores.pretended_format import PretendedScan

pytestmark = pytest.mark.virtual


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """Only its runtime is used."""
    async with Operator.bare(Memory()) as made:
        yield made


def started(operator: Operator, scan: PreparedScan) -> UnorderedLoop:
    """The loop at work, in batches of ten rows."""
    loop = UnorderedLoop(operator.runtime(), scan, BatchOptions(rows=10), path="k")
    loop.start()
    return loop


async def lengths(loop: UnorderedLoop) -> list[int]:
    """The rows of each batch that is left."""
    found = []
    while (batch := await loop.next_batch()) is not None:
        found.append(batch.num_rows)
    return found


async def test_every_part_comes_whole(operator: Operator) -> None:
    """More parts than are decoded at once, one of them without rows."""
    parts: list[list[list[int]]] = [[[25]], [[10]], [[]], [[7, 7]], [[30]], [[5]], [[12]]]
    scan = PretendedScan(*parts)
    loop = started(operator, scan.prepared())
    taking = asyncio.ensure_future(lengths(loop))
    while not taking.done():
        scan.arrive()
        await settle()
    assert sum(await taking) == 25 + 10 + 14 + 30 + 5 + 12
    assert await loop.next_batch() is None
    await loop.aclose()
    assert all(root.closed for root, part in zip(scan.roots, parts, strict=True))
    assert scan.service.closed


async def test_a_part_that_waits_holds_back_no_other(operator: Operator) -> None:
    scan = PretendedScan([[10]], [[20]], [[10]])
    loop = started(operator, scan.prepared())
    first = asyncio.ensure_future(loop.next_batch())
    await settle()
    second_part, third_part = scan.columns[1][0].pages, scan.columns[2][0].pages
    for page in (*second_part, *third_part):
        page.arrived.set_result(None)
    await settle()
    batch = await first
    assert batch is not None
    found = [batch.num_rows]
    for _ in range(2):
        batch = await loop.next_batch()
        assert batch is not None
        found.append(batch.num_rows)
    assert sum(found) == 30
    await loop.aclose()


async def test_only_a_few_parts_are_opened(operator: Operator) -> None:
    opened = []
    scan = PretendedScan(*[[[10]] for _ in range(9)])
    prepared = scan.prepared()

    async def parts() -> AsyncIterator[ScanPart]:
        assert not isinstance(prepared.parts, AsyncIterator)
        for number, part in enumerate(prepared.parts):
            opened.append(number)
            yield part

    loop = started(operator, PreparedScan(prepared.schema, parts(), prepared.service, is_ordered=False))
    await settle()
    assert len(opened) == PARTS_AT_ONCE
    await loop.aclose()
    assert len(opened) == PARTS_AT_ONCE


async def test_an_error_of_one_part_is_that_of_the_scan(operator: Operator) -> None:
    scan = PretendedScan([[10]], [[10]], [[10]])
    scan.roots[1].fails_at = 5
    loop = started(operator, scan.prepared())
    await settle()
    scan.arrive()
    with pytest.raises(ValueError, match="row 5 is bad"):
        await lengths(loop)
    await loop.aclose()
    assert all(root.closed for root in scan.roots)


async def test_a_cancelled_wait_takes_no_batch_with_it(operator: Operator) -> None:
    scan = PretendedScan([[10]], [[10]])
    loop = started(operator, scan.prepared())
    waiting = asyncio.ensure_future(loop.next_batch())
    await settle()
    waiting.cancel()
    await settle()
    scan.arrive()
    assert sum(await lengths(loop)) == 20
    await loop.aclose()


@pytest.mark.parametrize("how", ["aclose", "close"])
async def test_closing_wakes_the_consumer_and_releases_everything(operator: Operator, how: str) -> None:
    scan = PretendedScan([[10]], [[10]])
    loop = started(operator, scan.prepared())
    waiting = asyncio.ensure_future(loop.next_batch())
    await settle()
    if how == "aclose":
        await loop.aclose()
    else:
        loop.close()
    with pytest.raises(Closed):
        await waiting
    await settle()
    assert all(root.closed for root in scan.roots)
    assert scan.service.closed
    with pytest.raises(Closed):
        await loop.next_batch()
    await loop.aclose()
