"""An error that its caller has dealt with is gone at once, without the garbage collector, and so are all its frames.

Otherwise the collector decides how much memory a program holds: the frames of a read hold its buffers, and on Python
3.12 and 3.13 a frame that is kept keeps those of all its callers, up to the local variables of the program.
"""

import asyncio
import gc
import io
import sys
import threading
import types
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.layers import ErrorContextLayer, HedgeLayer, LruCacheLayer, RetryLayer, TimeoutLayer
from aioprefetch.testing import Fault, FaultServer, Injection, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer
from tests.profile import each_of
from tests.repository.source_tree import PACKAGE
from tests.stores.part_store import PART_BYTES, PartStore
from tests.stores.s3_options import options_of

SIZE = 100_000
FAR_BYTES = 50 << 20  # Two ranges that far apart are two requests.
BLOCK_BYTES = 16 << 10  # A read of all of it goes in parallel parts.
TURNS = 10
ROUNDS_MAX = 3  # Another thread, as of a server for tests, may make garbage in one of them.
SECONDS_MAX = 10.0  # In which a thread lets go of what it worked on.
Call = Callable[[ap.Operator], Awaitable[object]]


WAIT = vars(asyncio.tasks)["_wait"].__code__


class Local:
    """What a caller has in a local variable."""


class Locals:
    """Locals of callers, as long as they live."""

    def __init__(self) -> None:
        self._alive: dict[int, weakref.ref[Local]] = {}
        self._gone = threading.Event()

    def one(self) -> Local:
        made = Local()
        self._gone.clear()
        self._alive[id(made)] = weakref.ref(made, partial(self._collected, id(made)))
        return made

    def _collected(self, number: int, _: object) -> None:
        del self._alive[number]
        if not self._alive:
            self._gone.set()

    def left(self) -> int:
        """How many live on. A thread may not have let go of its work yet: it gets some time for that."""
        self._gone.wait(SECONDS_MAX)
        return len(self._alive)


# --- what fails -------------------------------------------------------------------------------------------------------


async def reopened(op: ap.Operator) -> None:
    """A cached object is asked for again, and has not changed."""
    async with op.reader("k") as reader:
        await reader.read_at(10, 10)


async def of_reader(op: ap.Operator, path: str = "missing", **options: Any) -> None:
    async with op.reader(path, **options) as reader:
        await reader.read_at(0, 100)


async def beyond_the_end(op: ap.Operator) -> None:
    async with op.reader("k") as reader:
        await reader.read_exactly_at(SIZE - 10, 20)


async def unmodified(op: ap.Operator) -> None:
    metadata = await op.stat("k")
    await op.read("k", if_none_match=metadata.etag)


async def cancelled(work: Awaitable[object], turns: int) -> None:
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    finally:
        del task


async def drained(entries: Any) -> None:
    async for _ in entries:
        pass


async def failing_writer(op: ap.Operator) -> None:
    async with op.writer("new") as writer:
        await writer.write(b"x")
        raise ValueError("the caller's own")


