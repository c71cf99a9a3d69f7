"""Conformance of the cursor: seek, tell, read and readinto, with positions as in POSIX."""

import io
import random

import pytest

from aioprefetch.errors import NotFound, SizeUnknown
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.ids import checks
from aioprefetch.testing.conformance.probes import RecordingLayer
from aioprefetch.testing.conformance.suite import ConformanceSuite
from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content

KIB = 1024
SIZE = 64 * KIB
BLOCK = 8 * KIB


class SeekChecks(ConformanceSuite):
    """Tests of the cursor of a `RangeReader`."""

    @checks("s3a:S01", "s3a:S02", "s3a:S03", "s3a:P12")
    async def test_seek_in_an_empty_object(self, operator: Operator) -> None:
        """Every read of an empty object is at its end, and the position stays zero."""
        await self.put_directly("empty", b"")
        async with operator.reader("empty") as reader:
            assert await reader.read(1) == b""
            assert reader.tell() == 0
            assert reader.seek(0) == 0
            assert await reader.read(1) == b""
            assert await reader.read() == b""
            assert await reader.readinto(bytearray(1)) == 0
            assert await reader.read_at(0, 16) == b""
            assert await reader.read_exactly_at(0, 0) == b""
            with pytest.raises(EOFError):
                await reader.read_exactly_at(0, 16)
            assert (reader.tell(), reader.size) == (0, 0)

    @checks("s3a:S04", "s3a:S05", "s3a:S06", "s3a:S07")
    async def test_seek_and_tell(self, operator: Operator) -> None:
        """The position starts at zero and follows reads and seeks, backward too; a seek sends no request."""
        await self.put_directly("k", content(SIZE))
        log = RecordingLayer()
        async with operator.layer(log).reader("k", block_bytes=BLOCK) as reader:
            assert reader.tell() == 0
            assert reader.seek(128) == 128
            assert reader.tell() == 128
            assert log.requests == []
            reader.seek(0)
            assert await reader.read(1) + await reader.read(1) == content(2)
            assert reader.tell() == 2
            reader.seek(128)
            assert await reader.read(1) == content(SIZE)[128:129]
            reader.seek(63)
            assert await reader.read(1) == content(SIZE)[63:64]
            assert reader.tell() == 64

    @checks("s3a:S08")
    async def test_seek_to_the_current_position_is_free(self, operator: Operator) -> None:
        """A seek to the current position sends no request and keeps the held bytes."""
        await self.put_directly("k", content(SIZE))
        log = RecordingLayer()
        async with operator.layer(log).reader("k", block_bytes=BLOCK, prefetch_blocks=0) as reader:
            await reader.read(100)
            before = len(log.requests)
            assert reader.seek(0, io.SEEK_CUR) == 100
            assert reader.seek(100) == 100
            assert_same_bytes(await reader.read(50), content(SIZE)[100:150], offset=100)
            assert len(log.requests) == before

    @checks("s3a:S09", "s3a:S19", "opendal:R26")
    async def test_seek_to_a_negative_position(self, operator: Operator) -> None:
        """A negative position raises `ValueError`; the position is kept, and the reader stays usable."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            await reader.read(10)
            for offset, whence in ((-1, io.SEEK_SET), (-11, io.SEEK_CUR), (-SIZE - 1, io.SEEK_END)):
                with pytest.raises(ValueError, match="position"):
                    reader.seek(offset, whence)
                assert reader.tell() == 10
            with pytest.raises(ValueError, match="whence"):
                reader.seek(0, 7)
            with pytest.raises(TypeError):
                reader.seek(1.5)  # type: ignore[arg-type]
            assert_same_bytes(await reader.read(10), content(SIZE)[10:20], offset=10)

    @checks("s3a:S10", "s3a:S11")
    async def test_seek_to_and_beyond_the_end(self, operator: Operator) -> None:
        """Seeks to the end and beyond are allowed; reads there are empty, and a seek back works."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            for position in (SIZE, SIZE + 1, 10 * SIZE):
                assert reader.seek(position) == position
                assert await reader.read(1) == b""
                assert await reader.read() == b""
                assert reader.tell() == position
            reader.seek(1)
            assert await reader.read(1) == content(2)[1:]

    @checks("s3a:S12")
    async def test_seek_just_before_the_end(self, operator: Operator) -> None:
        """Two bytes remain, and then every read is empty."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            reader.seek(SIZE - 2)
            chunks = [await reader.read(1) for _ in range(4)]
            assert chunks == [content(SIZE)[-2:-1], content(SIZE)[-1:], b"", b""]
            assert reader.tell() == SIZE

    @checks("s3a:S13")
    async def test_seek_through_a_large_object(self, operator: Operator) -> None:
        """Reads are right after near and far seeks in both directions."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            for position in (32768, 40000, 8191, 0):
                reader.seek(position)
                assert await reader.read(1) == content(SIZE)[position : position + 1]

    @checks("s3a:S14", "opendal:R26")
    @pytest.mark.parametrize("known_size", [None, 10 * KIB], ids=["size unknown", "size known"])
    async def test_seek_and_read_at_random(self, operator: Operator, known_size: int | None) -> None:
        """A hundred random seeks and reads match the model, with all three whences."""
        data = content(10 * KIB)
        await self.put_directly("k", data)
        chance, model, history = random.Random(14), ReaderModel(data), []
        async with operator.reader("k", block_bytes=KIB, size=known_size) as reader:
            await reader.ensure_size()
            for _ in range(100):
                whence = chance.choice((io.SEEK_SET, io.SEEK_CUR, io.SEEK_END))
                target, size = chance.randrange(len(data) + 200), chance.randrange(2000)
                base = {io.SEEK_SET: 0, io.SEEK_CUR: model.tell(), io.SEEK_END: len(data)}[whence]
                history.append(f"seek({target - base}, {whence}) read({size})")
                assert reader.seek(target - base, whence) == model.seek(target - base, whence), history[-10:]
                assert_same_bytes(await reader.read(size), model.read(size), offset=target, what=str(history[-10:]))
                assert reader.tell() == model.tell(), history[-10:]

    @checks("s3a:S15", "s3a:P03")
    async def test_seek_read_of_nothing(self, operator: Operator) -> None:
        """A read of zero bytes sends no request at any position."""
        await self.put_directly("k", content(100))
        log = RecordingLayer()
        async with operator.layer(log).reader("k") as reader:
            for position in (0, 50, 100, 1000):
                reader.seek(position)
                assert await reader.read(0) == b""
                assert await reader.readinto(bytearray()) == 0
                assert await reader.read_at(position, 0) == b""
                assert await reader.read_exactly_at(position, 0) == b""
                assert len(await reader.view_at(position, 0)) == 0
            assert log.requests == []

    @checks("s3a:S16", "s3a:S17", "opendal:R28")
    async def test_seek_reads_are_full_until_the_end(self, operator: Operator) -> None:
        """`read(n)` and `readinto` return `n` bytes except at the end of the object."""
        await self.put_directly("k", content(SIZE))
        for into in (False, True):
            received = b""
            async with operator.reader("k", block_bytes=BLOCK) as reader:
                while True:
                    buffer = bytearray(5000)
                    if into:
                        chunk = bytes(buffer[: await reader.readinto(buffer)])
                    else:
                        chunk = await reader.read(5000)
                    assert len(chunk) == min(5000, SIZE - len(received))
                    if not chunk:
                        break
                    received += chunk
            assert_same_bytes(received, content(SIZE))

    @checks("s3a:S18")
    async def test_seek_is_lazy(self, operator: Operator) -> None:
        """A seek in a missing object succeeds; the read fails."""
        async with operator.reader("no/such") as reader:
            assert reader.seek(1000) == 1000
            with pytest.raises(NotFound):
                await reader.read(1)
            assert reader.tell() == 1000

    @checks("opendal:R26")
    async def test_seek_from_an_unknown_end(self, operator: Operator) -> None:
        """The next read resolves the position by a suffix GET, which brings the tail; before it `tell` fails."""
        await self.put_directly("k", content(SIZE))
        async with operator.reader("k", block_bytes=BLOCK) as reader:
            reader.seek(-10, io.SEEK_END)
            with pytest.raises(SizeUnknown):
                reader.tell()
            assert_same_bytes(await reader.read(4), content(SIZE)[-10:-6], offset=SIZE - 10)
            assert reader.tell() == SIZE - 6
            assert_same_bytes(await reader.read(), content(SIZE)[-6:], offset=SIZE - 6)
            assert reader.size == SIZE
