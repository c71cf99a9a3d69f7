"""What one task is given: items as compact plain data, and where they lie. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from aioprefetch.source.files import FetchItem


class ItemsPartition(InputPartition):
    """The items of a task. ``root`` is what their keys are relative to; ``label`` names the task in files it writes.

    A thousand items take about 20 KB.
    """

    def __init__(self, items: Sequence[FetchItem], *, root: str, label: str) -> None:
        text = json.dumps([item.to_json() for item in items], separators=(",", ":"))
        super().__init__(zlib.compress(text.encode("utf-8", "surrogatepass")))
        self.count = len(items)
        self.root = root
        self.label = label

    def __repr__(self) -> str:
        return f"<ItemsPartition {self.label}: {self.count} items below {self.root}>"

    def items(self) -> list[FetchItem]:
        """The items, in their order."""
        text = zlib.decompress(self.value).decode("utf-8", "surrogatepass")
        return [FetchItem.from_json(fields) for fields in json.loads(text)]
