"""The listing of a call of scan_parquet, which the first query takes while it is new; columns that polars lacks."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.parquet.dataset.files import checked_source, find_files
from aioprefetch.polars.source import ParquetSource, Seen, dtypes_of
from tests.benches.column_file import GROUPS, METADATA, PARQUET, ROWS

# Files of 37 MB, of which footers alone stay in memory.
SCHEMA = METADATA.schema.to_arrow_schema()
ALL_ROWS = GROUPS * ROWS


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[ap.Operator]:
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(PARQUET)
    made = ap.Operator.from_uri(f"file://{tmp_path}")
    yield made
    ap.sync.run(made.aclose())


def listed(operator: ap.Operator, at_seconds: float) -> ParquetSource:
    """A source whose files were listed at a time of the clock."""
    named = checked_source("")
    files = ap.sync.run(find_files(operator, named))
    seen = Seen(listing=replace(named, files=tuple(files)), at_seconds=at_seconds)
    return ParquetSource(operator, "", {}, SCHEMA, seen=seen)


def numbers(source: ParquetSource) -> list[int]:
    """The rows of a query of one column."""
    return pl.concat(source(["row"], None, None, None))["row"].to_list()


def test_the_first_query_takes_a_new_listing(operator: ap.Operator, tmp_path: Path) -> None:
    new, old = listed(operator, math.inf), listed(operator, -math.inf)
    (tmp_path / "c.parquet").write_bytes(PARQUET)
    assert len(numbers(new)) == 2 * ALL_ROWS
    assert len(numbers(new)) == len(numbers(old)) == 3 * ALL_ROWS


def test_a_listing_that_is_wrong_by_now_is_made_again(operator: ap.Operator, tmp_path: Path) -> None:
    overwritten, gone = listed(operator, math.inf), listed(operator, math.inf)
    pl.DataFrame({"row": [7]}).write_parquet(tmp_path / "a.parquet")
    assert numbers(overwritten)[:2] == [7, 0]
    (tmp_path / "a.parquet").unlink()
    assert len(numbers(gone)) == ALL_ROWS


@pytest.mark.parametrize("precision", [20, 50])
def test_decimals_of_256_bits_are_refused(precision: int) -> None:
    """At the call: polars itself panics when it gets a value."""
    with pytest.raises(ap.Unsupported, match=r"does not take column 'd'.*schema= without it leaves it out"):
        dtypes_of(pa.schema([("d", pa.decimal256(precision, 2))]), "t/")
