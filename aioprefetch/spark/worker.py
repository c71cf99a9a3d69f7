"""The state of a Python worker of Spark: settings of pyarrow, a budget of memory, warm Operators.

Spark forks a worker for each core and each Python stage of an executor, and lets it run one task after the other. Only
imported modules keep their state between tasks: a function of ``__main__`` is unpickled for each task, with fresh
globals. Hence the registry here. Nothing relies on an orderly end: workers are killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aioprefetch.errors import Error
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.spark.memory import budget_bytes
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
    """Whether this process is one that Spark started for Python code of tasks."""
    return os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER"


def prepare() -> None:
    """Set this worker up, once in each process; elsewhere, as on the driver, it does nothing.

    Gives pyarrow one thread for computing and a few for I/O.
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
    """The memory for one Operator in this worker; ``aioprefetch.spark.memory`` has the rule."""
    worker = _worker()
    if worker.budget_bytes is None:
        worker.budget_bytes = budget_bytes(os.environ, _task_properties())
    return worker.budget_bytes


def with_memory(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an Operator with this worker's share of memory, unless they have ``memory_bytes``."""
    if options.get("memory_bytes") is not None:
        return dict(options)
    block_bytes = options.get("block_bytes") or BLOCK_BYTES
    return {**options, "memory_bytes": max(memory_budget_bytes(), BLOCKS_MIN * block_bytes)}


def warm_operator(key: bytes, make: Callable[[], Operator]) -> BlockingOperator:
    """The operator of this process under ``key``, made if there is none. ``.operator`` is the asynchronous one.

    A closed one is replaced: a function that closed it must not fail the next task.
    """
    prepare()
    worker = _worker()
    with process_lock():
        found = worker.operators.get(key)
        if found is None or found.closed:
            found = worker.operators[key] = BlockingOperator(make())
        worker.operators.move_to_end(key)
        surplus = worker.operators.popitem(last=False)[1] if len(worker.operators) > OPERATORS_MAX else None
    if surplus is not None:
        loop_thread().finish(surplus.operator.aclose, timeout_seconds=0)
    return found


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


def _task_properties() -> Mapping[str, str]:
    """The properties of the session that Spark gives a task; none outside of a task."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.TaskContext.get()
    return (getattr(context, "_localProperties", None) or {}) if context is not None else {}
