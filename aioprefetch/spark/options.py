"""The text options: their names, what each sets, and how its text becomes a value. Pure.

Spark gives names in lower case. Messages name the option and show its value, unless the value may be a secret.
Literal secrets stand only under names that Spark redacts by default in plans, the UI and event logs
(``spark.redaction.regex``: secret, password, token, access key; ``spark.sql.redaction.options.regex``: url).
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from aioprefetch.errors import ConfigInvalid, excerpt
from aioprefetch.ranges import bytes_at_least
from aioprefetch.source.columns.casts import zone_named
from aioprefetch.source.formats import format_named, format_names, formats_that_take
from aioprefetch.source.formats.record_format import COMMON_OPTIONS
from aioprefetch.source.formats.records import codec_name
from aioprefetch.source.options import COMPRESSIONS

Parse = Callable[[str, str], Any]

# Python also accepts digits of other scripts, underscores between digits, and numbers of any length.
_INTEGER = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"([0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_FORMATS_OF_SPARK = {"json": "jsonl", "binaryfile": "binary"}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# Values of filters that JSON has no form for, each as an object with one key.
_TYPED: dict[str, Callable[[Any], Any]] = {
    "$date": dt.date.fromisoformat,
    "$timestamp": dt.datetime.fromisoformat,
    "$decimal": decimal.Decimal,
    "$binary": lambda text: base64.b64decode(text, validate=True),
}


def invalid(option: str, value: str, right: str) -> ConfigInvalid:
    """The error for a value that is not ``right``."""
    return ConfigInvalid(f"the option {option}={excerpt(value)!r} is not {right}", operation="configure")


def text(option: str, value: str) -> str:
    """The text itself."""
    if not value:
        raise invalid(option, value, "a text: leave the option away instead")
    return value


def any_text(option: str, value: str) -> str:
    """The text itself, which may be empty."""
    return value


def encoding(option: str, value: str) -> str:
    """The name of an encoding of text."""
    try:
        codec_name(value)
    except ConfigInvalid:
        raise invalid(
            option, value, "an encoding of text that Python has, such as utf-8, latin-1, cp1252 or utf-16"
        ) from None
    return value


def time_zone(option: str, value: str) -> str:
    """The name of a zone, or an offset."""
    try:
        zone_named(value)
    except ConfigInvalid:
        raise invalid(option, value, "a time zone such as Europe/Berlin, UTC or +02:00") from None
    return value


def size_bytes(option: str, value: str) -> int:
    """``1048576``, ``64m``, ``64 MB``, ``1g``: powers of 1024."""
    return _size(option, value, 1, "a size above 0 such as 1048576, 64m or 1g")


def size_or_zero(option: str, value: str) -> int:
    """A size as for ``size_bytes``, or 0."""
    return _size(option, value, 0, "a size such as 1048576, 64m or 0")


def _size(option: str, value: str, lowest: int, right: str) -> int:
    try:
        return bytes_at_least(lowest, value, option, operation="configure", path="")
    except ConfigInvalid:
        raise invalid(option, value, right) from None


def count(option: str, value: str) -> int:
    """An integer of at least 1."""
    return _integer(option, value, 1)


def count_or_zero(option: str, value: str) -> int:
    """An integer of at least 0."""
    return _integer(option, value, 0)


def seconds(option: str, value: str) -> float:
    """A number of seconds, 0 or above."""
    if _SECONDS.fullmatch(value.strip()) is None:
        raise invalid(option, value, "a number of seconds such as 5 or 0.5")
    return float(value)


def flag(option: str, value: str) -> bool:
    """``true`` or ``false``."""
    meaning = _FLAGS.get(value.strip().lower())
    if meaning is None:
        raise invalid(option, value, "true or false")
    return meaning


def format_name(option: str, value: str) -> str:
    """The name of a format; ``json`` and ``binaryFile`` are Spark's names for two of them."""
    name = value.strip().lower()
    name = _FORMATS_OF_SPARK.get(name, name)
    try:
        return format_named(name).name
    except ConfigInvalid:
        raise invalid(option, value, f"one of {', '.join(format_names())}") from None


def choice(*values: str, **other_names: str) -> Parse:
    """One of ``values``, in any case; ``other_names``, in lower case, map to them."""

    def parse(option: str, value: str) -> str:
        word = value.strip().lower()
        chosen = other_names.get(word, word)
        if chosen not in values:
            raise invalid(option, value, f"one of {', '.join(values)}")
        return chosen

    return parse


