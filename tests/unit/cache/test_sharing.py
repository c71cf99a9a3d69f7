"""Blocks that were fetched are kept, and fetched once for all who share a directory."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.blocks.host_claims import claimable, decode_object, encode_object, ours
from aioprefetch.cache.directory import CLAIM
from aioprefetch.cache.entry import EntryKey
from aioprefetch.cache.files import EntryFiles
from aioprefetch.errors import Unavailable
from aioprefetch.ranges import BlockGrid
from aioprefetch.reader.reader import RangeReader
from aioprefetch.testing.fault_server import FaultServer
from aioprefetch.values import ReadHead
from tests.profile import few
from tests.repository.source_tree import ROOT
from tests.stores.disk_tier import BLOCK, counts, disk_bench, key_in, read_block, reader_of, tier_of, written
from tests.stores.failing_disk import FailingCalls, Halted, cache_in, failing, files_in, private, until
from tests.stores.gated_reader import Bench, settle

FETCHED: dict[str, Any] = {"write": "fetched"}
EIGHT = 8 * BLOCK


@asynccontextmanager
async def fetched_bench(path: Path, **more: Any) -> AsyncIterator[Bench]:
    """A bench whose disk keeps what was fetched, with memory for all of it."""
    more = {"memory_blocks": 32, "disk": FETCHED, **more}
    async with disk_bench(path, **more) as b:
        yield b


# --- what is claimed, by arithmetic -----------------------------------------------------------------------------------


@given(size=st.integers(1, 100), block=st.integers(1, 20), start=st.integers(0, 110), length=st.integers(1, 110))
def test_a_request_claims_the_blocks_that_it_brings_whole(size: int, block: int, start: int, length: int) -> None:
    """All of them if it begins with one; otherwise none."""
    grid, end = BlockGrid(size, block), min(start + length, size)
    whole = [index for index in range(grid.count) if start <= grid.bounds(index)[0] and grid.bounds(index)[1] <= end]
    assert list(claimable(grid, start, start + length)) == ([] if start % block else whole)


@given(st.lists(st.sampled_from([True, False, None]), max_size=8))
def test_what_is_ours_ends_before_the_first_that_is_not(found: list[bool | None]) -> None:
    names = [str(number) for number in range(len(found))]
    claimed = {name: one for name, one in zip(names, found, strict=True) if one is not None}
    count = ours(names, claimed)
    assert all(one is False for one in found[:count])
    assert count == len(found) or found[count] is not False


@given(st.integers(0, 1 << 62), st.none() | st.text(max_size=40), st.text(max_size=40))
def test_facts_come_back_as_they_were(size: int, version: str | None, etag: str) -> None:
    whole = ReadHead(start=0, size=size, total=size, version=version, etag=etag)
    encoded = encode_object(whole)
    assert encoded is not None
    assert decode_object(encoded) == whole


def test_facts_that_are_too_long_are_not_left() -> None:
    assert encode_object(ReadHead(start=0, size=1, total=1, version="v" * 1000, etag="e" * 100)) is None


# --- one process ------------------------------------------------------------------------------------------------------


async def test_a_block_is_written_when_it_was_fetched(tmp_path: Path) -> None:
    """Although memory has room for all of it; and once."""
    async with fetched_bench(tmp_path) as b, reader_of(b) as reader:
        for _ in range(2):
            for index in range(8):
                await read_block(b, reader, index)
        await written(b)
        names = {key_in(b, reader, index).name for index in range(8)}
        await until(lambda: names < set(files_in(tmp_path)))
        assert counts(b) == (0, 8, 0)
        assert b.runtime.statistics()["stream_evict_blocks_from_cache"] == 0


async def test_a_block_that_came_in_parts_is_written_when_all_of_it_is_there(tmp_path: Path) -> None:
    async with fetched_bench(tmp_path) as b, reader_of(b) as reader:
        await read_block(b, reader, 7)
        reader.set_policy("random")
        key = key_in(b, reader, 2)
        for start in range(0, BLOCK, BLOCK // 4):
            assert key.name not in files_in(tmp_path)
            assert await reader.read_at(2 * BLOCK + start, BLOCK // 4) == b.data[2 * BLOCK + start :][: BLOCK // 4]
        await until(lambda: key.name in files_in(tmp_path))


async def test_what_is_fetched_is_written_before_the_operator_has_closed(tmp_path: Path) -> None:
    async with fetched_bench(tmp_path) as b, reader_of(b) as reader:
        assert await reader.read_at(0, EIGHT) == b.data
        names = {key_in(b, reader, index).name for index in range(8)}
    assert names < set(files_in(tmp_path))


async def test_a_reader_that_comes_later_asks_and_gets_no_bytes(tmp_path: Path) -> None:
    """Without ETag and size: the facts that were left are asked about, and all else is on the disk."""
    data = os.urandom(EIGHT)
    options: dict[str, Any] = {"block_bytes": BLOCK, "memory_bytes": 4 * EIGHT, "disk_cache": tmp_path}
    async with FaultServer({"k": data}) as server:
        for expected in (EIGHT, 0, 0):
            before = server.bytes_sent
            async with ap.Operator.from_uri(server.url, **options) as op, op.reader("k") as reader:
                assert await reader.read() == data
            assert server.bytes_sent - before == expected
        server.objects["k"] = other = os.urandom(EIGHT)  # Another version is noticed.
        async with ap.Operator.from_uri(server.url, **options) as op, op.reader("k") as reader:
            assert await reader.read() == other


@pytest.mark.parametrize("operation", ["lock", "open", "status_of"])
async def test_claims_that_fail_fail_no_read(tmp_path: Path, operation: str) -> None:
    calls = FailingCalls()
    async with fetched_bench(tmp_path, calls=calls) as b, reader_of(b) as reader:
        await read_block(b, reader, 0)
        calls.before = failing(operation, 5)
        for index in range(1, 8):
            await read_block(b, reader, index)
        calls.before = None


# --- two runtimes over one directory ----------------------------------------------------------------------------------


@asynccontextmanager
async def claimed(path: Path, **more: Any) -> AsyncIterator[tuple[Bench, RangeReader, EntryFiles, EntryKey]]:
    """A bench and its reader; a cache of another process that has claimed block 2, and the key of that."""
    async with fetched_bench(path, **more) as b, reader_of(b) as reader:
        await read_block(b, reader, 7)
        await written(b)
        key = key_in(b, reader, 2)
        other = cache_in(path)
        assert other.claim([key.name]) == {key.name: False}
        b.calls.clear()
        yield b, reader, other, key
        other.close()


async def test_a_block_that_another_fetches_is_waited_for(tmp_path: Path) -> None:
    async with claimed(tmp_path) as (b, reader, other, key):
        waiting = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        await until(lambda: (private(tmp_path) / (key.name + CLAIM)).exists())
        await settle()
        assert not waiting.done()
        other.put(key, [memoryview(b.data)[2 * BLOCK : 3 * BLOCK]])
        assert await waiting == b.data[2 * BLOCK : 3 * BLOCK]
        assert b.ranges == []
        assert counts(b)[0] == 1


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_claim_that_ends_without_a_block_is_taken_over(tmp_path: Path, is_killed: bool) -> None:
    """The maker has failed, or is dead: the file of the claim may be left, without its lock."""
    async with claimed(tmp_path) as (b, reader, other, key):
        waiting = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        await settle()
        if is_killed:
            other.close()
        else:
            other.release([key.name])
        assert await waiting == b.data[2 * BLOCK : 3 * BLOCK]
        assert b.ranges == [(2 * BLOCK, 3 * BLOCK)]
        await until(lambda: key.name in files_in(tmp_path))


async def test_a_claim_that_was_taken_over_is_held(tmp_path: Path) -> None:
    """Until the block is written: others wait for it in their turn."""
    async with claimed(tmp_path) as (b, reader, other, key):
        b.gate.open = False
        waiting = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        await settle()
        await tier_of(b).calls.call("claim", lambda: None)  # It has looked once, in vain.
        other.release([key.name])
        call = await b.next_call()
        await tier_of(b).calls.call("claim", lambda: None)  # What was to be given up is.
        assert other.claim([key.name]) == {}
        b.gate.open = True
        call.finish()
        assert await waiting == b.data[2 * BLOCK : 3 * BLOCK]


async def test_after_the_stall_time_a_block_is_fetched_all_the_same(tmp_path: Path) -> None:
    async with claimed(tmp_path) as (b, reader, other, key):
        tier_of(b).claims.seconds_max = 0.02
        await read_block(b, reader, 2)
        assert b.ranges == [(2 * BLOCK, 3 * BLOCK)]
        await written(b)
        assert key.name not in files_in(tmp_path)
        other.close()


async def test_of_a_long_request_only_what_is_free_is_fetched(tmp_path: Path) -> None:
    """It ends before a block that another fetches, and the rest comes after that."""
    async with claimed(tmp_path) as (b, reader, other, key):
        reading = asyncio.create_task(reader.read_at(0, 6 * BLOCK))
        await until(lambda: (0, 2 * BLOCK) in b.ranges)
        await settle()
        assert not reading.done()
        other.put(key, [memoryview(b.data)[2 * BLOCK : 3 * BLOCK]])
        assert await reading == b.data[: 6 * BLOCK]
        assert sorted(b.ranges) == [(0, 2 * BLOCK), (3 * BLOCK, 6 * BLOCK)]


async def test_a_fetch_that_fails_gives_its_claims_up(tmp_path: Path) -> None:
    async with claimed(tmp_path) as (b, reader, other, key):
        other.release([key.name])
        b.gate.open = False
        failing_read = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        call = await b.next_call()
        assert other.claim([key.name]) == {}
        call.fail(Unavailable("broke"))
        with pytest.raises(Unavailable):
            await failing_read
        await until(lambda: other.claim([key.name]))
        b.gate.open = True
        other.close()


async def test_a_read_that_is_cancelled_while_it_waits_leaves_all_well(tmp_path: Path) -> None:
    async with claimed(tmp_path) as (b, reader, other, key):
        waiting = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        await settle()
        waiting.cancel()
        await asyncio.wait([waiting])
        other.release([key.name])
        await read_block(b, reader, 2)
        assert b.ranges == [(2 * BLOCK, 3 * BLOCK)]
        await until(lambda: key.name in files_in(tmp_path))
        assert [name for name in files_in(tmp_path) if name.endswith(CLAIM)] == []


async def test_a_read_that_is_cancelled_while_it_claims_holds_nothing(tmp_path: Path) -> None:
    """The thread goes on, and what it claims is given up."""
    halted, calls = Halted("lock"), FailingCalls()
    async with claimed(tmp_path, calls=calls) as (b, reader, other, key):
        other.release([key.name])
        calls.before = halted
        reading = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        await until(halted.reached.is_set)
        reading.cancel()
        await asyncio.wait([reading])
        calls.before = None
        halted.go_on.set()
        await until(lambda: other.claim([key.name]))
        assert b.ranges == []


async def test_with_evicted_nothing_is_claimed(tmp_path: Path) -> None:
    async with claimed(tmp_path, disk={"write": "evicted"}) as (b, reader, _, _):
        await read_block(b, reader, 2)
        assert b.ranges == [(2 * BLOCK, 3 * BLOCK)]
        assert [name for name in files_in(tmp_path) if not name.endswith(CLAIM)] == []


# --- processes --------------------------------------------------------------------------------------------------------


class Counted:
    """A program that reads ``url`` through a shared directory."""

    def __init__(self, url: str, directory: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.probes.shared_reader", url, str(directory), str(BLOCK), str(4 * EIGHT)]
        self.process = subprocess.Popen(
            [*command, json.dumps(options)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go(self) -> None:
        """Let it read."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait for its end."""
        self.process.communicate()


