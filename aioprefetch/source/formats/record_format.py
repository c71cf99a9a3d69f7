"""The interface between file formats and the packages that plan and read items."""

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
    """The records that a task reads from its items.

    ``schema`` has the names and types of the fields to return, without metadata columns and the column of rescued
    fields. With ``offsets`` each record has its position in the file. ``known`` has all fields of the files in order,
    if ``schema`` has only some of them: a field of ``known`` is not an unknown field.
    """

    schema: pa.Schema
    options: FormatOptions
    read: ReadOptions
    offsets: bool = False
    known: pa.Schema | None = None

    @property
    def known_fields(self) -> pa.Schema:
        """The known fields: those of ``known``, then those of ``schema`` that it lacks."""
        if self.known is None:
            return self.schema
        names = set(self.known.names)
        return pa.schema([*self.known, *(field for field in self.schema if field.name not in names)])


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """Records of one item, in the order of the file.

    ``batch`` has the wanted fields of the file under the file's names, and may have more; types that a file declares
    (Parquet, Lance) are kept. The caller adds missing fields. ``offsets`` has the position of each record: the byte at
    which it starts (after decompression), the number of the row for Parquet and Lance, 0 for binary; it is ``None``
    unless ``Wanted.offsets``. ``unknown`` has the unknown fields of each record as JSON text, or null; it is ``None``
    unless ``unknown_fields`` is ``rescue``.
    """

    batch: pa.RecordBatch
    offsets: pa.Int64Array | None = None
    unknown: pa.StringArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterPlanning:
    """The division of a file by its footer: into items of about ``target_bytes``, without parts that cannot match.

    ``filters`` on ``schema`` are those of ``plan_batch``; without ``filters`` all parts match.
    """

    target_bytes: int
    options: FormatOptions
    schema: pa.Schema | None = None
    filters: Any = None
    open_file: Mapping[str, str] = field(default_factory=dict)


class RecordFormat(ABC):
    """A file format, which converts the bytes of a file to records. Stateless: one object serves all files at once.

    A subclass defines ``name``, ``sample`` and ``read``, and overrides the traits that differ. ``LineFormat`` is the
    base class of formats whose records are lines.

    A file that does not follow the format raises ``UntrustedMetadata`` with path and position. An unknown field raises
    ``Unsupported`` under ``unknown_fields="fail"``. A file of another version than the item's raises ``ObjectChanged``,
    a missing one ``NotFound``.
    """

    # The value of the option ``format``.
    name: ClassVar[str]
    # The fields of ``FormatOptions`` that this format uses, in addition to ``COMMON_OPTIONS``.
    # Files may be compressed as a whole only if ``compression`` is among them.
    options: ClassVar[frozenset[str]] = frozenset()
    # Whether values are text in the file, so that a column of mixed types can be read as strings.
    is_textual: ClassVar[bool] = False
    # Whether the format compresses its own parts: ``.snappy.parquet`` is not a snappy stream.
    compresses_within: ClassVar[bool] = False
    # Whether files have a footer with their parts and statistics, by which ``plan`` divides a file.
    plans_by_footer: ClassVar[bool] = False

    def has_column_names(self, options: FormatOptions) -> bool:
        """Whether files have names of columns. Otherwise columns are matched by position."""
        return True

    def can_split(self, file: SourceFile, options: FormatOptions) -> bool:
        """Whether ranges of the file can be read separately, each record in exactly one of them."""
        return False

    @abstractmethod
    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        """The schema of a file, inferred from at most ``options.sample_bytes``. Without fields for an empty file.

        A field without any value in the sample has the type null.
        """

    @abstractmethod
    def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        """The records that start in the item, in batches of at most ``want.read.batch_rows``.

        An asynchronous generator. ``aclose`` closes the file and leaves no request in flight.
        """

    async def plan(self, operator: Operator, item: FetchItem, planning: FooterPlanning) -> list[FetchItem]:
        """The parts of a whole file that may have matching records, as items. Called only if ``plans_by_footer``."""
        return [item]

    def dataset_of(self, key: str) -> str | None:
        """The directory, with a slash at its end, of the dataset that an object with this key belongs to, or ``None``.

        Called for formats that are registered with ``has_datasets``. In the order of keys, such an object must come
        before or among the other objects of the dataset.
        """
        return None

    def dataset_version(self, entry: Entry, directory: str) -> int:
        """The version of the dataset that an object in its directory belongs to, 0 for other objects."""
        return 0


# The fields of ``FormatOptions`` that every format uses.
COMMON_OPTIONS = frozenset({"format", "time_zone", "sample_files", "sample_bytes", "unknown_fields"})


def is_dataset(file: SourceFile) -> bool:
    """Whether a file stands for the directory of a dataset."""
    return not file.key or file.key.endswith("/")
