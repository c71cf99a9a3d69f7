"""pandas, dask, xarray, DuckDB, UPath, datasets and fsspec by ``s3://``: right results, no more requests than s3fs."""

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
from fsspec.implementations.http import HTTPFileSystem
from fsspec.registry import register_implementation

import aioprefetch as ap
from aioprefetch.testing import FaultServer
from tests.libraries.requests.cost import Costs
from tests.libraries.requests.run import counted
from tests.libraries.requests.urls import SECTION
from tests.profile import chosen

# Those that say most, and each library once.
QUICK = ["pandas_parquet", "pandas_csv", "dask_parquet", "xarray_hdf5", "xarray_zarr", "duckdb_glob", "paths", "names"]
NAMES = chosen(quick=QUICK, full=list(SECTION.jobs))


@pytest.fixture(scope="module")
def costs() -> Costs:
    """The costs that a process has counted, for all jobs."""
    return counted(SECTION.name, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_has_the_result_of_s3fs_with_no_more_requests(costs: Costs, name: str) -> None:
    theirs, ours = costs[name]["s3fs"], costs[name]["aioprefetch fsspec"]
    assert ours.result == theirs.result
    assert ours.requests <= theirs.requests, (ours, theirs)


@pytest.fixture
def csv_server() -> Iterator[FaultServer]:
    """A server of http with one table."""
    server = FaultServer({"t.csv": pd.DataFrame({"a": range(1000)}).to_csv(index=False).encode()})
    ap.sync.run(server.__aenter__())
    yield server
    register_implementation("http", HTTPFileSystem, clobber=True)
    ap.sync.run(server.__aexit__(None, None, None))


def test_datasets_stream_urls_of_http_with_no_more_requests_than_over_fsspecs_own(
    csv_server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives each of them options of aiohttp."""
    import datasets
    from tqdm import tqdm

    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # Otherwise its bars begin a thread that stays.
    requests: list[int] = []
    for cls in (HTTPFileSystem, ap.fsspec.HttpFileSystem):
        register_implementation("http", cls, clobber=True)
        before = len(csv_server.requests)
        files = f"{csv_server.url}/t.csv"
        rows = datasets.load_dataset("csv", data_files=files, split="train", streaming=True)
        assert sum(row["a"] for row in rows) == sum(range(1000))
        requests.append(len(csv_server.requests) - before)
    assert requests[1] <= requests[0]


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Of dask.
def test_dask_appends_to_a_dataset_and_counts_it(random_name: Callable[[], str]) -> None:
    """It opens files with options of its own to read their footers."""
    ap.fsspec.register()
    url = f"aioprefetch+memory://{random_name()}/table"
    from_pandas: Any = dd.from_pandas  # It has no types.
    frame = from_pandas(pd.DataFrame({"a": range(10)}), npartitions=2)
    with dask.config.set(scheduler="sync"):
        frame.to_parquet(url)
        frame.to_parquet(url, append=True, ignore_divisions=True)
        assert len(dd.read_parquet(url)) == 20
