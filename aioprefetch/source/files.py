"""Files of a store at one version, their changes, and pieces of them to read.

Keys are paths relative to the root of the source's operator. Times are milliseconds since 1970 in the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from aioprefetch.source.json_fields import each, integer, listed, milliseconds, optional, text

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
            integer(size, -1),  # An empty version may have ``file_index.EMPTIED_BYTES``.
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
        # The size of an empty version may be ``file_index.EMPTIED_BYTES``.
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
