"""How the bytes of a file become record batches: JSON lines, CSV, text, binary, Parquet, Lance, and compression."""

from __future__ import annotations

from aioprefetch.source.formats.record_format import FoundBatch, RecordFormat, Wanted
from aioprefetch.source.formats.registry import can_split, compression_of, format_of

__all__ = ["FoundBatch", "RecordFormat", "Wanted", "can_split", "compression_of", "format_of"]
