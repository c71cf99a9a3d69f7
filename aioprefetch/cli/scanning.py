"""``scan``: rows of Parquet and Lance files as Arrow, CSV or JSON lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from aioprefetch import lance, parquet
from aioprefetch.cli.completion import place_argument
from aioprefetch.cli.places import Stores, command
from aioprefetch.cli.printing import json_text
from aioprefetch.cli.reading import kind_of, kind_option, read_place
from aioprefetch.errors import InvalidArgument
from aioprefetch.operator.transfer.sides import Side
from aioprefetch.spark.options import filters as filters_of_json

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("jsonl", "csv", "arrow")
_CLAUSE = re.compile(
    r"\s*(?P<column>.+?)\s*(?P<operator><=|>=|!=|==|=|<|>|\bnot in\b|\bin\b)\s*(?P<value>.+?)\s*", re.S
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")


def column_names(text: str | None) -> list[str] | None:
    """The columns of ``A,B``, without blanks around the comma."""
    return [name.strip() for name in text.split(",")] if text else None


def read_filters(texts: Sequence[str]) -> list[Any] | None:
    """Filters of a scan: clauses such as ``price > 3``, or a JSON list of them. All texts hold together."""
    if not texts:
        return None
    alternatives: list[list[Any]] = [[]]
    for text in texts:
        if text.lstrip().startswith("["):
            added = filters_of_json("--filter", text)
        else:
            added = filters_of_json("--filter", json.dumps([_clause(text)]))
        alternatives = [[*before, *clauses] for before in alternatives for clauses in added]
    return alternatives


def _clause(text: str) -> list[Any]:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"--filter {text!r} is not a clause such as 'price > 3', 'day = 2026-01-31' or 'name in [\"a\", \"b\"]'"
        )
    operator = "==" if match["operator"] == "=" else match["operator"]
    return [match["column"], operator, _value(match["value"])]


def _value(text: str) -> Any:
    """A value as JSON; a date, a time or a text without quotes as itself."""
    if _DATE.fullmatch(text):
        return {"$date": text}
    if _TIME.fullmatch(text):
        return {"$timestamp": text}
    try:
        return json.loads(text)
    except ValueError:
        return text.strip("'")


@command(
    "scan",
    summary="Write rows as JSON lines, CSV or Arrow.",
    examples="""
aioprefetch scan --columns id,name --limit 10 s3://bucket/table.parquet
aioprefetch scan --filter 'price > 3' --filter 'day = 2026-01-31' -f csv 's3://bucket/t/**/*.parquet' > t.csv
aioprefetch scan -f arrow s3://bucket/t.lance | \\
    duckdb -c "install nanoarrow from community; load nanoarrow; from read_arrow('/dev/stdin')"
""",
)
@place_argument("place", "PLACE")
@click.option("--columns", metavar="A,B", help="The columns, in the order of the output.")
@click.option("--filter", "filters", multiple=True, metavar="TEXT", help="A clause such as 'price > 3'; all must hold.")
@click.option("--limit", metavar="N", type=click.IntRange(0), help="At most N rows.")
@click.option("-f", "--format", "form", type=click.Choice(FORMATS), default="jsonl", help="The output (jsonl).")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as -f jsonl.")
@kind_option
def scan(
    place: str,
    stores: Stores,
    columns: str | None,
    filters: Sequence[str],
    limit: int | None,
    form: str,
    as_json: bool,
    kind: str | None,
) -> int:
    """Write rows of Parquet or Lance files as JSON lines, CSV or an Arrow stream.

    A directory or a pattern of Parquet files is one table. Rows are written as they arrive.
    """
    stores.check(place)
    side = stores.side(place)
    operator = stores.operator_of(side)
    names = column_names(columns)
    rows = None if limit is None or filters else (0, limit)

    def opened(side: Side) -> Any:
        found = kind_of(side, kind, operator)
        if found == "parquet":
            batches = parquet.scan(operator, side.path, columns=names, filters=read_filters(filters), rows=rows)
        elif found == "lance":
            batches = lance.scan(operator, side.path, columns=names, filters=read_filters(filters), rows=rows)
        else:
            raise InvalidArgument("neither Parquet nor Lance; --type says what it is", path=side.label)
        blocking = iter(batches)
        try:
            return blocking, blocking.schema()
        except BaseException:
            blocking.close()
            raise

    blocking, schema = read_place(side, opened)
    try:
        write = {"jsonl": _write_json, "csv": _write_csv, "arrow": _write_arrow}["jsonl" if as_json else form]
        write(schema, _limited(blocking, limit))
        sys.stdout.buffer.flush()
    finally:
        blocking.close()
    return 0


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterable[pa.RecordBatch]:
    if limit is None:
        yield from batches
        return
    left, waiting = limit, iter(batches)
    while left > 0 and (batch := next(waiting, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


def _write_json(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    out = sys.stdout.buffer
    for batch in batches:
        for row in batch.to_pylist():
            out.write(json_text(row).encode() + b"\n")
        out.flush()


def _write_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa
    import pyarrow.csv

    if nested := [f"{field.name!r} is {field.type}" for field in schema if pa.types.is_nested(field.type)]:
        hint = "-f jsonl takes them, and --columns leaves them out"
        raise InvalidArgument(f"CSV has no nested columns: {', '.join(nested)}", context={"hint": hint})
    with pyarrow.csv.CSVWriter(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            try:
                writer.write_batch(batch)
            except pa.ArrowInvalid as error:  # Bytes that are not UTF-8.
                hint = "-f jsonl takes all types, and --columns leaves columns out"
                raise InvalidArgument(f"CSV cannot hold this: {error}", context={"hint": hint}) from error


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
