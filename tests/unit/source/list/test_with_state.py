"""TailSweepLister and follower over the durable state itself: runs, compactions, records that were removed."""

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import takewhile

import pytest

from aioprefetch import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.list.follower import Follower
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions, StateOptions
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.state.store import SourceIdentity
from aioprefetch.source.values import Change, Cursor, Feed, FetchItem, Follow, Record, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.stores.simulated_bucket import SimulatedBucket

OPTIONS = ListOptions(interval_seconds=0.0, ahead_pages=1, sweep_pages=4)
SMALL = StateOptions(keep_records=2, compact_entries=20, compact_records=5, run_rows=40, group_rows=10)


@dataclass
class Source:
    """Plans all that a trigger finds, and commits it at once."""

    state: SourceState
    feed: Feed
    delivered: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    @property
    def cursor(self) -> Cursor:
        """The cursor of the newest record."""
        assert self.state.head is not None
        return self.state.head.cursor

    async def trigger(self, room: int = 1 << 60) -> int:
        """One record, if there is anything; how many changes it has."""
        self.feed.begin_trigger()
        cursor, taken = self.cursor, list[Change]()
        while len(taken) < room:
            page = await self.feed.page(cursor)
            keys = {change.file.key for change in taken}
            # A record says one thing of a key: what was taken is written down first.
            fresh = list(takewhile(lambda pair: pair[0].file.key not in keys, page.changes))  # noqa: B023
            pairs = fresh[: room - len(taken)]
            if not pairs and page.changes:
                break
            taken += [change for change, _ in pairs]
            cursor = page.after if len(pairs) == len(page.changes) else pairs[-1][1]
            if page.is_idle or len(pairs) < len(page.changes):
                break
        if cursor != self.cursor:
            await self._append(cursor, taken)
        return len(taken)

    async def _append(self, cursor: Cursor, taken: list[Change]) -> None:
        assert self.state.head is not None
        seq = self.state.head.seq + 1
        files = [change.file for change in taken if change.kind in ("new", "overwritten")]
        known = tuple(change.file for change in taken if change.kind == "returned")
        gone = tuple((change.file.key, 1) for change in taken if change.kind == "gone")
        items = tuple(map(FetchItem, files))
        await self.state.append(Record(seq, self.state.writer, cursor, items, (), known, gone))
        self.delivered.update((file.key, file.etag) for file in files)
        await self.state.committed(seq)

    async def until_idle(self) -> None:
        """Triggers through two sweeps, or until there is nothing more to follow."""
        quiet = 0
        while quiet < 30:
            quiet = 0 if await self.trigger() else quiet + 1


@pytest.fixture
async def states() -> AsyncIterator[Operator]:
    async with Operator(Memory()) as operator:
        yield operator


async def opened(
    stack: AsyncExitStack, states: Operator, directory: str, first: Cursor, *, writer: bool = True
) -> SourceState:
    """A state that the stack closes."""
    identity = SourceIdentity(url="s3://bucket", glob=None, options={})
    state = await SourceState.open(states, directory, identity, first=first, writer=writer, options=SMALL)
    stack.push_async_callback(state.aclose)
    return state


@checks("source:L1", "source:L9", "source:F9")
@pytest.mark.parametrize("seed", range(chosen(quick=1, full=3)))
async def test_lister_and_follower_deliver_each_version_once(states: Operator, seed: int) -> None:
    """While both states are compacted, and the follower is away for longer than records are kept."""
    chance = random.Random(seed)
    bucket = SimulatedBucket(page_entries=7)
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(bucket.operator())
        lead = await opened(stack, states, "lead/", TailAndSweep())
        one = Source(lead, TailSweepLister(operator, OPTIONS, lead.index))
        stack.push_async_callback(one.feed.aclose)  # type: ignore[attr-defined]
        read = await opened(stack, states, "lead/", TailAndSweep(), writer=False)
        own = await opened(stack, states, "own/", Follow(state=read.uuid))
        two = Source(own, Follower(read, OPTIONS, own.index))
        for number in range(60):
            for _ in range(chance.randint(0, 6)):
                bucket.put(f"k{chance.randint(0, 99):02}", modified_ms=number)
            if bucket.objects and chance.random() < 0.5:
                bucket.delete(chance.choice(sorted(bucket.objects)))
            await one.trigger(room=chance.choice([3, 10, 100]))
            if number % 20 < 4:
                await two.trigger(room=5)
            if number % 10 == 9:
                await one.state.compact()
        await one.until_idle()
        await two.until_idle()
        there = {(key, found.etag) for key, found in bucket.objects.items()}
        for source in (one, two):
            assert set(source.delivered.values()) == {1}
            assert there <= set(source.delivered)
            page = await source.state.index.page("", count=1000)
            assert {(known.file.key, known.file.etag) for known in page if known.gone_ms is None} == there
