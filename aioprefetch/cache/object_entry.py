"""The entry of a whole object, and the name of its file. Pure.

The file has the format of ``entry.py``: the identity identifies a read (namespace, path, version id), the facts are the
metadata of the object as JSON, and the data is the whole object.

A read can ask for exactly one **slot**, and each slot has one file, so that every process finds, replaces and removes
an entry under the same name. The name is a SHA-256 of the identity and shows nothing of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from functools import lru_cache

from aioprefetch.cache.entry import BadEntry, EntryTail, Naming, encoded, is_entry_name
from aioprefetch.errors import ConditionNotMatch, RangeNotSatisfied, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import resolve_range
from aioprefetch.values import ReadHead, ReadRequest

FOLDER = "objects/"
_TEXTS = ("etag", "version", "content_type", "content_encoding")


@dataclass(frozen=True, slots=True)
class Slot:
    """The identity of a read: the name of the only entry that can serve it, and the identity in the entry's tail."""

    name: str
    identity: bytes


@lru_cache(maxsize=4096)
def slot_of(namespace: tuple[str, ...], path: str, asked_version: str | None) -> Slot:
    """The slot of a path, and of a version id where the request names one."""
    identity = encoded(len(namespace), *namespace, path, asked_version)
    name = Naming(identity).name()
    return Slot(f"{FOLDER}{name[:2]}/{name}", identity)


def is_object_name(name: str) -> bool:
    """Whether a name in the cache's store belongs to an entry."""
    folder, _, last = name.rpartition("/")
    return is_entry_name(last) and folder == FOLDER + last[:2]


def encode_facts(whole: ReadHead) -> bytes:
    """The facts of an object, the head of a response with all of it, as JSON."""
    fields = {name: getattr(whole, name) for name in _TEXTS}
    fields["last_modified"] = whole.last_modified.isoformat() if whole.last_modified else None
    fields["user_metadata"] = None if whole.user_metadata is None else dict(whole.user_metadata)
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def decode_facts(text: bytes, data_bytes: int) -> ReadHead:
    """The head of a response with all of an object, out of the facts of its entry. Raises ``BadEntry``."""
    try:
        fields = json.loads(text)
        texts = {name: fields[name] for name in _TEXTS}
        if not all(isinstance(value, str | None) for value in texts.values()) or texts["etag"] is None:
            raise TypeError("not a text")
        metadata = fields["user_metadata"]
        if metadata is not None and not all(isinstance(value, str) for value in dict(metadata).values()):
            raise TypeError("not a text")
        modified = fields["last_modified"]
        last_modified = None if modified is None else datetime.fromisoformat(modified)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadEntry(f"its facts cannot be understood: {type(error).__name__}") from error
    return ReadHead(
        start=0, size=data_bytes, total=data_bytes, last_modified=last_modified, user_metadata=metadata, **texts
    )


@dataclass(slots=True, kw_only=True, eq=False)
class CacheEntry:
    """An entry: its name and size in the cache, and the state of it in this process.

    ``head`` describes a response with the whole object, and ``tail`` is the verified tail; ``None`` until known.
    ``store_etag`` and ``store_modified`` are the metadata of the file in the cache's own store. ``validated_at`` is the
    time on the runtime's clock at which the object's store last said that this is the current version.
    """

    name: str
    size_bytes: int = 0
    tail: EntryTail | None = None
    head: ReadHead | None = None
    store_etag: str | None = None
    store_modified: datetime | None = None
    validated_at: float | None = None

    @property
    def etag(self) -> str | None:
        """The object's ETag, ``None`` until it is known."""
        return None if self.head is None else self.head.etag

    @property
    def whole(self) -> ReadHead:
        """The head, of an entry that was read or written."""
        assert self.head is not None
        return self.head


def pin_of(request: ReadRequest) -> str | None:
    """The ETag that a read is bound to; ``*`` binds it to none."""
    return None if request.if_match == "*" else request.if_match


def is_excluded(request: ReadRequest, etag: str | None) -> bool:
    """Whether ``if_none_match`` excludes this version."""
    return request.if_none_match is not None and request.if_none_match in ("*", etag)


def part_of(request: ReadRequest, whole: ReadHead) -> ReadHead:
    """The head of the response to a read of an object whose head for all of it is ``whole``.

    Raises ``ConditionNotMatch`` and ``RangeNotSatisfied`` as the object's own store would.
    """
    assert whole.total is not None
    if is_excluded(request, whole.etag):
        raise ConditionNotMatch(
            f"the ETag is still {excerpt(whole.etag)!r}",
            operation="read",
            path=request.path,
            context={"if_none_match": request.if_none_match, "etag": whole.etag},
        )
    bounds = resolve_range(request.offset, request.size, request.suffix, whole.total)
    if bounds is None:
        raise RangeNotSatisfied(
            f"{request.describe()} starts at or beyond the end", total=whole.total, operation="read", path=request.path
        )
    start, end = bounds
    if (start, end) == (0, whole.total):
        return whole
    return replace(whole, start=start, size=end - start)
