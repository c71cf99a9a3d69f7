"""Recycled memory: given on when its last view is gone and never before, bounded, and without a trace of its past."""

import asyncio
import ctypes
import gc
import mmap
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import BudgetExhausted, Unavailable
from aioprefetch.runtime.budget import MemoryBudget, Ticket
from aioprefetch.runtime.buffers import (
    IDLE_BYTES_MAX,
    IDLE_SHARE,
    MAPPED_BYTES_MIN,
    IdleMemory,
    lend_buffer,
    new_buffer,
    view_of,
)
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import run_virtual
from tests.stores.gated_reader import MIB, Bench, bench, reads_of, settle

SIZE = MAPPED_BYTES_MIN
LIMIT = 64 * MIB


def a_budget(limit_bytes: int = LIMIT) -> MemoryBudget:
    """A budget on the running loop."""
    return MemoryBudget(limit_bytes, asyncio.get_running_loop())


def charged(budget: MemoryBudget, size: int = SIZE) -> memoryview:
    """The view of a buffer that was charged."""
    budget.charge(size)
    return view_of(new_buffer(size, budget))


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes that were asked of the kernel; without the cycle collector, so that reference counts alone free."""
    sizes: list[int] = []
    real = mmap.mmap

    def noting(descriptor: int, size_bytes: int, **options: int) -> mmap.mmap:
        sizes.append(size_bytes)
        return real(descriptor, size_bytes, **options)

    monkeypatch.setattr(mmap, "mmap", noting)
    gc.collect()
    gc.disable()
    yield sizes
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_pages_are_not_asked_for() -> None:
    """A virtual machine mostly has to get them from its host: its used memory is in pieces."""

    async def charge() -> memoryview:
        return charged(a_budget(), 16 * SIZE)

    view = run_virtual(charge)
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    mappings = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags:(.*?)$", Path("/proc/self/smaps").read_text(), re.M | re.S
    )
    (flags,) = [flags.split() for low, high, flags in mappings if int(low, 16) <= address < int(high, 16)]
    assert "wr" in flags
    assert "hg" not in flags


async def test_the_next_buffer_of_its_size_gets_the_mapping(mapped: list[int]) -> None:
    budget = a_budget()
    for _ in range(5):
        view = charged(budget)
        del view
        assert (budget.used_bytes, budget.idle.size_bytes) == (0, SIZE)
    other = charged(budget, SIZE + 4096)
    assert mapped == [SIZE, SIZE + 4096]
    assert budget.idle.size_bytes == SIZE
    del other


async def test_never_while_a_slice_of_it_lives(mapped: list[int]) -> None:
    budget = a_budget()
    view = charged(budget)
    view[:4] = b"kept"
    inner = view.toreadonly()[1:3].cast("B")
    del view
    other = charged(budget)
    other[:4] = b"else"
    assert (bytes(inner), len(mapped), len(budget.idle)) == (b"ep", 2, 0)
    del inner
    again = charged(budget)
    assert (len(mapped), bytes(again[:4]), bytes(other[:4])) == (2, b"kept", b"else")


@pytest.mark.parametrize("holder", [bytearray, memoryview, list], ids=lambda one: one.__name__)
async def test_an_object_that_exports_its_bytes_keeps_it(holder: type, mapped: list[int]) -> None:
    """A copy holds nothing; a view of a view, and what keeps it in a container, does."""
    budget = a_budget()
    view = charged(budget)
    held = holder([view[:1]] if holder is list else view[:1])
    del view
    assert len(budget.idle) == (holder is bytearray)
    del held
    assert len(budget.idle) == 1


def test_a_mapping_with_a_view_is_not_handed_out() -> None:
    """Python 3.14 counts one reference less than those before it."""
    idle = IdleMemory(64 << 20)
    viewed, alone = mmap.mmap(-1, SIZE), mmap.mmap(-1, SIZE)
    view = memoryview(viewed)
    for mapping in (alone, viewed):
        idle.add(mapping)
    names = [id(alone), id(viewed)]
    del mapping, alone, viewed
    taken = idle.take(SIZE)
    assert (id(taken), idle.take(SIZE), len(idle)) == (names[0], None, 0)
    assert view.nbytes == SIZE


async def test_small_buffers_leave_nothing_idle(mapped: list[int]) -> None:
    budget = a_budget()
    view = charged(budget, SIZE - 1)
    del view
    assert (budget.used_bytes, len(budget.idle), mapped) == (0, 0, [])


async def test_the_last_view_may_die_in_another_thread(mapped: list[int]) -> None:
    budget = a_budget()
    held = [charged(budget)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    await settle()
    assert (budget.used_bytes, budget.idle.size_bytes) == (0, SIZE)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(budget.find_idle(SIZE)))
    thread.start()
    thread.join()
    assert found == [None]  # Idle memory belongs to the loop's thread.


async def test_idle_memory_is_a_small_share_and_the_oldest_goes_first(mapped: list[int]) -> None:
    budget = a_budget()
    views = [charged(budget, SIZE + 4096 * number) for number in range(20)]
    while views:
        views.pop(0)
    assert budget.idle.size_bytes <= budget.idle.limit_bytes == LIMIT // IDLE_SHARE
    kept = [size for size in mapped if budget.idle.take(size) is not None]
    assert kept == mapped[-len(kept) :]
    assert len(kept) >= 7
    assert a_budget(1 << 40).idle.limit_bytes == IDLE_BYTES_MAX


async def test_idle_memory_makes_room_for_what_is_reserved(mapped: list[int]) -> None:
    budget = a_budget(8 * SIZE)
    views = [charged(budget) for _ in range(2)]
    views.clear()
    others = budget.request(7 * SIZE, "demand")
    assert budget.idle.size_bytes == SIZE
    promise = budget.request(SIZE, "demand", is_promise=True)
    assert promise.granted
    assert budget.idle.size_bytes == SIZE  # It is what the promise is going to get.
    view = view_of(new_buffer(SIZE, budget))
    budget.keep(SIZE)
    assert (budget.held_bytes, budget.idle.size_bytes, len(mapped)) == (8 * SIZE, 0, 2)
    budget.cancel(others)
    del view
    assert (budget.used_bytes, budget.held_bytes) == (0, SIZE)


async def test_a_promise_that_gets_other_memory_costs_the_idle_one(mapped: list[int]) -> None:
    budget = a_budget(8 * SIZE)
    view = charged(budget)
    del view
    promise = budget.request(8 * SIZE, "demand", is_promise=True)
    assert promise.granted
    assert budget.idle.size_bytes == SIZE
    whole = view_of(new_buffer(8 * SIZE, budget))
    budget.keep(8 * SIZE)
    assert (budget.idle.size_bytes, budget.held_bytes) == (0, 8 * SIZE)
    del whole


class Owner:
    """An owner of tickets and buffers, which does what the test calls."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.tickets: list[Ticket] = []
        self.views: list[memoryview] = []

    def step(self, verb: str, size: int) -> None:
        """One step; sizes in large pages."""
        budget, size_bytes = self.budget, size * SIZE
        granted = [one for one in self.tickets if one.granted]
        if verb in ("promise", "reserve"):
            self.tickets.append(budget.request(size_bytes, "demand", is_promise=verb == "promise"))
        elif verb == "fill" and (promises := [one for one in granted if one.is_promise]):
            ticket = promises[0]
            self.tickets.remove(ticket)
            taken = min(size_bytes, ticket.size_bytes)
            self.views.append(view_of(new_buffer(taken, budget)))
            budget.keep(taken)
            budget.give_up(ticket.size_bytes - taken)
        elif verb == "cancel" and self.tickets:
            budget.cancel(self.tickets.pop(size % len(self.tickets)))
        elif verb == "lend":
            self.views.append(lend_buffer(size_bytes - 5, budget))
        elif verb == "drop" and self.views:
            self.views.pop(size % len(self.views))


