"""Columns whose values stand in directories, ``k=0/part-0.parquet``, as Spark and Hive write them. Pure.

As in Spark, the innermost run of ``name=value`` directories counts, names and values are percent-encoded, and
``__HIVE_DEFAULT_PARTITION__`` is a null. A value in the path wins over a column of the file.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.casts import CannotCast, cast_plain, in_zone
from aioprefetch.source.columns.row_filter import RowFilter, normalized
from aioprefetch.source.columns.schemas import match_names

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_DOUBLE = re.compile(r"[+-]?(?:\d++\.?\d*+|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_INT32, _INT64 = 1 << 31, 1 << 63

# Name and text of each directory, outermost first; ``None`` is a null.
Directories = tuple[tuple[str, str | None], ...]


def directories_of(key: str) -> Directories:
    """The names and values in the directories of a key."""
    if "=" not in key:
        return ()
    directories: list[tuple[str, str | None]] = []
    for part in reversed(key.split("/")[:-1]):
        name, _, text = part.partition("=")
        if name and text:
            directories.append((unquote(name), None if text == _NULL else unquote(text)))
        elif directories:
            break
    return tuple(reversed(directories))


def names_of(directories: Directories) -> tuple[str, ...]:
    """The names of directories."""
    return tuple(name for name, _ in directories)


def directory_fields(names: Sequence[str], schema: pa.Schema) -> dict[str, str]:
    """The fields of ``schema`` with values in directories of these names, each with the name of its directory."""
    if not names:
        return {}
    places = match_names(names, schema.names)
    return {field: names[place] for field, place in zip(schema.names, places, strict=True) if place is not None}


def directory_value(text: str | None, field: pa.Field, *, key: str, time_zone: str | None) -> pa.Scalar:
    """The value of a field in a directory. ``UntrustedMetadata`` names key and column if it does not fit."""
    if text is None:
        if field.nullable:
            return pa.scalar(None, field.type)
        raise _unfit(_NULL, field, key, "it must not be null")
    try:
        if pa.types.is_timestamp(field.type):
            return pa.scalar(_time(text, field.type, time_zone), field.type)
        return cast_plain(pa.array([text]), field.type)[0]
    except (CannotCast, pa.ArrowException, ValueError, OverflowError) as error:
        raise _unfit(text, field, key, f"it is not a valid {field.type}") from error


class DirectoryColumns:
    """The columns in the directories of many keys, added key by key, in bounded memory.

    Names match in any case, as in Spark, and get the spelling with the most lower case. Keys without such directories
    are counted: their rows have nulls in these columns, unless the files have them.
    """

    def __init__(self) -> None:
        self._columns: list[_DirectoryColumn] = []
        self._parent: str | None = None
        self._is_within = False
        # The first key of each kind, for messages.
        self.within: str | None = None
        self.outside: str | None = None
        self.outside_count = 0

    def add(self, key: str) -> None:
        """Add a key. ``UntrustedMetadata`` names it and another key with directories of different names."""
        parent = key.rpartition("/")[0]
        if parent != self._parent:  # In the order of keys most keys have the directory of their predecessor.
            directories = directories_of(key)
            self._parent, self._is_within = parent, bool(directories)
            if directories:
                self._add(directories, key)
        if not self._is_within:
            self.outside_count += 1
            self.outside = self.outside or key

    def fields(self, *, narrow: bool = False) -> list[pa.Field]:
        """The columns, each of the narrowest type that holds all of its values; ``narrow``: also of 32 bits."""
        return [pa.field(column.name, column.type(narrow)) for column in self._columns]

    def _add(self, directories: Directories, key: str) -> None:
        if len({name.lower() for name in names_of(directories)}) < len(directories):
            raise UntrustedMetadata(
                f"the path {key!r} names a column twice: {', '.join(names_of(directories))}; give the schema and a "
                "path below the first of these directories",
                operation="infer_schema",
                path=key,
            )
        if self.within is None:
            self.within = key
            self._columns = [_DirectoryColumn(name) for name in names_of(directories)]
        names = [column.name for column in self._columns]
        if [name.lower() for name in names] != [name.lower() for name in names_of(directories)]:
            raise UntrustedMetadata(
                f"name=value directories differ: the path {self.within!r} has the columns {', '.join(names)}, and "
                f"{key!r} has {', '.join(names_of(directories))}; read them apart, by paths or globs of their own, or "
                "give the schema: then a column that a path and its file lack is null",
                operation="infer_schema",
                path=key,
            )
        for column, (name, text) in zip(self._columns, directories, strict=True):
            column.name = max(column.name, name)
            if text is not None:
                column.add(text)


class _DirectoryColumn:
    """The properties that all values of one column have so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._has_values = False
        self._are_integers = self._are_longs = self._are_doubles = self._are_dates = True

    def add(self, text: str) -> None:
        self._has_values = True
        self._are_longs = self._are_longs and bool(_INTEGER.fullmatch(text)) and -_INT64 <= int(text) < _INT64
        self._are_integers = self._are_integers and self._are_longs and -_INT32 <= int(text) < _INT32
        self._are_doubles = self._are_doubles and bool(_DOUBLE.fullmatch(text)) and _is_exact(text)
        self._are_dates = self._are_dates and _is_date(text)

    def type(self, narrow: bool) -> pa.DataType:
        if not self._has_values:
            return pa.null()
        if self._are_longs:
            return pa.int32() if narrow and self._are_integers else pa.int64()
        if self._are_doubles:
            return pa.float64()
        return pa.date32() if self._are_dates else pa.string()


