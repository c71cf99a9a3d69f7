"""The IO source behind a LazyFrame: a scan of ours for each run of a query, with what polars pushes down to it."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import polars as pl
import pyarrow as pa

from aioprefetch.errors import ConditionNotMatch, NotFound, ObjectChanged, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.dataset.files import Source
from aioprefetch.parquet.scan import scan
from aioprefetch.polars.predicates import scan_filters
from aioprefetch.scan import BlockingBatches
from aioprefetch.sync.loop_thread import loop_thread

# A scan that polars has given up ends after this time at the latest.
ABANDONED_SECONDS = 0.2
# A query that begins within this time after ``scan_parquet`` takes its listing. Files may come and go later.
LISTING_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The version of one file, or the listing of many, at the time of a call of ``scan_parquet``."""

    etag: str | None = None
    listing: Source | None = None
    at_seconds: float = field(default_factory=time.monotonic)

    def now(self) -> Seen:
        """The part that may be believed now: a version is compared with that of the store, a listing is not."""
        is_old = time.monotonic() - self.at_seconds > LISTING_SECONDS_MAX
        return Seen(self.etag) if is_old else self


NOTHING_SEEN = Seen()


class ParquetSource:
    """The rows of Parquet files for polars, by columns, predicate and number of rows; each call reads again.

    ``schema`` are the columns of the frame, in Arrow. ``is_file`` says that there is one file. ``seen`` is for the
    first run, which reads the version whose footer is at hand, or the files of the listing. Later runs ask whether the
    file is still that one, and list many files again, to read them as columns of ``schema``.

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
        seen: Seen = NOTHING_SEEN,
    ) -> None:
        self.dtypes = dtypes_of(schema, str(paths))
        self._operator = operator
        self._paths = paths
        self._options = dict(options)
        self._schema = schema
        self._is_file = is_file
        self._seen = seen

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
        seen, self._seen = self._seen.now(), NOTHING_SEEN
        for batch in self._batches(read, predicate, n_rows, seen):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            if predicate is not None:
                frame = frame.filter(predicate)
            if frame.height:
                yield frame if len(read) == len(columns) else frame.select(columns)

    def _batches(
        self, columns: list[str], predicate: pl.Expr | None, n_rows: int | None, seen: Seen
    ) -> Iterator[pa.RecordBatch]:
        options = dict(self._options)
        if n_rows is not None:
            options["rows"] = (0, n_rows)  # Rows that filters left out would be counted by polars.
        elif predicate is not None:
            options |= {"filters": scan_filters(predicate, self._schema, self.dtypes), "filter_rows": False}
        if not self._is_file:
            options["schema"] = self._schema
        paths = self._paths if seen.listing is None else cast("str", seen.listing)  # As ``checked_source`` makes it.
        batches = iter(scan(self._operator, paths, columns=columns, if_match=seen.etag, **options))
        loop_thread().start_in_background(partial(_let_polars_let_go, weakref.ref(batches)))
        try:
            first = self._first(batches, columns)
        except (ObjectChanged, ConditionNotMatch, NotFound):
            batches.close()
            if seen.etag is None and seen.listing is None:
                raise
            yield from self._batches(columns, predicate, n_rows, NOTHING_SEEN)  # Nothing was given of what was before.
            return
        try:
            if first is not None:
                yield first
                del first
                yield from batches
        finally:
            batches.close()

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
        return {**self.__dict__, "_seen": NOTHING_SEEN}


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
