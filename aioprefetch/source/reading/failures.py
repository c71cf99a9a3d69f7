"""Policies for items whose file is missing, changed or corrupt: fail the batch, or leave the item out.

An item is left out as a whole, so that a batch that runs again has the same rows. ``ItemWindow`` holds its rows back
until the item has ended.
"""

from __future__ import annotations

import json
from typing import Literal

from aioprefetch.errors import (
    ConditionNotMatch,
    Error,
    NotFound,
    ObjectChanged,
    Unsupported,
    UntrustedMetadata,
    is_bucket_missing,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.files import FetchItem
from aioprefetch.source.options import OnFailure
from aioprefetch.source.reading.task import Quarantine, ReadTask

Reason = Literal["missing", "changed", "corrupt"]

# Operations of the decoders of Parquet and Lance, where ``Unsupported`` is about the file and not about the store.
_DECODING = ("footer", "scan", "open")


def reason_of(error: BaseException) -> Reason | None:
    """The policy that applies to an error; ``None`` if the error concerns more than one file.

    A missing bucket is not a missing file, and an archived object exists: both fail with advice.
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
    return None


class Failures:
    """The policies of a task, and the items that were left out."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self._policies: dict[Reason, OnFailure] = {
            "missing": task.failures.on_missing,
            "changed": task.failures.on_changed,
            "corrupt": task.failures.on_corrupt,
        }
        self._lines: list[str] = []

    @property
    def is_strict(self) -> bool:
        """Whether each failure ends the batch, so that rows need not wait for the end of their item."""
        return all(policy == "fail" for policy in self._policies.values())

    def leave_out(self, item: FetchItem, error: BaseException) -> bool:
        """Record that the item is left out because of the error. ``False`` if the batch has to fail instead."""
        reason = reason_of(error)
        if reason is None or self._policies[reason] == "fail":
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
                "Rows of the file had been given already, so that it could not be left out any more: of a larger file"
                " than half of bytes_in_flight not all rows are held back until it is known to be good."
            )

    async def write_down(self) -> None:
        """Pass the lines of quarantined files to ``task.quarantine``, if there are any."""
        if self._lines and self._task.quarantine is not None:
            await self._task.quarantine(tuple(self._lines))


def quarantine_line(url: str, item: FetchItem, reason: Reason, error: BaseException) -> str:
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
        "error": str(error),
    }
    return json.dumps(facts, ensure_ascii=False)


def quarantine_to(operator: Operator, path: str) -> Quarantine:
    """A ``Quarantine`` that writes the lines to one object, which replaces that of an earlier run of the task."""

    async def write(lines: tuple[str, ...]) -> None:
        await operator.write(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))

    return write  # type: ignore[return-value]
