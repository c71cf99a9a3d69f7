"""Batches planned: every record in exactly one partition, partitions alike, row groups left out, few requests."""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.fetch.partitioning import partition_count
from aioprefetch.source.options import FormatOptions, ListOptions, PartitionOptions, ReadOptions
from aioprefetch.source.reading import ReadTask, plan_batch
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListPage, ListRequest
from tests.stores.source_files import URL, Shelf, jsonl, parquet
from tests.stores.verb_layer import VerbLayer

SCHEMA = pa.schema([("n", pa.int64())])
MIB = 1 << 20


async def listed(sizes: Sequence[int], suffix: str) -> AsyncIterator[SourceFile]:
    for number, size in enumerate(sizes):
        yield SourceFile(f"{number:04}{suffix}", size, "e")


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 400 * MIB) | st.integers(0, 3000), max_size=30),
    st.sampled_from([".jsonl", ".jsonl.gz", ".csv", ".txt"]),
    st.integers(1, 8),
    st.none() | st.integers(1, 5),
    st.booleans(),
)
async def test_partitions_cover_every_byte_once_and_are_alike(
    sizes: list[int], suffix: str, slots: int, most: int | None, split: bool
) -> None:
    options = PartitionOptions(slots=slots, partitions_max=most, split_files=split)
    async with Shelf() as shelf:
        parts = await plan_batch(shelf.operator, ListOptions(), options, FormatOptions(), files=listed(sizes, suffix))
    items = sorted(itertools.chain(*parts), key=lambda item: (item.file.key, item.start))
    for number, size in enumerate(sizes):
        ranges = [(item.start, item.stop) for item in items if item.file.key == f"{number:04}{suffix}"]
        assert [end for _, end in ranges[:-1]] == [start for start, _ in ranges[1:]]
        assert not size or (ranges[0][0], ranges[-1][1]) == (0, size)
        assert len(ranges) <= 1 or (split and not suffix.endswith(".gz"))
    assert all(parts)
    whole = [FetchItem(SourceFile(f"{number}", size)) for number, size in enumerate(sizes) if size]
    assert len(parts) <= partition_count(whole, options)
    if len(parts) > 1:
        loads = [sum(item.bytes for item in part) for part in parts]
        largest = max(item.bytes for item in items)
        assert max(loads) - min(loads) <= largest


def test_partitions_are_one_or_two_a_slot_and_worth_their_cost() -> None:
    def count(sizes: Sequence[int], most: int | None = None) -> int:
        items = [FetchItem(SourceFile(f"{n}", size)) for n, size in enumerate(sizes)]
        return partition_count(items, PartitionOptions(slots=4, partitions_max=most))

    assert count([2000]) == 1
    assert count([2000] * 50) == 1
    assert count([2000] * 4000) == 4
    assert count([8 * MIB]) == 3
    assert count([511 * MIB]) == 4
    assert count([512 * MIB]) == 8
    assert count([1 << 30]) == 8
    assert count([1 << 40]) == (1 << 40) // (512 * MIB)
    assert count([1 << 40], 100) == 100


async def test_files_are_listed_by_glob_without_empty_ones_and_directories() -> None:
    async with Shelf() as shelf:
        for key, data in (
            ("d/a.jsonl", b"{}"), ("d/b.jsonl", b""), ("d/e/c.jsonl", b"{}"), ("x.csv", b"n"), ("_SUCCESS", b""),
            ("d/_temporary/0.jsonl", b"{}"),
        ):  # fmt: skip
            await shelf.put(key, data)
        await shelf.operator.create_dir("marker.jsonl/")
        (part,) = await plan_batch(
            shelf.operator, ListOptions(glob="d/**/*.jsonl"), PartitionOptions(), FormatOptions()
        )
        assert [item.file.key for item in part] == ["d/a.jsonl", "d/e/c.jsonl"]
        assert all(item.is_whole and item.file.etag for item in part)
        found = await plan_batch(shelf.operator, ListOptions(glob="none/*"), PartitionOptions(), FormatOptions())
        assert found == []
        with pytest.raises(ConfigInvalid, match="slots"):
            await plan_batch(shelf.operator, ListOptions(), PartitionOptions(slots=0), FormatOptions())


async def numbers_of(shelf: Shelf, parts: Sequence[Sequence[FetchItem]], filters: object = None) -> list[int]:
    task = ReadTask(schema=SCHEMA, url=URL, read=ReadOptions(filters=filters))
    return sorted([row["n"] for part in parts for row in await shelf.rows(part, task)])


async def test_filters_leave_out_files_and_row_groups() -> None:
    async with Shelf() as shelf:
        for number in range(20):
            table = pa.table({"n": range(number * 100, number * 100 + 100)})
            await shelf.put(f"{number:02}.parquet", parquet(table, row_group_size=10))
        filters = [("n", ">=", 1895)]
        parts = await plan_batch(
            shelf.operator, ListOptions(), PartitionOptions(), FormatOptions(), schema=SCHEMA, filters=filters
        )
        (items,) = parts
        assert [(item.file.key, item.row_groups) for item in items] == [("18.parquet", (9,)), ("19.parquet", None)]
        assert len(shelf.seen.paths) == 20
        assert await numbers_of(shelf, parts, filters) == list(range(1895, 2000))


