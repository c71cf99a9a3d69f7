"""Reads that come while an object is arriving: they get its bytes if the store says that these are still current."""

import asyncio
from collections.abc import Awaitable

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConditionNotMatch, NotFound, Unavailable
from tests.unit.layers.lru_cache.harness import Bed, Gate, read, settle

OLD = bytes(range(250)) * 40
NEW = bytes(reversed(OLD)) + b"longer"
CHUNK = 1000


async def arriving(bed: Bed, stack: Accessor, *, chunks: int = 3) -> tuple[asyncio.Task[bytes], Gate]:
    """A read of the whole object, of which these chunks have arrived. The gate lets the others through."""
    bed.put("k", OLD)
    bed.source.chunk_bytes = CHUNK
    gate = bed.source.before = Gate("chunk", passing=chunks)
    first = asyncio.create_task(read(stack, "k"))
    await gate.reached.wait()
    return first, gate


async def test_an_object_that_is_overwritten_while_it_arrives_is_not_given_to_later_reads(bed: Bed) -> None:
    stack = bed.stack()
    first, gate = await arriving(bed, stack)
    old_etag = bed.store.store.objects["k"].metadata.etag
    pinned = asyncio.create_task(read(stack, "k", offset=9000, if_match=old_etag))
    await settle()
    bed.put("k", NEW)
    late = [asyncio.create_task(read(stack, "k", size=n)) for n in range(1, 9)]
    await settle()
    gate.opened.set()
    assert await asyncio.gather(*late) == [NEW[:n] for n in range(1, 9)]
    assert [await first, await pinned] == [OLD, OLD[9000:]]
    assert bed.gets == 2
    await settle()
    with pytest.raises(ConditionNotMatch):
        await read(stack, "k", if_match=old_etag)
    assert await read(stack, "k") == NEW
    assert [NEW in data for data in bed.files.values()] == [True]


async def test_later_reads_share_one_question_and_then_the_bytes(bed: Bed) -> None:
    stack = bed.stack()
    first, gate = await arriving(bed, stack)
    late = [asyncio.create_task(read(stack, "k", offset=n)) for n in range(8)]
    await settle()
    gate.opened.set()
    assert await asyncio.gather(first, *late) == [OLD, *(OLD[n:] for n in range(8))]
    await settle()
    assert bed.gets == 2
    assert bed.counters == {"misses": 9, "revalidations": 1, "fills": 1}


@pytest.mark.parametrize("revalidate_seconds", [60, None])
async def test_later_reads_ask_nothing_where_an_entry_would_be_trusted(
    bed: Bed, revalidate_seconds: float | None
) -> None:
    stack = bed.stack(revalidate_seconds=revalidate_seconds)
    first, gate = await arriving(bed, stack)
    bed.put("k", NEW)
    assert await read(stack, "k", size=5) == OLD[:5]
    gate.opened.set()
    assert await first == OLD
    assert bed.gets == 1


async def test_an_object_that_is_deleted_while_it_arrives_is_not_found_by_later_reads(bed: Bed) -> None:
    stack = bed.stack()
    first, gate = await arriving(bed, stack)
    bed.store.store.objects.clear()
    with pytest.raises(NotFound):
        await read(stack, "k", size=5)
    gate.opened.set()
    assert await first == OLD


async def test_a_body_that_breaks_off_during_the_question_is_read_from_the_store(bed: Bed) -> None:
    stack = bed.stack()
    first, gate = await arriving(bed, stack)
    question = Gate("read")
    is_broken = True

    def before(name: str) -> Awaitable[None] | None:
        return question(name) if name == "read" else broken(name)

    async def broken(name: str) -> None:
        await gate(name)
        if is_broken:
            raise Unavailable("the body broke off")

    bed.source.before = before
    late = asyncio.create_task(read(stack, "k", offset=100, size=5000))
    await question.reached.wait()
    # The chunk that waits passes, and the next one fails.
    gate.opened.set()
    with pytest.raises(Unavailable):
        await first
    is_broken = False
    question.opened.set()
    assert await late == OLD[100:5100]
    await settle()
    assert await read(stack, "k") == OLD
