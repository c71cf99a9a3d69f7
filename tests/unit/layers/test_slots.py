"""SlotQueue against a model that is too simple to be wrong, for any order of calls."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.layers.concurrent_limit import HALVING_SECONDS, SlotQueue, SlotTicket
from aioprefetch.values import Lane

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "release", "withdraw", "promote", "refused", "responded"]), st.integers(0, 50)
    ),
    max_size=120,
)


@dataclass
class Holder:
    """Who wants a slot: waiting, holding, or through."""

    number: int
    lane: Lane
    ticket: SlotTicket | None = None
    state: str = "waiting"
    # Where it stands in its line: promotion puts it behind the demand that waits.
    turn: int = 0


@dataclass
class Model:
    """A list of all holders, which is searched again for each decision."""

    limit_max: int
    limit: int
    holders: list[Holder] = field(default_factory=list)
    seconds: float = 0.0
    halvings: list[float] = field(default_factory=list)
    # Since the limit changed last, or a request was refused.
    round_of_responses: int = 0

    def of(self, state: str, lane: Lane | None = None) -> list[Holder]:
        found = [one for one in self.holders if one.state == state and lane in (None, one.lane)]
        return sorted(found, key=lambda one: one.turn)

    def settle(self) -> None:
        """Give slots to the next holder until no holder waits, or there is no slot."""
        while len(self.of("holding")) < self.limit:
            prefetch_fits = len(self.of("holding", "prefetch")) < max(1, self.limit - 1)
            ready = self.of("waiting", "demand") or (self.of("waiting", "prefetch") if prefetch_fits else [])
            if not ready:
                return
            ready[0].state = "holding"

    def refused(self) -> bool:
        """Half the slots, unless that was done within the last second."""
        self.round_of_responses = 0
        if self.limit == 1 or any(self.seconds - then < HALVING_SECONDS for then in self.halvings):
            return False
        self.halvings.append(self.seconds)
        self.limit //= 2
        return True

    def responded(self) -> bool:
        """One slot more after as many as there are slots."""
        self.round_of_responses += 1
        if self.limit == self.limit_max or self.round_of_responses < self.limit:
            return False
        self.limit, self.round_of_responses = self.limit + 1, 0
        return self.limit == self.limit_max


def check(queue: SlotQueue, model: Model) -> None:
    """Counts, and who holds a slot, agree."""
    assert (queue.limit, queue.prefetch_max) == (model.limit, max(1, model.limit - 1))
    assert 1 <= queue.limit <= queue.limit_max
    assert queue.in_flight == len(model.of("holding")) <= queue.limit_max
    assert queue.prefetch_in_flight == len(model.of("holding", "prefetch")) <= max(1, queue.limit_max - 1)
    assert queue.queued == len(model.of("waiting"))
    for one in model.holders:
        if one.ticket is not None and one.state != "through":
            assert one.ticket.granted == (one.state == "holding")
            assert one.ticket.lane == one.lane


def act(queue: SlotQueue, model: Model, step: str, choice: int) -> None:
    """Do one step on both."""
    turn = max((one.turn for one in model.holders), default=0) + 1
    if step == "acquire":
        lane: Lane = "prefetch" if choice % 2 else "demand"
        holder = Holder(len(model.holders), lane, turn=turn)
        if not queue.try_acquire(lane):
            holder.ticket = queue.enqueue(lane, lambda: None)
        model.holders.append(holder)
        model.settle()
        assert (holder.state == "holding") == (holder.ticket is None)
        return
    if step in ("refused", "responded"):
        model.seconds += choice / 32  # A sum of these is exact.
        if step == "refused":
            assert queue.refused(model.seconds) == model.refused()
        else:
            assert queue.responded() == model.responded()
        model.settle()
        return
    if step == "release":
        candidates = model.of("holding")
    else:
        candidates = [one for one in model.of("waiting") + model.of("holding") if one.ticket is not None]
    if not candidates:
        return
    holder = candidates[choice % len(candidates)]
    if step == "promote":
        assert holder.ticket is not None
        queue.promote(holder.ticket)
        if holder.lane == "prefetch":
            holder.lane, holder.turn = "demand", turn
    elif step == "withdraw":
        assert holder.ticket is not None
        queue.withdraw(holder.ticket)
        holder.state = "through"
    else:
        queue.release(holder.lane)
        holder.state = "through"
    model.settle()


@given(limit=st.integers(1, 7), steps=STEPS)
@settings(max_examples=600, deadline=None)
def test_any_order_of_calls_agrees_with_the_model_and_ends_empty(limit: int, steps: list[tuple[str, int]]) -> None:
    queue, model = SlotQueue(limit), Model(limit, limit)
    for step, choice in steps:
        act(queue, model, step, choice)
        check(queue, model)
    while model.of("holding"):
        act(queue, model, "release", 0)
        check(queue, model)
    assert (queue.in_flight, queue.prefetch_in_flight, queue.queued) == (0, 0, 0)


def test_each_grant_wakes_once() -> None:
    queue, woken = SlotQueue(1), []
    assert queue.try_acquire("demand")
    for number in range(3):
        queue.enqueue("demand", lambda number=number: woken.append(number))  # type: ignore[misc]
    queue.release("demand")
    assert woken == [0]
    queue.release("demand")
    queue.release("demand")
    assert woken == [0, 1, 2]


def test_refusals_halve_once_a_second_down_to_one() -> None:
    """However many there are: those of one second are one sign."""
    queue = SlotQueue(64)
    limits = []
    for tenth in range(100):
        for _ in range(50):
            queue.refused(tenth / 10)
        limits.append(queue.limit)
    assert limits[::10] == [32, 16, 8, 4, 2, 1, 1, 1, 1, 1]
    assert limits == sorted(limits, reverse=True)
    assert queue.prefetch_max == 1


def test_each_full_round_of_responses_brings_one_slot_back() -> None:
    """The return of the last slot is reported, and the limit never exceeds its maximum."""
    queue = SlotQueue(8)
    assert queue.refused(0.0)
    responses = []
    for limit in (4, 5, 6, 7):
        assert queue.limit == limit
        responses += [queue.responded() for _ in range(limit)]
    assert queue.limit == 8
    assert responses.count(True) == 1
    assert responses[-1]
    assert not any(queue.responded() for _ in range(100))
    assert queue.limit == 8


def test_a_round_with_a_refusal_in_it_is_not_full() -> None:
    queue = SlotQueue(8)
    queue.refused(0.0)
    for _ in range(100):
        for _ in range(queue.limit - 1):
            queue.responded()
        assert not queue.refused(0.5)
    assert queue.limit == 4


def test_what_is_in_flight_when_the_limit_sinks_stays_and_who_waits_comes_when_it_rises() -> None:
    queue = SlotQueue(4)
    for _ in range(4):
        assert queue.try_acquire("demand")
    assert queue.refused(0.0)
    assert (queue.in_flight, queue.limit) == (4, 2)
    ticket = queue.enqueue("demand", lambda: None)
    queue.release("demand")
    queue.release("demand")
    assert not ticket.granted
    assert not queue.responded()
    assert not queue.responded()
    assert (ticket.granted, queue.in_flight, queue.limit) == (True, 3, 3)
    late = queue.enqueue("demand", lambda: None)
    queue.restore()
    assert (late.granted, queue.in_flight, queue.limit) == (True, 4, 4)
