"""Arrow's readers and writers, pandas, dask, DuckDB and polars over our file system of Arrow: results and requests."""

import gc
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from operator import methodcaller
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pyarrow.ipc as ipc
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.ranges import intersected, total_length
from aioprefetch.sync import SyncFile
from aioprefetch.testing import CountingS3Server, FaultLayer, Injection
from aioprefetch.values import ReadReply, ReadRequest, WriteRequest
from tests.files.column_file import EXPECTED, GROUPS, NAMES, OTHERS, PARQUET, WANTED
from tests.libraries.conftest import Store
from tests.probes.programs import completed, run_program
from tests.profile import chosen
from tests.stores.arrow_stores import STORES, filesystem_over
from tests.stores.computed_store import KIB, MIB, repeated
from tests.stores.s3_options import options_of
from tests.stores.stored_object import StoredObject
from tests.stores.verb_layer import VerbLayer

TABLE = pa.table(
    {
        "id": range(1000),
        "value": [number / 7 for number in range(1000)],
        "word": [f"w{number % 13}" for number in range(1000)],
        "part": ["even" if number % 2 == 0 else "odd" for number in range(1000)],
    }
)


@pytest.fixture(params=STORES)
def fs(request: pytest.FixtureRequest, tmp_path: Path, s3_server: CountingS3Server) -> Iterator[Any]:
    with filesystem_over(request.param, tmp_path, s3_server) as filesystem:
        yield filesystem


def in_order(table: pa.Table) -> pa.Table:
    return table.select(TABLE.column_names).sort_by("id").cast(TABLE.schema)


@contextmanager
def environment_of(server: CountingS3Server) -> Iterator[partial[ap.Operator]]:
    """Operators whose keys are references to the environment, which processes inherit."""
    options = options_of(server)
    with pytest.MonkeyPatch.context() as patch:
        for option in ("access_key_id", "secret_access_key"):
            patch.setenv(f"ARROW_TEST_{option}", options[option])
            options[option] = f"env:ARROW_TEST_{option}"
        yield partial(ap.Operator.from_uri, **options)


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_dataset_with_hive_partitions_and_filters(fs: Any) -> None:
    partitioning = ds.partitioning(pa.schema([("part", pa.string())]), flavor="hive")
    ds.write_dataset(TABLE, "t", filesystem=fs, format="parquet", partitioning=partitioning)
    assert fs.get_file_info(["t/part=even/part-0.parquet", "t/part=odd/part-0.parquet"])[1].is_file
    dataset = ds.dataset("t", filesystem=fs, partitioning="hive")
    assert dataset.count_rows() == 1000
    assert in_order(dataset.to_table()).equals(TABLE)
    odd = dataset.to_table(columns=["id"], filter=(ds.field("part") == "odd") & (ds.field("id") < 100))
    assert sorted(odd["id"].to_pylist()) == list(range(1, 100, 2))
    assert len(list(dataset.get_fragments(filter=ds.field("part") == "odd"))) == 1
    assert sum(len(batch) for batch in dataset.to_batches(batch_size=100)) == 1000
    assert dataset.head(5).num_rows == 5


@pytest.mark.parametrize("pre_buffer", [True, False])
def test_parquet_by_path_by_file_and_by_row_group(fs: Any, pre_buffer: bool) -> None:
    pq.write_table(TABLE, "dir/t.parquet", filesystem=fs, row_group_size=100)
    read = partial(pq.read_table, filesystem=fs, pre_buffer=pre_buffer)
    assert read("dir/t.parquet").equals(TABLE)
    assert read("dir").equals(TABLE)
    assert read("dir/t.parquet", columns=["word"], filters=[("id", "<", 10)]).num_rows == 10
    with pq.ParquetFile(fs.open_input_file("dir/t.parquet"), pre_buffer=pre_buffer) as file:
        assert file.num_row_groups == 10
        assert file.read_row_group(3)["id"].to_pylist() == list(range(300, 400))
        assert pa.Table.from_batches(file.iter_batches(batch_size=64)).equals(TABLE)
    assert pq.read_schema("dir/t.parquet", filesystem=fs).names == TABLE.column_names
    assert pq.read_metadata("dir/t.parquet", filesystem=fs).num_rows == 1000
    pq.write_to_dataset(TABLE, "parts", partition_cols=["part"], filesystem=fs)
    assert in_order(pq.ParquetDataset("parts", filesystem=fs).read()).equals(TABLE)


