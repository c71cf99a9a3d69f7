"""The jobs ``sync-*``: 2,000 files of 4 kB to a store and from it, by the command lines of ours, rclone and s5cmd.

The store is ``rclone serve s3``. A sample is one command in a process of its own, its start included.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.benches.rclone_server import RcloneS3Server
from tests.benchmarks.bars import Bar
from tests.benchmarks.content import expected
from tests.benchmarks.job import CPU, WALL, Contestant, Job, Sample, Target
from tests.benchmarks.simulator import BUCKET

FILES = 2000
FILES_EACH = 100  # in a directory
FILE_BYTES = 4000
BELOW = "files/"

OURS, RCLONE, S5CMD = "aioprefetch sync", "rclone sync", "s5cmd sync"
# The arguments of a command that brings what is at one place to another one; "s3://" begins that in the store.
Command = Callable[[str, str, Target], list[str]]


def write_files(root: Path) -> None:
    """All files, in directories."""
    for number in range(FILES):
        file = root / f"d{number // FILES_EACH:02}" / f"f{number:04}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content(number))


def content(number: int) -> bytes:
    """The bytes of a file."""
    return expected(number * FILE_BYTES, (number + 1) * FILE_BYTES)


def check_files(root: Path) -> None:
    """Every byte of every file."""
    found = sorted(path for path in root.rglob("*") if path.is_file())
    assert len(found) == FILES, f"{len(found)} files below {root}"
    assert [path.read_bytes() for path in found] == [content(number) for number in range(FILES)]


@contextlib.contextmanager
def store() -> Iterator[str]:
    """The endpoint of a server that has the files."""
    with RcloneS3Server() as server:
        write_files(server.root / BUCKET / BELOW)
        yield server.endpoint_url


def aioprefetch(source: str, target: str, at: Target) -> list[str]:
    """Ours."""
    return [_binary("aioprefetch"), "sync", "-q", source, target]


def rclone(source: str, target: str, at: Target) -> list[str]:
    """Rclone, with the settings that it has for its own server."""
    remote = f":s3,provider=Rclone,env_auth=true,endpoint='{at.endpoint_url}':"
    return [_binary("rclone"), "sync", *(place.replace("s3://", remote) for place in (source, target))]


def s5cmd(source: str, target: str, at: Target) -> list[str]:
    """S5cmd, which takes a pattern where others take a directory."""
    pattern = f"{source}*" if source.startswith("s3://") else source
    return [_binary("s5cmd"), "--endpoint-url", at.endpoint_url, "sync", pattern, target]


def _binary(name: str) -> str:
    """The command of this environment, or that on PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    assert found is not None, f"there is no command {name}"
    return found


async def timed(command: list[str], target: Target) -> Sample:
    """Run a command; what it cost."""
    settings = {
        "AWS_ACCESS_KEY_ID": RcloneS3Server.access_key_id,
        "AWS_SECRET_ACCESS_KEY": RcloneS3Server.secret_access_key,
        "AWS_REGION": RcloneS3Server.region,
        "AWS_ENDPOINT_URL": target.endpoint_url,
        "PYTHONDONTWRITEBYTECODE": "",  # Programs that are installed are compiled.
    }
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = await asyncio.create_subprocess_exec(
        *command, env=os.environ | settings, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    wall_seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert process.returncode == 0, printed[-1000:].decode()
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": wall_seconds, "cpu_seconds": cpu_seconds}


def upload(command: Command) -> Contestant:
    """Files into an empty prefix of the store."""

    async def run(target: Target) -> Sample:
        files, scratch = Path(target.scratch, "files"), Path(target.scratch).name
        write_files(files)
        return await timed(command(f"{files}/", f"s3://{BUCKET}/{scratch}/", target), target)

    return run


def download(command: Command) -> Contestant:
    """Objects into an empty directory."""

    async def run(target: Target) -> Sample:
        files = Path(target.scratch, "files")
        sample = await timed(command(f"s3://{BUCKET}/{BELOW}", f"{files}/", target), target)
        check_files(files)
        return sample

    return run


def job(way: str, contestant: Callable[[Command], Contestant], *, beside_rclone: float) -> Job:
    """One direction."""
    bar = partial(Bar, shape=f"sync of {FILES} small files, {way}", ours=OURS, number="wall_seconds")
    return Job(
        name=f"sync-{way}",
        title=f"sync of {FILES:,} files of 4 kB, {way}",
        store=store,
        contestants={RCLONE: contestant(rclone), OURS: contestant(aioprefetch), S5CMD: contestant(s5cmd)},
        columns=(WALL, CPU),
        rounds_max=3,
        bars=(
            bar(bases=(RCLONE,), bar=beside_rclone, aim=beside_rclone / 2),
            bar(bases=(S5CMD,), bar=0.8, aim=0.5),
        ),
    )


SMALL_FILE_JOBS = (job("up", upload, beside_rclone=1.0), job("down", download, beside_rclone=1.2))
