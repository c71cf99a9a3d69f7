"""The scripts of the examples: what their headers ask for, and what each prints."""

import re
import tomllib
from pathlib import Path

from tests.repository.source_tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HEADER = re.compile(r"# /// script\n((?:#.*\n)+?)# ///\n")

# Something that each must print: what it is there to show.
SHOWN = {
    "quickstart": "GET requests in all: 1\n",
    "custom_layer": "read missing NotFound",
    "prefetching": "in order, adaptive: 56 of 64 MiB ahead, ",
    "asyncio_service": "bytes=-3 -> 206 bytes 7-9/10 789\n",
    "range_server": "206 bytes 2-4/10 234\n304 max-age=3600\n",
    "pandas_over_sync": "parquet: 10000 rows, requests: 2\n",
    "arrow_datasets": "divide by zero: []\n",
    "fsspec_urls": "the program fails here: ['example/tables/1.parquet'] False\n",
    "fsspec_files": "members: 1000 the member 567\nrequests: ",
    "trace_read": "- 50 small requests jumped about in numbers.bin: ",
    "zarr_arrays": "one day: (256, 256) one place: [0. 1. 2.]\nrequests: ",
    "obspec_store": "aioprefetch ['00010203', 'fcfdfeff']\nAlreadyExistsError True\nrequests for the corners: ",
    "command_line": "first bytes: line one\ncopied: 3 exit code: 0\ncopied: 0 exit code: 0\nnothing matched: 1\n",
    "copy_prefix": "copied: 0 skipped: 21\nby a glob: 10 failures: []\n",
    "notebook": "5 outputs in outputs.html\n",
    "parquet_scan": "polars: (50000, 3)\n",
    "polars_frames": "sum of May: 5000\n",
    "otel_spans": "with spans: b'3456'\n",
    "prometheus_metrics": 'aioprefetch_reads_total{bucket="example",scheme="memory",tier="memory"} 9.0\n',
    "lance_scan": "latest version: 5000 rows\n",
    "lance_two_loops": "of 2 MiB were held: True\n",
    "library_faults": "| the whole object for a range | read_ranges | **wrong bytes** |\n",
    "object_cache": "entries on the disk: 2\nsecond process: aaa - 0 MiB received, 1 hits\noverwritten: new - 3 MiB",
    "spark_attach": "listed: (60, 1770), followed: (60, 1770)\n",
    "block_files": "backward: 0 blocks fetched\nblock files: 16\nagain: 0 blocks fetched\n",
    "open_file_keys": "overwritten: ObjectChanged\nmust(fs.vendor.unknown): ConfigInvalid\nmust(fs.s3a.select.sql): U",
    "spark_enrich": "enriched: 2000 rows, 2000 of them with the record they name\n",
    "spark_demo": " sums, 0 of them wrong, 0 doubled\n",
    "obstore_stores": "['00010203', '20212223', 'fcfdfeff']\nrequests: 1\n['numbers']\n",
}

# The examples that run with one extra alone, by the extra; those of the first need none.
OF_EXTRAS: dict[str, tuple[str, ...]] = {
    "": ("quickstart", "custom_layer", "prefetching", "trace_read"),
    "arrow": ("arrow_datasets",),
    "fsspec": ("fsspec_files",),
    "zarr": ("zarr_arrays",),
    "polars": ("polars_frames",),
    "obspec": ("obspec_store", "obstore_stores"),
    "otel": ("otel_spans",),
    "prometheus": ("prometheus_metrics",),
    "cli": ("command_line",),
}


def dependencies_of(path: Path) -> list[str]:
    """What an example's header says that it needs."""
    header = HEADER.match(path.read_text("utf-8"))
    assert header is not None, f"{path.name} has no header"
    metadata = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    assert metadata["requires-python"] == ">=3.11"
    needed: list[str] = metadata["dependencies"]
    return needed
