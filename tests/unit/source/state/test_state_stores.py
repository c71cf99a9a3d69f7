"""Stores that ignore conditions of writes: noticed when a state is made, then a lock object, and never a hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.accessor.wrapped import WrappedAccessor
from aioprefetch.errors import StateConflict
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.client import S3Client
from aioprefetch.source.cursor import TailAndSweep
from aioprefetch.source.state import SourceState
from aioprefetch.source.state.conditions import Conditions, probe
from aioprefetch.values import ListPage, ListRequest, Metadata, WriteRequest
from tests.unit.source.state.stores import IDENTITY, SMALL, Crash, CrashLayer, IgnoringLayer, add, memory, opened


@pytest.mark.parametrize("creates", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
async def test_the_probe_finds_what_is_ignored(creates: bool, replaces: bool) -> None:
    operator = memory().layer(IgnoringLayer(creates=not creates, replaces=not replaces))
    found = await probe(operator, "state/")
    # What is written without a condition changes the version that the other probe asks for.
    assert found == Conditions(creates, replaces and creates)
    assert [entry async for entry in operator.list("state/", recursive=True)] == []


@pytest.mark.parametrize("ignoring", [IgnoringLayer(), IgnoringLayer(replaces=False), IgnoringLayer(creates=False)])
async def test_where_conditions_are_ignored_a_lock_object_keeps_writers_apart(
    ignoring: IgnoringLayer, caplog: pytest.LogCaptureFixture
) -> None:
    operator = memory().layer(ignoring)
    with caplog.at_level(logging.WARNING):
        older = await opened(operator)
    assert "ignores conditions of writes" in caplog.text
    assert "never start two queries on it at once" in caplog.text
    await add(older, "a", "b")
    await older.committed(1)
    await older.compact()
    await add(older, "c")
    await older.committed(2)
    newer = await opened(operator)
    with pytest.raises(StateConflict):
        await older.compact()
    with pytest.raises(StateConflict):
        await add(older, "d")
    await add(newer, "e")
    await newer.committed(4)
    await newer.compact()
    again = await opened(operator)
    assert set(await again.known.find(list("abcde"))) == set("abce")


async def test_a_lock_of_a_writer_that_was_killed_is_taken_over() -> None:
    base = memory().layer(IgnoringLayer())
    for at in range(0, 30, 3):
        with contextlib.suppress(Crash):
            state = await opened(base.layer(CrashLayer(at)))
            await add(state, f"k{at}")
            await add(state, f"l{at}")
        state = await opened(base)
        await add(state, f"x{at}")
        assert f"x{at}" in await state.known.find([f"x{at}"])


@dataclass(frozen=True)
class LateLayer(Layer):
    """Holds the first write of a path back until it is told to let it through."""

    path: str
    held: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    release: asyncio.Event = field(default_factory=asyncio.Event, compare=False)

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return _Late(inner, self)


class _Late(WrappedAccessor):
    def __init__(self, inner: Accessor, layer: LateLayer) -> None:
        super().__init__(inner)
        self._layer = layer

    async def write(self, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        if request.path == self._layer.path:
            self._layer.held.set()
            await self._layer.release.wait()
        return await self.inner.write(request, data)


@pytest.mark.parametrize("records", range(4))
@pytest.mark.parametrize("compacted", [False, True])
async def test_a_write_of_an_earlier_writer_that_arrives_late_replaces_no_claim(records: int, compacted: bool) -> None:
    operator = memory().layer(IgnoringLayer())
    late = LateLayer("state/log/000000000002.json.zst")
    older = await opened(operator.layer(late))
    await add(older, "a")
    writing = asyncio.create_task(add(older, "b"))
    await late.held.wait()
    newer = await opened(operator)
    for number in range(records):
        await add(newer, f"c{number}")
        if compacted:
            await newer.compact()
    late.release.set()
    with pytest.raises(StateConflict, match="another writer"):
        await writing
    await add(newer, "d")
    again = await opened(operator)
    assert set(await again.known.find(["a", "b", "c0", "d"])) == {"a", "d"} | ({"c0"} if records else set())
    with pytest.raises(StateConflict):
        await add(newer, "e")
    with pytest.raises(StateConflict):
        await add(older, "f")
    assert [one.seq for one in await again.work(-1, 3 + records)] == [1, *range(3, 4 + records)]


async def test_a_claim_that_was_replaced_is_left_when_another_writer_has_gone_on() -> None:
    operator = memory().layer(IgnoringLayer())
    late = LateLayer("state/log/000000000002.json.zst")
    older = await opened(operator.layer(late))
    await add(older, "a")
    writing = asyncio.create_task(add(older, "b"))
    await late.held.wait()
    newer = await opened(operator)
    late.release.set()
    with pytest.raises(StateConflict):
        await writing
    newest = await opened(operator)  # Goes on from what it finds.
    with pytest.raises(StateConflict):
        await add(newer, "c")
    await add(newest, "d")
    again = await opened(operator)
    assert set(await again.known.find(list("abcd"))) == {"a", "b", "d"}


async def test_a_store_that_no_longer_honours_conditions_is_noticed_when_it_is_opened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for ignoring in (IgnoringLayer(), IgnoringLayer(replaces=False), IgnoringLayer(creates=False)):
        caplog.clear()
        base = memory()
        await add(await opened(base), "a")
        assert "ignores conditions" not in caplog.text
        older = await opened(base.layer(ignoring))
        assert "ignores conditions of writes" in caplog.text
        await add(older, "b")
        await older.compact()
        await add(older, "b")
        newer = await opened(base.layer(ignoring))
        with pytest.raises(StateConflict):
            await older.compact()
        with pytest.raises(StateConflict):
            await add(older, "c")
        await add(newer, "d")
        again = await opened(base)
        assert set(await again.known.find(list("abcd"))) == set("abd")


@dataclass(frozen=True)
class ShuffledLayer(Layer):
    """A store whose listings come in no order, as those of directory buckets do."""

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        return _Shuffled(inner)


class _Shuffled(WrappedAccessor):
    async def list_page(self, request: ListRequest) -> ListPage:
        page = await self.inner.list_page(request)
        return replace(page, entries=tuple(random.Random(3).sample(page.entries, len(page.entries))))


@pytest.mark.parametrize("name", ["", "bucket--x-s3"])
async def test_a_store_that_lists_in_no_order_holds_a_state(name: str) -> None:
    async with ap.Operator.bare(ap.services.Memory(name)).layer(ShuffledLayer()) as operator:
        for _ in range(3):
            state = await opened(operator)
            for number in range(8):
                record = await add(state, f"k{number}")
                await state.committed(record.seq)
                if number % 3 == 0:
                    await state.compact()
            assert await state.newest() == record
            await state.aclose()
        reader = await opened(operator, writer=False)
        assert len(await reader.known.between("", "z")) == 8
        assert await reader.newest() == record
        await reader.aclose()


@pytest.mark.parametrize(("server", "honours"), [("s3_server", True), ("rclone_server", False)])
async def test_s3_keeps_writers_apart(
    server: str,
    honours: bool,
    request: pytest.FixtureRequest,
    random_name: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = request.getfixturevalue(server)
    service = S3(
        bucket=random_name(),
        endpoint_url=found.endpoint_url,
        access_key_id=found.access_key_id,
        secret_access_key=found.secret_access_key,
    )
    async with ap.Operator(service) as operator:
        client = S3Client(service, operator.runtime())
        await (await client.connected()).create_bucket(Bucket=service.bucket)
        older = await SourceState.open(operator, "s/", IDENTITY, first=TailAndSweep(), options=SMALL)
        assert older._live.meta.conditions == Conditions(honours, honours)
        assert ("if_not_exists: ignored, if_match: ignored" in caplog.text) == (not honours)
        await add(older, "a", "b", "c", "d")
        await older.committed(1)
        await older.compact()
        newer = await SourceState.open(operator, "s/", IDENTITY, first=TailAndSweep(), options=SMALL)
        with pytest.raises(StateConflict):
            await add(older, "e")
        await add(newer, "f")
        assert set(await newer.known.find(["a", "e", "f"])) == {"a", "f"}
        await older.aclose()
        await newer.aclose()
