"""Pages that are damaged or too large: refused before their rows are anybody's."""

import random
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import BudgetExhausted, ConfigInvalid, InvalidType, UntrustedMetadata
from aioprefetch.parquet import chunk_columns, read_table, scan
from aioprefetch.parquet.page_metadata import read_page_header
from aioprefetch.parquet.row_groups import decode_pool
from tests.profile import chosen
from tests.stores.gated_reader import bench
from tests.unit.parquet.parquet_files import footer_at_hand, written

pytestmark = pytest.mark.virtual

MIB = 1 << 20
TABLE = pa.table({"i": pa.array(range(600), pa.int64()), "s": [f"v{n % 7}" if n % 5 else None for n in range(600)]})
WRITERS: dict[str, dict[str, Any]] = {
    "plain": {"compression": "none", "use_dictionary": False},
    "dictionary": {"compression": "none"},
    "compressed": {"compression": "zstd"},
    "second version": {"compression": "snappy", "data_page_version": "2.0"},
}


def with_checksums(**options: Any) -> bytes:
    """Two row groups of pages of some hundred bytes, with an offset index."""
    sizes = {"data_page_size": 1000, "write_batch_size": 100, "row_group_size": 300}
    return written(TABLE, write_page_checksum=True, write_page_index=True, **sizes, **options)


def pages_end(data: bytes) -> int:
    """Where the last page ends."""
    chunks = [one for group in footer_at_hand(data).chunks for one in group]
    return max(min(one.dictionary_page or one.data_page, one.data_page) + one.compressed_bytes for one in chunks)


@pytest.mark.parametrize("options", [{}, {"rows": (20, 60)}], ids=["chunks", "pages"])
@pytest.mark.parametrize("writer", WRITERS)
async def test_no_flipped_bit_becomes_another_row(writer: str, options: dict[str, Any]) -> None:
    data, rng, refused = with_checksums(**WRITERS[writer]), random.Random(1), 0
    expected = TABLE.slice(20, 40) if options else TABLE
    end = pages_end(data)
    async with bench() as b:
        for _ in range(chosen(quick=40, full=100)):
            flipped = bytearray(data)
            flipped[rng.randrange(4, end)] ^= 1 << rng.randrange(8)
            b.put(bytes(flipped))
            try:
                found = await read_table(b.operator, "k", **options)
            except UntrustedMetadata:
                refused += 1
            else:
                assert found.equals(expected)
    assert refused > 0


@pytest.mark.parametrize("name", ["i", "s"])
async def test_the_damaged_column_is_named(name: str) -> None:
    data = bytearray(with_checksums(compression="none", use_dictionary=False))
    chunk = footer_at_hand(bytes(data)).chunks[1][TABLE.schema.names.index(name)]
    data[chunk.data_page + chunk.compressed_bytes - 1] ^= 1
    async with bench() as b:
        b.put(bytes(data))
        with pytest.raises(UntrustedMetadata, match=f"row group 1, column '{name}': the page at .* checksum"):
            await read_table(b.operator, "k")
        found = await read_table(b.operator, "k", page_checksums=False)
        assert found.num_rows == 600
        assert not found.equals(TABLE)


async def test_a_flipped_bit_of_a_dictionary_is_found() -> None:
    data = bytearray(with_checksums(compression="none"))
    chunk = footer_at_hand(bytes(data)).chunks[0][0]
    assert 0 < chunk.dictionary_page < chunk.data_page
    data[chunk.data_page - 1] ^= 1  # The last byte of the dictionary page.
    async with bench() as b:
        b.put(bytes(data))
        given: list[dict[str, Any]] = [{}, {"rows": (20, 60)}]
        for options in given:
            with pytest.raises(UntrustedMetadata, match="row group 0, column 'i'"):
                await read_table(b.operator, "k", **options)


async def test_the_damaged_column_is_named_where_pages_may_be_larger_than_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = bytearray(bomb(2, 4 * MIB, write_page_checksum=True))
    chunk = footer_at_hand(bytes(data)).chunks[0][1]
    data[chunk.data_page + chunk.compressed_bytes - 1] ^= 1
    # As if what is usual were less.
    monkeypatch.setattr(
        read_page_header, "__kwdefaults__", {"base": 0, "bytes_max": MIB}
    )  # As if what is usual were less.
    async with bench() as b:
        b.put(bytes(data))
        with pytest.raises(UntrustedMetadata, match=r"row group 0, column 'c1': the page at .* checksum"):
            await read_table(b.operator, "k", page_bytes_max=8 * MIB)


