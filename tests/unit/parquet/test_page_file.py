"""A file of a few pages: the rows of these pages as the whole file has them, whatever the type and the writer."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.errors import Error, UntrustedMetadata
from aioprefetch.parquet import thrift
from aioprefetch.parquet.byte_plan import planned_chunk
from aioprefetch.parquet.chunk_columns import GroupRows
from aioprefetch.parquet.chunks import SparseFile, WantedRows, column_chunks
from aioprefetch.parquet.page_metadata import PAGE_BYTES_DEFAULT, LargePages, PageOptions, parse_offset_index
from aioprefetch.parquet.paged_leaf import FooterParts, PagedLeaf, can_be_merged, decode_pages, merged
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import PendingRead
from tests.profile import combinations
from tests.unit.parquet.parquet_files import footer_at_hand, nested_table, written

ROWS = 3_000
TABLE = pa.table(
    {
        "i": pa.array([n if n % 9 else None for n in range(ROWS)], pa.int32()),
        "f": [n / 7 for n in range(ROWS)],
        "s": [f"text {n}" if n % 4 else None for n in range(ROWS)],
        "few": [f"v{n % 13}" for n in range(ROWS)],
        "d": pa.array([f"w{n % 50}" for n in range(ROWS)]).dictionary_encode(),
        "t": pa.array(range(ROWS), pa.timestamp("us", tz="UTC")),
        "st": [{"x": n, "y": {"z": str(n)}} if n % 5 else None for n in range(ROWS)],
    }
)


class HeldRead:
    """A read that has come."""

    def __init__(self, data: bytes, ranges: Sequence[Range]) -> None:
        self.views = [memoryview(data)[start:end] for start, end in ranges]
        self.done = True
        self.released = 0

    def promote(self) -> None:
        """It is there."""

    async def wait(self) -> list[memoryview]:
        return self.views

    async def arrive(self) -> None:
        """It has."""

    def release(self) -> None:
        self.released += 1


class HeldIo:
    """Reads out of a file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.reads: list[HeldRead] = []
        self.rows: list[int] = []

    def submit(self, ranges: Sequence[Range], row: int, *, is_follow_up: bool = False) -> PendingRead:
        self.rows.append(row)
        self.reads.append(HeldRead(self.data, ranges))
        return self.reads[-1]

    def spawn(self, work: Any, *, name: str) -> None:
        raise AssertionError


class Leaf:
    """A leaf of a file with page indexes, of which some rows of row group 1 are wanted."""

    def __init__(self, data: bytes, leaf: int, rows: list[Range], *, row_group: int = 1, part_bytes: int = 1 << 20):
        footer = footer_at_hand(data)
        (chunk,) = column_chunks(footer, [row_group], [leaf], with_indexes=True)
        assert chunk.offset_index is not None
        index = parse_offset_index(memoryview(data)[slice(*chunk.offset_index)], chunk, path="k")
        self.planned = planned_chunk(chunk, rows, index)
        self.first_row = chunk.first_row
        self.io = HeldIo(data)
        self.wanted = WantedRows(rows)
        self.leaf = PagedLeaf(
            self.planned,
            FooterParts(footer),
            GroupRows(self.wanted, 100, SparseFile(footer.size), "k", PageOptions()),
            LargePages(PAGE_BYTES_DEFAULT, "k"),
            part_bytes=part_bytes,
        )

    def submitted(self) -> PagedLeaf:
        self.leaf.submit(self.io, self.leaf.parts)
        return self.leaf

    def expected(self, column: pa.ChunkedArray) -> list[Any]:
        found: list[Any] = []
        for start, end in self.wanted.ranges:
            found += column.slice(self.first_row + start, end - start).to_pylist()
        return found


def indexed(table: pa.Table = TABLE, **options: Any) -> bytes:
    options = {"row_group_size": 1_500, "data_page_size": 500, "write_batch_size": 50, **options}
    return written(table, write_page_index=True, **options)


