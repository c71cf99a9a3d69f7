"""What a query reads of files that change between the call of scan_parquet and it; columns that polars lacks."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.polars.scan_parquet import dtypes_of
from tests.files.column_file import GROUPS, PARQUET, ROWS
from tests.files.dataset_files import numbers, parquet_bytes

# A file that comes whole with its footer, and one of which only the end does.
FILES = {"small": (parquet_bytes(numbers(0)), 100), "large": (PARQUET, GROUPS * ROWS)}
OTHER = parquet_bytes(numbers(0, 7))

sizes = pytest.mark.parametrize("size", FILES)


def scanned(place: Path, size: str) -> tuple[Callable[[], int], int]:
    """A query that counts the rows of two files of a directory, and the rows of each."""
    data, rows = FILES[size]
    for name in ("a", "b"):
        (place / f"{name}.parquet").write_bytes(data)
    column = {"small": "x", "large": "row"}[size]
    frame = ap.polars.scan_parquet(f"file://{place}/").select(column)
    return lambda: frame.collect().height, rows


@sizes
def test_a_file_that_came_after_the_call_is_read(tmp_path: Path, size: str) -> None:
    count, rows = scanned(tmp_path, size)
    (tmp_path / "c.parquet").write_bytes(FILES[size][0])
    assert count() == 3 * rows


@sizes
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_file_that_has_gone_since_the_call_is_not_read(tmp_path: Path, size: str, name: str) -> None:
    count, rows = scanned(tmp_path, size)
    (tmp_path / f"{name}.parquet").unlink()
    assert count() == rows


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_file_that_was_overwritten_since_the_call_is_read_as_it_is_now(tmp_path: Path, name: str) -> None:
    for size, other in (("small", OTHER), ("large", _large())):
        count, rows = scanned(tmp_path, size)
        (tmp_path / f"{name}.parquet").write_bytes(other)
        assert count() == rows + 7


def _large() -> bytes:
    """Some rows with the columns of the large file."""
    table = pl.read_parquet(PARQUET).head(7).to_arrow()
    return parquet_bytes(table)


QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "everything": lambda frame: frame,
    "rows in the tail": lambda frame: frame.filter(pl.col("row") >= (GROUPS * ROWS - 1)),
    "no rows by statistics": lambda frame: frame.filter(pl.col("row") < 0),
}


@pytest.mark.parametrize("query", QUERIES)
def test_one_file_is_read_as_it_is_now(tmp_path: Path, query: str) -> None:
    """Where no request for data would tell that there is another version, the store is asked."""
    path = tmp_path / "a.parquet"
    now = pl.DataFrame({"row": [-1, GROUPS * ROWS + 5]})
    later = pl.DataFrame({"row": [-2, GROUPS * ROWS + 6]})
    for before in (pl.DataFrame({"row": [0]}).to_arrow(), pl.read_parquet(PARQUET).select("row").to_arrow()):
        path.write_bytes(parquet_bytes(before, compression="none", use_dictionary=False))
        frame = QUERIES[query](ap.polars.scan_parquet(path))
        for content in (now, later):
            content.write_parquet(path)
            assert frame.collect().equals(QUERIES[query](content.lazy()).collect())
        path.unlink()
        with pytest.raises(ap.NotFound):
            frame.collect()


@pytest.mark.parametrize("precision", [20, 50])
def test_decimals_of_256_bits_are_refused(precision: int) -> None:
    """At the call: polars itself panics when it gets a value."""
    with pytest.raises(ap.Unsupported, match=r"does not take column 'd'.*schema= without it and extra_columns="):
        dtypes_of(pa.schema([("d", pa.decimal256(precision, 2))]), "t/")


def test_types_of_extensions_without_a_stored_schema(tmp_path: Path) -> None:
    """The footer names their storage, and the batches themselves: the file is not taken for another one."""
    values = pa.table({"u": pa.array([b"a" * 16, None], pa.uuid()), "j": pa.array(["{}", None], pa.json_())})
    data = parquet_bytes(values, store_schema=False)
    (tmp_path / "a.parquet").write_bytes(data)
    found = ap.polars.scan_parquet(tmp_path / "a.parquet").collect()
    assert found.equals(pl.DataFrame(pl.from_arrow(values)))
