"""Tables and progress on standard output: drawn by rich on a terminal, in plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from aioprefetch.errors import printable

Advance = Callable[[], None]

# A plain log gets a line after each of this many parts of the work.
PLAIN_STEPS = 5


class Display(Protocol):
    """The output of a command that takes a while: lines, progress, and tables.

    Texts may be those of a file that someone else wrote: control characters are escaped.
    """

    def say(self, text: str) -> None:
        """A line of text."""

    def progress(self, title: str, total: int) -> contextlib.AbstractContextManager[Advance]:
        """Show that work of ``total`` steps goes on; what the context yields is called after each step."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> None:
        """A table whose first columns are text and whose others are numbers."""


class SilentDisplay:
    """Shows nothing, for output that a program reads."""

    def say(self, text: str) -> None:
        """Show nothing."""

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Show nothing."""
        yield lambda: None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> None:
        """Show nothing."""


class PlainDisplay:
    """Lines of text on standard output."""

    def __init__(self) -> None:
        self._has_lines = False

    def say(self, text: str) -> None:
        """A line of text."""
        self._has_lines = True
        print(printable(text), flush=True)

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """A line now and then."""
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            if done * PLAIN_STEPS // total > (done - 1) * PLAIN_STEPS // total:
                self.say(f"{title}: {done} of {total} row groups")

        yield advance

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> None:
        """Columns of equal width, apart from the lines before."""
        columns, rows = _printable_row(columns), [_printable_row(row) for row in rows]
        widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
        if self._has_lines:
            self.say("")
        for row in (columns, ["-" * width for width in widths], *rows):
            cells = (
                cell.ljust(width) if index < text_columns else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            self.say("  ".join(cells).rstrip())


class RichDisplay:
    """A progress bar and a table drawn by rich."""

    def __init__(self, console: Any) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """A line of text."""
        self._console.print(printable(text), markup=False, highlight=False)

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """A bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> None:
        """A table with borders."""
        from rich.table import Table
        from rich.text import Text

        table = Table()  # Cells may hold brackets, which are not markup.
        for index, column in enumerate(columns):
            table.add_column(Text(printable(column)), justify="left" if index < text_columns else "right")
        for row in rows:
            table.add_row(*map(Text, _printable_row(row)))
        self._console.print(table)


def _printable_row(cells: Sequence[str]) -> list[str]:
    return [printable(cell) for cell in cells]


def choose_display(*, silent: bool) -> Display:
    """Rich where it is installed and the output is a terminal, plain lines otherwise."""
    if silent:
        return SilentDisplay()
    if not sys.stdout.isatty():
        return PlainDisplay()
    try:
        from rich.console import Console
    except ImportError:
        return PlainDisplay()
    return RichDisplay(Console())
