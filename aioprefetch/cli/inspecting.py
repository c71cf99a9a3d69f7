"""``scan``, ``head`` and ``plan``: the rows of a file, its inside, and the requests that a read of it would make."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape
from typing import TYPE_CHECKING, Any

import click

from aioprefetch import lance, parquet
from aioprefetch.cli.places import Stores, command, literal_option, objects_of, place_argument, selection_of, stem_of
from aioprefetch.cli.printing import choose_display, json_text, path_text, print_json
from aioprefetch.cli.reading import Slice, kind_of, kind_option, read_place, slices_of
from aioprefetch.display import bytes_text, count_text, counted, seconds_text
from aioprefetch.display.bars import FROM_S3
from aioprefetch.errors import InvalidArgument, IsADirectory, NotFound, PermissionDenied, UntrustedMetadata, shortened
from aioprefetch.operator.operator import Operator
from aioprefetch.options import table_of
from aioprefetch.ranges import Range, coalesce, total_length
from aioprefetch.reader.policy import POLICIES, coalescing
from aioprefetch.source.options import ReadOptions
from aioprefetch.sync import open as open_file
from aioprefetch.sync import run
from aioprefetch.transfer.sides import Side

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("jsonl", "csv", "arrow")
_CLAUSE = re.compile(
    r"\s*(?P<column>.+?)\s*(?P<operator><=|>=|!=|==|=|<|>|\bnot in\b|\bin\b)\s*(?P<value>.+?)\s*", re.S
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")

FILTER = table_of(ReadOptions)["filters"]


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
            added = FILTER.read(text, "the option --filter")
        else:
            added = FILTER.read(json.dumps([_clause(text)]), "the option --filter")
        alternatives = [[*before, *clauses] for before in alternatives for clauses in added]
    return alternatives


def _clause(text: str) -> list[Any]:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"--filter {text!r} is not a clause such as 'price > 3', 'day = 2026-01-31' or 'name in [\"a\", \"b\"]'"
        )
    operator = "==" if match["operator"] == "=" else match["operator"]
    return [match["column"], operator, _filter_value(match["value"])]


def _filter_value(text: str) -> Any:
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


# --- head -------------------------------------------------------------------------------------------------------------

CELL_CHARACTERS_MAX = 40
PARTS_SHOWN_MAX = 20
LINE_BYTES_MAX = 64 << 10
# A NUL among these first bytes tells a binary file.
TEXT_SAMPLE_BYTES = 8 << 10

# What S3 takes for GETs in most regions.
DOLLARS_PER_1000_GETS = 0.0004


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A file of columns: its sums for programs and as a text, its columns with their types, its parts, and rows."""

    title: str
    summary: str
    facts: dict[str, Any]
    columns: list[tuple[str, str]]
    part_names: tuple[str, ...]
    parts: list[tuple[int, ...]]
    rows: Any