async def test_footers_are_read_only_where_they_help() -> None:
    async with Shelf() as shelf:
        for number in range(20):
            await shelf.put(f"{number:02}.parquet", parquet(pa.table({"n": range(number * 10, number * 10 + 10)})))
        parts = await plan_batch(shelf.operator, ListOptions(), PartitionOptions(), FormatOptions())
        assert shelf.seen.paths == []
        assert await numbers_of(shelf, parts) == list(range(200))
        assert len(shelf.seen.paths) == 20


@checks("source:F1")
@pytest.mark.parametrize("split", [None, True, False])
async def test_large_files_are_cut_between_row_groups(split: bool | None) -> None:
    """Unless it is refused: a batch of one huge file uses all cores."""
    async with Shelf() as shelf:
        data = parquet(pa.table({"n": range(40_000)}), row_group_size=1000, use_dictionary=False, compression="none")
        for key in ("a.parquet", "b.parquet"):
            await shelf.put(key, data)
        await shelf.put("bad.parquet", b"x" * 200_000)
        options = PartitionOptions(target_bytes=2 * len(data) // 4 + 1, split_files=split)
        parts = await plan_batch(shelf.operator, ListOptions(glob="[ab].parquet"), options, FormatOptions())
        items = [item for part in parts for item in part]
        assert all(item.row_groups for item in items) == (split is not False)
        assert len(parts) == (2 if split is False else 4)
        assert await numbers_of(shelf, parts) == sorted([*range(40_000)] * 2)
        loads = [sum(item.bytes for item in part) for part in parts]
        assert max(loads) < 1.5 * min(loads)
        # A file whose footer cannot be read is for its task to deal with.
        parts = await plan_batch(shelf.operator, ListOptions(glob="bad*"), options, FormatOptions())
        assert {item.file.key for part in parts for item in part} == {"bad.parquet"}


async def test_lines_are_cut_anywhere_and_read_once() -> None:
    async with Shelf() as shelf:
        large = jsonl([{"n": number} for number in range(3000)])
        small = jsonl([{"n": number} for number in range(3000, 3100)])
        await shelf.put("a.jsonl", large)
        await shelf.put("b.jsonl", small)
        options = PartitionOptions(target_bytes=(len(large) + len(small)) // 4 + 1)
        parts = await plan_batch(shelf.operator, ListOptions(), options, FormatOptions())
        assert len(parts) == 4
        assert await numbers_of(shelf, parts) == list(range(3100))


class Lists(VerbLayer):
    """Remembers where the store was listed, and from which requests a whole tree came."""

    def __init__(self) -> None:
        self.paths: list[tuple[str, bool]] = []

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        self.paths.append((request.path, request.recursive))
        return await inner.list_page(request)


MONTHS = [f"year={year}/month={month:02}/" for year in range(2020, 2030) for month in (3, 4)]
YEAR = ["year=2024/", "year=2024/month=03/"]
MARCH = ["year=2024/month=03/a.csv", "year=2024/month=03/b.csv"]
NARROW: list[tuple[Any, str | None, list[str], list[str]]] = [
    ([("year", "=", 2024), ("month", "=", 3)], None, MARCH, ["", *YEAR]),
    (
        [[("year", "=", 2024), ("month", "in", [3]), ("n", ">", 1)]],
        None,
        MARCH,
        ["", *YEAR],
    ),
    ([("year", "=", 2024), ("month", "=", 3)], "year=2024/**/a.csv", MARCH[:1], YEAR),
    (
        [("year", "=", 2024), ("month", "=", 3)],
        "year=202*/*/b.csv",
        MARCH[1:],
        ["", *YEAR],
    ),
    ([("year", ">", 2029)], None, [], [""]),
]


@pytest.mark.parametrize(("filters", "glob", "keys", "listed"), NARROW)
async def test_directories_that_cannot_match_are_not_listed(
    filters: Any, glob: str | None, keys: list[str], listed: list[str]
) -> None:
    schema = pa.schema([("n", pa.int64()), ("year", pa.int64()), ("month", pa.int32())])
    lists = Lists()
    async with Shelf() as shelf:
        for month in MONTHS:
            for name in ("a.csv", "b.csv"):
                await shelf.put(f"{month}{name}", b"1\n")
        for chosen, paths in ((filters, listed), ([("year", "<", 2029)], [""])):
            lists.paths.clear()
            plan = await plan_batch(
                shelf.operator.layer(lists),
                ListOptions(glob=glob),
                PartitionOptions(),
                FormatOptions(),
                schema=schema,
                filters=chosen,
            )
            found = [item.file.key for part in plan for item in part]
            if chosen is filters:
                assert sorted(found) == keys
                assert lists.paths == [(path, False) for path in paths]
            elif glob is None:  # Most of it can match: one listing of all is cheaper.
                assert len(found) == 2 * 2 * 9
                assert lists.paths == [("", False), ("", True)]
