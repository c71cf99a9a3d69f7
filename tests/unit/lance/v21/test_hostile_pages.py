"""Damaged pages and layouts: each is decoded to a valid array or raises a typed error."""

import contextlib
import functools
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from aioprefetch.errors import Error, UntrustedMetadata
from aioprefetch.lance.footer import LanceFile
from aioprefetch.lance.structural import assembly
from aioprefetch.lance.structural.layouts import FullZip, MiniBlock, parse_layout
from aioprefetch.lance.structural.pages import page_scheduler
from aioprefetch.ranges import Range
from aioprefetch.row_ranges import RowRanges
from tests.files.lance_files import write_file
from tests.files.lance_v20_pages import MemoryIo, open_bytes
from tests.files.lance_v21_columns import FLAT, NESTED, STORED_AS
from tests.files.lance_v21_pages import VERSIONS, decode_first_pages, start_scan
from tests.profile import chosen, combinations

ROWS = 2000
MUTATIONS = chosen(quick=20, full=40)
RANGES: list[list[Range]] = [[(0, ROWS)], [(100, 1500)], [(5, 6), (1000, 1003), (ROWS - 9, ROWS)]]
FAMILIES = [
    *("int64 nulls", "int64 wide", "runs", "constant text nulls", "bool nulls", "text", "text few nulls", "text long"),
    *("binary large nulls", "dictionary", "vector null items", "vector wide null items", "list nei", "list text"),
    *("list vector", "list null and empty all", "struct deep", "list of struct of list", "text zstd", "floats split"),
    *("lists of text zipped", "lists of lists zipped", "long text zstd", "packed struct"),
]


@functools.cache
def _written(name: str, version: str) -> bytes:
    made = {**FLAT, **NESTED, **STORED_AS}[name](ROWS, np.random.default_rng(3))
    array, metadata = made if isinstance(made, tuple) else (made, None)
    return write_file(pa.table([array], schema=pa.schema([pa.field("c", array.type, metadata=metadata)])), version)


def _layouts(file: LanceFile) -> list[bytes]:
    leaves = assembly.leaves(file.fields[0])
    return [file.column(leaf.columns.start).pages[0].encoding for leaf in leaves]


def _damage(data: bytearray, positions: range, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 2, 6])):
        # Headers and sizes are at the start, so most changes are made there.
        near = min(len(positions), 48)
        at = positions[rng.randrange(near) if rng.random() < 0.5 else rng.randrange(len(positions))]
        data[at] = rng.choice([0, 1, 255, rng.randrange(256), data[at] ^ 1 << rng.randrange(8)])


@pytest.mark.parametrize("name", FAMILIES)
async def test_damaged_pages(name: str) -> None:
    outcomes = [await outcomes_of(name, version) for version in VERSIONS]
    assert set.union(*outcomes) <= {"read", "UntrustedMetadata", "Unsupported"}
    assert len(set.union(*outcomes)) > 1


async def outcomes_of(name: str, version: str) -> set[str]:
    """Damage the pages of a file repeatedly: they are decoded to valid arrays or raise a typed error."""
    data = _written(name, version)
    file = await open_bytes(data)
    rng = random.Random(f"{name} {version}")
    stored = _layouts(file)
    outcomes: set[str] = set()
    for _ in range(MUTATIONS):
        layouts, memory = [bytearray(layout) for layout in stored], bytearray(data)
        buffers = [
            one
            for leaf in assembly.leaves(file.fields[0])
            for one in file.column(leaf.columns.start).pages[0].buffers
            if one[1] > one[0]
        ]
        if not buffers or rng.random() < 0.4:
            layout = rng.choice(layouts)
            _damage(layout, range(len(layout)), rng)
        else:
            _damage(memory, range(*rng.choice(buffers)), rng)
        ranges = rng.choice(RANGES)
        try:
            array = decode_first_pages(file, bytes(memory), ranges, [bytes(layout) for layout in layouts])
        except Error as error:
            outcomes.add(error.kind)
        else:
            array.validate(full=True)
            assert len(array) == sum(end - start for start, end in ranges)
            outcomes.add("read")
    return outcomes


