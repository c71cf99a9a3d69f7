"""Contestants that are processes of their own, their start included: a library's first byte, and command lines.

Modules are compiled already, as those of an installed package are: each sample of a cold process first runs it once,
uncounted, and keeps what that compiled in a directory of its own.
"""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import cold_process
from tests.benchmarks.content import MIB, expected
from tests.benchmarks.job import CHECK_OBJECT, Contestant, Sample, Target
from tests.benchmarks.our_clients import our_words
from tests.benchmarks.simulator import BUCKET
from tests.stores.rclone_server import RcloneS3Server

FILES = 2000
FILES_EACH = 100  # in a directory
FILE_BYTES = 4000


async def completed(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a command; its last line."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, complaint = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError((complaint.decode().strip().splitlines() or ["no message"])[-1])
    return (printed.decode().splitlines() or [""])[-1]


def children_cpu_seconds() -> float:
    """The time on a CPU of all processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cold(name: str, *, keys_in_environment: bool = False) -> Contestant:
    """A process of its own, which has loaded nothing."""

    async def run(target: Target) -> Sample:
        keys = {"AWS_ACCESS_KEY_ID": target.access_key_id, "AWS_SECRET_ACCESS_KEY": target.secret_access_key}
        passed = ("", "") if keys_in_environment else tuple(keys.values())
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, "PYTHONPYCACHEPREFIX": str(Path(target.scratch, "compiled"))}
        environment |= keys if keys_in_environment else {}

        async def first_byte(key: str) -> Sample:
            command = [sys.executable, "-P", str(cold_process.__file__), name, str(time.perf_counter())]
            place = (target.endpoint_url, target.bucket, key, target.region, *passed, target.ca_bundle)
            sample: Sample = json.loads(await completed([*command, *place], environment))
            return sample

        await first_byte(CHECK_OBJECT)  # the same object under a key whose traffic is not counted
        return await first_byte(target.key)

    return run


async def read_at_once(count: int, arguments: Sequence[str], checksum: int) -> float:
    """Let processes read an object, beginning at the same moment; the seconds that the slowest took."""
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    command = [sys.executable, "-m", "tests.probes.shared_reader", *arguments]
    processes = [await asyncio.create_subprocess_exec(*command, **pipes) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    found = [json.loads(output) for output, _ in outputs]
    assert [one["crc"] for one in found] == [checksum] * count, "other bytes"
    return float(max(one["seconds"] for one in found))


def sharing(count: int, scheme: str, *, is_filled: bool) -> Contestant:
    """Processes that read one object through one cache on disk, empty or filled by another one before."""

    async def run(target: Target) -> Sample:
        words: dict[str, Any] = our_words(target) if scheme == "s3" else {}
        store = "s3:/" if scheme == "s3" else target.endpoint_url
        block_bytes, memory_bytes = target.size_bytes // 32, max(256 * MIB, target.size_bytes)
        url = f"{store}/{target.bucket}/{target.key}"
        arguments = (url, target.scratch, str(block_bytes), str(memory_bytes), json.dumps(words))
        checksum = 0
        for start in range(0, target.size_bytes, MIB):
            checksum = zlib.crc32(expected(start, min(start + MIB, target.size_bytes)), checksum)
        if is_filled:
            await read_at_once(1, arguments, checksum)
        began, before = time.time(), children_cpu_seconds()
        wall_seconds = await read_at_once(count, arguments, checksum)
        cpu_seconds = children_cpu_seconds() - before
        usage = {"began": began, "wall_seconds": wall_seconds, "cpu_seconds": cpu_seconds}
        return {**usage, "received_bytes": target.size_bytes}

    return run


def content(number: int) -> bytes:
    """The bytes of a small file."""
    return expected(number * FILE_BYTES, (number + 1) * FILE_BYTES)


def write_files(root: Path) -> None:
    """All small files, in directories."""
    for number in range(FILES):
        file = root / f"d{number // FILES_EACH:02}" / f"f{number:04}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content(number))


def check_files(root: Path) -> None:
    """Compare every byte of every file."""
    found = sorted(path for path in root.rglob("*") if path.is_file())
    assert [path.read_bytes() for path in found] == [content(number) for number in range(FILES)]


@contextlib.contextmanager
def rclone_store() -> Iterator[str]:
    """The endpoint of `rclone serve s3` that has the files."""
    with RcloneS3Server() as server:
        write_files(server.root / BUCKET / "files")
        yield server.endpoint_url


def command_of(name: str, places: Sequence[str], endpoint_url: str) -> list[str]:
    """The command of a program that brings what is at one place to another; "s3://" begins the one in the store."""
    program = name.split()[0]
    path = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert path is not None, f"there is no command {program}"
    if program == "rclone":
        # The settings that it has for its own server.
        remote = f":s3,provider=Rclone,env_auth=true,endpoint='{endpoint_url}':"
        return [path, "sync", *(place.replace("s3://", remote) for place in places)]
    if program == "s5cmd":  # which takes a pattern where others take a directory
        source, target = places
        return [path, "--endpoint-url", endpoint_url, "sync", f"{source}*" if "://" in source else source, target]
    return [path, "sync", "-q", *places]


def sync(name: str, *, is_up: bool) -> Contestant:
    """Files into an empty prefix of the store, or objects into an empty directory."""

    async def run(target: Target) -> Sample:
        files, scratch = Path(target.scratch, "files"), Path(target.scratch).name
        places = [f"s3://{BUCKET}/files/", f"{files}/"]
        if is_up:
            write_files(files)
            places = [f"{files}/", f"s3://{BUCKET}/{scratch}/"]
        settings = {
            "AWS_ACCESS_KEY_ID": RcloneS3Server.access_key_id,
            "AWS_SECRET_ACCESS_KEY": RcloneS3Server.secret_access_key,
            "AWS_REGION": RcloneS3Server.region,
            "AWS_ENDPOINT_URL": target.endpoint_url,
            "PYTHONDONTWRITEBYTECODE": "",  # Programs that are installed are compiled.
        }
        command = command_of(name, places, target.endpoint_url)
        began, before = time.perf_counter(), children_cpu_seconds()
        await completed(command, os.environ | settings)
        usage = {"wall_seconds": time.perf_counter() - began, "cpu_seconds": children_cpu_seconds() - before}
        if not is_up:
            check_files(files)
        return {**usage, "items": FILES}

    return run
