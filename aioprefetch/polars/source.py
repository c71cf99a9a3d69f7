"""The IO source behind a LazyFrame: a scan of ours for each run of a query, with what polars pushes down to it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

from aioprefetch.errors import ConditionNotMatch, ObjectChanged, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.scan import scan
from aioprefetch.polars.predicates import scan_filters
from aioprefetch.scan import BlockingBatches
from aioprefetch.sync.loop_thread import loop_thread

# A scan that polars has given up ends after this time at the latest.
ABANDONED_SECONDS = 0.2


class ParquetSource:
    """The rows of Parquet files for polars, by columns, predicate and number of rows; each call reads again.

    ``schema`` are the columns of the frame, in Arrow. ``is_file`` says that there is one file, whose first run asks for
    data of the version of ``etag``, the footer of which is at hand. Later runs ask whether the file is still the same;
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
        """The rows, as polars asks for them: the first ``n_rows``, and of these the ones that match ``predicate``."""
        columns = self._schema.names if with_columns is None else with_columns
        read = columns if predicate is None else list(dict.fromkeys([*columns, *predicate.meta.root_names()]))
        etag, self._first_etag = self._first_etag, None
        for batch in self._batches(read, predicate, n_rows, etag):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            if predicate is not None:
                frame = frame.filter(predicate)
            if frame.height:
                yield frame if len(read) == len(columns) else frame.select(columns)

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
            f"polars does not take column {field.name!r}, {field.type}: {error}; schema= without it leaves it out",
            operation="scan_parquet",
            path=path,
        ) from error
