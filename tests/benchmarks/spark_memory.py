"""The job ``spark-memory``: how much memory a Python worker of Spark takes for files that grow while they are read."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.bars import Bar
from tests.benchmarks.content import MIB
from tests.benchmarks.job import PEAK, Contestant, Job, Sample, Target
from tests.benchmarks.spark_session import family, session, take_all
from tests.benchmarks.spark_tables import made

if TYPE_CHECKING:
    import pyarrow as pa

WORKER_BYTES_MAX = 400 * MIB
BINARY_BYTES = 150 * MIB
SAMPLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """Files, how many rows they have, and what a worker may have resident while it reads them."""

    title: str
    name: str
    write: Callable[[Path], None]
    rows: int
    options: dict[str, Any] = field(default_factory=dict)
    links: int = 1
    bar_bytes: int = WORKER_BYTES_MAX

    def directory(self) -> str:
        """The directory of the file under as many names, made unless it is there."""
        stem, _, suffix = self.name.partition(".")
        directory = made(f"memory-{stem}", suffix, 1, lambda path, _: self.write(path))
        for number in range(1, self.links):
            with contextlib.suppress(FileExistsError):
                (Path(directory) / f"{number}.{suffix}").hardlink_to(Path(directory) / f"0.{suffix}")
        return directory


def parquet(table: pa.Table, path: Path, **how: Any) -> None:
    """One row group."""
    import pyarrow.parquet as pq

    pq.write_table(table, path, row_group_size=1 << 30, **how)


def one_text(path: Path, *, rows: int, size: int, store_schema: bool = True) -> None:
    """One text, over and over, in a dictionary."""
    import pyarrow as pa

    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    parquet(pa.table({"row": pa.array(range(rows)), "text": text}), path, store_schema=store_schema)


def plain_texts(path: Path, *, rows: int, size: int = 10_000) -> None:
    """Different texts of one length, as they are."""
    import numpy as np
    import pyarrow as pa

    noise = np.random.default_rng(1).bytes(MIB).hex()
    parts = [
        pa.array([noise[7 * row : 7 * row + size] for row in range(start, min(rows, start + 10_000))])
        for start in range(0, rows, 10_000)
    ]
    parquet(pa.table({"text": pa.chunked_array(parts)}), path, use_dictionary=False, compression="none")


def numbers(rows: int, path: Path) -> None:
    """Ten columns of doubles."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(1)
    parquet(pa.table({f"c{n}": random.random(rows) for n in range(10)}), path, compression="none")


def lines(line: bytes, count: int, path: Path, *, opens: Callable[..., Any] = open) -> None:
    """One line, over and over."""
    with opens(path, "wb") as file:
        for _ in range(count // 1000):
            file.write(line * 1000)


def blob(path: Path) -> None:
    """Bytes."""
    path.write_bytes(bytes(range(256)) * (BINARY_BYTES // 256))


JSON_LINE = b'{"id": 1234567, "text": "%b"}\n' % (b"x" * 968)
CSV_LINE = b'1234567,"%b"\n' % (b"one\ntwo " * 123)
WIDE_TEXT = partial(one_text, rows=70_000, size=40_000)
CSV = {"schema": "id bigint, text string"}
ROWS = [
    Row("one text of 40 kB, 70,000 times, Parquet", "dictionary.parquet", WIDE_TEXT, 70_000),
    Row(
        "the same as Spark writes it",
        "spark-dictionary.parquet",
        partial(WIDE_TEXT, store_schema=False),
        70_000,
    ),
    Row(
        "one text of 4 kB, 600,000 times, Parquet", "many.parquet", partial(one_text, rows=600_000, size=4_000), 600_000
    ),
    Row("2 GB of plain texts of 10 kB, one row group", "plain.parquet", partial(plain_texts, rows=200_000), 200_000),
    Row("4,000,000 rows of 10 numbers, one row group", "numbers.parquet", partial(numbers, 4_000_000), 4_000_000),
    Row("1 GB of JSON in a gzip", "json.json.gz", partial(lines, JSON_LINE, 1_000_000, opens=gzip.open), 1_000_000),
    Row("1 GB of JSON", "json-plain.json", partial(lines, JSON_LINE, 1_000_000), 1_000_000),
    Row("1 GB of text", "text.txt", partial(lines, b"x" * 999 + b"\n", 1_000_000), 1_000_000),
    Row(
        "1 GB of CSV", "csv.csv", partial(lines, CSV_LINE.replace(b"\n", b" ")[:-1] + b"\n", 1_000_000), 1_000_000, CSV
    ),
    Row(
        "8 files of 100 MB of CSV, multiLine",
        "multi.csv",
        partial(lines, CSV_LINE, 100_000),
        800_000,
        {**CSV, "multiLine": True},
        links=8,
    ),
    Row("8 files of 150 MB, binary", "eight.bin", blob, 8, links=8, bar_bytes=200 * MIB + 2 * BINARY_BYTES),
    Row("16 files of 150 MB, binary", "sixteen.bin", blob, 16, links=16, bar_bytes=200 * MIB + 2 * BINARY_BYTES),
]


class Peaks:
    """The largest peak of a Python process below this one; a worker that ends in between was looked at before."""

    def __init__(self) -> None:
        self.largest_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            for pid in family():
                with contextlib.suppress(OSError, StopIteration):
                    if pid != os.getpid() and "python" in Path(f"/proc/{pid}/exe").readlink().name:
                        status = Path(f"/proc/{pid}/status").read_text().splitlines()
                        peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
                        self.largest_bytes = max(self.largest_bytes, peak)


def contestant(row: Row) -> Contestant:
    """Reads the files to their last row, on two task slots, and counts."""

    async def run(target: Target) -> Sample:
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        from aioprefetch.spark import read

        directory, counted = row.directory(), Observation()
        with session() as spark, Peaks() as peaks:
            frame = read(spark, f"file://{directory}/*", **row.options)
            take_all(frame.observe(counted, count(lit(1)).alias("rows")))
        if counted.get["rows"] != row.rows:
            raise AssertionError(f"{counted.get['rows']} rows of {row.rows}")
        return {"memory_peak_bytes": peaks.largest_bytes}

    return run


SPARK_MEMORY = Job(
    name="spark-memory",
    title="The largest peak of a Python worker, local[2], default options",
    contestants={f"aioprefetch, {row.title}": contestant(row) for row in ROWS},
    columns=(replace(PEAK, heading="worker peak MiB"),),
    rounds_max=1,
    bars=[
        Bar(
            shape=row.title,
            ours=f"aioprefetch, {row.title}",
            number="memory_peak_bytes",
            bar=row.bar_bytes,
            aim=row.bar_bytes,
            unit=MIB,
            digits=0,
        )
        for row in ROWS
    ],
    quick_contestants=(),
)
