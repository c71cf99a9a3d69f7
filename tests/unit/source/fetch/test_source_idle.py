"""A source that runs on without work, or is started again and again: what it keeps is bounded, in memory and beside."""

import pytest

from aioprefetch.errors import NotFound
from aioprefetch.source.fetch.planner import PlanOptions
from aioprefetch.source.options import AdmissionOptions, ListOptions, StateOptions
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import Record
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.unit.source.fetch.source_scene import ALL, Scene, batches_of, items_of

EAGER = ListOptions(interval_seconds=0, sweep_pages=1)


def notes_of(files: int) -> PlanOptions:
    """Files decided on without work are written down after this many."""
    return PlanOptions(learned_max=files)


def log_objects(scene: Scene) -> int:
    return sum(key.startswith("s/log/") for key in scene.states.store.objects)


@checks("source:L11", "source:Q8")
@pytest.mark.parametrize("what", ["deleted", "overwritten"])
@pytest.mark.parametrize("commits", [True, False])
async def test_notes_without_work_are_compacted_and_forgotten(scene: Scene, what: str, commits: bool) -> None:
    keys = [f"k{number:04}" for number in range(400)]
    scene.put(*keys)
    clock = [1_000_000]
    options = StateOptions(compact_entries=50, compact_records=4, keep_records=3, forget_after_seconds=10)
    source = await scene.open(
        list_options=EAGER, state_options=options, clock_ms=lambda: clock[0], plan_options=notes_of(20)
    )
    end = await source.latest_offset(source.initial_offset(), ALL)
    assert end.files == 400
    assert await source.latest_offset(end) is end
    if what == "deleted":
        for key in keys:
            scene.bucket.store.remove(key)
    else:
        scene.put(*keys, size=11)
    sizes = []
    for _ in range(130):
        clock[0] += 1000
        assert await source.latest_offset(end) is end
        if commits:
            await source.commit(end)
        await source.state.join()
        sizes.append((log_objects(scene), source.state.statistics.changed_files))
    assert source.state.head is not None
    assert source.state.head.seq > 15
    assert max(size for size, _ in sizes) <= 3 + 3 + 3 * 4
    assert max(changes for _, changes in sizes) <= 2 * 50 + 20
    statistics = source.state.statistics
    assert statistics.run_files + statistics.changed_files == (0 if what == "deleted" else 400)
    # The last batch can be asked for again, now and by the next process.
    scene.put("z")
    for one in (source, await scene.open()):
        assert len(items_of(await one.partitions(one.initial_offset(), end))) == 400


@checks("source:L11")
async def test_notes_of_one_trigger_are_bounded_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"k{number:04}" for number in range(2000)]
    scene.put(*keys)
    options = StateOptions(compact_entries=50, keep_records=3)
    notes = PlanOptions(learned_max=10)
    source = await scene.open(list_options=EAGER, state_options=options, plan_options=notes)
    source.prepare_available_now()
    end = await source.latest_offset(source.initial_offset(), ALL)
    for key in keys:
        scene.bucket.store.remove(key)
    again = await scene.open(list_options=EAGER, state_options=options, plan_options=notes)
    again.prepare_available_now()
    sizes = []
    append = SourceState.append

    async def appended(state: SourceState, record: Record) -> None:
        await append(state, record)
        sizes.append(state.statistics.changed_files)

    monkeypatch.setattr(SourceState, "append", appended)
    assert await again.latest_offset(end) is end
    assert len(sizes) > 100
    assert max(sizes) <= 2 * 50 + 10


async def test_one_batch_after_many_notes_reads_no_notes(scene: Scene) -> None:
    keys = [f"k{number:03}" for number in range(300)]
    scene.put(*keys)
    source = await scene.open(list_options=EAGER, state_options=StateOptions(memory_items=1), plan_options=notes_of(10))
    start = await source.latest_offset(source.initial_offset(), ALL)
    for key in keys:
        scene.bucket.store.remove(key)
    for _ in range(10):
        assert await source.latest_offset(start) is start
    scene.put("z")
    end = await source.latest_offset(start)
    assert end.seq > start.seq + 20
    before = scene.state_operator.statistics["action_http_get_request"]
    assert [item.file.key for item in items_of(await source.partitions(start, end))] == ["z"]
    assert scene.state_operator.statistics["action_http_get_request"] <= before + 1
    again = await scene.open()
    assert await again.latest_offset(start) == end


@checks("source:R2")
async def test_runs_that_find_nothing_leave_a_bounded_log_and_all_that_may_be_asked_for(scene: Scene) -> None:
    scene.put(*(f"k{number}" for number in range(6)))
    options = StateOptions(compact_records=20, keep_records=3)
    source = await scene.open(state_options=options)
    offsets = [source.initial_offset()]
    for _ in range(6):
        offsets.append(await source.latest_offset(offsets[-1], AdmissionOptions(files_max=1)))
    await source.aclose()
    for _ in range(chosen(quick=90, full=400)):
        source = await scene.open(state_options=options)
        source.prepare_available_now()
        assert await source.latest_offset(offsets[-1]) is offsets[-1]
        await source.aclose()
    assert log_objects(scene) <= 3 + 3 + 2 * 20 + 1
    again = await scene.open(state_options=options)
    # Work is counted, not claims: a checkpoint that was put back three batches gets these again.
    assert await batches_of(again, offsets[3], AdmissionOptions(files_max=1)) == [["k3"], ["k4"], ["k5"]]
    with pytest.raises(NotFound, match="was removed after its files had been compacted"):
        await again.latest_offset(offsets[2])
    scene.put("new")
    assert await batches_of(again, offsets[-1]) == [["new"]]


@checks("source:R2")
async def test_uncommitted_work_stays_however_often_an_engine_fails(scene: Scene) -> None:
    """A batch that cannot be read: the query is started again and again, and its work does not go away."""
    scene.put("a", "b")
    options = StateOptions(compact_records=10, keep_records=1)
    source = await scene.open(state_options=options)
    first = await source.latest_offset(source.initial_offset(), AdmissionOptions(files_max=1))
    second = await source.latest_offset(first, AdmissionOptions(files_max=1))
    for _ in range(chosen(quick=30, full=60)):
        await source.aclose()
        source = await scene.open(state_options=options)
        assert [item.file.key for item in items_of(await source.partitions(first, second))] == ["b"]
    assert log_objects(scene) <= 2 + 1 + 4 * 10
    assert await batches_of(source, source.initial_offset(), AdmissionOptions(files_max=1)) == [["a"], ["b"]]
