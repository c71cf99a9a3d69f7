"""pandas, dask, xarray, DuckDB, UPath, datasets and fsspec by ``s3://``: right results, no more requests than s3fs."""

import pytest

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
