"""Files opened by URL share one runtime: connections, memory and statistics, while one is open and shortly after."""

from collections.abc import Iterator

import pytest

import aioprefetch as ap
from aioprefetch.sync.file import OPERATORS_MAX, KeptOperators
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.testing import FaultServer
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


def test_a_process_ends_with_kept_connections_and_after_a_fork() -> None:
    """Without a warning, in the parent and in the child."""
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
    with ap.sync.open("memory://child/k", size=0) as file:
        file.seek(0)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
with ap.sync.open(f"{server.url}/k") as file:
    assert len(file.read()) == 1000
print(server.connections)
ap.sync.run(server.__aexit__(None, None, None))
"""
    assert run_program(source).split() == ["1"]