@pytest.mark.parametrize("kind", ["csv", "feather", "ipc", "json", "csv.gz"])
def test_other_formats(fs: Any, kind: str) -> None:
    if kind == "json":
        with fs.open_output_stream("t.json") as out:
            out.write(TABLE.to_pandas().to_json(orient="records", lines=True).encode())
        assert pajson.read_json(fs.open_input_stream("t.json"))["id"].equals(TABLE["id"])
    elif kind.startswith("csv"):
        with fs.open_output_stream(f"t.{kind}") as out:
            pacsv.write_csv(TABLE, out)
        assert pacsv.read_csv(fs.open_input_stream(f"t.{kind}")).equals(TABLE)
    elif kind == "feather":
        with fs.open_output_stream("t.feather") as out:
            feather.write_feather(TABLE, out)
        assert feather.read_table(fs.open_input_file("t.feather"), columns=["id"]).equals(TABLE.select(["id"]))
    else:
        with fs.open_output_stream("t.ipc") as out, ipc.new_file(out, TABLE.schema) as writer:
            writer.write_table(TABLE, max_chunksize=100)
        assert ipc.open_file(fs.open_input_file("t.ipc")).get_batch(4)["id"].to_pylist() == list(range(400, 500))
    if kind in ("csv", "feather", "ipc"):
        found = ds.dataset(f"t.{kind}", filesystem=fs, format="csv" if kind == "csv" else "ipc").to_table()
        assert found.equals(TABLE)


def test_pandas_duckdb_and_polars(fs: Any) -> None:
    frame = TABLE.to_pandas()
    frame.to_parquet("pandas/t.parquet", filesystem=fs)
    pd.testing.assert_frame_equal(pd.read_parquet("pandas/t.parquet", filesystem=fs), frame)
    dataset = ds.dataset("pandas", filesystem=fs)
    with duckdb.connect() as connection:
        connection.register("t", dataset)
        assert connection.sql("select count(*), sum(id) from t where part = 'odd'").fetchall() == [(500, 250_000)]
    lazy = pl.scan_pyarrow_dataset(dataset).filter(pl.col("id") > 989).select("id", "word")
    assert lazy.collect().shape == (10, 2)


def test_dask_in_processes(s3_server: CountingS3Server, tmp_path: Path) -> None:
    """Tasks get the file system and fragments of a dataset by pickle. In a program of its own: dask keeps threads."""
    s3_server.create_bucket("arrow-dask")
    program = tmp_path / "program.py"
    program.write_text("""
import json, sys
import dask.dataframe as dd, pyarrow as pa, pyarrow.parquet as pq
import aioprefetch as ap

if __name__ == "__main__":
    fs = ap.arrow.filesystem(ap.Operator.from_uri("s3://arrow-dask", **json.loads(sys.argv[1])))
    for part in (1, 2):
        table = pa.table({"id": range(500 * part), "other": [0.5] * 500 * part})
        pq.write_table(table, f"t/{part}.parquet", filesystem=fs)
    frame = dd.read_parquet("t", filesystem=fs, columns=["id"])
    print(frame["id"].sum().compute(scheduler="processes", num_workers=1))
""")
    with environment_of(s3_server) as operator:
        arguments = [sys.executable, str(program), json.dumps(operator.keywords)]
        run = completed(arguments, timeout_seconds=120)
    assert (run.returncode, run.stdout) == (0, f"{sum(range(500)) + sum(range(1000))}\n"), run.stderr


def test_many_datasets_at_once_on_many_threads(fs: Any) -> None:
    """64 threads, each with a dataset of its own, while Arrow scans on threads of its own: nothing waits for ever."""
    for number in range(16):
        pq.write_table(TABLE, f"many/{number}/t.parquet", filesystem=fs, row_group_size=50)

    def work(number: int) -> bool:
        dataset = ds.dataset(f"many/{number % 16}", filesystem=fs)
        return bool(dataset.to_table(columns=["id", "part"]).equals(TABLE.select(["id", "part"])))

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(work, range(chosen(quick=64, full=256)), timeout=120))


