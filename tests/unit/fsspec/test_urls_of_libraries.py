"""What the pages say of libraries and URLs: all requests of each are ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pandas as pd
import pyarrow.dataset as ds
import pytest
import xarray as xr

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server

FRAME = pd.DataFrame({"id": range(10)})


def dask_count(url: str) -> int:
    import dask.dataframe as dd  # Takes longer than the test, and only one of the processes that collect tests runs it.

    return len(dd.read_parquet(url).compute(scheduler="sync"))


def duckdb_count(url: str) -> int:
    with duckdb.connect() as connection:
        connection.register_filesystem(fsspec.filesystem(url.partition("://")[0]))
        (count,) = connection.execute(f"select count(*) from read_parquet('{url}')").fetchone() or (0,)
        return int(count)


def xarray_count(url: str) -> int:
    xr.Dataset({"id": ("x", FRAME["id"].to_numpy())}).to_zarr(url, mode="w", consolidated=False)
    return int(xr.open_zarr(url, consolidated=False).sizes["x"])


# Who reads which file by URL: by ``aioprefetch+s3://``, and by ``s3://`` after ``register``.
READS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "pandas.read_parquet": ("t.parquet", lambda url: len(pd.read_parquet(url))),
    "pandas.read_csv": ("t.csv", lambda url: len(pd.read_csv(url))),
    "pandas.read_json": ("t.json", lambda url: len(pd.read_json(url))),
    "dask": ("t.parquet", dask_count),
    "duckdb": ("t.parquet", duckdb_count),
    "xarray": ("z.zarr", xarray_count),
    "polars": ("t.parquet", lambda url: ap.polars.scan_parquet(url).collect().height),
    "pyarrow": (
        "t.parquet",
        lambda url: ds.dataset(
            "t.parquet", filesystem=ap.arrow.filesystem(ap.Operator.from_uri(url.rpartition("/")[0]))
        ).count_rows(),
    ),
}


@pytest.fixture
def root(
    s3_server: CountingS3Server, random_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A bucket with a table in three formats, to which variables lead us and nothing leads others."""
    s3_server.create_bucket(bucket := random_name())
    for name in ("access_key_id", "secret_access_key", "endpoint_url", "region"):
        monkeypatch.setenv(f"AIOPREFETCH_{name.upper()}", getattr(s3_server, name))
    FRAME.to_parquet(tmp_path / "t.parquet")
    FRAME.to_csv(tmp_path / "t.csv", index=False)
    FRAME.to_json(tmp_path / "t.json")
    ap.sync.run(ap.copy(f"{tmp_path}/", f"s3://{bucket}/"))
    s3_server.reset()
    return f"{bucket}/"


@pytest.mark.parametrize(
    ("library", "scheme"),
    [
        *((one, "aioprefetch+s3") for one in READS if one not in ("xarray", "polars", "pyarrow")),
        *((one, "s3") for one in READS if one != "pandas.read_parquet"),
    ],
)
def test_all_requests_are_ours(s3_server: CountingS3Server, root: str, library: str, scheme: str) -> None:
    name, read = READS[library]
    ap.fsspec.register("s3")
    with ap.trace.record() as trace:
        assert read(f"{scheme}://{root}{name}") == len(FRAME)
    sent = [request for request in s3_server.requests if request.method in ("GET", "HEAD", "PUT")]
    assert 0 < len(sent) <= len(trace.recording.requests)


def test_pandas_writes_parquet_by_us(s3_server: CountingS3Server, root: str) -> None:
    FRAME.to_parquet(f"aioprefetch+s3://{root}new.parquet")
    assert len(pd.read_parquet(f"aioprefetch+s3://{root}new.parquet")) == len(FRAME)
    assert any(request.method == "PUT" for request in s3_server.requests)
