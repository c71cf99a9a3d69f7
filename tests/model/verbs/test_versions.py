"""Deletions of named versions beside their meaning: a dictionary of the versions that each name has."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from aioprefetch import Operator
from aioprefetch.errors import NotFound
from aioprefetch.testing import CountingS3Server
from tests.model.verbs.tree import Step
from tests.probes.search import searched
from tests.stores.planted_keys import PlantedBucket

EXAMPLES = 20
NAMES = st.sampled_from(["a", "b", "a/a", "a b", "\u00fc"])
# The versions of each name, the oldest first; None is a delete marker.
Versions = dict[str, list[bytes | None]]
# A name, and which of its versions, counted from the newest. None: the name alone.
NAMED = st.tuples(NAMES, st.one_of(st.none(), st.integers(0, 3)))


@st.composite
def sequences(draw: st.DrawFn) -> list[Step]:
    """Writes, and then deletions of one or several names or versions among further writes."""
    paths = draw(st.lists(NAMES, min_size=2, max_size=8))
    steps = [Step("write", {"path": path}) for path in paths]
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            steps.append(Step("write", {"path": draw(NAMES)}))
        several = st.lists(NAMED, min_size=1, max_size=4, unique=True)
        drawn = draw(several)
        alone = {name for name, back in drawn if back is None}  # Which goes first is the store's matter.
        names = [(name, back) for name, back in drawn if back is None or name not in alone]
        steps.append(Step("delete", {"names": names, "is_one": draw(st.booleans())}))
    return steps


def deleted(versions: Versions, names: Sequence[tuple[str, int | None]]) -> Versions:
    """The versions that are left. A name alone gets a delete marker, if it has versions."""
    gone = {(name, len(versions.get(name, [])) - 1 - back) for name, back in names if back is not None}
    left = {name: [one for at, one in enumerate(held) if (name, at) not in gone] for name, held in versions.items()}
    marked = {name for name, back in names if back is None and name in versions}
    return {name: held + [None] * (name in marked) for name, held in left.items() if held or name in marked}


async def delete(op: Operator, bucket: PlantedBucket, step: Step) -> None:
    """Delete what a step names, by the ids that the store has given. A version that is not there has a new one."""
    held = bucket.versions()

    def version_of(name: str, back: int | None) -> str | None:
        if back is None:
            return None
        ids = [version for version, _ in held.get(name, [])]
        return ids[-1 - back] if back < len(ids) else str(uuid.uuid4())

    named = [(name, version_of(name, back)) for name, back in step.names]
    if step.is_one and len(named) == 1:
        await op.delete(named[0][0], version=named[0][1])
    else:
        await op.delete([(name, version) if version else name for name, version in named])


async def run(bucket: PlantedBucket, sequence: Sequence[Step]) -> None:
    versions: Versions = {}
    async with Operator.from_uri(bucket.url, **bucket.options) as op:
        for number, step in enumerate(sequence):
            before = versions
            if step.verb == "write":
                data = f"written {number}".encode()
                versions = {**versions, step.path: [*versions.get(step.path, []), data]}
                await op.write(step.path, data)
            else:
                versions = deleted(versions, step.names)
                await delete(op, bucket, step)
            there = {name: [data for _, data in held] for name, held in bucket.versions().items()}
            assert there == versions, f"{step}: {before} -> {there}, and {versions} is right"
        for name, held in versions.items():
            read: Any = None
            with suppress(NotFound):
                read = await op.read(name)
            assert read == held[-1]


def test_named_versions_go_and_no_others(s3_server: CountingS3Server) -> None:
    def check(sequence: list[Step]) -> None:
        bucket = PlantedBucket(s3_server, f"t{uuid.uuid4().hex[:16]}")
        bucket.keep_versions()
        asyncio.run(run(bucket, sequence))

    searched(check, sequences(), examples=EXAMPLES)
