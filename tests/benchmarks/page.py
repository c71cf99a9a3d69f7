"""The pages of the documentation: behind a mark of a table's name stands what records say, and nothing else."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.job import ROOT, is_rate
from tests.benchmarks.records import Record

REFERENCE = ROOT / "docs" / "reference"
PAGES = (REFERENCE / "performance.md", REFERENCE / "performance-method.md")
PLOTS = REFERENCE / "plots"
RESULTS = PLOTS / "results.json"
# From here on a row says that we lose: two runs differ by as much.
NOTICEABLE = 1.05
# The peers of the columns, by the names that they have in the jobs.
PEERS = {
    "obstore": r"obstore( get| get_range| stream| LocalStore| LocalStore get)?",
    "obstore, blocking": r"obstore (get_range, \d+ threads|LocalStore, blocking)",
    "mountpoint": r"s3torchconnectorclient(, \d+ threads)?",
    "OpenDAL": "opendal",
    "aiohttp": "aiohttp",
    "aiobotocore": "aiobotocore",
    "boto3": r"boto3(, \d+ threads| body)?",
    "s3fs": "s3fs( readahead)?",
    "pyarrow": r"pyarrow(, \d+ threads|\.fs| S3FileSystem| input file)?",
    "`open()`": r"open\(\)\.read\(\)",
}
CPU_EACH, WALL = "cpu_per_request", "wall_seconds"


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant of ours in a job. ``number`` is compared, where it is not that of the table."""

    label: str
    job: str
    ours: str
    number: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """One measure: ours over each peer's. Its plot has all of them over the first peer's."""

    name: str
    measure: str
    number: str
    peers: tuple[str, ...]
    rows: tuple[Row, ...]


VIEW, READ, READER = "aioprefetch view", "aioprefetch read", "aioprefetch reader"
RANGES = (
    Row("4 KiB × 16", "ranges-4kib-x16", VIEW),
    Row("64 KiB × 16", "ranges-64kib-x16", VIEW),
    Row("8 MiB × 8", "ranges-8mib-x8", VIEW),
    Row("4 KiB × 16, TLS", "tls-4kib-x16", VIEW),
    Row("8 MiB × 8, TLS", "tls-8mib-x8", VIEW),
)
# Its run had other work beside it, which changes times more than CPU.
UVLOOP = Row("4 KiB × 16, uvloop", "uvloop-4kib-x16", VIEW)
RANGE_PEERS = ("obstore", "aiohttp", "OpenDAL", "aiobotocore")
TABLES = (
    Table("ranges-time", "time for a range", "requests_per_second", RANGE_PEERS, RANGES),
    Table("ranges-cpu", "CPU for a range", CPU_EACH, RANGE_PEERS, (*RANGES, UVLOOP)),
    Table(
        *("small-cpu", "CPU for a call", CPU_EACH),
        ("obstore", "obstore, blocking", "mountpoint", "OpenDAL"),
        (
            Row("new object, `op.read`", "new-objects", READ),
            Row("the same, TLS", "new-objects-tls", READ),
            Row("new object, a reader of its own", "new-objects", READER),
            Row("4 KiB of 4 GiB, `op.read`", "misses-16", READ),
            Row("the same, `reader.read_at`", "misses-16", f"{READER}, random"),
            Row("the same, 30 ms away", "misses-16-far", f"{READER}, random"),
            Row("`op.stat`", "stat", "aioprefetch"),
            Row("`op.write`, 2 KiB", "put", "aioprefetch"),
            Row("`op.list`, a key", "list", "aioprefetch"),
        ),
    ),
    Table(
        *("far-time", "time", WALL),
        ("obstore", "mountpoint", "boto3", "s3fs", "pyarrow"),
        (
            Row("256 MiB, `op.read`", "whole-object", READ),
            Row("its peak memory", "whole-object", READ, "memory_peak_bytes"),
            Row("256 MiB by 1 MiB reads", "sequential", READER),
            Row("4 GiB by 1 MiB reads", "long-stream", READER),
            Row("slowest of 100, `HedgeLayer`", "late-responses", f"{VIEW}, HedgeLayer", "p99"),
            Row("new process, first 4 KiB", "import-first-byte", READ),
        ),
    ),
    Table(
        *("local-cpu", "CPU", CPU_EACH),
        ("obstore", "obstore, blocking", "OpenDAL", "`open()`"),
        (
            Row("4 KiB of a file, `op.read`", "local-pages", READ),
            Row("the same, `reader.read_at`", "local-pages", f"{READER}, random"),
            Row("a file of 256 MiB, `op.read`", "local-whole", f"{READ}, whole", "cpu_seconds"),
            Row("2 KiB from `LruCacheLayer`", "cache-hit", "aioprefetch, LruCacheLayer"),
            Row("4 KiB in memory, `read_at`", "hits", READER),
        ),
    ),
    Table(
        *("parquet-files", "time", WALL),
        ("pyarrow", "s3fs"),
        (
            Row("`pq.read_table` of `ap.sync.open`", "parquet-open", "aioprefetch sync.open"),
            Row("`ap.parquet.read_table`", "parquet-arrow", "aioprefetch parquet.read_table"),
            Row("`pq.read_table` by `ap.arrow.filesystem`", "parquet-arrow", "aioprefetch arrow.filesystem"),
        ),
    ),
)
RUNS = "runs"


