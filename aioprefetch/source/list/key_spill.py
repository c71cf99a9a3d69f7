"""Keys that come in no order, kept out of memory, to be asked for in order. It blocks."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

# What is sorted in memory: about 20 MB. A run is one open file, so ten million keys are fifty.
RUN_KEYS = 200_000


class KeySpill:
    """A multiset of keys in sorted runs, in files without a name: nothing is left of them when the process ends.

    First ``add``, then ``missing``, then ``close``. Few keys never touch a disk.
    """

    def __init__(self, run_keys: int = RUN_KEYS) -> None:
        self._run_keys = run_keys
        self._keys: list[str] = []
        self._runs: list[TextIO] = []
        self._merged: Iterator[str] | None = None
        self._next: str | None = None

    @property
    def is_full(self) -> bool:
        """Whether the next ``add`` writes a run."""
        return len(self._keys) >= self._run_keys

    def add(self, keys: Iterable[str]) -> None:
        """Remember keys."""
        if self.is_full:
            self._write()
        self._keys += keys

    def missing(self, keys: Sequence[str]) -> set[str]:
        """Those of ``keys`` that were not added. They are sorted, and above all that were asked for before."""
        if self._merged is None:
            self._keys.sort()
            self._merged = heapq.merge(self._keys, *(_read(run) for run in self._runs))
            self._next = next(self._merged, None)
        absent = set()
        for key in keys:
            while self._next is not None and self._next < key:
                self._next = next(self._merged, None)
            if self._next != key:
                absent.add(key)
        return absent

    def close(self) -> None:
        """Forget everything. Safe to call twice."""
        self._merged = iter(())
        self._next = None
        self._keys = []
        while self._runs:
            self._runs.pop().close()

    def _write(self) -> None:
        self._keys.sort()
        # Names of files may hold what is no Unicode, and any of them a line's end.
        run = tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogatepass", newline="\n")  # noqa: SIM115
        self._runs.append(run)
        run.writelines(key.replace("\\", "\\\\").replace("\n", "\\n") + "\n" for key in self._keys)
        run.seek(0)
        self._keys = []


def _read(run: TextIO) -> Iterator[str]:
    for line in run:
        key = line[:-1]
        yield "\\".join(part.replace("\\n", "\n") for part in key.split("\\\\")) if "\\" in key else key
