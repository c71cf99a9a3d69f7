"""A bucket and a state in memory, and an engine that asks for all batches."""

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.fetch.source import FileSource
from aioprefetch.source.options import AdmissionOptions, ListOptions
from aioprefetch.source.values import FetchItem, Offset, SourceFile
from aioprefetch.values import WriteRequest

ALL = AdmissionOptions()


def can_split(file: SourceFile) -> bool:
    return file.key.endswith(".jsonl")


class Scene:
    """A bucket and a state in memory, and sources over them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.bucket = Memory("")
        self.states = Memory("")
        self.stack = stack
        self.operator = Operator.bare(self.bucket)
        self.state_operator = Operator.bare(self.states)
        stack.push_async_callback(self.operator.aclose)
        stack.push_async_callback(self.state_operator.aclose)

    def put(self, *keys: str, size: int = 10, modified_ms: int | None = None) -> None:
        objects = self.bucket.store.objects
        for key in keys:
            self.bucket.store.put(WriteRequest(path=key), b"x" * size)
            if modified_ms is not None:
                modified = datetime.fromtimestamp(modified_ms / 1000, UTC)
                objects[key] = replace(objects[key], metadata=replace(objects[key].metadata, last_modified=modified))

    async def open(self, directory: str = "s/", **options: Any) -> FileSource:
        """As a process would that has just started; the one before it may have been killed."""
        settings: dict[str, Any] = {
            "operator": self.operator,
            "state_operator": self.state_operator,
            "url": "memory://bucket",
            "list_options": ListOptions(interval_seconds=0),
            "can_split": can_split,
        }
        source = await FileSource.open(**(settings | {"state_directory": directory} | options))
        self.stack.push_async_callback(source.aclose)
        return source

    @property
    def list_requests(self) -> int:
        return self.operator.statistics["object_list_request"]


async def batches_of(source: FileSource, start: Offset, limit: AdmissionOptions | None = None) -> list[list[str]]:
    """The keys of all batches from an offset on, until there is nothing twice in a row."""
    batches, idle = [], 0
    while idle < 2:
        end = await source.latest_offset(start, limit)
        if end is start:
            idle += 1
            continue
        batches.append(sorted(item.file.key for item in items_of(await source.partitions(start, end))))
        start, idle = end, 0
    return batches


def items_of(parts: list[list[FetchItem]]) -> list[FetchItem]:
    return [item for part in parts for item in part]
