"""Scans of Parquet files: the caller's arguments become the columns that the two loops work on, a count, or a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.computed_columns import ComputedColumns, asked_columns
from aioprefetch.errors import ConfigInvalid, IsADirectory, NotFound
from aioprefetch.filters import Filters, check_expression, filter_expression, filtered, load_evaluation
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator
from aioprefetch.parquet.byte_plan import FilesPlan, Plan, PlanLimits
from aioprefetch.parquet.columns import Projection
from aioprefetch.parquet.dataset.ahead import in_order
from aioprefetch.parquet.dataset.catalog import CatalogFile, ScanFile, catalog_files
from aioprefetch.parquet.dataset.field_ids import Matching, checked_mapping
from aioprefetch.parquet.dataset.files import DatasetFile, Source, checked_source, files_instead, find_files
from aioprefetch.parquet.dataset.scan import (
    DatasetRequest,
    checked_choice,
    listed_footer,
    plan_dataset,
    prepare_dataset,
)
from aioprefetch.parquet.file_part import Finish, file_part, memory_limits, service_of
from aioprefetch.parquet.filters_first import FilterColumns
from aioprefetch.parquet.footer import TAIL_BYTES_EVERYTHING, Footer, seen_size
from aioprefetch.parquet.footer import footer as read_footer
from aioprefetch.parquet.plan import plan_scan, scan_arguments
from aioprefetch.parquet.pruning import filter_columns, normalized_filters
from aioprefetch.ranges import ByteCount, at_least, bytes_at_least
from aioprefetch.scan import BATCH_ROWS, BatchScan, Prepare, batch_options, column_names, io_options
from aioprefetch.scheduler.decode_loop import READAHEAD_BATCHES, BatchOptions
from aioprefetch.scheduler.io_service import SLOTS_MAX
from aioprefetch.scheduler.pages import PreparedScan
from aioprefetch.verbs.arguments import Arguments

# The rows and bytes of a table that are decoded at once, and become a chunk of each column.
TABLE_BATCH_ROWS = 131_072
TABLE_BATCH_BYTES = 256 << 20


def scan(
    operator: Operator,
    path: str | Sequence[str] | None = None,
    *,
    files: Iterable[ScanFile] | None = None,
    columns: Iterable[str] | Mapping[str, str | pc.Expression] | None = None,
    row_groups: Iterable[int] | None = None,
    rows: Sequence[int] | Iterable[Sequence[int]] | None = None,
    filters: Any = None,
    limit: int | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: ByteCount | None = None,
    readahead: int = READAHEAD_BATCHES,
    gap_bytes: ByteCount | None = None,
    request_bytes_max: ByteCount | None = None,
    budget_bytes: ByteCount | None = None,
    slots: int | None = None,
    page_checksums: bool = True,
    page_bytes_max: ByteCount | None = None,
    footer: Footer | None = None,
    size: int | None = None,
    version: str | None = None,
    if_match: str | None = None,
    ordered: bool = True,
    schema: pa.Schema | None = None,
    match: Literal["name", "field_id"] = "name",
    name_mapping: str | Sequence[Mapping[str, Any]] | None = None,
    partitioning: Literal["hive"] | None = "hive",
    partition_schema: pa.Schema | None = None,
    missing_columns: Literal["null", "error"] = "null",
    extra_columns: Literal["ignore", "error"] = "ignore",
    include_file_paths: str | None = None,
    row_index_name: str | None = None,
    filter_rows: bool = True,
    int96_unit: Literal["us", "ns"] | None = None,
) -> BatchScan:
    """The record batches of a Parquet file, or of many as one table, decoded by pyarrow; a plain call without I/O.

    Values, types and schema of one file are as by ``pyarrow.parquet.read_table`` with the same ``columns`` and
    ``filters``, but for INT96 timestamps (``int96_unit``).

    ``row_groups``, ``footer``, ``size``, ``version`` and ``if_match`` are for one file. ``rows`` count through all
    files of ``path`` that the filters on partitions leave.

    Raises ``InvalidArgument`` at once for invalid options, and for the footer of another path. The first
    batch raises ``NotFound``, ``InvalidArgument`` for columns, row groups, rows and filters that do not go with the
    file, ``UntrustedMetadata`` for a damaged file, with the row group and the columns, and ``Unsupported`` for what
    pyarrow does not read. Of many files it raises ``NotFound`` without any, ``ObjectChanged`` for a file that was
    overwritten after it was listed, and ``Unsupported`` for columns whose types have nothing in common.

    Parameters
    ----------
    path
        A file; a directory (``"t/"``, or ``"t"`` where no such object is there); a glob (``"t/**/*.parquet"``); or a
        list of any of these. Files of a directory and a glob come ordered by path, without names that begin with
        ``_`` or ``.``, but for partitions such as ``_c0=5``. ``*``, ``?`` and ``[`` make a glob: ``[*]``, ``[?]`` and
        ``[[]`` are the characters themselves, and ``glob.escape(path)`` of the standard library is the path as it
        stands, for which nothing is listed.
    files
        In place of ``path``: files of a catalog, each a ``ScanFile`` with its partition values and the rows that are
        left. The result has their order.
    columns
        Names, in the order of the result. ``"a.b"`` is field ``b`` of struct ``a``, and comes as a column ``b``. An
        empty list gives batches with rows and no columns, for which no data is requested. A mapping gives new names,
        and columns by expressions: ``{"total": pc.field("price") * pc.field("count")}``.
    row_groups
        Numbers of row groups; they are read in the order of the file.
    rows
        ``(start, stop)`` of the file's rows, or a list of such ranges, cut at the end of the file. Together with
        ``row_groups``: rows that are in both.
    filters
        As in pyarrow: ``[(column, operator, value), ...]``, lists of these, or an Expression. A field of a struct is
        ``("s", "x")`` in a list, and ``pc.field("s", "x")``. Row groups and pages whose statistics match nothing are
        not requested.
    limit
        The first rows that match, and no more: then requests end. With 0 no data is requested. With ``ordered=False``
        any that match.
    batch_rows
        The rows of a batch (``BatchScan``).
    batch_bytes
        The Arrow memory of a batch, in bytes, estimated from footer, dictionaries and the batches before. ``None``: a
        sixteenth of ``memory_bytes``, 64 MiB at most.
    readahead
        The number of batches that are decoded ahead of the consumer.
    gap_bytes
        Ranges with a gap of at most this between them share a request; see ``plan``.
    request_bytes_max
        The maximum size of a request.
    budget_bytes
        The memory for pages.
    slots
        The maximum of requests in flight (``IoService``).
    page_checksums
        Verify the checksum of each page whose header has one, of dictionaries too: a bit that flipped on the way or in
        the store is ``UntrustedMetadata``.
    page_bytes_max
        A compressed page whose header claims to become more bytes is refused (``UntrustedMetadata``) before anything is
        decompressed: 256 MiB, or the runtime's ``memory_bytes`` if that is less. Pages of more than 16 MiB that are
        decoded at the same time, one of each column of a row group, may not become more than ``memory_bytes`` together,
        or than this (``BudgetExhausted``).
    footer
        A footer of this file that was read before: its version is read, without a request for the metadata.
    size
        The size of the file, if it is known. A file of at most a block is then read whole by one request.
    version
        The version of the file that is read.
    if_match
        The ETag that the file must have.
    ordered
        Of many files: their batches in the order of the files. ``False``: as they are ready, of several files at once.
    schema
        The schema of all batches, instead of the union over all files: then no footer is read ahead of its
        turn, with ``rows`` none behind the last of them. What a file has beside it is left out.
    match
        ``"field_id"``: columns of files are those of ``schema`` with the same id, and not with the same name, structs'
        fields too. Ids stand in the metadata of fields: ``PARQUET:field_id`` or ``delta.columnMapping.id``, in a Delta
        table that goes by names of its own ``delta.columnMapping.physicalName``. What a file lacks is the JSON value at
        ``iceberg.initial-default``, or null. ``files`` of a table that goes by ids are read so in any case.
    name_mapping
        The ids of files without ids, which are ``Unsupported`` otherwise: JSON, or the list that it is, of Iceberg's
        ``schema.name-mapping.default``.
    partitioning
        ``"hive"``: directories ``name=value`` are columns, below a directory that is scanned and in the whole path of
        other files. ``None``: they are not.
    partition_schema
        The types of columns of paths, instead of guesses by their values. A column that no path has is null.
    missing_columns
        ``"error"``: a file without a column that is asked for, or filtered by, is ``Unsupported``.
    extra_columns
        ``"error"``: a file with a column that ``schema`` does not have, or without ``schema`` the first file, is
        ``Unsupported``.
    include_file_paths
        The name of one more column, the last but ``row_index_name``: the path of the file of a row. Filters take it,
        too; files that do not match are not opened.
    row_index_name
        The name of one more column, the last: the number of the row in its file, from 0, before any filter. (polars
        counts through all files.)
    filter_rows
        ``False``: ``filters`` leave out files, row groups and pages alone, and all rows of the others come. For
        callers that filter what they get themselves.
    int96_unit
        The unit of timestamps that are stored in 96 bits, as Hive, Impala and older Spark do. ``"us"`` has all years,
        ``"ns"`` from 1677 to 2262; a value that the unit does not hold is ``Unsupported``. ``None``: ``"us"``, but
        ``"ns"``, as in pyarrow, of a file whose writer stored an Arrow schema.
    """
    source, listed = _source_of(operator, path, files, rows, schema)
    name = str(source)
    schema, columns = _with_filtered(schema, columns, listed)
    options = batch_options(batch_rows, batch_bytes, readahead, limit, path=name)
    added = added_columns(include_file_paths, row_index_name, path=name)
    columns, computed = asked_columns(columns, added=added, path=name)
    filters_rows = Arguments("scan", name).flag("filter_rows", filter_rows)
    arguments = scan_arguments(
        name, columns=columns, row_groups=row_groups, rows=rows, filters=filters, filters_rows=filters_rows
    ).limited(options.limit if listed is None else None)
    request = DatasetRequest(
        source=source,
        arguments=arguments,
        limits=io_options(
            name, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max, budget_bytes=budget_bytes, slots=slots
        ),
        batch_rows=options.rows,
        page_checksums=Arguments("scan", name).flag("page_checksums", page_checksums),
        page_bytes_max=_page_bytes(page_bytes_max, name),
        schema=schema,
        has_partitions=checked_choice("partitioning", partitioning, "hive", path=name) is not None,
        is_ordered=Arguments("scan", name).flag("ordered", ordered),
        int96_unit=checked_choice("int96_unit", int96_unit, "us", "ns", path=name),
        partition_schema=partition_schema,
        fills_missing=checked_choice("missing_columns", missing_columns, "null", "error", path=name) != "error",
        ignores_extra=checked_choice("extra_columns", extra_columns, "ignore", "error", path=name) != "error",
        path_column=include_file_paths,
        row_index=row_index_name,
        files=listed,
        matching=_matching(match, name_mapping, schema, listed, name),
    )
    size = None if size is None else at_least(0, size, "size", operation="scan", path=name)
    one = _OneFile(name, arguments.row_groups, _checked_footer(footer, name), size, version, if_match)
    return ParquetScan(operator, request, one, options, computed)


class ParquetScan(BatchScan):
    """The batches of one file, or of many where the arguments make a table of them."""

    def __init__(
        self,
        operator: Operator,
        request: DatasetRequest,
        one: _OneFile,
        options: BatchOptions,
        computed: ComputedColumns | None = None,
    ) -> None:
        self._request, self._one, self.path = request, one, one.path
        self._is_table = request.source.one_file is None or request.schema is not None or bool(request.added)
        prepare: Prepare = partial(_prepare_file, operator, one, request)
        if self._is_table:
            one.refuse_many()
            prepare = partial(prepare_dataset, operator, request)
        if computed is not None:
            prepare = computed.prepare(prepare, operator)
        super().__init__(operator, prepare, path=one.path, options=options)

    async def plans(self) -> list[Plan]:
        """The reads of each file."""
        if self._is_table:
            return await plan_dataset(self._operator, self._request)
        footer = await _file_or_files(self._operator, self._one, self._request, size=self._one.size)
        if isinstance(footer, list):
            return await plan_dataset(self._operator, self._request, footer)
        limits = PlanLimits.of(self._operator.runtime(), footer, self._request.limits)
        return [await plan_scan(footer, self._request.arguments, limits)]

    async def count(self) -> int:
        """The number of rows, in place of the batches. Of row groups that match as a whole no data is read."""
        counted: list[int] = []
        request = replace(self._request, arguments=replace(self._request.arguments, counted=counted))
        async with ParquetScan(self._operator, request, self._one, self._options) as batches:
            read: int = sum([batch.num_rows async for batch in batches])
        return read + sum(counted)


def _source_of(
    operator: Operator, path: object, files: object, rows: object, schema: pa.Schema | None
) -> tuple[Source, list[CatalogFile] | None]:
    """Paths, or the files of a catalog. ``ConfigInvalid`` for both, and for neither."""
    if (path is None) == (files is None):
        raise ConfigInvalid("either path or files= says what is read", operation="scan")
    if files is None:
        return checked_source(path), None
    if rows is not None:
        raise ConfigInvalid(
            "rows= count through files of a path; ScanFile(rows=) are those of a file", operation="scan"
        )
    source, listed = catalog_files(files, checked_operator(operator, "scan").info)
    if not listed and schema is None:
        raise ConfigInvalid("files= is empty: schema= has the columns of a table without files", operation="scan")
    return source, listed


def _with_filtered(schema: pa.Schema | None, columns: Any, listed: Sequence[CatalogFile] | None) -> tuple[Any, Any]:
    """The schema with the columns that filters of a table read beside it, and the columns that are asked for."""
    if schema is None or not listed or listed[0].table is None:
        return schema, columns
    filtered = [field for field in listed[0].table.filtered if field.name not in schema.names]
    return pa.schema([*schema, *filtered], schema.metadata), schema.names if columns is None else columns


def _matching(
    match: object, name_mapping: object, schema: pa.Schema | None, listed: Sequence[CatalogFile] | None, path: str
) -> Matching:
    """How columns are matched beside by name. The files of a table say so themselves."""
    table = next((file.table for file in listed or () if file.table is not None), None)
    ways: Sequence[str] = () if table is None else table.ways
    if checked_choice("match", match, "name", "field_id", path=path) == "field_id":
        ways = ways or ("field_id", "physical_name")
    elif name_mapping is not None:
        raise ConfigInvalid('name_mapping= needs match="field_id"', operation="scan", path=path)
    if name_mapping is None and table is not None:
        name_mapping = table.name_mapping
    if ways and schema is None:
        raise ConfigInvalid('match="field_id" needs schema=, with the ids of the table', operation="scan", path=path)
    return ways, None if name_mapping is None else checked_mapping(name_mapping, path)


def _page_bytes(given: ByteCount | None, path: str) -> int | None:
    return None if given is None else bytes_at_least(1, given, "page_bytes_max", operation="scan", path=path)


def added_columns(*names: object, path: str) -> list[str]:
    """The names of a caller for columns that files do not have. ``InvalidType`` for other than text, also if twice."""
    given = column_names([name for name in names if name is not None], path=path)
    if len(set(given)) < len(given):
        raise ConfigInvalid(f"include_file_paths and row_index_name are both {given[0]!r}", operation="scan", path=path)
    return given


class ScanOptions(TypedDict, total=False):
    """The options of ``scan`` and ``read_table``; ``scan`` documents them."""

    files: Iterable[ScanFile] | None
    columns: Iterable[str] | Mapping[str, str | pc.Expression] | None
    row_groups: Iterable[int] | None
    rows: Sequence[int] | Iterable[Sequence[int]] | None
    filters: Any
    limit: int | None
    batch_rows: int
    batch_bytes: ByteCount | None
    readahead: int
    gap_bytes: ByteCount | None
    request_bytes_max: ByteCount | None
    budget_bytes: ByteCount | None
    slots: int | None
    page_checksums: bool
    page_bytes_max: ByteCount | None
    footer: Footer | None
    size: int | None
    version: str | None
    if_match: str | None
    ordered: bool
    schema: pa.Schema | None
    match: Literal["name", "field_id"]
    name_mapping: str | Sequence[Mapping[str, Any]] | None
    partitioning: Literal["hive"] | None
    partition_schema: pa.Schema | None
    missing_columns: Literal["null", "error"]
    extra_columns: Literal["ignore", "error"]
    include_file_paths: str | None
    row_index_name: str | None
    filter_rows: bool
    int96_unit: Literal["us", "ns"] | None


async def read_table(
    operator: Operator, path: str | Sequence[str] | None = None, **options: Unpack[ScanOptions]
) -> pa.Table:
    """The batches of ``scan`` with the same options as one table, equal to ``pyarrow.parquet.read_table``'s.

    Since the whole table will be in memory, its pages may take all memory of the runtime, and its chunks are larger
    than a scan's batches: 131,072 rows, or 256 MiB.
    """
    large = {
        "batch_rows": TABLE_BATCH_ROWS,
        "batch_bytes": TABLE_BATCH_BYTES,
        "budget_bytes": checked_operator(operator, "scan").runtime().options.memory_bytes,
    }
    given: dict[str, Any] = {**large, **options}
    return await scan(operator, path, **given).read_all()


@dataclass(frozen=True, slots=True)
class _OneFile:
    """The arguments of a scan that speak of one file."""

    path: str
    row_groups: Sequence[int] | None
    footer: Footer | None
    size: int | None
    version: str | None
    if_match: str | None

    @property
    def given(self) -> list[str]:
        """The names of the arguments that were given."""
        names = ("row_groups", "footer", "size", "version", "if_match")
        return [name for name in names if getattr(self, name) is not None]

    def refuse_many(self) -> None:
        """``ConfigInvalid`` if any was given."""
        for name in self.given:
            raise ConfigInvalid(
                f"{name}= is for one file; a directory, a glob, a list and schema= make a table of many",
                operation="scan",
                path=self.path,
            )


async def _prepare_file(operator: Operator, one: _OneFile, request: DatasetRequest) -> PreparedScan:
    """Prepare the scan of a file, or of a directory where there is no such file."""
    size = seen_size(operator, one.path) if one.size is None else one.size
    footer = await _file_or_files(operator, one, request, size=size)
    if isinstance(footer, list):
        return await prepare_dataset(operator, request, footer)
    runtime, limits = operator.runtime(), request.limits
    arguments = request.arguments
    await load_evaluation(arguments.filters, runtime)
    reads = PlanLimits.of(runtime, footer, limits)
    plan = await plan_scan(footer, arguments, reads)
    first = await FilterColumns.of(operator, footer, arguments, plan, reads)
    budget_bytes = limits.get("budget_bytes") if first is None else first.others_bytes(limits)
    memory = memory_limits(plan, budget_bytes, runtime.options.memory_bytes)
    service = service_of(operator, plan, memory, limits)
    pages = request.page_options(runtime.options.memory_bytes)
    projection = Projection(footer, plan.columns, arguments.columns)
    part_of = partial(
        file_part,
        footer,
        projection=projection,
        service=service,
        limits=memory,
        batch_rows=request.batch_rows,
        pages=pages,
        finish=_finish(projection, footer, arguments.filters if arguments.filters_rows else None),
    )
    if len(footer.pinned.tail) > TAIL_BYTES_EVERYTHING:
        service.carry(len(footer.pinned.tail))
    parts = [part_of(plan)] if first is None else first.parts(part_of, limits, pages)
    return PreparedScan(projection.schema, parts, service)


async def _file_or_files(
    operator: Operator, one: _OneFile, request: DatasetRequest, *, size: int | None
) -> Footer | list[DatasetFile]:
    """The footer of a file, or the files of a directory where there is no such file."""
    found = one.footer
    if found is None:
        try:
            found = await read_footer(
                operator, one.path, version=one.version, if_match=one.if_match, everything=True, size=size
            )
        except (NotFound, IsADirectory) as error:
            if one.given:
                raise
            return await files_instead(operator, one.path, error)
    return found.with_int96_unit(request.int96_unit)


def _finish(projection: Projection, footer: Footer, filters: Filters) -> Finish | None:
    normalized = normalized_filters(filters, footer)
    expression = filter_expression(normalized, path=footer.path)
    if expression is None:
        return None if projection.is_identity else projection.apply
    names = filter_columns(footer, normalized)
    check_expression(projection.read, expression, names, path=footer.path)  # A file without rows would not show it.
    return partial(_filter_and_project, projection, expression, names, footer.path)


def _filter_and_project(
    projection: Projection,
    expression: pc.Expression,
    names: Sequence[str],
    path: str,
    batch: pa.RecordBatch,
    first_row: int,
) -> pa.RecordBatch | None:
    kept = filtered(batch, expression, names, path=path)
    return projection.apply(kept, first_row) if kept.num_rows else None


def _checked_footer(footer: Footer | None, path: str) -> Footer | None:
    if footer is not None and footer.path != path:
        raise ConfigInvalid(f"the footer belongs to {footer.path!r}, not to {path!r}", operation="scan", path=path)
    return footer


# --- counts -----------------------------------------------------------------------------------------------------------


async def count_rows(
    operator: Operator,
    path: str | Sequence[str] | None = None,
    *,
    files: Iterable[ScanFile] | None = None,
    filters: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Literal["hive"] | None = "hive",
    partition_schema: pa.Schema | None = None,
    int96_unit: Literal["us", "ns"] | None = None,
) -> int:
    """The number of rows of a file, a directory, a glob or a list of files, or of ``files``, as ``scan`` takes them.

    Without ``filters`` the footers alone are read. With them it reads the columns that they name, of row groups and
    pages that may match; filters on partitions alone read footers. Of a row group whose statistics say that all rows
    match nothing is read: by exact bounds, without nulls, and never of floating-point values, which may be NaN. Errors
    as for ``scan``. A cancelled call leaves nothing behind.
    """
    checked_operator(operator, "count_rows")
    if filters is not None or files is not None:
        found = scan(
            *(operator, path),
            files=files,
            columns=[],
            filters=filters,
            schema=schema,
            partitioning=partitioning,
            partition_schema=partition_schema,
            ordered=False,
            int96_unit=int96_unit,
        )
        assert isinstance(found, ParquetScan)
        return await found.count()
    source = checked_source(path, "count_rows")
    one = source.one_file
    if one is None:
        return await _rows_of(operator, await find_files(operator, source))
    try:
        return (await read_footer(operator, one)).rows
    except (NotFound, IsADirectory) as error:
        return await _rows_of(operator, await files_instead(operator, one, error))


async def _rows_of(operator: Operator, files: Sequence[DatasetFile]) -> int:
    width = min(operator.runtime().options.concurrency, SLOTS_MAX)
    works = (partial(listed_footer, operator, file) for file in files)
    async with aclosing(in_order(works, width)) as footers:
        return sum([found.rows async for found in footers])


# --- plans ------------------------------------------------------------------------------------------------------------


async def plan(operator: Operator, path: str, **options: Unpack[ScanOptions]) -> Plan:
    """The reads of ``scan`` of one file with the same options. Reads the footer, and page indexes if that pays.

    The requests are as for a scan that has memory for all of them. A scan with a smaller budget reads the same
    bytes in more and smaller requests, as memory becomes free, and may leave gaps out. A ``limit`` behind filters ends
    the requests of a scan, and not those of its plan.

    Arguments and errors as for ``scan``; ``plan_files`` takes directories, globs and lists, which are
    ``ConfigInvalid`` here. A cancelled call leaves nothing behind.
    """
    checked_operator(operator, "plan")
    if checked_source(path, "plan").one_file is None:
        raise ConfigInvalid(
            "a plan is of one file; parquet.plan_files takes a directory, a glob or a list", operation="plan", path=path
        )
    found = scan(operator, path, **options)
    assert isinstance(found, ParquetScan)
    return (await found.plans())[0]


async def plan_files(
    operator: Operator, path: str | Sequence[str] | None = None, **options: Unpack[ScanOptions]
) -> FilesPlan:
    """The reads of ``scan`` of a directory, a glob, a list or a file. Lists them, and reads the footers.

    Arguments and errors as for ``scan``. As with ``plan``, the requests are as for a scan that has memory for
    all of them. A cancelled call leaves nothing behind.
    """
    checked_operator(operator, "plan_files")
    found = scan(operator, path, **options)
    assert isinstance(found, ParquetScan)
    return FilesPlan(found.path, tuple(plan for plan in await found.plans() if plan.row_count))
