"""A failing, slow, full or corrupt cache never fails a read."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.cache.entry import PIECE_BYTES
from aioprefetch.cache.guard import FAILURES_MAX
from aioprefetch.cache.object_entry import CacheEntry
from aioprefetch.cache.objects import COOL_DOWN_SECONDS, EntrySink
from aioprefetch.errors import Error, NotFound, ObjectChanged, PermissionDenied, Unavailable
from aioprefetch.runtime import runtime
from aioprefetch.runtime.events import Event
from aioprefetch.values import ReadHead, ReadRequest, WriteRequest
from tests.profile import chosen
from tests.unit.layers.lru_cache.harness import Bed, Gate, Stubborn, after, read, read_settled, settle

DATA = bytes(range(251)) * 9
TOTAL = len(DATA)


async def use(bed: Bed, stack: Accessor) -> None:
    """Everything a reader does: misses, hits, parts, streams, another object, a change."""
    bed.put("k", DATA)
    bed.put("other", DATA[::-1])
    for _ in range(2):
        assert await read_settled(stack, "k") == DATA
        assert await read_settled(stack, "k", offset=10, size=20) == DATA[10:30]
        assert await read(stack, "k", suffix=9) == DATA[-9:]
        assert await read_settled(stack, "other", size=9) == DATA[::-1][:9]
    bed.put("k", b"changed")
    assert await read_settled(stack, "k") == b"changed"


def failing_at(bed: Bed, position: int, error: Callable[[], Exception] | None) -> list[str]:
    """The call of this number fails, or hangs; returns the names of all calls, which grows."""
    calls: list[str] = []

    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    def before(name: str) -> object:
        calls.append(name)
        if len(calls) - 1 != position:
            return None
        if error is None:
            return hang()
        raise error()

    bed.cache.before = before  # type: ignore[assignment]
    return calls


ERRORS: list[Callable[[], Exception]] = [
    lambda: Unavailable("down"),
    lambda: PermissionDenied("no"),
    lambda: NotFound("gone"),
    lambda: OSError(28, "No space left on device"),
]


@pytest.mark.parametrize("errors", chosen(quick=[ERRORS], full=[ERRORS, *([error] for error in ERRORS)]))
async def test_any_call_of_the_cache_may_fail(errors: list[Callable[[], Exception]]) -> None:
    """The n-th call fails, for every n, with each kind of error in turn."""
    for position in itertools.count(step=chosen(quick=3, full=1)):
        error = errors[position % len(errors)]
        bed = Bed()
        calls = failing_at(bed, position, error)
        await use(bed, bed.stack())
        seen = len(calls)
        await bed.restart()
        calls = failing_at(bed, position - seen, error)
        await use(bed, bed.stack())
        failures = bed.runtime.counters["cache_failures"]
        await settle()
        await bed.aclose()
        if position >= seen + len(calls):
            assert failures == 0
            assert position > 40
            return


@pytest.mark.virtual
async def test_any_call_of_the_cache_may_hang() -> None:
    for position in itertools.count():
        bed = Bed()
        start = bed.runtime.now()
        calls = failing_at(bed, position, None)
        await use(bed, bed.stack(cache_timeout_seconds=2))
        took = bed.runtime.now() - start
        await bed.aclose()
        if position >= len(calls):
            assert took == 0
            assert position > 20
            return
        assert took in (0, 2)  # 0: in the background, no reader waited


@pytest.mark.virtual
async def test_a_cache_that_keeps_failing_is_bypassed_and_tried_again(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")
    down = True

    def before(name: str) -> None:
        if down:
            raise Unavailable("down")

    bed.cache.before = before
    calls = sum(bed.cache.calls.values())
    for _ in range(10):
        assert await read_settled(stack, "k", size=5) == DATA[:5]
    assert sum(bed.cache.calls.values()) - calls == FAILURES_MAX == bed.counters["failures"]
    assert bed.gets == 11
    assert [event.name for event in bed.events].count("cache.bypassed") == 1
    await after(COOL_DOWN_SECONDS + 1)
    assert await read(stack, "k", size=5) == DATA[:5]
    assert await read(stack, "k", size=5) == DATA[:5]
    assert bed.counters["failures"] == FAILURES_MAX + 1  # one more failure is enough now
    await after(COOL_DOWN_SECONDS + 1)
    down = False
    gets = bed.gets
    assert await read(stack, "k", size=5) == DATA[:5]
    assert bed.gets == gets  # the entry was kept: the failures were temporary


async def test_entries_that_others_replace_do_not_turn_the_cache_off(bed: Bed) -> None:
    """The store of the cache is well: another process has written the entry again while it was read."""
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")

    def replaced(name: str) -> None:
        if name == "read":
            raise ObjectChanged("replaced", operation="read", path="entry")

    bed.cache.before = replaced
    for _ in range(2 * FAILURES_MAX):
        assert await read_settled(stack, "k", size=5) == DATA[:5]
    assert "cache.bypassed" not in [event.name for event in bed.events]
    bed.cache.before = None
    await read_settled(stack, "k")
    gets = bed.gets
    assert await read(stack, "k", size=5) == DATA[:5]
    assert bed.gets == gets


async def test_a_success_forgives_the_failures_before_it(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")

    def fail(name: str) -> None:
        raise Unavailable("down")

    for _ in range(3):
        bed.cache.before = fail
        for _ in range(FAILURES_MAX - 1):
            await read(stack, "k")
        bed.cache.before = None
        gets = bed.gets
        await read(stack, "k")
        assert bed.gets == gets


@pytest.mark.virtual
async def test_a_cache_that_hangs_permanently_holds_up_no_read(bed: Bed) -> None:
    """Not even a cancellation ends the call: it is left behind."""
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None, cache_timeout_seconds=2)
    await read_settled(stack, "k")
    gate = bed.cache.before = Stubborn("read")
    assert await read(stack, "k") == DATA
    assert bed.runtime.now() == 2
    gate.opened.set()


@pytest.mark.virtual
async def test_a_file_that_is_opened_too_late_is_given_up(bed: Bed) -> None:
    bed.put("k", DATA)
    gate = bed.cache.before = Stubborn("open_write")
    assert await read(bed.stack(cache_timeout_seconds=2), "k") == DATA
    await after(3)
    assert bed.counters["failures"] == 1
    gate.opened.set()
    await settle()
    assert bed.cache.calls["body_abort"] == 1
    assert bed.files == {}


async def test_a_file_that_appears_although_its_close_failed_is_swept(bed: Bed) -> None:
    bed.put("k", DATA)
    bed.put("other", DATA)

    def fail(name: str) -> None:
        if name == "body_closed":
            raise Unavailable("the response was lost")

    bed.cache.before = fail
    stack = bed.stack()
    await read_settled(stack, "k")
    left = bed.files.keys()
    assert len(left) == 1
    bed.cache.before = None
    await read_settled(stack, "other")
    assert len(bed.files) == 1
    assert not left & bed.files.keys()


async def test_a_late_sweep_spares_a_file_that_was_written_again(bed: Bed) -> None:
    name, data = await filled(bed)
    overwrite(bed, name, data[:-1])
    await bed.restart()

    def fail(name: str) -> None:
        if name == "delete":
            raise Unavailable("not now")

    bed.cache.before = fail
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k") == DATA
    bed.cache.before = None
    bed.put("other", DATA)
    await read_settled(stack, "other")  # its write sweeps first
    assert len(bed.files) == 2
    assert await read(stack, "k") == DATA
    assert bed.gets == 2


async def test_a_look_up_that_fails_for_a_moment_deletes_no_entry(bed: Bed) -> None:
    await filled(bed)
    await bed.restart()

    def fail(name: str) -> None:
        if name == "read":
            bed.cache.before = None
            raise Unavailable("not now")

    stack = bed.stack(revalidate_seconds=None)
    bed.cache.before = fail
    assert await read_settled(stack, "k") == DATA
    assert (bed.counters["failures"], bed.cache.calls["delete"]) == (1, 0)


async def test_a_write_does_not_wait_for_a_cache_that_is_bypassed(bed: Bed) -> None:
    stack = bed.stack()
    bed.put("k", DATA)
    await read_settled(stack, "k")

    def fail(name: str) -> None:
        raise Unavailable("down")

    bed.cache.before = fail
    for _ in range(FAILURES_MAX):
        await read(stack, "k")
    calls = sum(bed.cache.calls.values())
    await stack.write(WriteRequest(path="k"), b"new")
    assert sum(bed.cache.calls.values()) == calls
    bed.cache.before = None
    assert await read(stack, "k") == b"new"


@pytest.mark.parametrize("head", [(7, 5, 100), (6, 4, 100), (6, 5, 99)])
def test_a_part_of_another_file_is_refused_before_memory_is_taken(head: tuple[int, int, int]) -> None:
    sink = EntrySink(CacheEntry(name="n", size_bytes=100), start=6, size=5)
    start, size, total = head
    with pytest.raises(ObjectChanged):
        sink.begin(ReadHead(start=start, size=size, total=total))
    assert sink.to_bytes() == b""


async def test_a_full_cache_leaves_no_file_and_reads_go_on(bed: Bed) -> None:
    for step in ("open_write", "body_write", "body_close"):
        bed.put(step, DATA)

        def full(name: str, step: str = step) -> None:
            if name == step:
                raise OSError(28, "No space left on device")

        bed.cache.before = full
        stack = bed.stack()
        assert await read_settled(stack, step) == DATA
        assert bed.files == {}
        assert bed.cache.calls["body_abort"] == (0 if step == "open_write" else 1)
        bed.cache.calls.clear()
    assert bed.counters == {"misses": 3, "failures": 3}


async def test_a_cache_that_does_not_exist_is_bypassed(bed: Bed) -> None:
    """A bucket that is missing answers every listing with NotFound: that is no way to go on."""
    bed.put("k", DATA)

    def missing(name: str) -> None:
        raise NotFound("there is no such bucket")

    bed.cache.before = missing
    stack = bed.stack()
    for _ in range(2 * FAILURES_MAX):
        assert await read(stack, "k") == DATA
    assert bed.cache.calls["list"] == FAILURES_MAX


async def test_closing_during_the_write_of_an_entry_leaves_no_file(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "FINISH_SECONDS_MAX", 0.05)
    for step in ("open_write", "body_write", "body_close"):
        bed.put("k", DATA)
        gate = Gate(step)
        bed.cache.before = gate
        assert await read(bed.stack(), "k") == DATA
        await gate.reached.wait()
        aborts = bed.cache.calls["body_abort"]
        await bed.runtime.aclose()
        assert bed.cache.calls["body_abort"] - aborts == (0 if step == "open_write" else 1)
        await bed.restart()
        assert bed.files == {}


async def test_a_cache_without_accessor_is_only_a_failure(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack()

    def broken() -> Accessor:
        raise Error("the cache is closed")

    bed.holder.accessor = broken  # type: ignore[method-assign]
    assert await read(stack, "k") == DATA


def only_file(bed: Bed) -> tuple[str, bytes]:
    ((name, data),) = bed.files.items()
    return name, data


def overwrite(bed: Bed, name: str, data: bytes) -> None:
    """Put a file into the cache without the layer."""
    bed.cache_store.store.put(WriteRequest(path=name), data)


def damage(bed: Bed, name: str, data: bytes) -> None:
    """Change a file in a way that its store does not notice."""
    bed.cache_store.store.objects[name] = replace(bed.cache_store.store.objects[name], data=data)


async def filled(bed: Bed, data: bytes = DATA) -> tuple[str, bytes]:
    bed.put("k", data)
    await read_settled(bed.stack(), "k")
    async with asyncio.timeout(30):  # The checksum of a large one is computed on another thread.
        while not bed.files:  # noqa: ASYNC110 - the cache sends no event
            await asyncio.sleep(0)
    return only_file(bed)


async def check_is_a_miss(bed: Bed, data: bytes = DATA, **fields: int) -> None:
    """After a restart: the bad entry is dropped, counted and replaced; the bytes are right."""
    await bed.restart()
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k", **fields) == data
    assert bed.gets == 1
    assert bed.counters == {"misses": 1, "fills": 1, "failures": 1}
    assert await read(stack, "k") == data
    assert bed.gets == 1


async def test_every_truncation_of_a_file_is_a_miss(bed: Bed) -> None:
    name, data = await filled(bed, b"tiny object")
    for length in chosen(quick=[*range(0, len(data), 23), *range(len(data) - 13, len(data))], full=range(len(data))):
        overwrite(bed, name, data[:length])
        await check_is_a_miss(bed, b"tiny object")
        assert bed.files.keys() == {name}
        assert len(bed.files[name]) == len(data)


BAD_FILES: dict[str, Callable[[bytes], bytes]] = {
    "zero-filled": lambda data: bytes(len(data)),
    "longer": lambda data: data + b"\0",
    "another version of the format": lambda data: data[:8] + b"\0\1" + data[10:],
    "a flipped bit in the header": lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "a flipped bit in the data": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "another file": lambda data: b"not an entry at all",
}


@pytest.mark.parametrize("what", BAD_FILES)
async def test_a_bad_file_is_a_miss(bed: Bed, what: str) -> None:
    name, data = await filled(bed)
    overwrite(bed, name, BAD_FILES[what](data))
    await check_is_a_miss(bed)


@pytest.mark.parametrize("fields", [{"offset": 600, "size": 200}, {"suffix": 9}, {"size": TOTAL - 1}])
async def test_a_part_of_a_damaged_entry_is_a_miss(bed: Bed, fields: dict[str, int]) -> None:
    """Wherever in the piece of the part the damage is."""
    expected = DATA[-9:] if "suffix" in fields else DATA[fields.get("offset", 0) :][: fields["size"]]
    for damaged_at in (0, 700, TOTAL - 1):
        name, data = await filled(bed)
        damaged = bytearray(data)
        damaged[len(data) - TOTAL + damaged_at] ^= 1
        overwrite(bed, name, bytes(damaged))
        await bed.restart()
        stack = bed.stack(revalidate_seconds=None)
        assert await read_settled(stack, "k", **fields) == expected
        assert bed.counters == {"misses": 1, "fills": 1, "failures": 1}
        assert bed.files[name] != bytes(damaged)
        assert await read(stack, "k", **fields) == expected
        assert bed.gets == 1
        await bed.restart()


async def test_damage_of_a_long_entry_is_counted_on_the_loop(bed: Bed) -> None:
    """Its checksums are computed on another thread."""
    name, data = await filled(bed, long := bytes(range(256)) * (3 << 12))
    overwrite(bed, name, data[:-1] + bytes([data[-1] ^ 1]))
    await bed.restart()
    threads: dict[str, threading.Thread] = {}

    def note(event: Event) -> None:
        threads[event.name] = threading.current_thread()

    bed.runtime.events.subscribe(note)
    assert await read_settled(bed.stack(revalidate_seconds=None), "k") == long
    assert threads["cache.failed"] is threading.main_thread()
    assert bed.counters["failures"] == 1


async def test_what_this_process_wrote_is_checked_too(bed: Bed) -> None:
    """A disk may store something else than it was given, and say nothing."""
    name, data = await filled(bed)
    damage(bed, name, data[:-1] + b"!")
    stack = bed.stack()
    assert await read_settled(stack, "k", suffix=5) == DATA[-5:]


LARGE = bytes(range(251)) * (64 * PIECE_BYTES // 251 + 100)


async def test_a_range_reads_and_verifies_exactly_the_pieces_that_it_touches(bed: Bed) -> None:
    """Each time. The budget knows of their bytes, and damage in other pieces does not hinder."""
    name, data = await filled(bed, LARGE)
    await bed.restart()
    held: set[int] = set()
    bed.cache.before = lambda name: held.add(bed.runtime.budget.used_bytes)
    stack = bed.stack(revalidate_seconds=None)
    parts = [
        (PIECE_BYTES - 1000, PIECE_BYTES + 2000, 3),
        (PIECE_BYTES, PIECE_BYTES, 1),
        (2 * PIECE_BYTES + 5, 10, 1),
        (PIECE_BYTES, 7 * PIECE_BYTES, 7),
    ]
    for offset, size, pieces in parts:
        held.clear()
        assert await read(stack, "k", offset=offset, size=size) == LARGE[offset : offset + size]
        assert max(held) == pieces * PIECE_BYTES
    await read(stack, "k", suffix=5)
    ranges = [(one.offset, one.size) for one in bed.cache.requests if isinstance(one, ReadRequest)]
    assert [size for _, size in ranges[1:]] == [
        *(pieces * PIECE_BYTES for _, _, pieces in parts),
        len(LARGE) % PIECE_BYTES,
    ]
    assert bed.gets == 0
    damaged = bytearray(data)
    damaged[len(data) - len(LARGE) + 3 * PIECE_BYTES] ^= 1
    damage(bed, name, bytes(damaged))
    for offset, size, _ in parts[:3]:
        assert await read(stack, "k", offset=offset, size=size) == LARGE[offset : offset + size]
    assert bed.gets == 0
    assert await read(stack, "k", offset=3 * PIECE_BYTES + 9, size=1) == LARGE[3 * PIECE_BYTES + 9 :][:1]
    assert (bed.gets, bed.counters["failures"]) == (1, 1)


async def test_bytes_that_rot_after_a_hit_are_never_served(bed: Bed) -> None:
    """In a file that its store calls unchanged: every ranged hit is verified, not only the first in a process."""
    name, data = await filled(bed)
    stack = bed.stack(revalidate_seconds=None)
    assert await read(stack, "k", offset=600, size=200) == DATA[600:800]
    damaged = bytearray(data)
    damaged[5] ^= 1
    damage(bed, name, bytes(damaged))
    assert await read_settled(stack, "k", offset=600, size=200) == DATA[600:800]
    assert bed.counters["failures"] == 1


@pytest.mark.parametrize("says", ["a weak ETag", "a time"])
async def test_a_file_that_changes_after_its_check_is_a_miss(bed: Bed, says: str) -> None:
    """Where no condition can tell the cache's store which file is meant, what it says of the file is compared."""
    name, data = await filled(bed)
    await bed.restart()
    versions = ['W/"1"', 'W/"2"'] if says == "a weak ETag" else [None, None]
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 1 if says == "a weak ETag" else 2)]

    def answer_with(version: int) -> None:
        bed.cache.amend = lambda head: replace(head, etag=versions[version], last_modified=times[version])

    answer_with(0)
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k", size=5) == DATA[:5]
    assert await read_settled(stack, "k", offset=7, size=5) == DATA[7:12]
    assert bed.gets == 0
    overwrite(bed, name, data[:-5] + b"wrong")
    answer_with(1)
    assert await read_settled(stack, "k", suffix=5) == DATA[-5:]
    assert bed.counters["failures"] == 1


