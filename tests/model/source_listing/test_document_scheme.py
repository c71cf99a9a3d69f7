"""The listing scheme of the document loses objects, and ours loses none in the same histories."""

import random
from collections.abc import Awaitable, Callable

import pytest

from aioprefetch import Operator
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions
from aioprefetch.testing.conformance.suite import checks
from tests.model.source_listing.document_scheme import DocumentScheme, ExactSet, SmallFilter
from tests.profile import chosen
from tests.stores.dict_index import Consumer, DictIndex
from tests.stores.simulated_bucket import SimulatedBucket

SEEDS = range(chosen(quick=2, full=3))
STEP_MS = 1000
Trigger = Callable[[], Awaitable[list[str]]]


class History:
    """A bucket with a history, and the objects that were reported of it. Every object must be reported once."""

    def __init__(self, seed: int, step_ms: int = STEP_MS) -> None:
        self.step_ms = step_ms
        self.chance = random.Random(seed)
        self.bucket = SimulatedBucket(page_entries=20)
        self.now_ms = 10**9
        self.put: set[str] = set()
        self.reported: list[str] = []
        self.begun: list[tuple[str, int, int]] = []

    def add(self, key: str, modified_ms: int | None = None) -> None:
        """An object appears now."""
        self.put.add(key)
        self.bucket.put(key, modified_ms=self.now_ms if modified_ms is None else modified_ms)

    def name(self) -> str:
        """A new one, anywhere among the others."""
        return f"{self.chance.getrandbits(64):016x}"

    async def run(self, trigger: Trigger, step: Callable[[], None], steps: int) -> int:
        """The number of objects that were never reported, after all steps and many more triggers."""
        for number in range(steps + 100):
            if number < steps:
                step()
            self.reported += await trigger()
            self.now_ms += self.step_ms
        assert len(set(self.reported)) == len(self.reported)
        return len(self.put - set(self.reported))


def backlog(history: History) -> Callable[[], None]:
    """Q1. Many objects at first; in each step two reported objects are deleted, as if they were processed."""
    for _ in range(400):
        history.add(history.name())

    def step() -> None:
        done = [key for key in history.reported if key in history.bucket.objects]
        for key in history.chance.sample(done, min(2, len(done))):
            history.bucket.delete(key)

    return step


def late_uploads(history: History) -> Callable[[], None]:
    """Q2. One of ten uploads takes some steps, and its object carries the time at which it began."""

    def step() -> None:
        for _ in range(5):
            name = history.name()
            if history.chance.random() < 0.1:
                history.begun.append((name, history.now_ms, history.now_ms + history.chance.randint(1, 8) * STEP_MS))
            else:
                history.add(name)
        for name, began_ms, ends_ms in tuple(history.begun):
            if ends_ms <= history.now_ms:
                history.begun.remove((name, began_ms, ends_ms))
                history.add(name, began_ms)

    return step


def steady(history: History) -> Callable[[], None]:
    """Q3, Q4. Objects come, at times of whole seconds, and stay."""

    def step() -> None:
        for _ in range(8):
            history.add(history.name(), history.now_ms // 1000 * 1000)

    return step


async def lost_by_document(
    seed: int,
    happening: Callable[[History], Callable[[], None]],
    seen: SmallFilter | ExactSet,
    *,
    skew_ms: int = 0,
    step_ms: int = STEP_MS,
    steps: int = 60,
) -> int:
    """With ``skew_ms`` its clock is ahead of the store's. In the beginning it lists all there is."""
    history = History(seed, step_ms)
    step = happening(history)
    scheme = DocumentScheme(history.bucket, lambda: history.now_ms + skew_ms, seen)

    async def trigger() -> list[str]:
        return scheme.trigger()

    return await history.run(trigger, step, steps)


async def lost_by_us(
    seed: int, happening: Callable[[History], Callable[[], None]], *, step_ms: int = STEP_MS, steps: int = 60
) -> int:
    """The lister over the same history."""
    history = History(seed, step_ms)
    step = happening(history)
    async with Operator.bare(history.bucket) as operator:
        known = DictIndex()
        options = ListOptions(interval_seconds=0.0, ahead_pages=1, sweep_pages=3)
        one = Consumer(TailSweepLister(operator, options, known), known)

        async def trigger() -> list[str]:
            return [change.file.key for change in await one.trigger(room=40) if change.kind == "new"]

        lost = await history.run(trigger, step, steps)
        await one.feed.aclose()  # type: ignore[attr-defined]
    return lost


@checks("source:Q1")
@pytest.mark.parametrize("seed", SEEDS)
async def test_pages_that_shift_lose_objects_and_a_frontier_does_not(seed: int) -> None:
    """Even with an exact set."""
    assert await lost_by_document(seed, backlog, ExactSet()) > 10
    assert await lost_by_us(seed, backlog) == 0


@checks("source:Q2", "reliability:P10")
@pytest.mark.parametrize("seed", SEEDS)
async def test_times_of_multipart_uploads_lose_objects_and_a_sweep_does_not(seed: int) -> None:
    assert await lost_by_document(seed, late_uploads, ExactSet()) > 5
    assert await lost_by_us(seed, late_uploads) == 0


@checks("source:Q3", "source:L10")
async def test_a_bloom_filter_alone_loses_objects() -> None:
    """The same with an exact set loses none."""
    lost = [await lost_by_document(seed, steady, SmallFilter(2000), skew_ms=-STEP_MS) for seed in SEEDS]
    exact = [await lost_by_document(seed, steady, ExactSet(), skew_ms=-STEP_MS) for seed in SEEDS]
    ours = [await lost_by_us(seed, steady) for seed in SEEDS]
    assert (sum(lost) > 0, sum(exact), sum(ours)) == (True, 0, 0)


@checks("source:Q4")
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_clock_that_is_ahead_loses_objects_and_we_ask_no_clock(seed: int) -> None:
    """By two steps; the right time loses those that come later in the second of a listing."""
    assert await lost_by_document(seed, steady, ExactSet(), skew_ms=2 * STEP_MS) > 10
    assert await lost_by_document(seed, steady, ExactSet(), step_ms=STEP_MS // 4) > 10
    assert await lost_by_us(seed, steady, step_ms=STEP_MS // 4) == 0
