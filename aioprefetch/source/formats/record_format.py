"""The interface between file formats and the packages that plan and read items, and the formats by name and suffix.

A format of this package is a line of ``_BUILT_IN``: its name, the suffixes of keys that select it, and its class, which
is imported at first use. A module of another package calls ``register_format`` when it is imported, and is named by an
entry point of the group ``aioprefetch.formats``: an unknown name or suffix imports the modules of that group, also in
Spark's processes. docs/guides/format.md has an example.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.source.options import COMPRESSIONS, FormatOptions, ReadOptions
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.values import Entry

# The number of records of each item that were left out, and the error of the first.
BadRecords = dict[FetchItem, tuple[int, Exception]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records that a task reads from its items.

    ``schema`` has the names and types of the fields to return, without metadata columns and the column of rescued
    fields. With ``offsets`` each record has its position in the file. ``known`` has all fields of the files in order,
    if ``schema`` has only some of them: a field of ``known`` is not an unknown field. With ``bad_records`` records of
    JSON and CSV that cannot be read are left out, and counted there.
    """

    schema: pa.Schema
    options: FormatOptions
    read: ReadOptions
    offsets: bool = False
    known: pa.Schema | None = None
    bad_records: BadRecords | None = None

    @property
    def known_fields(self) -> pa.Schema:
        """The known fields: all of ``known``, then what ``schema`` has besides."""
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

    ``filters`` on ``schema`` are as for ``plan_batch``; without ``filters`` all parts match.
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
    # Whether a file is one value, which is in memory as a whole.
    comes_whole: ClassVar[bool] = False
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


# --- formats by name and suffix ---------------------------------------------------------------------------------------

# The fields of ``FormatOptions`` that every format uses.
COMMON_OPTIONS = frozenset({"format", "time_zone", "infer_types", "sample_files", "sample_bytes", "unknown_fields"})


def is_dataset(file: SourceFile) -> bool:
    """Whether a file stands for the directory of a dataset."""
    return not file.key or file.key.endswith("/")


ENTRY_POINTS = "aioprefetch.formats"

COMPRESSION_SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".snappy": "snappy",
    ".sz": "snappy",
}
# The suffixes of unsupported compressions.
_OTHER_COMPRESSIONS = (".bz2", ".deflate", ".lz4", ".br", ".xz")


@dataclass(frozen=True, slots=True)
class _Registration:
    """``format`` is the format, or ``module:class`` in this package. ``has_datasets`` enables ``dataset_of``.

    An internal format is chosen by name alone, and is in no list.
    """

    format: RecordFormat | str
    suffixes: tuple[str, ...] = ()
    has_datasets: bool = False
    is_internal: bool = False


# One line for each format, in the order of error messages.
_BUILT_IN = {
    "parquet": _Registration("parquet:ParquetFormat", (".parquet", ".pq")),
    "jsonl": _Registration("jsonl:JsonLinesFormat", (".jsonl", ".ndjson", ".json")),
    "csv": _Registration("csv_format:CsvFormat", (".csv",)),
    "text": _Registration("text:TextFormat", (".txt", ".text", ".log")),
    "binary": _Registration("binary:BinaryFormat", (".bin",)),
    "lance": _Registration("lance:LanceFormat", (".lance",), has_datasets=True),
    "csv-records": _Registration("record_texts:CsvTexts", is_internal=True),
    "json-records": _Registration("record_texts:JsonTexts", is_internal=True),
}
_formats: dict[str, _Registration] = dict(_BUILT_IN)


def register_format(record_format: RecordFormat, *suffixes: str, has_datasets: bool = False) -> Callable[[], None]:
    """Register a format in this process under its name, and for keys that end with one of ``suffixes``.

    ``suffixes`` are in lower case and begin with a dot. With ``has_datasets`` a directory can be one file of the format
    (``RecordFormat.dataset_of``). Returns a function that removes the format again.
    ``ConfigInvalid`` for a name or suffix of another format.
    """
    name = record_format.name
    taken = {suffix: other for other, registration in _formats.items() for suffix in registration.suffixes}
    for suffix in suffixes:
        if not suffix.startswith(".") or suffix != suffix.lower():
            raise ConfigInvalid(
                f"the suffix {suffix!r} must be in lower case and begin with a dot", operation="configure"
            )
        if suffix in taken:
            raise ConfigInvalid(f"the suffix {suffix!r} belongs to format={taken[suffix]}", operation="configure")
    if name in _formats:
        raise ConfigInvalid(f"there is a format={name} already", operation="configure")
    _formats[name] = _Registration(record_format, suffixes, has_datasets)

    def remove() -> None:
        _formats.pop(name, None)

    return remove


