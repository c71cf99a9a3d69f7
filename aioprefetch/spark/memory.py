"""How much memory the engine may take in one Python worker, from what Spark and the system tell.

**The rule.** An executor runs ``cores`` tasks at once, and a task a worker for each of its Python stages in a row
(``df.mapInArrow(f).mapInArrow(g)`` has two). So the engine takes up to

    cores × Python stages × budget

on each executor, beside what the functions themselves need.

**The budget** of a worker is half of what ``spark.executor.pyspark.memory`` leaves it. Spark divides that setting by
the cores of an executor and limits each worker's address space to its part; the interpreter and the libraries are in
it already when this is asked. Without the setting it is a quarter of a core's part of the memory that the system
allows (the limit of the cgroup, or the machine's), and never more than an Operator takes by default: Python shares a
container with the JVM, and its part is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20

# Less holds hardly a block; more takes an explicit option.
BUDGET_BYTES_MIN = 32 * MIB
BUDGET_BYTES_MAX = 2048 * MIB
BUDGET_BYTES_GUESSED_MAX = 256 * MIB

_LOCAL = re.compile(r"local\[(\d+)(?:,\s*\d+)?\]")
_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,")


def budget_bytes(
    environment: Mapping[str, str], properties: Mapping[str, str] | None = None, *, root: Path = Path("/")
) -> int:
    """The budget of one worker, from the environment and the properties that Spark gave a task.

    ``root`` is the directory of ``proc`` and ``sys``.
    """
    configured = configured_cores(environment, properties or {})
    cores = configured or assumed_cores(properties or {})
    limit_bytes = _number(environment.get("PYSPARK_EXECUTOR_MEMORY_MB")) * MIB
    if not limit_bytes:
        return _within(system_bytes(root) // cores // 4, BUDGET_BYTES_GUESSED_MAX)
    if not configured:
        limit_bytes //= cores  # Spark divides by the configured cores, by one if there are none
    left_bytes = limit_bytes - min(_address_space_bytes(root), limit_bytes // 2)
    return _within(left_bytes // 2, BUDGET_BYTES_MAX)


def configured_cores(environment: Mapping[str, str], properties: Mapping[str, str]) -> int:
    """The number of cores of an executor by a setting; 0 if it is not set."""
    configured = (
        properties.get("resource.executor.cores"),
        properties.get("spark.executor.cores"),
        environment.get("SPARK_EXECUTOR_CORES"),  # on Kubernetes
    )
    return next(filter(None, map(_number, configured)), 0)


def assumed_cores(properties: Mapping[str, str]) -> int:
    """The number of tasks that an executor runs at once without that setting, by the URL of the master."""
    master = properties.get("spark.master", "")
    match = _LOCAL.match(master) or _CLUSTER.match(master)
    if match is not None:
        return max(1, int(match[1]))
    if master == "local" or master.startswith(("yarn", "k8s:")):
        return 1  # the default there
    return os.cpu_count() or 1  # a standalone executor takes all there are


def system_bytes(root: Path = Path("/")) -> int:
    """The memory that this process may use at most: the machine's, or the smallest limit of its cgroups."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for group in _cgroups(root) if (limit := _number(_text(group)))]
    return min(limits)


def _cgroups(root: Path) -> list[Path]:
    """Files that may hold a limit: of both versions, as the process sees itself, and as a container does."""
    mount = root / "sys/fs/cgroup"
    found = [mount / "memory.max", mount / "memory/memory.limit_in_bytes"]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        inner = path.strip("/")
        if not controllers:
            found += [above / "memory.max" for above in _upwards(mount, inner)]
        elif "memory" in controllers.split(","):
            found += [above / "memory.limit_in_bytes" for above in _upwards(mount / "memory", inner)]
    return found


def _upwards(mount: Path, inner: str) -> list[Path]:
    """A group and those around it: the limit of each holds."""
    parts = inner.split("/") if inner else []
    return [mount.joinpath(*parts[:count]) for count in range(len(parts), 0, -1)]


def _address_space_bytes(root: Path) -> int:
    """What this process has mapped already, which counts against the limit that Spark sets."""
    return _number(_text(root / "proc/self/statm").split(" ")[0]) * os.sysconf("SC_PAGE_SIZE")


def _within(size_bytes: int, most_bytes: int) -> int:
    return max(BUDGET_BYTES_MIN, min(size_bytes, most_bytes))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str | None) -> int:
    """A positive integer, 0 for anything else (``max`` is no limit)."""
    try:
        return max(0, int(text or ""))
    except ValueError:
        return 0
