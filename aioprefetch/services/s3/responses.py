"""The responses of S3 as our values: heads, metadata, pages of a listing, and the XML of errors. Pure, no I/O.

XML passes a guard before every parser. A document that declares a type, where entities would be, or that has more tags
than any page of S3, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from aioprefetch.accessor.http_headers import described_by, described_in, parse_http_date, unquote_etag
from aioprefetch.accessor.response_check import ETags, check_reply
from aioprefetch.errors import InvalidArgument, ProtocolError, excerpt
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.services.keys import listed
from aioprefetch.transport.responses import ResponseHead
from aioprefetch.values import (
    Entry,
    ListPage,
    ListRequest,
    Metadata,
    ReadHead,
    ReadRequest,
    Request,
    StatRequest,
    UncheckedHead,
    WriteRequest,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# The encodings in which a body is parsed: the declared one by us, and always UTF-8 by botocore.
_ENCODINGS = (None, "utf-8")
# Expat does not stop where a handler raises, so it is given no more than a piece beyond the place.
_PROLOG_PIECE_BYTES = 4096
_PAGE_PIECE_BYTES = 64 << 10
# Expat looks at a comment from its beginning for each piece, so that a long one is not followed to its end.
PROLOG_BYTES_MAX = 64 << 10


class _Decided(Exception):
    """The part of a document in which its type may stand is over."""


def has_document_type(body: bytes | bytearray) -> bool:
    """Whether a document declares a type (``<!DOCTYPE``) or may do so. No response of S3 does.

    Entities, with which few bytes become megabytes, can only be declared there. The parser is asked and not the
    bytes, since these may be UTF-16. A type stands before the first element: no more of the body is looked at. Where
    none has begun within ``PROLOG_BYTES_MAX`` the rest may declare one, and the result is true.
    """
    return any(_declares_type(body, encoding) for encoding in _ENCODINGS)


def _declares_type(body: bytes | bytearray, encoding: str | None) -> bool:
    from xml.parsers import expat

    declares = False

    def begin_type(*_: object) -> None:
        nonlocal declares
        declares = True
        raise _Decided

    def begin_element(*_: object) -> None:
        raise _Decided

    parser = expat.ParserCreate(encoding)
    parser.StartDoctypeDeclHandler = begin_type
    parser.StartElementHandler = begin_element
    try:
        for start in range(0, min(len(body), PROLOG_BYTES_MAX), _PROLOG_PIECE_BYTES):
            parser.Parse(body[start : start + _PROLOG_PIECE_BYTES], False)
        if len(body) > PROLOG_BYTES_MAX:
            return True
        parser.Parse(b"", True)
    except (_Decided, expat.ExpatError, ValueError, LookupError):  # The last two for encodings that are not known.
        pass
    return declares


def parse_error(body: bytes) -> dict[str, str]:
    """The name and the text of each element below ``Error``; none if the body is not an error of S3."""
    if has_document_type(body):
        return {}
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(body)
    except (ET.ParseError, ValueError, LookupError):
        return {}
    error = root if _name(root) == "Error" else next((element for element in root if _name(element) == "Error"), None)
    return {} if error is None else {_name(element): (element.text or "").strip() for element in error}


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


class _Names(dict[str, str]):
    """The names of elements without their namespaces, by their tags."""

    def __missing__(self, tag: str) -> str:
        name = self[tag] = tag.rpartition("}")[2]
        return name


def parse_result(body: bytes | bytearray) -> Element:
    """The root of a result, whose elements have their names without a namespace. Raises as ``_root_of``."""
    root, names = _root_of(body), _Names()
    for element in root.iter():
        element.tag = names[element.tag]
    return root


def _root_of(body: bytes | bytearray) -> Element:
    """The root of a document.

    Raises ``ProtocolError`` for another body; a permanent one for too many tags, since another attempt would cost as
    much.
    """
    _check_tags(body)
    if has_document_type(body):
        raise ProtocolError("the response declares a document type, or may do so: it is not S3's; check endpoint_url")
    from xml.etree import ElementTree as ET

    parser = ET.XMLParser(encoding="utf-8")
    try:
        for start in range(0, len(body), _PAGE_PIECE_BYTES):
            parser.feed(body[start : start + _PAGE_PIECE_BYTES])
        return parser.close()
    except ET.ParseError:
        raise ProtocolError("the response is not a result of S3, nor valid XML: check endpoint_url") from None


# --- pages of a listing -----------------------------------------------------------------------------------------------

# The longest page has a thousand keys of 1 KiB, which make 30,000 tags.
BODY_TAGS_MAX = 60_000
_ATTRIBUTE = re.compile(rb"=\s*[\"']")
# The elements of entries: objects and directories, and in a listing of versions these.
_DELETE_MARKER = "DeleteMarker"
_DIRECTORY = "CommonPrefixes"
_ENTRIES = frozenset({"Contents", "Version", _DELETE_MARKER, _DIRECTORY})
# Stands for the objects that were cut out of a page.
_PLAIN = "PlainContents"


def _texts(*names: str) -> str:
    return "|".join(f"<{name}>[^<]*</{name}>" for name in names)


# An object as nearly all stores send it.
_OBJECT = re.compile(
    "<Contents><Key>([^<]+)</Key><LastModified>([^<]*)</LastModified>"
    '<ETag>(?:&quot;|&#34;|")([^<&"]+)(?:&quot;|&#34;|")</ETag>'
    f"(?:{_texts('ChecksumAlgorithm', 'ChecksumType')})*<Size>([0-9]{{1,18}})</Size>"
    f"(?:{_texts('StorageClass', 'Type')}|<Owner>(?:{_texts('ID', 'DisplayName')})*</Owner>)*</Contents>"
)
_CONTROLS = bytes({*range(32)} - {*b"\t\n"})
# A size of S3 has at most 19 digits.
_DIGITS_MAX = 20
# Every page without entries has one of these fields. A page of a captive portal has none.
_PAGE_FIELDS = frozenset({"IsTruncated", "KeyCount", "MaxKeys", "Name"})


class ListedPage:
    """The entries of a page below ``root``, and what the page says of the next one: objects, or their versions.

    ``strangers`` are keys that do not begin with the prefix that was listed. ``is_error``: the document is an error.
    """

    def __init__(self, root: str, path: str) -> None:
        self.entries: list[Entry] = []
        self.strangers: list[str] = []
        self.is_truncated = False
        self.is_error = False
        self.next_token: str | None = None
        self._prefix = root + path
        self._root_length = len(root)

    def add_object(self, key: str, size: int, etag: str | None, modified: str | None) -> None:
        """Add an entry of a file."""
        if not key.startswith(self._prefix):
            self.strangers.append(key)
        entry = Entry(path=key[self._root_length :], size=size, etag=etag, last_modified=time_of(modified))
        self.entries.append(entry if size else listed(entry))

    def add(self, name: str, key: str, fields: Mapping[str, str]) -> None:
        """Add an entry: its element, its key, and the texts in it. Raises ``ProtocolError`` for an invalid size."""
        if name == _DIRECTORY:
            if not key.startswith(self._prefix):
                self.strangers.append(key)
            self.entries.append(Entry(path=key[self._root_length :], kind="directory"))
            return
        size = "0" if name == _DELETE_MARKER else fields.get("Size", "")
        # A number of many digits is expensive to parse.
        size_bytes = int(size) if size.isascii() and size.isdecimal() and len(size) < _DIGITS_MAX else -1
        if not 0 <= size_bytes <= OFFSET_MAX:
            given = f": {excerpt(size)}" if size else ""
            raise ProtocolError(f"the listing gives no valid size for {excerpt(key)!r}{given}")
        self.add_object(key, size_bytes, unquote_etag(fields.get("ETag")), fields.get("LastModified"))
        if name != "Contents":  # A version, or a delete marker, which has no size. ``null`` is a name like any other.
            is_latest, is_marker = fields.get("IsLatest") == "true", name == _DELETE_MARKER
            version = fields.get("VersionId") or None
            entry = self.entries.pop()
            self.entries.append(replace(entry, version=version, is_latest=is_latest, is_delete_marker=is_marker))


def version_token(key: str, version: str | None) -> str:
    """The token of the page of versions that begins after one of them; no identifier of a version has a NUL."""
    return f"{version or ''}\0{key}"


def version_markers(request: ListRequest, token: str) -> dict[str, str]:
    """The parameters for the page of a ``version_token``. Raises ``InvalidArgument`` for another text."""
    version, separator, key = token.partition("\0")
    if not separator:
        raise no_token(request)
    return {"key-marker": key, "version-id-marker": version} if version else {"key-marker": key}


def no_token(request: Request) -> InvalidArgument:
    """The error for a page token that comes from elsewhere."""
    why = "the page token is not a token of this listing"
    return InvalidArgument(why, operation=request.operation, path=request.path)


def parse_list_page(body: bytes | bytearray, root: str, path: str) -> ListedPage:
    """The page in a body, for a listing of ``path`` below ``root``. Raises as ``_root_of``."""
    rest, objects = _plain_objects(body)
    document, names, rows, fields = _root_of(rest), _Names(), [], dict[str, str]()
    for element in document:
        name = names[element.tag]
        if name in _ENTRIES:
            rows.append((name, {names[field.tag]: field.text or "" for field in element}))
        else:
            fields[name] = element.text or ""
    page = ListedPage(root, path)
    if names[document.tag] == "Error":
        page.is_error = True
        return page
    if not (rows or (_PAGE_FIELDS | {_PLAIN}) & fields.keys()):
        raise ProtocolError("the response is not a page of a listing: check endpoint_url")
    page.is_truncated = fields.get("IsTruncated", "").strip().lower() == "true"
    page.next_token = fields.get("NextContinuationToken") or None
    is_encoded = fields.get("EncodingType", "").strip() == "url"
    if marker := fields.get("NextKeyMarker"):
        marker = unquote_plus(marker) if is_encoded else marker
        page.next_token = version_token(marker, fields.get("NextVersionIdMarker") or None)
    for key, modified, etag, size in objects if _PLAIN in fields else ():
        key = key if "&" not in key else _root_of(f"<Key>{key}</Key>".encode()).text or ""
        key = unquote_plus(key) if is_encoded and ("%" in key or "+" in key) else key
        page.add_object(key, int(size), etag, modified)
    for name, row in rows:
        key = row.get("Prefix" if name == _DIRECTORY else "Key", "")
        page.add(name, unquote_plus(key) if is_encoded else key, row)
    return page


def _plain_objects(body: bytes | bytearray) -> tuple[bytes | bytearray, Iterable[Sequence[str]]]:
    """A page without its objects in the usual form, an element ``_PLAIN`` in their place; and the groups of each.

    A parser takes five times as long for them. Where anything stands between them all of the page is left to it.
    """
    parts: list[str] = []
    if len(body.translate(None, _CONTROLS)) == len(body):  # A parser refuses some, and replaces others.
        with suppress(UnicodeDecodeError):
            parts = _OBJECT.split(body.decode())
    if len(parts) < 2 or any(parts[5:-1:5]):
        return body, ()
    groups = (parts[number::5] for number in range(1, 5))
    return f"{parts[0]}<{_PLAIN}/>{parts[-1]}".encode(), zip(*groups, strict=True)


def _check_tags(body: bytes | bytearray) -> None:
    """Raise ``ProtocolError`` for a body with more tags or attributes than any response of S3."""
    if body.count(b"<") > BODY_TAGS_MAX:
        raise _refused(f"holds more than {BODY_TAGS_MAX} tags")
    # Keys may hold many of these signs as well.
    if body.count(b"=") > BODY_TAGS_MAX and len(_ATTRIBUTE.findall(body)) > BODY_TAGS_MAX:
        raise _refused(f"holds more than {BODY_TAGS_MAX} attributes")


def time_of(text: str | None) -> datetime | None:
    """A time of a document, in UTC; ``None`` for a missing or invalid one."""
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return parse_http_date(text)
    return when if when.tzinfo is UTC else in_utc(when if when.tzinfo is not None else when.replace(tzinfo=UTC))


def in_utc(when: object) -> datetime | None:
    """A time in UTC; botocore gives it in the zone of this machine. ``None`` for one before the first year."""
    try:
        return when.astimezone(UTC) if isinstance(when, datetime) else None
    except OverflowError:  # The first and the last day there is, in another zone.
        return None


def _refused(what: str) -> ProtocolError:
    return ProtocolError(f"the response {what}: no response of S3 does; check endpoint_url", status="permanent")


# --- objects ----------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[0-9]{1,19}")
_path_of = attrgetter("path")
# The beginning of the headers with the metadata that a user has given.
USER_METADATA = "x-amz-meta-"


def version_of(text: str | None) -> str | None:
    """A version's identifier. ``null`` is the last write without versioning: it pins nothing."""
    return text if text and text != "null" else None


