"""What a RangeReader promises beyond right bytes: no task switch, no byte twice, errors that name the path."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from aioprefetch.blocks.store import BlockStore
from aioprefetch.errors import Closed, InvalidType, ObjectChanged, RangeNotSatisfied, WrongLoop
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import PolicyName
from aioprefetch.services.memory import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import WriteRequest
from tests.probes.turns import OtherTask
from tests.stores.gated_reader import bench

KIB = 1 << 10
DATA = bytes(range(256)) * 40


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    """An Operator over a private memory store with one object, in blocks of 1 KiB."""
    service = Memory()
    service.store.put(WriteRequest(path="k"), DATA)
    async with Operator(service, block_bytes=KIB, memory_bytes=64 * KIB) as made:
        yield made


def replace_object(operator: Operator, data: bytes) -> None:
    """Overwrite the object behind the operator's back."""
    service = operator.service
    assert isinstance(service, Memory)
    service.store.put(WriteRequest(path="k"), data)


async def test_a_hit_costs_no_task_switch(operator: Operator) -> None:
    """The coroutine of a resident read ends at its first step: nothing is awaited that could wait."""
    async with operator.reader("k") as reader:
        await reader.read_at(0, 10)
        hit: Coroutine[Any, Any, bytes] = reader.read_at(5, 100)
        with pytest.raises(StopIteration) as ended:
            hit.send(None)
        assert ended.value.value == DATA[5:105]


@pytest.mark.parametrize("policy", ["random", "adaptive", "sequential"])
async def test_misses_that_wait_for_nothing_leave_turns_to_other_tasks(policy: PolicyName) -> None:
    """A store in memory responds within the call, so a task that reads all of an object would hold the loop."""
    service = Memory()
    service.store.put(WriteRequest(path="k"), bytes(4 << 20))
    async with Operator(service, block_bytes=16 * KIB) as operator, operator.reader("k", policy=policy) as reader:
        await reader.read_at(0, 1)
        async with OtherTask() as other:
            for start in range(0, 4 << 20, 32 * KIB):
                assert await reader.read_at(start, 4 * KIB) == bytes(4 * KIB)
            assert other.turns >= 6


async def test_a_second_reader_fetches_no_resident_byte_again(operator: Operator) -> None:
    """Its first request asks whether the object has changed, and brings no body while it has not."""
    async with operator.reader("k") as reader:
        await reader.read_at(0, 10)
        etag = reader.etag
    received = operator.statistics["stream_read_total_bytes"]
    async with operator.reader("k") as reader:
        assert await reader.read_at(3, 7) == DATA[3:10]
        assert (reader.etag, reader.size) == (etag, len(DATA))
    counts = operator.statistics
    assert (counts["action_http_get_request"], counts["stream_read_total_bytes"]) == (2, received)


async def test_a_second_reader_sees_a_new_version(operator: Operator) -> None:
    """What is resident of the version before is neither served nor in the way."""
    async with operator.reader("k") as reader:
        await reader.read_at(0, 10)
    replace_object(operator, b"new" * 1000)
    async with operator.reader("k") as reader:
        assert await reader.read_at(0, 6) == b"newnew"
        assert reader.size == 3000
        reader.seek(-3, 2)
        assert await reader.read(n=10) == b"new"


@pytest.mark.parametrize("size", [0, 5, 2000])
async def test_reopen_pins_the_new_version_wherever_the_cursor_is(operator: Operator, size: int) -> None:
    """Also when the cursor lies beyond the new end."""
    async with operator.reader("k") as reader:
        await reader.read_at(0, 10)
        reader.seek(9000)
        replace_object(operator, b"z" * size)
        await reader.unbuffer()
        with pytest.raises(ObjectChanged) as changed:
            await reader.read_at(0, 10)
        assert changed.value.expected_etag != changed.value.actual_etag is not None
        await reader.reopen()
        assert reader.etag == changed.value.actual_etag
        assert (reader.size, reader.tell()) == (size, 9000)
        assert await reader.read_at(0, None) == b"z" * size


@checks("reliability:C15")
async def test_readers_that_are_dropped_leave_nothing_open(operator: Operator) -> None:
    """A file whose readers are gone may be evicted and forgotten like any other."""
    for _ in range(20):
        assert await operator.reader("k").read(10) == DATA[:10]
    await asyncio.sleep(0)  # the task of the last fetch ends with this turn of the loop
    gc.collect()
    store = BlockStore.of(operator.runtime())
    assert [file.open_readers() for file in store.files.values()] == [[]]
    store.eviction.reclaim(64 * KIB, "demand")
    assert store.files == {}