def character(option: str, value: str) -> str:
    r"""One character of ASCII; ``\t`` stands for a tab."""
    value = {"\\t": "\t", "\\\\": "\\"}.get(value, value)
    if len(value) != 1 or not value.isascii() or value in "\r\n":
        raise invalid(option, value, "one character of ASCII that ends no line")
    return value


def optional_character(option: str, value: str) -> str | None:
    """One character; ``None`` for an empty text."""
    return character(option, value) if value else None


def separator(option: str, value: str) -> str:
    r"""The end of a line. ``\n``, ``\r`` and ``\t`` may be escaped."""
    for written, meant in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t")):
        value = value.replace(written, meant)
    return text(option, value)


def name_list(option: str, value: str) -> tuple[str, ...]:
    """Names, separated by commas or as a JSON list. No name twice."""
    if value.lstrip().startswith("["):
        parsed = _json(option, value)
        listed = parsed if isinstance(parsed, list) else []
    else:
        listed = [name.strip() for name in value.split(",")]
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise invalid(option, value, "a list of names such as id,name or a JSON list of them")
    if len(set(listed)) < len(listed):
        raise invalid(option, value, "a list of different names")
    return tuple(listed)


def mapping(option: str, value: str) -> dict[str, str]:
    """A JSON object of texts. The value is never shown."""
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict) or not all(isinstance(item, str) for item in parsed.values()):
        raise ConfigInvalid(f"the option {option} is not a JSON object of texts", operation="configure")
    return parsed


def filters(option: str, value: str) -> list[Any]:
    """A JSON list of ``[column, operator, value]``, or a list of such lists: the alternatives.

    ``{"$date": "2024-01-31"}``, ``{"$timestamp": "2024-01-31T12:00:00+00:00"}``, ``{"$decimal": "1.20"}`` and
    ``{"$binary": base64}`` are values that JSON lacks.
    """
    parsed = _json(option, value)
    if (
        not isinstance(parsed, list)
        or not parsed
        or not all(isinstance(alternative, list) and alternative for alternative in parsed)
    ):
        raise invalid(option, value, 'a JSON list such as [["id", ">", 3], ["day", "=", {"$date": "2024-01-31"}]]')
    alternatives = parsed if all(isinstance(alternative, list) for alternative in parsed[0]) else [parsed]
    return [[_clause(option, value, clause) for clause in alternative] for alternative in alternatives]


def filters_to_text(alternatives: Sequence[Any]) -> str:
    """The text that ``filters`` reads. ``TypeError`` for values of other types."""
    return json.dumps(list(alternatives), default=_typed)


def _clause(option: str, value: str, clause: Any) -> tuple[str, str, Any]:
    if not isinstance(clause, list) or len(clause) != 3 or not isinstance(clause[0], str):
        raise invalid(option, value, 'a list of clauses such as ["id", ">", 3]')
    column, operator, operand = clause
    if isinstance(operand, list):
        return column, operator, [_operand(option, value, member) for member in operand]
    return column, operator, _operand(option, value, operand)


def _operand(option: str, value: str, operand: Any) -> Any:
    if not isinstance(operand, dict):
        return operand
    [(kind, written)] = operand.items() if len(operand) == 1 else [("", None)]
    try:
        return _TYPED[kind](written)
    except (KeyError, TypeError, ValueError, decimal.InvalidOperation):
        raise invalid(option, value, f"a filter: {operand!r} must be one of {', '.join(_TYPED)}") from None


def _typed(operand: Any) -> Any:
    if isinstance(operand, dt.datetime):
        return {"$timestamp": operand.isoformat()}
    if isinstance(operand, dt.date):
        return {"$date": operand.isoformat()}
    if isinstance(operand, decimal.Decimal):
        return {"$decimal": str(operand)}
    if isinstance(operand, (bytes, bytearray)):
        return {"$binary": base64.b64encode(operand).decode()}
    if isinstance(operand, (set, frozenset)):
        return sorted(operand)
    raise TypeError(f"a filter cannot compare with {type(operand).__name__}")


def _integer(option: str, value: str, least: int) -> int:
    if _INTEGER.fullmatch(value.strip()) is None or int(value) < least:
        raise invalid(option, value, f"an integer of at least {least}")
    return int(value)


def _json(option: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise invalid(option, value, "JSON") from None


Group = Literal["source", "list", "admission", "partition", "format", "failure", "read", "operator"]
Scope = Literal["all", "batch", "stream"]

PAGE = "docs/reference/spark-options.md"

# Prefixes of names that are keys of openFile(), and the prefix that each becomes.
OPEN_FILE_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "mapreduce.job.input.file.option.": "mapreduce.job.input.file.option.",
        "mapreduce.job.input.file.must.": "mapreduce.job.input.file.must.",
        "openfile.option.": "mapreduce.job.input.file.option.",
        "openfile.must.": "mapreduce.job.input.file.must.",
    }
)


