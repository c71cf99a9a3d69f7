"""The planning of a dataset, which needs no store: names in paths, one schema for many, work ahead of its turn."""

import asyncio
import glob
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import InvalidArgument, InvalidPath, Unsupported
from aioprefetch.parquet.columns import SchemaUnion
from aioprefetch.parquet.dataset.ahead import Ahead, Job, in_order
from aioprefetch.parquet.dataset.files import (
    NULL_VALUE,
    Partitions,
    checked_source,
    is_visible,
    path_values,
    rows_of_files,
    whole_files,
)
from tests.profile import each_of

# --- paths ------------------------------------------------------------------------------------------------------------


@each_of(
    ("path", "base", "values"),
    [
        ("t/y=2024/m=5/f", "", {"y": "2024", "m": "5"}),
        ("t/y=2024/m=5/f", "t/y=2024/", {"m": "5"}),
        ("f=1", "", {}),  # the name of the file is not a directory
        ("a=1/a=2/f", "", {"a": "1"}),
        ("a=1=2/f", "", {"a": "1=2"}),
        ("a=/f", "", {"a": ""}),
        (f"a={NULL_VALUE}/f", "", {"a": None}),
        ("a%20b=%C3%A4/f", "", {"a b": "ä"}),
    ],
)
def test_values_of_a_path(path: str, base: str, values: dict[str, str | None]) -> None:
    assert path_values(path, base) == values


def test_a_value_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidPath, match="partitioning=None"):
        path_values("a=%FF/f")


@each_of(
    ("values", "kind"),
    [
        (["1", "007", "-3", None], pa.int32()),
        (["2147483647", "-2147483648"], pa.int32()),
        (["2147483648"], pa.string()),
        (["1", "x"], pa.string()),
        (["+1"], pa.string()),
        ([""], pa.string()),
        ([None], pa.string()),
    ],
)
def test_types_of_partitions(values: list[str | None], kind: pa.DataType) -> None:
    assert Partitions([{"a": value} for value in values]).schema == pa.schema([("a", kind)])


def test_clauses_on_partitions_are_decided() -> None:
    partitions = Partitions([{"y": "1"}, {"y": "2"}, {"y": None}])
    either = [[("y", "==", 1), ("x", ">", 5)], [("y", ">=", 2)]]
    assert partitions.residual_filters(either, path="") == [[[("x", ">", 5)]], None, []]
    assert partitions.residual_filters([[("y", "not in", [1])]], path="") == [[], None, None]
    with pytest.raises(InvalidArgument):
        partitions.residual_filters([[("y", "==", "a")]], path="")


@each_of(
    ("path", "is_shown"),
    [
        ("t/a.parquet", True),
        ("t/_SUCCESS", False),
        ("t/.a.crc", False),
        ("t/_temporary/0/a.parquet", False),
        ("t/a/", False),
        ("t/a_b/c.d", True),
        ("t/_c0=5/a.parquet", True),  # a partition by a column of this name
        ("t/year=2024_$folder$", False),
    ],
)
def test_hidden_names(path: str, *, is_shown: bool) -> None:
    assert is_visible(path, "t/") == is_shown
    assert is_visible(f"_above/{path}", "_above/t/") == is_shown


def test_kinds_of_sources() -> None:
    assert checked_source("a/b").one_file == "a/b"
    assert checked_source(glob.escape("a[0]/b*?")).one_file == "a[0]/b*?"
    several = ["", "a/", "a/*.parquet", "a[0]", "a?", ["a"], "a[[]0]/"]
    assert [checked_source(source).one_file for source in several] == [None] * len(several)
    assert [str(checked_source(source)) for source in (["a"], ["a", "b", "c"])] == ["a", "a and 2 more"]


# --- sizes ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(0, 50)), st.integers(1, 30), st.integers(0, 100))
def test_files_that_come_whole_fit(sizes: list[int | None], block_bytes: int, bytes_max: int) -> None:
    whole = whole_files(sizes, block_bytes, bytes_max)
    chosen = [size for size, is_whole in zip(sizes, whole, strict=True) if is_whole]
    assert None not in chosen
    assert all(size is not None and size <= block_bytes for size in chosen)
    taken = sum(size for size in chosen if size is not None)
    assert taken <= bytes_max
    for size, is_whole in zip(sizes, whole, strict=True):
        if not is_whole and size is not None and size <= block_bytes:
            assert size > bytes_max - taken, "it would have had room at the end, and so before"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=4), st.lists(st.integers(0, 20), max_size=5)
)
def test_rows_of_files_are_those_of_the_whole(rows: list[tuple[int, int]], counts: list[int]) -> None:
    ranges = [(min(pair), max(pair)) for pair in rows]
    shares = rows_of_files(ranges, counts)
    firsts = [sum(counts[:number]) for number in range(len(counts))]
    found = [
        first + row
        for first, share in zip(firsts, shares, strict=True)
        for low, high in share
        for row in range(low, high)
    ]
    wanted = {row for low, high in ranges for row in range(low, min(high, sum(counts)))}
    assert found == sorted(wanted)
    assert all(0 <= low < high <= count for share, count in zip(shares, counts, strict=True) for low, high in share)


# --- schemas ----------------------------------------------------------------------------------------------------------


def union_of(*schemas: pa.Schema, partitions: pa.Schema | None = None) -> SchemaUnion:
    made = SchemaUnion(pa.schema([]) if partitions is None else partitions)
    for number, schema in enumerate(schemas):
        made.add(schema, f"f{number}")
    return made


def field(kind: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("a", kind, nullable)])


