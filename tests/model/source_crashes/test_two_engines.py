"""Two queries on one state at once: the one that opened it last goes on, the other one ends with a clear error."""

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from aioprefetch.errors import StateConflict
from aioprefetch.source.fetch.source import FileSource
from aioprefetch.source.values import Offset
from aioprefetch.testing.conformance.suite import checks
from tests.model.source_crashes.engine import Checkpoint, ConcurrentUpdateError
from tests.model.source_crashes.scenes import SHAPES, Scene
from tests.model.source_crashes.strikes import Process, Strikes

SHAPE = SHAPES[0]
STRIDE = 3


async def steps_of_a_run() -> list[int]:
    """Steps at which the state is there."""
    return (await all_steps())[1]


async def all_steps() -> tuple[list[int], list[int]]:
    """The first steps of a run, which make the state, and some of those after them."""
    scene = Scene(SHAPE)
    SHAPE.phases[0](scene.bucket)
    await scene.come_to_the_end(Checkpoint())
    names = scene.strikes.steps
    first = next(number for number, name in enumerate(names, 1) if name.startswith("write state state/log"))
    return list(range(1, first + 4)), list(range(first, len(names) + 1, STRIDE))


class Overtaking:
    """A query that is overtaken by a second one at a step; then there is something new."""

    def __init__(self, step: int, first: Checkpoint, second: Checkpoint) -> None:
        self.scene = Scene(SHAPE, Strikes(frozenset({step}), meanwhile=self.overtake))
        self.first, self.second = first, second
        self.error: Exception | None = None

    async def overtake(self) -> None:
        assert await self.another().live(self.second)
        self.scene.bucket.put("zz/new.jsonl", 2)

    def another(self) -> Scene:
        return Scene(SHAPE, Strikes(), self.scene.bucket, self.scene.states)

    async def play(self) -> None:
        SHAPE.phases[0](self.scene.bucket)
        try:
            await self.scene.live(self.first)
        except (StateConflict, ConcurrentUpdateError) as error:
            self.error = error


@checks("source:R1", "reliability:P15")
async def test_of_two_runs_of_a_query_one_goes_on() -> None:
    errors = []
    for step in await steps_of_a_run():
        checkpoint = Checkpoint()
        play = Overtaking(step, checkpoint, checkpoint)
        await play.play()
        errors.append(play.error)
        await play.another().come_to_the_end(checkpoint)
        assert checkpoint.rows() == play.scene.bucket.rows
    assert sum(error is not None for error in errors) > len(errors) // 2


@checks("source:R1")
async def test_of_two_that_make_a_new_state_at_once_one_goes_on() -> None:
    for step in (await all_steps())[0]:
        scene = Scene(SHAPE)
        sources: list[FileSource] = []
        SHAPE.phases[0](scene.bucket)
        async with AsyncExitStack() as stack:

            async def start(strikes: Strikes, scene: Scene = scene, stack: AsyncExitStack = stack) -> FileSource:
                process = Process(strikes)
                return await scene.open(process, scene.operator("bucket", process, scene.bucket.service, stack), stack)

            async def meanwhile(sources: list[FileSource] = sources) -> None:
                sources.append(await start(Strikes()))

            with suppress(StateConflict):
                sources.append(await start(Strikes(frozenset({step}), meanwhile=meanwhile)))
            calls = [source.latest_offset(source.initial_offset()) for source in sources]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            went_on = [one for one in outcomes if isinstance(one, Offset)]
            assert len(went_on) == 1, (step, outcomes)
            assert went_on[0].files > 0
            assert all(isinstance(one, StateConflict) for one in outcomes if one not in went_on)
        await play_alone(scene)


async def play_alone(scene: Scene) -> None:
    """Afterwards all is as it should be."""
    checkpoint = Checkpoint()
    await Scene(SHAPE, Strikes(), scene.bucket, scene.states).come_to_the_end(checkpoint)
    assert checkpoint.rows() == scene.bucket.rows


@checks("source:L1", "reliability:P15")
async def test_a_second_query_on_a_state_ends_the_first_and_begins_at_the_beginning() -> None:
    conflicts = []
    for step in await steps_of_a_run():
        first, second = Checkpoint(), Checkpoint()
        play = Overtaking(step, first, second)
        await play.play()
        assert not isinstance(play.error, ConcurrentUpdateError)
        conflicts.append(play.error)
        await play.another().come_to_the_end(second)
        assert second.rows() == play.scene.bucket.rows
        assert not first.rows() - second.rows()
    assert sum(error is not None for error in conflicts) > len(conflicts) // 2


async def test_the_error_says_what_happened() -> None:
    first, *_ = await steps_of_a_run()
    play = Overtaking(first + 12, Checkpoint(), Checkpoint())
    await play.play()
    with pytest.raises(StateConflict, match="another writer has taken over"):
        raise play.error or AssertionError
