"""Displays of progress: a bar for each transfer, which counts what is moved and ends as the call ends."""

import asyncio
import io
import logging
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import rich.console

import aioprefetch as ap
from aioprefetch.errors import NotFound, PermissionDenied
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.stores.failing_disk import until
from tests.stores.part_store import Bed, part_bed

SIZE = 5500
ESCAPES = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")  # Of a terminal.
TREE = {"d/a": bytes(1000), "d/b/c": bytes(2000), "d/[red]e": bytes(2500)}


@dataclass
class Bar:
    """What a bar was given."""

    name: str
    seen: list[ap.CopyProgress] = field(default_factory=list)
    ends: list[BaseException | None] = field(default_factory=list)

    def update(self, progress: ap.CopyProgress) -> None:
        self.seen.append(progress)

    def close(self, error: BaseException | None) -> None:
        self.ends.append(error)


class Recording(ap.progress.ProgressDisplay):
    """A display that keeps its bars."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[Bar] = []

    def open(self, name: str) -> Bar:
        self.bars.append(Bar(name))
        return self.bars[-1]


Call = Callable[[ap.Operator, Path, Any], Awaitable[object]]
CALLS: dict[str, Call] = {
    "download": lambda op, local, shown: op.download("k", local / "file", on_progress=shown),
    "download of a directory": lambda op, local, shown: op.download("d/", local / "files", on_progress=shown),
    "upload": lambda op, local, shown: op.upload(local / "k", "t", on_progress=shown),
    "upload into a directory": lambda op, local, shown: op.upload(local / "k", "t/", on_progress=shown),
    "upload of a directory": lambda op, local, shown: op.upload(local / "d", "t/", on_progress=shown),
    "copy of an object": lambda op, local, shown: op.copy("k", "t", on_progress=shown),
    "copy by the store": lambda op, local, shown: ap.copy((op, "d/"), (op, "t/"), on_progress=shown),
    "copy into files": lambda op, local, shown: ap.copy((op, "d/"), local / "copies", on_progress=shown),
    "copy out of files": lambda op, local, shown: ap.copy(local / "d", (op, "t/"), on_progress=shown),
}


def with_faults(bed: Bed, *plan: Injection) -> Bed:
    """The bed with faults that count from now on."""
    return Bed(bed.op.layer(FaultLayer(plan), inside=ErrorContextLayer), bed.parts)


async def cancel_at(faulty: Bed, number: int, call: Awaitable[object]) -> None:
    """Cancel a call when that many requests have come, the last of which hangs."""
    running = asyncio.ensure_future(call)
    await until(lambda: len(faulty.faults.requests) >= number)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def fill(op: ap.Operator, local: Path) -> None:
    """The objects and files of the calls."""
    await op.write("k", bytes(SIZE))
    (local / "k").write_bytes(bytes(SIZE))
    for path, data in TREE.items():
        await op.write(path, data)
        (local / path).parent.mkdir(parents=True, exist_ok=True)
        (local / path).write_bytes(data)


@pytest.mark.parametrize("call", CALLS)
async def test_a_bar_counts_what_a_call_moves(call: str, tmp_path: Path) -> None:
    """One bar for each call, whose steps are its sum; the same object serves the next call."""
    shown, steps = Recording(), list[Any]()
    async with part_bed(block_bytes=1000) as bed:
        await fill(bed.op, tmp_path)
        for _ in range(2):
            await CALLS[call](bed.op, tmp_path, shown)
            (tmp_path / "file").unlink(missing_ok=True)
            await bed.op.delete_all("t/")
        await CALLS[call](bed.op, tmp_path, steps.append)
    assert [bar.ends for bar in shown.bars] == [[None]] * 2
    bar = shown.bars[0]
    assert bar.seen[-1].bytes == sum(step.step_bytes for step in bar.seen) == SIZE
    assert bar.seen[-1].total == SIZE
    assert [step.bytes for step in bar.seen] == sorted(step.bytes for step in bar.seen)
    assert sum(step if isinstance(step, int) else step.step_bytes for step in steps) == SIZE


@pytest.mark.parametrize("call", CALLS)
async def test_a_bar_ends_whichever_request_fails(call: str, tmp_path: Path) -> None:
    """With the error that the call raises; a copy of several objects counts it and goes on."""
    number, failed = 0, True
    while failed:
        shown = Recording()
        async with part_bed(block_bytes=1000) as bed:
            await fill(bed.op, tmp_path)
            faulty = with_faults(bed, Injection(occurrence=number, error=PermissionDenied))
            error: BaseException | None = None
            try:
                await CALLS[call](faulty.op, tmp_path, shown)
            except PermissionDenied as raised:
                error = raised
            failed = len(faulty.faults.requests) > number
        (tmp_path / "file").unlink(missing_ok=True)
        (bar,) = shown.bars
        assert bar.ends == [error], number
        number += 1
    assert number > 1


@pytest.mark.parametrize("call", CALLS)
async def test_a_cancelled_call_ends_its_bar(call: str, tmp_path: Path) -> None:
    """At its second request, which for an upload is that of its first part, or at its only one."""
    shown = Recording()
    async with part_bed(block_bytes=1000) as bed:
        await fill(bed.op, tmp_path)
        hanging = int(call != "download")
        faulty = with_faults(bed, Injection(occurrence=hanging, hang=True))
        await cancel_at(faulty, hanging + 1, CALLS[call](faulty.op, tmp_path, shown))
    assert [type(end) for end in shown.bars[0].ends] == [asyncio.CancelledError]


def test_the_blocking_twins_show_the_same(tmp_path: Path) -> None:
    shown = Recording()
    with ap.sync.BlockingOperator(ap.Operator(ap.services.Memory())) as bo:
        (tmp_path / "k").write_bytes(bytes(SIZE))
        bo.upload(tmp_path / "k", "k", on_progress=shown)
        bo.download("k", tmp_path / "file", on_progress=shown)
        bo.copy("k", "t", on_progress=shown)
        ap.sync.copy((bo, "k"), tmp_path / "copy", on_progress=shown)
        with shown, bo.open("k", on_progress=shown) as file:
            file.read()
    assert [(bar.seen[-1].bytes, bar.ends) for bar in shown.bars] == [(SIZE, [None])] * 5


@pytest.mark.parametrize("method", ["open", "update", "close"])
async def test_a_display_that_fails_fails_no_transfer(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once for each call."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("no terminal")

    monkeypatch.setattr(Recording if method == "open" else Bar, method, fail)
    async with part_bed(block_bytes=1000) as bed:
        await fill(bed.op, tmp_path)
        for call in CALLS.values():
            caplog.clear()
            with caplog.at_level(logging.ERROR, "aioprefetch"):
                await call(bed.op, tmp_path, Recording())
            assert len(caplog.records) == 1
            assert "on_progress failed" in caplog.text


# --- tqdm and rich ----------------------------------------------------------------------------------------------------


def tqdm_to(text: io.StringIO) -> ap.progress.ProgressDisplay:
    """Bars of tqdm in a text."""
    return ap.progress.tqdm(file=text, ncols=120, mininterval=0, ascii=True)


def rich_to(text: io.StringIO) -> ap.progress.ProgressDisplay:
    """Lines of rich in a text that is a terminal."""
    console = rich.console.Console(file=text, width=160, force_terminal=True, color_system=None)
    return ap.progress.rich(console=console, auto_refresh=False)


DISPLAYS = {"tqdm": tqdm_to, "rich": rich_to}


@pytest.fixture(params=DISPLAYS)
def text_and_display(request: pytest.FixtureRequest) -> tuple[io.StringIO, ap.progress.ProgressDisplay]:
    """Where a display writes, and the display."""
    text = io.StringIO()
    return text, DISPLAYS[request.param](text)


async def test_every_call_leaves_a_full_bar(
    text_and_display: tuple[io.StringIO, ap.progress.ProgressDisplay], tmp_path: Path
) -> None:
    """With its bytes, its rate and its time; no thread is left."""
    text, display = text_and_display
    threads = threading.active_count()
    async with part_bed(block_bytes=1000) as bed:
        await fill(bed.op, tmp_path)
        for name, call in CALLS.items():
            text.seek(0)
            text.truncate()
            await call(bed.op, tmp_path, display)
            last = ESCAPES.sub("", text.getvalue()).rstrip().splitlines()[-1]
            assert "5.37k/5.37k" in last or "5.4/5.4 KiB" in last, name
            assert "B/s" in last or "KiB/s" in last, name
            if "copy " in name and "object" not in name:
                assert "3/3 objects" in last, name
    assert threading.active_count() <= threads + 8  # Those of the operator's own files and verbs.
    assert not [thread for thread in threading.enumerate() if "tqdm" in repr(thread).lower() or "rich" in repr(thread)]


async def test_a_bar_says_how_a_call_failed(
    text_and_display: tuple[io.StringIO, ap.progress.ProgressDisplay], tmp_path: Path
) -> None:
    """A failure, a cancellation, and a copy of which a part is missing."""
    text, display = text_and_display
    async with part_bed(block_bytes=1000) as bed:
        await fill(bed.op, tmp_path)
        with pytest.raises(NotFound):
            await bed.op.download("missing", tmp_path / "file", on_progress=display)
        assert "failed: NotFound" in text.getvalue()
        refused = Injection(operation="read", path="d/a", error=PermissionDenied)
        faulty = with_faults(bed, refused, Injection(operation="read", path="k", hang=True))
        await ap.copy((faulty.op, "d/"), tmp_path / "copies", on_progress=display)
        assert "3/3 objects, 1 failed" in text.getvalue()
        download = faulty.op.download("k", tmp_path / "file", on_progress=display)
        await cancel_at(faulty, len(faulty.faults.requests) + 1, download)
    assert "cancelled" in text.getvalue()
    assert text.getvalue().endswith(("\n", "\x1b[?25h"))


@pytest.mark.parametrize("made", [ap.progress.tqdm, ap.progress.rich])
def test_an_unknown_option_is_refused(made: Any) -> None:
    with pytest.raises(TypeError, match=r"'colours'.*there are .*disable"):
        made(colours=3)


async def test_calls_at_once_share_a_display(
    text_and_display: tuple[io.StringIO, ap.progress.ProgressDisplay], tmp_path: Path
) -> None:
    """Each has a bar; names are neither markup nor control characters."""
    text, display = text_and_display
    names = [f"[bold]{number}\x1b[31m" for number in range(5)]
    async with ap.Operator(ap.services.Memory()) as op:
        for name in names:
            await op.write(name, bytes(SIZE))
        await asyncio.gather(
            *(op.download(name, tmp_path / str(at), on_progress=display) for at, name in enumerate(names))
        )
    for number in range(5):
        assert f"[bold]{number}\\x1b[31m" in text.getvalue()


async def test_a_reader_has_a_bar_until_it_is_closed(
    text_and_display: tuple[io.StringIO, ap.progress.ProgressDisplay],
) -> None:
    """It tells neither a size nor an end: the display is closed by ``with``."""
    text, display = text_and_display
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", bytes(SIZE))
        with display:
            async with op.reader("k", on_progress=display) as reader:
                await reader.read()
    assert "5.37k" in text.getvalue() or "5.4/5.4 KiB" in text.getvalue()
