"""The leaves to read for the requested columns, and the result from them, as in ``pyarrow.parquet.read_table``.

``"a.b"`` is field ``b`` of struct ``a``, and comes as a column ``b``, null where the struct is. Below a list or a map
pyarrow's table reader has no names; there ``"l.list.element.b"`` gives the column ``l`` with the leaves that were named
alone, as ``pyarrow.parquet.ParquetFile`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Unsupported
from aioprefetch.parquet.row_reader import read_schema


@dataclass(frozen=True, slots=True)
class _ResultColumn:
    """A column of the result: the column at ``place`` of the batches that are read, or its field at ``path``."""

    place: int
    path: tuple[str, ...]
    field: pa.Field


class Projection:
    """``read`` is the schema of the ``leaves`` that are read, ``schema`` that of the result.

    ``places`` has, for each leaf, the column of ``read`` that it is part of.
    """

    def __init__(
        self,
        metadata: Any,
        paths: Sequence[tuple[str, ...]],
        leaves: Sequence[int],
        columns: Sequence[str] | None,
        int96_unit: str | None = None,
    ) -> None:
        self.leaves = tuple(leaves)
        self.read: pa.Schema = read_schema(metadata, self.leaves, int96_unit)
        self.places = _places(paths, self.leaves)
        if self.places and self.places[-1] + 1 != len(self.read):
            raise Unsupported("two columns of structs or lists side by side have one name", operation="scan")
        names = [paths[leaf][0] for leaf in self.leaves]
        place_of = dict(zip(names, self.places, strict=True))
        if columns is None:
            self._outputs = [_ResultColumn(place, (), field) for place, field in enumerate(self.read)]
        else:
            self._outputs = [_output(name, place_of, self.read) for name in columns]
        fields = [output.field for output in self._outputs]
        self.schema = pa.schema(fields, metadata=self.read.metadata)
        self.is_identity = [(output.place, output.path) for output in self._outputs] == [
            (place, ()) for place in range(len(self.read))
        ]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The result's columns of a batch that was read."""
        if self.is_identity:
            return batch
        if not self._outputs:
            return batch.select([])
        arrays = []
        for output in self._outputs:
            array = batch.column(output.place)
            arrays.append(pc.struct_field(array, list(output.path)) if output.path else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _places(paths: Sequence[tuple[str, ...]], leaves: Sequence[int]) -> list[int]:
    """The top-level column of each leaf, among those that are read."""
    places: list[int] = []
    columns = -1
    before: tuple[int, int] | None = None
    starts = top_level_starts(paths)
    for leaf in leaves:
        if before is None or starts[leaf] != before[0]:
            columns += 1
        before = (starts[leaf], leaf)
        places.append(columns)
    return places


def top_level_starts(paths: Sequence[tuple[str, ...]]) -> list[int]:
    """For each leaf the first leaf of its top-level column."""
    starts: list[int] = []
    for leaf, path in enumerate(paths):
        is_same = leaf > 0 and len(path) > 1 and len(paths[leaf - 1]) > 1 and paths[leaf - 1][0] == path[0]
        starts.append(starts[-1] if is_same else leaf)
    return starts


def _output(name: str, place_of: dict[str, int], read: pa.Schema) -> _ResultColumn:
    if name in place_of:
        place = place_of[name]
        return _ResultColumn(place, (), read.field(place))
    # The longest name of a top-level column that the dotted name begins with.
    top = max((prefix for prefix in place_of if name.startswith(prefix + ".")), key=len)
    place = place_of[top]
    field = read.field(place)
    steps: list[str] = []
    rest = name[len(top) + 1 :]
    nullable = field.nullable
    inner = field
    while rest:
        step = _field_named(inner.type, rest)
        if step is None:
            return _ResultColumn(place, (), field)
        inner = inner.type.field(step)
        steps.append(step)
        nullable = nullable or inner.nullable
        rest = rest[len(step) + 1 :]
    return _ResultColumn(place, tuple(steps), pa.field(inner.name, inner.type, nullable, inner.metadata))


def _field_named(kind: pa.DataType, dotted: str) -> str | None:
    """The field of a struct whose name ``dotted`` is or begins with."""
    if not pa.types.is_struct(kind):
        return None
    names = [kind.field(place).name for place in range(kind.num_fields)]
    matches = [candidate for candidate in names if dotted == candidate or dotted.startswith(candidate + ".")]
    return max(matches, key=len) if matches else None
