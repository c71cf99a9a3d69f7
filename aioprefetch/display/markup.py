"""Pieces of HTML and SVG: escaped texts, tables, frames. Colours are those of the notebook's theme, light or dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from aioprefetch.errors import printable, shortened

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
