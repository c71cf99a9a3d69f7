"""Spark sessions for the jobs ``spark-*``: one in each contestant's process, warm before the clock starts."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aioprefetch.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.benchmarks.job import Sample

CORES = 2
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# How often an action runs: the first one starts workers and compiles, and is not counted.
ACTIONS = 4


@contextlib.contextmanager
def session(**settings: str) -> Iterator[SparkSession]:
    """A session on both cores. Its words go to standard error alone, which the harness shows when it fails."""
    from pyspark.sql import SparkSession

    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("benchmark")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": os.getcwd(),
    }
    for name, value in {**fixed, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def take_all(frame: DataFrame) -> None:
    """Read every row and throw it away, as Spark's own benchmarks do."""
    frame.write.format("noop").mode("overwrite").save()


def timed(action: Callable[[], object]) -> Sample:
    """An action, run until it is warm and then again: the median of wall and CPU of all processes of the session."""
    action()
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(ACTIONS - 1):
        cpu, began = family_cpu_seconds(), time.perf_counter()
        action()
        walls.append(time.perf_counter() - began)
        cpus.append(family_cpu_seconds() - cpu)
    middle = sorted(range(len(walls)), key=walls.__getitem__)[len(walls) // 2]
    return {
        "wall_seconds": walls[middle],
        "cpu_seconds": cpus[middle],
        "memory_peak_bytes": family_resident_bytes(),
    }


def family() -> list[int]:
    """This process and everything below it: the JVM, and Python workers."""
    parents: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(directory.name)] = int(_stat(int(directory.name))[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def family_cpu_seconds() -> float:
    """The time on a CPU of all of them, and of those that they have waited for."""
    ticks = 0
    for pid in family():
        with contextlib.suppress(OSError):
            ticks += sum(int(one) for one in _stat(pid)[11:15])
    return ticks / CLOCK_TICKS


def family_resident_bytes() -> int:
    """The memory that is resident in all of them now; pages that workers share with their daemon count for each."""
    found = 0
    for pid in family():
        with contextlib.suppress(OSError):
            found += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
