"""The values of a source: files and their changes, the position in a listing, a durable step, an engine's offset. Pure.

Keys are paths relative to the root of the source's operator. Times are milliseconds since 1970 in the store's clock.

A cursor is one immutable value for each way of finding files, of a few keys: ``TailAndSweep`` belongs to the lister,
``Follow`` to a source that reads the state of another one's lister, ``Diff`` to stores that list in no order. ``Feed``
and ``FileIndex`` are protocols: the changes of a source page by page, and the exact lookup of known files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

from aioprefetch.errors import InvalidArgument, Unsupported, UntrustedMetadata, excerpt
from aioprefetch.source.stored_json import (
    INTEGER_MAX,
    each,
    fields_of,
    flag,
    integer,
    listed,
    milliseconds,
    optional,
    text,
)

ChangeKind = Literal["new", "overwritten", "gone", "returned"]


def is_hidden(key: str) -> bool:
    """Whether Spark, Hive and Hadoop ignore a key: a part of it begins with ``.``, or with ``_`` and has no ``=``.

    Examples are ``_SUCCESS``, checksums, logs of table formats, and uncommitted files of a job.
    """
    if not key.startswith((".", "_")) and "/." not in key and "/_" not in key:
        return False
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in key.split("/"))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One version of an object, as listed. ``size`` is in bytes."""

    key: str
    size: int
    etag: str | None = None
    version: str | None = None
    modified_ms: int | None = None

    def to_json(self) -> list[Any]:
        """A short list for JSON, in a fixed order."""
        return [self.key, self.size, self.etag, self.version, self.modified_ms]

    @classmethod
    def from_json(cls, fields: Any) -> SourceFile:
        """The file that ``to_json`` wrote. ``ValueError`` for other values."""
        key, size, etag, version, modified_ms = listed(fields, 5)
        return cls(
            text(key),
            integer(size, -1),  # An empty version may have ``EMPTIED_BYTES``.
            optional(text, etag),
            optional(text, version),
            optional(milliseconds, modified_ms),
        )

    def is_same_version(self, other: SourceFile) -> bool:
        """Whether both are the same version: by version or ETag if both have one, otherwise by size and time."""
        if self.version is not None and other.version is not None:
            return self.version == other.version
        if self.etag is not None and other.etag is not None:
            return self.etag == other.etag
        # The size of an empty version may be ``EMPTIED_BYTES``.
        return (max(0, self.size), self.modified_ms) == (max(0, other.size), other.modified_ms)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one key between the known files and a listing.

    A key that was gone is ``returned`` with its earlier version, and ``new`` with another one: it is then another file
    of the same name, under every policy for files that are ``overwritten`` while they exist.
    """

    kind: ChangeKind
    file: SourceFile


@dataclass(frozen=True, slots=True)
class FetchItem:
    """Work: the records of a file that start in the bytes ``[start, end)``; ``end=None`` is the end of the file.

    A file that cannot be split is one item. ``row_groups`` selects row groups of a Parquet file instead of bytes.
    """

    file: SourceFile
    start: int = 0
    end: int | None = None
    row_groups: tuple[int, ...] | None = None

    @property
    def stop(self) -> int:
        """The end, as a position in the file."""
        return self.file.size if self.end is None else min(self.end, self.file.size)

    @property
    def bytes(self) -> int:
        """The number of bytes to read, at most."""
        return max(0, self.stop - self.start)

    @property
    def is_whole(self) -> bool:
        """Whether the item is the whole file."""
        return self.start == 0 and self.stop == self.file.size and self.row_groups is None

    def cut(self, position: int) -> tuple[FetchItem, FetchItem]:
        """Two items: the records before a byte position, and the records from there on."""
        return replace(self, end=position), replace(self, start=position)

    def to_json(self) -> list[Any]:
        """A short list for JSON, in a fixed order."""
        groups = None if self.row_groups is None else list(self.row_groups)
        return [*self.file.to_json(), self.start, self.end, groups]

    @classmethod
    def from_json(cls, fields: Any) -> FetchItem:
        """The item that ``to_json`` wrote. ``ValueError`` for other values."""
        *file, start, end, groups = listed(fields, 8)
        row_groups = None if groups is None else each(integer, groups)
        return cls(SourceFile.from_json(file), integer(start), optional(integer, end), row_groups)


# The size of an empty version whose file had records in an earlier version: filling it again is an overwrite, not the
# first content of the file.
EMPTIED_BYTES = -1


@dataclass(frozen=True, slots=True)
class KnownFile:
    """The version of a key that was planned last, by the record ``seq``. ``gone_ms`` is the time when it disappeared.

    ``since`` is the record that last made the name new: its first one, or the first one after it was gone. Only
    ``page`` returns it exactly; ``find`` may return a later record. A change that is not in a run yet ``continues`` the
    file of the same name in a run, if there is one: then ``since`` is the value of that file.
    """

    file: SourceFile
    seq: int
    gone_ms: int | None = None
    since: int = field(default=-1, compare=False)
    continues: bool = field(default=True, compare=False)


class FileIndex(Protocol):
    """The known files of one source. Memory is bounded for any number of files."""

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """The known files of these keys, which may come in any order."""

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """The next ``count`` known files above a key, sorted by key."""


# --- positions in a listing -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TailAndSweep:
    """Two positions in the sorted keys.

    ``frontier`` is the last key of the tail: every key above it is new. ``sweep_key`` is the last key of the running
    sweep (``None`` between two sweeps), which ends at ``sweep_end``, the frontier at its start: a sweep ends however
    fast the frontier moves. ``sweeps`` counts the finished sweeps. ``high_modified_ms`` is the youngest time seen, in
    the store's clock.
    """

    frontier: str = ""
    sweep_key: str | None = None
    sweeps: int = 0
    high_modified_ms: int | None = None
    sweep_end: str = ""


@dataclass(frozen=True, slots=True)
class Diff:
    """Full listings, one after another, each compared with all known files. ``listings`` counts the finished ones.

    ``taken`` counts changes over all listings. It tells the lister of this process how far its page was taken; another
    process starts a new listing.
    """

    listings: int = 0
    high_modified_ms: int | None = None
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Follow:
    """The position in the records of another source, whose state has the id ``state``.

    First come the files that it knew at record ``through``, sorted by key, from ``backfill_key`` on (``None``: done),
    then its records after ``seq``.
    """

    state: str = ""
    seq: int = -1
    through: int = -1
    backfill_key: str | None = ""


Cursor = TailAndSweep | Diff | Follow
_KINDS: dict[str, type[Cursor]] = {"tail": TailAndSweep, "diff": Diff, "follow": Follow}

_optional_text = partial(optional, text)
_optional_time = partial(optional, milliseconds)
_record_number = partial(integer, least=-1)
_CHECKS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "tail": {
        "frontier": text,
        "sweep_key": _optional_text,
        "sweeps": integer,
        "high_modified_ms": _optional_time,
        "sweep_end": text,
    },
    "diff": {"listings": integer, "high_modified_ms": _optional_time, "taken": integer},
    "follow": {"state": text, "seq": _record_number, "through": _record_number, "backfill_key": _optional_text},
}


def cursor_to_json(cursor: Cursor) -> dict[str, Any]:
    """The JSON fields of a cursor, with its kind."""
    kind = next(name for name, cursor_class in _KINDS.items() if isinstance(cursor, cursor_class))
    return {"kind": kind, **asdict(cursor)}


def cursor_from_json(value: Any) -> Cursor:
    """The cursor that ``cursor_to_json`` wrote. ``ValueError`` for other values."""
    kind = text(value.get("kind") if isinstance(value, dict) else None)
    if kind not in _KINDS:
        raise ValueError(f"a cursor is one of {', '.join(_KINDS)}, not {excerpt(kind, 40)!r}")
    checks = _CHECKS[kind]
    fields = fields_of(value, ("kind", *checks))
    return _KINDS[kind](**{name: check(fields[name]) for name, check in checks.items()})


# --- the changes of a source ------------------------------------------------------------------------------------------

# Changes that wait longer than this are listed again: an old page names versions that no longer exist.
REST_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Changes in the order in which they must be taken, each with the cursor after it.

    A caller that takes only some of them continues from the cursor of the last one taken; after taking all, from
    ``after``. ``is_idle`` means no more files to find now: the tail is at its end, and no sweep is in progress
    or its share of this trigger is used up.
    """

    changes: tuple[tuple[Change, Cursor], ...]
    after: Cursor
    is_idle: bool


