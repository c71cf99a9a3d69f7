"""Files are cleaned behind the engine's commits, and never in a version that was not read."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from aioprefetch.errors import ConfigInvalid, NotFound, PermissionDenied, StateConflict, Unavailable
from aioprefetch.operator.operator import Operator
from aioprefetch.services.memory import Memory
from aioprefetch.source.fetch.cleaning import (
    DEAD,
    MARKER_NAME,
    Cleaner,
    CleanOptions,
    dead_files,
    move_directories,
    version_of,
)
from aioprefetch.source.reading import quarantine_to
from aioprefetch.source.reading.task import quarantine_line
from aioprefetch.source.values import FetchItem, Record, SourceFile, TailAndSweep
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.transfer.moving import PIECE_BYTES
from tests.unit.source.fetch.fakes import FakeState


class Scene:
    """A store with a source in ``in/``, and records of what was planned."""

    def __init__(self, mode: Any = "delete", *faults: Injection, **options: int) -> None:
        self.cleaner_options = options
        self.service = Memory()
        self.root = Operator.bare(self.service)
        self.source = Operator.bare(Memory(root="in", _private=self.service.store)).layer(FaultLayer(faults))
        self.state = FakeState()
        self.options = CleanOptions(
            mode=mode, operator=self.root, source_directory="in/", target_directory="done/" if mode == "move" else ""
        )
        self.restart()

    def restart(self) -> None:
        self.cleaner = Cleaner(
            self.state.as_state(),
            self.source,
            (self.root, f"state/{MARKER_NAME}"),
            self.options,
            **self.cleaner_options,
        )

    async def plan(self, *items: FetchItem) -> None:
        seq = self.state.head.seq + 1
        await self.state.append(Record(seq=seq, writer="w1", cursor=TailAndSweep(), items=items))

    async def put(self, key: str, data: bytes = b"data") -> SourceFile:
        meta = await self.source.write(key, data)
        return SourceFile(key, len(data), meta.etag)

    async def commit(self, seq: int) -> None:
        self.cleaner.committed(seq)
        await self.cleaner.finish()

    def keys(self) -> list[str]:
        return [key for key in sorted(self.service.store.objects) if not key.startswith("state/")]


async def test_files_are_deleted_when_their_last_range_is_committed() -> None:
    scene = Scene()
    small, large = await scene.put("a"), await scene.put("b")
    first, rest = FetchItem(large).cut(2)
    await scene.plan(FetchItem(small), first)
    await scene.plan(rest)
    assert scene.keys() == ["in/a", "in/b"]
    await scene.commit(1)
    assert scene.keys() == ["in/b"]
    await scene.commit(2)
    assert scene.keys() == []
    assert scene.cleaner.counts == {"cleaned": 2}


async def test_files_are_moved_with_their_path() -> None:
    scene = Scene("move")
    await scene.plan(FetchItem(await scene.put("x/a", b"moved")))
    await scene.commit(1)
    assert scene.keys() == ["done/x/a"]
    assert await scene.root.read("done/x/a") == b"moved"


async def test_a_file_is_not_moved_over_another_one(caplog: pytest.LogCaptureFixture) -> None:
    """Of equal or different size. It is not tried again either: a person must decide."""
    for data in (b"second", b"third one"):
        scene = Scene("move")
        await scene.plan(FetchItem(await scene.put("x/a", b"first.")))
        await scene.commit(1)
        await scene.plan(FetchItem(await scene.put("x/a", data)), FetchItem(await scene.put("b")))
        await scene.commit(2)
        await scene.commit(2)
        assert scene.keys() == ["done/b", "done/x/a", "in/x/a"]
        assert await scene.root.read("done/x/a") == b"first."
        assert scene.cleaner.counts == {"cleaned": 2, "failed": 1}
        assert "'in/x/a': it is not moved to 'done/x/a', where another file is" in caplog.text


async def test_a_move_that_was_killed_after_the_copy_is_finished() -> None:
    """The copy may have another ETag, or the same one. It is compared piece by piece."""
    for etag in (None, "e"):
        scene = Scene("move")
        file = await scene.put("x/a", b"first." * (PIECE_BYTES // 4))
        await scene.root.copy("in/x/a", "done/x/a")
        if etag is not None:
            objects = scene.service.store.objects
            found = objects["done/x/a"]
            objects["done/x/a"] = replace(found, metadata=replace(found.metadata, etag=file.etag))
        await scene.plan(FetchItem(file))
        await scene.commit(1)
        assert scene.keys() == ["done/x/a"]
        assert scene.cleaner.counts == {"cleaned": 1}
        await scene.root.aclose()
        await scene.source.aclose()


async def test_a_newer_version_stays() -> None:
    for mode in ("delete", "move"):
        scene = Scene(mode)
        await scene.plan(FetchItem(await scene.put("a")))
        await scene.put("a", b"newer")
        await scene.commit(1)
        assert scene.keys() == ["in/a"]
        assert scene.cleaner.counts == {"changed": 1}


async def test_a_version_that_comes_during_the_copy_stays() -> None:
    scene = Scene("move")
    await scene.plan(FetchItem(await scene.put("a")))
    copy = scene.root.copy

    async def copy_slowly(source: str, target: str, **options: Any) -> Any:
        found = await copy(source, target, **options)
        await scene.put("a", b"newer")
        return found

    scene.root.copy = copy_slowly  # type: ignore[method-assign]
    await scene.commit(1)
    assert await scene.source.read("a") == b"newer"


async def test_commits_may_be_late_repeated_and_out_of_order() -> None:
    scene = Scene()
    for name in "abc":
        await scene.plan(FetchItem(await scene.put(name)))
    for seq in (2, 1, 2, -1):
        await scene.commit(seq)
    assert scene.keys() == ["in/c"]
    assert scene.cleaner.counts == {"cleaned": 2}


async def test_the_last_batch_of_a_run_is_cleaned_by_the_next_one() -> None:
    scene = Scene()
    for name in "abc":
        await scene.plan(FetchItem(await scene.put(name)))
    await scene.commit(1)
    scene.restart()
    await scene.commit(3)
    assert scene.keys() == []
    assert scene.cleaner.counts == {"cleaned": 2}


async def test_half_cleaned_files_of_a_killed_run_are_cleaned_again() -> None:
    scene = Scene()
    files = [await scene.put(name) for name in "ab"]
    await scene.plan(*map(FetchItem, files))
    await scene.source.delete("a")
    await scene.commit(1)
    assert scene.keys() == []
    assert scene.cleaner.counts == {"cleaned": 1, "missing": 1}


async def test_failures_are_counted_and_logged_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    refusal = Injection(operation="delete", path="a", error=PermissionDenied)
    scene = Scene("delete", refusal)
    await scene.plan(*[FetchItem(await scene.put(name)) for name in "ab"])
    await scene.commit(1)
    assert scene.keys() == ["in/a"]
    assert scene.cleaner.counts == {"cleaned": 1, "failed": 1}
    assert "'a' was not cleaned" in caplog.text


@pytest.mark.parametrize("commits", [(1, 2, 3), (3,)])
async def test_removed_records_do_not_stop_cleaning(commits: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    """Those behind them are cleaned, by commits of their own or at once."""
    scene = Scene()
    for name in "abc":
        await scene.plan(FetchItem(await scene.put(name)))
    records = scene.state.records

    async def compacted(after: int, through: int) -> list[Record]:
        if after < 1:
            raise NotFound("removed")
        return await records(after, through)

    scene.state.records = compacted  # type: ignore[method-assign]
    for commit in commits:
        await scene.commit(commit)
    assert scene.keys() == ["in/a"]
    assert "their files are not cleaned" in caplog.text


async def test_a_long_removed_part_of_the_log_is_skipped_at_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    for number in range(300):
        await scene.plan(FetchItem(await scene.put(f"{number:03}")))
    records, calls = scene.state.records, 0

    async def compacted(after: int, through: int) -> list[Record]:
        nonlocal calls
        calls += 1
        if after < min(through, 297):
            raise NotFound("removed")
        return await records(after, through)

    scene.state.records = compacted  # type: ignore[method-assign]
    await scene.commit(300)
    assert len(scene.keys()) == 297
    assert scene.cleaner.counts == {"cleaned": 3}
    assert calls < 40
    assert scene.root.statistics["object_put_request"] <= 3
    assert [record.message[:36] for record in caplog.records] == ["records 0 to 297 are compacted; thei"]


async def test_after_a_damaged_marker_cleaning_starts_again() -> None:
    scene = Scene()
    await scene.plan(FetchItem(await scene.put("a")))
    await scene.root.write(f"state/{MARKER_NAME}", b"{")
    await scene.commit(1)
    assert scene.keys() == []


async def test_closing_stops_it_and_leaves_nothing() -> None:
    scene = Scene("delete", Injection(operation="stat", hang=True, times=None))
    await scene.plan(FetchItem(await scene.put("a")))
    scene.cleaner.committed(1)
    await asyncio.sleep(0)
    await scene.cleaner.aclose()
    await scene.cleaner.aclose()
    assert scene.keys() == ["in/a"]


async def test_without_cleaning_nothing_is_deleted() -> None:
    scene = Scene("off")
    await scene.plan(FetchItem(await scene.put("a")))
    await scene.commit(1)
    assert scene.service.store.keys() == ["in/a"]
    await scene.cleaner.aclose()


async def leave_out(scene: Scene, label: str, *items: FetchItem) -> None:
    """As a task does whose policy is quarantine."""
    facts = [{"key": one.file.key, "etag": one.file.etag, "version": None, "start": one.start} for one in items]
    await scene.root.write(f"state/dead/{label}.jsonl", "".join(f"{json.dumps(one)}\n" for one in facts).encode())


async def test_files_that_a_task_left_out_stay() -> None:
    """The batch ends with a later record than that of the file; other batches do not matter."""
    scene = Scene()
    items = [FetchItem(await scene.put(name)) for name in ("bad", "good", "later")]
    for item in items:
        await scene.plan(item)
    for _ in range(40):
        await scene.plan()
    await leave_out(scene, "000000000043-0", items[0])
    await leave_out(scene, "000000000099-0", items[1])
    await scene.commit(43)
    assert scene.keys() == ["in/bad"]
    assert scene.cleaner.counts == {"cleaned": 2, "left": 1}
    scene.restart()
    await scene.plan()
    await scene.commit(44)
    assert scene.keys() == ["in/bad"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_file_of_which_an_earlier_range_was_left_out_is_left(restarts: bool) -> None:
    scene = Scene()
    first, rest = FetchItem(await scene.put("a")).cut(2)
    await scene.plan(first)
    await scene.plan(rest)
    await leave_out(scene, "000000000001-3", first)
    await scene.commit(1)
    if restarts:
        scene.restart()
    await scene.commit(2)
    assert scene.keys() == ["in/a"]
    await scene.plan(FetchItem(await scene.put("a", b"another version")))
    await scene.commit(3)
    assert scene.keys() == []


async def test_nothing_is_cleaned_while_a_list_of_left_out_files_cannot_be_read() -> None:
    scene = Scene()
    await scene.plan(FetchItem(await scene.put("a")))
    await scene.root.write("state/dead/000000000001-0.jsonl", b'{"key": ')
    await scene.commit(1)
    assert scene.keys() == ["in/a"]


@checks("source:R1")
async def test_a_source_that_was_overtaken_cleans_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """The files are the other writer's to plan by then."""
    scene = Scene()
    await scene.plan(FetchItem(await scene.put("a")))
    scene.state.lost = StateConflict("another writer", operation="append_record")
    await scene.commit(1)
    assert scene.keys() == ["in/a"]
    assert "cleaned no more" in caplog.text


