"""What is cancelled or closed lets go of its connection at once, and its waiters hear of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from obstore.store import MemoryStore

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import Closed, ConditionNotMatch
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.values import ReadRequest
from tests.probes.programs import run_program
from tests.profile import chosen
from tests.stores.raw_server import eventually
from tests.unit.services.obspec.plain import GetOnly, Result
from tests.unit.services.obspec.stores import response, s3_store, serving

SECONDS_MAX = 30
REQUEST = ReadRequest(path="k", offset=0, size=1_000_000)


class Dripping:
    """A server that sends the beginning of a body, or nothing, and waits for the client to go away."""

    def __init__(self, head_comes: bool) -> None:
        self.head_comes = head_comes
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with contextlib.suppress(ConnectionError):  # The client may go with bytes unread, or before all are sent.
            if self.head_comes:
                bounds = "bytes 0-999999/1000000"
                writer.write(
                    response("206 x", Content_Range=bounds, Content_Length="1000000", ETag='"e"') + bytes(1000)
                )
                await writer.drain()
            self.asked.set()
            assert await reader.read(1) == b""
        self.gone.set()
        raise ConnectionError


async def gone(server: Dripping) -> None:
    """Wait until the client has hung up.

    obstore's threads may hold a response for a moment longer than we do, and give it up at the next call into obstore.
    """
    async with asyncio.timeout(SECONDS_MAX):
        while not server.gone.is_set():
            repr(MemoryStore())
            await asyncio.sleep(0)


async def test_a_cancelled_request_closes_its_connection() -> None:
    """While no response has come."""
    server = Dripping(head_comes=False)
    async with serving(server) as port, Operator.bare(ObspecStore(s3_store(port))) as op:
        task = asyncio.create_task(op.read("k"))
        await asyncio.wait_for(server.asked.wait(), SECONDS_MAX)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(server)


async def test_a_cancelled_body_closes_its_connection() -> None:
    """While it comes, and with the exception kept."""
    server = Dripping(head_comes=True)
    async with serving(server) as port, Operator.bare(ObspecStore(s3_store(port))) as op:
        task = asyncio.create_task(op.read("k", offset=0, size=1_000_000))
        await asyncio.wait_for(server.asked.wait(), SECONDS_MAX)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        await gone(server)
        assert caught.value.__traceback__ is not None


async def test_a_refused_answer_closes_its_connection() -> None:
    """Although its body has begun to come, and with the exception kept."""
    server = Dripping(head_comes=True)
    async with serving(server) as port, Operator.bare(ObspecStore(s3_store(port))) as op:
        with pytest.raises(ConditionNotMatch) as caught:
            await op.read("k", offset=0, size=1_000_000, if_match="another")
        await gone(server)
        assert caught.value.__traceback__ is not None


async def test_closing_the_operator_ends_a_read_that_waits() -> None:
    """Its reader hears of it, and is not cancelled."""
    server = Dripping(head_comes=True)
    async with serving(server) as port:
        op = Operator.bare(ObspecStore(s3_store(port)))
        sink = CollectSink()
        task = asyncio.create_task(op.accessor().read(REQUEST, sink))
        await eventually(lambda: sink.head is not None)
        await asyncio.wait_for(op.aclose(), SECONDS_MAX)
        with pytest.raises(Closed):
            await asyncio.wait_for(task, SECONDS_MAX)
        await gone(server)


async def test_a_closed_accessor_sends_nothing() -> None:
    """It belongs to a runtime that is over."""
    store = GetOnly()
    op = Operator.bare(ObspecStore(store))
    accessor = op.accessor()
    await op.aclose()
    with pytest.raises(Closed):
        await accessor.read(REQUEST, CollectSink())
    assert store.options == []


class Stubborn(Result):
    """Its stream fails when it is closed."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for chunk in self.chunks:
                yield chunk
        finally:
            self.closed += 1
            raise RuntimeError("not now")


async def test_a_stream_that_fails_to_close_harms_no_read() -> None:
    """The bytes are there."""
    store = GetOnly()

    def stubborn(result: Result) -> None:
        result.__class__ = Stubborn

    store.falsify = stubborn
    async with Operator.bare(ObspecStore(store)) as op:
        assert await op.read("k") == store.data
    assert [result.closed for result in store.results] == [1]


SHORT_PROCESS = """
import asyncio, tempfile
from obstore.store import LocalStore
from aioprefetch import Operator
from aioprefetch.services import ObspecStore

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with Operator(ObspecStore(LocalStore(folder))) as operator:
            await operator.write("k", b"bytes")
            await operator.delete("k")

asyncio.run(main())
"""


def test_a_process_that_ends_after_its_last_call_ends_well() -> None:
    """Without a pause at exit one in ten aborts on a busy machine: a thread of obstore's outlives the interpreter."""
    for _ in range(chosen(quick=2, full=10)):
        run_program(SHORT_PROCESS)
