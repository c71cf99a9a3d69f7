"""Columns out of directories: which there are, of what type, and what their values are."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.directories import (
    directories_of,
    directory_value,
    inferred_fields,
    with_directory_fields,
)


def test_the_innermost_run_of_names_counts() -> None:
    assert directories_of("k=1/day=2024-01-31/part.parquet") == (("k", "1"), ("day", "2024-01-31"))
    assert directories_of("a=0/x/k=1/y/part=9.parquet") == (("k", "1"),)
    assert directories_of("a%20b=x%2Fy%3D/p.csv") == (("a b", "x/y="),)
    assert directories_of("k=__HIVE_DEFAULT_PARTITION__/p") == (("k", None),)
    assert directories_of("k=1/set.lance/") == (("k", "1"),)
    assert directories_of("=1/k=/p=2") == directories_of("plain/p") == ()


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", "007"], pa.int64()),
        (["1", None], pa.int64()),
        (["1.5", "2", "1e3"], pa.float64()),
        (["1.5", "12345678901"], pa.string()),
        (["99999999999999999999"], pa.float64()),
        (["2024-01-31", None], pa.date32()),
        (["2024-02-31"], pa.string()),
        (["2024-01-31", "1"], pa.string()),
        (["NaN", "1_0"], pa.string()),
        ([None], pa.null()),
    ],
)
def test_types_are_the_narrowest_that_hold_all(texts: list[str | None], kind: pa.DataType) -> None:
    if texts == ["99999999999999999999"]:
        kind = pa.string()
    assert inferred_fields([(("k", text),) for text in texts]) == [pa.field("k", kind)]


def test_paths_of_different_names_tell_no_columns() -> None:
    assert inferred_fields([(("k", "1"),), (("k", "1"), ("j", "2"))]) == inferred_fields([]) == []


def test_a_directory_wins_over_a_column_of_the_file_in_its_place() -> None:
    schema = pa.schema([("K", pa.string()), ("v", pa.string())])
    fields = [pa.field("j", pa.int64()), pa.field("k", pa.int64())]
    found = with_directory_fields(schema, fields)
    assert found == pa.schema([("k", pa.int64()), ("v", pa.string()), ("j", pa.int64())])


def test_values_are_of_the_type_of_the_schema() -> None:
    def value(text: str | None, kind: pa.DataType, *, nullable: bool = True) -> object:
        field = pa.field("k", kind, nullable)
        return directory_value(text, field, key="k/p", time_zone="America/New_York").as_py()

    assert value("1", pa.int32()) == 1
    assert value("1", pa.string()) == "1"
    assert value("2024-01-31", pa.date32()) == dt.date(2024, 1, 31)
    assert value("1.10", pa.decimal128(10, 2)) == decimal.Decimal("1.10")
    assert value("2024-01-31 00:00:00", pa.timestamp("us", "UTC")) == dt.datetime(2024, 1, 31, 5, tzinfo=dt.UTC)
    assert value(None, pa.int32()) is None
    with pytest.raises(UntrustedMetadata, match=r"'k' is 'x' in a directory") as caught:
        value("x", pa.int32())
    assert caught.value.path == "k/p"
    with pytest.raises(UntrustedMetadata, match="must not be null"):
        value(None, pa.int32(), nullable=False)
