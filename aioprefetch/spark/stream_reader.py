"""A stream of files: a thin shell over ``FileSource``, driven by the micro-batch engine.

Spark makes a reader in the process that plans the reading function, and another one in a process that lives as long
as the query; only there it is asked for offsets, and only there the source is opened.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from aioprefetch.errors import StateConflict
from aioprefetch.runtime.events import logger
from aioprefetch.source.fetch.cleaning import CleanOptions, move_directories
from aioprefetch.source.fetch.source import FileSource, StateLocation
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.formats import can_split
from aioprefetch.source.offset import Offset
from aioprefetch.source.options import AdmissionOptions
from aioprefetch.spark.inference import Inferred, file_fields_of_stream
from aioprefetch.spark.operators import explaining, operator_at, source_operator, state_operator
from aioprefetch.spark.settings import SourceSettings
from aioprefetch.spark.stream_metadata import keep_stream, resolved
from aioprefetch.spark.task_reader import ItemsPartition, TaskReader, check_projection
from aioprefetch.sync import run

T = TypeVar("T")

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
        self._settings = self._given = settings
        self._reader = TaskReader(settings, schema, file_fields_of_stream(settings, schema, inferred))
        self._source: FileSource | None = None
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are Spark's names
        """The offset before the first file."""
        return self._run(self._initial_offset())

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
        after = self._run(self._latest_offset(before, _admission(limit)))
        is_waiting = self._source is not None and self._source.is_waiting
        if after is before and not before.files and not is_waiting and not self._has_warned:
            self._has_warned = True
            listing = self._settings.listing
            which = "" if listing.glob is None else f" with glob={listing.glob!r}"
            logger.warning("there are no files in %s%s so far; the stream waits for them", self._root, which)
        return start if after is before else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The known end of the files, for progress."""
        latest = None if self._source is None else self._source.report_latest()
        return None if latest is None else latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The items of a batch, the same for each call."""
        first, last = Offset.from_json(start), Offset.from_json(end)
        parts = self._run(self._partitions(first, last))
        return [ItemsPartition(items, root=self._root, label=f"{last.seq:012}-{n}") for n, items in enumerate(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a partition, in a task."""
        return self._reader.batches(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The engine has finished all up to ``end``: cleaning goes on in the background."""
        self._run(self._commit(Offset.from_json(end)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Deliver what is there now, then nothing more."""
        self._run(self._prepare_available_now())

    def stop(self) -> None:
        """Close the source, if Spark calls this. Nothing durable depends on it."""
        source, self._source = self._source, None
        if source is not None:
            run(source.aclose())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with explaining(self._settings):
            try:
                return run(coroutine)
            except StateConflict as error:
                if self._source is None or not self._source.state.is_overtaken:
                    raise
                raise _overtaken(self._settings, error) from error

    @property
    def _root(self) -> str:
        """The directory that is listed: known for certain once the source is open."""
        return self._settings.location.root

    async def _initial_offset(self) -> dict[str, Any]:
        return (await self._opened()).initial_offset().to_json()

    async def _latest_offset(self, start: Offset, limit: AdmissionOptions) -> Offset:
        return await (await self._opened()).latest_offset(start, limit)

    async def _partitions(self, start: Offset, end: Offset) -> list[list[FetchItem]]:
        return await (await self._opened()).partitions(start, end)

    async def _commit(self, end: Offset) -> None:
        await (await self._opened()).commit(end)

    async def _prepare_available_now(self) -> None:
        (await self._opened()).prepare_available_now()

    async def _opened(self) -> FileSource:
        """The source, opened by the first call. Spark makes one call after the other."""
        if self._source is None:
            store = state_operator(self._settings)
            settings = await resolved(self._settings, store)
            source = await _open(settings)
            try:
                await keep_stream(settings, store, given=self._given)
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