async def test_a_failed_decoding_has_its_reason_without_a_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise IndexError("within the search")

    data = bytearray(with_checksums(compression="none", use_dictionary=False))
    data[pages_end(bytes(data)) - 1] ^= 1
    monkeypatch.setattr(chunk_columns, "damaged_page", fail)
    async with bench() as b:
        b.put(bytes(data))
        with pytest.raises(UntrustedMetadata, match="row groups 0 to 1, columns 'i', 's'"):
            await read_table(b.operator, "k")


# --- how large pages may become ---------------------------------------------------------------------------------------


def bomb(columns: int, value_bytes: int, **options: Any) -> bytes:
    """A file of some KB, each of whose columns has one value of that size."""
    table = pa.table({f"c{n}": pa.array([bytes(value_bytes)]) for n in range(columns)})
    return written(table, compression="zstd", use_dictionary=False, write_statistics=False, **options)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
async def test_a_page_larger_than_the_maximum_is_refused_before_it_is_decompressed(version: str) -> None:
    data = bomb(2, 4 * MIB, data_page_version=version)
    async with bench(memory_bytes=64 * MIB) as b:
        b.put(data)
        before = decode_pool().max_memory()
        with pytest.raises(UntrustedMetadata, match=r"row group 0, column 'c0'.* page_bytes_max=1048576") as caught:
            await read_table(b.operator, "k", page_bytes_max=MIB)
        assert caught.value.path == "k"
        assert decode_pool().max_memory() - before < MIB
        assert (await read_table(b.operator, "k", page_bytes_max=8 * MIB)).num_rows == 1


async def test_pages_that_are_read_by_the_offset_index_are_held_to_it_too() -> None:
    table = pa.table({"a": [bytes(2 * MIB)] * 4, "n": range(4)})
    data = written(
        table, compression="zstd", use_dictionary=False, write_page_index=True, data_page_size=1, write_batch_size=1
    )
    async with bench() as b:
        b.put(data)
        with pytest.raises(UntrustedMetadata, match="page_bytes_max"):
            await read_table(b.operator, "k", rows=(1, 2), page_bytes_max=MIB)
        assert (await read_table(b.operator, "k", rows=(1, 2))).num_rows == 1


async def test_no_page_may_become_larger_than_the_memory_of_the_runtime() -> None:
    async with bench(memory_bytes=8 * MIB, block_bytes=MIB) as b:
        b.put(bomb(4, 20 * MIB))
        with pytest.raises(UntrustedMetadata, match=f"page_bytes_max={8 * MIB}"):
            await read_table(b.operator, "k")


async def test_large_pages_of_many_columns_are_held_to_the_memory_together() -> None:
    """A file of 26 KB would take 1.7 GiB: each page is allowed, and not all of them at once."""
    data = bomb(4, 20 * MIB)
    assert len(data) < 30_000
    async with bench(memory_bytes=64 * MIB) as b:
        b.put(data)
        before = decode_pool().max_memory()
        with pytest.raises(BudgetExhausted, match=r"row group 0: .* \d{8} bytes together, and 67108864 are allowed"):
            await read_table(b.operator, "k")
        assert decode_pool().max_memory() - before < MIB
        assert (await read_table(b.operator, "k", columns=["c0", "c2", "c3"])).num_rows == 1
        assert (await read_table(b.operator, "k", page_bytes_max=100 * MIB)).num_columns == 4


async def test_large_pages_that_are_chosen_by_row_are_held_to_the_memory_together() -> None:
    values = [bytes(20 * MIB), b"\1" * (20 * MIB)]
    table = pa.table({f"c{number}": values for number in range(4)})
    data = written(
        table, compression="zstd", use_dictionary=False, write_page_index=True, data_page_size=1, write_batch_size=1
    )
    async with bench(memory_bytes=64 * MIB) as b:
        b.put(data)
        with pytest.raises(BudgetExhausted, match=r"row group 0: .* \d{8} bytes together, and 67108864 are allowed"):
            await read_table(b.operator, "k", rows=(1, 2))
        assert (await read_table(b.operator, "k", rows=(1, 2), columns=["c0", "c3"])).num_rows == 1
        columns = ["c0", "c1"]  # One row after another: what was given out counts no more.
        batches = [batch async for batch in scan(b.operator, "k", columns=columns, rows=(0, 2), batch_rows=1)]
        assert pa.Table.from_batches(batches) == table.select(columns)


async def test_options_of_pages_are_checked_at_once() -> None:
    async with bench() as b:
        with pytest.raises(ConfigInvalid, match="page_bytes_max"):
            scan(b.operator, "k", page_bytes_max=0)
        with pytest.raises(InvalidType, match="page_checksums"):
            scan(b.operator, "k", page_checksums="yes")  # type: ignore[arg-type]
