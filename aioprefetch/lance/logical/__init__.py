"""Fields of version 2.0: schedulers and decoders for all types that the version supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.logical.fields import ColumnPages, LogicalField, PrimitiveField
from aioprefetch.lance.logical.nested import ListField, StructField, TopDecoder, TopScheduler
from aioprefetch.lance.output import blamed_on
from aioprefetch.lance.physical import encodings as enc
from aioprefetch.row_ranges import RowRanges
from aioprefetch.scheduler.pages import ColumnScheduler

if TYPE_CHECKING:
    from aioprefetch.lance.footer import LanceFile
    from aioprefetch.lance.output import FieldDecoder
    from aioprefetch.lance.schema import Field


def make_field(file: LanceFile, field: Field, ranges: RowRanges) -> tuple[ColumnScheduler[Any], FieldDecoder[Any]]:
    """The scheduler and the decoder of a top-level field of a version 2.0 file. Its columns must be loaded.

    ``ranges`` are the wanted rows of the file. Rows of the scan count the wanted rows from 0.
    ``UntrustedMetadata`` if columns and schema contradict each other, ``Unsupported`` if the field cannot be decoded.
    """
    with blamed_on(field.name, file.path):
        plan = logical_field(file, field)
        scheduler = plan.scheduler(ranges, lambda position: position)
    return TopScheduler(scheduler, field.name, file.path), TopDecoder(plan, field.name, file.path)


def logical_field(file: LanceFile, field: Field) -> LogicalField:
    """The stateless plan of a field and its children."""
    kind = field.arrow.type
    if field.is_map:
        raise Unsupported("maps are not supported in version 2.0")
    pages = ColumnPages(file, field.columns.start, kind)
    is_struct = field.is_struct and not field.is_packed  # A struct without children has a column too.
    if not is_struct and field.is_one_column(file.version):
        return PrimitiveField(pages)
    if field.is_list:
        return ListField(pages, logical_field(file, field.children[0]), kind)
    if pages.rows and not isinstance(pages.encoding(0), enc.SimpleStruct):
        raise UntrustedMetadata(f"the encoding {type(pages.encoding(0)).__name__} for a struct")
    return StructField([logical_field(file, child) for child in field.children], kind, pages.rows)
