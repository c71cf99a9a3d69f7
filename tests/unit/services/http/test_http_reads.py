"""Reading over HTTP: exact bytes of one version, one request, and keys that arrive to the byte."""

import asyncio
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import Http
from aioprefetch.testing import Fault, Rule
from aioprefetch.values import ReadRequest
from tests.unit.services.http.reading import DATA, Servers, accessor_for, read, read_head

ODD_KEYS = [
    "a b",
    "a+b",
    "50%",
    "a%20b",
    "a#b?c=d&e",
    "back\\slash",
    "a//b",
    "/leading",
    "trailing/",
    "ü/日本語/🎉",
    "\" !@#$%^&()_+-=;',.txt",
    "~tilde;v=1",
    "...",
    "k" * 1024,
]


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_odd_keys_arrive_to_the_byte(servers: Servers, runtime: Runtime, key: str) -> None:
    server = await servers.start({f"base/{key}": key.encode()})
    assert await read(accessor_for(server, runtime), key) == key.encode()
    assert server.requests[0].key == f"base/{key}"


@pytest.mark.parametrize("key", ["..", "a/../b", "./a", "a\0b", "lone\ud800", "k" * 2049])
async def test_keys_that_would_be_changed_on_the_way_are_refused(servers: Servers, runtime: Runtime, key: str) -> None:
    server = await servers.start()
    with pytest.raises(errors.InvalidPath) as caught:
        await read(accessor_for(server, runtime), key)
    assert (caught.value.operation, caught.value.path) == ("read", key)
    assert server.requests == []


async def test_a_header_cannot_be_injected_by_a_key(servers: Servers, runtime: Runtime) -> None:
    key = "a\r\nX-Injected: 1"
    server = await servers.start({f"base/{key}": b"x"})
    assert await read(accessor_for(server, runtime), key) == b"x"
    assert "x-injected" not in server.requests[0].headers


async def test_the_head_tells_size_version_and_type(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start()
    head = await read_head(accessor_for(server, runtime), offset=10, size=5)
    assert (head.start, head.size, head.total) == (10, 5, len(DATA))
    assert head.etag is not None
    assert not head.etag.startswith('"')
    assert head.last_modified is not None
    assert head.content_type == "application/octet-stream"


@pytest.mark.parametrize("ignore_if_match", [False, True])
async def test_the_version_is_pinned(servers: Servers, runtime: Runtime, ignore_if_match: bool) -> None:
    """By the header, and by comparison where the server does not know it."""
    server = await servers.start(script=[Rule(fault=Fault(ignore_if_match=ignore_if_match), times=None)])
    accessor = accessor_for(server, runtime)
    head = await read_head(accessor)
    assert await read(accessor, if_match=head.etag, offset=1, size=2) == DATA[1:3]
    assert server.requests[1].headers["if-match"] == f'"{head.etag}"'
    server.objects["base/k"] = b"another"
    with pytest.raises(errors.ConditionNotMatch):
        await read(accessor, if_match=head.etag, offset=1, size=2)


async def test_a_weak_etag_is_compared_and_not_sent(servers: Servers, runtime: Runtime) -> None:
    weak = Rule(fault=Fault(etag='W/"v1"'), times=2)
    server = await servers.start(script=[weak, Rule(fault=Fault(etag='W/"v2"'), times=None)])
    accessor = accessor_for(server, runtime)
    head = await read_head(accessor)
    assert head.etag == "W/v1"
    assert await read(accessor, if_match="W/v1") == DATA
    with pytest.raises(errors.ConditionNotMatch):
        await read(accessor, if_match="W/v1")
    assert not any("if-match" in request.headers for request in server.requests)


async def test_a_server_without_etags_is_pinned_by_time_and_size(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(headers={"ETag": None}), times=None)])
    accessor = accessor_for(server, runtime)
    head = await read_head(accessor, offset=3, size=4)
    assert head.etag == f"W/modified-{1_700_000_000:x}-{len(DATA):x}"
    assert await read(accessor, if_match=head.etag) == DATA
    with pytest.raises(errors.ConditionNotMatch, match="still"):
        await read(accessor, if_none_match=head.etag)
    server.objects["base/k"] += b"more"
    with pytest.raises(errors.ConditionNotMatch):
        await read(accessor, if_match=head.etag, offset=3, size=4)
    assert not any({"if-match", "if-none-match"} & request.headers.keys() for request in server.requests)


async def test_a_server_with_neither_etag_nor_time_has_no_version(servers: Servers, runtime: Runtime) -> None:
    bare = Fault(headers={"ETag": None, "Last-Modified": None})
    server = await servers.start(script=[Rule(fault=bare, times=None)])
    head = await read_head(accessor_for(server, runtime))
    assert head.etag is None


