"""Clauses 51 to 66: where a file ends, where a split does, and its footer."""

import pytest

from aioprefetch import Metadata
from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.operator import open_file as k
from aioprefetch.ranges import OFFSET_MAX
from tests.stores.gated_reader import settle
from tests.unit.operator.open_file.clauses import BLOCK, SIZE, Scene, clause


@clause(51, "M")
async def _(scene: Scene) -> None:
    """A declared length is a minimum: an object that is longer is no error."""
    reader = await scene.open(length=SIZE - 5000)
    assert await reader.read_at(SIZE - 5100, 100) == scene.data[SIZE - 5100 : SIZE - 5000]
    assert await reader.read_at(0, 10) == scene.data[:10]


@clause(52, "Y")
async def _(scene: Scene) -> None:
    """Beyond the declared length reads find the end, though there may be more."""
    reader = await scene.open(length=1000)
    assert await reader.read_at(990, 50) == scene.data[990:1000]
    assert await reader.read_at(1000, 50) == b""
    assert reader.seek(5000) == 5000
    assert await reader.read() == b""


@clause(53)
async def _(scene: Scene) -> None:
    """A length that is longer than the object: what is there is read, an exact read beyond it is an EOFError."""
    for length in (SIZE + 1, SIZE + 10 * BLOCK):
        for offset in (0, SIZE - 1, length - 1):
            reader = await scene.open(length=length)
            with pytest.raises(EOFError) as caught:
                await reader.read_exactly_at(offset, length - offset)
            assert isinstance(caught.value, RangeNotSatisfied)
            assert caught.value.total == SIZE
            assert await reader.read_at(offset, length) == scene.data[offset:]
            await reader.aclose()


@clause(54, "M")
async def _(scene: Scene) -> None:
    """The length of a status beats the option, in whatever order they come."""
    status = Metadata(path="k", size=4096)
    assert (await scene.builder(length=32).with_status(status).build()).size == 4096
    assert (await scene.builder().with_status(status).must_long(k.LENGTH, 32).build()).size == 4096
    assert (await scene.builder(length=32).with_status(Metadata(path="k")).build()).size == 32


@clause(55)
async def _(scene: Scene) -> None:
    """A length without a status is all that is known: no HEAD, and no ETag."""
    reader = await scene.open(length=SIZE)
    assert (reader.size, reader.etag) == (SIZE, None)
    assert await reader.read_at(5, 5) == scene.data[5:10]
    assert scene.requests == (1, 0)
    assert (await scene.open(length=0)).size == 0


@clause(56)
async def _(scene: Scene) -> None:
    """The end is the status's, else the option's, else the object's; a split's never."""
    status = Metadata(path="k", size=300)
    for builder, end in (
        (scene.builder(length=200, split_end=100).with_status(status), 300),
        (scene.builder(length=200, split_end=100), 200),
        (scene.builder(split_end=100), SIZE),
    ):
        async with await builder.build() as reader:
            assert await reader.read() == scene.data[:end]


@clause(57)
async def _(scene: Scene) -> None:
    """Both ends of a split are optional, and of 64 bits."""
    assert (await scene.open()).options.split is None
    assert (await scene.open(split_start=10)).options.split == (10, OFFSET_MAX)
    assert (await scene.open(split_end=1 << 40)).options.split == (0, 1 << 40)
    both = await scene.open(split_start="1099511627776", split_end=OFFSET_MAX)
    assert both.options.split == (1 << 40, OFFSET_MAX)


@clause(58, "S")
async def _(scene: Scene) -> None:
    """A start behind the end is put to 0; only where both are set."""
    assert (await scene.open(split_start=500, split_end=100)).options.split == (0, 100)
    assert (await scene.open(split_start=500)).options.split == (500, OFFSET_MAX)
    assert (await scene.open(split_start=100, split_end=100)).options.split == (100, 100)


@clause(59, "M")
async def _(scene: Scene) -> None:
    """Reads and seeks go on behind the end of a split: a record may straddle it."""
    reader = await scene.open(split_start=100, split_end=2000)
    reader.seek(1990)
    assert await reader.read(50) == scene.data[1990:2040]
    assert await reader.read_at(5 * BLOCK, 10) == scene.data[5 * BLOCK : 5 * BLOCK + 10]
    reader.seek(SIZE - 5)
    assert await reader.read() == scene.data[-5:]


@clause(60, "Y")
async def _(scene: Scene) -> None:
    """Nothing is fetched ahead behind the end of a split."""
    reader = await scene.open(split_start=0, split_end=3 * BLOCK, read_policy="csv", buffer_size=BLOCK)
    async with reader.stream() as chunks:
        await anext(chunks)
        await settle()
        assert max(call.request.offset + (call.request.size or 0) for call in scene.store.calls) == 3 * BLOCK
        assert b"".join([chunk async for chunk in chunks]) == scene.data[BLOCK:]


@clause(61, "M")
async def _(scene: Scene) -> None:
    """With both, the length is the end and the split's end a hint."""
    reader = await scene.open(length=3 * BLOCK, split_end=BLOCK)
    assert reader.size == 3 * BLOCK
    assert await reader.read() == scene.data[: 3 * BLOCK]


@clause(62, "Y")
async def _(scene: Scene) -> None:
    """After a seek to the start of the split the first request begins there."""
    reader = await scene.open(split_start=7 * BLOCK + 5, split_end=8 * BLOCK)
    assert reader.tell() == 0
    reader.seek(7 * BLOCK + 5)
    assert await reader.read(10) == scene.data[7 * BLOCK + 5 : 7 * BLOCK + 15]
    assert scene.store.ranges == [(7 * BLOCK, 8 * BLOCK)]
    assert scene.requests == (1, 0)


async def first_is_tail(scene: Scene, **options: object) -> bool:
    """Whether the first request of a reader is for the tail; what it reads must be right."""
    scene.store.calls.clear()
    reader = await scene.open(**options)
    assert await reader.read_at(5, 100) == scene.data[5:105]
    first = scene.store.calls[0].request
    await reader.unbuffer()
    await reader.aclose()
    return first.suffix is not None


@clause(63)
async def _(scene: Scene) -> None:
    """footer.cache is a flag, and a hint."""
    yes, no = (True, "true", " TRUE "), (False, "false", "", None, "yes", 1)
    assert [await first_is_tail(scene, footer_cache=value) for value in yes] == [True] * len(yes)
    assert [await first_is_tail(scene, footer_cache=value) for value in no] == [False] * len(no)
    assert len(scene.warnings()) == 2


@clause(64)
async def _(scene: Scene) -> None:
    """Without it the policy decides."""
    for name, expected in (("parquet", True), ("orc", True), ("sequential", False), ("random", False), ("csv", False)):
        assert await first_is_tail(scene, read_policy=name) is expected, name


@clause(65)
async def _(scene: Scene) -> None:
    """false switches the footer off, for Parquet too."""
    for name in ("parquet", "orc"):
        assert not await first_is_tail(scene, read_policy=name, footer_cache=False)
        assert await first_is_tail(scene, read_policy=name, footer_cache="not a flag")


@clause(66)
async def _(scene: Scene) -> None:
    """Whatever it says, the bytes are the same."""
    for policy in ("parquet", "sequential", "random"):
        for value in (True, False, None):
            reader = await scene.open(read_policy=policy, footer_cache=value)
            assert await reader.read_at(SIZE - 4, 8) == scene.data[-4:]
            assert await reader.read() == scene.data
            await reader.unbuffer()
            await reader.aclose()
