"""Large objects on their way into files: what an ended run has is not asked for again, if the version is the same."""

import asyncio
import fcntl
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.errors import NotFound, ObjectChanged, PermissionDenied, Unexpected
from aioprefetch.local_files.writer import RESUMABLE_SECONDS
from aioprefetch.operator.options import UriOptions
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.verbs.resumable_file import ResumableFile
from tests.stores.gated_reader import MIB
from tests.stores.layer_stack import was_cancelled

SIZE = 24 * MIB
DATA = bytes(range(256)) * (SIZE // 256)
OTHER = bytes(reversed(range(256))) * (SIZE // 256)
# Two blocks are the first request, and 22 parts of a block follow.
OPTIONS: UriOptions = {"block_bytes": MIB, "attempts_max": 1, "concurrency": 4}

Way = Callable[[FaultServer, Path], Awaitable[object]]


async def by_download(server: FaultServer, target: Path) -> object:
    async with ap.Operator.from_uri(server.url, **OPTIONS) as op:
        return await op.download("k", target)


async def by_copy(server: FaultServer, target: Path) -> object:
    return await ap.copy(f"{server.url}/k", target, src_options=OPTIONS)


WAYS = [by_download, by_copy]


def hidden(directory: Path, end: str) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(end))


def names(directory: Path) -> list[str]:
    """All names in a directory, hidden ones too."""
    return sorted(path.name for path in directory.iterdir())


def noted(directory: Path) -> list[list[int]]:
    """The ranges in the note beside the file."""
    (note,) = hidden(directory, ".done")
    lines = note.read_text().splitlines()[1:]
    return [[int(edge) for edge in line.split()] for line in lines if not line.startswith("synced")]


async def half_made(way: Way, server: FaultServer, target: Path, *, at: int = 12) -> int:
    """A run of which a request fails, and all later ones. Returns the bytes that are missing."""
    requests = itertools.count()
    server.add(Rule(fault=Fault(status=403), matches=lambda _: next(requests) >= at, times=None))
    with pytest.raises(PermissionDenied):
        await way(server, target)
    server.behave()
    await server.wait_until_idle()
    assert [name[-5:] for name in names(target.parent)] == [".done", ".part"]
    return SIZE - sum(end - start for start, end in noted(target.parent))


async def sent_by(server: FaultServer, work: Awaitable[object]) -> int:
    """The bytes of the bodies of a run."""
    before = server.bytes_sent
    await work
    return server.bytes_sent - before


@pytest.mark.parametrize("way", WAYS)
async def test_the_next_run_asks_for_the_rest_alone(tmp_path: Path, way: Way) -> None:
    target = tmp_path / "file"
    async with FaultServer({"k": DATA}) as server:
        missing = await half_made(way, server, target)
        assert MIB < missing < SIZE - 4 * MIB
        assert await sent_by(server, way(server, target)) == missing
        assert target.read_bytes() == DATA
        assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("way", WAYS)
async def test_any_number_of_runs_may_end_early(tmp_path: Path, way: Way) -> None:
    target, missing = tmp_path / "file", SIZE
    async with FaultServer({"k": DATA}) as server:
        for _ in range(3):
            left = await half_made(way, server, target, at=6)
            assert left < missing
            missing = left
        assert await sent_by(server, way(server, target)) == missing
        assert target.read_bytes() == DATA


@checks("reliability:W14")
@pytest.mark.parametrize("way", WAYS)
async def test_another_version_begins_again(tmp_path: Path, way: Way) -> None:
    """Whether or not the server compares ETags by itself."""
    for ignores in (False, True):
        target = tmp_path / f"{ignores}" / "file"
        target.parent.mkdir()
        async with FaultServer({"k": DATA}) as server:
            await half_made(way, server, target)
            server.objects["k"] = OTHER
            if ignores:
                server.add(Rule(fault=Fault(ignore_if_match=True), times=None))
            await way(server, target)
        assert target.read_bytes() == OTHER
        assert names(target.parent) == ["file"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_shorter_version_ends_where_it_ends(tmp_path: Path, way: Way) -> None:
    async with FaultServer({"k": DATA}) as server:
        await half_made(way, server, tmp_path / "file")
        server.objects["k"] = OTHER[:MIB]
        await way(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == OTHER[:MIB]


@pytest.mark.parametrize("way", WAYS)
async def test_an_object_that_is_gone_leaves_nothing(tmp_path: Path, way: Way) -> None:
    async with FaultServer({"k": DATA}) as server:
        await half_made(way, server, tmp_path / "file")
        del server.objects["k"]
        with pytest.raises(NotFound):
            await way(server, tmp_path / "file")
    if way is by_download:  # The other way asks for the object first.
        assert names(tmp_path) == []


@checks("reliability:W14")
@pytest.mark.parametrize("way", WAYS)
async def test_overwritten_meanwhile_nothing_is_left(tmp_path: Path, way: Way) -> None:
    """After any of its requests; no byte of two versions is in one file."""
    for number in (3, 9, 15):
        async with FaultServer({"k": DATA}) as server:
            changed = Rule(fault=Fault(), index=number, matches=lambda _: bool(server.objects.update(k=OTHER)) or True)
            server.add(changed)
            with pytest.raises(ObjectChanged):
                await way(server, tmp_path / "file")
        assert names(tmp_path) == []


async def test_a_weak_version_is_not_gone_on_with(tmp_path: Path) -> None:
    async with FaultServer({"k": DATA}) as server:
        server.add(
            Rule(fault=Fault(etag='W/"x"', close_after_bytes=8 * MIB, ignore_if_match=True), method="GET", times=None)
        )
        with pytest.raises(ap.Error):
            await by_download(server, tmp_path / "file")
    assert names(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 5, MIB, MIB + 1])
async def test_what_was_left_of_a_longer_version_goes(tmp_path: Path, way: Way, size: int) -> None:
    target = tmp_path / "file"
    async with FaultServer({"k": DATA}) as server:
        await half_made(way, server, target)
        server.objects["k"] = OTHER[:size]
        await way(server, target)
    assert target.read_bytes() == OTHER[:size]
    assert names(tmp_path) == ["file"]


async def test_a_small_object_leaves_nothing(tmp_path: Path) -> None:
    async with FaultServer({"k": DATA[: 8 * MIB]}) as server:
        server.add(Rule(fault=Fault(status=403), index=3, times=None))
        with pytest.raises(PermissionDenied):
            await by_download(server, tmp_path / "file")
    assert names(tmp_path) == []


async def test_another_object_of_the_same_name_is_another_object(tmp_path: Path) -> None:
    """Although it has the same bytes, and so the same ETag: the note tells stores and paths apart."""
    async with FaultServer({"k": DATA, "other/k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        copying = ap.copy(f"{server.url}/other/k", tmp_path / "file", src_options=OPTIONS)
        assert await sent_by(server, copying) == SIZE
    assert (tmp_path / "file").read_bytes() == DATA


async def test_the_same_name_in_another_store_is_another_object(tmp_path: Path) -> None:
    async with FaultServer({"k": DATA}) as first, FaultServer({"k": DATA}) as second:
        await half_made(by_download, first, tmp_path / "file")
        assert await sent_by(second, by_download(second, tmp_path / "file")) == SIZE


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "nonsense\n",
        "{}\n0 100\n",
        '{"store": [], "path": "k"}\n',
        "HEAD\n5 3\n",
        "HEAD\n0 99999999999\n",
        "HEAD\n0 x\n",
        "HEAD\n-5 3\n",
        "HEAD\n0 1048576 3\n",
        "HEAD\nsynced x\n",
        "HEAD\n0 10485",
    ],
)
async def test_a_damaged_note_counts_for_nothing(tmp_path: Path, damage: str) -> None:
    async with FaultServer({"k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        (note,) = hidden(tmp_path, ".done")
        head = note.read_text().splitlines()[0]
        note.write_text(damage.replace("HEAD", head))
        assert await sent_by(server, by_download(server, tmp_path / "file")) == SIZE
        assert (tmp_path / "file").read_bytes() == DATA
    assert names(tmp_path) == ["file"]


async def test_a_cut_off_line_does_not_count(tmp_path: Path) -> None:
    """A killed process may have written half of it."""
    async with FaultServer({"k": DATA}) as server:
        missing = await half_made(by_download, server, tmp_path / "file")
        (note,) = hidden(tmp_path, ".done")
        with note.open("a") as file:
            file.write("0 25165824")
        assert await sent_by(server, by_download(server, tmp_path / "file")) == missing
        assert (tmp_path / "file").read_bytes() == DATA


@checks("reliability:W37")
@pytest.mark.parametrize("synced", [0, 2, 5])
async def test_after_a_restart_of_the_machine_only_what_was_synchronised_counts(tmp_path: Path, synced: int) -> None:
    async with FaultServer({"k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        (note,), ranges = hidden(tmp_path, ".done"), noted(tmp_path)
        (part,) = hidden(tmp_path, ".part")
        lost = bytearray(part.read_bytes())
        for start, end in ranges[synced:]:
            lost[start:end] = bytes(end - start)  # What was not on the device.
        part.write_bytes(lost)
        lines = note.read_text().splitlines()
        head = {**json.loads(lines[0]), "machine": "another"}
        note.write_text("\n".join([json.dumps(head), *lines[1:], f"synced {synced}", ""]))
        missing = SIZE - sum(end - start for start, end in ranges[:synced])
        assert await sent_by(server, by_download(server, tmp_path / "file")) == missing
        assert (tmp_path / "file").read_bytes() == DATA


async def test_a_range_is_noted_when_its_bytes_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be killed at any moment."""
    note, noted_early = ResumableFile.note, list[int]()

    def looked_at(file: ResumableFile, start: int, end: int) -> None:
        if hidden(tmp_path, ".part")[0].read_bytes()[start:end] != DATA[start:end]:
            noted_early.append(start)
        note(file, start, end)

    monkeypatch.setattr(ResumableFile, "note", looked_at)
    async with FaultServer({"k": DATA}) as server:
        await by_download(server, tmp_path / "file")
    assert noted_early == []


async def test_a_part_that_was_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    """As after a crash of the machine: the note has ranges that lie behind the end of the file."""
    async with FaultServer({"k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        (part,) = hidden(tmp_path, ".part")
        os.truncate(part, 4 * MIB)
        assert await sent_by(server, by_download(server, tmp_path / "file")) == SIZE
        assert (tmp_path / "file").read_bytes() == DATA
    assert names(tmp_path) == ["file"]


async def test_a_part_of_another_user_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write into the directory could have put any bytes there; they stay as they are."""
    async with FaultServer({"k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        assert await sent_by(server, by_download(server, tmp_path / "file")) == SIZE
        assert (tmp_path / "file").read_bytes() == DATA
    assert [name[-5:] for name in names(tmp_path)] == [".done", ".part", "file"]


async def test_a_part_that_another_process_writes_is_left_to_it(tmp_path: Path) -> None:
    async with FaultServer({"k": DATA}) as server:
        missing = await half_made(by_download, server, tmp_path / "file")
        with hidden(tmp_path, ".part")[0].open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            assert await sent_by(server, by_download(server, tmp_path / "file")) == SIZE
        assert (tmp_path / "file").read_bytes() == DATA
        assert await sent_by(server, by_download(server, tmp_path / "file")) == missing


async def test_a_file_without_its_note_or_a_note_without_its_file(tmp_path: Path) -> None:
    for end in (".part", ".done"):
        async with FaultServer({"k": DATA}) as server:
            await half_made(by_download, server, tmp_path / "file")
            hidden(tmp_path, end)[0].unlink()
            await by_download(server, tmp_path / "file")
            assert (tmp_path / "file").read_bytes() == DATA
            assert names(tmp_path) == ["file"]
            (tmp_path / "file").unlink()


async def test_everything_is_there_but_the_name(tmp_path: Path) -> None:
    """A run that ended before its last step: the object is asked for its version, and for no byte."""
    async with FaultServer({"k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        (note,), (part,) = hidden(tmp_path, ".done"), hidden(tmp_path, ".part")
        part.write_bytes(DATA)
        with note.open("a") as file:
            file.write(f"0 {SIZE}\n")
        server.requests.clear()
        await by_download(server, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == DATA
        server.assert_requests("HEAD")


async def test_the_mode_is_that_of_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    mode = (tmp_path / "new").stat().st_mode
    (tmp_path / "new").unlink()
    async with FaultServer({"k": DATA}) as server:
        await half_made(by_download, server, tmp_path / "file")
        assert {(tmp_path / name).stat().st_mode & 0o777 for name in names(tmp_path)} == {0o600}
        await by_download(server, tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode == mode


@checks("reliability:W24")
async def test_two_at_once_do_not_share_a_file(tmp_path: Path) -> None:
    """The second one takes a temporary file; the last to end has the name."""
    async with FaultServer({"k": DATA}) as server:
        await asyncio.gather(*(by_download(server, tmp_path / "file") for _ in range(3)))
        assert (tmp_path / "file").read_bytes() == DATA
    assert names(tmp_path) == ["file"]


@checks("reliability:W35")
async def test_a_full_disk_gets_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.pwrite, 0

    def full(descriptor: int, data: Any, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 10:
            raise OSError(28, "full")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    async with FaultServer({"k": DATA}) as server:
        with pytest.raises(Unexpected, match="full"):
            await by_download(server, tmp_path / "file")
    assert names(tmp_path) == []


async def test_listings_show_and_remove_nothing_of_it_for_a_week(tmp_path: Path) -> None:
    async with FaultServer({"k": DATA}) as server, ap.Operator.from_uri(f"file://{tmp_path}") as files:
        await half_made(by_download, server, tmp_path / "file")
        before = names(tmp_path)

        async def listed() -> list[str]:
            return [entry.path async for entry in files.list("", recursive=True)]

        assert await listed() == []
        assert names(tmp_path) == before
        (tmp_path / ".aioprefetch-0123456789abcdef.part").touch()  # Without a note it waits for nothing.
        os.utime(tmp_path / ".aioprefetch-0123456789abcdef.part", (0, 0))
        assert await listed() == []
        assert names(tmp_path) == before
        now = time.time()
        for age_seconds, left in ((RESUMABLE_SECONDS - 100, before), (RESUMABLE_SECONDS + 100, [])):
            for name in before:
                os.utime(tmp_path / name, (now - age_seconds, now - age_seconds))
            assert await listed() == []
            assert names(tmp_path) == left


@checks("reliability:W39")
async def test_cancelled_anywhere_there_is_a_file_or_what_the_next_run_goes_on_with(tmp_path: Path) -> None:
    """And nothing else."""
    for suspension in (1, 5, 20, 60, 120, 200):
        directory = tmp_path / str(suspension)
        directory.mkdir()
        async with FaultServer({"k": DATA}) as server:
            await was_cancelled(by_copy(server, directory / "file"), suspension)
            ends = {name[-5:] for name in names(directory)}
            assert ends in (set(), {".done", ".part"}, {"file"})
            if ends != {"file"}:
                await by_copy(server, directory / "file")
            assert (directory / "file").read_bytes() == DATA
            assert names(directory) == ["file"]


CHILD = """
import sys, aioprefetch as ap
ap.sync.copy(sys.argv[1], sys.argv[2], src_options={"block_bytes": 1 << 20, "concurrency": 4})
"""


@checks("reliability:W37")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
async def test_a_process_that_is_killed_leaves_what_it_has(tmp_path: Path, ending: signal.Signals) -> None:
    target = tmp_path / "file"
    async with FaultServer({"k": DATA}) as server:
        # From some request on nothing comes: the child has noted all before, and waits there to be killed.
        server.add(Rule(fault=Fault(hang_before_head=True), matches=lambda request: request.index >= 12, times=None))
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, f"{server.url}/k", str(target), stderr=asyncio.subprocess.DEVNULL
        )
        await server.wait_for_requests(16, timeout_seconds=60)
        child.send_signal(ending)
        assert await child.wait() != 0
        assert not target.exists()
        missing = SIZE - sum(end - start for start, end in noted(tmp_path))
        assert missing < SIZE - 8 * MIB
        server.behave()
        server.release()
        await server.wait_until_idle()
        copying = ap.copy(f"{server.url}/k", target, src_options=OPTIONS)
        assert await sent_by(server, copying) == missing
        assert target.read_bytes() == DATA
    assert names(tmp_path) == ["file"]
