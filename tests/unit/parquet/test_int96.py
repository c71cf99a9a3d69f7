"""Timestamps of 96 bits: the unit that holds them, or an error that names the one that does."""

import datetime as dt
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.errors import InvalidArgument, Unsupported
from tests.stores.gated_reader import Bench, bench
from tests.unit.parquet.parquet_files import footer_of, with_footer, written

pytestmark = pytest.mark.virtual

US, NS = pa.timestamp("us"), pa.timestamp("ns")
TIMES = [dt.datetime(2020, 1, 1), None, dt.datetime(3000, 1, 1), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23)]
FAR = pa.table(
    {
        "i": range(5),
        "t": pa.array(TIMES, US),
        "l": pa.array([[time, None] if time else None for time in TIMES], pa.list_(pa.field("element", US))),
        "s": pa.array([{"x": 1, "t": time} for time in TIMES], pa.struct([("x", pa.int8()), ("t", US)])),
        "m": pa.array([[("k", time)] for time in TIMES], pa.map_(pa.string(), US)),
    }
)
FINE = pa.table({"i": range(4), "t": pa.array([1, 10**18 + 1, -5, None], NS)})
# A day a row, from the year 1 on; the pages have a hundred.
DAYS = pa.table({"t": pa.array([dt.datetime(1, 1, 1) + dt.timedelta(days=n) for n in range(20_000)], US)})
LEAST, MOST = -(1 << 63), (1 << 63) - 1

READS: dict[str, dict[str, Any]] = {
    "whole": {},
    "rows": {"rows": (0, 3)},
    "a list": {"columns": ["l"]},
    "a field": {"columns": ["s.t"]},
    "a map": {"columns": ["m"]},
    "a filter": {"columns": ["i"], "filters": [("t", "<", dt.datetime(2100, 1, 1))]},
}


def int96(table: pa.Table, **options: Any) -> bytes:
    return written(table, use_deprecated_int96_timestamps=True, store_schema=options.pop("stored", False), **options)


def put(made: Bench, **files: bytes) -> None:
    for name, data in files.items():
        made.put(data, name)


async def test_every_year_by_default() -> None:
    async with bench() as b:
        put(b, far=int96(FAR))
        found = await ap.parquet.read_table(b.operator, "far")
        footer = await ap.parquet.footer(b.operator, "far")
        assert await ap.parquet.count_rows(b.operator, "far", filters=[("t", ">", dt.datetime(2500, 1, 1))]) == 2
    assert found.cast(FAR.schema).equals(FAR)
    assert found.equals(pq.read_table(pa.BufferReader(int96(FAR)), coerce_int96_timestamp_unit="us"))
    assert found.schema.equals(footer.schema)


def test_years_are_those_of_duckdb(tmp_path: Any) -> None:
    path = tmp_path / "far.parquet"
    path.write_bytes(int96(FAR.select(["t"])))
    expected = duckdb.execute(f"select t::varchar as t from '{path}'").fetchall()
    found = ap.polars.scan_parquet(path).collect().to_arrow()
    assert [text for (text,) in expected] == [None if time is None else str(time) for time in found["t"].to_pylist()]


@pytest.mark.parametrize("read", READS)
async def test_a_year_beyond_nanoseconds_is_never_another_year(read: str) -> None:
    options = READS[read]
    async with bench() as b:
        put(b, plain=int96(FAR), stored=int96(FAR, stored=True))
        cases: list[Any] = [("plain", "ns"), ("stored", None), ("stored", "ns"), (["plain", "stored"], "ns")]
        for path, unit in cases:
            with pytest.raises(Unsupported, match=r'INT96 timestamp 3000-01-01.* int96_unit="us"'):
                await ap.parquet.read_table(b.operator, path, int96_unit=unit, **options)
        found = await ap.parquet.read_table(b.operator, "stored", int96_unit="us", **options)
        assert found.replace_schema_metadata().equals(await ap.parquet.read_table(b.operator, "plain", **options))


