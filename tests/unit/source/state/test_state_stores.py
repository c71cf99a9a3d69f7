"""The stores that hold a state: each opening proves that they honour conditions of writes."""

import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor, Layer
from aioprefetch.errors import ConfigInvalid, StateConflict, Unavailable, Unsupported
from aioprefetch.services.s3 import S3
from aioprefetch.source.state.source_state import SourceState
from aioprefetch.source.state.store import StateStore
from aioprefetch.source.values import TailAndSweep
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from aioprefetch.values import Capability, ListPage, ListRequest, Metadata, StatRequest, WriteRequest
from tests.stores.directory_bucket import DirectoryBucket
from tests.stores.verb_layer import VerbLayer
from tests.unit.source.state.stores import IDENTITY, SMALL, Crash, CrashLayer, IgnoringLayer, add, memory, opened


@pytest.mark.parametrize(
    ("ignoring", "fault"),
    [
        (IgnoringLayer(), "created an object a second time"),
        (IgnoringLayer(replaces=False), "created an object a second time"),
        (IgnoringLayer(creates=False), "replaced an object, although the write named another ETag"),
    ],
)
@pytest.mark.parametrize("has_state", [False, True])
async def test_a_store_that_ignores_conditions_is_refused(ignoring: Layer, fault: str, has_state: bool) -> None:
    """Whatever it declares, with a new state and with one that was moved there; nothing is written or left behind."""
    base = memory()
    if has_state:
        await add(await opened(base), "a")
    before = await contents(base)
    store = base.layer(ignoring)
    assert store.capability.write_if_not_exists
    assert store.capability.write_if_match
    with pytest.raises(ConfigInvalid, match=fault) as refused:
        await opened(store)
    assert "a second writer could replace records of the first one" in str(refused.value)
    assert "in a local directory" in str(refused.value)
    assert await contents(base) == before
    if has_state:  # It may still be read, and used where conditions are honoured.
        assert set(await (await opened(store, writer=False)).index.find(["a"])) == {"a"}
        await add(await opened(base), "b")


@dataclass(frozen=True)
class UnversionedLayer(VerbLayer):
    """A store without ETags, or one that refuses every condition of a write."""

    etags: bool = False

    async def write(self, inner: Accessor, request: WriteRequest, data: bytes | bytearray | memoryview) -> Metadata:
        if self.etags and request.if_not_exists:
            raise Unsupported("no conditions here", operation="write")
        metadata = await inner.write(request, data)
        return metadata if self.etags else replace(metadata, etag=None)

    async def stat(self, inner: Accessor, request: StatRequest) -> Metadata:
        metadata = await inner.stat(request)
        return metadata if self.etags else replace(metadata, etag=None)


@pytest.mark.parametrize(
    ("layer", "fault"),
    [
        (UnversionedLayer(), "gives objects no ETag"),
        (UnversionedLayer(etags=True), "does not support conditional writes"),
    ],
)
async def test_a_store_without_etags_or_conditions_is_refused(layer: Layer, fault: str) -> None:
    base = memory()
    with pytest.raises(ConfigInvalid, match=fault):
        await opened(base.layer(layer))
    assert await contents(base) == {}


async def test_the_proof_costs_five_requests_for_each_opening_and_none_for_a_batch() -> None:
    base = memory()
    calls = CrashLayer(10**9)
    store = base.layer(calls)

    def probes() -> list[str]:
        return [call.split()[0] for call in calls.calls if re.search("/probe-.", call)]

    state = await opened(store)
    assert probes() == ["write", "write", "write", "write", "delete"]
    for number in range(5):
        await add(state, f"k{number}")
        await state.committed(number + 1)
        await state.compact()
    await opened(store, writer=False)
    assert len(probes()) == 5
    await opened(store)
    assert len(probes()) == 10


@pytest.mark.virtual
async def test_a_proof_of_which_a_request_or_a_response_was_lost_accepts_the_store() -> None:
    """Layers do not repeat a conditional write: it may have happened, and would conflict with itself."""
    for write in range(4):
        for at in ("call", "reply"):
            base = memory()
            lost = Injection(operation="write", at=at, occurrence=write, error=Unavailable)
            await add(await opened(base.layer(FaultLayer((lost,)))), "a")
            assert [path for path in await contents(base) if "probe-" in path] == [], (write, at)


