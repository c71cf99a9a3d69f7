"""What becomes of an item whose file is missing, changed or corrupt: it fails the batch, or is left out as a whole.

An item is left out whole or not at all, so that a batch that is run again gives the same rows. See ``ItemWindow`` for
how its rows are held back until it is certain.
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
)
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.source.files import FetchItem
from aioprefetch.source.options import OnFailure
from aioprefetch.source.reading.task import Quarantine, ReadTask

Reason = Literal["missing", "changed", "corrupt"]

# Operations of the decoders of Parquet and Lance: what they do not support is the file's fault, not the store's.
_DECODING = ("footer", "scan", "open")


def reason_of(error: BaseException) -> Reason | None:
    """Which of the three policies an error is one for; ``None`` for none: it concerns more than this file.

    A bucket that is missing is no missing file, and an archived object is there: both fail, and say what to do.
    """
    if isinstance(error, ObjectChanged):
        return "missing" if isinstance(error.__cause__, NotFound) else "changed"
    if isinstance(error, ConditionNotMatch):
        return "changed"
    if isinstance(error, NotFound):
        return None if error.context.get("code") == "NoSuchBucket" else "missing"
    if isinstance(error, UntrustedMetadata):
        return "corrupt"
    if isinstance(error, Unsupported) and error.operation in _DECODING:
        return "corrupt"
    return None


class Failures:
    """The items that were left out so far."""

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
        """Whether every failure ends the batch, so that no row need wait for its item's end."""
        return all(policy == "fail" for policy in self._policies.values())

    def leave_out(self, item: FetchItem, error: BaseException) -> bool:
        """Whether the item is left out because of the error, which is noted then. Otherwise the batch fails."""
        reason = reason_of(error)
        if reason is None or self._policies[reason] == "fail":
            return False
        url = self._task.url_of(item.file.key)
        logger.warning("%s is left out, on_%s=%s: %s", url, reason, self._policies[reason], error)
        if self._policies[reason] == "quarantine":
            self._lines.append(_line(url, item, reason, error))
        return True

    def explain(self, item: FetchItem, error: BaseException, *, is_half_taken: bool) -> None:
        """Say in an error which file it is about, and why that was not left out."""
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
        """Hand over what was quarantined, if anything was."""
        if self._lines and self._task.quarantine is not None:
            await self._task.quarantine(tuple(self._lines))


def _line(url: str, item: FetchItem, reason: Reason, error: BaseException) -> str:
    """Without a time: the same batch writes the same lines."""
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
    """Writes the lines to one object in place of what a former run of the same task left there."""

    async def write(lines: tuple[str, ...]) -> None:
        await operator.write(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass"))

    return write  # type: ignore[return-value]
