"""The top-level fields of a file of version 2.1 and later: their schedulers and decoders."""

from __future__ import annotations

from collections.abc import Sequence

from aioprefetch.errors import Unsupported
from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.row_ranges import RowRanges
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.assembly import leaves
from aioprefetch.lance.structural.column import LeafColumn, StructuralColumn, StructuralField
from aioprefetch.ranges import Range


def make_field(file: LanceFile, field: Field, ranges: Sequence[Range]) -> tuple[StructuralColumn, StructuralField]:
    """The scheduler and the decoder of a top-level field, for ``ranges`` of the file's rows (sorted, disjoint).

    The metadata of the field's columns must be loaded. ``Unsupported`` names a part that cannot be decoded.
    """
    wanted = RowRanges.of(ranges)
    columns: list[LeafColumn] = []
    for index, leaf in enumerate(leaves(field)):
        if leaf.is_blob:
            raise Unsupported(f"blob field {leaf.name!r} of version 2.1 and later is not supported", path=file.path)
        metadata = file.column(leaf.columns.start)
        columns.append(LeafColumn(index, leaf, metadata.pages, wanted, file.rows, file.path))
    return StructuralColumn(columns), StructuralField(field, len(columns), file.path)
