"""Parquet and CSV through a file by its URL: pandas, pyarrow, DuckDB and dask fetch what they read, and little else.

None of these libraries knows how far away the file is. They ask for one chunk of a column after the other, and the
reader has learnt from the footer where the next ones are.
"""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from dask.delayed import delayed

import aioprefetch as ap
from aioprefetch.ranges import intersected, total_length
from aioprefetch.sync import SyncFile
from aioprefetch.testing import Fault, Rule
from tests.files.column_file import COLUMNS, EXPECTED, GROUPS, METADATA, NAMES, OTHERS, PARQUET, ROWS, WANTED
from tests.libraries.conftest import Store
from tests.profile import chosen
from tests.stores.computed_store import KIB, MIB, repeated
from tests.unit.parquet.parquet_files import with_footer

TAIL_BYTES = MIB
FAR_AWAY = Fault(delay_head_seconds=0.02)  # Long enough for a footer to be understood while a few reads wait.


EMPTY = EXPECTED.schema.empty_table().to_pandas()
from_map: Any = dd.from_map  # It has no types.


def from_fragment(file: SyncFile) -> ds.Dataset:
    """A dataset of one file; each scan of it reads the columns that its query names."""
    parquet = ds.ParquetFileFormat()
    fragment = parquet.make_fragment(file)
    return ds.FileSystemDataset([fragment], fragment.physical_schema, parquet)


def with_duckdb_over_dataset(file: SyncFile) -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("dataset", from_fragment(file))
        found = connection.sql("select c1, c5, c9 from dataset").arrow()
        return found.read_all() if isinstance(found, pa.RecordBatchReader) else found


def with_duckdb_over_batches(file: SyncFile) -> pa.Table:
    parquet = pq.ParquetFile(file)
    schema = pa.schema([parquet.schema_arrow.field(name) for name in NAMES])
    with duckdb.connect() as connection:
        connection.register("batches", pa.RecordBatchReader.from_batches(schema, parquet.iter_batches(columns=NAMES)))
        found = connection.sql("select * from batches").arrow()
        return found.read_all() if isinstance(found, pa.RecordBatchReader) else found


READS: dict[str, Callable[[SyncFile], pa.Table]] = {
    "pyarrow": lambda file: pq.read_table(file, columns=NAMES),
    "pyarrow without its own read-ahead": lambda file: pq.read_table(file, columns=NAMES, pre_buffer=False),
    "pyarrow by row groups": lambda file: pa.concat_tables(
        pq.ParquetFile(file).read_row_group(group, columns=NAMES) for group in range(GROUPS)
    ),
    "pandas": lambda file: pa.Table.from_pandas(pd.read_parquet(file, columns=NAMES)),
    "dataset": lambda file: from_fragment(file).to_table(columns=NAMES),
    "DuckDB over a dataset": with_duckdb_over_dataset,
    "DuckDB over batches": with_duckdb_over_batches,
}


EACH_WAY = [(way, policy) for policy in ("adaptive", "parquet") for way in READS]
EACH_WAY_AND_EACH_POLICY = [(way, ("adaptive", "parquet")[number % 2]) for number, way in enumerate(READS)]


@pytest.mark.parametrize(("way", "policy"), chosen(quick=EACH_WAY_AND_EACH_POLICY, full=EACH_WAY))
def test_three_of_twelve_columns(store: Store, way: str, policy: str) -> None:
    stored = store(PARQUET)
    stored.server.add(Rule(fault=FAR_AWAY, times=None))
    with stored.open(policy=policy) as file:
        found = READS[way](file)
        statistics = file.statistics
    assert found.sort_by("c1").cast(EXPECTED.schema).equals(EXPECTED.sort_by("c1"))
    tail, *requests = stored.ranges
    assert tail == (len(PARQUET) - TAIL_BYTES, len(PARQUET))
    assert intersected(sorted(requests), OTHERS) == []
    assert repeated(stored.ranges) == []
    # A chunk is one request, except where a boundary between blocks or the tail cuts it, or where two go together.
    assert len(requests) <= len(WANTED) + 2
    assert stored.bytes_sent <= 1.1 * total_length(WANTED)
    # Few of the reads found nothing on its way: those before the layout was known, and the first ones of each column.
    assert statistics["stream_read_prefetch_operations"] >= len(WANTED) // 3
    assert statistics["prefetch_bytes_wasted"] == 0


