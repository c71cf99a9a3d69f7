"""Traces of real reads: what the picture counts is what the server counted."""

import asyncio
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.cli.demo import DropOnSeekReader, sample_parquet
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.oracle import content
from tests.probes.programs import completed
from tests.profile import chosen
from tests.repository.source_tree import ROOT

KEY = "bucket/sample.parquet"
NAME = "sample.parquet"
CANARY = "CANARYCANARYCANARY"
STORM = 60


def operator_of(server: FaultServer) -> ap.Operator:
    """An operator whose secrets are canaries."""
    service = ap.services.S3(
        bucket="bucket",
        endpoint_url=server.url,
        region="us-east-1",
        access_key_id="AKIACANARYCANARY",
        secret_access_key=CANARY,
        session_token=f"token-{CANARY}",
        addressing_style="path",
        proxies={},
        allow_http=True,
    )
    return ap.Operator(service)


def check_counts(trace: ap.trace.Trace, server: FaultServer) -> None:
    """Requests and bytes are those of the server, and no secret is in what is written."""
    recording = trace.recording
    assert len(recording.requests) == server.count()
    assert sum(request.is_read for request in recording.requests) == server.count("GET")
    assert recording.fetched_bytes == server.bytes_sent
    assert [request for request in recording.requests if request.outcome == "open"] == []
    page, chrome = trace.html(), trace.chrome_json()
    assert "CANARY" not in page + chrome
    assert f"<h1>{len(recording.requests):,}\u00a0request" in page


def read_with(server: FaultServer, *, naive: bool) -> ap.trace.Trace:
    """The demo's file through pyarrow, with our reader or with one that drops its buffer on seek."""
    with ap.sync.BlockingOperator(operator_of(server)) as operator, ap.trace.record(operator) as trace:

        def fetch(start: int, end: int) -> bytes:
            return operator.read(NAME, offset=start, size=end - start)

        naive_file = DropOnSeekReader(fetch, len(server.objects[KEY]))
        with naive_file if naive else operator.open(NAME) as source, pq.ParquetFile(source, pre_buffer=False) as file:
            assert sum(file.read_row_group(group).num_rows for group in range(file.num_row_groups)) == 7_400
    return trace


async def test_the_demo_is_one_request_and_600_of_the_naive_reader() -> None:
    async with FaultServer({KEY: sample_parquet()}) as server:
        trace = await asyncio.to_thread(read_with, server, naive=False)
        assert len(trace.recording.requests) == 1
        assert trace.advice == []
        assert trace.recording.wasted_bytes < 100
        check_counts(trace, server)
    async with FaultServer({KEY: sample_parquet()}) as server:
        trace = await asyncio.to_thread(read_with, server, naive=True)
        assert 590 < len(trace.recording.requests) < 620
        assert "seek_storm" in {advice.kind for advice in trace.advice}
        check_counts(trace, server)


def wide_parquet() -> bytes:
    """Three megabytes in twelve columns and six row groups."""
    sink = io.BytesIO()
    columns = {f"c{number:02}": pa.array(range(number, number + 30_000)) for number in range(12)}
    pq.write_table(pa.table(columns), sink, row_group_size=5_000, compression="none", use_dictionary=False)
    return sink.getvalue()


async def test_a_scan_of_two_columns() -> None:
    """The bytes of the columns and the footer are used; gaps that were read to merge requests are not."""
    data = wide_parquet()
    async with FaultServer({KEY: data}) as server, operator_of(server) as operator:
        with ap.trace.record(operator) as trace:
            async with ap.parquet.scan(operator, NAME, columns=["c03", "c09"]) as batches:
                rows = [batch.num_rows async for batch in batches]
        assert sum(rows) == 30_000
    check_counts(trace, server)  # A request may end a moment after its read: by now all have.
    metadata = pq.read_metadata(io.BytesIO(data))
    chunks = [metadata.row_group(group).column(column) for group in range(6) for column in (3, 9)]
    wanted = sum(chunk.total_compressed_size for chunk in chunks)
    (item,) = trace.recording.objects.values()
    footer = metadata.serialized_size + 8
    assert wanted + footer <= len(item.used) <= wanted + footer + 64
    assert len(item.wasted) == len(item.fetched) - len(item.used)
    assert trace.recording.waits != []


