"""A store of S3 that writes, copies and deletes, and whose responses a test bends: after the deed, or in its place."""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from aioprefetch import Operator
from aioprefetch.services.s3 import S3
from tests.reliability.scripted import NO_PAUSES

PAGE = b"<html><title>Log in</title></html>"
PART = 5 << 20
DESCRIBING = ("content-disposition", "content-encoding", "content-language", "content-type", "cache-control", "expires")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. ``verb`` names what S3 calls it, in a word."""

    verb: str
    key: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """A response; ``None`` for a body closes the connection in its place."""

    status: int = 200
    body: bytes | None = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self, is_head: bool) -> bytes:
        """The response on the wire."""
        body = self.body or b""
        headers = {"Content-Length": str(len(body)), **self.headers}
        if self.status == 204 or "Transfer-Encoding" in headers:
            headers.pop("Content-Length")
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} X\r\n{lines}\r\n".encode("latin-1") + (b"" if is_head else body)


HOLLOW: Mapping[str, Said] = {
    "a page": Said(200, PAGE, {"Content-Type": "text/html"}),
    "a page with a document type": Said(200, b"<!DOCTYPE html>" + PAGE, {"Content-Type": "text/html", "ETag": '"p"'}),
    "nothing": Said(200, b""),
    "lost": Said(200, None),
}


def error(status: int, code: str, extra: str = "") -> Said:
    """An error of S3."""
    return Said(status, f"<Error><Code>{code}</Code><Message>no</Message>{extra}</Error>".encode())


@dataclass(slots=True)
class Bent:
    """What becomes of the ``times`` next requests with this verb: ``said``, after the ``deed`` or in its place.

    A function of the request and of the right response makes another one.
    """

    verb: str
    said: Said | Callable[[Asked, Said], Said]
    deed: bool = False
    times: int = 1


class KeyServer:
    """The store: ``objects`` by key, and the headers that describe them, as ``descriptions``.

    ``etag`` makes their ETags, ``now`` is the time of the last write.
    """

    bucket = "bkt"

    def __init__(self, objects: Mapping[str, bytes] | None = None, *bent: Bent) -> None:
        self.now = 1_700_000_000
        self.objects: dict[str, bytes] = dict(objects or {})
        self.times: dict[str, int] = dict.fromkeys(self.objects, self.now)
        self.descriptions: dict[str, Mapping[str, str]] = {}
        self.etag: Callable[[bytes], str] = lambda data: hashlib.md5(data).hexdigest()
        self.bent = list(bent)
        self.asked: list[Asked] = []
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def verbs(self) -> list[str]:
        """The words of the requests that came."""
        return [one.verb for one in self.asked]

    def operator(self, **options: object) -> Operator:
        """The default stack over the store, without pauses."""
        service = S3(
            bucket=self.bucket,
            endpoint_url=f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}",
            region="us-east-1",
            access_key_id="id",
            secret_access_key="secret",
            part_bytes=PART,
        )
        return Operator(service, **options).layer(NO_PAUSES)  # type: ignore[arg-type]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 26)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._serve(reader, writer):
                    pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")[:-4].split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        url = urlsplit(target)
        query = parse_qs(url.query, keep_blank_values=True)
        key = unquote(url.path).removeprefix(f"/{self.bucket}").removeprefix("/")
        asked = Asked(_verb_of(method, key, query, headers), key, query, headers, body)
        self.asked.append(asked)
        said = self._respond(asked)
        if said.body is None:
            return False
        writer.write(said.to_bytes(method == "HEAD"))
        await writer.drain()
        return True

    def _respond(self, asked: Asked) -> Said:
        bent = next((one for one in self.bent if one.verb == asked.verb and one.times > 0), None)
        if bent is None:
            return self.done(asked)
        bent.times -= 1
        right = self.done(asked) if bent.deed else Said()
        return bent.said if isinstance(bent.said, Said) else bent.said(asked, right)

    def put(self, key: str, data: bytes) -> None:
        """Write an object, a second later."""
        self.now += 1
        self.objects[key], self.times[key] = data, self.now

    def done(self, asked: Asked) -> Said:
        """Do what was asked; the right response."""
        return getattr(self, f"_{asked.verb}")(asked)  # type: ignore[no-any-return]

    def _described(self, key: str) -> dict[str, str]:
        date = formatdate(self.times[key], usegmt=True)
        return {"ETag": f'"{self.etag(self.objects[key])}"', "Last-Modified": date, **self.descriptions.get(key, {})}

    def _describe(self, asked: Asked, headers: Mapping[str, str]) -> None:
        kept = (*DESCRIBING, "x-amz-meta-")
        self.descriptions[asked.key] = {name: text for name, text in headers.items() if name.startswith(kept)}

    def _refused(self, asked: Asked) -> Said | None:
        """The refusal of a condition on what is at the key."""
        wanted = asked.headers.get("if-match")
        there = self.objects.get(asked.key)
        if asked.headers.get("if-none-match") == "*" and there is not None:
            return error(412, "PreconditionFailed")
        if wanted is not None and (there is None or wanted.strip('"') not in ("*", self.etag(there))):
            return error(412, "PreconditionFailed") if there is not None else error(404, "NoSuchKey")
        return None

    def _head(self, asked: Asked) -> Said:
        if asked.key not in self.objects:
            return Said(404)
        size = str(len(self.objects[asked.key]))
        return Said(200, b"", {**self._described(asked.key), "Content-Length": size})

    def _get(self, asked: Asked) -> Said:
        if asked.key not in self.objects:
            return error(404, "NoSuchKey")
        if (refused := self._refused(asked)) is not None:
            return refused
        data = self.objects[asked.key]
        if asked.headers.get("if-none-match", "").strip('"') == self.etag(data):
            return Said(304, b"", self._described(asked.key))
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.headers.get("range", ""))
        if match is None or not data:
            return Said(200, data, self._described(asked.key))
        start, end = int(match[1]), min(int(match[2] or len(data) - 1) + 1, len(data))
        whole = {**self._described(asked.key), "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        return Said(206, data[start:end], whole)

    def _put(self, asked: Asked) -> Said:
        if (refused := self._refused(asked)) is not None:
            return refused
        self.put(asked.key, asked.body)
        self._describe(asked, asked.headers)
        return Said(200, b"", {"ETag": f'"{self.etag(asked.body)}"'})

    def _source(self, asked: Asked) -> bytes | Said:
        source = (
            unquote(asked.headers["x-amz-copy-source"])
            .partition("?")[0]
            .removeprefix("/")
            .removeprefix(f"{self.bucket}/")
        )
        wanted = asked.headers.get("x-amz-copy-source-if-match")
        if source not in self.objects:
            return error(404, "NoSuchKey")
        if wanted is not None and wanted.strip('"') != self.etag(self.objects[source]):
            return error(412, "PreconditionFailed", "<Condition>x-amz-copy-source-If-Match</Condition>")
        return self.objects[source]

    def _copy(self, asked: Asked) -> Said:
        source = self._source(asked)
        if isinstance(source, Said):
            return source
        if (refused := self._refused(asked)) is not None:
            return refused
        self.put(asked.key, source)
        name = unquote(asked.headers["x-amz-copy-source"]).removeprefix("/")
        self._describe(asked, self.descriptions.get(name.removeprefix(f"{self.bucket}/"), {}))
        return Said(200, f"<CopyObjectResult><ETag>{self.etag(source)}</ETag></CopyObjectResult>".encode())

    def _begin(self, asked: Asked) -> Said:
        name = f"u{len(self.uploads)}"
        self._describe(asked, asked.headers)
        self.uploads[name] = {}
        return Said(200, f"<R><UploadId>{name}</UploadId></R>".encode())

    def _part(self, asked: Asked) -> Said:
        self.uploads[asked.query["uploadId"][0]][int(asked.query["partNumber"][0])] = asked.body
        return Said(200, b"", {"ETag": f'"{hashlib.md5(asked.body).hexdigest()}"'})

    def _copypart(self, asked: Asked) -> Said:
        source = self._source(asked)
        if isinstance(source, Said):
            return source
        self.uploads[asked.query["uploadId"][0]][int(asked.query["partNumber"][0])] = source
        digest = hashlib.md5(source).hexdigest()
        return Said(200, f"<CopyPartResult><ETag>{digest}</ETag></CopyPartResult>".encode())

    def _complete(self, asked: Asked) -> Said:
        if asked.query["uploadId"][0] not in self.uploads:
            return error(404, "NoSuchUpload")
        if (refused := self._refused(asked)) is not None:
            return refused
        parts = [data for _, data in sorted(self.uploads.pop(asked.query["uploadId"][0]).items())]
        digest = hashlib.md5(b"".join(hashlib.md5(part).digest() for part in parts)).hexdigest()
        whole, made = b"".join(parts), f"{digest}-{len(parts)}"
        self.put(asked.key, whole)
        before = self.etag
        self.etag = lambda data: made if data == whole else before(data)
        return Said(200, f"<R><ETag>{made}</ETag></R>".encode())

    def _abort(self, asked: Asked) -> Said:
        gone = self.uploads.pop(asked.query["uploadId"][0], None) is None
        return error(404, "NoSuchUpload") if gone else Said(204)

    def _delete(self, asked: Asked) -> Said:
        if (refused := self._refused(asked)) is not None:
            return refused
        self.objects.pop(asked.key, None)
        return Said(204)

    def _deletes(self, asked: Asked) -> Said:
        rows = ""
        for each in re.findall(r"<Object>(.*?)</Object>", asked.body.decode()):
            found = re.search(r"<Key>(.*?)</Key>", each)
            assert found is not None
            wanted, key = re.search(r"<ETag>(.*?)</ETag>", each), found[1]
            headers = {} if wanted is None else {"if-match": wanted[1].replace("&quot;", "")}
            refused = self._refused(replace(asked, key=key, headers=headers)) if key in self.objects else None
            if refused is not None:
                rows += f"<Error><Key>{key}</Key><Code>PreconditionFailed</Code></Error>"
                continue
            self.objects.pop(key, None)
            rows += f"<Deleted><Key>{key}</Key></Deleted>"
        return Said(200, f"<DeleteResult>{rows}</DeleteResult>".encode())

    def _list(self, asked: Asked) -> Said:
        prefix = asked.query.get("prefix", [""])[0]
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>{self.etag(data)}</ETag>"
            f"<LastModified>{_iso(self.times[key])}</LastModified></Contents>"
            for key, data in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return Said(200, page.encode())


def _iso(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", ".500Z")


def _verb_of(method: str, key: str, query: Mapping[str, list[str]], headers: Mapping[str, str]) -> str:
    if method == "POST":
        return "deletes" if "delete" in query else "begin" if "uploads" in query else "complete"
    if "session" in query or "renameObject" in query:
        return "session" if "session" in query else "rename"
    if method == "PUT":
        copies = "x-amz-copy-source" in headers
        return ("copypart" if copies else "part") if "partNumber" in query else "copy" if copies else "put"
    if method == "DELETE":
        return "abort" if "uploadId" in query else "delete"
    return "list" if method == "GET" and not key else method.lower()