@command(
    "head",
    examples="""
aioprefetch head s3://bucket/table.parquet
aioprefetch head -n 3 --columns id,name data.lance
aioprefetch head s3://bucket/log.txt
""",
)
@place_argument("place", "PLACE")
@click.option("-n", "--rows", "count", default=10, metavar="N", type=click.IntRange(0), help="Rows or lines (10).")
@click.option("--columns", metavar="A,B", help="Show only these columns.")
@kind_option
@literal_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def head(place: str, stores: Stores, count: int, columns: str | None, kind: str | None, as_json: bool) -> int:
    """Show the schema, the row groups or pages and the first rows of a Parquet or Lance file, or lines of a text.

    With a pattern: the first file that matches.
    """
    side = stores.side(place)
    operator = stores.operator_of(side)
    if side.has_wildcard:
        selection = selection_of(side)
        path: str | None = selection.base
        if selection.glob is not None or selection.single is not None:
            path = next((entry.path for entry in objects_of(selection)), None)
        if path is None:
            raise NotFound("nothing matches", path=side.label)
        side = replace(side, path=path, label=f"{stem_of(side)}{path}", is_literal=True)
    names = column_names(columns)

    def outlined(side: Side) -> Outline | None:
        """The outline of a table, ``None`` for a text."""
        found = kind_of(side, kind, operator)
        if found != "lance" and (not side.path or side.path.endswith("/")):
            hint = f"head '{side.label.rstrip('/')}/*.parquet' shows the first file"
            raise IsADirectory("it is a directory", path=side.label, context={"hint": hint})
        read = _parquet_outline if found == "parquet" else _lance_outline
        return None if found == "text" else run(read(operator, side.path, count, names))

    outline = read_place(side, outlined)
    if outline is None:
        return _head_of_text(operator, side.path, count, is_sure=kind is not None, as_json=as_json)
    rows = outline.rows.to_pylist()
    if as_json:
        fields: dict[str, Any] = {"place": side.label, "format": outline.title, **outline.facts}
        fields["columns"] = [{"name": name, "type": kind} for name, kind in outline.columns]
        fields["parts"] = [dict(zip(outline.part_names, part, strict=True)) for part in outline.parts]
        print_json({**fields, "rows": rows})
        return 0
    display = choose_display(silent=False)
    display.say(f"{side.label}: {outline.title}, {outline.summary}")
    display.table(("column", "type"), [(name, shortened(kind, 80)) for name, kind in outline.columns], text_columns=2)
    if outline.parts:
        shown = outline.parts[:PARTS_SHOWN_MAX]
        display.table(
            [name.replace("_", " ") for name in outline.part_names],
            [tuple(f"{number:,}" for number in part) for part in shown],
        )
        if len(outline.parts) > len(shown):
            display.say(f"and {len(outline.parts) - len(shown):,} more")
    if rows:
        display.table(
            tuple(rows[0]), [tuple(_cell(value) for value in row.values()) for row in rows], text_columns=len(rows[0])
        )
    return 0


def _cell(value: object) -> str:
    return shortened("" if value is None else str(value), CELL_CHARACTERS_MAX)


def _head_of_text(operator: Operator, path: str, count: int, *, is_sure: bool, as_json: bool) -> int:
    """Print lines. ``InvalidArgument`` if the file is binary, unless the caller is sure of it."""
    lines: list[bytes] = []
    with open_file(path, operator=operator, policy="random") as file:
        if not is_sure and b"\0" in file.read(TEXT_SAMPLE_BYTES):
            hint = "give --type, or look at its bytes: cat --range 0:64 … | xxd"
            raise InvalidArgument("it is not a text", path=path, context={"hint": hint})
        file.seek(0)
        while len(lines) < count and (line := file.readline(LINE_BYTES_MAX)):
            lines.append(line)
    if as_json:
        print_json({"lines": [line.rstrip(b"\r\n").decode("utf-8", "replace") for line in lines]})
        return 0
    sys.stdout.buffer.writelines(lines)
    sys.stdout.buffer.flush()
    return 0


async def _parquet_outline(operator: Operator, path: str, count: int, columns: list[str] | None) -> Outline:
    footer = await parquet.footer(operator, path, everything=True)
    metadata = footer.metadata
    parts: list[tuple[int, ...]] = [
        (number, end - start, metadata.row_group(number).total_byte_size)
        for number, (start, end) in enumerate(zip(footer.first_rows, footer.first_rows[1:], strict=False))
    ]
    facts = {
        "row_count": footer.rows,
        "row_groups": footer.row_groups,
        "bytes": footer.size,
        "writer": metadata.created_by,
    }
    summary = f"{counted(footer.rows, 'row')}, {counted(footer.row_groups, 'row group')}, {bytes_text(footer.size)}"
    if metadata.created_by:
        summary += f", written by {metadata.created_by}"
    rows = await parquet.scan(operator, escape(path), columns=columns, rows=(0, count), footer=footer).read_all()
    schema = [(field.name, str(field.type)) for field in footer.schema]
    return Outline(
        title="Parquet",
        summary=summary,
        facts=facts,
        columns=schema,
        part_names=("row_group", "rows", "uncompressed_bytes"),
        parts=parts,
        rows=rows,
    )


