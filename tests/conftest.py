"""What all tests share: hygiene checks, real S3 servers, random names, the virtual clock.

A test that fails says how it is run again in the same order and with the same examples: `--virtual-seed`,
`AIOPREFETCH_TESTS`, and what Hypothesis prints.

Where a test goes: `unit/` one module, no network; `tidy/` rules about the source; everything that needs a server asks
for the fixture `s3_server` or `rclone_server`. A test marked `virtual` runs on the virtual clock.
"""

import asyncio
import gc
import inspect
import os
import re
import secrets
import sys
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

from aioprefetch.testing import CountingS3Server, VirtualClockLoop
from tests.probes.loop_lag import LoopLag
from tests.profile import FULL_FOLDERS, PROFILE
from tests.repository.source_tree import forget_trees
from tests.stores.rclone_server import RcloneS3Server

THREADS_ALLOWED = (
    "aioprefetch-",  # the servers of aioprefetch.testing and the one loop thread of ap.sync live on purpose
    "asyncio_",  # the loop's default executor; the loop's runner joins it after the test
    "uvloop_",  # the same of uvloop's
    "AnyIO worker thread",  # anyio reuses them and ends them with the loop's root task
    "Dummy-",  # Arrow's own threads, which wait for its next work
    "fsspecIO",  # the same of fsspec, for its own file systems
    "zarr_io",  # the one loop thread of zarr lives on purpose
)
TESTS = Path(__file__).parent
JOIN_SECONDS_MAX = 2.0
# The fixture of pytest-asyncio with the loop of one test. A fixture that is a coroutine costs more.
RUNNER = "_function_scoped_runner"
# No call of ours takes 50 ms of CPU without a turn of the loop. What else the machine does can double that.
HELD_SECONDS_MAX = 0.1
# A JVM that lives for a minute is not worth compiling well: it takes half the CPU so. All of them inherit this.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# `quick` draws a fifth of the examples that a test asks for, `full` all of them: the same ones in each run. `search`
# draws others each time, and ten times as many.
settings.register_profile("quick", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("full", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("search", derandomize=False, deadline=None, print_blob=True)
settings.load_profile(PROFILE)
EXAMPLES_FACTOR = {"quick": 0.2, "full": 1.0, "search": 10.0}
EXAMPLES_MIN = 20

# With AIOPREFETCH_NO_SKIPS set any other skip fails: a machine that lacks something must not pass with fewer tests.
SKIPS_EXPECTED = re.compile(
    "|".join(
        (
            r"needs [a-z_, ]+|only without [a-z_, ]+",  # Of the conformance suites, where each is pinned by name too.
            r"no copy of apache/parquet-testing: .*",
            r"AIOPREFETCH_S3FS_TESTS names no test file of s3fs",
            r"its pages are not fewer bytes than the chunk",
            # What CI's machines may lack: root, its rights, and a network with IPv6.
            r"only root .*",
            r"mounting is not allowed here",
            r"there is no second file system",
            r"no IPv6 on this machine",
            r"no eager tasks before Python 3.12",
        )
    )
)
R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def pytest_configure() -> None:
    """Settings of the processes that tests start."""
    os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_JAVA)


def pytest_unconfigure() -> None:
    """Modules have to be collected at exit: some extensions complain of what is left."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without Python's collector, and spare it the million objects that live from then on.

    It takes a third of the time of a collection, finds nothing, and would look at these objects during all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give all rules about the source to one process: they share its syntax trees, which take seconds to make."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "tests/tidy" if path.startswith("tests/tidy/") else path

    return Files(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a failing schedule be replayed."""
    parser.addoption(
        "--virtual-seed",
        type=lambda text: secrets.randbelow(1 << 32) if text == "random" else int(text),
        default=None,
        help="seed for the schedule of tests on the virtual clock, or 'random' (default: asyncio's own order)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Draw as many examples as the profile wants, also where a test says how many it wants; mark folders as `full`."""
    folders = tuple(f"{TESTS / folder}{os.sep}" for folder in FULL_FOLDERS)
    for item in items:
        if str(item.path).startswith(folders):
            item.add_marker("full")
    for test in {id(test): test for item in items if (test := _hypothesis_test(item)) is not None}.values():
        own: Any = test._hypothesis_internal_use_settings or settings.default
        test._hypothesis_internal_use_settings = settings(
            own, max_examples=examples_of(own.max_examples), derandomize=settings.get_current_profile_name() != "search"
        )


def examples_of(written: int) -> int:
    """How many examples the profile draws where a test asks for a number of them."""
    return max(min(written, EXAMPLES_MIN), round(EXAMPLES_FACTOR[settings.get_current_profile_name()] * written))


def _hypothesis_test(item: pytest.Item) -> Any:
    function = getattr(item, "function", None)
    test = getattr(function, "__func__", function)
    return test if getattr(test, "is_hypothesis_test", False) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say how a failing schedule is replayed, and fail a skip that is not expected."""
    report = yield
    seed: int | None = item.config.getoption("--virtual-seed")
    if report.failed and seed is not None and item.get_closest_marker("virtual") is not None:
        report.sections.append(("replay", f"python -m pytest '{item.nodeid}' --virtual-seed={seed}"))
    return _without_unexpected_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that is skipped whole."""
    return _without_unexpected_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Behind the last test of a folder drop the syntax trees, and spare the collector what lives on.

    Hundreds of tests collect garbage, and would visit a million nodes and all modules that earlier folders have loaded.
    """
    yield
    if nextitem is None or nextitem.path.parent != item.path.parent:
        forget_trees()
        gc.collect()
        gc.freeze()


def _without_unexpected_skip(report: R) -> R:
    if not report.skipped or hasattr(report, "wasxfail") or not os.environ.get("AIOPREFETCH_NO_SKIPS"):
        return report
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if not SKIPS_EXPECTED.fullmatch(reason.removeprefix("Skipped: ")):
        report.outcome = "failed"
        report.longrepr = (
            f"{reason}\nAIOPREFETCH_NO_SKIPS is set, and SKIPS_EXPECTED in tests/conftest.py has no such skip"
        )
    return report


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Choose the loop of an async test: the virtual clock for the marker, asyncio's loop otherwise."""
    if item.get_closest_marker("virtual") is None:
        return {"asyncio": asyncio.new_event_loop}
    seed: int | None = config.getoption("--virtual-seed")
    return {"virtual": lambda: VirtualClockLoop(seed=seed)}


async def check_tasks() -> None:
    """Fail when a test has left an asyncio task behind."""
    current = asyncio.current_task()
    leaked = {task for task in asyncio.all_tasks() if task is not current and not task.done()}
    # The runtime of an operator that was collected ends in the turns that follow.
    if ending := {task for task in leaked if task.cancelling()}:
        await asyncio.wait(ending, timeout=JOIN_SECONDS_MAX)
        leaked = {task for task in leaked if not task.done()}
    if leaked:
        names = sorted(map(repr, leaked))
        for task in leaked:
            task.cancel()
        await asyncio.wait(leaked, timeout=JOIN_SECONDS_MAX)
        pytest.fail("leaked tasks: " + ", ".join(names))


@pytest.fixture
def no_blocking_calls() -> Callable[[], AbstractContextManager[object]]:
    """A context manager in which a blocking call inside a running loop raises `blockbuster.BlockingError`.

    Not for whole tests: servers and files of a test's own may block.
    """
    from blockbuster import blockbuster_ctx

    return blockbuster_ctx


@pytest.fixture(scope="session", autouse=True)
def loop_lag() -> Iterator[LoopLag]:
    """Watches all loops of the session for code of ours that holds them."""
    with LoopLag(HELD_SECONDS_MAX) as lag:
        yield lag


@pytest.fixture(autouse=True)
def hygiene(request: pytest.FixtureRequest, loop_lag: LoopLag) -> Iterator[None]:
    """Fail a test that leaves tasks or threads behind, or in which code of ours held an event loop.

    Leaked sockets are not counted here, since servers of the session come and go: an unclosed one raises
    ResourceWarning when it is collected, and warnings are errors.
    """
    runner: asyncio.Runner | None = None
    if inspect.iscoroutinefunction(getattr(request.node, "function", None)):
        # First of all fixtures, hence the last to be torn down: what others close is closed by then.
        runner = request.getfixturevalue(RUNNER)
    before = set(threading.enumerate())
    loop_lag.take()
    yield
    if runner is not None and asyncio.all_tasks(runner.get_loop()):
        runner.run(check_tasks())
    if leaked := [thread for thread in set(threading.enumerate()) - before if _outlives(thread)]:
        pytest.fail(f"leaked threads: {leaked}")
    held = loop_lag.take()
    if held and sys.gettrace() is None:  # A measurement of coverage takes most of the time of what it measures.
        pytest.fail("an event loop was held:\n" + "\n".join(map(str, held)))


def _outlives(thread: threading.Thread) -> bool:
    if thread.name.startswith(THREADS_ALLOWED):
        return False
    with suppress(RuntimeError):  # One that is just being started: it is that of a loop which ends, and waits for it.
        thread.join(JOIN_SECONDS_MAX)
    return thread.is_alive()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What comes to ``sys.unraisablehook``."""
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: said.append(str(given.exc_value)))
    return said


@pytest.fixture(scope="session")
def s3_server() -> Iterator[CountingS3Server]:
    """One in-process S3 (moto) for the session; take a bucket of your own with `random_name`."""
    with CountingS3Server() as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[RcloneS3Server]:
    """One `rclone serve s3` child for the session, a second opinion on what S3 means."""
    with RcloneS3Server() as server:
        yield server


@pytest.fixture(scope="session")
def random_name() -> Callable[[], str]:
    """A function that returns a new name on each call, valid as a bucket name and as a key."""
    return lambda: f"t{uuid.uuid4().hex[:16]}"
