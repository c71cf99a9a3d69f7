"""Block files: written whole or not at all, never wrong when read, bounded in bytes."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioprefetch.cache.directory import CLAIM, SystemCalls
from aioprefetch.cache.entry import PIECE_BYTES
from aioprefetch.cache.files import RESERVE_SHARE
from aioprefetch.cache.index import LOOK_WRITTEN_SHARE
from aioprefetch.cache.write_behind import (
    OFFERS_FOR_A_HIT,
    REST_ROUNDS_MAX,
    REST_ROUNDS_MIN,
    ROUND_BLOCKS_MIN,
    SAMPLE,
    WriteFilter,
)
from aioprefetch.testing.conformance.suite import checks
from tests.stores.failing_disk import (
    FailingCalls,
    StillCalls,
    cache_in,
    data_of,
    failing,
    file_of,
    files_in,
    key_of,
    piece_of,
    private,
    put,
    read,
)

NO_SPACE = [errno.ENOSPC, errno.EDQUOT, errno.EIO]


def test_a_block_that_was_put_is_found_by_every_cache(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path), key_of()
    assert read(cache, key) is None
    assert put(cache, key)
    assert read(cache, key) == data_of(key)
    assert key.name in cache
    later = cache_in(tmp_path)
    later.look()
    assert key.name in later
    assert read(later, key) == data_of(key)
    assert later.total_bytes == key.file_bytes == file_of(tmp_path, key).stat().st_size


def test_a_block_on_the_disk_is_not_written_again(tmp_path: Path) -> None:
    calls = FailingCalls()
    cache, key = cache_in(tmp_path, calls=calls), key_of()
    put(cache_in(tmp_path), key)
    assert put(cache, key)
    assert "write" not in calls.made


def test_a_block_of_any_length_in_any_number_of_parts(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, capacity_bytes=1 << 30)
    for size in (1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1):
        key = key_of(size=size, block_bytes=2 * PIECE_BYTES)
        data = data_of(key)
        step = max(1, size // 150)
        cache.put(key, [memoryview(data)[start : start + step] for start in range(0, size, step)])
        assert read(cache, key) == data


class WritesFewBytes(StillCalls):
    """The operating system may always write less than it was given."""

    def write(self, descriptor: int, parts: object) -> int:
        assert isinstance(parts, list)
        first = memoryview(parts[0])[:7]
        return os.write(descriptor, first)


@checks("reliability:D03")
def test_short_writes_are_carried_on(tmp_path: Path) -> None:
    cache, key = cache_in(tmp_path, calls=WritesFewBytes()), key_of()
    put(cache, key)
    assert read(cache, key) == data_of(key)


def test_a_write_of_nothing_is_a_failure_and_no_loop(tmp_path: Path) -> None:
    calls = FailingCalls()
    calls.write = lambda descriptor, parts: 0
    with pytest.raises(OSError, match="nothing"):
        put(cache_in(tmp_path, calls=calls), key_of())
    assert files_in(tmp_path) == []


@checks("reliability:D01")
@pytest.mark.parametrize("operation", ["open", "change_mode", "write", "close", "rename", "space", "names"])
def test_a_put_that_fails_leaves_nothing(tmp_path: Path, operation: str) -> None:
    cache = cache_in(tmp_path)
    put(cache, key_of(1))
    for number in NO_SPACE:
        calls = FailingCalls()
        failed = cache_in(tmp_path, calls=calls)
        failed.look()
        os.utime(private(tmp_path), ns=(number, number))  # It has changed since, and is listed again.
        calls.before = failing(operation, number)
        with pytest.raises(OSError, match=os.strerror(number)):
            put(failed, key_of(0))
        assert files_in(tmp_path) == [key_of(1).name]
        assert key_of(0).name not in failed


class FullAfter(StillCalls):
    """A disk with room for ``room`` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, parts: object) -> int:
        assert isinstance(parts, list)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = os.write(descriptor, b"".join(parts)[: self.room])
        self.room -= count
        return count


@checks("reliability:D02")
def test_a_disk_full_at_any_byte_leaves_nothing(tmp_path: Path) -> None:
    key = key_of()
    for room in range(key.file_bytes):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            put(cache_in(tmp_path, calls=FullAfter(room)), key)
        assert files_in(tmp_path) == []
    assert put(cache_in(tmp_path, calls=FullAfter(key.file_bytes)), key)
    assert read(cache_in(tmp_path), key) == data_of(key)


