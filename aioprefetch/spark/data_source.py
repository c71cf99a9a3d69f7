"""``format("aioprefetch")``, and the functions that take a session: ``register``, ``read`` and ``stream``.

Spark creates the data source from options in a separate process, and then pickles it. It calls ``schema()`` in one
planning process, ``reader()`` and ``partitions()`` in another one, a stream's offsets in a third that lives as long as
the query, and ``read()`` in tasks. Nothing but plain settings goes between them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack
from weakref import WeakKeyDictionary

import pyspark
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from aioprefetch.errors import ConfigInvalid
from aioprefetch.runtime.events import logger
from aioprefetch.source.options import filters_to_text
from aioprefetch.spark import worker
from aioprefetch.spark.hadoop import TIME_ZONE, SessionSettings, from_files, from_session
from aioprefetch.spark.operators import explaining
from aioprefetch.spark.options import check_scope, option_name
from aioprefetch.spark.parser import load_parsed
from aioprefetch.spark.readers import BatchReader, StreamReader
from aioprefetch.spark.schema import (
    Inferred,
    batch_fields,
    narrowed,
    projected,
    stream_fields,
    with_metadata,
    with_policy,
)
from aioprefetch.spark.settings import SourceSettings, parse_options

if TYPE_CHECKING:
    from aioprefetch.spark.read_options import BatchOptions, StreamOptions

NAME = "aioprefetch"


class AioPrefetchDataSource(DataSource):
    """Files of an object store or a file system as a table or a stream. The options: docs/reference/spark-options.md.

    ``session`` has the settings that ``register`` read from the session; without it configuration files count
    (``hadoop``).
    """

    session: ClassVar[SessionSettings | None] = None
    # The result of ``schema()``. Spark then pickles the source, and asks it for readers in other processes.
    inferred: Inferred | None = None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """The inferred schema, narrowed to ``columns``, with the requested metadata columns.

        A stream's is inferred once and kept with its state, so that a restart sees the same one.
        """
        with worker.short_errors():
            settings = self._settings()
        with explaining(settings):
            infer = batch_fields if settings.state_location is None else stream_fields
            self.inferred = infer(settings)
            return projected(self.inferred, settings)

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of all files that are there now. ``schema`` is also the projection."""
        with worker.short_errors():
            return self._reader(schema)

    def _reader(self, schema: StructType) -> BatchReader:
        check_scope(self.options, "batch")
        settings = with_policy(self._settings(), self.inferred, "fail")
        if settings.push_filters:
            raise ConfigInvalid(
                f"pushFilters gives wrong results on Spark {pyspark.__version__}, where a DataFrame that is used twice "
                "keeps the filters of its first use. Use the option filters, or aioprefetch.spark.read(spark, url, "
                "filters=...)",
                operation="configure",
            )
        return BatchReader(settings, schema, self.inferred)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """A reader of new files.

        Not under ``short_errors``: after an error here Spark's own process fails over the missing reader, and shows our
        error in the traceback alone.
        """
        check_scope(self.options, "stream")
        # A stream runs unattended with the schema of its first start: a new field must not end it.
        settings = with_policy(self._settings(), self.inferred, "warn")
        return StreamReader(settings, schema, self.inferred)

    def _settings(self) -> SourceSettings:
        worker.freeze_gc_once()
        settings = parse_options(dict(self.options), self.session if self.session is not None else from_files())
        if settings.left_out is not None:
            logger.warning("%s: %s", settings.url, settings.left_out)
        return settings


# --- functions that take a session ------------------------------------------------------------------------------------

# The settings that each session registered last, so that it registers only changed ones.
_registered: WeakKeyDictionary[SparkSession, SessionSettings] = WeakKeyDictionary()


def register(spark: SparkSession) -> None:
    """Make ``format("aioprefetch")`` known to a session, with the settings of S3A and the time zone that it has now.

    Endpoint, region and keys come from ``spark.hadoop.fs.s3a.*`` (of a bucket too) for URLs of S3. They travel inside
    the pickled data source: no option of a DataFrame, no plan and no log shows them. Times without a zone are read in
    ``spark.sql.session.timeZone`` of the query, as by Spark's own readers, where no option ``timeZone`` says otherwise;
    where the query's session has not set it, as it is now. Call it again when any of these change.

    Where ``PYSPARK_PYTHON`` is not set, the workers of a ``local`` session are of this interpreter from now on.
    """
    _use_this_python(spark)
    settings = from_session(spark)
    if _registered.get(spark) != settings:
        spark.dataSource.register(_data_source(settings))
        _registered[spark] = settings


def _use_this_python(spark: SparkSession) -> None:
    """Spark would start the ``python3`` of ``PATH``, which lacks the packages of a virtual environment."""
    if "PYSPARK_PYTHON" in os.environ or getattr(spark, "_jsparkSession", None) is None:
        return
    if str(spark.sparkContext.master).startswith("local"):
        os.environ["PYSPARK_PYTHON"] = spark.sparkContext.pythonExec = sys.executable


