"""The task of reading items: the schema of the output, options, and policies for items that fail.

An item whose file is missing, changed or corrupt fails the batch, or is left out as a whole, so that a batch that runs
again has the same rows. ``ItemWindow`` holds its rows back until the item has ended.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from aioprefetch.errors import (
    ConditionNotMatch,
    ConfigInvalid,
    Error,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    Unsupported,
    UntrustedMetadata,
    is_bucket_missing,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.formats.record_format import BadRecords
from aioprefetch.source.options import (
    RESCUED_COLUMN,
    FailureOptions,
    FormatOptions,
    ReadOptions,
    Reason,
)
from aioprefetch.source.values import FetchItem

# Takes the lines of all quarantined files, each a JSON text: called once, after the last item, if there are any.
Quarantine = Callable[[Sequence[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """The options of reading items, and the schema of the result.

    Parameters
    ----------
    schema
        Exactly the schema of every batch. ``_rescued`` in it, under ``unknown_fields="rescue"``, is the JSON text of a
        record's unknown fields, even if files have a column of this name.
    metadata
        The columns of ``schema`` that have what is known of each record's file: of ``METADATA_COLUMNS``, and
        ``METADATA_STRUCT``. Fields of files that have these names are not read.
    url
        The URL of the root of the operator, for ``_file`` and for messages.
    filter_schema
        Fields that ``read.filters`` name and ``schema`` lacks: they are read for the filter alone.
    known_schema
        All fields of the files, in their order, where ``schema`` has only some of them: these are not unknown
        fields, and they give the positions of columns in CSV without a header.
    directory_columns
        Fields whose values stand in directories. They are null in a file outside of such directories whose format
        does not name columns.
    quarantine
        Writes down which files were left out; see ``quarantine_to``.
    """

    schema: pa.Schema
    url: str
    metadata: tuple[str, ...] = ()
    format: FormatOptions = field(default_factory=FormatOptions)
    read: ReadOptions = field(default_factory=ReadOptions)
    failures: FailureOptions = field(default_factory=FailureOptions)
    filter_schema: pa.Schema | None = None
    known_schema: pa.Schema | None = None
    directory_columns: tuple[str, ...] = ()
    quarantine: Quarantine | None = None

    def __post_init__(self) -> None:
        for name in ("batch_rows", "files_in_flight", "bytes_in_flight"):
            value = getattr(self.read, name)
            if type(value) is not int or value < 1:
                raise ConfigInvalid(f"{name} must be a positive integer, not {value!r}", operation="read_items")
        if self.quarantine is None and "quarantine" in self.failures.policies.values():
            raise ConfigInvalid("a policy is quarantine, and there is nowhere to write to", operation="read_items")

    @property
    def data_schema(self) -> pa.Schema:
        """The fields that come from files and their paths, filter columns included."""
        fields = [field for field in self.schema if not self._is_added(field.name)]
        names = {field.name for field in fields}
        more = [
            field for field in self.filter_schema or () if field.name not in names and not self._is_added(field.name)
        ]
        return pa.schema(fields + more)

    @property
    def known_data_schema(self) -> pa.Schema | None:
        """The fields of ``known_schema`` that come from files and their paths."""
        if self.known_schema is None:
            return None
        return pa.schema([field for field in self.known_schema if not self._is_added(field.name)])

    def url_of(self, key: str) -> str:
        """The URL of a file."""
        return f"{self.url.rstrip('/')}/{key}" if key else self.url

    def _is_added(self, name: str) -> bool:
        return name in self.metadata or (name == RESCUED_COLUMN and self.format.unknown_fields == "rescue")


# --- failures ---------------------------------------------------------------------------------------------------------

# The code of S3 for an object in an archive.
ARCHIVED = "InvalidObjectState"
# If this many first files of a task are all forbidden, the identity has no rights: no single file is to blame.
FORBIDDEN_MAX = 10

# Operations of the decoders of Parquet and Lance, where ``Unsupported`` is about the file and not about the store.
_DECODING = ("footer", "scan", "open")


def reason_of(error: BaseException) -> Reason | None:
    """The policy that applies to an error; ``None`` if the error concerns more than one file.

    A missing bucket is not a missing file, and a refusal of the keys themselves is of no single object.
    """
    if isinstance(error, ObjectChanged):
        return "missing" if isinstance(error.__cause__, NotFound) else "changed"
    if isinstance(error, ConditionNotMatch):
        return "changed"
    if isinstance(error, NotFound):
        return None if is_bucket_missing(error) else "missing"
    if isinstance(error, UntrustedMetadata):
        return "corrupt"
    if isinstance(error, Unsupported) and error.operation in _DECODING:
        return "corrupt"
    return "unreadable" if isinstance(error, PermissionDenied) and _is_of_one_object(error) else None


def _is_of_one_object(error: PermissionDenied) -> bool:
    """Whether a refusal may be of one object alone. Without a response, or of keys or clocks, it is of all."""
    code = str(error.context.get("code", ""))
    if code:
        return code in ("AccessDenied", ARCHIVED) or code.startswith("KMS.")
    return error.context.get("http_status") == 403 or error.context.get("errno") in ("EACCES", "EPERM")


class Failures:
    """The policies of a task, and the items that were left out."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._policies = task.failures.policies
        self._lines: list[str] = []
        self._forbidden = 0
        # Whether records of any item were given.
        self.has_read = False
        # Filled by the formats: the records of each item that were left out.
        self.bad_records: BadRecords | None = {} if task.failures.on_corrupt_record == "skip" else None

    @property
    def checks_first(self) -> bool:
        """Whether an item that is too large to be held back is decoded once without rows, before it is read."""
        return self._policies["corrupt"] != "fail"

    @property
    def is_strict(self) -> bool:
        """Whether each failure ends the batch, so that rows need not wait for the end of their item."""
        return all(policy == "fail" for policy in self._policies.values())

    def leave_out(self, item: FetchItem, error: BaseException) -> bool:
        """Record that the item is left out because of the error. ``False`` if the batch has to fail instead."""
        reason = reason_of(error)
        if reason is None or self._policies[reason] == "fail":
            return False
        if reason == "unreadable" and not self.has_read and getattr(error, "context", {}).get("code") != ARCHIVED:
            self._forbidden += 1
            if self._forbidden >= FORBIDDEN_MAX:
                error.add_note(f"The first {FORBIDDEN_MAX} files of the task are all forbidden: look at the identity.")
                return False
        url = self._task.url_of(item.file.key)
        logger.warning("%s is left out, on_%s=%s: %s", url, reason, self._policies[reason], error)
        if self._policies[reason] == "quarantine":
            self._lines.append(quarantine_line(url, item, reason, error))
        return True

    def explain(self, item: FetchItem, error: BaseException, *, is_half_taken: bool) -> None:
        """Add to an error which file it concerns, and why that file was not left out."""
        url = self._task.url_of(item.file.key)
        if isinstance(error, Error):
            error.add_context(operation="read_items", path=item.file.key, file=url)
        else:
            error.add_note(f"while {url} was read")
        if is_half_taken and not self.is_strict:
            error.add_note(
                "Rows of the file had been given already, so that it could not be left out any more: the rows of a file"
                " that decodes to more than half of bytes_in_flight are not held back until it has ended."
            )

    async def write_down(self) -> None:
        """Log the records that were left out, and pass lines of them and of files to ``task.quarantine``."""
        counts: dict[str, tuple[int, Exception]] = {}
        left_out = sorted((self.bad_records or {}).items(), key=lambda one: (one[0].file.key, one[0].start))
        for item, (count, error) in left_out:
            url = self._task.url_of(item.file.key)
            before, first = counts.get(url, (0, error))
            counts[url] = before + count, first
            self._lines.append(quarantine_line(url, item, "records", error, records=count))
        for url, (count, error) in counts.items():
            logger.warning("%s: %d record(s) left out, on_corrupt_record=skip; the first: %s", url, count, error)
        if self._lines and self._task.quarantine is not None:
            await self._task.quarantine(tuple(self._lines))


def quarantine_line(url: str, item: FetchItem, reason: str, error: BaseException, **more: int) -> str:
    """One JSON line, without a time, so that the same batch writes the same lines."""
    file = item.file
    facts = {
        "file": url,
        "key": file.key,
        "start": item.start,
        "end": item.end,
        "row_groups": item.row_groups,
        "size": file.size,
        "etag": file.etag,
        "version": file.version,
        "reason": reason,
        "error": f"{type(error).__name__}: {error}",
        **more,
    }
    return json.dumps(facts, ensure_ascii=False)


def quarantine_to(operator: Operator, path: str) -> Quarantine:
    """A ``Quarantine`` that writes the lines to one object, which replaces the object of an earlier run of the task."""

    async def write(lines: tuple[str, ...]) -> None:
        await operator.write(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))

    return write  # type: ignore[return-value]