async def test_a_seek_storm() -> None:
    """Small reads all over an object. The advice says what to do about them."""
    data = content(64 << 20)
    async with FaultServer({KEY: data}) as server:
        async with operator_of(server) as operator:
            with ap.trace.record(operator) as trace:
                async with operator.reader(NAME, policy="random") as reader:
                    for number in range(STORM):
                        start = (number * 37 % 61) * (1 << 20) + 5
                        assert await reader.read_at(start, 4096) == data[start : start + 4096]
        check_counts(trace, server)  # The last request ends a moment after its read, and after the recording.
    assert [request.lane for request in trace.recording.reads] == ["demand"] * len(trace.recording.reads)
    assert "seek_storm" in {advice.kind for advice in trace.advice}
    assert trace.recording.wasted_bytes <= trace.recording.fetched_bytes - STORM * 4096
    assert len(trace.recording.waits) == STORM


async def test_a_faulty_store() -> None:
    """Failures are requests too, with their error; the attempt after each says how long it was held back."""
    data = content(3 << 20)
    faults = [
        Rule(fault=Fault(status=503, code="SlowDown"), index=0),
        Rule(fault=Fault(reset_after_bytes=100_000), index=1),
        Rule(fault=Fault(status=500), index=2),
    ]
    async with FaultServer({KEY: data}, faults) as server, operator_of(server) as operator:
        with ap.trace.record(operator) as trace:
            assert await operator.read(NAME) == data
        recording = trace.recording
        assert len(recording.requests) == server.count("GET") == 4
    assert [request.outcome for request in recording.requests] == ["failed", "failed", "failed", "finished"]
    assert [request.attempt for request in recording.requests] == [1, 2, 3, 4]
    assert [request.status for request in recording.requests] == [503, 206, 500, 206]
    assert recording.requests[0].error.startswith("Throttled")
    assert all(request.retry_wait_seconds > 0 for request in recording.requests[1:])
    assert len(recording.retries) == 3
    assert [advice.kind for advice in trace.advice] == ["retries"]
    assert recording.object(NAME).fetched.ranges == [(0, len(data))]
    assert recording.wasted_bytes == 0


async def test_all_operators_are_recorded() -> None:
    """Those that there are, and those that are made later."""
    async with FaultServer({KEY: content(1000)}) as server, operator_of(server) as before:
        with ap.trace.record() as trace:
            await before.read(NAME, offset=0, size=10)
            assert repr(trace) == "<Trace of 1 request, 10 bytes>"
            async with operator_of(server) as later:
                await later.read(NAME, offset=0, size=20)
        await before.read(NAME, offset=0, size=30)
    assert [request.received_bytes for request in trace.recording.requests] == [10, 20]
    assert repr(trace) == "<Trace of 2 requests, 30 bytes>"


async def test_memory_in_use_when_requests_began() -> None:
    async with ap.Operator.from_uri("memory://trace-memory", memory_bytes="24MiB", block_bytes="1MiB") as operator:
        await operator.write("k", content(4 << 20))
        with ap.trace.record(operator) as trace:
            async with operator.reader("k", policy="random") as reader:
                for start in range(0, 4 << 20, 1 << 20):
                    await reader.read_at(start, 1 << 20)
    requests = trace.recording.requests
    used = [request.memory_bytes for request in requests]
    assert used == sorted(used)
    assert used[-1] - used[0] == 3 << 20
    assert {request.memory_limit_bytes for request in requests} == {24 << 20}
    assert "Memory in use</strong>at most 4 MiB of 24 MiB" in trace.html().replace("\u00a0", " ")
    events = json.loads(trace.chrome_json())["traceEvents"]
    assert [event["args"]["bytes"] for event in events if event["name"] == "memory in use"] == used


async def test_memory_in_use_is_that_of_all_operators() -> None:
    """Each operator has a budget of its own; one that was closed counts no more."""
    with ap.trace.record() as trace:
        for number in range(2):
            async with (
                ap.Operator.from_uri(f"memory://a-{number}", memory_bytes="24MiB", block_bytes="1MiB") as first,
                ap.Operator.from_uri(f"memory://b-{number}", memory_bytes="32MiB", block_bytes="2MiB") as second,
            ):
                await first.write("k", content(4 << 20))
                await second.write("k", content(8 << 20))
                async with first.reader("k", policy="random") as a, second.reader("k", policy="random") as b:
                    for block in range(4):
                        await a.read_at(block << 20, 1 << 20)
                        await b.read_at(block << 21, 2 << 20)
    assert "Memory in use</strong>at most 12 MiB of 56 MiB" in trace.html().replace("\u00a0", " ")
    events = json.loads(trace.chrome_json())["traceEvents"]
    assert [event["args"]["bytes"] for event in events if event["name"] == "memory in use"][-1] == 0


