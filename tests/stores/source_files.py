"""A store for tests of reading: objects in memory, requests counted, answers that take their time."""

import asyncio
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.reading import ReadTask, read_items
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.values import ReadReply, ReadRequest
from tests.stores.verb_layer import VerbLayer

URL = "s3://bucket/landing"


@dataclass
class Seen:
    """What a store was asked, and how it behaves."""

    latency_seconds: float = 0.0
    slow: dict[str, float] = field(default_factory=dict)
    failing: dict[str, Error] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0


@dataclass(frozen=True)
class SeenLayer(VerbLayer):
    """Counts reads and delays them."""

    seen: Seen

    async def _wait(self, path: str) -> None:
        seen = self.seen
        seen.paths.append(path)
        seen.in_flight += 1
        seen.most_in_flight = max(seen.most_in_flight, seen.in_flight)
        try:
            await asyncio.sleep(seen.slow.get(path, seen.latency_seconds))
        finally:
            seen.in_flight -= 1
        if path in seen.failing:
            raise seen.failing[path]

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        await self._wait(request.path)
        return await inner.read(request, sink)


class Shelf:
    """Objects, the operator that reads them, and what the store saw. ``base`` writes; closing it closes both."""

    def __init__(self, **options: Any) -> None:
        self.seen = Seen()
        self.base = Operator(Memory(), **options)
        self.operator = self.base.layer(SeenLayer(self.seen))

    async def put(self, key: str, data: bytes, *, modified_ms: int | None = None) -> SourceFile:
        """Write an object, as a listing tells it."""
        written = await self.base.write(key, data)
        return SourceFile(key, len(data), written.etag, None, modified_ms)

    async def delete(self, key: str) -> None:
        await self.base.delete(key)

    async def __aenter__(self) -> "Shelf":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.base.aclose()

    async def read(self, items: Iterable[FetchItem | SourceFile], task: ReadTask) -> list[pa.RecordBatch]:
        """All batches."""
        whole = [FetchItem(one) if isinstance(one, SourceFile) else one for one in items]
        return [batch async for batch in read_items(self.operator, whole, task)]

    async def rows(self, items: Iterable[FetchItem | SourceFile], task: ReadTask) -> list[dict[str, Any]]:
        """All rows; every batch has the schema."""
        batches = await self.read(items, task)
        for batch in batches:
            assert batch.schema.equals(task.schema)
            assert 0 < batch.num_rows <= task.read.batch_rows
            batch.validate(full=True)
        return [row for batch in batches for row in batch.to_pylist()]


def jsonl(rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(table: pa.Table, **options: Any) -> bytes:
    """The bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()
