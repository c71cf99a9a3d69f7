"""Random queries of lazy frames over one file and many, ours beside those of polars itself on the same files."""

import functools
import tempfile
from operator import methodcaller
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

import aioprefetch as ap
from tests.files.dataset_files import write_files
from tests.files.polars_files import NESTED, frames, predicates, stored
from tests.probes.search import searched

c = pl.col
# Calls of methods, one after the other.
Query = list[methodcaller]
MADE = ("n", "new")
STEPS = ["filter", "filter", "select", "with", "head", "slice", "tail", "sort", "group", "index", "compare"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, bytes], Query]:
    """The files of a frame that was cut, below directories of a partition or not, and what is asked of them."""
    frame, files = draw(frames(40)), {}
    is_hive, start = draw(st.booleans()), 0
    for number in range(draw(st.integers(1, 4))):
        part = frame.slice(start, draw(st.integers(0, 20)))
        directory = f"y={draw(st.integers(0, 2))}/" if is_hive else ""
        files[f"t/{directory}{number}.parquet"] = draw(stored(part))
        start += part.height
    return files, draw(queries([*frame.columns, *(["y"] if is_hive else [])]))


@st.composite
def queries(draw: st.DrawFn, names: list[str]) -> Query:
    """Steps of a query, each with names that the steps before leave."""
    query: Query = []
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=5)):
        plain = [name for name in names if name not in NESTED and name not in MADE]
        count = draw(st.integers(0, 30))
        if step == "filter":
            query.append(methodcaller("filter", draw(predicates(plain))))
        elif step == "select":
            names = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
            query.append(methodcaller("select", names))
        elif step in ("head", "tail"):
            query.append(methodcaller(step, count))
        elif step == "slice":
            query.append(methodcaller("slice", draw(st.integers(0, 30)), count))
        elif step == "index":
            query += [methodcaller("drop", "n", strict=False), methodcaller("with_row_index", "n")]
            names = ["n", *(name for name in names if name != "n")]
        elif plain:
            one, other, flag = c(draw(st.sampled_from(plain))), draw(st.sampled_from(plain)), draw(st.booleans())
            if step == "with":
                query.append(methodcaller("with_columns", new=pl.when(one.is_null() ^ flag).then(c(other))))
                names = [*(name for name in names if name != "new"), "new"]
            elif step == "sort":
                query.append(methodcaller("sort", other, descending=flag, maintain_order=True))
            elif step == "compare":
                query.append(methodcaller("filter", one.is_not_null() & (one == one.first()) | c(other).is_null()))
            else:
                query += [
                    methodcaller("group_by", other, maintain_order=True),
                    methodcaller("agg", n=pl.len(), new=one.first()),
                ]
                names = [other, "n", "new"]
    return [*query, methodcaller("select", n=pl.len())] if draw(st.integers(0, 9)) == 0 else query


def answered(frame: pl.LazyFrame, query: Query) -> pl.LazyFrame:
    return functools.reduce(lambda made, step: step(made), query, frame)


def check(case: tuple[dict[str, bytes], Query], engine: Any) -> None:
    files, query = case
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), files)
        place: Any = Path(name) / "t"
        expected = pl.read_parquet(place / "**/*.parquet", hive_schema={"y": pl.Int32})
        ours = ap.polars.scan_parquet(place)
        assert ours.collect_schema() == expected.schema
        found = answered(ours, query).collect(engine=engine)
    wanted = answered(expected.lazy(), query).collect(engine="in-memory")
    assert found.schema == wanted.schema
    assert found.equals(wanted)


def test_as_polars_answers() -> None:
    searched(check, cases(), st.sampled_from(["in-memory", "streaming"]), examples=60)
