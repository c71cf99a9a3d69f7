"""Files in memory for the tests of formats, and functions to read them."""

import itertools
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

import aioprefetch as ap
from aioprefetch.source.formats import FoundBatch, Wanted, format_of
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile

_numbers = itertools.count()


def new_operator(**options: Any) -> ap.Operator:
    """An operator on a store of its own, which is empty."""
    return ap.Operator.from_uri(f"memory://formats-{next(_numbers)}", **options)


async def put(operator: ap.Operator, key: str, data: bytes) -> SourceFile:
    """Write a file, and return its entry in a listing."""
    meta = await operator.write(key, data)
    return SourceFile(key, len(data), meta.etag, meta.version, 1_700_000_000_123)


@dataclass(frozen=True)
class Read:
    """The results of reading some items."""

    rows: list[dict[str, Any]]
    offsets: list[int]
    unknown: list[str | None]
    batches: list[FoundBatch]


async def read(
    operator: ap.Operator,
    items: FetchItem | SourceFile | Sequence[FetchItem],
    schema: pa.Schema,
    *,
    settings: dict[str, str] | None = None,
    batch_rows: int = 16_384,
    offsets: bool = True,
    **options: Any,
) -> Read:
    """Read items in order, by the format of their keys or of the options."""
    chosen = FormatOptions(**options)
    want = Wanted(schema, chosen, ReadOptions(batch_rows=batch_rows, open_file=settings or {}), offsets)
    found = Read([], [], [], [])
    if isinstance(items, SourceFile):
        items = FetchItem(items)
    for item in [items] if isinstance(items, FetchItem) else items:
        async with aclosing(format_of(item.file.key, chosen).read(operator, item, want)) as batches:
            async for one in batches:
                assert 0 < one.batch.num_rows <= batch_rows
                one.batch.validate(full=True)
                found.batches.append(one)
                found.rows.extend(one.batch.to_pylist())
                if one.offsets is not None:
                    assert len(one.offsets) == one.batch.num_rows
                    found.offsets.extend(one.offsets.to_pylist())
                if one.unknown is not None:
                    assert len(one.unknown) == one.batch.num_rows
                    found.unknown.extend(one.unknown.to_pylist())
    return found


def cut_at(file: SourceFile, cuts: Sequence[int]) -> list[FetchItem]:
    """A file in items that end at these bytes."""
    places = sorted({0, file.size, *(cut % (file.size + 1) for cut in cuts)})
    return [replace(FetchItem(file), start=start, end=end) for start, end in itertools.pairwise(places)]
