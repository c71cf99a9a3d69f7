"""The package as one sees it after `import aioprefetch as ap`: public names, rooms that load on first use."""

import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable

import pytest
from pyspark import cloudpickle

import aioprefetch as ap
from tests.repository.source_tree import ROOT

ROOMS = [
    *("arrow", "fsspec", "lance", "obspec", "otel", "parquet", "polars", "progress", "prometheus", "spark", "testing"),
    "zarr",
]


def program(source: str) -> str:
    """What a program prints in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_completion_shows_public_names_and_rooms_and_nothing_else() -> None:
    shown = {name for name in dir(ap) if not name.startswith("_")}
    assert shown == {*ap.__all__, *ROOMS}
    assert "__version__" in dir(ap)
    assert all(hasattr(ap, name) for name in ap.__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_loads_on_first_use(room: str) -> None:
    loaded = f"'aioprefetch.{room}' in sys.modules"
    source = f"import sys, aioprefetch as ap; print({loaded}, dir(ap).count({room!r})); ap.{room}; print({loaded})"
    assert program(source).split() == ["False", "1", "True"]


@pytest.mark.parametrize(
    ("room", "name", "missing"),
    [
        ("arrow", "arrow.filesystem", "pyarrow"),
        ("parquet", "parquet.scan", "pyarrow"),
        ("lance", "lance.scan", "pyarrow"),
        ("otel", "otel.instrument", "opentelemetry"),
        ("polars", "polars.scan_parquet", "polars"),
        ("progress", "progress.rich", "rich"),
        ("progress", "progress.tqdm", "tqdm"),
        ("prometheus", "prometheus.Collector", "prometheus_client"),
        ("spark", "spark.register", "pyspark"),
    ],
)
def test_a_room_without_its_packages_names_the_extra(room: str, name: str, missing: str) -> None:
    source = f"""
import sys
sys.modules[{missing!r}] = None
import aioprefetch as ap
for _ in range(3):
    try:
        ap.{name}
    except ap.MissingDependency as error:
        print(error.message)
"""
    messages = program(source).splitlines()
    assert len(messages) == 3  # At each access, not at the first alone.
    (message,) = set(messages)
    assert message.startswith(f"aioprefetch.{name} needs {missing}")
    assert f"pip install 'aioprefetch[{room}]'" in message


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
    shown = program(f"""
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
