"""Ctrl-C at each request of an append, before it is sent and after it was done: the old bytes or the new ones."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Request
from tests.stores.verb_layer import Forward, VerbLayer

OLD, NEW = b"old", b"old and new"


class InterruptLayer(VerbLayer):
    """Interrupts the process at a request, which waits from then on."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.requests = at, after, 0

    async def around(self, request: Request, forward: Forward) -> Any:
        number, self.requests = self.requests, self.requests + 1
        if number != self.at:
            return await forward(request)
        result = await forward(request) if self.after else None
        os.kill(os.getpid(), signal.SIGINT)
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            if abort := getattr(result, "abort", None):  # A layer that keeps a body ends it.
                await abort()


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """An interrupt is what Python makes of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@checks("reliability:W18", "reliability:W43")
@pytest.mark.parametrize("where", ["memory", "files"])
@pytest.mark.parametrize("after", [False, True])
def test_an_append_is_interrupted_at_every_request(tmp_path: Path, where: str, after: bool) -> None:
    for at in range(20):
        op = Operator.from_uri(tmp_path / str(at)) if where == "files" else Operator(ap.services.Memory())
        layer = InterruptLayer(at, after=after)
        fs, looking = AioPrefetchFileSystem(op.layer(layer)), AioPrefetchFileSystem(op)
        looking.pipe("a", OLD)
        is_interrupted = False
        try:
            with fs.open("a", "ab") as file:
                file.write(NEW.removeprefix(OLD))
        except KeyboardInterrupt:
            is_interrupted = True
        found = looking.cat("a")
        fs.close()
        looking.close()
        assert is_interrupted == (layer.requests > at)
        assert found in (OLD, NEW)
        assert where == "memory" or os.listdir(tmp_path / str(at)) == ["a"]
        if not is_interrupted:
            assert at > 1
            assert found == NEW
            return
    raise AssertionError("it was never carried out to its end")