async def _lance_outline(operator: Operator, path: str, count: int, columns: list[str] | None) -> Outline:
    parts: list[tuple[int, ...]] = []
    names: tuple[str, ...] = ()
    facts: dict[str, Any]
    try:
        if not path or path.endswith("/"):
            raise NotFound("there is no version of a Lance dataset", operation="open", path=path)
        file = await lance.open_file(operator, path)
        await file.load_columns(range(file.column_count))
        names = ("column", "pages", "rows")
        for index in range(file.column_count):
            pages = file.column(index).pages
            parts.append((index, len(pages), sum(page.rows for page in pages)))
        version = ".".join(map(str, file.version))
        facts = {"version": version, "row_count": file.rows, "bytes": file.size}
        summary = f"{counted(file.rows, 'row')}, {bytes_text(file.size)}, version {version}"
        schema, title = file.schema, "Lance file"
        scan = lance.scan(operator, path, columns=columns, rows=(0, count))
    except (NotFound, IsADirectory, PermissionDenied, UntrustedMetadata):
        dataset: lance.LanceDataset | None = None
        with suppress(NotFound):
            dataset = await lance.open_dataset(operator, path)
        if dataset is None:
            raise
        rows_in_all, fragments = dataset.count_rows(), len(dataset.fragments)
        facts = {"version": dataset.version, "row_count": rows_in_all, "fragments": fragments}
        summary = f"{counted(rows_in_all, 'row')}, {counted(fragments, 'fragment')}, version {dataset.version}"
        schema, title = dataset.schema, "Lance dataset"
        scan = dataset.scan(columns=columns, rows=(0, count))
    rows = await scan.read_all()
    columns_shown = [(field.name, str(field.type)) for field in schema]
    return Outline(
        title=title, summary=summary, facts=facts, columns=columns_shown, part_names=names, parts=parts, rows=rows
    )


# --- plan -------------------------------------------------------------------------------------------------------------


@command(
    "plan",
    examples="""
aioprefetch plan --columns id,price s3://bucket/table.parquet
aioprefetch plan --filter 'day = 2026-01-31' 's3://bucket/t/**/*.parquet'
aioprefetch plan --range 0:4KiB --range 1MiB:2MiB s3://bucket/key
""",
)
@place_argument("place", "PLACE")
@click.option("--columns", metavar="A,B", help="The columns of the scan.")
@click.option("--filter", "filters", multiple=True, metavar="TEXT", help="As for scan; all must hold.")
@click.option("--rows", metavar="START:END", callback=slices_of, help="The rows of the scan.")
@click.option("--range", "ranges", multiple=True, metavar="START:END", callback=slices_of, help="A range of bytes.")
@kind_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def plan(
    place: str,
    stores: Stores,
    columns: str | None,
    filters: Sequence[str],
    rows: Sequence[Slice],
    ranges: Sequence[Slice],
    kind: str | None,
    as_json: bool,
) -> int:
    """Show the requests that a read would make, and what they cost.

    For a scan of Parquet or Lance it reads only the metadata; what lies in the last 1 MiB of a file comes with it. For
    byte ranges nothing is read. The time assumes a store with 25 ms to the first byte and 90 MB/s for each
    connection; the price is for GETs of S3 in most regions.
    """
    side = stores.side(place)
    if ranges:
        if columns or filters or rows:
            raise InvalidArgument("--range is for bytes, and --columns, --filter and --rows are for scans")
        requests = _byte_requests(side.path, ranges)
        wanted, metadata_requests, metadata_bytes = total_length(_bounded(ranges)), 0, 0
    else:
        operator = stores.operator_of(side)
        names = column_names(columns)
        part = next(iter(_bounded(rows)), None)
        before = operator.statistics

        def planned(side: Side) -> tuple[list[tuple[str, int, int]], int]:
            nonlocal before
            found = kind_of(side, kind, operator)
            before = operator.statistics  # The read does not look for the format.
            if found == "parquet":
                scan = run(
                    parquet.plan_files(operator, side.path, columns=names, filters=read_filters(filters), rows=part)
                )
                parts = [(each.path, start, end) for each in scan.files for start, end in each.requests]
                return parts, scan.projected_bytes
            if found == "lance":
                made = run(lance.plan(operator, side.path, columns=names, filters=read_filters(filters), rows=part))
                return list(made.requests), made.projected_bytes
            hint = "give --range, or --type"
            raise InvalidArgument("it is neither Parquet nor Lance", path=side.label, context={"hint": hint})

        requests, wanted = read_place(side, planned)
        counted_since = operator.statistics - before
        metadata_requests = counted_since["action_http_get_request"]
        metadata_bytes = counted_since["stream_read_total_bytes"]
    _show_plan(side.label, requests, wanted, metadata_requests, metadata_bytes, as_json=as_json)
    return 0