def with_directory_fields(schema: pa.Schema, fields: Sequence[pa.Field]) -> pa.Schema:
    """The schema of files with fields from their paths: in the place of a field of the same name, or last."""
    places = match_names([field.name for field in fields], schema.names)
    kept = [field if place is None else fields[place] for field, place in zip(schema, places, strict=True)]
    return pa.schema([*kept, *(field for number, field in enumerate(fields) if number not in places)])


def _is_exact(text: str) -> bool:
    """Whether an integer may become a double beside doubles: only a small one, as in Spark."""
    return _INTEGER.fullmatch(text) is None or abs(int(text)) < _INT32


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and dt.date.fromisoformat(text) is not None
    except ValueError:
        return False


def _time(text: str, kind: pa.TimestampType, time_zone: str | None) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    return in_zone(time, time_zone) if kind.tz is not None else time


def _unfit(text: str, field: pa.Field, key: str, reason: str) -> UntrustedMetadata:
    return UntrustedMetadata(
        f"column {field.name!r} is {text!r} in a directory of the path, and {reason}: give a schema that it fits",
        operation="read_items",
        path=key,
        context={"column": field.name, "value": text},
    )


# Results for at most this many directories are kept.
_RESPONSES_MAX = 10_000


class DirectoryFilter:
    """The clauses of ``filters`` on fields from directories. Other clauses drop no file."""

    def __init__(self, filters: Any, schema: pa.Schema, time_zone: str | None) -> None:
        self._schema = schema
        self._time_zone = time_zone
        checked = normalized(filters, schema, may_miss=True, time_zone=time_zone)
        self._alternatives = None if checked is None or isinstance(checked, pc.Expression) else checked
        self._responses: dict[Directories, bool] = {}

    def may_match(self, key: str) -> bool:
        """Whether a file may have records that match. An invalid value passes: reading the file reports it."""
        directories = directories_of(key)
        if self._alternatives is None or not directories:
            return True
        response = self._responses.get(directories)
        if response is None:
            if len(self._responses) >= _RESPONSES_MAX:
                self._responses.clear()
            response = self._responses[directories] = self._may_match(directories, key)
        return response

    def _may_match(self, directories: Directories, key: str) -> bool:
        texts = dict(directories)
        by_directories = directory_fields(list(texts), self._schema)
        alternatives = [
            [clause for clause in clauses if clause[0] in by_directories] for clauses in self._alternatives or ()
        ]
        if not all(alternatives):
            return True
        fields = [self._schema.field(name).with_nullable(True) for name in by_directories]
        try:
            values = [
                directory_value(texts[by_directories[field.name]], field, key=key, time_zone=self._time_zone)
                for field in fields
            ]
        except UntrustedMetadata:
            return True
        row = pa.RecordBatch.from_arrays([pa.repeat(value, 1) for value in values], schema=pa.schema(fields))
        return bool(RowFilter(alternatives, row.schema, time_zone=self._time_zone).apply(row).num_rows)
