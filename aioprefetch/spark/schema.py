"""The schema of a source in Spark and in Arrow. If the user gives none, it is inferred from a sample of the files.

Spark accepts a record batch only if its schema equals its own one exactly: order, types and nullability.

The schema of a stream is stored beside its state at its first start, and so are settings that must not change: each is
one file with a checksum, written once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    ConfigInvalid,
    Error,
    NotFound,
    StateConflict,
    Unsupported,
    UntrustedMetadata,
    excerpt,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.plan.patterns import literal_glob
from aioprefetch.source.differences import warn_of_difference
from aioprefetch.source.options import METADATA_PARTS, METADATA_STRUCT, RESCUED_COLUMN, UnknownFields
from aioprefetch.source.reading import infer_schema, list_files
from aioprefetch.source.stored_json import seal, unseal
from aioprefetch.spark.operators import locate, outlasted, planning_operator, state_operator
from aioprefetch.spark.options import SOURCE_OPTIONS
from aioprefetch.spark.settings import SourceSettings, SourceUrl, with_location

SCHEMA_NAME = "schema.json"
STREAM_NAME = "stream.json"
VERSION = 1

# How bytes become records: the rest of a half read file must be read in the same way.
_LASTING = (
    *("format", "compression", "encoding", "header", "delimiter", "quote", "escape", "null_value", "multi_line"),
    *("line_separator", "comment", "whole_text", "time_zone"),
)
# The first of several names of an option.
_NAMES = {one.row.target: one.name for one in reversed([*SOURCE_OPTIONS.values()]) if one.group == "format"}


async def read_kept(store: Operator, name: str, fields: frozenset[str]) -> dict[str, Any] | None:
    """The fields of a file, or ``None``. ``UntrustedMetadata`` if it is damaged, or of another format."""
    try:
        data = await store.read(name)
    except NotFound:
        return None
    body: Any = unseal(data, path=name)[0]
    is_whole = isinstance(body, dict) and fields <= body.keys() and isinstance(body.get("format", {}), dict)
    if not is_whole or type(body.get("v")) is not int or body["v"] != VERSION:
        raise UntrustedMetadata(
            f"what was kept with the state at {store.info.url} cannot be read: it is not of this format",
            operation="read_state",
            path=name,
        )
    kept: dict[str, Any] = body
    return kept


async def keep(store: Operator, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Write a file unless it exists. Returns the fields that are stored then."""
    body = {"v": VERSION, **body}
    conditional = store.capability.write_if_not_exists
    try:
        await store.write(name, seal(body)[0], if_not_exists=conditional)
    except (AlreadyExists, ConditionNotMatch):
        pass
    except Error as error:
        # The response was lost, perhaps not the file.
        if error.status == "permanent" or await read_kept(store, name, frozenset(body)) is None:
            raise
    return await read_kept(store, name, frozenset(body)) or body


async def resolved(settings: SourceSettings, store: Operator) -> SourceSettings:
    """The settings with the location of the first start, or, before that, by a ``stat`` of the store.

    ``StateConflict`` names an option that has changed since the first start.
    """
    kept = await read_kept(store, STREAM_NAME, frozenset({"url", "object", "format"}))
    if kept is None or kept["url"] != settings.url:  # The state itself refuses another source.
        return with_location(settings, await locate(settings))
    _check_formats(kept["format"], settings, store)
    location = settings.location
    if kept["object"] and location.name is not None and location.parent is not None:
        return with_location(settings, SourceUrl(location.parent, literal_glob(location.name)))
    return settings


async def keep_stream(settings: SourceSettings, store: Operator, *, original: SourceSettings) -> None:
    """Store the settings that must not change (``resolved`` from the ``original`` ones), once the state is open."""
    body = {"url": original.url, "object": settings.location != original.location, "format": _formats(settings)}
    if await read_kept(store, STREAM_NAME, frozenset(body)) is None:
        kept = await keep(store, STREAM_NAME, body)
        _check_formats(kept["format"], settings, store)


def _formats(settings: SourceSettings) -> dict[str, Any]:
    formats = replace(settings.formats, time_zone=settings.formats.time_zone or "UTC")
    return {_NAMES[target]: getattr(formats, target) for target in _LASTING}


