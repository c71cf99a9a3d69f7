"""What cleaning keeps beside a state, and what tasks have noted there of files that they left out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.errors import NotFound
from aioprefetch.operator.operator import Operator, list_literally
from aioprefetch.source.files import SourceFile
from aioprefetch.source.json_fields import each, fields_of, integer, listed, optional, parsed, text
from aioprefetch.source.state.checksummed_json import damaged

# How far cleaning has come: it is rewritten after each step, and may be lost.
MARKER_NAME = "cleaned.json"

# Where tasks write down files that a policy gave up on: an object for each task that did, named by the last record of
# its batch.
DEAD = "dead/"
_DEAD_NAME = re.compile(r"(\d{12})-\d+\.jsonl")

# A version of a file, as both a listing and a task tell it.
Version = tuple[str, str | None, str | None]


def version_of(file: SourceFile) -> Version:
    """The version of a file."""
    return file.key, file.etag, file.version


@dataclass(slots=True)
class CleaningProgress:
    """The files of the records up to ``through`` are dealt with, but for those that ``failed``.

    ``dead`` are versions that a task left out, some of whose bytes a later record may plan.
    """

    through: int = -1
    failed: list[SourceFile] = field(default_factory=list)
    dead: set[Version] = field(default_factory=set)


class MarkerFile:
    """The marker, at a path of an operator."""

    def __init__(self, operator: Operator, path: str) -> None:
        self._operator = operator
        self._path = path

    async def read(self) -> CleaningProgress:
        """Where an earlier run had come to; the beginning where nothing tells."""
        try:
            fields = fields_of(parsed(await self._operator.read(self._path)), ("through",), ("failed", "dead"))
            return CleaningProgress(
                integer(fields["through"], -1),
                [*each(SourceFile.from_json, fields.get("failed", []))],
                {_version(*listed(one, 3)) for one in listed(fields.get("dead", []))},
            )
        except (NotFound, ValueError):
            return CleaningProgress()

    async def write(self, progress: CleaningProgress) -> None:
        """Keep it for a later run."""
        fields = {
            "through": progress.through,
            "failed": [file.to_json() for file in progress.failed],
            "dead": sorted(progress.dead, key=lambda one: one[0]),
        }
        await self._operator.write(self._path, json.dumps(fields).encode())


class DeadLists:
    """The lists of files that were left out, beside a state in ``directory``."""

    def __init__(self, operator: Operator, directory: str) -> None:
        self._operator = operator
        self._prefix = f"{directory}{DEAD}"

    async def files(self, after: int, through: int) -> set[Version]:
        """Those of the batches whose last record is above ``after`` and at most ``through``.

        ``UntrustedMetadata`` for a list that cannot be read.
        """
        found: set[Version] = set()
        # Lists are few: one for each task that left a file out.
        start = f"{self._prefix}{after + 1:012}" if self._operator.capability.list_start_after else None
        async with list_literally(self._operator, self._prefix, recursive=True, start_after=start) as entries:
            paths = [entry.path async for entry in entries]
        for path in paths:
            name = _DEAD_NAME.fullmatch(path.removeprefix(self._prefix))
            if name is not None and after < int(name[1]) <= through:
                found |= _versions(await self._operator.read(path), path)
        return found


def _version(key: Any, etag: Any, version: Any) -> Version:
    return text(key), optional(text, etag), optional(text, version)


def _versions(lines: bytes, path: str) -> set[Version]:
    try:
        facts = [parsed(line) for line in lines.decode("utf-8", "surrogatepass").split("\n") if line]
        return {_version(one["key"], one["etag"], one["version"]) for one in facts}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("the list of files that were left out cannot be read", path) from error
