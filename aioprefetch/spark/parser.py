"""``parser="spark"``: the source delivers whole records as text, and Spark's own parsers give them meaning in the JVM.

A batch without columns of directories or metadata is read by ``spark.read.csv`` or ``json`` over a DataFrame, where
Spark has that; all else by ``from_csv`` and ``from_json``, which know no mode that drops records, and no lines with
several of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from aioprefetch.errors import ConfigInvalid, NotFound, UntrustedMetadata
from aioprefetch.source.columns.schemas import match_names
from aioprefetch.source.formats import format_of
from aioprefetch.source.formats.record_texts import RECORD_COLUMN
from aioprefetch.source.options import OnCorruptRecord
from aioprefetch.source.reading import list_files, sample_texts
from aioprefetch.source.reading.planning import SampledTexts
from aioprefetch.spark.hadoop import SessionSettings
from aioprefetch.spark.operators import explaining, locate, outlasted, planning_operator, state_operator
from aioprefetch.spark.options import RECORD_FORMATS, SOURCE_OPTIONS
from aioprefetch.spark.schema import (
    STREAM_KEYS_MAX,
    Inferred,
    keep,
    nullable,
    projected,
    read_kept,
    resolved,
    spark_schema,
)
from aioprefetch.spark.settings import SourceSettings, parse_options, with_location

# What the source needs as well as the parser, and what the parser alone is given.
_SHARED = frozenset({"sep", "delimiter", "quote", "escape", "multiline", "timezone"})
_PARSERS_OWN = frozenset({"nullvalue", "inferschema"})
# They mean something for the schema alone, or for files.
_NOT_FOR_RECORDS = frozenset({"samplingratio", "inferschema", "enforceschema"})
_REFUSED = frozenset({"unknownfields", "fileschema", "pushfilters", "schemaevolution"})
_MODES: Mapping[OnCorruptRecord, str] = {
    "fail": "FAILFAST",
    "skip": "DROPMALFORMED",
    "null": "PERMISSIVE",
    "rescue": "PERMISSIVE",
}
_CORRUPT, _PARSED, _ROWS = "columnnameofcorruptrecord", "_parsed", "_rows"
# Under ``onCorruptRecord=rescue``: the text of a record that does not fit.
RESCUED_TEXT = "_rescued_data"
# The fields of a stream at its first start, beside its state.
KEPT_NAME = "parsed.json"
_DATA_FRAMES_SINCE = (4, 2)


def load_parsed(
    spark: SparkSession,
    reader: DataFrameReader | DataStreamReader,
    texts: Mapping[str, str],
    session: SessionSettings,
    schema: StructType | None,
) -> DataFrame:
    """The DataFrame of ``read`` or ``stream``. ``reader`` is that of our format, ``texts`` are all options."""
    texts = {name.lower(): text for name, text in texts.items()}
    refused = sorted(_REFUSED & texts.keys())
    if refused:
        raise ConfigInvalid(
            f'{", ".join(SOURCE_OPTIONS[name].name for name in refused)}: not with parser="spark", for which fields '
            "that the schema has not are none",
            operation="configure",
        )
    options = {name: text for name, text in texts.items() if _is_parsers(name)}
    texts = {name: text for name, text in texts.items() if name not in options or name in _SHARED}
    texts["format"] = kind = _format(texts, session)
    _for_cutter(texts)
    settings = parse_options(texts, session)
    parsing = _Parsing(spark, "csv" if kind == RECORD_FORMATS["csv"] else "json", settings, options)
    return parsing.frame(reader, texts, schema)


def _is_parsers(name: str) -> bool:
    option = SOURCE_OPTIONS.get(name)
    return name in _SHARED or name in _PARSERS_OWN or (option is not None and option.group == "parser")


def _format(texts: dict[str, str], session: SessionSettings) -> str:
    """The name of the format of records: by the option, or by the suffix of the first file."""
    given = {name: texts[name] for name in texts if name in ("path", "format", "pathglobfilter", "hiddenfiles")}
    stores = {name: texts[name] for name in texts if name not in SOURCE_OPTIONS}
    settings = parse_options({**stores, **given}, session)
    name = settings.formats.format
    if name is None:
        with explaining(settings):
            key = outlasted(settings, lambda: _first_key(settings))
        name = format_of(key, settings.formats).name
    if name not in RECORD_FORMATS:
        raise ConfigInvalid(f'parser="spark" is for csv and json, not for {name}: leave it out', operation="configure")
    return RECORD_FORMATS[name]


async def _first_key(settings: SourceSettings) -> str:
    settings = with_location(settings, await locate(settings))
    listing, store = settings.listing, planning_operator(settings)
    files = list_files(store, settings.formats, listing)
    async with aclosing(files):
        async for file in files:
            return file.key
    raise NotFound(f"there are no files in {store.info.url}: give the format, csv or json", operation="plan_batch")


def _for_cutter(texts: dict[str, str]) -> None:
    """Leave the cutter the options of quotes that it needs: without ``multiLine`` it looks for line ends alone."""
    separators = [text for name in ("sep", "delimiter") if (text := texts.pop(name, None)) is not None]
    if texts.get("multiline", "").lower() != "true" or texts["format"] != RECORD_FORMATS["csv"]:
        for name in ("quote", "escape"):
            texts.pop(name, None)
        return
    texts.setdefault("escape", "\\")
    texts.pop("linesep", None)
    if separators and separators[0][-1:].isascii():
        texts["sep"] = separators[0] if separators[0] == "\\t" else separators[0][-1:]


class _Parsing:
    """One DataFrame: its settings, and the options of its parser."""

    def __init__(self, spark: SparkSession, kind: str, settings: SourceSettings, options: dict[str, str]) -> None:
        self._spark = spark
        self._kind = kind
        self._settings = settings
        self._policy = settings.failures.on_corrupt_record
        self._enforces = options.get("enforceschema", "true").lower() == "true"
        self._infers = {**options, "mode": _MODES[self._policy]}
        self._options = {name: text for name, text in options.items() if name not in _NOT_FOR_RECORDS}

    def frame(
        self, reader: DataFrameReader | DataStreamReader, texts: dict[str, str], schema: StructType | None
    ) -> DataFrame:
        """The parsed DataFrame."""
        settings = self._settings
        with explaining(settings):
            fields = self._fields(schema)
        data = StructType([field for field in fields.schema if field.name not in fields.directories])
        directories = [fields.schema[name] for name in fields.directories]
        metadata = projected(Inferred(StructType([])), replace(settings, columns=None)).fields
        if self._policy == "rescue":
            self._options[_CORRUPT] = RESCUED_TEXT
            data = StructType([field for field in data if field.name != RESCUED_TEXT])
        whole = self._whole(data, directories)
        texts = self._of_source(texts, fields.directories)
        if not self._enforces:
            texts["fileSchema"] = data.json()
        source = StructType([StructField(RECORD_COLUMN, BinaryType()), *directories, *metadata])
        records = reader.schema(source).options(**texts).load()
        parsed = self._parsed(records, data, [*directories, *metadata])
        return parsed.select([_column(field.name) for field in projected(Inferred(whole), settings)])

    def _whole(self, data: StructType, directories: list[StructField]) -> StructType:
        rescued = [StructField(RESCUED_TEXT, StringType())] if self._policy == "rescue" else []
        return StructType([*data, *directories, *rescued])

    def _of_source(self, texts: dict[str, str], directories: tuple[str, ...]) -> dict[str, str]:
        """The options for the source, which leaves out whole files alone by ``filters``."""
        names = {name.lower() for name in directories}
        within = {clause[0] for clauses in self._settings.reading.filters or () for clause in clauses}
        others = sorted(name for name in within if name.lower() not in names)
        if others:
            raise ConfigInvalid(
                f'filters: with parser="spark" for columns of directories alone; use where() for {", ".join(others)}',
                operation="configure",
            )
        return {name: text for name, text in texts.items() if name not in ("columns", "mode")}

    # --- schema -----------------------------------------------------------------------------------------

    def _fields(self, schema: StructType | None) -> Inferred:
        """All fields: those of records, then those of directories, whose types the user's schema may give."""
        if self._settings.state_location is None:
            keys_max = None if schema is None else STREAM_KEYS_MAX
            return outlasted(self._settings, lambda: self._sampled(self._settings, schema, keys_max))[0]
        return outlasted(self._settings, lambda: self._kept(schema))

    async def _kept(self, schema: StructType | None) -> Inferred:
        """The fields of a stream at its first start; the user's own win, but for the names of directories."""
        settings = self._settings
        store = state_operator(settings)
        kept = await read_kept(store, KEPT_NAME, frozenset({"schema", "directories"}))
        if kept is None:
            now, is_empty = await self._sampled(await resolved(settings, store), schema, STREAM_KEYS_MAX)
            if is_empty:
                return now  # The next start has to see the directories of the first files.
            kept = await keep(
                store, KEPT_NAME, {"schema": json.loads(now.schema.json()), "directories": [*now.directories]}
            )
        fields = Inferred(StructType.fromJson(kept["schema"]), tuple(kept["directories"]))
        if schema is None:
            return fields
        return _with_directories(schema, StructType([fields.schema[name] for name in fields.directories]))

    async def _sampled(
        self, settings: SourceSettings, schema: StructType | None, keys_max: int | None
    ) -> tuple[Inferred, bool]:
        """All fields, and whether there were no files."""
        settings = with_location(settings, await locate(settings))
        listing, store = settings.listing, planning_operator(settings)
        files = list_files(store, settings.formats, listing)
        async with aclosing(files):
            sampled = await sample_texts(
                store,
                files,
                settings.formats,
                read=settings.reading,
                has_schema=schema is not None,
                keys_max=keys_max,
            )
        directories = spark_schema(sampled.directories)
        fields = self._inferred(sampled) if schema is None else schema
        return _with_directories(fields, directories), sampled.is_empty

    def _inferred(self, sampled: SampledTexts) -> StructType:
        """The schema that Spark infers from the records of the sample."""
        if pyspark_version() < _DATA_FRAMES_SINCE:
            raise ConfigInvalid(
                f'Spark {pyspark.__version__} infers no schema of texts: give one beside parser="spark"',
                operation="infer_schema",
            )
        header = self._settings.formats.header
        first = next((place for place, texts in enumerate(sampled.texts) if len(texts)), None)
        if first is None:
            raise UntrustedMetadata(
                f"no file in {self._settings.url} tells a schema: give one", operation="infer_schema"
            )
        texts = [part.slice(1) if header and place > first else part for place, part in enumerate(sampled.texts)]
        table = pa.table({RECORD_COLUMN: pa.chunked_array(texts, pa.binary())})
        frame = self._spark.createDataFrame(table).select(_text())
        reader = self._spark.read.options(**self._infers, header=str(header).lower())
        inferred: StructType = getattr(reader, self._kind)(frame).schema
        return inferred

    # --- records ----------------------------------------------------------------------------------------

    def _parsed(self, records: DataFrame, data: StructType, others: list[StructField]) -> DataFrame:
        """The fields of the records beside the other columns."""
        if self._policy == "rescue":
            data = StructType([*data, StructField(RESCUED_TEXT, StringType())])
        if not others and not records.isStreaming and pyspark_version() >= _DATA_FRAMES_SINCE:
            reader = self._spark.read.schema(data).options(**self._options, mode=_MODES[self._policy])
            return getattr(reader, self._kind)(records.select(_text()))  # type: ignore[no-any-return]
        options = dict(self._options)
        fields = data
        if self._policy == "skip":
            options[_CORRUPT] = _DROPPED
            fields = StructType([*data, StructField(_DROPPED, StringType())])
        options["mode"] = "FAILFAST" if self._policy == "fail" else "PERMISSIVE"
        parse = self._of_csv if self._kind == "csv" else self._of_json
        parsed = records.select(parse(fields, options).alias(_PARSED), *[_column(field.name) for field in others])
        if self._policy == "skip":
            parsed = parsed.where(F.col(_PARSED).getField(_DROPPED).isNull())
        columns = [F.col(_PARSED).getField(field.name).alias(field.name) for field in data]
        return parsed.select(*columns, *[_column(field.name) for field in others])

    def _of_csv(self, fields: StructType, options: dict[str, str]) -> Column:
        columns = (f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in fields)
        return F.from_csv(_text(), ", ".join(columns), options)

    def _of_json(self, fields: StructType, options: dict[str, str]) -> Column:
        """An array has its objects as records; what is no array of objects is one bad record."""
        text = _text()
        one = F.array(F.from_json(text, fields, options))
        several = F.coalesce(F.from_json(text, ArrayType(fields), options), one)
        return F.explode(F.when(F.ltrim(text).startswith("["), several).otherwise(one))


_DROPPED = "_dropped"


def pyspark_version() -> tuple[int, ...]:
    """The first two numbers of the version of PySpark."""
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def _text() -> Column:
    return F.col(RECORD_COLUMN).cast("string").alias(RECORD_COLUMN)


def _column(name: str) -> Column:
    return F.col(_quoted(name))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _with_directories(schema: StructType, directories: StructType) -> Inferred:
    """The fields of records, then those of directories, each with the type of the schema where that has it."""
    places = match_names(schema.names, directories.names)
    given = [
        directory if place is None else StructField(directory.name, schema.fields[place].dataType)
        for directory, place in zip(directories, places, strict=True)
    ]
    own = [field for number, field in enumerate(schema.fields) if number not in places]
    return Inferred(nullable(StructType([*own, *given])), tuple(directories.names))
