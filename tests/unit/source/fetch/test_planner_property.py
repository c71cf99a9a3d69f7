"""Whatever happens to a bucket, and wherever planning is interrupted, each version of a file is planned once."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioprefetch.errors import Unavailable
from aioprefetch.source.fetch.partitioning import BatchLimits
from aioprefetch.source.fetch.planner import Planner, PlanOptions
from aioprefetch.source.values import SourceFile
from aioprefetch.testing.conformance.suite import checks
from tests.unit.source.fetch.fakes import FakeFeed, FakeState

keys = st.sampled_from([f"{letter}.{suffix}" for letter in "abcdef" for suffix in ("jsonl", "gz")])
limits = st.builds(BatchLimits, st.integers(1, 5), st.none() | st.integers(1, 60))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.integers(0, 90)),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("plan"), limits),
        st.tuples(st.just("lost answer"), limits, st.booleans()),
        st.tuples(st.just("failing page"), limits),
        st.tuples(st.just("crash")),
    ),
    max_size=30,
)


def can_split(file: SourceFile) -> bool:
    return file.key.endswith("jsonl")


class Bucket:
    """Files that come and go, and a planner that is interrupted."""

    def __init__(self, overwrites: Literal["ignore", "reread"], page_files: int) -> None:
        self.state: Any = FakeState()  # as much of a state as is used
        self.feed = FakeFeed(self.state, page_files=page_files)
        self.options = PlanOptions(overwrites=overwrites, learned_max=3, list_pages_max=3)
        self.versions = 0
        self.restart()

    def restart(self) -> None:
        self.feed.finish_by(None)
        self.planner = Planner(self.state, self.feed, can_split, self.options, clock_ms=lambda: 0)

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("put", key, size):
                self.versions += 1
                self.feed.put(key, size=size, etag=str(self.versions))
            case ("delete", key):
                self.feed.files.pop(key, None)
            case ("plan", how):
                await self.planner.plan(how)
            case ("lost answer", how, took_effect):
                self.state.failures = [(took_effect, Unavailable("no response"))]
                await self._plan_in_spite(how)
            case ("failing page", how):
                self.feed.failures = [Unavailable("no page")]
                await self._plan_in_spite(how)
            case _:
                self.restart()

    async def _plan_in_spite(self, how: BatchLimits) -> None:
        with suppress(Unavailable):
            await self.planner.plan(how)
        self.state.failures.clear()
        self.feed.failures.clear()

    async def drain(self) -> None:
        self.restart()
        self.planner.finish_by(0)
        while await self.planner.plan(BatchLimits(3, 50)) is not None:
            pass
        self.restart()

    def planned(self) -> Counter[tuple[str, str | None, int]]:
        """How often each byte of each version was planned."""
        return Counter(
            (item.file.key, item.file.etag, at)
            for record in self.state.log
            for item in record.items
            for at in range(item.start, item.stop)
        )


def bytes_of(files: list[SourceFile]) -> set[tuple[str, str | None, int]]:
    return {(file.key, file.etag, at) for file in files for at in range(file.size)}


@checks("source:R2", "source:L9")
@settings(max_examples=150, deadline=None)
@given(steps, st.sampled_from(["ignore", "reread"]), st.integers(1, 5))
@example(
    [
        *(("put", key, 0) for key in ("a.jsonl", "a.gz", "b.jsonl")),
        *(("put", key, 1) for key in ("b.gz", "c.jsonl")),
        *(("plan", BatchLimits(count, None)) for count in (1, 2)),
        ("put", "a.jsonl", 1),
    ],
    "reread",
    2,
)
def test_each_version_is_planned_once_wherever_planning_stops(
    history: list[tuple[Any, ...]], overwrites: Literal["ignore", "reread"], page_files: int
) -> None:
    bucket = Bucket(overwrites, page_files)

    async def run() -> None:
        for step in history:
            await bucket.do(step)
        await bucket.drain()
        await bucket.drain()

    asyncio.run(run())
    planned = bucket.planned()
    assert set(planned.values()) <= {1}
    if overwrites == "reread":
        assert bytes_of(list(bucket.feed.files.values())) <= planned.keys()
    else:
        versions = {(key, etag) for key, etag, _ in planned}
        assert len(versions) == len({key for key, _ in versions})
        assert {file.key for file in bucket.feed.files.values() if file.size} <= {key for key, _ in versions}
    assert bucket.state.head.carry == ()
    assert bucket.state.head.bytes == planned.total()
