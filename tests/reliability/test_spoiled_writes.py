"""Verbs that write, copy, move and delete, with each response of their requests spoiled in turn."""

import random
import time
from collections.abc import Callable
from functools import partial

import pytest

from aioprefetch import Operator
from aioprefetch.errors import Error
from aioprefetch.testing.conformance.suite import checks
from tests.benches.faulty_bucket import FAULTS, PART_BYTES, Call, FaultyBucket
from tests.benches.search import SECONDS, SEED
from tests.model.verbs.doors import BucketPlace, by_operator
from tests.model.verbs.tree import Step, Tree, check

LARGE = b"large" * (PART_BYTES // 4)
TREE: Tree = {"a/x": b"one", "a/y/z": b"two", "a b": b"three", "b/x": b"four", "b/only": b"five", "[a]": b"six"}
NEW = {"data": b"new", "if_match": None}
CONDITIONS = {"if_not_exists": False, "if_match": None}
BELOW = {"source": "a/", "target": "b/", "glob": None, "overwrite": True}
STEPS = {
    "write": Step("write", {"path": "a b", **NEW, "if_not_exists": False}),
    "write new": Step("write", {"path": "new", **NEW, "if_not_exists": True}),
    "write the current": Step("write", {"path": "a b", **NEW, "if_not_exists": False, "if_match": "current"}),
    "write in parts": Step("write", {**NEW, "path": "a b", "data": LARGE, "if_not_exists": False}),
    "write new in parts": Step("write", {**NEW, "path": "new", "data": LARGE, "if_not_exists": True}),
    "upload": Step("upload", {"path": "a b", **NEW, "if_not_exists": False}),
    "copy": Step("copy", {"source": "a/x", "target": "b/x", **CONDITIONS}),
    "copy to nothing": Step("copy", {"source": "a/x", "target": "new", **CONDITIONS, "if_not_exists": True}),
    "move": Step("move", {"source": "a/x", "target": "b/x", **CONDITIONS}),
    "move to nothing": Step("move", {"source": "a/x", "target": "new", **CONDITIONS, "if_not_exists": True}),
    "delete": Step("delete", {"path": "a/x", "if_match": None}),
    "delete the current": Step("delete", {"path": "a/x", "if_match": "current"}),
    "delete many": Step("delete_many", {"paths": ("a/x", "a b", "none")}),
    "delete all": Step("delete_all", {"path": "a/"}),
    "copy tree": Step(
        "copy_tree", {"source": "a/", "target": "b/", "glob": None, "overwrite": True, "delete_extra": False}
    ),
    "sync": Step("copy_tree", {"source": "a/", "target": "b/", "glob": None, "overwrite": True, "delete_extra": True}),
    "move tree": Step("move_tree", {"source": "a/", "target": "b/", "if_not_exists": False}),
}
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


@checks("reliability:W01", "reliability:W02", "reliability:W03", "reliability:W04", "reliability:W05")
@pytest.mark.parametrize("name", STEPS)
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