def no_success(why: str, request: Request) -> ProtocolError:
    """The error for a success of another server."""
    return ProtocolError(
        f"the response {why}: it is not from S3; check endpoint_url", operation=request.operation, path=request.path
    )


def written_etag(given: object, request: Request) -> str:
    """The ETag in the response to a write, which proves that it was done. ``ProtocolError`` without any."""
    etag = unquote_etag(given) if isinstance(given, str) else None
    if etag is None:
        raise no_success("carries no ETag", request)
    return etag


def checked_head(request: ReadRequest, head: ResponseHead, etags: ETags) -> ReadHead:
    """The head of a 200 or 206, checked against its request. Each object of S3 has an ETag, and an error page none."""
    get = head.fields.get
    content_range, etag, version = get(b"content-range"), get(b"etag"), get(b"x-amz-version-id")
    if etag is None:
        found = (get(b"content-type") or b"").decode("latin-1")
        raise no_success(f"({head.status}, {excerpt(found)}) carries no ETag", request)
    modified, content_type, encoding = get(b"last-modified"), get(b"content-type"), get(b"content-encoding")
    has_metadata = b" ".join(head.fields).find(b"x-amz-meta-") >= 0  # ``in`` takes twice as long.
    response = UncheckedHead(
        status=head.status,
        content_range=None if content_range is None else content_range.decode("latin-1"),
        content_length=head.length,
        etag=unquote_etag(etag.decode("latin-1")),
        version=None if version is None else version_of(version.decode("latin-1")),
        last_modified=None if modified is None else parse_http_date(modified.decode("latin-1")),
        content_type=None if content_type is None else content_type.decode("latin-1"),
        content_encoding=None if encoding is None else encoding.decode("latin-1"),
        user_metadata=(_user_metadata_in(head.headers) or None) if has_metadata else None,
    )
    if head.length is None and get(b"x-goog-stored-content-encoding", b"identity") != b"identity":
        raise ProtocolError(
            "GCS decompresses this object on the way, and says neither its size nor the end of a range: read it by its "
            "https:// URL, or store it without Content-Encoding",
            operation=request.operation,
            path=request.path,
            status="permanent",
        )
    # An ETag that does not tell versions apart is completed by the time.
    own, when = response.etag, response.last_modified
    if own is None:  # MinIO sends an empty one for files that it has not written.
        return check_reply(request, response)
    if not (request.if_match is request.if_none_match is None):
        response.etag = etags.dated(own, request.path, None, when)
    checked = check_reply(request, response)
    dated = etags.dated(own, request.path, checked.total, when, request.if_match)
    return checked if dated == checked.etag else replace(checked, etag=dated)


