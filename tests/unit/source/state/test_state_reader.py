"""A state that one process writes and another one reads, for long: what it loads, and what it must notice."""

from dataclasses import replace

import pytest

from aioprefetch.errors import StateConflict, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.source.state.journal import RECORDS_FEW, LoggedRecord, encode, read_records
from aioprefetch.source.state.store import StateStore, log_name
from tests.unit.source.state.stores import SMALL, add, memory, next_record, opened


async def wiped(operator: Operator) -> None:
    async with operator.list("state/", recursive=True) as entries:
        for path in [entry.path async for entry in entries]:
            await operator.delete(path)


@pytest.mark.parametrize("records", [0, 2, 5, 8])
async def test_a_state_that_was_deleted_and_created_again_is_another_one(records: int) -> None:
    """With fewer records than were read, with as many, and with more."""
    base = memory()
    state = await opened(base)
    for key in "abcd":
        await add(state, key)
    reader = await opened(base, writer=False)
    await state.aclose()
    await wiped(base)
    if records == 0:
        with pytest.raises(StateConflict, match="nothing is there now"):
            await reader.newest()
        return
    other = await opened(base)
    for number in range(records):
        await add(other, f"n{number}")
    with pytest.raises(StateConflict, match=other.uuid):
        await reader.newest()


async def test_a_reader_that_was_away_begins_at_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what was compacted meanwhile in one piece, not record by record."""
    base = memory()
    state = await opened(base, options=replace(SMALL, keep_records=100))
    reader = await opened(base, writer=False, options=replace(SMALL, keep_records=100))
    for number in range(3 * RECORDS_FEW):
        await add(state, f"k{number:02}")
    await state.compact()
    await add(state, "last")
    read: list[int] = []

    async def counted(store: StateStore, seqs: list[int]) -> list[LoggedRecord | None]:
        read.extend(seqs)
        return await read_records(store, seqs)

    monkeypatch.setattr("aioprefetch.source.state.journal.read_records", counted)
    monkeypatch.setattr("aioprefetch.source.state.source_state.read_records", counted)
    assert await reader.newest() == state.head
    assert len(read) == 2
    assert len(await reader.index.page("", count=100)) == 3 * RECORDS_FEW + 1
    await add(state, "one more")
    assert await reader.newest() == state.head
    assert len(read) == 3


async def test_a_record_that_does_not_follow_what_was_read_is_refused() -> None:
    """The state is the same one: an older copy of its log was put in place."""
    base = memory()
    state = await opened(base)
    await add(state, "a")
    reader = await opened(base, writer=False)
    record = next_record(state, ["b"])
    await base.write(f"state/{log_name(record.seq)}", encode(record, "00000000")[0])
    with pytest.raises(UntrustedMetadata, match=f"record {record.seq} does not follow the record before it"):
        await reader.newest()