async def test_equal_paths_of_two_stores_are_two_objects() -> None:
    async with ap.Operator.from_uri("memory://trace-a") as first, ap.Operator.from_uri("memory://trace-b") as second:
        for operator in (first, second):
            await operator.write("k", content(2 << 20))
        with ap.trace.record() as trace:
            for operator in (first, second):
                assert len(await operator.read("k")) == 2 << 20
        assert set(trace.recording.objects) == {"memory://trace-a/k", "memory://trace-b/k"}
        assert trace.recording.refetched_bytes == 0
        assert trace.advice == []


async def test_objects_whose_difference_is_a_secret_are_two_objects() -> None:
    paths = ["k?token=c4n4ry-1", "k?token=c4n4ry-2"]
    async with ap.Operator.from_uri("memory://trace-secrets") as operator:
        for path in paths:
            await operator.write(path, content(1 << 20))
        with ap.trace.record(operator) as trace:
            for path in paths * 2:
                await operator.read(path)
        assert list(trace.recording.objects) == ["k?token=***", "k?token=*** (2)"]
        assert [item.received_bytes for item in trace.recording.objects.values()] == [2 << 20] * 2
        assert "c4n4ry" not in trace.html()


async def test_what_a_cache_layer_has(tmp_path: Path) -> None:
    """The store is asked whether it is current, and sends no byte; the requests for entries are the cache's own."""
    async with (
        FaultServer({KEY: content(1 << 20)}) as server,
        operator_of(server) as operator,
        ap.Operator.from_uri(tmp_path) as cache,
    ):
        cached = operator.layer(ap.layers.LruCacheLayer(cache=cache))
        with ap.trace.record() as trace:
            await cached.read(NAME)
        (item,) = trace.recording.objects.values()
        assert item.tier_bytes == {"store": 1 << 20}
        with ap.trace.record() as trace:
            for _ in range(3):
                assert len(await cached.read(NAME)) == 1 << 20
        recording = trace.recording
        (item,) = recording.objects.values()
        assert [(one.outcome, one.status) for one in recording.requests] == [("finished", 304)] * 3
        assert (recording.fetched_bytes, item.tier_bytes) == (0, {"cache": 3 << 20})
        assert "from cache" in trace.html()
        await cache.write("other", b"abc")
        with ap.trace.record() as trace, ap.trace.record(cache) as of_cache:
            await cache.read("other")
        assert (trace.recording.objects, list(of_cache.recording.objects)) == ({}, ["other"])


async def test_the_name_of_a_file_is_its_url(tmp_path: Path) -> None:
    """Also where the root of the store is that of the machine."""
    (tmp_path / "k").write_bytes(b"abc")
    async with ap.Operator.from_uri("file:///") as operator:
        with ap.trace.record() as trace:
            assert await operator.read(f"{tmp_path}/k".lstrip("/")) == b"abc"
    assert list(trace.recording.objects) == [f"file://{tmp_path}/k"]


async def test_what_began_before_the_recording_is_not_in_it() -> None:
    """A read that joins such a request is: its bytes are used, and not fetched."""
    held = Rule(fault=Fault(hang_before_head=True), index=0)
    async with (
        FaultServer({KEY: content(10_000)}, [held]) as server,
        operator_of(server) as operator,
        operator.reader(NAME) as reader,
    ):
        before = asyncio.create_task(reader.read_at(0, 1000))
        await server.wait_for_requests(1)
        with ap.trace.record(operator) as trace:
            joined = asyncio.create_task(reader.read_at(0, 500))
            await asyncio.sleep(0)
            server.release()
            await asyncio.gather(before, joined)
    recording = trace.recording
    assert (recording.requests, recording.fetched_bytes) == ([], 0)
    assert recording.object(NAME).tier_bytes == {"store": 500}
    assert "0\u00a0requests" in trace.html()


def test_only_operators_are_recorded() -> None:
    with pytest.raises(ap.errors.InvalidType, match="BlockingOperator is recorded, not 'k'"):
        ap.trace.record("k")  # type: ignore[arg-type]


