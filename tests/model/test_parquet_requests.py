"""How many requests a Parquet scan costs: those of the pure planner, counted at the store."""

import asyncio
import io
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.accessor.sink import Sink
from aioprefetch.cli.demo import sample_parquet
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.byte_plan import Plan
from aioprefetch.parquet.chunks import column_chunks
from aioprefetch.parquet.footer import TAIL_BYTES_EVERYTHING
from aioprefetch.ranges import SMALL_GAP_BYTES
from aioprefetch.scheduler.pinned_file import PinnedFile
from tests.profile import chosen
from tests.stores.computed_store import MIB, Arithmetic, Distance, Read, repeated

pytestmark = pytest.mark.virtual

# The store of the oracles: 30 ms to the first byte, 90 MB/s for each connection.
FAR = Distance(first_byte_seconds=0.03, bytes_per_second=90e6)


def numbers_file(columns: int, row_groups: int, rows: int, **options: Any) -> bytes:
    """Row groups of columns of random numbers, which compress to nothing less."""
    random = np.random.default_rng(3)
    table = pa.table({f"c{n:02}": random.random(row_groups * rows) for n in range(columns)})
    sink = pa.BufferOutputStream()
    options = {"row_group_size": rows, "use_dictionary": False, "compression": "none", **options}
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


@cache
def fifty() -> bytes:
    """24 MB."""
    return numbers_file(12, 50, 5_000)


@cache
def indexed() -> bytes:
    """12.8 MB."""
    return numbers_file(4, 4, 100_000, write_page_index=True, data_page_size=64 << 10)


@dataclass(slots=True)
class Store:
    """A file far away, and what was asked of it."""

    data: bytes
    service: Arithmetic
    operator: Operator

    async def read(self, **options: Any) -> tuple[pa.Table, list[Read]]:
        """The table that a scan gives, and its requests but the one for the footer."""
        before = len(self.service.reads)
        table = await ap.parquet.read_table(self.operator, "k", **options)
        return table, self.service.reads[before:]

    async def plan(self, **options: Any) -> Plan:
        """The plan, and what it costs taken out of the log."""
        found: Plan = await ap.parquet.plan(self.operator, "k", **options)
        self.service.log.clear()
        return found


@asynccontextmanager
async def store_of(data: bytes) -> AsyncIterator[Store]:
    view = memoryview(data)
    service = Arithmetic(len(data), content=lambda start, end: view[start:end], distance=FAR)
    async with Operator(service) as operator:
        yield Store(data, service, operator)
    # What begins before the tail and ends in it is asked for whole.
    assert len(repeated(service.reads)) <= 1
    assert repeated(service.reads[1:]) == []
    assert service.stats == 0


def same_columns(data: bytes, **options: Any) -> pa.Table:
    return pq.read_table(pa.BufferReader(data), **options)


async def test_the_demo_is_one_request() -> None:
    data = sample_parquet()
    assert len(data) < TAIL_BYTES_EVERYTHING
    async with store_of(data) as store:
        table, requests = await store.read()
    assert requests == [(0, len(data))]
    assert table.equals(same_columns(data))


async def test_the_demo_by_columns_is_one_request() -> None:
    """polars 2 sends 51 for the same: its tail, and one for each row group."""
    data, columns = sample_parquet(), ["column_00", "column_01", "column_02"]
    async with store_of(data) as store:
        table, requests = await store.read(columns=columns)
    assert requests == [(0, len(data))]
    assert table.equals(same_columns(data, columns=columns))


