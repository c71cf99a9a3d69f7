"""Files in the formats that the source reads, written by others, and rows in an order of their own."""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

Record = dict[str, Any]

SCHEMA = "id bigint, name string, price double"


def records(start: int, stop: int) -> list[Record]:
    """Some rows of ``SCHEMA``, a name with what has to be quoted among them."""
    return [{"id": n, "name": f'n "{n}", é' if n % 3 else None, "price": n / 4} for n in range(start, stop)]


def expected(start: int, stop: int) -> list[tuple[Any, ...]]:
    """The same as sorted rows."""
    return [tuple(one.values()) for one in records(start, stop)]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, sorted."""
    return sorted((tuple(row) for row in frame.collect()), key=repr_key)


def repr_key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """An order for rows with nulls."""
    return tuple((value is not None, value) for value in row)


def write_jsonl(path: Path, found: Sequence[Record]) -> None:
    """JSON lines, gzipped where the name says so."""
    text = "".join(f"{json.dumps(one)}\n" for one in found).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_csv(path: Path, found: Sequence[Record]) -> None:
    """CSV with a header. A null is an empty field, as both readers have it."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    path.write_text(buffer.getvalue())


def write_parquet(path: Path, found: Sequence[Record], **options: Any) -> None:
    """Parquet by pyarrow."""
    pq.write_table(pa.Table.from_pylist(list(found)), path, **options)


def write_lance(path: Path, found: Sequence[Record]) -> None:
    """A dataset of Lance by pylance."""
    import lance

    lance.write_dataset(pa.Table.from_pylist(list(found)), str(path))
