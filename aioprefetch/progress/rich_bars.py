"""Progress by rich: a line for each transfer, all of them in one display."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from aioprefetch.display import bytes_text
from aioprefetch.verbs.progress import CopyProgress, ProgressDisplay, checked_options, end_of, objects_of, short_name


class RichOptions(TypedDict, total=False):
    """Options of ``rich.progress.Progress``, which documents them."""

    console: Console | None
    transient: bool
    auto_refresh: bool
    refresh_per_second: float
    expand: bool
    disable: bool


def rich(**options: Unpack[RichOptions]) -> ProgressDisplay:
    """A display for ``on_progress`` by rich, which shows bytes, rate and time left of each transfer.

    ``options`` as for ``rich.progress.Progress``. One object serves any number of transfers, one after the other
    and at once. ``MissingDependency`` without rich, ``TypeError`` for another option.
    """
    return RichDisplay(checked_options(options, RichOptions.__annotations__, "rich"))


class RichDisplay(ProgressDisplay):
    """Lines of rich: drawn from the first call on until no call is left."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = options
        self._progress: Progress | None = None
        self._bars = 0

    def __repr__(self) -> str:
        return "<aioprefetch.progress.rich>"

    def open(self, name: str) -> RichBar:
        """Open the line of a call."""
        with self._lock:
            if self._progress is None:
                self._progress = _progress(self._options)
                self._progress.start()
            self._bars += 1
            return RichBar(self, self._progress, short_name(name))

    def leave(self) -> None:
        """End the drawing with the last call."""
        with self._lock:
            self._bars -= 1
            if not self._bars and self._progress is not None:
                progress, self._progress = self._progress, None
                progress.stop()


class RichBar:
    """The line of one call."""

    def __init__(self, display: RichDisplay, progress: Progress, name: str) -> None:
        self._display = display
        self._progress = progress
        self._task: TaskID = progress.add_task(name, total=None, note="")
        self._objects = ""
        self._bytes = 0

    def update(self, progress: CopyProgress) -> None:
        """Show how far the call is."""
        self._objects, self._bytes = objects_of(progress), progress.bytes
        self._progress.update(self._task, completed=progress.bytes, total=progress.total, note=self._objects)

    def close(self, error: BaseException | None) -> None:
        """Leave the last state, and how the call ended if that was not well."""
        if error is None:
            self._progress.update(self._task, total=self._bytes)
        else:
            note = ", ".join(filter(None, (self._objects, end_of(error))))
            self._progress.update(self._task, note=note)
        self._progress.stop_task(self._task)
        self._display.leave()


class RateColumn(ProgressColumn):
    """Bytes in a second, in the units of the bytes beside it."""

    def render(self, task: Task) -> Text:
        """The rate of the last seconds, and of all the time at the end."""
        average = task.completed / task.elapsed if task.elapsed else 0.0
        rate = average if task.stop_time is not None else task.speed or average
        return Text(f"{bytes_text(int(rate))}/s", no_wrap=True)


def _progress(options: dict[str, Any]) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=16),
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
        RateColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        **options,
    )