@pytest.mark.parametrize(
    ("name", "version"),
    combinations(["int64 nulls", "text long", "list nei", "vector wide nulls", "constant nulls"], VERSIONS),
)
async def test_pages_that_claim_other_rows(name: str, version: str) -> None:
    data = _written(name, version)
    file = await open_bytes(data)
    leaf = file.column(0)
    for rows in (1, ROWS - 1, ROWS + 1, 1 << 40, (1 << 62) - 1):
        page = replace(leaf.pages[0], rows=rows)
        file._columns[0] = replace(leaf, pages=(page,))
        file.rows = ROWS
        with pytest.raises(UntrustedMetadata, match="other than the 2000 rows"):
            start_scan(file, MemoryIo(data), [(0, ROWS)])
        file.rows = rows
        io = MemoryIo(data)
        count = min(rows, 1000)
        try:
            root, _ = start_scan(file, io, [(0, count)])
            await root.wait(count)
            array = root.drain(count).decode().column(0)
        except UntrustedMetadata:
            pass
        else:  # A page of equal rows may have as many rows as its bytes hold.
            array.validate(full=True)
            assert len(array) == count
        await io.close()


async def test_chunks_that_claim_too_many_values() -> None:
    data = _written("int64 nulls", "2.1")
    file = await open_bytes(data)
    page = file.column(0).pages[0]
    layout = parse_layout(page.encoding, page.type_url)
    assert isinstance(layout, MiniBlock)
    start = page.buffers[0][0]
    word = int.from_bytes(data[start : start + 2], "little")
    memory = bytearray(data)
    memory[start : start + 2] = (word & ~15 | 15).to_bytes(2, "little")
    with pytest.raises(UntrustedMetadata, match="leave -"):
        decode_first_pages(file, bytes(memory), RANGES[0], _layouts(file))


async def test_an_index_right_behind_the_dictionary_is_refused() -> None:
    """The highest index of the page is the number of items that its dictionary claims to have."""
    data = _written("dictionary", "2.1")
    file = await open_bytes(data)
    page = file.column(0).pages[0]
    layout = parse_layout(page.encoding, page.type_url)
    assert isinstance(layout, MiniBlock)
    wanted = RowRanges.of(RANGES[0])

    def decode(count: int) -> None:
        scheduler = page_scheduler(replace(layout, dictionary_items=count), page.rows, page.buffers)
        reads = [memoryview(data)[start:end] for start, end in scheduler.plan(wanted)]
        parts = scheduler.decoder(wanted, iter(reads)).decoded_parts(0, ROWS, ROWS)
        assembly.assemble_field(file.fields[0], ROWS, iter([parts]))

    count = layout.dictionary_items
    with contextlib.suppress(UntrustedMetadata):
        while True:
            decode(count)
            count -= 1
    with pytest.raises(UntrustedMetadata, match=f"index {count} into a dictionary of {count} values"):
        decode(count)


async def test_a_value_that_is_longer_than_its_row_is_refused() -> None:
    """By one byte, which is of the next row."""
    data = _written("text long", "2.1")
    file = await open_bytes(data)
    page = file.column(0).pages[0]
    layout = parse_layout(page.encoding, page.type_url)
    assert isinstance(layout, FullZip)
    at, word = page.buffers[0][0] + (layout.bits_rep + layout.bits_def + 7) // 8, layout.bits // 8
    memory = bytearray(data)
    memory[at : at + word] = (int.from_bytes(data[at : at + word], "little") + 1).to_bytes(word, "little")
    for ranges in RANGES[0], [(0, 1)]:
        with pytest.raises(UntrustedMetadata, match="a value of a full-zip page is longer than its row"):
            decode_first_pages(file, bytes(memory), ranges, _layouts(file))


async def test_a_row_that_ends_behind_its_page_is_refused() -> None:
    data = _written("text long", "2.1")
    file = await open_bytes(data)
    (start, end), (_, last) = file.column(0).pages[0].buffers
    width = (last - file.column(0).pages[0].buffers[1][0]) // (ROWS + 1)
    memory = bytearray(data)
    memory[last - width : last] = (end - start + 1).to_bytes(width, "little")
    for ranges in RANGES[0], [(ROWS - 1, ROWS)]:
        with pytest.raises(UntrustedMetadata, match="positions of rows leave"):
            decode_first_pages(file, bytes(memory), ranges, _layouts(file))
