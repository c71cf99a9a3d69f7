"""Records, tables, plots and the page, made of fixed results; the choice of jobs; the checks of what was read."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import nginx_install, page, run
from tests.benchmarks.cold_process import CONTESTANTS
from tests.benchmarks.first_byte import SCRIPT
from tests.benchmarks.job import CPU, GETS, PEAK_RATIO, WALL, Column, Job, Result
from tests.benchmarks.jobs import GROUPS, JOBS, UnknownJob, chosen
from tests.benchmarks.nginx_install import Unavailable, as_root, install_nginx
from tests.benchmarks.parquet_files import NAMES, check_demo, check_large, write_demo, write_large
from tests.benchmarks.plots import SCALE_MAX, chart, place_of
from tests.benchmarks.records import Record, circumstances, load, merged, record_of, save, trimmed
from tests.benchmarks.report import circumstances_line, is_ours, is_peer, losses, markdown, standing
from tests.benchmarks.simulator import Conditions

MEASURED = {
    "date": "2026-01-31",
    "python": "CPython 3.11.0",
    "kernel": "Linux 6",
    "machine": "x86_64",
    "processor": "",
    "cores": 2,
    "packages": {"obstore": "0.12.1"},
    "nginx": "1.22.1",
    "commit": "0123abc",
}
OURS, PEER, WORSE = "aioprefetch reader", "obstore", "s3fs <readahead> & more"
SVG = "{http://www.w3.org/2000/svg}"


async def nothing(target: object) -> dict[str, Any]:
    return {}


def a_record(name: str = "sequential", *, ours: float = 2.0, columns: tuple[Column, ...] = (WALL, CPU, GETS)) -> Record:
    """Two rounds: we need ``ours`` seconds, the best peer 1 and 4, another one four times that."""
    contestants = dict.fromkeys((OURS, PEER, WORSE, "bare protocol", "opendal 8 (tuned)"), nothing)
    job = Job(name=name, title="a job", contestants=contestants, columns=columns, conditions=Conditions())
    result = Result(job=job, quick=False, failures={"gone": "it fell"})
    for who, times in {OURS: ours, PEER: 1.0, WORSE: 4.0, "bare protocol": 0.1, "opendal 8 (tuned)": 0.2}.items():
        result.samples[who] = [
            {
                "wall_seconds": times * slow,
                "cpu_seconds": times,
                "gets": 3.0,
                "requests_per_second": 8 / times,
                "odd": 1,
            }
            for slow in (1.0, 4.0)
        ]
    return record_of(result, group="streams", measured=MEASURED)


def bars(svg: str) -> list[ET.Element]:
    """All rectangles but the ground."""
    return ET.fromstring(svg).findall(f"{SVG}rect")[1:]


def test_a_record_has_every_sample_and_comes_back_from_its_file(tmp_path: Path) -> None:
    record = a_record()
    assert record["samples"][PEER]["wall_seconds"] == [1, 4]
    assert record["medians"][PEER]["wall_seconds"] == 2.5
    assert record["columns"][0] == {"name": "wall_seconds", "heading": "wall s", "ratio": True}
    assert record["ratios"][WORSE] == {"wall_seconds": 2, "cpu_seconds": 2, "gets": 1}
    assert record["conditions"] == {
        "first_byte_seconds": 0.03,
        "bandwidth": 90_000_000,
        "tls": False,
        "text": "first byte after 30 ms, 90 MB/s per connection",
    }
    assert (record["rounds"], record["quick"], record["failures"]) == (2, False, {"gone": "it fell"})
    save(tmp_path / "deep" / "results.json", [record, a_record("ramp")])
    assert load(tmp_path / "deep" / "results.json") == [record, a_record("ramp")]
    assert load(tmp_path / "missing.json") == []


def test_a_number_that_is_none_is_null() -> None:
    result = Result(job=Job(name="j", title="t", contestants={"us": nothing}, columns=(WALL,)), quick=True)
    result.samples["us"] = [{"wall_seconds": math.nan}]
    record = record_of(result, group="g", measured=MEASURED)
    assert json.loads(json.dumps(record, allow_nan=False))["medians"] == {"us": {"wall_seconds": None}}
    assert "| us | – | – |" in markdown(record)


def test_a_trimmed_record_gives_the_same_table_and_plot() -> None:
    record = a_record()
    small = trimmed(record)
    assert "odd" in record["samples"][PEER]
    assert "odd" not in small["samples"][PEER]
    assert "medians" not in small
    assert markdown(small) == markdown(record)
    assert chart([small]) == chart([record])


def test_circumstances_name_versions_and_no_machine() -> None:
    found = circumstances()
    assert found.keys() == MEASURED.keys()
    assert "pyarrow" in found["packages"]
    assert (found["nginx"] == "") == (nginx_install.nginx_program() is None)
    assert circumstances_line(MEASURED).startswith("2026-01-31 at 0123abc; CPython")
    assert circumstances_line(MEASURED).endswith("; obstore 0.12.1, nginx 1.22.1")
    assert platform.node() not in (value for value in found.values() if isinstance(value, str))


def test_jobs_measured_again_replace_their_records_and_others_stay() -> None:
    old = [a_record("ramp"), a_record("sequential"), a_record("gone")]
    new = [a_record("sequential", ours=9.0), a_record("hits")]
    found = merged(old, new, order=["hits", "sequential", "ramp"])
    assert [record["job"] for record in found] == ["hits", "sequential", "ramp"]
    assert found[1]["medians"][OURS]["cpu_seconds"] == 9
    assert [record["job"] for record in merged(old, [], order=["ramp"])] == ["ramp"]


def test_the_best_peer_is_neither_ours_nor_a_floor_nor_tuned() -> None:
    found = standing(a_record(), "wall_seconds")
    assert found is not None
    assert found.best_peer == PEER
    assert found.times == {OURS: 0.5, PEER: 1, WORSE: 0.25, "bare protocol": 10, "opendal 8 (tuned)": 5}


def test_of_a_rate_more_is_better() -> None:
    found = standing(a_record(), "requests_per_second")
    assert found is not None
    assert (found.best_peer, found.times[OURS], found.times["bare protocol"]) == (PEER, 0.5, 10)


@pytest.mark.parametrize(("ours", "lost"), [(0.5, 0), (1.04, 0), (1.06, 2), (3.0, 2)])
def test_losses_are_said_for_each_number_with_a_ratio(ours: float, lost: int) -> None:
    found = losses(a_record(ours=ours))
    assert len(found) == lost
    assert ("We lose." in markdown(a_record(ours=ours))) == bool(lost)
    if ours == 3.0:
        assert found[0] == f"wall s: {PEER} is 3.0 × as good as {OURS}"


def test_each_of_ours_that_is_behind_is_named() -> None:
    record = a_record(columns=(WALL,))
    for name, times in {"aioprefetch view": 0.5, "aioprefetch read": 3.0}.items():
        record["samples"][name] = {"wall_seconds": [times, 4 * times]}
    assert losses(record) == [f"wall s: {PEER} is 2.0 × as good as {OURS}, 3.0 × as good as aioprefetch read"]


def test_the_parts_of_the_stack_are_ours_or_nobodys() -> None:
    for name, job in JOBS.items():
        peers = [one for one in job.contestants if is_peer(one)]
        if name.startswith("stack-"):
            assert peers == []
            assert [one for one in job.contestants if not is_ours(one)] == ["bare protocol", "transport by hand"]


def test_memory_is_judged_in_ranges_streams_and_tables() -> None:
    judged = [name for name, job in JOBS.items() if PEAK_RATIO in job.columns]
    assert {name for name in JOBS if name.startswith(("ranges-", "tls-", "parquet-", "memory-"))} < set(judged)
    assert "stream" in judged


def test_the_plot_of_a_fixed_record() -> None:
    svg = chart([a_record()])
    assert svg is not None
    assert svg == chart([a_record()])
    found = bars(svg)
    # Five contestants, wall and CPU. We are half as good: as far to the left as the best peer's double would be right.
    assert len(found) == 10
    assert float(found[0].get("width", 0)) == pytest.approx(place_of(2.0) - place_of(1.0), abs=0.1)
    assert float(found[0].get("x", 0)) == pytest.approx(place_of(0.5), abs=0.1)
    texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]
    assert WORSE in texts
    assert texts.count("0.5 ×") == 2
    assert "10 ×" in texts


def test_bars_stay_within_the_plot() -> None:
    assert place_of(1e6) == place_of(SCALE_MAX)
    assert place_of(1e-6) == place_of(1 / SCALE_MAX)


def test_without_a_peer_there_is_no_plot() -> None:
    record = a_record()
    alone = {**record, "samples": {OURS: record["samples"][OURS]}}
    assert chart([alone]) is None
    assert chart([record, alone]) == chart([record])


def test_the_page_is_filled_between_its_marks() -> None:
    empty = f"# Before\n\n{page.BEGIN}\nold\n{page.END}\n\nAfter.\n"
    filled = page.filled(empty, [a_record()])
    assert filled.startswith("# Before\n\n<!-- results: begin -->\n### Streams")
    assert filled.endswith("\n<!-- results: end -->\n\nAfter.\n")
    assert "![Streams" in filled
    assert "| aioprefetch reader | 5.00 | 1.00 | 2.00 | 1.00 | 3 |" in filled
    assert "gone failed: it fell" in filled
    assert page.filled(filled, [a_record()]) == filled
    assert page.NOTHING in page.filled(filled, [])
    with pytest.raises(ValueError, match="results: begin"):
        page.filled("nothing", [])


def test_the_page_and_its_plots_show_the_results_beside_them(tmp_path: Path) -> None:
    records = load(page.RESULTS)
    text = page.PAGE.read_text("utf-8")
    assert page.filled(text, records) == text, "refresh it: python -m tests.benchmarks.run --page"
    drawn = {path.name: path.read_text("utf-8") for path in page.write_plots(tmp_path, records)}
    assert drawn == {path.name: path.read_text("utf-8") for path in page.PLOTS.glob("*.svg")}


def test_results_can_be_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "results.json"
    save(source, [a_record("ramp"), a_record("sequential")])
    assert run.main(["--markdown", "--from", str(source)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("**sequential:") < printed.index("**ramp:")
    assert run.main(["hits,ramp", "--from", str(source)]) == 0
    assert "sequential" not in capsys.readouterr().out
    assert run.main(["hits", "--from", str(source)]) == 2
    assert run.main(["nonsense"]) == 2
    assert "there is no job 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "is_for_the_page"),
    [([], True), (["--rounds", "9"], True), (["--rounds", "1"], False), (["--quick"], False), (["--only", "x"], False)],
)
def test_only_a_whole_run_is_for_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[str], is_for_the_page: bool
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(run, "run_job", lambda job, *, quick, **options: Result(job=job, quick=quick))
    monkeypatch.setattr(run, "write_results", lambda directory, found: written.append(directory))
    monkeypatch.setattr(run, "end_with_sigterm", lambda: None)
    assert run.main(["hits", *asked]) == 0
    assert run.main(["hits", *asked, "--output", str(tmp_path)]) == 0
    assert written == [page.PLOTS if is_for_the_page else run.SCRATCH, tmp_path]


def test_what_does_not_go_in_a_quick_run_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_job", lambda job, *, quick, **options: Result(job=job, quick=quick))
    monkeypatch.setattr(run, "write_results", lambda directory, found: None)
    monkeypatch.setattr(run, "install_nginx", lambda: "nginx")
    monkeypatch.setattr(run, "end_with_sigterm", lambda: None)
    assert run.main(["tls", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "\nnot in quick runs: tls-8mib-x1, tls-64kib-x16, tls-4kib-x16\n" in printed
    assert "tls-8mib-x8: " in printed


def names(*asked: str) -> list[str]:
    return [job.name for job in chosen(asked)]


def test_jobs_are_chosen_by_name_by_group_and_by_beginning() -> None:
    assert names() == list(JOBS)
    assert names("memory-1") == ["memory-1"]
    assert names("memory") == ["memory-1", "memory-16", "memory-100"]
    assert names("parquet-demo,hits") == names("hits", "parquet-demo") == ["parquet-demo", "hits"]
    assert names("parquet-w") == ["parquet-whole", "parquet-whole-loopback"]
    with pytest.raises(UnknownJob, match="'nope'"):
        chosen(["hits,nope"])


def test_names_of_jobs_are_unique_and_quick_runs_name_contestants() -> None:
    listed = [job for group in GROUPS for job in group.jobs]
    assert len(listed) == len(JOBS)
    assert len({group.name for group in GROUPS}) == len(GROUPS)
    for job in listed:
        assert set(job.quick_contestants or ()) <= job.contestants.keys(), job.name


def test_the_parquet_jobs_have_every_peer() -> None:
    for job in (JOBS["parquet-demo"], JOBS["parquet-whole"], JOBS["parquet-columns"]):
        text = " ".join(job.contestants)
        for peer in ("aioprefetch", "pyarrow", "s3fs", "polars", "obstore", "opendal", "smart_open"):
            assert peer in text, f"{peer} in {job.name}"
        assert job.conditions != JOBS[f"{job.name}-loopback"].conditions
        assert {WALL, CPU, GETS, PEAK_RATIO} <= set(job.columns)


def test_the_large_file_is_checked_value_by_value(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "large.parquet"
    write_large(path, 3_000_000)
    size_bytes = path.stat().st_size
    table = pq.read_table(path)
    assert pq.ParquetFile(path).num_row_groups == 10
    check_large(table, size_bytes, NAMES)
    check_large(table.select([NAMES[3]]), size_bytes, (NAMES[3],))
    with pytest.raises(AssertionError, match="rows of an object"):
        check_large(table.slice(0, table.num_rows - 1000), size_bytes, NAMES)
    with pytest.raises(AssertionError, match="other values"):
        check_large(table.set_column(3, NAMES[3], table.column(4)), size_bytes, NAMES)
    with pytest.raises(AssertionError, match="columns"):
        check_large(table, size_bytes, NAMES[:3])


def test_the_demo_file_is_checked(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "demo.parquet"
    write_demo(path, 5 * 16_000)
    table = pq.read_table(path)
    assert pq.ParquetFile(path).num_row_groups == 5
    check_demo(table, path.stat().st_size)
    with pytest.raises(AssertionError, match="rows of"):
        check_demo(table.slice(1), path.stat().st_size)
    with pytest.raises(AssertionError, match="other values"):
        check_demo(table.set_column(0, table.column_names[0], table.column(1)), path.stat().st_size)


def test_a_cold_process_has_loaded_nothing_of_its_own() -> None:
    """Else what a library needs would be there before its clock starts."""
    loads = f"""
