"""Reading: bytes against io.BytesIO, requests against the block grid, memory against the budget."""

import asyncio
import io
import mmap
import os
import random
from array import array
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import strategies as st

from aioprefetch import RangeReader
from aioprefetch.errors import InvalidRange, InvalidType, SizeUnknown, Unavailable
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes
from tests.stores.gated_reader import KIB, MIB, bench, file_of, in_case, settle

BLOCK = 64 * KIB
SMALL = 1000


async def step(reader: RangeReader, model: ReaderModel, verb: str, a: int, b: int) -> tuple[object, object]:
    """The same operation on both; an error counts as its class."""
    calls: dict[str, tuple[Callable[[], Awaitable[object]], Callable[[], object]]] = {
        "read_at": (lambda: reader.read_at(a, b), lambda: model.read_at(a, b)),
        "exactly": (lambda: reader.read_exactly_at(a, b), lambda: model.read_exactly_at(a, b)),
        "view_at": (lambda: reader.view_at(a, b), lambda: model.read_at(a, b)),
        "read": (lambda: reader.read(b), lambda: model.read(b)),
        "ranges": (
            lambda: reader.read_ranges([(a, a + b), (b, b + a), (a, a)], gap_bytes=a),
            lambda: model.read_ranges([(a, a + b), (b, b + a), (a, a)]),
        ),
    }
    theirs, ours = calls[verb]
    try:
        expected: object = ours()
    except (ValueError, EOFError) as error:
        expected = EOFError if isinstance(error, EOFError) else ValueError
    try:
        found: object = await theirs()
    except (ValueError, EOFError) as error:
        found = EOFError if isinstance(error, EOFError) else ValueError
    return bytes(found) if isinstance(found, memoryview) else found, expected


verbs = st.sampled_from(
    ["read_at", "exactly", "view_at", "read", "ranges", "seek", "seek_end", "unbuffer", "will_need"]
)


@pytest.mark.parametrize("policy", ["adaptive", "random", "parquet"])
async def test_a_read_larger_than_the_memory(policy: str) -> None:
    async with bench(4 * MIB, memory_bytes=512 * KIB) as b, b.reader(policy=policy) as reader:
        await reader.read_at(MIB + 5, 100)
        assert_same_bytes(await reader.read_at(0, 4 * MIB), b.data)
        target = bytearray(4 * MIB)
        assert await reader.readinto(target) == 4 * MIB
        assert_same_bytes(target, b.data)
        (found,) = await reader.read_ranges([(3, 4 * MIB - 3)])
        assert_same_bytes(found, b.data[3:-3])
        assert_same_bytes(await reader.view_at(0, 4 * MIB), b.data)
        budget = b.runtime.budget
        assert budget.peak_bytes <= 512 * KIB + 128 * KIB
        assert budget.waiting == 0


@checks("reliability:I01")
async def test_no_block_is_fetched_twice() -> None:
    async with bench() as b, b.reader() as reader:
        dice = random.Random(1)
        for _ in range(300):
            offset = dice.randrange(MIB)
            assert await reader.read_at(offset, 3000) == b.data[offset : offset + 3000]
        assert sorted(b.ranges) == [(start, start + BLOCK) for start in range(0, MIB, BLOCK)]


async def test_random_asks_for_exact_ranges_and_never_twice() -> None:
    async with bench() as b, b.reader(policy="random") as reader:
        for offset, size in ((1000, 100), (1050, 100), (1000, 150), (500, 1000), (1200, 10), (BLOCK - 5, 10)):
            assert await reader.read_at(offset, size) == b.data[offset : offset + size]
        assert b.ranges == [(1000, 1100), (1100, 1150), (500, 1000), (1150, 1500), (BLOCK - 5, BLOCK + 5)]
        await settle()
        assert b.runtime.budget.used_bytes == sum(end - start for start, end in b.ranges if end)


async def test_what_random_left_is_filled_up_and_not_fetched_again() -> None:
    async with bench() as b, b.reader(policy="random") as reader:
        await reader.read_at(1000, 100)
        await reader.read_at(5000, 100)
        reader.set_policy("sequential")
        assert await reader.read_at(0, BLOCK) == b.data[:BLOCK]
        assert b.ranges[2:] == [(0, 1000), (1100, 5000), (5100, BLOCK)]


async def test_evicted_between_arrival_and_use_is_fetched_again() -> None:
    """Part of a read was resident when it began, and is gone when the rest has come."""
    async with bench(memory_bytes=2 * BLOCK, block_bytes=BLOCK) as b:
        reader = b.reader(policy="random")
        await reader.read_at(100, 100)
        await settle()
        b.gate.open = False
        task = asyncio.create_task(reader.read_at(100, 300))
        call = await b.next_call()
        file_of(reader).blocks.clear()
        call.finish()
        b.gate.open = True
        assert await task == b.data[100:400]
        await reader.aclose()