READS: dict[str, Call] = {
    "reopen": reopened,
    "read": lambda op: op.read("missing"),
    "view": lambda op: op.view("missing"),
    "read_into": lambda op: op.read_into("missing", 0, bytearray(10)),
    "read_ranges": lambda op: op.read_ranges("missing", [(0, 10), (FAR_BYTES, FAR_BYTES + 10)]),
    "read_ranges beyond the end": lambda op: op.read_ranges("k", [(0, 10), (SIZE, SIZE + 1)]),
    "stat": lambda op: op.stat("missing"),
    "exists": lambda op: op.exists("missing"),
    "range": lambda op: op.read("k", offset=SIZE + 1, size=1),
    "if_match": lambda op: op.read("k", if_match='"another"'),
    "if_none_match": unmodified,
    "reader": of_reader,
    "reader of another version": lambda op: of_reader(op, "k", etag='"another"'),
    "reader beyond the end": beyond_the_end,
    "open_file": lambda op: op.open_file("missing").build(),
    "deadline": lambda op: op.read("k", timeout_seconds=1e-9),
    "cancelled read": lambda op: cancelled(op.read("k"), 1),
    "cancelled view": lambda op: cancelled(op.view("k"), 3),
    "wrong argument": lambda op: op.read("k", offset=-1),
    "list": lambda op: drained(op.list("missing/")),
    "parquet.scan": lambda op: drained(ap.parquet.scan(op, "missing.parquet")),
    "parquet.scan of a file that is none": lambda op: drained(ap.parquet.scan(op, "none.parquet")),
    "lance.scan": lambda op: drained(ap.lance.scan(op, "missing.lance")),
    "lance.scan of a file that is none": lambda op: drained(ap.lance.scan(op, "k")),
}
WRITES: dict[str, Call] = {
    "write if_not_exists": lambda op: op.write("k", b"", if_not_exists=True),
    "write if_match": lambda op: op.write("k", b"", if_match='"another"'),
    "writer": failing_writer,
    "upload": lambda op: op.upload("/no/such/file", "new"),
    "download": lambda op: op.download("missing", "/no/such/folder/file"),
    "copy": lambda op: op.copy("missing", "new"),
    "copy onto itself": lambda op: op.copy("k", "k"),
    "move": lambda op: op.move("missing", "new"),
    "delete": lambda op: op.delete("missing"),
    "ap.copy": lambda op: ap.copy((op, "missing/"), (op, "new/")),
}


def streamed(path: str, chunks_max: int) -> Call:
    async def call(op: ap.Operator) -> None:
        async with op.reader(path) as reader, reader.stream(chunk_bytes=10_000) as stream:
            number = 0
            async for _ in stream:
                number += 1
                if number == chunks_max:
                    break

    return call


# A reader that has read ahead refers to itself, and is garbage when it is dropped; no error is part of it.
STREAMS: dict[str, Call] = {
    "stream": streamed("k", 1000),
    "stream that is left": streamed("k", 1),
    "stream of a missing object": streamed("missing", 1),
    "cancelled reader": lambda op: cancelled(of_reader(op, "k"), 2),
    "cancelled stream": lambda op: cancelled(streamed("k", 1000)(op), 2),
}


# --- the stores -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "bare", "fs", "cached", "hedged", "timed"])
async def operator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ap.Operator]:
    """The object ``k`` in a store, under several stacks."""
    made = {
        "memory": lambda: ap.Operator(ap.services.Memory()),
        "bare": lambda: ap.Operator.bare(ap.services.Memory()),
        "fs": lambda: ap.Operator.from_uri(f"file://{tmp_path}"),
        "cached": lambda: ap.Operator(ap.services.Memory()).layer(
            LruCacheLayer(cache=ap.Operator(ap.services.Memory()), capacity_bytes=1 << 24)
        ),
        "hedged": lambda: ap.Operator(ap.services.Memory()).layer(HedgeLayer()),
        "timed": lambda: ap.Operator(ap.services.Memory()).layer(TimeoutLayer(stall_seconds=5)),
    }[request.param]()
    async with made:
        await made.write("k", bytes(SIZE))
        await made.write("none.parquet", b"PAR1" + bytes(500) + b"PAR1")
        yield made


# --- what is left -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """What other tests have left in this process is looked at once, and not by each of a thousand collections."""
    gc.collect()
    gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def garbage() -> list[object]:
    """What the collector finds, in this process.

    Nothing where it is asyncio's own: from Python 3.14 on a cancelled ``asyncio.wait`` holds its task in a closure,
    and the task the cancellation. No frame of a caller is kept there.
    """
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    found = list(gc.garbage)
    gc.garbage.clear()
    frames = [one.tb_frame.f_code for one in found if isinstance(one, types.TracebackType)]
    is_asyncios = sys.version_info >= (3, 14) and any(code is WAIT for code in frames)
    return [] if is_asyncios else found


