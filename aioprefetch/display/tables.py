"""Tables for a notebook: counts with their units (as text too), the entries of a listing, the recipe of an operator.

They are put together from pieces of HTML and SVG: escaped texts, tables, frames. Colours come from the notebook's
theme, light or dark.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple, Protocol

from aioprefetch.display import bytes_text, count_text, seconds_text
from aioprefetch.errors import excerpt, printable, redact, shortened
from aioprefetch.values import Entry

# The longest text of a cell or a title.
TEXT_CHARACTERS_MAX = 200

# JupyterLab and VS Code set their variables; elsewhere these colours can be read on white and on black.
MEMORY = "var(--jp-success-color1,var(--vscode-charts-green,#3f9142))"
UNREAD = "var(--jp-warn-color1,var(--vscode-charts-yellow,#b9821b))"
FETCHING = "var(--jp-brand-color1,var(--vscode-charts-blue,#2f81d6))"
DISK = "var(--jp-accent-color1,var(--vscode-charts-purple,#9a63c9))"
WASTED = "var(--jp-error-color1,var(--vscode-charts-red,#d64545))"
LINE = "var(--jp-border-color1,rgba(128,128,128,.5))"

_CELL = "padding:.15em .7em .15em 0;text-align:"


def text(value: object, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """A value as text that may stand in HTML, in an attribute too: printable, escaped, of a bounded length."""
    return escape(shortened(printable(str(value)[: characters_max + 1]), characters_max))


def frame(title: str, *parts: str) -> str:
    """One output: its title and what is below it."""
    return (
        '<div class="aioprefetch" style="color:inherit;font-size:inherit;line-height:1.4;overflow-x:auto">'
        f"<div><strong>{text(title)}</strong></div>{''.join(parts)}</div>"
    )


def note(value: object) -> str:
    """A line of text below a title or a table."""
    return f'<div style="opacity:.75">{text(value, 2 * TEXT_CHARACTERS_MAX)}</div>'


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (), caption: str = ""
) -> str:
    """A table whose cells are text; the first cell of a row is its heading, columns in ``numbers`` go to the right."""
    return grouped_table(headings, {"": rows}, numbers=numbers, caption=caption)


def grouped_table(
    headings: Sequence[str],
    groups: Mapping[str, Iterable[Sequence[str]]],
    *,
    numbers: Sequence[int] = (),
    caption: str = "",
) -> str:
    """``table`` with its rows in groups that have a title."""
    styles = [
        f"{_CELL}{'right;white-space:nowrap' if column in numbers else 'left'}" for column in range(len(headings))
    ]
    head = "".join(
        f'<th scope="col" style="{style}">{text(heading)}</th>' for heading, style in zip(headings, styles, strict=True)
    )
    bodies = []
    for title, rows in groups.items():
        heading = f'<tr><th scope="rowgroup" colspan="{len(headings)}" style="{_CELL}left">{text(title)}</th></tr>'
        bodies.append(f"<tbody>{heading if title else ''}{''.join(_row(row, styles) for row in rows)}</tbody>")
    titled = f'<caption style="text-align:left;color:inherit;opacity:.75">{text(caption)}</caption>' if caption else ""
    return (
        '<table style="border-collapse:collapse;color:inherit;font-size:inherit;margin:.3em 0">'
        f"{titled}<thead><tr>{head}</tr></thead>{''.join(bodies)}</table>"
    )


def _row(row: Sequence[str], styles: Sequence[str]) -> str:
    first, *others = zip(row, styles, strict=True)
    cells = "".join(f'<td style="{style}">{text(cell)}</td>' for cell, style in others)
    return f'<tr><th scope="row" style="{first[1]};font-weight:normal">{text(first[0])}</th>{cells}</tr>'


def folded(summary: str, content: str) -> str:
    """Content behind a line that opens it."""
    return f'<details><summary style="cursor:pointer">{text(summary)}</summary>{content}</details>'


def picture(width: int, height: int, label: str, *parts: str) -> str:
    """An SVG picture that is as wide as the page has room, with a label for those who do not see it."""
    shown = text(label, 2 * TEXT_CHARACTERS_MAX)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{shown}" viewBox="0 0 {width} {height}"'
        f' style="display:block;width:100%;max-width:{width}px;height:auto;margin:.3em 0;font:11px sans-serif">'
        f"<title>{shown}</title>{''.join(parts)}</svg>"
    )


def box(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    """A filled rectangle."""
    shape = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" style="fill:{colour}"'
    return f"{shape}><title>{text(title)}</title></rect>" if title else f"{shape}/>"


def label(x: float, y: float, value: object, *, anchor: str = "start") -> str:
    """A short text within a picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="fill:currentColor">{text(value, 80)}</text>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Colours and what they mean."""
    items = "".join(
        '<span style="margin-right:1.2em;white-space:nowrap">'
        f'<span aria-hidden="true" style="display:inline-block;width:.8em;height:.8em;background:{colour}"></span>'
        f" {text(meaning)}</span>"
        for colour, meaning in entries
    )
    return f"<div>{items}</div>"


_SIZES = ("size", "bytes", "bytes_skipped")


def facts_html(title: str, facts: Mapping[str, object], *parts: str) -> str:
    """Names and values; sizes have their unit, and what is empty is left out."""
    rows = [
        (
            name.replace("_", " "),
            bytes_text(value) if name in _SIZES and isinstance(value, int) else redact(str(value)),
        )
        for name, value in facts.items()
        if value not in (None, "", 0) and value != {}
    ]
    return frame(title, table(("", ""), rows), *parts)


# --- counts -----------------------------------------------------------------------------------------------------------

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
            r"action_|object_|transport_|multipart_|uploads_|list_|stream_aborted|stream_drained|stream_write_|"
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

    ``is_difference``: counts between two moments: the shortest and the longest duration are not known then.
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
    """The failures, and the durations of successes."""
    failures, mean, longest = (shown.counts.get(f"{name}.{part}", 0) for part in ("failures", "mean", "max"))
    parts = [f"{count_text(failures)} failed"] if failures else []
    if mean or longest:
        bound = "at most " if shown.is_difference else "longest "
        parts += [f"mean {seconds_text(mean / 1e6)}", f"{bound}{seconds_text(longest / 1e6)}"]
    return ", ".join(parts)


# --- entries of a listing ---------------------------------------------------------------------------------------------

ROWS_MAX = 30


def entries_html(title: str, entries: Sequence[Entry], remark: str = "") -> str:
    """The first and the last of the entries, how many there are, and their bytes in all."""
    shown: Sequence[Entry] = entries
    left_out = max(0, len(entries) - ROWS_MAX)
    if left_out:
        shown = [*entries[: ROWS_MAX - ROWS_MAX // 6], *entries[-(ROWS_MAX // 6) :]]
    has_versions = any(entry.version is not None for entry in shown)
    headings = ["path", "size", "last modified", "etag", *(["version"] if has_versions else [])]
    rows = [_entry_row(entry, has_versions=has_versions) for entry in shown]
    if left_out:
        gap = [f"… {count_text(left_out)} more entries …", *[""] * (len(headings) - 1)]
        rows.insert(ROWS_MAX - ROWS_MAX // 6, gap)
    total = sum(entry.size or 0 for entry in entries)
    counted = f"{count_text(len(entries))} {'entry' if len(entries) == 1 else 'entries'}, {bytes_text(total)}"
    parts = [table(headings, rows, numbers=(1,))] if entries else []
    return frame(title, *parts, note(remark or counted))


def _entry_row(entry: Entry, *, has_versions: bool) -> list[str]:
    size = "" if entry.size is None else bytes_text(entry.size)
    if entry.is_directory:
        size = "directory"
    elif entry.is_delete_marker:
        size = "deleted"
    time = "" if entry.last_modified is None else entry.last_modified.isoformat(sep=" ", timespec="seconds")
    row = [entry.path, size, time, entry.etag or ""]
    return [*row, entry.version or ""] if has_versions else row


# --- the recipe of an operator ----------------------------------------------------------------------------------------


class ShownCounts(Protocol):
    """A snapshot of statistics."""

    def values(self) -> Iterable[int]:
        """The counts."""
        ...

    def _repr_html_(self) -> str: ...


def operator_html(
    location: str, service: object, layers: Sequence[object], options: object, statistics: ShownCounts
) -> str:
    """An operator. ``layers`` are listed as requests meet them, the outermost first.

    Of service, layers and options it has what their reprs have, which hold no secret. ``statistics`` are put below if
    any of them is not zero.
    """
    rows = [
        ("store", redact(location)),
        ("service", _part_text(service)),
        *((f"layer {number}", _part_text(layer)) for number, layer in enumerate(layers, 1)),
        ("options", ", ".join(_different(options)) or "the defaults"),
    ]
    counted = folded("statistics", statistics._repr_html_()) if any(statistics.values()) else ""
    return frame("Operator", table(("", "what differs from the defaults"), rows), counted)


def _part_text(recipe: object) -> str:
    """The type of a part with its options, or the beginning of its own repr."""
    whole, name = repr(recipe), type(recipe).__name__
    if type(recipe).__repr__ is object.__repr__:
        return f"{name}()"
    fields = dataclasses.fields(recipe) if dataclasses.is_dataclass(recipe) else ()
    if not fields or any(f"{field.name}=" not in whole for field in fields if field.repr):
        return excerpt(whole)  # It has a repr of its own.
    return f"{name}({', '.join(_different(recipe))})"


def _different(recipe: object) -> Iterator[str]:
    """``name=value`` of each field that is not its default, and that the object's own repr shows so."""
    if not dataclasses.is_dataclass(recipe):
        return
    whole = repr(recipe)
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name, field.default)
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        shown = f"{field.name}={value!r}"
        if value is not default and value != default and shown in whole:
            if field.name.endswith("_bytes") and isinstance(value, int):
                shown = f"{field.name}={bytes_text(value)}"
            yield excerpt(shown)
