"""Look-ahead by the footer of a Parquet file: through a reader and through pyarrow, with hostile footers and faults."""

import asyncio
import io
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch import RangeReader
from aioprefetch.errors import ObjectChanged, Unavailable
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet import thrift
from aioprefetch.parquet.layout import columns_of, footer_range
from aioprefetch.ranges import Range
from aioprefetch.reader.layout import FOOTER_BYTES_MAX
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import FaultLayer, Injection
from tests.profile import chosen, each_of
from tests.stores.computed_store import KIB, MIB, Arithmetic, covered_bytes, repeated
from tests.stores.gated_reader import Bench, bench, in_case, settle
from tests.stores.layer_stack import was_cancelled
from tests.unit.parquet.parquet_files import chunk_of, footer_of, tree_of, with_footer, with_tree, written

COLUMNS, GROUPS, ROWS = 8, 12, 4096
BLOCK = 64 * KIB


def numbers(groups: int = GROUPS, columns: int = COLUMNS, rows: int = ROWS) -> bytes:
    """Chunks of ``rows`` doubles that compress to nothing less."""
    rng = np.random.default_rng(5)
    table = pa.table({f"c{n}": rng.random(groups * rows) for n in range(columns)})
    return written(table, row_group_size=rows, use_dictionary=False, compression="none")


DATA = numbers()
CHUNKS = columns_of(footer_of(DATA), len(DATA))


@asynccontextmanager
async def open_file(
    data: bytes = DATA, *, layers: Any = (), **options: Any
) -> AsyncIterator[tuple[Bench, RangeReader]]:
    """A reader that has read the end of a file, as far as its footer reaches, and nothing else."""
    async with bench(1, layers=layers, block_bytes=BLOCK, prefetch_blocks=16, memory_bytes=8 * MIB) as b:
        b.put(data)
        async with b.reader(**{"policy": "adaptive", **options}) as reader:
            reader.seek(0, io.SEEK_END)
            assert await reader.ensure_size() == len(data)
            begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            await reader.read_at(max(0, min(begin, len(data) - 8)), len(data))
            yield b, reader


async def learnt() -> None:
    """Wait until no layout is being learnt."""
    await asyncio.sleep(0)  # The supervisor starts its tasks.
    await asyncio.sleep(0)
    while tasks := [task for task in asyncio.all_tasks() if "layout of" in task.get_name()]:
        await asyncio.wait(tasks)


async def idle(b: Bench) -> None:
    """Wait until no request is in flight."""
    await settle(300)
    assert all(call.ended for call in b.calls)


def ranges_of(b: Bench, lane: str) -> list[Range]:
    return [
        (call.request.offset, call.request.offset + call.request.size)
        for call in b.calls
        if call.request.size is not None and call.request.lane == lane
    ]


async def read_groups(reader: RangeReader, columns: tuple[int, ...], groups: range) -> None:
    for group in groups:
        for column in columns:
            start, end = CHUNKS[column][group]
            assert await reader.read_at(start, end - start) == DATA[start:end]
            await learnt()


# --- through a reader -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["adaptive", "columnar", "parquet"])
async def test_the_columns_that_are_read_are_fetched_ahead_and_no_others(policy: str) -> None:
    async with open_file(policy=policy) as (b, reader):
        b.calls.clear()
        await read_groups(reader, (1, 5), range(GROUPS))
        ahead = ranges_of(b, "prefetch")
        requested = sorted((*ahead, *ranges_of(b, "demand")))
        wanted = [CHUNKS[column][group] for column in (1, 5) for group in range(GROUPS)]
        assert len(ahead) > len(wanted) // 2
        # Gaps of 96 KiB and more cost less than a request; all of them together have no more than the wanted bytes.
        assert covered_bytes(requested) <= sum(end - start for start, end in wanted) * 2
        assert repeated(requested) == []
        assert reader.statistics["prefetch_bytes_wasted"] == 0


async def test_random_and_plain_reads_learn_no_layout() -> None:
    for options in ({"policy": "random"}, {"policy": "columnar", "prefetch_enabled": False}):
        async with open_file(**options) as (b, reader):
            await read_groups(reader, (1,), range(4))
            assert ranges_of(b, "prefetch") == []


