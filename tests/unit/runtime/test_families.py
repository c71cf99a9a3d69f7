"""Families: which operators share connections, memory and statistics, and when these are closed."""

import asyncio
import gc
import os
import pickle
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.operator.shared import family_key, shared_copy
from aioprefetch.runtime.family import KEPT_SECONDS, RECIPES_MAX, RUNTIMES_MAX
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import FaultServer, run_virtual
from aioprefetch.testing.conformance.suite import checks

DATA = bytes(range(256)) * 64


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    """A server that counts its connections."""
    async with FaultServer({"k": DATA}) as server:
        yield server


def operator_at(server: FaultServer, **options: Any) -> ap.Operator:
    """An operator on it."""
    return ap.Operator.from_uri(f"{server.url}/", **options)


def twin_of(operator: ap.Operator) -> ap.Operator:
    """The shared twin of an operator, which must have one."""
    twin = shared_copy(operator)
    assert twin is not None
    return twin


async def read(operator: ap.Operator) -> None:
    """One read."""
    assert await operator.read("k", size=100) == DATA[:100]


Copy = Callable[[ap.Operator], ap.Operator]
COPIES: dict[str, Copy] = {
    "unpickled": lambda operator: pickle.loads(pickle.dumps(operator)),
    "found by its recipe": lambda operator: twin_of(ap.Operator(operator.service)),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
async def test_copies_share_one_runtime_until_the_last_is_closed(server: FaultServer, copy: Copy) -> None:
    original = operator_at(server)
    first, second, third = (copy(original) for _ in range(3))
    for one in (first, second, third, first):
        await read(one)
    runtime = third.runtime()
    assert first.runtime() is second.runtime() is runtime
    assert server.connections == 1
    assert first.statistics["transport_connections_open"] == 1
    async with first.reader("k") as reader:
        assert await reader.read_at(0, 10) == DATA[:10]
        await first.aclose()
        await second.aclose()
        await second.aclose()
        assert await reader.read_at(9000, 10) == DATA[9000:9010]
        await read(third)
        assert third.runtime() is runtime
        assert not runtime.closed
    await first.aclose()  # the reader has used it again
    await third.aclose()
    await server.wait_until_idle()
    assert first.statistics == third.statistics
    assert third.statistics["action_http_get_request"] >= 5


async def test_a_copy_shares_with_its_original(server: FaultServer) -> None:
    original = operator_at(server)
    await read(original)
    copy = pickle.loads(pickle.dumps(original))
    await read(copy)
    assert copy.runtime() is original.runtime()
    assert copy.service is original.service
    await original.aclose()
    await read(copy)
    assert server.connections == 1
    await copy.aclose()
    await server.wait_until_idle()


async def test_operators_of_two_calls_share_nothing(server: FaultServer) -> None:
    async with operator_at(server) as one, operator_at(server) as other:
        await read(one)
        await read(other)
        assert one.runtime() is not other.runtime()
        assert server.connections == 2


async def test_a_derived_operator_closes_alone_and_its_origin_closes_both(server: FaultServer) -> None:
    base = operator_at(server)
    derived = base.layer(ap.layers.RetryLayer(attempts_max=2))
    last = derived.layer(ap.layers.TimeoutLayer(timeout_seconds=5))
    for one in (base, derived, last):
        await read(one)
    await derived.aclose()
    await read(base)
    assert server.connections == 1
    await read(last)
    await base.aclose()
    await server.wait_until_idle()


async def test_operators_that_are_collected_leave_nothing(server: FaultServer) -> None:
    """The last one that is collected closes the connections, even while a family member lives that uses none."""
    unused = operator_at(server)
    for _ in range(3):
        await read(pickle.loads(pickle.dumps(unused)))
        await read(unused.layer(ap.layers.RetryLayer()))
    gc.collect()
    await server.wait_until_idle()
    assert unused.statistics["transport_connections_open"] == 0
    assert unused.statistics["action_http_get_request"] == 6


@checks("reliability:C18")
async def test_a_thread_with_a_loop_of_its_own_has_a_runtime_of_its_own(server: FaultServer) -> None:
    operator = operator_at(server)
    await read(operator)
    copy = pickle.loads(pickle.dumps(operator))

    def elsewhere() -> None:
        asyncio.run(read(copy))  # Its loop ends without aclose, and with it the runtime.

    await asyncio.to_thread(elsewhere)
    await server.wait_until_idle(connections_max=1)
    await read(operator)
    assert server.connections == 2
    await operator.aclose()
    await server.wait_until_idle()


@checks("reliability:C08")
async def test_a_close_that_is_cancelled_closes(server: FaultServer) -> None:
    operator = operator_at(server)
    await read(operator)
    closing = asyncio.create_task(operator.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    await server.wait_until_idle()


async def test_copies_share_slots_and_the_memory_of_one_budget(server: FaultServer) -> None:
    """Two limits of 64 would be 128 requests, and two budgets twice the memory."""
    original = operator_at(server, concurrency=3)
    copies = [pickle.loads(pickle.dumps(original)) for _ in range(4)]
    await asyncio.gather(*(read(one) for one in copies for _ in range(8)))
    assert server.connections <= 3
    assert len({id(one.layers[3]) for one in copies}) == 1
    assert len({id(one.runtime().budget) for one in copies}) == 1
    for one in copies:
        await one.aclose()


# --- which recipes are equal --------------------------------------------------------------------------------------


def s3(**options: Any) -> ap.Operator:
    """An operator on S3 that is never used."""
    return ap.Operator.from_uri("s3://bucket", region="x", endpoint_url="http://127.0.0.1:1", **options)


def key_of(operator: ap.Operator) -> object:
    """The key by which it finds its family."""
    return family_key(operator.service, operator.layers, operator.options)


def test_equal_recipes_have_one_key_and_others_another() -> None:
    keys = {"access_key_id": "AK", "secret_access_key": "SK"}
    assert key_of(s3(**keys)) == key_of(s3(**keys))
    others = (
        {**keys, "secret_access_key": "other"},
        {**keys, "access_key_id": "other"},
        {**keys, "session_token": "T"},
        {**keys, "memory_bytes": 1 << 26},
        {**keys, "attempts_max": 2},
        {**keys, "proxies": {"http": "http://127.0.0.1:2"}},
        {"anonymous": True},
    )
    assert len({key_of(s3(**one)) for one in ({**keys}, *others)}) == 1 + len(others)
    assert "SK" not in repr(key_of(s3(**keys)))


def test_another_principal_is_another_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in variables, named by ``env:`` or found: a variable that changes does not reach the old family."""
    for options in ({"access_key_id": "env:KEY_ID", "secret_access_key": "env:SECRET"}, {}):
        found = []
        for name in ("one", "two", "one"):
            for variable in ("KEY_ID", "SECRET", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.setenv(variable, f"{variable} {name}")
            found.append((key_of(s3(**options)), pickle.loads(pickle.dumps(s3(**options)))))
        assert found[0][0] == found[2][0] != found[1][0]


def test_an_unpickled_copy_for_another_principal_is_of_another_family(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = s3()
    pickled, copies = b"", []
    for name in ("one", "two", "one"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
        pickled = pickled or pickle.dumps(operator)
        copies.append(pickle.loads(pickled))

    async def runtimes() -> list[object]:
        return [copy.runtime() for copy in copies]

    first, other, again = asyncio.run(runtimes())
    assert first is again is not other


class Plain(ap.Layer):
    """A layer without __eq__: two of them may do different things."""

    def wrap(self, inner: ap.Accessor, runtime: Any) -> ap.Accessor:
        return inner


class Sized(Plain):
    """A layer that says when it is equal."""

    def __init__(self, size: int, act: object = None) -> None:
        self.size, self.act = size, act

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sized) and other.size == self.size

    def __hash__(self) -> int:
        return hash(self.size)


def test_what_cannot_be_compared_is_never_shared() -> None:
    base = ap.Operator.from_uri("memory://shared")
    assert shared_copy(base.layer(Plain())) is None
    assert shared_copy(base.layer(ap.layers.LruCacheLayer(cache=base))) is None
    assert shared_copy(base.layer(Sized(1))) is not None
    assert key_of(base.layer(Sized(1))) == key_of(base.layer(Sized(1))) != key_of(base.layer(Sized(2)))


async def test_a_family_is_forgotten_with_its_operators() -> None:
    first = twin_of(ap.Operator.from_uri("memory://forgotten"))
    await first.write("k", b"x")
    assert await first.read("k") == b"x"
    assert twin_of(ap.Operator.from_uri("memory://forgotten")).statistics == first.statistics
    assert any(first.statistics.values())
    await first.aclose()
    del first
    gc.collect()
    again = twin_of(ap.Operator.from_uri("memory://forgotten"))
    assert not any(again.statistics.values())


async def test_a_fork_starts_without_its_parent_and_harms_it_not(server: FaultServer) -> None:
    """The child drops operators of its parent, whose connections go on."""
    operator = operator_at(server)
    copy = pickle.loads(pickle.dumps(operator))
    await read(copy)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            del copy
            gc.collect()
            status = len(operator.statistics) and int(operator.statistics["transport_connections_open"])
        finally:
            os._exit(status)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await read(copy)
    assert server.connections == 1
    await copy.aclose()
    await server.wait_until_idle()


async def test_unpickled_copies_share_one_stack_and_first_requests(server: FaultServer) -> None:
    original = operator_at(server)
    await read(original)
    pickled = pickle.dumps(original)
    copies = [pickle.loads(pickled) for _ in range(10)]
    assert {id(copy.accessor()) for copy in copies} == {id(original.accessor())}

    async def read_new(operator: ap.Operator) -> bytes:
        async with operator.reader("k") as reader:
            return await reader.read_at(0, 3)

    before = len(server.requests)
    await asyncio.gather(*map(read_new, copies))
    assert len(server.requests) == before + 1
    await asyncio.gather(*(operator.aclose() for operator in [original, *copies]))


@checks("reliability:C20")
async def test_an_operator_that_alternates_between_loops_keeps_one_stack_on_each(server: FaultServer) -> None:
    operator = operator_at(server)
    here = operator.accessor()

    async def use_elsewhere() -> None:
        operator.accessor()
        await operator.aclose()

    await asyncio.to_thread(asyncio.run, use_elsewhere())
    assert operator.accessor() is here
    await operator.aclose()


async def test_closing_a_runtime_ends_it_for_operators_that_hold_it(server: FaultServer) -> None:
    operator = operator_at(server)
    await read(operator)
    runtime = operator.runtime()
    await runtime.aclose()
    assert runtime.closed
    assert not runtime.holders
    await server.wait_until_idle()
    await read(operator)
    assert operator.runtime() is not runtime
    await operator.aclose()


SURROUNDINGS = [
    ("s3", "AWS_CA_BUNDLE", "/one.pem", "/two.pem"),
    ("s3", "AWS_USE_FIPS_ENDPOINT", "false", "true"),
    ("s3", "AWS_USE_DUALSTACK_ENDPOINT", "", "true"),
    ("s3", "HTTPS_PROXY", "http://user:c4nary@h:1", "http://user:other@h:1"),
    ("s3", "no_proxy", "", "bucket.example"),
    ("s3", "SSL_CERT_FILE", "/one.pem", "/two.pem"),
    ("http", "https_proxy", "", "http://h:1"),
    ("http", "SSL_CERT_DIR", "/one", "/two"),
]


@pytest.mark.parametrize(("scheme", "variable", "before", "after"), SURROUNDINGS)
def test_other_surroundings_are_another_family(
    monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str, before: str, after: str
) -> None:
    """Connections that were made for one proxy, authority or kind of endpoint serve equal surroundings alone."""

    def key() -> object:
        return key_of(s3() if scheme == "s3" else ap.Operator.from_uri("https://host/base/"))

    keys = []
    for value in (before, after, before):
        monkeypatch.setenv(variable, value)
        keys.append(key())
    assert keys[0] == keys[2] != keys[1]
    assert "c4nary" not in repr(keys)


@pytest.mark.cost
async def test_a_runtime_that_ends_while_it_is_taken_is_not_given_out(server: FaultServer) -> None:
    """The collector may take the last other holder at any line: here at the first one of taking a hold."""
    others = [operator_at(server)]
    operator = pickle.loads(pickle.dumps(others[0]))
    await read(others[0])

    def collect(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "hold" and others:
            others.clear()
            gc.collect()

    sys.setprofile(collect)
    try:
        runtime = operator.runtime()
    finally:
        sys.setprofile(None)
    assert others == []
    assert not runtime.closed
    await read(operator)
    await operator.aclose()
    await server.wait_until_idle()


def test_a_family_keeps_few_recipes_of_copies() -> None:
    """Each derived operator that is pickled leaves a recipe, which a worker that gets many of them must not keep."""
    operator = ap.Operator.from_uri("memory://many")
    layers = []
    for _ in range(RECIPES_MAX + 50):
        layer = Plain()
        layers.append(weakref.ref(layer))
        pickle.loads(pickle.dumps(operator.layer(layer)))
        del layer
    gc.collect()
    assert sum(one() is not None for one in layers) <= RECIPES_MAX


# --- copies of an operator of another process ---------------------------------------------------------------------


def pickled_elsewhere(**options: Any) -> bytes:
    """The pickle of an operator that this process does not have any more, as a worker gets it."""
    pickled = pickle.dumps(ap.Operator.from_uri("memory://elsewhere", **options))
    gc.collect()
    return pickled


async def use_once(pickled: bytes) -> Runtime:
    """Unpickle, use and drop a copy, as a task does; the runtime that it used."""
    copy: ap.Operator = pickle.loads(pickled)
    await copy.write("k", DATA)
    assert await copy.read("k") == DATA
    return copy.runtime()


async def collected() -> None:
    """Drop what is not used, and let the loop hear of it."""
    gc.collect()
    await asyncio.sleep(0)


async def test_tasks_in_turn_that_unpickle_and_drop_a_copy_use_one_connection(server: FaultServer) -> None:
    pickled = pickle.dumps(operator_at(server))
    gc.collect()
    counts = []
    for _ in range(5):
        copy = pickle.loads(pickled)
        await read(copy)
        counts.append(copy.statistics["action_http_get_request"])
        del copy
        await collected()
    assert server.connections == 1
    assert counts == [1, 2, 3, 4, 5]
    last = pickle.loads(pickled)
    await read(last)
    await last.aclose()  # A copy that is closed leaves nothing behind.
    await server.wait_until_idle()
    assert server.connections == 1


def test_what_copies_left_behind_ends_some_seconds_after_the_last() -> None:
    async def run() -> None:
        pickled = pickled_elsewhere()
        runtime = await use_once(pickled)
        for _ in range(3):
            await collected()
            assert runtime.budget.used_bytes == 0
            await asyncio.sleep(KEPT_SECONDS - 1)
            assert await use_once(pickled) is runtime
        copy = pickle.loads(pickled)
        await copy.exists("k")
        await asyncio.sleep(2 * KEPT_SECONDS)  # A copy in use is not cut off.
        assert copy.runtime() is runtime
        assert not runtime.closed
        del copy
        await collected()
        await asyncio.sleep(KEPT_SECONDS + 1)
        assert runtime.closed
        assert await use_once(pickled) is not runtime

    run_virtual(run)


def test_of_many_runtimes_that_copies_left_behind_the_oldest_ends() -> None:
    async def run() -> None:
        runtimes = []
        for number in range(RUNTIMES_MAX + 3):
            runtimes.append(await use_once(pickled_elsewhere(memory_bytes=(64 + number) << 20)))
            await collected()
        await collected()
        assert [runtime.closed for runtime in runtimes] == [True] * 3 + [False] * RUNTIMES_MAX

    run_virtual(run)


def test_a_loop_that_ends_takes_what_copies_left_behind_with_it() -> None:
    pickled = pickled_elsewhere()
    runtimes = [asyncio.run(use_once(pickled)) for _ in range(RUNTIMES_MAX + 3)]
    gc.collect()
    assert all(runtime.closed for runtime in runtimes)
