"""Every request that we sign: the n-th one fails, the caller gives up at any step, a clock is wrong, a body hangs."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from aioprefetch.errors import ClockSkew, ConfigInvalid, Error, PermissionDenied, RedirectRefused, TimedOut
from aioprefetch.operator.operator import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.faults import ReceivedRequest
from tests.profile import chosen, each_of
from tests.reliability.scripted import NO_PAUSES
from tests.stores.gated_reader import in_case

PAGE = (
    b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>"
    b"<Contents><Key>k</Key><Size>10</Size></Contents></ListBucketResult>"
)
KEYS: dict[str, Any] = {"access_key_id": "AKIA", "secret_access_key": "secret"}
BODY = bytes(range(256)) * 4096


def success() -> list[Rule]:
    """What a store says to listings, puts and deletes."""
    return [
        Rule(fault=Fault(status=200, body=PAGE), matches=lambda request: "list-type" in request.target, times=None),
        Rule(fault=Fault(status=200, body=b"", headers={"ETag": '"e"'}), method="PUT", times=None),
        Rule(fault=Fault(status=204), method="DELETE", times=None),
    ]


@asynccontextmanager
async def opened(*faults: Rule, **options: Any) -> AsyncIterator[tuple[FaultServer, Operator]]:
    """A store with one object, whose faults come first."""
    async with FaultServer({"bucket/k": b"the object"}, [*faults, *success()]) as server:
        service = S3(bucket="bucket", endpoint_url=server.url, proxies={}, **{**KEYS, **options})
        async with Operator(service).layer(NO_PAUSES) as operator:
            yield server, operator
        await server.wait_until_idle()


async def listed(operator: Operator) -> list[str]:
    """The paths of a listing."""
    return [entry.path async for entry in operator.list("")]


CALLS: dict[str, tuple[Callable[[Operator], Any], Callable[[Any], object], object]] = {
    "read": (lambda operator: operator.read("k"), bytes, b"the object"),
    "stat": (lambda operator: operator.stat("k"), lambda found: found.size, 10),
    "list": (listed, list, ["k"]),
    "write": (lambda operator: operator.write("k", BODY), lambda written: (written.size, written.etag), (1 << 20, "e")),
    "delete": (lambda operator: operator.delete("k"), lambda nothing: nothing, None),
}
FAULTS = {
    "500": Fault(status=500, code="InternalError"),
    "slow down": Fault(status=503, code="SlowDown"),
    "dropped": Fault(drop=True),
    "reset": Fault(reset_before_head=True),
    "expired": Fault(status=400, code="ExpiredToken"),
    "a clock": Fault(status=403, code="RequestTimeTooSkewed"),
    "cut": Fault(close_after_bytes=3),
}


async def check(operator: Operator, name: str) -> None:
    """Call, and compare."""
    call, shown, expected = CALLS[name]
    assert shown(await call(operator)) == expected


@each_of("signing", ["header", "presigned"])
@each_of("fault", FAULTS)
async def test_the_nth_request_fails(fault: str, signing: str) -> None:
    """Whichever it is: the call succeeds at its second attempt, and no connection stays open for the first one."""
    names = list(CALLS)
    for number in range(len(names)):
        if names[number] in ("stat", "write") and FAULTS[fault].status in (400, 403):
            # A HEAD has no body that could say why; a body is not sent again for keys and a clock that are the same.
            continue
        async with opened(Rule(fault=FAULTS[fault], index=number), signing=signing) as (server, operator):
            for name in names:
                await check(operator, name)
            # Of an empty body nothing is cut.
            assert len(names) + (fault != "cut") <= len(server.requests) <= len(names) + 1


@checks("reliability:W44")
@each_of("name", CALLS)
async def test_a_clock_that_stays_wrong_is_named(name: str) -> None:
    """After one more signature, or at once where a body would be sent again."""
    async with opened(Rule(fault=FAULTS["a clock"], times=None)) as (server, operator):
        with pytest.raises(Error) as caught:
            await check(operator, name)
        # The response to a HEAD has no body that could say so.
        assert isinstance(caught.value, ClockSkew) or name == "stat"
        assert len(server.requests) == (1 if name in ("stat", "write") else 2)


@each_of("name", CALLS)
async def test_the_caller_gives_up_at_any_step(name: str) -> None:
    """Before the head, within a body that is sent or received: the next call has a slot and its own response."""
    call, _, _ = CALLS[name]
    for steps in range(0, chosen(quick=60, full=400), chosen(quick=3, full=1)):
        async with opened(Rule(fault=Fault(hang_before_head=True), index=1)) as (server, operator):
            await check(operator, name)
            task = asyncio.ensure_future(call(operator))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            server.release()
            for other in CALLS:
                await check(operator, other)


async def test_a_put_to_a_store_that_stops_receiving_times_out() -> None:
    """A put of 64 MiB to a store that stops receiving ends with the time-out of its response."""
    stopped = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1 << 20)
        await stopped.wait()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    service = S3(bucket="bucket", endpoint_url=f"http://127.0.0.1:{port}", proxies={}, read_timeout_seconds=0.2, **KEYS)
    async with Operator.bare(service) as operator:
        with pytest.raises(TimedOut, match="read_timeout_seconds"):
            await operator.write("k", bytes(64 << 20))
    stopped.set()
    server.close()
    await server.wait_closed()


@checks("reliability:W07")
async def test_an_early_refusal_ends_a_put() -> None:
    """A store that refuses a large body before it has read it is heard, and the connection is not used again."""

    handlers: list[Any] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        body = b"<Error><Code>EntityTooLarge</Code><Message>too large</Message></Error>"
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            while await reader.read(1 << 20):
                pass
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    service = S3(bucket="bucket", endpoint_url=f"http://127.0.0.1:{port}", proxies={}, part_bytes=64 << 20, **KEYS)
    async with Operator.bare(service) as operator:
        for _ in range(2):
            with pytest.raises(Error, match="too large for one request"):
                await operator.write("k", bytes(64 << 20))
        assert operator.statistics["transport_connections_opened"] == 2
    await asyncio.gather(*handlers)
    server.close()
    await server.wait_closed()


async def test_a_large_body_arrives_whole() -> None:
    """Over a connection that takes it slowly, piece by piece."""
    async with FaultServer({}, success()) as server:
        service = S3(bucket="bucket", endpoint_url=server.url, proxies={}, part_bytes=64 << 20, **KEYS)
        async with Operator.bare(service) as operator:
            for size in (0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 9 << 20):
                assert (await operator.write("k", bytes(size))).size == size
        assert [request.headers["content-length"] for request in server.requests] == [
            str(size) for size in (0, 1, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 9 << 20)
        ]


def of_a_clock(hours: int) -> Rule:
    """A store that refuses signatures more than 15 minutes away from its clock, which is ahead by `hours`."""
    now = datetime.now(UTC) + timedelta(hours=hours)

    def is_refused(request: ReceivedRequest) -> bool:
        stamp = request.headers.get("x-amz-date") or parse_qs(urlsplit(request.target).query)["X-Amz-Date"][0]
        signed = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return abs(signed - now) > timedelta(minutes=15)

    refused = Fault(status=403, code="RequestTimeTooSkewed", headers={"Date": format_datetime(now, usegmt=True)})
    return Rule(fault=refused, matches=is_refused, times=None)


@checks("reliability:W44")
@each_of("signing", ["header", "presigned"])
@each_of("hours", [-20, 2])
@each_of("call", [name for name in CALLS if name != "stat"])
async def test_a_wrong_clock_is_corrected_by_that_of_the_store(call: str, hours: int, signing: str) -> None:
    """One refusal is enough for all later requests."""
    perform, result, expected = CALLS[call]
    async with opened(of_a_clock(hours), signing=signing) as (server, operator):
        assert result(await perform(operator)) == expected
        assert server.count() == 2
        assert result(await perform(operator)) == expected
        assert await operator.read("k") == b"the object"
        assert (await operator.stat("k")).size == 10
        assert server.count() == 5


@each_of("signing", ["header", "presigned"])
@each_of("call", [name for name in CALLS if name != "stat"])
async def test_requests_at_once_share_what_one_of_them_learns_of_the_clock(call: str, signing: str) -> None:
    """Each of them was signed by the wrong clock, and one of them is the first to learn of it."""
    perform, result, expected = CALLS[call]
    async with opened(of_a_clock(2), signing=signing) as (server, operator):
        results = await asyncio.gather(*(perform(operator) for _ in range(8)))
        assert [result(found) for found in results] == [expected] * 8
        assert server.count() <= 16


async def test_a_stat_is_sent_again_by_a_clock_that_another_request_has_learned() -> None:
    """A HEAD has no body that names the reason of a refusal. By itself it learns nothing."""
    hanging = Rule(fault=Fault(status=403, hang_before_head=True), method="HEAD", index=1)
    async with opened(hanging, of_a_clock(2)) as (server, operator):
        with pytest.raises(PermissionDenied):
            await operator.stat("k")
        assert server.count() == 1
        found = asyncio.create_task(operator.stat("k"))
        await server.wait_for_requests(2)
        assert await operator.read("k") == b"the object"
        assert server.count() == 4
        server.release()
        assert (await found).size == 10
        assert server.count() == 5


async def test_a_refused_stat_does_not_change_the_clock() -> None:
    """Its date may be that of a proxy, and its reason any other."""
    date = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    refused = Rule(fault=Fault(status=403, headers={"Date": date}), method="HEAD", times=None)
    async with opened(refused, of_a_clock(0)) as (server, operator):
        with pytest.raises(PermissionDenied):
            await operator.stat("k")
        assert server.count() == 1
        assert (await operator.write("k", BODY)).size == len(BODY)
        assert await operator.read("k") == b"the object"
        assert server.count() == 3


@each_of(
    "date",
    [
        "Thu, 01 Jan 2099 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "no date",
        "",
    ],
)
async def test_a_date_that_is_no_clock_is_not_learned(date: str) -> None:
    """More than a day away: no clock is set so, and later requests would be refused for it."""
    wrong = Fault(status=403, code="RequestTimeTooSkewed", headers={"Date": date})
    async with opened(Rule(fault=wrong, times=2), of_a_clock(0)) as (server, operator):
        with pytest.raises(ClockSkew):
            await operator.read("k")
        assert server.count() == 2
        assert await operator.read("k") == b"the object"
        assert (await operator.write("k", BODY)).size == len(BODY)
        assert server.count() == 4


@checks("reliability:W44")
async def test_a_clock_is_corrected_again_when_it_is_set() -> None:
    async with opened(of_a_clock(5)) as (server, operator):
        await operator.read("k")
        server.behave()
        server.add(of_a_clock(0))
        assert await operator.read("k") == b"the object"
        assert (await operator.stat("k")).size == 10
        assert server.count() == 5


# --- long reads -----------------------------------------------------------------------------------------------------

LARGE = BODY[: 256 << 10]
BLOCK_BYTES = 16 << 10
# The first request has two blocks, each further one has one.
LONG_READ_REQUESTS = 15
SOME_REQUESTS = chosen(quick=(0, 1, 8, LONG_READ_REQUESTS - 1), full=range(LONG_READ_REQUESTS))


async def by_read(operator: Operator, directory: Path) -> bytes:
    return await operator.read("k")


async def by_reader(operator: Operator, directory: Path) -> bytes:
    """Past the blocks: there is not enough memory to keep them."""
    async with operator.reader("k") as reader:
        return await reader.read()


async def by_download(operator: Operator, directory: Path) -> bytes:
    await operator.download("k", directory / "file")
    return (directory / "file").read_bytes()


@asynccontextmanager
async def long_read(*faults: Rule, **options: Any) -> AsyncIterator[tuple[FaultServer, Operator]]:
    """A store with an object of many blocks; in the end no connection of it is open."""
    async with FaultServer({"bucket/k": LARGE}, faults) as server:
        service = S3(bucket="bucket", endpoint_url=server.url, proxies={}, **KEYS, **options)
        recipe = Operator(service, block_bytes=BLOCK_BYTES, memory_bytes=8 * BLOCK_BYTES)
        async with recipe.layer(NO_PAUSES) as operator:
            yield server, operator
        await server.wait_until_idle()


@pytest.mark.parametrize("signing", ["header", "presigned"])
@pytest.mark.parametrize("fault", ["expired", "a clock", "slow down", "reset"])
@pytest.mark.parametrize("way", [by_read, by_reader, by_download])
async def test_any_request_of_a_long_read_may_be_refused_once(
    way: Callable[[Operator, Path], Awaitable[bytes]], fault: str, signing: str, tmp_path: Path
) -> None:
    """It alone is sent again."""
    for number in SOME_REQUESTS:
        async with long_read(Rule(fault=FAULTS[fault], index=number), signing=signing) as (server, operator):
            with in_case(number=number):
                assert await way(operator, tmp_path) == LARGE
                ranges = [request.range for request in server.requests]
                assert len(ranges) == len(set(ranges)) + 1
                assert ranges.count(ranges[number]) == 2


@pytest.mark.parametrize("fault", ["redirect", "region"])
@pytest.mark.parametrize("way", [by_read, by_reader, by_download])
async def test_no_request_of_a_long_read_is_redirected(
    way: Callable[[Operator, Path], Awaitable[bytes]], fault: str, tmp_path: Path
) -> None:
    """Whichever it is: the read fails, nothing goes to the other host, and nothing is left of the file."""
    region = {"x-amz-bucket-region": "eu-west-1"}
    async with FaultServer({"bucket/k": LARGE}) as foreign:
        refusal: tuple[Fault, type[Error]] = {
            "redirect": (Fault(status=307, location=f"{foreign.url}/bucket/k", headers=region), RedirectRefused),
            "region": (Fault(status=400, code="AuthorizationHeaderMalformed", headers=region), ConfigInvalid),
        }[fault]
        for number in SOME_REQUESTS:
            async with long_read(Rule(fault=refusal[0], index=number)) as (server, operator):
                with in_case(number=number), pytest.raises(refusal[1], match="set region='eu-west-1'"):
                    await way(operator, tmp_path)
                assert os.listdir(tmp_path) == []
                server.behave()
                assert await way(operator, tmp_path) == LARGE
            (tmp_path / "file").unlink(missing_ok=True)
        assert foreign.connections == 0
