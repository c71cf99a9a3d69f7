"""The values that travel between caller, layers and services: slotted, keyword-only, without I/O.

No code changes one. Requests, responses and entries of a listing are not frozen, because a frozen dataclass takes three
times as long to fill and each read makes several: a layer that wants another one makes a copy by ``replace``.

Byte ranges are half open, ``[start, end)``. Times are ``datetime`` with a time zone, durations are seconds, and a
``deadline`` is a point of the event loop's monotonic clock (``loop.time()``).
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from datetime import datetime
from operator import attrgetter
from typing import ClassVar, Literal, Protocol

from aioprefetch.lean_dataclass import ShownAsTable, dataclass

# The headers that an object has of its own, as fields of its metadata and of a write.
HEADERS = ("content_type", "content_encoding", "content_disposition", "content_language", "cache_control", "expires")
_options_of = attrgetter(*HEADERS, "if_match", "if_none_match", "storage_class", "sse_kms_key_id", "checksum")
_NO_OPTIONS = (None,) * (len(HEADERS) + 5)

_reader_ids = itertools.count(1)

Lane = Literal["demand", "prefetch"]
EntryKind = Literal["file", "directory"]
PresignMethod = Literal["GET", "HEAD", "PUT", "DELETE"]
# The checksums that a store keeps with an object, by the names of their algorithms.
Checksum = Literal["sha256", "crc32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata(ShownAsTable):
    """The metadata of one object or directory. ``size`` is in bytes; ``etag`` is kept opaque, quotes removed."""

    path: str
    kind: EntryKind = "file"
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    last_modified: datetime | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    content_disposition: str | None = None
    content_language: str | None = None
    cache_control: str | None = None
    expires: str | None = None
    storage_class: str | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory (a real one, or a prefix under which objects exist)."""
        return self.kind == "directory"


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Entry:
    """One line of a listing. A directory's path ends with ``/``; every file has its ``size`` in bytes.

    Of the versions of an object the newest comes first: ``is_latest``. Where that is a delete marker, which has no
    bytes, plain reads find nothing; deleting the marker by its ``version`` brings the object back.
    """

    path: str
    kind: EntryKind = "file"
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    last_modified: datetime | None = None
    is_latest: bool = True
    is_delete_marker: bool = False

    @property
    def is_directory(self) -> bool:
        """Whether this entry is a directory."""
        return self.kind == "directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """The operations and conditions that a service, or a stack of layers over it, supports.

    Tests and checks are selected by it. ``read_version`` holds for ``stat`` too. ``list_ordered``: a listing, recursive
    or not, comes in the order of keys over all its pages; the order of Python's text and of UTF-8 (``a.b``, ``a/b``).
    ``write_part_bytes`` is the size of the parts in which objects are uploaded, all but the last one; 0 where the store
    takes none. ``copy_bytes_max`` is the largest object of one ``copy``, 0 where there is no limit; ``copy_part_bytes``
    the size of a part of an upload that is copied from another object, 0 where none can be.

    ``copy_if_match`` holds for a ``version`` to copy too, if versions can be read; otherwise such a copy is read
    and written. Without ``copy_if_not_exists`` parts and ``write_if_not_exists`` have the same effect. ``rename`` gives
    an object another name without a copy. ``is_local``: objects are files here, and are read past the blocks.
    """

    read: bool = False
    read_range: bool = False
    read_suffix: bool = False
    read_if_match: bool = False
    read_if_none_match: bool = False
    read_if_modified_since: bool = False
    read_if_unmodified_since: bool = False
    read_version: bool = False
    stat: bool = False
    stat_directory: bool = False
    list: bool = False
    list_recursive: bool = False
    list_ordered: bool = False
    list_start_after: bool = False
    list_versions: bool = False
    write: bool = False
    write_stream: bool = False
    write_if_match: bool = False
    write_if_none_match: bool = False
    write_if_not_exists: bool = False
    write_content_type: bool = False
    write_user_metadata: bool = False
    write_storage_class: bool = False
    write_sse_kms: bool = False
    write_checksum: bool = False
    write_part_bytes: int = 0
    write_parts_max: int = 0
    copy: bool = False
    copy_bytes_max: int = 0
    copy_part_bytes: int = 0
    copy_if_match: bool = False
    copy_if_not_exists: bool = False
    rename: bool = False
    delete: bool = False
    delete_paths_max: int = 1
    delete_version: bool = False
    delete_if_match: bool = False
    create_dir: bool = False
    presign: bool = False
    is_local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """The identity of a store, without secrets. It separates the bytes of tenants in a cache.

    ``name`` is the bucket, host or store name; ``principal`` tells identities apart and reveals none of them (a
    digest, a profile's name, ``anonymous``).
    """

    scheme: str
    name: str = ""
    root: str = ""
    endpoint: str = ""
    region: str = ""
    principal: str = ""
    # Where requests go, for people, if neither the URL nor an endpoint says so. No part of the identity.
    address: str = field(default="", compare=False)

    @property
    def namespace(self) -> tuple[str, ...]:
        """The key under which bytes of this store may be shared, and beyond which they must not be."""
        return (self.scheme, self.endpoint, self.region, self.name, self.root, self.principal)

    @property
    def url(self) -> str:
        """The root as a URL, for people to read."""
        return f"{self.scheme}://{self.name}{'/' if self.name and self.root else ''}{self.root}"

    @property
    def location(self) -> str:
        """The URL with the endpoint, where that is not part of it. Errors name a store so."""
        address = self.endpoint if "://" in self.endpoint else self.address
        return f"{self.url} at {address}" if address else self.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The thing that a path names: two paths of one object, or of one free name, have equal identities.

    ``store`` is the place in which it lies, with any credentials. ``name`` tells it apart there: the whole key,
    or device and inode of a file (of a free name: of the nearest directory above it, and the rest of the path).
    ``within`` has the names of the directories around it, the outermost first, and ``path`` is its spelling without
    links. ``kind`` is ``"none"`` for a free name, and ``"unknown"`` where that was not asked.
    """

    store: tuple[str, ...]
    name: Hashable
    kind: Literal["file", "directory", "link", "other", "none", "unknown"] = "unknown"
    within: tuple[Hashable, ...] = field(default=(), compare=False, repr=False)
    path: str = field(default="", compare=False)


class Closeable(Protocol):
    """A thing that a service keeps open, such as a file."""

    def close(self) -> None:
        """Close it. May be called twice, and while it is in use: the last user then closes it."""


class ReadSession:
    """The reads of one object by one reader: a service may keep what it opened for the next of them.

    ``kept`` is closed with the session, or when the session is dropped without closing, by its own destructor.
    ``reader_id`` is the number of the reader in events.
    """

    def __init__(self) -> None:
        self.reader_id = next(_reader_ids)
        self.closed = False
        self.kept: Closeable | None = None

    def keep(self, opened: Closeable) -> bool:
        """Keep this in place of what was kept before. ``False`` if the session is closed: the caller closes it."""
        if self.closed:
            return False
        before, self.kept = self.kept, opened
        if before is not None and before is not opened:
            before.close()
        return True

    def close(self) -> None:
        """Close what is kept, and keep nothing from now on."""
        self.closed = True
        before, self.kept = self.kept, None
        if before is not None:
            before.close()


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class Request:
    """The base of all requests. ``deadline`` is a time of the loop's clock after which the response is useless."""

    operation: ClassVar[str] = ""

    path: str
    deadline: float | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ReadRequest(Request):
    """Bytes of one object: ``[offset, offset + size)``, to the end without ``size``, or the last ``suffix`` bytes.

    ``if_match`` pins the version: any other one is an error, whether or not the server knows the header. All conditions
    that are given have to hold.
    ``lane`` is the urgency: ``demand`` precedes ``prefetch`` for every scarce resource. ``session`` is the
    reader that sends the request, if one does.

    With ``first_bytes`` the response may hold the first part of the range alone (the last part of a suffix), which has
    that many bytes: the caller requests the rest when the head has named the size. A store that gains nothing by
    several requests ignores it, and so may every layer.
    """

    operation: ClassVar[str] = "read"

    offset: int = 0
    size: int | None = None
    suffix: int | None = None
    if_match: str | None = None
    if_none_match: str | None = None
    if_modified_since: datetime | None = None
    if_unmodified_since: datetime | None = None
    version: str | None = None
    lane: Lane = "demand"
    first_bytes: int | None = None
    session: ReadSession | None = field(default=None, compare=False, repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether the whole object is requested, so that no ``Range`` header is needed."""
        return self.suffix is None and self.size is None and self.offset == 0

    def first_part(self) -> ReadRequest:
        """The request for the first part alone, itself without ``first_bytes``."""
        part_bytes = self.first_bytes
        if part_bytes is None:
            return self
        if self.suffix is not None:
            return replace(self, suffix=min(self.suffix, part_bytes), first_bytes=None)
        return replace(self, size=part_bytes if self.size is None else min(self.size, part_bytes), first_bytes=None)

    def describe(self) -> str:
        """The range as text, for messages: ``[0, 100)``, ``[5, end)``, ``last 8``."""
        if self.suffix is not None:
            return f"last {self.suffix}"
        return f"[{self.offset}, {'end' if self.size is None else self.offset + self.size})"

    def resume(self, head: ReadHead, received: int) -> ReadRequest:
        """The request for the missing rest of a response, pinned to the version that has begun to arrive."""
        return replace(
            self,
            offset=head.start + received,
            size=head.size - received,
            suffix=None,
            if_match=head.etag or self.if_match,
            if_none_match=None,
            if_modified_since=None,
            if_unmodified_since=None,
            version=self.version or head.version,
            first_bytes=None,
        )


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ReadHead:
    """The head of a response, checked: the body holds ``[start, start + size)`` of an object of ``total`` bytes.

    ``total`` is ``None`` if a server sends ``Content-Range: bytes a-b/*``, ``user_metadata`` if the object has none.
    """

    start: int
    size: int
    total: int | None
    etag: str | None = None
    version: str | None = None
    last_modified: datetime | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    user_metadata: Mapping[str, str] | None = field(default=None, compare=False)

    @property
    def end(self) -> int:
        """The first position after the body."""
        return self.start + self.size


@dataclass(slots=True, kw_only=True)
class UncheckedHead:
    """The head of a 200 or 206 as it came over the wire, not checked yet; ``etag`` without its quotes. Never kept."""

    status: int
    content_range: str | None = None
    content_length: int | None = None
    etag: str | None = None
    version: str | None = None
    last_modified: datetime | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    user_metadata: Mapping[str, str] | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ReadReply:
    """A read that ended well: the head, the bytes delivered (``head.size``), and the tier that had them.

    ``tier`` is ``"store"``, or ``"cache"`` where a layer had all of them.
    """

    head: ReadHead
    received: int
    tier: str = "store"


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class StatRequest(Request):
    """Metadata of an object, or of a directory when ``path`` ends with ``/`` and no object with bytes has the name.

    Complete compares the conditions with the metadata. A service need not send them: there is no body to save.
    """

    operation: ClassVar[str] = "stat"

    if_match: str | None = None
    if_none_match: str | None = None
    if_modified_since: datetime | None = None
    if_unmodified_since: datetime | None = None
    version: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ListRequest(Request):
    """One page of the entries whose path begins with ``path``.

    Without ``recursive``, keys below the next ``/`` are folded into one directory entry. ``start_after`` is
    exclusive. ``page_token`` is opaque: it comes from the page before. With ``versions`` each version is an entry.
    """

    operation: ClassVar[str] = "list"

    recursive: bool = False
    versions: bool = False
    start_after: str | None = None
    page_token: str | None = None
    page_entries_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """Some entries in the order of the store, and the token of the next page, or ``None``.

    ``has_marker``: whether an object stands for the listed directory itself. It is left out of the entries.
    ``None`` where the store does not tell. ``passed_over``: paths that are there and are not listed, and why.
    ``left_out`` stands for what the store sent and the request did not ask for, as a hash: 0 is nothing.
    """

    entries: tuple[Entry, ...]
    next_token: str | None = None
    has_marker: bool | None = None
    passed_over: tuple[tuple[str, str], ...] = ()
    left_out: int = 0


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class WriteRequest(Request):
    """An object to be written whole: it appears complete or not at all.

    ``checksum`` is what the store is to verify and to keep; ``None`` leaves it to the service.
    """

    operation: ClassVar[str] = "write"

    content_type: str | None = None
    content_encoding: str | None = None
    content_disposition: str | None = None
    content_language: str | None = None
    cache_control: str | None = None
    expires: str | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    if_match: str | None = None
    if_none_match: str | None = None
    if_not_exists: bool = False
    storage_class: str | None = None
    sse_kms_key_id: str | None = None
    checksum: Checksum | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but bytes to write: no description, metadata or condition."""
        return _options_of(self) == _NO_OPTIONS and not (self.user_metadata or self.if_not_exists)


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class PartRequest(Request):
    """One part of an upload. ``number`` counts from 1; a part that is sent again takes the place of the first one.

    ``checksum`` is as in the request that began the upload.
    """

    operation: ClassVar[str] = "write"

    upload_id: str
    number: int
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedPart:
    """A part that the store has: its number, its ETag as the store gave it, and its size in bytes.

    ``checksum`` covers its bytes, in base64, where the upload has one.
    """

    number: int
    etag: str
    size: int
    checksum: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class CompleteUploadRequest(WriteRequest):
    """The object of an upload is to appear, made of ``parts`` in the order of their numbers, under the conditions."""

    upload_id: str
    parts: tuple[UploadedPart, ...]

    @property
    def size(self) -> int:
        """The bytes of all parts."""
        return sum(part.size for part in self.parts)


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class AbortUploadRequest(Request):
    """An upload is to be forgotten, with its parts. A missing one is ignored."""

    operation: ClassVar[str] = "abort_upload"

    upload_id: str


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class ListUploadsRequest(Request):
    """One page of the uploads whose path begins with ``path``, that were neither completed nor aborted."""

    operation: ClassVar[str] = "list_uploads"

    page_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """An upload that was neither completed nor aborted."""

    path: str
    upload_id: str
    started: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPage:
    """Some uploads in the order of the store, and the token of the next page, or ``None``."""

    uploads: tuple[Upload, ...]
    next_token: str | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class CopyRequest(Request):
    """A copy of ``path`` to ``target`` within one service.

    ``store`` is the identity of the store of ``path`` where that is another bucket or root than ``target`` has, as
    far as the service says that it copies from there. ``size`` is the object's, if it is known.
    ``storage_class``, ``sse_kms_key_id`` and ``checksum`` are for the target, as in a write.

    ``version`` is the version of the source, ``if_match`` its ETag: any other one is ``ConditionNotMatch``.
    With ``if_not_exists`` (``Capability.copy_if_not_exists``) an object at ``target`` is ``AlreadyExists``.
    """

    operation: ClassVar[str] = "copy"

    target: str
    store: ServiceInfo | None = None
    size: int | None = None
    if_match: str | None = None
    version: str | None = None
    if_not_exists: bool = False
    storage_class: str | None = None
    sse_kms_key_id: str | None = None
    checksum: Checksum | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class CopyPartRequest(PartRequest):
    """One part of an upload, whose bytes are ``[start, end)`` of the object ``source`` with the ETag ``if_match``.

    ``store`` and ``version`` are as in ``CopyRequest``.
    """

    operation: ClassVar[str] = "copy"

    source: str
    start: int
    end: int
    if_match: str | None = None
    version: str | None = None
    store: ServiceInfo | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class DeleteRequest(Request):
    """``paths`` are deleted; missing ones are ignored. ``path`` is the first of them, for messages.

    ``versions``, where they are given, has one of each path: it is deleted permanently, and the others stay.

    ``if_match`` has the ETags of some paths: an object with another one stays, and is ``ConditionNotMatch``. A store
    that takes no such condition deletes without it, so a caller that must not lose a newer object looks at it first.
    """

    operation: ClassVar[str] = "delete"

    paths: tuple[str, ...]
    versions: tuple[str | None, ...] = ()
    if_match: Mapping[str, str] | None = None


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class RenameRequest(Request):
    """``path`` gets the name ``target``, in place of what has it, unless ``if_not_exists``. It keeps bytes and times.

    It is one object, or a link itself. ``if_match`` is the ETag that it has to have.
    """

    operation: ClassVar[str] = "rename"

    target: str
    if_match: str | None = None
    if_not_exists: bool = False


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class CreateDirRequest(Request):
    """The directory ``path``, which ends with ``/``, and its parents."""

    operation: ClassVar[str] = "create_dir"


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class PresignRequest(Request):
    """A URL that lets its bearer do one thing for ``expires_seconds``. The last three are headers of its response."""

    operation: ClassVar[str] = "presign"

    method: PresignMethod = "GET"
    expires_seconds: float = 900.0
    version: str | None = None
    content_type: str | None = None
    content_disposition: str | None = None
    cache_control: str | None = None
