"""The jobs ``parquet-*``: the demo's file, and a large one whole and by columns: our scans, pyarrow and polars.

Every value that comes out is compared in each sample, after the clock has stopped. What is wanted of our scans beside
polars and pyarrow is in a line under each table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    KIB_SENT,
    MEMORY,
    OTHERS,
    PEAK_RATIO,
    SENT,
    WALL,
    Job,
    Target,
)
from tests.benchmarks.parquet_clients import (
    Client,
    aioprefetch_file,
    fsspec_parquet,
    obstore_file,
    opendal_file,
    polars_table,
    pyarrow_file,
    pyarrow_table,
    row_groups,
    s3fs_file,
    smart_open_file,
    timed_table,
)
from tests.benchmarks.parquet_files import (
    DEMO_GROUP_BYTES,
    DEMO_GROUPS,
    NAMES,
    check_demo,
    check_large,
    write_demo,
    write_large,
)
from tests.benchmarks.parquet_scans import READ_TABLE, SCAN, TO_READER, our_contestants
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK
from tests.benchmarks.wanted import Wanted, with_wanted

if TYPE_CHECKING:
    import pyarrow as pa

LARGE_BYTES = 244_000_000
QUICK_LARGE_BYTES = 48_000_000
QUICK_DEMO_GROUPS = 5
THREE_COLUMNS = (NAMES[1], NAMES[5], NAMES[9])

# Through a file object and without a plan: what a reader makes of seeks. Those with a plan of their own come last.
DEMO_CLIENTS: dict[str, Client] = {
    "aioprefetch": aioprefetch_file(row_groups),
    "pyarrow S3FileSystem": pyarrow_file(row_groups),
    **{f"s3fs {cache}": s3fs_file(cache, row_groups) for cache in ("readahead", "blockcache", "adaptive")},
    "obstore fsspec": obstore_file(row_groups),
    "opendal": opendal_file(row_groups),
    "smart_open": smart_open_file(row_groups),
    "aioprefetch, read_table": aioprefetch_file(),
    "pyarrow S3FileSystem, read_table": pyarrow_table,
    "polars scan_parquet": polars_table(lazy=True),
    "polars read_parquet": polars_table(lazy=False),
}


def large_clients(policy: str) -> dict[str, Client]:
    """Through pyarrow as it reads by default, and through libraries that plan themselves."""
    return {
        f"aioprefetch, policy {policy}": aioprefetch_file(policy=policy),
        "aioprefetch": aioprefetch_file(),
        "pyarrow S3FileSystem": pyarrow_table,
        "polars scan_parquet": polars_table(lazy=True),
        "polars read_parquet": polars_table(lazy=False),
        "s3fs fsspec.parquet": fsspec_parquet,
        **{f"s3fs {cache}": s3fs_file(cache) for cache in ("readahead", "background", "adaptive")},
        "obstore fsspec": obstore_file(),
        "opendal": opendal_file(),
        "smart_open": smart_open_file(),
    }


def same_demo(table: pa.Table, target: Target) -> None:
    check_demo(table, target.size_bytes)


def same_whole(table: pa.Table, target: Target) -> None:
    check_large(table, target.size_bytes, NAMES)


def same_columns(table: pa.Table, target: Target) -> None:
    check_large(table, target.size_bytes, THREE_COLUMNS)


POLARS = ("polars scan_parquet", "polars read_parquet")
PYARROW = ("pyarrow S3FileSystem",)
PYARROW_DEMO = ("pyarrow S3FileSystem, read_table", "pyarrow S3FileSystem")
# Without a delay no library can win much: what is wanted is not to be much slower than a library without Python.
WANTED_WITHOUT_DELAY = 1.2


COLUMNS = (WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, PEAK_RATIO, MEMORY)


def beside(pyarrow: Sequence[str], *, of_polars: float, of_pyarrow: float | None) -> tuple[Wanted, ...]:
    """What is wanted of ``read_table``: such a share of the time of polars, and of pyarrow."""
    return (
        Wanted(name="polars", ours=READ_TABLE, peers=POLARS, at_most=of_polars),
        Wanted(name="pyarrow", ours=READ_TABLE, peers=pyarrow, at_most=of_pyarrow),
    )


DEMO = Job(
    name="parquet-demo",
    title="the demo's Parquet file, 50 row groups × 12 columns in 800 KiB",
    conditions=AT_A_DISTANCE,
    size_bytes=DEMO_GROUPS * DEMO_GROUP_BYTES,
    quick_size_bytes=QUICK_DEMO_GROUPS * DEMO_GROUP_BYTES,
    write=write_demo,
    compare_all=True,
    quick_contestants=(
        *(READ_TABLE, SCAN, "aioprefetch", "s3fs readahead", "opendal", "smart_open"),
        *("pyarrow S3FileSystem, read_table", "polars scan_parquet"),
    ),
    rounds_max=3,  # seven times 600 requests of 30 ms in each
    contestants={
        **our_contestants(same_demo),
        **{name: timed_table(client, same_demo) for name, client in DEMO_CLIENTS.items()},
    },
    columns=(WALL, CPU, GETS, OTHERS, KIB_SENT, IN_FLIGHT, PEAK_RATIO, MEMORY),
)
WHOLE = Job(
    name="parquet-whole",
    title="a Parquet file of 244 MB, whole",
    conditions=AT_A_DISTANCE,
    size_bytes=LARGE_BYTES,
    quick_size_bytes=QUICK_LARGE_BYTES,
    write=write_large,
    compare_all=True,
    quick_contestants=(
        *(READ_TABLE, "aioprefetch, policy parquet", "pyarrow S3FileSystem", "polars scan_parquet", "obstore fsspec"),
    ),
    contestants={
        **our_contestants(same_whole),
        **{name: timed_table(client, same_whole) for name, client in large_clients("parquet").items()},
    },
    columns=COLUMNS,
)
SOME_COLUMNS = replace(
    WHOLE,
    name="parquet-columns",
    title="3 of the 12 columns of a Parquet file of 244 MB",
    quick_contestants=(
        *(READ_TABLE, SCAN, TO_READER, "aioprefetch, policy columnar", "polars read_parquet", "s3fs fsspec.parquet"),
    ),
    contestants={
        **our_contestants(same_columns, list(THREE_COLUMNS)),
        **{
            name: timed_table(client, same_columns, list(THREE_COLUMNS))
            for name, client in large_clients("columnar").items()
        },
    },
)


def at_a_distance_and_without(job: Job, wanted: Sequence[Wanted]) -> tuple[Job, Job]:
    """The job, and the same at a store without delay and limit: what is left is the CPU of the client."""
    near = replace(
        job,
        name=f"{job.name}-loopback",
        conditions=LOOPBACK,
        rounds_max=None,
        quick_contestants=(),  # what fails here fails at a distance too
    )
    near_wanted = [replace(one, at_most=WANTED_WITHOUT_DELAY) for one in wanted]
    return with_wanted(job, wanted), with_wanted(near, near_wanted)


PARQUET = (
    *at_a_distance_and_without(DEMO, beside(PYARROW_DEMO, of_polars=0.6, of_pyarrow=0.35)),
    *at_a_distance_and_without(WHOLE, beside(PYARROW, of_polars=1.0, of_pyarrow=None)),
    *at_a_distance_and_without(SOME_COLUMNS, beside(PYARROW, of_polars=1.0, of_pyarrow=0.2)),
)