# --- writing ----------------------------------------------------------------------------------------------------------


def names(fs: Any, base: str) -> list[str]:
    infos = fs.get_file_info(pafs.FileSelector(base, recursive=True, allow_not_found=True))
    return sorted(info.path for info in infos if info.is_file)


def test_what_happens_to_existing_data(fs: Any) -> None:
    write = partial(ds.write_dataset, base_dir="t", filesystem=fs, format="parquet", partitioning=["part"])
    write(TABLE)
    with pytest.raises(pa.ArrowInvalid, match="not empty"):
        write(TABLE)
    write(TABLE.slice(0, 10), basename_template="more-{i}.parquet", existing_data_behavior="overwrite_or_ignore")
    assert len(names(fs, "t")) == 4
    write(TABLE.filter(pc.equal(TABLE["part"], "odd")), existing_data_behavior="delete_matching")
    assert names(fs, "t") == ["t/even/more-0.parquet", "t/even/part-0.parquet", "t/odd/part-0.parquet"]


def failing_batches() -> Iterator[pa.RecordBatch]:
    yield from TABLE.to_batches(max_chunksize=100)
    raise RuntimeError("the source fails")


def test_a_dataset_whose_source_fails_is_not_written(fs: Any) -> None:
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, failing_batches())
    with pytest.raises(RuntimeError, match="the source fails"):
        ds.write_dataset(reader, "t", filesystem=fs, format="parquet", partitioning=["part"])
    assert names(fs, "t") == []


def test_many_open_streams_share_a_small_budget(s3_server: CountingS3Server) -> None:
    """A hundred partitions are open at once, each with part of an upload: no stream waits for another."""
    s3_server.create_bucket("arrow-partitions")
    op = ap.Operator.from_uri(
        "s3://arrow-partitions",
        memory_bytes=16 * MIB,
        block_bytes=MIB,
        part_bytes=5 * MIB,
        **options_of(s3_server),
    )
    fs = ap.arrow.filesystem(op)
    table = pa.table({"part": [number % 100 for number in range(10_000)], "data": [bytes(8 * KIB)] * 10_000})
    ds.write_dataset(table, "t", filesystem=fs, format="feather", partitioning=["part"], create_dir=False)
    found = ds.dataset("t", filesystem=fs, format="feather", partitioning=["part"])
    assert found.count_rows() == 10_000
    assert len(found.files) == 100
    fs.handler.close()


@pytest.mark.parametrize("pieces", [1, 8])
def test_each_failing_write_of_a_dataset_leaves_no_partial_object(s3_server: CountingS3Server, pieces: int) -> None:
    """The first request of the writes fails, then the second, and so on, until none is left to fail."""
    s3_server.create_bucket(bucket := f"arrow-dataset-{pieces}")
    table = pa.concat_tables([pa.table({"part": ["a", "b"], "data": [bytes(MIB), bytes(MIB)]})] * pieces)
    for number in range(40):
        plan = tuple(
            Injection(operation=operation, occurrence=number, error=ap.PermissionDenied)
            for operation in ("write", "begin_upload", "complete_upload")
        )
        op = ap.Operator.from_uri(f"s3://{bucket}", attempts_max=1, part_bytes=5 * MIB, **options_of(s3_server))
        fs = ap.arrow.filesystem(op.layer(FaultLayer(plan)))
        write = partial(
            ds.write_dataset,
            base_dir="t",
            filesystem=fs,
            format=ds.ParquetFileFormat(),
            partitioning=["part"],
            file_options=ds.ParquetFileFormat().make_write_options(compression="none", use_dictionary=False),
            existing_data_behavior="delete_matching",
            max_rows_per_group=1,
            min_rows_per_group=1,
            create_dir=False,
        )
        error = None
        try:
            write(table)
        except PermissionError as raised:
            error = raised
        whole = [len(pq.read_table(name, filesystem=ap.arrow.filesystem(op))) for name in names(fs, "t")]
        left = ap.sync.run(op.abort_uploads())
        ap.sync.run(op.delete_all("t/"))
        fs.handler.close()
        assert set(whole) <= {pieces}  # One of the two objects may be there, and then all of it.
        assert left == 0
        if error is None:
            break
    assert whole == [pieces, pieces]
    assert number >= 2


