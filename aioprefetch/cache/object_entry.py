"""The entry of a whole object, and the name of its file. Pure.

The file has the format of ``entry.py``: the identity is that of a read (namespace, path, version id), the facts are the
metadata of the object as JSON, and the data is the whole object.

A read can ask for exactly one **slot**, and each slot has one file, so that every process finds, replaces and removes
an entry under the same name. The name is a SHA-256 of the identity and shows nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from aioprefetch.cache.entry import BadEntry, EntryTail, Naming, encoded, is_entry_name
from aioprefetch.errors import ConditionNotMatch, RangeNotSatisfied, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import resolve_range
from aioprefetch.values import ReadHead, ReadRequest

FOLDER = "objects/"


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
    """Whether a name in the cache's store is that of an entry."""
    folder, _, last = name.rpartition("/")
    return is_entry_name(last) and folder == FOLDER + last[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """The metadata of an object in the store. ``version`` is the version id in the response."""

    etag: str
    version: str | None
    last_modified: datetime | None
    content_type: str | None
    content_encoding: str | None = None
    user_metadata: Mapping[str, str] | None = None
    filled_at: datetime

    def encode(self) -> bytes:
        """The facts as JSON."""
        fields = {
            "etag": self.etag,
            "version": self.version,
            "last_modified": self.last_modified.isoformat() if self.last_modified else None,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "user_metadata": None if self.user_metadata is None else dict(self.user_metadata),
            "filled_at": self.filled_at.isoformat(timespec="microseconds"),
        }
        return json.dumps(fields, separators=(",", ":")).encode("ascii")

    @classmethod
    def decode(cls, text: bytes) -> ObjectFacts:
        """The facts of an entry. Raises ``BadEntry``."""
        try:
            fields = json.loads(text)
            last_modified = _text_or_none(fields["last_modified"])
            return cls(
                etag=_text(fields["etag"]),
                version=_text_or_none(fields["version"]),
                last_modified=None if last_modified is None else datetime.fromisoformat(last_modified),
                content_type=_text_or_none(fields["content_type"]),
                content_encoding=_text_or_none(fields["content_encoding"]),
                user_metadata=_texts_or_none(fields["user_metadata"]),
                filled_at=datetime.fromisoformat(_text(fields["filled_at"])),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadEntry(f"its facts cannot be understood: {type(error).__name__}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _texts_or_none(value: Any) -> dict[str, str] | None:
    return None if value is None else {name: _text(text) for name, text in dict(value).items()}


@dataclass(slots=True, kw_only=True, eq=False)
class CacheEntry:
    """An entry: its name and size in the cache, and the state of it in this process.

    ``tail`` and ``facts`` are ``None`` until they were read and verified. ``store_etag`` and ``store_modified`` are
    the metadata of the file in the cache's own store. ``validated_at`` is the time on the runtime's clock at which the
    object's store last said that this is the current version.
    """

    name: str
    size_bytes: int
    tail: EntryTail | None = None
    facts: ObjectFacts | None = None
    store_etag: str | None = None
    store_modified: datetime | None = None
    validated_at: float | None = None

    @property
    def etag(self) -> str | None:
        """The object's ETag, ``None`` until the tail was read."""
        return None if self.facts is None else self.facts.etag

    def whole(self) -> ReadHead:
        """The head of a response with the whole object. Only after the tail was read."""
        assert self.tail is not None
        assert self.facts is not None
        total = self.tail.data_bytes
        return ReadHead(
            start=0,
            size=total,
            total=total,
            etag=self.facts.etag,
            version=self.facts.version,
            last_modified=self.facts.last_modified,
            content_type=self.facts.content_type,
            content_encoding=self.facts.content_encoding,
            user_metadata=self.facts.user_metadata,
        )


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
