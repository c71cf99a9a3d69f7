"""`make test` runs each test in one of its parts, and fails if either part does; the quick profile has one part."""

import subprocess
import sys

import pytest

from tests.benches.source_tree import PACKAGE, ROOT
from tests.run import NO_TESTS, commands, main, outcome, room_tests


def test_each_test_is_in_one_part() -> None:
    others, spark = commands([], is_full=True)
    assert others[others.index("-m", 3) + 1 :] == ["not spark"]
    assert spark[3:] == ["-m", "spark", "tests/spark", "tests/examples"]


def test_the_quick_profile_leaves_out_what_is_full() -> None:
    [command] = commands(["-q"], is_full=False)
    assert command[command.index("-m", 3) + 1 :] == ["not spark and not full", "-q"]


@pytest.mark.parametrize("is_full", [True, False])
def test_arguments_choose_in_both_parts(is_full: bool) -> None:
    for arguments, folders in (
        (["-k", "name"], ["tests/spark", "tests/examples"]),
        (["tests/unit/test_ranges.py"], []),
    ):
        others, spark = commands(arguments, is_full=is_full)
        assert others[-len(arguments) :] == arguments
        assert spark[3:] == ["-m", "spark", *folders, *arguments]


def test_each_room_has_tests() -> None:
    """`make test ROOM=reader` finds some for each folder of the package."""
    rooms = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if not room_tests(room)] == []
    assert room_tests("lance") == sorted(room_tests("lance"))
    assert {"tests/unit/parquet", "tests/model/test_parquet_filters.py"} <= set(room_tests("parquet"))


def test_a_part_without_tests_fails_unless_arguments_chose() -> None:
    assert outcome(NO_TESTS, []) == NO_TESTS
    assert outcome(NO_TESTS, ["-k", "name"]) == 0
    assert outcome(1, ["-k", "name"]) == 1


def test_either_part_fails_the_run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def program(text: str, status: int) -> list[str]:
        return [sys.executable, "-c", f"print({text!r}); raise SystemExit({status})"]

    for others, spark, status in ((0, 0, 0), (1, 0, 1), (0, 2, 2), (1, 2, 1), (0, NO_TESTS, 0)):
        both = (program("the others", others), program("a summary", spark))
        monkeypatch.setattr("tests.run.commands", lambda arguments, both=both: list(both))
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