def peer_in(record: Record, column: str) -> str | None:
    """The contestant that stands in a column; None where the job has none."""
    return next((name for name in record["samples"] if re.fullmatch(PEERS[column], name)), None)


def times(record: Record, name: str, base: str, number: str) -> float | None:
    """What one contestant takes over what another does, the median of the rounds: above 1 is slower, or more."""
    own, other = (record["samples"][one].get(number, []) for one in (name, base))
    pairs = [(mine, theirs) for mine, theirs in zip(own, other, strict=False) if mine and theirs]
    ratios = [theirs / mine if is_rate(number) else mine / theirs for mine, theirs in pairs]
    return statistics.median(ratios) if ratios else None


def written(value: float | None) -> str:
    """A ratio of two digits; bold where we lose."""
    if value is None:
        return "–"
    text = f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.95 else f"{value:.2g}"
    return f"**{text}**" if value > NOTICEABLE else text


def line(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def shown(table: Table, records: Sequence[Record]) -> str:
    """A table in Markdown; a row whose job was not measured is left out."""
    by_job = {record["job"]: record for record in records}
    lines = [line([table.measure, *table.peers]), line(["---", *["---:"] * len(table.peers)])]
    for row in table.rows:
        record = by_job.get(row.job)
        if record is not None and row.ours in record["samples"]:
            bases = [peer_in(record, column) for column in table.peers]
            found = [base and times(record, row.ours, base, row.number or table.number) for base in bases]
            lines.append(line([row.label, *(written(value or None) for value in found)]))
    return "\n".join(lines)


def runs(records: Sequence[Record]) -> str:
    """When, of which commit and how often each job was measured, and what with."""
    found: dict[str, list[str]] = defaultdict(list)
    versions: dict[str, set[str]] = defaultdict(set)
    for record in records:
        measured, rounds = record["measured"], record["rounds"]
        found[f"{measured['date']}, {measured['commit']}, {rounds} rounds each"].append(f"`{record['job']}`")
        for package, version in measured["packages"].items():
            versions[package].add(version)
        versions["machine"].add(f"{measured['python']}, {measured['processor']}, {measured['cores']} cores")
    machine = " or ".join(sorted(versions.pop("machine")))
    packages = ", ".join(f"{name} {' and '.join(sorted(one))}" for name, one in versions.items())
    lines = [f"* {run}: {', '.join(jobs)}" for run, jobs in found.items()]
    return "\n".join([f"* {machine}; {packages}", *lines])


def filled(page: str, records: Sequence[Record]) -> str:
    """A page with these results behind its marks, each up to the next empty line."""
    parts = {table.name: shown(table, records) for table in TABLES} | {RUNS: runs(records)}

    return re.sub(r"<!-- (\S+) -->\n\n(.+\n)*", lambda mark: f"<!-- {mark[1]} -->\n\n{parts[mark[1]]}\n", page)


def write_pages(records: Sequence[Record]) -> None:
    """Fill in the pages of the documentation."""
    for path in PAGES:
        path.write_text(filled(path.read_text("utf-8"), records), "utf-8")