def format_names() -> tuple[str, ...]:
    """The names of all registered formats."""
    return tuple(name for name, registration in _formats.items() if not registration.is_internal)


def format_named(name: str) -> RecordFormat:
    """The format with this name. ``ConfigInvalid`` for an unknown name."""
    if name not in _formats:
        _load_entry_points()
    registration = _formats.get(name)
    if registration is None:
        raise ConfigInvalid(f"format={name!r} must be one of {', '.join(format_names())}")
    return _imported(registration.format) if isinstance(registration.format, str) else registration.format


def format_of(key: str, options: FormatOptions) -> RecordFormat:
    """The format of a file. ``ConfigInvalid`` if neither the option nor the suffix of the key names it."""
    try:
        return format_named(options.format or _name_by_suffix(key))
    except ConfigInvalid as error:
        error.add_context(operation="read_items", path=key)
        raise


def formats_with_datasets(options: FormatOptions) -> list[RecordFormat]:
    """The formats, among those allowed by the options, for which a directory can be one file."""
    names = format_names() if options.format is None else (options.format,)
    return [format_named(name) for name in names if name in _formats and _formats[name].has_datasets]


def formats_that_take(option: str) -> tuple[str, ...]:
    """The names of the formats that use a field of ``FormatOptions``. Imports all formats."""
    return tuple(name for name in format_names() if option in COMMON_OPTIONS | format_named(name).options)


def compression_of(key: str, options: FormatOptions) -> str:
    """The compression of a file as a whole: ``none``, ``gzip``, ``zstd`` or ``snappy``.

    An explicit option overrides the suffix of the key. ``Unsupported`` for the suffix of another compression.
    """
    if options.compression not in COMPRESSIONS:
        raise ConfigInvalid(
            f"compression={options.compression!r} must be one of {', '.join(COMPRESSIONS)}",
            operation="read_items",
            path=key,
        )
    record_format = format_of(key, options)
    if record_format.compresses_within:
        return "none"
    if "compression" not in record_format.options:
        if options.compression in ("auto", "none"):
            return "none"
        raise ConfigInvalid(
            f"compression={options.compression!r} does not go with format={record_format.name!r}, which takes files "
            "as they are",
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
    return next((value for suffix, value in COMPRESSION_SUFFIXES.items() if name.endswith(suffix)), "none")


def can_split(file: SourceFile, options: FormatOptions) -> bool:
    """Whether ranges of the file can be read separately, each record in exactly one of them."""
    return format_of(file.key, options).can_split(file, options)


def _name_by_suffix(key: str) -> str:
    """The name of the format with the longest suffix that the key ends with, before a suffix of compression."""
    stem = key.rpartition("/")[2].lower()
    for suffix in COMPRESSION_SUFFIXES:
        stem = stem.removesuffix(suffix)
    name = _name_by_stem(stem)
    if name is None:
        _load_entry_points()
        name = _name_by_stem(stem)
    if name is None:
        raise ConfigInvalid(
            f"the suffix of the key is of no format: give the option format, one of {', '.join(format_names())}"
        )
    return name


def _name_by_stem(stem: str) -> str | None:
    length, name = 0, None
    for candidate, registration in _formats.items():
        if stem.endswith(registration.suffixes):
            longest = max(len(suffix) for suffix in registration.suffixes if stem.endswith(suffix))
            if longest > length:
                length, name = longest, candidate
    return name


@cache
def _imported(place: str) -> RecordFormat:
    module, _, class_name = place.partition(":")
    kind: type[RecordFormat] = getattr(importlib.import_module(f"{__package__}.{module}"), class_name)
    return kind()


@cache
def _load_entry_points() -> None:
    """Import the modules of the entry point group, which register their formats. Done once in a process."""
    for entry_point in entry_points(group=ENTRY_POINTS):
        entry_point.load()
