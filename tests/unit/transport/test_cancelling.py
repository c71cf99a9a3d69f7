"""Cancelled at every point at which it waits: the connection is closed, its place is free, the next request works."""

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content
from aioprefetch.transport.pool import HttpClient
from tests.stores.raw_server import Peer, RawServer, client_of, eventually, get, reply
from tests.stores.wire import EndTaker, PausingTaker

LARGE = content(300_000)
TURNS_MAX = 60
Action = Callable[[HttpClient, RawServer], Coroutine[Any, Any, None]]


@types.coroutine
def cancelled_at(call: Coroutine[Any, Any, None], suspension: int) -> Generator[Any, Any, None]:
    """Run a call, and cancel the task that runs it when it is suspended for the n-th time."""
    steps, count, sent, error = call.__await__(), 0, None, None
    while True:
        try:
            waits_for = steps.throw(error) if error is not None else steps.send(sent)
        except StopIteration:
            return
        count += 1
        sent, error = None, None
        if count == suspension:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            sent = yield waits_for
        except BaseException as caught:
            error = caught


async def fetch(client: HttpClient, server: RawServer) -> None:
    assert await get(client, server.target()) == LARGE


async def fetch_with_pauses(client: HttpClient, server: RawServer) -> None:
    taker = PausingTaker(50_000, resumes_after=1)
    await client.fetch(server.target(), b"", taker)
    assert taker.content() == LARGE


HANGS = {"responses": None, "hangs before the head": 0, "hangs in the head": 20, "hangs in the body": 150_000}


@asynccontextmanager
async def served(hangs_after: int | None, *, is_warm: bool) -> AsyncIterator[tuple[HttpClient, RawServer]]:
    """A client with one place, and a server that hangs; the last request of a test is answered all the same."""

    async def handle(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            if hangs_after is None or b"/k" not in request:
                await peer.send(reply(LARGE))
            else:
                await peer.send(reply(LARGE)[:hangs_after])
                await peer.gone()
                return

    async with RawServer(handle) as server, client_of(connections_max=1) as client:
        if is_warm:
            await get(client, server.target("/warm"))
        yield client, server


async def check(client: HttpClient, server: RawServer) -> None:
    """The one place is free, or an idle connection has it that can be used."""
    await eventually(lambda: client.snapshot().open == client.snapshot().idle)
    await eventually(lambda: server.open == client.snapshot().open)
    async with asyncio.timeout(5):
        assert await get(client, server.target("/after")) == LARGE
    assert client.snapshot().open == 1


@checks("reliability:C01")
@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "kept"])
@pytest.mark.parametrize("hangs", HANGS)
@pytest.mark.parametrize("action", [fetch, fetch_with_pauses])
async def test_cancelled_at_every_suspension(action: Action, hangs: str, is_warm: bool) -> None:
    suspension = 0
    is_over = False
    while not is_over:
        suspension += 1
        async with served(HANGS[hangs], is_warm=is_warm) as (client, server):
            task = asyncio.ensure_future(run(action, client, server, suspension))
            await asyncio.wait([task], timeout=None if HANGS[hangs] is None else 0.1)
            is_over = not task.cancelled()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            await check(client, server)
    assert suspension >= 2


async def run(action: Action, client: HttpClient, server: RawServer, suspension: int) -> None:
    await cancelled_at(action(client, server), suspension)


@pytest.mark.parametrize("is_warm", [False, True], ids=["new", "kept"])
@pytest.mark.parametrize("hangs", ["responses", "hangs in the body"])
@pytest.mark.parametrize("action", [fetch, fetch_with_pauses])
async def test_cancelled_after_every_turn_of_the_loop(action: Action, hangs: str, is_warm: bool) -> None:
    """What is awaited is then in every state, a connection that has just been made included."""
    for turns in range(TURNS_MAX):
        async with served(HANGS[hangs], is_warm=is_warm) as (client, server):
            task = asyncio.ensure_future(action(client, server))
            for _ in range(turns):
                await asyncio.sleep(0)
            is_over = task.done()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            await check(client, server)
            if is_over:
                break


async def test_cancelled_while_waiting_for_a_place() -> None:
    async with served(0, is_warm=False) as (client, server):
        first = asyncio.ensure_future(fetch(client, server))
        await eventually(lambda: server.requests == 1)
        others = [asyncio.ensure_future(fetch(client, server)) for _ in range(5)]
        await eventually(lambda: client.snapshot().waiting == 5)
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        assert client.snapshot().waiting == 0
        assert not first.done()
        first.cancel()
        await asyncio.wait([first])
        await check(client, server)


async def is_cancelled_at_its_end(client: HttpClient, server: RawServer, turns: int) -> bool:
    taker = EndTaker(lambda: task.cancel(), turns=turns)
    task = asyncio.ensure_future(client.fetch(server.target(), b"", taker))
    await asyncio.wait([task])
    return task.cancelled()


@checks("reliability:C07")
async def test_cancelled_together_with_its_end() -> None:
    """With the last byte and in the turns after it: nothing hangs, whether the response or the cancellation wins."""
    async with served(None, is_warm=True) as (client, server):
        for _ in range(5):
            for turns in range(4):
                assert await is_cancelled_at_its_end(client, server, turns) == (turns < 2), turns
                await check(client, server)
