"""Run as a program: processes that write blocks and are killed in between; its tests stand in test_kills.py.

``sweep DIRECTORY``: a put is killed before its first, second, ... system call, until one gets through.
``share DIRECTORY``: eight processes write and read the same blocks, and some of them are killed on the way.
"""

import os
import signal
import sys
from pathlib import Path

from aioprefetch.cache.entry import EntryKey
from aioprefetch.cache.files import EntryFiles
from tests.stores.failing_disk import FailingCalls, cache_in, data_of, key_of, put, read

PROCESSES = 8
ROUNDS = 3
BLOCKS = 60


def keys() -> list[EntryKey]:
    """The blocks that all write."""
    return [key_of(index, size=BLOCKS * 2000, block_bytes=2000) for index in range(BLOCKS)]


def sweep(path: Path) -> int:
    """How many system calls a put has. Before and after each kill the block is whole or absent."""
    calls = 0
    while True:
        calls += 1
        for there_before in (False, True):
            directory = path / f"{calls}-{there_before}"
            if there_before:
                put(cache_in(directory), key_of(1))
            status = _killed_before(calls, directory)
            found = read(cache_in(directory), key_of(0))
            assert found in (None, data_of(key_of(0)))
            if there_before:
                assert read(cache_in(directory), key_of(1)) == data_of(key_of(1))
            cache_in(directory).look()
            names = {one.name for one in directory.glob("*/*")}
            assert names <= {key_of(0).name, key_of(1).name}, names
        if status == 0:
            return calls - 1


def _killed_before(count: int, directory: Path) -> int:
    """Put a block in a child that kills itself before its call number ``count``; the status it ends with."""

    def kill_self(operation: str) -> None:
        if len(calls.made) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    calls = FailingCalls(kill_self)
    child = os.fork()
    if child == 0:
        put(cache_in(directory, calls=calls), key_of(0))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status


def share(path: Path) -> int:
    """How many reads the processes did, all of them right."""
    reading, writing = os.pipe()
    for number in range(ROUNDS):
        children = [_worker(path, seed, writing) for seed in range(PROCESSES)]
        os.read(reading, 1)  # One of them is in the middle of a write.
        victim = children.pop(number)
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(writing)
    reads = PROCESSES
    while chunk := os.read(reading, 1 << 16):
        reads += len(chunk)
    cache = cache_in(path)
    cache.look()
    for key in keys():
        put(cache, key)
        assert read(cache, key) == data_of(key)
    assert {one.name for one in path.glob("*/*")} == {key.name for key in keys()}
    return reads


def _worker(path: Path, seed: int, writing: int) -> int:
    child = os.fork()
    if child:
        return child
    cache = cache_in(path)
    try:
        _work(cache, keys()[seed::2] + keys(), writing)
    except BaseException as error:
        sys.stderr.write(f"worker {seed}: {error!r}\n")
        os._exit(1)
    os._exit(0)


def _work(cache: EntryFiles, wanted: list[EntryKey], writing: int) -> None:
    for key in wanted:
        put(cache, key)
        assert read(cache, key) in (data_of(key), None)  # Another process may be making it.
        os.write(writing, b".")


if __name__ == "__main__":
    program, target = sys.argv[1:]
    done = sweep(Path(target)) if program == "sweep" else share(Path(target))
    sys.stdout.write(f"{done}\n")