def _user_metadata_in(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(USER_METADATA): text for name, text in headers.items() if name.startswith(USER_METADATA)}


def metadata_of(headers: Mapping[str, str], request: StatRequest, etags: ETags) -> Metadata:
    """The metadata in the headers of a response to a HEAD."""
    length = headers.get("content-length", "")
    if not _NUMBER.fullmatch(length) or int(length) > OFFSET_MAX:
        raise no_success(f"to HEAD has no valid Content-Length{f': {excerpt(length)}' if length else ''}", request)
    if headers.get("etag") is None:
        raise no_success(f"to HEAD ({excerpt(headers.get('content-type'))}) carries no ETag", request)
    etag, modified = unquote_etag(headers.get("etag")), parse_http_date(headers.get("last-modified"))
    return Metadata(
        path=request.path,
        size=int(length),
        etag=None if etag is None else etags.dated(etag, request.path, int(length), modified),
        version=version_of(headers.get("x-amz-version-id")),
        last_modified=modified,
        **described_in(headers.get),
        storage_class=headers.get("x-amz-storage-class"),
        user_metadata=_user_metadata_in(headers),
    )


def described(request: WriteRequest, etag: str | None, version: str | None, size: int | None) -> Metadata:
    """The metadata of an object that has just been written."""
    return Metadata(path=request.path, size=size, etag=etag, version=version, **described_by(request))


