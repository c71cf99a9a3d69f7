"""Servers that lack something: ranges, ranges from the end, lengths, HEAD."""

from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import exchange
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.values import ReadRequest, StatRequest
from tests.unit.services.http.reading import DATA, LARGE, Servers, accessor_for, read, read_head

NO_RANGE = Rule(fault=Fault(ignore_range=True), times=None)
RANGES: list[tuple[dict[str, Any], bytes]] = [
    ({}, DATA),
    ({"offset": 0, "size": 100}, DATA[:100]),
    ({"offset": 0, "size": len(DATA) + 100}, DATA),
    ({"offset": 100, "size": 50}, DATA[100:150]),
    ({"offset": 100}, DATA[100:]),
    ({"offset": len(DATA) - 5, "size": 500}, DATA[-5:]),
    ({"suffix": 7}, DATA[-7:]),
    ({"suffix": len(DATA) + 7}, DATA),
]


@pytest.mark.parametrize(("fields", "expected"), RANGES)
async def test_a_server_without_ranges(
    servers: Servers, runtime: Runtime, fields: dict[str, Any], expected: bytes
) -> None:
    """One GET, of which the wanted part is taken."""
    server = await servers.start(script=[Rule(fault=Fault(ignore_range=True, ignore_if_match=True), times=None)])
    accessor = accessor_for(server, runtime)
    head = await read_head(accessor, **fields)
    assert (head.size, head.total) == (len(expected), len(DATA))
    assert await read(accessor, **fields, if_match=head.etag) == expected
    server.assert_requests("GET", "GET")
    with pytest.raises(errors.ConditionNotMatch):
        await read(accessor, **fields, if_match="other")


async def test_a_part_at_the_front_breaks_the_response_off(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start({"base/k": LARGE}, [NO_RANGE])
    assert await read(accessor_for(server, runtime), offset=10, size=100) == LARGE[10:110]
    await server.wait_until_idle()
    assert server.bytes_sent < len(LARGE)


async def test_a_part_too_far_ahead_is_refused_without_reading_there(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start({"base/k": LARGE}, [NO_RANGE])
    accessor = accessor_for(server, runtime, skip_bytes_max=1000)
    assert await read(accessor, offset=1000, size=3) == LARGE[1000:1003]
    with pytest.raises(errors.Unsupported, match="skip_bytes_max=1000") as caught:
        await read(accessor, offset=1001, size=3)
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    await server.wait_until_idle()
    assert server.bytes_sent < 2 * len(LARGE)


async def test_a_server_that_ignores_a_range_once_is_asked_again(servers: Servers, runtime: Runtime) -> None:
    """It has obeyed before, so the whole object is a slip (of a cache in between, say): temporary."""
    server = await servers.start(script=[Rule(fault=Fault(ignore_range=True), index=1, times=None)])
    accessor = accessor_for(server, runtime, skip_bytes_max=10)
    assert await read(accessor, offset=100, size=3) == DATA[100:103]
    with pytest.raises(errors.ProtocolError) as caught:
        await read(accessor, offset=100, size=3)
    assert caught.value.is_temporary
    assert await read(accessor, offset=100, size=3) == DATA[100:103]


async def test_a_server_without_ranges_from_the_end_is_asked_by_offset(servers: Servers, runtime: Runtime) -> None:
    """The length that came with the whole object tells where the end is."""
    no_suffix = Rule(
        fault=Fault(ignore_range=True), matches=lambda r: (r.range or "").startswith("bytes=-"), times=None
    )
    server = await servers.start(script=[no_suffix])
    assert await read(accessor_for(server, runtime, skip_bytes_max=10), suffix=7) == DATA[-7:]
    server.assert_ranges("bytes=-7", f"bytes={len(DATA) - 7}-{len(DATA) - 1}")


async def test_a_range_beyond_the_end_of_a_whole_response(servers: Servers, runtime: Runtime) -> None:
    accessor = accessor_for(await servers.start(script=[NO_RANGE]), runtime)
    with pytest.raises(errors.RangeNotSatisfied) as caught:
        await read(accessor, offset=len(DATA), size=1)
    assert caught.value.total == len(DATA)


async def test_an_empty_object_without_ranges(servers: Servers, runtime: Runtime) -> None:
    accessor = accessor_for(await servers.start({"base/k": b""}, [NO_RANGE]), runtime)
    ranges: list[dict[str, Any]] = [{}, {"offset": 0, "size": 9}, {"offset": 5}, {"suffix": 3}]
    for fields in ranges:
        assert await read(accessor, **fields) == b""


async def test_a_body_that_ends_while_it_is_skipped(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(ignore_range=True, close_after_bytes=50))])
    with pytest.raises(errors.Unavailable) as caught:
        await read(accessor_for(server, runtime), offset=100, size=3)
    assert caught.value.received == 0


