"""Files of version 2.1 and 2.2 in memory: pylance writes them, and their pages are scheduled and decoded by hand."""

from collections.abc import Sequence

import pyarrow as pa

from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.output import RecordRoot
from aioprefetch.lance.structural import assembly, make_field
from aioprefetch.lance.structural.layouts import parse_layout
from aioprefetch.lance.structural.pages import page_scheduler
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges
from tests.files import lance_v20_pages
from tests.files.lance_v20_pages import MemoryIo, drain_all

VERSIONS = ("2.1", "2.2")


def start_scan(
    file: LanceFile, io: MemoryIo, ranges: Sequence[Range], columns: Sequence[str] | None = None
) -> tuple[RecordRoot, int]:
    """Schedule every page of ``ranges`` and append it to the root. Returns the root and the number of rows."""
    return lance_v20_pages.start_scan(file, io, ranges, columns, make=make_field)


async def read_rows(
    data: bytes, file: LanceFile, ranges: Sequence[Range], *, batch_rows: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """Rows of a file, through schedulers and decoders alone."""
    io = MemoryIo(data)
    root, rows = start_scan(file, io, ranges, columns)
    table = await drain_all(root, rows, batch_rows)
    root.close()
    await io.close()
    return table


def decode_first_pages(file: LanceFile, data: bytes, ranges: Sequence[Range], layouts: Sequence[bytes]) -> pa.Array:
    """Rows of the first page of every leaf of the only field, with these layouts instead of the stored ones."""
    memory, wanted = memoryview(data), RowRanges.of(ranges)
    field = file.fields[0]
    decoded_parts = []
    for leaf, layout in zip(assembly.leaves(field), layouts, strict=True):
        page = file.column(leaf.columns.start).pages[0]
        scheduler = page_scheduler(parse_layout(layout, page.type_url), page.rows, page.buffers)
        reads = [memory[start:end] for start, end in scheduler.plan(wanted)]
        if scheduler.is_indirect(wanted):
            more = scheduler.follow_up(wanted, reads)
            assert all(0 <= start <= end <= len(data) for start, end in more)
            reads += [memory[start:end] for start, end in more]
        decoded_parts.append(scheduler.decoder(wanted, iter(reads)).decoded_parts(0, wanted.rows, wanted.rows))
    return assembly.assemble_field(field, wanted.rows, iter(decoded_parts))


def plain(table: pa.Table) -> pa.Table:
    """A table with decoded dictionaries and one chunk for each column, so that equal results compare equal."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    return pa.table(dict(zip(table.column_names, columns, strict=True))).combine_chunks()
