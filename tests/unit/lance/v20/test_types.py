"""Every type of version 2.0, written by pylance: all rows, ranges and takes, over one page and over many."""

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter

from aioprefetch.lance.physical import strings
from tests.files.lance_v20_columns import FAMILIES, table_of
from tests.files.lance_v20_pages import (
    MemoryIo,
    assert_same,
    open_bytes,
    picked,
    random_ranges,
    random_take,
    read_rows,
    start_scan,
    unsliced,
    write_file,
)
from tests.profile import in_turns

ROWS = 700


# Batches and cache of the writer. It makes no dictionaries of its own for fewer than 100 rows; with the last cache the
# pages of lists and of their items differ.
FILES: list[tuple[int, int | None]] = [(1, None), (30, 1500), (5, 1), (8, 1)]


@pytest.mark.parametrize(("name", "written"), in_turns(FAMILIES, FILES))
async def test_pages_of_every_type_are_read_exactly(
    tmp_path: Path, name: str, written: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows, ranges and takes."""
    batches, cache = written
    monkeypatch.setattr(strings, "DIRECT_BYTES", 0 if batches > 5 else strings.DIRECT_BYTES)
    rng = np.random.default_rng(zlib.crc32(name.encode()) + batches)
    table = table_of(name, rng, ROWS)
    data = write_file(tmp_path / "f.lance", table, batches=batches, data_cache_bytes=cache)
    file = await open_bytes(data)
    wanted = [
        [(0, ROWS)],
        [(0, 1)],
        [(ROWS - 1, ROWS)],
        [(8, 640)],
        *(random_ranges(rng, ROWS, most) for most in (1, 1, 3)),
        *(random_take(rng, ROWS, most) for most in (3, 60)),
    ]
    for ranges in wanted:
        for batch_rows in (64, ROWS) if ranges == wanted[0] else (int(rng.integers(1, ROWS)),):
            found = await read_rows(data, ranges, batch_rows=batch_rows, file=file)
            assert_same(found, picked(table, ranges))


def _gone(array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), array.type)


@pytest.mark.parametrize(
    "name",
    [
        *("int32", "bool", "string", "large_binary", "few strings", "vectors", "vectors of bools", "matrices"),
        *("decimal256", "fixed binary", "lists", "lists of strings", "dictionary of strings", "lists of lists"),
    ],
)
async def test_pages_with_some_all_and_no_nulls_share_batches(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(7)
    parts: list[pa.Table] = []
    for index in range(9):
        part = table_of(name, rng, int(rng.integers(90, 120)))
        if index % 3 == 1:
            part = part.take(pa.array(np.arange(len(part)), mask=rng.random(len(part)) < 0.3))
        elif index % 3 == 2:
            part = part.set_column(0, part.schema.field(0), [_gone(part["x"].combine_chunks())])
        parts.append(part)
    path = tmp_path / "f.lance"
    with LanceFileWriter(str(path), parts[0].schema, version="2.0", data_cache_bytes=1) as writer:
        for part in parts:
            writer.write_batch(unsliced(part))
    data, table = path.read_bytes(), pa.concat_tables(parts)
    for batch_rows in (1000, 250, 77):
        assert_same(await read_rows(data, [(0, len(table))], batch_rows=batch_rows), table)
    ranges = random_ranges(rng, len(table), 5)
    assert_same(await read_rows(data, ranges), picked(table, ranges))


@pytest.mark.parametrize("name", ["int64", "string", "lists of strings", "structs", "null", "blobs"])
async def test_a_file_without_rows_is_an_empty_table(tmp_path: Path, name: str) -> None:
    table = table_of(name, np.random.default_rng(1), 0)
    data = write_file(tmp_path / "f.lance", table)
    root, rows = start_scan(await open_bytes(data), io := MemoryIo(data), [])
    assert rows == 0
    assert root.loaded_rows(0) == 0
    assert_same(pa.Table.from_batches([root.drain(0).decode()]), table)
    assert io.reads == []
    root.close()


async def test_an_empty_projection_has_rows_and_no_columns(tmp_path: Path) -> None:
    data = write_file(tmp_path / "f.lance", table_of("int64", np.random.default_rng(1), 10))
    root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(2, 9)], columns=[])
    await root.wait(rows)
    assert root.fitting_rows(rows, 1) == rows
    batch = root.drain(rows).decode()
    assert (batch.num_rows, batch.num_columns) == (7, 0)


@pytest.mark.parametrize("name", ["int64", "string", "zstd", "lists of strings", "few strings", "bool", "vectors"])
async def test_batches_are_cut_where_their_bytes_reach_the_limit(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(5)
    data = write_file(tmp_path / "f.lance", table_of(name, rng, ROWS), batches=8, data_cache_bytes=1)
    root, rows = start_scan(await open_bytes(data), MemoryIo(data), [(0, ROWS)])
    await root.wait(rows)
    assert root.fitting_rows(rows, 1 << 30) == rows
    assert root.fitting_rows(rows, 1) == (8 if name == "bool" else 1)
    for most_bytes in (50, 1000, 3000):
        fits = root.fitting_rows(rows, most_bytes)
        assert fits == 1 or root._size_bytes(fits) <= most_bytes
        assert fits == rows or root._size_bytes(fits + 1) > most_bytes
    taken = root.drain(root.fitting_rows(rows, 3000)).decode()
    assert taken.nbytes < (9000 if name == "few strings" else 4500)
