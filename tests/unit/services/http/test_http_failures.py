"""Failures become errors that say what to do, without a secret."""

import asyncio
import html
import pickle
import socket
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import QUOTED_CHARACTERS_MAX
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import Http, exchange
from aioprefetch.testing import Fault, Rule
from aioprefetch.values import ReadRequest, StatRequest
from tests.probes.error_walk import everything, raised_by
from tests.stores.raw_server import eventually
from tests.unit.services.http.reading import DATA, LARGE, Servers, accessor_for, read

CANARY = "canary-51ce"

STATUSES: list[tuple[int, type[errors.Error], str]] = [
    (304, errors.ConditionNotMatch, "permanent"),
    (400, errors.Unexpected, "permanent"),
    (401, errors.PermissionDenied, "permanent"),
    (403, errors.PermissionDenied, "permanent"),
    (404, errors.NotFound, "permanent"),
    (408, errors.TimedOut, "temporary"),
    (410, errors.NotFound, "permanent"),
    (412, errors.ConditionNotMatch, "permanent"),
    (416, errors.RangeNotSatisfied, "permanent"),
    (418, errors.Unexpected, "permanent"),
    (425, errors.Throttled, "temporary"),
    (429, errors.Throttled, "temporary"),
    (500, errors.Unavailable, "temporary"),
    (502, errors.Unavailable, "temporary"),
    (503, errors.Throttled, "temporary"),
    (504, errors.Unavailable, "temporary"),
    (599, errors.Unavailable, "temporary"),
    (204, errors.ProtocolError, "temporary"),
]


@pytest.mark.parametrize(("code", "kind", "status"), STATUSES)
async def test_the_table_of_statuses(
    servers: Servers, runtime: Runtime, code: int, kind: type[errors.Error], status: str
) -> None:
    server = await servers.start(script=[Rule(fault=Fault(status=code))])
    accessor = accessor_for(server, runtime)
    with pytest.raises(kind) as caught:
        await read(accessor, offset=0, size=1)
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.operation, error.path, error.context["status"]) == (status, "read", "k", code)
    assert pickle.loads(pickle.dumps(error)).message == error.message
    assert await read(accessor, offset=0, size=1) == DATA[:1]


@pytest.mark.parametrize("code", [408, 429, 500, 503])
async def test_retry_after_is_in_the_error(servers: Servers, runtime: Runtime, code: int) -> None:
    server = await servers.start(script=[Rule(fault=Fault(status=code, headers={"Retry-After": "7"}))])
    with pytest.raises(errors.Error) as caught:
        await read(accessor_for(server, runtime))
    assert caught.value.retry_after_seconds == 7.0


@pytest.mark.parametrize(
    ("content_type", "body", "excerpt"),
    [
        ("text/plain", b"No  such\r\nthing\x1b[31m", "No such thing [31m"),
        ("text/html; charset=utf-8", b"<html><h1>Bad &amp; worse</h1></html>", "Bad & worse"),
        ("application/json", b'{"error": "why"}', '{"error": "why"}'),
        ("application/xml", b"<Error><Code>Denied</Code></Error>", "Denied"),
        ("application/octet-stream", b"\x00\x01binary", None),
        ("text/plain", b"", None),
    ],
)
async def test_a_text_says_why_in_one_line(
    servers: Servers, runtime: Runtime, content_type: str, body: bytes, excerpt: str | None
) -> None:
    fault = Fault(status=400, headers={"Content-Type": content_type}, body=body)
    with pytest.raises(errors.Unexpected) as caught:
        await read(accessor_for(await servers.start(script=[Rule(fault=fault)]), runtime))
    assert caught.value.context.get("response") == excerpt
    assert "\n" not in str(caught.value)


async def test_a_long_error_is_read_and_shown_in_part(servers: Servers, runtime: Runtime) -> None:
    """The connection is broken off instead."""
    fault = Fault(status=500, headers={"Content-Type": "text/plain"}, body=b"x" * len(LARGE))
    server = await servers.start(script=[Rule(fault=fault)])
    with pytest.raises(errors.Unavailable) as caught:
        await read(accessor_for(server, runtime))
    assert len(str(caught.value.context["response"])) == QUOTED_CHARACTERS_MAX
    await server.wait_until_idle()
    assert server.bytes_sent < len(LARGE)


