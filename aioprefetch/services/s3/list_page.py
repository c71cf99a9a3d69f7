"""A page of a listing, parsed in one pass, without entities and within bounds. Pure, no I/O.

Handlers of expat make the entries while it goes through the page: there is no tree of elements. A page that declares a
document type, where entities would be, or that has more tags than any page of S3, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.parsers import expat

from aioprefetch.accessor.http_headers import parse_http_date, unquote_etag
from aioprefetch.errors import ProtocolError, excerpt
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.values import Entry

# The longest page has a thousand keys of 1 KiB, which make 30,000 tags.
BODY_TAGS_MAX = 60_000
# Expat does not stop where a handler raises, so it is given no more than this beyond the place.
_PIECE_BYTES = 64 << 10
# Where no element has begun by then, expat looks at a comment from its beginning for each piece.
_PROLOG_BYTES_MAX = 64 << 10
# Every page of a listing has one of these fields, an empty page too. A page of a captive portal has none.
_PAGE_FIELDS = frozenset({"IsTruncated", "KeyCount", "MaxKeys", "Name", "Contents", "CommonPrefixes"})


class ListedPage:
    """The entries of a page below ``root``, and what the page says of the next one.

    ``strangers`` are keys that do not begin with the prefix that was listed. ``is_error``: the document is an error.
    """

    __slots__ = ("_prefix", "_root_length", "entries", "is_error", "is_truncated", "next_token", "strangers")

    def __init__(self, root: str, path: str) -> None:
        self.entries: list[Entry] = []
        self.strangers: list[str] = []
        self.is_truncated = False
        self.is_error = False
        self.next_token: str | None = None
        self._prefix = root + path
        self._root_length = len(root)

    @classmethod
    def of_botocore(cls, response: Mapping[str, Any], root: str, path: str) -> ListedPage:
        """The page that botocore has parsed. Raises ``ProtocolError`` as ``parse_list_page``."""
        if not _PAGE_FIELDS & response.keys():
            raise _no_page()
        page = cls(root, path)
        page.is_truncated = bool(response.get("IsTruncated"))
        page.next_token = response.get("NextContinuationToken")
        for item in response.get("CommonPrefixes") or ():
            page.add_directory(item["Prefix"])
        for item in response.get("Contents") or ():
            size, modified = item.get("Size"), item.get("LastModified")
            page.add_file(
                item["Key"],
                "" if size is None else str(size),
                item.get("ETag"),
                modified.astimezone(UTC) if isinstance(modified, datetime) else None,
            )
        return page

    def add_directory(self, key: str) -> None:
        """Add the keys that begin with ``key``."""
        if not key.startswith(self._prefix):
            self.strangers.append(key)
        self.entries.append(Entry(path=key[self._root_length :], kind="directory"))

    def add_file(self, key: str, size: str, etag: str | None, modified: datetime | None) -> None:
        """Add a key. Raises ``ProtocolError`` for a size that is none."""
        if not key.startswith(self._prefix):
            self.strangers.append(key)
        if not (size.isascii() and size.isdecimal() and len(size) < 20 and int(size) <= OFFSET_MAX):
            raise ProtocolError(f"the listing gives {excerpt(key)!r} the size {excerpt(size) or None}")
        path = key[self._root_length :]
        if path.endswith("/") or not path:
            self.entries.append(Entry(path=path, kind="directory"))
        else:
            self.entries.append(Entry(path=path, size=int(size), etag=unquote_etag(etag), last_modified=modified))


def parse_list_page(body: bytes | bytearray, root: str, path: str) -> ListedPage:
    """The page in a body, for a listing of ``path`` below ``root``.

    Raises ``ProtocolError`` for another body; a permanent one for too many tags and for a document type, since another
    attempt would cost as much.
    """
    parser = _PageParser(ListedPage(root, path))
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            parser.feed(body[start : start + _PIECE_BYTES])
        return parser.end()
    except expat.ExpatError as error:
        raise ProtocolError(f"the page of the listing is not valid XML: {expat.ErrorString(error.code)}") from None


class _PageParser:
    """Expat with handlers that fill a page. The texts of the fields of one entry are kept until the entry ends."""

    def __init__(self, page: ListedPage) -> None:
        self._page = page
        self._expat = expat.ParserCreate("utf-8")
        self._expat.buffer_text = True
        self._expat.StartElementHandler = self._begin
        self._expat.EndElementHandler = self._end
        self._expat.StartDoctypeDeclHandler = self._refuse_type
        self._texts: list[str] = []
        self._expat.CharacterDataHandler = self._texts.append
        self._fields: dict[str, str] = {}
        self._tags = 0
        self._fed_bytes = 0
        self._is_page = False
        self._is_encoded = False
        self._prefixes: list[str] = []
        self._files: list[tuple[str, str, str | None, str | None]] = []

    def feed(self, piece: bytes | bytearray) -> None:
        """Parse a piece of the body."""
        self._fed_bytes += len(piece)
        self._expat.Parse(piece, False)
        if not self._tags and self._fed_bytes > _PROLOG_BYTES_MAX:
            raise _refused("begins with too much before its first tag")

    def end(self) -> ListedPage:
        """The page. Its keys are decoded now, because the field that says so may come after them."""
        self._expat.Parse(b"", True)
        page = self._page
        if page.is_error:
            return page
        if not self._is_page:
            raise _no_page()
        decoded = unquote_plus if self._is_encoded else str
        for prefix in self._prefixes:
            page.add_directory(decoded(prefix))
        for key, size, etag, modified in self._files:
            page.add_file(
                unquote_plus(key) if self._is_encoded and ("%" in key or "+" in key) else key,
                size,
                etag,
                None if modified is None else _time_of(modified),
            )
        return page

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._tags += 1 + len(attributes)
        if self._tags > BODY_TAGS_MAX:
            raise _refused(f"holds more than {BODY_TAGS_MAX} tags")
        if self._tags == 1 + len(attributes):
            self._page.is_error = name.rpartition(":")[2] == "Error"
        if name in _ENTRIES:
            self._fields.clear()
        self._texts.clear()

    def _end(self, name: str) -> None:
        texts = self._texts
        if name == "Contents":
            get = self._fields.get
            self._is_page = True
            self._files.append((get("Key", ""), get("Size", ""), get("ETag"), get("LastModified")))
            self._fields.clear()
        elif name == "CommonPrefixes":
            self._is_page = True
            self._prefixes.append(self._fields.get("Prefix", ""))
            self._fields.clear()
        elif texts:
            self._fields[name] = texts[0] if len(texts) == 1 else "".join(texts)
            texts.clear()
            if name in _PAGE_FIELDS or name in _ENDS:
                self._end_page_field(name)
        elif name in _PAGE_FIELDS:
            self._is_page = True

    def _end_page_field(self, name: str) -> None:
        value = self._fields.pop(name)
        self._is_page = self._is_page or name in _PAGE_FIELDS
        if name == "IsTruncated":
            self._page.is_truncated = value.strip().lower() == "true"
        elif name == "NextContinuationToken":
            self._page.next_token = value
        elif name == "EncodingType":
            self._is_encoded = value.strip() == "url"

    def _refuse_type(self, *_: object) -> None:
        raise _refused("declares a document type")


_ENTRIES = frozenset({"Contents", "CommonPrefixes"})
_ENDS = frozenset({"NextContinuationToken", "EncodingType"})


def _time_of(text: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return parse_http_date(text)
    return when if when.tzinfo is UTC else when.replace(tzinfo=when.tzinfo or UTC).astimezone(UTC)


def _no_page() -> ProtocolError:
    return ProtocolError("the response is not a page of a listing")


def _refused(what: str) -> ProtocolError:
    return ProtocolError(f"the response {what}: no response of S3 does", status="permanent")