class OntoFullDevice(StillCalls):
    """Writes go to the device that is always full."""

    def truncate(self, descriptor: int, size: int) -> None:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, descriptor)
        os.close(full)


@checks("reliability:D01")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_device_that_is_full(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        put(cache_in(tmp_path, calls=OntoFullDevice()), key_of())
    assert files_in(tmp_path) == []


LIMITED = """
import resource, sys
from pathlib import Path
from tests.stores.failing_disk import cache_in, files_in, key_of, put
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache = cache_in(Path(sys.argv[1]))
assert put(cache, key_of(0))
try:
    put(cache, key_of(0, size=50_000, block_bytes=5_000))
except OSError as error:
    sys.exit(f"errno {error.errno}, left {len(files_in(Path(sys.argv[1])))}")
"""


@checks("reliability:D03")
def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The kernel takes 1000 of 5000 bytes without an error, and refuses the rest."""
    run = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stderr.strip() == f"errno {errno.EFBIG}, left 1"


@checks("reliability:D17")
def test_a_claim_that_another_holds_is_left_alone(tmp_path: Path) -> None:
    """Nothing is written beside it; once it is given up the entry can be."""
    ours, theirs, key = cache_in(tmp_path), cache_in(tmp_path), key_of()
    assert theirs.claim([key.name]) == {key.name: False}
    assert ours.claim([key.name]) == {}
    assert put(ours, key)
    assert files_in(tmp_path) == [key.name + CLAIM]
    theirs.release([key.name])
    assert put(ours, key)
    assert read(ours, key) == data_of(key)
    assert files_in(tmp_path) == [key.name]


@checks("reliability:D17")
@pytest.mark.parametrize("plant", [lambda path: path.symlink_to("/nowhere"), os.mkfifo, Path.mkdir])
def test_something_else_with_the_name_of_a_claim_makes_room(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    cache, key = cache_in(tmp_path), key_of()
    cache.look()
    plant(private(tmp_path) / (key.name + CLAIM))
    assert put(cache, key)
    assert read(cache, key) == data_of(key)
    assert files_in(tmp_path) == [key.name]


@checks("reliability:D22")
def test_a_block_that_is_evicted_can_be_read_on(tmp_path: Path) -> None:
    big = {"size": 10 * PIECE_BYTES, "block_bytes": 2 * PIECE_BYTES}
    cache, key = cache_in(tmp_path, capacity_bytes=3 * PIECE_BYTES), key_of(0, **big)
    put(cache, key)
    found = cache.find(key)
    assert found is not None
    first = piece_of(found, key, 0)
    put(cache, key_of(1, **big))
    assert files_in(tmp_path) == [key_of(1, **big).name]
    assert first + piece_of(found, key, 1) == data_of(key)


def bytes_below(path: Path) -> int:
    return sum(one.stat().st_size for one in path.rglob("*.entry"))


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    size = key_of().file_bytes
    cache = cache_in(tmp_path, capacity_bytes=3 * size + 5)
    for index in (0, 1, 2):
        put(cache, key_of(index))
    read(cache, key_of(0))
    put(cache, key_of(3))
    assert files_in(tmp_path) == sorted(key_of(index).name for index in (0, 2, 3))
    assert cache.evictions == 1
    for index in range(10):
        put(cache, key_of(index))
        assert bytes_below(tmp_path) == cache.total_bytes <= 3 * size + 5


def test_the_order_of_use_outlives_the_process(tmp_path: Path) -> None:
    size = key_of().file_bytes
    cache = cache_in(tmp_path)
    for age, index in enumerate((0, 1, 2, 3)):
        put(cache, key_of(index))
        os.utime(file_of(tmp_path, key_of(index)), (1000 + age, 1000 + age))
    read(cache, key_of(0))
    later = cache_in(tmp_path, capacity_bytes=4 * size)
    put(later, key_of(4))
    assert key_of(0).name in files_in(tmp_path)
    assert key_of(1).name not in files_in(tmp_path)


def test_a_block_larger_than_the_capacity_is_not_written(tmp_path: Path) -> None:
    cache = cache_in(tmp_path, capacity_bytes=key_of().file_bytes)
    put(cache, key_of(0))
    assert not put(cache, key_of(0, size=1001, block_bytes=1001))
    assert files_in(tmp_path) == [key_of(0).name]


@checks("reliability:D28")
def test_the_files_of_other_processes_count(tmp_path: Path) -> None:
    """Another process, files that appeared or vanished, and what a crash left: the limit holds all the same."""
    size = key_of().file_bytes
    capacity = 5 * size
    ours, theirs = (cache_in(tmp_path, capacity_bytes=capacity) for _ in range(2))
    for index in range(10):
        put(ours if index % 2 else theirs, key_of(index))
        assert bytes_below(tmp_path) <= capacity
    for index in range(4):
        put(cache_in(tmp_path, capacity_bytes=1 << 20), key_of(index, path="of a larger cache"))
    put(ours, key_of(0, path="one more"))
    assert bytes_below(tmp_path) == ours.total_bytes <= capacity
    for file in private(tmp_path).iterdir():
        file.unlink()
    put(ours, key_of(1))
    assert bytes_below(tmp_path) == ours.total_bytes == size


def test_a_file_of_the_tick_in_which_the_directory_was_listed_is_seen(tmp_path: Path) -> None:
    """The directory shows the same time before and after it: a recent time says nothing of later changes."""
    ours, theirs, key = cache_in(tmp_path), cache_in(tmp_path), key_of()
    put(theirs, key_of(1))
    later = time.time_ns() + 10**12  # However slow the machine is, it counts as recent.
    for is_there in (False, True):
        if is_there:
            put(theirs, key)
        os.utime(private(tmp_path), ns=(later, later))
        ours.look()
        assert (key.name in ours) is is_there


@checks("reliability:D28")
@pytest.mark.parametrize("writers", [2, 3])
@pytest.mark.parametrize("operation", ["open", "write", "rename"])
def test_the_capacity_holds_for_those_who_write_at_once(tmp_path: Path, operation: str, writers: int) -> None:
    """Each found room for its block before the others had theirs: the last one removes the excess."""
    size = key_of().file_bytes
    calls = [FailingCalls() for _ in range(writers)]
    caches = [cache_in(tmp_path, capacity_bytes=5 * size, calls=one) for one in calls]
    for index in range(4):
        put(caches[0], key_of(index))
    for cache in caches:
        cache.look()

    def then(number: int) -> Callable[[str], None]:
        def before(made: str) -> None:
            if made == operation:
                calls[number].before = None
                put(caches[number + 1], key_of(5 + number))

        return before

    for number in range(writers - 1):
        calls[number].before = then(number)
    put(caches[0], key_of(4))
    assert bytes_below(tmp_path) == caches[0].total_bytes <= 5 * size
    assert read(cache_in(tmp_path), key_of(4)) == data_of(key_of(4))


class SlowListing(SystemCalls):
    """A listing takes a minute, and nothing else takes any time."""

    now = 0.0

    def seconds(self) -> float:
        return self.now

    def names(self, directory: int) -> list[str]:
        self.now += 60.0
        return super().names(directory)


@checks("reliability:D28")
def test_where_listing_is_slow_others_are_seen_as_often_as_their_bytes_matter(tmp_path: Path) -> None:
    """Looking is put off then, but not for more than a sixteenth of the capacity in each process that writes."""
    size = key_of().file_bytes
    ours, theirs = caches = [cache_in(tmp_path, capacity_bytes=32 * size, calls=SlowListing()) for _ in range(2)]
    for cache in caches:
        cache.look()
    for number in range(60):
        put(ours, key_of(number % 10, path=f"ours {number}"))
        put(theirs, key_of(number % 10, path=f"theirs {number}"))
        assert bytes_below(tmp_path) <= (32 + 2 * (32 // LOOK_WRITTEN_SHARE + 1)) * size


def test_a_listing_that_fails_after_a_write_is_no_failure_of_it(tmp_path: Path) -> None:
    calls = FailingCalls()
    cache, key = cache_in(tmp_path, calls=calls), key_of()
    cache.look()

    def before(made: str) -> None:
        if made == "rename":
            calls.before = failing("names", errno.EIO)

    calls.before = before
    assert put(cache, key)
    calls.before = None
    assert read(cache, key) == data_of(key)


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    size = key_of().file_bytes
    cache = cache_in(tmp_path, capacity_bytes=2 * size)
    cache.look()
    (private(tmp_path) / "notes.txt").write_bytes(bytes(10 * size))
    for index in range(5):
        put(cache, key_of(index))
    assert "notes.txt" in files_in(tmp_path)
    assert len(files_in(tmp_path)) == 3


class SmallDisk(StillCalls):
    """A file system of ``total`` bytes, of which others have ``taken`` some."""

    def __init__(self, path: Path, total: int, taken: int) -> None:
        self.path, self.total, self.taken = path, total, taken

    def space(self, directory: int) -> Any:
        free = self.total - self.taken - bytes_below(self.path)
        return SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=self.total)


@checks("reliability:D29")
def test_the_reserve_stays_free(tmp_path: Path) -> None:
    """First the cache gives way, then it stops."""
    size = key_of().file_bytes
    disk = SmallDisk(tmp_path, 100 * size, 0)
    cache = cache_in(tmp_path, capacity_bytes=1 << 30, calls=disk)
    reserve = int(RESERVE_SHARE * 100 * size)
    for index in range(8):
        assert put(cache, key_of(index))
    disk.taken = 90 * size
    assert put(cache, key_of(8))
    assert disk.space(0).f_bavail >= reserve
    assert 0 < cache.total_bytes <= 5 * size
    disk.taken = 97 * size
    assert not put(cache, key_of(9))
    assert files_in(tmp_path) == []
    disk.taken = 0
    assert put(cache, key_of(9))


@checks("reliability:D30")
def test_times_in_the_future_do_not_protect(tmp_path: Path) -> None:
    size = key_of().file_bytes
    for index in range(4):
        put(cache_in(tmp_path), key_of(index))
    for index in (0, 2):
        os.utime(file_of(tmp_path, key_of(index)), (1 << 33, 1 << 33))
    cache = cache_in(tmp_path, capacity_bytes=4 * size)
    for index in (4, 5):
        put(cache, key_of(index))
    assert files_in(tmp_path) == sorted(key_of(index).name for index in (1, 3, 4, 5))


def test_a_file_that_goes_first_makes_room_for_the_next_unless_it_is_used(tmp_path: Path) -> None:
    size = key_of().file_bytes
    cache = cache_in(tmp_path, capacity_bytes=3 * size)
    for index in range(3):
        put(cache, key_of(index))
    for index in (3, 4):
        assert cache.put(key_of(index), [memoryview(data_of(key_of(index)))], goes_first=True)
    assert cache.is_full
    assert files_in(tmp_path) == sorted(key_of(index).name for index in (1, 2, 4))
    read(cache, key_of(4))
    assert cache.put(key_of(5), [memoryview(data_of(key_of(5)))], goes_first=True)
    assert files_in(tmp_path) == sorted(key_of(index).name for index in (2, 4, 5))


# --- which blocks are worth writing ---------------------------------------------------------------------------------


def test_as_long_as_files_are_read_every_block_is_written() -> None:
    for held in (0, 3, 8, 100):
        chosen = WriteFilter()
        for number in range(1000):
            if number % OFFERS_FOR_A_HIT == 0:
                chosen.hit()
            assert chosen.admits(held), held


def test_where_no_file_is_ever_read_hardly_any_block_is_written() -> None:
    """A round at first, then a sample; and a round now and then, ever more rarely, to see whether that has changed."""
    for held in (0, 3, 8, 100):
        chosen = WriteFilter()
        round_blocks = max(ROUND_BLOCKS_MIN, held)
        written = [chosen.admits(held) for _ in range(1000 * round_blocks)]
        assert all(written[:round_blocks]), held
        assert sum(written[round_blocks : 3 * round_blocks]) <= 2 * round_blocks // SAMPLE + 2, held
        share = 1 / SAMPLE + 1 / REST_ROUNDS_MAX + 0.01
        assert sum(written[500 * round_blocks :]) <= 500 * round_blocks * share, held


def test_when_files_are_read_again_every_block_is_written_again() -> None:
    """The files are of use after all: the next round finds out whether more would be."""
    chosen = WriteFilter()
    written = [chosen.admits(8) for _ in range(20)]
    assert not all(written)
    rounds = 0
    while chosen.is_sampling:
        rounds += 1
        for _ in range(ROUND_BLOCKS_MIN):
            chosen.admits(8)
    assert rounds <= REST_ROUNDS_MIN + 1
    for _ in range(100):
        chosen.hit()
        assert chosen.admits(8)


def test_files_that_are_read_stay() -> None:
    chosen = WriteFilter()
    for _ in range(20):
        chosen.admits(8)
    for number in range(1000):
        chosen.hit()
        chosen.admits(8)
        assert chosen.is_sampling, number