# --- requests ---------------------------------------------------------------------------------------------------------


def over(stored: StoredObject, **options: Any) -> tuple[Any, str]:
    """Our file system over the bucket of an object, and its path."""
    bucket, key = stored.url.removeprefix("s3://").split("/")
    return ap.arrow.filesystem(ap.Operator.from_uri(f"s3://{bucket}", **stored.store, **options)), key


READS: dict[str, Callable[[Any, str], pa.Table]] = {
    "read_table": lambda fs, key: pq.read_table(fs.open_input_file(key), columns=NAMES),
    "read_table without pre_buffer": lambda fs, key: pq.read_table(
        fs.open_input_file(key), columns=NAMES, pre_buffer=False
    ),
    "ParquetFile": lambda fs, key: pq.ParquetFile(fs.open_input_file(key)).read(columns=NAMES),
    "row groups": lambda fs, key: pa.concat_tables(
        pq.ParquetFile(fs.open_input_file(key)).read_row_group(group, columns=NAMES) for group in range(GROUPS)
    ),
}


@pytest.mark.parametrize("way", READS)
def test_three_of_twelve_columns_and_nothing_else(store: Store, way: str) -> None:
    stored = store(PARQUET)
    fs, key = over(stored)
    found = READS[way](fs, key)
    fs.handler.close()
    assert found.cast(EXPECTED.schema).equals(EXPECTED)
    requests = [one for one in stored.ranges if one != (len(PARQUET) - MIB, len(PARQUET))]
    assert intersected(sorted(requests), OTHERS) == []
    assert repeated(requests) == []
    if way != "row groups":
        assert len(requests) <= len(WANTED) + 2
        assert stored.bytes_sent <= 1.1 * total_length(WANTED)


def count_before_cuts(server: CountingS3Server) -> int:
    """The requests, where adjacent ones above a block in all count once."""
    spans = sorted(
        (int(found[1]), one.body_bytes)
        for one in server.requests
        if (found := re.fullmatch(r"bytes=(\d+)-\d*", one.range or ""))
    )
    count, position, run_bytes, run_requests = server.count() - len(spans), 0, 0, 0
    for start, length in [*spans, (-1, 0)]:
        if start != position:
            count += 1 if run_bytes > 8 * MIB else run_requests
            run_bytes = run_requests = 0
        position, run_bytes, run_requests = start + length, run_bytes + length, run_requests + 1
    return count


@pytest.mark.parametrize("columns", [NAMES, None])
def test_no_more_requests_than_arrows_own_file_system(s3_server: CountingS3Server, columns: list[str] | None) -> None:
    """By path, HEADs and all. Adjacent requests above a block in all are one that was cut to be read side by side."""
    s3_server.create_bucket("arrow-counted")
    options = options_of(s3_server)
    ours = ap.arrow.filesystem(ap.Operator.from_uri("s3://arrow-counted", **options))
    theirs = pafs.S3FileSystem(
        access_key=options["access_key_id"],
        secret_key=options["secret_access_key"],
        region=options["region"],
        endpoint_override=options["endpoint_url"].removeprefix("http://"),
        scheme="http",
    )
    with ours.open_output_stream("t.parquet") as out:
        out.write(PARQUET)
    counts = []
    for fs, path in ((theirs, "arrow-counted/t.parquet"), (ours, "t.parquet")):
        for way in ("read_table", "dataset"):
            s3_server.reset()
            if way == "read_table":
                found = pq.read_table(path, filesystem=fs, columns=columns)
            else:
                found = ds.dataset(path, filesystem=fs).to_table(columns=columns)
            assert found.num_columns == (3 if columns else 12)
            counts.append(count_before_cuts(s3_server))
    ours.handler.close()
    their_table, their_dataset, our_table, our_dataset = counts
    assert our_table <= their_table
    assert our_dataset <= their_dataset


