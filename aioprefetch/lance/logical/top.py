"""A top-level field as the loops see it: errors name the field and the file, and none is of numpy or Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from aioprefetch.errors import Error, UntrustedMetadata
from aioprefetch.lance.logical.field import ArrayTask
from aioprefetch.lance.logical.portions import task_of
from aioprefetch.lance.logical.protocols import LogicalField
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo


@contextmanager
def blamed_on(name: str, path: str) -> Iterator[None]:
    """Errors say which field of which file they come from; what is none of ours is ``UntrustedMetadata``."""
    try:
        yield
    except Error as error:
        raise error.add_context(operation="scan", path=path, field=name) from error.__cause__
    except (pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
        message = f"the pages of field {name!r} contradict themselves: {error}"
        raise UntrustedMetadata(message, operation="scan", path=path) from error


class TopScheduler:
    """The scheduler of a field, with its name in errors."""

    def __init__(self, scheduler: ColumnScheduler[Any], name: str, path: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self._path = path

    @property
    def rows_scheduled(self) -> int:
        """How many rows of the scan its pages cover so far."""
        return self._scheduler.rows_scheduled

    @property
    def is_finished(self) -> bool:
        """Whether the last page was scheduled."""
        return self._scheduler.is_finished

    def schedule_next(self, io: PageIo) -> Any:
        """Submit the reads of the next page."""
        with blamed_on(self._name, self._path):
            return self._scheduler.schedule_next(io)


@dataclass(frozen=True, slots=True)
class _Decode:
    task: ArrayTask
    name: str
    path: str

    def __call__(self) -> pa.Array:
        with blamed_on(self.name, self.path):
            return self.task.decode()


class TopDecoder:
    """``FieldDecoder`` of a field of version 2.0."""

    def __init__(self, field: LogicalField, name: str, path: str) -> None:
        self._field = field
        self._decoder = field.decoder()
        self._name = name
        self._path = path

    def accept(self, page: Any) -> None:
        """A page of the field's scheduler."""
        self._decoder.accept(page)

    def want(self, rows: int) -> None:
        """Want every read that is known to be needed for the next rows."""
        with blamed_on(self._name, self._path):
            self._decoder.want(rows)

    async def wait(self, rows: int) -> None:
        """Wait until the next rows can be drained."""
        with blamed_on(self._name, self._path):
            await self._decoder.wait(rows)

    def loaded_rows(self, most: int) -> int:
        """How many of the next rows could be drained at once."""
        with blamed_on(self._name, self._path):
            return self._decoder.loaded_rows(most)

    def size_bytes(self, rows: int) -> int:
        """About the Arrow memory of the next rows."""
        with blamed_on(self._name, self._path):
            return self._decoder.size_bytes(rows)

    def drain(self, rows: int) -> ArrayTask:
        """Take the next rows."""
        with blamed_on(self._name, self._path):
            portion = self._field.portion()
            self._decoder.take(rows, portion)
            task = task_of(portion)
        return ArrayTask(_Decode(task, self._name, self._path), task.spent, task.is_cheap)

    def close(self) -> None:
        """Release every page that was not drained."""
        self._decoder.close()
