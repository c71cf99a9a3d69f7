"""The interface between the formats of files and the rooms that plan and read items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from aioprefetch.operator.operator import Operator
from aioprefetch.source.files import FetchItem, SourceFile
from aioprefetch.source.options import FormatOptions, ReadOptions
from aioprefetch.values import Entry


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that one task reads of its items.

    ``schema`` has the fields to return, by name and with the types that they are to have, without metadata columns and
    without the column of rescued fields. With ``offsets`` each record comes with its position in the file. ``known``
    has all fields of the files, in their order, where ``schema`` has only some of them: a field of ``known`` is not an
    unknown field.
    """

    schema: pa.Schema
    options: FormatOptions
    read: ReadOptions
    offsets: bool = False
    known: pa.Schema | None = None

    @property
    def known_fields(self) -> pa.Schema:
        """The fields that are not unknown: those of ``known``, then those of ``schema`` that it lacks."""
        if self.known is None:
            return self.schema
        names = set(self.known.names)
        return pa.schema([*self.known, *(field for field in self.schema if field.name not in names)])


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """Records of one item, in the order of the file.

    ``batch`` has those wanted fields that the file has, under its own names, and may have more; types that a file
    declares (Parquet, Lance) are the file's. The caller fills in the wanted fields that are missing. ``offsets`` is,
    for each record, the byte at which it starts (after decompression), for Parquet and Lance the number of the row, for
    binary 0; ``None`` unless ``Wanted.offsets``. ``unknown`` is JSON text of a record's unknown fields, null where
    there are none; ``None`` unless ``unknown_fields`` is ``rescue``.
    """

    batch: pa.RecordBatch
    offsets: pa.Int64Array | None = None
    unknown: pa.StringArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterPlanning:
    """How a file is divided by its footer: into items of about ``target_bytes``, of the parts that may match.

    ``filters`` are on ``schema``, both as in ``plan_batch``; without ``filters`` every part counts.
    """

    target_bytes: int
    options: FormatOptions
    schema: pa.Schema | None = None
    filters: Any = None
    open_file: Mapping[str, str] = field(default_factory=dict)


class RecordFormat(ABC):
    """How the bytes of a file become records. A format has no state: one object serves every file at once.

    A subclass gives ``name``, ``sample`` and ``read``, and changes those traits that differ for it. ``LineFormat`` is
    the base of formats whose records are lines.

    A file that does not follow the format raises ``UntrustedMetadata`` with path and position. An unknown field raises
    ``Unsupported`` under ``unknown_fields="fail"``. A file of another version than the item's raises ``ObjectChanged``,
    a missing one ``NotFound``.
    """

    # The value of the option ``format``.
    name: ClassVar[str]
    # Fields of ``FormatOptions`` that matter to this format, beside those that matter to all (``COMMON_OPTIONS``).
    # Only with ``compression`` among them may files be compressed as a whole.
    options: ClassVar[frozenset[str]] = frozenset()
    # Values are text in the file, so that a column of mixed types can be read as strings.
    is_textual: ClassVar[bool] = False
    # The format compresses its own parts: ``.snappy.parquet`` is not a stream of snappy.
    compresses_within: ClassVar[bool] = False
    # A footer tells the parts of a file and their statistics: ``plan`` divides a file by it.
    plans_by_footer: ClassVar[bool] = False

    def has_column_names(self, options: FormatOptions) -> bool:
        """Whether files name their columns. Otherwise columns are known by their positions."""
        return True

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        """Whether ranges of the file can be read separately, each record in exactly one of them."""
        return False

    @abstractmethod
    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        """The schema of a file, from at most ``options.sample_bytes`` of it; without fields for an empty file.

        A field without any value in the sample has the type null.
        """

    @abstractmethod
    def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        """The records that start in the item, in batches of at most ``want.read.batch_rows``.

        An asynchronous generator: ``aclose`` closes the file and leaves nothing in flight.
        """

    async def plan(self, operator: Operator, item: FetchItem, planning: FooterPlanning) -> list[FetchItem]:
        """The parts of a whole file that may have matching records, as items. Called if ``plans_by_footer``."""
        return [item]

    def dataset_of(self, key: str) -> str | None:
        """The directory, with a slash at its end, of the dataset that an object of this key proves; otherwise ``None``.

        Called for formats that are registered with ``has_datasets``. In the order of keys, the proof has to come
        before the other objects of the dataset, or beside them.
        """
        return None

    def dataset_version(self, entry: Entry, directory: str) -> int:
        """The version of the dataset that an object below its directory proves, 0 if it proves none."""
        return 0


# Fields of ``FormatOptions`` that matter to every format.
COMMON_OPTIONS = frozenset({"format", "time_zone", "sample_files", "sample_bytes", "unknown_fields"})


def is_dataset(file: SourceFile) -> bool:
    """Whether a file stands for the directory of a dataset."""
    return not file.key or file.key.endswith("/")
