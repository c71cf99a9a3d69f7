"""What the reading of some items is to give, in one value: schema, options and what becomes of files that fail."""

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

# Takes the lines of all files that were given up, each a JSON text: called once, after the last item, if there are any.
Quarantine = Callable[[Sequence[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """How items are read, and into what.

    Parameters
    ----------
    schema
        Exactly the schema of every batch. ``_file``, ``_offset``, ``_etag`` and ``_mtime`` in it are what is known of
        each record's file, and ``_rescued``, under ``unknown_fields="rescue"``, the JSON text of its unknown fields,
        whatever columns of these names the files have.
    url
        That of the root of the operator, for ``_file`` and for messages.
    filter_schema
        Fields that ``read.filters`` name and ``schema`` does not have: they are read, and not given.
    known_schema
        All fields that the files are known to have, in their order, where ``schema`` is only some of them: none of
        these is an unknown one, and those of CSV without a header are counted.
    directory_columns
        Fields that are told by directories: in a file whose columns have no names of their own, and which is in no such
        directory, they are null.
    quarantine
        Where files are written down that were given up; see ``quarantine_to``.
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
        """What is read of the files, filter columns included: the rest of the schema is not theirs."""
        fields = [one for one in self.schema if not self._is_added(one.name)]
        names = {one.name for one in fields}
        more = [one for one in self.filter_schema or () if one.name not in names and not self._is_added(one.name)]
        return pa.schema(fields + more)

    @property
    def known_data_schema(self) -> pa.Schema | None:
        """The same of ``known_schema``: what the files themselves have."""
        if self.known_schema is None:
            return None
        return pa.schema([one for one in self.known_schema if not self._is_added(one.name)])

    def url_of(self, key: str) -> str:
        """The URL of a file."""
        return f"{self.url.rstrip('/')}/{key}" if key else self.url

    def _is_added(self, name: str) -> bool:
        return name in METADATA_COLUMNS or (name == RESCUED_COLUMN and self.format.unknown_fields == "rescue")
