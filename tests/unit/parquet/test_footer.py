"""The footer: how many requests it takes, what is refused before anything is built from it, and what is kept."""

import base64
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.cli.demo import sample_parquet
from aioprefetch.errors import (
    NotFound,
    ObjectChanged,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.parquet import thrift
from aioprefetch.parquet.footer import (
    FOOTER_BYTES_MAX,
    TAIL_BYTES,
    TAIL_BYTES_EVERYTHING,
    footer,
)
from aioprefetch.testing.conformance.suite import checks
from tests.stores.gated_reader import bench, settle
from tests.unit.parquet.footers import FIRST, PLAIN, footer_module, large_file, read
from tests.unit.parquet.parquet_files import (
    footer_of,
    footer_start_of,
    nested_table,
    requests_of,
    tree_of,
    with_footer,
    with_tree,
    written,
)

pytestmark = pytest.mark.virtual

# --- what it says -----------------------------------------------------------------------------------------------------


async def test_says_what_pyarrow_says() -> None:
    data = written(nested_table(), row_group_size=13)
    expected = pq.ParquetFile(pa.BufferReader(data))
    async with bench() as b:
        found = await read(b, data)
    assert found.metadata.equals(expected.metadata)
    assert found.schema.equals(expected.schema_arrow, check_metadata=True)
    assert (found.rows, found.row_groups, found.size) == (40, 4, len(data))
    assert (found.start, bytes(found.raw)) == (footer_start_of(data), footer_of(data))
    assert found.first_rows == [0, 13, 26, 39, 40]
    for leaf in range(expected.metadata.num_columns):
        column = expected.metadata.schema.column(leaf)
        assert ".".join(found.shape.paths[leaf]) == column.path
        assert found.shape.max_repetitions[leaf] == column.max_repetition_level
        assert found.shape.max_definitions[leaf] == column.max_definition_level
    assert repr(found) == "<Footer 'k' rows=40 row_groups=4 columns=10>"


@pytest.mark.parametrize("table", [pa.table({}), pa.table({"a": pa.array([], pa.int8())})], ids=["columns", "rows"])
async def test_a_file_without(table: pa.Table) -> None:
    async with bench() as b:
        found = await read(b, written(table))
    assert (found.rows, found.schema.names) == (0, table.column_names)


async def test_more_key_value_pairs_than_columns() -> None:
    pairs = {f"key {number}": "value" for number in range(3000)}
    async with bench() as b:
        found = await read(b, written(pa.table({"a": [1]}).replace_schema_metadata(pairs)))
    assert len(found.schema.metadata) == 3000


async def test_writers_that_do_not_count_the_rows_of_the_file() -> None:
    tree = tree_of(PLAIN)
    tree[3] = (thrift.I64, 0)
    async with bench() as b:
        assert (await read(b, with_tree(PLAIN, tree))).rows == 100


async def test_a_writer_whose_name_is_no_text() -> None:
    tree = tree_of(PLAIN)
    tree[6] = (thrift.BINARY, b"\xff")
    async with bench() as b:
        assert (await read(b, with_tree(PLAIN, tree))).created_by == ""


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_the_demo_is_one_request() -> None:
    data = sample_parquet()
    async with bench() as b:
        found = await read(b, data, everything=True)
        assert requests_of(b) == [(-TAIL_BYTES_EVERYTHING, None)]
        assert bytes(found.pinned.resident(0, len(data)) or b"") == data


async def test_a_footer_larger_than_the_tail_takes_one_more_of_the_missing_part() -> None:
    data = large_file()
    async with bench() as b:
        found = await read(b, data)
        assert requests_of(b) == [FIRST, (footer_start_of(data), len(data) - TAIL_BYTES)]
        assert found.metadata.equals(pq.read_metadata(pa.BufferReader(data)))
        assert found.pinned.tail_start == found.start
        assert b.calls[1].request.if_match == found.etag


async def test_the_next_file_of_a_directory_takes_one() -> None:
    data = large_file()
    async with bench() as b:
        await read(b, data, "dir/one")
        b.calls.clear()
        await read(b, data, "dir/two")
        ((start, _),) = requests_of(b)
        assert len(data) - footer_start_of(data) <= -start < len(data) - footer_start_of(data) + (32 << 10)
        b.calls.clear()
        await read(b, data, "elsewhere/three")
        assert len(b.calls) == 2


async def test_the_tail_may_be_said() -> None:
    async with bench() as b:
        await read(b, PLAIN, tail_bytes=100)
        assert requests_of(b) == [(-100, None), (footer_start_of(PLAIN), len(PLAIN) - 100)]


async def test_a_large_footer_is_parsed_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_blocking(call: Any, *arguments: Any) -> Any:
        ran.append(call)
        return call(*arguments)

    ran: list[Any] = []
    async with bench() as b:
        monkeypatch.setattr(b.operator.runtime(), "run_blocking", run_blocking, raising=False)
        await read(b, large_file())
    assert ran == [footer_module.parse]


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_an_object_that_changes_between_two_requests_is_refused() -> None:
    data = large_file()
    async with bench() as b:
        b.put(data)
        b.gate.open = False
        task = b.runtime.loop.create_task(footer(b.operator, "k"))
        (await b.next_call()).finish()
        await settle()
        b.put(PLAIN + data)
        b.calls[1].finish()
        with pytest.raises(ObjectChanged):
            await task


async def test_a_missing_file_is_not_found() -> None:
    async with bench() as b:
        with pytest.raises(NotFound):
            await footer(b.operator, "no")


# --- refused ----------------------------------------------------------------------------------------------------------


def ending(length: int, magic: bytes = b"PAR1", size: int = 1000) -> bytes:
    """A file of zeros that ends with a claim."""
    return b"PAR1" + bytes(size - 12) + length.to_bytes(4, "little") + magic


NO_PARQUET = {
    "empty": b"",
    "one byte": b"P",
    "magic twice": b"PAR1PAR1",
    "eleven bytes": b"PAR1\0\0\0PAR1",
    "no magic": ending(10, b"PAR2"),
    "text": b"a,b\n1,2\n" * 10,
    "footer of nothing": ending(0),
    "footer as long as the file": ending(1000),
    "footer over the first magic": ending(989),
    "footer longer than the file": ending(1001),
    "footer of 4 GiB": ending(0xFFFFFFFF),
    "zeros": ending(988),
    "ones": b"PAR1" + b"\xff" * 200 + (200).to_bytes(4, "little") + b"PAR1",
}


@checks("reliability:I17")
@pytest.mark.parametrize("name", NO_PARQUET)
async def test_other_files_are_refused_after_one_request(name: str) -> None:
    async with bench() as b:
        with pytest.raises(UntrustedMetadata) as raised:
            await read(b, NO_PARQUET[name])
        assert (raised.value.operation, raised.value.path) == ("footer", "k")
        assert len(b.calls) == 1


@checks("reliability:I17", "reliability:K25")
async def test_a_footer_above_the_cap_is_refused_unread() -> None:
    async with bench() as b:
        with pytest.raises(UntrustedMetadata, match=f"at most {64 << 20}"):
            await read(b, ending(FOOTER_BYTES_MAX + 1, size=FOOTER_BYTES_MAX + 1000), tail_bytes=100)
        assert len(b.calls) == 1


async def test_an_encrypted_footer_is_unsupported() -> None:
    async with bench() as b:
        with pytest.raises(Unsupported, match="encrypted"):
            await read(b, ending(100, b"PARE"))


def counts_wrong(tree: thrift.Struct) -> None:
    tree[3] = (thrift.I64, 101)


def negative_rows(tree: thrift.Struct) -> None:
    tree[4][1].items[0][3] = (thrift.I64, -30)
    tree[3] = (thrift.I64, 40)


def a_child_too_many(tree: thrift.Struct) -> None:
    tree[2][1].items[0][5] = (thrift.I32, 3)


def a_child_too_few(tree: thrift.Struct) -> None:
    tree[2][1].items[0][5] = (thrift.I32, 1)


def children_below_zero(tree: thrift.Struct) -> None:
    tree[2][1].items[1][5] = (thrift.I32, -1)


def children_by_the_billion(tree: thrift.Struct) -> None:
    tree[2][1].items[1][5] = (thrift.I32, (1 << 31) - 1)


def no_schema(tree: thrift.Struct) -> None:
    del tree[2]


def no_row_groups(tree: thrift.Struct) -> None:
    del tree[4]


def schema_is_a_number(tree: thrift.Struct) -> None:
    tree[2] = (thrift.I32, 7)


def an_unknown_physical_type(tree: thrift.Struct) -> None:
    tree[2][1].items[1][1] = (thrift.I32, 99)


def a_name_that_is_no_text(tree: thrift.Struct) -> None:
    tree[2][1].items[1][4] = (thrift.BINARY, b"\xff\xfe")


def a_broken_arrow_schema(tree: thrift.Struct) -> None:
    for pair in tree[5][1].items:
        pair[2] = (thrift.BINARY, base64.b64encode(b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(40)))


CONTRADICTIONS = [
    counts_wrong,
    negative_rows,
    a_child_too_many,
    a_child_too_few,
    children_below_zero,
    children_by_the_billion,
    no_schema,
    no_row_groups,
    schema_is_a_number,
    an_unknown_physical_type,
    a_name_that_is_no_text,
    a_broken_arrow_schema,
]


@checks("reliability:I19")
@pytest.mark.parametrize("spoil", CONTRADICTIONS, ids=lambda spoil: spoil.__name__)
async def test_contradictions_are_refused(spoil: Any) -> None:
    tree = tree_of(PLAIN)
    spoil(tree)
    async with bench() as b:
        with pytest.raises(UntrustedMetadata):
            await read(b, with_tree(PLAIN, tree))


async def test_bytes_behind_the_struct_do_no_harm() -> None:
    async with bench() as b:
        assert (await read(b, with_footer(PLAIN, footer_of(PLAIN) + bytes(28)))).rows == 100
