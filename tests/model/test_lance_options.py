"""Random lives of datasets, read with random options, as pylance reads them."""

import asyncio
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import aioprefetch.lance as ap_lance
from aioprefetch.errors import NotFound
from tests.files.lance_files import VERSIONS, dataset_objects, stored
from tests.probes.search import searched

lance: Any = pytest.importorskip("lance")

COLUMNS = ("id", "v", "name", "_rowid", "_rowaddr")

numbers = st.integers(0, 60)
residues = st.tuples(st.integers(2, 9), numbers)
nothing, fields = st.none(), st.sampled_from(["flag", "point.x", "point", "tags", "day", "added", "vector"])
STEPS: dict[str, st.SearchStrategy[Any]] = {
    "append": st.tuples(st.integers(1, 40), st.sampled_from(VERSIONS)),
    "overwrite": st.tuples(st.integers(1, 40), st.sampled_from(VERSIONS)),
    "delete": residues,
    "update": residues,
    "upsert": st.tuples(st.integers(1, 40), st.integers(0, 9)),
    "add": st.sampled_from(["id * 2", "concat('n', name)", pa.int8(), pa.struct([("a", pa.list_(pa.string()))])]),
    "join": st.integers(1, 5),
    "drop": fields,
    "rename": fields,
    "widen": nothing,
    "compact": st.integers(20, 200),
    "index": nothing,
    "restore": st.integers(0, 99),
    "tag": nothing,
}
steps = st.sampled_from([*STEPS]).flatmap(lambda step: st.tuples(st.just(step), STEPS[step]))
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
    """Rows with nulls in some of the columns; not in structs, which version 2.0 cannot hold."""
    places = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(places, pa.int64()),
            "v": pa.array([None if place % 13 == 0 else place % 61 for place in places], pa.int64()),
            "name": pa.array([None if place % 7 == 0 else f"n{place % 50}" for place in places], pa.string()),
            "flag": pa.array([place % 3 == 0 for place in places]),
            "vector": pa.array([[place, 1] for place in places], pa.list_(pa.float32(), 2)),
            "tags": pa.array([[f"t{place % 9}"] * (place % 4) for place in places], pa.list_(pa.string())),
            "point": pa.array([{"x": place, "y": {"z": str(place)}} for place in places]),
            "day": pa.array([None if place % 5 == 0 else place for place in places], pa.int32()).cast(pa.date32()),
        }
    )


class Life:
    """A dataset that pylance writes, step by step."""

    def __init__(self, path: Path, version: str, *, stable: bool) -> None:
        self.path = str(path)
        self.rows = 0
        self.tags: dict[int, str] = {}
        self.write(90, version, max_rows_per_file=35, enable_stable_row_ids=stable)

    def new_rows(self, count: int, names: list[str] | None = None) -> pa.Table:
        """Rows with numbers of their own, of the columns that the dataset has as they came."""
        made = rows_of(self.rows, count)
        self.rows += count
        return made if names is None else made.select(names)

    def write(self, count: int, version: str, names: list[str] | None = None, **options: Any) -> None:
        lance.write_dataset(self.new_rows(count, names), self.path, data_storage_version=version, **options)

    def take(self, step: str, how: Any) -> None:
        """Make a step. Raises what pylance raises where it does not go with the steps before."""
        peer = lance.dataset(self.path)
        names = [name for name in peer.schema.names if peer.schema.field(name) in [*rows_of(0, 1).schema]]
        if step in ("append", "overwrite"):
            self.write(how[0], how[1], names if step == "append" else None, mode=step)
        elif step == "delete":
            peer.delete(f"id % {how[0]} = 1 and id >= {how[1]}")
        elif step == "update":
            peer.update({"v": "id + 1"}, where=f"id % {how[0]} = 0 and id < {how[1]}")
        elif step == "upsert":
            old = peer.to_table(columns=names).slice(0, how[1])
            merge = peer.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(pa.concat_tables([old, self.new_rows(how[0], names)]))
        elif step == "add":
            peer.add_columns({"added": how} if isinstance(how, str) else pa.field("added", how))
        elif step == "join":
            peer.merge(pa.table({"id": range(0, 90, how), "added": range(0, 90, how)}), left_on="id")
        elif step == "drop":
            peer.drop_columns([how])
        elif step == "rename":
            peer.alter_columns({"path": how, "name": how.rpartition(".")[2] + "_2"})
        elif step == "widen":
            peer.alter_columns({"path": "day", "data_type": pa.date64()})
        elif step == "compact":
            peer.optimize.compact_files(target_rows_per_fragment=how)
        elif step == "index":
            peer.create_scalar_index("id", "BTREE", replace=True)
        elif step == "restore":
            lance.dataset(self.path, version=1 + how % peer.version).restore()
        elif peer.version not in self.tags:
            self.tags[peer.version] = f"tag-{peer.version}"
            peer.tags.create(self.tags[peer.version], peer.version)


def test_as_pylance_reads_them() -> None:
    """Every version whole, and some with options."""

    def check(version: str, stable: bool, steps: list[tuple[str, Any]], several: list[dict[str, Any]]) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "ds"
            life = Life(path, version, stable=stable)
            for step, how in steps:
                with suppress(OSError, ValueError, RuntimeError, NotImplementedError):
                    life.take(step, how)
            asyncio.run(_compare(path, life.tags, several))

    lives = st.lists(steps, min_size=3, max_size=16)
    searched(check, st.sampled_from(VERSIONS), st.booleans(), lives, st.lists(options, max_size=4), examples=10)


async def _compare_versions(operator: Any, path: Path) -> None:
    for number in range(1, lance.dataset(str(path)).version + 1):
        expected = lance.dataset(str(path), version=number).to_table()
        found = await ap_lance.read_table(operator, "ds", version=number)
        found.validate(full=True)
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert found.equals(expected), (number, found.to_pydict(), expected.to_pydict())


async def _compare(path: Path, tags: dict[int, str], several: list[dict[str, Any]]) -> None:
    async with stored(dataset_objects(path, "ds")) as operator:
        await _compare_versions(operator, path)
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
            wanted.setdefault("columns", ["id", "v", "name"])
            expected = expected.select(wanted["columns"])
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
