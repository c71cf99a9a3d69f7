"""The newest records in memory, bounded by the items in them."""

from __future__ import annotations

from collections import OrderedDict

from aioprefetch.source.record import Record


class RecentRecords:
    """Records by number, the oldest of which go when there are too many items; the newest one always stays."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._items = 0
        self._records: OrderedDict[int, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Keep the next record."""
        self._records[record.seq] = record
        self._items += _size(record)
        while self._items > self._items_max and len(self._records) > 1:
            self._items -= _size(self._records.popitem(last=False)[1])

    def get(self, seq: int) -> Record | None:
        """A record, if it is still here."""
        return self._records.get(seq)

    def clear(self) -> None:
        """Forget all."""
        self._records.clear()
        self._items = 0


def _size(record: Record) -> int:
    return 1 + len(record.items) + len(record.carry) + len(record.known) + len(record.gone)