@pytest.mark.parametrize("policy", ["adaptive", "parquet"])
def test_a_filter_in_duckdb_reads_the_row_groups_that_may_match(store: Store, policy: str) -> None:
    """The statistics of the footer say which: one row group of twelve, of which two columns are read."""
    stored = store(PARQUET)
    first = 3 * ROWS + 10
    with stored.open(policy=policy) as file, duckdb.connect() as connection:
        connection.register("dataset", from_fragment(file))
        ((found,),) = connection.sql(
            f"select sum(c1) from dataset where row between {first} and {first + 9}"
        ).fetchall()
    assert found == pytest.approx(EXPECTED["c1"][first : first + 10].to_numpy().sum())
    assert len(stored.ranges) <= 3
    assert stored.bytes_sent <= TAIL_BYTES + 2 * 8 * ROWS + 128 * KIB


def test_duckdbs_own_parquet_reader_takes_the_whole_file_once(store: Store) -> None:
    """It copies a file object into memory before it looks at it."""
    stored = store(PARQUET)
    with stored.open() as file, duckdb.connect() as connection:
        ((rows, sum_of_c1),) = connection.read_parquet(file).aggregate("count(*), sum(c1)").fetchall()
    assert rows == GROUPS * ROWS
    assert sum_of_c1 == pytest.approx(EXPECTED["c1"].to_numpy().sum())
    assert repeated(stored.ranges) == []
    assert stored.bytes_sent == len(PARQUET)


# --- dask -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_threads() -> Iterator[None]:
    """Dask computes on two threads that end with the test."""
    with ThreadPoolExecutor(2) as pool, dask.config.set(scheduler="threads", pool=pool):
        yield


SUMS = {name: pytest.approx(EXPECTED[name].to_numpy().sum()) for name in NAMES}


def load_groups(groups: list[int], *, url: str, store: dict[str, Any]) -> pd.DataFrame:
    first, last = METADATA.row_group(groups[0]), METADATA.row_group(groups[-1])
    end = last.column(COLUMNS - 1)
    split = (first.column(0).data_page_offset, end.data_page_offset + end.total_compressed_size)
    with ap.sync.open(url, policy="parquet", split=split, **store) as file:
        return pq.ParquetFile(file).read_row_groups(groups, columns=NAMES).to_pandas()


@pytest.mark.usefixtures("on_threads")
def test_dask_reads_partitions_by_url_over_shared_connections(store: Store) -> None:
    """A task opens the file by its URL and reads three row groups; `split` keeps its look-ahead off those of others."""
    stored = store(PARQUET)
    parts = [list(range(start, start + 3)) for start in range(0, GROUPS, 3)]
    frame = from_map(load_groups, parts, url=stored.url, store=stored.store, meta=EMPTY)
    assert dict(frame.sum().compute()) == SUMS
    tail = (len(PARQUET) - TAIL_BYTES, len(PARQUET))
    requests = [one for one in stored.ranges if one != tail]
    assert 1 <= len(stored.ranges) - len(requests) <= len(parts)  # Files that open together share it.
    assert intersected(sorted(requests), OTHERS) == []
    assert repeated(requests) == []
    assert total_length(requests) <= 1.1 * total_length(WANTED)
    # The tasks share a pool: there are no more connections than two tasks have requests in flight.
    assert stored.server.connections <= 2 * len(NAMES) * 3


