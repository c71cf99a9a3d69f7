"""Random ranges and takes of files of version 2.0 against the table they were written from, and against pylance."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

import aioprefetch as ap
from aioprefetch.lance.physical import strings
from aioprefetch.ranges import Range
from tests.files.lance_v20_columns import FAMILIES
from tests.files.lance_v20_pages import (
    assert_same,
    open_bytes,
    picked,
    random_ranges,
    random_take,
    read_rows,
    write_file,
)
from tests.profile import chosen

ROWS = 1200
COLUMNS = [
    *("int64", "int32 with nulls", "bool with nulls", "string", "large_string", "few strings", "lz4", "fsst", "blobs"),
    *("dictionary of strings", "vectors with nulls", "lists of nulls", "lists of strings", "lists of lists"),
    *("lists of structs", "structs of lists", "packed structs", "decimal256", "null", "all null lists"),
]
# Scans of random ranges, and takes, of each of three files.
CASES = chosen(quick=14, full=70)
READERS = 8


def _table() -> pa.Table:
    rng = np.random.default_rng(99)
    made = {name: FAMILIES[name](rng, ROWS) for name in COLUMNS}
    fields = [field.with_name(name) for name, (field, _) in made.items()]
    return pa.table([array for _, array in made.values()], schema=pa.schema(fields))


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """A table of many types."""
    return _table()


@pytest.fixture(scope="module", params=[(16, 1), (40, 60_000), (3, None)], ids=["16 pages", "uneven", "few pages"])
def path(request: pytest.FixtureRequest, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table in a file: with as many pages for every column, with pages that end at different rows, with few."""
    batches, cache = request.param
    path = tmp_path_factory.mktemp("lance") / "f.lance"
    write_file(path, table, batches=batches, data_cache_bytes=cache)
    return path


@pytest.fixture(scope="module")
def data(path: Path) -> bytes:
    """Its bytes."""
    return path.read_bytes()


def _columns(rng: np.random.Generator) -> list[str]:
    chosen = set(rng.choice(COLUMNS, int(rng.integers(1, 5)), replace=False).tolist())
    return [name for name in COLUMNS if name in chosen]


@pytest.mark.parametrize("kind", ["ranges", "takes"])
async def test_random_rows_are_read_exactly(
    data: bytes, table: pa.Table, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(len(data) + len(kind))
    file = await open_bytes(data)
    for _ in range(CASES):
        ranges = random_ranges(rng, ROWS, 4) if kind == "ranges" else random_take(rng, ROWS, 80)
        columns = _columns(rng)
        monkeypatch.setattr(strings, "DIRECT_BYTES", int(rng.choice([0, 500, 1 << 16])))
        batch_rows = int(rng.choice([1, 7, 64, 100, 333, ROWS])) if len(ranges) < 5 else ROWS
        if batch_rows == 1:
            ranges = [(start, min(end, start + 20)) for start, end in ranges]
        found = await read_rows(data, ranges, columns=columns, batch_rows=batch_rows, file=file)
        assert_same(found, picked(table.select(columns), ranges))


async def test_random_scans_equal_those_of_pylance(path: Path, table: pa.Table) -> None:
    rng = np.random.default_rng(4)
    async with ap.Operator.from_uri(f"file://{path.parent}") as operator:
        whole = await ap.lance.read_table(operator, path.name)
        assert_same(whole, LanceFileReader(str(path)).read_all().to_table())
        for case in range(READERS):
            columns = _columns(rng)
            reader = LanceFileReader(str(path), columns=columns)
            if case % 2:
                rows = sorted(set(rng.integers(0, ROWS, 30).tolist()))
                found = await ap.lance.read_table(operator, path.name, columns=columns, take=rows)
                expected = reader.take_rows(rows).to_table()
            else:
                start, end = _range(rng)
                found = await ap.lance.read_table(operator, path.name, columns=columns, rows=(start, end))
                expected = reader.read_range(start, end - start).to_table()
            assert_same(found, expected.select(columns))


@pytest.mark.parametrize("size", [0, 3, 9000], ids=["empty", "small", "large"])
async def test_blobs_are_those_of_pylance(size: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(size)
    blobs = [None if row % 7 == 3 else rng.bytes(int(rng.integers(0, size + 1))) for row in range(300)]
    field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = pa.table([pa.array(range(300)), pa.array(blobs, field.type)], schema=pa.schema([("id", pa.int64()), field]))
    path = tmp_path / "f.lance"
    write_file(path, table, batches=5, data_cache_bytes=1)
    reader = LanceFileReader(str(path))
    assert reader.read_all().to_table().column("blob").to_pylist() == blobs
    async with ap.Operator.from_uri(f"file://{tmp_path}") as operator:
        assert_same(await ap.lance.read_table(operator, path.name), reader.read_all().to_table())
        for _ in range(5):
            rows = sorted(set(rng.integers(0, 300, 20).tolist()))
            found = await ap.lance.read_table(operator, path.name, take=rows, batch_rows=7)
            assert_same(found, LanceFileReader(str(path)).take_rows(rows).to_table())


def _range(rng: np.random.Generator) -> Range:
    start, end = sorted(rng.integers(0, ROWS + 1, 2).tolist())
    return (start, end) if end > start else (0, ROWS)