def _check_formats(kept: dict[str, Any], settings: SourceSettings, store: Operator) -> None:
    now = _formats(settings)
    changed = [name for name in now if name in kept and kept[name] != now[name]]
    if changed:
        what = ", ".join(f"{name} was {kept[name]!r} and is {now[name]!r}" for name in changed)
        raise StateConflict(
            f"options have changed since the stream with the state at {store.info.url} started: {what}. Files may be "
            "half read: put the options back, or start again with another stateLocation and another checkpoint",
            operation="read_state",
            path=STREAM_NAME,
        )


# --- types ------------------------------------------------------------------------------------------------------------

# The type, not a field of that name.
_VARIANT = re.compile(r"(?:^|[:<,])variant(?=$|[>,])")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that batches of a DataFrame must have. ``Unsupported`` for a type that Arrow has no form for."""
    for field in schema.fields:
        if _VARIANT.search(field.dataType.simpleString()):
            raise Unsupported(
                f"the column {field.name!r} is a VARIANT, which only Spark's own readers know", operation="plan_batch"
            )
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise Unsupported(f"the schema cannot be read: {error.getMessage()}", operation="plan_batch") from error


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of Spark for an inferred one. Everything is nullable, as with Spark's own files.

    A field without any value is a string. ``Unsupported`` names a field that Spark has no type for.
    """
    return StructType([StructField(field.name, _spark_type(field), nullable=True) for field in schema])


def narrowed(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """The fields that ``columns`` name, in their order; all without it. ``ConfigInvalid`` names an unknown one.

    A name matches in any case if only one field matches, as in Spark.
    """
    return schema if columns is None else StructType([_field(schema, name) for name in columns])


def schema_from_json(text: str) -> StructType:
    """The option ``fileSchema``: the JSON of a StructType. ``ConfigInvalid`` for anything else."""
    try:
        return StructType.fromJson(json.loads(text))
    except Exception as error:  # The parser raises errors of many kinds.
        raise ConfigInvalid(
            f"fileSchema must be what StructType.json() gives, not {excerpt(text, 80)!r}", operation="configure"
        ) from error


def nullable(schema: StructType) -> StructType:
    """The schema with nulls allowed at every level."""
    return StructType([_nullable_field(field) for field in schema.fields])


def _field(schema: StructType, name: str) -> StructField:
    exact = [field for field in schema.fields if field.name == name]
    matches = exact or [field for field in schema.fields if field.name.lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(field.name for field in schema.fields)
    raise ConfigInvalid(f"columns: there is no field {name!r}, or several; there are {names}", operation="configure")


def _spark_type(field: pa.Field) -> DataType:
    try:
        return _nullable(from_arrow_type(field.type), nulls=StringType())
    except (PySparkException, ValueError) as error:
        raise Unsupported(
            f"the field {field.name!r} is {field.type}, for which Spark has no type; leave it out with columns=, or "
            "give a schema",
            operation="infer_schema",
        ) from error


def _nullable(kind: DataType, *, nulls: DataType | None = None) -> DataType:
    """The type with nulls allowed at every level, and with ``nulls`` in place of the null type."""
    if isinstance(kind, NullType):
        return nulls or kind
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType, nulls=nulls), containsNull=True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType, nulls=nulls), _nullable(kind.valueType, nulls=nulls), True)
    if isinstance(kind, StructType):
        return StructType([_nullable_field(field, nulls=nulls) for field in kind.fields])
    return kind


def _nullable_field(field: StructField, *, nulls: DataType | None = None) -> StructField:
    return StructField(field.name, _nullable(field.dataType, nulls=nulls), True, field.metadata)


# --- the schema of a source -------------------------------------------------------------------------------------------

METADATA_FIELDS = {
    "_file": StructField("_file", StringType()),
    "_offset": StructField("_offset", LongType()),
    "_etag": StructField("_etag", StringType()),
    "_mtime": StructField("_mtime", TimestampType()),
}
_PARTS = {"file_modification_time": TimestampType(), **dict.fromkeys(("file_path", "file_name", "etag"), StringType())}
METADATA_FIELDS[METADATA_STRUCT] = StructField(
    METADATA_STRUCT, StructType([StructField(name, _PARTS.get(name, LongType())) for name in METADATA_PARTS])
)

