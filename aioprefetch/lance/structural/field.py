"""The decoder of a top-level field: takes pages of all its leaves, gives arrays of any number of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from aioprefetch.errors import Error, Unsupported
from aioprefetch.lance.logical.field import ArrayTask
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.assembly import assemble_field
from aioprefetch.lance.structural.bytes_of import damaged
from aioprefetch.lance.structural.column import LeafPage
from aioprefetch.lance.structural.pages import LoadedRows
from aioprefetch.lance.structural.segment import Segment
from aioprefetch.scheduler.pages import PendingRead


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one page: ``rows`` of the wanted ones behind the first ``skip``."""

    page: LeafPage
    skip: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """The same, for the thread that decodes: it shares nothing with the loop that changes."""

    rows_of_page: LoadedRows
    skip: int
    rows: int
    together: int

    def segments(self) -> Iterator[Segment]:
        return self.rows_of_page.segments(self.skip, self.rows, self.together)


class StructuralField:
    """``FieldDecoder`` of a field whose ``leaves`` leaf columns are decoded separately and put together by levels."""

    def __init__(self, field: Field, leaves: int, path: str) -> None:
        self._field = field
        self._path = path
        self._pages: list[deque[LeafPage]] = [deque() for _ in range(leaves)]
        self._drained = [0] * leaves  # Of the first page of each leaf.

    def accept(self, page: LeafPage) -> None:
        """See ``FieldDecoder``."""
        self._pages[page.leaf].append(page)

    def want(self, rows: int) -> None:
        """See ``FieldDecoder``."""
        for leaf in range(len(self._pages)):
            for part in self._parts(leaf, rows):
                part.page.loading.want()

    async def wait(self, rows: int) -> None:
        """See ``FieldDecoder``."""
        self.want(rows)
        for leaf in range(len(self._pages)):
            for part in self._parts(leaf, rows):
                try:
                    await part.page.loading.wait()
                except Error as error:
                    raise self._explained(error) from error.__cause__

    def loaded_rows(self, rows: int) -> int:
        """See ``FieldDecoder``."""
        return min(self._loaded(leaf, rows) for leaf in range(len(self._pages)))

    def _loaded(self, leaf: int, rows: int) -> int:
        loaded = 0
        for part in self._parts(leaf, rows):
            if not part.page.loading.is_loaded:
                break
            loaded += part.rows
        return loaded

    def size_bytes(self, rows: int) -> int:
        """See ``FieldDecoder``. An estimate from what the pages say of themselves."""
        parts = (part for leaf in range(len(self._pages)) for part in self._parts(leaf, rows))
        return int(sum(part.rows * part.page.row_bytes for part in parts))

    def drain(self, rows: int) -> ArrayTask:
        """See ``FieldDecoder``. The task decodes; nothing is decoded here."""
        spent: list[PendingRead] = []
        taken: list[list[_Taken]] = []
        for leaf, pages in enumerate(self._pages):
            parts = self._parts(leaf, rows)
            taken.append(
                [_Taken(part.page.loading.decoder, part.skip, part.rows, part.page.together) for part in parts]
            )
            for part in parts:
                if part.skip + part.rows == part.page.rows:
                    spent += pages.popleft().loading.reads
                    self._drained[leaf] = 0
                else:
                    self._drained[leaf] = part.skip + part.rows
        return ArrayTask(lambda: self._decode(rows, taken), spent)

    def close(self) -> None:
        """See ``FieldDecoder``."""
        for pages in self._pages:
            while pages:
                pages.popleft().loading.release()

    def _parts(self, leaf: int, rows: int) -> list[_Part]:
        parts: list[_Part] = []
        skip = self._drained[leaf]
        for page in self._pages[leaf]:
            if not rows:
                break
            count = min(rows, page.rows - skip)
            parts.append(_Part(page, skip, count))
            rows -= count
            skip = 0
        return parts

    def _decode(self, rows: int, taken: Sequence[Sequence[_Taken]]) -> pa.Array:
        """On any thread: touches the pages alone, which do not change."""
        try:
            segments = ((segment for one in leaf for segment in one.segments()) for leaf in taken)
            return assemble_field(self._field, rows, segments)
        except Error as error:
            raise self._explained(error) from error.__cause__
        except MemoryError as error:
            message = "a batch of its rows does not fit into memory: ask for fewer rows a batch"
            raise self._explained(Unsupported(message, operation="scan")) from error
        except (pa.ArrowException, ValueError, IndexError, TypeError, OverflowError) as error:
            # Every number is checked where it is read; this is for what a check has missed.
            raise self._explained(damaged(f"its pages cannot be decoded: {error}")) from error

    def _explained(self, error: Error) -> Error:
        return error.add_context(operation="scan", path=self._path, field=self._field.name)
