"""Differences in rows from Spark's own readers, without an error of either: a warning once of each in a process.

docs/guides/spark.md has the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from aioprefetch.runtime.events import logger

DIFFERENCES: Mapping[str, str] = MappingProxyType(
    {
        "header": "columns of CSV go by the names in the header, not by their positions",
        "quotes": "a doubled quote in a quoted field of CSV is one quote, as if escape were the quote",
        "nulls": "a null value or nothing in quotes is a text in CSV, not a null",
        "blanks": "numbers of CSV with blanks around them are read as numbers, not as nulls",
        "objects": "objects and lists of JSON in a column of strings have no blanks between their parts",
        "union": "files have different columns, and all of them are read, as by mergeSchema",
        "wildcards": "name=value directories that a wildcard matches are columns, as by basePath",
        "nested": "files in directories below are read, as by recursiveFileLookup",
        "directories": "name=value directories are not columns if a schema is given without them",
    }
)


@cache
def searches() -> Iterator[int]:
    """The searches through data for differences that a process has left: they take time, and the first find most."""
    return iter(range(256))


@cache
def warn_of_difference(kind: str) -> None:
    """Warn, once in a process, that rows differ from those by Spark's own readers."""
    logger.warning("other rows than by Spark's own readers: %s", DIFFERENCES[kind])