@pytest.mark.cost
@pytest.mark.parametrize("code", [status for status, _, _ in STATUSES if status not in (204, 304)])
async def test_a_text_of_one_word_stops_nothing(servers: Servers, runtime: Runtime, code: int) -> None:
    """64 KiB of it, whatever it is made of, and as much in a field of the head."""
    for word in ("a", "http://", "&lt;", "X-Amz-Signature="):
        said = word * (65_536 // len(word))
        headers = {"Content-Type": "text/plain", "Content-Range": said[:20_000], "Retry-After": said[:20_000]}
        server = await servers.start(script=[Rule(fault=Fault(status=code, headers=headers, body=said.encode()))])
        accessor = accessor_for(server, runtime)
        before = time.thread_time()
        with pytest.raises(errors.Error) as caught:
            await read(accessor, offset=0, size=1)
        assert len(str(caught.value)) < 1000
        assert time.thread_time() - before < 0.25  # The server's own work is in it.


@pytest.mark.cost
@pytest.mark.parametrize("field", ["Content-Range", "ETag"])
async def test_a_field_of_one_word_stops_nothing(servers: Servers, runtime: Runtime, field: str) -> None:
    """In a head that is well made otherwise."""
    for word in ("a", "http://"):
        fault = Fault(headers={field: word * (50_000 // len(word))})
        server = await servers.start(script=[Rule(fault=fault)])
        accessor = accessor_for(server, runtime)
        before = time.thread_time()
        with pytest.raises(errors.Error) as caught:
            await read(accessor, offset=0, size=10, if_match="e")
        assert len(str(caught.value)) < 1000
        assert time.thread_time() - before < 0.25


async def test_an_error_whose_text_hangs_is_raised_without_it(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "ERROR_BODY_SECONDS_MAX", 0.01)
    fault = Fault(status=500, headers={"Content-Type": "text/plain"}, body=b"x" * 100, hang_after_bytes=50)
    server = await servers.start(script=[Rule(fault=fault)])
    with pytest.raises(errors.Unavailable) as caught:
        await read(accessor_for(server, runtime))
    assert "response" not in caught.value.context
    await server.wait_until_idle()


async def test_an_error_whose_text_breaks_off_is_still_that_error(servers: Servers, runtime: Runtime) -> None:
    fault = Fault(status=404, headers={"Content-Type": "text/plain"}, body=b"x" * 100, reset_after_bytes=50)
    with pytest.raises(errors.NotFound):
        await read(accessor_for(await servers.start(script=[Rule(fault=fault)]), runtime))


@pytest.mark.parametrize("form", ["{}", "a &quot;{}&quot; b", "sig={}", "/base/k?sig={}&x", "Basic {}"])
async def test_an_error_that_echoes_our_secrets_is_scrubbed(servers: Servers, runtime: Runtime, form: str) -> None:
    """A server may repeat headers and URL of the request."""
    pairs = [CANARY, "dXNlcjpjYW5hcnktNTFjZQ==", "header-<secret>", "que%20ry-secret", "que ry-secret"]
    text = " ".join(form.format(html.escape(secret)) for secret in pairs)
    fault = Fault(status=400, headers={"Content-Type": "text/html"}, body=text.encode())
    server = await servers.start(script=[Rule(fault=fault)])
    options = {"auth": ("user", CANARY), "headers": {"X-Api-Key": "header-<secret>"}}
    accessor = accessor_for(server, runtime, "/base/?sig=que%20ry-secret", **options)
    with pytest.raises(errors.Unexpected) as caught:
        await read(accessor)
    for secret in pairs:
        assert secret not in repr(caught.value)
        assert secret not in repr(pickle.dumps(caught.value))
    assert "***" in repr(caught.value)


WIRE_FAULTS = [
    Fault(drop=True),
    Fault(reset_after_bytes=0),
    Fault(reset_after_bytes=10),
    Fault(close_after_bytes=10),
    Fault(chunked=True, close_after_bytes=10, ignore_range=True),
    Fault(headers={"Content-Length": "x"}),
    Fault(headers={"Content-Length": "5", "Transfer-Encoding": "chunked"}),
    Fault(headers={"Bad Header": "x"}),
    Fault(status=407),
    Fault(status=302, location="http://user:pass@host/"),
    Fault(content_range_shift_bytes=1),
    Fault(etag='"other"'),
]


@pytest.mark.parametrize("fault", WIRE_FAULTS)
async def test_no_secret_hangs_on_any_error(servers: Servers, runtime: Runtime, fault: Fault) -> None:
    """Not on its causes either."""
    server = await servers.start(script=[Rule(fault=fault, times=None)])
    options = {"auth": CANARY, "headers": {"X-Api-Key": CANARY}}
    accessor = accessor_for(server, runtime, f"/base/?sig={CANARY}", **options)
    if_match = "pinned" if fault.etag else None
    failed = await raised_by(lambda: read(accessor, offset=1, size=100, if_match=if_match))
    assert failed is not None
    check_clean(failed)
    # A HEAD has no body to be cut.
    if (failed := await raised_by(lambda: accessor.stat(StatRequest(path="k")))) is not None:
        check_clean(failed)


def check_clean(error: errors.Error) -> None:
    for text in everything(error):
        assert CANARY not in text
    assert error.operation
    assert error.path == "k"


@pytest.mark.parametrize("fault", [Fault(drop=True), Fault(reset_after_bytes=0, omit_content_length=True)])
async def test_a_connection_that_breaks_before_the_head(servers: Servers, runtime: Runtime, fault: Fault) -> None:
    server = await servers.start(script=[Rule(fault=fault, times=None)])
    with pytest.raises(errors.Unavailable) as caught:
        await read(accessor_for(server, runtime), offset=0, size=10)
    assert caught.value.is_temporary
    assert caught.value.received == 0


async def test_no_server_listens(runtime: Runtime) -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(errors.Unavailable, match="ECONNREFUSED") as caught:
            await read(Http(url, proxies={}).build(runtime))
    assert caught.value.is_temporary
    assert caught.value.context["host"] == url.removeprefix("http://")


async def test_an_unknown_host_name(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **more: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(errors.Unavailable, match="could not be resolved"):
        await read(Http("http://nowhere.example", proxies={}).build(runtime))


async def test_a_connection_that_is_never_made(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name resolution counts too."""

    resolved = threading.Event()

    def resolve(host: str, port: int, **more: object) -> list[Any]:
        resolved.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    accessor = Http("http://slow.example", proxies={}, connect_timeout_seconds=0.02).build(runtime)
    try:
        with pytest.raises(errors.TimedOut, match="connect_timeout_seconds") as caught:
            await read(accessor)
        assert caught.value.is_temporary
    finally:
        resolved.set()


async def test_a_response_that_never_comes(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(hang_before_head=True))])
    with pytest.raises(errors.TimedOut, match="no response") as caught:
        await read(accessor_for(server, runtime, read_timeout_seconds=0.02))
    assert type(caught.value) is errors.TimedOut
    await server.wait_until_idle()


async def test_a_body_that_stops(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(hang_after_bytes=100))])
    with pytest.raises(errors.Stalled) as caught:
        await read(accessor_for(server, runtime, read_timeout_seconds=0.05))
    assert (caught.value.received, caught.value.status) == (100, "temporary")
    await server.wait_until_idle()


async def test_a_closed_runtime(servers: Servers, runtime: Runtime) -> None:
    """Closing breaks off what is open and needs no response; a later request is refused."""
    server = await servers.start(script=[Rule(fault=Fault(hang_after_bytes=100))])
    accessor = accessor_for(server, runtime)
    sink = CollectSink()
    task = asyncio.ensure_future(accessor.read(ReadRequest(path="k"), sink))
    await eventually(lambda: sink.received == 100)
    await runtime.aclose()
    await server.wait_until_idle()
    with pytest.raises(errors.Closed):
        await task
    with pytest.raises(errors.Closed):
        await read(accessor)
