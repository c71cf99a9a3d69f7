"""The order in which pages are scheduled, and what it reports to the decode loop."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from aioprefetch.scheduler.pages import ScanLine, ScanPart
from aioprefetch.scheduler.scheduling_loop import ScheduledPages, scan_lines, schedule_parts
from tests.probes.turns import OtherTask
from tests.profile import chosen
from tests.stores.gated_reader import in_case
from tests.stores.pretended_format import NoIo, PretendedColumn, PretendedRoot


@dataclass
class Named:
    """A page of which the name counts."""

    name: str
    first: int
    rows: int


def columns_of(*pages: list[int]) -> tuple[list[PretendedColumn], list[str]]:
    """Columns with these numbers of rows in each page, and their common log."""
    log: list[str] = []
    return [PretendedColumn(index, rows, log, Named) for index, rows in enumerate(pages)], log


def test_the_schedule_of_the_document() -> None:
    """Score, Id and Vector, a MiB a page: 256 Ki rows, 64 Ki rows and 256 rows each.

    The document's listing has two slips: 256 Ki rows of 4,096 bytes are pages P0 to P1023, and between P1 and P255 lie
    253 pages.
    """
    columns, log = columns_of([256 << 10], [64 << 10] * 4, [256] * 1024)
    lines = list(scan_lines(columns, NoIo(), 256 << 10))
    expected = ["C0P0"]
    for quarter in range(4):
        expected += [f"C1P{quarter}", *(f"C2P{page}" for page in range(quarter * 256, quarter * 256 + 256))]
    assert log == expected
    assert [name for line in lines for _, page in line.pages for name in [page.name]] == log
    assert [page.name for _, page in lines[0].pages] == ["C0P0", "C1P0", "C2P0"]
    assert [line.rows for line in lines] == [256 * (n + 1) for n in range(1024)]


def test_ties_go_by_column() -> None:
    columns, log = columns_of([10, 10], [10, 10], [20])
    list(scan_lines(columns, NoIo(), 20))
    assert log == ["C0P0", "C1P0", "C2P0", "C0P1", "C1P1"]


def row_major_order(seed: int) -> None:
    chosen = random.Random(seed)
    rows = chosen.randint(1, 500)
    pages = []
    for _ in range(chosen.randint(1, 6)):
        cuts = sorted({0, rows, *(chosen.randint(0, rows) for _ in range(chosen.randint(0, 8)))})
        pages.append([high - low for low, high in itertools.pairwise(cuts)])
    columns, _ = columns_of(*pages)
    seen: list[Named] = []
    covered = [0] * len(columns)
    line: ScanLine[Named]
    for line in scan_lines(columns, NoIo(), rows):
        for index, page in line.pages:
            seen.append(page)
            covered[index] += page.rows
        assert line.rows == min(covered)
    assert [page.first for page in seen] == sorted(page.first for page in seen)
    assert covered == [rows] * len(columns)


def test_row_major_order() -> None:
    """Every page comes in the order of its first row; a line promises just the rows that all columns cover."""
    for seed in chosen(quick=range(10), full=range(20)):
        with in_case(seed=seed):
            row_major_order(seed)


def test_empty_pages_and_no_columns() -> None:
    columns, log = columns_of([0, 5, 0], [5])
    lines = list(scan_lines(columns, NoIo(), 5))
    assert lines[-1].rows == 5
    assert sorted(log) == ["C0P0", "C0P1", "C0P2", "C1P0"]
    nothing: list[PretendedColumn] = []
    assert [line.rows for line in scan_lines(nothing, NoIo(), 7)] == [7]


async def test_it_waits_for_no_read_and_lets_others_have_their_turn() -> None:
    columns, log = columns_of([1] * 100)
    pages = ScheduledPages()
    async with OtherTask() as other:
        await schedule_parts([ScanPart(columns, PretendedRoot(), NoIo(), 100)], pages, pages_per_turn=10)
        many = [ScanPart([], PretendedRoot(), NoIo(), 1)] * 50
        before = other.turns
        await schedule_parts(many, ScheduledPages())
    assert len(log) == 100
    assert (before >= 9, other.turns - before >= 49) == (True, True)


async def test_it_stays_within_reach_of_the_decoder() -> None:
    columns, log = columns_of([1] * 100)
    pages = ScheduledPages(pages_max=20)
    parts = [ScanPart(columns, PretendedRoot(), NoIo(), 100)]
    work = asyncio.ensure_future(schedule_parts(parts, pages, pages_per_turn=1))
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(log) == 21
    rows = 0
    assert isinstance(await pages.next(), ScanPart)
    while (item := await pages.next()) is not None:
        assert isinstance(item, ScanLine)
        rows = item.rows
    assert rows == 100
    await work


async def test_an_error_comes_behind_what_was_scheduled_before() -> None:
    columns, _ = columns_of([1, 1, 1])
    good = columns[0].schedule_next

    def schedule_next(io: object) -> object:
        if columns[0].rows_scheduled == 2:
            raise ValueError("page 2")
        return good(io)

    columns[0].schedule_next = schedule_next  # type: ignore[method-assign]
    pages = ScheduledPages()
    await schedule_parts([ScanPart(columns, PretendedRoot(), NoIo(), 3)], pages)
    assert isinstance(await pages.next(), ScanPart)
    assert isinstance(await pages.next(), ScanLine)
    assert isinstance(await pages.next(), ScanLine)
    with pytest.raises(ValueError, match="page 2"):
        await pages.next()


async def test_parts_that_come_one_by_one_are_closed() -> None:
    closed = []

    async def parts() -> AsyncIterator[ScanPart]:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
                yield ScanPart(columns_of([2])[0], PretendedRoot(), NoIo(), 2)
        finally:
            closed.append(True)

    pages = ScheduledPages()
    await schedule_parts(parts(), pages)
    items = []
    while (item := await pages.next()) is not None:
        items.append(type(item))
    assert items == [ScanPart, ScanLine] * 3
    assert closed == [True]
