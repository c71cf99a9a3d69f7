"""Ranges as fsspec gives them: slices of objects, whose bounds may be negative, absent, or beyond the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aioprefetch.errors import InvalidArgument, RangeNotSatisfied
from aioprefetch.fsspec.stores import Place

Bounds = tuple[int | None, int | None]
SizeOf = Callable[[], Awaitable[int]]


async def read_slice(place: Place, bounds: Bounds, size_of: SizeOf) -> bytes:
    """The bytes of one slice, as from a file: fewer at the end of the object, none beyond it."""
    start, end = bounds
    if start is not None and start < 0 and end is None:
        return await place.operator.read(place.key, suffix=-start, version=place.version)
    begin, stop = await _resolved(bounds, size_of)
    try:
        size = None if stop is None else max(0, stop - begin)
        return await place.operator.read(place.key, offset=begin, size=size, version=place.version)
    except RangeNotSatisfied:
        return b""


async def read_slices(place: Place, slices: Sequence[Bounds], size_of: SizeOf, gap_bytes: int | None) -> list[bytes]:
    """The bytes of several slices of one object, in few requests."""
    if len(slices) == 1:
        return [await read_slice(place, slices[0], size_of)]
    resolved = [await _resolved(bounds, size_of) for bounds in slices]
    size = await size_of() if any(end is None for _, end in resolved) else 0
    ranges = [(start, max(start, size if end is None else end)) for start, end in resolved]
    try:
        return await _read(place, ranges, gap_bytes)
    except RangeNotSatisfied as error:  # A range that goes beyond the end, where a file is only short.
        size = await size_of() if error.total is None else error.total
    return await _read(place, [(min(start, size), min(end, size)) for start, end in ranges], gap_bytes)


def by_path(paths: Sequence[str], starts: Any, ends: Any) -> dict[str, list[tuple[int, Bounds]]]:
    """The slices of each path, with their positions; a single bound is for all paths."""
    if not isinstance(paths, list):
        raise InvalidArgument(f"paths must be a list, not {type(paths).__name__}", operation="cat_ranges")
    firsts, lasts = (list(one) if isinstance(one, Iterable) else [one] * len(paths) for one in (starts, ends))
    if not len(paths) == len(firsts) == len(lasts):
        raise InvalidArgument("paths, starts and ends differ in length", operation="cat_ranges")
    found: dict[str, list[tuple[int, Bounds]]] = {}
    for position, (path, start, end) in enumerate(zip(paths, firsts, lasts, strict=True)):
        found.setdefault(path, []).append((position, (start, end)))
    return found


async def _resolved(bounds: Bounds, size_of: SizeOf) -> tuple[int, int | None]:
    """Bounds as in a slice, of which negative ones count from the end."""
    start, end = bounds
    if (start or 0) < 0 or (end or 0) < 0:
        size = await size_of()
        start = max(0, size + start) if start is not None and start < 0 else start
        end = max(0, size + end) if end is not None and end < 0 else end
    return start or 0, end


async def _read(place: Place, ranges: list[tuple[int, int]], gap_bytes: int | None) -> list[bytes]:
    return await place.operator.read_ranges(place.key, ranges, gap_bytes=gap_bytes, version=place.version)
