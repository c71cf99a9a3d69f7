"""Scans as their callers see them: batches, columns, rows, filters, schemas, errors, and what is left behind."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.errors import (
    Closed,
    ConfigInvalid,
    InvalidArgument,
    InvalidRange,
    InvalidType,
    NotFound,
    ObjectChanged,
    UntrustedMetadata,
)
from aioprefetch.testing.conformance.suite import checks
from tests.stores.gated_reader import MIB, Bench, bench, settle
from tests.unit.parquet.parquet_files import footer_at_hand, written

ROWS = 10_000
TABLE = pa.table(
    {
        "i": pa.array(range(ROWS), pa.int64()),
        "f": np.random.default_rng(4).random(ROWS),
        "s": [f"v{n % 100}" for n in range(ROWS)],
        "st": [{"x": n, "y": {"z": str(n)}} if n % 5 else None for n in range(ROWS)],
        "l": [[{"p": n, "q": -n}] * (n % 3) for n in range(ROWS)],
        "a.b": pa.array(range(ROWS), pa.int16()),
    },
    metadata={"who": "us"},
)
DATA = written(TABLE, row_group_size=1_500)


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    """A store with the file ``k``; the budget must be whole again at the end."""
    async with bench(memory_bytes=64 * MIB) as made:
        made.put(DATA)
        yield made
        await settle()
        assert made.runtime.budget.used_bytes == 0


def by_pyarrow(**options: Any) -> pa.Table:
    return pq.read_table(pa.BufferReader(DATA), **options)


async def same(b: Bench, **options: Any) -> pa.Table:
    """What we read, after it was compared with what pyarrow reads."""
    found = await ap.parquet.read_table(b.operator, "k", **options)
    expected = by_pyarrow(**options)
    assert found.schema.equals(expected.schema, check_metadata=True)
    assert found.equals(expected)
    return found


async def test_a_whole_table(b: Bench) -> None:
    found = await same(b)
    assert found.schema.metadata == {b"who": b"us"}
    assert len(b.calls) == 1, "the tail brought all of it"


async def test_leaves_below_a_list_keep_it(b: Bench) -> None:
    found = await ap.parquet.read_table(b.operator, "k", columns=["l.list.element.q", "i"])
    expected = pq.ParquetFile(pa.BufferReader(DATA)).read(columns=["l.list.element.q", "i"])
    assert found.equals(expected.select(["l", "i"]))


async def test_rows_without_columns(b: Bench) -> None:
    found = await same(b, columns=[])
    assert found.shape == (ROWS, 0)
    counts = [batch.num_rows async for batch in ap.parquet.scan(b.operator, "k", columns=[], batch_rows=4_000)]
    assert counts == [4_000, 4_000, 2_000]
    requested = [call.request for call in b.calls if call.request.suffix is None]
    assert requested == []


async def test_row_groups_that_cannot_match_are_not_requested(b: Bench) -> None:
    data = written(TABLE, row_group_size=1_500, compression="none", use_dictionary=False)
    b.put(data)
    found = await ap.parquet.footer(b.operator, "k", tail_bytes=f"{len(data) - footer_at_hand(data).start} B")
    b.calls.clear()
    table = await ap.parquet.read_table(b.operator, "k", footer=found, filters=[("i", "<", 700)], columns=["f"])
    assert table.num_rows == 700
    metadata = found.metadata
    first_group = metadata.row_group(1).column(0).data_page_offset
    assert b.calls
    assert all(end is not None and end <= first_group for _, end in b.ranges)


async def test_batches_have_the_rows_asked_for(b: Bench) -> None:
    batches = [batch async for batch in ap.parquet.scan(b.operator, "k", batch_rows=999)]
    assert [batch.num_rows for batch in batches] == [999] * 10 + [10]
    assert pa.Table.from_batches(batches).equals(by_pyarrow())


async def test_batches_are_limited_in_bytes(b: Bench) -> None:
    batches = [batch async for batch in ap.parquet.scan(b.operator, "k", columns=["i", "f"], batch_bytes=16_000)]
    rows = [batch.num_rows for batch in batches]
    assert sum(rows) == ROWS
    assert all(900 <= count <= 1_000 for count in rows[:-1])


async def test_batches_of_values_that_were_compressed_well_are_small_from_the_first_one_on(b: Bench) -> None:
    table = pa.table({"s": ["x" * 1_000] * 20_000})
    b.put(written(table, compression="zstd", use_dictionary=False))
    batches = [batch async for batch in ap.parquet.scan(b.operator, "k", batch_bytes=256 << 10)]
    assert max(batch.nbytes for batch in batches) <= 300 << 10
    assert sum(batch.num_rows for batch in batches) == 20_000


async def test_filtered_batches_leave_out_empty_ones(b: Bench) -> None:
    scan = ap.parquet.scan(b.operator, "k", filters=(pc.field("i") < 3) | (pc.field("f") < 0))
    batches = [batch async for batch in scan]
    assert [batch.num_rows for batch in batches] == [3]


async def test_the_schema_is_known_before_the_first_batch(b: Bench) -> None:
    scan = ap.parquet.scan(b.operator, "k", columns=["st.x", "s"])
    assert (await scan.schema()).names == ["x", "s"]
    assert (await scan.read_all()).schema.equals(by_pyarrow(columns=["st.x", "s"]).schema)


async def test_nothing_is_requested_before_a_batch_is_awaited(b: Bench) -> None:
    scan = ap.parquet.scan(b.operator, "k")
    await settle()
    assert not b.calls
    await scan.aclose()
    assert not b.calls


async def test_leaving_early_gives_everything_back(b: Bench) -> None:
    b.put(written(pa.table({"x": np.random.default_rng(1).random(1 << 20)}), compression="none"))
    async with ap.parquet.scan(b.operator, "k", columns=["x"], batch_rows=1_000) as scan:
        async for batch in scan:
            assert batch.num_rows == 1_000
            break
    assert batch.column(0).to_pylist()[0] >= 0
    await settle()
    assert b.runtime.budget.used_bytes == 0


async def test_closing_the_operator_ends_a_scan(b: Bench) -> None:
    b.put(written(pa.table({"x": np.random.default_rng(1).random(1 << 20)}), compression="none"))
    scan = ap.parquet.scan(b.operator, "k", columns=["x"], batch_rows=1_000)
    await anext(scan)
    await b.operator.aclose()
    with pytest.raises(Closed):
        async for _ in scan:
            pass


async def test_a_footer_saves_its_request(b: Bench) -> None:
    footer = await ap.parquet.footer(b.operator, "k", everything=True)
    calls = len(b.calls)
    table = await ap.parquet.read_table(b.operator, "k", footer=footer)
    assert table.equals(by_pyarrow())
    assert len(b.calls) == calls


async def test_an_object_that_was_overwritten_is_no_mixture(b: Bench) -> None:
    data = written(pa.table({"x": np.random.default_rng(1).random(1 << 20)}), compression="none")
    b.put(data)
    footer = await ap.parquet.footer(b.operator, "k")
    b.put(data[:-100] + bytes(100))
    with pytest.raises(ObjectChanged):
        await ap.parquet.read_table(b.operator, "k", footer=footer)


async def test_a_footer_of_another_file_is_refused(b: Bench) -> None:
    b.put(DATA, "other")
    footer = await ap.parquet.footer(b.operator, "other")
    with pytest.raises(ConfigInvalid, match="'other', not to 'k'"):
        ap.parquet.scan(b.operator, "k", footer=footer)


async def test_what_can_be_read_once_is_kept_at_the_call(b: Bench) -> None:
    def once() -> dict[str, Any]:
        return {
            "columns": iter(["i"]),
            "row_groups": iter([0, 1]),
            "rows": iter([(2, 5), (1_600, 1_601), (3_000, 9_000)]),
        }

    values = [3, 1_600, 3_000]
    filters: Any = [("i", "in", iter(values))]
    scan = ap.parquet.scan(b.operator, "k", filters=filters, **once())
    values.clear()
    assert (await scan.read_all()).to_pydict() == {"i": [3, 1_600]}, "copied at the call"
    filters = [("i", "in", (value for value in (3, 1_600, 3_000)))]
    table = await ap.parquet.read_table(b.operator, "k", filters=filters, **once())
    assert table.to_pydict() == {"i": [3, 1_600]}
    plan = await ap.parquet.plan(b.operator, "k", filters=[("i", "in", iter([3, 1_600]))], **once())
    assert plan.row_groups == (0, 1)


async def test_a_list_that_changes_after_the_call_changes_nothing(b: Bench) -> None:
    filters: list[Any] = [("i", "in", [3, 4])]
    row_groups, rows = [0], [(0, 4)]
    scan = ap.parquet.scan(b.operator, "k", columns=["i"], filters=filters, row_groups=row_groups, rows=rows)
    filters[0][2].append(2)
    filters.append(("i", ">", 5_000))
    row_groups.clear()
    rows.clear()
    assert (await scan.read_all()).to_pydict() == {"i": [3]}


async def test_batches_end_at_64_mib_by_default(b: Bench) -> None:
    wide = pa.table({"b": pa.array([bytes([n]) * 4096 for n in range(256)] * 72)})
    b.put(written(wide, compression="none", use_dictionary=False))
    sizes = [batch.nbytes async for batch in ap.parquet.scan(b.operator, "k")]
    assert len(sizes) > 1
    assert max(sizes) <= 70 * MIB
    table = await ap.parquet.read_table(b.operator, "k")
    assert table.equals(wide)
    assert table["b"].num_chunks == 1, "a table's chunks may be larger"


@pytest.mark.parametrize("filters", [[("n", ">", 2**63)], [("n", "in", [2**63, 0])]])
async def test_numbers_that_pyarrow_does_not_take(b: Bench, filters: Any) -> None:
    b.put(written(pa.table({"n": pa.array([0, 1, 2**63, 2**64 - 1], pa.uint64())}), write_page_index=True))
    with pytest.raises(InvalidArgument, match="filters="):
        await ap.parquet.read_table(b.operator, "k", filters=filters)
    scalar = pa.scalar(2**63, pa.uint64())
    found = await ap.parquet.read_table(b.operator, "k", filters=[("n", ">", scalar)])
    assert found["n"].to_pylist() == [2**64 - 1]


@pytest.mark.parametrize("filters", [[("i", ">", "x")], pc.field("i") > "x", pc.field("i"), [("s", "in", [5])]])
async def test_filters_go_with_the_types_even_of_no_rows(b: Bench, filters: Any) -> None:
    b.put(written(TABLE.slice(0, 0)))
    with pytest.raises(InvalidArgument, match="filters="):
        await ap.parquet.read_table(b.operator, "k", filters=filters)
    found = await ap.parquet.read_table(b.operator, "k", filters=[("i", ">", 5)], columns=["s"])
    assert (found.num_rows, found.schema.names) == (0, ["s"])


# --- invalid arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_rows": 0}, ConfigInvalid),
        ({"batch_rows": 1.5}, InvalidType),
        ({"batch_bytes": 0}, ConfigInvalid),
        ({"readahead": 0}, ConfigInvalid),
        ({"gap_bytes": -1}, ConfigInvalid),
        ({"request_bytes_max": 0}, ConfigInvalid),
        ({"budget_bytes": -1}, ConfigInvalid),
        ({"slots": 0}, ConfigInvalid),
        ({"columns": "i"}, InvalidType),
        ({"columns": 5}, InvalidType),
        ({"columns": ["i", 3]}, InvalidType),
        ({"rows": (5, 1)}, InvalidRange),
        ({"rows": (-5, 1)}, InvalidRange),
        ({"rows": "ab"}, InvalidType),
        ({"rows": 5}, InvalidType),
        ({"row_groups": ["a"]}, InvalidType),
        ({"row_groups": 0}, InvalidType),
        ({"row_groups": [0, -1]}, InvalidArgument),
        ({"filters": 5}, InvalidType),
        ({"filters": []}, InvalidArgument),
        ({"filters": [("i", "~", 5)]}, InvalidArgument),
        ({"filters": [("i", "in", 5)]}, InvalidType),
    ],
)
async def test_invalid_options_are_refused_at_once(b: Bench, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ap.parquet.scan(b.operator, "k", **options)
    assert not b.calls


@pytest.mark.parametrize("options", [{"rows": (5, 1)}, {"row_groups": ["a"]}, {"filters": 5}, {"columns": "i"}])
async def test_a_plan_is_refused_before_any_request(b: Bench, options: Any) -> None:
    with pytest.raises(InvalidArgument):
        await ap.parquet.plan(b.operator, "k", **options)
    assert not b.calls


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"columns": ["zz"]}, InvalidArgument, "no column 'zz'"),
        ({"columns": ["st.zz"]}, InvalidArgument, "no column 'st.zz'"),
        ({"row_groups": [7]}, InvalidArgument, "no row group 7"),
        ({"row_groups": [-1]}, InvalidArgument, "no row group -1"),
        ({"rows": (5, 3)}, InvalidRange, "start <= end"),
        ({"rows": (-5, 3)}, InvalidRange, "start <= end"),
        ({"rows": "all"}, InvalidType, "ranges"),
        ({"filters": [("zz", ">", 3)]}, InvalidArgument, "zz"),
        ({"filters": [("i", "~", 3)]}, InvalidArgument, "~"),
        ({"filters": [("s", ">", 3)]}, InvalidArgument, "filters="),
        ({"filters": "i > 3"}, InvalidType, "filters"),
    ],
)
async def test_what_does_not_go_with_the_file(b: Bench, options: Any, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        await ap.parquet.read_table(b.operator, "k", **options)


async def test_files_that_are_none(b: Bench) -> None:
    with pytest.raises(NotFound):
        await ap.parquet.read_table(b.operator, "nowhere")
    b.put(b"PAR1 and nothing else", "none")
    with pytest.raises(UntrustedMetadata):
        await ap.parquet.read_table(b.operator, "none")


async def test_damaged_pages_are_reported_after_the_batches_before_them(b: Bench) -> None:
    data = bytearray(written(TABLE.select(["s"]), row_group_size=1_000))
    column = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(6).column(0)
    start = column.dictionary_page_offset
    data[start : start + column.total_compressed_size] = b"\xee" * column.total_compressed_size
    b.put(bytes(data))
    scan = ap.parquet.scan(b.operator, "k", batch_rows=1_000)
    assert [(await anext(scan)).num_rows for _ in range(6)] == [1_000] * 6
    with pytest.raises(UntrustedMetadata, match="row group 6, column 's'") as caught:
        await anext(scan)
    assert caught.value.path == "k"


@checks("reliability:I18")
async def test_a_page_that_claims_gigabytes_is_refused_before_anything_is_allocated(b: Bench) -> None:
    data = bytearray(written(pa.table({"s": ["a" * 100] * 1000}), compression="snappy", use_dictionary=False))
    start = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(0).column(0).data_page_offset
    assert data[start + 2] == 0x15
    head = 3
    while data[start + head] & 0x80:
        head += 1
    # The uncompressed size: the largest number whose varint is as long as that of the real one.
    data[start + 3 : start + head] = b"\xfe" + b"\xff" * (head - 4)
    data[start + head] = 0x7F
    b.put(bytes(data))
    with pytest.raises(UntrustedMetadata, match=r"claims \d+ bytes out of"):
        await ap.parquet.read_table(b.operator, "k")
