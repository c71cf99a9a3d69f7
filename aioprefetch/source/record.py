"""One durable step of a source: what was planned for one batch, and how far listing had come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aioprefetch.source.cursor import Cursor, cursor_from_json, cursor_to_json
from aioprefetch.source.files import FetchItem, SourceFile

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """Record number ``seq`` of a state's log. It is written once and never changed.

    ``items`` are the work of the batch. ``carry`` is the rest of files that were cut, to be planned next, before
    anything new. ``known`` are files that were decided on without work: empty ones, those that a policy passes over
    and those that came back unchanged. ``gone`` are keys that a sweep missed, with the time. ``files`` and ``bytes``
    are totals up to and with this record. A record with ``claim`` plans nothing: it says that a writer took over.
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
        """For JSON, in a fixed order."""
        return {
            "v": RECORD_VERSION,
            "seq": self.seq,
            "writer": self.writer,
            "cursor": cursor_to_json(self.cursor),
            "items": [item.to_json() for item in self.items],
            "carry": [item.to_json() for item in self.carry],
            "known": [file.to_json() for file in self.known],
            "gone": [list(one) for one in self.gone],
            "files": self.files,
            "bytes": self.bytes,
            "claim": self.claim,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Record:
        """The record that ``to_json`` wrote. ``KeyError``, ``TypeError``, ``ValueError`` for anything else."""
        return cls(
            seq=fields["seq"],
            writer=fields["writer"],
            cursor=cursor_from_json(fields["cursor"]),
            items=tuple(FetchItem.from_json(one) for one in fields["items"]),
            carry=tuple(FetchItem.from_json(one) for one in fields["carry"]),
            known=tuple(SourceFile.from_json(one) for one in fields["known"]),
            gone=tuple((key, ms) for key, ms in fields["gone"]),
            files=fields["files"],
            bytes=fields["bytes"],
            claim=fields["claim"],
        )