def test_a_trace_records_one_block() -> None:
    """Neither nested nor again; the refusal leaves the recording as it is."""
    with ap.sync.BlockingOperator(ap.Operator(ap.services.Memory())) as operator:
        operator.write("k", bytes(10))
        with ap.trace.record(operator) as trace:
            with pytest.raises(ap.errors.InvalidArgument, match="a trace records one block"):
                trace.__enter__()
            assert len(operator.read("k")) == 10
        with pytest.raises(ap.errors.InvalidArgument, match="a trace records one block"):
            trace.__enter__()
        operator.read("k")
    assert trace.recording.counts["read.served"] == 1


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a link. A failure leaves it as it was, and nothing beside it."""
    trace, target = ap.trace.record(), tmp_path / "file"
    target.write_text("of before", "utf-8")

    def fail(*arguments: object, **options: object) -> str:
        raise OSError(28, "No space left on device")

    for suffix in (".html", ".json"):
        link = tmp_path / f"link{suffix}"
        link.symlink_to(target)
        before = target.read_text("utf-8")
        for failing in ("page" if suffix == ".html" else "chrome_json", "os.replace"):
            with monkeypatch.context() as patch:
                patch.setattr(f"aioprefetch.trace.trace.{failing}", fail)
                with pytest.raises(OSError, match="No space"):
                    trace.write(link)
            assert target.read_text("utf-8") == before
        trace.write(link)
        assert target.read_text("utf-8") != before
        assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link.html", "link.json"]


PROGRAM = """
import os, sys, subprocess, aioprefetch as ap
with ap.sync.open("file://" + sys.argv[1]) as file:
    assert len(file.read()) == 1000
if len(sys.argv) > 2 and sys.argv[2] == "fork":
    if not os.fork():
        with ap.sync.open("file://" + sys.argv[1]) as file:
            assert len(file.read(10)) == 10
        sys.exit()
    os.wait()
elif len(sys.argv) > 2:
    subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], check=True)
"""


def run(name: str, folder: Path, *, program: str = PROGRAM, child: str | None = None) -> str:
    """Run the program with the variable set; its standard error."""
    (folder / "k").write_bytes(content(1000))
    command = [sys.executable, "-c", program, str(folder / "k"), *([child] if child else [])]
    environment = {**os.environ, "AIOPREFETCH_TRACE": name, "PYTHONPATH": str(ROOT)}
    done = completed(command, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def requests_by_process(path: Path) -> dict[str, list[int]]:
    """The bytes of the requests of each process, in a trace for Chrome."""
    events = [event for event in json.loads(path.read_text("utf-8"))["traceEvents"] if "bytes" in event.get("args", {})]
    found: dict[str, list[int]] = {}
    for event in events:
        if "process" in event["args"]:
            found.setdefault(event["args"]["process"], []).append(event["args"]["bytes"])
    return found


def test_a_process_traces_itself(tmp_path: Path) -> None:
    """The variable is enough. A process that it starts is on its page, and nothing else is left."""
    assert run("read.html", tmp_path, child=PROGRAM) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k", "read.html"]
    assert "<h1>2\u00a0requests, 1.95\u00a0KiB" in (tmp_path / "read.html").read_text("utf-8")
    assert run("read.json", tmp_path, child="import aioprefetch") == ""
    assert list(requests_by_process(tmp_path / "read.json").values()) == [[1000]]
    assert run("of.{pid}.html", tmp_path, program="import aioprefetch") == ""
    assert len(list(tmp_path.iterdir())) == 3


def test_a_forked_child_is_on_the_page_with_what_it_has_read_itself(tmp_path: Path) -> None:
    run("read.{pid}.json", tmp_path, child="fork")
    (path,) = tmp_path.glob("read.*")
    assert sorted(requests_by_process(path).values()) == [[1000], [1000]]


CHILDREN = """
import multiprocessing, sys
{first}
def read(name):
    import aioprefetch as ap
    with ap.sync.open("file://" + name) as file:
        file.read(10)
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    children = [context.Process(target=read, args=[sys.argv[1]]) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
"""


@pytest.mark.parametrize(
    ("method", "first"),
    chosen(
        quick=[("fork", "import aioprefetch"), ("forkserver", "")],
        full=list(itertools.product(("fork", "forkserver", "spawn"), ("import aioprefetch", ""))),
    ),
)
def test_children_of_multiprocessing_are_recorded(method: str, first: str, tmp_path: Path) -> None:
    """They end by ``os._exit``. Where their parent has not imported the library, each has a page of its own."""
    (tmp_path / "job.py").write_text(CHILDREN.format(method=method, first=first), "utf-8")
    run_job(tmp_path, "read.json")
    processes = [process for path in tmp_path.glob("read*") for process in requests_by_process(path).values()]
    assert (processes, list(tmp_path.glob("*.spool"))) == ([[1000], [1000]], [])
    assert len(list(tmp_path.glob("read*"))) == (1 if first else 2)


def run_job(folder: Path, name: str, timeout_seconds: float = 60.0) -> None:
    """Run the job of a folder with the variable set; it must end well and say nothing."""
    (folder / "k").write_bytes(content(1000))
    environment = {**os.environ, "AIOPREFETCH_TRACE": name, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "job.py", str(folder / "k")]
    done = completed(command, cwd=folder, env=environment, timeout_seconds=timeout_seconds)
    assert (done.returncode, done.stderr) == (0, "")


POOL = """
import concurrent.futures, multiprocessing, signal, sys
import aioprefetch as ap
store = ap.sync.BlockingOperator(ap.Operator.from_uri("file:///"))
def read(start):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return len(store.read(sys.argv[1].lstrip("/"), offset=start, size=10))
if __name__ == "__main__":
    for _ in range({pools}):
        context = multiprocessing.get_context("{method}")
        with {pool} as pool:
            assert list(pool.map(read, range(40), chunksize=1)) == [10] * 40
"""


@pytest.mark.parametrize("pool", ["context.Pool(2)", "concurrent.futures.ProcessPoolExecutor(2, context)"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_reads_of_a_pool_are_on_one_page(pool: str, method: str, tmp_path: Path) -> None:
    """One kills its workers at its end. None of them has a handler of signals, and none loses a read."""
    pools = chosen(quick=[2], full=[50])[0]
    (tmp_path / "job.py").write_text(POOL.format(method=method, pools=pools, pool=pool), "utf-8")
    run_job(tmp_path, "read.json", timeout_seconds=600.0)
    found = requests_by_process(tmp_path / "read.json")
    assert sum(map(len, found.values())) == 40 * pools
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.py", "k", "read.json"]


IN_FLIGHT = """
import http.server, os, sys, threading
import aioprefetch as ap
class Held(http.server.BaseHTTPRequestHandler):
    arrived, released = threading.Event(), threading.Event()
    def do_GET(self):
        self.arrived.set()
        self.released.wait()
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Held)
threading.Thread(target=server.serve_forever, daemon=True).start()
file = ap.sync.open(f"http://127.0.0.1:{server.server_port}/k")
reading = threading.Thread(target=file.read)
reading.start()
Held.arrived.wait()
if not os.fork():
    assert len(ap.sync.open("file://" + sys.argv[1]).read()) == 1000
    sys.exit()
