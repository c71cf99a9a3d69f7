"""``trace``: the exit code of the program, and the page that it wrote."""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.repository.source_tree import ROOT
from tests.unit.cli.commands import run

READ = """
import sys, aioprefetch as ap
with ap.sync.open(sys.argv[1]) as file:
    assert file.read() == b"hello\\n"
sys.exit(3)
"""


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")


def test_the_page_of_a_program(folder: Path) -> None:
    """Options after the first word are the program's."""
    place = f"file://{folder}/a b.txt"
    result = run("trace", "--to", "scan.html", "--", sys.executable, "-c", READ, place, code=3)
    assert "the trace is in scan.html" in result.stderr
    assert "<h1>1\u00a0request, 6\u00a0B, " in Path("scan.html").read_text("utf-8")
    run("trace", sys.executable, "-c", READ, place, code=3)
    assert Path("read.html").exists()


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ((sys.executable, "-c", "print(1)"), 1, "no trace was written"),
        ((sys.executable, "-c", "import sys; sys.exit(7)"), 7, "no trace was written"),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"), 128 + signal.SIGTERM, "no trace was written"),
        (("no-such-program",), 127, "there is no program no-such-program"),
        (("/",), 126, "/ cannot be run: "),
    ],
    ids=["other", "failed", "killed", "missing", "directory"],
)
def test_a_program_without_a_trace(program: tuple[str, ...], code: int, said: str) -> None:
    Path("read.html").write_text("of another program", "utf-8")
    assert said in run("trace", "--", *program, code=code).stderr
    assert Path("read.html").read_text("utf-8") == "of another program"


def test_no_program_of_a_script_writes_over_another(folder: Path) -> None:
    """In turns or at once; nor does one that imports the library when the programs that it starts have ended."""
    Path("job.py").write_text(
        "import subprocess, sys\n"
        "for name in sys.argv[2:]:\n"
        "    subprocess.run([sys.executable, sys.argv[0], name], check=True)\n"
        "import aioprefetch as ap\n"
        "with ap.sync.open(sys.argv[1]) as file:\n"
        "    file.read()\n"
    )
    place = f"'file://{folder}/a b.txt'"
    job = f"{sys.executable} job.py {place}"
    done = run("trace", "--to", "t.json", "--", "sh", "-c", f"{job} {place}; {job} & {job}; wait")
    assert done.stderr.replace("\u00a0", " ") == "aioprefetch: the trace is in t.json, and 3 other traces beside it\n"
    traces = [json.loads(path.read_text("utf-8"))["traceEvents"] for path in Path().glob("t*.json")]
    assert [sum("request" in event.get("cat", "") for event in trace) for trace in traces] == [1] * 4


def test_a_trace_is_known_by_no_clock(folder: Path) -> None:
    """File systems keep whole seconds, or have a clock of their own. A file of the program is no trace."""
    job = shlex.join([sys.executable, "-c", READ, f"file://{folder}/a b.txt"])
    Path("read.1.html").write_text("of an earlier run", "utf-8")
    done = run(
        "trace", "--", "sh", "-c", f"{job}; touch -d 2001-01-01 read.html; {job}; echo > read.old.html; exit 3", code=3
    )
    assert done.stderr.replace("\u00a0", " ") == "aioprefetch: the trace is in read.html, and 1 other trace beside it\n"
    assert Path("read.1.html").read_text("utf-8") == "of an earlier run"
    Path("read.html").write_text("of an earlier run", "utf-8")
    os.utime("read.html", (2**32, 2**32))
    assert "no trace was written" in run("trace", "--", "true", code=1).stderr


def test_a_link_leads_to_one_trace(folder: Path) -> None:
    """The second program of a run writes a file of its own beside the link."""
    (folder / "elsewhere").mkdir()
    Path("read.html").symlink_to(folder / "elsewhere/page.html")
    job = shlex.join([sys.executable, "-c", READ, f"file://{folder}/a b.txt"])
    done = run("trace", "--", "sh", "-c", f"{job} & {job} & wait")
    assert done.stderr.replace("\u00a0", " ") == "aioprefetch: the trace is in read.html, and 1 other trace beside it\n"
    assert Path("read.html").is_symlink()
    assert [path.name for path in (folder / "elsewhere").iterdir()] == ["page.html"]
    assert len(list(Path().glob("read.*.html"))) == 1


def test_the_number_of_a_process_is_no_part_of_the_name() -> None:
    assert "{pid} has no meaning here" in run("trace", "--to", "x.{pid}.html", "--", "true", code=2).stderr


WAIT = """
import os, signal, sys, aioprefetch as ap
with ap.sync.open(sys.argv[1]) as file:
    file.read()
if sys.argv[2:]:
    # Not by print, which may be at work on the line before.
    signal.signal(signal.SIGINT, lambda number, frame: os.write(1, b"caught\\n"))
print("ready", flush=True)
while True:
    signal.pause()
"""


THREAD_WORKS = """
import threading
import aioprefetch as ap

def work() -> None:
    threading.main_thread().join()
    print("the main thread waits for this one", flush=True)
    threading.Event().wait()

threading.Thread(target=work).start()
"""


def test_a_program_that_waits_for_its_threads_ends_at_a_signal(tmp_path: Path) -> None:
    """And its trace is written."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AIOPREFETCH_TRACE": str(tmp_path / "read.html")}
    with subprocess.Popen(
        [sys.executable, "-c", THREAD_WORKS], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # Python misses a signal that comes just before the main thread begins to wait for a lock, until the next one.
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
        assert process.returncode in (0, 128 + signal.SIGTERM)
    assert (tmp_path / "read.html").exists()


@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ([signal.SIGINT], 128 + signal.SIGINT, b"the trace is in read.html"),
        pytest.param([signal.SIGTERM], 128 + signal.SIGTERM, b"the trace is in read.html", marks=pytest.mark.full),
        ([signal.SIGINT, signal.SIGTERM], 128 + signal.SIGKILL, b"no trace was written"),
    ],
    ids=["interrupted", "terminated", "killed by the second"],
)
def test_a_signal_to_the_command_reaches_the_program(
    signals: list[signal.Signals], code: int, said: bytes, folder: Path
) -> None:
    """Without a terminal it reaches the command alone. Its end is that of the program, which holds the pipe too."""
    is_caught = ["caught"] * (len(signals) - 1)
    program = [sys.executable, "-c", WAIT, f"file://{folder}/a b.txt", *is_caught]
    with subprocess.Popen(
        [sys.executable, "-m", "aioprefetch", "trace", "--", *program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for number in signals:
            assert process.stdout.readline() in (b"ready\n", b"caught\n")
            process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert said in err
