"""Files beside a state that cleaning uses: its own progress, and lists of files that tasks left out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from aioprefetch.errors import NotFound
from aioprefetch.operator.listing import list_literally
from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import SourceFile
from aioprefetch.source.json_fields import each, fields_of, integer, listed, optional, parsed, text
from aioprefetch.source.state.checksummed_json import damaged

# The progress of cleaning. It is rewritten after each step, and may be lost.
MARKER_NAME = "cleaned.json"

# Lists of files that a policy gave up on: one object for each task that did, named by the last record of its batch.
DEAD = "dead/"
_DEAD_NAME = re.compile(r"(\d{12})-\d+\.jsonl")

# A version of a file, as listings and tasks both know it.
Version = tuple[str, str | None, str | None]


def version_of(file: SourceFile) -> Version:
    """The version of a file."""
    return file.key, file.etag, file.version


@dataclass(slots=True)
class CleaningProgress:
    """The files of the records up to ``through`` were cleaned, except those that ``failed``.

    ``dead`` are versions that a task left out; a later record may plan some of their bytes.
    """

    through: int = -1
    failed: list[SourceFile] = field(default_factory=list)
    dead: set[Version] = field(default_factory=set)


class MarkerFile:
    """The marker object, at a path of an operator."""

    def __init__(self, operator: Operator, path: str) -> None:
        self._operator = operator
        self._path = path

    async def read(self) -> CleaningProgress:
        """The progress of an earlier run; a new one if there is none, or it cannot be read."""
        try:
            fields = fields_of(parsed(await self._operator.read(self._path)), ("through",), ("failed", "dead"))
            return CleaningProgress(
                integer(fields["through"], -1),
                [*each(SourceFile.from_json, fields.get("failed", []))],
                {_version(*listed(version, 3)) for version in listed(fields.get("dead", []))},
            )
        except (NotFound, ValueError):
            return CleaningProgress()

    async def write(self, progress: CleaningProgress) -> None:
        """Keep the progress for a later run."""
        fields = {
            "through": progress.through,
            "failed": [file.to_json() for file in progress.failed],
            "dead": sorted(progress.dead, key=lambda version: version[0]),
        }
        await self._operator.write(self._path, json.dumps(fields).encode())


class DeadLists:
    """The lists of left out files, beside a state in ``directory``."""

    def __init__(self, operator: Operator, directory: str) -> None:
        self._operator = operator
        self._prefix = f"{directory}{DEAD}"

    async def files(self, after: int, through: int) -> set[Version]:
        """The versions left out by the batches whose last record is above ``after`` and up to ``through``.

        ``UntrustedMetadata`` for a list that cannot be read.
        """
        versions: set[Version] = set()
        # Lists are few: one for each task that left a file out.
        start = f"{self._prefix}{after + 1:012}" if self._operator.capability.list_start_after else None
        async with list_literally(self._operator, self._prefix, recursive=True, start_after=start) as entries:
            paths = [entry.path async for entry in entries]
        for path in paths:
            name = _DEAD_NAME.fullmatch(path.removeprefix(self._prefix))
            if name is not None and after < int(name[1]) <= through:
                versions |= _versions(await self._operator.read(path), path)
        return versions


def _version(key: Any, etag: Any, version: Any) -> Version:
    return text(key), optional(text, etag), optional(text, version)


def _versions(lines: bytes, path: str) -> set[Version]:
    try:
        facts = [parsed(line) for line in lines.decode("utf-8", "surrogatepass").split("\n") if line]
        return {_version(fact["key"], fact["etag"], fact["version"]) for fact in facts}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("the list of files that were left out cannot be read", path) from error
