"""Both listers against a model, over a bucket to which anything happens.

Puts, overwrites, deletions, objects put back, times that are wrong by years, requests that fail, pages taken in part,
processes that end with and without their last trigger. What must hold: no version is delivered twice, an object that
stayed for one whole sweep was delivered, a trigger requests a bounded number of pages, and a bucket that does not
change tells nothing.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch import Operator
from aioprefetch.errors import Throttled
from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions, Overwrites
from aioprefetch.source.values import TailAndSweep
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListRequest
from tests.stores.dict_index import Consumer, DictIndex
from tests.stores.simulated_bucket import SimulatedBucket

Kind = type[TailSweepLister] | type[DiffLister]

keys = st.text("ab/-", min_size=1, max_size=3).filter(lambda key: key[0] != "/")
times = st.integers(-(10**12), 10**13)  # of uploads that began long ago, and of clocks that are ahead
puts = st.tuples(st.just("put"), keys, times)
triggers = st.tuples(st.just("trigger"), st.sampled_from([1, 2, 5, 1000]))
steps = st.one_of(
    puts,
    puts,
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("put_back"), keys),
    triggers,
    triggers,
    triggers,
    st.tuples(st.just("fail"), st.lists(st.booleans(), max_size=6)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), st.sampled_from([1, 5])),
)


@dataclass
class World:
    """A bucket, a source, and what is known of both."""

    kind: Kind
    options: ListOptions
    overwrites: Overwrites
    page_entries: int
    operator: Operator = field(init=False)
    bucket: SimulatedBucket = field(init=False)
    one: Consumer = field(init=False)
    failing: list[bool] = field(default_factory=list)
    failed: int = 0
    # Of each version that is there: how many passes had ended when it came.
    since: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bucket = SimulatedBucket(
            self.page_entries, ordered=self.kind is TailSweepLister, on_request=self.maybe_fail
        )
        self.operator = self.bucket.operator()
        known = DictIndex()
        self.one = Consumer(self.kind(self.operator, self.options, known), known, self.overwrites)

    def maybe_fail(self, request: ListRequest) -> None:
        """The response to a request may be an error."""
        if self.failing and self.failing.pop(0):
            self.failed += 1
            raise Throttled("slow down", operation="list")

    async def run(self, steps: list[Any]) -> None:
        """All steps, then what is to hold in the end."""
        async with self.operator:
            for name, *arguments in steps:
                await getattr(self, name)(*arguments)
            self.failing.clear()
            await self.one.through()
            self.check_delivered(self.bucket.objects)
            assert await self.one.through(1) == []
            await self.one.feed.aclose()  # type: ignore[attr-defined]

    async def put(self, key: str, modified_ms: int) -> None:
        self.bucket.put(key, modified_ms=modified_ms)
        self.since[key] = self.one.passes

    async def delete(self, key: str) -> None:
        if key in self.bucket.objects:
            self.deleted[key] = self.bucket.objects[key]
            self.bucket.delete(key)
            del self.since[key]

    async def put_back(self, key: str) -> None:
        if key in self.deleted and key not in self.bucket.objects:
            self.bucket.restore(key, self.deleted[key])
            self.since[key] = self.one.passes

    async def fail(self, which: list[bool]) -> None:
        self.failing = which

    async def restart(self) -> None:
        """Another process goes on from what is durable."""
        await self.one.feed.aclose()  # type: ignore[attr-defined]
        self.one.feed = self.kind(self.operator, self.options, self.one.known)

    async def crash(self, room: int) -> None:
        """The process ends before it has written what a trigger took."""
        before = copy.copy(self.one.cursor), dict(self.one.known.files), self.one.delivered.copy()
        await self.trigger(room)
        self.one.cursor, self.one.known.files, self.one.delivered = before
        self.since = dict.fromkeys(self.since, self.one.passes)
        await self.restart()

    async def trigger(self, room: int) -> None:
        requests, failed = len(self.bucket.requests), self.failed
        frontier, reported = self.frontier, self.one.reported.total()
        try:
            await self.one.trigger(room)
        except Throttled:
            assert self.failed > failed
        if self.kind is TailSweepLister:
            passed = sum(frontier < key <= self.frontier for key in self.bucket.objects)
            pages = -(-passed // self.page_entries) + 1 + self.options.sweep_pages + 2 * self.options.ahead_pages
        else:
            news = self.one.reported.total() - reported
            pages = news + max(1, self.options.sweep_pages) + self.options.ahead_pages
        assert len(self.bucket.requests) - requests <= pages + self.failed - failed
        self.check()

    @property
    def frontier(self) -> str:
        """All keys up to it were listed once: of a lister that has no such key, all there are."""
        cursor = self.one.cursor
        if cursor is None:
            return ""
        return cursor.frontier if isinstance(cursor, TailAndSweep) else "~"

    def check(self) -> None:
        """The invariants."""
        delivered = self.one.delivered
        assert set(delivered.values()) <= {1}
        if self.overwrites == "ignore":
            # A key that was seen to be gone is that of another file when it comes back.
            counts = Counter(key for key, _ in delivered)
            assert all(count <= 1 + self.one.lost[key] for key, count in counts.items())
        self.check_delivered(
            [key for key, since in self.since.items() if key <= self.frontier and self.one.passes > since + 1]
        )

    def check_delivered(self, which: Any) -> None:
        """These were: at this version, or at an earlier one if the policy is to ignore others."""
        names = {key for key, _ in self.one.delivered}
        for key in which:
            if key.endswith("/"):
                assert key not in names
            elif self.overwrites == "ignore":
                assert key in names
            else:
                assert (key, self.bucket.objects[key].etag) in self.one.delivered


@checks(
    "source:L2",
    "source:L5",
    "source:L8",
    "source:L9",
    "source:L12",
    "source:Q1",
    "source:Q2",
    "source:Q4",
    "source:Q5",
    "reliability:P06",
    "reliability:P10",
)
@pytest.mark.parametrize("kind", [TailSweepLister, DiffLister])
@settings(max_examples=150, deadline=None)
@given(
    st.lists(steps, max_size=40),
    st.sampled_from(["ignore", "reread"]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_any_history_of_the_bucket_is_delivered(
    kind: Kind,
    steps: list[Any],
    overwrites: Overwrites,
    page_entries: int,
    sweep_pages: int,
    ahead_pages: int,
) -> None:
    options = ListOptions(interval_seconds=0.0, sweep_pages=sweep_pages, ahead_pages=ahead_pages)
    world = World(kind, options, overwrites, page_entries)
    run_virtual(lambda: world.run(steps))
