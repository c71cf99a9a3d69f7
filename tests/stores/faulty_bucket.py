"""A bucket of S3 in memory, over HTTP on the running loop, whose responses a test spoils.

It does what S3 does for the requests of verbs: objects with MD5 ETags, conditions, copies, uploads in parts, listings,
deletions of many. A ``Fault`` gets each request, and answers in the bucket's place, before or after the deed.
"""

import asyncio
import contextlib
import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from aioprefetch import Operator

PART_BYTES = 5 << 20
PAGE = b"<html><body>Please log in</body></html>"


@dataclass(frozen=True)
class Answer:
    """A response of the bucket; without a body, ``None``, the connection is cut in its place."""

    status: int = 200
    body: bytes | None = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self, *, is_head: bool) -> bytes:
        """The response on the wire."""
        body = self.body or b""
        headers = {"Content-Length": str(len(body)), "Date": formatdate(usegmt=True), **self.headers}
        if self.status == 204 or "Transfer-Encoding" in headers:
            headers.pop("Content-Length")
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} X\r\n{lines}\r\n".encode("latin-1") + (b"" if is_head else body)


def failed(status: int, code: str, extra: str = "") -> Answer:
    """An error of S3."""
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message>{extra}</Error>".encode())


@dataclass(frozen=True)
class Call:
    """A request: its method, key and query, and what of it decides what it means."""

    number: int
    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def verb(self) -> str:
        """The name of the request in S3's words."""
        if self.method == "PUT":
            what = "Part" if "partNumber" in self.query else "Object"
            copies = {"Part": "UploadPartCopy", "Object": "CopyObject"}
            return copies[what] if self.source else f"Put{what}"
        if self.method == "POST":
            return "Delete" if "delete" in self.query else "Begin" if "uploads" in self.query else "Complete"
        if self.method == "DELETE":
            return "Abort" if "uploadId" in self.query else "DeleteObject"
        if self.key:
            return "HeadObject" if self.method == "HEAD" else "GetObject"
        return "ListUploads" if "uploads" in self.query else "List"

    @property
    def source(self) -> str:
        """The key that is copied."""
        return unquote(self.headers.get("x-amz-copy-source", "").partition("?")[0]).lstrip("/").partition("/")[2]

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in ("GET", "HEAD")


# Gives the response to a request in place of the bucket's, which the second argument computes, once or never.
Fault = Callable[[Call, Callable[[], Answer]], Answer]
LOST = Answer(200, None)


def _lost(call: Call, deed: Callable[[], Answer]) -> Answer:
    deed()
    return LOST


def _hollow(call: Call, deed: Callable[[], Answer]) -> Answer:
    if call.verb == "DeleteObject":  # Some stores say so that it is done.
        deed()
    return Answer(200)


def _spoiled(body: Callable[[bytes], bytes]) -> Fault:
    def fault(call: Call, deed: Callable[[], Answer]) -> Answer:
        done = deed()
        return Answer(done.status, body(done.body or b""), {k: v for k, v in done.headers.items() if k != "ETag"})

    return fault


def _after(answer: Answer) -> Fault:
    def fault(call: Call, deed: Callable[[], Answer]) -> Answer:
        deed()
        return answer

    return fault


