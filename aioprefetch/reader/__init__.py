"""One open object: policy, blocks wanted, and the RangeReader."""

from __future__ import annotations

from aioprefetch.reader.range_reader import RangeReader

__all__ = ["RangeReader"]