async def test_swapped_files_are_misses(bed: Bed) -> None:
    first, first_data = await filled(bed)
    bed.put("other", DATA[::-1])
    await read_settled(bed.stack(), "other")
    second = next(name for name in bed.files if name != first)
    overwrite(bed, first, bed.files[second])
    overwrite(bed, second, first_data)
    await bed.restart()
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k") == DATA
    assert await read_settled(stack, "other") == DATA[::-1]
    assert bed.counters == {"misses": 2, "fills": 2, "failures": 2}


async def test_a_file_that_changes_after_its_header_was_verified_is_a_miss(bed: Bed) -> None:
    """The part that is read is pinned to the file whose header was seen, so even a ranged hit is safe from this."""
    name, data = await filled(bed)
    stack = bed.stack(revalidate_seconds=None)
    assert await read_settled(stack, "k", size=5) == DATA[:5]
    overwrite(bed, name, data[:-5] + b"wrong")
    assert await read_settled(stack, "k", suffix=5) == DATA[-5:]
    assert bed.counters["failures"] == 1


async def test_a_file_that_another_process_evicted_is_a_miss(bed: Bed) -> None:
    bed.put("k", DATA)
    stack = bed.stack(revalidate_seconds=None)
    await read_settled(stack, "k")
    bed.cache_store.store.remove(only_file(bed)[0])
    assert await read_settled(stack, "k", size=5) == DATA[:5]
    assert bed.counters == {"misses": 2, "fills": 2}


async def test_readers_that_meet_a_bad_entry_together_share_one_fill(bed: Bed) -> None:
    name, data = await filled(bed)
    overwrite(bed, name, data[:-1])
    await bed.restart()
    stack = bed.stack()
    assert await asyncio.gather(*(read(stack, "k") for _ in range(20))) == [DATA] * 20
    assert bed.gets == 1
