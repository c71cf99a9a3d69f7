"""What each read policy asks of the store for one and the same script of reads: a table, request by request."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aioprefetch import RangeReader
from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.reader.policy import ALIASES, POLICIES, PolicyName
from aioprefetch.testing.oracle import assert_same_bytes, pattern
from tests.stores.computed_store import KIB, MIB, Arithmetic
from tests.stores.gated_reader import settle

# What is asked for depends on how long a first byte takes: no time here, however busy the machine is.
pytestmark = pytest.mark.virtual

SIZE = 64 * MIB
BLOCK = MIB
AHEAD = 2


class Script:
    """Reads of one reader, each compared with the content and followed to its end, and what they asked for.

    A request is written ``first-end`` in KiB, in brackets when it went out in the prefetch lane.
    """

    def __init__(self, service: Arithmetic, reader: RangeReader) -> None:
        self.reader = reader
        self._service = service
        self._told = 0

    def take(self) -> str:
        """The requests since the last call, in order."""
        found = self._service.log[self._told :]
        self._told = len(self._service.log)
        names = [(f"{one.start / KIB:g}-{one.end / KIB:g}", one.lane) for one in found]
        return " ".join(name if lane == "demand" else f"({name})" for name, lane in names)

    async def read(self, *ranges: tuple[int, int]) -> str:
        """Reads by position: offset and size in KiB."""
        for offset, size in ranges:
            data = await self.reader.read_at(offset * KIB, size * KIB)
            assert_same_bytes(data, pattern(offset * KIB, (offset + size) * KIB), offset=offset * KIB)
            await settle(100)
        return self.take()

    async def read_ranges(self, *ranges: tuple[int, int]) -> str:
        """One call for several ranges: offset and size in KiB."""
        wanted = [(offset * KIB, (offset + size) * KIB) for offset, size in ranges]
        parts = await self.reader.read_ranges(wanted)
        for (start, end), part in zip(wanted, parts, strict=True):
            assert_same_bytes(part, pattern(start, end), offset=start)
        await settle(100)
        return self.take()

    async def header(self) -> str:
        """A small read, in the middle of a block."""
        return await self.read((10752, 4))

    async def run(self) -> str:
        """Four reads in order, the whole of a block."""
        return await self.read(*((20480 + n * 256, 256) for n in range(4)))

    async def scattered(self) -> str:
        """Three small reads far from each other."""
        return await self.read((30720, 4), (40960, 4), (46080, 4))

    async def vectored(self) -> str:
        """Two ranges 256 KiB apart, in one call."""
        return await self.read_ranges((51200, 64), (51520, 64))

    async def all(self) -> list[str]:
        """The canonical script: what entering the reader asked for, then everything above."""
        await settle(100)
        opening = self.take()
        return [opening, await self.header(), await self.run(), await self.scattered(), await self.vectored()]


@asynccontextmanager
async def script(policy: str, **options: object) -> AsyncIterator[Script]:
    """A script for a reader of 64 blocks that may look two blocks ahead."""
    service = Arithmetic(SIZE)
    async with (
        Operator(service, block_bytes=BLOCK, prefetch_blocks=AHEAD) as operator,
        operator.reader("k", policy=policy, **options) as reader,  # type: ignore[arg-type]
    ):
        yield Script(service, reader)


async def trace(policy: str, **options: object) -> list[str]:
    """What the canonical script asks for."""
    async with script(policy, **options) as made:
        return await made.all()


# Entering the reader; a small read; a run; scattered reads; two ranges in one call.
TRACES = {
    "adaptive": [
        "",
        "10240-11264",
        "20480-21504 (21504-22528)",
        "30720-30724 40960-40964 46080-46084",
        "51200-51584",
    ],
    "sequential": [
        "",
        "10240-11264 (11264-12288) (12288-13312)",
        "20480-21504 (21504-22528) (22528-23552)",
        "30720-31744 (31744-32768) (32768-33792)"
        " 40960-41984 (41984-43008) (43008-44032)"
        " 46080-47104 (47104-48128) (48128-49152)",
        "51200-51584",
    ],
    "whole-file": [
        "0-1024",
        "10240-11264 (11264-12288) (12288-13312)",
        "20480-21504 (21504-22528) (22528-23552)",
        "30720-31744 (31744-32768) (32768-33792) 40960-41984 (41984-43008) (43008-44032) 46080-47104 (47104-49152)",
        "51200-51584",
    ],
    "random": [
        "",
        "10752-10756",
        "20480-20736 20736-20992 20992-21248 21248-21504",
        "30720-30724 40960-40964 46080-46084",
        "51200-51264 51520-51584",
    ],
    "vector": [
        "",
        "10752-10756",
        "20480-20736 20736-20992 20992-21248 21248-21504",
        "30720-30724 40960-40964 46080-46084",
        "51200-51584",
    ],
    "hbase": [
        "",
        "64512-65536 10752-10756",
        "20480-20736 20736-20992 20992-21248 21248-21504",
        "30720-30724 40960-40964 46080-46084",
        "51200-51264 51520-51584",
    ],
    "columnar": [
        "",
        "10752-10756",
        "20480-20736 20736-20992 20992-21248 (21248-22016) (22016-22528)",
        "30720-30724 40960-40964 46080-46084",
        "51200-51584",
    ],
    "parquet": [
        "",
        "64512-65536 10752-10756",
        "20480-20736 20736-20992 20992-21248 (21248-22016) (22016-22528)",
        "30720-30724 40960-40964 46080-46084",
        "51200-51584",
    ],
}

NAMES = (
    *("adaptive", "sequential", "whole-file", "random", "vector", "hbase", "columnar", "parquet"),
    *("default", "avro", "csv", "json", "orc"),
)


@pytest.mark.parametrize("policy", TRACES)
async def test_the_trace_of_each_policy(policy: str) -> None:
    assert await trace(policy) == TRACES[policy]


def test_no_two_policies_have_one_trace() -> None:
    """A policy that changes no request would be an alias, and would have to say so."""
    assert len({tuple(one) for one in TRACES.values()}) == len(TRACES)


def test_the_thirteen_names() -> None:
    """Every name of Hadoop's option is a row of the table or an alias of one, and there is no other."""
    assert sorted(POLICIES) == sorted(NAMES)
    assert sorted((*TRACES, *ALIASES)) == sorted(NAMES)


