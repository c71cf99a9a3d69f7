"""Which part of an object a read gets."""

from __future__ import annotations

from dataclasses import replace

from aioprefetch.errors import ConditionNotMatch, RangeNotSatisfied, excerpt
from aioprefetch.layers.lru_cache.index import IndexEntry
from aioprefetch.layers.lru_cache.lookup import is_excluded
from aioprefetch.ranges import resolve_range
from aioprefetch.values import ReadHead, ReadRequest


def whole_of(entry: IndexEntry) -> ReadHead:
    """The head of a response with all of an entry, whose header is known."""
    assert entry.header is not None
    return entry.header.head(0, entry.header.total)


def part_of(request: ReadRequest, whole: ReadHead) -> ReadHead:
    """The head of the response to a read of an object whose head for all of it is ``whole``.

    Raises ``ConditionNotMatch`` and ``RangeNotSatisfied`` as the object's own store would.
    """
    assert whole.total is not None
    if is_excluded(request, whole.etag):
        raise ConditionNotMatch(
            f"the ETag is still {excerpt(whole.etag)!r}",
            operation="read",
            path=request.path,
            context={"if_none_match": request.if_none_match, "etag": whole.etag},
        )
    bounds = resolve_range(request.offset, request.size, request.suffix, whole.total)
    if bounds is None:
        raise RangeNotSatisfied(
            f"{request.describe()} starts at or beyond the end", total=whole.total, operation="read", path=request.path
        )
    start, end = bounds
    return replace(whole, start=start, size=end - start)
