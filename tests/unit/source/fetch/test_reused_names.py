"""Names whose content disappears and returns: emptied and filled, deleted and created again."""

import pytest

from aioprefetch.errors import ObjectChanged
from aioprefetch.source.fetch.source import FileSource, StateLocation
from aioprefetch.source.options import ListOptions, Overwrites, StateOptions
from aioprefetch.source.values import Offset
from aioprefetch.testing.conformance.suite import checks
from tests.unit.source.fetch.source_scene import Scene, items_of


class Engine:
    """Takes batches until there is nothing for some triggers; ``got`` are keys and sizes."""

    def __init__(self, source: FileSource, offset: Offset | None = None) -> None:
        self.source = source
        self.offset = offset or source.initial_offset()
        self.got: list[tuple[str, int]] = []

    async def drain(self) -> list[tuple[str, int]]:
        self.got.clear()
        idle = 0
        while idle < 4:
            end = await self.source.latest_offset(self.offset)
            idle = idle + 1 if end is self.offset else 0
            if end is not self.offset:
                items = items_of(await self.source.partitions(self.offset, end))
                self.got += [(item.file.key, item.file.size) for item in items]
                await self.source.commit(end)
                self.offset = end
        return self.got


def options(overwrites: Overwrites) -> ListOptions:
    return ListOptions(interval_seconds=0, overwrites=overwrites)


@checks("source:L9")
@pytest.mark.parametrize("compacts", [False, True])
async def test_a_file_that_is_emptied_and_filled_again_is_overwritten(scene: Scene, compacts: bool) -> None:
    """Under ``ignore`` one version is delivered, whatever came in between; in another run, too."""
    state_options = StateOptions(keep_records=0, compact_entries=1) if compacts else None
    scene.put("a", "b")
    one = Engine(await scene.open(list_options=options("ignore"), state_options=state_options))
    assert await one.drain() == [("a", 10), ("b", 10)]
    scene.put("a", size=0)
    assert await one.drain() == []
    two = Engine(await scene.open(list_options=options("ignore"), state_options=state_options), one.offset)
    scene.put("a", size=0)
    assert await two.drain() == []
    scene.put("a", size=12)
    assert await two.drain() == []


@checks("source:L9")
async def test_emptying_a_file_is_an_overwrite_that_fails(scene: Scene) -> None:
    scene.put("a", "b")
    one = Engine(await scene.open(list_options=options("fail")))
    await one.drain()
    scene.put("a", size=0)
    with pytest.raises(ObjectChanged, match="overwrites=fail"):
        await one.drain()


@checks("source:L9")
async def test_a_file_emptied_under_another_policy_counts_under_this_one(scene: Scene) -> None:
    for before, filled in (("ignore", "fail"), ("reread", "fail")):
        directory = f"{before}/"
        scene.put("a")
        one = Engine(await scene.open(directory, list_options=options(before)))  # type: ignore[arg-type]
        await one.drain()
        scene.put("a", size=0)
        await one.drain()
        scene.put("a", size=12)
        two = Engine(await scene.open(directory, list_options=options(filled)), one.offset)  # type: ignore[arg-type]
        with pytest.raises(ObjectChanged):
            await two.drain()


@checks("source:L9")
@pytest.mark.parametrize("overwrites", ["ignore", "reread", "fail"])
async def test_an_empty_file_that_is_filled_later_is_new(scene: Scene, overwrites: Overwrites) -> None:
    scene.put("a", size=0)
    one = Engine(await scene.open(list_options=options(overwrites)))
    assert await one.drain() == []
    scene.put("a", size=12)
    assert await one.drain() == [("a", 12)]


@checks("source:L9")
@pytest.mark.parametrize("overwrites", ["ignore", "reread", "fail"])
async def test_a_name_that_was_seen_to_be_gone_is_another_file_when_it_comes_back(
    scene: Scene, overwrites: Overwrites
) -> None:
    """Only with another content: the very same one is a file put back."""
    scene.put("latest")
    one = Engine(await scene.open(list_options=options(overwrites)))
    assert await one.drain() == [("latest", 10)]
    scene.bucket.store.remove("latest")
    assert await one.drain() == []
    scene.put("latest", size=77)
    assert await one.drain() == [("latest", 77)]
    objects = scene.bucket.store.objects
    kept = objects["latest"]
    scene.bucket.store.remove("latest")
    assert await one.drain() == []
    scene.put("latest")
    objects["latest"] = kept
    assert await one.drain() == []


@pytest.mark.parametrize("overwrites", ["ignore", "reread", "fail"])
async def test_an_emptied_file_is_no_work_for_a_follower_either(scene: Scene, overwrites: Overwrites) -> None:
    """The size under which it is remembered means something to the state alone."""
    scene.put("a", "b")
    one = Engine(await scene.open("a/", list_options=options("ignore")))
    await one.drain()
    attached = StateLocation(scene.state_operator, "a/")
    early = Engine(await scene.open("early/", list_options=options(overwrites), attach_to=attached))
    assert await early.drain() == [("a", 10), ("b", 10)]
    scene.put("a", size=0)
    scene.put("c")
    await one.drain()
    late = Engine(await scene.open("late/", list_options=options(overwrites), attach_to=attached))
    assert await late.drain() == [("b", 10), ("c", 10)]
    if overwrites == "fail":
        with pytest.raises(ObjectChanged):
            await early.drain()
    else:
        assert await early.drain() == [("c", 10)]


async def test_a_follower_that_was_away_for_long_takes_another_file_of_a_name_for_new(scene: Scene) -> None:
    """The records that noted the deletion of the first one were removed."""
    small = StateOptions(keep_records=2, compact_records=4, compact_entries=1)
    one = Engine(await scene.open("a/", state_options=small))
    scene.put("k", "other")
    await one.drain()
    attached = StateLocation(scene.state_operator, "a/")
    two = Engine(await scene.open("b/", attach_to=attached))
    assert await two.drain() == [("k", 10), ("other", 10)]
    scene.bucket.store.remove("k")
    await one.drain()
    scene.put("k", size=77)
    scene.put("other", size=78)
    assert await one.drain() == [("k", 77)]
    for number in range(12):
        scene.put(f"n{number:02}")
        await one.drain()
    await one.source.state.compact()
    assert ("k", 77) in await two.drain()
    assert ("other", 78) not in two.got
