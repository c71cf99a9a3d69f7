"""Verbs that write, copy, move and delete, cancelled at each turn of the event loop in turn.

A name has its old value or its new one, nothing hidden is left, and no task, file or socket of the call.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from aioprefetch.errors import Error, Unexpected
from aioprefetch.testing.conformance.suite import checks
from tests.model.verbs.doors import by_operator
from tests.model.verbs.places import BucketPlace, FilesPlace, Place, opened
from tests.model.verbs.tree import Tree, check
from tests.probes.descriptors import descriptors_below, needs_proc
from tests.probes.search import SECONDS, SEED
from tests.profile import in_turns
from tests.reliability.turns import SECONDS_MAX, Turns, open_sockets
from tests.reliability.written_tree import FILES, OBJECTS, STEPS, TRANSFERS, TREE
from tests.stores.raw_server import eventually

PLACES = ("memory", "files", "bucket")
CASES = len(PLACES) * (len(STEPS) + len(TRANSFERS))


async def cancelled_step(turns: Turns, where: str, name: str, turn: int | None) -> None:
    """Make a step in one store, cancel it at a turn, and check what is left."""
    step = STEPS[name]
    async with opened(where) as place:
        await place.plant(TREE)
        async with place.operator() as op:
            raised = await turns.cancelled(by_operator(op, step), turn)
        check(TREE, place.tree(), place.meaning.of(TREE, step), error_of(raised), step)
        await check_nothing_is_left(place)


async def cancelled_transfer(turns: Turns, where: str, name: str, turn: int | None) -> None:
    """The same between a store and a local directory."""
    transfer = TRANSFERS[name]
    with tempfile.TemporaryDirectory() as folder:
        local = FilesPlace(Path(folder))
        await local.plant(transfer.files)
        async with opened(where) as place:
            await place.plant(OBJECTS)
            async with place.operator() as op:
                raised = await turns.cancelled(transfer.run(op, local.root), turn)
            files = local.tree()
            if name == "resumable download" and raised is not None:
                files = without_what_is_gone_on_with(files)
            transfer.check(files, place.tree(), error_of(raised))
            await check_nothing_is_left(place, local)


def without_what_is_gone_on_with(tree: Tree) -> Tree:
    """A tree without the file and the note of a download that its next run goes on with: both are there, or none."""
    ends = sorted(name[-5:] for name in tree if name not in FILES)
    assert ends in ([], [".done", ".part"]), ends
    return {name: data for name, data in tree.items() if name in FILES}


def error_of(raised: BaseException | None) -> Error | None:
    """The end of a call as the model sees it: a cancellation is a failure like others."""
    if isinstance(raised, asyncio.CancelledError):
        return Unexpected("cancelled")
    assert raised is None or isinstance(raised, Error), raised
    return raised


async def check_nothing_is_left(*places: Place) -> None:
    """No upload is left in a bucket, and no file is open."""
    for place in places:
        if isinstance(place, FilesPlace):
            # A thread that is at work with a file of the caller closes it when it has done its piece.
            await eventually(lambda root=place.root: descriptors_below(root) == [])  # type: ignore[misc]
        if isinstance(place, BucketPlace):
            assert place.bucket.uploads == {}


async def leaving_no_task(call: Coroutine[object, object, None]) -> None:
    """Await a call, after which no other task goes on. A close that is cancelled ends by itself."""
    await call
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        _, pending = await asyncio.wait(others, timeout=SECONDS_MAX)
        assert pending == set()


def swept(run: Callable[[Turns, int | None], Coroutine[object, object, None]], key: str) -> None:
    """Run a call without a cancellation, then cancelled at each of its turns, in a seeded order, until time is up."""
    turns = Turns()
    before, end = open_sockets(), time.monotonic() + SECONDS / CASES
    turns.run(leaving_no_task(run(turns, None)))
    numbers = list(range(turns.count))
    random.Random(f"{SEED} {key}").shuffle(numbers)
    for tried, turn in enumerate(numbers):
        if tried and time.monotonic() > end:
            break
        again = Turns()
        again.run(leaving_no_task(run(again, turn)))
    assert open_sockets() <= before


@needs_proc
@checks("reliability:W39", "reliability:W40", "reliability:W41")
@pytest.mark.parametrize(("name", "where"), in_turns(STEPS, PLACES))
def test_a_verb_is_cancelled_at_every_turn(name: str, where: str) -> None:
    swept(lambda turns, turn: cancelled_step(turns, where, name, turn), f"{name} {where}")


@needs_proc
@checks("reliability:W39", "reliability:W40", "reliability:W41")
@pytest.mark.parametrize(("name", "where"), in_turns(TRANSFERS, PLACES))
def test_a_transfer_is_cancelled_at_every_turn(name: str, where: str) -> None:
    swept(lambda turns, turn: cancelled_transfer(turns, where, name, turn), f"{name} {where}")
