"""Versions 2.1 and 2.2 of the Lance file format: structural encodings, which keep nesting in levels.

Supported are mini-block, full-zip and constant pages of flat, string, dictionary and fixed-size-list columns, packed
structs, and lists, structs and maps of them at any depth. Anything else raises ``Unsupported`` with its name.
"""

from __future__ import annotations

from aioprefetch.errors import Unsupported
from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.schema import Field
from aioprefetch.lance.structural.assembly import CONCATENATED, leaves
from aioprefetch.lance.structural.column import LeafColumn, StructuralColumn, StructuralField
from aioprefetch.lance.structural.layouts import parse_layout
from aioprefetch.row_ranges import RowRanges

__all__ = ["CONCATENATED", "make_field", "parse_layout"]


def make_field(file: LanceFile, field: Field, wanted: RowRanges) -> tuple[StructuralColumn, StructuralField]:
    """The scheduler and the decoder of a top-level field, for the ``wanted`` rows of the file.

    The metadata of the field's columns must be loaded. ``Unsupported`` names a part that cannot be decoded.
    """
    columns: list[LeafColumn] = []
    for index, leaf in enumerate(leaves(field)):
        if leaf.is_blob:
            raise Unsupported(f"blob field {leaf.name!r} of version 2.1 and later is not supported", path=file.path)
        metadata = file.column(leaf.columns.start)
        columns.append(LeafColumn(index, leaf, metadata.pages, wanted, file.rows, file.path))
    return StructuralColumn(columns), StructuralField(field, len(columns), file.path)