@pytest.mark.parametrize("unsized", [{"chunked": True}, {"omit_content_length": True}])
@pytest.mark.parametrize(("fields", "expected"), RANGES)
async def test_a_server_that_tells_no_length(
    servers: Servers, runtime: Runtime, unsized: dict[str, Any], fields: dict[str, Any], expected: bytes
) -> None:
    """Chunked or ended by the connection, and without ranges: the response is read ahead as far as needed."""
    server = await servers.start(script=[Rule(fault=Fault(ignore_range=True, **unsized), times=None)])
    assert await read(accessor_for(server, runtime), **fields) == expected
    server.assert_requests("GET")


async def test_a_ranged_answer_needs_no_length(servers: Servers, runtime: Runtime) -> None:
    """Content-Range tells it."""
    accessor = accessor_for(await servers.start(script=[Rule(fault=Fault(chunked=True), times=None)]), runtime)
    assert await read(accessor, offset=100, size=50) == DATA[100:150]


async def test_a_range_of_an_endless_answer_is_read_no_further(servers: Servers, runtime: Runtime) -> None:
    """The size stays unknown then."""
    fault = Fault(ignore_range=True, chunked=True)
    server = await servers.start({"base/k": LARGE}, [Rule(fault=fault, times=None)])
    sink = CollectSink()
    head = (await accessor_for(server, runtime).read(ReadRequest(path="k", offset=10, size=100), sink)).head
    assert (head.start, head.size, head.total) == (10, 100, None)
    assert sink.to_bytes() == LARGE[10:110]
    await server.wait_until_idle()
    assert server.bytes_sent < len(LARGE)


async def test_an_object_of_unknown_length_has_a_limit(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "UNSIZED_BYTES_MAX", 1 << 20)
    server = await servers.start({"base/k": LARGE}, [Rule(fault=Fault(chunked=True), times=None)])
    with pytest.raises(errors.Unsupported, match="no length"):
        await read(accessor_for(server, runtime))
    await server.wait_until_idle()
    assert server.bytes_sent < len(LARGE)


@pytest.mark.parametrize("fields", [{}, {"offset": 2000, "size": 10}, {"suffix": 3}])
async def test_a_truncated_chunked_answer(servers: Servers, runtime: Runtime, fields: dict[str, Any]) -> None:
    """It is no shorter object."""
    fault = Fault(ignore_range=True, chunked=True, close_after_bytes=1000)
    server = await servers.start(script=[Rule(fault=fault)])
    accessor = accessor_for(server, runtime)
    with pytest.raises(errors.Unavailable) as caught:
        await read(accessor, **fields)
    assert (caught.value.operation, caught.value.path) == ("read", "k")


async def test_a_range_beyond_the_end_of_a_response_without_length(servers: Servers, runtime: Runtime) -> None:
    fault = Fault(ignore_range=True, chunked=True)
    accessor = accessor_for(await servers.start(script=[Rule(fault=fault)]), runtime)
    with pytest.raises(errors.RangeNotSatisfied) as caught:
        await read(accessor, offset=len(DATA) + 1, size=10)
    assert caught.value.total == len(DATA)


def check_metadata(found: Any, server: FaultServer) -> None:
    assert (found.path, found.kind, found.size) == ("k", "file", len(DATA))
    assert found.etag
    assert found.last_modified.timestamp() == 1_700_000_000
    assert found.content_type == "application/octet-stream"


