"""`make test`: the tests on Spark in one process, and all others beside them on every core.

A test on Spark waits for a JVM most of its time, so the two parts together take little longer than the longer one. The
output of the part on Spark is kept apart and printed at the end; the run fails if either part does.

    python -m tests.run [ARGUMENTS OF PYTEST]

Paths among the arguments choose what both parts collect; `-k name` chooses in both. A part in which these choose no
test has nothing to say.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

NO_TESTS = 5  # as pytest says it
SPARK_FOLDERS = ("tests/spark", "tests/examples")


def commands(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The two commands: all tests but those on Spark, and those on Spark, one after the other in one session."""
    chosen = [argument for argument in arguments if Path(argument.partition("::")[0]).exists()]
    python = [sys.executable, "-m", "pytest"]
    # The files in their order, the slow ones of few tests early: by their numbers of tests these would come last.
    spread = ["-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"]
    others = [*python, *spread, "-m", "not spark", *arguments]
    return others, [*python, "-m", "spark", *([] if chosen else SPARK_FOLDERS), *arguments]


def outcome(status: int, arguments: Sequence[str]) -> int:
    """The exit status of a part; where arguments choose among the tests, none of them is as good as all of them."""
    return 0 if status == NO_TESTS and arguments else status


def main(arguments: Sequence[str]) -> int:
    """Run both parts; the status of the first that failed."""
    # Python compiles a test once, not once in each of the hundred processes that the tests start.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    others_command, spark_command = commands(arguments)
    with tempfile.TemporaryFile() as output:
        spark = subprocess.Popen(spark_command, stdout=output, stderr=subprocess.STDOUT, env=environment)
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
