"""What the application responds to what clients send: by RFC 9110, and as starlette serves the same file."""

import email.parser
import gzip
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.asgi.responses import ByteSpec, parse_ranges
from aioprefetch.runtime.events import Event
from aioprefetch.testing import CountingS3Server, Injection
from aioprefetch.values import Metadata, StatRequest
from tests.profile import each_of
from tests.stores.s3_options import options_of
from tests.stores.verb_layer import VerbLayer
from tests.unit.asgi.range_app import DATA, PATH, client_of, collector, never, served

SIZE = len(DATA)
FAR = "99999999999999999999"
# More digits than Python reads as a number.
ENDLESS = "9" * 5000


def date(when: datetime) -> str:
    """As headers have it."""
    return when.strftime("%a, %d %b %Y %H:%M:%S GMT")


@each_of("chunk_bytes", [1 << 20, 10_000, 7_777])
@each_of(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=70000-80000", 70_000, 80_001),
        ("bytes=99999-", SIZE - 1, SIZE),
        ("bytes=0-", 0, SIZE),
        (f"bytes=5-{FAR}", 5, SIZE),
        ("bytes=-10", SIZE - 10, SIZE),
        ("bytes=-60000", SIZE - 60_000, SIZE),
        (f"bytes=-{FAR}", 0, SIZE),
        (f"bytes=7-{ENDLESS}", 7, SIZE),
        (f"bytes=-{ENDLESS}", 0, SIZE),
        (f"bytes={'0' * 5000}8-9", 8, 10),
        ("BYTES = 3-4", 3, 5),
        ("bytes=,3-4 ,", 3, 5),
    ],
)
async def test_a_range_is_206(header: str, start: int, end: int, chunk_bytes: int) -> None:
    async with served(chunk_bytes=chunk_bytes) as (client, _, metadata):
        response = await client.get(PATH, headers={"Range": header})
        assert response.status_code == 206
        assert response.content == DATA[start:end]
        assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
        assert response.headers["content-length"] == str(end - start)
        assert response.headers["etag"] == f'"{metadata.etag}"'
        assert response.headers["accept-ranges"] == "bytes"
        assert response.headers["last-modified"] == date(metadata.last_modified or datetime.now(UTC))


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 7_777])
async def test_what_was_served_is_reported(chunk_bytes: int) -> None:
    async with served(chunk_bytes=chunk_bytes) as (client, op, _):
        seen: list[Event] = []
        op.events.subscribe(seen.append, "read.served")
        for header, size in (("bytes=5-70004", 70_000), ("bytes=-60000", 60_000), ("bytes=1-2,7-8", 4)):
            await client.get(PATH, headers={"Range": header})
            assert sum(event.facts["end"] - event.facts["start"] for event in seen) == size
            seen.clear()


@each_of(
    "header",
    [f"bytes={SIZE}-", f"bytes={FAR}-", f"bytes={ENDLESS}-", "bytes=-0", f"bytes={SIZE}-,200000-300000"],
)
async def test_a_range_beyond_the_end_is_416(header: str) -> None:
    async with served() as (client, _, _):
        response = await client.get(PATH, headers={"Range": header})
        assert (response.status_code, response.headers["content-range"]) == (416, f"bytes */{SIZE}")


@each_of(
    "header", ["bytes=3-2", "lines=1-2", "bytes=-", "bytes=", "bytes", "bytes=a-b", "bytes=1-2-3", "bytes=0-5;6-7"]
)
async def test_an_invalid_range_is_ignored(header: str) -> None:
    async with served() as (client, _, _):
        response = await client.get(PATH, headers={"Range": header})
        assert (response.status_code, response.content) == (200, DATA)
        assert "content-range" not in response.headers


async def test_several_ranges_are_the_parts_of_one_body() -> None:
    """In the order asked for; what lies beyond the end is left out."""
    async with served() as (client, _, _):
        response = await client.get(PATH, headers={"Range": f"bytes=500-599,0-9,-5,{SIZE}-"})
        assert response.status_code == 206
        assert int(response.headers["content-length"]) == len(response.content)
        head = f"Content-Type: {response.headers['content-type']}\r\n\r\n".encode()
        parts: Any = email.parser.BytesParser().parsebytes(head + response.content).get_payload()
        found = [(part["Content-Range"], part["Content-Type"], bytes_of_part(response.content, part)) for part in parts]
        assert found == [
            (f"bytes {start}-{end - 1}/{SIZE}", "application/octet-stream", DATA[start:end])
            for start, end in ((500, 600), (0, 10), (SIZE - 5, SIZE))
        ]


