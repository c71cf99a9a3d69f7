"""A cancelled read or stat closes its connection at once, wherever it was."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import StatRequest
from tests.profile import chosen
from tests.unit.services.http.reading import DATA, Servers, accessor_for, read


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel a task and see the cancellation come through unchanged."""
    task.cancel("the caller's own words")
    with pytest.raises(asyncio.CancelledError):
        await task


HANGING = [
    ("before the head", Fault(hang_before_head=True)),
    ("in the body", Fault(hang_after_bytes=50)),
    ("in a body of unknown length", Fault(hang_after_bytes=100, chunked=True, ignore_range=True)),
    ("while it is skipped", Fault(hang_after_bytes=100, ignore_range=True)),
    ("in the text of an error", Fault(status=500, hang_after_bytes=10)),
]


@checks("reliability:C02")
@pytest.mark.parametrize("fault", [pytest.param(fault, id=where) for where, fault in HANGING])
async def test_a_cancelled_read_closes_its_connection(servers: Servers, runtime: Runtime, fault: Fault) -> None:
    """While the server is silent."""
    server = await servers.start(script=[Rule(fault=fault)])
    accessor = accessor_for(server, runtime)
    task = asyncio.ensure_future(read(accessor, offset=500, size=100))
    await server.wait_for_requests(1)
    for _ in range(20):
        await asyncio.sleep(0)
    await cancelled(task)
    await server.wait_until_idle()
    assert await read(accessor, offset=500, size=100) == DATA[500:600]


async def test_a_cancelled_stat_closes_its_connection(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start(script=[Rule(fault=Fault(hang_before_head=True), method="HEAD")])
    task = asyncio.ensure_future(accessor_for(server, runtime).stat(StatRequest(path="k")))
    await server.wait_for_requests(1)
    await cancelled(task)
    await server.wait_until_idle()


async def test_a_cancelled_redirect_closes_its_connection(servers: Servers, runtime: Runtime) -> None:
    """At the second server."""
    other = await servers.start(script=[Rule(fault=Fault(hang_before_head=True))])
    server = await servers.start(script=[Rule(fault=Fault(status=302, location=f"{other.url}/base/k"))])
    task = asyncio.ensure_future(read(accessor_for(server, runtime)))
    await other.wait_for_requests(1)
    await cancelled(task)
    await other.wait_until_idle()


async def read_part(accessor: Accessor) -> object:
    return await read(accessor, offset=10, size=1000)


async def read_unsized(accessor: Accessor) -> object:
    return await read(accessor, "unsized")


async def read_redirected(accessor: Accessor) -> object:
    return await read(accessor, "redirected")


async def read_missing(accessor: Accessor) -> object:
    with pytest.raises(errors.NotFound):
        await read(accessor, "missing")
    return None


async def stat(accessor: Accessor) -> object:
    return await accessor.stat(StatRequest(path="k"))


async def stat_by_get(accessor: Accessor) -> object:
    return await accessor.stat(StatRequest(path="headless"))


@pytest.mark.parametrize("operation", [read_part, read_unsized, read_redirected, read_missing, stat, stat_by_get])
async def test_cancelled_after_any_number_of_turns(
    servers: Servers, operation: Callable[[Accessor], Awaitable[object]]
) -> None:
    """From before the first step to after the last one: nothing stays open once the runtime is closed."""
    objects = {f"base/{key}": DATA for key in ("k", "unsized", "there", "headless")}
    rules = [
        Rule(fault=Fault(chunked=True, ignore_range=True), key="base/unsized", times=None),
        Rule(fault=Fault(status=302, location="/base/there"), key="base/redirected", times=None),
        Rule(fault=Fault(status=405), key="base/headless", method="HEAD", times=None),
    ]
    server = await servers.start(objects, rules)
    finished = False
    for turns in range(0, 400, chosen(quick=2, full=1)):
        finished = await cancel_after(server, operation, turns)
        if finished:
            break
    assert finished


async def cancel_after(server: FaultServer, operation: Callable[[Accessor], Awaitable[object]], turns: int) -> bool:
    """Whether the operation was through before it was cancelled."""
    runtime = Runtime(RuntimeOptions())
    try:
        task = asyncio.ensure_future(operation(accessor_for(server, runtime)))
        for _ in range(turns):
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert finished or task.cancelled()
    finally:
        await runtime.aclose()
    await server.wait_until_idle()
    return finished