async def test_a_split_ends_the_look_ahead() -> None:
    stop = CHUNKS[1][6][0]
    async with open_file(split=(0, stop), policy="columnar") as (b, reader):
        b.calls.clear()
        await read_groups(reader, (1,), range(5))
        await idle(b)
        assert max(end for _, end in ranges_of(b, "prefetch")) <= stop


async def test_closing_cancels_the_look_ahead_and_counts_it_as_waste() -> None:
    async with open_file(policy="columnar") as (b, reader):
        await read_groups(reader, (1,), range(2))
        await idle(b)
        await reader.aclose()
        await learnt()
        assert reader.statistics["prefetch_bytes_wasted"] > 0
    assert b.runtime.budget.used_bytes == 0


async def test_a_second_reader_of_the_version_uses_the_layout_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_file(policy="columnar") as (b, reader):
        await read_groups(reader, (1,), range(2))
        monkeypatch.setattr("aioprefetch.parquet.layout.columns_of", None)
        async with b.reader(policy="columnar") as other:
            await other.read_at(len(DATA) - 8, 8)
            b.calls.clear()
            await read_groups(other, (3,), range(3))
            assert ranges_of(b, "prefetch") != []


@each_of("number", range(12))
async def test_a_request_that_fails_fails_one_read_at_most(number: int) -> None:
    fault = Injection(operation="read", occurrence=number, at="head", error=Unavailable)
    failures = 0
    async with bench(
        1, layers=[FaultLayer((fault,))], block_bytes=BLOCK, prefetch_blocks=16, memory_bytes=8 * MIB
    ) as b:
        b.put(DATA)
        async with b.reader(policy="adaptive") as reader:
            reads = [(len(DATA) - 8, 8), (len(DATA) - 32 * KIB, 32 * KIB)]
            reads += [
                (chunk[0], chunk[1] - chunk[0]) for group in range(6) for chunk in (CHUNKS[1][group], CHUNKS[5][group])
            ]
            for start, size in reads:
                for _ in itertools.count():
                    try:
                        assert await reader.read_at(start, size) == DATA[start : start + size]
                        break
                    except Unavailable:
                        failures += 1
                await learnt()
    assert failures <= 1


async def test_a_read_that_is_cancelled_leaves_the_reader_usable() -> None:
    """At every suspension of the full profile, at some of the quick one."""
    for suspension in itertools.count(1, chosen(quick=5, full=1)):
        async with open_file(policy="adaptive") as (b, reader):
            cancelled = await was_cancelled(read_groups(reader, (1, 5), range(6)), suspension)
            with in_case(suspension=suspension):
                await read_groups(reader, (1, 5), range(GROUPS))
                await reader.aclose()
                await learnt()
                await idle(b)
        if not cancelled:
            break
    assert suspension > 10


async def test_an_object_that_is_overwritten_is_an_error_and_its_bytes_never_mix() -> None:
    """After any number of groups, whether what was fetched ahead has arrived or is on its way."""
    other = DATA[::-1]
    for groups, turns in itertools.product(chosen(quick=(1, 2, 5), full=range(1, GROUPS)), (0, 3, 300)):
        async with open_file(policy="columnar") as (b, reader):
            await read_groups(reader, (1,), range(groups))
            await settle(turns)
            b.put(other)
            changed = 0
            for column, group in itertools.product((1, 3), range(GROUPS)):
                start, end = CHUNKS[column][group]
                try:
                    found = await reader.read_at(start, end - start)
                except ObjectChanged:
                    changed += 1
                else:
                    with in_case(groups=groups, turns=turns, column=column, group=group):
                        assert found == DATA[start:end]
            assert changed > 0


# --- footers that are no use ------------------------------------------------------------------------------------------


def with_chunk(group: int, column: int, number: int, value: int) -> bytes:
    """The file with another number in the metadata of a chunk."""
    tree = tree_of(DATA)
    metadata: thrift.Struct = chunk_of(tree, group, column)[3][1]
    metadata[number] = (metadata[number][0], value)
    return with_tree(DATA, tree)


USELESS = {
    "encrypted": DATA[:-4] + b"PARE",
    "garbage": with_footer(DATA, b"\xff" * 2000),
    "truncated": with_footer(DATA, footer_of(DATA)[:-700]),
    "length beyond the file": DATA[:-8] + (1 << 31).to_bytes(4, "little") + b"PAR1",
    "no footer": DATA[:-8] + bytes(4) + b"PAR1",
    "overlapping": with_chunk(0, 1, 9, CHUNKS[0][0][0] + 8),
    "beyond the end": with_chunk(11, 7, 7, 1 << 40),
    "negative": with_chunk(3, 3, 9, -5),
}