WRONG: list[Fault] = [
    Fault(content_range_shift_bytes=7),
    Fault(omit_content_range=True),
    Fault(short_by_bytes=3),
    Fault(content_range="bytes 5-3/10"),
    Fault(content_range="items 10-19/20"),
    Fault(status=206, body=b"0123456789"),
    Fault(status=204),
    Fault(status=299, body=b"0123456789"),
    Fault(headers={"Content-Length": "-1"}),
    Fault(headers={"Content-Length": "99999999999999999999999"}),
    Fault(headers={"X-Long": "x" * 100_000}),
]


@pytest.mark.parametrize("fault", WRONG)
async def test_a_wrong_response_delivers_no_byte(servers: Servers, runtime: Runtime, fault: Fault) -> None:
    server = await servers.start(script=[Rule(fault=fault)])
    accessor = accessor_for(server, runtime)
    with pytest.raises(errors.ProtocolError) as caught:
        await read(accessor, offset=10, size=10)
    assert (caught.value.operation, caught.value.path, caught.value.received) == ("read", "k", 0)
    assert await read(accessor, offset=10, size=10) == DATA[10:20]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(close_after_bytes=1000),
        Fault(reset_after_bytes=1000),
        Fault(close_after_bytes=1000, chunked=True),
        Fault(close_after_bytes=0),
    ],
)
async def test_a_body_that_breaks_off_can_be_resumed(servers: Servers, runtime: Runtime, fault: Fault) -> None:
    """The error is temporary and tells head and progress; what arrived is exact."""
    server = await servers.start(script=[Rule(fault=fault)])
    accessor = accessor_for(server, runtime)
    sink = CollectSink()
    with pytest.raises(errors.Unavailable) as caught:
        await accessor.read(ReadRequest(path="k", offset=10, size=5000), sink)
    error, head, received = caught.value, sink.head, sink.to_bytes()
    assert head is not None
    assert (error.status, error.received, error.head) == ("temporary", len(received), head)
    assert (error.operation, error.path) == ("read", "k")
    assert received == DATA[10 : 10 + len(received)]
    rest = await read(accessor, **resumed(head.etag, 10 + len(received), 5000 - len(received)))
    assert received + rest == DATA[10:5010]


def resumed(etag: str | None, offset: int, size: int) -> dict[str, Any]:
    return {"if_match": etag, "offset": offset, "size": size}


async def test_what_comes_after_the_last_byte_does_not_matter(servers: Servers, runtime: Runtime) -> None:
    """Bytes beyond the announced end are no part of this response, nor of the next."""
    server = await servers.start(script=[Rule(fault=Fault(extra_body=b"HTTP/1.1 200 OK\r\n\r\nforged"))])
    accessor = accessor_for(server, runtime)
    assert await read(accessor, offset=0, size=100) == DATA[:100]
    assert await read(accessor, offset=100, size=100) == DATA[100:200]


async def test_content_encoding_is_left_alone(servers: Servers, runtime: Runtime) -> None:
    """The stored bytes are what was asked for, whatever their encoding."""
    server = await servers.start(script=[Rule(fault=Fault(headers={"Content-Encoding": "gzip"}), times=None)])
    assert await read(accessor_for(server, runtime)) == DATA


async def test_no_cookie_is_kept(servers: Servers, runtime: Runtime) -> None:
    """The server goes by a name here: for bare addresses no client keeps any."""
    server = await servers.start(script=[Rule(fault=Fault(headers={"Set-Cookie": "id=1; Path=/"}), times=None)])
    accessor = Http(f"http://localhost:{server.port}/base", proxies={}).build(runtime)
    for _ in range(2):
        await read(accessor)
    assert not any("cookie" in request.headers for request in server.requests)


async def test_connections_are_shared_and_kept(servers: Servers, runtime: Runtime) -> None:
    """By all accessors of one recipe in a runtime."""
    server = await servers.start()
    for _ in range(3):
        await read(accessor_for(server, runtime), offset=0, size=10)
    assert server.connections == 1


async def test_many_reads_at_once(servers: Servers, runtime: Runtime) -> None:
    """The client's limit of connections is above the concurrency of the operator."""
    count = runtime.options.concurrency + 5
    server = await servers.start(script=[Rule(fault=Fault(hang_before_head=True), times=count)])
    accessor = accessor_for(server, runtime)
    reads = [asyncio.ensure_future(read(accessor, offset=n, size=10)) for n in range(count)]
    await server.wait_for_requests(count)
    for task in reads:
        task.cancel()
    await asyncio.wait(reads)
    found = await asyncio.gather(*(read(accessor, offset=n, size=10) for n in range(count)))
    assert found == [DATA[n : n + 10] for n in range(count)]


async def test_an_empty_range_is_never_sent(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start()
    accessor = accessor_for(server, runtime)
    empty: list[dict[str, Any]] = [{"offset": 3, "size": 0}, {"suffix": 0}]
    for fields in empty:
        with pytest.raises(errors.InvalidRange):
            await read(accessor, **fields)
    assert server.requests == []