@pytest.mark.parametrize("policy", ALIASES)
async def test_an_alias_has_the_trace_of_what_it_means(policy: str) -> None:
    assert await trace(policy) == TRACES[ALIASES[policy]]


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ("parquet, random", "parquet"),
        ("unheard-of, columnar,parquet", "columnar"),
        (" ,, RANDOM , sequential", "random"),
        ("orc", "parquet"),
        (["unheard-of", "hbase", "random"], "hbase"),
        (("Whole-File",), "whole-file"),
    ],
)
async def test_a_list_means_its_first_recognised_name(names: str, meant: str) -> None:
    assert await trace(names) == TRACES[meant]


@pytest.mark.parametrize("names", ["", "unheard-of", "unheard-of, also not", []])
async def test_a_list_without_a_recognised_name_is_refused(names: str) -> None:
    async with Operator(Arithmetic(SIZE)) as operator:
        with pytest.raises(ConfigInvalid, match=r"must name one of adaptive, avro, columnar") as caught:
            operator.reader("k", policy=names)  # type: ignore[arg-type]
    assert repr(names) in str(caught.value)


# --- options beside the policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["parquet", "orc", "hbase"])
async def test_without_footer_cache_no_policy_asks_for_the_tail(policy: str) -> None:
    expected = TRACES[ALIASES.get(policy, policy)]
    assert await trace(policy, footer_cache=False) == [expected[0], "10752-10756", *expected[2:]]


@pytest.mark.parametrize(("footer", "tail"), [(True, "64512-65536"), (64 * KIB, "65472-65536")])
@pytest.mark.parametrize("policy", ["adaptive", "columnar", "parquet"])
async def test_with_footer_cache_the_first_request_is_the_tail(policy: str, footer: bool | int, tail: str) -> None:
    """A block of it, or as many bytes as the caller says. All else is as the policy has it."""
    expected = TRACES[policy]
    first = expected[1].split()[-1]
    assert await trace(policy, footer_cache=footer) == [expected[0], f"{tail} {first}", *expected[2:]]


@pytest.mark.parametrize("policy", [*TRACES, *ALIASES])
async def test_without_prefetching_every_policy_is_plain_ranged_reads(policy: PolicyName) -> None:
    """One request for each read, for exactly what it wants, and none ahead; also after another policy is set."""
    plain = [
        "",
        "10752-10756",
        "20480-20736 20736-20992 20992-21248 21248-21504",
        "30720-30724 40960-40964 46080-46084",
        "51200-51584",
    ]
    assert await trace(policy, prefetch_enabled=False) == plain
    async with script("random", prefetch_enabled=False) as made:
        made.reader.set_policy(policy)
        assert await made.all() == plain


@pytest.mark.parametrize("after", TRACES)
async def test_set_policy_holds_from_the_next_read_on(after: PolicyName) -> None:
    """What was resident stays, what comes is asked for as the new policy has it."""
    async with script("columnar") as made:
        assert await made.header() == "10752-10756"
        made.reader.set_policy(after)
        assert await made.run() == TRACES[after][2]
        assert await made.scattered() == TRACES[after][3]
        assert await made.vectored() == TRACES[after][4]
        assert await made.read((10752, 4), (20480, 1024), (46080, 4)) == ""


async def test_set_policy_to_random_ends_the_window_of_a_run() -> None:
    async with script("sequential") as made:
        await made.read((0, 1024))
        made.reader.set_policy("random")
        assert await made.read((1024, 1024), (2048, 1024)) == ""  # It was on its way already.
        assert await made.read((3072, 256), (3328, 256)) == "3072-3328 3328-3584"


# --- wrong is slow, never wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", NAMES)
async def test_every_policy_reads_the_same_bytes(policy: PolicyName) -> None:
    """Runs, jumps and ranges in all sizes, by position and by cursor, with memory for a quarter of the object."""
    rng = random.Random(13)
    size, block = 4 * MIB + 12345, 64 * KIB
    async with (
        Operator(Arithmetic(size), block_bytes=block, memory_bytes=MIB) as operator,
        operator.reader("k", policy=policy) as reader,
    ):
        for _ in range(40):
            start, length = rng.randrange(size), rng.choice((1, 100, 4 * KIB, block, 5 * block))
            for offset in range(start, start + rng.choice((1, 3, 9)) * length, length):
                expected = pattern(offset, min(size, offset + length))
                assert_same_bytes(await reader.read_at(offset, length), expected, offset=offset)
            reader.seek(start)
            assert_same_bytes(await reader.read(length), pattern(start, min(size, start + length)), offset=start)
            ranges = [(one, min(size, one + length)) for one in (start, start // 2, start // 3)]
            assert await reader.read_ranges(ranges) == [pattern(*one) for one in ranges]
