"""How the bytes of a file become record batches: JSON lines, CSV, text, binary, Parquet, Lance, and compression."""

from __future__ import annotations

from aioprefetch.source.formats.choosing import can_split, compression_of, format_of
from aioprefetch.source.formats.record_format import FoundBatch, RecordFormat, Wanted

__all__ = ["FoundBatch", "RecordFormat", "Wanted", "can_split", "compression_of", "format_of"]
