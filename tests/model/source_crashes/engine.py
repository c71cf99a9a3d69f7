"""A micro-batch engine without a JVM: the calls of Spark in their order, its two logs, and a sink by batch id."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from aioprefetch.operator.operator import Operator
from aioprefetch.source.fetch.source import FileSource
from aioprefetch.source.options import AdmissionOptions
from aioprefetch.source.values import FetchItem, Offset
from tests.model.source_crashes.strikes import Process

# Key, ETag, where the line begins, the line.
Row = tuple[str, str | None, int, bytes]
IDLE_TRIGGERS = 2


@dataclass
class Checkpoint:
    """The checkpoint and the sink of an engine: the offset of each batch before it runs, and the finished batches."""

    offsets: dict[int, str] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    sink: dict[int, list[Row]] = field(default_factory=dict)

    def rows(self) -> Counter[Row]:
        return Counter(row for rows in self.sink.values() for row in rows)


class ConcurrentUpdateError(Exception):
    """Another run of the query has logged this batch: Spark ends then, too."""


def offset_of(text: str) -> Offset:
    return Offset.from_json(json.loads(text))


class Engine:
    """One run of a query on a checkpoint. ``limit`` is what the engine asks of each trigger."""

    def __init__(
        self, process: Process, checkpoint: Checkpoint, source: FileSource, operator: Operator, limit: AdmissionOptions
    ) -> None:
        self.process = process
        self.checkpoint = checkpoint
        self.source = source
        self.operator = operator
        self.limit = limit
        self._batch = -1

    async def run(self, *, available_now: bool) -> None:
        """Take up the batch that had not ended, then all that come, until nothing does."""
        self.source.initial_offset()
        if available_now:
            self.source.prepare_available_now()
        log = self.checkpoint
        self._batch = max(log.offsets, default=-1)
        if self._batch >= 0 and self._batch not in log.commits:
            await self._run_batch(self._batch)
        idle = 0
        while idle < (1 if available_now else IDLE_TRIGGERS):
            idle = 0 if await self.trigger() else idle + 1

    async def trigger(self) -> bool:
        """One trigger; ``False``: there was nothing."""
        batch = self._batch + 1
        start = self._end_of(batch - 1)
        end = await self.source.latest_offset(start, self.limit)
        if end is start:
            return False
        assert json.dumps(end.to_json()) != json.dumps(start.to_json())
        await self._durably("offset log", lambda: self._log_offset(batch, json.dumps(end.to_json())))
        self._batch = batch
        if batch > 0:
            await self.source.commit(self._end_of(batch - 1))
        await self._run_batch(batch)
        return True

    async def _run_batch(self, batch: int) -> None:
        parts = await self.source.partitions(self._end_of(batch - 1), self._end_of(batch))
        rows = [row for part in parts for item in part for row in await read_rows(self.operator, item)]
        await self._durably("sink", lambda: self.checkpoint.sink.__setitem__(batch, rows))
        await self._durably("commit log", lambda: self.checkpoint.commits.add(batch))

    def _end_of(self, batch: int) -> Offset:
        return self.source.initial_offset() if batch < 0 else offset_of(self.checkpoint.offsets[batch])

    def _log_offset(self, batch: int, text: str) -> None:
        if batch in self.checkpoint.offsets:
            raise ConcurrentUpdateError(batch)
        self.checkpoint.offsets[batch] = text

    async def _durably(self, name: str, write: Callable[[], object]) -> None:
        async def work() -> None:
            write()

        await self.process.step(f"engine {name}", work)


async def read_rows(operator: Operator, item: FetchItem) -> list[Row]:
    """The lines of a file that start in an item, read in the plainest way."""
    data = await operator.read(item.file.key, if_match=item.file.etag)
    assert len(data) == item.file.size
    rows, position = [], 0
    for line in data.splitlines(keepends=True):
        if item.start <= position < item.stop:
            rows.append((item.file.key, item.file.etag, position, line))
        position += len(line)
    return rows
