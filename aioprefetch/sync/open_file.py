"""Files by Hadoop's keys, for code without an event loop. Few programs use them, so they load at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aioprefetch.operator.open_file import KeyedBuilder

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator
    from aioprefetch.sync.file import SyncFile


class BlockingOpenFileBuilder(KeyedBuilder):
    """Opens one object by Hadoop's keys, as a file; made by ``BlockingOperator.open_file(path)``."""

    def __init__(self, path: str, operator: Operator, open_file: Callable[..., SyncFile]) -> None:
        super().__init__(path, operator.reader, operator.options)
        self._open_file = open_file

    def build(self) -> SyncFile:
        """Check everything, and open; nothing is sent before the first read.

        Raises the errors of ``OpenFileBuilder.build`` and of awaiting its result: ``IsADirectory`` if the path ends
        with ``/``, ``NotFound`` when the status is a directory's. Each call opens another file.
        """
        _, options = self._resolve()
        return self._open_file(self._path, **options)