@pytest.mark.parametrize(
    ("leaf", "use_dictionary", "compression", "version"),
    combinations(range(8), [True, False], ["none", "zstd"], ["1.0", "2.0"]),
)
def test_rows_of_chosen_pages(leaf: int, use_dictionary: bool, compression: str, version: str) -> None:
    data = indexed(use_dictionary=use_dictionary, compression=compression, data_page_version=version)
    made = Leaf(data, leaf, [(120, 130), (700, 900)])
    if made.planned.pages is None:
        pytest.skip("its pages are not fewer bytes than the chunk")
    column = TABLE.column(min(leaf, 6))
    found = made.submitted().drain(0, 210)()
    expected = made.expected(column)
    if leaf >= 6:
        expected = [None if one is None else {"x": one["x"]} if leaf == 6 else {"y": one["y"]} for one in expected]
    assert found.to_pylist() == expected
    assert found.type == (column.type if leaf < 6 else found.type)
    sizes = sum(end - start for start, end in made.planned.ranges)
    assert sizes < made.planned.chunk.size


def test_parts_are_submitted_decoded_and_given_back_one_by_one() -> None:
    data = indexed(use_dictionary=False, compression="none")
    made = Leaf(data, 1, [(100, 1_000)], part_bytes=1_500)
    leaf, io = made.leaf, made.io
    assert leaf.parts > 3
    assert leaf.ready() == 0
    leaf.submit(io, 2)
    assert io.rows == [100, leaf.scan_row(1)]
    ready = leaf.ready()
    assert 0 < ready < 900
    first = leaf.drain(0, ready)().to_pylist()
    leaf.release(ready)
    assert [read.released for read in io.reads] == [1, 1]
    leaf.promote(900)
    assert leaf.ready() == 900
    rest = leaf.drain(ready, 900)().to_pylist()
    assert first + rest == made.expected(TABLE.column(1))
    leaf.close()
    leaf.close()
    assert all(read.released for read in io.reads)


async def test_a_leaf_waits_for_what_was_not_scheduled_yet() -> None:
    made = Leaf(indexed(use_dictionary=False), 1, [(100, 1_000)], part_bytes=1_500)
    made.leaf.submit(made.io, 1)
    await made.leaf.wait(900)
    assert made.leaf.ready() == 900


def test_batches_may_be_decoded_in_any_order() -> None:
    made = Leaf(indexed(), 3, [(0, 10), (500, 620)], part_bytes=600)
    leaf = made.submitted()
    drains = [leaf.drain(n, n + 13) for n in range(0, 130, 13)]
    found = {n: drains[n]().to_pylist() for n in reversed(range(10))}
    assert [one for n in range(10) for one in found[n]] == made.expected(TABLE.column(3))


def test_a_dictionary_is_read_once_for_all_parts() -> None:
    made = Leaf(indexed(), 3, [(0, 10), (1_400, 1_420)], part_bytes=200)
    made.submitted()
    start = made.planned.chunk.start
    assert [bytes(read.views[0][:2]) for read in made.io.reads].count(bytes(made.io.data[start : start + 2])) == 1


def test_a_page_that_is_not_the_one_of_the_index_is_refused() -> None:
    data = bytearray(indexed(use_dictionary=False, compression="none"))
    made = Leaf(bytes(data), 1, [(700, 800)])
    page = (made.planned.pages or ())[0]
    assert made.planned.offset_index is not None
    start, end = made.planned.offset_index.page_bytes(page)
    fields, after = thrift.read_struct(bytes(data), start)
    fields[5][1][1] = (thrift.I32, fields[5][1][1][1] - 1)  # One value fewer.
    changed = thrift.write_struct(fields)
    assert len(changed) == after - start
    data[start:after] = changed
    with pytest.raises(UntrustedMetadata, match=r"row group 1, column 'f': page \d+ is not the one of"):
        Leaf(bytes(data), 1, [(700, 800)]).submitted().drain(0, 100)()
    data[start:end] = bytes(end - start)
    with pytest.raises(UntrustedMetadata, match="row group 1, column 'f'"):
        Leaf(bytes(data), 1, [(700, 800)]).submitted().drain(0, 100)()


