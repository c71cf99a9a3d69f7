"""Objects into local files: whole or not at all after any failure, by parallel requests or in one response."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

import aioprefetch as ap
from aioprefetch.accessor.protocols import Layer
from aioprefetch.errors import (
    Closed,
    InvalidPath,
    InvalidType,
    IsADirectory,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    Unexpected,
)
from aioprefetch.layers import LruCacheLayer, RetryLayer
from aioprefetch.local_files.threads import FileThreads
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Injection, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.verbs.resumable_file import ResumableFile
from tests.profile import chosen, combinations
from tests.stores.certificates import Authority
from tests.stores.gated_reader import KIB, MIB, bench, in_case, settle
from tests.stores.layer_stack import was_cancelled
from tests.unit.verbs.test_parallel_read import BLOCK, REQUESTS, SIZE, FirstParts, nothing_left, parted


def names_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.mark.parametrize("size", [0, 1, 2 * BLOCK, 2 * BLOCK + 1, SIZE])
async def test_the_file_has_the_bytes_of_the_object(tmp_path: Path, size: int) -> None:
    """Of any size; nothing else is in its directory, and the progress adds up."""
    target, counts = tmp_path / "file", list[int]()
    target.write_bytes(b"what was there before")
    async with parted(size) as b:
        metadata = await b.operator.download("k", target, on_progress=counts.append)
        assert target.read_bytes() == b.data
        assert metadata == ap.values.Metadata(
            path="k",
            size=size,
            etag=(await b.operator.stat("k")).etag,
            last_modified=(await b.operator.stat("k")).last_modified,
            content_type=metadata.content_type,
        )
        assert sum(counts) == size
        assert names_in(tmp_path) == ["file"]
        assert len(b.calls) == (1 if size <= 2 * BLOCK else min(REQUESTS, 1 + -(-(size - 2 * BLOCK) // BLOCK)))
        await nothing_left(b)


@checks("reliability:W31")
async def test_the_mode_is_that_of_a_new_file_or_of_the_replaced_one(tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    (tmp_path / "script").touch(0o750)
    async with parted() as b:
        await b.operator.download("k", str(tmp_path / "file"))
        await b.operator.download("k", tmp_path / "script")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "new").stat().st_mode
    assert (tmp_path / "script").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "script").stat().st_size == SIZE


def descriptors_below(directory: Path) -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.exists(link) and os.readlink(link).startswith(str(directory))]


class HeldWrites:
    """Holds every ``os.pwrite`` in its thread until ``go`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go, self.ended = threading.Event(), threading.Event(), 0
        write = os.pwrite

        def held(descriptor: int, data: Any, offset: int) -> int:
            self.reached.set()
            self.go.wait()
            count = write(descriptor, data, offset)  # Fails where the descriptor was closed meanwhile.
            self.ended += 1
            return count

        monkeypatch.setattr(os, "pwrite", held)

    async def until_reached(self) -> None:
        await asyncio.to_thread(self.reached.wait)


@checks("reliability:W42")
@pytest.mark.parametrize("layers", [(), (FirstParts(),)], ids=["one response", "parallel"])
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the kernel lists no descriptors")
async def test_an_operator_that_is_closed_meanwhile_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: tuple[Layer, ...]
) -> None:
    writes = HeldWrites(monkeypatch)
    async with bench(SIZE, layers=list(layers), block_bytes=BLOCK) as b:
        downloading = asyncio.create_task(b.operator.download("k", tmp_path / "file"))
        await writes.until_reached()
        await b.operator.aclose()
        writes.go.set()
        with pytest.raises(Closed) as closed:
            await downloading
    assert (closed.value.operation, closed.value.path) == ("download", "k")
    assert names_in(tmp_path) == [] == descriptors_below(tmp_path)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the kernel lists no descriptors")
def test_the_end_of_the_loop_waits_for_the_writing_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = HeldWrites(monkeypatch)

    async def main() -> None:
        operator = ap.Operator.from_uri("memory://loop-ends", block_bytes=64 * KIB)
        await operator.write("k", bytes(MIB))
        tasks.append(asyncio.create_task(operator.download("k", tmp_path / "file")))
        await writes.until_reached()
        asyncio.get_running_loop().call_later(0.01, writes.go.set)

    tasks: list[asyncio.Task[Any]] = []
    asyncio.run(main())
    assert tasks[0].cancelled()
    assert writes.ended > 0
    assert names_in(tmp_path) == [] == descriptors_below(tmp_path)


@pytest.mark.parametrize("point", ["call", "head", 100])
async def test_whichever_request_fails_the_target_stays_as_it_was(tmp_path: Path, point: Any) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=PermissionDenied),))
        async with parted(layers=(fault,)) as b:
            with in_case(number=number), pytest.raises(PermissionDenied) as failed:
                await b.operator.download("k", target)
            assert failed.value.operation == "download"
            assert target.read_bytes() == b"before"
            assert names_in(tmp_path) == ["file"]
            await nothing_left(b)


@pytest.mark.parametrize("point", chosen(quick=[100], full=["call", "head", 100]))
async def test_any_request_may_fail_for_a_while(tmp_path: Path, point: Any) -> None:
    for number in range(REQUESTS):
        fault = FaultLayer((Injection(operation="read", occurrence=number, at=point, error=ap.Unavailable),))
        async with parted(layers=(fault, RetryLayer(base_seconds=1e-6))) as b:
            counts: list[int] = []
            with in_case(number=number):
                await b.operator.download("k", tmp_path / "file", on_progress=counts.append)
                assert (tmp_path / "file").read_bytes() == b.data
                assert sum(counts) == SIZE
            await nothing_left(b)


@checks("reliability:W39")
async def test_cancelled_at_every_suspension_the_file_is_whole_or_not_there(tmp_path: Path) -> None:
    suspension, cancelled = 0, True
    target = tmp_path / "file"
    while cancelled:
        suspension += 1
        assert suspension < 500
        async with parted(6 * BLOCK, layers=(FaultLayer(chunk_bytes=3000),)) as b:
            cancelled = await was_cancelled(b.operator.download("k", target), suspension)
            assert names_in(tmp_path) in ([], ["file"])
            if target.exists():
                assert target.read_bytes() == b.data
                target.unlink()
            else:
                assert cancelled
            await nothing_left(b)
    assert suspension > 5


async def test_cancelled_before_its_last_step_it_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that would put it in place cannot be stopped, but learns of it."""
    place, reached, go = ResumableFile.place, threading.Event(), threading.Event()

    def held(file: ResumableFile, lock: threading.Lock) -> os.stat_result:
        reached.set()
        go.wait()
        return place(file, lock)

    monkeypatch.setattr(ResumableFile, "place", held)
    (tmp_path / "file").write_bytes(b"old")
    async with parted() as b:
        downloading = asyncio.create_task(b.operator.download("k", tmp_path / "file"))
        await asyncio.to_thread(reached.wait)
        downloading.cancel()
        await settle()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await downloading
        assert names_in(tmp_path) == ["file"]
        assert (tmp_path / "file").read_bytes() == b"old"
        await nothing_left(b)


@checks("reliability:W14")
@pytest.mark.parametrize(("same_size", "ignores_conditions"), combinations([True, False], [True, False]))
async def test_an_object_that_is_overwritten_meanwhile_is_not_written(
    tmp_path: Path, same_size: bool, ignores_conditions: bool
) -> None:
    """Between any two requests, also if the store ignores conditions."""
    for number in range(1, REQUESTS):
        async with parted() as b:
            b.gate.open = False
            b.gate.ignores_conditions = ignores_conditions
            downloading = asyncio.create_task(b.operator.download("k", tmp_path / "file"))
            (await b.next_call()).deliver(10)
            await settle()
            for call in b.calls[1:number]:
                call.finish()
            await settle()
            b.put(bytes(SIZE if same_size else SIZE // 4))
            for call in b.calls:
                call.finish()
            with in_case(number=number), pytest.raises(ObjectChanged):
                await downloading
            assert names_in(tmp_path) == []
            await nothing_left(b)


@checks("reliability:W34", "reliability:W35")
async def test_a_full_disk_is_an_error_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write meets it."""
    write, calls = os.pwrite, 0

    def failing(at: int) -> Callable[[int, Any, int], int]:
        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            nonlocal calls
            calls += 1
            if calls > at:
                raise OSError(errno.ENOSPC, "full")
            return write(descriptor, data[:1000], offset)  # As some file systems do: a part of it.

        return pwrite

    for at in (0, 1, 5, 40):
        calls = 0
        async with parted() as b:
            monkeypatch.setattr(os, "pwrite", failing(at))
            with in_case(at=at), pytest.raises(Unexpected, match="full"):
                await b.operator.download("k", tmp_path / "file")
            monkeypatch.undo()
            assert names_in(tmp_path) == []
            await nothing_left(b)


class LateFuture(asyncio.Future[Any]):
    """Is done some turns of the loop before the first of its callbacks is called; all others are called in time."""

    turns = 10

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        turns, self.turns = self.turns, 0

        def call(done: Any, turns: int = turns) -> None:
            if turns:
                self.get_loop().call_soon(call, done, turns - 1, context=context)
            else:
                callback(done)

        super().add_done_callback(call if turns else callback, context=context)


@pytest.fixture
def late_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is on the disk at once, and the download learns of it late."""

    def call(self: FileThreads, call: Callable[..., object], *arguments: object) -> LateFuture:
        future = LateFuture()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    monkeypatch.setattr(FileThreads, "call", call)


@pytest.mark.usefixtures("late_writes")
async def test_all_bytes_are_reported_before_a_download_returns(tmp_path: Path) -> None:
    counts = list[int]()
    async with bench(SIZE, block_bytes=BLOCK) as b:
        await b.operator.download("k", tmp_path / "file", on_progress=counts.append)
        assert (len(b.calls), sum(counts)) == (1, SIZE)
        assert b.runtime.budget.used_bytes == 0


@pytest.mark.usefixtures("late_writes")
async def test_the_failure_of_the_last_write_fails_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if offset + len(data) == SIZE:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    async with bench(SIZE, block_bytes=BLOCK, memory_bytes=6 * BLOCK) as b:
        with pytest.raises(Unexpected, match="full"):
            await b.operator.download("k", tmp_path / "file")
    assert names_in(tmp_path) == []


async def test_a_target_that_cannot_be_written_is_refused_before_a_request(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "directory")
    async with parted() as b:
        cases: list[tuple[Any, type[Exception]]] = [
            (tmp_path / "directory", IsADirectory),
            (f"{tmp_path}/directory/", IsADirectory),
            ("", IsADirectory),
            (tmp_path / "link", InvalidPath),
            (tmp_path / "missing" / "file", NotFound),
            (3, InvalidType),
            (b"bytes", InvalidType),
            ("a\0b", InvalidPath),
            (f"{tmp_path}/\ud800", InvalidPath),
            ("/dev/null", InvalidPath),
        ]
        for target, error in cases:
            with in_case(target=target), pytest.raises(error) as refused:
                await b.operator.download("k", target)
            assert refused.value.operation == "download"  # type: ignore[attr-defined]
            assert refused.value.path == "k"  # type: ignore[attr-defined]
        assert b.calls == []
        with pytest.raises(NotFound):
            await b.operator.download("nothing", tmp_path / "file")
        assert names_in(tmp_path) == ["directory", "link"]


async def from_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "k").write_bytes(data)
    async with ap.Operator.from_uri(f"file://{tmp_path}", block_bytes=64 * KIB) as operator:
        await operator.download("k", tmp_path / "file")


async def from_a_server_without_ranges(tmp_path: Path, data: bytes) -> None:
    rule = Rule(fault=Fault(ignore_range=True), times=None)
    async with FaultServer({"bkt/k": data}, [rule]) as server:
        async with ap.Operator.from_uri(f"{server.url}/bkt", block_bytes=64 * KIB) as operator:
            await operator.download("k", tmp_path / "file")
        server.assert_requests("GET")


async def from_memory(tmp_path: Path, data: bytes) -> None:
    async with ap.Operator.from_uri("memory://one-response", block_bytes=64 * KIB) as operator:
        await operator.write("k", data)
        await operator.download("k", tmp_path / "file")
        assert operator.runtime().budget.used_bytes == 0


@pytest.mark.parametrize("way", [from_files, from_a_server_without_ranges, from_memory])
async def test_one_response_is_written_piece_by_piece(
    way: Callable[[Path, bytes], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not kept until its end."""
    data = bytes(range(256)) * (40 * MIB // 256) + b"end"
    sizes: list[int] = []
    write = os.pwrite

    def pwrite(descriptor: int, piece: Any, offset: int) -> int:
        sizes.append(len(piece))
        return write(descriptor, piece, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    await way(tmp_path, data)
    assert (tmp_path / "file").read_bytes() == data
    assert max(sizes) == 8 * MIB


# One response brings the whole object: it has no more than two blocks of this size.
LARGE_BLOCK = 32 * MIB


async def over_tls(tmp_path: Path, data: bytes) -> None:
    authority = Authority(tmp_path)
    async with (
        FaultServer({"k": data}, tls=authority.context("127.0.0.1")) as server,
        ap.Operator.from_uri(server.url, block_bytes=LARGE_BLOCK, ca_bundle=str(authority.bundle)) as operator,
    ):
        await operator.download("k", tmp_path / "file")


S3_KEYS: dict[str, Any] = {"region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}


async def from_s3(tmp_path: Path, data: bytes) -> None:
    async with (
        FaultServer({"bkt/k": data}) as server,
        ap.Operator.from_uri("s3://bkt", block_bytes=LARGE_BLOCK, endpoint_url=server.url, **S3_KEYS) as operator,
    ):
        await operator.download("k", tmp_path / "file")
        assert len(server.requests) == 1


async def from_s3_through_a_relay(tmp_path: Path, data: bytes) -> None:
    async with (
        FaultServer({"bkt/k": data}) as server,
        ap.Operator.from_uri("memory://") as cache,
        cached("s3://bkt", cache, object_bytes_max=48 * MIB, endpoint_url=server.url, **S3_KEYS) as operator,
    ):
        await operator.download("k", tmp_path / "file")
        assert len(server.requests) == 2


async def through_obspec(tmp_path: Path, data: bytes) -> None:
    store = MemoryStore()
    await store.put_async("k", data)
    async with ap.Operator(ap.services.ObspecStore(store), block_bytes=LARGE_BLOCK) as operator:
        await operator.download("k", tmp_path / "file")


@asynccontextmanager
async def cached(
    store: str, cache: ap.Operator, *, object_bytes_max: int = 64 * MIB, **options: Any
) -> AsyncIterator[ap.Operator]:
    """An operator with a cache."""
    layer = LruCacheLayer(cache=cache, capacity_bytes=256 * MIB, object_bytes_max=object_bytes_max)
    async with ap.Operator.from_uri(store, block_bytes=LARGE_BLOCK, **options).layer(layer) as operator:
        yield operator


async def through_a_fill(tmp_path: Path, data: bytes) -> None:
    """Out of the memory of the object that is on its way into the cache."""
    async with (
        FaultServer({"k": data}) as server,
        ap.Operator.from_uri("memory://") as cache,
        cached(server.url, cache) as operator,
    ):
        await operator.download("k", tmp_path / "file")
        assert operator.statistics["cache_misses"] == 1


async def from_a_cache(tmp_path: Path, data: bytes) -> None:
    async with FaultServer({"k": data}) as server, ap.Operator.from_uri("memory://") as cache:
        async with cached(server.url, cache) as operator:
            assert await operator.read("k") == data
        async with cached(server.url, cache) as operator:
            await operator.download("k", tmp_path / "file")
            assert operator.statistics["cache_hits"] == 1


async def through_a_relay(tmp_path: Path, data: bytes) -> None:
    """A response that is too large for the cache continues into the download; another one brings the rest."""
    async with (
        FaultServer({"k": data}) as server,
        ap.Operator.from_uri("memory://") as cache,
        cached(server.url, cache, object_bytes_max=48 * MIB) as operator,
    ):
        await operator.download("k", tmp_path / "file")
        assert len(server.requests) == 2


async def behind_a_relay_without_ranges(tmp_path: Path, data: bytes) -> None:
    """The rest comes from a server that sends all of the object again, of which the beginning is skipped."""
    rule = Rule(fault=Fault(ignore_range=True), times=None)
    async with (
        FaultServer({"k": data}, [rule]) as server,
        ap.Operator.from_uri("memory://") as cache,
        cached(server.url, cache, object_bytes_max=MIB) as operator,
    ):
        await operator.download("k", tmp_path / "file")
        assert len(server.requests) == 2


PACED_WAYS = [
    *(from_files, from_a_server_without_ranges, from_memory, over_tls, from_s3, through_obspec),
    *(through_a_fill, from_a_cache, through_a_relay, from_s3_through_a_relay, behind_a_relay_without_ranges),
]


@pytest.mark.parametrize("way", PACED_WAYS)
async def test_one_response_waits_for_a_slow_disk_and_the_loop_does_not(
    way: Callable[[Path, bytes], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no write ends, the loop goes on, and no more than a few pieces are begun."""
    data = bytes(range(256)) * (56 * MIB // 256)
    writes = HeldWrites(monkeypatch)
    sizes: list[int] = []
    second = threading.Event()
    call = FileThreads.call

    def counted(threads: FileThreads, job: Any, *arguments: Any) -> Any:
        sizes.extend(len(argument) for argument in arguments if isinstance(argument, memoryview))
        if len(sizes) == 2:
            second.set()
        return call(threads, job, *arguments)

    monkeypatch.setattr(FileThreads, "call", counted)
    downloading = asyncio.ensure_future(way(tmp_path, data))

    def end_the_waits(_: object) -> None:  # Also after a failure.
        for event in (writes.reached, second, writes.go):
            event.set()

    downloading.add_done_callback(end_the_waits)
    try:
        await writes.until_reached()
        for _ in range(300):
            await asyncio.sleep(0)
        await asyncio.to_thread(second.wait)
        for _ in range(300):
            await asyncio.sleep(0)
        if downloading.done():
            await downloading
        assert not downloading.done()
        assert sizes == [8 * MIB] * 2
    finally:
        writes.go.set()
    await downloading
    assert (tmp_path / "file").read_bytes() == data
    assert sum(sizes) == len(data)


def test_without_a_loop(tmp_path: Path) -> None:
    with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://downloaded")) as operator:
        operator.write("k", b"abc")
        assert operator.download("k", tmp_path / "file").size == 3
    assert (tmp_path / "file").read_bytes() == b"abc"