async def test_failed_files_are_tried_again_with_the_next_commit_and_by_the_next_run() -> None:
    refusal = Injection(operation="delete", path="a", error=Unavailable, times=4)
    scene = Scene("delete", refusal)
    await scene.plan(*[FetchItem(await scene.put(name)) for name in "ab"])
    for _ in range(5):
        await scene.commit(1)
    assert scene.keys() == ["in/a"]
    assert scene.cleaner.counts == {"cleaned": 1, "failed": 3}  # so often in one run
    scene.restart()
    await scene.commit(1)
    await scene.commit(1)
    assert scene.keys() == []
    assert scene.cleaner.counts == {"cleaned": 1, "failed": 1}


async def test_a_store_that_refuses_everything_leaves_the_records_to_a_later_commit() -> None:
    scene = Scene("delete", Injection(operation="delete", error=Unavailable, times=3), failed_max=2)
    await scene.plan(*[FetchItem(await scene.put(name)) for name in "abc"])
    await scene.commit(1)
    assert scene.keys() == ["in/a", "in/b", "in/c"]
    await scene.commit(1)
    assert scene.keys() == []


def test_a_target_must_lie_in_the_store_and_outside_of_the_source() -> None:
    assert move_directories("s3://b/in/x", "s3a://b/done/") == ("s3://b/", "in/x/", "done/")
    assert move_directories("file:///in", "file:///in2/y") == ("file:///", "in/", "in2/y/")
    with pytest.raises(ConfigInvalid, match="lies within the source"):
        move_directories("s3://b/in", "s3://b/in/done")
    with pytest.raises(ConfigInvalid, match="lies within the source"):
        move_directories("s3://b", "s3://b/done")
    with pytest.raises(ConfigInvalid, match="same store"):
        move_directories("s3://b/in", "s3://c/done")
    with pytest.raises(ConfigInvalid, match="needs a directory"):
        Cleaner(
            FakeState().as_state(), Operator.bare(Memory()), (Operator.bare(Memory()), "m"), CleanOptions(mode="move")
        )
    inside = CleanOptions(
        mode="move", operator=Operator.bare(Memory()), source_directory="in/", target_directory="in/done/"
    )
    with pytest.raises(ConfigInvalid, match="lies within the source"):
        Cleaner(FakeState().as_state(), Operator.bare(Memory()), (Operator.bare(Memory()), "m"), inside)


async def test_cleaning_reads_the_list_that_a_task_writes() -> None:
    """Of the same file as a listing tells it, whatever is in its name."""
    async with Operator.bare(Memory()) as operator:
        file = SourceFile("a\u2028b/ü\n.jsonl", 10, "e", "v", 5)
        for label, item in (("000000000007-0", FetchItem(file)), ("000000000008-1", FetchItem(file, 1, 2))):
            line = quarantine_line("memory://x", item, "corrupt", NotFound("no"))
            await quarantine_to(operator, f"s/{DEAD}{label}.jsonl")((line, line))
        lists = partial(dead_files, operator, "s/")
        assert await lists(6, 7) == await lists(7, 8) == {version_of(file)}
        assert await lists(-1, 6) == await lists(8, 100) == set()
