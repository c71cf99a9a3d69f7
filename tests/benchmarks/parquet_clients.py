"""How each library gives pyarrow a file, or reads Parquet by itself. Imports are inside: one library a process.

A client is a context: when it is entered, credentials, connection and imports are warm; what it gives opens the object.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import (
    ACCESS_KEY_ID,
    REGION,
    SECRET_ACCESS_KEY,
    aioprefetch_blocking,
    boto3_client,
    obstore_options,
    opendal_options,
    pyarrow_filesystem,
    s3fs_filesystem,
)
from tests.benchmarks.job import WARM_OBJECT, Contestant, Sample, Target
from tests.benchmarks.process_usage import Meter

if TYPE_CHECKING:
    import pyarrow as pa

# Reads the columns (None: all) and gives a table. The clock runs meanwhile.
Reading = Callable[[list[str] | None], "pa.Table"]
Client = Callable[[Target], AbstractContextManager[Reading]]
# What pyarrow does with a file: the default way, or the demo's.
ReadFile = Callable[[Any, list[str] | None], "pa.Table"]
Check = Callable[["pa.Table", Target], None]


def timed_table(client: Client, check: Check, columns: list[str] | None = None) -> Contestant:
    """Read the table once, measured from the opening to the last value, then compare it."""

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        with client(target) as read:
            meter = Meter()
            table = read(columns)
            usage = meter.stop()
            check(table, target)
        return dict(usage)

    return run


def warm_pyarrow() -> None:
    """Load what pyarrow loads when it first reads a table, and start its threads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"column": [1.0]}), sink)
    pq.read_table(pa.BufferReader(sink.getvalue()))


def whole_table(file: Any, columns: list[str] | None) -> pa.Table:
    """``pyarrow.parquet.read_table``, which plans the ranges of column chunks itself, and merges them."""
    import pyarrow.parquet as pq

    with file:
        return pq.read_table(file, columns=columns)


def row_groups(file: Any, columns: list[str] | None) -> pa.Table:
    """The demo's way: row group after row group, column chunk after column chunk, nothing planned."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with file:
        parquet = pq.ParquetFile(file, pre_buffer=False)
        return pa.concat_tables(parquet.read_row_group(index, columns) for index in range(parquet.num_row_groups))


def aioprefetch_file(read_file: ReadFile = whole_table, **options: Any) -> Client:
    """``ap.sync``; ``options`` are those of a reader, such as its policy."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        with aioprefetch_blocking(target) as operator:
            operator.read(WARM_OBJECT)
            yield lambda columns: read_file(operator.open(target.key, **options), columns)

    return client


def pyarrow_file(read_file: ReadFile = whole_table) -> Client:
    """Arrow's own file system."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        filesystem = pyarrow_filesystem(target)
        with filesystem.open_input_file(f"{target.bucket}/{WARM_OBJECT}") as file:
            file.read()
        yield lambda columns: read_file(filesystem.open_input_file(f"{target.bucket}/{target.key}"), columns)

    return client


@contextlib.contextmanager
def pyarrow_table(target: Target) -> Iterator[Reading]:
    """``read_table`` with Arrow's own file system and a path: Arrow does everything."""
    import pyarrow.parquet as pq

    filesystem = pyarrow_filesystem(target)
    with filesystem.open_input_file(f"{target.bucket}/{WARM_OBJECT}") as file:
        file.read()
    yield lambda columns: pq.read_table(f"{target.bucket}/{target.key}", filesystem=filesystem, columns=columns)


def s3fs_file(cache_type: str, read_file: ReadFile = whole_table) -> Client:
    """s3fs with one of fsspec's caches, otherwise by its defaults."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        filesystem = s3fs_filesystem(target)
        filesystem.cat_file(f"{target.bucket}/{WARM_OBJECT}")
        path = f"{target.bucket}/{target.key}"
        yield lambda columns: read_file(filesystem.open(path, "rb", cache_type=cache_type), columns)

    return client


@contextlib.contextmanager
def fsspec_parquet(target: Target) -> Iterator[Reading]:
    """``fsspec.parquet``: it reads the footer, plans the ranges and fetches them at once, over s3fs."""
    import pyarrow.parquet as pq
    from fsspec.parquet import open_parquet_file

    filesystem = s3fs_filesystem(target)
    filesystem.cat_file(f"{target.bucket}/{WARM_OBJECT}")
    path = f"{target.bucket}/{target.key}"

    def read(columns: list[str] | None) -> pa.Table:
        with open_parquet_file(path, fs=filesystem, columns=columns, engine="pyarrow") as file:
            return pq.read_table(file, columns=columns)

    yield read


def smart_open_file(read_file: ReadFile = whole_table) -> Client:
    """``smart_open.open``."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        import smart_open

        parameters = {"client": boto3_client(target)}
        with smart_open.open(f"s3://{target.bucket}/{WARM_OBJECT}", "rb", transport_params=parameters) as file:
            file.read()
        url = f"s3://{target.bucket}/{target.key}"
        yield lambda columns: read_file(smart_open.open(url, "rb", transport_params=parameters), columns)

    return client


def opendal_file(read_file: ReadFile = whole_table) -> Client:
    """OpenDAL's blocking file; its reads are short, which pyarrow does not expect, so a buffer makes them full."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        import opendal

        operator = opendal.Operator("s3", **opendal_options(target))
        operator.read(WARM_OBJECT)
        yield lambda columns: read_file(io.BufferedReader(operator.open(target.key, "rb")), columns)

    return client


def obstore_file(read_file: ReadFile = whole_table) -> Client:
    """obstore's file of its fsspec adapter: pyarrow does not take what ``open_reader`` gives."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        from obstore.fsspec import FsspecStore

        filesystem: Any = FsspecStore("s3", **obstore_options(target))
        filesystem.cat_file(f"{target.bucket}/{WARM_OBJECT}")
        yield lambda columns: read_file(filesystem.open(f"{target.bucket}/{target.key}", "rb"), columns)

    return client


def polars_options(target: Target) -> dict[str, str]:
    """The options of polars' store."""
    return {
        "aws_endpoint_url": target.endpoint_url,
        "aws_region": REGION,
        "aws_access_key_id": ACCESS_KEY_ID,
        "aws_secret_access_key": SECRET_ACCESS_KEY,
        "aws_allow_http": "true",
    }


def polars_table(*, lazy: bool) -> Client:
    """Polars' own reader: ``scan_parquet`` or ``read_parquet``."""

    @contextlib.contextmanager
    def client(target: Target) -> Iterator[Reading]:
        import polars as pl

        options = polars_options(target)
        url = f"s3://{target.bucket}/{target.key}"

        def read(columns: list[str] | None) -> pa.Table:
            if not lazy:
                return pl.read_parquet(url, columns=columns, storage_options=options).to_arrow()
            frame = pl.scan_parquet(url, storage_options=options)
            return (frame if columns is None else frame.select(columns)).collect().to_arrow()

        # Polars reads nothing but tables from a store: what is no Parquet opens the connection and is then refused.
        with contextlib.suppress(pl.exceptions.ComputeError):
            pl.read_parquet(f"s3://{target.bucket}/{WARM_OBJECT}", storage_options=options)
        yield read

    return client
