"""Counts with their units, in groups: as text, and as the table of a notebook."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from aioprefetch.display.markup import frame, grouped_table, note
from aioprefetch.display.units import bytes_text, count_text, seconds_text

# The groups in their order, and the names in each: the first pattern that matches decides.
_GROUPS = tuple(
    (title, re.compile(pattern))
    for title, pattern in (
        ("Disk", r"stream_file_cache_|stream_read_block_disk_hits|hits_disk"),
        ("Prefetch", r"prefetch_|stream_read_prefetch_"),
        ("Scans", r"scan_"),
        ("Retries", r"retries|throttled|hedges"),
        ("Cache layer", r"cache_"),
        (
            "Requests",
            r"action_|object_|transport_|multipart_|list_|stream_aborted|stream_drained|stream_write_|"
            r"stream_read_total_bytes|stream_read_bytes_discarded|request",
        ),
        ("Blocks", r"stream_read_block_|hits_|demand_wait_|memory_|stream_evict_"),
        ("Reads", r"stream_"),
    )
)
_OTHER, _NOW = "Other", "Now"
_ORDER = ("Reads", "Blocks", "Requests", "Prefetch", "Scans", "Retries", "Disk", "Cache layer", _OTHER, _NOW)
# Gauges of bytes whose name does not say so.
_BYTES = frozenset({"stream_read_active_memory_in_use"})


class Counts(NamedTuple):
    """Counts by name, what the names mean, and which of them are durations (with ``.mean`` and so on) and gauges.

    ``is_difference``: counts between two moments, of which the shortest and the longest duration are not known.
    """

    counts: Mapping[str, int]
    meanings: Mapping[str, str]
    durations: Collection[str]
    gauges: Collection[str]
    is_difference: bool = False


def value_text(name: str, count: int) -> str:
    """A count with the unit that its name tells: bytes, microseconds, or a number."""
    if name.endswith("_microseconds"):
        return seconds_text(count / 1e6)
    return bytes_text(count) if "bytes" in name or name in _BYTES else count_text(count)


def statistics_text(title: str, shown: Counts) -> str:
    """The counts that are not zero, a line for each, below the names of their groups."""
    groups = _grouped(shown)
    what = " between two moments" if shown.is_difference else ""
    if not groups:
        return f"<{title}{what}: nothing was counted>"
    width = max(len(name) for rows in groups.values() for name, _, _ in rows)
    lines = [f"<{title}{what}"]
    for group, rows in groups.items():
        lines.append(f"  {group}")
        lines += [f"    {name:<{width}}  {', '.join(filter(None, (value, times)))}" for name, value, times in rows]
    return "\n".join(lines) + ">"


def statistics_html(title: str, shown: Counts) -> str:
    """The counts that are not zero, a table in groups, with the meaning of each name."""
    groups = _grouped(shown)
    what = ", between two moments" if shown.is_difference else ""
    if not groups:
        return frame(f"{title}{what}", note("nothing was counted"))
    rows = {
        group: [(name, value, times, shown.meanings.get(name, "")) for name, value, times in counted]
        for group, counted in groups.items()
    }
    return frame(f"{title}{what}", grouped_table(("name", "value", "durations", "meaning"), rows, numbers=(1,)))


def _grouped(shown: Counts) -> dict[str, list[tuple[str, str, str]]]:
    """Name, value and durations of each count that is not zero, by group."""
    groups: dict[str, list[tuple[str, str, str]]] = {group: [] for group in _ORDER}
    for name, count in shown.counts.items():
        if "." in name:
            continue
        times = _times(name, shown) if name in shown.durations else ""
        if count or times:
            groups[_group_of(name, shown.gauges)].append((name, value_text(name, count), times))
    return {group: rows for group, rows in groups.items() if rows}


def _group_of(name: str, gauges: Collection[str]) -> str:
    if name in gauges:
        return _NOW
    return next((title for title, pattern in _GROUPS if pattern.match(name)), _OTHER)


def _times(name: str, shown: Counts) -> str:
    """The failures and the durations of those that ended well."""
    failures, mean, longest = (shown.counts.get(f"{name}.{part}", 0) for part in ("failures", "mean", "max"))
    parts = [f"{count_text(failures)} failed"] if failures else []
    if mean or longest:
        bound = "at most " if shown.is_difference else "longest "
        parts += [f"mean {seconds_text(mean / 1e6)}", f"{bound}{seconds_text(longest / 1e6)}"]
    return ", ".join(parts)
