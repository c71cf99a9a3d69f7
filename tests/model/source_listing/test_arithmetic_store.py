"""The arithmetic store, and the lister at a size at which its costs show."""

import pytest

from aioprefetch import Operator
from aioprefetch.source.list.diff_lister import DiffLister
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ListRequest
from tests.profile import chosen
from tests.stores.computed_listing import ArithmeticStore
from tests.stores.dict_index import Consumer, DictIndex

OPTIONS = ListOptions(interval_seconds=0.0, ahead_pages=2, sweep_pages=10)


async def test_pages_are_in_order_and_begin_anywhere() -> None:
    store = ArithmeticStore(10_000_000, page_entries=3)
    assert store.number(store.key(1_234_567)) == 1_234_567
    async with Operator.bare(store) as operator:
        page = await operator.accessor().list_page(
            ListRequest(path="", recursive=True, start_after=store.key(9_999_990) + "x")
        )
        assert [store.number(entry.path) for entry in page.entries] == [9_999_991, 9_999_992, 9_999_993]
        assert len(ArithmeticStore.key(0)) == len(page.entries[0].path) == 30
    keys = [store.key(number) for number in range(0, 10_000_000, 99_991)]
    assert keys == sorted(keys)


FILES = chosen(quick=10_000, full=20_000)


@checks("source:L5", "source:L11")
@pytest.mark.parametrize("kind", [TailSweepLister, DiffLister])
async def test_the_cost_of_a_large_bucket(kind: type[TailSweepLister] | type[DiffLister]) -> None:
    """Requests of both cursors: one for each page of new keys; some for the sweep in each trigger."""
    store = ArithmeticStore(FILES)
    async with Operator.bare(store) as operator:
        known = DictIndex()
        one = Consumer(kind(operator, OPTIONS, known), known)
        triggers = 0
        while len(one.delivered) < FILES:
            before = store.requests
            await one.trigger(room=10_000)
            triggers += 1
            assert store.requests - before <= 10 + 1 + 2 * OPTIONS.ahead_pages
        assert triggers == FILES // 10_000
        assert one.known.rows_max <= 1100
        before = store.requests
        assert await one.trigger() == []
        assert store.requests - before <= 1 + OPTIONS.sweep_pages + OPTIONS.ahead_pages
        store.without = {7, FILES - 5_000}
        store.versions = {FILES - 4_000: 1}
        reported = sorted((change.kind, store.number(change.file.key)) for change in await one.through())
        assert reported == [("gone", 7), ("gone", FILES - 5_000), ("overwritten", FILES - 4_000)]
        await one.feed.aclose()  # type: ignore[attr-defined]
