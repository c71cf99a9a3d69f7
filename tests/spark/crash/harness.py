"""Runs a pipeline, lets it be killed, runs it again with the same checkpoint, and counts rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from aioprefetch.spark.java import use_java
from tests.repository.source_tree import ROOT
from tests.spark.crash.file_sets import add_late_files, make_file_set
from tests.spark.crash.kill_points import JVM, KILLED, MARKER, POINT

RUN_SECONDS_MAX = 240
PIPELINE = Path(__file__).with_name("pipeline.py")


@dataclass(frozen=True)
class Row:
    """One row of the crash matrix."""

    point: str
    shape: str
    sink: str = "parquet"
    master: str = "local[2]"

    def __str__(self) -> str:
        return f"{self.point}-{self.shape}-{self.sink}"

    @property
    def query_survives(self) -> bool:
        """Whether Spark runs the task again elsewhere, so that the pipeline itself goes on."""
        return self.master.startswith("local-cluster")


@dataclass(frozen=True)
class Outcome:
    """How often each id was put there, and how often it arrived."""

    expected: Counter[int]
    arrived: Counter[int]

    @property
    def lost(self) -> list[int]:
        """Rows that did not arrive."""
        return sorted((self.expected - self.arrived).elements())

    @property
    def doubled(self) -> list[int]:
        """Rows that arrived more than once, or that were not in the files."""
        return sorted((self.arrived - self.expected).elements())


def crash(row: Row, directory: Path, *, restarts: int = 1) -> Outcome:
    """Run one row: kill, add files, restart. ``AssertionError`` when the kill did not happen as planned."""
    files = make_file_set(directory / "in", row.shape)
    config = {
        "master": row.master,
        "sink": row.sink,
        "options": files.options,
        "source": str(files.directory),
        "state": str(directory / "state"),
        "checkpoint": str(directory / "checkpoint"),
        "output": str(directory / "out"),
    }
    (directory / "config.json").write_text(json.dumps(config))
    killed = run(directory, point=row.point)
    assert (directory / "marker").with_suffix(KILLED).exists(), f"no process was killed:\n{killed.stdout[-3000:]}"
    assert (killed.returncode == 0) is row.query_survives, killed.stdout[-3000:]
    files = add_late_files(files, row.shape)
    for _ in range(restarts):
        again = run(directory, point="")
        assert again.returncode == 0, again.stdout[-6000:]
    arrived = sink_ids(directory / "out", row.sink)
    return Outcome(Counter(files.ids), arrived)


def run(directory: Path, *, point: str) -> subprocess.CompletedProcess[str]:
    """The pipeline in a session of processes of its own, all of which are gone afterwards."""
    use_java()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        POINT: point,
        MARKER: str(directory / "marker"),
        JVM: str(directory / "jvm"),
    }
    log = directory / f"log-{point or 'restart'}.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(PIPELINE), str(directory / "config.json")],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(RUN_SECONDS_MAX)
        finally:
            end_session(process.pid)
            process.wait()
    return subprocess.CompletedProcess(process.args, code, log.read_text(errors="replace"))


def end_session(session: int) -> None:
    """Kill what is left of a session, in whatever process group."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            try:
                os.kill(int(directory.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def sink_ids(output: Path, sink: str) -> Counter[int]:
    """The ids that a reader of the sink sees: a file sink's own log says which files count."""
    if sink == "parquet":
        paths = [path for path in committed_files(output / "_spark_metadata") if path.exists()]
    else:
        paths = sorted(output.glob("batch=*/*.parquet"))
    found: Counter[int] = Counter()
    for path in paths:
        with pq.ParquetFile(path) as file:
            found.update(file.read(columns=["id"]).column("id").to_pylist())
    return found


def committed_files(log: Path) -> list[Path]:
    """The files named by a file sink's log: the last compacted batch and all after it."""
    batches = {int(path.name.partition(".")[0]): path for path in log.iterdir() if path.name[0].isdigit()}
    compacted = max((number for number, path in batches.items() if path.name.endswith(".compact")), default=-1)
    named: list[Path] = []
    for number in sorted(number for number in batches if number >= compacted):
        for line in batches[number].read_text().splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                named.append(Path(unquote(urlsplit(entry["path"]).path)))
    return named
