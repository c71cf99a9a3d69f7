"""The budget of a worker: from Spark's setting, from a cgroup, from the machine; and how many workers share it."""

import os
from pathlib import Path

import pytest

from aioprefetch.spark.worker import (
    BUDGET_BYTES_GUESSED_MAX,
    BUDGET_BYTES_MAX,
    BUDGET_BYTES_MIN,
    assumed_cores,
    budget_bytes,
    configured_cores,
    system_bytes,
)

MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def machine(root: Path, **files: str) -> Path:
    """A root with the files of proc and sys that are given, ``__`` for ``/``."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_half_of_what_sparks_setting_leaves(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__self__statm=f"{400 * MIB // PAGE_BYTES} 1 1")
    properties = {"spark.executor.cores": "2"}
    assert budget_bytes({"PYSPARK_EXECUTOR_MEMORY_MB": "1000"}, properties, root=root) == 300 * MIB


def test_spark_divides_by_configured_cores_alone(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__self__statm="0")
    setting = {"PYSPARK_EXECUTOR_MEMORY_MB": "1024"}
    cluster = {"spark.master": "local-cluster[1,4,1200]"}
    assert budget_bytes(setting, cluster | {"spark.executor.cores": "4"}, root=root) == 512 * MIB
    assert budget_bytes(setting, cluster, root=root) == 128 * MIB
    assert budget_bytes(setting, {"spark.master": "yarn"}, root=root) == 512 * MIB


def test_a_worker_that_has_filled_its_share_still_gets_something(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__self__statm=f"{4000 * MIB // PAGE_BYTES}")
    properties = {"spark.executor.cores": "1"}
    assert budget_bytes({"PYSPARK_EXECUTOR_MEMORY_MB": "1000"}, properties, root=root) == 250 * MIB


@pytest.mark.parametrize(
    "files",
    [
        {"sys__fs__cgroup__memory_dot_max": str(800 * MIB)},
        {"sys__fs__cgroup__memory__memory_dot_limit_in_bytes": str(800 * MIB)},
        {
            "proc__self__cgroup": "0::/pods/one/box\n",
            "sys__fs__cgroup__pods__one__box__memory_dot_max": "max\n",
            "sys__fs__cgroup__pods__one__memory_dot_max": f"{800 * MIB}\n",
        },
        {
            "proc__self__cgroup": "3:cpuset:/\n4:cpu,memory:/box\n",
            "sys__fs__cgroup__memory__memory_dot_limit_in_bytes": "9223372036854771712\n",
            "sys__fs__cgroup__memory__box__memory_dot_limit_in_bytes": f"{800 * MIB}\n",
        },
    ],
)
def test_a_quarter_of_a_cores_part_of_the_cgroup(tmp_path: Path, files: dict[str, str]) -> None:
    root = machine(tmp_path, **files)
    assert system_bytes(root) == 800 * MIB
    assert budget_bytes({}, {"spark.executor.cores": "2"}, root=root) == 100 * MIB


def test_without_any_limit_it_is_the_machines(tmp_path: Path) -> None:
    assert system_bytes(tmp_path) == os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    assert system_bytes() <= system_bytes(tmp_path)
    assert BUDGET_BYTES_MIN <= budget_bytes({}) <= BUDGET_BYTES_GUESSED_MAX


def test_the_bounds(tmp_path: Path) -> None:
    small = machine(tmp_path, sys__fs__cgroup__memory_dot_max=str(64 * MIB))
    assert budget_bytes({}, {"spark.executor.cores": "64"}, root=small) == BUDGET_BYTES_MIN
    properties = {"spark.executor.cores": "1"}
    assert budget_bytes({"PYSPARK_EXECUTOR_MEMORY_MB": "90000"}, properties, root=small) == BUDGET_BYTES_MAX
    assert budget_bytes({"PYSPARK_EXECUTOR_MEMORY_MB": "-1"}, properties, root=small) == BUDGET_BYTES_MIN


@pytest.mark.parametrize(
    ("properties", "cores"),
    [
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[3, 4]"}, 3),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({"spark.master": "local-cluster[2,5,1200]"}, 5),
        ({"spark.master": "yarn"}, 1),
        ({"spark.master": "k8s://https://host"}, 1),
        ({"spark.master": "spark://host:7077"}, os.cpu_count()),
        ({}, os.cpu_count()),
    ],
)
def test_cores_by_the_master(properties: dict[str, str], cores: int) -> None:
    assert configured_cores({}, properties) == 0
    assert assumed_cores(properties) == cores


def test_cores_by_a_setting() -> None:
    assert configured_cores({"SPARK_EXECUTOR_CORES": "7"}, {}) == 7
    assert configured_cores({"SPARK_EXECUTOR_CORES": "7"}, {"spark.executor.cores": "6"}) == 6
    assert configured_cores({}, {"resource.executor.cores": "5", "spark.executor.cores": "6"}) == 5
    assert configured_cores({}, {"spark.executor.cores": "nonsense"}) == 0
