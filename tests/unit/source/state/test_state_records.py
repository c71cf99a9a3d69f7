"""Opening, appending and reading records: what is durable, who may write, what a lost answer means."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch.errors import (
    Closed,
    InvalidArgument,
    NotFound,
    StateConflict,
    TimedOut,
    Unavailable,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import FetchItem, Offset, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.unit.source.state.stores import (
    IDENTITY,
    SMALL,
    Crash,
    CrashLayer,
    Switch,
    add,
    file,
    memory,
    next_record,
    opened,
)

FIRST = "state/log/000000000001.json.zst"
LOST = FaultLayer((Injection(operation="write", path=FIRST, at="reply", error=Unavailable),))


async def names(operator: ap.Operator) -> list[str]:
    return [entry.path.removeprefix("state/") async for entry in operator.list("state/", recursive=True)]


async def test_a_new_state_begins_with_a_claim() -> None:
    operator = memory()
    first = TailAndSweep(frontier="a")
    state = await opened(operator, first=first)
    assert state.head is not None
    assert (state.head.seq, state.head.claim, state.head.cursor, state.head.writer) == (0, True, first, state.writer)
    assert await names(operator) == ["log/000000000000.json.zst", "meta.json", "snapshot.json"]
    await state.aclose()


@checks("source:R1")
async def test_appended_records_are_there_after_opening_again() -> None:
    operator = memory()
    state = await opened(operator)
    cut = FetchItem(file("big")).cut(10)
    record = await add(state, "a", cut[0], carry=[cut[1]], known=[file("empty")], cursor=TailAndSweep("big", "a", 3, 9))
    again = await opened(operator)
    assert again.uuid == state.uuid
    assert again.writer != state.writer
    claim = again.head
    assert claim is not None
    assert (claim.seq, claim.claim, claim.items, claim.known) == (2, True, (), ())
    assert (claim.cursor, claim.carry, claim.files, claim.bytes) == (
        record.cursor,
        record.carry,
        record.files,
        record.bytes,
    )
    assert await again.records(0, 1) == [record]
    assert set(await again.index.find(["a", "big", "empty", "other"])) == {"a", "big", "empty"}


@checks("source:F9")
async def test_a_reader_claims_nothing_and_follows() -> None:
    operator = memory()
    with pytest.raises(NotFound, match="start the source that lists"):
        await opened(operator, writer=False)
    assert await names(operator) == []
    state = await opened(operator)
    reader = await opened(operator, writer=False, identity=None)
    before = await names(operator)
    first = await add(state, "a")
    second = await add(state, "b")
    assert reader.head is not None
    assert reader.head.seq == 0
    assert await reader.newest() == second
    assert [one.file.key for one in await reader.index.page("", count=100)] == ["a", "b"]
    third = await add(state, "c")
    assert await reader.records(0, 3) == [first, second, third]  # It looks for what it has not seen yet.
    assert set(before) < set(await names(operator))
    with pytest.raises(Unsupported, match="for reading"):
        await reader.append(third)
    await reader.committed(3)
    await state.aclose()
    await reader.aclose()


async def test_a_reader_goes_on_when_compactions_have_passed_it() -> None:
    operator = memory()
    state = await opened(operator)
    reader = await opened(operator, writer=False)
    for number in range(12):
        await add(state, *(f"k{number}{letter}" for letter in "abc"))
        await state.committed(number + 1)
        if number % 2:
            await state.compact()
    assert "log/000000000001.json.zst" not in await names(operator)
    assert (await reader.newest()) == state.head
    found = await reader.index.page("", count=100)
    assert found == await state.index.page("", count=100)
    assert len(found) == 36
    # Its runs are removed while it looks.
    for number in range(12, 18):
        await add(state, *(f"k0{number}{letter}" for letter in "abc"))
        await state.committed(number + 1)
        await state.compact()
    assert len(await reader.index.page("", count=100)) == 54
    await state.aclose()
    await reader.aclose()


@checks("source:L1")
async def test_the_older_of_two_writers_ends_whichever_appends_first() -> None:
    operator = memory()
    older = await opened(operator)
    newer = await opened(operator)
    with pytest.raises(StateConflict, match="another writer has taken over"):
        await add(older, "a")
    await add(newer, "b")
    with pytest.raises(StateConflict, match="another writer has taken over"):
        await add(older, "a")
    with pytest.raises(StateConflict):
        await older.compact()
    assert set(await newer.index.find(["a", "b"])) == {"b"}
    newest = await opened(operator)
    with pytest.raises(StateConflict):
        await newer.newest()
    with pytest.raises(StateConflict):
        await add(newer, "c")
    await add(newest, "d")


async def test_claims_of_many_at_once_leave_one_writer() -> None:
    operator = memory()
    states = await asyncio.gather(*(opened(operator) for _ in range(6)))
    outcomes = await asyncio.gather(*(add(state, "a") for state in states), return_exceptions=True)
    assert sum(isinstance(one, StateConflict) for one in outcomes) == 5
    assert len({state.uuid for state in states}) == 1


async def test_a_stale_writer_cannot_replace_the_snapshot() -> None:
    operator = memory()
    older = await opened(operator)
    await add(older, "a", "b")
    await older.committed(1)
    newer = await opened(operator)
    with pytest.raises(StateConflict, match="replaced"):
        await older.compact()
    await newer.committed(1)
    await newer.compact()
    again = await opened(operator)
    assert set(await again.index.find(["a", "b"])) == {"a", "b"}
    for state in (older, newer, again):
        await state.aclose()


@pytest.mark.virtual
async def test_a_write_whose_response_was_lost_is_recognised_as_our_own() -> None:
    operator = memory().layer(LOST)
    state = await opened(operator)
    record = await add(state, "a")
    assert state.head == record
    await add(state, "b")
    assert [one.seq for one in await state.records(0, 2)] == [1, 2]


@pytest.mark.virtual
async def test_a_write_that_fails_permanently_can_be_tried_again() -> None:
    plan = (Injection(operation="write", path=FIRST, times=20, error=TimedOut),)
    operator = memory().layer(FaultLayer(plan))
    state = await opened(operator)
    record = next_record(state, ["a"])
    for _ in range(5):
        with pytest.raises(TimedOut):
            await state.append(record)
        assert state.head is not None
        assert state.head.seq == 0
    await state.append(record)
    await state.append(record)  # The same again is fine.
    assert state.head == record


@pytest.mark.parametrize("after", [False, True])
async def test_a_cancelled_append_leaves_the_record_or_nothing(after: bool) -> None:
    base, switch = memory(), Switch()
    state = await opened(base.layer(switch))
    hang = Injection(operation="write", path=FIRST, at="reply" if after else "call", hang=True)
    switch.layer = FaultLayer((hang,))
    record = next_record(state, ["a"])
    task = asyncio.create_task(state.append(record))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    newest = await state.newest()
    assert newest is not None
    assert newest.seq == (1 if after else 0)
    other = next_record(state, ["b"])
    await state.append(other)
    assert set(await state.index.find(["a", "b"])) == ({"a", "b"} if after else {"b"})


async def test_another_record_under_a_taken_number_is_refused() -> None:
    crash = CrashLayer(0, after=True)
    base, switch = memory(), Switch()
    state = await opened(base.layer(switch))
    record, other = next_record(state, ["a"]), next_record(state, ["b"])
    switch.layer = crash
    with pytest.raises(Crash):
        await state.append(record)
    switch.layer = None
    with pytest.raises(StateConflict, match="the newest one is 1"):
        await state.append(other)
    assert state.head == record
    await state.append(record)
    with pytest.raises(InvalidArgument, match="writer"):
        await state.append((await opened(memory())).head)  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead", [1, 2, 1000])
async def test_a_record_that_would_leave_a_gap_in_the_log_is_refused(ahead: int) -> None:
    operator = memory()
    state = await opened(operator)
    await add(state, "a")
    record = next_record(state, ["b"])
    with pytest.raises(StateConflict, match="the newest one is 1"):
        await state.append(replace(record, seq=record.seq + ahead))
    await state.append(record)
    await state.aclose()
    again = await opened(operator)
    assert set(await again.index.find(["a", "b"])) == {"a", "b"}


async def test_records_come_from_memory_or_the_log_and_removed_ones_are_named() -> None:
    operator = memory()
    state = await opened(operator)
    records = [await add(state, f"a{number}", f"b{number}") for number in range(8)]
    assert await state.records(0, 8) == records
    assert await state.records(3, 3) == []
    assert [one.claim for one in await state.records(-1, 1)] == [True, False]
    for seq in (9, 10):
        await state.committed(seq - 1)
        await state.compact()
        records.append(await add(state, f"a{seq}"))
    await state.compact()
    assert await state.records(7, 10) == records[7:]
    assert await state.work(7, 10) == records[7:]
    for after, through, seq in ((-1, 10, 7), (6, 10, 7), (2, 4, 4)):
        for look in (state.records, state.work):
            with pytest.raises(NotFound, match=f"record {seq} was removed"):
                await look(after, through)
    assert await state.records(2, 2) == []
    with pytest.raises(UntrustedMetadata, match="the log ends with record 10"):
        await state.records(7, 11)
    await state.aclose()
    with pytest.raises(Closed):
        await state.records(7, 10)
    with pytest.raises(Closed):
        await state.newest()


async def test_an_offset_of_another_state_or_ahead_of_the_log_is_refused() -> None:
    state = await opened(memory())
    await add(state, "a")
    state.check_offset(Offset(state.uuid))
    state.check_offset(Offset(state.uuid, 1))
    with pytest.raises(StateConflict, match="the checkpoint belongs to the state other"):
        state.check_offset(Offset("other", 1))
    with pytest.raises(UntrustedMetadata, match="knows record 2"):
        state.check_offset(Offset(state.uuid, 2))


async def test_files_on_a_disk_hold_a_state(tmp_path: Path) -> None:
    async with ap.Operator.from_uri(f"file://{tmp_path}") as operator:
        state = await SourceState.open(operator, "", IDENTITY, first=TailAndSweep(), options=SMALL)
        for number in range(5):
            await add(state, *(f"k{number}{letter}" for letter in "abcd"))
        await state.committed(4)
        await state.compact()
        again = await SourceState.open(operator, "", IDENTITY, first=TailAndSweep(), options=SMALL)
        assert len(await again.index.page("", count=100)) == 20
        with pytest.raises(StateConflict):
            await add(state, "x")
        await state.aclose()
        await again.aclose()
