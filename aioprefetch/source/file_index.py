"""What a source knows of the keys it has decided on: the exact look-up behind every deduplication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aioprefetch.source.files import SourceFile

# The size under which an empty version is remembered when an earlier version of that file had records: what fills it
# again is an overwrite, not the first content of the file.
EMPTIED_BYTES = -1


@dataclass(frozen=True, slots=True)
class KnownFile:
    """The version of a key that was planned last, by the record ``seq``; ``gone_ms`` since it is no longer listed.

    ``since`` is the record by which the name was new last: the first one, or one after it was seen to be gone. Pages
    tell it; of what was looked up it may be too late. A change that no run has yet ``continues`` the file of that name
    in a run, if there is one: then ``since`` is that one's.
    """

    file: SourceFile
    seq: int
    gone_ms: int | None = None
    since: int = field(default=-1, compare=False)
    continues: bool = field(default=True, compare=False)


class FileIndex(Protocol):
    """The known files of one source. Memory stays bounded whatever their number."""

    async def between(self, after: str, through: str) -> Sequence[KnownFile]:
        """Those whose key is above ``after`` and at most ``through``, in the order of their keys."""
        ...

    async def find(self, keys: Sequence[str]) -> dict[str, KnownFile]:
        """Those of ``keys``, in any order, that are known."""
        ...

    async def page(self, after: str, *, count: int) -> Sequence[KnownFile]:
        """The next ``count`` known files above a key, in the order of their keys."""
        ...
