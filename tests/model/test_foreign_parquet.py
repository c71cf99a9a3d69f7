"""Files of other writers: those of apache/parquet-testing, where they are here, and some made here.

What pyarrow reads must be the same with us, with its schema and metadata; what is refused must be a typed error.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from tests.files.parquet_testing import HASHES, REFUSED, checked, folder
from tests.model.parquet_tables import ALL_KINDS, Random, column, same
from tests.probes.search import SEED

FOLDER = folder()
ROWS = 3_000


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """A store in memory."""
    async with Operator(Memory()) as made:
        yield made


async def compare(operator: Operator, data: bytes, **options: Any) -> pa.Table:
    """Read a file by pyarrow, with its options, and by us. Returns its rows."""
    await operator.write("f", data)
    expected = pq.read_table(pa.BufferReader(data), **options)
    assert alike(await ap.parquet.read_table(operator, "f"), expected)
    return expected


def alike(found: pa.Table, expected: pa.Table) -> bool:
    """Values that equal nothing (NaN) are compared as they are written."""
    return same(found, expected) or written_out(found) == written_out(expected)


def written_out(table: pa.Table) -> tuple[str, str, object]:
    """A table in words."""
    return str(table.schema), repr(table.to_pylist()), table.schema.metadata


@pytest.mark.skipif(FOLDER is None, reason="no copy of apache/parquet-testing: AIOPREFETCH_PARQUET_TESTING names none")
@pytest.mark.parametrize("path", HASHES if FOLDER else [])
async def test_a_file_of_parquet_testing(operator: Operator, path: str) -> None:
    """Whole; then some of its rows in small batches, each column, and rows by a value of it."""
    assert FOLDER is not None
    data = checked(path, await asyncio.to_thread((FOLDER / path).read_bytes))
    if path in REFUSED:
        await operator.write("f", data)
        with pytest.raises((ap.UntrustedMetadata, ap.Unsupported)) as refused:
            await ap.parquet.read_table(operator, "f")
        assert REFUSED[path] in str(refused.value)
        return
    table, chance = await compare(operator, data, coerce_int96_timestamp_unit="us"), Random(SEED)
    for name in {*table.column_names}:
        only, start = table.select([name]), chance.randrange(table.num_rows + 1)
        found = await ap.parquet.read_table(operator, "f", columns=[name], rows=(start, start + 70), batch_rows=7)
        assert alike(found, only.slice(start, 70))
        if not table.num_rows or pa.types.is_nested(only.schema[0].type):
            continue
        value = only.column(0)[chance.randrange(table.num_rows)].as_py()
        for operation in ("==", "!=", "<", ">=", "in") if value is not None else ():
            clause = (name, operation, [value] if operation == "in" else value)
            await compare_filtered(operator, table, clause)


async def compare_filtered(operator: Operator, table: pa.Table, clause: Any) -> None:
    """A filter as pyarrow takes it, or refuses it."""
    try:
        expected = table.filter(pq.filters_to_expression([clause]))
    except (pa.ArrowException, TypeError):
        with pytest.raises(ap.InvalidArgument):
            await ap.parquet.read_table(operator, "f", filters=[clause])
        return
    assert alike(await ap.parquet.read_table(operator, "f", filters=[clause]), expected)


# --- made here --------------------------------------------------------------------------------------------------------


def everything(rows: int = ROWS, kinds: tuple[str, ...] = ALL_KINDS) -> pa.Table:
    """A column of each kind."""
    rng = Random(11)
    return pa.table({kind: column(rng, kind, rows) for kind in kinds})


def by_pyarrow(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


TABLE = everything()
NUMBERS = TABLE.select(["int8", "uint32", "int64", "float64", "float32", "sorted", "date", "nanoseconds"])
STRINGS = TABLE.select(["string", "few", "large_string", "binary"])


def delta(table: pa.Table, encoding: str) -> dict[str, Any]:
    return {"use_dictionary": False, "column_encoding": dict.fromkeys(table.column_names, encoding)}


INTEGERS = NUMBERS.select(["int64", "sorted", "nanoseconds", "date"])
FLOATS = NUMBERS.select(["float64", "float32"])

PYARROW: dict[str, Callable[[], bytes]] = {
    "without a stored schema": lambda: by_pyarrow(TABLE, store_schema=False),
    "plain": lambda: by_pyarrow(TABLE, use_dictionary=False),
    "dictionaries that were given up": lambda: by_pyarrow(TABLE, dictionary_pagesize_limit=500, data_page_size=700),
    "DELTA_BINARY_PACKED": lambda: by_pyarrow(INTEGERS, **delta(INTEGERS, "DELTA_BINARY_PACKED")),
    "DELTA_LENGTH_BYTE_ARRAY": lambda: by_pyarrow(STRINGS, **delta(STRINGS, "DELTA_LENGTH_BYTE_ARRAY")),
    "DELTA_BYTE_ARRAY": lambda: by_pyarrow(STRINGS, **delta(STRINGS, "DELTA_BYTE_ARRAY")),
    "BYTE_STREAM_SPLIT": lambda: by_pyarrow(FLOATS, **delta(FLOATS, "BYTE_STREAM_SPLIT")),
    "page index": lambda: by_pyarrow(TABLE, write_page_index=True, data_page_size=700),
    "checksums": lambda: by_pyarrow(TABLE, write_page_checksum=True),
    "no statistics": lambda: by_pyarrow(TABLE, write_statistics=False),
    "version 1.0": lambda: by_pyarrow(TABLE.drop_columns(["nanoseconds"]), version="1.0"),
    "INT96": lambda: by_pyarrow(TABLE.select(["nanoseconds", "instant"]), use_deprecated_int96_timestamps=True),
    "decimals as integers": lambda: by_pyarrow(TABLE.select(["decimal"]), store_decimal_as_integer=True),
    "many row groups": lambda: by_pyarrow(everything(400), row_group_size=3),
    "no rows": lambda: by_pyarrow(TABLE.slice(0, 0)),
    "no columns": lambda: by_pyarrow(pa.table({})),
    "one row": lambda: by_pyarrow(TABLE.slice(0, 1)),
    "old names of list items": lambda: by_pyarrow(TABLE.select(["list", "items"]), use_compliant_nested_type=False),
    "names with dots": lambda: by_pyarrow(pa.table({"a.b": [1], "a": [{"b": 2}], "": [3]})),
    "metadata": lambda: by_pyarrow(
        pa.table([[1]], pa.schema([pa.field("x", pa.int64(), False, {"PARQUET:field_id": "7", "k": "v"})], {"m": "n"}))
    ),
    "views": lambda: by_pyarrow(pa.table({"s": pa.array(["a", None, "b" * 50], pa.string_view())})),
    "extension types": lambda: by_pyarrow(pa.table({"u": pa.array([b"0123456789abcdef", None], pa.uuid())})),
}


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
async def test_every_compression_and_page_version(operator: Operator, compression: str) -> None:
    for version in ("1.0", "2.0"):
        data = by_pyarrow(TABLE, compression=compression, data_page_version=version, data_page_size=3_000)
        await compare(operator, data)


@pytest.mark.parametrize("name", PYARROW)
async def test_pyarrow_wrote_it(operator: Operator, name: str) -> None:
    await compare(operator, PYARROW[name]())


async def test_row_groups_without_rows(operator: Operator) -> None:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, TABLE.schema) as writer:
        for rows in (0, 5, 0, 0, 7, 0):
            writer.write_table(TABLE.slice(0, rows))
    data = bytes(sink.getvalue())
    await compare(operator, data)
    table = await ap.parquet.read_table(operator, "f")
    assert table.num_rows == 12


def polars_frame() -> pl.DataFrame:
    """What polars holds of these kinds."""
    kinds = ("int8", "uint32", "int64", "float64", "bool", "string", "few", "binary", "date", "instant", "decimal")
    frame = pl.DataFrame(everything(ROWS, (*kinds, "list", "lists", "struct", "items", "vector", "duration", "time")))
    return frame.with_columns(pl.col("few").cast(pl.Categorical).alias("categorical"))


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"])
async def test_polars_wrote_it(operator: Operator, compression: Any) -> None:
    frame = polars_frame()
    for row_group_size in (None, 700):
        sink = io.BytesIO()
        frame.write_parquet(sink, compression=compression, row_group_size=row_group_size, data_page_size=2_000)
        await compare(operator, sink.getvalue())
        table = await ap.parquet.read_table(operator, "f", columns=["struct", "few"])
        assert pl.DataFrame(table).equals(frame.select("struct", "few"))