verbs = st.sampled_from(["promise", "promise", "fill", "fill", "reserve", "cancel", "lend", "drop", "drop"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(verbs, st.integers(1, 4)), max_size=60))
def test_idle_memory_never_takes_room_from_anybody(script: list[tuple[str, int]]) -> None:
    async def run() -> None:
        budget = a_budget(12 * SIZE)
        owner = Owner(budget)
        for verb, size in script:
            owner.step(verb, size)
            await settle(3)
            idle = budget.idle.size_bytes
            promised = sum(one.size_bytes for one in owner.tickets if one.granted and one.is_promise)
            assert 0 <= idle <= budget.idle.limit_bytes + promised
            assert idle == 0 or budget.held_bytes <= budget.limit_bytes
        owner.views.clear()
        while owner.tickets:
            budget.cancel(owner.tickets.pop())
            await settle(3)
        assert (budget.used_bytes, budget.held_bytes) == (0, budget.idle.size_bytes)
        budget.close()
        assert budget.held_bytes == 0

    run_virtual(run)


# --- lent ---------------------------------------------------------------------------------------------------------


async def test_what_is_lent_is_not_charged_and_comes_back(mapped: list[int]) -> None:
    budget = a_budget()
    for size in (3 * MIB, 4 * MIB, 4 * MIB - 1):
        view = lend_buffer(size, budget)
        assert (len(view), view.format, view.readonly, budget.used_bytes) == (size, "B", False, 0)
        del view
    assert mapped == [4 * MIB]
    assert budget.idle.size_bytes == 4 * MIB


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE, 5 * MIB])
async def test_without_an_owner_it_is_ordinary_memory(size: int, mapped: list[int]) -> None:
    view = lend_buffer(size, None)
    assert (len(view), view.readonly, mapped) == (size, False, [])


