"""The options of a source, in groups by their use. An engine converts its text options into these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Overwrites = Literal["ignore", "reread", "fail"]
OnFailure = Literal["fail", "skip", "quarantine"]
UnknownFields = Literal["ignore", "warn", "fail", "rescue"]
CleanSource = Literal["off", "delete", "move"]
Assign = Literal["hash", "size"]

COMPRESSIONS = ("auto", "none", "gzip", "zstd", "snappy")
METADATA_COLUMNS = ("_file", "_offset", "_etag", "_mtime")
# One struct for all of them: the parts that Spark's own formats have, and two more; each with what it is made of.
METADATA_STRUCT = "_metadata"
METADATA_PARTS = {
    "file_path": "_file",
    "file_name": "name",
    "file_size": "size",
    "file_block_start": "start",
    "file_block_length": "length",
    "file_modification_time": "_mtime",
    "etag": "_etag",
    "offset": "_offset",
}
# Under ``unknown_fields="rescue"``: JSON text of the fields of a record that the schema does not have.
RESCUED_COLUMN = "_rescued"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """How files are found.

    ``glob`` filters paths. ``interval_seconds`` is the minimum time between two listings of a bucket without news.
    ``sweep_pages`` is the number of pages of known keys that each trigger lists again; with 0, files are found only
    above the last known key: no late files below it, no overwrites, no deletions. Up to ``ahead_pages`` are listed
    before they are needed. A key that is no longer listed is forgotten after ``forget_after_seconds``. Keys with a part
    that begins with ``_`` or ``.`` are skipped unless ``hidden_files``; see ``values.is_hidden``. A store that
    throttles or does not respond is asked again for ``retry_seconds``, with growing pauses, before its error ends a
    source.
    """

    glob: str | None = None
    interval_seconds: float = 5.0
    sweep_pages: int = 10
    ahead_pages: int = 4
    overwrites: Overwrites = "ignore"
    forget_after_seconds: float = 7 * 86400.0
    hidden_files: bool = False
    retry_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """The maximum size of one batch. Rows are estimated by bytes; see ``partitioning.ROW_BYTES_GUESS``.

    A batch takes at least one item. ``plan_files_max`` holds even if an engine requests everything.
    """

    files_max: int | None = None
    bytes_max: int | None = None
    rows_max: int | None = None
    plan_files_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """How the work of a batch is divided among tasks.

    ``assign`` divides files by a hash of their keys, or balances bytes. ``split_files`` lets ranges of one file go to
    several tasks: a stream keeps a file in one task unless it is ``True``; a batch splits large files, so that one file
    keeps all cores busy, unless it is ``False``. ``slots`` is the number of tasks that run at once, from which the
    number of tasks of a batch follows; see ``partitioning.partition_count``.
    """

    target_bytes: int = 128 << 20
    partitions_max: int | None = None
    split_files: bool | None = None
    assign: Assign = "hash"
    slots: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """How the bytes of a file become rows. ``format=None`` and ``compression="auto"``: by the suffix of the key.

    ``time_zone`` is that of times in text (CSV, JSON) that have none: a name of IANA, or an offset such as ``+02:00``;
    ``None`` is UTC with a warning, once in a process, where there are such times.
    ``exact_case``: names of columns in Parquet, Lance and headers of CSV match in their exact case alone.
    ``infer_types=False``: inferred columns of CSV are strings.
    ``sample_files`` is how many files an inferred schema is made of; see ``infer_schema``. ``unknown_fields=None`` is
    ``ignore``, and lets an engine choose another policy where the schema was inferred.
    """

    format: str | None = None
    compression: str = "auto"
    encoding: str = "utf-8"
    # csv
    header: bool = False
    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null_value: str = ""
    multi_line: bool = False
    # text
    time_zone: str | None = None
    line_separator: str | None = None
    # schema
    exact_case: bool = False
    infer_types: bool = True
    sample_files: int | None = None
    sample_bytes: int = 1 << 20
    unknown_fields: UnknownFields | None = None

    @property
    def drops_unknown(self) -> bool:
        """Whether fields that the schema does not have are left out without a word."""
        return self.unknown_fields in (None, "ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureOptions:
    """The handling of a file that is missing, was overwritten, or cannot be decoded when it is read.

    ``fail`` ends the batch, ``skip`` leaves the file out with a warning, ``quarantine`` also writes down which one.
    """

    on_missing: OnFailure = "fail"
    on_changed: OnFailure = "fail"
    on_corrupt: OnFailure = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The reads of the items of one task: sizes of batches, and limits on data in flight.

    ``open_file`` has settings of ``openFile()`` under the prefixes of ``OpenFileBuilder.propagate``; they are checked
    for every file that is opened.
    """

    batch_rows: int = 65_536
    files_in_flight: int = 64
    bytes_in_flight: int = 64 << 20
    open_file: Mapping[str, str] = field(default_factory=dict)
    filters: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """How much a state keeps, where, and when it is compacted.

    Parameters
    ----------
    forget_after_seconds
        A file that is no longer listed is forgotten after this time, by the next compaction of its key range.
    keep_records
        This many committed records with work stay in the log, for an engine to replay, and as many of the newest
        records of any kind, for another source to follow.
    compact_entries
        A compaction starts after this many changes of files; ``None``: 50,000 to 100,000, as the state grows.
    compact_records
        A compaction starts after this number of records, with any content.
    run_rows
        Maximum of files in one run, which is written again for one change in its key range.
    group_rows
        Files in a row group of a run, which is read for one lookup.
    memory_items
        Items of records in memory, for the partitions of the newest batches.
    cache_directory
        The directory of local copies of runs, in files without a name; ``None``: the system's temporary directory.
    cache_bytes
        The maximum size of these copies.
    retry_seconds
        If compactions fail in a row for longer, by transient failures, a commit raises the error.
    """

    forget_after_seconds: float = 7 * 86400.0
    keep_records: int = 100
    compact_entries: int | None = None
    compact_records: int = 500
    run_rows: int = 250_000
    group_rows: int = 10_000
    memory_items: int = 50_000
    cache_directory: str | None = None
    cache_bytes: int = 512 << 20
    retry_seconds: float = 600.0

    @property
    def forget_after_ms(self) -> int:
        """``forget_after_seconds`` in milliseconds."""
        return int(self.forget_after_seconds * 1000)

    def compact_entries_for(self, rows: int) -> int:
        """The number of changes that start a compaction of a state of ``rows`` files."""
        if self.compact_entries is not None:
            return self.compact_entries
        return max(50_000, min(100_000, rows // 50))