assert os.wait()[1] == 0
Held.released.set()
reading.join()
"""


def test_a_child_that_is_forked_while_a_read_is_in_flight_has_none_of_it(tmp_path: Path) -> None:
    """Each is on the page with what it has read, once, and nothing has not ended."""
    (tmp_path / "job.py").write_text(IN_FLIGHT, "utf-8")
    run_job(tmp_path, "read.json")
    assert sorted(requests_by_process(tmp_path / "read.json").values()) == [[5], [1000]]
    events = json.loads((tmp_path / "read.json").read_text("utf-8"))["traceEvents"]
    assert {event["args"]["outcome"] for event in events if "outcome" in event.get("args", {})} == {"finished"}


LATE = """
import os, subprocess, sys, aioprefetch as ap
read = "import sys, aioprefetch as ap; ap.sync.open('file://' + sys.argv[1]).read()"
waits = "import sys; sys.stdin.read(); " + read
subprocess.Popen([sys.executable, "-c", waits, sys.argv[1]], stdin=int(os.environ["HOLD"]), pass_fds=[2])
"""


def test_a_program_that_is_started_and_imports_the_library_later_has_a_page(tmp_path: Path) -> None:
    """Its parent has ended, and the page is written."""
    held, release = os.pipe()
    done, pipe = os.pipe()
    environment = {**os.environ, "AIOPREFETCH_TRACE": "read.json", "PYTHONPATH": str(ROOT), "HOLD": str(held)}
    (tmp_path / "k").write_bytes(content(1000))
    program = [sys.executable, "-c", LATE, str(tmp_path / "k")]
    subprocess.run(program, cwd=tmp_path, env=environment, pass_fds=[held], stderr=pipe, check=True)
    os.close(held)
    os.close(pipe)
    assert not (tmp_path / "read.json.spool").exists()
    os.close(release)
    with os.fdopen(done) as said:
        assert said.read() == ""  # To the end of both.
    assert sorted(len(requests_by_process(path)) for path in tmp_path.glob("read*.json")) == [0, 1]


def test_a_trace_that_cannot_be_written_fails_no_program(tmp_path: Path) -> None:
    (message,) = run("none/read.html", tmp_path).splitlines()
    assert message.startswith(f"the trace could not be written to {tmp_path}/none/read.html: ")


def test_a_failure_at_the_end_is_one_line(tmp_path: Path) -> None:
    """Any exception, not only one of the file system."""
    program = f"""
import aioprefetch.trace.trace as trace
def fail(*arguments, **options):
    raise ValueError("one\\ntwo")
trace.page = fail
{PROGRAM}"""
    (message,) = run("read.html", tmp_path, program=program).splitlines()
    assert message == f"the trace could not be written to {tmp_path}/read.html: ValueError: one\\ntwo"
