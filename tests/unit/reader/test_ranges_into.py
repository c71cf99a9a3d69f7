"""Ranges into buffers of the caller: the bytes and requests of ``read_ranges``, and no bytes of our own."""

import array
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.errors import Error, InvalidArgument, InvalidRange, InvalidType, RangeNotSatisfied
from tests.profile import each_of

DATA = random.Random(7).randbytes(40_000)
RANGES = [(30_000, 30_100), (5, 25), (30_050, 30_200), (7, 7), (39_000, 40_000)]


def buffers_for(ranges: list[tuple[int, int]]) -> list[bytearray]:
    return [bytearray(end - start) for start, end in ranges]


@each_of("options", [{}, {"gap_bytes": 0}, {"gap_bytes": 40_000, "request_bytes_max": 1 << 20}])
@each_of("memory", [1 << 20, 8_000])
async def test_they_hold_what_read_ranges_returns(options: dict[str, Any], memory: int) -> None:
    """For as many requests; also where a range is larger than the memory that is left."""
    counts = []
    for into in (False, True):
        async with ap.Operator.from_uri(f"memory://into{into}", block_bytes=4_000, memory_bytes=memory) as op:
            await op.write("k", DATA)
            async with op.reader("k", policy="vector") as reader:
                buffers = buffers_for(RANGES)
                if into:
                    await reader.read_ranges_into(RANGES, buffers, **options)
                else:
                    buffers = [bytearray(part) for part in await reader.read_ranges(RANGES, **options)]
                assert buffers == [DATA[start:end] for start, end in RANGES]
                found = {**reader.statistics}
            names = ("action_http_get_request", "stream_read_bytes", "stream_read_vectored_combined_ranges")
            counts.append([found[name] for name in names])
    assert counts[0] == counts[1]


async def test_a_buffer_may_have_items_of_any_type() -> None:
    async with ap.Operator.from_uri("memory://into-items") as op:
        await op.write("k", DATA)
        numbers, whole = array.array("I", [0] * 4), bytearray(100)
        async with op.reader("k") as reader:
            await reader.read_ranges_into([(8, 24), (100, 150)], [numbers, memoryview(whole)[50:]])
        assert (numbers.tobytes(), bytes(whole)) == (DATA[8:24], bytes(50) + DATA[100:150])


@each_of(
    ("ranges", "buffers", "error"),
    [
        ([(0, 5)], [], InvalidArgument),
        ([(0, 5)], [bytearray(5), bytearray(0)], InvalidArgument),
        ([(0, 5)], [bytearray(6)], InvalidArgument),
        ([(0, 5), (6, 9)], [bytearray(3), bytearray(5)], InvalidArgument),
        ([(0, 5)], [bytes(5)], InvalidType),
        ([(0, 5)], ["buffer"], InvalidType),
        ([(5, 0)], [bytearray(5)], InvalidRange),
        ([(39_999, 40_001)], [bytearray(2)], RangeNotSatisfied),
    ],
)
async def test_what_does_not_fit_is_refused(ranges: Any, buffers: list[Any], error: type[Error]) -> None:
    async with ap.Operator.from_uri("memory://into-no") as op:
        await op.write("k", DATA)
        async with op.reader("k") as reader:
            with pytest.raises(error) as caught:
                await reader.read_ranges_into(ranges, buffers)
            assert (caught.value.operation, caught.value.path) == ("read_ranges", "k")
            assert reader.statistics["stream_read_bytes"] == 0
            assert await reader.read_at(0, 3) == DATA[:3]


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 3_000)), max_size=6))
def test_files_have_it_too(starts: list[tuple[int, int]]) -> None:
    ranges = [(start, min(start + size, 40_000)) for start, size in starts]
    counted: list[int] = []
    with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://into-file", block_bytes=4_000)) as op:
        op.write("k", DATA)
        with op.open("k", on_progress=counted.append) as file:
            buffers = buffers_for(ranges)
            file.read_ranges_into(ranges, buffers, gap_bytes=100)
            assert buffers == [DATA[start:end] for start, end in ranges]
            assert file.tell() == 0
    assert sum(counted) == sum(map(len, buffers))