def frames_in(found: list[object]) -> list[str]:
    """The frames of the package and of this test that errors hold. Those of servers for tests do not count."""
    testing = f"{PACKAGE}/testing/"
    named: list[str] = []
    for one in found:
        if isinstance(one, types.TracebackType):
            code = one.tb_frame.f_code
            if code.co_filename == __file__ or (
                code.co_filename.startswith(str(PACKAGE)) and not code.co_filename.startswith(testing)
            ):
                named.append(f"{code.co_filename}:{one.tb_lineno} {code.co_qualname} {sorted(one.tb_frame.f_locals)}")
    return named


async def awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()


async def dealt_with(call: Callable[[], Awaitable[object]], times: int = 3) -> int:
    """How many callers' locals live on after the error: of callers in the same task, and in another one."""
    held = Locals()

    async def caller(work: Callable[[], Awaitable[object]]) -> None:
        local = held.one()  # noqa: F841 - as long as this frame lives
        with suppress(ap.Error, ValueError, asyncio.CancelledError):
            await work()

    for _ in range(times):
        await asyncio.create_task(caller(call))
        await asyncio.create_task(caller(lambda: asyncio.create_task(awaited(call))))
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return await asyncio.get_running_loop().run_in_executor(None, held.left)


@pytest.mark.parametrize("name", [*READS, *WRITES])
async def test_a_refusal_leaves_no_garbage(operator: ap.Operator, name: str) -> None:
    call = (READS | WRITES)[name]
    await dealt_with(lambda: call(operator), times=1)  # The first time opens caches, threads and the like.
    counts: list[int] = []
    for _ in range(ROUNDS_MAX):
        with without_collector():
            held = await dealt_with(lambda: call(operator))
            found = garbage()
        assert (held, frames_in(found)) == (0, [])
        counts.append(len(found))
        if not found:
            break
    assert counts[-1] == 0, counts


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_leaves_no_error(operator: ap.Operator, name: str) -> None:
    with without_collector():
        held = await dealt_with(lambda: STREAMS[name](operator))
        assert (held, frames_in(garbage())) == (0, [])


FAULTS = {
    "slow": Fault(status=503, code="SlowDown"),
    "denied": Fault(status=403, code="AccessDenied"),
    "cut": Fault(close_after_bytes=1000),
    "dropped": Fault(drop=True),
    "hung": Fault(hang_before_head=True),
    "hung body": Fault(hang_after_bytes=1000),
    "shifted": Fault(content_range_shift_bytes=3),
    "a page": Fault(status=200, body=b"<html>please log in</html>"),
    "redirected": Fault(status=302, location="/bucket/k"),
    "no HTTP": Fault(raw=b"garbage\r\n\r\n"),
}
NO_PAUSES = RetryLayer(base_seconds=0, throttle_base_seconds=0, attempts_max=2)


@checks("reliability:K04")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("service", ["s3", "http"])
async def test_a_faulty_response_leaves_no_error(service: str, fault: str, tmp_path: Path) -> None:
    """Whole objects come by parallel requests. Also where a retry has dealt with it, or the caller was cancelled."""
    script = [
        Rule(fault=FAULTS[fault], times=None, key="bucket/always"),
        Rule(fault=FAULTS[fault], times=None, matches=lambda one: one.key == "bucket/twice" and one.index % 2 == 0),
    ]
    objects = {f"bucket/{name}": bytes(SIZE) for name in ("k", "always", "twice")}
    times = 1 if fault.startswith("hung") else 3  # Each time all limits are waited for.
    async with FaultServer(objects, script) as server, faulty(service, server) as op:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: op.read("always"),
            lambda: op.stat("always"),
            lambda: of_reader(op, "always"),
            lambda: op.read("twice"),
            lambda: op.download("twice", tmp_path / "twice"),
            lambda: op.download("always", tmp_path / "always"),
            lambda: cancelled(op.read("always"), 30),
            lambda: drained(ap.parquet.scan(op, "always")),
        ]
        for call in calls:
            with without_collector():
                held = await dealt_with(call, times)
                assert (held, frames_in(garbage())) == (0, [])