def bytes_of_part(body: bytes, part: Any) -> bytes:
    """The bytes of a part, as they were sent: a parser of mail knows lines alone."""
    at = body.index(f"Content-Range: {part['Content-Range']}\r\n\r\n".encode())
    start = body.index(b"\r\n\r\n", at) + 4
    first, last = part["Content-Range"].split()[1].split("/")[0].split("-")
    return body[start : start + int(last) - int(first) + 1]


@pytest.mark.parametrize("header", ["bytes=0-99,50-149", "bytes=" + ",".join(f"{at}-{at}" for at in range(0, 200, 2))])
async def test_ranges_that_overlap_or_are_very_many_are_served_as_the_whole(header: str) -> None:
    """As RFC 9110, 14.2 allows: they cost more than they save."""
    async with served() as (client, _, _):
        response = await client.get(PATH, headers={"Range": header})
        assert (response.status_code, response.content) == (200, DATA)


async def test_one_range_that_is_left_of_several_is_no_multipart() -> None:
    async with served() as (client, _, _):
        response = await client.get(PATH, headers={"Range": f"bytes=0-9,{SIZE}-"})
        assert (response.status_code, response.content) == (206, DATA[:10])
        assert response.headers["content-range"] == f"bytes 0-9/{SIZE}"


# --- conditions -------------------------------------------------------------------------------------------------------

ETAG, OTHER, WEAK = "ETAG", '"another"', "W/ETAG"
BEFORE, AFTER, SAME = "BEFORE", "AFTER", "SAME"
CONDITIONS: list[tuple[dict[str, str], int]] = [
    ({"If-None-Match": ETAG}, 304),
    ({"If-None-Match": WEAK}, 304),
    ({"If-None-Match": f"{OTHER}, {ETAG}"}, 304),
    ({"If-None-Match": "*"}, 304),
    ({"If-None-Match": OTHER}, 200),
    ({"If-None-Match": "no quotes"}, 200),
    ({"If-None-Match": ETAG, "Range": "bytes=0-4"}, 304),
    ({"If-None-Match": OTHER, "Range": "bytes=0-4"}, 206),
    ({"If-None-Match": OTHER, "If-Modified-Since": SAME}, 200),
    ({"If-Modified-Since": SAME}, 304),
    ({"If-Modified-Since": AFTER}, 304),
    ({"If-Modified-Since": BEFORE}, 200),
    ({"If-Modified-Since": "yesterday"}, 200),
    ({"If-Match": ETAG}, 200),
    ({"If-Match": "*"}, 200),
    ({"If-Match": f"{OTHER},{ETAG}"}, 200),
    ({"If-Match": OTHER}, 412),
    ({"If-Match": WEAK}, 412),
    ({"If-Match": ETAG, "If-Unmodified-Since": BEFORE}, 200),
    ({"If-Match": ETAG, "If-None-Match": ETAG}, 304),
    ({"If-Unmodified-Since": SAME}, 200),
    ({"If-Unmodified-Since": AFTER, "Range": "bytes=0-4"}, 206),
    ({"If-Unmodified-Since": BEFORE}, 412),
    ({"If-Range": ETAG, "Range": "bytes=0-4"}, 206),
    ({"If-Range": ETAG, "Range": "bytes=0-4,8-9"}, 206),
    ({"If-Range": OTHER, "Range": "bytes=0-4"}, 200),
    ({"If-Range": OTHER, "Range": "bytes=70000-70004"}, 200),
    ({"If-Range": OTHER, "Range": f"bytes={SIZE}-"}, 200),
    ({"If-Range": WEAK, "Range": "bytes=0-4"}, 200),
    ({"If-Range": SAME, "Range": "bytes=0-4"}, 206),
    ({"If-Range": BEFORE, "Range": "bytes=0-4"}, 200),
    ({"If-Range": AFTER, "Range": "bytes=0-4"}, 200),
    ({"If-Range": ETAG, "Range": f"bytes={SIZE}-"}, 416),
    ({"If-Match": OTHER, "Range": f"bytes={SIZE}-"}, 412),
]


