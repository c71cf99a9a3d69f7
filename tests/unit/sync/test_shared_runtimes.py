"""Files opened by URL share one runtime: connections, memory and statistics, while one is open and shortly after."""

import gc
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.sync.file import OPERATORS_MAX, KeptOperators
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.testing import FaultServer
from aioprefetch.testing.conformance.suite import checks
from tests.probes.calls import counted_calls
from tests.probes.programs import run_program

DATA = bytes(range(256)) * 64


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A server on the loop thread, which counts its connections."""
    server = FaultServer(dict.fromkeys(("k", "other"), DATA))
    ap.sync.run(server.__aenter__())
    yield server
    ap.sync.run(server.__aexit__(None, None, None))


def test_files_one_after_the_other_use_one_connection(server: FaultServer) -> None:
    seen = []
    for name in ("k", "other", "k", "other"):
        with ap.sync.open(f"{server.url}/{name}") as file:
            assert file.read() == DATA
        seen.append(file.operator.statistics["stream_read_opened"])
    assert server.connections == 1
    assert seen == [1, 2, 3, 4]


def test_files_at_once_share_one_budget(server: FaultServer) -> None:
    files = [ap.sync.open(f"{server.url}/k", block_bytes=1 << 16) for _ in range(20)]
    assert all(file.read() == DATA for file in files)
    runtimes = {id(ap.sync.run(runtime_of(file.operator))) for file in files}
    assert len(runtimes) == 1
    for file in files[1:]:
        file.close()
    assert files[0].read_at(0, 100) == DATA[:100]
    assert server.connections_open >= 1
    files[0].close()


async def runtime_of(operator: ap.Operator) -> object:
    """The runtime of the loop thread."""
    return operator.runtime()


def test_other_options_share_nothing(server: FaultServer) -> None:
    for options in ({}, {"memory_bytes": 1 << 26}, {"headers": {"X-Tenant": "a"}}, {"headers": {"X-Tenant": "b"}}):
        with ap.sync.open(f"{server.url}/k", **options) as file:
            assert file.read() == DATA
    assert server.connections == 4


def test_no_bytes_stay_in_memory_behind_the_last_file(server: FaultServer) -> None:
    with ap.sync.open(f"{server.url}/k") as file:
        assert file.read() == DATA

    async def used_bytes() -> int:
        return file.operator.runtime().budget.used_bytes

    assert ap.sync.run(used_bytes()) == 0


def test_connections_close_when_no_file_follows(server: FaultServer) -> None:
    operators = KeptOperators(loop_thread(), kept_seconds=0.0)

    async def use() -> None:
        operator = ap.Operator.from_uri(f"{server.url}/")
        assert await operator.read("k") == DATA
        await operators.take_over(operator)
        await server.wait_until_idle()
        assert operator.statistics["transport_connections_open"] == 0

    ap.sync.run(use())


def test_few_stores_are_kept(server: FaultServer) -> None:
    """The least recently used one is closed."""
    for number in range(OPERATORS_MAX + 4):
        with ap.sync.open(f"{server.url}/k", headers={"X-Tenant": str(number)}) as file:
            assert file.read() == DATA
    ap.sync.run(server.wait_until_idle(connections_max=OPERATORS_MAX))


@checks("reliability:C33")
def test_a_process_ends_with_kept_connections_and_after_a_fork() -> None:
    """Without a warning, in the parent and in the child, which opens the same URL over a connection of its own."""
    source = """
import os
import aioprefetch as ap
from aioprefetch.testing import FaultServer
server = FaultServer({"k": bytes(1000)})
ap.sync.run(server.__aenter__())
with ap.sync.open(f"{server.url}/k") as file:
    assert len(file.read()) == 1000
pid = os.fork()
if not pid:
    with ap.sync.open(f"{server.url}/k") as file:
        assert len(file.read()) == 1000
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
with ap.sync.open(f"{server.url}/k") as file:
    assert len(file.read()) == 1000
print(server.connections)
ap.sync.run(server.__aexit__(None, None, None))
"""
    assert run_program(source).split() == ["2"]


# --- recipes of URLs --------------------------------------------------------------------------------------------------

KEYS: dict[str, Any] = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "canary5ecret", "region": "eu-west-1"}


@pytest.fixture
def endpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FaultServer]]:
    """Two stores, each with its number in the object ``bucket/k``, and no settings of AWS but those of a test."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    servers = [FaultServer({"bucket/k": f"store {number}".encode()}) for number in range(2)]
    for server in servers:
        ap.sync.run(server.__aenter__())
    yield servers
    for server in servers:
        ap.sync.run(server.__aexit__(None, None, None))


def content(**options: Any) -> bytes:
    """What is in the object of the store that the recipe of its URL leads to."""
    with ap.sync.open("s3://bucket/k", **options) as file:
        data: bytes = file.read()
    return data


@pytest.mark.cost
@pytest.mark.parametrize("options", [{}, KEYS, {**KEYS, "endpoint_url": "http://127.0.0.1:9"}], ids=len)
def test_a_url_that_was_open_costs_few_calls(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """For a function that opens an object for each row. Nothing is sent before the first read."""
    monkeypatch.setenv("AIOPREFETCH_MEMORY_BYTES", "64MiB")
    for url in ("s3://bucket/k", "http://127.0.0.1:9/folder/k", "file:///folder/k"):
        given = options if url.startswith("s3") else {}
        ap.sync.open(url, **given).close()
        with counted_calls(of_package=True) as calls:
            file = ap.sync.open(url, **given)
        file.close()
        assert calls.number <= 150, url


def test_a_changed_variable_is_seen(endpoints: list[FaultServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ours, one of AWS, and one that holds a key; and what was there before is found again."""
    first, second = (server.url for server in endpoints)
    for variable in ("AIOPREFETCH_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        for url, expected in ((first, b"store 0"), (first, b"store 0"), (second, b"store 1"), (first, b"store 0")):
            monkeypatch.setenv(variable, url)
            assert content(**KEYS) == expected
        monkeypatch.delenv(variable)
    keys = {**KEYS, "secret_access_key": "env:OWN_SECRET", "endpoint_url": first}
    runtimes = []
    for secret in ("one", "one", "two", "one"):
        monkeypatch.setenv("OWN_SECRET", secret)
        with ap.sync.open("s3://bucket/k", **keys) as file:
            runtimes.append(ap.sync.run(runtime_of(file.operator)))
            file.read()
    assert len(set(map(id, runtimes))) == 2
    assert runtimes[0] is runtimes[1] is runtimes[3]


def test_a_changed_file_of_profiles_is_seen(
    endpoints: list[FaultServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configuration = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(configuration))
    for number in (0, 0, 1, 0):
        written = tmp_path / "written"
        written.write_text(f"[profile work]\nendpoint_url = {endpoints[number].url}\n")
        written.replace(configuration)
        assert content(**KEYS, profile="work") == f"store {number}".encode()


def test_what_is_kept_of_a_url_shows_no_secret() -> None:
    """No text of a key stands in any collection of this process when the file is closed."""
    secret = secrets.token_hex(16)
    ap.sync.open("s3://bucket/k", **{**KEYS, "secret_access_key": secret}).close()
    gc.collect()
    for item in gc.get_objects():
        texts = [*item, *item.values()] if type(item) is dict else item if type(item) in (list, tuple) else ()
        assert not any(type(text) is str and secret in text for text in texts)