def faulty(service: str, server: FaultServer) -> ap.Operator:
    options: dict[str, Any] = {"read_timeout_seconds": 0.1, "block_bytes": BLOCK_BYTES}
    uri = f"{server.url}/bucket/" if service == "http" else "s3://bucket"
    return ap.Operator.from_uri(uri, **options, **(options_of(server) if service == "s3" else {})).layer(NO_PAUSES)


@checks("reliability:K04")
async def test_unreachable_servers_leave_no_error() -> None:
    for url in ("http://127.0.0.1:9/", "http://no-such-name.invalid/"):
        async with ap.Operator.from_uri(url).layer(NO_PAUSES) as op:
            with without_collector():
                held = await dealt_with(lambda op=op: op.read("k"))  # type: ignore[misc]
                assert (held, frames_in(garbage())) == (0, [])


async def written(op: ap.Operator) -> None:
    """In parts, several at a time."""
    async with op.writer("new") as writer:
        for _ in range(SIZE // 5000):
            await writer.write(bytes(5000))


# Each call, and the numbers of its requests that fail: the first one, later ones, and the one that completes an upload.
TRANSFERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "writer": ("write", (0, 1, 4, SIZE // PART_BYTES + 1)),
    "op.read": ("read", (0,)),
    "download": ("read", (0,)),
    "ap.copy": ("read", (0,)),
    "ap.copy of a directory": ("list", (0,)),
}


@pytest.mark.parametrize(("call", "occurrence"), [(call, one) for call, (_, all_) in TRANSFERS.items() for one in all_])
async def test_an_error_within_a_transfer_leaves_nothing(call: str, occurrence: int, tmp_path: Path) -> None:
    """Uploads in parts, downloads and copies, whose requests run side by side."""
    operation = TRANSFERS[call][0]
    failing = Injection(operation=operation, occurrence=occurrence, times=None, error=ap.errors.PermissionDenied)
    whole = ap.Operator(ap.services.Memory(), block_bytes=4096).layer(PartStore(), inside=ErrorContextLayer)
    async with whole:
        await whole.write("d/large", bytes(SIZE))
        await whole.write("d/small", b"x")
        calls: dict[str, Call] = {
            "writer": written,
            "op.read": lambda op: op.read("d/large"),
            "download": lambda op: op.download("d/large", tmp_path / "large"),
            "ap.copy": lambda op: ap.copy((op, "d/large"), (whole, "new")),
            "ap.copy of a directory": lambda op: ap.copy((op, "d/"), (whole, "new/")),
        }
        op = whole.layer(FaultLayer((failing,)), inside=ErrorContextLayer)
        with pytest.raises(ap.errors.PermissionDenied):
            await calls[call](op)

        async def again() -> None:
            await calls[call](whole.layer(FaultLayer((failing,)), inside=ErrorContextLayer))

        with without_collector():
            held = await dealt_with(again)
            assert (held, frames_in(garbage())) == (0, [])


SCANS: dict[str, Call] = {
    "of many missing files": lambda op: drained(ap.parquet.scan(op, ["no.parquet", "none.parquet"])),
    "of a directory": lambda op: drained(ap.parquet.scan(op, "t/")),
    "of a directory in any order": lambda op: drained(ap.parquet.scan(op, "t/", ordered=False)),
    "that is left": lambda op: first_of(ap.parquet.scan(op, "t/", batch_rows=1000)),
    "of a dataset of Lance": lambda op: drained(ap.lance.scan(op, "ds")),
}


async def first_of(batches: Any) -> None:
    async for _ in batches:
        break
    await batches.aclose()


@pytest.mark.parametrize("occurrence", [0, 3, 6, 12, None])
@pytest.mark.parametrize("name", SCANS)
async def test_a_scan_whose_store_fails_leaves_nothing(name: str, occurrence: int | None, tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(range(50_000)), "x": pa.array([float(n) for n in range(50_000)])})
    (tmp_path / "t").mkdir()
    for number in range(4):
        pq.write_table(table, tmp_path / "t" / f"{number}.parquet", row_group_size=10_000)
    pytest.importorskip("lance").write_dataset(table, str(tmp_path / "ds"), max_rows_per_file=10_000)
    whole = ap.Operator.from_uri(f"file://{tmp_path}", block_bytes=BLOCK_BYTES)
    async with whole:

        async def call() -> None:
            plan = () if occurrence is None else (failing_read(occurrence),)
            await SCANS[name](whole.layer(FaultLayer(plan)))

        await dealt_with(call, times=1)
        with without_collector():
            held = await dealt_with(call, times=1)
            assert (held, frames_in(garbage())) == (0, [])


def failing_read(occurrence: int) -> Injection:
    return Injection(operation="read", occurrence=occurrence, times=None, error=ap.errors.PermissionDenied)


async def test_a_damaged_page_leaves_nothing() -> None:
    """The error of a decoder, which is another library's."""
    memory = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(range(50_000))}), memory, compression="zstd", use_dictionary=False)
    damaged = bytearray(memory.getvalue())
    damaged[2000:2200] = bytes(200)
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("damaged.parquet", bytes(damaged))
        with without_collector():
            held = await dealt_with(lambda: drained(ap.parquet.scan(op, "damaged.parquet")))
            assert (held, frames_in(garbage())) == (0, [])