def filled(headers: dict[str, str], etag: str, modified: datetime) -> dict[str, str]:
    """The conditions with the values of an object."""
    values = {
        "ETAG": etag,
        "BEFORE": date(modified - timedelta(days=1)),
        "AFTER": date(modified + timedelta(days=1)),
        "SAME": date(modified),
    }
    return {
        name: "".join(values.get(word, word) for word in _words(value)) if name != "Range" else value
        for name, value in headers.items()
    }


def _words(text: str) -> list[str]:
    """The text in pieces, of which some are names of values."""
    for name in ("ETAG", "BEFORE", "AFTER", "SAME"):
        text = text.replace(name, f"\0{name}\0")
    return text.split("\0")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(("headers", "status"), CONDITIONS, ids=str)
async def test_conditions(headers: dict[str, str], status: int, method: str) -> None:
    """A HEAD responds as a GET without a range."""
    async with served(cache_control="max-age=60") as (client, _, metadata):
        assert metadata.last_modified is not None
        sent = filled(headers, f'"{metadata.etag}"', metadata.last_modified)
        response = await client.request(method, PATH, headers=sent)
        expected = {206: 200, 416: 200}.get(status, status) if method == "HEAD" else status
        assert response.status_code == expected
        if expected == 200:
            assert response.headers["content-length"] == str(SIZE)
            assert response.content == (b"" if method == "HEAD" else DATA)
        if expected in (200, 206, 304):
            assert response.headers["etag"] == f'"{metadata.etag}"'
            assert response.headers["cache-control"] == "max-age=60"
        if expected == 304:
            assert response.content == b""
            assert "content-length" not in response.headers


# Where starlette's response is another one that RFC 9110 allows too, or does not: it knows nothing of other conditions.
STARLETTE_RANGES = (
    *(None, "bytes=0-0", "bytes=10-19", "bytes=5-", "bytes=-7", f"bytes=5-{SIZE + 5}", f"bytes={SIZE}-"),
    *("bytes=0-4,10-14", "bytes=90000-90009,3-4"),
)


@pytest.mark.parametrize("if_range", [None, ETAG, OTHER, SAME, BEFORE])
@pytest.mark.parametrize("header", STARLETTE_RANGES)
async def test_a_file_is_served_as_starlette_serves_it(
    header: str | None, if_range: str | None, tmp_path: Path
) -> None:
    """Status, body and the fields of the range; ETags are each server's own."""
    path = tmp_path / "file.txt"
    path.write_bytes(DATA)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    oracle = httpx.ASGITransport(Starlette(routes=[Route("/file.txt", lambda request: FileResponse(path))]))
    async with (
        ap.Operator.from_uri(f"file://{tmp_path}") as op,
        client_of(op) as ours,
        httpx.AsyncClient(transport=oracle, base_url="http://oracle/") as theirs,
    ):
        responses = []
        for client in (ours, theirs):
            etag = (await client.head("/file.txt")).headers["etag"]
            modified = datetime.fromtimestamp(1_700_000_000, UTC)
            sent = {name: value for name, value in (("Range", header), ("If-Range", if_range)) if value is not None}
            responses.append(await client.get("/file.txt", headers=filled(sent, etag, modified)))
        own, other = responses
        assert own.status_code == other.status_code
        names = ["content-range", "last-modified"]
        if not (own.headers.get("content-type") or "").startswith("multipart"):
            assert own.status_code == 416 or own.content == other.content
            names += ["content-length"] if own.status_code != 416 else []
        assert [own.headers.get(name) for name in names] == [other.headers.get(name) for name in names]
        assert own.headers["content-type"].split(";")[0] == other.headers["content-type"].split(";")[0]


@given(st.text(alphabet="bytes=0123456789-, \t", max_size=30))
def test_every_header_is_ranges_or_ignored(header: str) -> None:
    for spec in parse_ranges(header):
        assert isinstance(spec, ByteSpec)
        wanted = spec.within(1000)
        assert wanted is None or 0 <= wanted[0] < wanted[1] <= 1000


# --- paths, methods, failures -----------------------------------------------------------------------------------------


