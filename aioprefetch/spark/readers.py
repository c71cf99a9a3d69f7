"""The readers of a batch and of a stream of files, and the part of both that runs in tasks.

A batch is planned once for each DataFrame. A stream is a thin shell over ``FileSource``, driven by the micro-batch
engine. Spark makes a stream reader in the process that plans the reading function, and another one in a process that
lives as long as the query; only there it is asked for offsets, and only there the source is opened.

Filters of Spark are not taken. In Spark 4.3 and before, the planned read of a DataFrame is cached with its filters and
used again for others: after ``df.where("part = 2").count()``, ``df.count()`` would count the rows of part 2 alone.
"""

from __future__ import annotations

import inspect
import json
import uuid
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aioprefetch.errors import ConfigInvalid, NotFound, StateConflict
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.columns.row_filter import compares_local_times
from aioprefetch.source.differences import warn_of_difference
from aioprefetch.source.fetch.cleaning import DEAD, CleanOptions, move_directories
from aioprefetch.source.fetch.source import FileSource, StateLocation
from aioprefetch.source.formats import can_split, format_of
from aioprefetch.source.options import RESCUED_COLUMN, AdmissionOptions, FormatOptions
from aioprefetch.source.polling import outlast, patient
from aioprefetch.source.reading import ReadTask, list_files, plan_batch, quarantine_to, read_items
from aioprefetch.source.values import FetchItem, Offset, SourceFile
from aioprefetch.spark import worker
from aioprefetch.spark.hadoop import CASE_SENSITIVE, TIME_ZONE
from aioprefetch.spark.operators import (
    explaining,
    locate,
    operator_at,
    outlasted,
    planning_operator,
    source_operator,
    state_operator,
    task_operator,
)
from aioprefetch.spark.schema import (
    FileFields,
    Inferred,
    arrow_schema,
    batch_fields,
    file_fields,
    keep_stream,
    resolved,
    stream_fields,
)
from aioprefetch.spark.settings import SourceSettings, with_location
from aioprefetch.sync import iterate, run


