"""``ap.polars.scan_parquet``: the arguments of a caller become a LazyFrame, whose source scans for each query."""

from __future__ import annotations

import asyncio
import glob
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.errors import (
    ConditionNotMatch,
    ConfigInvalid,
    InvalidType,
    IsADirectory,
    NotFound,
    ObjectChanged,
    Unsupported,
    UntrustedMetadata,
    printable,
    redact,
)
from aioprefetch.operator.from_uri import local_uri, split_local, split_uri, split_url
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import operator_at
from aioprefetch.parquet.columns import Projection
from aioprefetch.parquet.dataset.files import checked_source
from aioprefetch.parquet.decoded_values import check_text
from aioprefetch.parquet.footer import footer
from aioprefetch.parquet.scan import scan
from aioprefetch.plan.patterns import wildcard_at
from aioprefetch.polars.predicates import scan_filters
from aioprefetch.ranges import ByteCount
from aioprefetch.scan import BlockingBatches
from aioprefetch.sync.loop_thread import loop_thread

if TYPE_CHECKING:
    from aioprefetch.operator.options import UriOptions

Place = str | os.PathLike[str]
Paths = str | list[str]


def place_of(source: Place | Sequence[Place], options: Mapping[str, Any]) -> tuple[Operator, Paths]:
    """The operator of URLs that name one store, and their paths in it. Local paths are of this machine's files.

    The operator shares its runtime with all of the same options and principal in the process. ``ConfigInvalid`` for
    anything but URLs, for URLs of several stores, and for unknown options.
    """
    is_list = not isinstance(source, str | os.PathLike)
    urls = [_url(place) for place in _listed(source)]
    if {split_uri(url)[0] for url in urls} == {"file"}:
        store, paths = _local(urls)
    else:
        splits = [_split(url) for url in urls]
        store, paths = splits[0][0], [path for _, path in splits]
        others = {each for each, _ in splits} - {store}
        if others:
            shown = " and ".join(printable(redact(each)) for each in (store, min(others)))
            raise ConfigInvalid(
                f"one scan reads one store, not {shown}; scan each, and put them together by polars.concat",
                operation="scan_parquet",
            )
    return operator_at(store, options)[0], paths if is_list else paths[0]


def _listed(source: object) -> list[object]:
    if isinstance(source, str | os.PathLike):
        return [source]
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise InvalidType(f"a source is a URL or a list of URLs, not {source!r}", operation="scan_parquet")
    places = list(source)
    if not places:
        raise InvalidType("a list of URLs must name at least one", operation="scan_parquet")
    return places


def _url(place: object) -> str:
    if not isinstance(place, str | os.PathLike):
        raise InvalidType(f"a URL must be a string, not {place!r}", operation="scan_parquet")
    text: str = _name(place, local_uri(place))
    if "://" not in text:
        raise ConfigInvalid(
            f"{printable(redact(text))!r} is not a URL such as s3://bucket/t/*.parquet; a file of this machine is"
            " given as pathlib.Path or file:///path, and with operator= a path is enough",
            operation="scan_parquet",
        )
    return text


def _name(place: object, text: Any) -> Any:
    """``text``, without wildcards where ``place`` is a local path that is an object: it is a name."""
    return glob.escape(text) if isinstance(place, os.PathLike) and "://" not in os.fspath(place) else text


def _split(url: str) -> tuple[str, str]:
    """The URL of a store, and a path in it. Over HTTP there is nothing to list: a path is what it says."""
    if split_uri(url)[0] not in ("http", "https"):
        return split_url(url, path_required=False)
    split_url(url)  # Refuses the URL of a directory.
    store, path = split_url(url, at_origin=True)
    return store, glob.escape(path)


def _local(urls: Sequence[str]) -> tuple[str, list[str]]:
    """The directory that all paths share, above wildcards and partitions, and what is left of each path below it."""
    texts = [split_uri(url)[1] for url in urls]
    for text in texts:
        if not text.startswith("/"):
            raise ConfigInvalid(
                f"file://{printable(text)} names a host; a file of this machine has three slashes: file:///path",
                operation="scan_parquet",
            )
    root = os.path.commonpath([_directory_above_partitions(text) for text in texts])
    return f"file://{root}", [text[len(root) :].lstrip("/") for text in texts]


