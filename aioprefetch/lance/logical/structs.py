"""Structs without nulls: a column that says so, and the children in columns of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from aioprefetch.lance.logical.portions import StructPortion
from aioprefetch.lance.logical.progress import RowProgress
from aioprefetch.lance.logical.protocols import LogicalDecoder, LogicalField, RowMap
from aioprefetch.lance.physical.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler, PageIo

# Pages of children, by the index of the child.
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
        """For the pages of one scheduler."""
        return StructDecoder([child.decoder() for child in self.children])

    def portion(self) -> StructPortion:
        """For rows of its decoders."""
        return StructPortion(self.kind, [child.portion() for child in self.children])


class StructScheduler(RowProgress):
    """The pages of the children in row-major order, as for the whole file."""

    def __init__(self, children: Sequence[ColumnScheduler[Any]], rows: int) -> None:
        self._children = children
        super().__init__(rows)

    def schedule_next(self, io: PageIo) -> StructPage:
        """Schedule pages until every child has got further."""
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
        """Pages of children."""
        for index, part in page:
            self._children[index].accept(part)

    def want(self, rows: int) -> None:
        """Of every child."""
        for child in self._children:
            child.want(rows)

    async def wait(self, rows: int) -> None:
        """For every child."""
        self.want(rows)
        for child in self._children:
            await child.wait(rows)

    def loaded_rows(self, most: int) -> int:
        """The fewest of all children."""
        for child in self._children:
            most = min(most, child.loaded_rows(most))
        return most

    def size_bytes(self, rows: int) -> int:
        """Of all children."""
        return sum(child.size_bytes(rows) for child in self._children)

    def take(self, rows: int, portion: StructPortion) -> None:
        """Move the next rows of every child."""
        for child, part in zip(self._children, portion.children, strict=True):
            child.take(rows, part)
        portion.rows += rows

    def close(self) -> None:
        """Of every child."""
        for child in self._children:
            child.close()
