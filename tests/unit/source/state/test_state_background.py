"""Compaction in the background: failures, closing, and what a record needs."""

import asyncio
import json
from dataclasses import replace

import pytest

from aioprefetch.errors import Unavailable
from aioprefetch.source.state.compaction import FAILURES_MAX
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.state.store import StateStore, Versioned
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.unit.source.state.stores import SMALL, Switch, add, memory, next_record, opened

# Between two commits, on the virtual clock.
COMMIT_SECONDS = 10


async def with_failing_compactions(retry_seconds: float) -> tuple[SourceState, Switch]:
    """A state with a name that is compacted, and one of which the compactions fail while the switch is on."""
    base, switch = memory(), Switch()
    plan = (Injection(operation="write", path="state/snapshot-000000000001.json", times=None, error=Unavailable),)
    state = await opened(base.layer(switch), options=replace(SMALL, compact_entries=1, retry_seconds=retry_seconds))
    await add(state, "a")
    await state.committed(1)
    await state.join()
    switch.layer = FaultLayer(plan)
    await add(state, "b")
    return state, switch


async def test_failing_compactions_are_raised_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    state, _ = await with_failing_compactions(retry_seconds=0.0)
    for _ in range(FAILURES_MAX):
        await state.committed(2)
        await state.join()
    with pytest.raises(Unavailable):
        await state.committed(2)
    assert "compacting the state at" in caplog.text
    assert set(await state.index.find(["a", "b"])) == {"a", "b"}


@pytest.mark.virtual
async def test_transient_failures_of_compactions_are_tolerated_for_minutes() -> None:
    state, switch = await with_failing_compactions(retry_seconds=600.0)
    for _ in range(10 * FAILURES_MAX):
        await state.committed(2)
        await state.join()
        await asyncio.sleep(COMMIT_SECONDS)
    await asyncio.sleep(20 * COMMIT_SECONDS)
    with pytest.raises(Unavailable):
        await state.committed(2)
    switch.layer = None
    await state.committed(2)
    await state.join()
    assert set(await state.index.find(["a", "b"])) == {"a", "b"}


async def test_closing_ends_a_compaction_and_loses_nothing() -> None:
    base, switch = memory(), Switch()
    state = await opened(base.layer(switch), options=replace(SMALL, compact_entries=1))
    hang = Injection(operation="write", path="state/snapshot.json", hang=True)
    switch.layer = FaultLayer((hang,))
    await add(state, "a")
    await state.committed(1)
    for _ in range(20):
        await asyncio.sleep(0)
    await state.aclose()
    await state.committed(1)
    again = await opened(base)
    assert set(await again.index.find(["a"])) == {"a"}


async def test_a_snapshot_whose_response_was_lost_does_not_end_its_writer() -> None:
    """Neither was it to be seen right after that."""
    base, switch = memory(), Switch()
    state = await opened(base.layer(switch))
    await add(state, "a")
    plan = (
        Injection(operation="write", path="state/snapshot.json", at="reply", error=Unavailable),
        Injection(operation="stat", path="state/snapshot.json", error=Unavailable),
    )
    switch.layer = FaultLayer(plan)
    with pytest.raises(Unavailable):
        await state.compact()
    await add(state, "b")
    await state.compact()
    await add(state, "c")
    again = await opened(base)
    assert set(await again.index.find(["a", "b", "c"])) == {"a", "b", "c"}


async def test_a_snapshot_that_comes_late_does_not_end_its_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    base = memory()
    state = await opened(base)
    await add(state, "a")
    late: list[tuple[str, bytes, Versioned]] = []
    replace_snapshot = StateStore.replace

    async def slow(self: StateStore, name: str, data: bytes, before: Versioned) -> Versioned:
        if not late:
            late.append((name, data, before))
            raise Unavailable("no response", operation="write")
        if late[0][0]:
            await replace_snapshot(self, *late[0])
            late[0] = ("", b"", before)
        return await replace_snapshot(self, name, data, before)

    monkeypatch.setattr(StateStore, "replace", slow)
    with pytest.raises(Unavailable):
        await state.compact()
    await add(state, "b")
    await state.compact()
    await add(state, "c")
    monkeypatch.undo()
    again = await opened(base)
    assert set(await again.index.find(["a", "b", "c"])) == {"a", "b", "c"}


async def test_a_record_has_what_others_need_to_read_it() -> None:
    state = await opened(memory())
    record = next_record(state, ["a"], gone={"b": 3})
    assert json.loads(json.dumps(record.to_json())) == record.to_json()
