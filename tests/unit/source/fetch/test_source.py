"""The front door, driven as a micro-batch engine drives it, over the real state and the real lister."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aioprefetch.errors import ConfigInvalid, InvalidArgument, NotFound, StateConflict, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.fetch.cleaning import CleanOptions
from aioprefetch.source.fetch.source import StateLocation
from aioprefetch.source.options import AdmissionOptions, ListOptions, PartitionOptions, StateOptions
from aioprefetch.source.values import Offset
from aioprefetch.testing.conformance.suite import checks
from tests.stores.dict_store import DictStore
from tests.stores.directory_bucket import DirectoryBucket
from tests.unit.source.fetch.source_scene import ALL, Scene, batches_of, items_of


@checks("reliability:P14")
async def test_without_news_the_same_offset_object_is_returned(scene: Scene) -> None:
    source = await scene.open()
    start = source.initial_offset()
    assert source.initial_offset() == start
    assert await source.latest_offset(start) is start
    scene.put("a")
    end = await source.latest_offset(start)
    assert (end.files, end.bytes) == (1, 10)
    assert await source.latest_offset(end) is end


@checks("reliability:K07")
async def test_offsets_are_small_and_their_text_is_stable(scene: Scene) -> None:
    source = await scene.open()
    scene.put("a")
    text = json.dumps((await source.latest_offset(source.initial_offset())).to_json())
    assert list(json.loads(text)) == ["v", "state", "seq", "files", "bytes"]
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text
    assert len(json.dumps(Offset(source.state.uuid, 10**20 - 1, 10**20 - 1, 10**20 - 1).to_json())) < 300


@checks("source:F8")
async def test_several_limits_hold_together(scene: Scene) -> None:
    scene.put(*"abcdef")
    source = await scene.open(admission=AdmissionOptions(bytes_max=30))
    assert await batches_of(source, source.initial_offset(), AdmissionOptions(files_max=2)) == [
        ["a", "b"],
        ["c", "d"],
        ["e", "f"],
    ]
    other = await scene.open("other/")
    assert await batches_of(other, other.initial_offset()) == [list("abcdef")]


async def test_a_request_for_everything_is_bounded_by_the_size_of_a_plan(scene: Scene) -> None:
    scene.put(*"abcdef")
    source = await scene.open(admission=AdmissionOptions(files_max=1, plan_files_max=4))
    assert await batches_of(source, source.initial_offset(), ALL) == [list("abcd"), ["e", "f"]]


@checks("source:R1")
async def test_partitions_are_the_same_in_every_process(scene: Scene) -> None:
    scene.put(*(f"{number:02}.jsonl" for number in range(30)), size=100)
    source = await scene.open(partitioning=PartitionOptions(target_bytes=200))
    start = source.initial_offset()
    end = await source.latest_offset(start)
    parts = await source.partitions(start, end)
    assert 4 <= len(parts) <= 15
    scene.put("00.jsonl", "a", size=7)
    again = await scene.open(partitioning=PartitionOptions(target_bytes=200))
    assert await again.partitions(start, end) == parts == await source.partitions(start, end)


@checks("source:F7")
async def test_another_number_of_tasks_reads_the_same_files(scene: Scene) -> None:
    scene.put(*(f"{number:02}.gz" for number in range(30)), size=100)
    source = await scene.open()
    start = source.initial_offset()
    end = await source.latest_offset(start)
    for slots in (1, 3, 8):
        how = PartitionOptions(target_bytes=10, partitions_max=2 * slots)
        parts = await (await scene.open(partitioning=how)).partitions(start, end)
        assert slots < len(parts) <= 2 * slots
        assert sorted(item.file.key for item in items_of(parts)) == [f"{number:02}.gz" for number in range(30)]


@checks("source:F7")
async def test_a_batch_of_many_small_files_keeps_all_slots_busy(scene: Scene) -> None:
    """As a batch reads the same files: what a file costs besides its bytes counts, too."""
    scene.put(*(f"{number:05}.gz" for number in range(1000)))
    source = await scene.open(partitioning=PartitionOptions(slots=12))
    start = source.initial_offset()
    parts = await source.partitions(start, await source.latest_offset(start))
    assert len(parts) == 12
    assert sum(map(len, parts)) == 1000
    assert max(map(len, parts)) < 1000 / 6


@checks("source:R2")
async def test_batches_that_the_engine_does_not_know_are_returned_again(scene: Scene) -> None:
    scene.put(*"abcdef")
    source = await scene.open()
    limit = AdmissionOptions(files_max=2)
    first = await source.latest_offset(source.initial_offset(), limit)
    second = await source.latest_offset(first, limit)
    assert await source.latest_offset(first, limit) == second
    again = await scene.open()
    assert await batches_of(again, first, AdmissionOptions(files_max=1)) == [["c", "d"], ["e"], ["f"]]


@checks("source:R2")
async def test_an_older_checkpoint_gets_the_same_batches_again(scene: Scene) -> None:
    scene.put(*(f"{number:02}" for number in range(40)))
    source = await scene.open()
    batches = await batches_of(source, source.initial_offset(), AdmissionOptions(files_max=1))
    again = await scene.open()
    assert await batches_of(again, again.initial_offset(), AdmissionOptions(files_max=7)) == batches
    one = await scene.open()
    assert await batches_of(one, one.initial_offset(), ALL) == batches


async def test_runs_of_one_batch_replay_batch_by_batch_and_then_take_everything(scene: Scene) -> None:
    """As an engine does under Trigger.Once: what a run leaves comes with the next ones."""
    scene.put("a")
    source = await scene.open()
    first = await source.latest_offset(source.initial_offset(), ALL)
    scene.put("b")
    second = await source.latest_offset(first, ALL)
    scene.put("c", "d")
    start, runs = source.initial_offset(), []
    for _ in range(4):
        source = await scene.open()
        end = await source.latest_offset(start, ALL)
        runs.append([item.file.key for item in items_of(await source.partitions(start, end))])
        start = end
    assert runs[:3] == [["a"], ["b"], ["c", "d"]]
    assert runs[3] == []
    again = await scene.open()
    again.prepare_available_now()
    scene.put("e", modified_ms=0)
    assert await batches_of(again, first, ALL) == [["b"], ["c", "d"], ["e"]]
    assert second.files == 2


@checks("source:F5", "source:F10")
async def test_a_large_file_goes_over_several_batches_and_goes_on_after_a_restart(scene: Scene) -> None:
    scene.put("a.jsonl", size=250)
    scene.put("b.gz", size=400)
    limit = AdmissionOptions(bytes_max=100)
    source = await scene.open()
    start, found = source.initial_offset(), []
    for _ in range(4):
        end = await source.latest_offset(start, limit)
        found.append([(item.file.key, item.start, item.stop) for item in items_of(await source.partitions(start, end))])
        start, source = end, await scene.open()
    assert found == [
        [("a.jsonl", 0, 100)],
        [("a.jsonl", 100, 200)],
        [("a.jsonl", 200, 250)],
        [("b.gz", 0, 400)],
    ]


async def test_commits_come_late_repeatedly_never_and_out_of_order(scene: Scene) -> None:
    scene.put(*"abcd")
    source = await scene.open(state_options=StateOptions(compact_records=1))
    offsets = [source.initial_offset()]
    for _ in range(4):
        offsets.append(await source.latest_offset(offsets[-1], AdmissionOptions(files_max=1)))
    for end in (offsets[2], offsets[1], offsets[2], offsets[0]):
        await source.commit(end)
    again = await scene.open()
    await again.commit(offsets[3])
    await again.commit(offsets[3])
    scene.put("0")
    assert await batches_of(again, offsets[3]) == [["d"], ["0"]]


@checks("source:L5", "source:L7")
async def test_a_trigger_lists_pages_on_request(scene: Scene) -> None:
    scene.put(*(f"{number:05}" for number in range(3000)))
    source = await scene.open(list_options=ListOptions(interval_seconds=0, ahead_pages=0))
    start = source.initial_offset()
    for requests in (1, 1, 2):
        end = await source.latest_offset(start, AdmissionOptions(files_max=500))
        assert end.files == start.files + 500
        assert scene.list_requests <= requests + 1
        start = end


@checks("source:L8", "source:L9", "reliability:P13")
async def test_a_restart_delivers_only_what_changed(scene: Scene) -> None:
    scene.put(*"bdf")
    source = await scene.open()
    start = source.initial_offset()
    end = await source.latest_offset(start)
    scene.put("a", "g")
    again = await scene.open()
    assert sorted(key for batch in await batches_of(again, end) for key in batch) == ["a", "g"]
    assert again.state.head is not None
    assert again.state.head.files == 5


async def test_a_source_keeps_its_way_of_finding_files(scene: Scene) -> None:
    await scene.open("one/")
    await scene.open("two/")
    with pytest.raises(StateConflict, match="option 'listing' was 'tail and sweep' and is 'follows"):
        await scene.open("two/", attach_to=StateLocation(scene.state_operator, "one/"))
    with pytest.raises(StateConflict, match="glob was None and is"):
        await scene.open("two/", list_options=ListOptions(glob="*.csv"))
    with pytest.raises(NotFound, match="no state of a source"):
        await scene.open("three/", attach_to=StateLocation(scene.state_operator, "none/"))


@pytest.mark.parametrize("recursive", [True, False])
async def test_a_store_that_lists_in_no_order_is_listed_whole(scene: Scene, recursive: bool) -> None:
    store = DictStore(dict.fromkeys(("z/z", "b", "z/a", "a"), b"data"), recursive=recursive)
    operator = store.operator()
    source = await scene.open(operator=operator)
    taken = sorted(key for batch in await batches_of(source, source.initial_offset()) for key in batch)
    assert taken == ["a", "b", "z/a", "z/z"]
    await source.aclose()
    await operator.aclose()


@pytest.mark.parametrize("glob", [None, "a/part-*.json"])
async def test_a_directory_bucket_is_listed_whole_each_time(scene: Scene, glob: str | None) -> None:
    """Each file once: those of the first listing, and those that come later with lower names."""
    names = [f"a/part-{number}.json" for number in range(7)]
    options = ListOptions(glob=glob, interval_seconds=0)
    async with DirectoryBucket() as bucket, bucket.operator() as operator:
        for name in names:
            bucket.put(name, b"{}")
        source = await scene.open(operator=operator, list_options=options)
        await source.latest_offset(source.initial_offset())
        bucket.put("a/part-00.json", b"{}")
        taken = sorted(key for batch in await batches_of(source, source.initial_offset()) for key in batch)
        assert taken == sorted([*names, "a/part-00.json"])
        await source.aclose()


async def test_offsets_that_do_not_belong_to_the_state_are_refused(scene: Scene) -> None:
    scene.put("a")
    source = await scene.open()
    start = source.initial_offset()
    end = await source.latest_offset(start)
    strange, beyond = Offset("another"), Offset(start.state, 99)
    for offset, error in ((strange, StateConflict), (beyond, UntrustedMetadata)):
        with pytest.raises(error):
            await source.latest_offset(offset)
        with pytest.raises(error):
            await source.partitions(start, offset)
        with pytest.raises(error):
            await source.partitions(offset, end)
        with pytest.raises(error):
            await source.commit(offset)
    with pytest.raises(InvalidArgument, match="lies before"):
        await source.partitions(end, start)


@pytest.mark.parametrize("change", [{"bytes": 11}, {"files": 2}, {"bytes": 0}, {"files": 2, "bytes": 20}])
async def test_an_offset_with_other_totals_than_its_record_is_refused(scene: Scene, change: dict[str, Any]) -> None:
    scene.put("a")
    source = await scene.open()
    end = await source.latest_offset(source.initial_offset())
    assert (end.files, end.bytes) == (1, 10)
    again = await scene.open()
    with pytest.raises(UntrustedMetadata, match="the log has another one of this number"):
        await again.latest_offset(replace(end, **change))
    assert await again.latest_offset(end) is end


async def test_a_lost_state_is_not_created_again_without_the_engine(scene: Scene) -> None:
    scene.put("a")
    source = await scene.open()
    end = await source.latest_offset(source.initial_offset())
    scene.states.store.objects.clear()
    scene.states.store.remove("")
    scene.states = Memory("")
    scene.state_operator = Operator.bare(scene.states)
    again = await scene.open()
    with pytest.raises(StateConflict, match="the checkpoint belongs to the state"):
        await again.latest_offset(end)
    await again.aclose()
    await scene.state_operator.aclose()


async def test_a_checkpoint_from_before_the_log_is_refused_as_such(scene: Scene) -> None:
    scene.put(*"abcdef")
    source = await scene.open(state_options=StateOptions(keep_records=1))
    start = first = source.initial_offset()
    for _ in range(6):
        start = await source.latest_offset(start, AdmissionOptions(files_max=1))
    await source.commit(start)
    await source.state.compact()
    scene.put("g")
    end = await source.latest_offset(start)
    await source.commit(end)
    await source.state.compact()
    again = await scene.open()
    with pytest.raises(NotFound, match="was removed after its files had been compacted"):
        await again.latest_offset(first)
    scene.put("0")
    assert await batches_of(again, end) == [["0"]]


async def test_an_overtaken_source_ends(scene: Scene) -> None:
    scene.put(*"ab")
    old = await scene.open()
    new = await scene.open()
    with pytest.raises(StateConflict, match="another writer"):
        await old.latest_offset(old.initial_offset())
    assert await batches_of(new, new.initial_offset()) == [["a", "b"]]


async def test_the_backlog_is_reported(scene: Scene) -> None:
    scene.put(*"abcd")
    source = await scene.open()
    end = await source.latest_offset(source.initial_offset(), AdmissionOptions(files_max=1))
    latest = source.report_latest()
    assert latest is not None
    assert (latest.files - end.files, latest.bytes - end.bytes) == (3, 30)


async def test_committed_files_are_cleaned_behind_the_engine(scene: Scene) -> None:
    scene.put(*"abc")
    source = await scene.open(clean=CleanOptions(mode="delete"))
    start = await source.latest_offset(source.initial_offset(), AdmissionOptions(files_max=2))
    await source.latest_offset(start)
    await source.commit(start)
    await source.cleaner.finish()
    assert sorted(scene.bucket.store.objects) == ["c"]
    assert source.cleaner.counts == {"cleaned": 2}


async def test_invalid_options_are_refused_at_once(scene: Scene) -> None:
    for options in (
        {"admission": AdmissionOptions(files_max=0)},
        {"partitioning": PartitionOptions(slots=0)},
        {"clean": CleanOptions(mode="move")},
    ):
        with pytest.raises(ConfigInvalid):
            await scene.open(**options)
