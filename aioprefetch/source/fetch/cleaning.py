"""Deletes or moves source files whose records were all delivered: in the background, and never a newer version.

Files beside the state hold its own progress, and lists of files that tasks left out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    ConfigInvalid,
    Error,
    NotFound,
    StateConflict,
    Unavailable,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.source.options import CleanSource
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.stored_json import damaged, each, fields_of, integer, listed, optional, parsed, text
from aioprefetch.source.values import Record, SourceFile
from aioprefetch.transfer.moving import have_same_bytes
from aioprefetch.verbs.listing import list_literally

logger = logging.getLogger(__name__)


async def copy_to_absent(operator: Operator, source: str, target: str) -> None:
    """Copy an object to an absent target. A target with the same content, left by a crash, is accepted.

    ``AlreadyExists`` for a target with other content. Where a store has no ``write_if_not_exists``, a target that is
    written between the check and the copy is replaced.
    """
    is_conditional = operator.capability.write_if_not_exists
    if is_conditional or not await operator.exists(target):
        try:
            await operator.copy(source, target, if_not_exists=is_conditional)
            return
        except AlreadyExists:
            pass
    if not await have_same_bytes(operator, source, target):
        raise AlreadyExists(
            f"it is not moved to {target!r}, where another file is: it stays where it is. Move that one away, or delete"
            " one of the two",
            operation="clean_source",
            path=source,
        )


# --- the cleaner ------------------------------------------------------------------------------------------------------

RECORDS_AT_ONCE = 16
# Attempts for one file in one run.
ATTEMPTS_MAX = 3
# With more failures the store itself is failing: cleaning stops, and the same records are cleaned later.
FAILED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanOptions:
    """The treatment of a file after the engine has committed the last of its records.

    For ``move``, ``operator`` reaches both ``source_directory``, the path of the source's root below its own root, and
    ``target_directory``, outside of that; see ``move_directories``. ``in_flight`` files are cleaned concurrently.
    """

    mode: CleanSource = "off"
    operator: Operator | None = None
    source_directory: str = ""
    target_directory: str = ""
    in_flight: int = 16


def move_directories(source_url: str, target_url: str) -> tuple[str, str, str]:
    """The URL of a root above both directories, and their paths below it, with a slash at the end.

    ``ConfigInvalid`` if the target lies in another store, or in the source, where it would be listed again.
    """
    source, target = urlsplit(source_url), urlsplit(target_url)
    stores = [(url.scheme.replace("s3a", "s3"), url.netloc) for url in (source, target)]
    if stores[0] != stores[1] or not stores[0][0]:
        raise ConfigInvalid(
            f"files cannot be moved from {source_url} to {target_url}: the target must lie in the same store",
            operation="clean_source",
        )
    paths = ["/".join(part for part in url.path.split("/") if part) for url in (source, target)]
    directories = [f"{path}/" if path else "" for path in paths]
    if directories[1].startswith(directories[0]):
        raise ConfigInvalid(
            f"the directory {target_url}, to which files are to be moved, lies within the source {source_url}:"
            " they would be listed there again. Choose one outside of it",
            operation="clean_source",
        )
    return f"{source.scheme}://{source.netloc}/", directories[0], directories[1]


def check_clean_options(options: CleanOptions) -> None:
    """``ConfigInvalid`` for a move without a target, or with one in the source."""
    if options.mode != "move":
        return
    if options.operator is None or not options.target_directory:
        raise ConfigInvalid(
            "clean_source=move needs a directory to move to, outside of the source", operation="clean_source"
        )
    if options.target_directory.startswith(options.source_directory):
        raise ConfigInvalid(
            f"the directory {options.target_directory!r}, to which files are to be moved, lies within the source"
            f" {options.source_directory!r}: they would be listed there again",
            operation="clean_source",
        )


class Cleaner:
    """Cleans files of committed batches. Failures are logged and counted, and the file is kept.

    A file is cleaned only while it is the version that was read. Where a store takes no condition for a deletion, one
    request lies between this check and that. A file that a task has left out in part (``dead/`` beside the state)
    stays, and so does a file whose target is another file. Nothing is cleaned once another writer has taken over the
    state.

    Files that a killed process did not clean are cleaned by the next one, at its first commit. Failed files are tried
    again with later commits and by later runs, and more than ``failed_max`` of them end a run. ``counts`` has
    ``cleaned``, ``changed``, ``missing``, ``failed`` and ``left`` files.
    """

    def __init__(
        self,
        state: SourceState,
        operator: Operator,
        marker: tuple[Operator, str],
        options: CleanOptions,
        *,
        failed_max: int = FAILED_MAX,
    ) -> None:
        check_clean_options(options)
        self._failed_max = failed_max
        self.counts: Counter[str] = Counter()
        self._state = state
        self._operator = operator
        self._marker = MarkerFile(*marker)
        self._dead_files = partial(dead_files, marker[0], marker[1].removesuffix(MARKER_NAME))
        self._options = options
        self._progress: CleaningProgress | None = None
        self._attempts: Counter[SourceFile] = Counter()
        self._wanted = -1
        self._task: asyncio.Task[None] | None = None

    def committed(self, seq: int) -> None:
        """Records up to ``seq``, the end of a batch, are committed. Cleaning starts in the background."""
        self._wanted = max(self._wanted, seq)
        if self._options.mode != "off" and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._clean(), name="aioprefetch-clean-source")

    async def finish(self) -> None:
        """Wait for the cleaning in progress."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Stop. The file in progress may be cleaned or not; the next run continues."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _clean(self) -> None:
        try:
            if self._progress is None:
                self._progress = await self._marker.read()
            progress = self._progress
            await self._try_again(progress)
            while progress.through < self._wanted:
                wanted = self._wanted
                # For all records at once: the batch that ends with ``wanted`` may have started many records earlier.
                progress.dead |= await self._dead_files(progress.through, wanted)
                while progress.through < wanted:
                    await self._clean_records(progress, *await self._next_records(progress.through, wanted))
        except StateConflict as error:
            logger.warning("source files are cleaned no more: %s", error)
        except Error as error:
            self.counts["failed"] += 1
            logger.warning("cleaning of source files stopped; it is tried again with the next commit: %s", error)

    async def _clean_records(self, progress: CleaningProgress, records: Sequence[Record], until: int) -> None:
        # The earlier bytes of a file were planned no later than its last one.
        files = [item.file for record in records for item in record.items if item.stop >= item.file.size]
        whole = [file for file in files if version_of(file) not in progress.dead]
        failed = await self._clean_files(whole)
        if len(progress.failed) + len(failed) > self._failed_max:
            raise Unavailable(
                f"{len(failed)} of {len(files)} files could not be cleaned, after {len(progress.failed)} before them",
                operation="clean_source",
            )
        if len(whole) < len(files):
            self.counts["left"] += len(files) - len(whole)
        progress.failed += failed
        progress.dead -= {version_of(file) for file in files}
        progress.through = until
        await self._marker.write(progress)

    async def _try_again(self, progress: CleaningProgress) -> None:
        """Clean failed files again, a few times in a run."""
        due = [file for file in progress.failed if self._attempts[file] < ATTEMPTS_MAX]
        if due:
            failed = {*await self._clean_files(due)}
            progress.failed = [file for file in progress.failed if file in failed or file not in due]
            await self._marker.write(progress)

    async def _next_records(self, after: int, wanted: int) -> tuple[list[Record], int]:
        """Some records, and the number of the last one. The oldest ones, if they were removed, are skipped."""
        until = min(after + RECORDS_AT_ONCE, wanted)
        try:
            return await self._state.records(after, until), until
        except NotFound as error:
            records: list[Record] = []
            removed = after
            for seq in range(after + 1, until + 1):
                try:
                    records += await self._state.records(seq - 1, seq)
                except NotFound:
                    removed = seq
            if removed == until:
                until = removed = await self._removed_through(until, wanted)
            logger.warning("records %d to %d are compacted; their files are not cleaned: %s", after + 1, removed, error)
            return records, until

    async def _removed_through(self, low: int, high: int) -> int:
        """The last removed record in a range; the first one was removed."""
        while low < high:
            middle = (low + high) // 2
            try:
                await self._state.records(middle, middle + 1)
            except NotFound:
                low = middle + 1
            else:
                high = middle
        return low

    async def _clean_files(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        """Returns the files to try again. A file whose target is taken is not tried again: a person must decide."""
        if not files:
            return []
        await self._state.newest()  # Raises if another writer has taken over, which then owns these files.
        failed: list[SourceFile] = []

        async def clean(file: SourceFile) -> None:
            result = await self._clean_one(file)
            self.counts["failed" if result == "taken" else result] += 1
            if result == "failed":
                self._attempts[file] += 1
                failed.append(file)

        await gather_all((partial(clean, file) for file in files), at_once=self._options.in_flight)
        return failed

    async def _clean_one(self, file: SourceFile) -> str:
        try:
            if not await self._is_still(file):
                return "changed"
            if self._options.mode == "move":
                assert self._options.operator is not None
                source = f"{self._options.source_directory}{file.key}"
                await copy_to_absent(self._options.operator, source, f"{self._options.target_directory}{file.key}")
                if not await self._is_still(file):  # A version written during the copy must not be deleted.
                    return "changed"
            etag = file.etag if self._operator.capability.delete_if_match else None
            await self._operator.delete(file.key, if_match=etag)
        except NotFound:
            return "missing"
        except ConditionNotMatch:
            return "changed"
        except AlreadyExists as error:
            logger.warning("the source file %r was not cleaned: %s", file.key, error)
            return "taken"
        except Error as error:
            logger.warning("the source file %r was not cleaned: %s", file.key, error)
            return "failed"
        return "cleaned"

    async def _is_still(self, file: SourceFile) -> bool:
        """Whether the store still has the version that was read."""
        metadata = await self._operator.stat(file.key)
        if file.etag is not None and metadata.etag is not None:
            return file.etag == metadata.etag
        if file.version is not None and metadata.version is not None:
            return file.version == metadata.version
        if metadata.last_modified is None or file.modified_ms is None:
            return metadata.size == file.size
        # Whole seconds: some listings are less precise than a HEAD of the object.
        return (metadata.size, int(metadata.last_modified.timestamp())) == (file.size, file.modified_ms // 1000)


# --- files beside the state -------------------------------------------------------------------------------------------

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
    """The files of the records up to ``through`` were cleaned, except the ``failed`` ones.

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
        """The progress of an earlier run; a new one without it, or if it cannot be read."""
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


async def dead_files(operator: Operator, directory: str, after: int, through: int) -> set[Version]:
    """The versions left out by the batches whose last record is above ``after`` and up to ``through``.

    Their lists are beside a state in ``directory``. ``UntrustedMetadata`` if it cannot be read.
    """
    versions: set[Version] = set()
    # Lists are few: one for each task that left a file out.
    prefix = f"{directory}{DEAD}"
    async with list_literally(operator, prefix, recursive=True, start_after=f"{prefix}{after + 1:012}") as entries:
        paths = [entry.path async for entry in entries]
    for path in paths:
        name = _DEAD_NAME.fullmatch(path.removeprefix(prefix))
        if name is not None and after < int(name[1]) <= through:
            versions |= _versions(await operator.read(path), path)
    return versions


def _version(key: Any, etag: Any, version: Any) -> Version:
    return text(key), optional(text, etag), optional(text, version)


def _versions(lines: bytes, path: str) -> set[Version]:
    try:
        facts = [parsed(line) for line in lines.decode("utf-8", "surrogatepass").split("\n") if line]
        return {_version(fact["key"], fact["etag"], fact["version"]) for fact in facts}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("the list of files that were left out cannot be read", path) from error
