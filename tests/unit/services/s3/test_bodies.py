"""Bodies that are no objects: bounded before they are kept, and without entities before they are parsed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.services.response_bodies import BODY_BYTES_MAX
from aioprefetch.services.s3.responses import BODY_TAGS_MAX, has_document_type, parse_error
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, WriteRequest
from tests.profile import each_of
from tests.stores.raw_server import Peer, RawServer
from tests.unit.services.s3.stores import Address, Store

OBJECTS = {"bucket/k": b"the object"}
PAGE = b"<ListBucketResult><Name>b</Name><KeyCount>0</KeyCount><Comment>%s</Comment></ListBucketResult>"


async def in_parts(store: Store) -> object:
    """Begin an upload."""
    return await store.accessor.begin_upload(WriteRequest(path="k"))


async def whole(store: Store) -> object:
    """Read an object."""
    return await store.get("k")


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "list": lambda store: store.page(),
    "stat of a directory": lambda store: store.stat("d/"),
    "put": lambda store: store.put("k", b"x"),
    "copy": lambda store: store.accessor.copy(CopyRequest(path="k", target="l")),
    "delete": lambda store: store.delete("k"),
    "delete of many": lambda store: store.delete("k", "l"),
    "multipart": in_parts,
}


@checks("reliability:K12")
@pytest.mark.parametrize("call", CALLS)
async def test_a_response_of_700_mib_is_given_up_at_8(store: Callable[..., Store], call: str) -> None:
    """By whichever operation it comes, with a length or in chunks; the connection ends with it."""
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        while await peer.request() is not None:
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: 734003200\r\n\r\n<a>")
            for _ in range(700):
                await peer.send(b"x" * (1 << 20))
                sent += 1 << 20

    async with RawServer(flood) as server:
        with pytest.raises(errors.ProtocolError, match=f"longer than {BODY_BYTES_MAX} bytes") as caught:
            await CALLS[call](store(Address(server), part_bytes=5 << 20))
    assert caught.value.status == "permanent"  # Each attempt would cost as much.
    assert sent < 2 * BODY_BYTES_MAX + (16 << 20)  # What lies in the buffers of both sockets.


async def test_a_long_page_is_read(store: Callable[..., Store]) -> None:
    """Below the bound it counts as it is, and the connection serves the next request."""
    body = PAGE % (b"x" * (2 << 20))
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=200, body=body), times=2)]) as server:
        opened = store(server)
        for _ in range(2):
            assert (await opened.page()).entries == ()
        assert server.connections_open == 1


async def test_a_page_of_nothing_but_tags(store: Callable[..., Store]) -> None:
    """Parsed, each would take a hundred bytes."""
    body = PAGE % (b"<a/>" * BODY_TAGS_MAX)
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=200, body=body))]) as server:
        with pytest.raises(errors.ProtocolError, match="more than 60000 tags") as caught:
            await store(server).page()
    assert caught.value.status == "permanent"


# CPU of one step of the loop. What must not happen takes seconds; a busy machine doubles the rest.
STEP_SECONDS_MAX = 0.5

DATED = b"<Contents><Key>k</Key><LastModified>Tue, 01 Jan 2020 00:00:00 GMT</LastModified></Contents>"
HOSTILE = {
    "a comment without an end": b"<!-- " + b"x" * (4 << 20),
    "an instruction without an end": b"<?x " + b"x" * (4 << 20),
    "space before the document": b" " * (4 << 20),
    "a comment within": PAGE % (b"<!-- " + b"x" * (2 << 20)),
    "attributes": PAGE % (b"<a " + b" ".join(b'a%x=""' % k for k in range(BODY_TAGS_MAX)) + b"/>"),
    "lines": PAGE % (b"\n" * (4 << 20)),
    "an error": b"<Error><Code>InternalError</Code>%s</Error>" % (b"\n" * (4 << 20)),
    "dates": b"<ListBucketResult>%s</ListBucketResult>" % (DATED * 2000),
}


@pytest.mark.cost
@pytest.mark.parametrize("kind", HOSTILE)
async def test_no_page_stops_the_loop(store: Callable[..., Store], kind: str) -> None:
    """However much there is to parse, or to look through for a document type."""
    rule = Rule(fault=Fault(status=200, body=HOSTILE[kind]), times=None)
    async with FaultServer(OBJECTS, [rule]) as server:
        opened = store(server)
        await opened.open()
        assert await longest_step(CALLS["list"], opened) < STEP_SECONDS_MAX


async def test_a_long_error_is_no_empty_page(store: Callable[..., Store]) -> None:
    """Even if its status says that all went well."""
    for body in (b"<Error><Code>InternalError</Code></Error>", HOSTILE["an error"]):
        async with FaultServer(OBJECTS, [Rule(fault=Fault(status=200, body=body), times=None)]) as server:
            with pytest.raises((errors.Unavailable, errors.ProtocolError)):
                await store(server).page()


def entities(levels: int, encoding: str) -> bytes:
    """An error that grows tenfold with each level of entities in it."""
    declared = "".join(
        f'<!ENTITY e{k} "{("&e%d;" % (k - 1)) * 10 if k else "0123456789"}">'  # noqa: UP031
        for k in range(levels)
    )
    text = f"<!DOCTYPE x [{declared}]><Error><Code>InvalidRequest</Code><Message>&e{levels - 1};</Message></Error>"
    return f'<?xml version="1.0" encoding="{encoding}"?>{text}'.encode(encoding)


ENCODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "us-ascii"]


@pytest.mark.cost
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_document_type_is_seen_in_any_encoding(encoding: str) -> None:
    """Whichever bytes it is made of, before an entity is looked at."""
    before = time.thread_time()
    body = entities(9, encoding)
    assert has_document_type(body)
    assert parse_error(body) == {}
    assert time.thread_time() - before < STEP_SECONDS_MAX


@each_of(
    ("body", "declared"),
    [
        (b"<!DOCTYPE html><html/>", True),
        (b"\xef\xbb\xbf <!-- a --> <?pi?>\n<!DOCTYPE html SYSTEM 'file:///etc/passwd'><html/>", True),
        (b"<!DOCTYPE a [", True),
        (b"<!-- " + b"x" * 100_000 + b" --><!DOCTYPE a []><a/>", True),
        (b"<!-- " + b"x" * 100_000 + b" --><a/>", True),  # It may declare one.
        (b"<!-- " + b"x" * 60_000 + b" --><a/>", False),
        (b"<a>" + b"x" * 100_000 + b"</a>", False),
        (b"<a><![CDATA[<!DOCTYPE b>]]></a>", False),
        (b"<!-- <!DOCTYPE a> --><a/>", False),
        (b"<a/><!DOCTYPE b>", False),
        (b"", False),
        (b"\x00\x01 not XML", False),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', False),
    ],
)
def test_what_is_a_document_type(body: bytes, declared: bool) -> None:
    assert has_document_type(body) == declared


@each_of("name", ["no-such", "utf-7", "idna", "rot13", "cp037"])
def test_an_error_in_an_unknown_encoding_says_nothing(name: str) -> None:
    """It is a response with a status and no more, and no failure of ours."""
    assert parse_error(f'<?xml version="1.0" encoding="{name}"?><Error><Code>c</Code></Error>'.encode()) == {}


@checks("reliability:K12")
@pytest.mark.cost
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("call", "status"),
    # The body of a success of a GET is the object, that of a put or delete is nothing to read.
    [*((call, status) for call in CALLS for status in (200, 400)), ("get", 400)],
)
async def test_entities_are_never_expanded(store: Callable[..., Store], call: str, status: int, encoding: str) -> None:
    """Neither by us nor by botocore: a response that is no error is refused, an error counts by its status."""
    rule = Rule(fault=Fault(status=status, body=entities(6, encoding)), times=None)
    async with FaultServer(OBJECTS, [rule]) as server:
        opened = store(server, part_bytes=5 << 20)
        await opened.open()
        before = time.thread_time()
        with pytest.raises(errors.Error) as caught:
            await CALLS.get(call, whole)(opened)
        assert time.thread_time() - before < 0.5
    assert "0123456789" not in str(caught.value)
    if status == 200:
        assert isinstance(caught.value, errors.ProtocolError)
    else:
        # As every 400 that says no more, or nothing that S3 says; botocore keeps no body.
        assert isinstance(caught.value, errors.PermissionDenied | errors.ConfigInvalid)


async def test_a_page_of_html_is_an_error_by_its_status(store: Callable[..., Store]) -> None:
    """A gateway's own page has a document type, and still means what its status says."""
    page = b"<!DOCTYPE html><html><body>overloaded</body></html>"
    async with FaultServer(OBJECTS, [Rule(fault=Fault(status=503, body=page), times=None)]) as server:
        for call in (store(server).get("k"), store(server).page()):
            with pytest.raises(errors.Throttled):
                await call


