"""The offset that an engine keeps for a source: at most a few hundred bytes for any number of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aioprefetch.errors import InvalidArgument, Unsupported, UntrustedMetadata
from aioprefetch.source.json_fields import INTEGER_MAX, fields_of, integer, text

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """All records of the state ``state`` up to ``seq`` (-1: none). ``files`` and ``bytes`` are totals, for progress."""

    state: str
    seq: int = -1
    files: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON fields in a fixed order: Spark compares offsets as text."""
        return {"v": OFFSET_VERSION, "state": self.state, "seq": self.seq, "files": self.files, "bytes": self.bytes}

    @classmethod
    def from_json(cls, value: Any) -> Offset:
        """The offset that ``to_json`` wrote, here or by an earlier run.

        Raises ``Unsupported`` for the offset of a newer format, ``InvalidArgument`` for another source's offset, and
        ``UntrustedMetadata`` for an edited one, with an unknown field or a wrong value.
        """
        if not isinstance(value, dict) or not {"v", "state", "seq"} <= value.keys():
            raise InvalidArgument(
                "this is not an offset of aioprefetch: it has no fields v, state and seq", operation="read_offset"
            )
        version = value["v"]
        if type(version) is int and OFFSET_VERSION < version <= INTEGER_MAX:
            raise Unsupported(
                f"the checkpoint has an offset of format {version}; this version reads {OFFSET_VERSION}",
                operation="read_offset",
            )
        try:
            integer(version, 1)
            fields = fields_of(value, ("v", "state", "seq"), ("files", "bytes"))
            return cls(
                text(fields["state"]),
                integer(fields["seq"], -1),
                integer(fields.get("files", 0)),
                integer(fields.get("bytes", 0)),
            )
        except ValueError as error:
            raise UntrustedMetadata(
                f"this was an offset of aioprefetch, and was edited: {error}. Put the checkpoint back from a copy",
                operation="read_offset",
            ) from error
