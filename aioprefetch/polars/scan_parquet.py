"""``ap.polars.scan_parquet``: the arguments of a caller become a LazyFrame over a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from aioprefetch.accessor.http_headers import is_weak
from aioprefetch.errors import ConfigInvalid, IsADirectory, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.dataset.files import checked_source
from aioprefetch.parquet.footer import footer
from aioprefetch.parquet.scan import scan
from aioprefetch.polars.places import Paths, Place, place_of
from aioprefetch.polars.source import ParquetSource
from aioprefetch.ranges import ByteCount
from aioprefetch.sync.loop_thread import loop_thread

if TYPE_CHECKING:
    from aioprefetch.operator.options import UriOptions

# Words of polars.scan_parquet, and what there is instead.
_POLARS_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("n_rows",), ".head(n) reads no more than n rows"),
    **dict.fromkeys(("row_index_name", "row_index_offset"), ".with_row_index() counts rows"),
    **dict.fromkeys(("hive_partitioning",), 'partitioning="hive" or None says it'),
    **dict.fromkeys(("hive_schema", "try_parse_hive_dates"), "schema= has the types of partitions, too"),
    **dict.fromkeys(
        ("allow_missing_columns", "missing_columns", "extra_columns", "cast_options"),
        "files are one table by the union of their columns; schema= names other ones",
    ),
    **dict.fromkeys(("low_memory", "rechunk", "cache"), "budget_bytes= bounds the memory of what is read"),
    **dict.fromkeys(("parallel", "use_statistics"), "it is done in any case"),
    **dict.fromkeys(("glob",), "glob.escape(path) of the standard library takes a path as it stands"),
    **dict.fromkeys(("include_file_paths",), "there is no column of paths, but those of Hive partitions"),
    **dict.fromkeys(("credential_provider",), "the options of the store, or operator=, have credentials"),
}


def scan_parquet(
    source: Place | Sequence[Place],
    *,
    operator: Operator | None = None,
    schema: pa.Schema | None = None,
    partitioning: Literal["hive"] | None = "hive",
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
    **options: Unpack[UriOptions],
) -> pl.LazyFrame:
    """A LazyFrame of Parquet files whose bytes come by ``parquet.scan``: few requests, bounded memory.

    ``source`` is a URL (``s3://bucket/t/*.parquet``), a ``pathlib.Path``, or a list of these; with ``operator`` paths
    in it. Directories, globs and lists are one table, with Hive partitions as columns. ``options`` are those of
    ``Operator.from_uri``; the other arguments those of ``parquet.scan``.

    The call reads the footers, for the columns, and no data; with ``schema`` it reads nothing. A query reads the
    columns that it needs, the row groups and pages that its predicate may match by their statistics, and with
    ``head(n)`` those of the first n rows. It runs on the loop thread of ``aioprefetch.sync``, while polars asks for
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
        "partitioning": partitioning,
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
    }
    scanned = {name: value for name, value in given.items() if value is not None or name == "partitioning"}
    scan(own, paths, schema=schema, **scanned)  # Raises for invalid arguments; nothing is read.
    io_source = _source(own, paths, scanned, schema)
    return register_io_source(io_source, schema=io_source.dtypes, validate_schema=True, is_pure=True)


def _paths(source: Any) -> Paths:
    return source if isinstance(source, str) or not isinstance(source, Sequence) else list(source)


def _source(operator: Operator, paths: Paths, options: Mapping[str, Any], schema: pa.Schema | None) -> ParquetSource:
    """The source of a frame, for which footers are read if it has no schema yet."""
    if schema is not None:
        return ParquetSource(operator, paths, options, schema)
    path = checked_source(paths).one_file
    if path is None:
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
    return ParquetSource(operator, paths, options, found.schema, is_file=True, etag=found.etag if is_pinnable else None)


def _of_many(operator: Operator, paths: Paths, options: Mapping[str, Any]) -> ParquetSource:
    batches = iter(scan(operator, paths, **options))
    try:
        return ParquetSource(operator, paths, options, batches.schema())
    finally:
        batches.close()
