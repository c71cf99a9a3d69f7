"""The byte budget against a reference model: order, overdraw, promotion, releases from threads, no lost wake-up."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.testing import run_virtual
from aioprefetch.values import Lane
from tests.stores.gated_reader import settle

LIMIT = 100


class Model:
    """What the rules say, written down naively: two lists, looked at again from the start after each step."""

    def __init__(self) -> None:
        self.used = 0
        self.demand: list[int] = []
        self.prefetch: list[int] = []
        self.granted: set[int] = set()
        self.size: dict[int, int] = {}

    def look(self) -> None:
        """Grant what can be granted now."""
        while self.demand and (self.used <= LIMIT):
            self._grant(self.demand.pop(0))
        while not self.demand and self.prefetch and self.used + self.size[self.prefetch[0]] <= LIMIT:
            self._grant(self.prefetch.pop(0))

    def _grant(self, name: int) -> None:
        self.granted.add(name)
        self.used += self.size[name]


steps = st.one_of(
    st.tuples(st.just("demand"), st.integers(1, 70)),
    st.tuples(st.just("prefetch"), st.integers(1, 70)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("promote"), st.integers(0, 30)),
)


def step_model(model: Model, verb: str, number: int, name: int, tickets: dict[int, Ticket]) -> None:
    """The same step on the model."""
    if verb in ("demand", "prefetch"):
        model.size[name] = number
        (model.demand if verb == "demand" else model.prefetch).append(name)
    elif tickets:
        chosen = sorted(tickets)[number % len(tickets)]
        if verb == "promote" and chosen in model.prefetch:
            model.prefetch.remove(chosen)
            model.demand.append(chosen)
        elif verb == "cancel":
            if chosen in model.granted:
                model.used -= model.size[chosen]
            for queue in (model.demand, model.prefetch):
                if chosen in queue:
                    queue.remove(chosen)
    model.look()


def step_budget(budget: MemoryBudget, verb: str, number: int, name: int, tickets: dict[int, Ticket]) -> None:
    """One step on the real one; a granted ticket that is cancelled gives its bytes back."""
    if verb == "demand":
        tickets[name] = budget.request(number, "demand")
    elif verb == "prefetch":
        tickets[name] = budget.request(number, "prefetch")
    elif tickets:
        chosen = sorted(tickets)[number % len(tickets)]
        if verb == "promote":
            budget.promote(tickets[chosen])
        else:
            budget.cancel(tickets.pop(chosen))


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40))
def test_behaves_like_the_model(script: list[tuple[str, int]]) -> None:
    async def run() -> None:
        budget, model = MemoryBudget(LIMIT, asyncio.get_running_loop()), Model()
        tickets: dict[int, Ticket] = {}
        for name, (verb, number) in enumerate(script):
            step_model(model, verb, number, name, tickets)
            step_budget(budget, verb, number, name, tickets)
            await settle()
            assert {one for one, ticket in tickets.items() if ticket.granted} == model.granted & set(tickets)
            assert budget.used_bytes == model.used >= 0
            assert budget.waiting == len(model.demand) + len(model.prefetch)
            overdraw = max((t.size_bytes for t in tickets.values() if t.granted and t.lane == "demand"), default=0)
            assert budget.used_bytes <= LIMIT + overdraw
        for ticket in tickets.values():
            budget.cancel(ticket)
        await settle()
        assert (budget.used_bytes, budget.waiting) == (0, 0)

    run_virtual(run)


async def test_grants_are_first_in_first_out_and_wake_their_waiters() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    held = budget.request(LIMIT + 1, "demand")
    assert held.granted
    order: list[str] = []

    async def wait(name: str, lane: Lane) -> None:
        await budget.request(60, lane).wait()
        order.append(name)

    queue: list[tuple[str, Lane]] = [("p1", "prefetch"), ("d1", "demand"), ("p2", "prefetch"), ("d2", "demand")]
    tasks = [asyncio.create_task(wait(name, lane)) for name, lane in queue]
    await settle()
    assert order == []
    budget.release(held.size_bytes)
    await settle()
    assert order == ["d1", "d2"]  # The second overdraws; prefetch never does.
    budget.release(60)
    await settle()
    assert order == ["d1", "d2"]
    budget.release(60)
    await settle()
    assert order == ["d1", "d2", "p1"]
    budget.release(60)
    await asyncio.gather(*tasks)
    assert order == ["d1", "d2", "p1", "p2"]


async def test_a_small_prefetch_does_not_overtake() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    budget.request(80, "demand")
    first, second = budget.request(50, "prefetch"), budget.request(5, "prefetch")
    assert not first.granted
    assert not second.granted
    budget.cancel(first)
    await settle()
    assert second.granted


async def test_an_awaited_prefetch_is_promoted() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    budget.request(90, "demand")
    ticket = budget.request(50, "prefetch")
    await settle()
    assert not ticket.granted
    for _ in range(2):
        budget.promote(ticket)
    await settle()
    assert (ticket.granted, ticket.lane) == (True, "demand")
    assert budget.used_bytes == 140


async def test_a_cancelled_wait_gives_its_place_back() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    held = budget.request(LIMIT + 1, "demand")
    first, second = budget.request(10, "demand"), budget.request(10, "demand")
    task = asyncio.create_task(first.wait())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    budget.release(held.size_bytes)
    await settle()
    assert first.granted  # It was still in the queue: the owner of the cancelled wait gives it back.
    budget.cancel(first)
    await second.wait()
    assert budget.used_bytes == 10


@pytest.mark.parametrize("lane", ["demand", "prefetch"])
async def test_no_bytes_are_always_there(lane: Lane) -> None:
    """Nothing is evicted for them, and they wait for nothing."""
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    held, waiting = budget.request(LIMIT + 1, "demand"), budget.request(10, "demand")
    budget.reclaim = lambda need_bytes, lane: pytest.fail("nothing is needed")
    granted: list[bool] = []
    nothing = budget.request(0, lane, on_grant=lambda: granted.append(True))
    assert (nothing.granted, granted, waiting.granted) == (True, [True], False)
    await nothing.wait()
    budget.reclaim = None
    budget.cancel(nothing)
    await settle()
    assert (budget.used_bytes, budget.waiting) == (LIMIT + 1, 1)
    budget.cancel(waiting)
    budget.cancel(held)


async def test_reclaim_is_asked_before_anybody_waits() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    asked: list[int] = []

    def reclaim(need_bytes: int, lane: str) -> None:
        asked.append(need_bytes)
        budget.release(40)

    budget.reclaim = reclaim
    budget.request(100, "demand")
    assert asked == []
    assert budget.request(30, "prefetch").granted
    assert asked == [30]
    assert budget.used_bytes == 90


async def test_reconsider_looks_again_when_something_became_evictable() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    evictable = 0

    def reclaim(need_bytes: int, lane: str) -> None:
        nonlocal evictable
        freed, evictable = evictable, 0
        if freed:
            budget.release(freed)

    budget.reclaim = reclaim
    budget.request(LIMIT + 1, "demand")
    ticket = budget.request(10, "demand")
    await settle()
    assert not ticket.granted
    evictable = LIMIT + 1
    budget.reconsider()
    await settle()
    assert ticket.granted


@contextmanager
def in_thread(count: int, work: threading.Barrier, call: Callable[[], None]) -> Iterator[None]:
    """Run ``call`` in ``count`` threads at once; they end before the block does."""

    def run() -> None:
        work.wait()
        call()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


async def test_releases_from_threads_wake_waiters_on_the_loop() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    budget.request(LIMIT, "demand")
    budget.charge(20)
    ticket = budget.request(30, "demand")

    def release() -> None:
        for _ in range(30):
            budget.release(1)

    with in_thread(4, threading.Barrier(4), release):
        await ticket.wait()
    await settle()
    assert budget.used_bytes == 30
    assert 120 <= budget.peak_bytes <= 130


def test_a_release_after_the_loop_is_closed_is_harmless() -> None:
    async def make() -> MemoryBudget:
        budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
        budget.request(LIMIT + 1, "demand")
        budget.request(10, "demand")
        return budget

    budget = asyncio.run(make())
    budget.release(10)
    with in_thread(1, threading.Barrier(1), lambda: budget.release(10)):
        pass
    assert budget.used_bytes == LIMIT - 9


async def test_room_is_what_is_left_after_reclaiming() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    budget.charge(90)
    assert budget.room(10, "prefetch") == 10
    asked: list[tuple[int, Lane]] = []

    def reclaim(need: int, lane: Lane) -> None:
        asked.append((need, lane))
        budget.release(25)

    budget.reclaim = reclaim
    assert budget.room(10, "prefetch") == 10
    assert asked == []
    assert budget.room(30, "demand") == 35
    assert asked == [(20, "demand")]
    budget.reclaim = None
    budget.charge(50)
    assert budget.room(1, "prefetch") == -15


async def test_a_grant_is_reported_once() -> None:
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    granted_tickets: list[str] = []
    at_once = budget.request(60, "prefetch", on_grant=lambda: granted_tickets.append("at once"))
    later = budget.request(60, "prefetch", on_grant=lambda: granted_tickets.append("later"))
    never = budget.request(60, "prefetch", on_grant=lambda: granted_tickets.append("never"))
    assert granted_tickets == ["at once"]
    budget.cancel(at_once)
    budget.cancel(never)
    await settle()
    assert granted_tickets == ["at once", "later"]
    budget.cancel(later)
    assert budget.used_bytes == 0


async def test_prefetch_does_not_pass_a_demand_read_that_waits() -> None:
    """Not even between a release and the next turn of the loop, in which that read is granted."""
    budget = MemoryBudget(LIMIT, asyncio.get_running_loop())
    held = budget.request(LIMIT + 1, "demand")
    demand = budget.request(50, "demand")
    budget.release(held.size_bytes)
    prefetch = budget.request(LIMIT, "prefetch")
    assert (demand.granted, prefetch.granted) == (False, False)
    await settle()
    assert (demand.granted, prefetch.granted) == (True, False)
    budget.cancel(demand)
    await settle()
    assert prefetch.granted
