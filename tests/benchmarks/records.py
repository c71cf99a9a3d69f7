"""What is kept of a measured job, as JSON has it: every sample, medians, ratios, and what they depend on.

Tables, plots and the page are made of records alone, so that they can be made again without measuring again.
"""

import datetime as dt
import importlib.metadata
import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.job import MISSED, ROOT, Bar, Column, bar_as_json
from tests.benchmarks.nginx import nginx_program
from tests.benchmarks.runner import Result, commit_of

# A record is a JSON object; its keys are those of record_of.
Record = dict[str, Any]

PACKAGES = (
    *("aioprefetch", "obstore", "opendal", "s3fs", "fsspec", "smart_open", "pyarrow", "polars", "boto3", "s3transfer"),
    *("s3torchconnectorclient", "pylance", "botocore", "aiobotocore", "aiohttp", "httptools", "uvloop", "numpy"),
)
# What is compared whether a table shows it or not.
COMPARED = (
    *("wall_seconds", "cpu_seconds", "gets", "others", "sent_bytes"),
    *("memory_peak_bytes", "memory_growth_bytes", "server_cpu_seconds"),
)
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
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "packages": versions,
        "nginx": nginx_version(),
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


def record_of(result: Result, *, group: str, measured: Mapping[str, Any]) -> Record:
    """All that there is to say of a result. Numbers that are none (a ratio without a base) become ``None``."""
    job = result.job
    medians = result.medians()
    values = [(bar, _rounded(bar.value(result.samples))) for bar in job.bars if bar.ours in result.samples]
    return {
        "job": job.name,
        "group": group,
        "title": job.title,
        "conditions": {**asdict(job.conditions), "text": str(job.conditions)} if job.conditions else None,
        "quick": result.quick,
        "rounds": max((len(rounds) for rounds in result.samples.values()), default=0),
        "measured": dict(measured),
        "columns": [column_as_json(column) for column in job.columns],
        "contestants": list(job.contestants),
        "medians": {name: _finite(numbers) for name, numbers in medians.items()},
        "ratios": {name: ratios(result, name) for name in result.samples},
        "samples": {name: by_number(rounds) for name, rounds in result.samples.items()},
        "failures": dict(result.failures),
        "remark": " ".join(sentence_of(bar, value) for bar, value in values if value is not None),
        "bars": [bar_as_json(bar, value) for bar, value in values],
    }


def ratios(result: Result, name: str) -> dict[str, float | None]:
    """Against the first contestant, round by round: what is always compared, and what the table shows."""
    base = result.samples.get(next(iter(result.job.contestants)), [{}])[0]
    own = result.samples[name][0]
    wanted = dict.fromkeys((*COMPARED, *(column.name for column in result.job.columns if column.ratio)))
    return {number: _rounded(result.ratio(name, number)) for number in wanted if number in own and number in base}


def by_number(rounds: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    """The samples of a contestant: for each number its values, round by round."""
    return {number: [_rounded(one.get(number)) for one in rounds] for number in rounds[0]}


def column_as_json(column: Column) -> dict[str, Any]:
    """A column without what it leaves at its default."""
    plain = asdict(Column(name=column.name, heading=column.heading))
    required = ("name", "heading")
    return {key: value for key, value in asdict(column).items() if key in required or value != plain[key]}


def sentence_of(bar: Bar, value: float) -> str:
    """What was measured of a bar, in a sentence for the page."""
    verdict = ": too much" if bar.verdict(value) == MISSED and not bar.at_least else ""
    return f"{bar.shape}: {bar.shown(value)} ({bar.limit(bar.bar)} is wanted{verdict})."


def bars_of(record: Record) -> list[tuple[Bar, float | None]]:
    """The bars of a record, each with what was measured."""
    found = []
    for one in record.get("bars", ()):
        known = {key: value for key, value in one.items() if key != "value"}
        found.append((Bar(**{**known, "bases": tuple(known["bases"])}), one["value"]))
    return found


def columns_of(record: Record) -> list[Column]:
    """The columns of a record's table."""
    return [Column(**column) for column in record["columns"]]


def trimmed(record: Record) -> Record:
    """The record as it is committed: samples of the numbers that are compared or shown, and nothing twice."""
    shown = {*COMPARED, *(column["name"] for column in record["columns"])}

    def of_shown(numbers: Mapping[str, Any]) -> dict[str, Any]:
        return {number: value for number, value in numbers.items() if number in shown}

    samples = {name: of_shown(numbers) for name, numbers in record["samples"].items()}
    return {**{key: value for key, value in record.items() if key != "medians"}, "samples": samples}


def median_of(record: Record, name: str, number: str) -> float | None:
    """The median of a contestant's samples; None where it has no such number."""
    found = [value for value in record["samples"][name].get(number, ()) if value is not None]
    return statistics.median(found) if found else None


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


def merged(old: Sequence[Record], new: Sequence[Record], *, order: Sequence[str]) -> list[Record]:
    """The new records, and the old ones of jobs that were not measured again and still exist, in order."""
    found = {record["job"]: record for record in (*old, *new)}
    return [found[name] for name in order if name in found]


def _finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _rounded(value) for name, value in numbers.items()}


def _rounded(value: float | None) -> float | None:
    """As many digits as a measurement has."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() else short