class BatchReader(DataSourceReader):
    """All files that exist when the query is planned, each at its version of that time.

    Plain data: Spark pickles the reader before it asks for partitions, so they carry all results of the planning.
    """

    def __init__(self, settings: SourceSettings, schema: StructType, inferred: Inferred | None = None) -> None:
        check_projection(settings, schema)
        self._settings = settings
        self._schema = schema
        self._reader = TaskReader(settings, schema, file_fields(settings, schema, inferred, batch_fields))
        self._run = uuid.uuid4().hex

    def partitions(self) -> list[InputPartition]:
        """The files divided among tasks. ``NotFound`` without files, unless ``allowEmpty``."""
        with explaining(self._settings):
            return outlasted(self._settings, self._plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, in a task."""
        return self._reader.batches(partition)

    async def _plan(self) -> list[InputPartition]:
        settings = with_location(self._settings, await locate(self._settings))
        if settings.formats.time_zone is None and compares_local_times(
            settings.reading.filters, self._reader.filtered_schema
        ):
            raise _zone_unknown("no zone is known where the query is planned")
        operator = planning_operator(settings)
        parts = await plan_batch(
            operator,
            settings.listing,
            settings.partitioning,
            settings.formats,
            schema=self._reader.filtered_schema,
            filters=settings.reading.filters,
            has_zone=settings.has_zone,
            open_file=settings.reading.open_file,
        )
        if not parts and not settings.allow_empty:
            await self._check_files(operator, settings)
        self._reader.note_directories(parts)
        root = settings.location.root
        return [ItemsPartition(items, root=root, label=f"{self._run}-{n}") for n, items in enumerate(parts)]

    async def _check_files(self, operator: Operator, settings: SourceSettings) -> None:
        """``NotFound`` if there are no files. Files without work (empty, or filtered out) are fine."""
        listing = settings.listing
        files = list_files(operator, settings.formats, listing)
        async with aclosing(files):
            async for _ in files:
                return
        which = "" if listing.glob is None else f" with glob={listing.glob!r}"
        raise NotFound(
            f"there are no files in {operator.info.url}{which}. If that is expected, give the option allowEmpty=true",
            operation="plan_batch",
        )


# The files of a batch if no option limits it.
FILES_MAX_DEFAULT = 10_000


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Each file once, in batches within limits, even if processes are killed.

    docs/guides/spark.md has the rules for sinks.

    Offsets are small: the plan of a batch is durable at ``stateLocation`` before its offset is returned.
    """

    def __init__(self, settings: SourceSettings, schema: StructType, inferred: Inferred | None = None) -> None:
        check_projection(settings, schema)
        state_operator(settings)  # A missing stateLocation fails at once, not at the first trigger.
        self._settings = self._original = settings
        self._reader = TaskReader(settings, schema, file_fields(settings, schema, inferred, stream_fields))
        self._source: FileSource | None = None
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are Spark's names
        """The offset before the first file."""
        offset: Offset = self._run(FileSource.initial_offset)
        return offset.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The first option that limits a batch; the others hold beside it."""
        admission = self._settings.admission
        if admission.files_max is not None:
            return ReadMaxFiles(admission.files_max)
        if admission.bytes_max is not None:
            return ReadMaxBytes(admission.bytes_max)
        if admission.rows_max is not None:
            return ReadMaxRows(admission.rows_max)
        return ReadMaxFiles(FILES_MAX_DEFAULT)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch, durable by then; ``start`` itself if there is nothing new."""
        before = Offset.from_json(start)
        after: Offset = self._run(lambda source: source.latest_offset(before, _admission(limit)))
        is_waiting = self._source is not None and self._source.is_waiting
        if after is before and not before.files and not is_waiting and not self._has_warned:
            self._has_warned = True
            listing = self._settings.listing
            which = "" if listing.glob is None else f" with glob={listing.glob!r}"
            logger.warning("there are no files in %s%s so far; the stream waits for them", self._root, which)
        if after is not before and self._source is not None:
            logger.info("%s: %s", self._root, self._source.progress(before, after))
        return start if after is before else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The known end of the files, for progress."""
        latest = None if self._source is None else self._source.report_latest()
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The items of a batch, the same for each call."""
        first, last = Offset.from_json(start), Offset.from_json(end)
        parts: list[list[FetchItem]] = self._run(lambda source: source.partitions(first, last))
        self._reader.note_directories(parts)
        return [ItemsPartition(items, root=self._root, label=f"{last.seq:012}-{n}") for n, items in enumerate(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, in a task."""
        return self._reader.batches(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The engine has finished all up to ``end``: cleaning continues in the background."""
        last = Offset.from_json(end)
        self._run(lambda source: source.commit(last))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Deliver the files that exist now, and then end."""
        self._run(FileSource.prepare_available_now)

    def stop(self) -> None:
        """Close the source, if Spark calls this. Nothing durable depends on it."""
        source, self._source = self._source, None
        if source is not None:
            run(source.aclose())

    def _run(self, call: Callable[[FileSource], Any]) -> Any:
        """The result of a call of the source on its loop, awaited if need be."""
        with explaining(self._settings):
            try:
                return run(self._called(call))
            except StateConflict as error:
                if self._source is None or not self._source.state.is_overtaken:
                    raise
                raise _overtaken(self._settings, error) from error

    @property
    def _root(self) -> str:
        """The directory that is listed: known for certain once the source is open."""
        return self._settings.location.root

    async def _called(self, call: Callable[[FileSource], Any]) -> Any:
        result = call(await self._opened())
        return await result if inspect.isawaitable(result) else result

    async def _opened(self) -> FileSource:
        """The source, opened by the first call. Spark makes one call after the other."""
        if self._source is None:
            seconds = self._settings.listing.retry_seconds
            store = patient(state_operator(self._settings), seconds)
            settings = await outlast(lambda: resolved(self._settings, store), seconds)
            source = await _open(settings)
            try:
                await outlast(lambda: keep_stream(settings, store, original=self._original), seconds)
            except BaseException:
                await source.aclose()
                raise
            self._settings, self._source = settings, source
        return self._source


async def _open(settings: SourceSettings) -> FileSource:
    formats = settings.formats

    def is_splittable(file: SourceFile) -> bool:
        return can_split(file, formats)

    attach_to = None
    if settings.attach_to is not None:
        attach_to = StateLocation(operator_at(settings.attach_to, settings.attach_operator))
    return await FileSource.open(
        operator=source_operator(settings),
        state_operator=state_operator(settings),
        state_directory="",
        url=settings.location.root,
        list_options=settings.listing,
        admission=settings.admission,
        partitioning=settings.partitioning,
        attach_to=attach_to,
        can_split=is_splittable,
        clean=_clean_options(settings),
    )


def _overtaken(settings: SourceSettings, error: StateConflict) -> StateConflict:
    return StateConflict(
        f"a second query was started on this state, {settings.state_location}, and this one ends. Give each query a "
        "state of its own (another checkpoint, or stateLocation), where attachTo=<the state of the first> shares its "
        "listing, or write to several sinks from one query with foreachBatch",
        operation=error.operation,
        path=error.path,
        context=error.context,
    )


def _clean_options(settings: SourceSettings) -> CleanOptions:
    if settings.clean != "move" or settings.clean_destination is None:
        return CleanOptions(mode=settings.clean)
    root, source, target = move_directories(settings.location.root, settings.clean_destination)
    return CleanOptions(
        mode="move",
        operator=operator_at(root, settings.operator),
        source_directory=source,
        target_directory=target,
    )


def _admission(limit: ReadLimit) -> AdmissionOptions:
    """The limits of the engine. ``ReadAllAvailable``, and a least number of rows, set no limit."""
    if isinstance(limit, ReadMaxFiles):
        return AdmissionOptions(files_max=limit.max_files)
    if isinstance(limit, ReadMaxBytes):
        return AdmissionOptions(bytes_max=limit.max_bytes)
    if isinstance(limit, ReadMaxRows):
        return AdmissionOptions(rows_max=limit.max_rows)
    return AdmissionOptions()


class ItemsPartition(InputPartition):
    """The items of a task. Their keys are relative to ``root``; ``label`` names the task in files that it writes.

    A thousand items take about 20 KB.
    """

    def __init__(self, items: Sequence[FetchItem], *, root: str, label: str) -> None:
        text = json.dumps([item.to_json() for item in items], separators=(",", ":"))
        super().__init__(zlib.compress(text.encode("utf-8", "surrogatepass")))
        self.count = len(items)
        self.root = root
        self.label = label

    def __repr__(self) -> str:
        return f"<ItemsPartition {self.label}: {self.count} items below {self.root}>"

    def items(self) -> list[FetchItem]:
        """The items, in their order."""
        text = zlib.decompress(self.value).decode("utf-8", "surrogatepass")
        return [FetchItem.from_json(fields) for fields in json.loads(text)]


WINDOW_ITEMS = 4


class TaskReader:
    """Plain data: settings and schemas. It is pickled at every stage, and opens nothing before ``batches``."""

    def __init__(self, settings: SourceSettings, schema: StructType, fields: FileFields) -> None:
        self.settings = settings
        self.schema = arrow_schema(schema)
        self.filter_schema = None if fields.filtered is None else arrow_schema(fields.filtered)
        self.known_schema = None if fields.known is None else arrow_schema(fields.known)
        self.directory_columns = fields.directories

    @property
    def filtered_schema(self) -> pa.Schema:
        """The fields that filters may name: the fields of the output, and fields that only filters need."""
        return pa.schema([*self.schema, *(self.filter_schema or ())])

    def note_directories(self, parts: Sequence[Sequence[FetchItem]]) -> None:
        """Warn of directories that Spark's own readers would turn into columns, or pass over."""
        settings = self.settings
        paths = {item.file.key.rpartition("/")[0] for items in parts for item in items} - {""}
        directories = {name for path in paths for name in path.split("/")}
        names = {name.partition("=")[0].lower() for name in directories if "=" in name}
        if any("=" not in name for name in directories) and (settings.location.glob or "**/").startswith("**/"):
            warn_of_difference("nested")
        is_chosen = settings.columns is not None or settings.file_schema is not None
        if not is_chosen and not names <= {name.lower() for name in self.schema.names}:
            warn_of_difference("directories")

    def batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition. Leaving early, as under ``limit``, closes open files."""
        if not isinstance(partition, ItemsPartition):
            return  # A partition of Spark's own, for a plan without partitions.
        worker.prepare()
        operator = task_operator(self.settings, partition.root)
        task = self._task(partition)
        items = partition.items()
        if any(format_of(item.file.key, task.format).comes_whole for item in items):
            with explaining(self.settings):
                yield from _one_by_one(read_items(operator, items, task))
            return
        window_bytes = max(1, self.settings.reading.bytes_in_flight // WINDOW_ITEMS)
        source = iterate(
            lambda: read_items(operator, items, task), window_items=WINDOW_ITEMS, window_bytes=window_bytes
        )
        with explaining(self.settings), source as batches:
            yield from batches

    def _formats(self) -> FormatOptions:
        """The options with zone and case of the query, whose settings Spark passes to its tasks.

        ``ConfigInvalid`` if the batch may have been planned by filters in another zone.
        """
        settings, properties = self.settings, worker.task_properties()
        formats = settings.formats
        zone = formats.time_zone if settings.has_zone else properties.get(TIME_ZONE) or formats.time_zone
        is_planned = settings.state_location is None and zone != formats.time_zone
        if is_planned and compares_local_times(settings.reading.filters, self.filtered_schema):
            raise _zone_unknown(f"they were planned in {formats.time_zone!r}, and the zone of the query is {zone!r}")
        exact_case = properties.get(CASE_SENSITIVE, str(formats.exact_case)).lower() == "true"
        return replace(formats, time_zone=zone, exact_case=exact_case)

    def _task(self, partition: ItemsPartition) -> ReadTask:
        settings = self.settings
        quarantine = None
        if settings.quarantines:
            if settings.quarantine_location is not None:
                store, directory = operator_at(settings.quarantine_location, settings.quarantine_operator), ""
            else:
                store, directory = state_operator(settings), DEAD
            quarantine = quarantine_to(store, f"{directory}{partition.label}.jsonl")
        return ReadTask(
            schema=self.schema,
            url=partition.root,
            metadata=settings.metadata_columns,
            format=self._formats(),
            read=settings.reading,
            failures=settings.failures,
            filter_schema=self.filter_schema,
            known_schema=self.known_schema,
            directory_columns=self.directory_columns,
            quarantine=quarantine,
        )


def _one_by_one(batches: AsyncGenerator[pa.RecordBatch, None]) -> Iterator[pa.RecordBatch]:
    """No batch is made while Spark has one, and copies it: each may be a file of any size."""

    async def following() -> pa.RecordBatch | None:
        return await anext(batches, None)

    try:
        while (batch := run(following())) is not None:
            yield batch
    finally:
        run(batches.aclose())


def _zone_unknown(why: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"filters compare with times without a zone, and {why}: give the option timeZone, write the times with their "
        "offsets, or call aioprefetch.spark.register(spark) after the session's zone was set",
        operation="plan_batch",
    )


def check_projection(settings: SourceSettings, schema: StructType) -> None:
    """Raise ``ConfigInvalid`` if the user passed a schema and the option ``columns``, and they differ."""
    if settings.columns is None:
        return
    added = {RESCUED_COLUMN, *settings.metadata_columns}
    present, wanted = ({name.lower() for name in names} - added for names in (schema.names, settings.columns))
    if present != wanted:
        raise ConfigInvalid(
            f"columns={','.join(settings.columns)} goes beside a schema of {','.join(schema.names)}: a schema is the "
            "projection already, so leave columns out",
            operation="configure",
        )
