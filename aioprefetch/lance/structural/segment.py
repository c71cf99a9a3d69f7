"""Segments: some rows of a page, as the levels of all their entries and the values of the visible ones.

Also where rows lie among levels: the arithmetic that all layouts share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aioprefetch.lance.structural.buffers import Levels, Positions, damaged, exclusive_sum, runs
from aioprefetch.lance.structural.layouts import Layers, max_definition, max_repetition, max_visible
from aioprefetch.lance.structural.levels import Unraveler, check_levels
from aioprefetch.lance.structural.values import Nulls, Values, pick
from aioprefetch.ranges import Range


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one page, decoded: ``values`` has one entry per visible item, nulls included."""

    layers: Layers
    rep: Levels | None
    definition: Levels | None
    values: Values

    def unraveler(self) -> Unraveler:
        """The levels, to be peeled from the inner-most layer on."""
        return Unraveler(self.layers, self.rep, self.definition, self.values.count)


class Span:
    """A segment of ``rows`` rows from ``first`` on, from which shorter ones are cut without decoding again."""

    def __init__(self, segment: Segment, first: int, rows: int) -> None:
        self.first = first
        self.end = first + rows
        self._whole = segment
        self._starts: Positions | None = None
        self._values_before: Positions | None = None
        if segment.rep is None:
            return
        self._starts = np.append(row_starts(segment.rep, segment.layers), segment.rep.size)
        visible_max = max_visible(segment.layers)
        if segment.definition is not None and visible_max < max_definition(segment.layers):
            before = np.zeros(segment.rep.size + 1, np.int64)
            np.cumsum(segment.definition <= visible_max, out=before[1:])
            self._values_before = before[self._starts]

    def cut(self, start: int, end: int) -> Segment:
        """Rows ``[start, end)``, counted as ``first`` is."""
        whole, low, high = self._whole, start - self.first, end - self.first
        if whole.rep is None:
            return Segment(whole.layers, None, _cut(whole.definition, [(low, high)]), pick(whole.values, [(low, high)]))
        assert self._starts is not None
        entries = (int(self._starts[low]), int(self._starts[high]))
        values = entries
        if self._values_before is not None:
            values = (int(self._values_before[low]), int(self._values_before[high]))
        definition = _cut(whole.definition, [entries])
        return Segment(whole.layers, _cut(whole.rep, [entries]), definition, pick(whole.values, [values]))


def flat_segment(layers: Layers, definition: Levels | None, values: Values, ranges: Sequence[Range]) -> Segment:
    """Rows of a page without lists: entry, level and value of a row are at the same position."""
    check_levels(None, definition, 0, max_definition(layers))
    if definition is not None and definition.size != values.count:
        raise damaged(f"{definition.size} definition levels stand beside {values.count} values")
    return Segment(layers, None, _cut(definition, ranges), pick(values, ranges))


def list_segment(
    layers: Layers, rep: Levels, definition: Levels | None, values: Values | None, ranges: Sequence[Range]
) -> Segment:
    """Rows of a page with lists, of which ``ranges`` are positions among the levels; each begins where a row does.

    ``values`` of the visible entries; ``None``: there are none, every entry is null.
    """
    check_levels(rep, definition, max_repetition(layers), max_definition(layers))
    visible_max = max_visible(layers)
    if definition is None or visible_max >= max_definition(layers):
        values = Nulls(rep.size) if values is None else values
        if values.count != rep.size:
            raise damaged(f"{rep.size} levels stand beside {values.count} values")
        return Segment(layers, _cut(rep, ranges), _cut(definition, ranges), pick(values, ranges))
    before = np.zeros(rep.size + 1, np.int64)
    np.cumsum(definition <= visible_max, out=before[1:])
    values = Nulls(int(before[-1])) if values is None else values
    if values.count != before[-1]:
        raise damaged(f"{int(before[-1])} levels want a value, and there are {values.count}")
    items = [(int(before[start]), int(before[end])) for start, end in ranges]
    return Segment(layers, _cut(rep, ranges), _cut(definition, ranges), pick(values, items))


def divided(ranges: Sequence[Range], breaks: Sequence[int]) -> list[list[Range]]:
    """The ranges (ascending, disjoint) in groups: a new one begins at each of the rows ``breaks``, which ascend."""
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
    """Rows before which the ranges are divided into groups of ``rows``."""
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


def row_starts(rep: Levels, layers: Layers) -> Positions:
    """Positions of the entries that start a row."""
    return np.flatnonzero(rep == max_repetition(layers)).astype(np.int64)
