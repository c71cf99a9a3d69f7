"""Columns of a scan by ``columns={name: column or expression}``: what is read for them, and how they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from aioprefetch import arrow_compute as pc
from aioprefetch.errors import InvalidArgument, InvalidType
from aioprefetch.expressions import ExpressionTree
from aioprefetch.filters import evaluated, load_evaluation
from aioprefetch.operator.operator import Operator
from aioprefetch.scan import Prepare, column_names
from aioprefetch.scheduler.pages import PreparedScan


@dataclass(frozen=True, slots=True)
class ComputedColumns:
    """``read`` are the columns that the scan itself reads, each once; ``wanted`` the columns of the result, by name."""

    path: str
    read: Sequence[str]
    wanted: Mapping[str, str | pc.Expression]

    def prepare(self, prepare: Prepare, operator: Operator) -> Prepare:
        """``prepare`` of a scan of ``read``, with the columns of the result."""

        async def prepared() -> PreparedScan:
            scan = await prepare()
            try:
                await load_evaluation(self.wanted, operator.runtime())
                none = [column.combine_chunks() for column in scan.schema.empty_table().columns]
                schema = self.apply(pa.RecordBatch.from_arrays(none, schema=scan.schema)).schema
            except BaseException:
                scan.service.close()
                raise
            return replace(scan, schema=schema, compute=self.apply)

        return prepared

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the result. ``InvalidArgument`` for an expression that does not go with the types."""
        named = {name: column for name, column in self.wanted.items() if isinstance(column, pc.Expression)}
        seen = pa.Table.from_batches([batch])
        made = evaluated(seen, named, rows=batch.num_rows, argument="columns", path=self.path) if named else seen
        arrays, fields = [], []
        for name, column in self.wanted.items():
            if isinstance(column, str):
                arrays.append(self._read_column(batch, column))
                fields.append(pa.field(name, arrays[-1].type))
            else:
                arrays.append(made.column(name).combine_chunks())
                fields.append(made.schema.field(name))
        if not arrays:  # A batch without columns cannot be made of them: it would not know its rows.
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=batch.schema.metadata))

    def _read_column(self, batch: pa.RecordBatch, column: str) -> pa.Array:
        """A column by its name; a field of a struct comes as such from Parquet, and in its struct from Lance."""
        struct, *fields = column.split(".")
        if fields and column not in batch.schema.names and struct in batch.schema.names:
            return pc.struct_field(batch.column(struct), fields)
        return batch.column(self.read.index(column))


def asked_columns(columns: Any, *, added: Sequence[str] = (), path: str) -> tuple[Any, ComputedColumns | None]:
    """``columns`` of a caller as names to read, and the columns that are made of them if they are a mapping.

    The result has the ``added`` ones as well.

    ``InvalidType`` for a value that is neither a name nor an expression, ``InvalidArgument`` for an expression that
    names columns by position.
    """
    if not isinstance(columns, Mapping):
        return columns, None
    read: dict[str, None] = {}
    for name, column in zip(column_names(columns, path=path), columns.values(), strict=True):
        if isinstance(column, str):
            read[column] = None
            continue
        if not isinstance(column, pc.Expression):
            raise InvalidType(
                f"columns[{name!r}] must be a column's name or a pyarrow Expression, not {column!r}",
                operation="scan",
                path=path,
            )
        tree = ExpressionTree.of(column)
        if tree is None:
            raise InvalidArgument(
                f"columns[{name!r}] names columns by position: pc.field('name') names them", operation="scan", path=path
            )
        read.update(dict.fromkeys(sorted(tree.columns)))
    read.update(dict.fromkeys(added))
    return list(read), ComputedColumns(path, list(read), {**columns, **{name: name for name in added}})
