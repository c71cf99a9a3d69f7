"""Clauses 33 to 50: the standard keys as such, and the read policies."""

import io
import os

import pytest

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator import open_file as k
from aioprefetch.reader.policy import POLICIES
from tests.unit.operator.open_file.clauses import BLOCK, SIZE, STANDARD, Scene, clause, policy_of

NAMES = (
    *("adaptive", "avro", "csv", "default", "columnar", "hbase", "json", "orc", "parquet", "random", "sequential"),
    *("vector", "whole-file"),
)
MEANINGFUL = {
    k.BUFFER_SIZE: 4096,
    k.READ_POLICY: "random",
    k.LENGTH: 1000,
    k.SPLIT_START: 10,
    k.SPLIT_END: 20,
    k.FOOTER_CACHE: True,
}


@clause(33, "M")
async def _(scene: Scene) -> None:
    """Every standard key is recognised: must() never fails on it, whatever the value."""
    assert set(STANDARD) == set(MEANINGFUL)
    for key in STANDARD:
        for value in (MEANINGFUL[key], "nonsense", -1, None, 1.5):
            reader = await scene.set(key, value, must=True)
            assert await reader.read_at(0, 10) == scene.data[:10]
            await reader.aclose()


@clause(34, "M")
async def _(scene: Scene) -> None:
    """What of them has no effect is ignored, in both forms: a start of the split alone changes no request."""
    for must in (False, True):
        reader = await scene.set(k.SPLIT_START, 5 * BLOCK, must=must)
        scene.store.calls.clear()
        assert await reader.read_at(0, 10) == scene.data[:10]
        assert scene.store.ranges == [(0, BLOCK)]
        await reader.unbuffer()


@clause(35, "M")
async def _(scene: Scene) -> None:
    """A key that only looks like a standard one is ignored by opt and refused by must."""
    for key in ("fs.option.openfile.ec.policy", "fs.option.openfile.", "fs.option.openfile.Length", "length"):
        assert (await scene.set(key, 5)).options == scene.default
        with pytest.raises(ConfigInvalid, match=key):
            await scene.set(key, 5, must=True)


@clause(36, "S")
async def _(scene: Scene) -> None:
    """opt() honours each standard key, as must() does."""
    default = scene.default
    for key, value in MEANINGFUL.items():
        found = (await scene.set(key, value)).options
        assert found == (await scene.set(key, value, must=True)).options
        assert found != default


@clause(37)
async def _(scene: Scene) -> None:
    """What would give other bytes if it were ignored is refused in both forms: S3 Select."""
    for key in ("fs.s3a.select.sql", "fs.s3a.select.input.format", "fs.s3a.select.output.csv.quote.character"):
        for must in (False, True):
            with pytest.raises(io.UnsupportedOperation) as caught:
                await scene.set(key, "SELECT * FROM S3OBJECT", must=must)
            assert key in str(caught.value)
            assert "SELECT *" not in str(caught.value)


@clause(38)
async def _(scene: Scene) -> None:
    """buffer.size is the chunk of a stream."""
    reader = await scene.open(buffer_size=1000)
    async with reader.stream() as chunks:
        assert [len(await anext(chunks)) for _ in range(3)] == [1000] * 3
    assert (await scene.open(buffer_size="4K")).options.chunk_bytes == 4096


@clause(39, "Y")
async def _(scene: Scene) -> None:
    """A policy is a hint, under must() too."""
    assert policy_of(await scene.set(k.READ_POLICY, "from the future", must=True)) == "adaptive"


@clause(40, "M")
async def _(scene: Scene) -> None:
    """Unknown names are ignored, and are no error."""
    for value in ("unknown", "unknown, of-tomorrow", ",", "*", "random;vector"):
        assert policy_of(await scene.open(read_policy=value)) == "adaptive"


@clause(41, "M")
async def _(scene: Scene) -> None:
    """The first recognised name of a list wins, in any case and with any spaces."""
    lists = {
        "a, b, RandOm, other": "random",
        " parquet ,columnar": "parquet",
        "of-tomorrow,Whole-File,random": "whole-file",
        ",,vector": "vector",
        ("of-tomorrow", "orc", "random"): "orc",
    }
    for value, expected in lists.items():
        assert policy_of(await scene.open(read_policy=value)) == expected


@clause(42)
async def _(scene: Scene) -> None:
    """Without a recognised one it is the default of a reader."""
    for value in ("unknown", "", None):
        assert (await scene.open(read_policy=value)).options == scene.default


