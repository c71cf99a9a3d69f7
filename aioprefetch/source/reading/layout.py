"""The fields from a file and the fields from its path. Files with the same directory names share a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from aioprefetch.operator.operator import Operator
from aioprefetch.source.columns.conform import Conformer
from aioprefetch.source.columns.directories import (
    Directories,
    DirectoryFilter,
    directories_of,
    directory_fields,
    directory_value,
    names_of,
)
from aioprefetch.source.files import SourceFile
from aioprefetch.source.formats import FoundBatch, Wanted, format_of
from aioprefetch.source.formats.records import JoinedRecords
from aioprefetch.source.formats.small_files import SmallFiles
from aioprefetch.source.options import METADATA_COLUMNS
from aioprefetch.source.reading.task import ReadTask


@dataclass(frozen=True, slots=True)
class Records:
    """Conformed records of one file, or of several in their order: ``files`` has each with the number of its rows.

    ``offsets`` and ``unknown`` are those of ``FoundBatch``.
    """

    batch: pa.RecordBatch
    files: tuple[tuple[SourceFile, int], ...]
    offsets: pa.Array | None = None
    unknown: pa.Array | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the columns in memory."""
        size: int = self.batch.nbytes
        return size


# The values of at most this many directories are kept.
_VALUES_MAX = 1024


class Layouts:
    """The layouts of the files of one task."""

    def __init__(self, operator: Operator, task: ReadTask) -> None:
        self._operator = operator
        self._task = task
        self._layouts: dict[tuple[tuple[str, ...], bool], DirectoryLayout] = {}
        filters = task.read.filters
        time_zone = task.format.time_zone
        self._filter = None if filters is None else DirectoryFilter(filters, task.data_schema, time_zone)

    def of(self, key: str) -> DirectoryLayout:
        """The layout of a file: one object for all files that are read alike."""
        names = names_of(directories_of(key))
        is_told = bool(names or self._task.directory_columns)
        has_names = not is_told or format_of(key, self._task.format).has_column_names(self._task.format)
        layout = self._layouts.get((names, has_names))
        if layout is None:
            layout = self._layouts[names, has_names] = DirectoryLayout(
                self._operator, self._task, names, has_names=has_names
            )
        return layout

    def may_match(self, key: str) -> bool:
        """Whether a file may have rows that match the filters, judged by its path."""
        return self._filter is None or self._filter.may_match(key)


class DirectoryLayout:
    """How files with the same directory names are read: fields that directories give are not read from the files.

    ``has_names``: the files name their columns, which are otherwise known by their positions.
    """

    def __init__(self, operator: Operator, task: ReadTask, names: Sequence[str], *, has_names: bool) -> None:
        schema, known_fields = task.data_schema, task.known_data_schema
        self._schema = schema
        self._time_zone = task.format.time_zone
        self._fields: dict[str, str | None] = {**directory_fields(names, schema)}
        absent = () if has_names else [name for name in task.directory_columns if name not in self._fields]
        self._fields |= {name: None for name in absent if name in schema.names}
        if self._fields or absent:
            schema = pa.schema([field for field in schema if field.name not in self._fields])
            # Columns of these names in a file are not unknown fields.
            everything, rest = _known_fields(task), _without(_known_fields(task), names, absent)
            known_fields = everything if has_names and len(rest) else rest
        self.want = Wanted(schema, task.format, task.read, METADATA_COLUMNS[1] in task.schema.names, known_fields)
        self._conformer = Conformer(schema)
        self.small = SmallFiles(operator, self.want)
        self._values: dict[Directories, dict[str, pa.Scalar]] = {}

    def records(self, file: SourceFile, read: FoundBatch) -> Records | None:
        """The conformed records of a file; ``None`` if there are none."""
        batch = self._conformer.conform(read.batch, path=file.key)
        if not batch.num_rows:
            return None
        files = ((file, batch.num_rows),)
        return Records(self._filled(batch, files), files, read.offsets, read.unknown)

    def joined(self, files: Sequence[SourceFile], joined: JoinedRecords) -> Records:
        """The conformed records of several files."""
        batch = self._conformer.conform(joined.found.batch)
        rows = tuple(zip(files, joined.rows, strict=True))
        return Records(self._filled(batch, rows), rows, joined.found.offsets, joined.found.unknown)

    def _filled(self, batch: pa.RecordBatch, files: Sequence[tuple[SourceFile, int]]) -> pa.RecordBatch:
        """The batch with the values from the paths of its files."""
        if not self._fields:
            return batch
        values = [self._values_of(file.key) for file, _ in files]
        counts = [rows for _, rows in files]
        arrays = [
            _repeated([constants[field.name] for constants in values], counts, field.type)
            if field.name in self._fields
            else batch.column(field.name)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values_of(self, key: str) -> dict[str, pa.Scalar]:
        directories = directories_of(key)
        cached = self._values.get(directories)
        if cached is None:
            texts = dict(directories)
            cached = {
                name: directory_value(
                    None if directory is None else texts[directory],
                    self._schema.field(name),
                    key=key,
                    time_zone=self._time_zone,
                )
                for name, directory in self._fields.items()
            }
            if len(self._values) >= _VALUES_MAX:
                self._values.clear()
            self._values[directories] = cached
        return cached


def _known_fields(task: ReadTask) -> pa.Schema:
    """All fields that are not unknown ones."""
    return Wanted(task.data_schema, task.format, task.read, known=task.known_data_schema).known_fields


def _without(schema: pa.Schema, names: Sequence[str], absent: Sequence[str]) -> pa.Schema:
    outside = {*directory_fields(names, schema), *absent}
    return pa.schema([field for field in schema if field.name not in outside])


def _repeated(values: Sequence[pa.Scalar], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    if len(values) == 1:
        return pa.repeat(values[0], counts[0])
    places = np.repeat(np.arange(len(values), dtype=np.int32), counts)
    return pa.array([value.as_py() for value in values], kind).take(pa.array(places))