@pytest.mark.parametrize("wanted", ["us", "ns"])
async def test_one_value_among_many(wanted: Any) -> None:
    """They are compared some thousands at a time; where there is none, the bytes between values are any."""
    kind, wrong = (NS, 1001) if wanted == "us" else (US, MOST // 1000 + 1)
    good = [None if n % 7 == 0 else n * 1000 for n in range(20_000)]
    async with bench() as b:
        put(b, good=int96(pa.table({"t": pa.array(good, kind)})))
        found = await ap.parquet.read_table(b.operator, "good", int96_unit=wanted)
        assert found["t"].equals(pa.chunked_array([pa.array(good, kind).cast(pa.timestamp(wanted))]))
        for place in (1, 8191, 8192, 19_999):
            values = [*good[:place], wrong, *good[place + 1 :]]
            put(b, bad=int96(pa.table({"t": pa.array(values, kind)})))
            with pytest.raises(Unsupported, match="column 't': the INT96 timestamp"):
                await ap.parquet.read_table(b.operator, "bad", int96_unit=wanted)


async def test_nanoseconds_are_never_cut_off() -> None:
    async with bench() as b:
        put(b, fine=int96(FINE))
        for path in ("fine", ["fine"]):
            with pytest.raises(Unsupported, match=r"column 't'.* 'fine'|'fine'.*column 't'.*int96_unit=\"ns\""):
                await ap.parquet.read_table(b.operator, path)
            assert (await ap.parquet.read_table(b.operator, path, int96_unit="ns")).equals(FINE)
        with pytest.raises(Unsupported, match='int96_unit="ns"'):
            await ap.parquet.count_rows(b.operator, "fine", filters=[("t", ">", dt.datetime(2000, 1, 1))])
        later = [("t", ">", dt.datetime(2000, 1, 1))]
        assert await ap.parquet.count_rows(b.operator, "fine", filters=later, int96_unit="ns") == 1


@pytest.mark.parametrize("unit", ["us", "ns"])
async def test_pages_that_are_read_alone(unit: Any) -> None:
    sizes = {"write_page_index": True, "data_page_size": 1000, "write_batch_size": 100, "use_dictionary": False}
    data = int96(DAYS, **sizes)
    async with bench() as b:
        put(b, days=data, fine=int96(pa.table({"t": pa.array(range(20_000), NS)}), **sizes))
        if unit == "us":
            found = await ap.parquet.read_table(b.operator, "days", rows=(5000, 5100), int96_unit=unit)
            assert found.equals(DAYS.slice(5000, 100))
            with pytest.raises(Unsupported, match='int96_unit="ns"'):
                await ap.parquet.read_table(b.operator, "fine", rows=(5000, 5100), int96_unit=unit)
        else:
            with pytest.raises(Unsupported, match='int96_unit="us"'):
                await ap.parquet.read_table(b.operator, "days", rows=(5000, 5100), int96_unit=unit)
            found = await ap.parquet.read_table(b.operator, "fine", rows=(5000, 5100), int96_unit=unit)
            assert found["t"].cast(pa.int64()).to_pylist() == list(range(5000, 5100))


@pytest.mark.parametrize(
    ("micros", "is_held"),
    [(LEAST // 1000, False), (LEAST // 1000 + 1, True), (MOST // 1000, True), (MOST // 1000 + 1, False)],
)
async def test_the_ends_of_nanoseconds(micros: int, is_held: bool) -> None:
    async with bench() as b:
        put(b, end=int96(pa.table({"t": pa.array([micros], US)}), stored=True))
        if is_held:
            found = await ap.parquet.read_table(b.operator, "end")
            assert found["t"].cast(pa.int64()).to_pylist() == [micros * 1000]
        else:
            with pytest.raises(Unsupported, match='int96_unit="us"'):
                await ap.parquet.read_table(b.operator, "end")
        put(b, least=int96(pa.table({"t": pa.array([LEAST, MOST], NS)})))
        found = await ap.parquet.read_table(b.operator, "least", int96_unit="ns")
        assert found["t"].cast(pa.int64()).to_pylist() == [LEAST, MOST]


async def test_a_schema_that_is_given() -> None:
    async with bench() as b:
        put(b, far=int96(FAR), fine=int96(FINE), stored=int96(FAR, stored=True))
        held: list[Any] = [("far", US, None), ("stored", US, "us"), ("fine", NS, "ns")]
        for path, kind, unit in held:
            schema = pa.schema([("t", kind)])
            found = await ap.parquet.read_table(b.operator, path, schema=schema, int96_unit=unit)
            assert found.equals((FINE if path == "fine" else FAR).select(["t"]))
        lost: list[Any] = [("far", NS, None), ("stored", US, None), ("fine", NS, None), ("fine", US, "us")]
        for path, kind, unit in lost:
            with pytest.raises(Unsupported, match="'t'"):
                await ap.parquet.read_table(b.operator, path, schema=pa.schema([("t", kind)]), int96_unit=unit)


def test_polars(tmp_path: Any) -> None:
    for name, data in {"far": int96(FAR), "fine": int96(FINE), "stored": int96(FAR, stored=True)}.items():
        (tmp_path / f"{name}.parquet").write_bytes(data)
    far = ap.polars.scan_parquet(tmp_path / "far.parquet").select("t")
    assert far.collect_schema() == {"t": pl.Datetime("us")}
    assert far.filter(pl.col("t") > dt.datetime(2500, 1, 1)).collect()["t"].to_list() == [TIMES[2], TIMES[4]]
    for name, unit in (("fine", "ns"), ("stored", "us")):
        with pytest.raises(Unsupported, match=f'int96_unit="{unit}"'):
            ap.polars.scan_parquet(tmp_path / f"{name}.parquet").select("t").collect()
        frame = ap.polars.scan_parquet(tmp_path / f"{name}.parquet", int96_unit=unit).select("t")  # type: ignore[arg-type]
        assert frame.collect().to_arrow()["t"].equals((FINE if name == "fine" else FAR)["t"])


async def test_files_of_spark_are_decoded_once() -> None:
    """Spark has no nanoseconds, so those of its files are not looked for: here, where there are some, they are lost."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, FINE.schema, use_deprecated_int96_timestamps=True, store_schema=False) as writer:
        writer.write_table(FINE)
        writer.add_key_value_metadata({"org.apache.spark.version": "4.0.0"})
    data = bytes(sink.getvalue())
    by_spark = with_footer(data, footer_of(data).replace(b"parquet-cpp-arrow", b"parquet-mr-fabled"))
    async with bench() as b:
        put(b, spark=by_spark, arrow=data)
        found = await ap.parquet.read_table(b.operator, "spark")
        assert found["t"].cast(pa.int64()).to_pylist() == [0, 10**15, -1, None]
        with pytest.raises(Unsupported, match='int96_unit="ns"'):
            await ap.parquet.read_table(b.operator, "arrow")


@pytest.mark.parametrize("unit", ["ms", 1, ""])
async def test_units_that_there_are_not(unit: Any) -> None:
    async with bench() as b:
        with pytest.raises(InvalidArgument, match='int96_unit must be "us", "ns" or None, not'):
            ap.parquet.scan(b.operator, "k", int96_unit=unit)
