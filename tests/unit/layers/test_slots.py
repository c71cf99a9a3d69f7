"""SlotQueue against a model that is too simple to be wrong, for any order of calls."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.layers.slots import SlotQueue, SlotTicket
from aioprefetch.values import Lane

STEPS = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "withdraw", "promote"]), st.integers(0, 50)), max_size=80
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
    """A list of everybody; the rules are searched for anew each time."""

    limit: int
    holders: list[Holder] = field(default_factory=list)

    def of(self, state: str, lane: Lane | None = None) -> list[Holder]:
        found = [one for one in self.holders if one.state == state and lane in (None, one.lane)]
        return sorted(found, key=lambda one: one.turn)

    def settle(self) -> None:
        """Give slots to whoever is next until there is nobody, or no slot."""
        while len(self.of("holding")) < self.limit:
            prefetch_fits = len(self.of("holding", "prefetch")) < max(1, self.limit - 1)
            ready = self.of("waiting", "demand") or (self.of("waiting", "prefetch") if prefetch_fits else [])
            if not ready:
                return
            ready[0].state = "holding"


def check(queue: SlotQueue, model: Model) -> None:
    """Counts, and who holds a slot, agree."""
    assert queue.in_flight == len(model.of("holding")) <= queue.limit
    assert queue.prefetch_in_flight == len(model.of("holding", "prefetch")) <= queue.prefetch_max
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


@given(limit=st.integers(1, 5), steps=STEPS)
@settings(max_examples=400, deadline=None)
def test_any_order_of_calls_agrees_with_the_model_and_ends_empty(limit: int, steps: list[tuple[str, int]]) -> None:
    queue, model = SlotQueue(limit), Model(limit)
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
