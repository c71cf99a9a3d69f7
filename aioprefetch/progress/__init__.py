"""Bars for ``on_progress``: ``tqdm()`` and ``rich()`` show bytes, rate and time left of each transfer.

``ProgressDisplay`` is the base for bars of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use
from aioprefetch.verbs.progress import ProgressBar, ProgressDisplay

if TYPE_CHECKING:
    from aioprefetch.progress.rich_bars import rich as rich
    from aioprefetch.progress.tqdm_bars import tqdm as tqdm

__all__ = ["ProgressBar", "ProgressDisplay", "rich", "tqdm"]

load_at_first_use(__name__, {"rich_bars": ("rich",), "tqdm_bars": ("tqdm",)}, extra="progress")
