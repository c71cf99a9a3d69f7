"""Arrays of zarr and datasets of xarray over our store: never more requests than over obstore's and s3fs's."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr

import aioprefetch as ap
from aioprefetch.scheduler.pinned_file import TAIL_BYTES
from tests.libraries.requests.arrays import SECTION
from tests.libraries.requests.cost import Costs
from tests.libraries.requests.run import counted
from tests.libraries.zarr_jobs import VALUES
from tests.probes.programs import run_program

da: Any = dask.array  # It has no types.
# The chunks that `read_most_of_a_shard` reads.
CHUNKS_OF_MOST = 56
# From 3.4 on, which needs Python 3.12, zarr asks for neighbouring chunks of a shard together, over any store.
ZARR_JOINS = tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 4)


@pytest.fixture(scope="module")
def costs() -> Costs:
    """The costs that a process has counted, for all jobs."""
    return counted(SECTION.name, list(SECTION.jobs))


@pytest.mark.parametrize("name", SECTION.jobs)
def test_no_job_costs_more_requests_than_over_another_store(costs: Costs, name: str) -> None:
    """And no HEAD."""
    ours, *peers = costs[name].values()
    assert ours.requests <= min(peer.requests for peer in peers)
    assert "HEAD" not in ours.kinds


def test_chunks_of_a_shard_share_requests(costs: Costs) -> None:
    """With any zarr. obstore's store sends one for each, unless zarr joins them itself."""
    ours, obstores, _ = costs["read_most_of_a_shard"].values()
    assert ours.requests * 5 < CHUNKS_OF_MOST
    assert ZARR_JOINS or ours.requests * 2 < obstores.requests


def test_a_point_of_many_shards_moves_little_beside_its_chunks(costs: Costs) -> None:
    """Bytes that come along with the first indexes in vain come with few of the later ones."""
    ours, obstores, _ = costs["read_point_of_series"].values()
    assert ours.requests == obstores.requests
    assert ours.bytes_sent <= 1.2 * obstores.bytes_sent + 8 * TAIL_BYTES


def test_dask_reads_and_writes_through_one_store() -> None:
    """Its threads all come to the one loop of zarr."""
    with ap.zarr.Store(ap.Operator.from_uri("memory://dask-over-zarr"), "arrays") as store:
        array = zarr.create_array(store, name="a", shape=VALUES.shape, chunks=(64, 64), dtype=VALUES.dtype)
        with ThreadPoolExecutor(4) as pool:
            da.from_array(VALUES, chunks=(64, 128)).store(array, lock=False, pool=pool)
            assert (da.from_zarr(store, component="a").sum(axis=0).compute(pool=pool) == VALUES.sum(axis=0)).all()
        group = zarr.open_group(store, mode="r")
        assert list(group.array_keys()) == ["a"]


FORKED = """
import os, numpy as np, zarr, aioprefetch as ap
store = ap.zarr.Store(ap.Operator.from_uri("file://{folder}"))
array = zarr.create_array(store, name="a", shape=(64, 64), chunks=(16, 16), dtype="i4")
array[:] = np.arange(4096).reshape(64, 64)
pid = os.fork()
if pid == 0:
    store.close()  # The loop of the parent does not run here, and is not waited for.
    assert (zarr.open_array(store, path="a", mode="r")[:] == np.arange(4096).reshape(64, 64)).all()
    store.close()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert array[3, 4] == 3 * 64 + 4
store.close()
print("done")
"""


def test_a_child_reads_after_a_fork(tmp_path: Path) -> None:
    """With a loop and a runtime of its own."""
    assert run_program(FORKED.replace("{folder}", str(tmp_path))).strip() == "done"


def test_a_group_of_another_format_is_read_too() -> None:
    """Version 2 keeps its metadata under other keys."""
    with ap.zarr.Store(ap.Operator.from_uri("memory://version-two")) as store:
        root = zarr.create_group(store, zarr_format=2)
        root.create_array("a", shape=(10,), chunks=(3,), dtype="f8")[:] = np.arange(10)
        array: Any = zarr.open_array(store, path="a", mode="r")
        assert (array[:] == np.arange(10)).all()
