"""Structs without nulls, whose children have other columns; and the wrappers of top-level fields for the two loops.

Errors of a top-level field name the field and the file. Errors of numpy and Arrow become ``UntrustedMetadata``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from aioprefetch.errors import Error, UntrustedMetadata
from aioprefetch.lance.field_decoder import ArrayTask
from aioprefetch.lance.logical.portions import StructPortion, task_of
from aioprefetch.lance.logical.protocols import LogicalDecoder, LogicalField, RowMap, RowProgress
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo

# Pages of children, each with the index of the child.
StructPage = list[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class StructField:
    """A struct of other fields, all of the same ``rows``."""

    children: Sequence[LogicalField]
    kind: pa.DataType
    rows: int

    def scheduler(self, ranges: RowRanges, row_of: RowMap) -> StructScheduler:
        """The pages of ``ranges`` of all children."""
        return StructScheduler([child.scheduler(ranges, row_of) for child in self.children], ranges.rows)

    def decoder(self) -> StructDecoder:
        """A decoder for the pages of one scheduler."""
        return StructDecoder([child.decoder() for child in self.children])

    def portion(self) -> StructPortion:
        """A portion for rows of its decoders."""
        return StructPortion(self.kind, [child.portion() for child in self.children])


class StructScheduler(RowProgress):
    """Schedules the pages of the children in row-major order."""

    def __init__(self, children: Sequence[ColumnScheduler[Any]], rows: int) -> None:
        self._children = children
        super().__init__(rows)

    def schedule_next(self, io: PageIo) -> StructPage:
        """Schedule pages until the number of scheduled rows grows for every child."""
        if not self._children:
            self.rows_scheduled = self._rows
            return []
        pages: StructPage = []
        covered = self.rows_scheduled
        while self.rows_scheduled <= covered and not self.is_finished:
            for index, child in enumerate(self._children):
                if child.rows_scheduled <= covered:
                    pages.append((index, child.schedule_next(io)))
            self.rows_scheduled = min(child.rows_scheduled for child in self._children)
        return pages


class StructDecoder:
    """The decoders of the children, side by side."""

    def __init__(self, children: Sequence[LogicalDecoder]) -> None:
        self._children = children

    def accept(self, page: StructPage) -> None:
        """Append pages to the decoders of the children."""
        for index, part in page:
            self._children[index].accept(part)

    def promote(self, rows: int) -> None:
        for child in self._children:
            child.promote(rows)

    async def wait(self, rows: int) -> None:
        self.promote(rows)
        for child in self._children:
            await child.wait(rows)

    def loaded_rows(self, rows: int) -> int:
        for child in self._children:
            rows = min(rows, child.loaded_rows(rows))
        return rows

    def size_bytes(self, rows: int) -> int:
        return sum(child.size_bytes(rows) for child in self._children)

    def take(self, rows: int, portion: StructPortion) -> None:
        for child, part in zip(self._children, portion.children, strict=True):
            child.take(rows, part)
        portion.rows += rows

    def close(self) -> None:
        for child in self._children:
            child.close()


@contextmanager
def blamed_on(name: str, path: str) -> Iterator[None]:
    """Add field and file to errors, and turn errors of numpy and Arrow into ``UntrustedMetadata``."""
    try:
        yield
    except Error as error:
        raise error.add_context(operation="scan", path=path, field=name) from error.__cause__
    except (pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
        message = f"the pages of field {name!r} contradict themselves: {error}"
        raise UntrustedMetadata(message, operation="scan", path=path) from error


class TopScheduler:
    """The scheduler of a top-level field. Its errors name the field."""

    def __init__(self, scheduler: ColumnScheduler[Any], name: str, path: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self._path = path

    @property
    def rows_scheduled(self) -> int:
        """The number of rows that are scheduled."""
        return self._scheduler.rows_scheduled

    @property
    def is_finished(self) -> bool:
        """Whether all wanted rows are scheduled."""
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
        """Append a page of the field's scheduler."""
        self._decoder.accept(page)

    def promote(self, rows: int) -> None:
        """Promote the reads of the next ``rows`` rows, as far as they are planned."""
        with blamed_on(self._name, self._path):
            self._decoder.promote(rows)

    async def wait(self, rows: int) -> None:
        """Wait until the next rows can be drained."""
        with blamed_on(self._name, self._path):
            await self._decoder.wait(rows)

    def loaded_rows(self, rows: int) -> int:
        """The number of the next rows that could be drained without waiting."""
        with blamed_on(self._name, self._path):
            return self._decoder.loaded_rows(rows)

    def size_bytes(self, rows: int) -> int:
        """The approximate Arrow memory of the next rows."""
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