@pytest.mark.parametrize("name", USELESS)
async def test_a_footer_that_is_no_use_turns_it_off_and_fails_no_read(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = USELESS[name]
    caplog.set_level(logging.DEBUG, "aioprefetch")
    async with open_file(data, policy="columnar") as (b, reader):
        for group in range(4):
            start, end = CHUNKS[1][group]
            assert await reader.read_at(start, end - start) == data[start:end]
            await learnt()
        assert [one for one in ranges_of(b, "prefetch") if one[0] > CHUNKS[1][3][1]] == []
    said = [record for record in caplog.records if "layout" in record.getMessage()]
    assert len(said) == (0 if name == "encrypted" else 1)
    assert all(record.levelno == logging.DEBUG for record in said)


async def test_an_enormous_footer_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with bytes that no parser would mind."""
    monkeypatch.setattr("aioprefetch.parquet.layout.columns_of", None)
    data = with_footer(DATA, footer_of(DATA) + bytes(FOOTER_BYTES_MAX))
    async with open_file(data, policy="columnar") as (b, reader):
        b.calls.clear()
        await read_groups(reader, (1,), range(3))
        assert ranges_of(b, "prefetch") == []


def test_the_layout_is_that_of_pyarrow() -> None:
    metadata = pq.ParquetFile(io.BytesIO(DATA)).metadata
    for group in range(GROUPS):
        for column in range(COLUMNS):
            said = metadata.row_group(group).column(column)
            assert CHUNKS[column][group] == (said.data_page_offset, said.data_page_offset + said.total_compressed_size)
    assert footer_range(DATA[-64:], len(DATA)) == (len(DATA) - 8 - len(footer_of(DATA)), len(DATA) - 8)
    assert len(footer_of(DATA)) < FOOTER_BYTES_MAX


@each_of("cut", range(0, 2000, 37))
def test_a_cut_footer_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        columns_of(footer_of(DATA)[:cut], len(DATA))


# --- through pyarrow --------------------------------------------------------------------------------------------------


def read_through_file(data: bytes, columns: list[str] | None, **options: Any) -> tuple[pa.Table, Arithmetic]:
    service = Arithmetic(len(data), content=lambda start, end: data[start:end])
    with (
        BlockingOperator(Operator(service, block_bytes=MIB, prefetch_blocks=16)) as operator,
        operator.open("k", **options) as file,
    ):
        return pq.read_table(file, columns=columns), service


@pytest.mark.parametrize("policy", ["adaptive", "parquet"])
def test_a_table_of_three_columns_through_a_file(policy: str) -> None:
    """pyarrow reads chunk by chunk in any order: few of them wait, and only their bytes are fetched."""
    data = numbers(groups=20, columns=12, rows=32 * KIB)
    names = ["c1", "c5", "c9"]
    table, service = read_through_file(data, names, policy=policy)
    assert table.equals(pq.read_table(io.BytesIO(data), columns=names))
    assert repeated(service.reads) == []
    wanted_bytes = 3 * 20 * 32 * KIB * 8
    assert service.sent_bytes <= 1.02 * wanted_bytes + MIB
    assert sum(one.lane == "prefetch" for one in service.log) >= 40


def test_all_columns_through_a_file() -> None:
    data = numbers(groups=6, columns=12, rows=32 * KIB)
    table, service = read_through_file(data, None)
    assert table.equals(pq.read_table(io.BytesIO(data)))
    assert repeated(service.reads) == []
    assert service.sent_bytes <= len(data)


@pytest.mark.parametrize(
    ("groups", "columns", "rows"), [(1, 4, 64 * KIB), (3, 2000, 100)], ids=["one row group", "thousands of columns"]
)
def test_other_shapes_through_a_file(groups: int, columns: int, rows: int) -> None:
    data = numbers(groups=groups, columns=columns, rows=rows)
    for names in (["c1", "c3"], None):
        table, service = read_through_file(data, names)
        assert table.equals(pq.read_table(io.BytesIO(data), columns=names))
        assert repeated(service.reads) == []
