"""The options of a source, in groups by their use, and how an engine's texts become values of them."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from aioprefetch.options import COUNT, COUNT_OR_ZERO, FLAG, SECONDS_OR_ZERO, SIZE, TEXT, Choice, Kind, Text, option

Overwrites = Literal["ignore", "reread", "fail"]
OnFailure = Literal["fail", "skip", "quarantine"]
OnCorruptRecord = Literal["fail", "skip", "null", "rescue"]
Reason = Literal["missing", "changed", "corrupt", "unreadable"]
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


ON_FAILURE = Choice(*get_args(OnFailure))


def _character(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in "\r\n":
        raise ValueError(value)
    return value


def _character_of(text: str) -> str:
    return {"\\t": "\t", "\\\\": "\\"}.get(text, text)


_ONE = "one character of ASCII that ends no line"
CHARACTER = Kind(_ONE, _character, _character_of)
OPTIONAL_CHARACTER = Kind(_ONE, lambda value: value and _character(value), lambda text: _character_of(text) or None)


def _separator_of(text: str) -> str:
    for written, meant in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t")):
        text = text.replace(written, meant)
    return text


LINE_SEPARATOR = Kind("text", TEXT.parsed, _separator_of)

# Values of filters that JSON has no form for, each an object with one key: how they are read and written.
_TYPED: Mapping[str, tuple[Any, Callable[[Any], Any], Callable[[Any], str]]] = {
    "$timestamp": (dt.datetime, dt.datetime.fromisoformat, dt.datetime.isoformat),
    "$date": (dt.date, dt.date.fromisoformat, dt.date.isoformat),  # The one before it is a date too.
    "$decimal": (decimal.Decimal, decimal.Decimal, str),
    "$binary": (
        (bytes, bytearray),
        lambda text: base64.b64decode(text, validate=True),
        lambda value: base64.b64encode(value).decode(),
    ),
}


def _filters_of(text: str) -> list[Any]:
    parsed = json.loads(text)
    if not (isinstance(parsed, list) and parsed and all(isinstance(each, list) and each for each in parsed)):
        raise ValueError(text)
    alternatives = parsed if all(isinstance(each, list) for each in parsed[0]) else [parsed]
    return [[_clause(clause) for clause in alternative] for alternative in alternatives]


# A list of ``[column, operator, value]``, or of such lists: the alternatives.
FILTERS = Kind(
    'a JSON list of clauses such as [["id", ">", 3], ["day", "=", {"$date": "2024-01-31"}]]', parse=_filters_of
)


def _clause(clause: Any) -> tuple[str, str, Any]:
    if not isinstance(clause, list) or len(clause) != 3 or not isinstance(clause[0], str):
        raise ValueError(clause)
    column, operator, operand = clause
    if isinstance(operand, list):
        return column, operator, [_operand(member) for member in operand]
    return column, operator, _operand(operand)


def _operand(operand: Any) -> Any:
    if not isinstance(operand, dict):
        return operand
    [(kind, written)] = operand.items() if len(operand) == 1 else [("", None)]
    try:
        return _TYPED[kind][1](written)
    except (KeyError, TypeError, decimal.InvalidOperation) as error:
        raise ValueError(operand) from error


def filters_to_text(alternatives: Sequence[Any]) -> str:
    """The text that ``FILTERS`` reads. ``TypeError`` for values of other types."""
    return json.dumps(list(alternatives), default=_typed)


def _typed(operand: Any) -> Any:
    for name, (kind, _, written) in _TYPED.items():
        if isinstance(operand, kind):
            return {name: written(operand)}
    if isinstance(operand, (set, frozenset)):
        return sorted(operand)
    raise TypeError(f"a filter cannot compare with {type(operand).__name__}")


TIME = Kind(
    "a time such as 2024-01-31T12:00:00",
    lambda value: value,
    dt.datetime.fromisoformat,
    annotation="str",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """How files are found.

    ``glob`` filters paths. ``interval_seconds`` is the minimum time between two listings of a bucket without news.
    ``sweep_pages`` is the number of pages of known keys that each trigger lists again; with 0, files are found only
    above the last known key: no late files below it, no overwrites, no deletions. Up to ``ahead_pages`` are listed
    before they are needed. A key that is no longer listed is forgotten after ``forget_after_seconds``. Keys with a part
    that begins with ``_`` or ``.`` are skipped unless ``hidden_files``; see ``values.is_hidden``. A batch leaves out
    files that were not modified after and before the given times, which have zones. A store that throttles or does not
    respond is asked again for ``retry_seconds``, with growing pauses, before its error ends a source, its opening, or
    the plan of a batch. Without ``include_existing`` a new source knows the files that are there when it is made, and
    reads those that come or change later.
    """

    glob: str | None = None
    interval_seconds: float = option(5.0, SECONDS_OR_ZERO, name="list_interval_seconds", scope="stream")
    sweep_pages: int = option(10, COUNT_OR_ZERO, name="sweep_pages_per_trigger", scope="stream")
    ahead_pages: int = option(4, COUNT_OR_ZERO, name="list_ahead_pages", scope="stream", also="other:maxCachedFiles")
    overwrites: Overwrites = option("ignore", Choice(*get_args(Overwrites)), scope="stream")
    forget_after_seconds: float = option(7 * 86400.0, SECONDS_OR_ZERO, scope="stream")
    include_existing: bool = option(True, FLAG, name="include_existing_files", scope="stream")
    hidden_files: bool = option(False, FLAG)
    modified_after: dt.datetime | None = option(None, TIME, scope="batch")
    modified_before: dt.datetime | None = option(None, TIME, scope="batch")
    retry_seconds: float = option(600.0, SECONDS_OR_ZERO, name="list_retry_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """The maximum size of one batch. Rows are estimated by bytes; see ``partitioning.ROW_BYTES_GUESS``.

    A batch takes at least one item. ``plan_files_max`` holds even if an engine requests everything.
    """

    files_max: int | None = option(None, COUNT, name="max_files_per_trigger", scope="stream")
    bytes_max: int | None = option(None, SIZE, name="max_bytes_per_trigger", scope="stream")
    rows_max: int | None = option(None, COUNT, name="max_rows_per_trigger", scope="stream")
    plan_files_max: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOptions:
    """How the work of a batch is divided among tasks.

    ``assign`` divides files by a hash of their keys, or balances bytes. ``split_files`` lets ranges of one file go to
    several tasks: a stream keeps a file in one task unless it is ``True``; a batch splits large files, so that one file
    keeps all cores busy, unless it is ``False``. ``slots`` is the number of tasks that run at once, from which the
    number of tasks of a batch follows; see ``partitioning.partition_count``.
    """

    target_bytes: int = option(128 << 20, SIZE, name="target_partition_bytes")
    partitions_max: int | None = option(None, COUNT, name="max_partitions")
    split_files: bool | None = option(None, FLAG)
    assign: Assign = option("hash", Choice(*get_args(Assign)), scope="stream")
    slots: int = option(2, COUNT, name="task_slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """How the bytes of a file become rows. ``format=None`` and ``compression="auto"``: by the suffix of the key.

    ``time_zone`` applies to times in text (CSV, JSON) without a zone: a name of IANA, or an offset such as ``+02:00``;
    ``None`` is UTC with a warning, once in a process, where there are such times.
    ``exact_case``: names of columns in Parquet, Lance and headers of CSV match in their exact case alone.
    ``infer_types=False``: inferred columns of CSV are strings.
    ``sample_files`` is how many files an inferred schema is made of; see ``infer_schema``. ``unknown_fields=None`` is
    ``ignore``, and lets an engine choose another policy where the schema was inferred.
    """

    format: str | None = option(None, TEXT)
    compression: str = option("auto", Choice(*COMPRESSIONS), also="other:codec")
    encoding: str = option("utf-8", TEXT, also="spark:encoding,charset other:charsetName")
    # csv
    header: bool = option(False, FLAG, also="other:headers,hasHeader")
    delimiter: str = option(",", CHARACTER, name="sep", also="spark:sep,delimiter other:separator,fieldSep")
    quote: str | None = option('"', OPTIONAL_CHARACTER)
    escape: str | None = option(None, OPTIONAL_CHARACTER)
    null_value: str = option("", Text(may_be_empty=True))
    comment: str | None = option(None, OPTIONAL_CHARACTER)
    whole_text: bool = option(False, FLAG)
    multi_line: bool = option(False, FLAG, also="other:wholeFile")
    # text
    time_zone: str | None = option(None, TEXT)
    line_separator: str | None = option(None, LINE_SEPARATOR, name="line_sep")
    # schema
    exact_case: bool = False
    infer_types: bool = option(True, FLAG, name="infer_schema")
    sample_files: int | None = option(None, COUNT, name="infer_sample_files")
    sample_bytes: int = option(1 << 20, SIZE, name="infer_sample_bytes")
    unknown_fields: UnknownFields | None = option(None, Choice(*get_args(UnknownFields)))

    @property
    def drops_unknown(self) -> bool:
        """Whether fields that the schema does not have are left out without a word."""
        return self.unknown_fields in (None, "ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureOptions:
    """The handling of a file that is missing, was overwritten, cannot be decoded, or may not be read.

    The last are archived objects, and those that the identity has no right to, or to their key of KMS. ``fail`` ends
    the batch, ``skip`` leaves the file out with a warning, ``quarantine`` also writes down which one. If the first ten
    files of a task are all forbidden, it is an error under each policy. ``on_corrupt_record`` is for single records of
    JSON and CSV: ``skip`` leaves them out, counted for each file. ``null`` and ``rescue`` are for the parsers of an
    engine.
    """

    on_missing: OnFailure = option("fail", ON_FAILURE)
    on_changed: OnFailure = option("fail", ON_FAILURE)
    on_corrupt: OnFailure = option("fail", ON_FAILURE)
    on_corrupt_record: OnCorruptRecord = option("fail", Choice(*get_args(OnCorruptRecord)))
    on_unreadable: OnFailure = option("fail", ON_FAILURE)

    @property
    def policies(self) -> Mapping[Reason, OnFailure]:
        """The policy for each reason."""
        return {reason: getattr(self, f"on_{reason}") for reason in get_args(Reason)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The reads of the items of one task: sizes of batches, and limits on data in flight.

    ``open_file`` has settings of ``openFile()`` under the prefixes of ``OpenFileBuilder.propagate``; they are checked
    for every file that is opened.
    """

    batch_rows: int = option(65_536, COUNT)
    files_in_flight: int = option(64, COUNT)
    bytes_in_flight: int = option(64 << 20, SIZE)
    open_file: Mapping[str, str] = field(default_factory=dict)
    filters: Any = option(None, FILTERS)


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
