"""The snapshot: the runs with the known files of all records up to one, and the cursor and totals at that record."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aioprefetch.source.cursor import Cursor, cursor_from_json, cursor_to_json
from aioprefetch.source.files import FetchItem
from aioprefetch.source.json_fields import each, fields_of, integer, text
from aioprefetch.source.state.checksummed_json import check_version, damaged, seal, unseal
from aioprefetch.source.state.runs import RunInfo
from aioprefetch.source.state.store import SNAPSHOT, StateStore, Versioned

SNAPSHOT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after record ``through_seq``, whose checksum is ``record_crc32``.

    ``runs`` are in the order of their keys and do not overlap. ``writer`` wrote it last: opening a state writes it
    again, so that an earlier writer can no longer replace it. ``previous_seq`` is the last record of the snapshot
    before it (-1: there was none); ``previous_runs`` are the runs of that one that are not in this one.

    The log keeps all records from ``log_from`` on, and the records with work in ``work_seqs``. ``removed_seq`` is the
    newest record with work that is not kept (-1: none). The engine had committed the records up to ``committed_seq``.
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
        """The number of files in the runs."""
        return sum(run.rows for run in self.runs)

    def to_bytes(self) -> bytes:
        """The object in the store."""
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
        """The snapshot in these bytes. ``UntrustedMetadata`` for other bytes, ``Unsupported`` for a newer format."""
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


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot in force, and its version in the store."""

    snapshot: Snapshot
    version: Versioned


async def read_snapshot(store: StateStore, state: str) -> Base | None:
    """The snapshot in force; ``None`` if there is none. ``UntrustedMetadata`` unless it is of the state ``state``."""
    version = await store.read_versioned(SNAPSHOT)
    if version is None:
        return None
    path = store.path(SNAPSHOT)
    snapshot = Snapshot.from_bytes(version.data, path=path)
    if snapshot.state != state:
        raise damaged(f"the snapshot is of the state {snapshot.state}, and {store.url} is the state {state}", path)
    return Base(snapshot, version)