class Feed(Protocol):
    """A lister, or a follower of another source. Only its cursors must survive a restart; it keeps no other state."""

    async def page(self, cursor: Cursor) -> FoundPage:
        """The next changes after ``cursor``, from at most one page of the store and one lookup of known files.

        After an error the same cursor is still valid, and the next call waits for a pause that grows each time.
        """

    def begin_trigger(self) -> None:
        """Start a new trigger, with a new share of pages for the sweep."""

    def finish_by(self, modified_ms: int | None) -> None:
        """For a run that ends: leave younger files to a later one, and stay idle after one tail and one sweep.

        ``None`` returns to endless listing.
        """


# --- durable steps and offsets ----------------------------------------------------------------------------------------

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """Record number ``seq`` of a state's log. It is written once and never changed.

    ``items`` are the work of the batch. ``carry`` is the rest of files that were cut; it is planned next, before new
    files. ``known`` are files without work: empty, skipped by a policy, or returned unchanged.
    ``gone`` are keys that a sweep missed, with the time. ``files`` and ``bytes`` are totals, this record included. A
    record with ``claim`` has no work: its writer takes over the state.
    """

    seq: int
    writer: str
    cursor: Cursor
    items: tuple[FetchItem, ...] = ()
    carry: tuple[FetchItem, ...] = ()
    known: tuple[SourceFile, ...] = ()
    gone: tuple[tuple[str, int], ...] = ()
    files: int = 0
    bytes: int = 0
    claim: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON fields in a fixed order."""
        return {
            "v": RECORD_VERSION,
            "seq": self.seq,
            "writer": self.writer,
            "cursor": cursor_to_json(self.cursor),
            "items": [item.to_json() for item in self.items],
            "carry": [item.to_json() for item in self.carry],
            "known": [file.to_json() for file in self.known],
            "gone": [list(pair) for pair in self.gone],
            "files": self.files,
            "bytes": self.bytes,
            "claim": self.claim,
        }

    @classmethod
    def from_json(cls, value: Any) -> Record:
        """The record that ``to_json`` wrote. ``ValueError`` for other values."""
        fields = fields_of(value, ("v", *cls.__slots__))
        integer(fields["v"])
        return cls(
            seq=integer(fields["seq"]),
            writer=text(fields["writer"]),
            cursor=cursor_from_json(fields["cursor"]),
            items=each(FetchItem.from_json, fields["items"]),
            carry=each(FetchItem.from_json, fields["carry"]),
            known=each(SourceFile.from_json, fields["known"]),
            gone=each(_gone, fields["gone"]),
            files=integer(fields["files"]),
            bytes=integer(fields["bytes"]),
            claim=flag(fields["claim"]),
        )


def _gone(value: Any) -> tuple[str, int]:
    key, gone_ms = listed(value, 2)
    return text(key), milliseconds(gone_ms)


OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """All records of the state ``state`` up to ``seq`` (-1: none). ``files`` and ``bytes`` are totals, for progress."""

    state: str
    seq: int = -1
    files: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON fields in a fixed order: Spark compares offsets as text."""
        return {"v": OFFSET_VERSION, "state": self.state, "seq": self.seq, "files": self.files, "bytes": self.bytes}

    @classmethod
    def from_json(cls, value: Any) -> Offset:
        """The offset that ``to_json`` wrote, here or by an earlier run.

        Raises ``Unsupported`` for the offset of a newer format, ``InvalidArgument`` for another source's offset, and
        ``UntrustedMetadata`` for an edited one, with an unknown field or a wrong value.
        """
        if not isinstance(value, dict) or not {"v", "state", "seq"} <= value.keys():
            raise InvalidArgument(
                "this is not an offset of aioprefetch: it has no fields v, state and seq", operation="read_offset"
            )
        version = value["v"]
        if type(version) is int and OFFSET_VERSION < version <= INTEGER_MAX:
            raise Unsupported(
                f"the checkpoint has an offset of format {version}; this version reads {OFFSET_VERSION}",
                operation="read_offset",
            )
        try:
            integer(version, 1)
            fields = fields_of(value, ("v", "state", "seq"), ("files", "bytes"))
            return cls(
                text(fields["state"]),
                integer(fields["seq"], -1),
                integer(fields.get("files", 0)),
                integer(fields.get("bytes", 0)),
            )
        except ValueError as error:
            raise UntrustedMetadata(
                f"this was an offset of aioprefetch, and was edited: {error}. Put the checkpoint back from a copy",
                operation="read_offset",
            ) from error
