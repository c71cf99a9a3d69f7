"""Random lives of datasets, read with random options, as pylance reads them."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioprefetch.lance as ap_lance
from aioprefetch.errors import NotFound
from tests.files.lance_files import dataset_objects, stored
from tests.profile import chosen

lance: Any = pytest.importorskip("lance")

COLUMNS = ("id", "v", "name", "_rowid", "_rowaddr")

numbers = st.integers(0, 60)
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 40)),
    st.tuples(st.just("delete"), st.tuples(st.integers(2, 9), numbers)),
    st.tuples(st.just("update"), st.tuples(st.integers(2, 9), numbers)),
    st.tuples(st.just("compact"), st.integers(20, 200)),
    st.tuples(st.just("tag"), st.just(None)),
)
clauses = st.one_of(
    st.tuples(st.sampled_from(["id", "v"]), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), numbers),
    st.tuples(st.just("v"), st.sampled_from(["in", "not in"]), st.lists(numbers, min_size=1, max_size=4)),
    st.tuples(st.just("name"), st.sampled_from(["=", "!=", "<"]), numbers.map(lambda number: f"n{number}")),
    st.tuples(st.sampled_from(["_rowid", "_rowaddr"]), st.sampled_from(["<", ">="]), numbers),
)
alternatives = st.lists(st.lists(clauses, min_size=1, max_size=3), min_size=1, max_size=3)
options = st.fixed_dictionaries(
    {"filters": st.none() | alternatives, "as_expression": st.booleans()},
    optional={
        "columns": st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True),
        "rows": st.tuples(numbers, numbers).map(sorted),
        "take": st.lists(st.integers(0, 1 << 20), max_size=30),
        "version": st.integers(0, 1 << 20),
        "choose": st.sampled_from(["version", "time", "tag"]),
        "batch_rows": st.sampled_from([1, 7, 100]),
    },
)


def rows_of(start: int, count: int) -> pa.Table:
    """Rows with nulls in two of the columns."""
    places = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(places, pa.int64()),
            "v": pa.array([None if place % 13 == 0 else place % 61 for place in places], pa.int64()),
            "name": pa.array([None if place % 7 == 0 else f"n{place % 50}" for place in places], pa.string()),
        }
    )


def live(path: Path, life: list[tuple[str, Any]], *, stable: bool, version: str) -> dict[int, str]:
    """Write a dataset. Returns the tags of its versions."""
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(rows_of(0, 90), str(path), max_rows_per_file=35, **options)
    first, tags = 90, {}
    for step, how in life:
        peer = lance.dataset(str(path))
        if step == "append":
            lance.write_dataset(rows_of(first, how), str(path), mode="append")
            first += how
        elif step == "delete":
            peer.delete(f"id % {how[0]} = 1 and id >= {how[1]}")
        elif step == "update":
            peer.update({"v": "id + 1"}, where=f"id % {how[0]} = 0 and id < {how[1]}")
        elif step == "compact":
            peer.optimize.compact_files(target_rows_per_fragment=how)
        elif peer.version not in tags:
            tags[peer.version] = f"tag-{peer.version}"
            peer.tags.create(tags[peer.version], peer.version)
    return tags


@settings(max_examples=chosen(quick=15, full=150, search=1500), deadline=None)
@given(
    st.lists(steps, max_size=6), st.booleans(), st.sampled_from(["2.0", "2.1", "2.2"]), st.lists(options, max_size=8)
)
def test_as_pylance_reads_them(
    life: list[tuple[str, Any]], stable: bool, version: str, several: list[dict[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "ds"
        tags = live(path, life, stable=stable, version=version)
        asyncio.run(_compare(path, tags, several))


async def _compare(path: Path, tags: dict[int, str], several: list[dict[str, Any]]) -> None:
    async with stored(dataset_objects(path, "ds")) as operator:
        for given_options in several:
            wanted = dict(given_options)
            peer = lance.dataset(str(path))
            number = 1 + wanted.pop("version", 0) % peer.version
            choice = await _chosen(operator, number, wanted.pop("choose", "version"), tags)
            peer = lance.dataset(str(path), version=number)
            expected = peer.to_table(columns=list(COLUMNS))
            if "take" in wanted and not expected.num_rows:
                del wanted["take"]
            if "take" in wanted:
                wanted.pop("rows", None)
                wanted["take"] = [row % expected.num_rows for row in wanted["take"]]
                expected = expected.take(pa.array(wanted["take"], pa.int64()))
            elif "rows" in wanted:
                expected = expected.slice(wanted["rows"][0], wanted["rows"][1] - wanted["rows"][0])
            if wanted["filters"] is not None:
                expression = pq.filters_to_expression(wanted["filters"])
                expected = expected.filter(expression)
                if wanted.pop("as_expression"):
                    wanted["filters"] = expression
            wanted.pop("as_expression", None)
            expected = expected.select(wanted.get("columns", ["id", "v", "name"]))
            found = await ap_lance.read_table(operator, "ds", **choice, **wanted)
            found.validate(full=True)
            assert found.equals(expected), (found.to_pydict(), expected.to_pydict())


async def _chosen(operator: Any, number: int, how: str, tags: dict[int, str]) -> dict[str, Any]:
    """Arguments that name a version."""
    if how == "tag" and number in tags:
        return {"tag": tags[number]}
    if how == "time":
        when = (await ap_lance.open_dataset(operator, "ds", number)).committed
        assert when is not None
        if number == 1:
            with pytest.raises(NotFound):
                await ap_lance.open_dataset(operator, "ds", when - timedelta(microseconds=1))
        return {"version": when}
    return {"version": number}