async def test_nothing_is_kept_after_closing() -> None:
    runtime = Runtime(RuntimeOptions(memory_bytes=LIMIT))
    held = [lend_buffer(SIZE, runtime.budget), lend_buffer(SIZE, runtime.budget)]
    held.pop()
    assert runtime.budget.idle.size_bytes == SIZE
    await runtime.aclose()
    assert runtime.budget.idle.size_bytes == 0
    held.pop()
    assert runtime.budget.idle.size_bytes == 0


def test_nor_when_the_loop_has_ended() -> None:
    held: list[memoryview] = []

    async def run() -> MemoryBudget:
        runtime = Runtime(RuntimeOptions(memory_bytes=LIMIT))
        held.extend(lend_buffer(SIZE, runtime.budget) for _ in range(2))
        held.pop()
        assert runtime.budget.idle.size_bytes == SIZE
        return runtime.budget

    budget = asyncio.run(run())
    assert budget.idle.size_bytes == 0
    held.clear()
    assert budget.idle.size_bytes == 0


# --- through readers ------------------------------------------------------------------------------------------------


async def test_a_long_read_through_little_memory_asks_the_kernel_for_little(mapped: list[int]) -> None:
    """60 MiB in blocks of 2 MiB through 16 MiB: what was evicted is what comes next."""
    async with bench(60 * MIB, memory_bytes=16 * MIB, block_bytes=SIZE, prefetch_blocks=4) as b:
        async with b.reader() as reader:
            position = 0
            async for chunk in reader.stream(MIB):
                assert chunk == b.data[position : position + len(chunk)]
                position += len(chunk)
                assert b.runtime.budget.held_bytes <= 18 * MIB
        assert position == 60 * MIB
        budget = b.runtime.budget
    assert len(mapped) <= 9
    assert set(mapped) == {SIZE}
    assert budget.held_bytes == 0


async def filled(b: Bench, byte: bytes) -> None:
    """Read an object of one byte, and let all its blocks go."""
    b.put(byte * (4 * SIZE), "old")
    async with b.operator.reader("old", policy="sequential") as reader:
        assert await reader.read(4 * SIZE) == byte * (4 * SIZE)
        await reader.unbuffer()
    await settle()


async def test_a_view_of_a_block_that_is_on_its_way_again_shows_only_what_came() -> None:
    """Another thread has found the bytes; before it takes their view they are evicted and requested again."""
    async with bench(2 * SIZE, memory_bytes=16 * SIZE, block_bytes=SIZE) as b, b.reader() as reader:
        await reader.read_at(0, 100)
        reads = reads_of(reader)
        assert reads.resident(50, 100) is not None
        await reader.unbuffer()
        b.gate.open = False
        late = asyncio.create_task(reader.read_at(0, 1000))
        call = await b.next_call()
        call.deliver(100)
        await settle()
        assert [bytes(reads.exported(50, count) or b"") for count in (50, 51, 100)] == [b.data[50:100], b"", b""]
        call.finish()
        await late
        assert bytes(reads.exported(50, 100) or b"") == b.data[50:150]


async def test_a_partly_filled_block_shows_only_what_came(mapped: list[int]) -> None:
    async with bench(2 * SIZE, memory_bytes=16 * SIZE, block_bytes=SIZE) as b:
        await filled(b, b"\xaa")
        asked = len(mapped)
        b.gate.open = False
        reader = b.reader()
        early = asyncio.create_task(reader.read_at(0, 100))
        late = asyncio.create_task(reader.read_at(0, 1000))
        call = await b.next_call()
        call.deliver(100)
        await settle()
        assert await early == b.data[:100]
        assert [reads_of(reader).resident(*read) for read in ((0, 101), (100, 1), (50, 51))] == [None] * 3
        view = await reader.view_at(0, 100)
        assert bytes(view) == b.data[:100]
        call.fail(Unavailable("broke"))
        with pytest.raises(Unavailable):
            await late
        await settle()
        assert reads_of(reader).resident(0, 101) is None
        assert bytes(reads_of(reader).resident(0, 100) or b"") == b.data[:100]
        assert bytes(view) == b.data[:100]
        assert len(mapped) == asked  # It did get memory that held the other object.
        await reader.aclose()