def opened(op: ap.Operator) -> bytes:
    with ap.sync.open("missing", operator=op) as file:
        return file.read()


async def test_an_error_without_a_name_in_obspec_is_not_its_own_cause() -> None:
    plan = (Injection(operation="read", times=None, error=ap.errors.Unavailable),)
    async with ap.Operator.bare(ap.services.Memory()).layer(FaultLayer(plan)) as op:
        with pytest.raises(ap.errors.Unavailable) as caught:
            await ap.obspec.store(op).get_async("k")
        assert caught.value.__cause__ is not caught.value


SYNC: dict[str, Callable[[ap.Operator], object]] = {
    "read": lambda op: ap.sync.BlockingOperator(op).read("missing"),
    "read_at": lambda op: ap.sync.BlockingOperator(op).read_at("missing", 0, 10),
    "stat": lambda op: ap.sync.BlockingOperator(op).stat("missing"),
    "write": lambda op: ap.sync.BlockingOperator(op).write("k", b"", if_not_exists=True),
    "list": lambda op: list(ap.sync.BlockingOperator(op).list("missing/")),
    "open": opened,
    "copy": lambda op: ap.sync.copy((op, "missing/"), (op, "new/")),
    "scan": lambda op: list(ap.parquet.scan(op, "missing.parquet")),
    "fsspec open": lambda op: ap.fsspec.AioPrefetchFileSystem(op).open("missing", "rb").read(),
    "fsspec info": lambda op: ap.fsspec.AioPrefetchFileSystem(op).info("missing"),
    "fsspec ls": lambda op: ap.fsspec.AioPrefetchFileSystem(op).ls("missing"),
    "fsspec cp_file": lambda op: ap.fsspec.AioPrefetchFileSystem(op).cp_file("missing", "new"),
    "fsspec rm": lambda op: ap.fsspec.AioPrefetchFileSystem(op).rm("missing"),
    "arrow": lambda op: ap.arrow.filesystem(op).open_input_file("missing"),
    "obspec": lambda op: ap.obspec.store(op).get("missing"),
}


@each_of("name", SYNC)
def test_an_error_of_a_call_without_a_loop_leaves_nothing(name: str) -> None:
    op = ap.Operator.from_uri(f"memory://{name.replace(' ', '-')}")
    ap.sync.BlockingOperator(op).write("k", b"k")
    held = Locals()

    def caller() -> None:
        local = held.one()  # noqa: F841 - as long as this frame lives
        with suppress(ap.Error, FileNotFoundError):
            SYNC[name](op)

    caller()
    with without_collector():
        for _ in range(3):
            caller()
        assert (held.left(), frames_in(garbage())) == (0, [])