async def test_an_empty_object() -> None:
    async with served(data=b"") as (client, _, _):
        response = await client.get(PATH)
        assert (response.status_code, response.content, response.headers["content-length"]) == (200, b"", "0")
        ranged = await client.get(PATH, headers={"Range": "bytes=0-9"})
        assert (ranged.status_code, ranged.headers["content-range"]) == (416, "bytes */0")


@pytest.mark.parametrize(
    "path",
    [
        *("/missing", "/", "/dir", "/dir/", "/dir/../dir/a%20b.bin", "/dir/%2e%2e/dir/a%20b.bin", "/..%2fsecret"),
        *("/dir/./a%20b.bin", "/%2e%2e/%2e%2e/etc/passwd", "/dir/a%20b.bin/below"),
    ],
)
async def test_what_is_not_an_object_is_404(path: str, tmp_path: Path) -> None:
    """And says no more than that; nothing outside of the root is reached."""
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "dir").mkdir(parents=True)
    (root / "dir" / "a b.bin").write_bytes(DATA)
    async with ap.Operator.from_uri(f"file://{root}") as op:
        app = ap.asgi.RangeApp(op)
        sent: list[Any] = []
        # As servers pass it to applications: decoded, with nothing resolved.
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": unquote(path), "headers": []}
        await app(scope, never, collector(sent))
        assert sent[0]["status"] == 404
        assert sent[1]["body"] == b"Not Found\n"


async def test_only_what_is_below_the_prefix_is_served() -> None:
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("public/a", b"public")
        await op.write("private/b", b"private")
        async with client_of(op, prefix="public") as client:
            assert (await client.get("/a")).content == b"public"
            assert (await client.get("/%2e%2e/private/b")).status_code == 404
            assert (await client.get("/private/b")).status_code == 404


@pytest.mark.parametrize("is_stripped", [True, False])
async def test_the_path_of_a_mount_is_no_part_of_the_key(is_stripped: bool) -> None:
    """Servers and frameworks differ in whether ``path`` begins with ``root_path``."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("a", b"bytes")
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/a" if is_stripped else "/files/a",
            "root_path": "/files",
            "headers": [],
        }
        sent: list[Any] = []
        await ap.asgi.RangeApp(op)(scope, never, collector(sent))
        assert sent[1]["body"] == b"bytes"
        mounted = httpx.ASGITransport(Starlette(routes=[Mount("/files", ap.asgi.RangeApp(op))]))
        async with httpx.AsyncClient(transport=mounted, base_url="http://service/") as client:
            assert (await client.get("/files/a")).content == b"bytes"


@each_of("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods_are_405(method: str) -> None:
    async with served() as (client, _, _):
        response = await client.request(method, PATH)
        assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


FAILURES = [
    (ap.PermissionDenied, 403),
    (ap.CredentialsExpired, 502),
    (ap.NotFound, 404),
    (ap.Throttled, 503),
    (ap.Unavailable, 503),
    (ap.TimedOut, 503),
    (ap.BudgetExhausted, 503),
    (ap.ProtocolError, 503),
    (ap.Unexpected, 502),
    (ap.Unsupported, 502),
]


@each_of("method", ["GET", "HEAD"])
@each_of(("error", "status"), FAILURES)
async def test_failures_of_the_store(error: type[ap.Error], status: int, method: str) -> None:
    """The text of an error stays here; what may pass says when to come again."""
    async with served((Injection(error=error, operation="stat" if method == "HEAD" else "read"),)) as (client, _, _):
        response = await client.request(method, PATH)
        assert response.status_code == status
        assert ("retry-after" in response.headers) == (status == 503)
        assert "injected" not in response.text
        assert len(response.text) < 30


async def test_a_missing_bucket_is_no_missing_object(
    s3_server: CountingS3Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Who runs the service finds it in the log; clients did nothing wrong."""
    op = ap.Operator.from_uri(
        "s3://there-is-none",
        **options_of(s3_server),
    )
    async with op, client_of(op) as client:
        assert (await client.get("/k")).status_code == 502
    assert "no bucket 'there-is-none'" in caplog.text


async def test_retry_after_is_the_one_of_the_store() -> None:
    plan = (Injection(operation="read", error=ap.Throttled, retry_after_seconds=6.5),)
    async with served(plan) as (client, _, _):
        assert (await client.get(PATH)).headers["retry-after"] == "7"


