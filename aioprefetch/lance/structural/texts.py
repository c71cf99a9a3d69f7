"""Texts of many pieces of a batch, in one destination that grows: each piece is forgotten once it is written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from aioprefetch.lance.physical.memory import check_size
from aioprefetch.lance.structural.bytes_of import Positions, damaged
from aioprefetch.lance.structural.values import Coded, Nulls, Texts, Values, expand


class TextDestination:
    """The bytes of all texts of one column of a batch, back to back in memory of Arrow's pool."""

    def __init__(self) -> None:
        self._memory: pa.Buffer | None = None
        self._used = 0
        self._offsets: list[Positions] = [np.zeros(1, np.int64)]

    def append(self, values: Values, expected_share: float) -> None:
        """Write one piece, which is ``expected_share`` of the batch. ``Unsupported`` beyond what a buffer may take."""
        texts = as_texts(values)
        first, last = int(texts.offsets[0]), int(texts.offsets[-1])
        end = self._used + last - first
        check_size(end)
        memory = np.frombuffer(self._reserved(end, expected_share), np.uint8)
        memory[self._used : end] = texts.data[first:last]
        self._offsets.append(texts.offsets[1:] + (self._used - first))
        self._used = end

    def finish(self) -> Texts:
        """All texts."""
        assert self._memory is not None
        self._memory.resize(self._used, shrink_to_fit=self._used < self._memory.size * 3 // 4)
        return Texts(np.frombuffer(self._memory, np.uint8), np.concatenate(self._offsets))

    def _reserved(self, size_bytes: int, expected_share: float) -> pa.Buffer:
        if self._memory is None:
            expected = min(int(size_bytes / max(expected_share, 1e-3) * 1.1), 64 * size_bytes)
            self._memory = pa.allocate_buffer(max(size_bytes, expected), resizable=True)
        elif size_bytes > self._memory.size:
            self._memory.resize(max(size_bytes, self._memory.size * 3 // 2))
        return self._memory


def as_texts(values: Values) -> Texts:
    """Values of a text column: what codes stand for, and nothing for nulls. ``UntrustedMetadata`` for numbers."""
    if isinstance(values, Coded):
        values = expand(values)
    if isinstance(values, Nulls):
        return Texts(np.zeros(0, np.uint8), np.zeros(values.count + 1, np.int64))
    if not isinstance(values, Texts):
        raise damaged("a page of texts holds values of a fixed width")
    return values
