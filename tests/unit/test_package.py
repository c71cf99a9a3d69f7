"""The package as one sees it after `import aioprefetch as ap`: public names, rooms that load on first use."""

import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import aioprefetch as ap
from tests.probes.programs import run_program
from tests.repository.source_tree import ROOT
from tests.unit.parquet.parquet_files import written

ROOMS = [
    *("arrow", "fsspec", "lance", "obspec", "otel", "parquet", "polars", "progress", "prometheus", "spark", "testing"),
    "zarr",
]


def in_forks(names: list[str], source: str) -> list[str]:
    """The lines that a program prints for each name, in a fork of a process that has imported the package alone."""
    program = f"""
import os, sys, aioprefetch as ap
for name in {names!r}:
    if not os.fork():
        {source.replace(chr(10), chr(10) + " " * 8)}
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_completion_shows_public_names_and_rooms_and_nothing_else() -> None:
    shown = {name for name in dir(ap) if not name.startswith("_")}
    assert shown == {*ap.__all__, *ROOMS}
    assert "__version__" in dir(ap)
    assert all(hasattr(ap, name) for name in ap.__all__)


def test_a_room_loads_on_first_use() -> None:
    loaded = "f'aioprefetch.{name}' in sys.modules"
    lines = in_forks(ROOMS, f"print(name, {loaded}, dir(ap).count(name), getattr(ap, name) and {loaded})")
    assert lines == [f"{room} False 1 True" for room in ROOMS]


def test_a_scan_without_filters_loads_no_functions_of_arrow() -> None:
    """They take a tenth of the time of a first scan."""
    source = f"""import asyncio
async def read():
    async with ap.Operator.from_uri("memory://first") as op:
        await op.write("t", {written(pa.table({"a": [1, 2]}))!r})
        table = await ap.parquet.read_table(op, "t", columns=name.split() or None)
        return table.num_columns, "pyarrow.compute" in sys.modules
print(asyncio.run(read()))"""
    assert in_forks(["a", ""], source) == ["(1, False)", "(1, False)"]


def test_a_room_without_its_packages_names_the_extra() -> None:
    """At each access, not at the first alone."""
    missing = {
        "arrow.filesystem": "pyarrow",
        "parquet.scan": "pyarrow",
        "lance.scan": "pyarrow",
        "otel.instrument": "opentelemetry",
        "polars.scan_parquet": "polars",
        "progress.rich": "rich",
        "progress.tqdm": "tqdm",
        "prometheus.Collector": "prometheus_client",
        "spark.register": "pyspark",
    }
    source = f"""sys.modules[{missing!r}[name]] = None
room, _, made = name.partition(".")
for _ in range(3):
    try:
        getattr(getattr(ap, room), made)
    except ap.MissingDependency as error:
        print(error.message)"""
    messages = in_forks([*missing], source)
    assert len(messages) == 3 * len(missing)
    for number, (name, package) in enumerate(missing.items()):
        (message,) = {*messages[3 * number : 3 * number + 3]}
        assert message.startswith(f"aioprefetch.{name} needs {package}")
        assert f"pip install 'aioprefetch[{name.partition('.')[0]}]'" in message


def test_all_has_every_extra_but_those_of_spark_the_demo_and_tests() -> None:
    """PySpark alone is half a gigabyte."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = metadata["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("aioprefetch[").removesuffix("]").split(","))
    assert named == extras.keys() - {"all", "spark", "java", "demo", "testing"}


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_a_room_that_a_function_refers_to_pickles_by_its_name(dump: Callable[[object], bytes]) -> None:
    rooms = ap.layers, ap.lance, ap.parquet, ap.services, ap.spark, ap.sync, ap.testing
    assert [pickle.loads(dump(room)) for room in rooms] == [*rooms]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        ap.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_an_import_on_windows_says_where_it_works() -> None:
    """What Python has on POSIX alone is hidden; the sentence comes before any other failure."""
    missing = ["fcntl", "resource", "pwd", "grp", "termios"]
    shown = run_program(f"""
import os, signal, socket, sys
sys.modules |= dict.fromkeys({missing})
for module, beginnings in (
    (os, ("fork", "register_at", "pread", "pwrite", "readv", "writev", "getuid", "sysconf", "posix_", "O_CLO", "O_NOF",
          "O_DIR", "O_NONB", "sendfile", "sched_", "fchmod", "statvfs", "killpg", "setsid")),
    (signal, ("SIGKILL", "SIGHUP", "SIGUSR", "SIGPIPE", "SIGALRM", "SIGQUIT", "SIGCHLD")),
    (socket, ("AF_UNIX", "MSG_", "SO_REUSEP", "TCP_")),
):
    for name in [name for name in dir(module) if name.startswith(beginnings)]:
        delattr(module, name)
try:
    import aioprefetch
except ImportError as error:
    print(error)
""")
    assert shown.startswith("aioprefetch runs on Linux and macOS, and on Windows within WSL 2")
