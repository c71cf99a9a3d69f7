"""What becomes of a change: work, or a note that it was seen. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from aioprefetch.errors import ObjectChanged
from aioprefetch.source.files import Change, SourceFile
from aioprefetch.source.known import EMPTIED_BYTES
from aioprefetch.source.options import Overwrites

# ``work``: read it. ``known``: remember the version, read nothing. ``gone``: remember that it is no longer there.
Verdict = Literal["work", "known", "gone"]


def judge(change: Change, overwrites: Overwrites, before: SourceFile | None) -> Verdict:
    """What to do about a change; ``before`` is the version known so far, where there is one.

    Empty objects and directory markers have no records. An empty object that is filled later had none either, so that
    its bytes are new whatever ``overwrites`` says, unless it had records before it was empty. A file whose key was seen
    to be gone is a new one (``comparison.kind_of``). Raises ``ObjectChanged`` under ``fail``.
    """
    if change.kind == "gone":
        return "gone"
    if change.kind == "returned":
        return "known"
    if change.kind == "overwritten" and (before is None or had_records(before)):
        if overwrites == "fail":
            raise _overwritten(change.file, before)
        if overwrites == "ignore":
            return "known"
    return "work" if has_records(change.file) else "known"


def has_records(file: SourceFile) -> bool:
    """Whether there may be something to read. Spark gives no row for an empty file either, of ``binaryFile`` too."""
    return not file.key.endswith("/") and file.size > 0


def had_records(before: SourceFile) -> bool:
    """Whether a known file had something to read, in the version that is known or in an earlier one."""
    return before.size == EMPTIED_BYTES or has_records(before)


def to_remember(change: Change, before: SourceFile | None) -> Change:
    """A change without work as it is to be known: of an empty version, whether an earlier one had records."""
    if change.file.size > 0:
        return change
    is_emptied = change.kind == "overwritten" and before is not None and had_records(before)
    return replace(change, file=replace(change.file, size=EMPTIED_BYTES if is_emptied else 0))


def _overwritten(file: SourceFile, before: SourceFile | None) -> ObjectChanged:
    was = None if before is None else before.etag
    return ObjectChanged(
        f"the object was overwritten after it had been planned (ETag {was!r}, now {file.etag!r}), and overwrites=fail."
        " Put the old one back, or choose overwrites=reread (its records come again) or ignore",
        expected_etag=was,
        actual_etag=file.etag,
        operation="plan_batch",
        path=file.key,
    )