async def test_an_object_whose_readers_were_dropped_is_forgotten_when_nothing_of_it_is_resident() -> None:
    service = Memory()
    for number in range(20):
        service.store.put(WriteRequest(path=f"k{number}"), DATA)
    async with Operator(service, block_bytes=KIB, memory_bytes=64 * KIB) as operator:
        for number in range(20):
            reader = operator.reader(f"k{number}")
            assert await reader.read_at(0, 10) == DATA[:10]
            await reader.unbuffer()
            del reader
        await asyncio.sleep(0)  # the task of the last fetch ends with this turn of the loop
        gc.collect()
        await asyncio.sleep(0)
        assert BlockStore.of(operator.runtime()).files == {}


async def test_counts_of_several_ranges_are_of_what_was_delivered(operator: Operator) -> None:
    """Nothing counts before it has arrived, failures count as such, resident ranges as hits."""
    seen: list[int] = []
    async with operator.reader("k", on_progress=seen.append) as reader:
        with pytest.raises(RangeNotSatisfied):
            await reader.read_ranges([(0, 10), (len(DATA), len(DATA) + 5)])
        counts = reader.statistics
        assert (seen, counts["stream_read_bytes"], counts["stream_read_exceptions"]) == ([], 0, 1)
        await reader.read_ranges([(0, 10), (20, 30)])
        await reader.read_ranges([(0, 10), (20, 30)])
        counts = reader.statistics
        assert (sum(seen), counts["stream_read_bytes"]) == (40, 40)
        assert counts["stream_read_block_hits"] >= 1
        assert counts["stream_read_operations"] == 2
        assert counts["stream_read_exceptions"] == 1


async def test_closing_the_operator_names_the_path_of_the_reads_it_ends() -> None:
    """The block store knows no paths; the reader's errors have them all the same."""
    async with bench() as b:
        b.gate.open = False
        reading = asyncio.create_task(b.reader().read_at(0, 10))
        await b.next_call()
        await b.operator.aclose()
        with pytest.raises(Closed) as ended:
            await reading
        assert (ended.value.operation, ended.value.path) == ("read", "k")


@checks("reliability:C17")
async def test_a_foreign_loop_is_refused_by_every_method(operator: Operator) -> None:
    """Before anything waits or changes, also while the owner reads."""
    async with operator.reader("k") as reader:
        await reader.read_at(0, 10)
        refused: list[str] = []

        async def abroad() -> None:
            calls = {
                "read": lambda: reader.read(4),
                "readinto": lambda: reader.readinto(bytearray(4)),
                "read_at": lambda: reader.read_at(0, 4),
                "view_at": lambda: reader.view_at(0, 4),
                "read_ranges": lambda: reader.read_ranges([(0, 4)]),
                "ensure_size": reader.ensure_size,
                "reopen": reader.reopen,
                "unbuffer": reader.unbuffer,
                "aclose": reader.aclose,
            }
            for name, call in calls.items():
                with pytest.raises(WrongLoop):
                    await call()
                refused.append(name)
            for plain in (lambda: reader.seek(1), reader.tell, reader.clone, lambda: reader.set_policy("random")):
                with pytest.raises(WrongLoop):
                    plain()

        thread = threading.Thread(target=lambda: asyncio.run(abroad()))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert len(refused) == 9
        assert not reader.closed
        assert list(await asyncio.gather(reader.read(4), reader.read(4))) == [DATA[:4], DATA[4:8]]


@pytest.mark.parametrize("option", [{"prefetch_enabled": "no"}, {"on_progress": 5}, {"footer_cache": 1.5}])
def test_options_of_the_wrong_type_are_refused_at_once(option: dict[str, Any]) -> None:
    """By name, before any I/O."""
    with pytest.raises(InvalidType, match=next(iter(option))):
        Operator(Memory()).reader("k", **option)


async def test_events_tell_which_bytes_were_fetched_and_evicted(operator: Operator) -> None:
    """Readers and blocks publish with their path, so that a listener can draw what was read."""
    seen: list[tuple[str, str, dict[str, Any]]] = []
    names = "reader.opened", "reader.closed", "block.fetched", "block.evicted"
    operator.events.subscribe(lambda event: seen.append((event.name, event.path, dict(event.facts))), *names)
    async with operator.reader("k") as reader:
        await reader.read_at(0, 2 * KIB)
    BlockStore.of(operator.runtime()).eviction.reclaim(64 * KIB, "demand")
    assert {path for _, path, _ in seen} == {"k"}
    assert [name for name, _, _ in seen] == [
        "reader.opened",
        "block.fetched",
        "block.fetched",
        "reader.closed",
        "block.evicted",
        "block.evicted",
    ]
    fetched = [facts for name, _, facts in seen if name == "block.fetched"]
    assert [(one["start"], one["end"], one["received"], one["lane"], one["error"]) for one in fetched] == [
        (0, KIB, KIB, "demand", None),
        (KIB, 2 * KIB, KIB, "demand", None),
    ]
