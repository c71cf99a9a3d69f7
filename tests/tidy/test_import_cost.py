"""`import aioprefetch` is cheap: what few programs need, and what belongs to an extra, loads at first use."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

from aioprefetch.testing import FaultServer
from tests.repository.source_tree import PACKAGE, ROOT, imports_of, python_files

MODULES_MAX = 200 if sys.version_info < (3, 13) else 204  # Later Pythons load some more for asyncio.
FORBIDDEN = (
    *("aiobotocore", "aiohappyeyeballs", "aiohttp", "botocore", "fsspec", "httptools", "numpy", "pyarrow", "pyspark"),
    *("pytest", "anyio", "configparser", "difflib", "email", "html", "http", "importlib.metadata", "pathlib"),
    *("secrets", "urllib", "zipfile"),
)
# What loads at first use, and what a read of an object in memory needs of it: nothing.
ROOMS = ("cli", "lance", "parquet", "reader", "scan", "scheduler", "source", "spark", "sync", "testing")
READ = """
import asyncio, sys, aioprefetch as ap
operator = ap.Operator.from_uri("memory://name")
async def read():
    await operator.accessor().write(ap.values.WriteRequest(path="k"), b"bytes")
    before = set(sys.modules)
    assert await operator.read("k") == b"bytes"
    await operator.aclose()
    return sorted(set(sys.modules) - before)
loaded = asyncio.run(read())
"""
# What the first read of S3 loads with keys that are given, and what it needs none of.
READ_S3_MODULES_MAX = 260
NOT_FOR_A_READ = (
    *(name for name in FORBIDDEN if name not in ("aiohappyeyeballs", "httptools", "urllib")),
    *("ctypes", "decimal", "json", "multiprocessing", "numbers", "random", "shlex", "urllib.request"),
    *("uuid", "xml", "zlib"),
    *("aioprefetch.reader", "aioprefetch.sync"),
)
READ_S3 = """
import asyncio, sys, aioprefetch as ap
operator = ap.Operator.from_uri(
    "s3://bucket", endpoint_url={url!r}, region="r", access_key_id="AK", secret_access_key="SK", allow_http=True
)
async def read():
    async with operator:
        assert await operator.read("k", offset=0, size=5) == b"bytes"
asyncio.run(read())
loaded = sorted(sys.modules)
"""
# What a file over it needs none of, beside most of these.
NOT_FOR_A_FILE = (
    *("numbers", "random", "aioprefetch.operator.open_file", "aioprefetch.verbs.writer"),
    "aioprefetch.sync.iteration",
    "aioprefetch.sync.blocking_operator",
)
OPEN_S3 = """
import sys, aioprefetch as ap
options = dict(endpoint_url={url!r}, region="r", access_key_id="AK", secret_access_key="SK", allow_http=True)
with ap.sync.open("s3://bucket/k", **options) as file:
    assert file.read(5) == b"bytes"
loaded = sorted(sys.modules)
"""
FIRST_USE_IN_THREADS = """
import sys, threading, aioprefetch as ap
sys.setswitchinterval(1e-6)
gate, found, uses = threading.Barrier(16), [], (
    lambda: ap.sync.open, lambda: ap.sync.BlockingOperator, lambda: ap.sync.iterate,
    lambda: ap.layers.LruCacheLayer, lambda: ap.services.S3, lambda: ap.RangeReader,
    lambda: ap.services.Http, lambda: ap.BatchScan, lambda: ap.Operator.from_uri("s3://bucket", region="r").service,
    lambda: ap.Operator.from_uri("memory://name").capability,
)
def use(number):
    gate.wait()
    found.append(uses[number % len(uses)]())
threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
count = [str(len(found))]
"""


def of_program(source: str, name: str) -> list[str]:
    """The list that a program leaves under a name, run in a fresh interpreter: this one has loaded everything."""
    program = f"{source}\nimport json; print(json.dumps({name}))"
    # Variables that no service knows make an operator load all services, for its error.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIOPREFETCH_")}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: list[str] = json.loads(run.stdout)
    return found


@pytest.fixture(scope="module")
def modules() -> list[str]:
    """All modules of a process that has imported the package, and nothing else."""
    return of_program("import sys, aioprefetch", "list(sys.modules)")


def test_importing_the_package_loads_few_modules(modules: list[str]) -> None:
    """Those of the interpreter and of asyncio are 136 of them."""
    assert len(modules) <= MODULES_MAX, sorted(modules)


def test_importing_the_package_loads_no_optional_dependency(modules: list[str]) -> None:
    assert [name for name in FORBIDDEN if name in modules] == []


@pytest.mark.parametrize("room", ROOMS)
def test_importing_the_package_loads_no_room_that_it_does_not_need(room: str, modules: list[str]) -> None:
    assert [name for name in modules if name.startswith(f"aioprefetch.{room}")] == []


def test_a_service_is_loaded_alone() -> None:
    """Making an operator loads the service of its scheme, and no other."""
    loaded = of_program("import sys, aioprefetch as ap; ap.Operator.from_uri('memory://name')", "list(sys.modules)")
    services = {name.split(".")[2] for name in loaded if name.startswith("aioprefetch.services.")}
    assert services.isdisjoint({"fs", "http", "obspec", "s3"})
    assert "memory" in services


def test_reading_and_closing_load_nothing() -> None:
    """A read that imports would hold the event loop: what it needs was loaded when the operator was made."""
    assert of_program(READ, "loaded") == []


async def test_the_first_read_of_s3_loads_what_it_needs() -> None:
    """From a process that has loaded nothing to the bytes, with keys in options."""
    async with FaultServer({"bucket/k": b"bytes of an object"}) as server:
        loaded = await asyncio.to_thread(of_program, READ_S3.format(url=server.url), "loaded")
    assert [name for name in NOT_FOR_A_READ if name in loaded] == []
    assert len(loaded) <= READ_S3_MODULES_MAX


async def test_a_file_loads_no_verbs() -> None:
    """``sync.open`` alone: no operator that blocks, no writer, no keys of Hadoop."""
    async with FaultServer({"bucket/k": b"bytes of an object"}) as server:
        loaded = await asyncio.to_thread(of_program, OPEN_S3.format(url=server.url), "loaded")
    assert [name for name in NOT_FOR_A_FILE if name in loaded] == []


def test_threads_may_use_what_loads_at_first_use_at_once() -> None:
    """No thread sees a module that another one has half loaded."""
    assert of_program(FIRST_USE_IN_THREADS, "count") == ["16"]


def test_no_two_threads_wait_for_each_others_imports() -> None:
    """A package that loads late does not load modules that others import directly: see ``first_use``."""
    early = of_program("import sys, aioprefetch; early = [*sys.modules]", "early")
    folders = {
        path.parent: f"{'.'.join(path.parent.relative_to(ROOT).parts)}." for path in PACKAGE.rglob("__init__.py")
    }
    eager = {
        folder: package
        for folder, package in folders.items()
        if package.rstrip(".") not in early
        if any(found.module.startswith(package) for found in imports_of(folder / "__init__.py"))
    }
    assert eager  # Packages whose modules are their own affair.
    direct = [
        f"{found.where} imports {found.module}"
        for path in python_files(PACKAGE)
        for found in imports_of(path)
        for folder, package in eager.items()
        if found.module.startswith(package) and folder not in path.parents
    ]
    assert direct == []


def test_names_that_load_at_first_use_are_there() -> None:
    """``from aioprefetch import *`` gives all public names, of the package and of three rooms; ``dir`` shows them."""
    source = """
from aioprefetch import *
import aioprefetch as ap
assert [name for name in ap.__all__ if name not in globals()] == []
rooms = ap.layers, ap.services, ap.sync
missing = [name for room in (ap, *rooms) for name in room.__all__ if name not in dir(room)]
unknown = [name for room in rooms for name in room.__all__ if not callable(getattr(room, name))]
"""
    assert of_program(source, "missing + unknown") == []