@dataclass(frozen=True, slots=True)
class Option:
    """An option. ``target`` is the field of its group that it sets; ``secret`` says that its value may be one.

    ``scope`` says whether it is for batches, streams or both; formats say which options of the group ``format`` they
    take.
    """

    name: str
    group: Group
    target: str
    parse: Callable[[str, str], object]
    secret: bool = False
    scope: Scope = "all"


_on_failure = choice("fail", "skip", "quarantine")

_OPTIONS = (
    # where the source is, and the handling of its files
    Option("path", "source", "path", text),
    Option("pathGlobFilter", "source", "name_filter", text),
    Option("stateLocation", "source", "state_location", text, scope="stream"),
    Option("attachTo", "source", "attach_to", text, scope="stream"),
    Option("quarantineLocation", "source", "quarantine_location", text),
    Option("columns", "source", "columns", name_list),
    Option("fileSchema", "source", "file_schema", text),
    Option("metadataColumns", "source", "metadata_columns", text),
    Option("pushFilters", "source", "push_filters", flag, scope="batch"),
    Option("allowEmpty", "source", "allow_empty", flag, scope="batch"),
    Option("cleanSource", "source", "clean", choice("off", "delete", "move"), scope="stream"),
    Option("cleanSource.moveDestination", "source", "clean_destination", text, scope="stream"),
    # listing
    Option("listIntervalSeconds", "list", "interval_seconds", seconds, scope="stream"),
    Option("sweepPagesPerTrigger", "list", "sweep_pages", count_or_zero, scope="stream"),
    Option("listRetrySeconds", "list", "retry_seconds", seconds, scope="stream"),
    Option("listAheadPages", "list", "ahead_pages", count_or_zero, scope="stream"),
    Option("forgetAfterSeconds", "list", "forget_after_seconds", seconds, scope="stream"),
    Option("hiddenFiles", "list", "hidden_files", flag),
    Option("overwrites", "list", "overwrites", choice("ignore", "reread", "fail"), scope="stream"),
    # how much a batch takes, and how it is divided
    Option("maxFilesPerTrigger", "admission", "files_max", count, scope="stream"),
    Option("maxBytesPerTrigger", "admission", "bytes_max", size_bytes, scope="stream"),
    Option("maxRowsPerTrigger", "admission", "rows_max", count, scope="stream"),
    Option("targetPartitionBytes", "partition", "target_bytes", size_bytes),
    Option("maxPartitions", "partition", "partitions_max", count),
    Option("splitFiles", "partition", "split_files", flag),
    Option("assign", "partition", "assign", choice("hash", "size"), scope="stream"),
    Option("taskSlots", "partition", "slots", count),
    # formats
    Option("format", "format", "format", format_name),
    Option("compression", "format", "compression", choice(*COMPRESSIONS)),
    Option("header", "format", "header", flag),
    Option("sep", "format", "delimiter", character),
    Option("delimiter", "format", "delimiter", character),
    Option("quote", "format", "quote", optional_character),
    Option("escape", "format", "escape", optional_character),
    Option("nullValue", "format", "null_value", any_text),
    Option("encoding", "format", "encoding", encoding),
    Option("timeZone", "format", "time_zone", time_zone),
    # Some zones have names that only Java knows: they are checked only where a file has times without a zone.
    Option("sessionTimeZone", "format", "time_zone", text),
    Option("multiLine", "format", "multi_line", flag),
    Option("lineSep", "format", "line_separator", separator),
    Option("inferSchema", "format", "infer_types", flag),
    Option("inferSampleFiles", "format", "sample_files", count),
    Option("inferSampleBytes", "format", "sample_bytes", size_bytes),
    Option("unknownFields", "format", "unknown_fields", choice("ignore", "warn", "fail", "rescue")),
    # reading
    Option("onMissing", "failure", "on_missing", _on_failure),
    Option("onChanged", "failure", "on_changed", _on_failure),
    Option("onCorrupt", "failure", "on_corrupt", _on_failure),
    Option("batchRows", "read", "batch_rows", count),
    Option("filesInFlight", "read", "files_in_flight", count),
    Option("bytesInFlight", "read", "bytes_in_flight", size_bytes),
    Option("filters", "read", "filters", filters),
    # the store
    Option("endpointUrl", "operator", "endpoint_url", text),
    Option("region", "operator", "region", text),
    Option("accessKeyId", "operator", "access_key_id", text, secret=True),
    Option("secretAccessKey", "operator", "secret_access_key", text, secret=True),
    Option("sessionToken", "operator", "session_token", text, secret=True),
    Option("fallback", "operator", "fallback", choice("ambient")),
    Option("profile", "operator", "profile", text),
    Option("anonymous", "operator", "anonymous", flag),
    Option("addressingStyle", "operator", "addressing_style", choice("auto", "path", "virtual")),
    Option("signing", "operator", "signing", choice("header", "presigned")),
    Option("caBundle", "operator", "ca_bundle", text),
    Option("proxiesUrl", "operator", "proxies", mapping, secret=True),
    Option("allowHttp", "operator", "allow_http", flag),
    Option("sseCustomerSecretKey", "operator", "sse_customer_key", text, secret=True),
    Option("requestPayer", "operator", "request_payer", flag),
    Option("serviceAccount", "operator", "service_account", text),
    Option("serviceAccountSecretKey", "operator", "service_account_key", text, secret=True),
    Option("applicationCredentials", "operator", "application_credentials", text),
    Option("accountName", "operator", "account_name", text),
    Option("accountSecretKey", "operator", "account_key", text, secret=True),
    Option("sasToken", "operator", "sas_key", text, secret=True),
    Option("tenantId", "operator", "tenant_id", text),
    Option("clientId", "operator", "client_id", text),
    Option("clientSecret", "operator", "client_secret", text, secret=True),
    Option("useEmulator", "operator", "use_emulator", flag),
    Option("secretHeaders", "operator", "headers", mapping, secret=True),
    Option("authToken", "operator", "auth", text, secret=True),
    Option("followRedirects", "operator", "follow_redirects", flag),
    Option("decode", "operator", "decode", flag),
    Option("followSymlinks", "operator", "follow_symlinks", flag),
    Option("memoryBytes", "operator", "memory_bytes", size_bytes),
    Option("blockBytes", "operator", "block_bytes", size_bytes),
    Option("prefetchBlocks", "operator", "prefetch_blocks", count_or_zero),
    Option("concurrency", "operator", "concurrency", count),
    Option("diskCache", "operator", "disk_cache", text),
    Option("budgetWaitSeconds", "operator", "budget_wait_seconds", seconds),
    Option("drainBytes", "operator", "drain_bytes", size_or_zero),
    Option("connectTimeoutSeconds", "operator", "connect_timeout_seconds", seconds),
    Option("readTimeoutSeconds", "operator", "read_timeout_seconds", seconds),
    Option("partBytes", "operator", "part_bytes", size_bytes),
    Option("checksum", "operator", "checksum", text),
    Option("attemptsMax", "operator", "attempts_max", count),
    Option("retrySeconds", "operator", "retry_seconds", seconds),
)
OPTIONS: Mapping[str, Option] = MappingProxyType({option.name.lower(): option for option in _OPTIONS})
CREDENTIALS = frozenset({"accesskeyid", "secretaccesskey", "sessiontoken", "profile", "anonymous"})


