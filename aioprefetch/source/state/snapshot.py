"""The snapshot: which runs hold the files that records up to one decided on, and where listing was then."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aioprefetch.source.cursor import Cursor, cursor_from_json, cursor_to_json
from aioprefetch.source.files import FetchItem
from aioprefetch.source.json_fields import each, fields_of, integer, text
from aioprefetch.source.state.layout import SNAPSHOT
from aioprefetch.source.state.meta import check_version
from aioprefetch.source.state.runs import RunInfo
from aioprefetch.source.state.sealed import damaged, seal, unseal
from aioprefetch.source.state.store import StateStore, Versioned

SNAPSHOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after record ``through_seq``, whose checksum is ``record_crc32``.

    ``runs`` are in the order of their keys and share none. ``writer`` is whoever wrote it last: opening a state writes
    it anew, so that an earlier writer cannot replace it any more. ``previous_seq`` is how far the snapshot before it
    went, -1 where there was none; ``previous_runs`` are those of its runs that are not in this one.

    Of the log all records from ``log_from`` on are kept, and those with work that ``work_seqs`` names; ``removed_seq``
    is the newest one with work that is not, -1 for none. The engine had committed what was up to ``committed_seq``.
    """

    state: str
    writer: str
    through_seq: int
    record_crc32: str
    cursor: Cursor
    carry: tuple[FetchItem, ...]
    files: int
    total_bytes: int
    runs: tuple[RunInfo, ...]
    previous_seq: int = -1
    previous_runs: tuple[str, ...] = ()
    committed_seq: int = -1
    work_seqs: tuple[int, ...] = ()
    removed_seq: int = -1
    log_from: int = 0

    @property
    def rows(self) -> int:
        """How many files are in the runs."""
        return sum(run.rows for run in self.runs)

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return seal(
            {
                "v": SNAPSHOT_VERSION,
                "state": self.state,
                "writer": self.writer,
                "through_seq": self.through_seq,
                "record_crc32": self.record_crc32,
                "cursor": cursor_to_json(self.cursor),
                "carry": [item.to_json() for item in self.carry],
                "files": self.files,
                "bytes": self.total_bytes,
                "runs": [run.to_json() for run in self.runs],
                "previous_seq": self.previous_seq,
                "previous_runs": list(self.previous_runs),
                "committed_seq": self.committed_seq,
                "work_seqs": list(self.work_seqs),
                "removed_seq": self.removed_seq,
                "log_from": self.log_from,
            }
        )[0]

    @classmethod
    def from_bytes(cls, data: bytes, *, path: str) -> Snapshot:
        """What ``to_bytes`` gave. ``UntrustedMetadata`` for anything else, ``Unsupported`` for a newer format."""
        body = unseal(data, path=path)[0]
        check_version(body, SNAPSHOT_VERSION, path=path)
        try:
            snapshot = cls._from_json(body)
        except ValueError as error:
            raise damaged(f"a field of the snapshot is not what it should be: {error}", path) from error
        if any(left.last >= right.first for left, right in pairwise(snapshot.runs)):
            raise damaged("the runs of the snapshot overlap", path)
        return snapshot

    @classmethod
    def _from_json(cls, value: Any) -> Snapshot:
        names = [name for name in cls.__slots__ if name != "total_bytes"]
        fields = fields_of(value, ("v", "bytes", *names))
        return cls(
            state=text(fields["state"]),
            writer=text(fields["writer"]),
            through_seq=integer(fields["through_seq"], -1),
            record_crc32=text(fields["record_crc32"]),
            cursor=cursor_from_json(fields["cursor"]),
            carry=each(FetchItem.from_json, fields["carry"]),
            files=integer(fields["files"]),
            total_bytes=integer(fields["bytes"]),
            runs=each(RunInfo.from_json, fields["runs"]),
            previous_seq=integer(fields["previous_seq"], -1),
            previous_runs=each(text, fields["previous_runs"]),
            committed_seq=integer(fields["committed_seq"], -1),
            work_seqs=each(integer, fields["work_seqs"]),
            removed_seq=integer(fields["removed_seq"], -1),
            log_from=integer(fields["log_from"]),
        )


async def read_snapshot(store: StateStore, state: str) -> tuple[Snapshot, Versioned] | None:
    """The snapshot and its version, ``None`` where there is none. ``state`` is the id that it must have."""
    found = await store.read_versioned(SNAPSHOT)
    if found is None:
        return None
    path = store.path(SNAPSHOT)
    snapshot = Snapshot.from_bytes(found.data, path=path)
    if snapshot.state != state:
        raise damaged(f"the snapshot is of the state {snapshot.state}, and {store.url} is the state {state}", path)
    return snapshot, found
