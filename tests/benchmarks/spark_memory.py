"""The job ``spark-memory``: how much memory a Python worker of Spark takes for files that grow while they are read."""

import contextlib
import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.content import MIB
from tests.benchmarks.job import PEAK, Bar, Contestant, Job, Sample, Target
from tests.benchmarks.spark import family, made, session

WORKER_BYTES_MAX = 400 * MIB
BLOB_BYTES = 150 * MIB


@dataclass(frozen=True, slots=True)
class Files:
    """One file under several names, how many rows all of them have, and what a worker may have resident."""

    name: str
    rows: int
    write: Callable[[Path], None]
    options: dict[str, Any] = field(default_factory=dict)
    links: int = 1
    bar_bytes: int = WORKER_BYTES_MAX

    def directory(self) -> str:
        """Where they are, made unless they are there."""
        stem, _, suffix = self.name.partition(".")

        def write(path: Path, number: int) -> None:
            if number:
                path.hardlink_to(path.with_name(f"0.{suffix}"))
            else:
                self.write(path)

        return made(f"memory-{stem}", suffix, self.links, write)


def parquet(path: Path, *, rows: int, size: int = 0, distinct: int = 10_000, **how: Any) -> None:
    """A row group of texts of one length: few distinct ones in a dictionary, many as they are; without, of numbers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    noise = random.bytes(MIB).hex()
    values = pa.array([noise[7 * row : 7 * row + size] for row in range(distinct)])
    if not size:
        table = pa.table({f"c{n}": random.random(rows) for n in range(10)})
    elif distinct == 1:
        table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), values)})
    else:
        table = pa.table({"text": pa.chunked_array([values] * (rows // distinct))})
    pq.write_table(table, path, row_group_size=rows, use_dictionary=distinct == 1, compression="none", **how)


def lines(path: Path, *, line: bytes, count: int, opens: Callable[..., Any] = open) -> None:
    """One line, over and over."""
    with opens(path, "wb") as file:
        for _ in range(count // 1000):
            file.write(line * 1000)


def blob(path: Path) -> None:
    """Bytes."""
    path.write_bytes(bytes(range(256)) * (BLOB_BYTES // 256))


JSON = b'{"id": 1234567, "text": "%b"}\n' % (b"x" * 968)
CSV = b'1234567,"%b"\n' % (b"one\ntwo " * 123)
MANY = partial(lines, count=1_000_000)
WIDE = partial(parquet, rows=70_000, size=40_000, distinct=1)
OF_CSV = {"schema": "id bigint, text string", "multiLine": True}
BLOB_BAR = 200 * MIB + 2 * BLOB_BYTES
ROWS = {
    "a text of 40 kB, 70,000 times": Files("wide.parquet", 70_000, WIDE),
    "as Spark writes it": Files("spark.parquet", 70_000, partial(WIDE, store_schema=False)),
    "a text of 4 kB, 600,000 times": Files("many.parquet", 600_000, partial(WIDE, rows=600_000, size=4_000)),
    "2 GB of texts of 10 kB": Files("texts.parquet", 200_000, partial(parquet, rows=200_000, size=10_000)),
    "10 numbers, 4,000,000 times": Files("numbers.parquet", 4_000_000, partial(parquet, rows=4_000_000)),
    "1 GB of JSON in a gzip": Files("json.json.gz", 1_000_000, partial(MANY, line=JSON, opens=gzip.open)),
    "1 GB of text": Files("text.txt", 1_000_000, partial(MANY, line=b"x" * 999 + b"\n")),
    "8 × 100 MB of CSV, multiLine": Files("csv.csv", 800_000, partial(lines, line=CSV, count=100_000), OF_CSV, 8),
    "8 × 150 MB, binary": Files("eight.bin", 8, blob, links=8, bar_bytes=BLOB_BAR),
    "16 × 150 MB, binary": Files("sixteen.bin", 16, blob, links=16, bar_bytes=BLOB_BAR),
}


def largest_peak() -> int:
    """Of the Python processes below this one: workers stay for a while after their last task."""
    peaks = [0]
    for pid in family():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and "python" in Path(f"/proc/{pid}/exe").readlink().name:
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                peaks += [int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM")]
    return max(peaks)


def contestant(files: Files) -> Contestant:
    """Reads the files to their last row, on two task slots, and counts."""

    async def run(target: Target) -> Sample:
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        from aioprefetch.spark import read

        directory, counted = files.directory(), Observation()
        with session() as spark:
            frame = read(spark, f"file://{directory}/*", **files.options)
            frame.observe(counted, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
            peak_bytes = largest_peak()
        if counted.get["rows"] != files.rows:
            raise AssertionError(f"{counted.get['rows']} rows of {files.rows}")
        return {"memory_peak_bytes": peak_bytes}

    return run


def bar(title: str, files: Files) -> Bar:
    """What a worker may have resident."""
    most = files.bar_bytes
    return Bar(shape=title, ours=f"aioprefetch, {title}", number=PEAK.name, bar=most, aim=most, unit=MIB, digits=0)


SPARK_MEMORY = Job(
    name="spark-memory",
    title="The largest peak of a Python worker, local[2], default options",
    contestants={f"aioprefetch, {title}": contestant(files) for title, files in ROWS.items()},
    columns=(replace(PEAK, heading="worker peak MiB"),),
    rounds_max=1,
    bars=[bar(title, files) for title, files in ROWS.items()],
    quick="none",
)
