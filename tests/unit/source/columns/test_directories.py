"""Columns out of directories: which there are, of what type, and what their values are."""

import datetime as dt
import decimal

import pyarrow as pa
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.directories import (
    DirectoryColumns,
    directories_of,
    directory_value,
    with_directory_fields,
)
from tests.profile import each_of


def columns_of(*keys: str) -> DirectoryColumns:
    found = DirectoryColumns()
    for key in keys:
        found.add(key)
    return found


def test_the_innermost_run_of_names_counts() -> None:
    assert directories_of("k=1/day=2024-01-31/part.parquet") == (("k", "1"), ("day", "2024-01-31"))
    assert directories_of("a=0/x/k=1/y/part=9.parquet") == (("k", "1"),)
    assert directories_of("a%20b=x%2Fy%3D/p.csv") == (("a b", "x/y="),)
    assert directories_of("k=__HIVE_DEFAULT_PARTITION__/p") == (("k", None),)
    assert directories_of("k=1/set.lance/") == (("k", "1"),)
    assert directories_of("=1/k=/p=2") == directories_of("plain/p") == ()


@each_of(
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
    keys = [f"k={'__HIVE_DEFAULT_PARTITION__' if text is None else text}/p" for text in texts]
    assert columns_of(*keys).fields() == [pa.field("k", kind)]


@each_of("other", ["k=1/h=2/b", "j=2/b", "h=1/k=2/b"])
def test_directories_of_different_names_are_refused_with_two_of_the_paths(other: str) -> None:
    with pytest.raises(UntrustedMetadata, match=rf"'k=1/a' has the columns k, and '{other}' has .*give the schema"):
        columns_of("k=1/a", "k=2/a", other)


@pytest.mark.parametrize("key", ["k=1/k=2/a", "k=1/j=2/K=3/a"])
def test_a_path_that_names_a_column_twice_is_refused(key: str) -> None:
    with pytest.raises(UntrustedMetadata, match=f"'{key}' names a column twice"):
        columns_of(key)


def test_names_that_differ_in_case_are_one_column() -> None:
    assert columns_of("K=2/a", "k=1/a").fields() == columns_of("k=1/a", "K=2/a").fields() == [pa.field("k", pa.int64())]


def test_keys_in_no_such_directory_are_counted_and_take_no_column_away() -> None:
    found = columns_of("a.json", "k=1/a", "k=1/b", "other/a", "other/b")
    assert found.fields() == [pa.field("k", pa.int64())]
    assert (found.within, found.outside, found.outside_count) == ("k=1/a", "a.json", 3)
    assert columns_of("a", "b/c").fields() == columns_of().fields() == []


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
