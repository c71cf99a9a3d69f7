"""A column of which some leaves are read page by page: its leaves are decoded apart, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from aioprefetch.parquet.chunk_columns import ChunkColumns
from aioprefetch.parquet.paged_leaf import PagedLeaf
from aioprefetch.parquet.row_groups import Columns


class PagedField:
    """A ``ColumnSource`` of the column at ``place``, which is of type ``kind``.

    ``others`` has those of its leaves that are read whole. With several leaves ``can_be_merged`` must hold.
    """

    def __init__(
        self,
        place: int,
        kind: pa.DataType,
        leaves: Sequence[PagedLeaf],
        others: ChunkColumns | None,
        *,
        row_bytes: float,
    ) -> None:
        self._place = place
        self._kind = kind
        self._leaves = leaves
        self._others = others
        self._row_bytes = row_bytes
        self._sources: list[PagedLeaf | ChunkColumns] = [*leaves, *([others] if others is not None else [])]

    def ready(self) -> int:
        """See ``ColumnSource``."""
        return min(source.ready() for source in self._sources)

    def want(self, rows: int) -> None:
        """See ``ColumnSource``."""
        for source in self._sources:
            source.want(rows)

    async def wait(self, rows: int) -> None:
        """See ``ColumnSource``."""
        for source in self._sources:
            await source.wait(rows)

    def drain(self, first: int, last: int) -> Callable[[], Columns]:
        """See ``ColumnSource``."""
        decodes = [leaf.drain(first, last) for leaf in self._leaves]
        others = self._others.drain(first, last) if self._others is not None else None
        place, kind = self._place, self._kind

        def decode() -> Columns:
            arrays = [one() for one in decodes] + ([array for _, array in others()] if others is not None else [])
            return [(place, merged(arrays, kind))]

        return decode

    def row_bytes(self) -> float:
        """See ``ColumnSource``."""
        return self._row_bytes

    def release(self, rows: int) -> None:
        """See ``ColumnSource``."""
        for source in self._sources:
            source.release(rows)

    def close(self) -> None:
        """See ``ColumnSource``."""
        for source in self._sources:
            source.close()


def can_be_merged(kind: pa.DataType, leaves: int) -> bool:
    """Whether ``leaves`` decoded apart can be put together: where they part there must be a struct."""
    return leaves == 1 or pa.types.is_struct(kind)


def merged(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """One column of what its leaves gave: the same rows, each with the fields of some leaves alone."""
    if len(arrays) == 1:
        return arrays[0]
    children: list[pa.Array] = []
    for number in range(kind.num_fields):
        field = kind.field(number)
        having = [array for array in arrays if array.type.get_field_index(field.name) >= 0]
        children.append(merged([array.field(field.name) for array in having], field.type))
    nulls = arrays[0].is_null() if arrays[0].null_count else None
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
