"""Libraries that open ``s3://`` by fsspec, with s3fs and with us in its place, over one counting S3."""

import copy
import io
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import duckdb
import fsspec
import fsspec.parquet
import numpy as np
import pandas as pd
import pyarrow.dataset
import s3fs
import xarray as xr
from fsspec.registry import register_implementation
from upath import UPath

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server
from tests.libraries.requests.cost import Cost, Costs, Section, kinds_of

BUCKET = "bucket"
TABLE = pd.DataFrame({f"c{index}": np.random.default_rng(index).random(60_000) for index in range(12)})
DATASET = xr.Dataset({f"v{index}": (("x", "y"), np.ones((200, 200)) * index) for index in range(4)})


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a job: the options of its URLs, and a place of its own to write to."""

    options: dict[str, Any]
    mine: str

    @property
    def fs(self) -> Any:
        """The file system of ``s3://``."""
        return fsspec.filesystem("s3", **self.options)


def pandas_parquet(job: Job) -> object:
    columns = ["c1", "c5", "c9"]
    return len(pd.read_parquet(f"s3://{BUCKET}/table.parquet", columns=columns, storage_options=job.options))


def pandas_csv(job: Job) -> object:
    return len(pd.read_csv(f"s3://{BUCKET}/csv/0.csv", storage_options=job.options))


def pandas_writes(job: Job) -> object:
    TABLE.head(100).to_csv(f"s3://{BUCKET}/{job.mine}/t.csv", storage_options=job.options)
    TABLE.head(100).to_parquet(f"s3://{BUCKET}/{job.mine}/t.parquet", storage_options=job.options)
    return job.fs.du(f"{BUCKET}/{job.mine}") > 0


def dask_csv(job: Job) -> object:
    return len(dd.read_csv(f"s3://{BUCKET}/csv/*.csv", storage_options=job.options).compute(scheduler="sync"))


def dask_parquet(job: Job) -> object:
    return len(dd.read_parquet(f"s3://{BUCKET}/parts/", storage_options=job.options).compute(scheduler="sync"))


def dask_writes(job: Job) -> object:
    url = f"s3://{BUCKET}/{job.mine}/dask"
    from_pandas: Any = dd.from_pandas  # It has no types.
    frame = from_pandas(TABLE.head(300), npartitions=3)
    frame.to_parquet(url, storage_options=job.options, compute_kwargs={"scheduler": "sync"})
    return len(dd.read_parquet(url, storage_options=job.options).compute(scheduler="sync"))


def arrow_dataset(job: Job) -> object:
    return pyarrow.dataset.dataset(f"{BUCKET}/parts", filesystem=job.fs).to_table().num_rows


def fsspec_parquet(job: Job) -> object:
    url, columns = f"s3://{BUCKET}/table.parquet", ["c1", "c5"]
    with fsspec.parquet.open_parquet_file(url, columns=columns, storage_options=job.options, engine="pyarrow") as file:
        return pd.read_parquet(file, columns=columns).shape


def xarray_hdf5(job: Job) -> object:
    with fsspec.open(f"s3://{BUCKET}/grid.nc", **job.options) as file, xr.open_dataset(file, engine="h5netcdf") as grid:
        return float(grid.v3[:5, :5].sum())


def xarray_zarr(job: Job) -> object:
    url = f"s3://{BUCKET}/{job.mine}/grid.zarr"
    DATASET.to_zarr(url, mode="w", storage_options=job.options, consolidated=False)
    with xr.open_zarr(url, storage_options=job.options, consolidated=False) as grid:
        return float(grid.v3[:5, :5].sum())


def duckdb_glob(job: Job) -> object:
    with duckdb.connect() as connection:
        connection.execute("set enable_external_file_cache = false")  # What it keeps depends on the time of a write.
        connection.register_filesystem(job.fs)
        return connection.sql(f"select count(*) from read_parquet('s3://{BUCKET}/parts/*.parquet')").fetchall()


def paths(job: Job) -> object:
    path = UPath(f"s3://{BUCKET}/csv/0.csv", **job.options)
    return path.stat().st_size, len(path.read_bytes()), path.exists(), path.with_name("nothing").exists()


def streamed_rows(job: Job) -> object:
    import datasets

    files = f"s3://{BUCKET}/parts/*.parquet"
    rows = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, storage_options=job.options
    )
    return sum(1 for _ in rows)


def names(job: Job) -> object:
    fs = job.fs
    return (
        len(fs.find(f"{BUCKET}/parts")),
        len(fs.glob(f"{BUCKET}/csv/*.csv")),
        fs.exists(f"{BUCKET}/table.parquet"),
        fs.isdir(f"{BUCKET}/parts"),
        fs.info(f"{BUCKET}/csv/1.csv")["size"],
        fs.exists(f"{BUCKET}/nothing"),
    )


