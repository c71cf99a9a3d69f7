"""Long reads of objects whose version nothing proves: all bytes come from one response."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import Error, PermissionDenied, ProtocolError, Unavailable
from aioprefetch.layers import LruCacheLayer, RetryLayer
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Injection, Rule
from aioprefetch.testing.fault_layer import Point
from aioprefetch.values import Capability, ReadReply, ReadRequest
from tests.profile import chosen, each_of
from tests.stores.gated_reader import KIB, Bench, in_case
from tests.stores.layer_stack import was_cancelled
from tests.stores.verb_layer import VerbLayer
from tests.unit.verbs.test_parallel_read import BLOCK, DATA, REQUESTS, WAYS, Way, http, nothing_left, parted

OTHER = DATA[::-1]
NOTHING = {"ETag": None, "Last-Modified": None}
WEAK = {"ETag": 'W/"x"'}
TIME = {"ETag": None}  # The server sends Last-Modified, the same one for each version.
STRONG = {"ETag": '"x"'}


async def by_read(operator: ap.Operator, directory: Path) -> bytes:
    return await operator.read("k")


async def by_view(operator: ap.Operator, directory: Path) -> bytes:
    return bytes(await operator.view("k"))


async def by_read_into(operator: ap.Operator, directory: Path) -> bytes:
    buffer = bytearray(len(DATA) + 100)
    return bytes(buffer[: await operator.read_into("k", 0, buffer)])


async def by_download(operator: ap.Operator, directory: Path) -> bytes:
    size = (await operator.download("k", directory / "file")).size
    assert (directory / "file").stat().st_size == size
    return (directory / "file").read_bytes()


OVER_HTTP = [by_read, by_view, by_read_into, by_download]


@pytest.mark.parametrize("headers", [NOTHING, WEAK, TIME])
@pytest.mark.parametrize("way", OVER_HTTP)
async def test_an_object_overwritten_between_two_requests_is_never_mixed(
    way: Callable[[ap.Operator, Path], Awaitable[bytes]], headers: dict[str, str | None], tmp_path: Path
) -> None:
    """At the same size, so that no head shows it."""
    for number in (1, 2, 5):
        async with FaultServer({"bkt/k": DATA}) as server, http(server) as operator:

            def overwritten(request: Any, number: int = number, server: FaultServer = server) -> bool:
                if request.index == number:
                    server.objects["bkt/k"] = OTHER
                return True

            server.add(Rule(fault=Fault(headers=headers), matches=overwritten, times=None))
            with in_case(number=number):
                assert await way(operator, tmp_path) == (OTHER if number == 1 else DATA)
            server.assert_requests("GET", "GET")


@pytest.mark.parametrize("way", OVER_HTTP)
async def test_parts_of_a_strong_etag_are_requested_side_by_side(
    way: Callable[[ap.Operator, Path], Awaitable[bytes]], tmp_path: Path
) -> None:
    rule = Rule(fault=Fault(headers=STRONG, ignore_if_match=True), times=None)
    async with FaultServer({"bkt/k": DATA}, [rule]) as server, http(server) as operator:
        assert await way(operator, tmp_path) == DATA
        assert server.count("GET") == 15
        assert server.bytes_sent == len(DATA)


@pytest.mark.parametrize("headers", [NOTHING, WEAK, TIME])
async def test_the_second_request_is_for_all_that_is_wanted(headers: dict[str, str | None]) -> None:
    rule = Rule(fault=Fault(headers=headers), times=None)
    async with FaultServer({"bkt/k": DATA}, [rule]) as server, http(server) as operator:
        assert await operator.read("k") == DATA
        assert await operator.read("k", offset=10) == DATA[10:]
        assert await operator.view("k", offset=10, size=40 * KIB) == DATA[10 : 10 + 40 * KIB]
        assert await operator.read("k", suffix=40 * KIB) == DATA[-40 * KIB :]
        server.assert_ranges(
            *("bytes=0-32767", None),
            *("bytes=10-32777", "bytes=10-"),
            *("bytes=10-32777", "bytes=10-40969"),
            *("bytes=-32768", "bytes=-40960"),
        )


def cached(operator: ap.Operator) -> ap.Operator:
    """With a cache that never asks the store for what it has."""
    cache = ap.Operator.from_uri("memory://")
    return operator.layer(LruCacheLayer(cache=cache, capacity_bytes=1 << 24, revalidate_seconds=None))


@pytest.mark.parametrize("headers", [NOTHING, WEAK, TIME])
@pytest.mark.parametrize("way", OVER_HTTP)
@pytest.mark.parametrize("blocks", [1, 15])
@pytest.mark.parametrize("is_cached", [False, True])
async def test_a_body_that_breaks_begins_again(
    is_cached: bool,
    blocks: int,
    way: Callable[[ap.Operator, Path], Awaitable[bytes]],
    headers: dict[str, str | None],
    tmp_path: Path,
) -> None:
    """Of the version that is there now, whether it was overwritten, longer or shorter, or not.

    On its way into a cache it breaks three times, and is read past it. The next read puts what is there into it;
    without an ETag nothing is.
    """
    data = DATA[: blocks * 16 * KIB]
    first, times = (0, 3) if is_cached else (int(blocks > 1), 1)
    for other in (data, data[::-1], data[::-1][: 3 * KIB], data[::-1] + b"more"):
        async with (
            FaultServer({"bkt/k": data}) as server,
            cached(http(server)) if is_cached else http(server) as operator,
        ):

            def broken(request: Any, server: FaultServer = server, other: bytes = other) -> bool:
                if request.index == first + times:
                    server.objects["bkt/k"] = other
                return bool(first <= request.index < first + times)

            server.add(
                Rule(fault=Fault(headers=headers, close_after_bytes=len(data) - 5000), matches=broken, times=None),
                Rule(fault=Fault(headers=headers), times=None),
            )
            with in_case(size=len(other), is_same=other == data):
                if is_cached:
                    while server.count() < 4:
                        found = await way(operator, tmp_path)
                    assert found == other
                    assert await operator.read("k") == other
                    count = server.count()
                    assert await operator.read("k") == other
                    assert (server.count() == count) == (headers is not NOTHING)
                    continue
                assert await way(operator, tmp_path) == other
                assert operator.statistics["retries"] == times
                assert operator.statistics["retries_resumed"] == 0
                assert server.requests[-1].range == server.requests[first].range


@pytest.mark.parametrize("headers", [NOTHING, WEAK])
async def test_all_reads_of_a_body_that_breaks_begin_again(headers: dict[str, str | None]) -> None:
    """Those with bytes of it, those without, and one that is cancelled meanwhile."""
    rules = [
        Rule(fault=Fault(headers=headers, close_after_bytes=len(DATA) - 5000), times=2),
        Rule(fault=Fault(headers=headers), times=None),
    ]
    for steps in range(0, chosen(quick=200, full=1000), chosen(quick=7, full=5, search=1)):
        async with FaultServer({"bkt/k": DATA}, rules) as server, cached(http(server)) as operator:
            given_up = asyncio.ensure_future(operator.read("k"))
            reads = [
                asyncio.ensure_future(operator.read("k")),
                asyncio.ensure_future(operator.read("k", offset=10, size=1000)),
                asyncio.ensure_future(operator.read("k", suffix=2000)),
            ]
            for _ in range(steps):
                await asyncio.sleep(0)
            given_up.cancel()
            with in_case(steps=steps):
                assert await asyncio.gather(*reads) == [DATA, DATA[10:1010], DATA[-2000:]]
                assert len(server.requests) <= 7
            await asyncio.gather(given_up, return_exceptions=True)
            runtime = operator.runtime()
        assert runtime.budget.used_bytes == 0


async def test_progress_of_a_download_counts_no_byte_twice(tmp_path: Path) -> None:
    rules = [
        Rule(fault=Fault(headers=WEAK, close_after_bytes=100_000), index=1),
        Rule(fault=Fault(headers=WEAK, close_after_bytes=60_000), index=2),
        Rule(fault=Fault(headers=WEAK), times=None),
    ]
    async with FaultServer({"bkt/k": DATA}, rules) as server, http(server, memory_bytes=96 * KIB) as operator:
        reported: list[int] = []
        await operator.download("k", tmp_path / "file", on_progress=reported.append)
        assert (tmp_path / "file").read_bytes() == DATA
        assert sum(reported) == len(DATA)
        assert operator.statistics["retries"] == 2


async def test_progress_of_a_download_that_becomes_shorter_is_its_size(tmp_path: Path) -> None:
    """The surplus of the longer object is taken back."""
    rules = [
        Rule(fault=Fault(headers=WEAK, close_after_bytes=100_000), index=1),
        Rule(fault=Fault(headers=WEAK, body=DATA[:40_000]), times=None, index=2),
        Rule(fault=Fault(headers=WEAK), times=None),
    ]
    async with FaultServer({"bkt/k": DATA}, rules) as server, http(server, memory_bytes=96 * KIB) as operator:
        reported: list[int] = []
        await operator.download("k", tmp_path / "file", on_progress=reported.append)
        assert (tmp_path / "file").read_bytes() == DATA[:40_000]
        assert sum(reported) == 40_000
        assert [count for count in reported if count < 0] == reported[-1:]


@pytest.mark.parametrize("is_cached", [False, True])
async def test_a_body_that_breaks_under_a_reader_is_continued_by_comparison(is_cached: bool) -> None:
    """As with the next request of a reader: what can be compared is, and without that the read fails."""
    for headers, resumes in ((WEAK, True), (TIME, True), (NOTHING, False)):
        rules = [
            Rule(fault=Fault(headers=headers, close_after_bytes=9000), index=int(is_cached and not resumes)),
            Rule(fault=Fault(headers=headers), times=None),
        ]
        async with (
            FaultServer({"bkt/k": DATA}, rules) as server,
            cached(http(server)) if is_cached else http(server) as operator,
            operator.reader("k", policy="sequential", prefetch_blocks=0) as reader,
        ):
            first = await reader.read_at(0, 100)
            with in_case(headers=headers):
                if resumes:
                    assert first + await reader.read_at(100, 16 * KIB - 100) == DATA[: 16 * KIB]
                    assert is_cached or server.requests[1].range == "bytes=9000-16383"
                else:
                    with pytest.raises(Unavailable, match="neither a strong ETag nor a version id"):
                        await reader.read_at(100, 16 * KIB - 100)


@pytest.mark.parametrize("headers", [NOTHING, WEAK, TIME])
async def test_up_to_two_blocks_are_one_request(headers: dict[str, str | None]) -> None:
    rule = Rule(fault=Fault(headers=headers), times=None)
    async with FaultServer({"bkt/k": DATA[: 32 * KIB]}, [rule]) as server, http(server) as operator:
        assert await operator.read("k") == DATA[: 32 * KIB]
        server.assert_requests("GET")


async def test_the_second_response_may_be_of_an_object_of_another_size() -> None:
    """Longer, short, or empty: it is what is there now."""
    for other in (OTHER + OTHER, OTHER[: 3 * KIB], b""):
        async with FaultServer({"bkt/k": DATA}) as server, http(server) as operator:

            def overwritten(request: Any, server: FaultServer = server, other: bytes = other) -> bool:
                if request.index == 1:
                    server.objects["bkt/k"] = other
                return True

            server.add(Rule(fault=Fault(headers=WEAK), matches=overwritten, times=None))
            with in_case(size=len(other)):
                assert await operator.read("k") == other


# --- behind a gate --------------------------------------------------------------------------------------------------

WITHOUT_ETAG = Injection(operation="read", times=None, etag="")
ANONYMOUS = FaultLayer((WITHOUT_ETAG,))


def failing(number: int, point: Point, error: type[Error]) -> FaultLayer:
    """No ETags, and one failure of the request of this number."""
    return FaultLayer((WITHOUT_ETAG, Injection(operation="read", occurrence=number, at=point, error=error)))


@each_of("way", WAYS)
@each_of("point", ["call", "head", 100])
async def test_the_failure_of_either_request_is_raised(way: Way, point: Point) -> None:
    """No byte of the first response is received, so it cannot fail there."""
    for number in range(1 if point == 100 else 0, 2):
        async with parted(layers=(failing(number, point, PermissionDenied),)) as b:
            with in_case(number=number), pytest.raises(PermissionDenied):
                await way(b)
            await nothing_left(b)
            b.calls.clear()
            assert await way(b) == b.data
            assert len(b.calls) == 2


@each_of("way", WAYS)
@each_of("point", ["call", "head"])
async def test_either_request_may_fail_for_a_while(way: Way, point: Point) -> None:
    for number in range(2):
        layers = (failing(number, point, Unavailable), RetryLayer(base_seconds=1e-6))
        async with parted(layers=layers) as b:
            with in_case(number=number):
                assert await way(b) == b.data
            assert len(b.calls) == 2 + (point != "call")
            assert b.operator.statistics["retries"] == 1
            await nothing_left(b)


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_at_every_suspension_nothing_is_left_behind(way: Way) -> None:
    suspension, cancelled = 0, True
    slow = FaultLayer((WITHOUT_ETAG,), chunk_bytes=3000)
    while cancelled:
        suspension += 1
        assert suspension < 500
        async with parted(6 * BLOCK, layers=(slow,)) as b:
            cancelled = await was_cancelled(way(b), suspension)
            await nothing_left(b)
            b.calls.clear()
            assert await way(b) == b.data
            assert len(b.calls) == 2
    assert suspension > 4


@dataclass(frozen=True)
class Versions(VerbLayer):
    """A store of one version that can be asked for by its id."""

    def adapt(self, capability: Capability) -> Capability:
        return replace(capability, read_version=True)

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        return await inner.read(replace(request, version=None), sink)


async def requests_of_a_version(*layers: Layer) -> int:
    """How many requests a read sends, of an object with a version id and no ETag."""
    async with parted(layers=(ANONYMOUS, *layers)) as b:
        b.gate.falsify = lambda head: replace(head, version="v1")
        assert await b.operator.read("k") == b.data
        return len(b.calls)


async def test_a_version_id_proves_a_version_where_the_store_can_be_asked_for_it() -> None:
    assert await requests_of_a_version(Versions()) == REQUESTS
    assert await requests_of_a_version() == 2


@dataclass(frozen=True)
class TwoBlocks(VerbLayer):
    """A store that sends two blocks, also where all bytes are requested."""

    async def read(self, inner: Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        return await inner.read(replace(request, size=2 * BLOCK), sink)


async def test_a_store_that_never_sends_everything_is_refused() -> None:
    """After the second response, which is tried once more as every one against the protocol is."""

    async def read(b: Bench) -> Error:
        with pytest.raises(ProtocolError, match=r"head promises \[0, 8192\) .*range: \[0, end\)") as refused:
            await b.operator.read("k")
        return refused.value

    async with parted(layers=(ANONYMOUS, TwoBlocks(), RetryLayer())) as b:
        assert (await read(b)).path == "k"
        assert len(b.calls) == 3
        await nothing_left(b)