@pytest.mark.usefixtures("on_threads")
def test_dask_reads_one_open_file_in_many_tasks(store: Store) -> None:
    """Delayed reads of one file object, from the threads of the scheduler."""
    stored = store(PARQUET)
    with stored.open(policy="parquet") as file:
        parquet = pq.ParquetFile(file)
        parts = [
            delayed(lambda group: parquet.read_row_group(group, columns=NAMES).to_pandas())(group)
            for group in range(GROUPS)
        ]
        assert dict(dd.from_delayed(parts, meta=EMPTY, verify_meta=False).sum().compute()) == SUMS
    assert intersected(sorted(stored.ranges[1:]), OTHERS) == []
    assert repeated(stored.ranges) == []
    assert stored.bytes_sent <= 1.1 * total_length(WANTED)


# --- CSV --------------------------------------------------------------------------------------------------------------


def csv_file() -> bytes:
    """1.2 MB of lines."""
    rows = np.arange(60_000)
    text: str = pd.DataFrame({"number": rows, "half": rows / 2, "name": "n"}).to_csv(index=False)
    return text.encode()


CSV = csv_file()
CSV_BLOCK = 256 * KIB


def with_duckdb(file: Any) -> pd.DataFrame:
    with duckdb.connect() as connection:
        return connection.read_csv(file).df()


CSV_READS: dict[str, Callable[[Any], pd.DataFrame]] = {
    "pandas": pd.read_csv,
    "pandas in parts": lambda file: pd.concat(pd.read_csv(file, chunksize=10_000)),
    "pandas by pyarrow": lambda file: pd.read_csv(file, engine="pyarrow"),
    "DuckDB": lambda file: with_duckdb(file),
}


@pytest.mark.parametrize("way", CSV_READS)
def test_csv_is_read_once_in_order(store: Store, way: str) -> None:
    stored = store(CSV)
    with stored.open(block_bytes=CSV_BLOCK) as file:
        found = CSV_READS[way](file)
    pd.testing.assert_frame_equal(found, pd.read_csv(io.BytesIO(CSV)), check_dtype=False)
    assert repeated(stored.ranges) == []
    assert stored.bytes_sent == len(CSV)
    assert len(stored.ranges) <= len(CSV) // CSV_BLOCK + 2  # One for the size, where a library asks for that first.


def test_the_first_rows_of_a_csv_file_are_one_block(store: Store) -> None:
    stored = store(CSV)
    with stored.open() as file:
        assert len(pd.read_csv(file, nrows=10)) == 10
        assert stored.ranges == [(0, len(CSV))]


# --- footers that are no use ------------------------------------------------------------------------------------------

USELESS = {
    "encrypted": PARQUET[:-4] + b"PARE",
    "garbage": with_footer(PARQUET, b"\xff" * 2000),
    "truncated": PARQUET[: len(PARQUET) // 2],
    "100 MB of footer claimed": PARQUET[:-8] + (100_000_000).to_bytes(4, "little") + b"PAR1",
    "no footer": PARQUET[:-8] + bytes(4) + b"PAR1",
}


@pytest.mark.parametrize("policy", chosen(quick=["parquet"], full=["adaptive", "parquet"]))
@pytest.mark.parametrize("name", USELESS)
def test_a_wrong_footer_is_the_librarys_to_report(store: Store, name: str, policy: str) -> None:
    """The error is the one of a local file, and every byte of the file can still be read."""
    data = USELESS[name]
    with pytest.raises(Exception, match=r".") as local:
        pq.read_table(io.BytesIO(data), columns=NAMES)
    stored = store(data)
    with stored.open(policy=policy) as file:
        with pytest.raises(type(local.value)) as remote:
            pq.read_table(file, columns=NAMES)
        assert str(remote.value) == str(local.value)
        assert stored.bytes_sent <= 2 * TAIL_BYTES
        assert file.read_at(0, len(data)) == data