def read(
    spark: SparkSession,
    url: str | Sequence[str],
    *,
    schema: StructType | str | None = None,
    columns: Sequence[str] | None = None,
    filters: Sequence[Any] | None = None,
    format: str | None = None,  # noqa: A002 - the name of the option
    parser: Literal["arrow", "spark"] | None = None,
    **options: Unpack[BatchOptions],
) -> DataFrame:
    """A DataFrame of the files at ``url``: one object, a directory, or a glob; or at several of them in one store.

    Only ``columns`` are read, of a ``schema`` that describes the files. ``filters`` is a list of ``(column, operator,
    value)`` that all hold, or a list of such lists: one has to hold. Row groups that cannot match are not read, nor
    are rows kept that do not. ``options`` as in docs/reference/spark-options.md, also in snake case
    (``on_missing="skip"``). ``ConfigInvalid`` names an unknown one.
    """
    register(spark)
    texts = _texts(spark, url, columns, filters, format, options)
    check_scope(texts, "batch")
    return _load(spark, spark.read, texts, schema, columns, parser)


def stream(
    spark: SparkSession,
    url: str | Sequence[str],
    *,
    checkpoint: str,
    schema: StructType | str | None = None,
    columns: Sequence[str] | None = None,
    filters: Sequence[Any] | None = None,
    format: str | None = None,  # noqa: A002 - the name of the option
    parser: Literal["arrow", "spark"] | None = None,
    **options: Unpack[StreamOptions],
) -> DataFrame:
    """A streaming DataFrame of the new files at ``url``, each delivered once.

    ``checkpoint`` is the ``checkpointLocation`` that the writer must be given, too: Spark does not tell it to a source.
    The state of the source is below it, at ``<checkpoint>/aioprefetch`` (the option ``stateLocation``). One
    checkpoint belongs to one query; a second query takes ``attach_to`` to share the listing of the first.
    Other arguments as for ``read``.
    """
    register(spark)
    if "state_location" in options or "stateLocation" in options:
        raise ConfigInvalid(
            "stream() keeps the state in the checkpoint; elsewhere: readStream with the option stateLocation",
            operation="configure",
        )
    location = f"{checkpoint.rstrip('/')}/aioprefetch"
    texts = _texts(spark, url, columns, filters, format, {**options, "stateLocation": location})
    check_scope(texts, "stream")
    return _load(spark, spark.readStream, texts, schema, columns, parser)


def settings_of(
    spark: SparkSession,
    url: str,
    options: Mapping[str, Any],
    filters: Sequence[Any] | None = None,
    format_name: str | None = None,
) -> SourceSettings:
    """The settings of a batch, by keyword options and the session, which knows the format by then."""
    register(spark)
    texts = _texts(spark, url, None, filters, format_name, options)
    check_scope(texts, "batch")
    return parse_options(texts, _registered[spark])


def _data_source(settings: SessionSettings) -> type[AioPrefetchDataSource]:
    """A subclass with the settings of a session. It is pickled by value, and they with it."""
    return type(AioPrefetchDataSource.__name__, (AioPrefetchDataSource,), {"session": settings})


def _load(
    spark: SparkSession,
    reader: DataFrameReader | DataStreamReader,
    texts: dict[str, str],
    schema: StructType | str | None,
    columns: Sequence[str] | None,
    parser: str | None,
) -> DataFrame:
    """If ``columns`` select from a ``schema``, all fields of the files are passed as ``fileSchema``."""
    session, reader = _registered[spark], reader.format(NAME)
    if parser == "spark":
        return load_parsed(spark, reader, texts, session, None if schema is None else _struct(schema))
    settings = parse_options({**texts, "parser": parser or "arrow"}, session)
    if schema is not None:
        everything = _struct(schema)
        reader = reader.schema(with_metadata(narrowed(everything, columns), settings))
        if texts.pop("columns", None) is not None:
            texts["fileSchema"] = everything.json()
    return reader.options(**texts).load()


def _struct(schema: StructType | str) -> StructType:
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise ConfigInvalid(f"schema must be a StructType or its DDL, not {schema!r}", operation="configure")
    return parsed


def _texts(
    spark: SparkSession,
    url: str | Sequence[str],
    columns: Sequence[str] | None,
    filters: Sequence[Any] | None,
    format_name: str | None,
    options: Mapping[str, Any],
) -> dict[str, str]:
    """Arguments of Python as options of a DataFrame."""
    if isinstance(columns, str):
        raise ConfigInvalid(f"columns must be a list of names, not the text {columns!r}", operation="configure")
    texts = {option_name(name): _text(name, value) for name, value in options.items() if value is not None}
    if format_name is not None:
        texts["format"] = format_name
    if columns is not None:
        texts["columns"] = json.dumps(list(columns))
    if filters is not None:
        try:
            texts["filters"] = filters_to_text(filters)
        except TypeError as error:
            raise ConfigInvalid(f"filters: {error}", operation="configure") from None
    zone = spark.conf.get(TIME_ZONE)
    path = url if isinstance(url, str) else json.dumps(list(url))
    return {"path": path, **({"sessionTimeZone": zone} if zone else {}), **texts}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    # Not the value: it may be a secret.
    raise ConfigInvalid(f"the option {name} cannot be a {type(value).__name__}", operation="configure")
