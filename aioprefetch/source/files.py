"""What a source hands on: files of a store at one version, what happened to them, and pieces of them to be read.

Keys are paths relative to the root of the source's operator. Times are milliseconds since 1970 in the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from aioprefetch.source.json_fields import each, integer, listed, milliseconds, optional, text

ChangeKind = Literal["new", "overwritten", "gone", "returned"]


def is_hidden(key: str) -> bool:
    """Whether Spark, Hive and Hadoop pass over a key: a part of it begins with ``.``, or with ``_`` and has no ``=``.

    Such are ``_SUCCESS``, checksums, logs of table formats, and what a job has not committed yet.
    """
    if not key.startswith((".", "_")) and "/." not in key and "/_" not in key:
        return False
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in key.split("/"))


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One version of an object, as a listing tells it. ``size`` is in bytes."""

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
        """The file that ``to_json`` wrote. ``ValueError`` for anything else."""
        key, size, etag, version, modified_ms = listed(fields, 5)
        return cls(
            text(key),
            integer(size, -1),  # An empty version may be kept as ``known.EMPTIED_BYTES``.
            optional(text, etag),
            optional(text, version),
            optional(milliseconds, modified_ms),
        )

    def is_same_version(self, other: SourceFile) -> bool:
        """Whether both are one version: by version or ETag where both have one, otherwise by size and time."""
        if self.version is not None and other.version is not None:
            return self.version == other.version
        if self.etag is not None and other.etag is not None:
            return self.etag == other.etag
        # Of an empty version the size may be ``known.EMPTIED_BYTES``.
        return (max(0, self.size), self.modified_ms) == (max(0, other.size), other.modified_ms)


@dataclass(frozen=True, slots=True)
class Change:
    """What a listing found of one key, compared with what is known.

    A key that was seen to be gone is ``returned`` with the version it had, and ``new`` with another one: the file of
    that name is another one then, whatever is done about files that are ``overwritten`` while they are there.
    """

    kind: ChangeKind
    file: SourceFile


@dataclass(frozen=True, slots=True)
class FetchItem:
    """Work: the records of a file that start in the bytes ``[start, end)``; without ``end``, to its end.

    A file that cannot be split comes whole. ``row_groups`` narrows a Parquet file to these, whatever the bytes say.
    """

    file: SourceFile
    start: int = 0
    end: int | None = None
    row_groups: tuple[int, ...] | None = None

    @property
    def stop(self) -> int:
        """Where it ends, in bytes of the file."""
        return self.file.size if self.end is None else min(self.end, self.file.size)

    @property
    def bytes(self) -> int:
        """How much there is to read, at most."""
        return max(0, self.stop - self.start)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the file."""
        return self.start == 0 and self.stop == self.file.size and self.row_groups is None

    def cut(self, position: int) -> tuple[FetchItem, FetchItem]:
        """The records before and from a byte position on."""
        return replace(self, end=position), replace(self, start=position)

    def to_json(self) -> list[Any]:
        """A short list for JSON, in a fixed order."""
        groups = None if self.row_groups is None else list(self.row_groups)
        return [*self.file.to_json(), self.start, self.end, groups]

    @classmethod
    def from_json(cls, fields: Any) -> FetchItem:
        """The item that ``to_json`` wrote. ``ValueError`` for anything else."""
        *file, start, end, groups = listed(fields, 8)
        row_groups = None if groups is None else each(integer, groups)
        return cls(SourceFile.from_json(file), integer(start), optional(integer, end), row_groups)
