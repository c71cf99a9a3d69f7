"""The jobs ``parquet-groups-*``: 3 of 12 columns out of 50 row groups, where requests are many and small.

Side by side, the chunks of a row group are one range. Apart, three other chunks lie between two of them: a reader
that bridges these gaps sends one request for a row group and takes three times the bytes, a reader that does not sends
three requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.access_log import Request
from tests.benchmarks.clients import pyarrow_filesystem
from tests.benchmarks.job import CHECK_OBJECT, WALL, Column, Contestant, Job, Numbers, Sample, Target
from tests.benchmarks.parquet_clients import fsspec_parquet, polars_table, pyarrow_table, timed_table
from tests.benchmarks.parquet_files import NAMES, check_large, write_many_groups
from tests.benchmarks.parquet_jobs import COLUMNS, POLARS
from tests.benchmarks.parquet_scans import READ_TABLE, our_contestants
from tests.benchmarks.simulator import AT_A_DISTANCE, Conditions
from tests.benchmarks.wanted import Wanted, with_wanted

if TYPE_CHECKING:
    import pyarrow as pa

SIZE_BYTES = 60_000_000
QUICK_SIZE_BYTES = 24_000_000
# What may be read of a file beyond the chunks that were asked for, its footer apart.
OVER_PROJECTED = 1.05


def projection(target: Target, columns: Sequence[str]) -> dict[str, int]:
    """The bytes of the chunks of these columns, and where the footer of the file starts.

    It reads the object under its other key, which is not counted.
    """
    import pyarrow.parquet as pq

    with pyarrow_filesystem(target).open_input_file(f"{target.bucket}/{CHECK_OBJECT}") as file:
        metadata = pq.read_metadata(file)
    indices = [metadata.schema.names.index(name) for name in columns]
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    projected_bytes = sum(group.column(index).total_compressed_size for group in groups for index in indices)
    # The length of the footer and a mark, 8 bytes, are behind it.
    return {"projected_bytes": projected_bytes, "footer_start": target.size_bytes - 8 - metadata.serialized_size}


def with_projection(contestant: Contestant, columns: Sequence[str]) -> Contestant:
    """The contestant, whose sample also says what the columns are in bytes."""

    async def run(target: Target) -> Sample:
        sample = await contestant(target)
        return {**sample, **projection(target, columns), "size_bytes": target.size_bytes}

    return run


def over_projected(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The bytes before the footer that were sent, in all and for each byte of the columns.

    Bytes that are sent twice count twice. Most libraries read the footer with more of the end of the file than it is:
    what of that lies in front of it counts as well.
    """
    before_footer = sum(
        max(0, min(start + one.sent_bytes, sample["footer_start"]) - start)
        for one in requests
        if one.method == "GET"
        for start in (start_of(one, sample["size_bytes"]),)
    )
    return {"column_bytes": before_footer, "over_projected": before_footer / sample["projected_bytes"]}


def start_of(request: Request, size_bytes: int) -> int:
    """The offset of the first byte that a GET asked for, without a range 0."""
    first, _, last = request.range.removeprefix("bytes=").partition("-")
    if first:
        return int(first)
    return max(0, size_bytes - int(last)) if last else 0


def requests_and_bytes(medians: Mapping[str, Numbers]) -> str:
    """Our requests beside those of polars, and our bytes beside those of the columns."""
    polars = [medians[name]["gets"] for name in POLARS if name in medians]
    if READ_TABLE not in medians or not polars:
        return ""
    ours = medians[READ_TABLE]
    return (
        f"{READ_TABLE} sends {ours['gets']:.0f} requests, polars {min(polars):.0f} (no more than polars are wanted), "
        f"for {ours['over_projected']:.3f} times the bytes of the columns ({OVER_PROJECTED:.2f} is wanted)."
    )


def bytes_alone(medians: Mapping[str, Numbers]) -> str:
    """What polars pays in bytes for its requests."""
    polars = [medians[name]["over_projected"] for name in POLARS if name in medians]
    if READ_TABLE not in medians or not polars:
        return ""
    return (
        f"{READ_TABLE} reads {medians[READ_TABLE]['over_projected']:.3f} times the bytes of the columns "
        f"({OVER_PROJECTED:.2f} is wanted), polars {min(polars):.3f} times."
    )


def groups_job(name: str, title: str, columns: Sequence[str]) -> Job:
    """A job with these columns."""

    def check(table: pa.Table, target: Target) -> None:
        check_large(table, target.size_bytes, tuple(columns))

    wanted = list(columns)
    contestants = {
        **our_contestants(check, wanted),
        "polars scan_parquet": timed_table(polars_table(lazy=True), check, wanted),
        "polars read_parquet": timed_table(polars_table(lazy=False), check, wanted),
        "pyarrow S3FileSystem": timed_table(pyarrow_table, check, wanted),
        "s3fs fsspec.parquet": timed_table(fsspec_parquet, check, wanted),
    }
    return Job(
        name=name,
        title=title,
        conditions=AT_A_DISTANCE,
        size_bytes=SIZE_BYTES,
        quick_size_bytes=QUICK_SIZE_BYTES,
        write=write_many_groups,
        compare_all=True,
        quick_contestants=(READ_TABLE, "polars scan_parquet"),
        contestants={key: with_projection(one, columns) for key, one in contestants.items()},
        columns=(WALL, Column(name="over_projected", heading="bytes/columns'", digits=3), *COLUMNS[1:]),
        derive=over_projected,
    )


BESIDE_POLARS = (Wanted(name="polars", ours=READ_TABLE, peers=POLARS, at_most=1.0),)
SIDE_BY_SIDE = groups_job(
    "parquet-groups",
    "3 of the 12 columns, side by side, of a Parquet file of 60 MB in 50 row groups",
    NAMES[:3],
)
APART = groups_job(
    "parquet-groups-apart",
    "3 of the 12 columns, apart, of a Parquet file of 60 MB in 50 row groups",
    (NAMES[0], NAMES[4], NAMES[8]),
)
ROW_GROUP_JOBS = (
    with_wanted(replace(SIDE_BY_SIDE, remark=requests_and_bytes), BESIDE_POLARS),
    with_wanted(replace(APART, remark=bytes_alone), BESIDE_POLARS),
)
