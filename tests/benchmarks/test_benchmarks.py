"""The benchmarks still run: each job once, with small objects; and the page shows the results beside it."""

import importlib.util
from pathlib import Path

import pytest

from tests.benchmarks import page, plots, records, report
from tests.benchmarks.job import is_ours
from tests.benchmarks.jobs import JOBS
from tests.benchmarks.nginx import ready_nginx
from tests.benchmarks.runner import run_job
from tests.profile import IS_FULL

# With the simulator. `make test-full` runs all that are not left out of a quick run.
FEW = "ranges-4kib-x16"
# What only some environments have: a peer's package, or its command.
MISSING = ("ModuleNotFoundError", "AssertionError: there is no command")


def quick_jobs() -> list[object]:
    names = [job.name for job in JOBS.values() if job.quick_names] if IS_FULL else [FEW]
    return [pytest.param(name, marks=pytest.mark.spark if name.startswith("spark") else ()) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_jobs())
def test_a_job_runs(name: str) -> None:
    """By us; peers are compared by `make bench`, in whose environment all of them are."""
    job = JOBS[name]
    if job.conditions and ready_nginx() is None:
        pytest.skip("nginx with its Lua module is not installed; .ci/run installs it")
    if name.startswith("lance") and importlib.util.find_spec("lance") is None:
        pytest.skip("needs lance")
    ours = [one for one in job.quick_names if is_ours(one)] or job.quick_names[:1]
    result = run_job(job.with_only(ours), rounds=1, quick=True)
    assert {one: why for one, why in result.failures.items() if not why.startswith(MISSING)} == {}
    assert report.cells(result)[1:], "a table without a row"


def test_every_bar_names_contestants_of_its_job() -> None:
    for job in JOBS.values():
        for bar in job.bars:
            assert {bar.ours, *bar.bases} <= set(job.contestants), (job.name, bar)
            assert bar.reaches(bar.aim, bar.bar), f"the aim of {bar.shape} is beyond its bar"


def test_the_pages_and_their_plots_show_the_results_beside_them(tmp_path: Path) -> None:
    kept = records.load(page.RESULTS)
    texts = [path.read_text("utf-8") for path in page.PAGES]
    assert [page.filled(text, kept) for text in texts] == texts, "refresh it: python -m tests.benchmarks.run --page"
    drawn = {path.name: path.read_text("utf-8") for path in plots.write_plots(tmp_path, kept)}
    assert drawn == {path.name: path.read_text("utf-8") for path in page.PLOTS.glob("*.svg")}
    assert [name for name in drawn if f"(plots/{name})" not in texts[0]] == []


def test_every_row_of_the_page_was_measured_and_can_be_again() -> None:
    kept = {record["job"]: record for record in records.load(page.RESULTS)}
    assert kept.keys() <= JOBS.keys()
    rows = [row for table in page.TABLES for row in table.rows]
    assert [row.label for row in rows if row.ours not in kept[row.job]["samples"]] == []
    assert [row.label for row in rows if row.ours not in JOBS[row.job].contestants] == []


def test_the_pages_are_short() -> None:
    assert {path.name: words for path in page.PAGES if (words := len(path.read_text("utf-8").split())) > 1200} == {}