@pytest.mark.parametrize("columns", [[0, 1, 2], [1, 5, 9], [3, 4, 11]], ids=str)
async def test_three_of_twelve_columns_of_fifty_row_groups(columns: list[int]) -> None:
    """Exactly what is planned, in few requests, for no more than twice the bytes of the columns and a block."""
    names = [f"c{number:02}" for number in columns]
    async with store_of(fifty()) as store:
        table, requests = await store.read(columns=names)
    async with store_of(fifty()) as store:
        plan = await store.plan(columns=names)
    footer_request, *others = requests
    assert footer_request == (len(fifty()) - TAIL_BYTES_EVERYTHING, len(fifty()))
    assert sorted(others) == sorted(plan.requests)
    assert sum(end - start for start, end in others) <= 2 * plan.projected_bytes + 8 * MIB
    assert len(requests) < 51  # What polars 2 sends for neighbours.
    assert table.equals(same_columns(fifty(), columns=names))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_groups": [3, 4, 20]},
        {"rows": (7_000, 31_000), "columns": ["c02", "c03"]},
        {"gap_bytes": 1 << 20, "columns": ["c00", "c08"]},
        {"request_bytes_max": MIB},
    ],
    ids=str,
)
async def test_a_scan_sends_what_is_planned(options: dict[str, Any]) -> None:
    async with store_of(fifty()) as store:
        plan = await store.plan(**options)
    async with store_of(fifty()) as store:
        _, requests = await store.read(**options)
    assert sorted(requests[1:]) == sorted(plan.requests)


@pytest.mark.parametrize(
    "options", [{"rows": (120_000, 121_000)}, {"filters": [("c00", "<", -1.0)]}, {"rows": (0, 400_000)}], ids=str
)
async def test_pages_are_planned_too(options: dict[str, Any]) -> None:
    async with store_of(indexed()) as store:
        plan = await store.plan(**options)
    async with store_of(indexed()) as store:
        table, requests = await store.read(**options)
    assert sorted(requests[1:]) == sorted(plan.requests)
    if "rows" in options:
        start, stop = options["rows"]
        assert table.equals(same_columns(indexed()).slice(start, stop - start))
    if options.get("rows") == (120_000, 121_000):
        assert plan.requested_bytes < 0.2 * 4 * 100_000 * 8  # Of the row group that holds these rows.
    if "filters" in options:
        assert (table.num_rows, plan.requests) == (0, ())