def list_page_of(page: ListedPage, request: ListRequest) -> ListPage:
    """One page, in the order of keys, without the marker of the listed directory.

    It may have more entries than were asked for: not all stores count directories, and some have pages of one size.
    Raises ``ProtocolError`` for a page that cannot be right.
    """

    def wrong(why: str, **context: object) -> ProtocolError:
        return ProtocolError(why, operation=request.operation, path=request.path, context=context)

    entries, token, path = page.entries, page.next_token, request.path
    if page.strangers:
        raise wrong(f"the listing of {path!r} holds {excerpt(page.strangers[0])!r}", strangers=len(page.strangers))
    if page.is_truncated and not token:
        raise wrong("the page is not the last one and names no next one")
    if token is not None and token == request.page_token:
        raise wrong("the page names itself as the next one: the listing would never end")
    own = [entry for entry in entries if entry.path == path and entry.is_directory]
    if own:
        entries = [entry for entry in entries if entry not in own]
    # Some stores send the delete markers after the versions.
    ordered = sorted(entries, key=_by_version if request.versions else _path_of)
    return ListPage(entries=tuple(ordered), next_token=token if page.is_truncated else None, has_marker=bool(own))


def _by_version(entry: Entry) -> tuple[str, bool, float]:
    """The order of paths, and of the versions of one from the newest to the oldest."""
    age = 0.0 if entry.last_modified is None else -entry.last_modified.timestamp()
    return entry.path, not entry.is_latest, age
