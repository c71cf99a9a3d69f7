"""What the demo shows: progress while it reads, and a table at the end. With rich on a terminal, else plain lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

Advance = Callable[[], None]

# A plain log gets a line after each of this many parts of the work.
PLAIN_STEPS = 5


class Display(Protocol):
    """Where the demo writes to."""

    def say(self, text: str) -> None:
        """A line of text."""

    def progress(self, title: str, total: int) -> contextlib.AbstractContextManager[Advance]:
        """Show that work of ``total`` steps goes on; what the context yields is called after each step."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table whose first column is text and whose others are numbers."""


class SilentDisplay:
    """Shows nothing, for output that a program reads."""

    def say(self, text: str) -> None:
        """Show nothing."""

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Show nothing."""
        yield lambda: None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show nothing."""


class PlainDisplay:
    """Lines of text on standard output."""

    def say(self, text: str) -> None:
        """A line of text."""
        print(text, flush=True)

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

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns of equal width."""
        widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
        self.say("")
        for row in (columns, ["-" * width for width in widths], *rows):
            first, *numbers = (
                cell.rjust(width) if index else cell.ljust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            self.say("  ".join((first, *numbers)).rstrip())


class RichDisplay:
    """A progress bar and a table drawn by rich."""

    def __init__(self, console: Any) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """A line of text."""
        self._console.print(text, markup=False, highlight=False)

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """A bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task(title, total=total)
            yield lambda: bar.advance(task)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table with borders."""
        from rich.table import Table

        table = Table()
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)


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
