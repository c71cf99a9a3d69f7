"""One batch takes what its limits allow, in order, and loses nothing of what it cuts."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.fetch.partitioning import (
    CUT_BYTES_MIN,
    ROW_BYTES_GUESS,
    Admission,
    CanSplit,
    limits_of,
    narrowed,
)
from aioprefetch.source.options import AdmissionOptions
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.testing.conformance.suite import checks


def admit(
    items: Sequence[FetchItem], options: AdmissionOptions, can_split: CanSplit
) -> tuple[list[FetchItem], list[FetchItem]]:
    """The items of one batch, and the rest, both in order."""
    admission = Admission(limits_of(options), can_split)
    for number, item in enumerate(items):
        if not admission.offer(item):
            admission.wait(items[number:])
            break
    return admission.items, admission.carry


def can_split(file: SourceFile) -> bool:
    return file.key.endswith(".jsonl")


def item(name: str, size: int) -> FetchItem:
    return FetchItem(SourceFile(name, size))


sizes = st.integers(0, 400)
found = st.lists(st.tuples(sizes, st.booleans()), max_size=12).map(
    lambda rows: [item(f"{number:02}.{'jsonl' if cut else 'gz'}", size) for number, (size, cut) in enumerate(rows)]
)
limits = st.builds(
    AdmissionOptions,
    files_max=st.none() | st.integers(1, 6),
    bytes_max=st.none() | st.integers(1, 500),
    rows_max=st.none() | st.integers(1, 5),
    plan_files_max=st.integers(1, 8),
)


def covered(items: list[FetchItem]) -> list[tuple[str, int, int]]:
    """The bytes of each file, neighbouring ranges as one."""
    ranges: list[tuple[str, int, int]] = []
    for one in items:
        if ranges and ranges[-1][0] == one.file.key and ranges[-1][2] == one.start:
            ranges[-1] = (one.file.key, ranges[-1][1], one.stop)
        else:
            ranges.append((one.file.key, one.start, one.stop))
    return ranges


@checks("source:F10")
@given(found, limits)
def test_a_batch_loses_no_byte_and_takes_none_twice(items: list[FetchItem], options: AdmissionOptions) -> None:
    taken, carry = admit(items, options, can_split)
    assert covered([*taken, *carry]) == covered(items)


@given(found, limits)
def test_limits_hold_except_for_one_item(items: list[FetchItem], options: AdmissionOptions) -> None:
    taken, _ = admit(items, options, can_split)
    assert len(taken) <= min(options.files_max or 99, options.plan_files_max)
    bytes_max = limits_of(options).bytes_max
    if bytes_max is not None and len(taken) > 1:
        assert sum(one.bytes for one in taken) <= bytes_max
    assert bool(taken) == bool(items)


@checks("source:F5")
@given(found, limits)
def test_all_is_delivered_in_order_over_several_batches(items: list[FetchItem], options: AdmissionOptions) -> None:
    batches, rest = [], items
    while rest:
        taken, rest = admit(rest, options, can_split)
        batches.append(taken)
    delivered = [one for batch in batches for one in batch]
    assert covered(delivered) == covered(items)
    assert all(one.is_whole for one in delivered if not can_split(one.file))


def test_a_file_larger_than_the_room_is_cut_where_the_room_ends() -> None:
    options = AdmissionOptions(bytes_max=100)
    taken, carry = admit([item("a.jsonl", 70), item("b.jsonl", 500)], options, can_split)
    assert [(one.file.key, one.start, one.stop) for one in taken] == [("a.jsonl", 0, 70), ("b.jsonl", 0, 30)]
    assert [(one.file.key, one.start, one.stop) for one in carry] == [("b.jsonl", 30, 500)]


def test_a_file_is_not_cut_for_a_sliver() -> None:
    options = AdmissionOptions(bytes_max=8 * CUT_BYTES_MIN)
    large = item("b.jsonl", 100 * CUT_BYTES_MIN)
    taken, carry = admit([item("a.gz", 7 * CUT_BYTES_MIN + 1), large], options, can_split)
    assert ([one.file.key for one in taken], carry) == (["a.gz"], [large])


def test_an_unsplittable_file_comes_whole_and_alone() -> None:
    options = AdmissionOptions(bytes_max=100)
    taken, carry = admit([item("a.gz", 700), item("b.gz", 1)], options, can_split)
    assert ([one.file.key for one in taken], [one.file.key for one in carry]) == (["a.gz"], ["b.gz"])


def test_a_newer_version_takes_the_place_of_what_waits() -> None:
    admission = Admission(limits_of(AdmissionOptions()), can_split)
    admission.offer(FetchItem(SourceFile("a", 10, "1"), 5))
    admission.offer(item("b", 3))
    admission.wait([FetchItem(SourceFile("a", 10, "1"), 7)])
    newer = SourceFile("a", 20, "2")
    admission.offer(FetchItem(newer))
    admission.supersede(newer)
    assert [(one.file.key, one.file.etag) for one in admission.items] == [("b", None), ("a", "2")]
    assert (admission.carry, admission.bytes) == ([], 23)


def test_rows_count_as_bytes() -> None:
    assert limits_of(AdmissionOptions(rows_max=10)).bytes_max == 10 * ROW_BYTES_GUESS
    assert limits_of(AdmissionOptions(rows_max=10, bytes_max=7)).bytes_max == 7


def test_the_limit_of_the_engine_holds_beside_those_of_the_source() -> None:
    own = AdmissionOptions(files_max=10, bytes_max=100, plan_files_max=50)
    assert narrowed(own, None) is own
    asked = narrowed(own, AdmissionOptions(files_max=3))
    assert (asked.files_max, asked.bytes_max, asked.plan_files_max) == (3, 100, 50)
    everything = narrowed(own, AdmissionOptions())
    assert (everything.files_max, everything.bytes_max, everything.plan_files_max) == (None, None, 50)


@pytest.mark.parametrize("name", ["files_max", "bytes_max", "rows_max", "plan_files_max"])
def test_a_limit_that_admits_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"{name} must be above 0, not 0"):
        limits_of(AdmissionOptions(**{name: 0}))
