"""What a caller declares of an object stays its own: other readers see the object as it is."""

import asyncio

import pytest

from aioprefetch.errors import ConfigInvalid
from tests.unit.gates import KIB, MIB, bench, settle

BLOCK = 64 * KIB


@pytest.mark.parametrize("clone", [False, True])
async def test_a_declared_size_is_nobody_elses(clone: bool) -> None:
    async with bench(200) as b:
        etag = (await b.operator.stat("k")).etag
        async with b.reader(size=100, etag=etag) as short:
            assert await short.read() == b.data[:100]
            if clone:
                async with short.clone() as twin:
                    assert await twin.read() == b.data[:100]
        async with b.reader() as reader:
            assert await reader.read() == b.data
            assert reader.size == 200
            assert await reader.read_at(150, 10) == b.data[150:160]


async def test_nothing_is_fetched_ahead_beyond_a_declared_size() -> None:
    async with bench(4 * MIB, prefetch_blocks=8) as b, b.reader(size=3 * BLOCK) as reader:
        assert await reader.read() == b.data[: 3 * BLOCK]
        reader.seek(0)
        while await reader.read(1000):
            pass
        await settle()
        assert sum(call.request.size or 0 for call in b.calls) == 3 * BLOCK


@pytest.mark.parametrize("policy", ["parquet", "hbase"])
@pytest.mark.parametrize("known", [(), ("size",), ("size", "etag")])
async def test_the_tail_comes_whole_however_much_is_known(policy: str, known: tuple[str, ...]) -> None:
    async with bench() as b:
        meta = await b.operator.stat("k")
        options = {name: getattr(meta, name) for name in known}
        async with b.reader(policy=policy, **options) as reader:
            assert await reader.read_at(MIB - 8, 8) == b.data[-8:]
            assert await reader.read_at(MIB - 5000, 100) == b.data[-5000:-4900]
        assert len(b.calls) == 1


async def test_a_footer_must_fit_into_memory() -> None:
    async with bench() as b:
        with pytest.raises(ConfigInvalid, match=r"footer_cache=16777216 .* memory_bytes=8388608"):
            b.reader(footer_cache=16 * MIB)


@pytest.mark.parametrize("turns", [(first, second) for first in range(4) for second in range(4)])
async def test_reads_beyond_the_end_do_not_disturb_the_first_request_of_others(turns: tuple[int, int]) -> None:
    async with bench(1) as b, b.reader() as reader:

        async def later(offset: int, count: int) -> bytes:
            for _ in range(count):
                await asyncio.sleep(0)
            return await reader.read_at(offset, 1)

        found = await asyncio.gather(later(5, 0), later(0, turns[0]), later(7, turns[1]))
        assert list(found) == [b"", b.data, b""]


async def test_many_tiny_blocks_in_one_request() -> None:
    async with bench(20_000, block_bytes=1) as b, b.reader() as reader:
        assert await reader.read() == b.data
        assert len(b.calls) == 2
