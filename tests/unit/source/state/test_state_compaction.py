"""Compaction: the runs that are replaced, the limits of log and memory, and readers and appends meanwhile."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import NotFound
from aioprefetch.source.state.compaction import cut_rows, merge_rows, plan_rewrites
from aioprefetch.source.state.index import Delta, fold
from aioprefetch.source.state.snapshot import RunInfo, encode_run, files_of, table_of
from aioprefetch.source.stored_json import unseal
from aioprefetch.source.values import FetchItem, KnownFile
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.profile import chosen
from tests.unit.source.state.stores import SMALL, Model, Switch, add, check_known, file, memory, opened

FOREVER = -(10**15)
keys = st.text(st.sampled_from("ab\udc80\U0001f600"), min_size=1, max_size=4)
known_files = st.builds(
    lambda key, version, seq, gone: KnownFile(file(key, version), seq, gone),
    keys,
    st.integers(0, 3),
    st.integers(0, 9),
    st.none() | st.integers(0, 99),
)
changes = st.dictionaries(keys, st.integers(0, 99) | st.none(), max_size=8)


def by_key(files: list[KnownFile]) -> list[KnownFile]:
    return sorted({one.file.key: one for one in files}.values(), key=lambda one: one.file.key)


@settings(deadline=None)
@given(st.lists(known_files, max_size=30), changes, st.integers(2, 9), st.integers(0, 50))
def test_replaced_runs_equal_a_dict(
    before: list[KnownFile], news: dict[str, int | None], rows_max: int, forget_before_ms: int
) -> None:
    rows = by_key(before)
    changed: dict[str, Any] = {key: KnownFile(file(key, 7), 20) if gone is None else gone for key, gone in news.items()}
    tables = {}
    runs: list[RunInfo] = []
    for number, piece in enumerate(cut_rows(table_of(rows), rows_max=rows_max)):
        info = encode_run(piece, f"seen/{number}", group_rows=2)[1]
        tables[info.name], runs = piece, [*runs, info]
    parts = plan_rewrites(runs, sorted(changed), rows_max=rows_max, gone_before_ms=forget_before_ms)
    assert [run for part in parts for run in part.runs] == runs
    assert sorted(key for part in parts for key in part.keys) == sorted(changed)
    found: list[KnownFile] = []
    for part in parts:
        pieces = [tables[run.name] for run in part.runs]
        if part.is_needed:
            merged = merge_rows(pieces, part.keys, changed, forget_before_ms=forget_before_ms)
            pieces = cut_rows(merged, rows_max=rows_max)
            assert all(0 < piece.num_rows <= rows_max for piece in pieces)
        found += [one for piece in pieces for one in files_of(piece)]
    wanted: dict[str, Any] = {one.file.key: one for one in rows}
    for key, change in changed.items():
        if isinstance(change, KnownFile):
            wanted[key] = change
        elif key in wanted and wanted[key].gone_ms is None:
            wanted[key] = replace(wanted[key], gone_ms=change)
    # A file that has been gone long enough goes with the next change of its range.
    expired = {key for key, one in wanted.items() if one.gone_ms is not None and one.gone_ms < forget_before_ms}
    assert expired.isdisjoint(one.file.key for one in found)
    assert found == [wanted[key] for key in sorted(wanted.keys() - expired)]
    assert all(left.file.key < right.file.key for left, right in pairwise(found))


def run(number: int, first: str, last: str, rows: int, gone_ms: int | None = None) -> RunInfo:
    return RunInfo(f"seen/{number}", rows, first, last, 1, "", gone_ms)


def planned(runs: list[RunInfo], changed: list[str], **options: int) -> list[tuple[str, str, bool]]:
    settings = {"rows_max": 100, "gone_before_ms": FOREVER, **options}
    return [
        (",".join(one.name[5:] for one in part.runs), ",".join(part.keys), part.is_needed)
        for part in plan_rewrites(runs, changed, **settings)
    ]


def test_only_the_ranges_that_changed_are_replaced() -> None:
    runs = [run(0, "b", "d", 90), run(1, "f", "h", 90), run(2, "j", "l", 90)]
    assert planned(runs, ["g"]) == [("0", "", False), ("1", "g", True), ("2", "", False)]
    assert planned(runs, ["a", "i", "k"]) == [("0", "a", True), ("1", "i", True), ("2", "k", True)]


def test_keys_at_the_end_fill_the_last_run_and_then_make_another() -> None:
    assert planned([], ["a"]) == [("", "a", True)]
    assert planned([run(0, "b", "d", 90)], ["x", "y"]) == [("0", "x,y", True)]
    assert planned([run(0, "b", "d", 99)], ["x", "y"]) == [("0", "", False), ("", "x,y", True)]
    assert planned([run(0, "b", "d", 99)], ["c", "x"]) == [("0", "c", True), ("", "x", True)]


def test_small_runs_join_a_neighbour_that_is_replaced() -> None:
    runs = [run(0, "b", "d", 3), run(1, "f", "h", 90), run(2, "j", "l", 3)]
    assert planned(runs, ["g"]) == [("0,1,2", "g", True)]
    assert planned(runs, ["k"]) == [("0", "", False), ("1", "", False), ("2", "k", True)]


@checks("source:Q8")
def test_a_run_with_files_gone_long_enough_is_replaced() -> None:
    runs = [run(0, "b", "d", 90, 5), run(1, "f", "h", 90, 50)]
    assert planned(runs, [], gone_before_ms=10) == [("0", "", True), ("1", "", False)]


@settings(deadline=None)
@given(st.lists(st.lists(known_files, max_size=5), max_size=8), st.integers(-1, 8))
def test_a_delta_equals_its_two_parts_applied_in_order(records: list[list[KnownFile]], through: int) -> None:
    whole = Delta()
    for seq, files in enumerate(records):
        whole.add(seq, {one.file.key: one if one.gone_ms is None else one.gone_ms for one in files})
    first, rest = whole.up_to(through), whole.after(through)
    assert (whole.records, rest.records) == (len(records), len(records) - min(through + 1, len(records)))
    fold(first, rest.entries)
    assert first == whole.entries
    assert list(whole.keys("", None)) == sorted(whole.entries)


async def snapshot(operator: ap.Operator) -> dict[str, Any]:
    body: dict[str, Any] = unseal(await operator.read("state/snapshot.json"), path="")[0]
    return body


async def names(operator: ap.Operator) -> list[str]:
    return [entry.path.removeprefix("state/") async for entry in operator.list("state/", recursive=True)]


@checks("source:L11")
async def test_the_state_is_bounded_and_no_list_of_names_is_in_its_metadata() -> None:
    operator = memory()
    options = replace(SMALL, run_rows=1000, group_rows=100, keep_records=3, memory_items=100, cache_bytes=1 << 20)
    state = await opened(operator, options=options)
    for batch in range(20):
        await add(state, *(f"dir/part-{batch:03}-{number:04}" for number in range(500)))
        await state.committed(batch + 1)
        if batch % 2:
            await state.compact()
    found = [name for name in await names(operator) if name.startswith("log/")]
    assert len(found) == 3
    body = await snapshot(operator)
    assert sum(one[1] for one in body["runs"]) == 10_000
    assert len(body["runs"]) <= 12
    for name in ("meta.json", "snapshot.json"):
        assert len(await operator.read(f"state/{name}")) < 4000
    assert state.statistics.changed_files == 0
    assert state.statistics.local_bytes < 1 << 20
    await state.aclose()


@checks("source:L11")
async def test_a_lookup_holds_a_page_of_the_files() -> None:
    operator = memory()
    options = replace(SMALL, run_rows=200, group_rows=10, cache_bytes=20_000)
    state = await opened(operator, options=options)
    for batch in range(20):
        await add(state, *(f"k{batch:03}{number:03}" for number in range(100)))
        await state.committed(batch + 1)
        await state.compact()
    state = await opened(operator, options=options)
    wanted = [f"k{number // 100:03}{number % 100:03}" for number in range(2000)]
    for start in range(0, 2000, 50):
        page = wanted[start : start + 50]
        found = await state.index.page(wanted[start - 1] if start else "", count=50)
        assert [one.file.key for one in found] == page
        assert state.statistics.local_bytes <= 20_000
        assert state.statistics.cached_groups <= 8
    assert set(await state.index.find(wanted[::97])) == set(wanted[::97])


@checks("source:Q8")
async def test_files_that_are_gone_are_forgotten_after_the_grace_and_not_before() -> None:
    operator = memory()
    clock = [0]
    state = await opened(operator, clock_ms=lambda: clock[0])
    model = Model()
    for number in range(4):
        model.apply(await add(state, *(f"k{number}{letter}" for letter in "abcdefgh")))
    model.apply(await add(state, gone={f"k{number}{letter}": 0 for number in range(3) for letter in "abcdefgh"}))
    await state.committed(5)
    await state.compact()
    await check_known(state.index, model)
    assert sum(one[1] for one in (await snapshot(operator))["runs"]) == 32
    # One of them is back, and another one is gone that is not to be forgotten yet.
    clock[0] = SMALL.forget_after_ms * 2
    model.apply(await add(state, known=[file("k0a")], gone={"k3a": clock[0]}))
    model.apply(await add(state, "zz"))
    await state.compact()
    await check_known(state.index, model, forgotten_before_ms=1)
    assert (await state.index.find(["k3a"]))["k3a"].gone_ms == clock[0]
    kept = {one.file.key for one in await state.index.page("", count=100)}
    assert kept == {"k0a", "zz", *(f"k3{letter}" for letter in "abcdefgh")}
    assert sum(one[1] for one in (await snapshot(operator))["runs"]) == len(kept)
    again = await opened(operator)
    assert {one.file.key for one in await again.index.page("", count=100)} == kept


@checks("source:Q8")
async def test_a_state_whose_files_are_deleted_after_use_stays_small() -> None:
    operator = memory()
    clock = [0]
    state = await opened(operator, clock_ms=lambda: clock[0])
    sizes = []
    for batch in range(40):
        await add(state, *(f"k{batch:03}{number}" for number in range(6)))
        if batch:
            await add(state, gone={f"k{batch - 1:03}{number}": clock[0] for number in range(6)})
        assert state.head is not None
        await state.committed(state.head.seq)
        await state.compact()
        clock[0] += SMALL.forget_after_ms // 2
        found = await names(operator)
        sizes.append((len(found), state.statistics.run_files + state.statistics.changed_files))
    assert max(files for files, _ in sizes[10:]) <= 20
    assert max(count for _, count in sizes[10:]) <= 40


async def test_a_carry_over_of_a_known_file_does_not_change_its_version() -> None:
    operator = memory()
    state = await opened(operator)
    first, rest = FetchItem(file("big", 1)).cut(10)
    second, third = rest.cut(20)
    await add(state, first, carry=[rest])
    await add(state, second, carry=[third], known=[file("big", 2)])
    await add(state, third)
    assert await state.index.find(["big"]) == {"big": KnownFile(file("big", 2), 2)}
    again = await opened(operator)
    assert await again.index.find(["big"]) == {"big": KnownFile(file("big", 2), 2)}


async def test_commits_start_compactions_in_the_background_while_records_come() -> None:
    operator = memory()
    options = replace(SMALL, compact_entries=20, cache_bytes=1 << 20)
    state = await opened(operator, options=options)
    model = Model()
    for batch in range(30):
        model.apply(await add(state, *(f"k{batch * 7 % 30:02}{letter}" for letter in "abcd")))
        await state.committed(batch + 1)
        await asyncio.sleep(0)
        if batch % chosen(quick=10, full=3) == 0:
            await check_known(state.index, model)
    await state.committed(3)  # Late and old: without effect.
    await state.join()
    assert (await snapshot(operator))["through_seq"] > 0
    await check_known(state.index, model)
    await state.aclose()
    again = await opened(operator)
    await check_known(again.index, model)


@checks("source:L11")
async def test_records_and_commits_wait_for_a_compaction_that_does_not_keep_up() -> None:
    base, switch = memory(), Switch()
    state = await opened(base.layer(switch), options=replace(SMALL, compact_entries=4))
    slow = Injection(operation="write", path="state/snapshot.json", hang=True)
    switch.layer = FaultLayer((slow,))
    await add(state, *(f"k0{letter}" for letter in "abcd"))
    waiting: list[asyncio.Task[Any]] = [asyncio.create_task(add(state, *(f"k1{letter}" for letter in "abcd")))]
    for _ in range(50):
        await asyncio.sleep(0)
    waiting.append(asyncio.create_task(state.committed(2)))
    for _ in range(50):
        await asyncio.sleep(0)
    assert state.head is not None
    assert state.head.seq == 2
    assert not any(one.done() for one in waiting)
    await state.aclose()  # Ends the compaction, and with it the waits.
    await asyncio.gather(*waiting)


async def test_many_records_without_files_are_compacted_too() -> None:
    operator = memory()
    state = await opened(operator, options=replace(SMALL, compact_records=10))
    for number in range(30):
        await add(state)
        await state.committed(number + 1)
        await state.join()
    assert len([name for name in await names(operator) if name.startswith("log/")]) <= 22


async def log_seqs(operator: ap.Operator) -> list[int]:
    return [int(name[4:16]) for name in await names(operator) if name.startswith("log/")]


@checks("source:R2")
async def test_the_last_committed_records_with_work_are_kept_whatever_comes_after_them() -> None:
    operator = memory()
    state = await opened(operator, options=replace(SMALL, keep_records=3))
    records = [await add(state, f"k{number}") for number in range(10)]
    for turn in range(3):
        records += [await add(state) for _ in range(20)]
        if turn == 0:
            await state.committed(8)
            await state.compact()
        await state.aclose()
        state = await opened(operator, options=replace(SMALL, keep_records=3))
        assert state.head is not None
        records.append(state.head)
        await state.compact()
        # 9 and 10 are not committed: the engine may ask for the batch that they are.
        assert [one.seq for one in await state.work(5, state.head.seq)] == [6, 7, 8, 9, 10]
    found = await log_seqs(operator)
    assert found[:5] == [6, 7, 8, 9, 10]
    assert found[-3:] == [71, 72, 73]
    assert len(found) <= 5 + 22
    assert await state.work(7, 60) == records[7:10]
    assert await state.records(7, 73) == [one for one in records if one.seq in found[2:]]
    with pytest.raises(NotFound, match="record 5 was removed"):
        await state.work(4, 60)
    assert state.work_seqs(9) == [10]
    with pytest.raises(NotFound, match="record 5 was removed"):
        state.work_seqs(4)
    # Once they are committed, they go like all others.
    for number in range(4):
        await add(state, f"x{number}")
    assert state.head is not None
    await state.committed(state.head.seq)
    for _ in range(3):
        await state.compact()
        await add(state)
    assert state.work_seqs(74) == [75, 76, 77]
    assert (await log_seqs(operator))[0] == 75


async def test_a_reader_learns_that_records_were_removed_since_its_last_look() -> None:
    operator = memory()
    state = await opened(operator)
    reader = await opened(operator, writer=False)
    for number in range(4):
        await add(state, f"k{number}")
    assert await reader.newest() == state.head
    for number in range(9):
        await add(state, f"x{number}")
        await state.committed(4 + number)
        await state.compact()
    with pytest.raises(NotFound, match="was removed"):
        await reader.records(0, 3)
    assert await reader.newest() == state.head


async def test_a_state_that_is_opened_again_and_again_without_a_commit_stays_small() -> None:
    operator = memory()
    options = replace(SMALL, compact_records=10)
    record = await add(await opened(operator, options=options), "a")
    for _ in range(chosen(quick=45, full=100)):
        state = await opened(operator, options=options)
        assert await state.work(0, 1) == [record]
        await state.aclose()
    assert len(await log_seqs(operator)) <= 1 + 2 * 20 + 1


@checks("source:Q8")
async def test_a_file_that_is_gone_is_forgotten_in_time_although_nothing_else_happens() -> None:
    operator = memory()
    clock = [0]
    state = await opened(operator, clock_ms=lambda: clock[0], options=replace(SMALL, forget_after_seconds=1000.0))
    await add(state, "a", "b")
    await add(state, gone={"a": 0})
    for seconds, known in ((900, {"a", "b"}), (2000, {"b"})):
        clock[0] = seconds * 1000
        await state.committed(1)
        await state.join()
        assert set(await state.index.find(["a", "b"])) == known
        assert sum(one[1] for one in (await snapshot(operator))["runs"]) == (1 if seconds == 2000 else 0)
    # It is in a run by now, and no record comes after that.
    await add(state, gone={"b": clock[0]})
    await state.compact()
    assert state.statistics.compacted_seq == state.statistics.newest_seq
    clock[0] = 4000 * 1000
    await state.committed(1)
    await state.join()
    assert set(await state.index.find(["a", "b"])) == set()
    again = await opened(operator)
    assert set(await again.index.find(["a", "b"])) == set()