def test_what_is_no_dictionary_is_refused() -> None:
    data = bytearray(indexed())
    made = Leaf(bytes(data), 3, [(700, 800)])
    data[made.planned.chunk.start + 1] = 0  # The type of a data page.
    with pytest.raises(Error, match="row group 1, column 'few'"):
        Leaf(bytes(data), 3, [(700, 800)]).submitted().drain(0, 100)()


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_footer_with_one_chunk_has_its_column_alone(store_schema: bool) -> None:
    data = written(nested_table(), row_group_size=10, store_schema=store_schema)
    footer = footer_at_hand(data)
    parts = FooterParts(footer)
    for leaf, path in enumerate(footer.shape.paths):
        raw = parts.with_chunk(2, leaf, rows=7, dictionary_bytes=0, data_bytes=99)
        file = b"PAR1" + bytes(99) + raw + len(raw).to_bytes(4, "little") + b"PAR1"
        metadata = pq.read_metadata(pa.BufferReader(file))
        leaves = [other for other, found in enumerate(footer.shape.paths) if found[0] == path[0]]
        assert parts.first_leaf(leaf) == leaves[0]
        assert (metadata.num_row_groups, metadata.num_rows, metadata.row_group(0).num_rows) == (1, 7, 7)
        assert metadata.created_by == footer.metadata.created_by
        assert metadata.schema.to_arrow_schema().field(path[0]) == footer.schema.field(path[0])
        assert metadata.num_columns == len(leaves)
        for number, other in enumerate(leaves):
            assert metadata.schema.column(number).equals(footer.metadata.schema.column(other))
            chunk = metadata.row_group(0).column(number)
            if other == leaf:
                assert (chunk.data_page_offset, chunk.total_compressed_size, chunk.num_values) == (4, 99, 7)
                assert not chunk.has_dictionary_page
                assert not chunk.is_stats_set
            else:
                expected = footer.metadata.row_group(2).column(other)
                assert (chunk.data_page_offset, chunk.encodings) == (expected.data_page_offset, expected.encodings)


def test_a_footer_with_one_chunk_is_as_large_whatever_the_other_columns() -> None:
    sizes = []
    for count in (2, 300):
        footer = footer_at_hand(written(pa.table({f"c{n:03}": [1.5] for n in range(count)})))
        sizes.append(len(FooterParts(footer).with_chunk(0, 1, rows=1, dictionary_bytes=0, data_bytes=9)))
    assert sizes[0] == sizes[1]


def test_types_that_only_the_stored_schema_tells() -> None:
    kinds = {"d": pa.duration("s"), "l": pa.large_string(), "t": pa.timestamp("us", "Europe/Berlin"), "i": pa.int64()}
    table = pa.table({name: pa.array(range(3_000), pa.int64()).cast(kind) for name, kind in kinds.items()})
    data = indexed(table, use_dictionary=False)
    for leaf, name in enumerate(kinds):
        made = Leaf(data, leaf, [(700, 720)])
        found = made.submitted().drain(0, 20)()
        assert found.type == kinds[name]
        assert found.to_pylist() == made.expected(table.column(leaf))


def test_pages_of_nothing_are_nothing() -> None:
    footer = footer_at_hand(indexed())
    with pytest.raises((pa.ArrowException, OSError)):
        decode_pages(FooterParts(footer), 0, 0, rows=5, dictionary=memoryview(b""), pages=[memoryview(bytes(9))])


# --- leaves put together ----------------------------------------------------------------------------------------------


def test_leaves_of_a_struct_are_put_together() -> None:
    inner = pa.struct([("p", pa.int64()), ("q", pa.string())])
    kind = pa.struct([pa.field("a", pa.int64()), pa.field("b", inner), pa.field("c", pa.list_(pa.int8()))])
    rows = [
        {"a": 1, "b": {"p": 2, "q": "x"}, "c": [1]},
        None,
        {"a": None, "b": None, "c": None},
        {"a": 3, "b": {"p": None, "q": "y"}, "c": []},
    ]
    whole = pa.array(rows, kind)

    def leaf(*path: str) -> pa.Array:
        def only(value: Any, steps: tuple[str, ...]) -> Any:
            return value if not steps or value is None else {steps[0]: only(value[steps[0]], steps[1:])}

        found = kind.field(path[0]).type
        for step in path[1:]:
            found = found.field(step).type
        for step in reversed(path):
            found = pa.struct([(step, found)])
        return pa.array([only(row, path) for row in rows], found).slice(0)

    leaves = [leaf("a"), leaf("b", "p"), leaf("b", "q"), leaf("c")]
    together = merged(leaves, kind)
    together.validate(full=True)
    assert together.to_pylist() == whole.to_pylist()
    assert together.type == kind
    sliced = merged([one.slice(1, 2) for one in leaves], kind)
    assert sliced.to_pylist() == rows[1:3]


def test_what_can_be_put_together() -> None:
    struct = pa.struct([("a", pa.int64())])
    assert can_be_merged(struct, 3)
    assert can_be_merged(pa.list_(struct), 1)
    assert not can_be_merged(pa.list_(struct), 2)