async def test_an_object_that_is_overwritten_meanwhile_is_begun_again() -> None:
    """Between its metadata and its bytes; the response is of the new version."""
    async with served((Injection(operation="read", etag="older"),), chunk_bytes=10) as (client, _, metadata):
        response = await client.get(PATH, headers={"If-Match": f'"{metadata.etag}"'})
        assert (response.status_code, response.content) == (200, DATA)


async def test_an_object_that_changes_while_it_is_sent_ends_the_connection() -> None:
    """Never the bytes of two versions."""
    plan = (Injection(operation="read", occurrence=3, etag="newer"),)
    async with served(plan, chunk_bytes=10_000) as (client, _, _):
        with pytest.raises(ap.ObjectChanged):
            await client.get(PATH)


@each_of("occurrence", range(10))
async def test_a_read_that_fails_in_the_middle_ends_the_connection(occurrence: int) -> None:
    plan = (Injection(operation="read", occurrence=occurrence, error=ap.Unavailable),)
    async with served(plan, chunk_bytes=10_000) as (client, op, _):
        if occurrence == 0:
            assert (await client.get(PATH)).status_code == 503
        else:
            with pytest.raises(ap.Unavailable):
                await client.get(PATH)
        assert (await client.get(PATH)).content == DATA
        assert op.runtime().budget.used_bytes == 0


async def test_the_type_is_the_stored_one_or_follows_from_the_name() -> None:
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("a.txt", b"text")
        await op.write("b", b"text", content_type="text/markdown")
        await op.write("c", b"text")
        async with client_of(op) as client:
            types = [(await client.get(path)).headers["content-type"] for path in ("/a.txt", "/b", "/c")]
            assert types == ["text/plain", "text/markdown", "application/octet-stream"]


@each_of(
    ("name", "stored", "coding", "sent"),
    [
        ("a.csv.gz", None, None, "application/gzip"),
        ("a.csv.gz", None, "gzip", "text/csv"),
        ("a.tar.xz", None, None, "application/x-xz"),
        ("a.json.br", None, None, "application/octet-stream"),
        ("a.pdf", "binary/octet-stream", None, "application/pdf"),
        ("a.csv.gz", "binary/octet-stream", None, "application/gzip"),
        ("a.pdf", "application/octet-stream", None, "application/octet-stream"),
    ],
)
async def test_a_packed_file_is_what_packs_it(name: str, stored: str | None, coding: str | None, sent: str) -> None:
    """A browser would show it as text. And S3 names a type where none was stored."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write(name, b"bytes", content_type=stored, content_encoding=coding)
        messages: list[Any] = []
        scope = {"type": "http", "method": "GET", "path": f"/{name}", "headers": []}
        await ap.asgi.RangeApp(op)(scope, never, collector(messages))
        assert dict(messages[0]["headers"])[b"content-type"].decode() == sent


@pytest.mark.parametrize(("stored", "sent"), [("gzip", "gzip"), ("aws-chunked", None), ("identity,br", "br")])
async def test_an_encoded_object_is_served_as_such(stored: str, sent: str | None) -> None:
    """By reads of all kinds, and by HEAD: the client is to decode what was stored."""
    data = gzip.compress(b"text " * 100)
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("a.json", data, content_encoding=stored)
        op = op.layer(ap.layers.LruCacheLayer(cache=ap.Operator(ap.services.Memory()), capacity_bytes=1 << 20))
        scopes: list[tuple[str, dict[str, str]]] = [
            ("GET", {}),
            ("GET", {"range": "bytes=3-9"}),
            ("GET", {"if-match": "*"}),
            ("HEAD", {}),
            ("GET", {"range": "bytes=0-3,8-9"}),
        ]
        for method, fields in scopes:
            headers = [(name.encode(), text.encode()) for name, text in fields.items()]
            scope = {"type": "http", "method": method, "path": "/a.json", "headers": headers}
            messages: list[Any] = []
            await ap.asgi.RangeApp(op)(scope, never, collector(messages))
            found = dict(messages[0]["headers"])
            if not (sent is None and b"multipart" in found[b"content-type"]):
                assert found.get(b"content-encoding", b"").decode() == (sent or "")
            if "," in fields.get("range", ""):
                assert messages[0]["status"] == (206 if sent is None else 200)
        await op.aclose()


async def test_ranges_that_are_long_together_are_served_as_the_whole() -> None:
    """All parts are in memory at once."""
    async with served(chunk_bytes=1000) as (client, _, _):
        ranges = {"Range": "bytes=0-599,1000-1599"}
        assert (await client.get(PATH, headers=ranges)).status_code == 200
        ranges = {"Range": "bytes=0-499,1000-1499"}
        assert (await client.get(PATH, headers=ranges)).status_code == 206


# --- fields of every response -----------------------------------------------------------------------------------------

EVERY_RESPONSE: list[tuple[str, str, dict[str, str], int]] = [
    ("GET", PATH, {}, 200),
    ("HEAD", PATH, {}, 200),
    ("GET", PATH, {"Range": "bytes=0-4"}, 206),
    ("GET", PATH, {"Range": "bytes=0-4,8-9"}, 206),
    ("GET", PATH, {"If-None-Match": "*"}, 304),
    ("GET", PATH, {"If-Match": OTHER}, 412),
    ("GET", PATH, {"Range": f"bytes={SIZE}-"}, 416),
    ("GET", "/missing", {}, 404),
    ("POST", PATH, {}, 405),
]


@each_of(("method", "path", "headers", "status"), EVERY_RESPONSE)
async def test_every_response_has_the_fields_that_were_given(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """By default browsers are asked to believe the type: HTML of a writer of objects would run in the app's origin."""
    given = {"Content-Security-Policy": "sandbox", "X-Name": "caf\xe9"}
    for options, expected in (
        ({}, ["nosniff"]),
        ({"headers": given}, ["nosniff"]),
        ({"headers": {**given, "X-Content-Type-Options": None}}, []),
        ({"headers": {**given, "x-content-type-options": "own"}}, ["own"]),
    ):
        async with served(**options) as (client, _, _):
            for _ in range(2):
                response = await client.request(method, path, headers=headers)
                assert response.status_code == status
                assert response.headers.get_list("x-content-type-options") == expected
                policies = ["sandbox"] if options else []
                assert response.headers.get_list("content-security-policy") == policies
                assert (b"x-name", "caf\xe9".encode("latin-1")) in response.headers.raw or not options