def run_at_once(url: str, directory: Path, count: int, options: dict[str, Any]) -> list[int]:
    """The checksums that processes found which begin at the same moment."""
    programs = [Counted(url, directory, options) for _ in range(count)]
    try:
        assert [program.line() for program in programs] == ["ready\n"] * count
        for program in programs:
            program.go()
        return [json.loads(program.line())["crc"] for program in programs]
    finally:
        for program in programs:
            program.end()


@asynccontextmanager
async def http_server(data: bytes) -> AsyncIterator[tuple[str, dict[str, Any], Callable[[], int]]]:
    async with FaultServer({"k": data}) as server:
        yield f"{server.url}/k", {}, lambda: server.bytes_sent


@asynccontextmanager
async def s3_server(data: bytes) -> AsyncIterator[tuple[str, dict[str, Any], Callable[[], int]]]:
    async with FaultServer({"bucket/k": data}) as server:
        options = {
            "endpoint_url": server.url,
            "region": server.region,
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
        }
        yield "s3://bucket/k", options, lambda: server.bytes_sent


@pytest.mark.parametrize("serve", few([s3_server, http_server]))
async def test_processes_at_once_fetch_an_object_once_and_the_next_one_nothing(
    tmp_path: Path, serve: Callable[[bytes], Any]
) -> None:
    """The bars of the whole cache: 1.1 times the object for all of them, 0.02 for one that comes later."""
    data = os.urandom(32 * BLOCK)
    async with serve(data) as (url, options, sent):
        for count, share in ((4, 1.1), (1, 0.02)):
            before = sent()
            found = await asyncio.to_thread(run_at_once, url, tmp_path, count, options)
            assert found == [zlib.crc32(data)] * count
            assert sent() - before <= share * len(data)


CLAIMER = """
import sys, time
from pathlib import Path
from tests.stores.failing_disk import cache_in
cache = cache_in(Path(sys.argv[1]))
assert cache.claim([sys.argv[2]])
print("claimed", flush=True)
sys.stdin.readline()
"""


async def test_a_claimer_that_is_killed_delays_others_by_less_than_a_second(tmp_path: Path) -> None:
    async with fetched_bench(tmp_path) as b, reader_of(b) as reader:
        await read_block(b, reader, 7)
        key = key_in(b, reader, 2)
        claimer = subprocess.Popen(  # noqa: ASYNC220 - it begins at once
            [sys.executable, "-c", CLAIMER, str(tmp_path), key.name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert claimer.stdout is not None
        assert await asyncio.to_thread(claimer.stdout.readline) == b"claimed\n"
        waiting = asyncio.create_task(reader.read_at(2 * BLOCK, BLOCK))
        await settle()
        assert not waiting.done()
        claimer.send_signal(signal.SIGKILL)
        claimer.communicate()
        killed_at = asyncio.get_running_loop().time()
        assert await waiting == b.data[2 * BLOCK : 3 * BLOCK]
        assert asyncio.get_running_loop().time() - killed_at < 1.0
