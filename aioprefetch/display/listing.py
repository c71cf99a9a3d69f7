"""Entries of a listing as a table of a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from aioprefetch.display.markup import frame, note, table
from aioprefetch.display.units import bytes_text, count_text

ROWS_MAX = 30


class ListedEntry(Protocol):
    """An entry of a listing."""

    path: str
    size: int | None
    etag: str | None
    version: str | None
    last_modified: datetime | None
    is_delete_marker: bool

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        ...


def entries_html(title: str, entries: Sequence[ListedEntry], remark: str = "") -> str:
    """The first and the last of the entries, how many there are, and their bytes in all."""
    shown: Sequence[ListedEntry] = entries
    left_out = max(0, len(entries) - ROWS_MAX)
    if left_out:
        shown = [*entries[: ROWS_MAX - ROWS_MAX // 6], *entries[-(ROWS_MAX // 6) :]]
    has_versions = any(entry.version is not None for entry in shown)
    headings = ["path", "size", "last modified", "etag", *(["version"] if has_versions else [])]
    rows = [_row(entry, has_versions=has_versions) for entry in shown]
    if left_out:
        gap = [f"… {count_text(left_out)} more entries …", *[""] * (len(headings) - 1)]
        rows.insert(ROWS_MAX - ROWS_MAX // 6, gap)
    total = sum(entry.size or 0 for entry in entries)
    counted = f"{count_text(len(entries))} {'entry' if len(entries) == 1 else 'entries'}, {bytes_text(total)}"
    parts = [table(headings, rows, numbers=(1,))] if entries else []
    return frame(title, *parts, note(remark or counted))


def _row(entry: ListedEntry, *, has_versions: bool) -> list[str]:
    size = "" if entry.size is None else bytes_text(entry.size)
    if entry.is_directory:
        size = "directory"
    elif entry.is_delete_marker:
        size = "deleted"
    time = "" if entry.last_modified is None else entry.last_modified.isoformat(sep=" ", timespec="seconds")
    row = [entry.path, size, time, entry.etag or ""]
    return [*row, entry.version or ""] if has_versions else row
