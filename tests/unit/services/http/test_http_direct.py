"""Reads into a sink: received in place where the response allows it, copied otherwise; one request either way."""

from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.sink import BufferSink, CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import Fault, Rule
from aioprefetch.values import ReadRequest, StatRequest
from tests.unit.services.http.reading import DATA, LARGE, Servers, accessor_for, read, read_head

DIRECT: list[tuple[dict[str, Any], bytes]] = [
    ({}, LARGE),
    ({"offset": 5}, LARGE[5:]),
    ({"offset": 5, "size": 1}, LARGE[5:6]),
    ({"offset": 5, "size": 300_000}, LARGE[5:300_005]),
    ({"suffix": 100_000}, LARGE[-100_000:]),
]


@pytest.mark.parametrize(("fields", "expected"), DIRECT)
async def test_what_was_asked_for_is_received_in_place(
    servers: Servers, runtime: Runtime, fields: dict[str, Any], expected: bytes
) -> None:
    server = await servers.start({"base/k": LARGE})
    accessor = accessor_for(server, runtime)
    for _ in range(3):
        assert await read(accessor, **fields) == expected
    assert server.connections == 1
    counters = runtime.counters
    assert counters["transport_requests"] == counters["action_http_get_request"] == 3
    assert counters["stream_read_total_bytes"] == 3 * len(expected)
    assert counters["transport_connections_opened"] == 1
    assert counters.timings["action_http_get_request"][0] == 3


async def test_the_buffer_is_the_callers(servers: Servers, runtime: Runtime) -> None:
    """Not a copy of it."""
    buffer = bytearray(1_000_000)
    accessor = accessor_for(await servers.start({"base/k": LARGE}), runtime)
    await accessor.read(ReadRequest(path="k", offset=77, size=len(buffer)), BufferSink(memoryview(buffer)))
    assert buffer == LARGE[77 : 77 + len(buffer)]


COPIED: list[tuple[Fault, dict[str, Any], bytes]] = [
    (Fault(ignore_range=True), {"offset": 5, "size": 10}, DATA[5:15]),
    (Fault(chunked=True), {"offset": 5, "size": 10}, DATA[5:15]),
    (Fault(chunked=True, ignore_range=True), {}, DATA),
    (Fault(omit_content_length=True, ignore_range=True), {"suffix": 7}, DATA[-7:]),
]


@pytest.mark.parametrize(("fault", "fields", "expected"), COPIED)
async def test_what_is_unusual_takes_no_second_request(
    servers: Servers, runtime: Runtime, fault: Fault, fields: dict[str, Any], expected: bytes
) -> None:
    server = await servers.start(script=[Rule(fault=fault, times=None)])
    assert await read(accessor_for(server, runtime), **fields) == expected
    server.assert_requests("GET")
    assert runtime.counters["transport_requests"] == 1


@pytest.mark.parametrize("fault", [Fault(reset_after_bytes=1000), Fault(close_after_bytes=1000)])
async def test_a_read_that_breaks_off_goes_on_in_the_same_sink(
    servers: Servers, runtime: Runtime, fault: Fault
) -> None:
    """The error tells what this response brought, the sink what it has."""
    accessor = accessor_for(await servers.start(script=[Rule(fault=fault, times=2)]), runtime)
    sink, request = CollectSink(), ReadRequest(path="k", offset=10, size=5000)
    for received in (1000, 2000):
        with pytest.raises(errors.Unavailable) as caught:
            await accessor.read(request, sink)
        assert sink.received == received
        assert caught.value.received == 1000
        assert caught.value.head is not None
        assert (caught.value.head.start, caught.value.head.end) == (request.offset, 5010)
        assert sink.head is not None
        request = ReadRequest(path="k", offset=10 + received, size=5000 - received, if_match=sink.head.etag)
    await accessor.read(request, sink)
    assert sink.to_bytes() == DATA[10:5010]
    assert runtime.counters["stream_read_total_bytes"] == 5000


async def test_a_sink_that_refuses_gets_nothing(servers: Servers, runtime: Runtime) -> None:
    """It had begun with another version."""
    server = await servers.start(script=[Rule(fault=Fault(reset_after_bytes=1000))])
    accessor = accessor_for(server, runtime)
    sink = CollectSink()
    with pytest.raises(errors.Unavailable):
        await accessor.read(ReadRequest(path="k", offset=0, size=5000), sink)
    server.objects["base/k"] = b"?" + DATA[1:]
    with pytest.raises(errors.ObjectChanged) as caught:
        await accessor.read(ReadRequest(path="k", offset=1000, size=4000), sink)
    assert (sink.received, caught.value.operation, caught.value.path) == (1000, "read", "k")
    await server.wait_until_idle()


async def test_a_range_in_a_response_200(servers: Servers, runtime: Runtime) -> None:
    """Some servers send what was asked for under the wrong status: the size of the object is what they tell."""
    headers = {"Content-Range": f"bytes 100-149/{len(DATA)}"}
    fault = Fault(status=200, headers=headers, body=DATA[100:150])
    accessor = accessor_for(await servers.start(script=[Rule(fault=fault, times=None)]), runtime)
    assert await read(accessor, offset=100, size=50) == DATA[100:150]
    head = await read_head(accessor, offset=100, size=50)
    assert (head.start, head.size, head.total) == (100, 50, len(DATA))
    with pytest.raises(errors.ProtocolError):
        await read(accessor, offset=0, size=50)
    with pytest.raises(errors.ProtocolError):
        await read(accessor)


async def test_text_beyond_ascii(servers: Servers, runtime: Runtime) -> None:
    """Headers go out and come in as UTF-8, and so does the path of a redirect."""
    headers = {"Content-Disposition": "inline; filename=ü".encode().decode("latin-1")}
    server = await servers.start({"base/k": DATA, "ü": b"there"}, [Rule(fault=Fault(headers=headers), method="HEAD")])
    accessor = accessor_for(server, runtime, headers={"X-Name": "日本"})
    assert (await accessor.stat(StatRequest(path="k"))).content_disposition == "inline; filename=ü"
    assert server.requests[0].headers["x-name"].encode("latin-1").decode() == "日本"
    server.add(Rule(fault=Fault(status=302, location="/ü".encode().decode("latin-1")), key="base/k"))
    assert await read(accessor) == b"there"


async def test_what_we_say_of_ourselves_is_not_kept(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that changes in the environment changes in the next request for the same object."""
    server = await servers.start()
    accessor = accessor_for(server, runtime, auth="env:HTTP_TEST_TOKEN")
    for token in ("a-token", "a-token", "b-token"):
        monkeypatch.setenv("HTTP_TEST_TOKEN", token)
        await read(accessor, offset=0, size=1)
    assert [one.headers["authorization"] for one in server.requests] == [f"Bearer {c}-token" for c in "aab"]


async def test_identities_share_connections_and_nothing_else(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start()
    for token in ("a-token", "b-token", None):
        await read(accessor_for(server, runtime, auth=token), offset=0, size=1)
    assert server.connections == 1
    found = [one.headers.get("authorization") for one in server.requests]
    assert found == ["Bearer a-token", "Bearer b-token", None]
