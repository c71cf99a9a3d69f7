"""Each service counts its requests, how many failed, and how long the others took until their head was there."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from aioprefetch.errors import ConditionNotMatch, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.services import Fs, Http, Memory
from aioprefetch.testing import FaultServer

DATA = b"0123456789"

OpenStore = Callable[[Path], AbstractAsyncContextManager[Operator]]


@asynccontextmanager
async def in_memory(path: Path) -> AsyncIterator[Operator]:
    """An object in memory."""
    async with Operator.bare(Memory()) as operator:
        await operator.write("k", DATA)
        yield operator


@asynccontextmanager
async def on_disk(path: Path) -> AsyncIterator[Operator]:
    """A file."""
    (path / "k").write_bytes(DATA)
    async with Operator.bare(Fs(str(path))) as operator:
        yield operator


@asynccontextmanager
async def on_a_server(path: Path) -> AsyncIterator[Operator]:
    """An object of an HTTP server."""
    async with FaultServer({"k": DATA}) as server, Operator.bare(Http(server.url)) as operator:
        yield operator


@pytest.mark.parametrize("store", [in_memory, on_disk, on_a_server], ids=lambda store: store.__name__)
async def test_gets_are_counted_and_timed(store: OpenStore, tmp_path: Path) -> None:
    """What is not there is a failure; that nothing has changed is a response."""
    name = "action_http_get_request"
    async with store(tmp_path) as operator:
        for _ in range(2):
            assert await operator.read("k", size=3) == DATA[:3]
        counts = operator.statistics
        assert (counts[name], counts[f"{name}.failures"]) == (2, 0)
        assert 0 <= counts[f"{name}.min"] <= counts[f"{name}.mean"] <= counts[f"{name}.max"]
        with pytest.raises(NotFound):
            await operator.read("missing")
        async with operator.reader("k") as reader:
            await reader.ensure_size()
            with pytest.raises(ConditionNotMatch):
                await operator.read("k", if_none_match=reader.etag)
        counts = operator.statistics
        assert (counts[name], counts[f"{name}.failures"]) == (5, 1)


@pytest.mark.parametrize("store", [in_memory, on_disk], ids=lambda store: store.__name__)
async def test_listings_are_timed(store: OpenStore, tmp_path: Path) -> None:
    name = "object_list_request"
    async with store(tmp_path) as operator:
        assert [entry.path async for entry in operator.list()] == ["k"]
        counts = operator.statistics
        assert (counts[name], counts[f"{name}.failures"]) == (1, 0)
        assert counts[f"{name}.min"] == counts[f"{name}.max"]