@pytest.mark.parametrize("keep_behind", [True, None])
async def test_a_long_read_requests_no_more_than_half_of_the_memory_at_once(keep_behind: bool | None) -> None:
    """The other half is for other readers, and for what has arrived and is not taken yet.

    A read past the blocks has one request besides, whose bytes arrive in the result and in no block.
    """
    block = 64 * KIB
    async with bench(32 * block, memory_bytes=8 * block, block_bytes=block) as b:
        reader = await b.opened(keep_behind=keep_behind)
        reading = asyncio.create_task(reader.read_at(0, 32 * block))
        while not reading.done():
            await settle()
            under_way = [call for call in b.calls if not call.ended]
            own = 0 if keep_behind else max((call.request.size or 0 for call in under_way), default=0)
            assert sum(call.request.size or 0 for call in under_way) - own <= 4 * block
            for call in under_way:
                call.finish()
        assert await reading == b.data
        await reader.aclose()


async def test_seek_keeps_what_is_there() -> None:
    async with bench() as b, b.reader() as reader:
        for _ in range(3):
            for offset in (0, 500_000, 100, 900_000):
                assert reader.seek(offset) == offset
                assert await reader.read(50) == b.data[offset : offset + 50]
        assert len(b.calls) == 3
        assert reader.statistics["stream_read_seek_operations"] == 12 - 1
        assert reader.statistics["stream_read_seek_backward_operations"] == 5


async def test_seeks() -> None:
    async with bench(SMALL) as b, b.reader() as reader:
        assert reader.seek(-10, os.SEEK_END) is None
        with pytest.raises(SizeUnknown):
            reader.tell()
        assert await reader.read(4) == b.data[-10:-6]
        assert b.calls[0].request.suffix is not None
        assert reader.tell() == SMALL - 6
        assert reader.seek(-1, os.SEEK_CUR) == SMALL - 7
        assert reader.seek(5000) == 5000
        assert await reader.read() == b""
        assert reader.seek(0, os.SEEK_END) == SMALL
        for wrong in ((-1, 0), (-SMALL - 1, 2), (-SMALL - 1, 1), (0, 7)):
            with pytest.raises(InvalidRange):
                reader.seek(*wrong)
        for kind in (1.5, None, "1", True):
            with pytest.raises(InvalidType):
                reader.seek(kind)  # type: ignore[arg-type]
        assert reader.tell() == SMALL
        assert len(b.calls) == 1


async def test_a_seek_takes_back_one_relative_to_an_end_that_is_not_known() -> None:
    async with bench(SMALL) as b, b.reader() as reader:
        assert reader.seek(-10, os.SEEK_END) is None
        assert reader.seek(5) == reader.tell() == 5
        assert await reader.read(3) == b.data[5:8]


async def test_a_seek_before_the_start_is_found_out_when_the_size_is() -> None:
    async with bench(SMALL) as b, b.reader() as reader:
        reader.seek(3)
        reader.seek(-SMALL - 1, os.SEEK_END)
        with pytest.raises(InvalidRange):
            await reader.read(1)
        assert reader.tell() == 3


@checks("reliability:I03")
@pytest.mark.parametrize("call", ["read_at", "view_at", "read_exactly_at"])
async def test_bad_positions_are_typed_errors(call: str) -> None:
    """On a reader that was never used, and again when everything is resident."""
    bad_ranges = [(-1, 5), (0, -5), (1.0, 5), (0, 5.0), ("0", 5), (None, 5), (True, 5), (0, "5")]
    async with bench(SMALL) as b, b.reader() as reader:
        for is_resident in (False, True):
            if is_resident:
                await reader.read_at(0, 10)
            for offset, size in bad_ranges:
                with in_case(offset=offset, size=size, is_resident=is_resident):
                    with pytest.raises((ValueError, TypeError)) as caught:
                        await getattr(reader, call)(offset, size)
                    assert getattr(caught.value, "operation", "").startswith("read") or call == "view_at"
                    assert getattr(caught.value, "path", None) == "k"


async def test_bad_sizes_of_cursor_reads() -> None:
    async with bench(SMALL) as b, b.reader() as reader:
        for size in ("5", 1.5, True, b""):
            with in_case(size=size), pytest.raises(InvalidType):
                await reader.read(size)  # type: ignore[arg-type]
        assert reader.tell() == 0


