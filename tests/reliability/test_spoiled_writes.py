"""Verbs that write, copy, move and delete, with each response of their requests spoiled in turn."""

import random
import time
from collections.abc import Callable
from functools import partial

from aioprefetch import Operator
from aioprefetch.errors import Error
from aioprefetch.testing.bucket import Call
from aioprefetch.testing.conformance.suite import checks
from tests.model.verbs.doors import by_operator
from tests.model.verbs.places import BucketPlace
from tests.model.verbs.tree import Step, check
from tests.probes.search import SECONDS, SEED
from tests.profile import each_of
from tests.reliability.written_tree import STEPS, TREE
from tests.stores.faulty_bucket import FAULTS, FaultyBucket

# The uploads that no error names and that nothing ends: their name was in a response that was lost or spoiled.
UNNAMED = {"lost", "500 after the deed", "hollow", "page", "cut XML", "error in a 200"}


async def spoiled(name: str, fault: str, strikes: Callable[[Call], bool]) -> int:
    """Make a step with spoiled responses, check what is left, and return how many requests it made."""
    async with FaultyBucket() as bucket:
        place = BucketPlace(bucket)
        await place.plant(TREE)
        async with place.operator() as op:
            bucket.fault, bucket.strikes = FAULTS[fault], strikes
            error = await _made(op, STEPS[name])
            bucket.fault = None
        step = STEPS[name]
        check(TREE, place.tree(), place.meaning.of(TREE, step), error, step)
        if fault not in UNNAMED:  # An error names the upload that it could not abort.
            assert all(upload in str(error) for upload in bucket.uploads), (name, fault, error)
        return len(bucket.calls)


async def _made(op: Operator, step: Step) -> Error | None:
    try:
        await by_operator(op, step)
    except Error as error:
        return error
    return None


@checks("reliability:W01", "reliability:W02", "reliability:W03", "reliability:W06", "reliability:W07")
@each_of("name", STEPS)
async def test_the_nth_response_spoiled_loses_nothing(name: str) -> None:
    count = await spoiled(name, "500", lambda call: False)
    runs = [(fault, number, is_once) for fault in FAULTS for number in range(count) for is_once in (True, False)]
    random.Random(f"{SEED} {name}").shuffle(runs)
    end = time.monotonic() + SECONDS / len(STEPS)
    for tried, (fault, number, is_once) in enumerate(runs):
        if tried > 2 and time.monotonic() > end:
            return
        await spoiled(name, fault, partial(_strikes, number, is_once))


def _strikes(number: int, is_once: bool, call: Call) -> bool:
    return call.number == number if is_once else call.number >= number
