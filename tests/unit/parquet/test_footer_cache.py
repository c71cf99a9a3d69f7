"""Footers that are kept: by store, path and ETag, asked about instead of read again, bounded in bytes."""

import pyarrow as pa
import pytest

from aioprefetch.errors import (
    ConditionNotMatch,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.footer import (
    FooterCache,
    footer,
)
from aioprefetch.values import Capability
from tests.stores.gated_reader import bench, with_etag
from tests.unit.parquet.footers import PLAIN, large_file, read
from tests.unit.parquet.parquet_files import (
    written,
)

pytestmark = pytest.mark.virtual


async def test_a_kept_footer_is_asked_about_and_not_read_again() -> None:
    async with bench() as b:
        first = await read(b, PLAIN)
        again = await footer(b.operator, "k")
        assert again.metadata is first.metadata
        assert [call.request.if_none_match for call in b.calls] == [None, first.etag]
        b.calls.clear()
        assert (await footer(b.operator, "k", if_match=first.etag)).metadata is first.metadata
        assert b.calls == []


async def test_another_version_replaces_it() -> None:
    async with bench() as b:
        first = await read(b, PLAIN)
        second = await read(b, written(pa.table({"z": [1]})))
        assert second.schema.names == ["z"]
        assert second.etag != first.etag
        assert (await footer(b.operator, "k")).metadata is second.metadata
        # What is asked for by its ETag is what had it, though the store has another one by now.
        assert (await footer(b.operator, "k", if_match=first.etag)).metadata is first.metadata
        with pytest.raises(ConditionNotMatch):
            await footer(b.operator, "k", if_match="another")


async def test_a_store_without_conditions_is_read_again_but_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operator, "capability", Capability(read=True))
    async with bench() as b:
        first = await read(b, PLAIN)
        again = await footer(b.operator, "k", everything=True)
        assert [call.request.if_none_match for call in b.calls] == [None, None]
        assert again.metadata is first.metadata
        assert again.pinned is not first.pinned


@pytest.mark.parametrize("etag", [None, "W/modified-1"])
async def test_a_footer_without_a_strong_etag_is_not_kept(etag: str | None) -> None:
    async with bench() as b:
        b.operator.accessor()
        b.gate.falsify = with_etag(etag)
        first = await read(b, PLAIN)
        again = await footer(b.operator, "k")
        assert again.metadata is not first.metadata
        assert [call.request.if_none_match for call in b.calls] == [None, None]


async def test_stores_and_operators_do_not_mix() -> None:
    async with bench() as one, bench() as other:
        await read(one, PLAIN)
        found = await read(other, written(pa.table({"z": [1]})))
        assert found.schema.names == ["z"]


async def test_reads_of_a_kept_footer_go_through_the_operator_that_asks() -> None:
    data = large_file()
    async with bench() as b:
        await read(b, data)
        derived = b.operator.layer(type(b.operator.layers[0])())
        found = await footer(derived, "k")
        assert found.pinned._accessor is derived.accessor()
        b.calls.clear()
        assert await found.pinned.read(4, 100) == data[4:100]


async def test_the_cache_is_bounded_by_bytes() -> None:
    async with bench() as b:
        footers = [await read(b, PLAIN, f"k{number}") for number in range(4)]
        held = len(PLAIN) + 10 * len(footers[0].raw)
        cache = FooterCache(2 * held)
        for number, one in enumerate(footers):
            cache.add((("store",), f"k{number}"), one)
            cache.find((("store",), "k0"))
        assert [cache.find((("store",), f"k{n}")) is not None for n in range(4)] == [True, False, False, True]
        assert cache.held_bytes == 2 * held
        cache.add((("store",), "k3"), footers[3])
        assert cache.held_bytes == 2 * held
        FooterCache(held - 1).add((("store",), "k"), footers[0])  # Larger than the cache: not kept, no error.
