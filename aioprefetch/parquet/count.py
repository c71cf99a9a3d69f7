"""The number of rows of Parquet files: from their footers, or of those that match filters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from aioprefetch.errors import IsADirectory, NotFound
from aioprefetch.operator.shared import checked_operator
from aioprefetch.parquet.dataset.ahead import in_order
from aioprefetch.parquet.dataset.files import DatasetFile, checked_source, files_instead, find_files
from aioprefetch.parquet.dataset.scan import listed_footer
from aioprefetch.parquet.footer import footer
from aioprefetch.parquet.scan import scan
from aioprefetch.scheduler.io_service import SLOTS_MAX

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator


async def count_rows(
    operator: Operator,
    path: str | Sequence[str],
    *,
    filters: Any = None,
    partitioning: Literal["hive"] | None = "hive",
) -> int:
    """The number of rows of a file, a directory, a glob or a list of files, as ``scan`` takes them.

    Without ``filters`` the footers alone are read. With them it reads the columns that they name, of row groups and
    pages that may match; filters on partitions alone read footers. Errors are those of ``scan``. A cancelled call
    leaves nothing behind.
    """
    checked_operator(operator, "count_rows")
    if filters is not None:
        async with scan(operator, path, columns=[], filters=filters, partitioning=partitioning, ordered=False) as rows:
            return sum([batch.num_rows async for batch in rows])
    source = checked_source(path, "count_rows")
    one = source.one_file
    if one is None:
        return await _rows_of(operator, await find_files(operator, source))
    try:
        return (await footer(operator, one)).rows
    except (NotFound, IsADirectory) as error:
        return await _rows_of(operator, await files_instead(operator, one, error))


async def _rows_of(operator: Operator, files: Sequence[DatasetFile]) -> int:
    width = min(operator.runtime().options.concurrency, SLOTS_MAX)
    works = (partial(listed_footer, operator, file) for file in files)
    async with aclosing(in_order(works, width)) as footers:
        return sum([found.rows async for found in footers])
