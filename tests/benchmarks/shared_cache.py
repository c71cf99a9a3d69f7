"""Processes that read one object through one cache on disk: how much of it they ask of the store.

    python -m tests.benchmarks.shared_cache [--mib 256] [--processes 8] [--directory /dev/shm]

Prints a line of JSON for each of S3 and http: bytes that the store sent ÷ bytes of the object, for the first
process, the next one, and several that begin at the same moment over an empty cache; and the seconds of the slowest.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from typing import Any

from aioprefetch.testing.fault_server import FaultServer
from tests.benchmarks.content import MIB
from tests.repository.source_tree import ROOT
from tests.stores.s3_options import options_of

BLOCKS = 32
NEXT_MAX, AT_ONCE_MAX = 0.02, 1.1


def content(size_mib: int) -> bytes:
    """Bytes of which no two MiB are the same."""
    part = os.urandom(MIB - 8)
    return b"".join(number.to_bytes(8, "big") + part for number in range(size_mib))


def read_at_once(count: int, arguments: list[str], checksum: int) -> float:
    """Let processes begin at the same moment; the seconds that the slowest took. All of them read the right bytes."""
    command = [sys.executable, "-m", "tests.probes.shared_reader", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    processes = [subprocess.Popen(command, **pipes) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [json.loads(process.communicate()[0]) for process in processes]
    assert [one["crc"] for one in found] == [checksum] * count
    return float(max(one["seconds"] for one in found))


def measure(
    url: str, options: dict[str, Any], data: bytes, sent: Callable[[], int], processes: int, parent: str
) -> dict[str, Any]:
    """The figures of one store."""
    result: dict[str, Any] = {"store": url.partition(":")[0], "processes": processes}
    checksum = zlib.crc32(data)
    directory = tempfile.mkdtemp(dir=parent)
    memory_bytes = max(256 * MIB, len(data))
    arguments = [url, directory, str(len(data) // BLOCKS), str(memory_bytes), json.dumps(options)]
    try:
        for name, count in (("first", 1), ("next", 1), ("at_once", processes)):
            if name == "at_once":
                shutil.rmtree(directory)
            before = sent()
            result[f"{name}_seconds"] = round(read_at_once(count, arguments, checksum), 3)
            result[name] = round((sent() - before) / len(data), 4)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    result["holds"] = result["next"] <= NEXT_MAX and result["at_once"] <= AT_ONCE_MAX
    return result


async def run(size_mib: int, processes: int, parent: str) -> None:
    """Measure both stores."""
    data = content(size_mib)
    async with FaultServer({"bucket/k": data}) as server:
        keys = options_of(server)
        for url, options in (("s3://bucket/k", keys), (f"{server.url}/bucket/k", {})):
            found = await asyncio.to_thread(measure, url, options, data, lambda: server.bytes_sent, processes, parent)
            print(json.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--directory", default=tempfile.gettempdir())
    given = parser.parse_args()
    asyncio.run(run(given.mib, given.processes, given.directory))
