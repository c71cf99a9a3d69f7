"""Objects that a server sends encoded, although it is asked to send them as they are."""

import gzip
import logging
import tracemalloc
import zlib
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import errors
from aioprefetch.runtime.events import Event
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import exchange
from aioprefetch.testing import Fault, FaultServer, Rule, content
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import StatRequest
from tests.unit.services.http.reading import DATA, Servers, accessor_for, read, read_head

SENT = gzip.compress(DATA)
MIB = 1 << 20
LIMIT = "UNSIZED_BYTES_MAX"
RANGES: list[tuple[dict[str, Any], bytes]] = [
    ({}, DATA),
    ({"first_bytes": 50}, DATA),
    ({"offset": 0, "size": 100}, DATA[:100]),
    ({"offset": 100, "size": 50}, DATA[100:150]),
    ({"offset": len(DATA) - 5, "size": 500}, DATA[-5:]),
    ({"offset": len(DATA) - 5}, DATA[-5:]),
    ({"suffix": 7}, DATA[-7:]),
]


def encoded(coding: str = "gzip", **fault: Any) -> Rule:
    """Each response says that its body has this coding."""
    return Rule(fault=Fault(headers={"Content-Encoding": coding}, **fault), times=None)


@pytest.mark.parametrize(
    "fault", [{}, {"ignore_range": True}, {"chunked": True}, {"ignore_range": True, "chunked": True}]
)
@pytest.mark.parametrize(("fields", "expected"), RANGES)
async def test_parts_are_of_the_decoded_object(
    servers: Servers, runtime: Runtime, fields: dict[str, Any], expected: bytes, fault: dict[str, Any]
) -> None:
    """However the server understands a range, which is one of the encoded bytes."""
    server = await servers.start({"base/k": SENT}, [encoded(**fault)])
    accessor = accessor_for(server, runtime, decode=True)
    head = await read_head(accessor, **{**fields, "first_bytes": None})
    assert (head.size, head.content_encoding) == (len(expected), None)
    assert await read(accessor, **fields, if_match=head.etag) == expected
    assert runtime.budget.used_bytes == 0


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", SENT),
        ("GZIP", SENT),
        ("x-gzip", SENT),
        ("deflate", zlib.compress(DATA)),
        ("gzip", gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:])),
        ("gzip", gzip.compress(DATA, compresslevel=0)),
        ("identity", DATA),
    ],
)
async def test_codings(servers: Servers, runtime: Runtime, coding: str, sent: bytes) -> None:
    server = await servers.start({"base/k": sent}, [encoded(coding)])
    accessor = accessor_for(server, runtime, decode=True)
    assert await read(accessor) == DATA
    assert await read(accessor, offset=990, size=20) == DATA[990:1010]


async def test_objects_that_are_not_encoded_are_read_by_ranges(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start({"base/k": DATA})
    accessor = accessor_for(server, runtime, decode=True)
    assert await read(accessor, offset=10, size=20) == DATA[10:30]
    assert (await accessor.stat(StatRequest(path="k"))).size == len(DATA)
    server.assert_requests("GET", "HEAD")
    assert server.bytes_sent == 20
    with pytest.raises(errors.RangeNotSatisfied):
        await read(accessor, offset=len(DATA), size=1)


@pytest.mark.parametrize("stat_method", ["auto", "get"])
async def test_a_stat_tells_no_size_of_what_is_decoded(servers: Servers, runtime: Runtime, stat_method: str) -> None:
    """That of what is sent is another one."""
    server = await servers.start({"base/k": SENT}, [encoded()])
    metadata = await accessor_for(server, runtime, decode=True, stat_method=stat_method).stat(StatRequest(path="k"))
    assert (metadata.size, metadata.content_encoding) == (None, None)
    assert metadata.etag is not None


@pytest.mark.parametrize(
    ("rule", "sent", "error", "said"),
    [
        (encoded("br"), DATA, errors.Unsupported, "'br'"),
        (encoded("gzip, gzip"), gzip.compress(SENT), errors.Unsupported, "gzip, gzip"),
        (encoded(), DATA, errors.ProtocolError, "not in the coding"),
        (encoded(), SENT[:-9], errors.ProtocolError, "ends early"),
        (encoded(), SENT + b"more", errors.ProtocolError, "not in the coding"),
        (
            encoded(status=206, content_range=f"bytes 0-9/{len(SENT)}"),
            SENT,
            errors.ProtocolError,
            "a part of an encoded",
        ),
    ],
)
async def test_what_cannot_be_decoded(
    servers: Servers, runtime: Runtime, rule: Rule, sent: bytes, error: type[errors.Error], said: str
) -> None:
    """It is an error, and never other bytes."""
    server = await servers.start({"base/k": sent}, [rule])
    with pytest.raises(error, match=said) as caught:
        await read(accessor_for(server, runtime, decode=True))
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert runtime.budget.used_bytes == 0


@checks("reliability:I21", "reliability:K13")
async def test_a_few_bytes_that_are_very_many_end_at_the_limit(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, LIMIT, 2 * MIB)
    server = await servers.start({"base/k": gzip.compress(bytes(200 * MIB))}, [encoded()])
    tracemalloc.start()
    try:
        with pytest.raises(errors.Unsupported, match="are read up to"):
            await read(accessor_for(server, runtime, decode=True))
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    finally:
        tracemalloc.stop()


@checks("reliability:S56")
async def test_what_is_sent_encoded_is_reported_once(
    servers: Servers, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """Without ``decode`` the bytes are those that are sent."""
    server = await servers.start({"base/k": SENT}, [encoded()])
    seen: list[Event] = []
    runtime.events.subscribe(seen.append, "http.encoded")
    accessor = accessor_for(server, runtime)
    with caplog.at_level(logging.WARNING, "aioprefetch"):
        for _ in range(3):
            assert await read(accessor) == SENT
        assert (await accessor.stat(StatRequest(path="k"))).content_encoding == "gzip"
    assert [(event.path, event.facts["coding"]) for event in seen] == [("k", "gzip")]
    assert ["decode=True" in message for message in caplog.messages] == [True]


async def test_readers_tables_and_files_of_an_encoded_object(caplog: pytest.LogCaptureFixture) -> None:
    """Through the doors of users: a whole read, a reader that seeks, and the option by a URL."""
    data = content(3 * MIB)
    async with FaultServer({"k": gzip.compress(data)}, [encoded()]) as server:
        async with ap.Operator.from_uri(server.url, decode=True, block_bytes=MIB) as op:
            assert await op.read("k") == data
            assert await op.read("k", offset=2 * MIB, size=100) == data[2 * MIB : 2 * MIB + 100]
            async with op.reader("k") as reader:
                assert await reader.read_at(MIB + 5, 10) == data[MIB + 5 : MIB + 15]
                assert await reader.read(-1) == data
        assert caplog.messages == []
