"""Requests and bytes are counted for every service alike, also for one of another author, and once each."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

import aioprefetch as ap
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.layers.error_context import ErrorContextAccessor, ErrorContextLayer
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services import Fs, Memory, ObspecStore
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.values import (
    AbortUploadRequest,
    CompleteUploadRequest,
    CopyPartRequest,
    ListUploadsRequest,
    PartRequest,
    ReadReply,
    ReadRequest,
    UploadedPart,
    UploadPage,
    WriteRequest,
)
from tests.stores.dict_store import NEEDED, OPTIONAL, DictStore

DATA = bytes(range(100))
SHORT = {
    "get": "action_http_get_request",
    "head": "action_http_head_request",
    "list": "object_list_request",
    "put": "object_put_request",
    "copy": "object_copy_request",
    "delete": "object_delete_request",
    "read": "stream_read_total_bytes",
    "sent": "stream_write_bytes",
    "get failed": "action_http_get_request.failures",
    "head failed": "action_http_head_request.failures",
}
REQUESTS = ("get", "head", "list", "put", "copy", "delete")

STORES_OF_ALL = ["memory", "file", "obspec", "dict", "dict with all"]


def service_of(name: str, folder: Path) -> Any:
    """An empty store."""
    makes: dict[str, Callable[[], Any]] = {
        "memory": Memory,
        "file": lambda: Fs(str(folder)),
        "obspec": lambda: ObspecStore(MemoryStore()),
        "dict": DictStore,
        "dict with all": lambda: DictStore(can=NEEDED | OPTIONAL, recursive=True),
    }
    return makes[name]()


@pytest.fixture(params=STORES_OF_ALL)
async def op(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Operator]:
    """An Operator over each store, with an object of 100 bytes in it."""
    async with Operator(service_of(request.param, tmp_path)) as operator:
        await operator.write("k", DATA)
        yield operator


def counts_of(operator: Operator) -> dict[str, int]:
    """The counts of requests and bytes."""
    statistics = operator.statistics
    return {short: statistics[name] for short, name in SHORT.items()}


class Spent:
    """What was counted within a block; also that each request was an event, and each event a request."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._events = 0
        self.counts: dict[str, int] = {}

    def __enter__(self) -> "Spent":
        self._before = counts_of(self._operator)
        self._end = self._operator.events.subscribe(self._on_event, "request.started")
        return self

    def _on_event(self, event: object) -> None:
        self._events += 1

    def __exit__(self, *of_error: object) -> None:
        self._end()
        after = counts_of(self._operator)
        self.counts = {name: after[name] - before for name, before in self._before.items() if after[name] > before}
        assert self._events == sum(self.counts.get(name, 0) for name in REQUESTS)


async def listed(operator: Operator) -> None:
    """All names."""
    assert [entry.path async for entry in operator.list()] == ["k"]


async def streamed(operator: Operator) -> None:
    """An object in two pieces."""
    async with operator.writer("streamed") as writer:
        await writer.write(DATA[:60])
        await writer.write(DATA[60:])


