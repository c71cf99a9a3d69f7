"""``trace``: the exit code of the program, and the page that it wrote."""

import json
import os
import re
import signal
import subprocess
import sys
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
    said = run("trace", "--stacks", sys.executable, "-c", READ, place, code=3).stderr.splitlines()
    assert Path("read.html").exists()
    assert said[1].startswith("aioprefetch: <string>:4: 1 request, 6 B, ")


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ((sys.executable, "-c", "print(1)"), 1, f"not imported aioprefetch, which {sys.executable} has"),
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


def test_all_programs_of_a_script_are_on_the_page(folder: Path) -> None:
    """In turns or at once, and those that a program starts before it imports the library."""
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
    Path("t.json").write_text("of an earlier run", "utf-8")
    done = run("trace", "--to", "t.json", "--", "sh", "-c", f"{job} {place}; {job} & {job}; wait; exit 3", code=3)
    assert done.stderr == "aioprefetch: the trace is in t.json\n"
    events = json.loads(Path("t.json").read_text("utf-8"))["traceEvents"]
    processes = [event["args"]["process"] for event in events if "process" in event.get("args", {})]
    assert [re.sub("[0-9]+", "N", process) for process in processes] == ["job.py N"] * 4
    assert len(set(processes)) == 4
    assert sorted(path.name for path in Path().iterdir()) == ["job.py", "t.json"]


def test_a_link_leads_to_the_trace(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    Path("read.html").symlink_to(folder / "elsewhere/page.html")
    run("trace", "--", sys.executable, "-c", READ, f"file://{folder}/a b.txt", code=3)
    assert Path("read.html").is_symlink()
    assert [path.name for path in (folder / "elsewhere").iterdir()] == ["page.html"]
    assert list(Path().iterdir()) == [Path("read.html")]


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


WAITS_FOR_A_THREAD = """
import pathlib, sys, threading, time
import aioprefetch as ap

def work() -> None:
    ap.sync.open(sys.argv[1]).read()
    threading.main_thread().join()
    (spool,) = pathlib.Path("read.html.spool").iterdir()
    while b'"finished"' not in spool.read_bytes():
        time.sleep(0.01)
    print("the main thread waits for this one", flush=True)
    threading.Event().wait()

threading.Thread(target=work).start()
"""


def test_a_signal_ends_a_program_at_once_and_its_trace_is_made_of_what_it_left(folder: Path) -> None:
    """Also where the main thread waits for a lock: Python would miss a signal that comes just before."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "AIOPREFETCH_TRACE": "read.html"}
    command = [sys.executable, "-c", WAITS_FOR_A_THREAD, f"file://{folder}/a b.txt"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    assert list(Path().iterdir()) == [Path("read.html.spool")]
    assert run("trace").stderr == "aioprefetch: the trace is in read.html\n"
    assert "<h1>1\u00a0request, 6\u00a0B, " in Path("read.html").read_text("utf-8")
    assert list(Path().iterdir()) == [Path("read.html")]
    assert "give a command: there is no recording in " in run("trace", code=2).stderr


@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ([signal.SIGINT], 128 + signal.SIGINT, b"the trace is in read.html"),
        pytest.param([signal.SIGTERM], 128 + signal.SIGTERM, b"the trace is in read.html", marks=pytest.mark.full),
        ([signal.SIGINT, signal.SIGTERM], 128 + signal.SIGKILL, b"the trace is in read.html"),
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
