"""Two clients whose requests interleave on the virtual clock: what one of them writes is not lost by the other."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import Error
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.testing import VirtualClockLoop
from aioprefetch.values import Request
from tests.model.verbs.doors import by_operator
from tests.model.verbs.interleaved import Ended, killed_values, possible_trees
from tests.model.verbs.places import MemoryPlace, opened
from tests.model.verbs.tree import Step, Tree
from tests.probes.search import searched
from tests.stores.verb_layer import Forward, VerbLayer

NAMES = st.sampled_from(["a", "b", "c"])
BELOW = st.sampled_from(["a/x", "a/y", "b/x", "b/y"])
DIRECTORIES = st.sampled_from(["a/", "b/"])
VERBS = ("write", "write", "copy", "move", "move", "delete", "read")
# What puts values into a directory while it is moved.
WRITING = ("write", "write", "write", "copy", "move", "delete")
# Before and after each request: whether the other client comes first.
WAITS = st.lists(st.integers(0, 3), max_size=30)
EXAMPLES = 60


@dataclass(frozen=True)
class DelayLayer(VerbLayer):
    """Each request waits before it is carried out, and its response after that, by the next of some times."""

    waits: Iterator[int] = field(compare=False)

    async def around(self, request: Request, forward: Forward) -> Any:
        await asyncio.sleep(next(self.waits, 0))
        try:
            return await forward(request)
        finally:
            await asyncio.sleep(next(self.waits, 0))


@st.composite
def single_steps(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES, verbs: Sequence[str] = VERBS) -> Step:
    """A step on one object. With ``is_pinned`` it names the ETag that is there when it begins."""
    verb = draw(st.sampled_from(verbs))
    if verb == "read":
        return Step(verb, {"path": draw(names)})
    is_new = verb != "delete" and draw(st.booleans())
    flags = {"if_not_exists": is_new, "is_pinned": not is_new and draw(st.booleans())}
    if verb in ("copy", "move"):
        source, target = draw(st.lists(names, min_size=2, max_size=2, unique=True))
        return Step(verb, {"source": source, "target": target, **flags})
    return Step(verb, {"path": draw(names), **flags})


@st.composite
def tree_steps(draw: st.DrawFn) -> Step:
    """A step on a directory."""
    verb = draw(st.sampled_from(["move_tree", "move_tree", "copy_tree", "delete_all"]))
    if verb == "delete_all":
        return Step(verb, {"path": draw(DIRECTORIES)})
    source, target = draw(st.sampled_from([("a/", "b/"), ("b/", "a/"), ("a/", "c/")]))
    if verb == "move_tree":
        return Step(verb, {"source": source, "target": target, "if_not_exists": draw(st.booleans())})
    flags = {"overwrite": draw(st.booleans()), "delete_extra": draw(st.booleans()), "glob": None, "delete_max": 1.0}
    return Step(verb, {"source": source, "target": target, **flags})


class Client:
    """A client that makes steps one after the other, and notes how each has ended."""

    def __init__(self, place: MemoryPlace, waits: Iterator[int], *, is_cached: bool) -> None:
        self._place = place
        self.op = Operator.from_uri(place.url).layer(DelayLayer(waits))
        if is_cached:
            self.op = self.op.layer(LruCacheLayer(cache=Operator(ap.services.Memory())))
        self.steps: list[Step] = []
        self.ends: list[Ended] = []

    async def make(self, sequence: Sequence[Step]) -> None:
        """Make the steps."""
        async with self.op:
            for step in sequence:
                self.steps.append(self._pinned(step))
                self.ends.append(await self._made(self.steps[-1]))

    def _pinned(self, step: Step) -> Step:
        """A step with the ETag and the value that are there now, if it is to compare them."""
        stored = None
        if step.arguments.get("is_pinned"):
            path = step.arguments.get("source", step.arguments.get("path"))
            stored = self._place.store.objects.get(path)
        seen = {"etag": None, "expected": None} if stored is None else {"expected": stored.data}
        return Step(step.verb, {**step.arguments, **seen, "etag": stored and stored.metadata.etag})

    async def _made(self, step: Step) -> Ended:
        try:
            if step.etag is None:
                return None, await by_operator(self.op, Step(step.verb, {**step.arguments, "if_match": None}))
            if step.verb == "write":
                await self.op.write(step.path, step.data, if_match=step.etag)
            elif step.verb == "delete":
                await self.op.delete(step.path, if_match=step.etag)
            else:
                await getattr(self.op, step.verb)(step.source, step.target, if_match=step.etag)
        except Error as error:
            return error, None
        return None, None


async def at_once(
    tree: Tree, sequences: Sequence[Sequence[Step]], waits: Sequence[int], *, is_cached: bool
) -> tuple[list[Client], Tree]:
    """Make two sequences at once; the clients, and what is there then."""
    async with opened("memory") as place:
        await place.plant(tree)
        times = iter(waits)
        clients = [Client(place, times, is_cached=is_cached) for _ in sequences]
        await asyncio.gather(*(client.make(steps) for client, steps in zip(clients, sequences, strict=True)))
        return clients, place.tree()


def run(tree: Tree, sequences: Sequence[Sequence[Step]], waits: Sequence[int], **how: bool) -> Any:
    numbers = iter(range(100))
    written = [
        [
            Step(step.verb, {**step.arguments, "data": f"written {next(numbers)}".encode()})
            if step.verb == "write"
            else step
            for step in steps
        ]
        for steps in sequences
    ]
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(at_once(tree, written, waits, **how))


def planted(names: st.SearchStrategy[str], least: int = 0) -> st.SearchStrategy[Tree]:
    """A tree with some of the names."""
    some = st.lists(names, min_size=least, max_size=3, unique=True)
    return some.map(lambda drawn: {name: f"value {name}".encode() for name in drawn})


@pytest.mark.parametrize("is_cached", [False, True], ids=["plain", "cached"])
def test_objects_end_as_some_order_of_the_requests_has_them(is_cached: bool) -> None:
    def check(tree: Tree, sequences: Any, waits: Sequence[int]) -> None:
        clients, after = run(tree, sequences, waits, is_cached=is_cached)
        finals = possible_trees(tree, [client.steps for client in clients], [client.ends for client in clients])
        made = [(str(step), end) for client in clients for step, end in zip(client.steps, client.ends, strict=True)]
        assert frozenset(after.items()) in finals, f"{tree} -> {after} by {made}, and {finals or 'nothing'} is possible"

    sequences = st.tuples(*[st.lists(single_steps(), min_size=1, max_size=3)] * 2)
    searched(check, planted(NAMES), sequences, WAITS, examples=EXAMPLES)


def test_what_others_write_into_a_directory_is_not_lost() -> None:
    def check(tree: Tree, step: Step, others: list[Step], waits: Sequence[int]) -> None:
        clients, after = run(tree, ([step], others), waits, is_cached=False)
        made = [(str(step), end) for client in clients for step, end in zip(client.steps, client.ends, strict=True)]
        steps = [step for client in clients for step in client.steps]
        ends = [error for client in clients for error, _ in client.ends]
        written = [step.data for step, error in zip(steps, ends, strict=True) if step.verb == "write" and not error]
        lost = {*tree.values(), *written} - {*after.values()} - killed_values(tree, steps)
        assert not lost, f"{tree} -> {after} by {made} lost {lost}"

    others = st.lists(single_steps(BELOW, WRITING), min_size=1, max_size=3)
    searched(check, planted(BELOW, 1), tree_steps(), others, WAITS, examples=EXAMPLES)
