"""What reads cost, in Python calls, requests and bytes: nothing that a busy machine moves."""

import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import aioprefetch.lance as ap_lance
from aioprefetch.lance.compression import decode_fsst
from aioprefetch.lance.structural import assembly
from tests.files.lance_files import PATH, VERSIONS, stored, write_file
from tests.probes.calls import counted_calls

ROWS = 20_000
TABLE = pa.table({"id": range(ROWS), "name": [f"row {row}" for row in range(ROWS)]})


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return {version: write_file(TABLE, version) for version in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
async def test_small_batches_are_slices(files: dict[str, bytes], version: str) -> None:
    async with stored(files[version]) as operator:
        with counted_calls() as calls:
            batches = [batch async for batch in ap_lance.scan(operator, PATH, batch_rows=20)]
    assert [batch.num_rows for batch in batches] == [20] * (ROWS // 20)
    assert pa.Table.from_batches(batches).equals(TABLE)
    assert calls.number < 60 * len(batches), "those of a batch, and of a few decoded runs"


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_a_take_is_planned_in_arrays(version: str) -> None:
    """Not with an object for each row: pairs of numbers would take 140 bytes a row."""
    rows = np.sort(np.random.default_rng(1).choice(400_000, 40_000, replace=False))
    async with stored(write_file(pa.table({"id": range(400_000)}), version)) as operator:
        tracemalloc.start()
        try:
            found = await ap_lance.read_table(operator, PATH, take=rows)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert found["id"].to_numpy().tolist() == rows.tolist()
    assert peak < 350 * len(rows), "with the bytes of the file"


async def test_only_wanted_codes_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of FSST is as good as free where a chunk has one wanted row of hundreds."""
    table = pa.table({"name": [f"a text that has the number {row}" for row in range(40_000)]})
    expanded: list[int] = []

    def decode(symbols: bytes, codes: Any, offsets: Any) -> Any:
        expanded.append(len(offsets) - 1)
        return decode_fsst(symbols, codes, offsets)

    monkeypatch.setattr(assembly, "decode_fsst", decode)
    async with stored(write_file(table, "2.1")) as operator:
        found = await ap_lance.read_table(operator, PATH, take=range(0, 40_000, 100))
    assert found.equals(table.take(list(range(0, 40_000, 100))))
    assert sum(expanded) == 400
