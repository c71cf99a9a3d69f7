"""Batches in order, whatever pages do; read-ahead, short batches, errors, closing."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from aioprefetch.errors import Closed, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.scheduler.decode_loop import BatchOptions, DecodeLoop
from aioprefetch.services.memory import Memory
from aioprefetch.testing.clock import run_virtual
from tests.stores.gated_reader import settle
from tests.stores.pretended_format import PretendedScan


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """Only its runtime is used."""
    async with Operator.bare(Memory()) as made:
        yield made


def started(operator: Operator, scan: PretendedScan, **options: int) -> DecodeLoop:
    """Both loops at work."""
    loop = DecodeLoop(operator.runtime(), scan.prepared(), BatchOptions(**{"rows": 10, **options}), path="k")
    loop.start()
    return loop


def rows_of(batch: pa.RecordBatch | None) -> list[int]:
    """The row numbers of a batch."""
    assert batch is not None
    found: list[int] = batch.column(0).to_pylist()
    return found


async def all_rows(loop: DecodeLoop) -> list[list[int]]:
    """The rest, batch by batch."""
    batches = []
    while (batch := await loop.next_batch()) is not None:
        batches.append(rows_of(batch))
    return batches


@pytest.mark.parametrize("is_cheap", [True, False])
@pytest.mark.parametrize("batch_rows", [1, 7, 10, 25, 1000])
async def test_batches_have_nothing_to_do_with_pages(operator: Operator, batch_rows: int, is_cheap: bool) -> None:
    scan = PretendedScan([[25], [10, 10, 5], [1] * 25], is_cheap=is_cheap)
    loop = started(operator, scan, rows=batch_rows)
    await settle()
    scan.arrive()
    batches = await all_rows(loop)
    assert [row for batch in batches for row in batch] == list(range(25))
    assert {len(batch) for batch in batches[:-1]} <= {batch_rows}
    await loop.aclose()
    assert all(page.released == 1 for page in scan.pages())
    assert scan.service.closed == 1


async def test_parts_follow_one_another(operator: Operator) -> None:
    scan = PretendedScan([[15]], [[0], [0]], [], [[4, 4]])
    loop = started(operator, scan)
    await settle()
    scan.arrive()
    assert [len(batch) for batch in await all_rows(loop)] == [10, 5, 8]
    assert [root.closed for root in scan.roots[:-1]] == [1, 1, 1]
    await loop.aclose()


async def test_rows_before_a_page_that_does_not_come_are_delivered(operator: Operator) -> None:
    scan = PretendedScan([[100], [10] * 10])
    loop = started(operator, scan)
    await settle()
    scan.arrive("C0P0", *(f"C1P{n}" for n in range(10) if n != 6))
    for n in range(6):
        assert rows_of(await loop.next_batch())[0] == n * 10
    late = asyncio.ensure_future(loop.next_batch())
    await settle()
    assert not late.done()
    scan.arrive("C1P6")
    assert rows_of(await late)[0] == 60
    await loop.aclose()


def test_a_batch_is_cut_before_a_page_that_does_not_come() -> None:
    async def main() -> None:
        async with Operator.bare(Memory()) as operator:
            scan = PretendedScan([[100], [15] * 6 + [10]])
            loop = started(operator, scan, rows=40)
            await settle()
            scan.arrive("C0P0", "C1P0", "C1P1", "C1P3")
            began = asyncio.get_running_loop().time()
            assert rows_of(await loop.next_batch()) == list(range(30))
            assert asyncio.get_running_loop().time() - began == pytest.approx(1.0, abs=0.01)
            scan.arrive("C1P2")
            await settle()
            scan.arrive()
            assert [len(batch) for batch in await all_rows(loop)] == [40, 30]
            await loop.aclose()

    run_virtual(main)


async def test_no_more_than_the_read_ahead_is_decoded(operator: Operator) -> None:
    scan = PretendedScan([[10] * 20])
    loop = started(operator, scan, readahead=3)
    await settle()
    scan.arrive()
    await settle()
    assert scan.roots[0].drained == 30
    await loop.next_batch()
    await settle()
    assert scan.roots[0].drained == 30, "one is in the consumer's hands"
    await loop.next_batch()
    await settle()
    assert scan.roots[0].drained == 40
    await loop.aclose()


async def test_pages_go_back_when_the_consumer_comes_back(operator: Operator) -> None:
    scan = PretendedScan([[20, 20]])
    loop = started(operator, scan)
    await settle()
    scan.arrive()
    released = []
    for _ in range(4):
        await loop.next_batch()
        released.append([page.released for page in scan.pages()])
    assert released == [[0, 0], [0, 0], [1, 0], [1, 0]]
    assert await loop.next_batch() is None
    assert [page.released for page in scan.pages()] == [1, 1]
    await loop.aclose()


async def test_only_what_there_is_room_for_is_wanted(operator: Operator) -> None:
    """A promoted page may exceed the budget: a slow consumer must not promote them all."""
    scan = PretendedScan([[10] * 20])
    loop = started(operator, scan, readahead=2)
    await settle()
    scan.arrive("C0P0", "C0P1")
    await settle()
    assert [page.wanted for page in scan.pages()[1:]] == [False] * 19
    await loop.next_batch()
    await loop.next_batch()
    await settle()
    assert [page.wanted for page in scan.pages()[1:]] == [False] * 19
    waiting = asyncio.ensure_future(loop.next_batch())
    await settle()
    assert [page.wanted for page in scan.pages()[1:]] == [False, True] + [False] * 17
    await loop.aclose()
    with pytest.raises(Closed):
        await waiting


async def test_pages_that_come_by_themselves_are_decoded_ahead(operator: Operator) -> None:
    scan = PretendedScan([[10] * 20])
    loop = started(operator, scan)
    await settle()
    scan.arrive("C0P0")
    await settle()
    assert scan.roots[0].drained == 10
    scan.arrive("C0P1")
    await settle()
    assert scan.roots[0].drained == 20
    await loop.aclose()


async def test_bytes_bound_a_batch_too(operator: Operator) -> None:
    scan = PretendedScan([[50]])
    loop = started(operator, scan, rows=40, bytes=8 * 15)
    await settle()
    scan.arrive()
    assert [len(batch) for batch in await all_rows(loop)] == [15, 15, 15, 5]
    await loop.aclose()


@pytest.mark.parametrize("is_cheap", [True, False])
async def test_a_bad_page_fails_its_own_batch(operator: Operator, is_cheap: bool) -> None:
    scan = PretendedScan([[10] * 5], is_cheap=is_cheap)
    scan.roots[0].fails_at = 25
    loop = started(operator, scan)
    await settle()
    scan.arrive()
    assert rows_of(await loop.next_batch())[0] == 0
    assert rows_of(await loop.next_batch())[0] == 10
    with pytest.raises(ValueError, match="row 25"):
        await loop.next_batch()
    await loop.aclose()
    assert all(page.released == 1 for page in scan.pages()[:3])


async def test_a_read_that_fails_comes_behind_the_rows_before_it(operator: Operator) -> None:
    scan = PretendedScan([[10] * 5])
    loop = started(operator, scan)
    await settle()
    scan.pages()[2].arrived.set_exception(OSError("cut"))
    scan.arrive()
    assert rows_of(await loop.next_batch())[0] == 0
    assert rows_of(await loop.next_batch())[0] == 10
    for _ in range(2):
        with pytest.raises(OSError, match="cut"):
            await loop.next_batch()
    await loop.aclose()


async def test_pages_that_cover_too_few_rows_are_refused(operator: Operator) -> None:
    scan = PretendedScan([[10, 10]])
    object.__setattr__(scan.parts[0], "rows", 25)
    scan.columns[0][0].page_rows = [10, 10]
    loop = started(operator, scan)
    await settle()
    scan.arrive()
    with pytest.raises(UntrustedMetadata, match="25 rows"):
        await all_rows(loop)
    await loop.aclose()


async def test_a_cancelled_wait_takes_no_batch_with_it(operator: Operator) -> None:
    scan = PretendedScan([[10, 10]], is_cheap=False)
    loop = started(operator, scan)
    await settle()
    waiting = asyncio.ensure_future(loop.next_batch())
    await settle()
    waiting.cancel()
    await settle()
    scan.arrive()
    assert [len(batch) for batch in await all_rows(loop)] == [10, 10]
    await loop.aclose()


async def test_what_a_filter_takes_away_is_not_delivered(operator: Operator) -> None:
    scan = PretendedScan([[50]])
    scan.finish = lambda batch, _: (
        None if batch.column(0)[0].as_py() == 10 else batch.slice(0, batch.column(0)[0].as_py())
    )
    loop = started(operator, scan)
    await settle()
    scan.arrive()
    assert [batch[0] for batch in await all_rows(loop)] == [20, 30, 40]
    await loop.aclose()
    assert scan.pages()[0].released == 1


async def test_closing_wakes_the_consumer_and_gives_everything_back(operator: Operator) -> None:
    scan = PretendedScan([[10] * 5])
    loop = started(operator, scan)
    await settle()
    scan.arrive("C0P0")
    await loop.next_batch()
    waiting = asyncio.ensure_future(loop.next_batch())
    await settle()
    await loop.aclose()
    with pytest.raises(Closed):
        await waiting
    await loop.aclose()
    assert scan.pages()[0].released == 1
    assert scan.roots[0].closed == 1
    assert scan.service.closed >= 1


@pytest.mark.parametrize("is_cheap", [True, False])
async def test_closing_the_operator_wakes_the_consumer(is_cheap: bool) -> None:
    operator = Operator.bare(Memory())
    scan = PretendedScan([[10] * 5], is_cheap=is_cheap)
    loop = started(operator, scan)
    waiting = asyncio.ensure_future(loop.next_batch())
    await settle()
    await operator.aclose()
    with pytest.raises(Closed):
        await waiting
    await loop.aclose()


async def test_pages_stay_until_the_thread_is_done_with_them(operator: Operator) -> None:
    gate = threading.Event()
    scan = PretendedScan([[10] * 5], is_cheap=False)

    def finish(batch: pa.RecordBatch, _: int) -> pa.RecordBatch:
        gate.wait(10)
        return batch

    scan.finish = finish
    loop = started(operator, scan)
    await settle()
    scan.arrive()
    await settle()
    closing = asyncio.ensure_future(loop.aclose())
    await settle()
    assert not closing.done()
    assert [page.released for page in scan.pages()] == [0] * 5
    assert scan.roots[0].closed == 0
    gate.set()
    await closing
    assert [page.released for page in scan.pages()] == [1, 1, 1, 1, 0]
    assert scan.roots[0].closed == 1
