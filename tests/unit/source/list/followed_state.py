"""The state of a source that is followed, in memory: a log of which old records are removed, and what is known."""

from collections.abc import Sequence
from typing import cast

from aioprefetch.errors import NotFound
from aioprefetch.source.state.index import Changes, KeyChange, carried_files, changes_of, fold, with_gone
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.values import FetchItem, KnownFile, Record, SourceFile, TailAndSweep
from tests.stores.dict_index import DictIndex


class FollowedState:
    """The state that a follower reads. ``newest`` shows the records that its lister has written since."""

    def __init__(self, uuid: str = "other") -> None:
        self.uuid = uuid
        self.head: Record | None = None
        self.index = DictIndex()
        self.log: dict[int, Record] = {}
        self.looks = 0
        self.versions = 0
        self.append()

    def as_state(self) -> SourceState:
        """The part of a state that followers use."""
        return cast("SourceState", self)

    def file(self, key: str, size: int = 10) -> SourceFile:
        """A new version."""
        self.versions += 1
        return SourceFile(key, size, f"v{self.versions}")

    def append(
        self,
        items: Sequence[FetchItem] = (),
        carry: Sequence[FetchItem] = (),
        known: Sequence[SourceFile] = (),
        gone: Sequence[str] = (),
    ) -> Record:
        """Write a record, as the other's planner does."""
        seq = len(self.log)
        record = Record(
            seq=seq,
            writer="w",
            cursor=TailAndSweep(),
            items=tuple(items),
            carry=tuple(carry),
            known=tuple(known),
            gone=tuple((key, seq) for key in gone),
            claim=seq == 0,
        )
        before = self.log.get(seq - 1)
        self.log[seq] = record
        for key, change in changes_of(record, carried_files(before.carry if before else ())).items():
            self._apply(key, change)
        return record

    def _apply(self, key: str, change: KeyChange) -> None:
        files = self.index.files
        if isinstance(change, KnownFile):
            changed: Changes = {key: files[key]} if key in files else {}
            fold(changed, {key: change})
            files |= {key: one for key, one in changed.items() if isinstance(one, KnownFile)}
        elif key in files:
            files[key] = with_gone(files[key], change)

    def compact(self, keep: int = 1) -> None:
        """Remove all but the newest ``count`` records from the log; their numbers stay."""
        for seq in sorted(self.log)[:-keep]:
            self.log[seq] = REMOVED

    def forget(self) -> None:
        """Forget what is gone."""
        self.index.files = {key: one for key, one in self.index.files.items() if one.gone_ms is None}

    async def newest(self) -> Record | None:
        """As ``SourceState`` has it."""
        self.looks += 1
        self.head = self.log[len(self.log) - 1]
        return self.head

    async def records(self, after: int, through: int) -> list[Record]:
        """As ``SourceState`` has it."""
        found = [self.log[seq] for seq in range(after + 1, through + 1)]
        if REMOVED in found:
            raise NotFound("removed", operation="records")
        return found


REMOVED = Record(seq=-1, writer="", cursor=TailAndSweep())