def transfers(job: Job) -> object:
    fs = job.fs
    with tempfile.TemporaryDirectory() as folder:
        fs.get(f"{BUCKET}/csv", f"{folder}/csv/", recursive=True)
        fs.put(f"{folder}/csv/", f"{BUCKET}/{job.mine}/put/", recursive=True)
    fs.cp(f"{BUCKET}/{job.mine}/put", f"{BUCKET}/{job.mine}/copied", recursive=True)
    found = fs.find(f"{BUCKET}/{job.mine}")
    fs.rm(f"{BUCKET}/{job.mine}", recursive=True)
    return len(found)


def bytes_of_objects(job: Job) -> object:
    ranges = job.fs.cat_ranges([f"{BUCKET}/table.parquet"] * 3, [0, 1000, 5000], [100, 1100, 5100])
    return len(job.fs.cat(f"{BUCKET}/csv/*.csv")), len(job.fs.cat(f"{BUCKET}/table.parquet")), list(map(len, ranges))


JOBS: dict[str, Callable[[Job], object]] = {
    function.__name__: function
    for function in (
        *(pandas_parquet, pandas_csv, pandas_writes, dask_csv, dask_parquet, dask_writes, arrow_dataset),
        *(fsspec_parquet, xarray_hdf5, xarray_zarr, duckdb_glob, paths, streamed_rows, names, transfers),
        *(bytes_of_objects,),
    )
}


def fill(fs: Any) -> None:
    """The objects that the jobs read."""

    def parquet(frame: pd.DataFrame, **options: Any) -> bytes:
        frame.to_parquet(into := io.BytesIO(), **options)
        return into.getvalue()

    fs.pipe(f"{BUCKET}/table.parquet", parquet(TABLE, row_group_size=6_000))
    csv = TABLE.head(2_000).to_csv(index=False).encode()
    for number in range(3):
        fs.pipe(f"{BUCKET}/csv/{number}.csv", csv)
        fs.pipe(f"{BUCKET}/parts/{number}.parquet", parquet(TABLE.iloc[number * 1000 :].head(1000)))
    with tempfile.TemporaryDirectory() as folder:
        DATASET.to_netcdf(Path(folder) / "grid.nc", engine="h5netcdf")
        fs.put(f"{folder}/grid.nc", f"{BUCKET}/grid.nc")


CLASSES: dict[str, Any] = {"aioprefetch fsspec": ap.fsspec.S3FileSystem, "s3fs": s3fs.S3FileSystem}


def measured(names_of_jobs: Sequence[str]) -> Costs:
    """The cost of some jobs by each file system."""
    found: Costs = {}
    with CountingS3Server() as server:
        server.create_bucket(BUCKET)
        options: dict[str, Any] = {
            "key": server.access_key_id,
            "secret": server.secret_access_key,
            "client_kwargs": {"endpoint_url": server.endpoint_url, "region_name": server.region},
        }
        fill(ap.fsspec.S3FileSystem(**options))
        for name in names_of_jobs:
            found[name] = {}
            for library, cls in CLASSES.items():
                register_implementation("s3", cls, clobber=True)
                cls.clear_instance_cache()
                server.reset()
                result = JOBS[name](Job(copy.deepcopy(options), f"{name}-{library.partition(' ')[0]}"))
                if cls is ap.fsspec.S3FileSystem:  # Each job begins with nothing in memory.
                    cls(**copy.deepcopy(options)).close()
                kinds = kinds_of((request.method, request.query) for request in server.requests)
                found[name][library] = Cost(kinds, server.bytes_sent, result)
    return found


SECTION = Section(
    name="urls",
    title="Libraries over fsspec",
    about="`s3://` given to each library, with s3fs behind it and with us registered in its place.",
    libraries=tuple(CLASSES),
    jobs={
        "pandas_parquet": "`pandas.read_parquet`, 3 of 12 columns in 10 row groups",
        "pandas_csv": "`pandas.read_csv`",
        "pandas_writes": "`to_csv` and `to_parquet`",
        "dask_csv": "`dask.dataframe.read_csv` of 3 files",
        "dask_parquet": "`dask.dataframe.read_parquet` of 3 files",
        "dask_writes": "`dask.dataframe` written to 3 files and read",
        "arrow_dataset": "`pyarrow.dataset` of 3 files",
        "fsspec_parquet": "`fsspec.parquet.open_parquet_file`, 2 columns",
        "xarray_hdf5": "`xarray.open_dataset` by h5netcdf, a slice",
        "xarray_zarr": "`to_zarr` and `xarray.open_zarr`, a slice",
        "duckdb_glob": "DuckDB, a count over 3 Parquet files",
        "paths": "`UPath`: `stat`, `read_bytes`, `exists`",
        "streamed_rows": "Hugging Face `datasets`, streaming 3 Parquet files",
        "names": "`find`, `glob`, `exists`, `isdir`, `info`",
        "transfers": "`get`, `put`, `cp`, `rm` of a directory of 3 files",
        "bytes_of_objects": "`cat` of a glob and of an object, `cat_ranges`",
    },
    measure=measured,
)
