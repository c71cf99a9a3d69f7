"""Parquet files under random paths, in a directory of this machine and behind a gate: ours beside pyarrow's."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.stores.gated_reader import Bench


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    """A file with a table."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def put_files(b: Bench, files: Mapping[str, bytes]) -> None:
    """Store files behind the back of the gate."""
    for path, data in files.items():
        b.put(data, path)


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Store files in a directory."""
    for path, data in files.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def asked(b: Bench) -> list[str]:
    """The path of each GET, in the order in which they arrived."""
    return [call.request.path for call in b.calls]


def column(table: pa.Table, name: str) -> list[Any]:
    """The values of a column."""
    found: list[Any] = table.column(name).to_pylist()
    return found


def sorted_rows(table: pa.Table) -> list[str]:
    """The rows of a table as text, in which NaN equals NaN, sorted."""
    return sorted(repr(row) for row in table.to_pylist())


def numbers(first: int, rows: int = 100) -> pa.Table:
    """Consecutive numbers, and strings of them."""
    values = range(first, first + rows)
    return pa.table({"x": pa.array(values, pa.int64()), "s": [f"v{value}" for value in values]})


def years() -> Iterator[tuple[str, bytes]]:
    """Two files in each of three years, of 100 rows each, in row groups of 25."""
    for number, year in enumerate((2022, 2023, 2024)):
        for part in range(2):
            table = numbers(number * 200 + part * 100)
            yield f"t/year={year}/part-{part}.parquet", parquet_bytes(table, row_group_size=25)