FAULTS: dict[str, Fault] = {
    "cut": lambda call, deed: LOST,
    "500": lambda call, deed: failed(500, "InternalError"),
    "503": lambda call, deed: failed(503, "SlowDown"),
    "403": lambda call, deed: failed(403, "AccessDenied"),
    "error in a 200": lambda call, deed: Answer(200, failed(200, "InternalError").body),
    "hollow": _hollow,
    "page": lambda call, deed: Answer(200, PAGE, {"Content-Type": "text/html"}),
    "cut XML": _spoiled(lambda body: body[: len(body) // 2]),
    "lost": _lost,
    "500 after the deed": _after(failed(500, "InternalError")),
    "no ETag": _spoiled(lambda body: body.replace(b"ETag", b"Etagg")),
}


class FaultyBucket:
    """The bucket. ``calls`` are the requests so far; ``fault`` spoils those that ``strikes`` selects.

    ``etag`` makes the ETags of objects, ``now`` is the time of the last write.
    """

    clock_step_seconds = 7
    fraction = ".000Z"  # of the times in a listing

    def __init__(self, *, name: str = "bucket", knows_delete_conditions: bool = True) -> None:
        self.name = name
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.calls: list[Call] = []
        self.fault: Fault | None = None
        self.strikes: Callable[[Call], bool] = lambda call: True
        self.on_call: Callable[[Call], object] = lambda call: None
        self.now = 1_700_000_000
        self.times: dict[str, int] = {}
        self.etag: Callable[[bytes], str] = etag_of
        self._ids = itertools.count()
        self._knows_delete_conditions = knows_delete_conditions
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def endpoint_url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of an operator of the bucket."""
        return options_at(self.endpoint_url)

    def operator(self, **options: Any) -> Operator:
        """An operator of the bucket, quick to try again."""
        return operator_at(self.endpoint_url, self.name, **options)

    def put(self, key: str, data: bytes) -> None:
        """Another client writes an object."""
        self.now += self.clock_step_seconds
        self.objects[key], self.times[key] = data, self.now

    async def wait_until_idle(self) -> None:
        """Wait until all clients are gone and their requests are done."""
        while self._connections:
            await asyncio.wait(self._connections)

    # --- the wire -----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._respond(reader, writer):
                pass
        writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", ""):
            body = await _received_in_chunks(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = _unchunked(body)
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        key = unquote(url.path).removeprefix(f"/{self.name}").removeprefix("/")
        call = Call(len(self.calls), method, key, query, headers, body)
        self.calls.append(call)
        self.on_call(call)
        answer = self.respond(call)
        if answer.body is None:
            return False
        writer.write(answer.to_bytes(is_head=method == "HEAD"))
        await writer.drain()
        return True

    def respond(self, call: Call) -> Answer:
        """The response to a request, spoiled where it is to be."""
        if self.fault is not None and self.strikes(call):
            return self.fault(call, lambda: self._done(call))
        return self._done(call)

    def described(self, key: str) -> Mapping[str, str]:
        """Headers that describe an object."""
        return {}

    # --- what S3 does -------------------------------------------------------------------------------------------

    def _done(self, call: Call) -> Answer:
        handlers: dict[str, Callable[[Call], Answer]] = {
            "PutObject": self.put_object,
            "CopyObject": self.copy_object,
            "PutPart": self._put_part,
            "UploadPartCopy": self._put_part,
            "Begin": self.begin_upload,
            "Complete": self.complete_upload,
            "Abort": self._abort,
            "Delete": self._delete_many,
            "DeleteObject": self.delete_one,
            "HeadObject": self.get_object,
            "GetObject": self.get_object,
            "List": self.list_objects,
            "ListUploads": lambda call: Answer(200, b"<R><IsTruncated>false</IsTruncated></R>"),
        }
        return handlers[call.verb](call)

    def _refused(self, call: Any) -> Answer | None:
        """The response to a condition on the target that does not hold."""
        data = self.objects.get(call.key)
        match, none_match = call.headers.get("if-match"), call.headers.get("if-none-match")
        if none_match == "*" and data is not None:
            return failed(412, "PreconditionFailed")
        if match is not None and data is None:
            return failed(404, "NoSuchKey")
        if match is not None and data is not None and match.strip('"') not in ("*", self.etag(data)):
            return failed(412, "PreconditionFailed")
        return None

    def put_object(self, call: Call) -> Answer:
        if refused := self._refused(call):
            return refused
        self.put(call.key, call.body)
        return Answer(200, headers={"ETag": f'"{self.etag(call.body)}"'})

    def _copied(self, call: Call) -> bytes | Answer:
        data = self.objects.get(call.source)
        if data is None:
            return failed(404, "NoSuchKey")
        wanted = call.headers.get("x-amz-copy-source-if-match", "").strip('"')
        if wanted and wanted not in ("*", self.etag(data)):
            return failed(412, "PreconditionFailed", "<Condition>x-amz-copy-source-If-Match</Condition>")
        return data

    def copy_object(self, call: Call) -> Answer:
        data = self._copied(call)
        if isinstance(data, Answer):
            return data
        if refused := self._refused(call):
            return refused
        self.put(call.key, data)
        return Answer(200, f"<CopyObjectResult><ETag>&quot;{self.etag(data)}&quot;</ETag></CopyObjectResult>".encode())

    def begin_upload(self, call: Call) -> Answer:
        upload = f"u{next(self._ids)}"
        self.uploads[upload] = (call.key, {})
        text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        return Answer(200, text.encode())

    def _put_part(self, call: Call) -> Answer:
        if call.query["uploadId"] not in self.uploads:
            return failed(404, "NoSuchUpload")
        data = self._copied(call) if call.source else call.body
        if isinstance(data, Answer):
            return data
        if ends := call.headers.get("x-amz-copy-source-range"):
            start, end = map(int, ends.removeprefix("bytes=").split("-"))
            data = data[start : end + 1]
        self.uploads[call.query["uploadId"]][1][int(call.query["partNumber"])] = data
        etag = etag_of(data)
        if call.source:
            return Answer(200, f"<CopyPartResult><ETag>&quot;{etag}&quot;</ETag></CopyPartResult>".encode())
        return Answer(200, headers={"ETag": f'"{etag}"'})

    def complete_upload(self, call: Call) -> Answer:
        upload = call.query["uploadId"]
        if upload not in self.uploads:
            return failed(404, "NoSuchUpload")
        if refused := self._refused(call):
            return refused
        named = [int(one.text or 0) for one in ET.fromstring(call.body).iter() if one.tag.endswith("PartNumber")]
        parts = self.uploads.pop(upload)[1]
        self.put(call.key, b"".join(parts[number] for number in named))
        etag = self.etag(self.objects[call.key])
        text = f"<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        return Answer(200, text.encode())

    def _abort(self, call: Call) -> Answer:
        found = self.uploads.pop(call.query["uploadId"], None)
        return failed(404, "NoSuchUpload") if found is None else Answer(204)

    def delete_one(self, call: Call) -> Answer:
        if "if-match" in call.headers and not self._knows_delete_conditions:
            return failed(501, "NotImplemented")
        if call.key in self.objects and (refused := self._refused(call)):
            return refused
        self.objects.pop(call.key, None)
        return Answer(204)

    def _delete_many(self, call: Call) -> Answer:
        rows = []
        for item in ET.fromstring(call.body).iter():
            if not item.tag.endswith("Object"):
                continue
            fields = {one.tag.rpartition("}")[2]: one.text or "" for one in item}
            key, etag = fields["Key"], fields.get("ETag", "").strip('"')
            if etag and not self._knows_delete_conditions:
                return failed(501, "NotImplemented")
            if etag and key in self.objects and etag != self.etag(self.objects[key]):
                rows.append(f"<Error><Key>{escape(key)}</Key><Code>PreconditionFailed</Code></Error>")
                continue
            self.objects.pop(key, None)
            rows.append(f"<Deleted><Key>{escape(key)}</Key></Deleted>")
        return Answer(200, f"<DeleteResult>{''.join(rows)}</DeleteResult>".encode())

    def get_object(self, call: Call) -> Answer:
        data = self.objects.get(call.key)
        if data is None:
            return failed(404, "NoSuchKey")
        etag = self.etag(data)
        if call.headers.get("if-match", f'"{etag}"').strip('"') not in ("*", etag):
            return failed(412, "PreconditionFailed")
        headers = {"ETag": f'"{etag}"', "Last-Modified": formatdate(self.times[call.key], usegmt=True)}
        headers |= self.described(call.key)
        if call.headers.get("if-none-match", "").strip('"') == etag:
            return Answer(304, b"", headers)
        asked = call.headers.get("range", "").removeprefix("bytes=")
        if not asked or call.method == "HEAD":
            return Answer(200, data, {**headers, "Content-Length": str(len(data))})
        first, _, last = asked.partition("-")
        start = max(0, len(data) - int(last)) if not first else int(first)
        end = len(data) if not first or not last else min(int(last) + 1, len(data))
        if start >= len(data):
            return Answer(416, failed(416, "InvalidRange").body, {"Content-Range": f"bytes */{len(data)}"})
        return Answer(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def list_objects(self, call: Call) -> Answer:
        after = max(call.query.get("start-after", ""), call.query.get("continuation-token", ""))
        rows = self._rows(call.query.get("prefix", ""), call.query.get("delimiter", ""))
        left = [name for name in rows if name > after]
        most = int(call.query.get("max-keys", 1000))
        return self._page(rows, left[:most], left[most - 1] if len(left) > most else None)

    def _rows(self, prefix: str, delimiter: str) -> dict[str, str]:
        """The lines of a listing by their names, in the order of these."""
        rows: dict[str, str] = {}
        for key in sorted(self.objects):
            if not key.startswith(prefix):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[: end + 1]
            if name in rows:
                continue
            if end < 0:
                stamp = datetime.fromtimestamp(self.times[key], UTC).strftime("%Y-%m-%dT%H:%M:%S") + self.fraction
                etag = self.etag(self.objects[key])
                rows[name] = (
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
                    f"<LastModified>{stamp}</LastModified><ETag>&quot;{etag}&quot;</ETag></Contents>"
                )
            else:
                rows[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        return rows

    def _page(self, rows: dict[str, str], names: list[str], token: str | None) -> Answer:
        """A page with some lines. ``token`` is that of the next one."""
        text = "".join(rows[name] for name in names)
        if token is not None:
            text += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
        is_cut = "false" if token is None else "true"
        text = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{text}</ListBucketResult>"
        return Answer(200, text.encode())


def options_at(endpoint_url: str) -> dict[str, Any]:
    """The options of an operator of a bucket that is served there, quick to try again."""
    return {
        "endpoint_url": endpoint_url,
        "region": "us-east-1",
        "access_key_id": "AKIAEXAMPLE",
        "secret_access_key": "secret",
        "retry_seconds": 0.001,
        "attempts_max": 3,
        "part_bytes": PART_BYTES,
    }


def operator_at(endpoint_url: str, name: str = "bucket", **options: Any) -> Operator:
    """An operator of a bucket that is served there, quick to try again."""
    return Operator.from_uri(f"s3://{name}", **{**options_at(endpoint_url), **options})


def etag_of(data: bytes) -> str:
    """The ETag of an object that was written at once."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


async def _received_in_chunks(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        data += (await reader.readexactly(size + 2))[:size]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return data


def _unchunked(body: bytes) -> bytes:
    data, position = b"", 0
    while True:
        end = body.index(b"\r\n", position)
        size = int(body[position:end].partition(b";")[0], 16)
        if size == 0:
            return data
        data += body[end + 2 : end + 2 + size]
        position = end + 2 + size + 2