# A stream starts before a large bucket is listed to its end: its schema is inferred from at most this many keys.
STREAM_KEYS_MAX = 100_000
# The last of at most this number of keys is read for fields that have the names of requested columns.
_NAMES_KEYS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Inferred:
    """All fields of a source without a user's schema, and the names of those whose values are in directories."""

    schema: StructType
    directories: tuple[str, ...] = ()


def batch_fields(settings: SourceSettings) -> Inferred:
    """The fields of a batch without a schema of the user."""
    return outlasted(settings, lambda: _fields_now(settings, None))


def stream_fields(settings: SourceSettings) -> Inferred:
    """The fields of a stream without a schema of the user: the fields of its first start, stored with the state."""
    return outlasted(settings, lambda: _kept_fields(settings))


def projected(fields: Inferred, settings: SourceSettings) -> StructType:
    """The schema of a DataFrame of these fields: narrowed to ``columns``, with the metadata columns.

    ``ConfigInvalid`` where a field has the name of one of them.
    """
    _check_names(settings, fields.schema.names)
    if fields.directories and not (settings.location.glob or "**/").startswith("**/"):
        warn_of_difference("wildcards")
    more = [] if settings.columns is None else [METADATA_FIELDS[name] for name in settings.metadata_columns]
    return with_metadata(narrowed(StructType([*fields.schema.fields, *more]), settings.columns), settings)


def with_policy(settings: SourceSettings, fields: Inferred | None, policy: UnknownFields) -> SourceSettings:
    """The settings with a policy for unknown fields of an inferred schema, unless an option sets one.

    With ``columns``, or with a schema of the user, the user chose which fields are left out.
    """
    if fields is None or settings.columns is not None or settings.formats.unknown_fields is not None:
        return settings
    return replace(settings, formats=replace(settings.formats, unknown_fields=policy), is_inferred=True)


def with_metadata(schema: StructType, settings: SourceSettings) -> StructType:
    """A schema with the requested metadata columns, and the one for rescued fields, where it lacks them.

    Everything is nullable, as in the schemas of Spark's own readers of files.
    """
    names = set(schema.names)
    fields = [*schema.fields, *(field for field in _added(settings) if field.name not in names)]
    return nullable(StructType(fields))


def _added(settings: SourceSettings) -> list[StructField]:
    wanted = [METADATA_FIELDS[name] for name in settings.metadata_columns]
    if settings.formats.unknown_fields == "rescue":
        wanted = [StructField(RESCUED_COLUMN, StringType()), *wanted]
    return wanted


def _check_added(settings: SourceSettings, schema: StructType) -> None:
    """``ConfigInvalid`` if columns were requested that the schema of the user lacks, or has with other fields."""
    missing = [
        field
        for field in _added(settings)
        if field.name not in schema.names or not _fields_of(schema[field.name]) <= _fields_of(field)
    ]
    if missing:
        names = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in missing)
        raise ConfigInvalid(
            f"metadataColumns or unknownFields=rescue ask for columns that the schema lacks: add {names} to what "
            "schema() is given, or use aioprefetch.spark.read and stream, which do",
            operation="configure",
        )


_INSTEAD = {
    RESCUED_COLUMN: "set unknownFields to ignore, warn or fail",
    METADATA_STRUCT: "metadataColumns=true has columns of other names",
}


def _fields_of(field: StructField) -> set[str]:
    return set(getattr(field.dataType, "names", ()))


def _check_names(settings: SourceSettings, names: Sequence[str]) -> None:
    """``ConfigInvalid`` if files have a field with the name of a requested column: one would hide the other."""
    taken = {name.lower() for name in names}
    for field in _added(settings):
        if field.name in taken:
            raise ConfigInvalid(
                f"files in {settings.url} have a field {field.name!r}, so no column that is added can have that name: "
                f"{_INSTEAD.get(field.name, 'metadataColumns=_metadata has all in one struct, a list some of them')}",
                operation="configure",
            )


