"""Opening: no HEAD, one GET, whatever the first read is and however many ask at once."""

import asyncio

import pytest

from aioprefetch.errors import (
    ConfigInvalid,
    NotFound,
    ObjectChanged,
    RangeNotSatisfied,
    Unavailable,
    Unexpected,
)
from aioprefetch.reader.policy import find_policy
from tests.profile import combinations, each_of
from tests.stores.gated_reader import KIB, MIB, bench, settle, with_etag, with_total

BLOCK = 64 * KIB


async def test_unknown_size_costs_one_get_and_no_head() -> None:
    async with bench(BLOCK - 1) as b, b.reader() as reader:
        assert (reader.size, reader.etag, b.calls) == (None, None, [])
        assert await reader.read_at(100, 50) == b.data[100:150]
        assert await reader.read() == b.data
        assert reader.size == BLOCK - 1
        assert reader.etag is not None
        assert b.ranges == [(0, BLOCK)]
        assert b.gate.stats == []


async def test_a_hundred_tasks_on_an_unopened_reader() -> None:
    """Each block is fetched once, the first one included; no task asks for the size."""
    async with bench(2 * MIB - 1000) as b, b.reader() as reader:
        offsets = [n * 20_963 for n in range(100)]
        found = await asyncio.gather(*(reader.read_at(offset, 500) for offset in offsets))
        assert found == [b.data[offset : offset + 500] for offset in offsets]
        touched = {block for offset in offsets for block in (offset // BLOCK, (offset + 499) // BLOCK)}
        assert len(b.calls) == len(touched) == len(set(b.ranges))
        assert b.gate.stats == []


async def test_a_first_read_beyond_the_end_learns_the_size() -> None:
    async with bench(1000) as b, b.reader() as reader:
        assert await reader.read_at(10 * BLOCK, 5) == b""
        assert reader.size == 1000
        assert await reader.read_at(10 * BLOCK, 5) == b""
        assert len(b.calls) == 1
        assert await reader.read_at(990, 50) == b.data[990:]
        assert len(b.calls) == 2


async def test_an_empty_read_asks_for_nothing() -> None:
    async with bench() as b, b.reader() as reader:
        assert await reader.read_at(5, 0) == b""
        assert await reader.read(0) == b""
        assert await reader.readinto(bytearray()) == 0
        assert b.calls == []


async def test_a_missing_object() -> None:
    async with bench() as b, b.operator.reader("none") as reader:
        for _ in range(2):
            with pytest.raises(NotFound) as caught:
                await reader.read_at(0, 10)
            assert (caught.value.operation, caught.value.path) == ("read", "none")
            assert caught.value.__cause__ is not caught.value
        assert reader.statistics["stream_read_exceptions"] == 2
        b.put(b"now it is there", "none")
        assert await reader.read_at(0, 3) == b"now"


async def test_a_declared_size_is_where_reads_end() -> None:
    async with bench(1000) as b, b.reader(size=400) as reader:
        assert reader.size == 400
        assert await reader.read_at(0, 1000) == b.data[:400]
        assert await reader.read_at(400, 10) == b""
        assert reader.seek(0, 2) == 400
        assert b.gate.stats == []
        assert len(b.calls) == 1


@each_of(
    ("declared", "pinned", "offset"), combinations([1001, 5000, 3 * BLOCK], [False, True], [0, 999, 1000, BLOCK + 7])
)
async def test_a_declared_size_that_is_too_long_hides_nothing_of_the_object(
    declared: int, pinned: bool, offset: int
) -> None:
    """Reads are short where the object ends, and an exact read that goes on from there is an end of file."""
    async with bench(1000) as b:
        etag = (await b.operator.stat("k")).etag
        async with b.reader(size=declared, etag=etag if pinned else None) as reader:
            assert await reader.read_at(offset, declared) == b.data[offset:]
            if offset < declared:
                assert reader.size == 1000
                assert len(b.calls) <= 2
            with pytest.raises(EOFError) as caught:
                await reader.read_exactly_at(offset, declared)
            assert isinstance(caught.value, RangeNotSatisfied)
            assert caught.value.total == (1000 if offset < declared else declared)
            assert len(b.calls) <= 3


async def test_size_and_etag_given_cost_exactly_the_blocks() -> None:
    async with bench(4 * BLOCK) as b:
        etag = (await b.operator.stat("k")).etag
        b.gate.stats.clear()
        async with b.reader(size=4 * BLOCK, etag=f'"{etag}"') as reader:
            assert await reader.read_at(2 * BLOCK + 1, 10) == b.data[2 * BLOCK + 1 : 2 * BLOCK + 11]
        assert b.ranges == [(2 * BLOCK, 3 * BLOCK)]
        assert b.calls[0].request.if_match == etag
        assert b.gate.stats == []


@pytest.mark.parametrize("size", [None, 1000])
async def test_a_wrong_etag_is_a_changed_object(size: int | None) -> None:
    async with bench(1000) as b, b.reader(etag="stale", size=size) as reader:
        with pytest.raises(ObjectChanged) as caught:
            await reader.read_at(0, 10)
        now = (await b.operator.stat("k")).etag
        assert (caught.value.expected_etag, caught.value.actual_etag) == ("stale", now)
        assert (caught.value.operation, caught.value.path) == ("read", "k")
        await reader.reopen()
        assert reader.etag == now
        assert await reader.read_at(0, 10) == b.data[:10]


async def test_an_overwritten_object_never_mixes() -> None:
    async with bench() as b, b.reader() as reader:
        old = b.data
        assert await reader.read_at(0, 10) == old[:10]
        pinned, now = reader.etag, b.put(bytes(MIB))
        assert await reader.read_at(5, 100) == old[5:105]
        for _ in range(2):
            with pytest.raises(ObjectChanged) as caught:
                await reader.read_at(5 * BLOCK, 10)
            assert (caught.value.expected_etag, caught.value.actual_etag) == (pinned, now)
        assert await reader.read_at(5, 100) == old[5:105]
        assert reader.statistics["stream_read_exceptions"] == 2
        assert b.runtime.statistics()["stream_read_version_mismatches"] == 2
        reader.seek(77)
        await reader.reopen()
        assert (reader.tell(), reader.etag) == (77, now)
        assert await reader.read_at(5 * BLOCK, 10) == bytes(10)
        assert await reader.read_at(5, 10) == bytes(10)


async def test_a_deleted_object_is_a_changed_one() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
        b.store.remove("k")
        with pytest.raises(ObjectChanged, match="deleted") as caught:
            await reader.read_at(5 * BLOCK, 10)
        assert caught.value.actual_etag is None
        assert await reader.read_at(0, 10) == b.data[:10]
        with pytest.raises(NotFound):
            await reader.reopen()


async def test_without_etags_another_size_gives_it_away() -> None:
    """S21, S31: a store without versions; a changed total is a changed object."""
    async with bench() as b, b.reader() as reader:
        b.gate.falsify = with_etag(None)
        assert await reader.read_at(0, 10) == b.data[:10]
        assert reader.etag is None
        b.put(bytes(MIB + 1))
        with pytest.raises(ObjectChanged):
            await reader.read_at(5 * BLOCK, 10)


async def test_without_etags_readers_share_nothing() -> None:
    """Nothing tells whether two readers see one object, so a new reader never gets an old one's bytes."""
    async with bench(4 * BLOCK) as b:
        b.gate.falsify = with_etag(None)
        for version in range(5):
            data = bytes([version]) * 4 * BLOCK
            b.put(data)
            reader = b.reader()
            assert await reader.read_at(0, 4 * BLOCK) == data
            await reader.aclose()
            del reader
            await settle()
            assert b.runtime.budget.used_bytes == 0


async def test_without_etags_not_even_readers_open_at_once_share() -> None:
    async with bench(BLOCK) as b, b.reader() as old, b.reader() as new:
        b.gate.falsify = with_etag(None)
        assert await old.read_at(0, 10) == b.data[:10]
        b.put(bytes(BLOCK))
        assert await new.read_at(0, 10) == bytes(10)
        assert await old.read_at(0, 10) == b.data[:10]


async def test_a_total_that_changes_under_the_same_etag_is_found_out() -> None:
    async with bench() as b, b.reader() as reader:
        await reader.read_at(0, 10)
        b.gate.falsify = with_total(MIB + 5)
        with pytest.raises(ObjectChanged):
            await reader.read_at(5 * BLOCK, 10)


async def test_a_store_that_never_tells_the_size_is_refused() -> None:
    async with bench() as b, b.reader() as reader:
        b.gate.falsify = lambda head: type(head)(start=head.start, size=head.size, total=None, etag=head.etag)
        with pytest.raises(Unexpected, match="size"):
            await reader.read_at(0, 10)
        assert b.runtime.budget.used_bytes == 0


async def test_a_failed_opening_leaves_the_reader_usable() -> None:
    async with bench() as b, b.reader() as reader:
        b.gate.open = False
        tasks = [asyncio.create_task(reader.read_at(n * BLOCK, 10)) for n in range(3)]
        (await b.next_call()).fail(Unavailable("down"))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in results] == [Unavailable] * 3
        b.gate.open = True
        assert await reader.read_at(0, 10) == b.data[:10]


async def test_the_tail_comes_first_for_formats_with_footers() -> None:
    async with bench() as b:
        for options, tail in (
            ({"policy": "parquet"}, BLOCK),
            ({"footer_cache": True}, BLOCK),
            ({"footer_cache": 99}, 99),
        ):
            async with b.reader(**options) as reader:
                b.calls.clear()
                assert await reader.read_at(MIB - 8, 8) == b.data[-8:]
                assert b.calls[0].request.suffix == tail
                await reader.unbuffer()
        async with b.reader(policy="parquet", footer_cache=False) as reader:
            b.calls.clear()
            await reader.read_at(0, 8)
            assert b.ranges == [(0, 8)]


async def test_a_small_object_comes_whole_with_its_footer() -> None:
    async with bench(BLOCK - 7) as b, b.reader(policy="parquet") as reader:
        assert await reader.read_at(0, 4) == b.data[:4]
        reader.seek(-8, 2)
        assert await reader.read() == b.data[-8:]
        assert len(b.calls) == 1


@each_of(
    "wrong",
    [
        {"policy": "fast"},
        {"policy": ""},
        {"policy": None},
        {"policy": [5]},
        {"block_bytes": 0},
        {"block_bytes": "8 parsecs"},
        {"block_bytes": 1 << 40},
        {"prefetch_blocks": -1},
        {"size": -1},
        {"size": 1.5},
        {"etag": 5},
        {"version": 5},
        {"split": (5, 1)},
        {"split": 5},
        {"buffer_bytes": 0},
        {"footer_cache": 0},
    ],
)
async def test_options_that_cannot_be_are_refused_at_once(wrong: dict[str, object]) -> None:
    async with bench() as b:
        with pytest.raises((ValueError, TypeError)) as caught:
            b.reader(**wrong)
        assert getattr(caught.value, "operation", None) == "reader"
        assert getattr(caught.value, "path", None) == "k"
        assert str(caught.value).count("reader 'k'") == 1


def test_unknown_policy_names_the_known() -> None:
    assert find_policy("nonsense, PARQUET , random", operation="x", path="k").name == "parquet"
    with pytest.raises(ConfigInvalid, match="random"):
        find_policy("nonsense", operation="x", path="k")
    for name, meant in {
        "readahead": "adaptive",
        "all": "whole-file",
        "none": "random",
        "Seqential": "sequential",
    }.items():
        with pytest.raises(ConfigInvalid, match=rf"; did you mean '{meant}'\?"):
            find_policy(name, operation="x", path="k")


async def test_nothing_is_sent_before_bytes_are_wanted() -> None:
    async with bench() as b:
        reader = b.reader(policy="parquet")
        reader.seek(100)
        reader.will_need([(0, 10)])
        reader.set_policy("random")
        twin = reader.clone()
        await reader.aclose()
        await twin.aclose()
        assert (b.calls, b.gate.stats) == ([], [])


@each_of("policy", ["adaptive", "sequential", "random"])
@each_of(
    ("split", "offset", "size", "asked"),
    [
        ((0, 500), 0, 500, (0, 500)),
        ((1000, 5000), 1000, 4000, (1000, 5000)),
        ((0, 500), 0, 600, (0, 600)),
        ((0, 500), 600, 100, None),
        ((0, 3 * BLOCK), 0, BLOCK, (0, BLOCK)),
        ((5, BLOCK), 5, 100, None),
    ],
)
async def test_a_reader_of_a_bounded_range_begins_with_that_range(
    policy: str, split: tuple[int, int], offset: int, size: int, asked: tuple[int, int] | None
) -> None:
    async with bench(4 * BLOCK) as b, b.reader(policy=policy, split=split) as reader:
        assert await reader.read_at(offset, size) == b.data[offset : offset + size]
        expected = asked or ((offset, offset + size) if policy == "random" else (0, BLOCK))
        assert b.ranges == [expected]
        assert await reader.read_at(0, 3 * BLOCK) == b.data[: 3 * BLOCK]


async def test_a_reader_of_bytes_that_are_held_asks_after_their_version_alone() -> None:
    """Although the block that its policy would bring is held only in part."""
    async with bench(BLOCK) as b:
        async with b.reader(policy="random") as reader:
            await reader.read_at(0, 1000)
            etag = reader.etag
        async with b.reader() as reader:
            assert await reader.read_at(100, 500) == b.data[100:600]
            assert b.calls[-1].request.if_none_match == etag
            assert reader.statistics["stream_read_bytes"] == 500
        b.put(bytes(BLOCK))
        async with b.reader() as reader:
            assert await reader.read_at(100, 500) == bytes(500)
        assert len(b.calls) == 3


async def test_a_later_answer_with_another_etag_and_the_same_size_is_another_version() -> None:
    """Also where what lies below neither understands conditions nor compares what it gets."""
    async with bench(4 * BLOCK) as b, b.reader() as reader:
        assert await reader.read_at(0, 100) == b.data[:100]
        b.gate.falsify = with_etag("another")
        with pytest.raises(ObjectChanged) as caught:
            await reader.read_at(BLOCK, 100)
        assert (caught.value.expected_etag, caught.value.actual_etag) == (reader.etag, "another")
        assert await reader.read_at(0, 100) == b.data[:100]