@cache
def nested() -> bytes:
    """8 MB: a struct with a sorted field, null here and there, and a list; its pages are indexed."""
    rows = 240_000
    noise, sorted_ = np.random.default_rng(3).random((2, rows)), pa.array(range(rows))
    holes = pa.array(np.arange(rows) % 7 == 3)
    fields = {"x": pc.if_else(holes, None, sorted_), "f": noise[0], "l": pa.array([[0]] * rows)}
    struct = pa.StructArray.from_arrays(
        [pa.array(column) for column in fields.values()], names=list(fields), mask=pa.array(np.arange(rows) % 5 == 4)
    )
    table = pa.table({"id": sorted_, "s": struct, "v": noise[1]})
    sink = pa.BufferOutputStream()
    options: Any = {"compression": "none", "use_dictionary": False, "data_page_size": 16 << 10}
    pq.write_table(table, sink, row_group_size=rows // 4, write_page_index=True, **options)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("column", ["id", ("s", "x")])
@pytest.mark.parametrize("is_expression", [True, False])
async def test_filters_that_keep_a_hundredth_leave_out_row_groups_and_pages(
    column: Any, *, is_expression: bool
) -> None:
    """On fields of structs as on columns, in both forms; a list beside the field does not keep it from that."""
    expected = pc.field(column) > 238_000
    filters = expected if is_expression else [(column, ">", 238_000)]
    async with store_of(nested()) as store:
        _, whole = await store.read(columns=["s.f", "v"])
    async with store_of(nested()) as store:
        table, requests = await store.read(columns=["s.f", "v"], filters=filters)
    every = same_columns(nested(), columns=["s.f", "v", "s.x", "id"], filters=expected)
    assert table.equals(every.select(["f", "v"]))
    assert len(requests) <= len(whole)
    data = [sum(end - start for start, end in each[1:]) for each in (requests, whole)]
    assert data[0] < 0.1 * data[1], "without the tail, which comes with the footer"


async def test_a_file_that_is_known_is_asked_for_no_more_than_its_columns() -> None:
    async with store_of(fifty()) as store:
        await store.plan(columns=["c00"])
        footer = await ap.parquet.footer(store.operator, "k", everything=True)
        store.service.log.clear()
        _, requests = await store.read(columns=["c00"], footer=footer)
        plan = await store.plan(columns=["c00"])
    assert sorted(requests) == sorted(plan.requests)


# --- beside pyarrow ---------------------------------------------------------------------------------------------------


class CountedFile(io.RawIOBase):
    """A file that notes the ranges it is read in."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.reads: list[Read] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = offset + (0, self.position, len(self.data))[whence]
        return self.position

    def read(self, size: int = -1) -> bytes:
        end = len(self.data) if size < 0 else self.position + size
        self.reads.append((self.position, end))
        found = self.data[self.position : end]
        self.position += len(found)
        return found


def read_by_pyarrow(data: bytes, columns: list[str] | None) -> tuple[pa.Table, int]:
    """The table, and how many reads pyarrow's ``pre_buffer`` makes of it, those of the footer included."""
    file = CountedFile(data)
    table = pq.read_table(pa.PythonFile(file, mode="r"), columns=columns, use_threads=False)
    return table, len(file.reads)


def any_file(rng: random.Random) -> bytes:
    """From some KB to several blocks, of few or many columns and row groups."""
    columns, groups = rng.choice([1, 2, 5, 12, 40]), rng.choice([1, 2, 7, 50, 300])
    rows = max(1, rng.choice([2_000, 50_000, 900_000]) // (columns * groups))
    kinds = [rng.choice(["double", "text", "small"]) for _ in range(columns)]
    made = np.random.default_rng(rng.randrange(1 << 30))
    count = groups * rows
    values: dict[str, Any] = {
        "double": lambda: made.random(count),
        "small": lambda: made.integers(0, 9, count).astype("i2"),
        "text": lambda: [f"{number:08}" for number in made.integers(0, 1 << 26, count).tolist()],
    }
    table = pa.table({f"c{number}": values[kind]() for number, kind in enumerate(kinds)})
    sink = pa.BufferOutputStream()
    compression = rng.choice(["none", "zstd"])
    pq.write_table(
        table, sink, row_group_size=rows, use_dictionary=False, compression=compression, write_statistics=False
    )
    return bytes(sink.getvalue())


@pytest.mark.parametrize("seed", chosen(quick=range(9), full=range(24)))
async def test_never_more_requests_than_pyarrow_nor_more_than_twice_the_bytes(seed: int) -> None:
    """Runs that are larger than a block are cut, to come in parallel: those are counted before."""
    rng, block_bytes = random.Random(seed), rng_block(seed)
    data = any_file(rng)
    names = pq.read_schema(pa.BufferReader(data)).names
    for _ in range(3):
        columns = rng.choice([None, rng.sample(names, rng.randint(1, len(names)))])
        expected, reads = read_by_pyarrow(data, columns)
        async with Operator(ap.services.Memory(), block_bytes=block_bytes) as operator:
            await operator.write("k", data)
            uncut = await ap.parquet.plan(operator, "k", columns=columns, request_bytes_max=1 << 40)
            plan = await ap.parquet.plan(operator, "k", columns=columns)
        async with Operator(ap.services.Memory(), block_bytes=block_bytes) as operator:
            await operator.write("k", data)
            found = await ap.parquet.read_table(operator, "k", columns=columns)
            sent = operator.statistics["action_http_get_request"]
        assert found.equals(expected)
        assert sent == 1 + len(plan.requests)
        assert 1 + len(uncut.requests) <= reads
        if len(data) <= MIB:
            assert sent == 1
        if len(data) <= block_bytes:
            assert sent <= 2
        wanted = uncut.projected_bytes - uncut.resident_bytes
        small = sum(gap for gap in gaps_of(uncut) if gap <= SMALL_GAP_BYTES)
        assert uncut.requested_bytes - wanted <= max(wanted + block_bytes, small)
        whole = [one for one in uncut.requests if one[1] - one[0] <= block_bytes]
        assert set(whole) <= set(plan.requests)


def rng_block(seed: int) -> int:
    """Blocks of several sizes."""
    return (MIB, 2 * MIB, 8 * MIB)[seed % 3]


def gaps_of(plan: Plan) -> list[int]:
    """The gaps between what is wanted."""
    wanted = sorted(one for chunk in plan.chunks for one in chunk.ranges)
    return [after[0] - before[1] for before, after in itertools.pairwise(wanted)]


@pytest.mark.parametrize("columns", [["c00", "c05"], ["c03"], None])
async def test_small_columns_of_many_row_groups(columns: list[str] | None) -> None:
    """600 chunks of 900 bytes in 580 KB, of which every second reader makes a request for each."""
    data = numbers_file(12, 50, 100)
    async with store_of(data) as store:
        table, requests = await store.read(columns=columns)
    assert requests == [(0, len(data))]
    assert table.equals(same_columns(data, columns=columns))


async def test_two_of_twelve_columns_of_fifty_row_groups() -> None:
    async with store_of(fifty()) as store:
        _, requests = await store.read(columns=["c00", "c05"])
    assert len(requests) == 34  # pyarrow: 101.


async def requests_for(path: Any, stored: dict[str, bytes], **options: Any) -> tuple[int, int]:
    """The requests of a scan of two columns, and of the same again."""
    counts = []
    async with Operator(ap.services.Memory()) as operator:
        for key, data in stored.items():
            await operator.write(key, data)
        for _ in range(2):
            before = operator.statistics["action_http_get_request"]
            table = await ap.parquet.read_table(operator, path, columns=["c00", "c05"], **options)
            counts.append(operator.statistics["action_http_get_request"] - before)
    assert table.num_rows == sum(pq.read_metadata(pa.BufferReader(data)).num_rows for data in stored.values())
    return counts[0], counts[1]


@pytest.mark.parametrize(("rows", "unknown"), [(2, 1), (100, 1), (390, 2), (1_000, 2), (1_710, 2)])
async def test_a_file_of_at_most_a_block_is_one_request_if_its_size_is_known(rows: int, unknown: int) -> None:
    """By the caller, by a listing, by a catalog, or from a scan before; as a path, a list, a glob, or a directory."""
    files = {"d/k": numbers_file(12, 50, rows)}
    size = len(files["d/k"])
    assert size <= 8 * MIB
    assert await requests_for("d/k", files) == (unknown, 1)
    assert await requests_for(["d/k"], files) == (unknown, 1)
    assert await requests_for("d/k", files, size=size) == (1, 1)
    assert await requests_for(None, files, files=[ap.ScanFile("d/k", size=size)]) == (1, 1)
    for listed in ("d/*", "d/"):
        first, again = await requests_for(listed, files)
        assert first == 1
        assert again <= 1  # None, where the version in the listing is in memory.


@pytest.mark.parametrize(("groups", "rows"), [(1, 250), (20, 50)], ids=["27 kB", "137 kB, most of it footers"])
async def test_small_files_are_a_request_each(groups: int, rows: int) -> None:
    count = 60
    files = {f"d/{number:03}": numbers_file(12, groups, rows) for number in range(count)}
    for path in (list(files), "d/*", "d/"):
        assert (await requests_for(path, files))[0] == count


async def test_indexes_of_filters_and_of_other_columns_come_together() -> None:
    async with store_of(indexed()) as store:
        footer = await ap.parquet.footer(store.operator, "k", tail_bytes=2500)
        _, requests = await store.read(columns=["c01", "c02"], filters=[("c00", "<", 0.5)], footer=footer)
    data_end = max(chunk.end for chunk in column_chunks(footer, range(4), range(4)))
    assert len([start for start, _ in requests if start >= data_end]) == 1


async def test_an_object_that_was_seen_is_one_request_up_to_a_block() -> None:
    data = numbers_file(12, 50, 1_500)
    async with Operator(ap.services.Memory()) as operator:
        await operator.write("k", data)
        await ap.parquet.read_table(operator, "k", columns=["c00"])
        before = operator.statistics["action_http_get_request"]
        found = await ap.parquet.read_table(operator, "k", columns=["c05"])
        assert operator.statistics["action_http_get_request"] == before + 1
    assert found.equals(same_columns(data, columns=["c05"]))


async def test_an_object_that_comes_whole_counts_as_memory_of_its_scan() -> None:
    """And where there is none it comes piece by piece."""
    data = numbers_file(12, 50, 1_000)
    async with Operator(ap.services.Memory(), memory_bytes=8 * MIB) as operator:
        await operator.write("k", data)
        budget = operator.runtime().budget
        async with ap.parquet.scan(operator, "k", columns=["c00"], size=len(data)) as scan:
            await anext(scan)
            assert operator.statistics["action_http_get_request"] == 1
            assert budget.used_bytes == len(data)
            other = await ap.parquet.read_table(operator, "k", columns=["c01"], size=len(data))
            assert operator.statistics["action_http_get_request"] > 2
            assert other.equals(same_columns(data, columns=["c01"]))
        assert budget.used_bytes == 0


async def test_what_readers_have_in_memory_is_not_asked_for_again() -> None:
    """Of the same version; and what is in memory is not the scan's to fill."""
    async with Operator(ap.services.Memory(), block_bytes=MIB, memory_bytes=64 * MIB) as operator:
        await operator.write("k", fifty())
        async with operator.reader("k", policy="sequential", prefetch_enabled=False) as reader:
            await reader.read_at(0, 4 * MIB)
        before = operator.statistics
        plan = await ap.parquet.plan(operator, "k")
        assert all(start >= 4 * MIB for start, _ in plan.requests)
        assert sum(end - start for start, end in plan.held_ranges) == 4 * MIB - 4
        found = await ap.parquet.read_table(operator, "k")
        sent = operator.statistics["action_http_get_request"] - before["action_http_get_request"]
        assert sent == 2 + len(plan.requests)
        assert found.equals(same_columns(fifty()))


@pytest.mark.parametrize("make", [lambda: numbers_file(12, 50, 100), fifty], ids=["small", "large"])
async def test_a_file_that_a_reader_has_whole_costs_a_question_and_no_bytes(make: Callable[[], bytes]) -> None:
    data = make()
    async with Operator(ap.services.Memory(), block_bytes=MIB, memory_bytes=256 * MIB) as operator:
        await operator.write("k", data)
        async with operator.reader("k") as reader:
            await reader.read()
            before = operator.statistics
            assert (await ap.parquet.read_table(operator, "k")).equals(same_columns(data))
            after = operator.statistics
            assert after["action_http_get_request"] - before["action_http_get_request"] == 1
            assert after["stream_read_total_bytes"] == before["stream_read_total_bytes"]
            await operator.write("k", indexed())
            assert (await ap.parquet.read_table(operator, "k")).equals(same_columns(indexed()))


async def test_what_is_in_memory_is_copied_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of what readers have must not hold the loop for as long as copying all of it takes."""
    turn, copied = 0, dict[int, int]()
    copy_held = PinnedFile.copy_held

    def counted(self: PinnedFile, sink: Sink, start: int, end: int) -> bool:
        is_copied = copy_held(self, sink, start, end)
        copied[turn] = copied.get(turn, 0) + is_copied * (end - start)
        return is_copied

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    async with Operator(ap.services.Memory(), block_bytes=MIB, memory_bytes=256 * MIB) as operator:
        await operator.write("k", fifty())
        async with operator.reader("k", policy="sequential", prefetch_enabled=False) as reader:
            await reader.read_at(0, len(fifty()))
        plan = await ap.parquet.plan(operator, "k")
        assert max(end - start for start, end in plan.held_ranges) > 20 * MIB
        monkeypatch.setattr(PinnedFile, "copy_held", counted)
        next_turn()
        found = await ap.parquet.read_table(operator, "k")
    assert found.equals(same_columns(fifty()))
    assert sum(copied.values()) > 20 * MIB
    assert max(copied.values()) <= plan.request_bytes_max


async def test_another_version_in_memory_is_not_used() -> None:
    other = numbers_file(12, 50, 5_000, write_statistics=False)
    async with Operator(ap.services.Memory(), block_bytes=MIB, memory_bytes=64 * MIB) as operator:
        await operator.write("k", other)
        async with operator.reader("k", policy="sequential") as reader:
            await reader.read_at(0, 4 * MIB)
            await operator.write("k", fifty())
            plan = await ap.parquet.plan(operator, "k")
            assert plan.held_ranges == ()
            assert (await ap.parquet.read_table(operator, "k")).equals(same_columns(fifty()))


async def test_more_row_groups_than_are_scheduled_in_a_turn_cost_no_more_requests() -> None:
    data = numbers_file(12, 1_500, 50)
    async with store_of(data) as store:
        plan = await store.plan(columns=["c00", "c05"])
    async with store_of(data) as store:
        _, requests = await store.read(columns=["c00", "c05"])
    assert set(plan.requests) <= set(requests)
    assert len(requests) <= len(plan.requests) + 2  # The footer takes two.
