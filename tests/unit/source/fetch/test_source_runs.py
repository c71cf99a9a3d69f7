"""Runs that end, and queries that attach to another one."""

import time

import pytest

from aioprefetch.errors import Unavailable, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.fetch import source as source_module
from aioprefetch.source.fetch.source import StateLocation
from aioprefetch.source.options import AdmissionOptions, ListOptions
from aioprefetch.source.state.store import log_name
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from tests.unit.source.fetch.source_scene import ALL, Scene, batches_of, items_of


async def test_available_now_ends(scene: Scene) -> None:
    empty = await scene.open("empty/")
    empty.prepare_available_now()
    start = empty.initial_offset()
    assert await empty.latest_offset(start) is start
    scene.put(*"abc")
    scene.put("large.jsonl", size=250)
    source = await scene.open()
    source.prepare_available_now()
    assert await batches_of(source, source.initial_offset(), AdmissionOptions(bytes_max=100)) == [
        ["a", "b", "c", "large.jsonl"],
        ["large.jsonl"],
        ["large.jsonl"],
    ]


async def test_available_now_ends_although_files_keep_coming(scene: Scene) -> None:
    scene.put(*"abc", modified_ms=1_000_000)
    source = await scene.open(clock_ms=lambda: 1_005_000)
    source.prepare_available_now()
    start, found = source.initial_offset(), []
    while (end := await source.latest_offset(start, AdmissionOptions(files_max=1))) is not start:
        found += [item.file.key for item in items_of(await source.partitions(start, end))]
        scene.put(f"0{len(found)}", f"x{len(found)}", modified_ms=1_010_000)
        start = end
    assert found == ["a", "b", "c"]
    later = await scene.open(clock_ms=lambda: 1_020_000)
    later.prepare_available_now()
    assert sum(len(batch) for batch in await batches_of(later, start)) == 6


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_log_that_lost_its_end_is_refused_however_often_it_is_opened(scene: Scene, lost: int) -> None:
    """Each opening appends a claim, so that the log soon reaches the offset again."""
    scene.put(*"abcd")
    source = await scene.open()
    offset, offsets = source.initial_offset(), []
    while (end := await source.latest_offset(offset, AdmissionOptions(files_max=1))) is not offset:
        offsets.append(offset := end)
    await source.aclose()
    for one in offsets[-lost:]:
        await scene.state_operator.delete(f"s/{log_name(one.seq)}")
    for _ in range(lost + 3):
        again = await scene.open()
        with pytest.raises(UntrustedMetadata):
            await again.latest_offset(offset)
        await again.aclose()


@checks("source:Q4")
async def test_the_clock_of_the_store_decides_which_files_exist_now(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.put("a")
    store_now = time.time_ns

    def behind() -> int:
        return store_now() // 1_000_000 - 3_600_000

    monkeypatch.setattr(source_module, "now_ms", behind)
    source = await scene.open()
    source.prepare_available_now()
    assert await batches_of(source, source.initial_offset()) == [["a"]]
    elsewhere = Operator.bare(Memory()).layer(FaultLayer((Injection(operation="stat", error=Unavailable),)))
    assert await source_module.skew_ms(scene.operator, elsewhere, "any") == 0
    await elsewhere.aclose()


async def test_available_now_sweeps_a_whole_bucket_at_once(scene: Scene) -> None:
    scene.put(*(f"{number:05}" for number in range(2500)))
    source = await scene.open()
    end = await source.latest_offset(source.initial_offset(), ALL)
    scene.put("00000+", "02499+")
    again = await scene.open(list_options=ListOptions(interval_seconds=0, sweep_pages=1))
    again.prepare_available_now()
    assert sum(len(batch) for batch in await batches_of(again, end)) == 2


@checks("source:L1", "source:F9")
async def test_a_second_query_attaches_and_lists_nothing(scene: Scene) -> None:
    scene.put(*"abc")
    leader = await scene.open("one/")
    end = await leader.latest_offset(leader.initial_offset())
    requests = scene.list_requests
    follower = await scene.open("two/", attach_to=StateLocation(scene.state_operator, "one/"))
    assert await batches_of(follower, follower.initial_offset()) == [list("abc")]
    scene.put("d")
    assert (await leader.latest_offset(end)).files == 4
    after = scene.list_requests
    assert requests < after
    again = await scene.open("two/", attach_to=StateLocation(scene.state_operator, "one/"))
    assert await batches_of(again, again.initial_offset()) == [list("abc"), ["d"]]
    assert scene.list_requests == after
