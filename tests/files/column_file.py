"""A Parquet file of twelve columns, of which tests read three, and where the chunks of these and of the others are."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.ranges import Range
from tests.stores.computed_store import KIB

COLUMNS, GROUPS, ROWS = 12, 12, 32 * KIB
NAMES = ["c1", "c5", "c9"]


def parquet_file() -> bytes:
    """The numbers of the rows and eleven columns of doubles that nothing compresses, in chunks of 256 KiB."""
    rng = np.random.default_rng(5)
    packed = io.BytesIO()
    noise = {f"c{number}": rng.random(GROUPS * ROWS) for number in range(1, COLUMNS)}
    table = pa.table({"row": np.arange(GROUPS * ROWS), **noise})
    pq.write_table(table, packed, row_group_size=ROWS, use_dictionary=False, compression="none")
    return packed.getvalue()


PARQUET = parquet_file()
EXPECTED = pq.read_table(io.BytesIO(PARQUET), columns=NAMES)


def chunks_of(metadata: pq.FileMetaData, *, wanted: bool) -> list[Range]:
    """The chunks of the columns of NAMES, or of all others, as pyarrow knows them."""
    found = []
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if (chunk.path_in_schema in NAMES) is wanted:
                found.append((chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size))
    return sorted(found)


METADATA = pq.ParquetFile(io.BytesIO(PARQUET)).metadata
WANTED = chunks_of(METADATA, wanted=True)
OTHERS = chunks_of(METADATA, wanted=False)
