"""The line of the program that each request is for, through the doors of the library and on any thread."""

import asyncio
import inspect
import io
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.testing import FaultServer
from aioprefetch.testing.oracle import content
from tests.repository.source_tree import ROOT
from tests.unit.trace.test_traces import KEY, NAME, operator_of, run_job

CALLERS = str(ROOT / "aioprefetch" / "runtime" / "callers.py")


def here(above: int = 0) -> str:
    """The line of the caller, or one ``above`` it."""
    caller = inspect.stack(0)[1]
    return f"{caller.filename}:{caller.lineno - above}"


def lines_of(trace: ap.trace.Trace) -> list[str]:
    """The lines of all requests, each once."""
    return list(dict.fromkeys(request.caller for request in trace.recording.requests))


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": range(50_000)}), sink, row_group_size=5_000, compression="none")
    return sink.getvalue()


async def test_reads_of_tasks() -> None:
    """In parts side by side, ahead of the caller, of a scan, and tasks that run nothing but a coroutine of ours."""
    objects = {KEY: content(40 << 20), "bucket/t.parquet": parquet()}
    async with FaultServer(objects) as server, operator_of(server) as op:
        with ap.trace.record(op, stacks=True) as trace:
            await op.read(NAME)
            expected = [here(1)]
            async with op.reader(NAME, policy="sequential") as reader:
                while await reader.read(1 << 20):
                    expected[1:] = [here(1)]
            async for _ in ap.parquet.scan(op, "t.parquet"):
                pass
            expected.append(here(2))
            await asyncio.gather(*(op.read(NAME, offset=start, size=10) for start in range(3)))
            expected.append(here(1))
            async with asyncio.TaskGroup() as group:
                group.create_task(op.stat(NAME))
                expected.append(here(1))
        assert lines_of(trace) == expected
        assert len(trace.recording.requests) == server.count() > 15


async def test_the_page_groups_by_line() -> None:
    async with ap.Operator.from_uri("memory://trace-lines") as op:
        await op.write("k", content(3000))
        with ap.trace.record(op, stacks=True) as trace:
            for _ in range(2):
                await op.read("k", offset=0, size=1000)
            await op.stat("k")
            read, stat = here(2), here(1)
    page = trace.html().replace("\u00a0", " ")
    for row in (
        f'{read}</td><td class="number">2</td><td class="number">1.95 KiB',
        f'{stat}</td><td class="number">1<',
    ):
        assert row in page
    assert '<option value="line">' in page
    assert f'"caller":"{read}"' in trace.chrome_json()
    with ap.trace.record(op) as without:
        pass
    assert "of the program" not in without.html()


def arrow_dataset(name: str) -> None:
    filesystem = ap.arrow.filesystem(ap.Operator.from_uri("memory://trace-lines-sync"))
    ds.dataset(name, filesystem=filesystem).to_table()


def read_file(operator: ap.sync.BlockingOperator, name: str, read: Callable[[Any], object]) -> None:
    with operator.open(name) as file:
        read(file)


def read_twice(operator: ap.sync.BlockingOperator, name: str) -> None:
    list(operator.list(""))
    operator.read(name, offset=5, size=5)


DOORS: dict[str, Callable[[ap.sync.BlockingOperator, str], object]] = {
    "operator": read_twice,
    "file": lambda op, name: read_file(op, name, lambda file: file.read()),
    "run": lambda op, name: ap.sync.run(ap.Operator.from_uri("memory://trace-lines-sync").read(name)),
    "fsspec": lambda op, name: fsspec.filesystem("aioprefetch+memory").cat(f"trace-lines-sync/{name}"),
    "file of arrow": lambda op, name: read_file(op, name, pq.read_table),
    "dataset": lambda op, name: arrow_dataset(name),
}


@pytest.mark.parametrize("is_async", [False, True], ids=["main", "loop"])
@pytest.mark.parametrize("door", DOORS)
def test_blocking_callers(door: str, is_async: bool) -> None:
    """Also where another library reads on threads of its own, and where the main thread runs an event loop."""

    def read() -> list[str]:
        with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://trace-lines-sync")) as operator:
            operator.write("t.parquet", parquet())
            with ap.trace.record(stacks=True) as trace:
                DOORS[door](operator, "t.parquet")
            return lines_of(trace)

    found = asyncio.run(asyncio.to_thread(read)) if is_async else read()
    assert found
    for line in found:
        file, _, number = line.rpartition(":")
        assert (file, int(number) < read.__code__.co_firstlineno) == (__file__, True)


@contextmanager
def calls_counted() -> Iterator[Counter[str]]:
    """The calls of functions of Python on this thread, by file."""
    counts: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: counts.update({frame.f_code.co_filename: event == "call"}))
    try:
        yield counts
    finally:
        sys.setprofile(before)


async def test_it_costs_a_few_microseconds_while_on_and_nothing_while_off() -> None:
    """Off: the question for a read that goes elsewhere, and none for a request. On: ten microseconds a read."""
    async with ap.Operator.from_uri("memory://trace-cost") as op:
        await op.write("k", content(64 << 10))

        async def seconds_of_a_read(stacks: bool) -> float:
            spans = []
            for _ in range(7):
                with ap.trace.record(op, stacks=stacks):
                    before = time.thread_time()
                    for start in range(300):
                        await op.read("k", offset=start, size=100)
                    spans.append(time.thread_time() - before)
            return min(spans) / 300

        with ap.trace.record(op) as trace, calls_counted() as counts:
            await op.read("k")
        assert (lines_of(trace), counts[CALLERS]) == ([""], 1)
        assert sys.get_coroutine_origin_tracking_depth() == 0
        assert await seconds_of_a_read(True) - await seconds_of_a_read(False) < 50e-6


def test_processes_are_on_one_page_with_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(
        "import os, sys\n"
        "import aioprefetch as ap\n"
        "if not os.fork():\n"
        "    ap.sync.open('file://' + sys.argv[1]).read()\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "ap.sync.open('file://' + sys.argv[1]).read(10)\n"
    )
    monkeypatch.setenv("AIOPREFETCH_TRACE_STACKS", "1")
    run_job(tmp_path, "read.html")
    page = (tmp_path / "read.html").read_text("utf-8")
    assert [f"job.py:{number}</td>" in page for number in (4, 7)] == [True, True]
