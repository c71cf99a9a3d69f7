"""What travels from items to batches, if it is no ``SmallText``: records that are decoded and conformed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from aioprefetch.source.files import SourceFile


@dataclass(frozen=True, slots=True)
class Records:
    """Conformed records of one file, or of several in their order: ``files`` has each with the number of its rows.

    ``offsets`` and ``unknown`` are those of ``FoundBatch``.
    """

    batch: pa.RecordBatch
    files: tuple[tuple[SourceFile, int], ...]
    offsets: pa.Array | None = None
    unknown: pa.Array | None = None

    @property
    def nbytes(self) -> int:
        """What the columns take in memory."""
        size: int = self.batch.nbytes
        return size
