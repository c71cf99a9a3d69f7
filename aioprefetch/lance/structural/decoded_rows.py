"""Decoded rows of a page: the levels of all their entries, and the values of the visible ones.

**Levels.** Repetition and definition levels tell how values are nested. 0 is the inner-most level (in Parquet the
outer-most). Definition 0 is a valid item; the codes of the layers follow from inner to outer: a nullable item takes
one, a list that may be null or may be empty one, a list that may be both takes null, then empty. The highest repetition
level starts a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from aioprefetch.errors import Unsupported
from aioprefetch.lance.structural import chunk_values
from aioprefetch.lance.structural.chunk_values import ChunkBuffer
from aioprefetch.lance.structural.layouts import (
    Encoding,
    Flat,
    General,
    InlineBitpacked,
    OutOfLineBitpacked,
    RepDefLayer,
    RepDefLayers,
    Rle,
    max_definition,
    max_repetition,
    max_visible,
)
from aioprefetch.lance.structural.values import (
    Fixed,
    Flags,
    Levels,
    Nulls,
    Positions,
    Values,
    damaged,
    pick,
)
from aioprefetch.ranges import Range, total_length
from aioprefetch.row_ranges import RowRanges

LEVEL_BITS = 16


def decode_levels(encoding: Encoding, pieces: ChunkBuffer, counts: Positions) -> Levels:
    """The levels of all chunks; chunk i has ``counts[i]`` levels.

    ``UntrustedMetadata`` if the buffer does not hold them.
    """
    if isinstance(encoding, General):
        bytes_max = int(counts.max(initial=0)) * 3 + 4096  # Levels are largest in runs of length one.
        pieces = chunk_values.decompressed(encoding.scheme, pieces, np.full_like(pieces.sizes, bytes_max))
        return decode_levels(encoding.values, pieces, counts)
    if not isinstance(encoding, Flat | Rle | OutOfLineBitpacked | InlineBitpacked) or encoding.bits != LEVEL_BITS:
        raise Unsupported(f"levels in {encoding!r} are not supported"[:300], operation="scan")
    buffers = chunk_values.split_runs(pieces) if isinstance(encoding, Rle) else [pieces]
    values = chunk_values.decode(encoding, buffers, counts)
    assert isinstance(values, Fixed)
    return np.ascontiguousarray(values.data).view(np.dtype("<u2"))


@dataclass(slots=True)
class Unraveler:
    """Unravels the levels of some rows of a page, inner-most layer first. ``items`` is the number of entries.

    ``validity`` or ``lists`` is called once for each layer, in order; the remaining levels describe the layers around
    it.
    """

    layers: RepDefLayers
    rep: Levels | None
    definition: Levels | None
    items: int
    _layer: int = 0
    _code: int = 0

    @property
    def layer(self) -> RepDefLayer:
        """The next layer. ``UntrustedMetadata`` if the schema nests deeper than the page."""
        if self._layer >= len(self.layers):
            raise damaged("a page has fewer layers than its field")
        return self.layers[self._layer]

    @property
    def has_more(self) -> bool:
        """Whether layers are left."""
        return self._layer < len(self.layers)

    def validity(self) -> tuple[int, Flags | None]:
        """The number of entries of a layer of values or structs, and flags of the valid ones (``None``: all)."""
        layer, level = self.layer, self._code
        if layer.is_list:
            raise damaged("a page has a layer of lists where its field has none")
        self._layer += 1
        self._code += layer.codes
        if self.definition is None:
            if layer is not RepDefLayer.ALL_VALID_ITEM:
                raise damaged("a page without the definition levels that its layers need")
            return self.items, None
        visible = self.definition
        hidden = self._first_hidden()
        if hidden <= max_definition(self.layers):
            visible = visible[visible < hidden]
        return visible.size, None if layer is RepDefLayer.ALL_VALID_ITEM else visible <= level

    def lists(self) -> tuple[Positions, Flags | None]:
        """The ``n + 1`` offsets of the items of ``n`` lists, and flags of the valid lists."""
        layer, level = self.layer, self._code
        if not layer.is_list or self.rep is None:
            raise damaged("a page has no layer of lists where its field has one")
        self._layer += 1
        self._code += layer.codes
        starts = np.flatnonzero(self.rep)
        rep = self.rep[starts] - np.uint16(1)
        if self.definition is None:
            offsets = np.append(starts, self.rep.size).astype(np.int64)
            self.rep = rep
            self.items = starts.size
            return offsets, None
        return self._lists(layer, level, starts.astype(np.int64), rep)

    def _lists(self, layer: RepDefLayer, level: int, starts: Positions, rep: Levels) -> tuple[Positions, Flags | None]:
        assert self.definition is not None
        assert self.rep is not None
        definition = self.definition[starts]
        # Levels up to ``level`` belong to lists with items. Then come the codes of the list itself, then of null
        # structs around it (each is a null list here). Higher levels are null or empty lists further out: no entry
        # here.
        has_item = definition <= level
        hidden = self._first_hidden()
        contributes = np.ones(self.rep.size, np.int64)
        contributes[starts[~has_item]] = 0
        before = np.cumsum(contributes) - contributes
        here = definition < hidden
        offsets = np.append(before[starts[here]], contributes.sum())
        validity: Flags | None = None
        if layer in (RepDefLayer.NULLABLE_LIST, RepDefLayer.NULL_AND_EMPTY_LIST):
            own = definition[here]
            empty = level + 2 if layer is RepDefLayer.NULL_AND_EMPTY_LIST else -1
            validity = (own <= level) | (own == empty)
        self.rep, self.definition, self.items = rep, definition, starts.size
        return offsets, validity

    def _first_hidden(self) -> int:
        """The lowest definition level of a list around this layer. Entries from this level on have no item here."""
        code = self._code
        for layer in self.layers[self._layer :]:
            if layer.is_list:
                break
            code += layer.codes
        return code + 1


def check_levels(rep: Levels | None, definition: Levels | None, max_rep: int, max_def: int) -> None:
    """Raise ``UntrustedMetadata`` for levels that no layer has."""
    if rep is not None and int(rep.max(initial=0)) > max_rep:
        raise damaged(f"a repetition level above {max_rep}")
    if definition is not None and int(definition.max(initial=0)) > max_def:
        raise damaged(f"a definition level above {max_def}")
    if rep is not None and definition is not None and rep.size != definition.size:
        raise damaged(f"{rep.size} repetition levels stand beside {definition.size} definition levels")


# --- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Decoded rows of one page. ``values`` has one entry for each visible item, nulls included."""

    layers: RepDefLayers
    rep: Levels | None
    definition: Levels | None
    values: Values

    def unraveler(self) -> Unraveler:
        """An unraveler of the levels, starting at the inner-most layer."""
        return Unraveler(self.layers, self.rep, self.definition, self.values.count)