def _directory_above_partitions(path: str) -> str:
    directory = split_uri(split_local(path, wildcard_at(path))[0])[1]
    names = directory.split("/")
    first = next((number for number, name in enumerate(names) if "=" in name), len(names))
    return "/".join(names[:first]) or "/"


# --- the source of a frame --------------------------------------------------------------------------------------------

# A scan that polars has given up ends after this time at the latest.
ABANDONED_SECONDS = 0.2


class ParquetSource:
    """The rows of Parquet files for polars, by columns, predicate and number of rows; each call reads again.

    ``schema`` are the columns of the frame, in Arrow. ``is_file`` means a single file, whose first run asks for
    data of the version of ``etag``, whose footer is at hand. Later runs ask whether the file is still the same;
    so does the first if all that it needs is in memory. Many files are listed by each run, and read as columns of
    ``schema``.

    It pickles, as its operator does: with references instead of secrets.
    """

    def __init__(
        self,
        operator: Operator,
        paths: str | Sequence[str],
        options: Mapping[str, Any],
        schema: pa.Schema,
        *,
        is_file: bool = False,
        etag: str | None = None,
    ) -> None:
        self.dtypes = dtypes_of(schema, str(paths))
        self._operator = operator
        self._paths = paths
        self._options = dict(options)
        self._schema = schema
        self._is_file = is_file
        self._first_etag = etag

    def __call__(
        self,
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """The rows, as polars asks for them: the first ``n_rows``, and of these the rows that match ``predicate``."""
        columns = self._schema.names if with_columns is None else with_columns
        read = columns if predicate is None else list(dict.fromkeys([*columns, *predicate.meta.root_names()]))
        etag, self._first_etag = self._first_etag, None
        for batch in self._batches(read, predicate, n_rows, etag):
            frame = self._frame(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            if frame.height:
                yield frame if len(read) == len(columns) else frame.select(columns)

    def _frame(self, batch: pa.RecordBatch) -> pl.DataFrame:
        try:
            check_text(batch.columns)
            frame = pl.from_arrow(batch)
        except (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise UntrustedMetadata(f"damaged values: {error}", operation="scan", path=str(self._paths)) from error
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _batches(
        self, columns: list[str], predicate: pl.Expr | None, n_rows: int | None, etag: str | None
    ) -> Iterator[pa.RecordBatch]:
        options = dict(self._options)
        if n_rows is not None:
            options["rows"] = (0, n_rows)  # Rows that filters left out would be counted by polars.
        elif predicate is not None:
            options |= {"filters": scan_filters(predicate, self._schema, self.dtypes), "filter_rows": False}
        if not self._is_file:
            options["schema"] = self._schema
        batches = iter(scan(self._operator, self._paths, columns=columns, if_match=etag, **options))
        loop_thread().start_in_background(partial(_let_polars_let_go, weakref.ref(batches)))
        with closing(batches):
            first, is_current = self._begun(batches, columns, etag)
            if is_current:
                if first is not None:
                    yield first
                    del first
                    yield from batches
                return
        del first
        yield from self._batches(columns, predicate, n_rows, None)  # Nothing was given of the version before.

    def _begun(
        self, batches: BlockingBatches, columns: Sequence[str], etag: str | None
    ) -> tuple[pa.RecordBatch | None, bool]:
        """The first batch, and whether it is of the current version: rows in memory may be of a file that is gone."""
        try:
            first = self._first(batches, columns)
        except (ObjectChanged, ConditionNotMatch):
            if etag is None:
                raise
            return None, False
        return first, etag is None or batches.has_received

    def _first(self, batches: BlockingBatches, columns: Sequence[str]) -> pa.RecordBatch | None:
        """The first batch, of the columns that polars knows of."""
        if self._is_file:
            expected = [self._schema.field(name).type for name in columns]
            if batches.schema().types != expected:
                raise Unsupported(
                    "the file was overwritten, and its columns have other types now; call scan_parquet again",
                    operation="scan",
                    path=str(self._paths),
                )
        return next(batches, None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_first_etag": None}


async def _let_polars_let_go(batches: weakref.ref[BlockingBatches]) -> None:
    """While a scan is open, have polars give up what it has dropped.

    Where its streaming engine ends early, it drops the source on a thread without Python's lock, and Python learns of
    that with the next call of any function of polars, which may be hours later.
    """
    while (scan := batches()) is not None and not scan.is_closed:
        del scan
        await asyncio.sleep(ABANDONED_SECONDS)
        pl.thread_pool_size()


def dtypes_of(schema: pa.Schema, path: str) -> dict[str, pl.DataType]:
    """The columns as polars has them. ``Unsupported`` for names that come twice, and types that it does not have."""
    if len(set(schema.names)) < len(schema.names):
        raise Unsupported(
            "two columns have one name, and polars knows columns by their names", operation="scan_parquet", path=path
        )
    return {field.name: _dtype(field, path) for field in schema}


def _dtype(field: pa.Field, path: str) -> pl.DataType:
    try:
        frame = pl.from_arrow(pa.schema([field]).empty_table())
        assert isinstance(frame, pl.DataFrame)
        if pa.types.is_decimal256(field.type):
            raise pa.ArrowNotImplementedError("its decimals have 128 bits")
        return frame.dtypes[0]
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException) as error:
        raise Unsupported(
            f"polars does not take column {field.name!r}, {field.type}: {error};"
            f" schema= without it and extra_columns='ignore' leave it out",
            operation="scan_parquet",
            path=path,
        ) from error


# --- the frame --------------------------------------------------------------------------------------------------------

# Words of polars.scan_parquet, and what there is instead.
_POLARS_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("n_rows",), ".head(n) reads no more than n rows"),
    **dict.fromkeys(("row_index_name", "row_index_offset"), ".with_row_index() counts rows"),
    **dict.fromkeys(("try_parse_hive_dates",), "hive_schema= has the types of partitions"),
    **dict.fromkeys(("allow_missing_columns",), 'missing_columns="insert" or "raise" says it'),
    **dict.fromkeys(("cast_options",), "each column has the narrowest type that holds all; schema= names other ones"),
    **dict.fromkeys(("low_memory", "rechunk", "cache"), "budget_bytes= bounds the memory of what is read"),
    **dict.fromkeys(("parallel", "use_statistics"), "it is done in any case"),
    **dict.fromkeys(("glob",), "glob.escape(path) of the standard library takes a path as it stands"),
    **dict.fromkeys(("credential_provider",), "the options of the store, or operator=, have credentials"),
}


def scan_parquet(
    source: Place | Sequence[Place],
    *,
    operator: Operator | None = None,
    schema: pa.Schema | None = None,
    hive_partitioning: bool | None = None,
    hive_schema: Mapping[str, Any] | None = None,
    missing_columns: Literal["raise", "insert"] = "raise",
    extra_columns: Literal["raise", "ignore"] = "raise",
    include_file_paths: str | None = None,
    ordered: bool = True,
    batch_rows: int | None = None,
    batch_bytes: ByteCount | None = None,
    readahead: int | None = None,
    gap_bytes: ByteCount | None = None,
    request_bytes_max: ByteCount | None = None,
    budget_bytes: ByteCount | None = None,
    slots: int | None = None,
    page_checksums: bool = True,
    page_bytes_max: ByteCount | None = None,
    int96_unit: Literal["us", "ns"] | None = None,
    **options: Unpack[UriOptions],
) -> pl.LazyFrame:
    """A LazyFrame of Parquet files whose bytes come by ``parquet.scan``: few requests, bounded memory.

    ``source`` is a URL (``s3://bucket/t/*.parquet``), a ``pathlib.Path``, or a list of these; with ``operator`` paths
    in it. Directories, globs and lists are one table, with Hive partitions as columns. ``options`` go to
    ``Operator.from_uri``; the other arguments are as in ``parquet.scan``, or polars' own words with its defaults:
    ``hive_partitioning``, ``hive_schema``, ``include_file_paths`` (paths in the store), ``missing_columns`` and
    ``extra_columns``. So a file that lacks a column of the table, or has a column beyond ``schema`` or the first file,
    is ``Unsupported``; with ``"insert"`` and ``"ignore"`` the table has the columns of all files.

    The call reads the footers, for the columns, and no data; with ``schema`` it reads nothing. A query reads the
    columns that it needs, the row groups and pages that its predicate may match by their statistics, and with
    ``head(n)`` the first n rows. It runs on the loop thread of ``aioprefetch.sync``, while polars asks for
    batch after batch, and ends where polars stops asking.

    Raises ``ConfigInvalid`` for options that are unknown, ``NotFound`` where there are no files, and ``Unsupported``
    for columns that polars does not have. Queries raise what ``parquet.scan`` raises.
    """
    for name in options:
        if name in _POLARS_WORDS:
            raise ConfigInvalid(f"unknown option {name!r}: {_POLARS_WORDS[name]}", operation="scan_parquet")
    if operator is not None and options:
        raise ConfigInvalid(
            f"{next(iter(options))!r} is not an option of a scan; options of a store belong to Operator.from_uri",
            operation="scan_parquet",
        )
    own, paths = (operator, _paths(source)) if operator is not None else place_of(source, options)
    given: dict[str, Any] = {
        "partitioning": None if hive_partitioning is False else "hive",
        "partition_schema": _arrow_schema(hive_schema),
        "missing_columns": _word("missing_columns", missing_columns, {"raise": "error", "insert": "null"}),
        "extra_columns": _word("extra_columns", extra_columns, {"raise": "error", "ignore": "ignore"}),
        "include_file_paths": include_file_paths,
        "ordered": ordered,
        "batch_rows": batch_rows,
        "batch_bytes": batch_bytes,
        "readahead": readahead,
        "gap_bytes": gap_bytes,
        "request_bytes_max": request_bytes_max,
        "budget_bytes": budget_bytes,
        "slots": slots,
        "page_checksums": page_checksums,
        "page_bytes_max": page_bytes_max,
        "int96_unit": int96_unit,
    }
    scanned = {name: value for name, value in given.items() if value is not None or name == "partitioning"}
    scan(own, paths, schema=schema, **scanned)  # Raises for invalid arguments; nothing is read.
    io_source = _source(own, paths, scanned, schema)
    return register_io_source(io_source, schema=io_source.dtypes, validate_schema=True, is_pure=True)


def _word(name: str, value: object, words: Mapping[str, str]) -> str:
    """The word of ``scan`` for one of polars."""
    if value not in words:
        known = " or ".join(map(repr, words))
        raise ConfigInvalid(f"{name} must be {known}, not {value!r}", operation="scan_parquet")
    return words[str(value)]


def _arrow_schema(hive_schema: Mapping[str, Any] | None) -> pa.Schema | None:
    """The types of partitions as Arrow's. ``InvalidType`` for other than a schema of polars."""
    if hive_schema is None:
        return None
    try:
        return pl.DataFrame(schema=hive_schema).to_arrow().schema
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise InvalidType(f"hive_schema must map names to types of polars: {error}", operation="scan_parquet") from None


def _paths(source: Any) -> Any:
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [_name(place, place) for place in source]
    return _name(source, source)


def _source(operator: Operator, paths: Paths, options: Mapping[str, Any], schema: pa.Schema | None) -> ParquetSource:
    """The source of a frame, for which footers are read if it has no schema yet."""
    if schema is not None:
        return ParquetSource(operator, paths, options, schema)
    path = checked_source(paths).one_file
    if path is None or "include_file_paths" in options:
        return _of_many(operator, paths, options)
    try:
        found = loop_thread().run(footer(operator, path, everything=True))
    except (NotFound, IsADirectory) as error:
        if not operator.capability.list:
            raise
        try:
            return _of_many(operator, f"{paths}/", options)
        except NotFound:
            raise error from None
    is_pinnable = operator.capability.read_if_match and found.etag and not is_weak(found.etag)
    etag = found.etag if is_pinnable else None
    found = found.with_int96_unit(options.get("int96_unit"))
    read = Projection(found, range(len(found.shape.paths)), None).schema
    return ParquetSource(operator, paths, options, read, is_file=True, etag=etag)


def _of_many(operator: Operator, paths: Paths, options: Mapping[str, Any]) -> ParquetSource:
    batches = iter(scan(operator, paths, **options))
    try:
        schema = batches.schema()  # A file that comes later may lack a column that all have by now.
        nullable = pa.schema([field.with_nullable(True) for field in schema], schema.metadata)
        return ParquetSource(operator, paths, options, nullable)
    finally:
        batches.close()
