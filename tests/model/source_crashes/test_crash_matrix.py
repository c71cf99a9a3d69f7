"""A query is killed, or a request fails, at a chosen step: all rows are delivered, each of them once.

A step is a request to a store, or a write of the engine to its own logs or its sink. ``full`` takes each step that
changes something, which are all the states in which a killed query can leave the world, and a third of the others:
about 1,000 runs. ``quick`` takes a quarter of them. ``make test-spark-crash`` takes every step in every mode, and many
combinations of several steps: about 5,000.
"""

import logging
import os
import random
from collections.abc import Iterator

import pytest

from aioprefetch.source import polling
from aioprefetch.testing.conformance.suite import checks
from tests.model.source_crashes.engine import Checkpoint
from tests.model.source_crashes.scenes import SHAPES, Scene, Shape
from tests.model.source_crashes.strikes import MODES, Mode, Strikes
from tests.profile import chosen

IS_WHOLE = os.environ.get("AIOPREFETCH_SPARK_CRASH") == "all"
PAIRS = 500 if IS_WHOLE else chosen(quick=2, full=8)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A feed pauses after a failure; that is tested where it is written. Thousands of faults are not logged."""
    monkeypatch.setattr(polling, "PAUSE_SECONDS_BASE", 0.0)
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


def steps_of(mode: Mode, whole: Strikes, shape: Shape) -> list[int]:
    """The steps to strike at."""
    count, offset = len(whole.steps), SHAPES.index(shape)
    if IS_WHOLE:
        return list(range(1, count + 1))
    if mode == "killed after":
        stride = chosen(quick=4, full=1)
        return whole.writes[offset % stride :: stride]
    stride = chosen(quick=12, full=3)
    return list(range(1 + (MODES.index(mode) + offset) % stride, count + 1, stride))


@checks("source:R2", "source:F6", "reliability:P04", "reliability:P05")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_every_row_comes_once_whatever_step_is_the_last(shape: Shape) -> None:
    whole = (await delivered(shape, Strikes())).strikes
    assert len(whole.steps) > 50
    for mode in MODES:
        steps = steps_of(mode, whole, shape)
        scenes = [await delivered(shape, Strikes(frozenset({step}), mode)) for step in steps]
        # Background work may save a request or two.
        assert sum(bool(scene.strikes.struck) for scene in scenes) > 0.9 * len(steps), mode


@checks("source:R2", "reliability:P01")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_every_row_comes_once_after_several_faults(shape: Shape) -> None:
    chance = random.Random(str(shape))
    count = len((await delivered(shape, Strikes())).strikes.steps)
    for _ in range(PAIRS):
        await delivered(shape, Strikes(frozenset(chance.choices(range(1, count), k=3)), chance.choice(MODES)))


@checks("source:L1", "source:F9")
@pytest.mark.parametrize("mode", MODES[:2])
async def test_a_query_that_follows_delivers_everything_once_and_lists_nothing(mode: Mode) -> None:
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
    for step in steps[:: 1 if IS_WHOLE else chosen(quick=12, full=4)]:
        await follow(Strikes(frozenset({step}), mode))
