"""Responses with an object: ranges and conditions as RFC 9110 demands, heads, bodies at the pace of the client.

Bodies are sent from bounded memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeAlias

from aioprefetch.accessor.content_types import content_type_of
from aioprefetch.accessor.http_headers import http_date, is_weak, parse_http_date, quote_etag, unquote_etag
from aioprefetch.errors import BudgetExhausted
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import OFFSET_MAX, Range
from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scheduler.pinned_file import PinnedFile, read_ahead

# More parts than this are served as the whole object: they cost the store more than they save the client.
PARTS_MAX = 64

_RANGES = re.compile(r"bytes[ \t]*=(.*)", re.IGNORECASE | re.DOTALL)
_RANGE = re.compile(r"(\d*)-(\d*)")
_TAG = re.compile(r'[ \t]*((?:W/)?"[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|$)')
# A longer header is ignored, and so are its conditions: no client needs that many.
_HEADER_LENGTH_MAX = 8 << 10
_DIGITS_MAX = len(str(OFFSET_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """The version of an object that a response is about: ``size`` in bytes, ``etag`` unquoted."""

    size: int
    etag: str | None
    last_modified: datetime | None
    content_type: str | None
    content_encoding: str | None

    @property
    def quoted_etag(self) -> str | None:
        """The ETag as it stands in a header."""
        return None if self.etag is None else quote_etag(self.etag)

    @property
    def coding(self) -> str | None:
        """The coding that the client has to undo, such as ``gzip``; ``None`` for the bytes themselves."""
        # The second is how an upload was framed; some stores keep it as if it were the object's.
        codings = [one.strip() for one in (self.content_encoding or "").split(",")]
        return ", ".join(one for one in codings if one.lower() not in ("", "aws-chunked", "identity")) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSpec:
    """One range of a header: from ``first`` to ``last``, both included, or the last ``suffix`` bytes."""

    first: int = 0
    last: int | None = None
    suffix: int | None = None

    @property
    def length_max(self) -> int | None:
        """The most bytes that it can have, ``None`` if that depends on the size of the object."""
        if self.suffix is not None:
            return self.suffix
        return None if self.last is None else self.last + 1 - self.first

    def within(self, size: int) -> Range | None:
        """The range in an object of ``size`` bytes; ``None`` if no byte of it is there."""
        if self.suffix is not None:
            start, end = max(0, size - self.suffix), size
        else:
            start, end = self.first, size if self.last is None else min(size, self.last + 1)
        return (start, end) if start < end else None


def parse_ranges(header: str | None) -> list[ByteSpec]:
    """The ranges of a ``Range`` header; empty without a header, or if it may be ignored.

    Ignored are another unit, a syntax error, more than ``PARTS_MAX`` ranges: the response is then the whole object.
    """
    match = _RANGES.fullmatch(header.strip()) if header and len(header) <= _HEADER_LENGTH_MAX else None
    if match is None:
        return []
    specs: list[ByteSpec] = []
    for text in match[1].split(","):
        if not (part := text.strip()):
            continue  # Empty members of a list are allowed.
        found = _RANGE.fullmatch(part)
        if found is None or part == "-":
            return []
        first, last = (_position(digits) if digits else None for digits in found.groups())
        if first is None:
            specs.append(ByteSpec(suffix=last))
        elif last is not None and last < first:
            return []
        else:
            specs.append(ByteSpec(first=first, last=last))
    return specs if len(specs) <= PARTS_MAX else []


def _position(digits: str) -> int:
    # One of thousands of digits is beyond every object, and Python refuses to read it.
    digits = digits.lstrip("0") or "0"
    return min(int(digits), OFFSET_MAX - 1) if len(digits) <= _DIGITS_MAX else OFFSET_MAX - 1


def do_overlap(ranges: Sequence[Range]) -> bool:
    """Whether some ranges share bytes."""
    in_order = sorted(ranges)
    return any(before[1] > after[0] for before, after in pairwise(in_order))


def parse_etags(header: str) -> list[str] | None:
    """The quoted ETags of ``If-Match`` or ``If-None-Match``, or ``["*"]``; ``None`` for an invalid header."""
    if len(header) > _HEADER_LENGTH_MAX:
        return None
    text = header.strip()
    if text == "*":
        return ["*"]
    tags, position = [], 0
    while position < len(text):
        match = _TAG.match(text, position)
        if match is None:
            return None
        tags.append(match[1])
        position = match.end()
    return tags or None


def only_tag(headers: Mapping[str, str]) -> str | None:
    """The unquoted ETag of an ``If-None-Match`` that has exactly one strong one: the store itself can compare it."""
    tags = parse_etags(headers.get("if-none-match", ""))
    if tags is None or len(tags) != 1 or tags[0] == "*" or is_weak(tags[0]):
        return None
    return unquote_etag(tags[0])


def needs_metadata(headers: Mapping[str, str], *, store_compares: bool) -> bool:
    """Whether a condition has to be checked before any byte is read.

    ``store_compares``: a single ETag of ``If-None-Match`` is sent along with the read.
    """
    if "if-match" in headers or "if-unmodified-since" in headers:
        return True
    if "if-none-match" in headers:
        return not (store_compares and only_tag(headers) is not None)
    return "if-modified-since" in headers


def failed_condition(headers: Mapping[str, str], found: Described) -> int | None:
    """412 or 304 if a condition of the request says so, in the order of RFC 9110, 13.2.2; ``None`` to go on."""
    own = found.quoted_etag
    if "if-match" in headers:
        matching = parse_etags(headers["if-match"]) or []
        if matching != ["*"] and not any(_is_strongly_equal(tag, own) for tag in matching):
            return 412
    elif _is_later(found.last_modified, headers.get("if-unmodified-since")):
        return 412
    if "if-none-match" in headers:
        others = parse_etags(headers["if-none-match"]) or []
        return 304 if others == ["*"] or (own is not None and _opaque(own) in map(_opaque, others)) else None
    since = headers.get("if-modified-since")
    if parse_http_date(since) is not None and found.last_modified is not None:
        return None if _is_later(found.last_modified, since) else 304
    return None


def keeps_range(if_range: str | None, found: Described) -> bool:
    """Whether ``If-Range`` lets the ``Range`` of the request stand: the client has a part of this very version."""
    if if_range is None:
        return True
    text = if_range.strip()
    if text.startswith(('"', "W/")):
        return _is_strongly_equal(text, found.quoted_etag)
    when = parse_http_date(text)
    return when is not None and found.last_modified is not None and when == found.last_modified.replace(microsecond=0)


def _is_strongly_equal(tag: str, own: str | None) -> bool:
    return tag == own and not is_weak(tag)


def _opaque(tag: str) -> str:
    return tag.removeprefix("W/")


def _is_later(modified: datetime | None, than: str | None) -> bool:
    """Whether an object was modified after a date of a header, which counts whole seconds."""
    when = parse_http_date(than)
    return when is not None and modified is not None and modified.replace(microsecond=0) > when


# --- heads and bodies -------------------------------------------------------------------------------------------------

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# The size of a message. A server takes one, and lets the next one wait until the client has taken most of it: the last
# message of a body waits in the server's memory, which no budget counts. Bodies that are no longer are not counted.
MESSAGE_BYTES = 64 << 10
# What S3 says of an object that was stored without a type.
_TYPE_OF_S3 = "binary/octet-stream"
_NOTHING = memoryview(b"")


class BodyMemory:
    """The part of the share of bodies, and of the budget, until a response was taken. A short body needs none."""

    def __init__(self, runtime: Runtime, path: str, share: float) -> None:
        share_bytes = max(1, int(share * runtime.options.memory_bytes))
        of_bodies = runtime.shared(("asgi.memory", share), lambda: MemoryBudget(share_bytes, runtime.loop))
        self._budgets = of_bodies, runtime.budget
        self._options = runtime.options
        self._path = path
        self._tickets: list[Ticket] = []

    def take_now(self, size_bytes: int) -> bool:
        """Take that much if it is free, and return whether it was."""
        if size_bytes > MESSAGE_BYTES:
            for budget in self._budgets:
                self._tickets.append(budget.request(min(size_bytes, budget.limit_bytes), "demand"))
                if not self._tickets[-1].granted:
                    self.release()
                    return False
        return True

    async def take(self, size_bytes: int) -> None:
        """Hold that much, and no more: wait for it, or return what was taken beyond it.

        ``BudgetExhausted`` if it does not become free in time.
        """
        if size_bytes <= MESSAGE_BYTES:
            self.release()
            return
        for budget, ticket in zip(self._budgets, self._tickets, strict=False):
            if ticket.size_bytes > size_bytes:
                budget.release(ticket.size_bytes - size_bytes)
                ticket.size_bytes = size_bytes
        options = self._options
        try:
            async with asyncio.timeout(options.budget_wait_seconds):
                for budget in self._budgets[len(self._tickets) :]:
                    self._tickets.append(budget.request(min(size_bytes, budget.limit_bytes), "demand"))
                    await self._tickets[-1].wait()
        except TimeoutError as late:
            late.__traceback__ = None  # Its frames hold the task, whose error it becomes the context of.
            raise BudgetExhausted(
                f"no memory for a body within budget_wait_seconds={options.budget_wait_seconds}:"
                f" too many clients at once for the memory_share of memory_bytes={options.memory_bytes}",
                operation="serve",
                path=self._path,
            ) from None

    def release(self) -> None:
        """Return it, or stop waiting for it."""
        tickets, self._tickets = self._tickets, []
        for budget, ticket in zip(self._budgets, tickets, strict=False):
            budget.cancel(ticket)


class Rest:
    """The rest of a long body."""

    def __init__(self, file: PinnedFile, chunk_bytes: int) -> None:
        self._file = file
        self._chunk_bytes = chunk_bytes

    async def send(self, send: Send, first: memoryview, start: int, end: int) -> None:
        """Send ``[start, end)``; its beginning, ``first``, is in memory."""
        chunks = read_ahead(self._file, first, start, end, chunk_bytes=self._chunk_bytes)
        del first
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                start += len(chunk)
                await _send_bytes(send, chunk, more=start < end)


class Response:
    """A head and a body whose first bytes are in memory."""

    def __init__(
        self,
        path: str,
        found: Described,
        status: int,
        wanted: Range,
        memory: BodyMemory,
        first: memoryview = _NOTHING,
        rest: Rest | None = None,
    ) -> None:
        self.path = path
        self.found = found
        self.status = status
        self.wanted = wanted
        self._memory = memory
        self._first = first
        self._rest = rest

    @property
    def content_type(self) -> str:
        """The type that was stored with the object, or that its name suggests."""
        stored = self.found.content_type
        if stored in (None, "", _TYPE_OF_S3):
            # With a coding it describes what a client has after decoding.
            stored = content_type_of(self.path, is_unpacked=self.found.coding is not None)
            stored = stored or "application/octet-stream"
        return _on_one_line(stored)

    def headers(self) -> dict[str, str]:
        """The fields that depend on the range."""
        start, end = self.wanted
        fields = {"content-type": self.content_type, "content-length": str(end - start)}
        if self.found.coding is not None:
            fields["content-encoding"] = self.found.coding
        if self.status == 206:
            fields["content-range"] = f"bytes {start}-{end - 1}/{self.found.size}"
        return fields

    async def send(self, send: Send, *, cache_control: str | None) -> None:
        """Send all of it. An error after the head ends the connection: the server sees fewer bytes than announced."""
        fields = {"accept-ranges": "bytes", **self.headers(), **headers_about(self.found, cache_control)}
        await send(start_message(self.status, fields))
        await self._send_body(send)

    async def _send_body(self, send: Send) -> None:
        first, self._first = self._first, _NOTHING
        if self._rest is None:
            await _send_bytes(send, first, more=False)
        else:
            await self._rest.send(send, first, *self.wanted)

    async def aclose(self) -> None:
        """Return its memory."""
        self._memory.release()


class Parts(Response):
    """Several ranges as ``multipart/byteranges``, all of them in memory."""

    def __init__(
        self,
        path: str,
        found: Described,
        ranges: Sequence[Range],
        views: Sequence[memoryview],
        memory: BodyMemory,
    ) -> None:
        super().__init__(path, found, 206, (0, 0), memory)
        self._boundary = secrets.token_hex(16)
        self._pieces: list[bytes] = []
        for (start, end), view in zip(ranges, views, strict=True):
            head = (
                f"\r\n--{self._boundary}\r\nContent-Type: {self.content_type}\r\n"
                f"Content-Range: bytes {start}-{end - 1}/{found.size}\r\n\r\n"
            )
            self._pieces += [head.encode("latin-1", "replace"), bytes(view)]
        self._pieces.append(f"\r\n--{self._boundary}--\r\n".encode())

    def headers(self) -> dict[str, str]:
        """The fields of a body in parts, where each part has its range and type."""
        return {
            "content-type": f"multipart/byteranges; boundary={self._boundary}",
            "content-length": str(sum(map(len, self._pieces))),
        }

    async def _send_body(self, send: Send) -> None:
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            await _send_bytes(send, memoryview(piece), more=index < last)


def headers_about(found: Described, cache_control: str | None) -> dict[str, str]:
    """The fields that name the version of an object, and how long it may be kept."""
    fields = cache_headers(cache_control)
    if found.quoted_etag is not None:
        fields["etag"] = found.quoted_etag
    if found.last_modified is not None:
        fields["last-modified"] = http_date(found.last_modified)
    return fields


def cache_headers(cache_control: str | None) -> dict[str, str]:
    """The field that says how long a response may be kept."""
    return {} if cache_control is None else {"cache-control": cache_control}


def start_message(status: int, fields: Mapping[str, str]) -> Message:
    """The head of a response as a message of ASGI."""
    headers = [
        (name.encode("latin-1"), _on_one_line(value).encode("latin-1", "replace")) for name, value in fields.items()
    ]
    return {"type": "http.response.start", "status": status, "headers": headers}


def _on_one_line(text: str) -> str:
    """A value without characters that would end its header: the type of an object comes from its writer."""
    return "".join(char for char in text if char.isprintable())


async def _send_bytes(send: Send, data: memoryview, *, more: bool) -> None:
    """Send bytes of a body, which go on in another call if there are ``more``."""
    while len(data) > MESSAGE_BYTES:
        await send({"type": "http.response.body", "body": bytes(data[:MESSAGE_BYTES]), "more_body": True})
        data = data[MESSAGE_BYTES:]
    await send({"type": "http.response.body", "body": bytes(data), "more_body": more})
