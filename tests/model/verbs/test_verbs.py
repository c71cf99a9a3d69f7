"""Sequences of verbs beside their meaning, through each door and in each store: no value is lost."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from hypothesis import strategies as st

from aioprefetch.testing.bucket import Call
from aioprefetch.testing.conformance.suite import checks
from tests.model.verbs.doors import DOORS, CommandDoor, Door, OperatorDoor, Verbs, door_of
from tests.model.verbs.places import MEANINGS, BucketPlace, Place, opened
from tests.model.verbs.steps import SLASHED, cases
from tests.model.verbs.tree import Step, Tree, check, check_refusal, without_markers
from tests.probes.search import IS_LONG, searched
from tests.stores.faulty_bucket import FAULTS, FaultyBucket

# Examples of the doors to each store.
EXAMPLES = {"memory": 30, "files": 15, "bucket": 10}
FAULTY_EXAMPLES = 50
SERVER_EXAMPLES = 12
# The stores that are servers of their own.
SERVERS = {"moto": "s3_server", "rclone": "rclone_server"}
# The doors that keep something: bytes, or listings.
CACHED_DOORS = ("operator", "fsspec")
# Stores of HTTP are for a search, but for the operator in the bucket.
STORES = [*EXAMPLES, *SERVERS] if IS_LONG else ["memory", "files"]
WAYS = list(dict.fromkeys([*((door, store) for store in STORES for door in DOORS), ("operator", "bucket")]))


async def made(door: Door, step: Step) -> tuple[bytes | None, Exception | None]:
    """Make a step; the bytes that it has read, or the error that it has raised."""
    try:
        return await door.make(step), None
    except AssertionError:
        raise
    except Exception as error:
        return None, error


def below_object(tree: Tree, step: Step) -> bool:
    """Whether a step names something below an object, for which rclone takes the object itself."""
    paths = [step.arguments.get(name, "") for name in ("path", "source", "target")] + [*step.arguments.get("paths", ())]
    return any(path.startswith(f"{name}/") for path in paths for name in tree)


async def run(place: Place, door: Door, tree: Tree, sequence: list[Step], *, is_cached: bool) -> None:
    await place.plant(tree)
    for drawn in sequence:
        before = place.tree()
        step = door.means(before, drawn)
        if step is None or (not place.meaning.is_strict and below_object(before, step)):
            continue
        value, error = await made(door, drawn)
        after, outcome = place.tree(), place.meaning.of(before, step)
        if not place.meaning.is_strict:
            assert not {*before.values()} - {*after.values()} - outcome.killed, f"{step}: {before} -> {after}"
        elif error is not None and door.may_refuse(before, step):
            check(before, after, outcome, error, step)
        else:
            check_refusal(before, after, outcome, error, step, is_typed=door.is_strict)
        assert error or outcome.value is None or value == outcome.value, f"{step}: {value!r}, not {outcome.value!r}"
        assert not place.unfinished()
        if is_cached:
            seen = await door.seen()
            assert seen is not None
            assert without_markers(seen) == {n: d for n, d in without_markers(after).items() if n in seen}


def trees_of(store: str, kind: type[Door]) -> dict[str, Any]:
    """Which trees a store can have, and a door can tell its steps of."""
    if MEANINGS[store].directories:
        return {"directories": True, "planted": ()}
    return {"directories": True, "planted": SLASHED} if kind.is_file_system else {}


def verbs_of(store: str, kind: type[Door]) -> Mapping[str, Collection[str]]:
    """The verbs of a door, without conditions where a store looks at none, and without what files do not keep."""
    left_out = set[str]() if MEANINGS[store].conditions else {"if_match", "if_none_match", "if_not_exists"}
    left_out |= {"is_described"} if MEANINGS[store].directories else set()
    return {verb: {*flags} - left_out for verb, flags in kind.verbs.items()}


def try_steps(store: str, door: str, *, is_cached: bool = False, server: Any = None, examples: int) -> None:
    kind = DOORS[door]

    async def in_place(case: tuple[Tree, list[Step]]) -> None:
        async with opened(store, server) as place, door_of(kind, place, is_cached=is_cached) as way:
            await run(place, way, *case, is_cached=is_cached)

    searched(
        lambda case: asyncio.run(in_place(case)),
        cases(verbs_of(store, kind), **trees_of(store, kind)),
        examples=examples,
    )


@pytest.mark.parametrize(("door", "store"), WAYS)
def test_each_verb_does_what_it_means(request: pytest.FixtureRequest, door: str, store: str) -> None:
    server = request.getfixturevalue(SERVERS[store]) if store in SERVERS else None
    try_steps(store, door, server=server, examples=EXAMPLES.get(store, SERVER_EXAMPLES))


@pytest.mark.parametrize("store", [store for store in STORES if store not in SERVERS])
@pytest.mark.parametrize("door", CACHED_DOORS)
def test_what_is_kept_is_what_is_there(store: str, door: str) -> None:
    try_steps(store, door, is_cached=True, examples=EXAMPLES[store] // 2)


# What changes nothing loses nothing.
CHANGING = {verb: flags for verb, flags in OperatorDoor.verbs.items() if verb not in ("read", "download")}
# The requests of the verbs, of which one is spoiled, or all from there on.
REQUESTS = {
    "copy": ("CopyObject", "HeadObject"),
    "move": ("CopyObject", "CopyObject", "HeadObject", "DeleteObject"),
    "delete": ("DeleteObject",),
    "delete_many": ("Delete", "DeleteObject"),
    "delete_all": ("List", "Delete", "DeleteObject"),
    "copy_tree": ("List", "CopyObject", "Delete"),
    "move_tree": ("List", "CopyObject", "HeadObject", "Delete"),
    "copy_named": ("List", "CopyObject", "HeadObject"),
}
SUCCESSES = ("hollow", "page")  # They say that it was done.
MV = {verb: CommandDoor.verbs[verb] for verb in ("move", "move_tree")}


@st.composite
def spoiled(draw: st.DrawFn, verbs: Verbs) -> tuple[Tree, Step, str, str, int, bool]:
    """A tree, a step, and which of its responses are spoiled: by what fault, to which request, from which one on."""
    tree, [step] = draw(cases(verbs, steps_max=1))
    fault = draw(st.one_of(st.sampled_from([*FAULTS]), st.sampled_from(SUCCESSES)))
    request = draw(st.sampled_from(["any", *REQUESTS.get(step.verb, ("PutObject",))]))
    return tree, step, fault, request, draw(st.sampled_from([1, 1, 2, 3])), draw(st.booleans())


async def run_faulty(
    kind: type[Door], tree: Tree, step: Step, fault: str, request: str, number: int, is_once: bool
) -> None:
    """Make a step in a bucket whose n-th response to such a request, or each one from there on, is spoiled."""
    asked = 0

    def strikes(call: Call) -> bool:
        nonlocal asked
        is_asked = request in (call.verb, "any")
        asked += is_asked
        return is_asked and (asked == number if is_once else asked >= number)

    async with FaultyBucket() as bucket:
        place = BucketPlace(bucket)
        await place.plant(tree)
        bucket.fault, bucket.strikes = FAULTS[fault], strikes
        async with door_of(kind, place) as door:
            _, error = await made(door, step)
            bucket.fault = None
        check(tree, place.tree(), place.meaning.of(tree, step), error, step)


def test_whatever_response_is_spoiled_no_value_is_lost() -> None:
    searched(lambda case: asyncio.run(run_faulty(OperatorDoor, *case)), spoiled(CHANGING), examples=FAULTY_EXAMPLES)


@checks("reliability:W49")
def test_whatever_response_to_mv_is_spoiled_no_value_is_lost() -> None:
    searched(lambda case: asyncio.run(run_faulty(CommandDoor, *case)), spoiled(MV), examples=FAULTY_EXAMPLES)
