"""File formats: JSON lines, CSV, text, binary, Parquet and Lance, read as record batches, and compression.

A format is a ``RecordFormat``, or a ``LineFormat`` if its records are lines. ``record_format`` lists all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.source.formats.file_bytes import read_content
    from aioprefetch.source.formats.line_stream import LineFormat
    from aioprefetch.source.formats.record_format import (
        FoundBatch,
        RecordFormat,
        Wanted,
        can_split,
        compression_of,
        format_named,
        format_names,
        format_of,
        formats_that_take,
        formats_with_datasets,
        register_format,
    )

__all__ = [
    "FoundBatch",
    "LineFormat",
    "RecordFormat",
    "Wanted",
    "can_split",
    "compression_of",
    "format_named",
    "format_names",
    "format_of",
    "formats_that_take",
    "formats_with_datasets",
    "read_content",
    "register_format",
]

load_at_first_use(
    __name__,
    {
        "file_bytes": ("read_content",),
        "line_stream": ("LineFormat",),
        "record_format": (
            "FoundBatch",
            "RecordFormat",
            "Wanted",
            "can_split",
            "compression_of",
            "format_named",
            "format_names",
            "format_of",
            "formats_that_take",
            "formats_with_datasets",
            "register_format",
        ),
    },
)