import sys
before = set(sys.modules)
exec(compile(open({str(SCRIPT)!r}).read(), "cold_process", "exec"), {{"__name__": "cold_process"}})
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-P", "-c", loads], capture_output=True, text=True, check=True)
    assert done.stdout == "['__future__']\n"
    assert set(CONTESTANTS) <= set(JOBS["import-first-byte"].contestants)


def test_without_a_way_to_be_root_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx_install, "nginx_program", lambda: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/usr/bin/apt-get" if name == "apt-get" else None)
    assert as_root() is None
    with pytest.raises(Unavailable, match=r"sudo apt-get install .*nginx-light libnginx-mod-http-lua lua-resty-core"):
        install_nginx()


@pytest.mark.parametrize(("responses", "terminal", "found"), [(0, False, True), (1, True, True), (1, False, False)])
def test_sudo_is_used_without_a_password_or_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, responses: int, terminal: bool, found: bool
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/sudo")
    monkeypatch.setattr("subprocess.run", lambda *a, **k: subprocess.CompletedProcess([], responses))
    monkeypatch.setattr("sys.stdin", type("Input", (), {"isatty": lambda self: terminal})())
    assert as_root() == (["/usr/bin/sudo"] if found else None)


def test_a_failed_installation_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx_install, "nginx_program", lambda: None)
    monkeypatch.setattr(nginx_install, "as_root", list)
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get")
    failed = subprocess.CompletedProcess([], 100, stderr="first\nE: no network\n")
    monkeypatch.setattr("subprocess.run", lambda *a, **k: failed)
    with pytest.raises(Unavailable, match="E: no network; on Debian or Ubuntu: sudo apt-get install"):
        install_nginx()