WORDS = ["a", "http://", "x-amz-signature=", "&lt;", "Signature: ", "\\u0000"]


@pytest.mark.cost
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("code", ["AccessDenied", "InvalidRequest", "Teapot", "InvalidObjectState"])
@pytest.mark.parametrize("call", ["list", "get"])
async def test_a_long_text_of_a_store_stops_nothing(
    store: Callable[..., Store], call: str, code: str, word: str
) -> None:
    """64 KiB of one word in each field that is quoted cost milliseconds, and make a short message."""
    said = (word * (64 << 10))[:60_000]
    fields: dict[str, Any] = {"Code": code, "Message": said[:20_000], "StorageClass": said[:20_000]}
    body = f"<Error>{''.join(f'<{name}>{value}</{name}>' for name, value in fields.items())}</Error>".encode()
    fault = Fault(status=418, body=body, headers={"x-amz-request-id": said[:4000], "Date": said[:2000]})
    async with FaultServer(OBJECTS, [Rule(fault=fault, times=None)]) as server:
        opened = store(server)
        await opened.open()
        longest = await longest_step(CALLS.get(call, whole), opened)
    assert longest < STEP_SECONDS_MAX


async def longest_step(call: Callable[[Store], Awaitable[object]], store: Store) -> float:
    """The CPU of the longest callback of the loop during a call, with the message where it fails."""
    longest = 0.0
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        nonlocal longest
        before = time.thread_time()
        run(handle)
        longest = max(longest, time.thread_time() - before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        error = await asyncio.ensure_future(failure(call, store))
    before = time.thread_time()
    assert len(str(error)) < 2000
    return max(longest, time.thread_time() - before)


async def failure(call: Callable[[Store], Awaitable[object]], store: Store) -> errors.Error | None:
    """What a call raises."""
    try:
        await call(store)
    except errors.Error as error:
        return error
    return None
