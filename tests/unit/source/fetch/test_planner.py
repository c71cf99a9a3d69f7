"""A batch is planned from what was left over and from new pages, and is a durable record before anybody hears of it."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from aioprefetch.errors import ObjectChanged, Unavailable
from aioprefetch.source.fetch.partitioning import BatchLimits
from aioprefetch.source.fetch.planner import Planner, PlanOptions
from aioprefetch.source.values import REST_SECONDS_MAX, Change, FoundPage, Record, SourceFile, TailAndSweep
from aioprefetch.testing.conformance.suite import checks
from tests.unit.source.fetch.fakes import FakeFeed, FakeState, file_of

ANY = BatchLimits(1000, None)


class Scene:
    """A planner over the fakes, with a clock that stands still."""

    def __init__(self, **options: Any) -> None:
        self.state: Any = FakeState()  # as much of a state as is used
        self.feed = FakeFeed(self.state)
        self.now_seconds = 0.0
        self.options = PlanOptions(**options)
        self.restart()

    def restart(self) -> None:
        self.feed.finish_by(None)
        self.planner = Planner(
            self.state.as_state(),
            self.feed,
            _is_jsonl,
            self.options,
            clock_ms=lambda: 5,
            now_seconds=lambda: self.now_seconds,
        )

    async def keys(self, limits: BatchLimits = ANY, **how: bool) -> list[str]:
        record = await self.planner.plan(limits, **how)
        return [] if record is None else keys_of(record)

    async def drain(self, limits: BatchLimits = ANY) -> list[list[str]]:
        """All batches until nothing is found in a whole sweep."""
        batches = []
        self.planner.finish_by(9)
        while batch := await self.keys(limits):
            batches.append(batch)
        self.restart()
        return batches


def keys_of(record: Record) -> list[str]:
    return [item.file.key for item in record.items]


def _is_jsonl(file: SourceFile) -> bool:
    return file.key.endswith(".jsonl")


def flat(batches: list[list[str]]) -> list[str]:
    return [key for batch in batches for key in batch]


async def test_the_first_batch_comes_after_one_page() -> None:
    scene = Scene()
    scene.feed.put(*"abcdefghij")
    assert await scene.keys() == list("abcd")
    assert scene.feed.pages == 1
    assert await scene.keys() == list("efghij")


async def test_everything_comes_at_once_on_request() -> None:
    scene = Scene()
    scene.feed.put(*"abcdefghij")
    assert await scene.keys(everything=True) == list("abcdefghij")


@checks("source:F8")
async def test_a_page_is_asked_for_only_when_there_is_room() -> None:
    scene = Scene()
    scene.feed.put(*"abcdefghij")
    assert await scene.keys(BatchLimits(2, None)) == ["a", "b"]
    assert await scene.keys(BatchLimits(2, None)) == ["c", "d"]
    assert scene.feed.pages == 1
    assert await scene.keys(BatchLimits(3, None)) == ["e", "f", "g"]
    assert scene.feed.pages == 2


@checks("source:F8")
async def test_the_rest_of_large_files_comes_before_new_pages() -> None:
    scene = Scene()
    scene.feed.put("a.jsonl", size=250)
    scene.feed.put("b", size=10)
    batches, limits = [], BatchLimits(1000, 100)
    for _ in range(3):
        record = await scene.planner.plan(limits)
        assert record is not None
        batches.append([(item.file.key, item.start, item.stop) for item in record.items])
    assert batches[:2] == [[("a.jsonl", 0, 100)], [("a.jsonl", 100, 200)]]
    assert batches[2] == [("a.jsonl", 200, 250), ("b", 0, 10)]
    assert scene.feed.pages == 2
    assert (scene.state.head.files, scene.state.head.bytes) == (2, 260)


@checks("source:F4")
async def test_a_finished_file_leaves_the_carry() -> None:
    scene = Scene()
    scene.feed.put("a.jsonl", size=150)
    await scene.keys(BatchLimits(1000, 100))
    assert [(item.start, item.end) for item in scene.state.head.carry] == [(100, None)]
    await scene.keys(BatchLimits(1000, 100))
    assert scene.state.head.carry == ()


@checks("source:F2")
async def test_a_restart_continues_with_the_carry() -> None:
    scene = Scene()
    scene.feed.put("a.jsonl", size=150)
    scene.feed.put("b", "c")
    await scene.keys(BatchLimits(1000, 100))
    scene.restart()
    record = await scene.planner.plan(BatchLimits(1000, 100))
    assert record is not None
    assert [(item.file.key, item.start) for item in record.items] == [("a.jsonl", 100), ("b", 0), ("c", 0)]


@checks("source:F3")
async def test_unrecorded_pages_are_listed_again_after_a_crash() -> None:
    scene = Scene()
    scene.feed.put(*"abcdefghij")
    assert await scene.keys(BatchLimits(3, None)) == ["a", "b", "c"]
    scene.restart()
    assert flat(await scene.drain(BatchLimits(3, None))) == list("defghij")


@checks("source:R1", "reliability:P09")
async def test_a_lower_key_that_comes_late_is_found_by_a_sweep() -> None:
    scene = Scene()
    scene.feed.put(*"bdfh")
    await scene.drain()
    scene.restart()
    scene.feed.put("a", "c", "z")
    assert sorted(flat(await scene.drain())) == ["a", "c", "z"]
    assert await scene.drain() == []


async def test_without_news_no_record_is_written() -> None:
    scene = Scene()
    scene.feed.put(*"abc")
    await scene.drain()
    head = scene.state.head
    for _ in range(5):
        assert await scene.keys() == []
    assert scene.state.head is head
    assert scene.planner.waiting == (0, 0, None)


async def test_a_trigger_is_bounded_in_pages_and_time() -> None:
    scene = Scene(list_pages_max=3)
    scene.feed.put("a")
    await scene.keys()
    scene.feed.put(*(f"b{number:02}" for number in range(40)))
    assert len(await scene.keys()) == 12
    slow, page = Scene(list_seconds_max=10), FakeFeed.page

    class SlowFeed(FakeFeed):
        async def page(self, cursor: Any) -> FoundPage:
            slow.now_seconds += 6
            return await page(self, cursor)

    slow.feed = SlowFeed(slow.state)
    slow.restart()
    slow.feed.put(*(f"b{number:02}" for number in range(40)))
    assert [len(await slow.keys()) for _ in range(3)] == [4, 8, 8]


@checks("source:Q6")
async def test_empty_objects_and_directory_markers_are_known_without_work() -> None:
    scene = Scene()
    scene.feed.put("a", "d/", size=0)
    assert await scene.drain() == []
    assert [file.key for file in scene.state.head.known] == ["a", "d/"]
    assert scene.state.head.items == ()


@checks("source:Q6")
@pytest.mark.parametrize("overwrites", ["ignore", "reread", "fail"])
async def test_an_empty_object_that_is_filled_later_is_new(overwrites: Any) -> None:
    scene = Scene(overwrites=overwrites)
    scene.feed.put("a", size=0)
    await scene.drain()
    scene.feed.put("a", size=7, etag="2")
    assert await scene.drain() == [["a"]]


@checks("source:Q5")
async def test_overwrites_are_ignored_or_read_again() -> None:
    for overwrites, expected in (("ignore", []), ("reread", [["b"]])):
        scene = Scene(overwrites=overwrites)
        scene.feed.put(*"abc")
        await scene.drain()
        scene.feed.put("b", etag="2")
        assert await scene.drain() == expected
        assert scene.state.files["b"].file.etag == "2"
        assert await scene.drain() == []


@checks("source:Q5")
async def test_overwrites_fail_with_both_versions_named_and_the_state_as_it_was() -> None:
    scene = Scene(overwrites="fail")
    scene.feed.put(*"abc")
    await scene.drain()
    scene.feed.put("b", etag="2")
    scene.feed.put("z")
    head = scene.state.head
    for _ in range(2):
        with pytest.raises(ObjectChanged, match=r"ETag '1', now '2'.*overwrites=reread") as caught:
            await scene.drain()
        assert (caught.value.path, caught.value.expected_etag, caught.value.actual_etag) == ("b", "1", "2")
    assert scene.state.head is head
    scene.feed.put("b", etag="1")
    scene.restart()
    assert await scene.drain() == [["z"]]


@checks("source:Q5")
async def test_a_newer_version_takes_the_place_of_the_rest_of_the_old_one() -> None:
    scene = Scene(overwrites="reread")
    scene.feed.put("a.jsonl", size=250)
    await scene.keys(BatchLimits(9, 100))
    scene.feed.put("a.jsonl", size=50, etag="2")
    seqs = len(scene.state.log)
    assert await scene.drain() == [["a.jsonl"]]
    items = [item for record in scene.state.log[seqs:] for item in record.items]
    assert [(item.file.etag, item.start, item.stop) for item in items] == [("2", 0, 50)]


async def test_gone_and_returned_objects_are_noted_when_a_sweep_ends() -> None:
    scene = Scene()
    scene.feed.put(*"abc")
    await scene.drain()
    lost = scene.feed.files.pop("b")
    head = scene.state.head.seq
    assert await scene.keys() == []
    assert scene.state.log[-1].gone == (("b", 5),)
    assert scene.state.head.seq == head + 1
    scene.feed.files["b"] = lost
    assert await scene.keys() == []
    assert [file.key for file in scene.state.head.known] == ["b"]
    assert scene.state.files["b"].gone_ms is None


async def test_many_notes_are_written_without_waiting_for_work() -> None:
    scene = Scene(learned_max=3)
    scene.feed.put(*(f"{number:02}" for number in range(10)), size=0)
    scene.feed.put("x")
    assert flat([await scene.keys(), await scene.keys()]) == ["x"]
    assert [len(record.known) for record in scene.state.log] == [0, 3, 3, 3, 1]


async def test_long_sweeps_are_written_down() -> None:
    scene = Scene(learned_pages_max=2)
    scene.feed.put(*(f"{number:02}" for number in range(40)))
    scene.feed.sweep_pages = 1
    assert len(await scene.keys(everything=True)) == 40
    assert [await scene.keys() for _ in range(3)] == [[], [], []]
    assert isinstance(scene.state.head.cursor, TailAndSweep)
    assert scene.state.head.cursor.sweep_key is not None


@checks("source:R2")
async def test_a_record_whose_response_was_lost_is_settled_with_the_same_content() -> None:
    for took_effect in (False, True):
        scene = Scene()
        scene.feed.put(*"abcdef")
        scene.state.failures = [(took_effect, Unavailable("no response"))]
        with pytest.raises(Unavailable):
            await scene.keys(BatchLimits(2, None))
        scene.feed.put("0")
        settled = await scene.planner.settle()
        assert settled is not None
        assert keys_of(settled) == ["a", "b"]
        assert flat(await scene.drain()) == ["c", "d", "e", "f", "0"]


@checks("source:R2")
async def test_a_cancelled_call_loses_nothing() -> None:
    scene = Scene()
    scene.feed.put(*"abcdefghij")
    await scene.keys(BatchLimits(1, None))
    scene.feed.failures = [asyncio.CancelledError()]  # type: ignore[list-item]
    with pytest.raises(asyncio.CancelledError):
        await scene.keys(BatchLimits(9, None))
    assert flat(await scene.drain()) == list("bcdefghij")


@checks("source:L12", "reliability:P16", "reliability:P17")
async def test_a_failing_page_delivers_the_changes_before_it_and_keeps_the_position() -> None:
    scene = Scene()
    scene.feed.put(*"abcdefghij")
    await scene.keys(BatchLimits(1, None))
    scene.feed.failures = [Unavailable("down"), Unavailable("down")]
    assert await scene.keys() == ["b", "c", "d"]
    with pytest.raises(Unavailable):
        await scene.keys()
    assert flat(await scene.drain()) == list("efghij")


class ScriptedFeed(FakeFeed):
    """Returns the pages that it was given."""

    script: list[list[Change]]

    async def page(self, cursor: Any) -> FoundPage:
        self.pages += 1
        changes = self.script.pop(0) if self.script else []
        steps = tuple((change, TailAndSweep(frontier=f"{self.pages}.{n}")) for n, change in enumerate(changes))
        return FoundPage(steps, TailAndSweep(frontier=f"{self.pages}"), not self.script)


@checks("source:L9")
async def test_a_change_that_a_sweep_repeats_before_its_record_is_planned_once() -> None:
    scene = Scene()
    scene.feed = ScriptedFeed(scene.state)
    scene.feed.script = [[Change("new", file_of(key)) for key in names] for names in ("ab", "abc", "c")]
    scene.restart()
    assert flat([await scene.keys(everything=True)]) == ["a", "b", "c"]


@checks("source:L9")
async def test_a_page_that_contradicts_what_is_not_recorded_yet_is_listed_again_after_the_record() -> None:
    scene = Scene(overwrites="reread")
    scene.feed = ScriptedFeed(scene.state)
    second = [Change("new", file_of("a", 10, "2")), Change("new", file_of("b"))]
    again = [Change("overwritten", file_of("a", 10, "2")), Change("new", file_of("b"))]
    scene.feed.script = [[Change("new", file_of("a"))], second, again]
    scene.restart()
    assert await scene.keys(everything=True) == ["a"]
    assert scene.state.head.cursor == TailAndSweep(frontier="1")
    assert await scene.keys() == ["a", "b"]
    assert Counter(item.file.etag for record in scene.state.log for item in record.items) == {"1": 2, "2": 1}


async def test_changes_that_waited_too_long_are_listed_again() -> None:
    scene = Scene(overwrites="reread")
    scene.feed.put(*"abcd")
    assert await scene.keys(BatchLimits(1, None)) == ["a"]
    scene.feed.put("b", etag="2")
    scene.now_seconds += REST_SECONDS_MAX + 1
    assert await scene.keys() == ["b", "c", "d"]
    assert scene.state.files["b"].file.etag == "2"
