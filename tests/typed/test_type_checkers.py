"""Type checkers find misspelt options and wrong values of options: mypy, and pyright by its fork that pip installs."""

import json
import subprocess
import sys
from pathlib import Path

from tests.repository.source_tree import ROOT

DOORS = Path(__file__).with_name("doors.py")


def wrong_lines() -> set[int]:
    """The lines that are marked as wrong."""
    lines = DOORS.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, start=1) if line.endswith("# error")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A type checker, from the root of the project."""
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_mypy_finds_the_marked_lines() -> None:
    """With the settings of the project, which leave this file out, and what it has cached."""
    found = run("mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", "--output=json", str(DOORS))
    assert found.stderr == ""
    errors = [json.loads(line) for line in found.stdout.splitlines()]
    assert {error["file"] for error in errors} == {DOORS.relative_to(ROOT).as_posix()}
    assert {error["line"] for error in errors if error["severity"] == "error"} == wrong_lines()
    assert len(wrong_lines()) > 30


def test_pyright_finds_the_marked_lines() -> None:
    """Of what it reports by default, the errors."""
    found = run("basedpyright", "--outputjson", "--level", "error", "--pythonpath", sys.executable, str(DOORS))
    report = json.loads(found.stdout)
    assert {error["range"]["start"]["line"] + 1 for error in report["generalDiagnostics"]} == wrong_lines()
