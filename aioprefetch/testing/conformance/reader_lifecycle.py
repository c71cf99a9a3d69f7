"""Conformance of a reader's lifecycle: closing, cancelling, unbuffering, changed objects, streams."""

import asyncio
import contextlib

from aioprefetch.errors import Closed, NotFound, ObjectChanged
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import ConformanceSuite, GateLayer, RecordingLayer, checks, needs
from aioprefetch.testing.oracle import assert_same_bytes, content, raises

KIB = 1024
SIZE = 64 * KIB
BLOCK = 8 * KIB


class LifecycleChecks(ConformanceSuite):
    """Tests of the lifecycle of a `RangeReader`."""

    @checks("s3a:C01", "s3a:C02", "s3a:C03", "s3a:C04", "s3a:C05", "s3a:C06")
    async def test_closed_reader(self, operator: Operator) -> None:
        """Every call raises `Closed` (a `ValueError`), `tell` may return a position; closing again has no effect."""
        await self.put_directly("k", content(SIZE))
        reader = operator.reader("k", block_bytes=BLOCK)
        async with reader:
            await reader.read(10)
        await reader.aclose()
        await reader.aclose()
        for call in (
            lambda: reader.read(1),
            lambda: reader.read_at(0, 1),
            lambda: reader.view_at(0, 1),
            lambda: reader.read_exactly_at(0, 1),
            lambda: reader.readinto(bytearray(1)),
            lambda: reader.read_ranges([(0, 1)]),
        ):
            with raises(Closed) as caught:
                await call()
            assert isinstance(caught.value, ValueError)
            assert caught.value.path == "k"
        with raises(Closed):
            [part async for part in reader.iter_ranges([(0, 1)])]
        with raises(Closed):
            reader.seek(0)
        with contextlib.suppress(Closed):
            assert reader.tell() == 10
        assert await reader.ensure_size() == SIZE, "what is known stays known"
        unused = operator.reader("k")
        await unused.aclose()
        with raises(Closed):
            await unused.ensure_size()

    @checks("s3a:C07")
    async def test_closing_one_reader_leaves_another_alone(self, operator: Operator) -> None:
        """Two readers of one object share bytes, but not the cursor or the lifecycle."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as first:
            async with operator.reader("k", block_bytes=BLOCK) as second:
                await second.read(100)
                assert first.tell() == 0
                assert_same_bytes(await first.read(50), content(50))
                assert second.tell() == 100
            assert_same_bytes(await first.read(20_000), content(SIZE)[50:20_050], offset=50)

    @checks("s3a:C07")
    async def test_clone_has_a_cursor_of_its_own(self, operator: Operator) -> None:
        """A clone reads the same version at its own position."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as first:
            await first.read(100)
            async with first.clone() as second:
                assert second.tell() == 0
                assert second.etag == first.etag
                assert_same_bytes(await second.read(10), content(10))
            assert_same_bytes(await first.read(10), content(110)[100:], offset=100)

    @checks("s3a:C08", "opendal:R34")
    async def test_closing_while_a_fetch_is_held_back(self, operator: Operator) -> None:
        """Closing does not wait for the store; the pending read fails with `Closed`, and its request is cancelled."""
        await self.put_directly("k", content(SIZE))
        gate = GateLayer()
        reader = operator.layer(gate).reader("k", block_bytes=BLOCK)
        async with asyncio.timeout(30):
            async with reader:
                pending = asyncio.create_task(reader.read_at(0, 10))
                await gate.wait_for_arrivals(1)
            with raises(Closed):
                await pending
            await gate.wait_for_cancellations(1)

    @checks("s3a:C09")
    async def test_statistics_survive_closing(self, operator: Operator) -> None:
        """The statistics can be read after closing."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            await reader.read(1000)
            await reader.read_at(5, 10)
        assert reader.statistics["stream_read_bytes"] == 1010
        assert reader.statistics["stream_read_operations"] == 2
        assert (reader.size, reader.closed) == (SIZE, True)

    @checks("s3a:C10")
    async def test_unbuffer(self, operator: Operator) -> None:
        """Memory is released, the position is kept, and the next read works; a closed reader ignores it."""
        log = RecordingLayer()
        async with self.reading(operator.layer(log), content(SIZE), block_bytes=BLOCK) as reader:
            await reader.read(100)
            await reader.read_at(0, BLOCK)  # completes the block, so that no request is in flight
            before = len(log.reads)
            await reader.unbuffer()
            assert reader.tell() == 100
            assert_same_bytes(await reader.read(100), content(200)[100:], offset=100)
            assert len(log.reads) == before + 1
        await reader.unbuffer()

    @checks("opendal:R33")
    async def test_cancelled_read_keeps_the_cursor(self, operator: Operator) -> None:
        """A cancelled read does not move the position, and the next read is right."""
        gate = GateLayer(holds=lambda request: request.offset >= BLOCK)
        async with self.reading(operator.layer(gate), content(SIZE), block_bytes=BLOCK, prefetch_blocks=0) as reader:
            await reader.read(100)
            pending = asyncio.create_task(reader.read(BLOCK))
            await gate.wait_for_arrivals(1)
            pending.cancel()
            with raises(asyncio.CancelledError):
                await pending
            await gate.wait_for_cancellations(1)
            assert reader.tell() == 100
            gate.open()
            assert_same_bytes(await reader.read(BLOCK), content(SIZE)[100 : 100 + BLOCK], offset=100)

    @checks("opendal:R33")
    async def test_cancelled_waiter_leaves_its_companion_intact(self, operator: Operator) -> None:
        """Two tasks wait for one block; one is cancelled, the other gets its bytes from the same request."""
        gate = GateLayer()
        async with self.reading(operator.layer(gate), content(SIZE), block_bytes=BLOCK, prefetch_blocks=0) as reader:
            leaver = asyncio.create_task(reader.read_at(0, 100))
            await gate.wait_for_arrivals(1)
            stayer = asyncio.create_task(reader.read_at(50, 100))
            await asyncio.sleep(0)
            leaver.cancel()
            with raises(asyncio.CancelledError):
                await leaver
            gate.open()
            assert_same_bytes(await stayer, content(150)[50:], offset=50)
            assert (gate.arrived, gate.cancelled) == (1, 0)

    @checks("opendal:R32", "opendal:R13")
    @needs("replaces_at_once")
    async def test_overwritten_object(self, operator: Operator) -> None:
        """The first response pins the version: a new version raises `ObjectChanged`, and `reopen` reads it."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK, prefetch_blocks=0) as reader:
            assert_same_bytes(await reader.read_at(0, 10), content(10))
            old = reader.etag
            await self.put_directly("k", content(SIZE, version=1))
            with raises(ObjectChanged) as caught:
                await reader.read_at(SIZE - 10, 10)
            assert caught.value.expected_etag == old
            assert caught.value.actual_etag != old
            assert_same_bytes(await reader.read_at(5, 10), content(15)[5:], what="still held")
            await reader.reopen()
            assert_same_bytes(await reader.read_at(0, SIZE), content(SIZE, version=1))
            assert reader.etag != old

    @checks("opendal:R32")
    async def test_overwritten_object_is_never_mixed(self, operator: Operator) -> None:
        """A reader returns only bytes of the old version, a new reader only bytes of the new version."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            await reader.read_at(0, 10)
            await self.put_directly("k", content(SIZE + 5, version=1))
            for offset in range(SIZE - 10, 0, -BLOCK):
                try:
                    data = await reader.read_at(offset, 10)
                except ObjectChanged:
                    continue
                assert_same_bytes(data, content(SIZE)[offset : offset + 10], offset=offset, what="pinned reader")
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            assert_same_bytes(await reader.read(), content(SIZE + 5, version=1), what="new reader")

    @checks("opendal:R32")
    @needs("replaces_at_once")
    async def test_overwritten_object_after_a_read_beyond_its_end(self, operator: Operator) -> None:
        """The size that such a read tells holds for later ones, although no version may come with it."""
        async with self.reading(operator, content(SIZE), policy="random") as reader:
            assert await reader.read_at(2 * SIZE, 10) == b""
            await self.put_directly("k", content(2 * SIZE, version=1))
            with raises(ObjectChanged):
                await reader.read_at(0, 10)
            assert reader.size == SIZE

    @checks("opendal:R32")
    @needs("replaces_at_once", "delete")
    async def test_deleted_object(self, operator: Operator) -> None:
        """A read of a deleted object raises `ObjectChanged` or `NotFound`, and is never short."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK, prefetch_blocks=0) as reader:
            await reader.read_at(0, 10)
            await operator.delete("k")
            with raises((ObjectChanged, NotFound)):
                await reader.read_at(SIZE - 10, 10)

    @checks("opendal:R34")
    async def test_reader_opened_in_one_task_and_closed_in_another(self, operator: Operator) -> None:
        """A reader can be opened in one task and closed in another."""
        await self.put_directly("k", content(SIZE))

        async def open_it() -> object:
            reader = operator.reader("k", block_bytes=BLOCK)
            await reader.__aenter__()
            await reader.read(10)
            return reader

        reader = await asyncio.create_task(open_it())
        await asyncio.create_task(reader.aclose())  # type: ignore[attr-defined]

    @checks("opendal:R22")
    async def test_stream_is_the_object(self, operator: Operator) -> None:
        """The chunks are the object in order; all except the last are full."""
        for chunk_bytes in (1, 3, 1999, 2000, 2001):
            async with self.reading(operator, content(2000), block_bytes=512) as reader:
                chunks = [chunk async for chunk in reader.stream(chunk_bytes=chunk_bytes)]
                assert_same_bytes(b"".join(chunks), content(2000))
                assert {len(chunk) for chunk in chunks[:-1]} <= {chunk_bytes}
                assert reader.tell() == 2000

    @checks("opendal:R22")
    async def test_stream_left_early(self, operator: Operator) -> None:
        """The reader continues after the last chunk that was returned."""
        async with self.reading(operator, content(SIZE), block_bytes=BLOCK) as reader:
            async with reader.stream(chunk_bytes=1000) as chunks:
                async for _ in chunks:
                    break
            assert reader.tell() == 1000
            assert_same_bytes(await reader.read(1000), content(2000)[1000:], offset=1000)

    @checks("opendal:R27")
    @needs("request_counts")
    async def test_small_object_is_one_get(self, operator: Operator) -> None:
        """The first GET brings size, version and bytes, without a HEAD."""
        await self.put_directly("k", content(SIZE))
        with self.counting(operator) as spent:
            async with operator.reader("k") as reader:
                await reader.read_at(SIZE // 2, 10)
                await reader.read_at(0, SIZE)
                reader.seek(0)
                assert_same_bytes(await reader.read(), content(SIZE))
                assert await reader.ensure_size() == SIZE
        assert (spent.get, spent.head) == (1, 0)
