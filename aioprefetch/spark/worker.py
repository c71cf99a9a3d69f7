"""The state of a Python worker of Spark: settings of pyarrow, a budget of memory, warm Operators.

Spark forks a worker for each core and each Python stage of an executor, and lets it run one task after the other. Only
imported modules keep their state between tasks: a function of ``__main__`` is unpickled for each task, with fresh
globals. Hence the registry here. Nothing relies on an orderly end: workers are killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import bytes_at_least
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.sync import BlockingOperator
from aioprefetch.sync.loop_thread import leak_in_child, loop_thread, process_lock

# Spark runs a worker for each core: more threads in each would only take turns.
ARROW_CPU_THREADS = 1
ARROW_IO_THREADS = 2
# With this Spark shows an error without its traceback, as spark.sql.execution.pyspark.udf.hideTraceback.enabled does.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
# Operators that a worker keeps. Each may fill its budget, so the least recently used ones are closed.
OPERATORS_MAX = 8
# The default of an Operator.
BLOCK_BYTES = 8 << 20
# The least number of blocks in a budget: prefetching needs them.
BLOCKS_MIN = 4


def is_worker() -> bool:
    """Whether Spark started this process for Python code of tasks."""
    return os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER"


def prepare() -> None:
    """Set this worker up, once in each process; elsewhere, as on the driver, it does nothing.

    pyarrow gets one thread for computing and a few for I/O.
    """
    freeze_gc_once()
    if _worker().is_prepared or not is_worker():
        return
    import pyarrow as pa

    pa.set_cpu_count(ARROW_CPU_THREADS)
    pa.set_io_thread_count(ARROW_IO_THREADS)
    _worker().is_prepared = True


def freeze_gc_once() -> None:
    """Exclude all objects that exist after the first task, above all modules, from garbage collections.

    Spark has each of its processes collect after each task: 30 ms of a core with our imports and pyarrow's.
    """
    worker = _worker()
    if worker.gc_frozen or not is_worker():
        return
    collections = gc.get_stats()[-1]["collections"]
    if worker.collections is None:
        worker.collections = collections
    elif collections > worker.collections:
        gc.freeze()
        worker.gc_frozen = True


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """Let Spark show our errors as one sentence, without a traceback.

    The traceback goes to the log at level DEBUG. For processes of Spark alone, which end after an error.
    """
    try:
        yield
    except Error as error:
        if not is_worker():
            raise
        logger.debug("an error that Spark reports", exc_info=True)
        os.environ[_HIDE_TRACEBACK] = "true"
        raise error.with_traceback(None) from None


def memory_budget_bytes() -> int:
    """The memory for one Operator in this worker; ``budget_bytes`` has the rule."""
    worker = _worker()
    if worker.budget_bytes is None:
        worker.budget_bytes = budget_bytes(os.environ, task_properties())
    return worker.budget_bytes


def with_memory(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an Operator with this worker's share of memory, unless they have ``memory_bytes``."""
    if options.get("memory_bytes") is not None:
        return dict(options)
    given = options.get("block_bytes") or BLOCK_BYTES
    block_bytes = bytes_at_least(1, given, "block_bytes", operation="configure", path="")
    return {**options, "memory_bytes": max(memory_budget_bytes(), BLOCKS_MIN * block_bytes)}


def warm_operator(key: bytes, make: Callable[[], Operator]) -> BlockingOperator:
    """The operator of this process under ``key``, made at its first use. ``.operator`` is the asynchronous one.

    A closed one is replaced: a function that closed it must not fail the next task.
    """
    prepare()
    worker = _worker()
    with process_lock():
        operator = worker.operators.get(key)
        if operator is None or operator.closed:
            operator = worker.operators[key] = BlockingOperator(make())
        worker.operators.move_to_end(key)
        surplus = worker.operators.popitem(last=False)[1] if len(worker.operators) > OPERATORS_MAX else None
    if surplus is not None:
        loop_thread().finish(surplus.operator.aclose, timeout_seconds=0)
    return operator


