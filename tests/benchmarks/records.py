"""What is kept of a measured job, as JSON has it: every sample, and what they depend on.

Plots and pages are made of records alone, so that they can be made again without measuring again.
"""

import datetime as dt
import importlib.metadata
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.job import ROOT
from tests.benchmarks.nginx import nginx_program
from tests.benchmarks.runner import Result, commit_of

# A record is a JSON object; its keys are those of record_of.
Record = dict[str, Any]

PACKAGES = (
    *("aioprefetch", "obstore", "opendal", "s3fs", "fsspec", "pyarrow", "polars", "boto3", "s3torchconnectorclient"),
    *("pylance", "botocore", "aiobotocore", "aiohttp", "httptools", "uvloop", "numpy"),
)
# What is kept whether a table shows it or not.
COMPARED = ("wall_seconds", "cpu_seconds", "gets", "others", "sent_bytes", "memory_peak_bytes", "memory_growth_bytes")
SIGNIFICANT_DIGITS = 6
PROCESSORS = Path("/proc/cpuinfo")


def circumstances() -> dict[str, Any]:
    """What numbers depend on: versions, our commit, machine and date, nothing that names the machine."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "packages": {**versions, "nginx": nginx_version()},
        "commit": commit_of(ROOT),
    }


def nginx_version() -> str:
    """The version of the simulator's server, empty without one."""
    program = nginx_program()
    if program is None:
        return ""
    # It says on stderr: "nginx version: nginx/1.22.1".
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return said.strip().rpartition("/")[2]


def processor() -> str:
    """The model of the processor, empty where the system does not tell."""
    if not PROCESSORS.exists():
        return ""
    names = [line.partition(":")[2].strip() for line in PROCESSORS.read_text().splitlines() if "model name" in line]
    return names[0] if names else ""


def record_of(result: Result, measured: Mapping[str, Any], *, whole: bool = True) -> Record:
    """A result as it is kept: with every number, or with those that are shown or compared."""
    job = result.job
    shown = {*COMPARED, *(column.name for column in job.columns), *(bar.number for bar in job.bars)}
    return {
        "job": job.name,
        "rounds": result.rounds,
        "measured": dict(measured),
        "samples": {
            name: {
                number: [_rounded(one.get(number)) for one in rounds]
                for number in rounds[0]
                if whole or number in shown
            }
            for name, rounds in result.samples.items()
        },
    }


def load(path: Path) -> list[Record]:
    """The records of a file; none without one."""
    if not path.exists():
        return []
    records: list[Record] = json.loads(path.read_text("utf-8"))["jobs"]
    return records


def save(path: Path, records: Sequence[Record]) -> None:
    """Write records, a job on a line: a job measured again is one line that differs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records)
    path.write_text(f'{{"jobs": [\n{lines}\n]}}\n', "utf-8")


def latest(records: Sequence[Record], *, order: Sequence[str]) -> list[Record]:
    """The last record of each job that still exists, in order."""
    found = {record["job"]: record for record in records}
    return [found[name] for name in order if name in found]


def _rounded(value: float | None) -> float | None:
    """As many digits as a measurement has; None for what is no number."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() else short