CALLS: dict[str, tuple[Callable[[Operator], Any], dict[str, int]]] = {
    "read": (lambda op: op.read("k"), {"get": 1, "read": 100}),
    "range": (lambda op: op.read("k", offset=10, size=5), {"get": 1, "read": 5}),
    "nothing of it": (lambda op: op.read("k", size=0), {}),
    "ranges": (lambda op: op.read_ranges("k", [(0, 5), (50, 60)], gap_bytes=0), {"get": 2, "read": 15}),
    "missing": (lambda op: op.read("none"), {"get": 1, "get failed": 1}),
    "beyond": (lambda op: op.read("k", offset=100), {"get": 1, "get failed": 1}),
    "stat": (lambda op: op.stat("k"), {"head": 1}),
    "missing stat": (lambda op: op.stat("none"), {"head": 1, "head failed": 1}),
    "exists": (lambda op: op.exists("k"), {"head": 1}),
    "list": (listed, {"list": 1}),
    "write": (lambda op: op.write("w", DATA), {"put": 1, "sent": 100}),
    "write nothing": (lambda op: op.write("w", b""), {"put": 1}),
    "writer": (streamed, {"put": 1, "sent": 100}),
    "iterator": (lambda op: op.write("w", iter((DATA, DATA))), {"put": 1, "sent": 200}),
    "delete": (lambda op: op.delete("k"), {"delete": 1}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_counts(op: Operator, name: str) -> None:
    call, expected = CALLS[name]
    with Spent(op) as spent, pytest.raises(ap.Error) if "failed" in " ".join(expected) else nullcontext():
        await call(op)
    assert spent.counts == expected


async def test_a_copy_is_one_request_where_the_store_has_it(op: Operator) -> None:
    """Elsewhere it is what it is made of."""
    native = {"copy": 1} if op.info.scheme != "dict" else {"get": 1, "put": 1, "read": 100, "sent": 100}
    with Spent(op) as spent:
        await op.copy("k", "copied")
    assert spent.counts == native
    assert await op.read("copied") == DATA


async def test_a_suffix_is_what_the_store_is_asked_for(op: Operator) -> None:
    with Spent(op) as spent:
        assert await op.read("k", suffix=7) == DATA[-7:]
    is_emulated = spent.counts.pop("head", 0)
    assert spent.counts == {"get": 1, "read": 7}
    assert op.info.scheme == "dict" or not is_emulated


async def test_deletes_are_requests(op: Operator) -> None:
    """As many as the store needs for these paths."""
    await op.write("other", b"")
    with Spent(op) as spent:
        await op.delete(["k", "other"])
    assert spent.counts == {"delete": 2 if op.info.scheme == "dict" else 1}


async def test_readers_count_for_themselves(op: Operator, tmp_path: Path) -> None:
    """One request for a small object, however it is read; what is resident costs none."""
    with Spent(op) as spent:
        async with op.reader("k") as reader:
            assert await reader.read_at(50, 10) == DATA[50:60]
            assert await reader.read() == DATA
            assert reader.statistics["action_http_get_request"] == 1
            assert reader.statistics["stream_read_total_bytes"] == 100
    assert spent.counts == {"get": 1, "read": 100}


async def test_transfers_count(op: Operator, tmp_path: Path) -> None:
    with Spent(op) as spent:
        await op.download("k", tmp_path / "down")
    assert spent.counts["read"] == 100
    with Spent(op) as spent:
        await op.upload(tmp_path / "down", "up")
    assert (spent.counts["put"], spent.counts["sent"]) == (1, 100)
    assert await op.read("up") == DATA


async def test_what_a_cache_has_is_no_request(op: Operator) -> None:
    async with Operator(Memory()) as cache:
        cached = op.layer(LruCacheLayer(cache=cache, revalidate_seconds=3600))
        assert await cached.read("k") == DATA
        with Spent(op) as spent:
            assert await cached.read("k") == DATA
            assert await cached.read("k", offset=5, size=5) == DATA[5:10]
        assert spent.counts == {}


async def test_each_attempt_is_a_request(op: Operator) -> None:
    """It has not failed if its head came; its bytes count either way."""
    if op.info.scheme == "obspec":
        return  # It counts its reads itself, within the fault.
    for at, failures, received in (("call", 1, 100), (40, 0, 100)):
        plan = (Injection(operation="read", at=at, error=ap.Unavailable),)  # type: ignore[arg-type]
        broken = op.layer(FaultLayer(plan), inside=ErrorContextLayer)
        with Spent(op) as spent:
            assert await broken.read("k") == DATA
        assert spent.counts.pop("get failed", 0) == failures
        assert spent.counts == {"get": 2, "read": received}


async def test_a_cancelled_read_is_neither_success_nor_failure(op: Operator) -> None:
    # A store of obspec counts its reads itself, within the fault, and its threads answer no earlier than the next turn.
    plan = () if op.info.scheme == "obspec" else (Injection(operation="read", hang=True),)
    broken = op.layer(FaultLayer(plan), inside=ErrorContextLayer)
    started = asyncio.Event()
    op.events.subscribe(lambda event: started.set(), "request.started")
    reading = asyncio.ensure_future(broken.read("k"))
    await started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    counts = op.statistics
    assert counts["action_http_get_request"] == 1
    assert (counts["action_http_get_request.failures"], counts["action_http_get_request.max"]) == (0, 0)


async def test_a_write_that_is_left_before_its_first_byte_is_none(op: Operator) -> None:
    """One that is left later is one."""
    for pieces, expected in (([], {}), ([DATA], {"put": 1})):
        with Spent(op) as spent:
            body = await op.accessor().open_write(WriteRequest(path="w"))
            for piece in pieces:
                await body.write(piece)
            await body.abort()
            await body.abort()
        counted = spent.counts if op.capability.write_stream and op.info.scheme != "dict" else expected
        assert counted == expected
    assert not await op.exists("w")


# --- what a service says ----------------------------------------------------------------------------------------------


class InParts(ServiceAccessor):
    """Takes parts, and keeps nothing."""

    async def begin_upload(self, request: WriteRequest) -> str:
        return "u"

    async def write_part(self, request: PartRequest, data: bytes | bytearray | memoryview) -> UploadedPart:
        return UploadedPart(number=request.number, etag="e", size=len(data))

    async def copy_part(self, request: CopyPartRequest) -> UploadedPart:
        return UploadedPart(number=request.number, etag="e", size=0)

    async def complete_upload(self, request: CompleteUploadRequest) -> Any:
        return None

    async def abort_upload(self, request: AbortUploadRequest) -> None:
        return None

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        return UploadPage(uploads=())


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime, closed after the test."""
    live = Runtime(RuntimeOptions())
    yield live
    await live.aclose()


async def test_uploads_in_parts_are_counted_by_their_steps(runtime: Runtime) -> None:
    accessor = ErrorContextAccessor(InParts(ap.ServiceInfo(scheme="parts"), ap.Capability(), runtime), runtime)
    operations = []
    runtime.events.subscribe(lambda event: operations.append(event.facts["operation"]), "request.started")
    upload = await accessor.begin_upload(WriteRequest(path="k"))
    part = await accessor.write_part(PartRequest(path="k", upload_id=upload, number=1), DATA)
    await accessor.copy_part(CopyPartRequest(path="k", upload_id=upload, number=2, source="s", start=0, end=5))
    await accessor.complete_upload(CompleteUploadRequest(path="k", upload_id=upload, parts=(part,)))
    await accessor.abort_upload(AbortUploadRequest(path="k", upload_id=upload))
    await accessor.list_uploads(ListUploadsRequest(path=""))
    assert {name: count for name, count in runtime.counters.items() if count} == {
        "object_multipart_initiated": 1,
        "object_put_request": 1,
        "stream_write_bytes": 100,
        "object_copy_request": 1,
        "multipart_upload_completed": 1,
        "object_multipart_aborted": 1,
        "object_multipart_list": 1,
    }
    assert operations == ["begin_upload", "write", "copy", "complete_upload", "abort_upload", "list_uploads"]


class CountsItself(ServiceAccessor):
    """Says that it counts and reports reads."""

    reports_requests = frozenset(("read",))

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        head = ap.accessor.check_range(request, total=len(DATA), etag="e")
        sink.begin(head, path=request.path)
        sink.feed(DATA[head.start : head.end])
        return ReadReply(head=head, received=head.size)


async def test_a_service_may_count_itself(runtime: Runtime) -> None:
    """What it names is left to it; the rest is not."""
    accessor = ErrorContextAccessor(CountsItself(ap.ServiceInfo(scheme="own"), ap.Capability(), runtime), runtime)
    sink = CollectSink()
    await accessor.read(ReadRequest(path="k"), sink)
    assert sink.to_bytes() == DATA
    with pytest.raises(ap.Unsupported):
        await accessor.stat(ap.values.StatRequest(path="k"))
    assert {name: count for name, count in runtime.counters.items() if count} == {
        "action_http_head_request": 1,
        "action_http_head_request.failures": 1,
    }