def flat_rows(layers: RepDefLayers, definition: Levels | None, values: Values, ranges: RowRanges) -> DecodedRows:
    """Decoded rows of a page without lists: the level and the value of row i are at position i."""
    check_levels(None, definition, 0, max_definition(layers))
    if definition is not None and definition.size != values.count:
        raise damaged(f"{definition.size} definition levels stand beside {values.count} values")
    return DecodedRows(layers, None, _cut(definition, ranges), pick(values, ranges))


def list_rows(
    layers: RepDefLayers, rep: Levels, definition: Levels | None, values: Values | None, ranges: RowRanges
) -> DecodedRows:
    """Decoded rows of a page with lists. ``ranges`` are positions among the levels; each begins at the start of a row.

    ``values`` belong to the visible entries; ``None`` if all entries are null.
    """
    check_levels(rep, definition, max_repetition(layers), max_definition(layers))
    visible_max = max_visible(layers)
    if definition is None or visible_max >= max_definition(layers):
        values = Nulls(rep.size) if values is None else values
        if values.count != rep.size:
            raise damaged(f"{rep.size} levels stand beside {values.count} values")
        return DecodedRows(layers, _cut(rep, ranges), _cut(definition, ranges), pick(values, ranges))
    before = np.zeros(rep.size + 1, np.int64)
    np.cumsum(definition <= visible_max, out=before[1:])
    values = Nulls(int(before[-1])) if values is None else values
    if values.count != before[-1]:
        raise damaged(f"{int(before[-1])} levels want a value, and there are {values.count}")
    items = RowRanges(before[ranges.starts], before[ranges.ends])
    return DecodedRows(layers, _cut(rep, ranges), _cut(definition, ranges), pick(values, items))


