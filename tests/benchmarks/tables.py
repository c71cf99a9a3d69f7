"""Tables read out of Parquet and Lance files: the readers of each library, the files, and how a read is timed.

Values come from seeded generators, without dictionary and compression: nothing hides in them, their sizes are known,
and a column can be made again to compare it with. Every value is compared when the clock has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.clients import CLIENTS, Factory
from tests.benchmarks.job import CHECK_OBJECT, WARM_OBJECT, Contestant, Sample, Target
from tests.benchmarks.meter import Meter
from tests.benchmarks.our_clients import Ours, recipe_of
from tests.benchmarks.seam import Client

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = 12
NAMES = tuple(f"column_{index:02}" for index in range(COLUMNS))
THREE = (NAMES[1], NAMES[5], NAMES[9])
VALUE_BYTES = 8
# The demo's file has 50 row groups of about 16 kB.
DEMO_GROUP_BYTES = 16_000

Columns = Sequence[str] | None
# Reads the columns (None: all) of the object of a key by a client; a coroutine, or a call for a thread without a loop.
Read = Callable[..., Any]


# --- Parquet files ----------------------------------------------------------------------------------------------------


def column_values(index: int, rows: int) -> Any:
    """A column of the large file, as a numpy array of doubles."""
    import numpy as np

    return np.random.default_rng(index).random(rows)


def write_doubles(path: Path, size_bytes: int, *, row_groups: int = 10) -> None:
    """Write 12 columns of doubles."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = size_bytes // (COLUMNS * VALUE_BYTES)
    table = pa.table({name: column_values(index, rows) for index, name in enumerate(NAMES)})
    pq.write_table(table, path, row_group_size=-(-rows // row_groups), use_dictionary=False, compression="none")


def check_doubles(table: pa.Table, target: Target, columns: Columns) -> int:
    """Compare every value of the columns that were asked for; the bytes of them."""
    import numpy as np

    wanted = tuple(columns or NAMES)
    assert tuple(table.column_names) == wanted, f"columns {table.column_names}"
    # Footer and page heads take less than a row for every hundred, and rows of different files differ by thousands.
    rows, size_bytes = table.num_rows, target.size_bytes
    assert 0.99 * size_bytes < rows * COLUMNS * VALUE_BYTES < size_bytes, f"{rows} rows of {size_bytes} bytes"
    for name in wanted:
        same = np.array_equal(table.column(name).to_numpy(), column_values(NAMES.index(name), rows))
        assert same, f"{name} has other values than were written"
    return int(rows) * len(wanted) * VALUE_BYTES


def demo_table(groups: int) -> pa.Table:
    """The first row groups of the demo's file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from aioprefetch.cli.demo import sample_parquet

    return pq.ParquetFile(pa.BufferReader(sample_parquet())).read_row_groups(range(min(groups, 50)))


def write_demo(path: Path, size_bytes: int) -> None:
    """Write the demo's file, or its first row groups: one for each 16,000 bytes."""
    import pyarrow.parquet as pq

    from aioprefetch.cli.demo import ROWS_PER_GROUP

    table = demo_table(size_bytes // DEMO_GROUP_BYTES)
    pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, use_dictionary=False, compression="none")


def check_demo(table: pa.Table, target: Target, columns: Columns) -> int:
    """Compare with the demo's file; its bytes."""
    assert table.equals(demo_table(target.size_bytes // DEMO_GROUP_BYTES)), "other values than were written"
    return target.size_bytes


# --- who reads them ---------------------------------------------------------------------------------------------------


class Polars(Client):
    """Polars' own reader."""

    is_blocking = True

    async def open(self) -> None:
        import polars as pl

        words = ("aws_endpoint_url", "aws_region", "aws_access_key_id", "aws_secret_access_key")
        self.words = {**self.target.given(*words), "aws_allow_http": "true"}
        # Polars reads nothing but tables from a store: what is no Parquet opens the connection and is then refused.
        with contextlib.suppress(pl.exceptions.ComputeError):
            pl.read_parquet(f"s3://{self.path(WARM_OBJECT)}", storage_options=self.words)


class OursForThreads(Client):
    """Our operator for a thread without a loop."""

    is_blocking = True

    async def open(self) -> None:
        import aioprefetch as ap

        self.operator = self.stack.enter_context(ap.sync.BlockingOperator(recipe_of(self.target)))
        await asyncio.to_thread(self.operator.read, WARM_OBJECT)


def whole_table(client: Any, key: str, columns: Columns) -> pa.Table:
    """``pyarrow.parquet.read_table`` of a file, which plans the ranges of column chunks itself, and merges them."""
    import pyarrow.parquet as pq

    with client.file(key) as file:
        return pq.read_table(file, columns=columns and list(columns))


def by_path(client: Any, key: str, columns: Columns) -> pa.Table:
    """``read_table`` with Arrow's own file system and a path: Arrow does everything."""
    import pyarrow.parquet as pq

    return pq.read_table(client.path(key), filesystem=client.filesystem, columns=columns and list(columns))


def by_our_path(client: Any, key: str, columns: Columns) -> pa.Table:
    """``read_table`` with ``ap.arrow.filesystem`` and a path in it."""
    import pyarrow.parquet as pq

    import aioprefetch as ap

    filesystem = ap.arrow.filesystem(client.operator.operator)
    return pq.read_table(key, filesystem=filesystem, columns=columns and list(columns))


async def our_table(client: Any, key: str, columns: Columns) -> pa.Table:
    """``await ap.parquet.read_table(...)``."""
    from aioprefetch import parquet

    return await parquet.read_table(client.operator, key, columns=columns and list(columns))


async def our_scan(client: Any, key: str, columns: Columns) -> pa.Table:
    """``async for batch in ap.parquet.scan(...)``: the batches are kept, so that they can be compared."""
    import pyarrow as pa

    from aioprefetch import parquet

    scan = parquet.scan(client.operator, key, columns=columns and list(columns))
    return pa.Table.from_batches([batch async for batch in scan])


def our_reader(client: Any, key: str, columns: Columns) -> pa.Table:
    """``scan(...).to_reader().read_all()``: the requests go over the loop of ``ap.sync``."""
    from aioprefetch import parquet

    return parquet.scan(client.operator.operator, key, columns=columns and list(columns)).to_reader().read_all()


def polars_frame(client: Any, key: str, columns: Columns) -> pa.Table:
    """``scan_parquet`` of polars."""
    import polars as pl

    frame = pl.scan_parquet(f"s3://{client.path(key)}", storage_options=client.words)
    return (frame if columns is None else frame.select(columns)).collect().to_arrow()


# Who reads Parquet: the client, and the call.
PARQUET_READERS: dict[str, tuple[Factory, Read]] = {
    "aioprefetch parquet.read_table": (Ours, our_table),
    "aioprefetch parquet.scan": (Ours, our_scan),
    "aioprefetch scan.to_reader": (OursForThreads, our_reader),
    "aioprefetch sync.open": (CLIENTS["aioprefetch sync.open"], whole_table),
    "aioprefetch arrow.filesystem": (OursForThreads, by_our_path),
    "polars scan_parquet": (Polars, polars_frame),
    **dict.fromkeys(("pyarrow S3FileSystem", "pyarrow.fs"), (CLIENTS["pyarrow"], by_path)),
    "s3fs": (CLIENTS["s3fs readahead"], whole_table),
}


def warm_pyarrow() -> None:
    """Load what pyarrow loads when it first reads a table, and start its threads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"column": [1.0]}), sink)
    pq.read_table(pa.BufferReader(sink.getvalue()))


async def warm(client: Any) -> None:
    """Read the small object, by a file where there is no other way."""
    if isinstance(client, Ours):
        await client.read(WARM_OBJECT)
    elif hasattr(client, "file"):

        def read() -> None:
            with client.file(WARM_OBJECT) as file:
                file.read()

        await asyncio.to_thread(read)


Check = Callable[[Any, Target, Columns], int]


def table(reader: tuple[Factory, Read], columns: Columns, *, check: Check) -> Contestant:
    """Read a table once, measured from the opening to the last value."""
    factory, read = reader

    async def run(target: Target) -> Sample:
        warm_pyarrow()
        async with factory(target) as client:
            await warm(client)
            meter = Meter()
            if client.is_blocking:
                found = await asyncio.to_thread(read, client, target.key, columns)
            else:
                found = await read(client, target.key, columns)
            usage = meter.stop()
        return {**usage, "received_bytes": check(found, target, columns)}

    return run


# --- Lance ------------------------------------------------------------------------------------------------------------

DIMENSION = 128
# What a row takes in a file of each version; 2.2 packs ids and compresses texts.
ROW_BYTES = {"2.0": 555.3, "2.2": 530.8}
# pylance cuts pages by what it holds, and what it is given at once is never cut: this is what datasets give it.
WRITE_ROWS = 8192
WORDS = ("ridge", "harbour", "lantern", "meadow", "copper", "quarry", "willow", "thicket")


def lance_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Ids that ascend, doubles, short texts, and vectors of 128 floats. A batch follows from where it starts alone."""
    import numpy as np
    import pyarrow as pa

    for start in range(0, rows, WRITE_ROWS):
        generator = np.random.default_rng(start)
        count = min(WRITE_ROWS, rows - start)
        numbers = range(start, start + count)
        value = pa.array(generator.random(WRITE_ROWS)[:count])
        floats = generator.random((WRITE_ROWS, DIMENSION), dtype=np.float32)[:count]
        columns = {
            "id": pa.array(np.arange(start, start + count)),
            "value": value,
            "text": pa.array([f"{WORDS[row % 7]} {WORDS[row % 8]} {row * 7919 % 100_003}" for row in numbers]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(floats.reshape(-1)), DIMENSION),
        }
        yield pa.RecordBatch.from_pydict(columns)


def write_lance(path: Path, size_bytes: int, *, version: str) -> None:
    """Write a file of a version of the format, of as many rows as take about ``size_bytes`` in version 2.0."""
    from lance.file import LanceFileWriter

    batches = list(lance_batches(rows_of(size_bytes, "2.0")))
    with LanceFileWriter(str(path), batches[0].schema, version=version) as writer:
        for batch in batches:
            writer.write_batch(batch)


def rows_of(size_bytes: int, version: str) -> int:
    """The rows of a file of about this size: the number of whole batches that is nearest."""
    return max(1, round(size_bytes / ROW_BYTES[version] / WRITE_ROWS)) * WRITE_ROWS


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a Lance file: the arguments of a scan, given its rows, and the part of the whole it gives."""

    title: str
    asked: Callable[[int], Mapping[str, Any]]
    response: Callable[[pa.Table], pa.Table]


QUESTIONS = {
    "scan": Question("the whole file", lambda rows: {}, lambda table: table),
    "range": Question(
        "1000 rows from the middle",
        lambda rows: {"rows": (rows // 2, rows // 2 + 1000)},
        lambda table: table.slice(table.num_rows // 2, 1000),
    ),
}
PYLANCE_WORDS = ("endpoint", "region", "aws_access_key_id", "aws_secret_access_key")
LANCE_TABLE = "aioprefetch lance.read_table"
# pylance's own default is 1024 rows a batch; with as many as ours it has less to do.
LANCE_READERS = {
    LANCE_TABLE: 0,
    "aioprefetch lance.scan": 0,
    "pylance": 65_536,
    "pylance, 1024 rows a batch": 1024,
}
PYLANCE = tuple(name for name, batch_rows in LANCE_READERS.items() if batch_rows)


def lance(name: str, asked: str, version: str) -> Contestant:
    """Ask a file, after a row of the object under another key: code, connections and threads are warm."""

    question = QUESTIONS[asked]

    async def run(target: Target) -> Sample:
        import pyarrow as pa

        rows = rows_of(target.size_bytes, version)
        ask = _ask_pylance if LANCE_READERS[name] else _ask_us
        usage, found = await ask(target, name, question.asked(rows))
        right = question.response(pa.Table.from_batches(list(lance_batches(rows))))
        assert found.column_names == right.column_names, f"columns {found.column_names}"
        assert found.num_rows == right.num_rows, f"{found.num_rows} rows of {right.num_rows}"
        for column in right.column_names:
            assert found[column].equals(right[column]), f"{column} has other values than were written"
        return dict(usage)

    return run


async def _ask_us(target: Target, name: str, asked: Mapping[str, Any]) -> tuple[dict[str, float], pa.Table]:
    import pyarrow as pa

    async with Ours(target) as client:
        from aioprefetch import lance

        await lance.read_table(client.operator, CHECK_OBJECT, rows=(0, 1))
        meter = Meter()
        if name == LANCE_TABLE:
            found = await lance.read_table(client.operator, target.key, **asked)
        else:
            scan = lance.scan(client.operator, target.key, **asked)
            found = pa.Table.from_batches([batch async for batch in scan])
        return meter.stop(), found


async def _ask_pylance(target: Target, name: str, asked: Mapping[str, Any]) -> tuple[dict[str, float], pa.Table]:
    from lance.file import LanceFileReader

    def opened(key: str) -> Any:
        words = {**target.given(*PYLANCE_WORDS), "allow_http": "true"}
        return LanceFileReader(f"s3://{target.bucket}/{key}", words)

    kept = opened(CHECK_OBJECT)  # its connections are those of the other file
    kept.read_range(0, 1).to_table()
    batch_rows, meter = LANCE_READERS[name], Meter()
    reader = opened(target.key)
    if "rows" in asked:
        start, stop = asked["rows"]
        results = reader.read_range(start, stop - start, batch_size=batch_rows)
    else:
        results = reader.read_all(batch_size=batch_rows)
    found = results.to_table()
    return meter.stop(), found
