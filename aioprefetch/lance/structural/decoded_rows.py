"""Decoded rows of a page: the levels of all their entries, and the values of the visible ones.

The functions that find rows among levels are shared by all layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aioprefetch.lance.structural.buffers import Levels, Positions, damaged, exclusive_sum, runs
from aioprefetch.lance.structural.layouts import RepDefLayers, max_definition, max_repetition, max_visible
from aioprefetch.lance.structural.levels import Unraveler, check_levels
from aioprefetch.lance.structural.values import Nulls, Values, pick
from aioprefetch.ranges import Range


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


class DecodedSpan:
    """``rows`` decoded rows from row ``first`` on, from which ranges are cut without decoding again."""

    def __init__(self, decoded: DecodedRows, first: int, rows: int) -> None:
        self.first = first
        self.end = first + rows
        self._whole = decoded
        self._starts: Positions | None = None
        self._values_before: Positions | None = None
        if decoded.rep is None:
            return
        self._starts = np.append(row_starts(decoded.rep, decoded.layers), decoded.rep.size)
        visible_max = max_visible(decoded.layers)
        if decoded.definition is not None and visible_max < max_definition(decoded.layers):
            before = np.zeros(decoded.rep.size + 1, np.int64)
            np.cumsum(decoded.definition <= visible_max, out=before[1:])
            self._values_before = before[self._starts]

    def cut(self, start: int, end: int) -> DecodedRows:
        """Rows ``[start, end)``, where ``first`` is the number of the first row."""
        whole, low, high = self._whole, start - self.first, end - self.first
        if whole.rep is None:
            return DecodedRows(
                whole.layers, None, _cut(whole.definition, [(low, high)]), pick(whole.values, [(low, high)])
            )
        assert self._starts is not None
        entries = (int(self._starts[low]), int(self._starts[high]))
        values = entries
        if self._values_before is not None:
            values = (int(self._values_before[low]), int(self._values_before[high]))
        definition = _cut(whole.definition, [entries])
        return DecodedRows(whole.layers, _cut(whole.rep, [entries]), definition, pick(whole.values, [values]))


def flat_rows(layers: RepDefLayers, definition: Levels | None, values: Values, ranges: Sequence[Range]) -> DecodedRows:
    """Decoded rows of a page without lists: the level and the value of row i are at position i."""
    check_levels(None, definition, 0, max_definition(layers))
    if definition is not None and definition.size != values.count:
        raise damaged(f"{definition.size} definition levels stand beside {values.count} values")
    return DecodedRows(layers, None, _cut(definition, ranges), pick(values, ranges))


def list_rows(
    layers: RepDefLayers, rep: Levels, definition: Levels | None, values: Values | None, ranges: Sequence[Range]
) -> DecodedRows:
    """Decoded rows of a page with lists. ``ranges`` are positions among the levels; each begins at the start of a row.

    ``values`` are those of the visible entries; ``None`` if all entries are null.
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
    items = [(int(before[start]), int(before[end])) for start, end in ranges]
    return DecodedRows(layers, _cut(rep, ranges), _cut(definition, ranges), pick(values, items))


def divided(ranges: Sequence[Range], breaks: Sequence[int]) -> list[list[Range]]:
    """The ranges (ascending, disjoint) in groups. A new group begins at each of the rows ``breaks``, which ascend."""
    groups: list[list[Range]] = [[]]
    left = iter(breaks)
    row = next(left, None)
    for start, end in ranges:
        while row is not None and row <= start:
            groups.append([])
            row = next(left, None)
        while row is not None and row < end:
            groups[-1].append((start, row))
            groups.append([])
            start, row = row, next(left, None)
        groups[-1].append((start, end))
    return [group for group in groups if group]


def equal_breaks(ranges: Sequence[Range], rows: int) -> list[int]:
    """The breaks that divide the ranges into groups of ``rows`` rows."""
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    before = exclusive_sum(bounds[:, 1] - bounds[:, 0])
    counts = np.arange(max(1, rows), before[-1], max(1, rows))
    owners = before.searchsorted(counts, side="right") - 1
    breaks: list[int] = (bounds[owners, 0] + counts - before[owners]).tolist()
    return breaks


def _cut(levels: Levels | None, ranges: Sequence[Range]) -> Levels | None:
    if levels is None:
        return None
    if len(ranges) == 1:
        return levels[ranges[0][0] : ranges[0][1]]
    bounds = np.array(ranges, np.int64).reshape(-1, 2)
    return levels[runs(bounds[:, 0], bounds[:, 1] - bounds[:, 0])]


def row_starts(rep: Levels, layers: RepDefLayers) -> Positions:
    """The positions of the entries that start a row."""
    return np.flatnonzero(rep == max_repetition(layers)).astype(np.int64)