# Options of Spark's own file sources that do not exist here, and their replacements. Names are in lower case.
_SPARKS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("maxcolumns", "maxcharspercolumn"), "there is no such limit: leave it out"),
        **dict.fromkeys(("nanvalue", "positiveinf", "negativeinf"), "read other texts as string, and convert them"),
        **dict.fromkeys(("ignoreleadingwhitespace", "ignoretrailingwhitespace"), "texts keep their blanks: use trim()"),
        **dict.fromkeys(("unescapedquotehandling", "chartoescapequoteescaping"), "see quote and escape"),
        **dict.fromkeys(("primitivesasstring", "prefersdecimal", "dropfieldifallnull", "preferdate"), "give a schema"),
        **dict.fromkeys(
            ("datetimerebasemode", "int96rebasemode"), "dates of the old calendar are refused: leave it out"
        ),
        "locale": "dates and numbers are read in the same form everywhere: leave it out",
        "samplingratio": "use inferSampleFiles and inferSampleBytes",
        "mergeschema": "the schemas of inferSampleFiles files are merged always",
        "enforceschema": "columns are found by the names in the header; without one by position",
        "charset": "use encoding",
        "charsetname": "use encoding",
        "comment": "lines of comments are not known: take them out, or read them as text",
        "headers": "use header",
        "hasheader": "use header",
        "separator": "use sep",
        "fieldsep": "use sep",
        "nullvalues": "use nullValue, which is one text",
        "emptyvalue": "an empty field in quotes is an empty text always; see nullValue",
        "dateformat": "dates are read as yyyy-mm-dd; read others as string, and convert them by to_date",
        "timestampformat": "times are read in the form of ISO 8601; read others as string, and use to_timestamp",
        "timestampntzformat": "times are read as ISO 8601 writes them; read others as string, and convert them",
        "codec": "use compression",
        "ignoremissingfiles": "use onMissing=skip",
        "ignorecorruptfiles": "use onCorrupt=skip",
        "mode": "use onCorrupt for files that cannot be decoded, and unknownFields for fields",
        "columnnameofcorruptrecord": "use onCorrupt, and unknownFields=rescue for fields that the schema has not",
        "badrecordspath": "use onCorrupt=quarantine with quarantineLocation",
        "rescueddatacolumn": "use unknownFields=rescue",
        "recursivefilelookup": "directories are always looked through; a glob such as *.csv keeps to its level",
        "pathglobfilters": "use pathGlobFilter",
        "matchpattern": "use pathGlobFilter",
        "basepath": "name=value directories below the part of the path without wildcards are columns",
        "modifiedbefore": "files are not chosen by their times",
        "modifiedafter": "files are not chosen by their times",
        "maxfileage": "files of every age are read; forgetAfterSeconds concerns deleted files",
        "latestfirst": "the order of files cannot be chosen",
        "filenameonly": "a file is its whole key",
        "maxcachedfiles": "use listAheadPages",
        "sourcearchivedir": "use cleanSource=move with cleanSource.moveDestination",
        "cleansource.archivedir": "use cleanSource=move with cleanSource.moveDestination",
        "checkpointlocation": "use stateLocation, best below the checkpoint; checkpointLocation is for the writer",
        "wholetext": "use format=binary for files as a whole",
        "wholefile": "use multiLine",
        "accesskey": "use accessKeyId",
        "secretkey": "use secretAccessKey",
        "endpoint": "use endpointUrl",
    }
)


