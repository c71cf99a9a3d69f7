"""The output of commands: lines, objects for programs, errors; tables and progress, drawn by rich on a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from aioprefetch.accessor.http_headers import described_by
from aioprefetch.display import bytes_text
from aioprefetch.errors import Error, printable, redact
from aioprefetch.transfer.sides import Side
from aioprefetch.values import Entry, Metadata

# The library's errors name arguments of Python: the words of the command line for them.
_TYPE = r"(\w+(?:[\[(<][^\])>]*[\])>])?)"
_COMMAND_LINE_WORDS = (
    (r"and overwrite=False", "and -n replaces nothing"),
    (r"without if_not_exists \(mode 'x' of a file\) it would be replaced", "-n replaces nothing"),
    (r"\ballow_http=True", "-o allow_http=true"),
    (r"\bdelete_max=", "--delete-max "),
    (r"\bdelete_extra\b", "--delete"),
    (r"\bprofile= and", "--profile and"),
    (
        rf"filters=\(([^()]+?) (?:[=!<>]=|<|>) ([^()]+)\): Function '\w+' has no kernel.* \({_TYPE}, {_TYPE}\)",
        r"--filter: the column '\1' is \3, and \2 is \4",
    ),
    (
        rf"(?s:filters=.*)(?:has no kernel.* \(|match type of values set: ){_TYPE}(?:, | vs ){_TYPE}\)?",
        r"--filter compares a column of \1 with a value of \2",
    ),
)

_DOCTOR = "aioprefetch doctor PLACE shows what was found and what the store does"
_HINTS = {
    "ClockSkew": "set the clock of this machine",
    "CredentialsExpired": "renew the credentials",
    "PermissionDenied": _DOCTOR,
    "TimedOut": _DOCTOR,
    "Unavailable": _DOCTOR,
}


def message_of(error: Error) -> str:
    """The message of an error in the words of the command line, on one line and without secrets."""
    message = error.message
    for pattern, words in _COMMAND_LINE_WORDS:
        message = re.sub(pattern, words, message)
    return printable(redact(message))


def size_text(count: int, *, is_human: bool) -> str:
    """A number of bytes: ``1.5 MiB`` for people, the number itself otherwise."""
    return bytes_text(count) if is_human else str(count)


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line."""
    click.echo(json_text(value))


def json_text(value: Mapping[str, Any]) -> str:
    """An object as strict JSON, which can be encoded: numbers that are not finite are ``null``."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=plain, allow_nan=False)
    except ValueError:
        value = _with_finite_numbers(value)
        text = json.dumps(value, ensure_ascii=False, default=plain, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # The name of a file that is not a text.
        text = json.dumps(value, default=plain, allow_nan=False)
    return text


def _with_finite_numbers(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _with_finite_numbers(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite_numbers(part) for part in value]
    return value


def plain(value: object) -> object:
    """A value that JSON lacks: bytes as hexadecimal digits, all others as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def note(text: str) -> None:
    """A line on standard error."""
    click.echo(f"aioprefetch: {text}", err=True)


def note_nothing(side: Side) -> None:
    """Say on standard error that a place has nothing."""
    path, hint = side.label.removeprefix("file://"), ""
    if path != side.label and not path.startswith("/"):
        hint = f"file:///{path} has three slashes"
    note(f"nothing here: {side.label}{f'; hint: {hint}' if hint else ''}")


def note_failure(error: BaseException) -> None:
    """A failure on one line of standard error, or with ``--debug`` its traceback."""
    if click.get_current_context().meta.get("aioprefetch.debug"):
        click.echo(redact("".join(traceback.format_exception(error))), err=True, nl=False)
    else:
        note(line_of(error))


def line_of(error: BaseException) -> str:
    """A failure on one line: where, what, and what to do."""
    if not isinstance(error, Error):
        if isinstance(error, OSError) and error.strerror:
            where = printable(redact(str(error.filename))) if error.filename else ""
            return f"{where!r}: {error.strerror}" if where else error.strerror
        text = printable(redact(" ".join(str(error).split())))
        return f"{type(error).__name__}: {text} (--debug shows where)"
    store = str(error.context.get("service", ""))
    path = printable(redact(error.path))
    where = f"{path!r} in {store}" if path and store else store or (repr(path) if path else "")
    if not store and (target := error.context.get("target")) and target != error.path:
        where += f" to {printable(redact(str(target)))!r}"  # Either may be what fails.
    hint = error.context.get("hint") or _HINTS.get(error.kind, "")
    if error.kind == "Unsupported" and error.operation == "list" and store.startswith("http"):
        hint = "over https give the URL of a file: cat, stat, cp"
    return (
        f"{f'{where}: ' if where else ''}{message_of(error)} ({error.kind})"
        f"{f'; hint: {redact(str(hint))}' if hint else ''}"
    )


def remark(text: str) -> None:
    """A line on standard error for a person: nothing where that is not a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def fields_of(side: Side, entry: Entry | Metadata, stem: str | None = None) -> dict[str, Any]:
    """An object or a directory for JSON: all known fields. ``stem`` is the URL it is below, if not the store's."""
    stem = f"{side.operator.info.url.rstrip('/')}/" if stem is None else stem
    fields: dict[str, Any] = {
        "url": f"{stem}{'' if entry.path == '/' else entry.path}",
        "path": entry.path,
        "kind": entry.kind,
        "size": entry.size,
        "etag": entry.etag,
        "version": entry.version,
        "last_modified": entry.last_modified and entry.last_modified.isoformat(),
    }
    if isinstance(entry, Metadata):
        fields |= described_by(entry)
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def path_text(path: str) -> str:
    """A path on one line."""
    return printable(path)


# --- tables and progress ----------------------------------------------------------------------------------------------

Advance = Callable[[], None]

# A plain log gets a line after each of this many parts of the work.
PLAIN_STEPS = 5


class Display:
    """The output of a command that takes a while: lines, progress, and tables. This one shows nothing.

    Texts may come from an untrusted file: control characters are escaped.
    """

    def say(self, text: str) -> None:
        """A line of text."""

    @contextlib.contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        """Show the progress of ``total`` steps; call what the context yields after each step."""
        yield lambda: None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> None:
        """A table whose first columns are text and whose others are numbers."""


SilentDisplay = Display  # For output that a program reads.


class PlainDisplay(Display):
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


class RichDisplay(Display):
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
