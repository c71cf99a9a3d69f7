"""One durable step of a source: the plan of one batch, and the position of the listing after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aioprefetch.source.cursor import Cursor, cursor_from_json, cursor_to_json
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.json_fields import each, fields_of, flag, integer, listed, milliseconds, text

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """Record number ``seq`` of a state's log. It is written once and never changed.

    ``items`` are the work of the batch. ``carry`` is the rest of files that were cut; it is planned next, before new
    files. ``known`` are files without work: empty ones, those that a policy skips, and those that returned unchanged.
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