async def test_a_late_write_into_memory_that_was_offered_harms_no_reader(mapped: list[int]) -> None:
    """A connection that is being broken off may still write: its slice keeps the memory from all others."""
    async with bench(2 * SIZE, memory_bytes=16 * SIZE, block_bytes=SIZE) as b:
        await filled(b, b"\xaa")
        b.gate.open = False
        reader = b.reader()
        reading = asyncio.create_task(reader.read_at(0, 100))
        (await b.next_call()).deliver(0)
        await settle()
        file = b.operator.runtime().peek("block_store").newest(reads_of(reader).opened.name, SIZE)  # type: ignore[union-attr]
        offered = file.fetches[0].writable()
        reading.cancel()
        await settle()
        await reader.aclose()
        b.gate.open = True
        async with b.reader() as again:
            data = await again.read_at(0, 2 * SIZE)
            offered[:] = b"\xbb" * len(offered)
            assert await again.read_at(0, 2 * SIZE) == data == b.data
        before = len(b.runtime.budget.idle)
        del offered, file
        await settle()
        assert len(b.runtime.budget.idle) == before + 1


async def test_a_view_that_a_finalizer_brings_back_to_life_keeps_its_memory() -> None:
    """The collector lets a buffer's own finalizer run while others of the same cycle still use its views."""
    kept: list[memoryview] = []

    class Holder:
        def __init__(self, view: memoryview) -> None:
            self.view = view
            self.me = self

        def __del__(self) -> None:
            kept.append(self.view)

    budget = MemoryBudget(64 << 20, asyncio.get_running_loop())
    view = lend_buffer(MAPPED_BYTES_MIN, budget)
    view[:] = b"a" * len(view)
    holder = Holder(view)
    del view, holder
    gc.collect()
    other = lend_buffer(MAPPED_BYTES_MIN, budget)
    other[:] = b"b" * len(other)
    assert bytes(kept[0][:4]) == b"aaaa"


VIEWED_BYTES = 5 * SIZE + 12_345

held_verbs = st.sampled_from(["view", "view", "read", "slice", "drop", "evict", "overwrite", "lend"])
places = st.integers(0, VIEWED_BYTES - 1)
sizes = st.sampled_from([1, 1000, SIZE // 2, SIZE, SIZE + 7])


class ViewHolder:
    """A reader that keeps views, and knows the bytes that each of them must always show."""

    def __init__(self, b: Bench) -> None:
        self.bench = b
        self.data = b.data[:VIEWED_BYTES]
        b.put(self.data)
        self.reader = b.reader()
        self.held: list[tuple[memoryview, bytes]] = []

    async def step(self, verb: str, start: int, size: int) -> None:
        """One step; ``start`` says which of the held views too."""
        end = min(start + size, VIEWED_BYTES)
        if verb == "view":
            self.held = [*self.held[-3:], (await self.reader.view_at(start, end - start), self.data[start:end])]
        elif verb == "read":
            assert await self.reader.read_at(start, end - start) == self.data[start:end]
        elif verb == "evict":
            await self.reader.unbuffer()
        elif verb == "overwrite":
            self.data = self.data[1000:] + self.data[:1000]
            self.bench.put(self.data)
            await self.reader.reopen()
        elif verb == "lend":
            lend_buffer(SIZE, self.bench.runtime.budget)[:] = b"\xee" * SIZE
        elif self.held:
            view, due = self.held.pop(start % len(self.held))
            if verb == "slice":
                half = len(view) // 2
                self.held.append((view[half:], due[half:]))

    def check(self) -> None:
        """Every view that is held shows what it showed first."""
        assert [at for at, (view, due) in enumerate(self.held) if bytes(view) != due or not view.readonly] == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(held_verbs, places, sizes), max_size=25))
def test_what_a_held_view_shows_never_changes(script: list[tuple[str, int, int]]) -> None:
    """In memory for three blocks, whose mappings go from one to the next."""

    async def run() -> None:
        async with bench(6 * SIZE, memory_bytes=3 * SIZE, block_bytes=SIZE, budget_wait_seconds=1.0) as b:
            holder = ViewHolder(b)
            for step in script:
                try:
                    await holder.step(*step)
                except BudgetExhausted:  # Views hold all of it.
                    holder.held.clear()
                holder.check()
            await holder.reader.aclose()
            holder.check()

    run_virtual(run)
