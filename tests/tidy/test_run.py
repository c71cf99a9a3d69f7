"""`make test` runs each test in one of its two parts, and fails if either part does."""

import subprocess
import sys

import pytest

from tests.repository.source_tree import ROOT
from tests.run import NO_TESTS, commands, main, outcome


def test_each_test_is_in_one_part() -> None:
    others, spark = commands([])
    assert others[others.index("-m", 3) + 1 :] == ["not spark"]
    assert spark[3:] == ["-m", "spark", "tests/spark", "tests/examples"]


def test_arguments_choose_in_both_parts() -> None:
    for arguments, folders in (
        (["-k", "name"], ["tests/spark", "tests/examples"]),
        (["tests/unit/test_ranges.py"], []),
    ):
        others, spark = commands(arguments)
        assert others[-len(arguments) :] == arguments
        assert spark[3:] == ["-m", "spark", *folders, *arguments]


def test_a_part_without_tests_fails_unless_arguments_chose() -> None:
    assert outcome(NO_TESTS, []) == NO_TESTS
    assert outcome(NO_TESTS, ["-k", "name"]) == 0
    assert outcome(1, ["-k", "name"]) == 1


def test_either_part_fails_the_run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def program(text: str, status: int) -> list[str]:
        return [sys.executable, "-c", f"print({text!r}); raise SystemExit({status})"]

    for others, spark, status in ((0, 0, 0), (1, 0, 1), (0, 2, 2), (1, 2, 1), (0, NO_TESTS, 0)):
        both = (program("the others", others), program("a summary", spark))
        monkeypatch.setattr("tests.run.commands", lambda arguments, both=both: both)
        assert main(["-k", "name"]) == status
        shown = capfdbinary.readouterr().out
        assert b"the others" in shown
        assert (b"The tests on Spark:\na summary" in shown) == (spark != NO_TESTS)


def test_a_test_that_is_chosen_by_its_path_runs() -> None:
    """The whole way, for one test."""
    command = [sys.executable, "-m", "tests.run", "tests/tidy/test_run.py", "-q", "-k", "in_one_part", "-n", "0"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