async def test_stat_is_a_head(servers: Servers, runtime: Runtime) -> None:
    headers = {"Content-Encoding": "gzip", "Cache-Control": "no-store", "Content-Disposition": "inline"}
    server = await servers.start(script=[Rule(fault=Fault(headers=headers), times=None)])
    found = await accessor_for(server, runtime).stat(StatRequest(path="k"))
    check_metadata(found, server)
    assert (found.content_encoding, found.cache_control, found.content_disposition) == ("gzip", "no-store", "inline")
    server.assert_requests("HEAD")
    assert runtime.counters["action_http_head_request"] == 1
    assert runtime.counters["action_http_get_request"] == 0


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_a_server_without_head_is_asked_by_get(servers: Servers, runtime: Runtime, status: int) -> None:
    """And the runtime remembers, for every accessor of that server."""
    server = await servers.start(script=[Rule(fault=Fault(status=status), method="HEAD", times=None)])
    for _ in range(2):
        check_metadata(await accessor_for(server, runtime).stat(StatRequest(path="k")), server)
    server.assert_requests("HEAD", "GET", "GET")
    server.assert_ranges(None, "bytes=0-0", "bytes=0-0")


async def test_a_refused_head_is_not_remembered_where_get_is_refused_too(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(status=403), times=2)])
    accessor = accessor_for(server, runtime)
    with pytest.raises(errors.PermissionDenied):
        await accessor.stat(StatRequest(path="k"))
    check_metadata(await accessor.stat(StatRequest(path="k")), server)
    server.assert_requests("HEAD", "GET", "HEAD")


async def test_stat_methods_by_choice(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(status=405), method="HEAD", times=None)])
    check_metadata(await accessor_for(server, runtime, stat_method="get").stat(StatRequest(path="k")), server)
    with pytest.raises(errors.Unexpected):
        await accessor_for(server, runtime, stat_method="head").stat(StatRequest(path="k"))
    server.assert_requests("GET", "HEAD")


async def test_a_head_without_length_is_followed_by_a_get(servers: Servers, runtime: Runtime) -> None:
    fault = Fault(headers={"Content-Length": None})
    server = await servers.start(script=[Rule(fault=fault, method="HEAD")])
    check_metadata(await accessor_for(server, runtime).stat(StatRequest(path="k")), server)
    server.assert_requests("HEAD", "GET")


@pytest.mark.parametrize("missing", ["HEAD", "GET"])
async def test_stat_of_what_is_missing(servers: Servers, runtime: Runtime, missing: str) -> None:
    accessor = accessor_for(await servers.start(), runtime, stat_method=missing.lower())
    with pytest.raises(errors.NotFound) as caught:
        await accessor.stat(StatRequest(path="missing"))
    assert (caught.value.operation, caught.value.path) == ("stat", "missing")


async def test_stat_by_get_of_an_empty_object(servers: Servers, runtime: Runtime) -> None:
    accessor = accessor_for(await servers.start({"base/k": b""}), runtime, stat_method="get")
    assert (await accessor.stat(StatRequest(path="k"))).size == 0


async def test_stat_by_get_breaks_off_a_whole_response(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start({"base/k": LARGE}, [NO_RANGE])
    found = await accessor_for(server, runtime, stat_method="get").stat(StatRequest(path="k"))
    assert found.size == len(LARGE)
    await server.wait_until_idle()
    assert server.bytes_sent < len(LARGE)


async def test_an_unknown_size_is_none(servers: Servers, runtime: Runtime) -> None:
    """The object exists, which is what stat is often asked for."""
    fault = Fault(ignore_range=True, chunked=True)
    accessor = accessor_for(await servers.start(script=[Rule(fault=fault, times=None)]), runtime)
    assert (await accessor.stat(StatRequest(path="k"))).size is None


async def test_a_stat_that_is_answered_wrongly(servers: Servers, runtime: Runtime) -> None:
    accessor = accessor_for(
        await servers.start(script=[Rule(fault=Fault(content_range="bytes 5-5/9"))]), runtime, stat_method="get"
    )
    with pytest.raises(errors.ProtocolError):
        await accessor.stat(StatRequest(path="k"))


async def test_stat_and_read_agree_on_the_version(servers: Servers, runtime: Runtime) -> None:
    """Also where it is made of time and size."""
    server = await servers.start(script=[Rule(fault=Fault(headers={"ETag": None}), times=None)])
    for method in ("head", "get"):
        accessor = accessor_for(server, runtime, stat_method=method)
        found = await accessor.stat(StatRequest(path="k"))
        assert await read(accessor, if_match=found.etag, offset=1, size=1) == DATA[1:2]
