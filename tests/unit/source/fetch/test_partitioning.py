"""Work is divided by a function of keys and options, so that any number of tasks reads the same."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.fetch.partitioning import divide, partition_count, stable_hash
from aioprefetch.source.options import PartitionOptions
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.testing.conformance.suite import checks

MIB = 1 << 20


def can_split(file: SourceFile) -> bool:
    return file.key.endswith(".jsonl")


def whole(name: str, size: int) -> FetchItem:
    return FetchItem(SourceFile(name, size, "e"))


@st.composite
def batches(draw: st.DrawFn) -> list[FetchItem]:
    """Files, some of them as two ranges, as a batch over several records has them."""
    items: list[FetchItem] = []
    for number, (size, cut) in enumerate(draw(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=15))):
        one = whole(f"k{number}.{'jsonl' if cut else 'gz'}", size)
        items += one.cut(draw(st.integers(1, size - 1))) if cut and size > 1 and draw(st.booleans()) else [one]
    return items


options = st.builds(
    PartitionOptions,
    target_bytes=st.integers(1, 200),
    partitions_max=st.none() | st.integers(1, 9),
    split_files=st.booleans(),
    assign=st.sampled_from(["hash", "size"]),
    slots=st.integers(1, 6),
)


def bytes_of(items: list[FetchItem]) -> Counter[tuple[str, int]]:
    """Every byte of every file, and how often it is read; an empty file is one position."""
    return Counter((one.file.key, at) for one in items for at in (range(one.start, one.stop) if one.bytes else [-1]))


@checks("source:F7")
@given(batches(), options)
def test_any_number_of_tasks_reads_the_same_bytes_once(items: list[FetchItem], how: PartitionOptions) -> None:
    parts = divide(items, how, can_split)
    assert bytes_of([one for part in parts for one in part]) == bytes_of(items)
    assert all(parts)
    assert len(parts) <= partition_count(items, how)
    assert how.partitions_max is None or len(parts) <= how.partitions_max


@checks("source:F1")
@given(batches(), options)
def test_a_file_that_is_not_split_belongs_to_one_task(items: list[FetchItem], how: PartitionOptions) -> None:
    parts = divide(items, how, can_split)
    for key in {one.file.key for one in items if not how.split_files or not can_split(one.file)}:
        assert sum(any(one.file.key == key for one in part) for part in parts) == 1


def printed(code: str) -> set[str]:
    """The outputs of processes with different hashes of text."""
    return {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, text=True
        ).stdout
        for seed in ("1", "2")
    }


WORK_DIVIDED = """
from aioprefetch.source.fetch.partitioning import divide, stable_hash
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.source.options import PartitionOptions

print(stable_hash("a/ü.jsonl"))
items = [FetchItem(SourceFile(f"k{n}", 50 * (n % 7) + 1, "e")) for n in range(40)]
for assign in ("hash", "size"):
    for splits in (False, True):
        how = PartitionOptions(target_bytes=200, slots=6, split_files=splits, assign=assign)
        print(divide(items, how, lambda file: True))
"""


@checks("source:F1", "source:F2")
def test_the_same_work_is_divided_the_same_way_in_all_processes() -> None:
    (output,) = printed(WORK_DIVIDED)
    code, *divisions = output.splitlines()
    assert code == str(stable_hash("a/ü.jsonl"))
    assert len(set(divisions)) > 1


@given(batches(), options)
def test_pieces_of_a_file_keep_their_order_within_a_task(items: list[FetchItem], how: PartitionOptions) -> None:
    for part in divide(items, how, can_split):
        for key in {one.file.key for one in part}:
            starts = [one.start for one in part if one.file.key == key]
            assert starts == sorted(starts)


@checks("source:F1")
def test_a_key_goes_to_the_task_of_its_hash() -> None:
    items = [whole(f"{number}.gz", 100) for number in range(200)]
    parts = divide(items, PartitionOptions(target_bytes=1000, partitions_max=8), can_split)
    numbers = [{stable_hash(one.file.key) % 8 for one in part} for part in parts]
    assert sorted(numbers, key=min) == [{number} for number in range(8)]
    assert min(map(len, parts)) > 10


@checks("source:F1")
def test_one_huge_file_keeps_all_tasks_busy_where_files_may_be_split() -> None:
    def loads(size: int) -> list[int]:
        parts = divide([whole("a.jsonl", size)], PartitionOptions(slots=4, split_files=True), can_split)
        return [sum(one.bytes for one in part) for part in parts]

    assert loads(400 * MIB) == [100 * MIB] * 4
    assert loads(1024 * MIB) == [128 * MIB] * 8
    assert loads(10 * MIB) == pytest.approx([10 * MIB / 3] * 3, abs=1)
    assert loads(4 * MIB) == [4 * MIB]


@checks("source:F1")
@pytest.mark.parametrize("split_files", [None, False])
def test_ranges_of_one_file_stay_in_one_task_unless_it_may_be_split(split_files: bool | None) -> None:
    """The default, too: this is what divides the work of a stream."""
    first, rest = whole("a.jsonl", 10_000).cut(5_000)
    options = PartitionOptions(target_bytes=100, slots=4, split_files=split_files)
    assert divide([first, rest], options, can_split) == [[first, rest]]


def test_size_balances_bytes() -> None:
    items = [whole(f"{number}.gz", size) for number, size in enumerate([90, 10, 50, 40, 60, 50])]
    parts = divide(items, PartitionOptions(target_bytes=100, partitions_max=3, assign="size"), can_split)
    assert sorted(sum(one.bytes for one in part) for part in parts) == [100, 100, 100]


@pytest.mark.parametrize(
    ("files", "size", "tasks"),
    [(1, 3000, 1), (60, 3000, 1), (640, 3000, 11), (1000, 3000, 17), (1000, 100_000, 40), (1100, 100_000, 40)],
)
def test_many_small_files_get_tasks_that_are_worth_their_cost_up_to_the_slots(
    files: int, size: int, tasks: int
) -> None:
    """A file costs as much as 64 KiB of its bytes, and a task has at least 4 MiB of both."""
    items = [whole(f"{number}.gz", size) for number in range(files)]
    for assign in ("hash", "size"):
        parts = divide(items, PartitionOptions(slots=40, assign=assign), can_split)
        assert len(parts) == tasks, assign
        assert max(map(len, parts)) < 2.5 * files / tasks, assign


def test_large_batches_get_two_tasks_a_slot_and_then_as_many_as_keep_them_bounded() -> None:
    how = PartitionOptions(slots=4)
    counts = [partition_count([whole("a", size * MIB)] * 4, how) for size in (1, 30, 127, 129, 500, 1024)]
    assert counts == [2, 4, 4, 8, 8, 8]
    assert partition_count([whole("a", 1 << 40)], how) == (1 << 40) // (512 * MIB)
    assert partition_count([whole("a", 1 << 40)], PartitionOptions(slots=4, partitions_max=5)) == 5


def test_a_small_target_is_kept_to() -> None:
    how = PartitionOptions(target_bytes=100, slots=4)
    assert [partition_count([whole("a", size)], how) for size in (0, 1, 100, 101, 799)] == [1, 1, 1, 2, 8]
    assert partition_count([whole("a", 1 << 40)], how) == 10_000
    assert divide([], how, can_split) == []


@pytest.mark.parametrize(
    "how", [PartitionOptions(target_bytes=0), PartitionOptions(partitions_max=0), PartitionOptions(slots=0)]
)
def test_options_that_allow_no_task_are_refused(how: PartitionOptions) -> None:
    with pytest.raises(ConfigInvalid, match="must be at least 1, not 0"):
        divide([], how, can_split)