class Described(VerbLayer):
    """Describes objects as no service of ours does: by a weak ETag, and a type with the end of a line."""

    async def stat(self, inner: Accessor, request: StatRequest) -> Metadata:
        return replace(await inner.stat(request), etag="W/weak", content_type="text/html\r\nSet-Cookie: a=b")


async def test_a_type_never_ends_its_line() -> None:
    """It comes from the writer of the object."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", b"bytes")
        messages: list[Any] = []
        scope = {"type": "http", "method": "HEAD", "path": "/k", "headers": []}
        await ap.asgi.RangeApp(op.layer(Described()))(scope, never, collector(messages))
        assert dict(messages[0]["headers"])[b"content-type"] == b"text/htmlSet-Cookie: a=b"


@pytest.mark.parametrize(
    ("headers", "status"), [({"If-Match": 'W/"weak"'}, 412), ({"If-None-Match": 'W/"weak", "other"'}, 304)]
)
async def test_a_weak_etag_never_joins_ranges(headers: dict[str, str], status: int) -> None:
    """Two versions with equal weak ETags may have other bytes."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", b"bytes")
        async with client_of(op.layer(Described())) as client:
            assert (await client.head("/k", headers=headers)).status_code == status


async def test_ranges_that_touch_and_the_most_ranges_are_parts() -> None:
    async with served() as (client, _, _):
        for count, status in ((2, 206), (64, 206), (65, 200)):
            ranges = ",".join(f"{number * 10}-{number * 10 + 9}" for number in range(count))
            response = await client.get(PATH, headers={"Range": f"bytes={ranges}"})
            assert response.status_code == status, count


async def test_the_whole_in_place_of_a_range_of_another_version_is_counted_whole() -> None:
    """Only its beginning was asked for."""
    async with ap.Operator(ap.services.Memory()) as op:
        await op.write("k", DATA)
        app = ap.asgi.RangeApp(op, chunk_bytes=200_000)
        used: list[int] = []

        async def send(message: Any) -> None:
            used.append(app.operator.runtime().budget.used_bytes)

        headers = [(b"range", b"bytes=0-69999"), (b"if-range", b'"another"')]
        await app({"type": "http", "method": "GET", "path": "/k", "headers": headers}, never, send)
        assert min(used) >= SIZE