def equal_breaks(ranges: RowRanges, rows: int) -> list[int]:
    """The breaks that divide the ranges into groups of ``rows`` rows."""
    return [ranges.row_at(position) for position in range(max(1, rows), ranges.rows, max(1, rows))]


def _cut(levels: Levels | None, ranges: RowRanges) -> Levels | None:
    if levels is None:
        return None
    if len(ranges) == 1:
        return levels[int(ranges.starts[0]) : int(ranges.ends[0])]
    return levels[ranges.numbers]


def row_starts(rep: Levels, layers: RepDefLayers) -> Positions:
    """The positions of the entries that start a row."""
    return np.flatnonzero(rep == max_repetition(layers)).astype(np.int64)


# --- pages ------------------------------------------------------------------------------------------------------------

# Pages up to this size are always read whole.
WHOLE_PAGE_BYTES = 64 << 10
# Larger pages are read whole if at most one row out of this number is unwanted.
_UNWANTED_SHARE = 8


def is_whole(ranges: RowRanges, rows: int, buffers: Sequence[Range]) -> bool:
    """Whether a page is read whole, since it is small, or nearly all of its rows are wanted."""
    size_bytes = total_length(buffers)
    return size_bytes <= WHOLE_PAGE_BYTES or (rows - ranges.rows) * _UNWANTED_SHARE <= rows


class Page(Protocol):
    """A loaded page. Stateless: batches decode different rows of it on several threads."""

    def breaks(self, ranges: RowRanges, rows: int) -> Sequence[int]:
        """Ascending rows before which to divide ``ranges`` into parts that take about the memory of ``rows`` rows.

        Empty if decoding copies no values.
        """

    def decode(self, ranges: RowRanges) -> DecodedRows:
        """Decode ``ranges``, which are loaded."""


class LoadedRows:
    """The loaded, wanted rows of a page. The page is parsed when the first batch is decoded."""

    def __init__(self, ranges: RowRanges, page: Page | Deferred) -> None:
        self.rows = ranges.rows
        self._ranges = ranges
        self._page = page

    def decoded_parts(self, skip: int, rows: int, together: int) -> Iterator[DecodedRows]:
        """Decode ``rows`` of the wanted rows after the first ``skip``, in order; on any thread.

        More than ``together`` rows are decoded in parts, whose temporary memory is small compared with the result.
        """
        page = self._page.get() if isinstance(self._page, Deferred) else self._page
        first, last = self._ranges.row_at(skip), self._ranges.row_at(skip + rows - 1) + 1
        ranges = self._ranges.between(first, last)
        breaks = [] if rows <= together else page.breaks(ranges, together)
        parts = (ranges.between(*pair) for pair in pairwise((first, *breaks, last)))
        return (page.decode(part) for part in parts if part.rows)


class Deferred:
    """A page that takes time to parse (dictionaries, levels): it is parsed once, on the first thread that needs it."""

    def __init__(self, make: Callable[[], Page]) -> None:
        self._make: Callable[[], Page] | None = make
        self._lock = threading.Lock()
        self._page: Page | None = None

    def get(self) -> Page:
        """The page. Raises the errors of parsing."""
        with self._lock:
            if self._page is None:
                assert self._make is not None
                self._page = self._make()
                self._make = None
            return self._page
