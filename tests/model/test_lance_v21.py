"""Files of version 2.1 and 2.2, every family of columns, against the tables they were written from and pylance."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.ranges import Range
from tests.files.lance_files import PATH, peer_reader, stored, write_file
from tests.files.lance_v20_pages import open_bytes, random_ranges, random_take
from tests.files.lance_v21_columns import FLAT, MAPS, NESTED, STORED_AS
from tests.files.lance_v21_pages import VERSIONS, plain, read_rows
from tests.profile import chosen, each_of

ROWS = 1000
EVERY = {**FLAT, **NESTED, **STORED_AS}
MIXED = [
    *("int64", "int8 nulls", "int64 wide", "runs", "constant text", "all null", "bool nulls", "text nulls", "text few"),
    *("text long nulls", "binary large nulls", "dictionary", "vector null items", "vector wide nulls", "list nei"),
    *(
        "list text",
        "list vector",
        "list long",
        "struct deep",
        "struct of list",
        "list of struct",
        "list of list of text",
    ),
]
CASES = chosen(quick=20, full=100)


def _table(names: list[str], rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    fields, arrays = [], []
    for name in names:
        made = {**EVERY, **MAPS}[name](rows, rng)
        array, metadata = made if isinstance(made, tuple) else (made, None)
        fields.append(pa.field(name, array.type, metadata=metadata))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))


def _picked(table: pa.Table, ranges: list[Range]) -> pa.Table:
    return pa.concat_tables([table.slice(start, end - start) for start, end in ranges])


def _assert_same(found: pa.Table, expected: pa.Table) -> None:
    for name in expected.column_names:
        assert plain(found.select([name])).equals(plain(expected.select([name]))), name


@each_of("name", EVERY)
async def test_family_is_read_exactly(name: str) -> None:
    """In both versions, which write most families in the same way; under `quick` they take turns."""
    turn = list(EVERY).index(name) % len(VERSIONS)
    for version in chosen(quick=VERSIONS[turn : turn + 1], full=VERSIONS):
        await check_family(name, version)


async def check_family(name: str, version: str) -> None:
    """Read a family of columns whole, in ranges and in takes."""
    table = _table([name], ROWS, 7)
    data = write_file(table, version, data_cache_bytes=20_000, batch_rows=400)
    file = await open_bytes(data)
    rng = np.random.default_rng(len(data))
    whole = await read_rows(data, file, [(0, ROWS)], batch_rows=ROWS)
    _assert_same(whole, table)
    _assert_same(await read_rows(data, file, [(0, ROWS)], batch_rows=170), table)
    for ranges in (random_ranges(rng, ROWS, 3), random_take(rng, ROWS, 20)):
        found = await read_rows(data, file, ranges, batch_rows=int(rng.choice([13, 100, ROWS])))
        _assert_same(found, _picked(table, ranges))


async def test_maps_are_read_exactly() -> None:
    table = _table(["map"], ROWS, 3)
    data = write_file(table, "2.2", data_cache_bytes=5000, batch_rows=400)
    file = await open_bytes(data)
    _assert_same(await read_rows(data, file, [(0, ROWS)], batch_rows=170), table)


@pytest.fixture(scope="module", params=VERSIONS)
def mixed(request: pytest.FixtureRequest) -> tuple[str, pa.Table, dict[str, bytes]]:
    """A table of many types, in a file with many uneven pages and in one with a page per column."""
    table = _table(MIXED, ROWS, 21)
    files = {
        "many": write_file(table, request.param, data_cache_bytes=22 * 4000, batch_rows=130),
        "one": write_file(table, request.param),
    }
    return request.param, table, files


@pytest.mark.parametrize("pages", ["many", "one"])
@pytest.mark.parametrize("kind", ["ranges", "takes"])
async def test_random_rows_are_read_exactly(
    mixed: tuple[str, pa.Table, dict[str, bytes]], kind: str, pages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, table, files = mixed
    rng = np.random.default_rng(len(kind) + len(pages))
    file = await open_bytes(files[pages])
    for case in range(CASES):
        # Small pages are read whole otherwise, and never in two steps.
        monkeypatch.setattr("aioprefetch.lance.structural.decoded_rows.WHOLE_PAGE_BYTES", 0 if case % 4 else 64 << 10)
        ranges = random_ranges(rng, ROWS, 4) if kind == "ranges" else random_take(rng, ROWS, 60)
        columns = rng.choice(MIXED, 2, replace=False).tolist()
        batch_rows = int(rng.choice([17, 64, 333, ROWS]))
        found = await read_rows(files[pages], file, ranges, columns=columns, batch_rows=batch_rows)
        _assert_same(found, _picked(table.select(found.column_names), ranges))


async def test_scans_equal_those_of_pylance(mixed: tuple[str, pa.Table, dict[str, bytes]], tmp_path: Path) -> None:
    _, _, files = mixed
    data = files["many"]
    reader = peer_reader(data, tmp_path)
    rng = np.random.default_rng(5)
    async with stored(data) as operator:
        whole = await ap.lance.read_table(operator, PATH)
        assert whole.schema.equals(reader.read_all().to_table().schema)
        _assert_same(whole, reader.read_all().to_table())
        for _ in range(4):
            take = sorted(set(rng.integers(0, ROWS, 30).tolist()))
            _assert_same(await ap.lance.read_table(operator, PATH, take=take), reader.take_rows(take).to_table())
            start, count = int(rng.integers(0, ROWS - 400)), 400
            found = await ap.lance.read_table(operator, PATH, rows=(start, start + count), batch_rows=90)
            _assert_same(found, reader.read_range(start, count).to_table())


async def test_batches_and_projections_do_not_depend_on_pages(mixed: tuple[str, pa.Table, dict[str, bytes]]) -> None:
    _, table, files = mixed
    async with stored(files["many"]) as operator:
        batches: list[Any] = [
            batch async for batch in ap.lance.scan(operator, PATH, columns=["int64", "list nei"], batch_rows=371)
        ]
        assert [batch.num_rows for batch in batches] == [371, 371, 258]
        _assert_same(pa.Table.from_batches(batches), table.select(["int64", "list nei"]))
        part = await ap.lance.read_table(operator, PATH, columns=["struct deep.p.b"])
        deep = table["struct deep"].combine_chunks()
        inner = pa.array([None if v is None or v["p"] is None else v["p"]["b"] for v in deep.to_pylist()])
        found = [None if v is None or v["p"] is None else v["p"]["b"] for v in part["struct deep"].to_pylist()]
        assert found == inner.to_pylist()
