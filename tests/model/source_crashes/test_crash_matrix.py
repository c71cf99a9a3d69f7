"""A query is killed, or a request fails, at every step there is: all rows are delivered, each of them once.

A step is a request to a store, or a write of the engine to its own logs or its sink. By default a query is killed after
each step that changes something, which are all the states in which it can leave the world, and some of the others are
left out: about 1,000 runs. ``AIOPREFETCH_CRASH_MATRIX=full`` takes all, and many steps together: about 5,000.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator

import pytest

from aioprefetch.source import polling as pace
from tests.model.source_crashes.engine import Checkpoint
from tests.model.source_crashes.scenes import SHAPES, Scene, Shape
from tests.model.source_crashes.strikes import MODES, Mode, Strikes

IS_FULL = os.environ.get("AIOPREFETCH_CRASH_MATRIX") == "full"
PAIRS = 500 if IS_FULL else 8


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A feed pauses after a failure; that is tested where it is written. Thousands of faults are not logged."""
    monkeypatch.setattr(pace, "PAUSE_SECONDS_BASE", 0.0)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def delivered(shape: Shape, strikes: Strikes) -> Scene:
    """A scene, played to its end, that has delivered what it was to."""
    scene, checkpoint = Scene(shape, strikes), Checkpoint()
    await scene.play(checkpoint)
    check(scene, checkpoint)
    return scene


def check(scene: Scene, checkpoint: Checkpoint) -> None:
    lost, doubled = scene.bucket.rows - checkpoint.rows(), checkpoint.rows() - scene.bucket.rows
    said = f"{lost.total()} rows lost, {doubled.total()} too many after: {scene.strikes}"
    assert (lost, doubled) == ({}, {}), said


def steps_of(mode: Mode, whole: Strikes) -> list[int]:
    """The steps to strike at."""
    if IS_FULL:
        return list(range(1, len(whole.steps) + 1))
    if mode == "killed after":
        return whole.writes
    return list(range(1 + MODES.index(mode) % 3, len(whole.steps) + 1, 3))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
async def test_r2_f6_every_row_comes_once_whatever_step_is_the_last(shape: Shape, mode: Mode) -> None:
    whole = (await delivered(shape, Strikes())).strikes
    assert len(whole.steps) > 50
    steps = steps_of(mode, whole)
    scenes = [await delivered(shape, Strikes(frozenset({step}), mode)) for step in steps]
    # What goes on in the background may save a request or two.
    assert sum(bool(scene.strikes.struck) for scene in scenes) > 0.9 * len(steps)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_r2_every_row_comes_once_after_several_faults(shape: Shape) -> None:
    chance = random.Random(str(shape))
    count = len((await delivered(shape, Strikes())).strikes.steps)
    for _ in range(PAIRS):
        await delivered(shape, Strikes(frozenset(chance.choices(range(1, count), k=3)), chance.choice(MODES)))


@pytest.mark.parametrize("mode", MODES[:2])
async def test_l1_f9_a_query_that_follows_delivers_everything_once_and_lists_nothing(mode: Mode) -> None:
    shape = next(shape for shape in SHAPES if shape.name == "mixed")

    async def follow(strikes: Strikes) -> Strikes:
        leader, ahead, behind = Scene(shape), Checkpoint(), Checkpoint()
        follower = Scene(shape, strikes, leader.bucket, leader.states, "follower/", "state/")
        for phase in shape.phases:
            phase(leader.bucket)
            await leader.come_to_the_end(ahead)
            await follower.come_to_the_end(behind)
        check(leader, ahead)
        check(follower, behind)
        assert not [name for name in strikes.steps if name.startswith("list bucket")]
        return strikes

    whole = await follow(Strikes())
    steps = whole.writes if mode == "killed after" else range(1, len(whole.steps) + 1)
    for step in steps[:: 1 if IS_FULL else 4]:
        await follow(Strikes(frozenset({step}), mode))
