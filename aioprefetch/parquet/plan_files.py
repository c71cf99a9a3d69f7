"""The reads of a scan of many files, before a byte of data is requested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from aioprefetch.operator.shared import checked_operator
from aioprefetch.parquet.byte_plan import Plan, plans_html
from aioprefetch.parquet.dataset.files import checked_source
from aioprefetch.parquet.dataset.scan import DatasetRequest, checked_partitioning, checked_schema, plan_dataset
from aioprefetch.parquet.plan import scan_arguments
from aioprefetch.ranges import ByteCount
from aioprefetch.scan import BATCH_ROWS, io_options

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator


@dataclass(frozen=True, slots=True)
class FilesPlan:
    """The plans of the files that a scan reads, in their order: those with rows that filters and ``rows`` may leave.

    What came with a footer, as small files do whole, is in no request.
    """

    path: str
    files: tuple[Plan, ...]

    @property
    def row_count(self) -> int:
        """The number of rows that are read, before filters."""
        return sum(plan.row_count for plan in self.files)

    @property
    def request_count(self) -> int:
        """The number of requests for data, behind those for listings and footers."""
        return sum(len(plan.requests) for plan in self.files)

    @property
    def projected_bytes(self) -> int:
        """Bytes of all wanted ranges."""
        return sum(plan.projected_bytes for plan in self.files)

    @property
    def requested_bytes(self) -> int:
        """The bytes of the requests: wanted bytes that are not in memory, and gaps."""
        return sum(plan.requested_bytes for plan in self.files)

    def describe(self) -> str:
        """The plans as text, file after file."""
        summary = (
            f"{self.path}: {self.row_count} rows of {len(self.files)} files, {self.request_count} requests for"
            f" {self.requested_bytes} bytes"
        )
        return "\n".join([summary, *(plan.describe() for plan in self.files)])

    def __repr__(self) -> str:
        return (
            f"<FilesPlan {self.path!r} files={len(self.files)} rows={self.row_count} requests={self.request_count}"
            f" requested_bytes={self.requested_bytes}>"
        )

    def _repr_html_(self) -> str:
        return plans_html(self.path, self.files, f"{self.row_count:,} rows of {len(self.files):,} files")


async def plan_files(
    operator: Operator,
    path: str | Sequence[str],
    *,
    columns: Iterable[str] | None = None,
    rows: Any = None,
    filters: Any = None,
    gap_bytes: ByteCount | None = None,
    request_bytes_max: ByteCount | None = None,
    slots: int | None = None,
    schema: pa.Schema | None = None,
    partitioning: Literal["hive"] | None = "hive",
) -> FilesPlan:
    """The reads of ``scan`` of a directory, a glob, a list or a file. Lists them, and reads the footers.

    Arguments and errors are those of ``scan``. As with ``plan``, the requests are those of a scan that has memory for
    all of them. A cancelled call leaves nothing behind.
    """
    checked_operator(operator, "plan_files")
    source = checked_source(path, "plan_files")
    name = str(source)
    arguments = scan_arguments(name, columns=columns, rows=rows, filters=filters)
    request = DatasetRequest(
        source=source,
        columns=arguments.columns,
        filters=arguments.filters,
        rows=arguments.rows,
        limits=io_options(
            name, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max, budget_bytes=None, slots=slots
        ),
        batch_rows=BATCH_ROWS,
        schema=checked_schema(schema, name),
        has_partitions=checked_partitioning(partitioning, name),
    )
    return FilesPlan(name, tuple(await plan_dataset(operator, request)))