async def test_a_proof_that_fails_leaves_nothing_behind_once_the_store_works_again() -> None:
    for call in range(20):
        for after in (False, True):
            base = memory()
            with contextlib.suppress(Crash):
                await opened(base.layer(CrashLayer(call, after=after)))
            state = await opened(base)
            await add(state, "a")
            await state.compact()
            assert [name for name in await contents(base) if "probe-" in name] == [], call


async def contents(operator: ap.Operator) -> dict[str, bytes]:
    """All objects of a store."""
    async with operator.list("", recursive=True) as entries:
        return {entry.path: await operator.read(entry.path) for entry in [entry async for entry in entries]}


@pytest.mark.parametrize("kind", ["memory", "fs"])
async def test_local_services_honour_conditions(kind: str, tmp_path: Path) -> None:
    service = ap.services.Memory() if kind == "memory" else ap.services.Fs(tmp_path)
    async with ap.Operator(service) as operator:
        older = await SourceState.open(operator, "s/", IDENTITY, first=TailAndSweep(), options=SMALL)
        await keeps_writers_apart(operator, older)


async def keeps_writers_apart(operator: ap.Operator, older: SourceState) -> None:
    """A second writer takes the state over, and the first one writes nothing any more."""
    await add(older, "a", "b", "c", "d")
    await older.committed(1)
    await older.compact()
    newer = await SourceState.open(operator, "s/", IDENTITY, first=TailAndSweep(), options=SMALL)
    with pytest.raises(StateConflict):
        await add(older, "e")
    with pytest.raises(StateConflict):
        await older.compact()
    await add(newer, "f")
    assert set(await newer.index.find(["a", "e", "f"])) == {"a", "f"}
    await older.aclose()
    await newer.aclose()


@dataclass(frozen=True)
class ShuffledLayer(VerbLayer):
    """A store whose listings come in no order, as those of directory buckets do."""

    def adapt(self, capability: Capability) -> Capability:
        return replace(capability, list_ordered=False, list_start_after=False)

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        page = await inner.list_page(request)
        return replace(page, entries=tuple(random.Random(3).sample(page.entries, len(page.entries))))


@pytest.fixture(params=["a layer", "a directory bucket"])
async def unordered(request: pytest.FixtureRequest) -> AsyncIterator[ap.Operator]:
    if request.param == "a layer":
        async with ap.Operator.bare(ap.services.Memory()).layer(ShuffledLayer()) as operator:
            yield operator
        return
    async with DirectoryBucket() as bucket, bucket.operator() as operator:
        yield operator


async def test_a_store_that_lists_in_no_order_holds_a_state(unordered: ap.Operator) -> None:
    async with unordered as operator:
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
        assert len(await reader.index.page("", count=100)) == 8
        assert await reader.newest() == record
        await reader.aclose()


@pytest.mark.parametrize("server", ["s3_server", "rclone_server"])
async def test_s3_keeps_writers_apart_or_is_refused(
    server: str, request: pytest.FixtureRequest, random_name: Callable[[], str]
) -> None:
    running = request.getfixturevalue(server)
    service = S3(
        bucket=random_name(),
        endpoint_url=running.endpoint_url,
        access_key_id=running.access_key_id,
        secret_access_key=running.secret_access_key,
    )
    async with ap.Operator(service) as operator:
        await service.buckets(operator.runtime()).create()
        if server == "rclone_server":  # It takes conditions of writes and ignores them.
            with pytest.raises(ConfigInvalid, match="created an object a second time"):
                await SourceState.open(operator, "s/", IDENTITY, first=TailAndSweep(), options=SMALL)
            assert await contents(operator) == {}
            return
        older = await SourceState.open(operator, "s/", IDENTITY, first=TailAndSweep(), options=SMALL)
        await keeps_writers_apart(operator, older)


async def test_a_replacement_whose_response_was_lost_is_recognised() -> None:
    """By its bytes; the next replacement then expects its ETag."""
    base = memory()
    await StateStore(base, "state/", "w").create("snapshot.json", b"1")
    lost = Injection(operation="write", at="reply", error=Unavailable)
    store = StateStore(base.layer(FaultLayer((lost,))), "state/", "w")
    before = await store.read_versioned("snapshot.json")
    assert before is not None
    after = await store.replace("snapshot.json", b"22", before)
    assert after == await store.read_versioned("snapshot.json")
    with pytest.raises(StateConflict, match="another writer has replaced it"):
        await store.replace("snapshot.json", b"333", before)
    await store.replace("snapshot.json", b"333", after)