def test_a_small_file_is_one_get_and_a_question(store: Store) -> None:
    """The table's schema and its rows are read by two opens: the second one asks whether the object has changed."""
    small = io.BytesIO()
    pq.write_table(TABLE, small)
    stored = store(small.getvalue())
    fs, key = over(stored)
    dataset = ds.FileSystemDataset.from_paths  # A dataset without a listing, which is no request for a range.
    found = dataset([key], schema=TABLE.schema, format=ds.ParquetFileFormat(), filesystem=fs).to_table()
    again = dataset([key], schema=TABLE.schema, format=ds.ParquetFileFormat(), filesystem=fs).to_table()
    fs.handler.close()
    assert found.equals(TABLE)
    assert again.equals(TABLE)
    assert stored.ranges == [(0, len(small.getvalue()))] * 2
    assert stored.bytes_sent == len(small.getvalue())


def test_csv_is_read_once_in_order(store: Store) -> None:
    text = io.BytesIO()
    pacsv.write_csv(pa.concat_tables([TABLE] * 40), text)
    stored = store(text.getvalue())
    fs, key = over(stored, block_bytes=256 * KIB)
    assert pacsv.read_csv(fs.open_input_stream(key)).num_rows == 40_000
    fs.handler.close()
    assert repeated(stored.ranges) == []
    assert stored.bytes_sent == len(text.getvalue())


# --- failures ---------------------------------------------------------------------------------------------------------


def parquet_over(plan: tuple[Injection, ...] = (), **options: Any) -> Any:
    """A file system over the file of twelve columns in memory, behind a layer that fails by a plan."""
    op = ap.Operator(ap.services.Memory(), attempts_max=1, **options)
    ap.sync.run(op.write("t.parquet", PARQUET))
    return ap.arrow.filesystem(op.layer(FaultLayer(plan)))


@pytest.mark.parametrize("pre_buffer", [True, False])
def test_each_failing_request_of_a_read(pre_buffer: bool) -> None:
    """The error of the store comes out of Arrow as it is, or the read succeeds by asking again; it never hangs."""
    failures = 0
    for number in range(chosen(quick=12, full=45)):
        plan = (Injection(operation="read", occurrence=number, times=None, error=ap.PermissionDenied),)
        fs = parquet_over(plan)
        try:
            found = pq.read_table("t.parquet", filesystem=fs, columns=NAMES, pre_buffer=pre_buffer)
        except ap.PermissionDenied:
            failures += 1
        else:
            assert found.cast(EXPECTED.schema).equals(EXPECTED)
        fs.handler.close()
    assert failures >= 8


def parquet_of(table: pa.Table) -> bytes:
    """A file whose size does not depend on the values."""
    packed = io.BytesIO()
    rows = len(table) // GROUPS
    pq.write_table(table, packed, row_group_size=rows, compression="none", use_dictionary=False, write_statistics=False)
    return packed.getvalue()


class Overwriting(VerbLayer):
    """Before its read number ``number``, the object is overwritten by other bytes."""

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.reads = 0

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        self.reads += 1
        if self.reads == self.number:
            await inner.write(WriteRequest(path=request.path), self.data)
        return await inner.read(request, sink)


@pytest.mark.parametrize("pre_buffer", [True, False])
def test_each_moment_at_which_the_object_is_overwritten(pre_buffer: bool) -> None:
    """Before its n-th request, for every n: the values of one version, or a typed error; never a mixture."""
    versions = EXPECTED, EXPECTED.take(pa.array(range(len(EXPECTED))[::-1]))
    first, second = (parquet_of(one) for one in versions)
    assert len(first) == len(second)
    changed = 0
    for number in range(1, chosen(quick=12, full=45)):
        op = ap.Operator(ap.services.Memory())
        ap.sync.run(op.write("t.parquet", first))
        layer = Overwriting(number, second)
        fs = ap.arrow.filesystem(op.layer(layer))
        try:
            found = pq.read_table("t.parquet", filesystem=fs, pre_buffer=pre_buffer)
        except ap.ObjectChanged:
            changed += 1
        else:
            assert found.equals(versions[number == 1])
        if layer.reads >= number:
            assert pq.read_table("t.parquet", filesystem=fs).equals(versions[1])
        fs.handler.close()
    assert changed >= 2