@each_of(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.null(), pa.date32(), pa.date32()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (pa.decimal128(5, 2), pa.decimal128(9, 1), pa.decimal128(10, 2)),
        (pa.decimal128(7, 1), pa.int32(), pa.decimal128(11, 1)),
        (pa.decimal128(12, 2), pa.int8(), pa.decimal128(12, 2)),
        (pa.decimal128(9, 3), pa.uint64(), pa.decimal128(23, 3)),
    ],
)
def test_wider_types(one: pa.DataType, other: pa.DataType, both: pa.DataType) -> None:
    assert union_of(field(one), field(other)).schema() == field(both)
    assert union_of(field(other), field(one)).schema() == field(both)


@each_of(
    ("one", "other"),
    [(pa.int64(), pa.string()), (pa.float64(), pa.decimal128(5, 2)), (pa.timestamp("us"), pa.timestamp("us", "UTC"))],
)
def test_types_with_nothing_in_common(one: pa.DataType, other: pa.DataType) -> None:
    made = union_of(field(one).append(pa.field("b", pa.int8())), field(other))
    with pytest.raises(Unsupported, match=r"'a' is .* in 'f1' and .* in 'f0'"):
        made.schema()
    assert made.field("b") == pa.field("b", pa.int8()), "other columns can be had"
    assert made.known().names == ["b"]


def test_a_column_that_a_file_lacks_may_be_null() -> None:
    needed = field(pa.int64(), nullable=False)
    other = pa.schema([pa.field("b", pa.int8(), nullable=False)])
    assert union_of(needed, needed).schema() == needed
    both = pa.schema([("a", pa.int64()), ("b", pa.int8())])
    assert union_of(needed, other).schema() == both
    assert union_of(needed, other, needed, other).schema() == both


def test_the_path_wins_over_the_file() -> None:
    made = union_of(field(pa.string()).append(pa.field("b", pa.int8())), partitions=field(pa.int32()))
    assert made.schema() == pa.schema([("b", pa.int8()), ("a", pa.int32())])


def test_unknown_and_doubled_columns() -> None:
    with pytest.raises(InvalidArgument, match="no column 'z'; the files have 'a'"):
        union_of(field(pa.int8())).field("z")
    with pytest.raises(Unsupported, match="one name"):
        union_of(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


# --- work ahead of its turn -------------------------------------------------------------------------------------------

in_virtual_time = pytest.mark.virtual


class Jobs:
    """Jobs that end when the test says so."""

    def __init__(self, *sizes: int) -> None:
        self.started: list[int] = []
        self.ends = [asyncio.get_running_loop().create_future() for _ in sizes]
        self.sizes = sizes

    def start(self, number: int) -> Callable[[], Coroutine[Any, Any, int]]:
        async def run() -> int:
            self.started.append(number)
            await self.ends[number]
            return number

        return run

    def ahead(self, *, jobs_max: int = 99, bytes_max: int = 99) -> Ahead[int]:
        jobs = (Job(self.start(number), size) for number, size in enumerate(self.sizes))
        return Ahead(jobs, jobs_max=jobs_max, bytes_max=bytes_max)


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_virtual_time
async def test_results_come_in_order() -> None:
    jobs = Jobs(1, 1, 1)
    ahead = jobs.ahead()
    first = asyncio.ensure_future(ahead.next())
    await turn()
    assert jobs.started == [0, 1, 2]
    jobs.ends[2].set_result(None)
    await turn()
    assert not first.done()
    jobs.ends[0].set_result(None)
    jobs.ends[1].set_result(None)
    found = await first
    assert found is not None
    assert found[0] == 0
    rest = [await ahead.next(), await ahead.next(), await ahead.next()]
    assert [one and one[0] for one in rest] == [1, 2, None]


@in_virtual_time
async def test_bytes_bound_what_is_open() -> None:
    """Two are let in at any size. Room comes when one leaves."""
    jobs = Jobs(90, 90, 5, 5, 50)
    for end in jobs.ends:
        end.set_result(None)
    ahead = jobs.ahead(bytes_max=100)
    first, second = await ahead.next(), await ahead.next()
    assert first is not None
    assert second is not None
    await turn()
    assert jobs.started == [0, 1]
    first[1]()
    await turn()
    assert jobs.started == [0, 1, 2, 3]
    third = asyncio.ensure_future(ahead.next())
    second[1]()
    await turn()
    assert jobs.started == [0, 1, 2, 3, 4]
    assert third.done()


@in_virtual_time
async def test_a_waiting_consumer_is_woken_by_room() -> None:
    jobs = Jobs(1, 1, 1)
    for end in jobs.ends:
        end.set_result(None)
    ahead = jobs.ahead(jobs_max=2)
    first, second = await ahead.next(), await ahead.next()
    third = asyncio.ensure_future(ahead.next())
    await turn()
    assert not third.done()
    assert first is not None
    assert second is not None
    second[1]()
    assert (await third or (None,))[0] == 2


@in_virtual_time
async def test_closing_cancels_what_runs_and_wakes_who_waits() -> None:
    jobs = Jobs(1, 1, 1)
    ahead = jobs.ahead(jobs_max=2)
    waiting = asyncio.ensure_future(ahead.next())
    await turn()
    waiting.cancel()
    await ahead.aclose()
    assert jobs.started == [0, 1]
    assert jobs.ends[1].cancelled()
    assert await ahead.next() is None


@in_virtual_time
async def test_an_error_comes_in_its_turn() -> None:
    jobs = Jobs(1, 1, 1)
    jobs.ends[0].set_result(None)
    jobs.ends[1].set_exception(ValueError("bad"))
    results = in_order([jobs.start(number) for number in range(3)], 2)
    assert await anext(results) == 0
    with pytest.raises(ValueError, match="bad"):
        await anext(results)