def _names_in_a_file(settings: SourceSettings) -> list[str]:
    """The fields of one file; none where there is no such file: then the query itself says what is wrong."""
    try:
        settings = replace(settings, formats=replace(settings.formats, sample_files=1))
        return outlasted(settings, lambda: _fields_now(settings, _NAMES_KEYS_MAX)).schema.names
    except Error:
        return []


async def _fields_now(settings: SourceSettings, keys_max: int | None) -> Inferred:
    """All fields of the files that exist now, or of the first of them."""
    settings = with_location(settings, await locate(settings))
    return await _sampled(settings, keys_max)


async def _kept_fields(settings: SourceSettings) -> Inferred:
    """All fields of a stream at its first start. ``StateConflict`` if that was a stream of another source."""
    store = state_operator(settings)
    kept = await read_kept(store, SCHEMA_NAME, frozenset({"url", "schema"}))
    if kept is None:
        place = await resolved(settings, store)
        inferred = await _sampled(place, STREAM_KEYS_MAX)
        body = {
            "url": settings.url,
            "schema": json.loads(inferred.schema.json()),
            "directories": [*inferred.directories],
        }
        kept = await keep(store, SCHEMA_NAME, body)
    return _checked(kept, settings, store)


async def _sampled(settings: SourceSettings, keys_max: int | None) -> Inferred:
    operator, listing, formats = planning_operator(settings), settings.listing, settings.formats
    files = list_files(operator, formats, listing)
    async with aclosing(files):
        inferred = await infer_schema(
            operator,
            files,
            formats,
            read=settings.reading,
            glob=listing.glob,
            failures=settings.failures,
            keys_max=keys_max,
        )
    return Inferred(spark_schema(inferred.schema), inferred.directories)


def _checked(kept: dict[str, Any], settings: SourceSettings, store: Operator) -> Inferred:
    if kept["url"] != settings.url:
        raise StateConflict(
            f"the state at {store.info.url} is of a stream of {kept['url']}, not of {settings.url}: give each source a "
            "state location of its own",
            operation="read_state",
            path=SCHEMA_NAME,
        )
    try:
        schema = StructType.fromJson(kept["schema"])
        # States of earlier versions lack the columns in directories.
        return Inferred(schema, tuple(schema[name].name for name in kept.get("directories", ())))
    except Exception as error:  # The parser raises errors of many kinds.
        raise UntrustedMetadata(
            f"the schema that was kept with the state at {store.info.url} cannot be read: {error}",
            operation="read_state",
            path=SCHEMA_NAME,
        ) from error


@dataclass(frozen=True, slots=True)
class FileFields:
    """The fields of files beside the schema of a reader.

    ``filtered`` are fields of filters that the schema lacks: they are read for the filter alone. ``known`` are all
    fields, where the schema has only some and that matters. ``directories`` are the names of fields of an inferred
    schema whose values stand in directories.
    """

    filtered: StructType | None = None
    known: StructType | None = None
    directories: tuple[str, ...] = ()


def file_fields(
    settings: SourceSettings,
    schema: StructType,
    inferred: Inferred | None,
    infer: Callable[[SourceSettings], Inferred],
) -> FileFields:
    """The file fields of a source. Files are sampled by ``infer``, only if needed, and not again after ``inferred``."""
    _check_added(settings, schema)
    if inferred is None and _added(settings):
        _check_names(settings, _names_in_a_file(settings))
    missing = _missing_of_filters(settings, schema)
    directories = () if inferred is None else inferred.directories
    is_projected = settings.columns is not None and not settings.formats.drops_unknown
    if settings.file_schema is not None:
        everything = schema_from_json(settings.file_schema)
        return FileFields(narrowed(everything, missing) if missing else None, everything)
    if not missing and not is_projected:
        return FileFields(directories=directories)
    inferred = inferred or infer(settings)
    return FileFields(
        narrowed(inferred.schema, missing) if missing else None,
        inferred.schema if is_projected else None,
        directories,
    )


def _missing_of_filters(settings: SourceSettings, schema: StructType) -> list[str]:
    names = {name.lower() for name in (*schema.names, *settings.metadata_columns)}
    named = dict.fromkeys(clause[0] for clauses in settings.reading.filters or () for clause in clauses)
    return [name for name in named if name.lower() not in names]
