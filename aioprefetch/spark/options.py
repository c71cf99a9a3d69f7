"""The text options of Spark's door: rows of the source, of its groups, and of every store. Pure.

Spark gives names in lower case. Messages name the option and show its value, unless the value may be a secret.
Literal secrets stand only under names that Spark redacts by default in plans, the UI and event logs
(``spark.redaction.regex``: secret, password, token, access key; ``spark.sql.redaction.options.regex``: url).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.from_uri import BUILT_IN, CREDENTIALS, store_options
from aioprefetch.options import FLAG, TEXT, Choice, Kind, Option, invalid, option, table_of
from aioprefetch.options.words import LIBRARIES, nearest
from aioprefetch.source.columns.casts import zone_named
from aioprefetch.source.formats import format_named, format_names, formats_that_take
from aioprefetch.source.formats.record_format import COMMON_OPTIONS
from aioprefetch.source.formats.records import codec_name
from aioprefetch.source.options import (
    METADATA_COLUMNS,
    METADATA_STRUCT,
    AdmissionOptions,
    CleanSource,
    FailureOptions,
    FormatOptions,
    ListOptions,
    OnCorruptRecord,
    PartitionOptions,
    ReadOptions,
)

PAGE = "docs/reference/spark-options.md"

# Prefixes of names that are keys of openFile(), and the prefix that each becomes.
OPEN_FILE_PREFIXES: Mapping[str, str] = {
    f"{place}.{kind}.": f"mapreduce.job.input.file.{kind}."
    for place in ("mapreduce.job.input.file", "openfile")
    for kind in ("option", "must")
}


def _names_of(text: str) -> tuple[str, ...]:
    names = json.loads(text) if text.lstrip().startswith("[") else [name.strip() for name in text.split(",")]
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError(text)
    return tuple(names)


def _metadata_columns_of(text: str) -> tuple[str, ...]:
    if text.strip().lower() in ("true", "false"):
        return METADATA_COLUMNS if text.strip().lower() == "true" else ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not {*names} <= {*METADATA_COLUMNS, METADATA_STRUCT}:
        raise ValueError(text)
    return names


def _format_of(text: str) -> str:
    name = text.strip().lower()  # Spark has names of its own for two of them.
    return format_named({"json": "jsonl", "binaryfile": "binary"}.get(name, name)).name


def _known(find: Callable[[str], object]) -> Callable[[str], str]:
    """A check of names by a function that finds them."""

    def known(text: str) -> str:
        find(text)
        return text

    return known


# What knows these lies above the rows of the engine.
_KINDS: Mapping[str, Kind] = {
    "format": Kind(f"one of {', '.join(format_names())}", parse=_format_of),
    "encoding": Kind(
        "an encoding of text that Python has, such as utf-8, latin-1, cp1252 or utf-16", parse=_known(codec_name)
    ),
    "time_zone": Kind("a time zone such as Europe/Berlin, UTC or +02:00", parse=_known(zone_named)),
}
NAMES = Kind("a list of different names such as id,name or a JSON list of them", parse=_names_of)


def _rate_of(text: str) -> float:
    rate = float(text)
    if not 0 < rate < float("inf"):
        raise ValueError(text)
    return rate


RATE = Kind("a number above 0 such as 500 or 0.5", parse=_rate_of, annotation="float")
METADATA = Kind(
    f"true, false, or some of {', '.join(METADATA_COLUMNS)} and {METADATA_STRUCT}",
    parse=_metadata_columns_of,
    annotation="str | Sequence[str]",
)


# The formats whose records Spark's parsers may read, and what delivers them.
RECORD_FORMATS = {"csv": "csv-records", "jsonl": "json-records"}


def _true(text: str) -> bool:
    if not FLAG.parsed(text):
        raise ValueError(text)
    return True


_ALWAYS = Kind("true, as is done always", lambda value: value, _true, annotation="Literal[True]")
# Spark's words for what becomes of bad records.
MODES: Mapping[str, OnCorruptRecord] = {"FAILFAST": "fail", "DROPMALFORMED": "skip", "PERMISSIVE": "null"}
_MODE = Kind(f"one of {', '.join(MODES)}", lambda value: value, lambda text: MODES[text.strip().upper()])


class SourceRows:
    """The places of a source, and the handling of its files: rows beside the groups of the engine."""

    path: str | None = option(None, TEXT)
    parser: Literal["arrow", "spark"] = option("arrow", Choice("arrow", "spark"))
    name_filter: str | None = option(None, TEXT, name="path_glob_filter", also="other:pathGlobFilters,matchPattern")
    state_location: str | None = option(None, TEXT, scope="stream")
    attach_to: str | None = option(None, TEXT, scope="stream")
    quarantine_location: str | None = option(None, TEXT)
    columns: tuple[str, ...] | None = option(None, NAMES)
    file_schema: str | None = option(None, TEXT)
    metadata_columns: tuple[str, ...] = option((), METADATA)
    push_filters: bool = option(False, FLAG, scope="batch")
    allow_empty: bool = option(False, FLAG, scope="batch")
    requests_per_second: float | None = option(None, RATE)
    clean: CleanSource = option("off", Choice("off", "delete", "move"), name="clean_source", scope="stream")
    clean_destination: str | None = option(
        None, TEXT, name="clean_source_move_destination", also="spark:cleanSource.moveDestination", scope="stream"
    )
    mode: str | None = option(None, _MODE)
    recursive_file_lookup: bool = option(True, _ALWAYS)
    merge_schema: bool = option(True, _ALWAYS)
    ignore_missing_files: bool = option(False, FLAG)
    ignore_corrupt_files: bool = option(False, FLAG)
    # Some zones have names that only Java knows: they are checked only where a file has times without a zone.
    session_time_zone: str | None = option(None, TEXT)


# Options of Spark's parsers of CSV and JSON, which ``parser="spark"`` passes on as they are.
_OF_PARSERS = (
    "char_to_escape_quote_escaping unescaped_quote_handling empty_value nan_value positive_inf negative_inf max_columns"
    " max_chars_per_column ignore_leading_white_space ignore_trailing_white_space enforce_schema prefer_date"
    " date_format timestamp_format timestamp_ntz_format time_format enable_date_time_parsing_fallback locale"
    " column_name_of_corrupt_record sampling_ratio single_variant_column primitives_as_string prefers_decimal"
    " drop_field_if_all_null allow_comments allow_unquoted_field_names allow_single_quotes"
    " allow_numeric_leading_zeros allow_backslash_escaping_any_character allow_unquoted_control_chars"
    " allow_non_numeric_numbers quote_all escape_quotes ignore_null_fields"
)
_ANY = Kind("text", lambda value: value, str)

GROUPS: Mapping[str, type] = {
    "source": SourceRows,
    "list": ListOptions,
    "admission": AdmissionOptions,
    "partition": PartitionOptions,
    "format": FormatOptions,
    "failure": FailureOptions,
    "read": ReadOptions,
}


class SourceOption(NamedTuple):
    """An option of a source: its name here, its group, and its row."""

    name: str
    group: str
    row: Option


def _source_options() -> Iterable[SourceOption]:
    for group, owner in GROUPS.items():
        for row in table_of(owner).values():
            for name in (*row.words("spark"),) or (row.spark,):
                yield SourceOption(name, group, replace(row, kind=_KINDS.get(row.name, row.kind)))
    for name in _OF_PARSERS.split():
        row = Option(name, _ANY, None, annotation="str | bool | float")
        yield SourceOption(row.spark, "parser", row)


SOURCE_OPTIONS: Mapping[str, SourceOption] = MappingProxyType({one.name.lower(): one for one in _source_options()})
# Credentials come as one; no text stands for what gives them.
CREDENTIAL_NAMES = frozenset(name.replace("_", "") for name in CREDENTIALS - {"credentials"})


def store_texts(scheme: str) -> Mapping[str, Option]:
    """The options of the stores of a scheme that have a form as text, by their names here in lower case."""
    return {row.spark.lower(): row for row in store_options(scheme).values() if row.kind.is_text}


def store_options_of_all() -> Mapping[str, Option]:
    """The options of all schemes of ours. Loads all services."""
    return {name: row for scheme in reversed(BUILT_IN) for name, row in store_texts(scheme).items()}


def value_of(name: str, row: Option, text: Any) -> Any:
    """The value of the text of an option."""
    if not isinstance(text, str):
        raise invalid(f"the option {name} must be text")
    return row.read(text, f"the option {name}")


# Options of Spark's own file sources without a replacement. Names are in lower case.
_SPARKS: Mapping[str, str] = {
    name: said
    for said, names in (
        ("dates of the old calendar are refused: leave it out", "datetimerebasemode int96rebasemode"),
        ("use nullValue, which is one text", "nullvalues"),
        ("use onCorrupt=quarantine with quarantineLocation", "badrecordspath"),
        ("use unknownFields=rescue", "rescueddatacolumn"),
        ("name=value directories below the part of the path without wildcards are columns", "basepath"),
        ("files of every age are read; forgetAfterSeconds concerns deleted files", "maxfileage"),
        ("the order of files cannot be chosen", "latestfirst"),
        ("a file is its whole key", "filenameonly"),
        ("use cleanSource=move with cleanSource.moveDestination", "sourcearchivedir cleansource.archivedir"),
        (
            "use stateLocation, best below the checkpoint; checkpointLocation is for the writer",
            "checkpointlocation",
        ),
    )
    for name in names.split()
}


def unknown_option(name: str, schemes: Iterable[str]) -> ConfigInvalid:
    """The error for a name that is neither of a source nor of a store of these schemes, or of ours."""
    known = {name: option.name for name, option in SOURCE_OPTIONS.items()}
    rows = [option.row for option in SOURCE_OPTIONS.values()]
    for texts in (store_options_of_all(), *map(store_texts, schemes)):
        known |= {name: row.spark for name, row in texts.items()}
        rows += texts.values()
    theirs = {word.replace("_", "").lower(): row.spark for row in rows for word in row.words(*LIBRARIES)}
    if name.lower() in _SPARKS:
        hint = _SPARKS[name.lower()]
    elif (plain := name.lower().replace("_", "")) in theirs:
        hint = f"use {theirs[plain]}"
    elif name.lower().startswith(("fs.s3a.", "spark.hadoop.fs.s3a.")):
        hint = (
            "settings of S3A belong into the session; for one DataFrame there are endpointUrl, accessKeyId and others"
        )
    elif near := nearest(name.lower(), known):
        hint = f"did you mean {known[near]}?"
    else:
        hint = "its name is like none of them"
    return invalid(f"there is no option {name!r}; {hint} ({PAGE} has all)")


def check_scope(names: Iterable[str], use: Literal["batch", "stream"]) -> None:
    """``ConfigInvalid`` names options that have no effect in a batch, or in a stream."""
    options = (SOURCE_OPTIONS.get(name.lower()) for name in names)
    wrong = sorted(one.name for one in options if one is not None and one.row.scope not in ("all", use))
    if wrong:
        other = "streams (readStream, aioprefetch.spark.stream)" if use == "batch" else "batches (read)"
        raise invalid(f"{', '.join(wrong)}: only for {other}; leave out of a {use} what would mean nothing there")


def check_format(names: Iterable[str], chosen: str) -> None:
    """``ConfigInvalid`` names options that have no effect for the chosen format."""
    targets = format_named(chosen).options | COMMON_OPTIONS
    options = sorted(SOURCE_OPTIONS[name.lower()] for name in names if name.lower() in SOURCE_OPTIONS)
    wrong = [one for one in options if one.group == "format" and one.row.target not in targets]
    if wrong:
        what = "; ".join(f"{one.name} is for {', '.join(formats_that_take(one.row.target))}" for one in wrong)
        raise invalid(f"format={chosen} has no use for these options: {what}")


def check_arrow(names: Iterable[str], values: Mapping[str, Any]) -> None:
    """``ConfigInvalid`` names options that Spark's parsers alone have, and values that they alone know."""
    known = (one for one in map(SOURCE_OPTIONS.get, names) if one is not None)
    theirs = [one.name for one in known if one.group == "parser" or one.name == "comment"]
    if values.get("on_corrupt_record") in ("null", "rescue"):
        theirs.append(f"onCorruptRecord={values['on_corrupt_record']}")
    if theirs:
        raise invalid(
            f"{', '.join(theirs)}: for Spark's own parsers of CSV and JSON, which aioprefetch.spark.read and stream "
            f'have with parser="spark" ({PAGE})'
        )


def option_name(keyword: str) -> str:
    """``max_files_per_trigger`` and ``maxFilesPerTrigger`` as the latter, for keywords of Python functions."""
    if "." in keyword:  # A key of openFile().
        return keyword
    rows = [one.row for one in SOURCE_OPTIONS.values()]
    found = next((row for row in (*rows, *store_options_of_all().values()) if row.name == keyword), None)
    return (found or Option(keyword, TEXT)).spark
