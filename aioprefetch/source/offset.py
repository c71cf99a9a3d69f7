"""The offset that an engine keeps for a source: a few hundred bytes, whatever the number of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aioprefetch.errors import InvalidArgument, Unsupported

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """All records of the state ``state`` up to ``seq`` (-1: none). ``files`` and ``bytes`` are totals, for progress."""

    state: str
    seq: int = -1
    files: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """With its keys in a fixed order: Spark compares offsets as text."""
        return {"v": OFFSET_VERSION, "state": self.state, "seq": self.seq, "files": self.files, "bytes": self.bytes}

    @classmethod
    def from_json(cls, fields: Any) -> Offset:
        """The offset that ``to_json`` wrote, here or by an earlier run.

        Raises ``Unsupported`` for the offset of a newer format, ``InvalidArgument`` for what is no offset of ours.
        """
        if not isinstance(fields, dict) or not {"v", "state", "seq"} <= fields.keys():
            raise InvalidArgument(f"this is no offset of aioprefetch: {fields!r:.200}", operation="read_offset")
        if fields["v"] != OFFSET_VERSION:
            raise Unsupported(
                f"the checkpoint has an offset of format {fields['v']!r}; this version reads {OFFSET_VERSION}",
                operation="read_offset",
            )
        state, seq = fields["state"], fields["seq"]
        if not isinstance(state, str) or type(seq) is not int or seq < -1:
            raise InvalidArgument(f"this is no offset of aioprefetch: {fields!r:.200}", operation="read_offset")
        return cls(state, seq, int(fields.get("files", 0)), int(fields.get("bytes", 0)))
