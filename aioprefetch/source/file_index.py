"""The index of known files: the exact lookup behind every deduplication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aioprefetch.source.files import SourceFile

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

    async def between(self, after: str, through: str) -> Sequence[KnownFile]:
        """The known files with keys above ``after`` and up to ``through``, sorted by key."""
        ...

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """The known files of these keys, which may come in any order."""
        ...

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """The next ``count`` known files above a key, sorted by key."""
        ...