@clause(43)
async def _(scene: Scene) -> None:
    """No policy gives wrong bytes, however it is read."""
    for name in NAMES:
        reader = await scene.open(read_policy=name)
        reader.seek(-100, os.SEEK_END)
        assert await reader.read() == scene.data[-100:]
        assert await reader.read_at(3 * BLOCK - 5, 10) == scene.data[3 * BLOCK - 5 : 3 * BLOCK + 5]
        assert await reader.read_ranges([(7, 9), (SIZE - 9, SIZE)]) == [scene.data[7:9], scene.data[-9:]]
        reader.seek(0)
        assert await reader.read(2 * BLOCK) == scene.data[: 2 * BLOCK]
        await reader.unbuffer()
        await reader.aclose()


@clause(44)
async def _(scene: Scene) -> None:
    """The thirteen names are known, and there is no other."""
    assert sorted(NAMES) == sorted(POLICIES)
    for name in NAMES:
        assert policy_of(await scene.open(read_policy=name)) == name


@clause(45)
async def _(scene: Scene) -> None:
    """S3A's three kinds of policies; its own key counts only where the standard one says nothing."""
    kinds = {
        "adaptive": ("default", "adaptive", "normal"),
        "exact": ("random", "vector", "parquet", "orc", "columnar", "hbase"),
        "block": ("sequential", "whole-file", "avro", "csv", "json"),
    }
    for fill, names in kinds.items():
        for name in names:
            assert (await scene.open(read_policy=name)).options.policy.fill == fill, name
    for key in (k.INPUT_FADVISE, k.EXPERIMENTAL_FADVISE):
        assert policy_of(await scene.set(key, "Normal, csv")) == "adaptive"
        assert policy_of(await scene.set(key, "random")) == "random"
        for standard, expected in (("csv", "csv"), (" , ", "random"), ("unknown", "adaptive")):
            builder = scene.builder(read_policy=standard).must(key, "random")
            assert policy_of(await builder.build()) == expected


@clause(46)
async def _(scene: Scene) -> None:
    """adaptive begins with whole blocks and goes over to exact ranges when reads jump to and fro."""
    reader = await scene.open(read_policy="adaptive")
    for index in (0, 20, 10, 30, 5, 25, 15):
        assert await reader.read_at(index * BLOCK + 7, 100) == scene.data[index * BLOCK + 7 : index * BLOCK + 107]
    assert scene.store.ranges[0] == (0, BLOCK)
    assert scene.store.ranges[-1] == (15 * BLOCK + 7, 15 * BLOCK + 107)


@clause(47)
async def _(scene: Scene) -> None:
    """vector asks for exactly what is wanted, in vectored and in classic reads."""
    reader = await scene.open(read_policy="vector")
    assert await reader.read_at(BLOCK + 1, 10) == scene.data[BLOCK + 1 : BLOCK + 11]
    far = 20 * BLOCK + 3
    assert await reader.read_ranges([(far, far + 5), (3, 9)], gap_bytes=0) == [
        scene.data[far : far + 5],
        scene.data[3:9],
    ]
    assert sorted(scene.store.ranges) == [(3, 9), (BLOCK + 1, BLOCK + 11), (far, far + 5)]


@clause(48, "Y")
async def _(scene: Scene) -> None:
    """whole-file reads ahead in large requests, each byte once."""
    reader = await scene.open(read_policy="whole-file")
    async with reader.stream() as chunks:
        assert b"".join([chunk async for chunk in chunks]) == scene.data
    spans = sorted((call.request.offset, call.request.size or 0) for call in scene.store.calls)
    assert all(size >= BLOCK for offset, size in spans if offset + BLOCK < SIZE)
    ends = [offset + size for offset, size in spans]
    assert all(end <= offset for end, (offset, _) in zip(ends, spans[1:], strict=False))


@clause(49, "Y")
async def _(scene: Scene) -> None:
    """parquet and orc begin with the footer, and keep it."""
    for name in ("parquet", "orc"):
        scene.store.calls.clear()
        reader = await scene.open(read_policy=name)
        assert await reader.read_at(SIZE - 8, 8) == scene.data[-8:]
        assert [call.request.suffix for call in scene.store.calls] == [BLOCK]
        assert await reader.read_at(SIZE - 2000, 1500) == scene.data[SIZE - 2000 : SIZE - 500]
        assert len(scene.store.calls) == 1
        await reader.unbuffer()
        await reader.aclose()


@clause(50)
async def _(scene: Scene) -> None:
    """What a key ends with does not matter: sequential on a .parquet begins at the beginning."""
    scene.store.put(scene.data, "t.parquet")
    reader = await scene.open("t.parquet", read_policy="sequential")
    assert await reader.read(10) == scene.data[:10]
    assert scene.store.ranges[0] == (0, BLOCK)
    assert policy_of(await scene.open("t.parquet")) == "adaptive"
