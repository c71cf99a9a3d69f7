"""What a format of files is to those who read items: a sample of the schema, and record batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.options import FormatOptions, ReadOptions


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to come of the items of one task.

    ``schema`` has the fields to return, by name and with the types they shall have, without metadata columns and
    without the column of rescued fields. With ``offsets`` every record comes with where it starts. ``known`` is what
    the files are known to have, in their order, where ``schema`` is only some of it: no such field is an unknown one.
    """

    schema: pa.Schema
    options: FormatOptions
    read: ReadOptions
    offsets: bool = False
    known: pa.Schema | None = None

    @property
    def known_fields(self) -> pa.Schema:
        """Every field that is no unknown one: those that are known, and any other that is wanted."""
        if self.known is None:
            return self.schema
        names = set(self.known.names)
        return pa.schema([*self.known, *(one for one in self.schema if one.name not in names)])


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """Records of one item, in the order of the file.

    ``batch`` has those wanted fields that the file has, under its own names, and may have more; types that a file
    carries itself (Parquet, Lance) are the file's. A wanted field that is missing is left to whoever conforms.
    ``offsets`` is, for each record, the byte at which it starts (of what was decompressed), for Parquet and Lance the
    number of the row, for binary 0; ``None`` when it was not asked for. ``unknown`` is JSON text of a record's fields
    that are unknown, null where there are none; ``None`` unless ``unknown_fields`` is ``rescue``.
    """

    batch: pa.RecordBatch
    offsets: pa.Int64Array | None = None
    unknown: pa.StringArray | None = None


class RecordFormat(Protocol):
    """How the bytes of a file become records. Formats have no state: one object serves every file at once.

    A file that is not what its format says is ``UntrustedMetadata`` with path and position. An unknown
    field is ``Unsupported`` under ``unknown_fields="fail"``. A file of another version than the item's
    is ``ObjectChanged``, a missing one ``NotFound``.
    """

    @property
    def name(self) -> str:
        """One of ``options.FORMATS``."""
        ...

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        """The schema of a file, from at most ``options.sample_bytes`` of it; without fields for an empty file.

        A field of which no value was seen is of the type null.
        """
        ...

    def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        """The records that start in the item, in batches of at most ``want.read.batch_rows``.

        An asynchronous generator: ``aclose`` closes the file and leaves nothing in flight.
        """
        ...
