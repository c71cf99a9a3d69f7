"""Kill a pipeline at every durable step, restart it with the same checkpoint: no row lost, none twice.

One row runs by default, three with the profile `full`.
``make test-spark-crash`` (the variable ``AIOPREFETCH_SPARK_CRASH=all``) runs all.
"""

import os
from pathlib import Path

import pytest

from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.spark.crash.file_sets import SHAPES
from tests.spark.crash.harness import Row, crash
from tests.spark.crash.kill_points import POINTS

CLUSTER = "local-cluster[2,1,1200]"
DEFAULT = (
    Row("after-record", "parquet"),
    Row("jvm-in-file", "cut"),
    Row("after-sink", "small", sink="foreach-batch"),
)
ALL = (
    *(Row(point, shape) for shape in SHAPES for point in POINTS if point != "after-sink"),
    *(Row(point, shape, sink="foreach-batch") for shape in SHAPES for point in ("after-sink", "jvm-in-file")),
    *(Row("executor-in-file", shape, master=CLUSTER) for shape in SHAPES),
)
IS_WHOLE = os.environ.get("AIOPREFETCH_SPARK_CRASH") == "all"
# The demo of the examples is killed in the middle of files, too, and no test without a JVM leaves a kill point out.
ROWS = ALL if IS_WHOLE else chosen(quick=DEFAULT[:1], full=DEFAULT)


@checks("source:R2", "reliability:P03", "reliability:P04", "reliability:P05")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_killed_anywhere_each_row_arrives_once(row: Row, tmp_path: Path) -> None:
    """The multiset of rows in the sink is that of the rows in the files."""
    outcome = crash(row, tmp_path, restarts=2 if IS_WHOLE else 1)
    assert outcome.lost == []
    assert outcome.doubled == []


def test_the_default_rows_are_part_of_the_matrix() -> None:
    """Each of them is run with all others too."""
    assert set(DEFAULT) <= set(ALL)
