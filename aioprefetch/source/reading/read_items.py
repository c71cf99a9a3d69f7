"""Items read into batches of one schema: ahead in a window, with policies for failures."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing

import pyarrow as pa

from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator
from aioprefetch.source.columns.row_filter import RowFilter
from aioprefetch.source.files import FetchItem
from aioprefetch.source.formats import FoundBatch, format_of
from aioprefetch.source.formats.corruption import UNDECODABLE, undecodable
from aioprefetch.source.formats.small_files import SmallText
from aioprefetch.source.reading.failures import Failures
from aioprefetch.source.reading.layout import DirectoryLayout, Layouts, Records
from aioprefetch.source.reading.output import Output
from aioprefetch.source.reading.task import ReadTask
from aioprefetch.source.reading.window import ItemWindow

# The text of small files that is parsed at once, which takes some milliseconds.
TOGETHER_BYTES = 256 << 10


async def read_items(
    operator: Operator, items: Iterable[FetchItem], task: ReadTask
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The records of the items in their order, in batches of exactly ``task.schema``, at most ``batch_rows`` each.

    While the records of one item are consumed, later items are fetched and decoded (``ItemWindow``). Each is read at
    the version that it names. An item whose file is missing, changed or corrupt fails the batch with an error that
    names it, or by ``task.failures`` is left out as a whole: its rows are held back until all of it is decoded. The
    rows of an item that decodes to more than half of ``bytes_in_flight`` are released earlier; if it turns out to be
    corrupt after that, the batch fails under each policy. The lines of quarantined files go to ``task.quarantine``
    after the last batch.

    An early close or a cancellation stops all work and returns all memory. ``InvalidArgument`` for filters that do not
    fit the schema is raised before the first request.
    """
    row_filter = _row_filter(task)
    failures, output = Failures(task), Output(task, row_filter)
    reading = _ItemReader(operator, task, failures)
    window = ItemWindow(operator.runtime(), items, reading.read, task.read, failures)
    try:
        while (read := await window.next()) is not None:
            for records in reading.decoded(*read):
                for batch in output.add(records):
                    yield batch
        for records in reading.rest():
            for batch in output.add(records):
                yield batch
        for batch in output.end():
            yield batch
        await failures.write_down()
    finally:
        await window.aclose()


def _row_filter(task: ReadTask) -> RowFilter | None:
    if task.read.filters is None:
        return None
    data = task.data_schema
    added = [field for field in task.schema if field.name not in data.names]
    return RowFilter(task.read.filters, pa.schema([*data, *added]), time_zone=task.format.time_zone)


class _ItemReader:
    """Reads one item at a time, and gathers small files until it pays to parse them."""

    def __init__(self, operator: Operator, task: ReadTask, failures: Failures) -> None:
        self._operator = operator
        self._format = task.format
        self._failures = failures
        self._layouts = Layouts(operator, task)
        self._gathered: list[tuple[FetchItem, SmallText]] = []
        self._gathered_bytes = 0

    async def read(self, item: FetchItem) -> AsyncGenerator[Records | SmallText, None]:
        """The records of an item, or the whole text of a small file that is parsed together with others."""
        if not self._layouts.may_match(item.file.key):
            return
        layout = self._layouts.of(item.file.key)
        try:
            async with aclosing(self._pieces(item, layout)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, SmallText):
                        yield piece
                    elif (records := layout.records(item.file, piece)) is not None:
                        yield records
        except UNDECODABLE as error:
            raise undecodable(item.file.key, error) from error

    def _pieces(self, item: FetchItem, layout: DirectoryLayout) -> AsyncGenerator[SmallText | FoundBatch, None]:
        if layout.small.suits(item):
            return layout.small.read(item)
        return format_of(item.file.key, self._format).read(self._operator, item, layout.want)

    def decoded(self, item: FetchItem, piece: Records | SmallText) -> Iterator[Records]:
        """The records that are complete with this piece, in the order of the pieces."""
        if isinstance(piece, Records):
            yield from self.rest()
            yield piece
            return
        if self._gathered and not self._is_alike(*self._gathered[-1], item, piece):
            yield from self.rest()
        self._gathered.append((item, piece))
        self._gathered_bytes += piece.nbytes
        if self._gathered_bytes >= TOGETHER_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Records]:
        """The records of the gathered small files, parsed together if possible, otherwise one by one."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        together = self._together(gathered)
        if together is not None:
            yield together
            return
        for item, text in gathered:
            try:
                records = self._alone(item, text)
            except Error as error:
                if not self._failures.leave_out(item, error):
                    self._failures.explain(item, error, is_half_taken=False)
                    raise
                continue
            if records is not None:
                yield records

    def _is_alike(self, item: FetchItem, text: SmallText, other: FetchItem, other_text: SmallText) -> bool:
        layouts = self._layouts
        return text.likeness == other_text.likeness and layouts.of(item.file.key) is layouts.of(other.file.key)

    def _together(self, gathered: Sequence[tuple[FetchItem, SmallText]]) -> Records | None:
        if len(gathered) < 2:
            return None
        files = [item.file for item, _ in gathered]
        layout = self._layouts.of(files[0].key)
        joined = layout.small.together(files, [text for _, text in gathered])
        if joined is None:
            return None
        try:
            return layout.joined(files, joined)
        except (Error, *UNDECODABLE):
            return None  # Parsed one by one, the file at fault is found.

    def _alone(self, item: FetchItem, text: SmallText) -> Records | None:
        layout = self._layouts.of(item.file.key)
        try:
            batch = layout.small.alone(item.file, text)
            return None if batch is None else layout.records(item.file, batch)
        except UNDECODABLE as error:
            raise undecodable(item.file.key, error) from error