async def test_readinto_takes_every_writable_buffer() -> None:
    async with bench(SMALL) as b, b.reader() as reader:
        mapped = mmap.mmap(-1, 100)
        targets = [bytearray(100), array("I", [0] * 25), mapped, memoryview(bytearray(300))[100:200]]
        for target in targets:
            reader.seek(50)
            assert await reader.readinto(target) == 100
            assert bytes(memoryview(target).cast("B")) == b.data[50:150]  # type: ignore[arg-type]
        assert reader.tell() == 150
        reader.seek(SMALL - 10)
        short = bytearray(b"x" * 30)
        assert await reader.readinto(short) == 10
        assert short == b.data[-10:] + b"x" * 20
        mapped.close()
        for wrong in (b"bytes", memoryview(b"bytes"), "text", 5, None, memoryview(bytearray(9))[::2]):
            with pytest.raises(InvalidType):
                await reader.readinto(wrong)


async def test_a_failed_or_cancelled_read_leaves_the_cursor() -> None:
    async with bench() as b:
        reader = await b.opened(prefetch_enabled=False)
        reader.seek(BLOCK + 5)
        target = bytearray(100)
        for read in (lambda: reader.read(100), lambda: reader.readinto(target), lambda: anext(reader.stream(100))):
            task = asyncio.ensure_future(read())
            call = await b.next_call()
            call.fail(Unavailable("broke"))
            with pytest.raises(Unavailable):
                await task
            assert reader.tell() == BLOCK + 5
            task = asyncio.ensure_future(read())
            await b.next_call()
            await settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settle()
            assert reader.tell() == BLOCK + 5
            await reader.unbuffer()
        b.gate.open = True
        assert await reader.read(100) == b.data[BLOCK + 5 : BLOCK + 105]
        await reader.aclose()


@checks("reliability:C26")
async def test_reads_by_cursor_take_turns() -> None:
    async with bench() as b, b.reader() as reader:
        parts = await asyncio.gather(*(reader.read(10_000) for _ in range(20)))
        assert b"".join(parts) == b.data[:200_000]


async def test_read_exactly_at() -> None:
    async with bench(SMALL) as b, b.reader() as reader:
        assert await reader.read_exactly_at(SMALL - 5, 5) == b.data[-5:]
        with pytest.raises(EOFError, match="6 bytes were demanded"):
            await reader.read_exactly_at(SMALL - 5, 6)
        with pytest.raises(InvalidType):
            await reader.read_exactly_at(0, None)  # type: ignore[arg-type]


async def test_views() -> None:
    async with bench() as b, b.reader() as reader:
        for offset, size in ((0, 10), (BLOCK - 5, 10), (10, 3 * BLOCK), (MIB - 5, 50), (2 * MIB, 5), (5, None), (7, 0)):
            expected = b.data[offset:] if size is None else b.data[offset : offset + size]
            view = await reader.view_at(offset, size)
            assert view.readonly
            assert bytes(view) == expected
        assert reader.statistics["stream_read_operations"] == 7


@checks("reliability:C32")
async def test_progress_is_reported_and_its_callback_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[int] = []

    def progress(count: int) -> None:
        reported.append(count)
        raise RuntimeError("the callback is broken")

    async with bench(SMALL) as b, b.reader(on_progress=progress) as reader:
        assert await reader.read_at(0, 10) == b.data[:10]
        assert await reader.read_at(0, 20) == b.data[:20]
        assert await reader.read(30) == b.data[:30]
        await reader.readinto(bytearray(40))
        await reader.view_at(0, 50)
        await reader.read_at(SMALL, 5)
    assert reported == [10, 20, 30, 40, 50]
    assert "on_progress failed" in caplog.text


async def test_statistics_say_what_happened() -> None:
    async with bench() as b:
        reader = b.reader()
        await reader.read_at(0, 100)
        await reader.read_at(10, 50)
        await reader.read_at(MIB, 5)
        counts = reader.statistics
        assert counts["stream_read_operations"] == 3
        assert counts["stream_read_bytes"] == 150
        assert counts["stream_read_block_misses"] == 1
        assert counts["stream_read_block_hits"] == 2
        assert b.operator.statistics["stream_read_bytes"] == 150
        await reader.aclose()
        await reader.aclose()
        assert reader.statistics["stream_read_closed"] == 1
        assert b.operator.statistics["stream_read_bytes"] == 150
        assert b.operator.statistics["action_http_get_request"] == 1


def test_the_oracle_is_a_file() -> None:
    """The model agrees with io.BytesIO where both have the operation."""
    model, file = ReaderModel(b"abcdef"), io.BytesIO(b"abcdef")
    assert (model.read(2), model.tell()) == (file.read(2), file.tell())
