"""`make test`: the tests on every core. In the full profile those on Spark run beside them, in a process of their own.

A test on Spark waits for a JVM most of its time, so the two parts together take little longer than the longer one. The
output of the part on Spark is kept apart and printed at the end; the run fails if either part does.

    python -m tests.run [--room ROOM] [ARGUMENTS OF PYTEST]

A room of the package has the tests in `tests/unit/ROOM`, and those elsewhere whose names begin with its name.
Arguments that choose, paths or `-k name`, choose among all tests, those of the full profile included.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.profile import FULL_FOLDERS, IS_FULL

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # as pytest says it
SPARK_FOLDERS = ("tests/spark", "tests/examples")


def commands(arguments: Sequence[str], *, is_full: bool = IS_FULL) -> list[list[str]]:
    """The commands to run side by side: all tests but those on Spark, and those on Spark one after the other."""
    paths = [argument for argument in arguments if Path(argument.partition("::")[0]).exists()]
    python = [sys.executable, "-m", "pytest"]
    # The files in their order, the slow ones of few tests early: by their numbers of tests these would come last.
    spread = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    if not (is_full or paths or "-k" in arguments):
        # Modules of which no test would run need not be imported.
        ignored = [f"--ignore=tests/{folder}" for folder in FULL_FOLDERS]
        return [[*python, *spread, *ignored, "-m", "not spark and not full", *arguments]]
    on_spark = [*python, "-m", "spark", *([] if paths else SPARK_FOLDERS), *arguments]
    return [[*python, *spread, "-m", "not spark", *arguments], on_spark]


def room_tests(room: str) -> list[str]:
    """The files and folders with the tests of a room of the package."""
    own = [path for path in (ROOT / "tests/unit" / room, ROOT / f"tests/unit/test_{room}.py") if path.exists()]
    others = [
        path for kind in ("libraries", "model", "spark") for path in (ROOT / "tests" / kind).glob(f"test_{room}*")
    ]
    folders = [path for path in (ROOT / "tests" / room, *(ROOT / "tests/model").glob(f"{room}_*")) if path.is_dir()]
    if not (found := sorted({*own, *others, *folders})):
        sys.exit(f"no tests are those of a room {room!r}; rooms are the folders of tests/unit")
    return [os.fspath(path.relative_to(ROOT)) for path in found]


def outcome(status: int, arguments: Sequence[str]) -> int:
    """The exit status of a part; where arguments choose among the tests, none of them is as good as all of them."""
    return 0 if status == NO_TESTS and arguments else status


def main(arguments: Sequence[str]) -> int:
    """Run the parts; the status of the first that failed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--room", type=room_tests, default=[])
    own, rest = parser.parse_known_args(arguments)
    arguments = [*own.room, *rest]
    # Python compiles a test once, not once in each of the hundred processes that the tests start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    others_command, *more = commands(arguments)
    if not more:
        return outcome(subprocess.call(others_command, env=environment), arguments)
    with tempfile.TemporaryFile() as output:
        spark = subprocess.Popen(more[0], stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            others_status = subprocess.call(others_command, env=environment)
            spark_status = spark.wait()
        except BaseException:  # Ctrl-C reaches all three processes; the parts end by themselves.
            spark.terminate()
            spark.wait()
            raise
        output.seek(0)
        if spark_status != NO_TESTS:
            sys.stdout.flush()
            sys.stdout.buffer.write(b"\nThe tests on Spark:\n" + output.read())
            sys.stdout.flush()
    return outcome(others_status, arguments) or outcome(spark_status, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
