"""Every text option: its name, what it sets, and how its text is read. Spark gives names in lower case.

Literal secrets stand only under names that Spark redacts by default in plans, the UI and event logs
(``spark.redaction.regex``: secret, password, token, access key; ``spark.sql.redaction.options.regex``: url).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.formats import format_named, formats_that_take
from aioprefetch.source.formats.record_format import COMMON_OPTIONS
from aioprefetch.source.options import COMPRESSIONS
from aioprefetch.spark import option_values as values

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


_on_failure = values.choice("fail", "skip", "quarantine")

_OPTIONS = (
    # where it is, and what becomes of it
    Option("path", "source", "path", values.text),
    Option("pathGlobFilter", "source", "name_filter", values.text),
    Option("stateLocation", "source", "state_location", values.text, scope="stream"),
    Option("attachTo", "source", "attach_to", values.text, scope="stream"),
    Option("quarantineLocation", "source", "quarantine_location", values.text),
    Option("columns", "source", "columns", values.names),
    Option("fileSchema", "source", "file_schema", values.text),
    Option("metadataColumns", "source", "metadata_columns", values.text),
    Option("pushFilters", "source", "push_filters", values.flag, scope="batch"),
    Option("allowEmpty", "source", "allow_empty", values.flag, scope="batch"),
    Option("cleanSource", "source", "clean", values.choice("off", "delete", "move"), scope="stream"),
    Option("cleanSource.moveDestination", "source", "clean_destination", values.text, scope="stream"),
    # listing
    Option("listIntervalSeconds", "list", "interval_seconds", values.seconds, scope="stream"),
    Option("sweepPagesPerTrigger", "list", "sweep_pages", values.count_or_zero, scope="stream"),
    Option("listRetrySeconds", "list", "retry_seconds", values.seconds, scope="stream"),
    Option("listAheadPages", "list", "ahead_pages", values.count_or_zero, scope="stream"),
    Option("forgetAfterSeconds", "list", "forget_after_seconds", values.seconds, scope="stream"),
    Option("hiddenFiles", "list", "hidden_files", values.flag),
    Option("overwrites", "list", "overwrites", values.choice("ignore", "reread", "fail"), scope="stream"),
    # how much a batch takes, and how it is divided
    Option("maxFilesPerTrigger", "admission", "files_max", values.count, scope="stream"),
    Option("maxBytesPerTrigger", "admission", "bytes_max", values.size_bytes, scope="stream"),
    Option("maxRowsPerTrigger", "admission", "rows_max", values.count, scope="stream"),
    Option("targetPartitionBytes", "partition", "target_bytes", values.size_bytes),
    Option("maxPartitions", "partition", "partitions_max", values.count),
    Option("splitFiles", "partition", "split_files", values.flag),
    Option("assign", "partition", "assign", values.choice("hash", "size"), scope="stream"),
    Option("taskSlots", "partition", "slots", values.count),
    # formats
    Option("format", "format", "format", values.format_name),
    Option("compression", "format", "compression", values.choice(*COMPRESSIONS)),
    Option("header", "format", "header", values.flag),
    Option("sep", "format", "delimiter", values.character),
    Option("delimiter", "format", "delimiter", values.character),
    Option("quote", "format", "quote", values.optional_character),
    Option("escape", "format", "escape", values.optional_character),
    Option("nullValue", "format", "null_value", values.any_text),
    Option("encoding", "format", "encoding", values.encoding),
    Option("timeZone", "format", "time_zone", values.time_zone),
    # Some zones have names that only Java knows: they are checked only where a file has times without a zone.
    Option("sessionTimeZone", "format", "time_zone", values.text),
    Option("multiLine", "format", "multi_line", values.flag),
    Option("lineSep", "format", "line_separator", values.separator),
    Option("inferSampleFiles", "format", "sample_files", values.count),
    Option("inferSampleBytes", "format", "sample_bytes", values.size_bytes),
    Option("unknownFields", "format", "unknown_fields", values.choice("ignore", "warn", "fail", "rescue")),
    # reading
    Option("onMissing", "failure", "on_missing", _on_failure),
    Option("onChanged", "failure", "on_changed", _on_failure),
    Option("onCorrupt", "failure", "on_corrupt", _on_failure),
    Option("batchRows", "read", "batch_rows", values.count),
    Option("filesInFlight", "read", "files_in_flight", values.count),
    Option("bytesInFlight", "read", "bytes_in_flight", values.size_bytes),
    Option("filters", "read", "filters", values.filters),
    # the store
    Option("endpointUrl", "operator", "endpoint_url", values.text),
    Option("region", "operator", "region", values.text),
    Option("accessKeyId", "operator", "access_key_id", values.text, secret=True),
    Option("secretAccessKey", "operator", "secret_access_key", values.text, secret=True),
    Option("sessionToken", "operator", "session_token", values.text, secret=True),
    Option("profile", "operator", "profile", values.text),
    Option("anonymous", "operator", "anonymous", values.flag),
    Option("addressingStyle", "operator", "addressing_style", values.choice("auto", "path", "virtual")),
    Option("signing", "operator", "signing", values.choice("presigned", "header")),
    Option("caBundle", "operator", "ca_bundle", values.text),
    Option("proxiesUrl", "operator", "proxies", values.mapping, secret=True),
    Option("allowHttp", "operator", "allow_http", values.flag),
    Option("sseCustomerSecretKey", "operator", "sse_customer_key", values.text, secret=True),
    Option("requestPayer", "operator", "request_payer", values.flag),
    Option("secretHeaders", "operator", "headers", values.mapping, secret=True),
    Option("authToken", "operator", "auth", values.text, secret=True),
    Option("followRedirects", "operator", "follow_redirects", values.flag),
    Option("followSymlinks", "operator", "follow_symlinks", values.flag),
    Option("memoryBytes", "operator", "memory_bytes", values.size_bytes),
    Option("blockBytes", "operator", "block_bytes", values.size_bytes),
    Option("prefetchBlocks", "operator", "prefetch_blocks", values.count_or_zero),
    Option("concurrency", "operator", "concurrency", values.count),
    Option("diskCache", "operator", "disk_cache", values.text),
    Option("budgetWaitSeconds", "operator", "budget_wait_seconds", values.seconds),
    Option("connectTimeoutSeconds", "operator", "connect_timeout_seconds", values.seconds),
    Option("readTimeoutSeconds", "operator", "read_timeout_seconds", values.seconds),
    Option("partBytes", "operator", "part_bytes", values.size_bytes),
    Option("attemptsMax", "operator", "attempts_max", values.count),
    Option("retrySeconds", "operator", "retry_seconds", values.seconds),
)
OPTIONS: Mapping[str, Option] = MappingProxyType({option.name.lower(): option for option in _OPTIONS})
SECRETS = frozenset(name for name, option in OPTIONS.items() if option.secret)
CREDENTIALS = frozenset({"accesskeyid", "secretaccesskey", "sessiontoken", "profile", "anonymous"})


# Options of Spark's own file sources that do not exist here, and what to use instead. Names in lower case.
_SPARKS: Mapping[str, str] = MappingProxyType(
    {
        "inferschema": "a schema is inferred wherever none is given; inferSampleFiles and inferSampleBytes bound it",
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
        "codec": "use compression",
        "ignoremissingfiles": "use onMissing=skip",
        "ignorecorruptfiles": "use onCorrupt=skip",
        "mode": "use onCorrupt for files that cannot be decoded, and unknownFields for fields",
        "columnnameofcorruptrecord": "use onCorrupt, and unknownFields=rescue for fields that the schema has not",
        "badrecordspath": "use onCorrupt=quarantine with quarantineLocation",
        "rescueddatacolumn": "use unknownFields=rescue",
        "recursivefilelookup": "directories are always looked through; a glob such as *.csv keeps to its level",
        "pathglobfilters": "use pathGlobFilter",
        "basepath": "name=value directories below the part of the path without wildcards are columns",
        "modifiedbefore": "files are not chosen by their times",
        "modifiedafter": "files are not chosen by their times",
        "maxfileage": "files count whatever their age; forgetAfterSeconds is for those that are gone",
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
    """The option of a name in any case. ``ConfigInvalid`` names the nearest option, or what to use instead."""
    option = OPTIONS.get(name.lower())
    if option is not None:
        return option
    near = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.5)
    if name.lower() in _SPARKS:
        hint = _SPARKS[name.lower()]
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
    found = (OPTIONS.get(name.lower()) for name in names)
    wrong = sorted(option.name for option in found if option is not None and option.scope not in ("all", use))
    if wrong:
        other = "streams (readStream, aioprefetch.spark.stream)" if use == "batch" else "batches (read)"
        raise ConfigInvalid(
            f"{', '.join(wrong)}: only for {other}; leave out of a {use} what would mean nothing there",
            operation="configure",
        )


def check_format(names: Iterable[str], chosen: str) -> None:
    """``ConfigInvalid`` names options that have no effect for the chosen format."""
    known = format_named(chosen).options | COMMON_OPTIONS
    options = sorted((OPTIONS[name.lower()] for name in names), key=lambda option: option.name)
    wrong = [option for option in options if option.group == "format" and option.target not in known]
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
