"""``ap.parquet`` beside pyarrow: random tables, files, arguments; damaged files; a slow consumer."""

import asyncio
import random
import resource
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet import file_part
from aioprefetch.services.memory import Memory
from tests.model.parquet_tables import Written, same, written
from tests.profile import chosen

# Flat columns and structs, whose pages are read one by one where a few rows are wanted.
PAGED = ("sorted", "struct", "with_list", "few", "string", "dictionary", "int64")


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """A store in memory."""
    async with Operator(Memory()) as made:
        yield made
        assert made.runtime().budget.used_bytes == 0


def read_arguments(rng: random.Random, file: Written, *, few_rows: bool) -> tuple[dict[str, Any], pa.Table]:
    """Random arguments, and the table that they mean."""
    rows = file.table.num_rows
    names, groups = file.table.column_names, len(file.row_groups)
    arguments: dict[str, Any] = {
        "columns": rng.choice([None, None, rng.sample(names, rng.randint(0, len(names)))]),
        "rows": rng.choice([None, tuple(sorted((rng.randint(0, rows + 5), rng.randint(0, rows + 5))))]),
        "row_groups": rng.choice([None, None, rng.sample(range(groups), rng.randint(0, groups))]),
        "filters": None,
    }
    if few_rows:
        start = rng.randint(0, rows)
        arguments["rows"] = (start, start + rng.randint(0, rows // 10))
    elif "sorted" in names and rng.random() < 0.7:
        value = rng.randint(0, 10 * rows + 1)
        arguments["filters"] = rng.choice(
            [
                [("sorted", "<", value)],
                [("sorted", ">=", value), ("sorted", "<", value + 500)],
                [[("sorted", "==", value)], [("sorted", ">", value)]],
            ]
        )
    expected = file.read()
    start, stop = arguments["rows"] or (0, rows)
    chosen = range(groups) if arguments["row_groups"] is None else arguments["row_groups"]
    group_of = np.repeat(np.arange(groups), file.row_groups)
    wanted = [n for n in range(rows) if start <= n < stop and group_of[n] in chosen]
    expected = expected.take(pa.array(wanted, pa.int64()))
    if arguments["filters"] is not None:
        expected = expected.filter(pq.filters_to_expression(arguments["filters"]))
    return arguments, expected if arguments["columns"] is None else expected.select(arguments["columns"])


async def compare(
    operator: Operator, seeds: range, make: Callable[[int], Written], *, few_rows: bool = False, **limits: Any
) -> int:
    """Read files of these seeds with random arguments; how many were read page by page."""
    paged = 0
    for seed in seeds:
        file, rng = make(seed), random.Random(seed * 7 + 1)
        await operator.write("f", file.data)
        arguments, expected = read_arguments(rng, file, few_rows=few_rows)
        cuts: dict[str, Any] = {
            "batch_rows": rng.choice([1 + file.table.num_rows // 3, 13, 100, 65536]),
            "batch_bytes": rng.choice([None, None, 1000]),
            "budget_bytes": rng.choice([None, 0, 5000]),
            **{name: rng.choice(choices) for name, choices in limits.items()},
        }
        found = await ap.parquet.scan(operator, "f", **arguments, **cuts).read_all()
        found.validate(full=True)
        assert same(found, expected), f"seed {seed}, {file.options}, {arguments}, {cuts}"
        planned = await ap.parquet.plan(operator, "f", **arguments)
        paged += any(chunk.pages is not None for chunk in planned.chunks)
    return paged


async def test_random_files_and_arguments(operator: Operator) -> None:
    await compare(operator, range(chosen(quick=30, full=70)), written)


async def test_random_files_in_small_pieces(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are cut into segments of a few hundred bytes, and decoded as these come."""
    monkeypatch.setattr(file_part, "SMALL_GROUP_BYTES", 0)
    await compare(operator, range(100, chosen(quick=130, full=170)), written, request_bytes_max=[100, 300, 5000])


@pytest.mark.parametrize("request_bytes_max", [[300, 2000], [None]])
async def test_random_files_page_by_page(operator: Operator, request_bytes_max: list[int | None]) -> None:
    def make(seed: int) -> Written:
        return written(seed, rows=(300, 1500), kinds=PAGED)

    few_rows = request_bytes_max == [None]
    paged = await compare(operator, range(20), make, few_rows=few_rows, request_bytes_max=request_bytes_max)
    assert paged >= (5 if few_rows else 1)


# --- damaged files ----------------------------------------------------------------------------------------------------


def damaged(data: bytes, seed: int) -> bytes:
    """A file with a few bytes changed, in its pages or in its footer."""
    rng, changed = random.Random(seed), bytearray(data)
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for _ in range(rng.choice([1, 1, 2, 5])):
        low, high = (4, start) if rng.random() < 0.6 and start > 5 else (start, len(data) - 8)
        place, how = rng.randrange(low, high), rng.random()
        if how < 0.5:
            changed[place] = rng.randrange(256)
        elif how < 0.8:
            changed[place] ^= 1 << rng.randrange(8)
        else:
            size = min(4, high - place)
            changed[place : place + size] = rng.choice([b"\xff" * 4, bytes(4), b"\x80\x80\x80\x01"])[:size]
    return bytes(changed)


async def test_damaged_files(operator: Operator) -> None:
    """What pyarrow reads of them, or a typed error: no crash, no hang, no memory by a claim."""
    files = [written(seed, rows=(60, 300)) for seed in range(25)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = refused = 0
    count = chosen(quick=400, full=1000)
    for seed in range(count):
        data = damaged(files[seed % len(files)].data, seed)
        await operator.write("f", data)
        limits: dict[str, Any] = {} if seed % 2 else {"request_bytes_max": 700}
        try:
            found = await asyncio.wait_for(ap.parquet.read_table(operator, "f", **limits), 30)
        except ap.Error:
            refused += 1
            continue
        read += 1
        expected = pq.read_table(pa.BufferReader(data))
        assert same(found, expected) or found.to_pylist() == expected.to_pylist() or has_nan(expected)
    assert min(read, refused) > count // 10
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10, f"{grown} KiB"


def has_nan(table: pa.Table) -> bool:
    """Whether values are in it that equal nothing."""
    return "nan" in repr(table.to_pylist())


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_group_size", [20_000, 1_200_000])
async def test_what_is_held_stays_within_the_budget(operator: Operator, row_group_size: int) -> None:
    """A file eight times as large as the budget, in row groups that fit and in one that does not."""
    rng = np.random.default_rng(3)
    table = pa.table({f"c{n}": rng.random(1_200_000) for n in range(4)})
    sink = pa.BufferOutputStream()
    pages = {"use_dictionary": False, "compression": "none", "data_page_size": 160_000}
    pq.write_table(table, sink, row_group_size=row_group_size, **pages)
    data = bytes(sink.getvalue())
    budget = len(data) // 8
    await operator.write("f", data)
    scan = ap.parquet.scan(operator, "f", budget_bytes=budget, batch_rows=10_000)
    batches, most = [], 0
    async for batch in scan:
        assert scan._prepared is not None
        service: Any = scan._prepared.service
        most = max(most, service.memory.held_bytes)
        batches.append(batch)
        await asyncio.sleep(0)
    assert 0 < most <= budget
    assert pa.Table.from_batches(batches).equals(table)
