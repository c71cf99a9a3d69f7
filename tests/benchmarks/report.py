"""Results as a table for the terminal, as Markdown for the documentation, and as JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.benchmarks.job import Result

PACKAGES = ("aioprefetch", "obstore", "opendal", "s3fs", "smart_open", "pyarrow", "boto3", "aiobotocore", "aiohttp")


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "packages": versions,
    }


def machine_line() -> str:
    """The same in a line."""
    facts = machine()
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return f"Python {facts['python']}, {facts['system']}, {facts['cores']} cores; {packages}"


def cells(result: Result) -> list[list[str]]:
    """The table, its heading first: medians, and ratios against the base where a column wants them."""
    columns = result.job.columns
    heading = ["contestant"]
    for column in columns:
        heading += [column.heading, "ratio"] if column.ratio else [column.heading]
    rows = [heading]
    for name in result.samples:
        row = [name]
        for column in columns:
            row.append(f"{result.median(name, column.name) / column.unit:.{column.digits}f}")
            if column.ratio:
                ratio = result.ratio(name, column.name)
                row.append("–" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return rows


def text(result: Result) -> str:
    """For the terminal."""
    rows = cells(result)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = [_title(result), ""]
    for row in rows:
        name, *numbers = row
        padded = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded]))
    return "\n".join(lines + _remarks(result))


def markdown(result: Result) -> str:
    """For a page of the documentation."""
    heading, *rows = cells(result)
    lines = [f"**{_title(result)}**", "", _line(heading), _line(["---", *["---:"] * (len(heading) - 1)])]
    lines += [_line(row) for row in rows]
    return "\n".join(lines + _remarks(result))


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    """Everything: samples, medians, ratios, failures, and the machine."""
    return {"machine": machine(), "jobs": [_job_as_json(result) for result in results]}


def _job_as_json(result: Result) -> dict[str, Any]:
    job = result.job
    ratios = {
        name: {column.name: result.ratio(name, column.name) for column in job.columns if column.ratio}
        for name in result.samples
    }
    return {
        "job": job.name,
        "title": job.title,
        "conditions": asdict(job.conditions) if job.conditions else None,
        "medians": result.medians(),
        "ratios": ratios,
        "samples": result.samples,
        "failures": result.failures,
        "remark": job.remark(result.medians()),
    }


def _title(result: Result) -> str:
    job = result.job
    quick = "; quick: with every byte compared meanwhile, not to be quoted" if result.quick and job.conditions else ""
    rounds = max((len(samples) for samples in result.samples.values()), default=0)
    where = f"; {job.conditions}" if job.conditions else ""
    return f"{job.name}: {job.title}{where}; {'one round' if rounds == 1 else f'medians of {rounds} rounds'}{quick}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _remarks(result: Result) -> list[str]:
    remark = result.job.remark(result.medians())
    failures = [f"{name} failed: {why}" for name, why in result.failures.items()]
    lines = [line for line in (remark, *failures) if line]
    return ["", *lines] if lines else []
