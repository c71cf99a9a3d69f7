"""What is wanted of us: how a bar is judged, shown, kept, and which contestants it needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks import job as job_module
from tests.benchmarks import records, report, run
from tests.benchmarks.bars import Bar
from tests.benchmarks.before import beside_before
from tests.benchmarks.job import ROOT, WALL, Column, Job, Result, Sample, Target, run_job, with_bars_only
from tests.benchmarks.jobs import JOBS

WANTED = Bar(shape="all of it", ours="us", bases=("fast", "slow"), number="wall_seconds", bar=1.0, aim=0.5)


async def nothing(target: Target) -> Sample:
    return {}


def of(us: list[float], fast: list[float], slow: list[float]) -> dict[str, list[dict[str, float]]]:
    return {
        name: [{"wall_seconds": value} for value in values]
        for name, values in (("us", us), ("fast", fast), ("slow", slow))
    }


def test_the_base_beside_which_we_stand_worst_counts_round_by_round() -> None:
    """A round in which the machine is slow is slow for both."""
    assert WANTED.value(of([1, 10, 3], [2, 20, 4], [4, 40, 12])) == 0.5
    rate = replace(WANTED, at_least=True)
    assert rate.value(of([1, 10, 3], [2, 20, 4], [4, 40, 12])) == 0.25


def test_without_a_base_it_is_the_number_itself() -> None:
    assert replace(WANTED, bases=()).value(of([1, 10, 3], [], [])) == 3


def test_a_base_that_did_not_run_gives_no_verdict() -> None:
    assert WANTED.value(of([1, 1, 1], [2, 2, 2], [])) is None
    assert WANTED.verdict(None) == "–"


@pytest.mark.parametrize(("value", "verdict"), [(0.5, "aim"), (0.51, "met"), (1.0, "met"), (1.01, "missed")])
def test_the_verdict_of_a_time(value: float, verdict: str) -> None:
    assert WANTED.verdict(value) == verdict


@pytest.mark.parametrize(("value", "verdict"), [(6.0, "aim"), (5.99, "met"), (5.0, "met"), (4.99, "missed")])
def test_the_verdict_of_a_rate(value: float, verdict: str) -> None:
    assert replace(WANTED, bar=5.0, aim=6.0, at_least=True).verdict(value) == verdict


def result_of(job: Job) -> Result:
    result = Result(job=job, quick=False)
    result.samples.update(of([3.0], [2.0], [4.0]))
    return result


def test_a_record_keeps_its_bars_and_shows_them() -> None:
    contestants = dict.fromkeys(("us", "fast", "slow", "another"), nothing)
    memory = replace(WANTED, shape="memory", bases=(), bar=4 << 20, aim=2 << 20, unit=1 << 20, digits=0)
    job = Job(name="growth-none", title="t", contestants=contestants, columns=(WALL,), bars=(WANTED, memory))
    record = records.record_of(result_of(job), group="g", measured={})
    kept = json.loads(json.dumps(records.trimmed(record)))
    rows = [
        ["all of it", "us", "fast and slow", "growth-none", "≤ 1", "≤ 0.5", "1.50", "missed"],
        ["memory", "us", "–", "growth-none", "≤ 4", "≤ 2", "0", "aim"],
    ]
    assert report.bar_cells([kept])[1:] == rows
    assert "1 of 2 missed" in report.bars_text([kept])
    assert list(with_bars_only(job).contestants) == ["us", "fast", "slow"]


def test_without_bars_there_is_no_table() -> None:
    job = Job(name="j", title="t", contestants={"us": nothing}, columns=(WALL,))
    assert report.bars_text([records.record_of(result_of(job), group="g", measured={})]) == ""


@pytest.mark.parametrize("job", [job for job in JOBS.values() if job.bars], ids=lambda job: job.name)
def test_every_bar_names_contestants_of_its_job(job: Job) -> None:
    for bar in job.bars:
        assert {bar.ours, *bar.bases} <= set(job.contestants), bar
        assert bar.ours not in bar.bases
        assert bar.reaches(bar.aim, bar.bar), f"the aim of {bar.shape} is beyond its bar"


def test_only_jobs_with_bars_are_run_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the contestants that the bars name, and no others."""
    asked: list[Job] = []

    def measured(job: Job, **options: object) -> Result:
        asked.append(job)
        return Result(job=job, quick=False)

    monkeypatch.setattr(run, "run_job", measured)
    monkeypatch.setattr(run, "install_nginx", lambda: "nginx")
    monkeypatch.setattr(run, "end_with_sigterm", lambda: None)
    assert run.main(["--bars", "--output", str(tmp_path)]) == 0
    assert [job.name for job in asked] == [job.name for job in JOBS.values() if job.bars]
    assert all(set(job.contestants) == set(with_bars_only(JOBS[job.name]).contestants) for job in asked)
    assert (tmp_path / "results.json").exists()


def test_ours_beside_those_of_another_tree_go_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The other tree is asked for the contestant by the name that it has there."""
    gone: list[tuple[Path, str]] = []

    def one_sample(job: str, name: str, target: Target, *, root: Path) -> Sample:
        gone.append((root, name))
        return {"wall_seconds": 2.0 if root == ROOT else 1.0, "requests_per_second": 1.0 if root == ROOT else 2.0}

    monkeypatch.setattr(job_module, "sample", one_sample)
    columns = (WALL, Column(name="requests_per_second", heading="req/s", ratio=True))
    contestants = dict.fromkeys(("obstore", "aioprefetch read"), nothing)
    job = beside_before(Job(name="j", title="t", contestants=contestants, columns=columns), tmp_path)
    result = run_job(job, rounds=2, quick=False, pacing="kernel")
    here, there = (ROOT, "aioprefetch read"), (tmp_path.resolve(), "aioprefetch read")
    assert gone == [here, there, there, here]
    rows = report.bar_cells([records.record_of(result, group="g", measured={})])[1:]
    assert [(row[0], *row[-4:]) for row in rows] == [
        ("j, wall s", "≤ 1.05", "≤ 1", "2.00", "missed"),
        ("j, req/s", "≥ 0.95", "≥ 1", "0.50", "missed"),
    ]


def test_a_quick_run_beside_another_tree_has_both_of_each() -> None:
    job = beside_before(JOBS["ranges-8mib-x8"], Path())
    assert list(job.quick_contestants or ()) == ["aioprefetch view", "aioprefetch view, before"]
