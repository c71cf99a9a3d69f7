"""Each extra alone: ``python -m tests.extras [EXTRA ...]`` runs what it promises where nothing else is installed.

The package is built as a wheel. For each extra, and for each ``pip install`` of the page of first jobs, it is installed
into an environment of its own, two at a time and without compiling what is not imported; pip takes the packages from
its cache where it has them. There run the examples of the extra, a check where it has none, and the jobs of the page.
The last environment is that of ``all``, which has every room but those on Spark and for tests.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from aioprefetch.spark.java import use_java
from tests.repository.doc_pages import blocks_of
from tests.repository.example_scripts import EXAMPLES, OF_EXTRAS, SHOWN
from tests.repository.source_tree import ROOT

AT_ONCE = 2
SECONDS_MAX = 170
JOBS = ROOT / "docs" / "start" / "jobs.md"
JOB_LINES_MAX = 10
# Every room and name of one loads, PySpark is not there, and no room of the package is left out but those two.
CHECK_ALL = """
import importlib.util, aioprefetch as ap
rooms = [name for name in dir(ap) if hasattr(getattr(ap, name), "__path__") and name not in ("spark", "testing")]
for room in rooms:
    for name in getattr(ap, room).__all__:
        getattr(getattr(ap, room), name)
assert importlib.util.find_spec("pyspark") is None, "all brings PySpark"
print("rooms:", *rooms)
"""
# What an extra does that has no example to run alone, and what that prints. A server in the process has the object.
_SERVED = """
import asyncio
import aioprefetch as ap
from aioprefetch.testing import FaultServer
async def main():
    async with FaultServer({"bucket/k": b"0123456789"}) as server:
        async with opened(server) as op, op.reader("k") as reader:
            print(await reader.read_at(2, 3), "requests:", len(server.requests))
"""
CHECKS: dict[str, tuple[str, str]] = {
    "http": (
        _SERVED
        + """
def opened(server):
    return ap.Operator.from_uri(server.url + "/bucket/")
asyncio.run(main())
""",
        "b'234' requests: 1\n",
    ),
    "s3": (
        _SERVED
        + """
def opened(server):
    keys = {"access_key_id": server.access_key_id, "secret_access_key": server.secret_access_key}
    return ap.Operator.from_uri("s3://bucket", endpoint_url=server.url, region=server.region, **keys)
asyncio.run(main())
keys = {"access_key_id": "id", "secret_access_key": "secret"}
op = ap.Operator.from_uri("s3://bucket", region="us-iso-east-1", **keys)  # an endpoint that botocore knows
print("presigned:", ap.sync.run(op.presign("k")).partition("?")[0])
""",
        "b'234' requests: 1\npresigned: https://bucket.s3.us-iso-east-1.c2s.ic.gov/k\n",
    ),
    "lance": (
        """
import aioprefetch as ap
assert all(getattr(ap.lance, name) for name in ap.lance.__all__)
op = ap.Operator.from_uri("memory://x")
with ap.sync.BlockingOperator(op) as blocking:
    blocking.write("k.lance", bytes(100))
try:
    ap.sync.run(ap.lance.read_table(op, "k.lance"))
except ap.UntrustedMetadata as error:
    print(error.message)
""",
        "not a Lance file",
    ),
    "progress": (
        """
import aioprefetch as ap
op = ap.Operator.from_uri("memory://x")
with ap.sync.BlockingOperator(op) as blocking:
    blocking.write("k", b"0123456789")
    for bar in (ap.progress.tqdm(), ap.progress.rich()):
        blocking.download("k", "file", on_progress=bar)