class WorkerState:
    """The state of one process; ``operators`` are those it keeps, the least recently used first."""

    def __init__(self) -> None:
        self.generation = fork_generation()
        self.pid = os.getpid()
        self.is_prepared = False
        self.gc_frozen = False
        # Full collections at the first task.
        self.collections: int | None = None
        self.budget_bytes: int | None = None
        self.operators: OrderedDict[bytes, BlockingOperator] = OrderedDict()


# A fork replaces it at its first use.
state = WorkerState()


def _worker() -> WorkerState:
    """The state of this process: a fork starts without its parent's."""
    global state
    if state.generation != fork_generation() or state.pid != os.getpid():
        leak_in_child(state)
        state = WorkerState()
    return state


def task_properties() -> Mapping[str, str]:
    """The properties of the session that Spark passes to a task; none outside of a task."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.TaskContext.get()
    return (getattr(context, "_localProperties", None) or {}) if context is not None else {}


MIB = 1 << 20

# Less holds hardly a block; more takes an explicit option.
BUDGET_BYTES_MIN = 32 * MIB
BUDGET_BYTES_MAX = 2048 * MIB
BUDGET_BYTES_GUESSED_MAX = 192 * MIB

_LOCAL = re.compile(r"local\[(\d+)(?:,\s*\d+)?\]")
_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,\s*(\d+)\s*,")


def budget_bytes(
    environment: Mapping[str, str], properties: Mapping[str, str] | None = None, *, root: Path = Path("/")
) -> int:
    """The memory that the engine may take in one worker, from the environment and the properties of a task.

    An executor runs ``cores`` tasks at once, and a task has a worker for each of its Python stages in a row
    (``df.mapInArrow(f).mapInArrow(g)`` has two). So the engine takes up to

        cores × Python stages × budget

    on each executor, beside what the functions themselves need.

    The budget is half of what ``spark.executor.pyspark.memory`` leaves a worker. Spark divides that setting by the
    cores of an executor and limits the address space of each worker to its part, which already holds the interpreter
    and the libraries. Without the setting the budget is a quarter of a core's part of the memory that the system allows
    (the limit of the cgroup, or the machine's), and never more than 192 MiB, with which a worker stays below 400 MiB:
    Python shares a container with the JVM, whose part is unknown.

    ``root`` is the directory of ``proc`` and ``sys``.
    """
    configured = configured_cores(environment, properties or {})
    cores = configured or assumed_cores(properties or {})
    limit_bytes = _number(environment.get("PYSPARK_EXECUTOR_MEMORY_MB")) * MIB
    if not limit_bytes:
        return _within(system_bytes(root) // cores // 4, BUDGET_BYTES_GUESSED_MAX)
    if not configured:
        limit_bytes //= cores  # Spark divides by the configured cores, at least by one
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
    files = [mount / "memory.max", mount / "memory/memory.limit_in_bytes"]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        inner = path.strip("/")
        if not controllers:
            files += [above / "memory.max" for above in _upwards(mount, inner)]
        elif "memory" in controllers.split(","):
            files += [above / "memory.limit_in_bytes" for above in _upwards(mount / "memory", inner)]
    return files


def _upwards(mount: Path, inner: str) -> list[Path]:
    """A group and those around it: the limit of each holds."""
    parts = inner.split("/") if inner else []
    return [mount.joinpath(*parts[:count]) for count in range(len(parts), 0, -1)]


def _address_space_bytes(root: Path) -> int:
    """The memory that this process has already mapped, which counts against the limit of Spark."""
    return _number(_text(root / "proc/self/statm").split(" ")[0]) * os.sysconf("SC_PAGE_SIZE")


def _within(size_bytes: int, most_bytes: int) -> int:
    return max(BUDGET_BYTES_MIN, min(size_bytes, most_bytes))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str | None) -> int:
    """A positive integer, 0 for anything else (``max`` means no limit)."""
    try:
        return max(0, int(text or ""))
    except ValueError:
        return 0
