"""read_merged against slicing, for every gap and maximum."""

from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import RangeNotSatisfied
from aioprefetch.testing import run_virtual
from tests.stores.gated_reader import bench

ranges = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100)).map(lambda p: (p[0], p[0] + p[1])), max_size=10)


@given(ranges, st.none() | st.integers(0, 200), st.none() | st.integers(1, 600), st.integers(0, 500))
def test_is_slicing(wanted: list[tuple[int, int]], gap: int | None, most: int | None, size: int) -> None:
    async def run() -> None:
        async with bench(size) as b:
            beyond = any(end > size and end > start for start, end in wanted)
            try:
                found = await b.operator.read_ranges("k", wanted, gap_bytes=gap, request_bytes_max=most)
            except RangeNotSatisfied:
                assert beyond
                return
            assert not beyond
            assert found == [b.data[start:end] for start, end in wanted]
            distinct = {one for one in wanted if one[1] > one[0]}
            assert len(b.calls) <= len(distinct)

    run_virtual(run)


async def test_a_small_view_does_not_keep_the_memory_of_its_whole_response() -> None:
    """Less than a quarter of a merged response is copied out of it; a quarter, and more, is viewed in place."""
    async with bench(200) as b:
        small, quarter, rest = await b.operator.view_ranges("k", [(0, 24), (24, 49), (49, 100)], gap_bytes=0)
        assert len(b.calls) == 1
        assert [bytes(view) for view in (small, quarter, rest)] == [b.data[:24], b.data[24:49], b.data[49:100]]
        assert quarter.obj is rest.obj
        assert small.obj == b.data[:24]
