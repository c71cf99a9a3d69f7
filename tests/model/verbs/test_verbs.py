"""Sequences of verbs beside their meaning, through each door and in each store: no value is lost."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch import Operator
from aioprefetch.errors import Error
from tests.benches.faulty_bucket import FAULTS, Call, FaultyBucket
from tests.model.verbs.doors import BucketPlace, Place, by_operator, opened
from tests.model.verbs.steps import steps, trees, valued
from tests.model.verbs.tree import Step, Tree, check, check_refusal

EXAMPLES = {"memory": 120, "files": 60, "bucket": 40}
FAULTY_EXAMPLES = 60


async def made(op: Operator, step: Step) -> Error | None:
    """Make a step; the error that it has raised."""
    try:
        await by_operator(op, step)
    except Error as error:
        return error
    return None


async def run(place: Place, tree: Tree, sequence: list[Step]) -> None:
    await place.plant(tree)
    async with place.operator() as op:
        for step in valued(sequence):
            before = place.tree()
            error = await made(op, step)
            check_refusal(before, place.tree(), place.meaning.of(before, step), error, step)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_verb_does_what_it_means(name: str) -> None:
    async def in_place(tree: Tree, sequence: list[Step]) -> None:
        async with opened(name) as place:
            await run(place, tree, sequence)

    @settings(max_examples=EXAMPLES[name])
    @given(trees(directories=name == "files"), st.lists(steps(), min_size=1, max_size=4))
    def checked(tree: Tree, sequence: list[Step]) -> None:
        asyncio.run(in_place(tree, sequence))

    checked()


async def run_faulty(tree: Tree, step: Step, fault: str, number: int, *, is_once: bool) -> None:
    """Make a step in a bucket whose n-th response, or each one from there on, is spoiled."""

    def strikes(call: Call) -> bool:
        return call.number == number if is_once else call.number >= number

    async with FaultyBucket() as bucket:
        place = BucketPlace(bucket)
        await place.plant(tree)
        bucket.fault, bucket.strikes = FAULTS[fault], strikes
        async with place.operator() as op:
            error = await made(op, step)
            bucket.fault = None
        check(tree, place.tree(), place.meaning.of(tree, step), error, step)


@settings(max_examples=FAULTY_EXAMPLES)
@given(
    trees(directories=False),
    steps().map(lambda step: valued([step])[0]),
    st.sampled_from(sorted(FAULTS)),
    st.integers(0, 6),
    st.booleans(),
)
def test_whatever_response_is_spoiled_no_value_is_lost(
    tree: Tree, step: Step, fault: str, number: int, is_once: bool
) -> None:
    asyncio.run(run_faulty(tree, step, fault, number, is_once=is_once))
