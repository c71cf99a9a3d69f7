"""Progress by tqdm: a bar for each transfer, in a terminal or a notebook."""

from __future__ import annotations

from typing import Any, TextIO, TypedDict, Unpack

from tqdm.auto import tqdm as auto_tqdm

from aioprefetch.verbs.progress import CopyProgress, ProgressDisplay, checked_options, end_of, objects_of, short_name


class TqdmOptions(TypedDict, total=False):
    """Options of ``tqdm.tqdm``, which documents them."""

    desc: str | None
    file: TextIO | None
    disable: bool | None
    leave: bool | None
    position: int | None
    ncols: int | None
    dynamic_ncols: bool
    mininterval: float
    ascii: bool | str | None
    colour: str | None
    bar_format: str | None


def tqdm(**options: Unpack[TqdmOptions]) -> ProgressDisplay:
    """A display for ``on_progress`` by tqdm, which shows bytes, rate and time left of each transfer.

    ``options`` as for ``tqdm.tqdm``. One object serves any number of transfers, one after the other and at once.
    ``MissingDependency`` without tqdm, ``TypeError`` for another option.
    """
    return TqdmDisplay(checked_options(options, TqdmOptions.__annotations__, "tqdm"))


class TqdmDisplay(ProgressDisplay):
    """Bars of tqdm."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self._options = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "miniters": 1, **options}

    def __repr__(self) -> str:
        return "<aioprefetch.progress.tqdm>"

    def open(self, name: str) -> TqdmBar:
        """Open the bar of a call."""
        return TqdmBar(_Tqdm(**{"desc": short_name(name), **self._options}))


class TqdmBar:
    """The bar of one call."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._objects = ""

    def update(self, progress: CopyProgress) -> None:
        """Show how far the call is."""
        bar, objects = self._bar, objects_of(progress)
        if objects != self._objects:
            self._objects = objects
            bar.set_postfix_str(objects, refresh=False)
        if bar.total != progress.total:
            bar.total = progress.total
            bar.refresh()
        bar.update(progress.bytes - bar.n)

    def close(self, error: BaseException | None) -> None:
        """Leave the last state, and how the call ended if that was not well."""
        bar = self._bar
        if error is None:
            bar.total = bar.n
        else:
            bar.set_postfix_str(", ".join(filter(None, (self._objects, end_of(error)))), refresh=False)
        bar.close()


class _Tqdm(auto_tqdm):  # type: ignore[misc]
    """A bar without a thread: it is drawn when it is updated."""

    monitor_interval = 0
