"""Clauses 16 to 23: how values are parsed."""

import pytest

from aioprefetch.operator import open_file as k
from tests.unit.operator.open_file.clauses import BLOCK, Scene, clause


@clause(16, "S")
async def _(scene: Scene) -> None:
    """Numbers in text are trimmed."""
    assert (await scene.open(length="  4096\t\n")).size == 4096
    assert (await scene.set(k.PREFETCH_BLOCK_SIZE, " 16K ")).options.block_bytes == 16 << 10
    assert (await scene.set(k.PREFETCH_ENABLED, " False ")).options.prefetch_enabled is False


@clause(17, "M")
async def _(scene: Scene) -> None:
    """A value that is not a number counts as unset and is logged once; so does a long given as a double."""
    for text in ("five", "1.0E3", "4096.0", "4_096", "0x10", "12 34", "--1", "9223372036854775808"):
        for _ in range(3):
            reader = await scene.open(length=text)
            assert reader.size is None
        (warning,) = scene.warnings()
        assert k.LENGTH in warning
        assert repr(text) in warning
        assert await reader.read_at(0, 5000) == scene.data[:5000]
    builder = scene.builder().opt_double(k.LENGTH, 1e3).must_double(k.SPLIT_END, 7e3)
    assert (await builder.build()).options == scene.default


@clause(18, "M")
async def _(scene: Scene) -> None:
    """Every setter takes its kind of value, and each other one, without an exception."""
    for value in (4096, 4096.0, True, "4096", None, 1 << 40, ["a", "b"], b"4096"):
        for name in ("opt", "must", "opt_long", "must_long", "opt_double", "must_double"):
            for key in (k.LENGTH, k.SPLIT_END, k.READ_POLICY, k.FOOTER_CACHE):
                await getattr(scene.builder(), name)(key, value).build()
    for name in ("opt", "must", "opt_long", "must_long", "opt_double", "must_double"):
        assert (await getattr(scene.builder(), name)(k.LENGTH, 4096).build()).size == 4096
    assert (await scene.builder().opt(k.PREFETCH_ENABLED, False).build()).options.prefetch_enabled is False
    assert (await scene.builder().buffer_size(5).build()).options.chunk_bytes == 5
    assert (await scene.builder().buffer_size("64 KiB").build()).options.chunk_bytes == 64 << 10
    unset = await scene.builder().build()
    assert (await scene.builder().buffer_size("lots").build()).options.chunk_bytes == unset.options.chunk_bytes


@clause(19, "M")
async def _(scene: Scene) -> None:
    """A negative length is unset, without a word: it is how one says that it is unknown."""
    for value in (-1, "-1", -(1 << 62)):
        reader = await scene.open(length=value)
        assert reader.size is None
    assert await reader.read() == scene.data
    assert scene.warnings() == []


@clause(20, "M")
async def _(scene: Scene) -> None:
    """So are a negative start and end of a split."""
    assert (await scene.open(split_start=-1, split_end=-5)).options.split is None
    assert (await scene.open(split_start=-1, split_end=500)).options.split == (0, 500)


@clause(21)
async def _(scene: Scene) -> None:
    """And the negative sizes for which S3A takes its defaults."""
    default = scene.default
    for key in (k.BUFFER_SIZE, k.READAHEAD_RANGE, k.ASYNC_DRAIN_THRESHOLD):
        for value in (-1, "-8M"):
            assert (await scene.set(key, value)).options == default
    assert (await scene.set(k.BUFFER_SIZE, 0)).options == default
    assert scene.warnings() == []


@clause(22)
async def _(scene: Scene) -> None:
    """Empty text is unset, for every key and without a word."""
    for key in k.KEYS:
        for value in ("", "  ", None, ()):
            assert (await scene.set(key, value, must=True)).options == scene.default
    assert scene.warnings() == []


@clause(23)
async def _(scene: Scene) -> None:
    """Values above 2 ** 31 survive."""
    large = (1 << 31) + 5
    assert (await scene.open(length=large)).size == large
    assert (await scene.open(split_start=str(large), split_end=1 << 62)).options.split == (large, 1 << 62)
    assert (await scene.set(k.READAHEAD_RANGE, 1 << 40)).options.prefetch_blocks == (1 << 40) // BLOCK
    with pytest.raises(EOFError):
        await (await scene.open(length=large)).read_exactly_at(large - 5, 5)
