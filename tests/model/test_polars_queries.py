"""Random queries of lazy frames over one file and many, ours beside those of polars itself on the same files."""

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

import aioprefetch as ap
from tests.benches.dataset_files import write_files
from tests.benches.polars_files import NESTED, frames, predicates, stored
from tests.benches.search import searched

c = pl.col
Query = list[tuple[str, Any]]


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
    for _ in range(draw(st.integers(0, 5))):
        plain = [name for name in names if name not in NESTED]
        steps = ["filter", "filter", "select", "with", "head", "slice", "tail", "sort", "group", "index", "compare", "len"]
        step = draw(st.sampled_from(steps))
        how: Any = None
        if step == "filter":
            how = draw(predicates([name for name in names if name not in ("n", "new")]))
        elif step == "select":
            how = names = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        elif step in ("head", "tail", "slice"):
            how = (draw(st.integers(0, 30)), draw(st.integers(0, 30)))
        elif step in ("with", "sort", "group", "compare"):
            if not plain:
                continue
            how = (draw(st.sampled_from(plain)), draw(st.sampled_from(plain)), draw(st.booleans()))
            names = {"with": [*names, "new"], "group": [how[0], "n", "new"]}.get(step, names)
        elif step == "index":
            names = [*names, "n"]
        elif step == "len":
            names = ["n"]
        names = [*dict.fromkeys(names)]
        query.append((step, how))
        if step == "len":
            break
    return query


def asked(frame: pl.LazyFrame, query: Query) -> pl.LazyFrame:
    """The frame of a query."""
    for step, how in query:
        if step == "filter":
            frame = frame.filter(how)
        elif step == "select":
            frame = frame.select(how)
        elif step == "with":
            frame = frame.with_columns(new=pl.when(c(how[0]).is_null() ^ how[2]).then(c(how[1])))
        elif step == "head":
            frame = frame.head(how[0])
        elif step == "tail":
            frame = frame.tail(how[0])
        elif step == "slice":
            frame = frame.slice(*how)
        elif step == "sort":
            frame = frame.sort(how[0], descending=how[2], maintain_order=True)
        elif step == "group":
            groups = frame.group_by(how[0], maintain_order=True)
            frame = groups.agg(pl.len().alias("n"), c(how[1]).first().alias("new"))
        elif step == "index":
            frame = frame.drop("n", strict=False).with_row_index("n")
        elif step == "compare":
            frame = frame.filter(c(how[0]).is_not_null() & (c(how[0]) == c(how[0]).first()) | c(how[1]).is_null())
        else:
            frame = frame.select(pl.len().alias("n"))
    return frame


def check(case: tuple[dict[str, bytes], Query], engine: Any) -> None:
    files, query = case
    with tempfile.TemporaryDirectory() as name:
        write_files(Path(name), files)
        place: Any = Path(name) / "t"
        expected = pl.read_parquet(place / "**/*.parquet", hive_schema={"y": pl.Int32})
        ours = ap.polars.scan_parquet(place)
        assert ours.collect_schema() == expected.schema
        found = asked(ours, query).collect(engine=engine)
    wanted = asked(expected.lazy(), query).collect(engine="in-memory")
    assert found.schema == wanted.schema
    assert found.equals(wanted)


def test_as_polars_answers() -> None:
    searched(check, cases(), st.sampled_from(["in-memory", "streaming"]), examples=60)
