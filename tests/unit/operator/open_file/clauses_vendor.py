"""Clauses 67 to 69: the keys of vendors, options from a configuration, capabilities."""

import pytest

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator import open_file as k
from tests.unit.operator.open_file.clauses import BLOCK, VENDORS, Scene, clause, policy_of

# Names that Hadoop's streams answer to, and what a reader says.
CAPABILITIES = {
    "iostatistics": True,
    "in:readahead": True,
    "in:readbytebuffer": True,
    "in:preadbytebuffer": True,
    "in:readvectored": True,
    "in:unbuffer": True,
    "fs.capability.vectoredio.sliced": False,
    "fs.capability.iocontext.supported": False,
    "dropbehind": False,
    "hflush": False,
    "hsync": False,
    "abortable": False,
}


@clause(67)
async def _(scene: Scene) -> None:
    """Keys of vendors never fail an open of another store, and each has a rule."""
    default = scene.default
    values = {k.PREFETCH_ENABLED: "true", k.PREFETCH_BLOCK_SIZE: "16K", k.READAHEAD_RANGE: "64K"}
    for key in VENDORS:
        for must in (False, True):
            reader = await scene.set(key, values.get(key, 5), must=must)
            assert await reader.read_at(0, 5) == scene.data[:5]
    # A range longer than what would be fetched ahead raises it, a shorter one means nothing here.
    longer = (default.prefetch_blocks + 1) * BLOCK
    assert (await scene.set(k.READAHEAD_RANGE, longer - 1)).options.prefetch_blocks == default.prefetch_blocks + 1
    assert (await scene.set(k.READAHEAD_RANGE, longer + 1)).options.prefetch_blocks == default.prefetch_blocks + 2
    for short in (0, "64K", -1):
        assert (await scene.set(k.READAHEAD_RANGE, short)).options == default
    both = scene.builder().opt(k.READAHEAD_RANGE, "1G").opt(k.PREFETCH_BLOCK_COUNT, 2)
    assert (await both.build()).options.prefetch_blocks == 2
    blocks = scene.builder().opt(k.READAHEAD_RANGE, "1M").opt(k.PREFETCH_BLOCK_SIZE, "64K")
    assert (await blocks.build()).options.prefetch_blocks == 16
    # The newer of S3A's two names wins. (Clause 45 has the standard one.)
    fadvise = scene.builder().opt(k.EXPERIMENTAL_FADVISE, "csv").opt(k.INPUT_FADVISE, "random")
    assert policy_of(await fadvise.build()) == "random"
    # Nothing is ever drained here, and blocks are bounded in bytes.
    for key in (k.ASYNC_DRAIN_THRESHOLD, k.PREFETCH_MAX_BLOCKS_COUNT, k.VECTORED_ACTIVE_READS):
        assert (await scene.set(key, "16K")).options == default
    # The type of S3A's stream is a flag here, behind the flag itself.
    for kind, enabled in (("prefetch", True), ("classic", False), ("analytics", True), ("none such", True)):
        assert (await scene.set(k.STREAM_TYPE, kind)).options.prefetch_enabled is enabled
    flagged = scene.builder().opt(k.STREAM_TYPE, "classic").opt(k.PREFETCH_ENABLED, "true")
    assert (await flagged.build()).options.prefetch_enabled
    # Vectored reads: the gap and the size of merged requests are those of the policy otherwise.
    vectored = scene.builder(read_policy="random").opt(k.VECTORED_GAP, "4K").opt(k.VECTORED_REQUEST, "1M")
    figures = (await vectored.build()).options.policy
    assert (figures.name, figures.gap_bytes, figures.request_bytes_max) == ("random", 4096, 1 << 20)
    figures = (await scene.set(k.VECTORED_GAP, 0)).options.policy
    assert (figures.gap_bytes, figures.request_bytes_max) == (0, default.policy.request_bytes_max)
    # Positional reads past the buffer: exact ranges, unless a policy is named.
    assert policy_of(await scene.set(k.BUFFERED_PREAD_DISABLE, "true")) == "random"
    assert (await scene.set(k.BUFFERED_PREAD_DISABLE, "false")).options == default
    for policy, expected in (("csv", "csv"), ("unknown", "random")):
        builder = scene.builder(read_policy=policy).opt(k.BUFFERED_PREAD_DISABLE, "true")
        assert policy_of(await builder.build()) == expected


@clause(68)
async def _(scene: Scene) -> None:
    """Options propagate from a configuration, by two prefixes."""
    job = {
        "mapreduce.job.input.file.option.fs.option.openfile.read.policy": "random",
        "mapreduce.job.input.file.option.fs.example.unknown": "1",
        "mapreduce.job.input.file.must.fs.option.openfile.length": "1000",
        "mapreduce.job.input.file.option.fs.option.openfile.length": "5",
        "mapreduce.job.input.file.optional.fs.option.openfile.buffer.size": "7",
        "fs.option.openfile.buffer.size": "9",
    }
    reader = await scene.builder().propagate(job).build()
    assert (policy_of(reader), reader.size) == ("random", 1000)
    assert reader.options.chunk_bytes == scene.default.chunk_bytes
    own = {"x.opt.fs.option.openfile.length": 3, "x.must.fs.example.unknown": 1}
    with pytest.raises(ConfigInvalid, match=r"'fs\.example\.unknown'"):
        scene.builder().propagate(own, option_prefix="x.opt", must_prefix="x.must").build()
    builder = scene.builder(length=4).propagate(own, option_prefix="x.opt.", must_prefix="y")
    assert (await builder.build()).size == 3
    assert (await builder.opt(k.LENGTH, 6).build()).size == 6


@clause(69)
async def _(scene: Scene) -> None:
    """What a stream can do is found out by name, in any case."""
    reader = await scene.open()
    assert {name: reader.has_capability(name) for name in CAPABILITIES} == CAPABILITIES
    assert {name: reader.has_capability(name.upper()) for name in CAPABILITIES} == CAPABILITIES