def find_option(name: str) -> Option:
    """The option of a name in any case. ``ConfigInvalid`` names the nearest option or the replacement."""
    option = OPTIONS.get(name.lower())
    if option is not None:
        return option
    near = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.7)
    if name.lower() in _SPARKS:
        hint = _SPARKS[name.lower()]
    elif name.lower().startswith("allow"):
        hint = "lines of JSON are read as RFC 8259 has them, with NaN and Infinity: leave it out"
    elif name.lower().startswith(("fs.s3a.", "spark.hadoop.fs.s3a.")):
        hint = (
            "settings of S3A belong into the session; for one DataFrame there are endpointUrl, accessKeyId and others"
        )
    elif near:
        hint = f"did you mean {OPTIONS[near[0]].name}?"
    else:
        hint = "its name is like none of them"
    raise ConfigInvalid(f"there is no option {name!r}; {hint} ({PAGE} has all)", operation="configure")


def check_scope(names: Iterable[str], use: Literal["batch", "stream"]) -> None:
    """``ConfigInvalid`` names options that have no effect in a batch, or in a stream."""
    options = (OPTIONS.get(name.lower()) for name in names)
    wrong = sorted(option.name for option in options if option is not None and option.scope not in ("all", use))
    if wrong:
        other = "streams (readStream, aioprefetch.spark.stream)" if use == "batch" else "batches (read)"
        raise ConfigInvalid(
            f"{', '.join(wrong)}: only for {other}; leave out of a {use} what would mean nothing there",
            operation="configure",
        )


def check_format(names: Iterable[str], chosen: str) -> None:
    """``ConfigInvalid`` names options that have no effect for the chosen format."""
    targets = format_named(chosen).options | COMMON_OPTIONS
    options = sorted((OPTIONS[name.lower()] for name in names), key=lambda option: option.name)
    wrong = [option for option in options if option.group == "format" and option.target not in targets]
    if wrong:
        what = "; ".join(f"{option.name} is for {', '.join(formats_that_take(option.target))}" for option in wrong)
        raise ConfigInvalid(f"format={chosen} has no use for these options: {what}", operation="configure")


def option_name(keyword: str) -> str:
    """``max_files_per_trigger`` and ``maxFilesPerTrigger`` as the latter, for keywords of Python functions."""
    by_target = {option.target: option.name for option in _OPTIONS if option.group == "operator"}
    by_target["clean_source_move_destination"] = "cleanSource.moveDestination"
    first, *rest = keyword.split("_")
    # A name with a dot is a key of openFile().
    camel = keyword if "." in keyword else first + "".join(part.capitalize() for part in rest)
    return by_target.get(keyword, camel)