# --- memory, processes, leaks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre_buffer", [True, False])
def test_views_that_arrow_holds_starve_no_read(pre_buffer: bool) -> None:
    """All of a file of 38 MB in a budget of 16 MiB, while Arrow keeps what it has read; many files at once."""
    fs = parquet_over(memory_bytes=16 * MIB, block_bytes=MIB, budget_wait_seconds=5)
    held = []
    file = fs.open_input_file("t.parquet")
    for start in range(0, len(PARQUET), MIB):
        file.seek(start)
        held.append(file.read_buffer(MIB))
    assert b"".join(memoryview(one) for one in held) == PARQUET
    with ThreadPoolExecutor(8) as pool:
        read = partial(pq.read_table, "t.parquet", filesystem=fs, pre_buffer=pre_buffer)
        for table in pool.map(lambda _: read(), range(8)):
            assert table.select(NAMES).cast(EXPECTED.schema).equals(EXPECTED)
    del held, file
    fs.handler.close()


def test_ten_thousand_opens_leave_nothing(tmp_path: Path, s3_server: CountingS3Server) -> None:
    """Neither files nor readers nor requests: those dropped without closing count too."""
    with filesystem_over("memory", tmp_path, s3_server) as fs:
        pq.write_table(TABLE, "t.parquet", filesystem=fs)
        rounds = chosen(quick=500, full=2_000, search=10_000)
        for number in range(rounds):
            file = fs.open_input_file("t.parquet") if number % 2 else fs.open_input_stream("t.parquet")
            file.read(10)
            if number % 3 == 0:
                file.close()
        del file
        ap.sync.run(_turn())
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, SyncFile) and not one.closed]
        assert left == []


def test_a_fork_goes_on() -> None:
    source = """
import os
import aioprefetch as ap, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq
fs = ap.arrow.filesystem(ap.Operator.from_uri("memory://forked"))
table = pa.table({"id": list(range(1000))})
pq.write_table(table, "t/1.parquet", filesystem=fs, row_group_size=100)
kept = fs.open_input_file("t/1.parquet")
assert pq.read_table("t", filesystem=fs).equals(table)
for _ in range(3):
    child = os.fork()
    if child == 0:
        try:
            assert pq.read_table("t", filesystem=fs, use_threads=False).equals(table)
            assert pq.ParquetFile(kept).read(use_threads=False).equals(table)
            pq.write_table(table, "t/2.parquet", filesystem=fs)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
print(ds.dataset("t", filesystem=fs).count_rows())
"""
    assert run_program(source) == "1000\n"


def test_a_spawned_process_reads_by_a_pickled_file_system_and_dataset(s3_server: CountingS3Server) -> None:
    s3_server.create_bucket("arrow-spawned")
    with environment_of(s3_server) as operator:
        fs = ap.arrow.filesystem(operator("s3://arrow-spawned"))
        pq.write_table(TABLE, "t/1.parquet", filesystem=fs)
        dataset = ds.dataset("t", filesystem=fs)
        with get_context("spawn").Pool(1) as pool:
            assert pool.apply(methodcaller("count_rows"), (dataset,)) == 1000
            assert pool.apply(partial(pq.read_table, "t/1.parquet", filesystem=fs)).equals(TABLE)
            pool.close()
            pool.join()
        fs.handler.close()


def test_a_process_ends_while_files_are_open() -> None:
    program = """
import aioprefetch as ap, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq
fs = ap.arrow.filesystem(ap.Operator.from_uri("memory://ends"))
pq.write_table(pa.table({"id": list(range(1000))}), "t/1.parquet", filesystem=fs)
file, stream = fs.open_input_file("t/1.parquet"), fs.open_output_stream("half")
stream.write(b"1")
scanner = ds.dataset("t", filesystem=fs).to_batches()
print(next(iter(scanner)).num_rows)
"""
    run = completed([sys.executable, "-c", program])
    assert (run.returncode, run.stdout) == (0, "1000\n"), run.stderr


async def _turn() -> None:
    """A turn of the loop, behind what was put to it before."""
