"""The task of reading items: the schema of the output, options, and policies for files that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.options import (
    METADATA_COLUMNS,
    RESCUED_COLUMN,
    FailureOptions,
    FormatOptions,
    ReadOptions,
)

# Takes the lines of all quarantined files, each a JSON text: called once, after the last item, if there are any.
Quarantine = Callable[[Sequence[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """The options of reading items, and the schema of the result.

    Parameters
    ----------
    schema
        Exactly the schema of every batch. ``_file``, ``_offset``, ``_etag`` and ``_mtime`` in it are what is known of
        each record's file, and ``_rescued``, under ``unknown_fields="rescue"``, the JSON text of its unknown fields,
        even if files have columns of these names.
    url
        The URL of the root of the operator, for ``_file`` and for messages.
    filter_schema
        Fields that ``read.filters`` name and ``schema`` lacks: they are read for the filter alone.
    known_schema
        All fields of the files, in their order, where ``schema`` has only some of them: these are not unknown
        fields, and they give the positions of columns in CSV without a header.
    directory_columns
        Fields whose values stand in directories. They are null in a file outside of such directories whose format
        does not name columns.
    quarantine
        Writes down which files were left out; see ``quarantine_to``.
    """

    schema: pa.Schema
    url: str
    format: FormatOptions = field(default_factory=FormatOptions)
    read: ReadOptions = field(default_factory=ReadOptions)
    failures: FailureOptions = field(default_factory=FailureOptions)
    filter_schema: pa.Schema | None = None
    known_schema: pa.Schema | None = None
    directory_columns: tuple[str, ...] = ()
    quarantine: Quarantine | None = None

    def __post_init__(self) -> None:
        for name in ("batch_rows", "files_in_flight", "bytes_in_flight"):
            value = getattr(self.read, name)
            if type(value) is not int or value < 1:
                raise ConfigInvalid(f"{name} must be a positive integer, not {value!r}", operation="read_items")
        failures = self.failures
        if self.quarantine is None and "quarantine" in (failures.on_missing, failures.on_changed, failures.on_corrupt):
            raise ConfigInvalid("a policy is quarantine, and there is nowhere to write to", operation="read_items")

    @property
    def data_schema(self) -> pa.Schema:
        """The fields that come from files and their paths, filter columns included."""
        fields = [field for field in self.schema if not self._is_added(field.name)]
        names = {field.name for field in fields}
        more = [
            field for field in self.filter_schema or () if field.name not in names and not self._is_added(field.name)
        ]
        return pa.schema(fields + more)

    @property
    def known_data_schema(self) -> pa.Schema | None:
        """The fields of ``known_schema`` that come from files and their paths."""
        if self.known_schema is None:
            return None
        return pa.schema([field for field in self.known_schema if not self._is_added(field.name)])

    def url_of(self, key: str) -> str:
        """The URL of a file."""
        return f"{self.url.rstrip('/')}/{key}" if key else self.url

    def _is_added(self, name: str) -> bool:
        return name in METADATA_COLUMNS or (name == RESCUED_COLUMN and self.format.unknown_fields == "rescue")
