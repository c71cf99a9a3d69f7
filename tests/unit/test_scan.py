"""The stream of batches that a scan is, on an event loop and as an Arrow stream."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from aioprefetch.errors import Closed, ConfigInvalid, InvalidType, NotFound, UntrustedMetadata, WrongLoop
from aioprefetch.operator.operator import Operator
from aioprefetch.scan import BatchScan, batch_options
from aioprefetch.scheduler.decode_loop import RUN_ROWS, BatchOptions
from aioprefetch.scheduler.pages import PreparedScan
from aioprefetch.services.memory import Memory
from aioprefetch.sync import run
from tests.stores.gated_reader import settle
from tests.stores.pretended_format import PretendedScan


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """Only its runtime is used."""
    async with Operator.bare(Memory()) as made:
        yield made


class Made:
    """A BatchScan and what is behind it: a new pretended scan at each start, whose pages arrive at once."""

    def __init__(self, operator: Operator, pages: list[int], *, arrives: bool = True) -> None:
        self.pages = pages
        self.arrives = arrives
        self.starts: list[PretendedScan] = []
        self.error: Exception | None = None
        self.scan = BatchScan(operator, self._prepare, path="k", options=BatchOptions(10))

    async def _prepare(self) -> PreparedScan:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        made = PretendedScan([self.pages])
        self.starts.append(made)
        if self.arrives:
            self._arrive(made)
        return made.prepared()

    def _arrive(self, made: PretendedScan) -> None:
        """Let pages arrive soon, whenever they are asked for."""
        if not made.service.closed:
            made.arrive()
            asyncio.get_running_loop().call_later(0.01, self._arrive, made)


def rows(table: pa.Table) -> list[int]:
    """The row numbers."""
    found: list[int] = table.column("row").to_pylist()
    return found


async def test_batches_in_order_then_the_end(operator: Operator) -> None:
    made = Made(operator, [25])
    assert not made.starts, "nothing happens before the first batch is awaited"
    assert [batch.num_rows async for batch in made.scan] == [10, 10, 5]
    assert [batch async for batch in made.scan] == []
    assert made.starts[0].service.closed
    assert len(made.starts) == 1


async def test_schema_first_and_read_all(operator: Operator) -> None:
    made = Made(operator, [25])
    assert (await made.scan.schema()).names == ["row"]
    table = await made.scan.read_all()
    assert rows(table) == list(range(25))
    assert len(made.starts) == 1


async def test_a_plain_loop_over_batches(operator: Operator) -> None:
    """Each from the beginning, on the loop thread; left early, it is closed."""
    elsewhere = Operator.bare(Memory())
    made = Made(elsewhere, [25])

    def taken() -> None:
        for _ in range(2):
            assert [batch.num_rows for batch in made.scan] == [10, 10, 5]
        for batch in made.scan:
            assert batch.num_rows == 10
            break

    await asyncio.to_thread(taken)
    gc.collect()
    await asyncio.to_thread(run, settle())
    assert len(made.starts) == 3
    assert all(start.service.closed for start in made.starts)
    await asyncio.to_thread(run, elsewhere.aclose())


async def test_a_closed_scan_has_no_schema_to_ask_for(operator: Operator) -> None:
    scan = Made(operator, [5]).scan
    await scan.aclose()
    with pytest.raises(Closed):
        await scan.schema()


async def test_an_empty_table_keeps_its_schema(operator: Operator) -> None:
    table = await Made(operator, []).scan.read_all()
    assert table.schema.names == ["row"]
    assert table.num_rows == 0


async def test_left_early_it_gives_everything_back(operator: Operator) -> None:
    made = Made(operator, [10] * 5)
    async with made.scan as scan:
        async for batch in scan:
            assert batch.num_rows == 10
            break
    assert made.starts[0].service.closed
    assert made.starts[0].roots[0].closed
    assert [page.released for page in made.starts[0].pages()[:1]] == [1]
    with pytest.raises(Closed):
        await anext(made.scan)
    with pytest.raises(Closed):
        await made.scan.read_all()


async def test_dropped_it_closes_itself(operator: Operator) -> None:
    made = Made(operator, [10] * 5)
    await anext(made.scan)
    del made.scan
    gc.collect()
    await settle()
    assert made.starts[0].service.closed


async def test_an_error_of_the_metadata_is_raised_and_names_the_scan(operator: Operator) -> None:
    made = Made(operator, [5])
    made.error = NotFound("no such object", operation="read", path="k")
    with pytest.raises(NotFound):
        await anext(made.scan)
    made.error = None
    assert [batch.num_rows async for batch in made.scan] == [5], "nothing had begun"


async def test_several_tasks_take_batches_in_turns(operator: Operator) -> None:
    made = Made(operator, [95])
    seen: list[int] = []

    async def take() -> None:
        async for batch in made.scan:
            seen.extend(batch.column(0).to_pylist())

    await asyncio.gather(*(take() for _ in range(4)))
    assert seen == list(range(95))


async def test_closing_while_a_batch_is_awaited(operator: Operator) -> None:
    made = Made(operator, [10], arrives=False)
    waiting = asyncio.ensure_future(anext(made.scan))
    await settle()
    await made.scan.aclose()
    with pytest.raises(Closed):
        await waiting


async def test_another_loop_is_refused(operator: Operator) -> None:
    made = Made(operator, [10])
    await anext(made.scan)

    def elsewhere() -> None:
        with pytest.raises(WrongLoop):
            asyncio.run(_take(made.scan))

    await asyncio.to_thread(elsewhere)


async def _take(scan: BatchScan) -> pa.RecordBatch:
    return await anext(scan)


TAKERS: dict[str, Callable[[BatchScan], list[int]]] = {
    "pyarrow": lambda scan: rows(pa.table(scan)),
    "record batch reader": lambda scan: rows(pa.RecordBatchReader.from_stream(scan).read_all()),
    "polars": lambda scan: pl.DataFrame(scan)["row"].to_list(),
    "duckdb": lambda scan: [row for (row,) in duckdb.from_arrow(scan.to_reader()).fetchall()],
    "pandas": lambda scan: pd.DataFrame.from_arrow(scan)["row"].tolist(),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_an_arrow_stream_for_code_without_a_loop(taker: str) -> None:
    operator = Operator.bare(Memory())
    made = Made(operator, [10, 20, 5])
    for _ in range(2):
        assert TAKERS[taker](made.scan) == list(range(35))
    assert len(made.starts) == 2, "each time from the beginning"
    run(operator.aclose())


def test_an_arrow_reader_that_is_dropped_ends_the_scan() -> None:
    operator = Operator.bare(Memory())
    made = Made(operator, [10] * 50)
    reader = made.scan.to_reader()
    assert reader.read_next_batch().num_rows == 10
    del reader
    gc.collect()
    assert made.starts[0].service.closed
    run(operator.aclose())


def test_an_arrow_reader_raises_what_the_scan_raises() -> None:
    operator = Operator.bare(Memory())
    made = Made(operator, [10] * 50)
    made.error = NotFound("no such object", operation="read", path="k")
    with pytest.raises(NotFound):
        made.scan.to_reader()
    run(operator.aclose())


def test_threads_may_share_an_arrow_reader() -> None:
    operator = Operator.bare(Memory())
    reader = Made(operator, [10] * 30).scan.to_reader()
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: reader.read_next_batch().column(0)[0].as_py(), range(30)))
    assert sorted(taken) == list(range(0, 300, 10))
    run(operator.aclose())


async def test_what_the_format_raises_names_the_scan(operator: Operator) -> None:
    made = Made(operator, [5])
    made.error = UntrustedMetadata("bad")
    with pytest.raises(UntrustedMetadata) as raised:
        await anext(made.scan)
    assert (raised.value.operation, raised.value.path) == ("scan", "k")


def test_an_arrow_reader_refuses_to_wait_for_itself() -> None:
    operator = Operator.bare(Memory())
    made = Made(operator, [10])

    async def inside() -> None:
        made.scan.to_reader()

    with pytest.raises(WrongLoop):
        run(inside())
    run(operator.aclose())


def test_options_are_checked() -> None:
    assert batch_options(5, None, path="k") == BatchOptions(5, together=RUN_ROWS)
    with pytest.raises(ConfigInvalid, match="batch_rows"):
        batch_options(0, None, path="k")
    with pytest.raises(ConfigInvalid, match="batch_bytes"):
        batch_options(1, -1, path="k")
    with pytest.raises(InvalidType, match="readahead"):
        batch_options(1, None, 1.5, path="k")
