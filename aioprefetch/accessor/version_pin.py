"""The version of an object that a read holds to, and the error that says that the store has another one.

A request carries the pinned ETag as ``If-Match`` and the pinned version id. Some stores ignore conditions, and a weak
ETag may not be sent as one, so every response is compared with the pin too, before its bytes count.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.errors import Error, NotFound, ObjectChanged
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import Range
from aioprefetch.runtime.statistics import Counters
from aioprefetch.values import ReadHead


@dataclass(frozen=True, slots=True)
class VersionPin:
    """One version of one object: its unquoted ETag, its version id and its size in bytes.

    An ETag of ``None`` means that the store sends no ETag for this object: a response with an ETag is then of another
    version. A size of ``None`` is unknown and is not compared. Errors name ``path`` and ``operation`` and end with
    ``advice``. ``counters`` counts each mismatch as ``stream_read_version_mismatches``.
    """

    etag: str | None
    version: str | None = None
    size: int | None = None
    _: KW_ONLY
    path: str = ""
    operation: str = "read"
    advice: str = ""
    counters: Counters | None = None

    @property
    def is_strong(self) -> bool:
        """Whether an equal pin means equal bytes: a weak ETag may stand for two that differ (RFC 9110, 8.8.1)."""
        return is_strong(self.etag, self.version)

    def check(self, head: ReadHead, due: Range | None = None) -> None:
        """Raise ``ObjectChanged`` unless a response is of this version and holds the range ``due``, if one is named."""
        if (
            head.etag == self.etag
            and (self.size is None or head.total is None or head.total == self.size)
            and (due is None or (head.start, head.end) == due)
        ):
            return
        wrong = "" if due is None else f"[{head.start}, {head.end}) of "
        right = "" if due is None else f"[{due[0]}, {due[1]}) of "
        raise self.changed(
            head.etag,
            f"the object was overwritten after its version was pinned: the response holds {wrong}an object of"
            f" {head.total} bytes, expected was {right}one of {self.size}",
        )

    def explain(
        self, error: Error, *, actual_etag: object = None, message: str | None = None, **fields: Any
    ) -> ObjectChanged:
        """The refusal of a request for the pinned version, as the ``ObjectChanged`` that it means.

        ``error`` is a ``ConditionNotMatch``, ``NotFound`` or ``RangeNotSatisfied``: no request reaches beyond the
        pinned size, so a refused range says that the object is shorter now. ``actual_etag`` is the store's ETag if the
        error does not name it. ``message`` replaces the usual text; ``fields`` are further fields of the error.
        """
        actual = error.context.get("etag")
        what = "deleted" if isinstance(error, NotFound) else "overwritten"
        return self.changed(
            actual_etag if actual is None else actual,
            message or f"the object was {what} after its version was pinned",
            **fields,
        )

    def changed(self, actual_etag: object, message: str, **fields: Any) -> ObjectChanged:
        """The error for an object that is not this version any more; the mismatch is counted."""
        if self.counters is not None:
            self.counters["stream_read_version_mismatches"] += 1
        return ObjectChanged(
            message + self.advice,
            expected_etag=self.etag,
            actual_etag=None if actual_etag is None else str(actual_etag),
            operation=self.operation,
            path=self.path,
            **fields,
        )


def is_strong(etag: str | None, version: str | None) -> bool:
    """Whether equal values mean equal bytes; see ``VersionPin.is_strong``."""
    return bool(version) or (etag is not None and not is_weak(etag))
