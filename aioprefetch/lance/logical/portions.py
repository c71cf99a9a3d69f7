"""Portions: drained rows that are not yet decoded, in a tree with the shape of the type.

Decoders add rows of several pages to a portion, so that the lists of these pages share one array of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from aioprefetch.lance.field_decoder import ArrayTask
from aioprefetch.lance.output import AnyPage, arrow_buffer, assemble, dictionary, is_small_rest
from aioprefetch.lance.physical.basic import BasicRows, NullRows
from aioprefetch.lance.physical.dictionary import DictionaryRows
from aioprefetch.lance.physical.memory import allocate, check_offsets
from aioprefetch.lance.physical.offsets import Ends
from aioprefetch.lance.physical.protocols import OutputBuffer, PageRows
from aioprefetch.lance.physical.strings import new_offsets, put_validity
from aioprefetch.scheduler.pages import PendingRead

# Up to this size copying and checking takes less time than a change of thread.
CHEAP_BYTES_MAX = 64 << 10


class Portion(Protocol):
    """Drained rows of one field."""

    def decode(self) -> pa.Array:
        """The rows as an array. Safe on any thread."""
        ...

    def reads(self) -> list[PendingRead]:
        """The reads of the pages that end with these rows."""
        ...

    @property
    def is_cheap(self) -> bool:
        """Whether ``decode`` is too fast to be worth another thread."""
        ...


def task_of(portion: Portion) -> ArrayTask:
    """The task that decodes a portion."""
    return ArrayTask(portion.decode, portion.reads(), portion.is_cheap)


class PrimitivePortion:
    """Rows of pages of a single column."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._pieces: list[PageRows[AnyPage]] = []
        self._reads: list[PendingRead] = []

    def add(self, piece: PageRows[AnyPage], reads: Sequence[PendingRead]) -> None:
        """Add rows of a page, with the reads of the page if they are its last rows."""
        self._pieces.append(piece)
        self._reads.extend(reads)

    def decode(self) -> pa.Array:
        """The rows of one page as a slice, those of several pages bridged into one array."""
        if not pa.types.is_dictionary(self._kind):
            return assemble(self._kind, self._pieces)
        dictionaries = [piece.page.items.array() for piece in self._pieces if isinstance(piece.page, DictionaryRows)]
        return dictionary(self._kind, self._pieces, dictionaries)

    def reads(self) -> list[PendingRead]:
        return self._reads

    @property
    def is_cheap(self) -> bool:
        """Whether the rows are a slice of one page of plain values, or small."""
        if any(not isinstance(piece.page, BasicRows | NullRows) for piece in self._pieces):
            return False
        if len(self._pieces) == 1 and not is_small_rest(self._pieces[0]):  # type: ignore[arg-type]
            return True
        return sum(piece.page.size_bytes(piece.skip, piece.rows) for piece in self._pieces) <= CHEAP_BYTES_MAX


class ListPortion:
    """Rows of pages of lists. Their items are in another portion."""

    def __init__(self, kind: pa.DataType, items: Portion) -> None:
        self._kind = kind
        self._width = 8 if pa.types.is_large_list(kind) else 4
        self._pieces: list[PageRows[Ends]] = []
        self._reads: list[PendingRead] = []
        self.items = items

    def add(self, piece: PageRows[Ends], reads: Sequence[PendingRead]) -> None:
        """Add lists whose items were added to ``items``, with the reads of their page if they are its last lists."""
        self._pieces.append(piece)
        self._reads.extend(reads)

    def decode(self) -> pa.Array:
        """The lists as one array over the items of all pages."""
        rows = sum(piece.rows for piece in self._pieces)
        offsets = new_offsets(rows, self._width)
        has_nulls = any(piece.page.has_nulls(piece.skip, piece.rows) for piece in self._pieces)
        validity = OutputBuffer(allocate((rows + 7) // 8)) if has_nulls else None
        items = at = 0
        for piece in self._pieces:
            start, end = piece.page.bounds(piece.skip, piece.rows)
            check_offsets(items + end - start, self._width)
            is_valid = piece.page.write(piece.skip, piece.rows, items, offsets[at + 1 : at + 1 + piece.rows])
            put_validity(validity, is_valid, piece.rows)
            items += end - start
            at += piece.rows
        buffers = [None if validity is None else arrow_buffer(validity.memory), arrow_buffer(offsets)]
        return pa.Array.from_buffers(self._kind, rows, buffers, children=[self.items.decode()])

    def reads(self) -> list[PendingRead]:
        return [*self._reads, *self.items.reads()]

    @property
    def is_cheap(self) -> bool:
        """Whether the lists are few and their items are cheap to decode."""
        return sum(piece.rows for piece in self._pieces) * 8 <= CHEAP_BYTES_MAX and self.items.is_cheap


class StructPortion:
    """Rows of a struct, with a portion of each child."""

    def __init__(self, kind: pa.DataType, children: Sequence[Portion]) -> None:
        self._kind = kind
        self.children = children
        self.rows = 0

    def decode(self) -> pa.Array:
        """The children's arrays as a struct without nulls."""
        arrays = [child.decode() for child in self.children]
        return pa.Array.from_buffers(self._kind, self.rows, [None], children=arrays)

    def reads(self) -> list[PendingRead]:
        return [read for child in self.children for read in child.reads()]

    @property
    def is_cheap(self) -> bool:
        return all(child.is_cheap for child in self.children)
