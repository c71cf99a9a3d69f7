"""Random histories of records, commits, compactions and reopenings, compared with a dict."""

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.source.state import index as index_module
from aioprefetch.source.state.snapshot import Snapshot
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import FetchItem, Record
from aioprefetch.testing.clock import run_virtual
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.unit.source.state.stores import (
    SMALL,
    Crash,
    CrashLayer,
    Model,
    check_known,
    file,
    memory,
    next_record,
    opened,
)

# Half of a surrogate pair stands between what UTF-8 and UTF-16 would make of the order.
KEYS = [*(f"k{number:02}" for number in range(24)), "K/ä", "k00/x", "\udc80", "\U0001f600", "zz" * 20]

Step = tuple[Any, ...]
keys = st.sampled_from(KEYS)
appends = st.tuples(
    st.just("append"),
    st.lists(st.tuples(keys, st.integers(0, 2)), max_size=12, unique_by=lambda one: one[0]),
    st.lists(st.tuples(keys, st.integers(0, 2)), max_size=3, unique_by=lambda one: one[0]),
    st.lists(keys, max_size=6, unique=True),
    st.booleans(),
)
steps = st.one_of(
    appends,
    appends,
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.just("compact")),
    st.tuples(st.just("settle"), st.integers(0, 2)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("wait"), st.sampled_from([300, 2500])),
)
histories = st.lists(steps, min_size=3, max_size=25)


@dataclass
class Run:
    """One history under way: the state, the model, and the clock."""

    operator: ap.Operator
    model: Model = field(default_factory=Model)
    state: SourceState | None = None
    now_ms: int = 0
    unanswered: Record | None = None

    async def open(self) -> None:
        """Open it; the model learns of the record that was written without a response, if it was written."""
        if self.state is not None:
            await self.state.aclose()
        self.state = state = await opened(self.operator, clock_ms=lambda: self.now_ms)
        lost, self.unanswered = self.unanswered, None
        if lost is not None and (await state.records(lost.seq - 1, lost.seq)) == [lost]:
            self.model.apply(lost)

    async def step(self, step: Step) -> None:
        """One step."""
        state = self.state
        assert state is not None
        head = state.head
        assert head is not None
        match step:
            case ("append", items, known, gone, cuts):
                record = self.record(state, items, known, gone, cuts)
                self.unanswered = record
                await state.append(record)
                self.model.apply(record)
                self.unanswered = None
            case ("commit", back):
                await state.committed(head.seq - back)
            case ("settle", back):
                await state.committed(head.seq - back)
                await state.compact()
            case ("compact",):
                await state.compact()
            case ("reopen",):
                await self.open()
            case ("wait", ms):
                self.now_ms += ms

    def record(self, state: SourceState, items: Any, known: Any, gone: Any, cuts: bool) -> Record:
        """A record: what was carried over first, then the rest; its last file is cut in two."""
        assert state.head is not None
        carry = list(state.head.carry)
        work = carry[:1] + [FetchItem(file(key, version)) for key, version in items]
        rest = carry[1:]
        if cuts and work:
            first, second = work[-1].cut((work[-1].start + work[-1].stop) // 2)
            work[-1] = first
            rest.append(second)
        return next_record(
            state,
            work,
            carry=rest,
            known=[file(key, version) for key, version in known],
            gone=dict.fromkeys(gone, self.now_ms),
        )

    async def check(self) -> None:
        """The state equals the model."""
        assert self.state is not None
        before_ms = self.now_ms - SMALL.forget_after_ms
        await check_known(self.state.index, self.model, forgotten_before_ms=before_ms)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories)
def test_lookups_equal_those_of_a_dict(history: list[Step]) -> None:
    async def play() -> None:
        run = Run(memory())
        await run.open()
        for step in history:
            await run.step(step)
        await run.check()
        await run.open()
        await run.check()
        assert run.state is not None
        await run.state.aclose()

    with mock.patch.object(index_module, "STEP_FILES", 2):
        run_virtual(play)


@checks("source:R1")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories, st.integers(0, 150), st.booleans())
def test_a_crash_at_any_call_of_the_store_loses_nothing(history: list[Step], at: int, after: bool) -> None:
    async def play() -> None:
        run = Run(memory())
        await run.open()
        await play_with_crash(run, history, at, after)
        await run.check()
        assert run.state is not None
        await run.state.aclose()

    run_virtual(play)


async def play_with_crash(run: Run, history: list[Step], at: int, after: bool) -> list[str]:
    """Play a history on a store that dies, then go on with another process; the calls of the store."""
    crash = CrashLayer(at, after)
    run.operator, whole = run.operator.layer(crash), run.operator
    try:
        await run.open()
        for step in history:
            await run.step(step)
    except Crash:
        pass
    run.operator = whole
    await run.open()
    return crash.calls


# Each kind of write: claims, records, runs, snapshots, and what is deleted after them.
FULL_HISTORY: list[Step] = [
    ("append", [(f"k{number:02}", 0) for number in range(12)], [], [], True),
    ("commit", 0),
    ("compact",),
    ("append", [("k03", 1), ("x", 0)], [("y", 0)], ["k05", "k06"], False),
    ("reopen",),
    ("append", [("k20", 0)], [], ["k01"], False),
    ("commit", 1),
    ("compact",),
    ("wait", 2500),
    ("append", [("k21", 0)], [("k05", 0)], [], False),
    ("append", [("k22", 0)], [], [], False),
    ("commit", 0),
    ("compact",),
]


@checks("source:R1")
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_each_single_call_loses_nothing(after: bool) -> None:
    """Before and after each call of the store has taken effect, from the making of the state on.

    ``quick`` takes the calls in turn, every second one before and the others after they have taken effect.
    """

    async def play(at: int) -> int:
        run = Run(memory())
        calls = await play_with_crash(run, FULL_HISTORY, at, after)
        await run.check()
        assert run.state is not None
        if run.state.head is not None and at % 4 < 2:
            # It goes on as if nothing had happened, and removes the leftovers of the crash.
            await run.step(("append", [("after", 0)], [], [], False))
            await run.step(("commit", 0))
            await run.state.compact()
            await run.step(("reopen",))
            await run.check()
            await check_no_leftovers(run)
        await run.state.aclose()
        return len(calls)

    calls = run_virtual(lambda: play(10**9))
    assert calls > 60
    for at in range(chosen(quick=int(after), full=0), calls, chosen(quick=2, full=1)):
        run_virtual(lambda at=at: play(at))  # type: ignore[misc]


async def check_no_leftovers(run: Run) -> None:
    """Nothing is in the store but what the snapshots name, and their log."""
    names = [entry.path.removeprefix("state/") async for entry in run.operator.list("state/", recursive=True)]
    path = "state/snapshot.json"
    snapshot = Snapshot.from_bytes(await run.operator.read(path), path=path)
    named = {one.name for one in snapshot.runs} | set(snapshot.previous_runs)
    assert {name for name in names if name.startswith("seen/")} == named
    kept = {f"snapshot-{snapshot.previous_seq:012}.json"} if snapshot.previous_seq >= 0 else set()
    assert {name for name in names if not name.startswith(("seen/", "log/"))} == {"meta.json", "snapshot.json", *kept}