def _bounded(slices: Iterable[Slice]) -> list[Range]:
    """Slices with both ends. ``InvalidArgument`` if a slice depends on the size of the object."""
    ranges = [(start or 0, end) for start, end in slices]
    bounded = [(start, end) for start, end in ranges if end is not None and start >= 0]
    if len(bounded) < len(ranges):
        raise InvalidArgument("a plan needs both ends of each range")
    return bounded


def _byte_requests(path: str, ranges: Sequence[Slice]) -> list[tuple[str, int, int]]:
    gap_bytes, request_bytes_max = coalescing(None, None, policy=POLICIES["vector"], path=path)
    merged = coalesce(_bounded(ranges), gap_bytes=gap_bytes, request_bytes_max=request_bytes_max)
    return [(path, piece.start, piece.start + piece.size) for piece in merged]


def _show_plan(
    label: str,
    requests: Sequence[tuple[str, int, int]],
    wanted: int,
    metadata_requests: int,
    metadata_bytes: int,
    *,
    as_json: bool,
) -> None:
    """Print the requests for data, and the sums with those for metadata, which come first."""
    data_bytes = sum(end - start for _, start, end in requests)
    count, sent = len(requests) + metadata_requests, data_bytes + metadata_bytes
    seconds = _estimated_seconds(metadata_requests, metadata_bytes) + _estimated_seconds(len(requests), data_bytes)
    dollars = count / 1000 * DOLLARS_PER_1000_GETS
    if as_json:
        print_json(
            {
                "place": label,
                "requests": [{"path": path, "start": start, "end": end} for path, start, end in requests],
                "metadata_requests": metadata_requests,
                "metadata_bytes": metadata_bytes,
                "wanted_bytes": wanted,
                "requested_bytes": sent,
                "seconds": round(seconds, 3),
                "dollars": round(dollars, 10),
            }
        )
        return
    for path, start, end in requests:
        click.echo(f"{path_text(path)}  [{start}, {end})  {bytes_text(end - start)}")
    brought = "" if requests else ", which bring the data along"
    metadata = f" ({count_text(metadata_requests)} of them for metadata{brought})" if metadata_requests else ""
    click.echo(
        f"{counted(count, 'request')} for {bytes_text(sent)}, while the read needs {bytes_text(wanted)}{metadata};"
        f" about {seconds_text(seconds)} and ${dollars:.7f}"
    )


def _estimated_seconds(requests: int, size: int) -> float:
    """How long requests take that are sent at once."""
    if not requests:
        return 0.0
    cost = FROM_S3
    return cost.first_byte_seconds + size / min(cost.bytes_per_second, cost.connection_bytes_per_second * requests)
