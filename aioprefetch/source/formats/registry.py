"""Which format and compression a file has, by option or by the suffix of its key, and whether it can be split."""

from __future__ import annotations

import importlib
from functools import cache
from typing import cast

from aioprefetch.errors import ConfigInvalid, Unsupported
from aioprefetch.source.files import SourceFile
from aioprefetch.source.formats.encodings import is_line_safe
from aioprefetch.source.formats.record_format import RecordFormat
from aioprefetch.source.options import COMPRESSIONS, FORMATS, FormatOptions

# What a key ends with, and what is in it. A suffix of compression comes after one of these.
FORMAT_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
    ".log": "text",
    ".bin": "binary",
    ".lance": "lance",
}
COMPRESSION_SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".snappy": "snappy",
    ".sz": "snappy",
}

# These are told by their suffix, and cannot be read.
_OTHER_COMPRESSIONS = (".bz2", ".deflate", ".lz4", ".br", ".xz")

# These compress within: ``.snappy.parquet`` is Spark's name of a file that is no stream of snappy.
COMPRESS_WITHIN = ("parquet", "lance")

# The module and the class of each format: only what is read is imported.
_CLASSES = {
    "jsonl": ("jsonl", "JsonLinesFormat"),
    "csv": ("csv_format", "CsvFormat"),
    "text": ("text", "TextFormat"),
    "binary": ("binary", "BinaryFormat"),
    "parquet": ("parquet", "ParquetFormat"),
    "lance": ("lance", "LanceFormat"),
}


def format_of(key: str, options: FormatOptions) -> RecordFormat:
    """The format of a file. ``ConfigInvalid`` when neither the option nor the suffix of the key tells it."""
    return _format(format_name(key, options))


def format_name(key: str, options: FormatOptions) -> str:
    """The name of a file's format, one of ``FORMATS``."""
    if options.format is not None:
        if options.format not in FORMATS:
            raise ConfigInvalid(
                f"format={options.format!r} is none of {', '.join(FORMATS)}", operation="read_items", path=key
            )
        return options.format
    stem = key.rpartition("/")[2].lower()
    for suffix in COMPRESSION_SUFFIXES:
        stem = stem.removesuffix(suffix)
    for suffix, name in FORMAT_SUFFIXES.items():
        if stem.endswith(suffix):
            return name
    raise ConfigInvalid(
        f"the key does not tell a format: give the option format, one of {', '.join(FORMATS)}",
        operation="read_items",
        path=key,
    )


def compression_of(key: str, options: FormatOptions) -> str:
    """How a file is compressed as a whole: ``none``, ``gzip``, ``zstd`` or ``snappy``.

    A given option counts whatever the key ends with. ``Unsupported`` for a suffix of another compression.
    """
    if options.compression not in COMPRESSIONS:
        raise ConfigInvalid(
            f"compression={options.compression!r} is none of {', '.join(COMPRESSIONS)}",
            operation="read_items",
            path=key,
        )
    if format_name(key, options) in COMPRESS_WITHIN:
        return "none"
    if format_name(key, options) == "binary":
        if options.compression in ("auto", "none"):
            return "none"
        raise ConfigInvalid(
            f"compression={options.compression!r} does not go with format='binary', which gives files as they are",
            operation="read_items",
            path=key,
        )
    if options.compression != "auto":
        return options.compression
    name = key.lower()
    if name.endswith(_OTHER_COMPRESSIONS):
        suffix = name[name.rindex(".") :]
        raise Unsupported(
            f"files that end with {suffix!r} cannot be decompressed, only {', '.join(COMPRESSIONS[2:])}; give "
            "compression=none if it is not compressed",
            operation="read_items",
            path=key,
        )
    return next((one for suffix, one in COMPRESSION_SUFFIXES.items() if name.endswith(suffix)), "none")


def can_split(file: SourceFile, options: FormatOptions) -> bool:
    """Whether ranges of the file may be read apart from one another, so that each record comes once."""
    name = format_name(file.key, options)
    if name in COMPRESS_WITHIN:
        return not is_dataset(file)
    if name == "binary" or compression_of(file.key, options) != "none":
        return False
    if not is_line_safe(options) or (name == "csv" and options.multi_line):
        return False
    separator = options.line_separator
    return separator is None or not _overlaps_itself(separator)


def is_dataset(file: SourceFile) -> bool:
    """Whether it stands for the directory of a dataset of Lance."""
    return not file.key or file.key.endswith("/")


def _overlaps_itself(separator: str) -> bool:
    """Whether its end is its beginning (``"--"``): where the first one starts is then told by all that lies before."""
    return any(separator.startswith(separator[cut:]) for cut in range(1, len(separator)))


@cache
def _format(name: str) -> RecordFormat:
    module, kind = _CLASSES[name]
    made = getattr(importlib.import_module(f"aioprefetch.source.formats.{module}"), kind)()
    return cast("RecordFormat", made)