""",
        "10.0/10.0",
    ),
}


class Failed(Exception):
    """A command failed; the message is its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What runs in an environment: its name, the arguments of Python, and what it must print."""

    name: str
    arguments: tuple[str, ...]
    shown: str


@dataclass(slots=True, kw_only=True)
class Environment:
    """What is installed, as one gives it to pip, and what runs there."""

    requirements: tuple[str, ...]
    scripts: list[Script] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The requirements without our own name where there is more to say."""
        own = self.requirements[0].removeprefix("aioprefetch").strip("[]") or "no extra"
        return " + ".join([own, *self.requirements[1:]])


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command; what it printed."""
    # Nothing of this environment reaches the other one, but where pip finds its cache and index, and Spark its Java.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIOPREFETCH_", "PYTHON"))}
    # As in an environment that is activated: Spark starts its workers by the name of Python.
    kept["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{kept.get('PATH', '')}"
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def build_wheel(folder: Path) -> Path:
    """The wheel of this repository."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(folder: Path, wheel: Path, requirements: tuple[str, ...]) -> Path:
    """The interpreter of a new environment with the requirements, ours by the wheel."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    own = requirements[0].replace("aioprefetch", str(wheel), 1)
    run(*command, "--disable-pip-version-check", own, *requirements[1:], cwd=folder)
    return python


def check(environment: Environment, wheel: Path, folder: Path) -> str:
    """Run the scripts in an environment of their own; what came out, on one line."""
    began = time.monotonic()
    python = install(folder / "environment", wheel, environment.requirements)
    for script in environment.scripts:
        printed = run(python, "-I", *script.arguments, cwd=folder)
        if script.shown not in printed:
            raise Failed(f"{script.name} with {environment.name} does not print {script.shown!r}, but:\n{printed}")
    names = ", ".join(script.name for script in environment.scripts)
    return f"{environment.name}: {names} ({time.monotonic() - began:.0f} s)"


def jobs() -> Iterator[tuple[tuple[str, ...], Script]]:
    """The jobs of the page: what is installed for each, and its code."""
    requirements: tuple[str, ...] = ()
    blocks = blocks_of(JOBS)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.info == "sh":
            pip, verb, *packages = shlex.split(block.content, comments=True)
            if (pip, verb) != ("pip", "install"):
                raise Failed(f"{block.where}: not a pip install")
            requirements = tuple(packages)
        elif block.info.startswith("python"):
            lines = [line for line in block.content.splitlines() if line and not line.startswith("# not run: ")]
            if len(lines) > JOB_LINES_MAX or after is None or after.info != "text":
                raise Failed(f"{block.where}: {len(lines)} lines, or nothing that they print")
            name = f"job at line {block.line}"
            yield requirements, Script(name=name, arguments=("-c", block.content), shown=f"{after.content}\n")


def environments() -> list[Environment]:
    """Those of the jobs, those of the extras that run an example or a check, and ``all``."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    if unknown := (OF_EXTRAS.keys() | CHECKS.keys()) - declared.keys() - {""}:
        raise Failed(f"pyproject.toml has no extra {', '.join(sorted(unknown))}")
    paths = {path.stem: path for path in EXAMPLES}
    found: dict[tuple[str, ...], Environment] = {}
    # The largest first: what comes after it runs beside it.
    for requirements, script in sorted(jobs(), key=lambda job: "spark" not in job[0][0]):
        found.setdefault(requirements, Environment(requirements=requirements)).scripts.append(script)
    for extra, names in OF_EXTRAS.items():
        requirements = (f"aioprefetch[{extra}]" if extra else "aioprefetch",)
        scripts = found.setdefault(requirements, Environment(requirements=requirements)).scripts
        for name in names:
            arguments = ("-W", "error", str(paths[name]))
            scripts.append(Script(name=name, arguments=arguments, shown=SHOWN[name]))
    for extra, (code, shown) in CHECKS.items():
        requirements = (f"aioprefetch[{extra}]",)
        scripts = found.setdefault(requirements, Environment(requirements=requirements)).scripts
        scripts.append(Script(name="a check", arguments=("-W", "error", "-c", code), shown=shown))
    everything = Script(name="every room", arguments=("-c", CHECK_ALL), shown="rooms: ")
    return [*found.values(), Environment(requirements=("aioprefetch[all]",), scripts=[everything])]


def main(arguments: Sequence[str]) -> int:
    """Check the environments that are named, or all; 1 if one of them fails."""
    known = {environment.name: environment for environment in environments()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*known, []], default=[], metavar="EXTRA")
    chosen = [known[name] for name in parser.parse_args(arguments).names] or [*known.values()]
    use_java()
    status = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build_wheel(folder / "wheel")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            checks = {}
            for number, environment in enumerate(chosen):
                own = folder / str(number)
                own.mkdir()
                checks[environment.name] = pool.submit(check, environment, wheel, own)
            for name, future in checks.items():
                try:
                    line = future.result()
                except (Failed, subprocess.TimeoutExpired) as error:
                    status, line = 1, f"{name} FAILED: {error}"
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
