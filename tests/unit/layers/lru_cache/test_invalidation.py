"""Writes through the layer: what they replace is never served again, not even by a layer that trusts its entries."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import NotFound, Unavailable
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.values import CopyRequest, DeleteRequest, WriteRequest
from tests.unit.layers.lru_cache.harness import Bed, Gate, complete, read, read_settled, settle

OLD, NEW = b"old bytes " * 100, b"new bytes " * 100


async def write(stack: Accessor) -> None:
    await stack.write(WriteRequest(path="k"), NEW)


async def copy(stack: Accessor) -> None:
    await stack.copy(CopyRequest(path="new", target="k"))


async def write_stream(stack: Accessor) -> None:
    body = await stack.open_write(WriteRequest(path="k"))
    await body.write(NEW)
    await body.close()


CHANGES: list[Callable[[Accessor], Awaitable[None]]] = [write, copy, write_stream]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_drops_the_entry(bed: Bed, change: Callable[[Accessor], Awaitable[None]]) -> None:
    bed.put("new", NEW)
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k") == OLD
    await change(stack)
    assert bed.files == {}  # on its return, not some time later
    assert await read_settled(stack, "k") == NEW
    assert await read(stack, "k") == NEW
    assert bed.counters["hits"] == 1


async def test_an_object_that_is_written_while_it_arrives_never_appears_in_the_cache(bed: Bed) -> None:
    """What was written of it there is given up, and not removed later."""
    bed.put("k", OLD)
    bed.source.chunk_bytes = 100
    gate = bed.source.before = Gate("chunk", passing=3)
    stack = bed.stack(revalidate_seconds=None)
    reading = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    await settle()
    await write(stack)
    gate.opened.set()
    assert await reading == OLD
    await settle()
    assert (bed.cache.calls["body_close"], bed.cache.calls["body_abort"], bed.files) == (0, 1, {})


async def test_a_delete_drops_the_entries_of_all_its_paths(bed: Bed) -> None:
    stack = bed.stack(revalidate_seconds=None)
    for path in ("a", "b", "c"):
        bed.put(path, OLD)
        await read_settled(stack, path)
    await stack.delete(DeleteRequest(path="a", paths=("a", "b")))
    assert len(bed.files) == 1
    for path in ("a", "b"):
        with pytest.raises(NotFound):
            await read(stack, path)
    assert await read(stack, "c") == OLD


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_during_a_fill_keeps_it_out_of_the_cache(
    bed: Bed, change: Callable[[Accessor], Awaitable[None]]
) -> None:
    """Its waiters get what they began to read; later readers do not join it."""
    bed.put("new", NEW)
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    gate = Gate("chunk")
    bed.source.before = gate
    begun = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    bed.source.before = None
    await change(stack)
    assert await read(stack, "k") == NEW
    gate.opened.set()
    assert await begun == OLD
    await settle()
    assert await read(stack, "k") == NEW
    assert len(bed.files) == 1
    assert bed.counters["fills"] == 1


@pytest.mark.parametrize("step", ["open_write", "body_write", "body_close"])
async def test_a_change_while_an_entry_is_written_drops_it(bed: Bed, step: str) -> None:
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    gate = Gate(step)
    bed.cache.before = gate
    assert await read(stack, "k") == OLD
    await gate.reached.wait()
    await write(stack)
    gate.opened.set()
    await settle()
    assert bed.files == {}
    assert "fills" not in bed.counters
    assert await read(stack, "k") == NEW


async def test_a_read_in_the_middle_of_a_write_is_forgotten_after_it(bed: Bed) -> None:
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)

    async def read_first(name: str) -> None:
        if name == "write":
            bed.source.before = None
            assert await read_settled(stack, "k") == OLD
            assert len(bed.files) == 1

    bed.source.before = read_first
    await write(stack)
    await settle()
    assert bed.files == {}
    assert await read(stack, "k") == NEW


async def test_a_failed_write_drops_the_entry_too(bed: Bed) -> None:
    """It is not known what the store did."""
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")

    def fail(name: str) -> None:
        raise Unavailable("no response")

    bed.source.before = fail
    with pytest.raises(Unavailable):
        await write(stack)
    assert bed.files == {}


async def test_a_write_before_the_first_read_after_a_restart(bed: Bed) -> None:
    bed.put("k", OLD)
    await read_settled(bed.stack(), "k")
    await bed.restart()
    stack = bed.stack(revalidate_seconds=None)
    await write(stack)
    assert bed.files == {}
    assert await read(stack, "k") == NEW


async def test_a_write_while_the_index_cannot_be_read(bed: Bed) -> None:
    """The slot is remembered, so that the index does not take the entry up later."""
    bed.put("k", OLD)
    await read_settled(bed.stack(), "k")
    await bed.restart()
    stack = bed.stack(revalidate_seconds=None)

    def fail(name: str) -> None:
        raise Unavailable("down")

    bed.cache.before = fail
    await write(stack)
    bed.cache.before = None
    assert await read_settled(stack, "k") == NEW
    assert len(bed.files) == 1
    assert await read(stack, "k") == NEW


async def test_a_write_through_another_stack_with_the_same_layer_is_seen(bed: Bed) -> None:
    layer = LruCacheLayer(cache=bed.holder, revalidate_seconds=None)
    stacks = [layer.wrap(complete(bed.source, bed.runtime), bed.runtime) for _ in range(2)]
    bed.put("k", OLD)
    await read_settled(stacks[0], "k")
    assert await read(stacks[1], "k") == OLD
    assert bed.gets == 1
    await write(stacks[1])
    assert await read(stacks[0], "k") == NEW


async def test_a_stream_that_is_aborted_changes_nothing(bed: Bed) -> None:
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")
    body = await stack.open_write(WriteRequest(path="k"))
    await body.write(NEW)
    await body.abort()
    assert await read(stack, "k") == OLD
    assert bed.gets == 1


async def test_a_large_object_that_becomes_small_by_a_write_is_cached(bed: Bed) -> None:
    bed.put("k", OLD * 10)
    stack = bed.stack(object_bytes_max=2000)
    await read_settled(stack, "k")
    await write(stack)
    assert await read_settled(stack, "k") == NEW
    assert len(bed.files) == 1


async def test_an_entry_that_cannot_be_deleted_is_not_found_again(bed: Bed) -> None:
    """Its file is still there under the name at which entries of other processes are looked up."""
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")

    def fail(name: str) -> None:
        if name in ("delete", "open_write"):
            raise Unavailable("not now")

    bed.cache.before = fail
    await write(stack)
    await settle()
    assert len(bed.files) == 1
    assert await read_settled(stack, "k") == NEW
    assert await read(stack, "k") == NEW


async def test_deletions_that_failed_are_made_up_for(bed: Bed) -> None:
    bed.put("k", OLD)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")

    def fail(name: str) -> None:
        if name == "delete":
            raise Unavailable("not now")

    bed.cache.before = fail
    await write(stack)
    bed.cache.before = None
    assert len(bed.files) == 1
    assert await read_settled(stack, "k") == NEW  # its own write sweeps first
    assert len(bed.files) == 1
    assert next(iter(bed.files.values())).startswith(NEW)
