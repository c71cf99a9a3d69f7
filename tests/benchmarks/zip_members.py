"""The job ``zip-members``: the directory of an archive of 4,000 members and 20 of them at random, at a distance."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import (
    aioprefetch_options,
    boto3_client,
    obstore_options,
    opendal_options,
    s3fs_filesystem,
)
from tests.benchmarks.job import CPU, GETS, OTHERS, SENT, WALL, WARM_OBJECT, Contestant, Job, Sample, Target
from tests.benchmarks.process_usage import Meter
from tests.benchmarks.simulator import AT_A_DISTANCE

MEMBER_BYTES = 60_000
MEMBERS = 4000
QUICK_MEMBERS = 400
READ_MEMBERS = 20

OURS = "aioprefetch sync.open"

# Opens the object of a key as a file.
OpenFile = Callable[[str], Any]


def member(number: int) -> bytes:
    """What is in a member: nothing that a compression would make smaller."""
    return random.Random(number).randbytes(MEMBER_BYTES)


def write_archive(path: Path, size_bytes: int) -> None:
    """An archive of as many members as have room, stored as they are."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(size_bytes // MEMBER_BYTES):
            archive.writestr(f"directory/member-{number:05}", member(number))


def read_members(file: BinaryIO, count: int) -> None:
    """Open an archive and read this many of its members at random; each is compared."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        for name in random.Random(4).sample(names, count):
            assert archive.read(name) == member(int(name.rpartition("-")[2])), f"other bytes in {name}"


def timed_members(opener: Callable[[Target], OpenFile]) -> Contestant:
    """From opening the file to the last member."""

    async def run(target: Target) -> Sample:
        open_file = opener(target)
        with open_file(WARM_OBJECT) as file:
            file.read(1)
        meter = Meter()
        with open_file(target.key) as file:
            read_members(cast("BinaryIO", file), READ_MEMBERS)
        return dict(meter.stop())

    return run


def aioprefetch(target: Target) -> OpenFile:
    """``ap.sync.open`` of a URL."""
    import aioprefetch as ap

    options = aioprefetch_options(target)
    return lambda key: ap.sync.open(f"s3://{target.bucket}/{key}", **options)


def s3fs(target: Target) -> OpenFile:
    """``open`` with the default cache."""
    filesystem = s3fs_filesystem(target)
    return lambda key: filesystem.open(f"{target.bucket}/{key}", "rb")


def obstore_fsspec(target: Target) -> OpenFile:
    """``open`` of obstore's file system for fsspec, with its default cache."""
    from obstore.fsspec import FsspecStore

    filesystem: Any = FsspecStore("s3", **obstore_options(target))
    return lambda key: filesystem.open(f"{target.bucket}/{key}", "rb")


def smart_open(target: Target) -> OpenFile:
    """``smart_open.open``."""
    import smart_open

    parameters = {"client": boto3_client(target)}
    return lambda key: smart_open.open(f"s3://{target.bucket}/{key}", "rb", transport_params=parameters)


def opendal(target: Target) -> OpenFile:
    """OpenDAL's blocking file; its reads are short, so a buffer makes them full."""
    import opendal

    operator = opendal.Operator("s3", **opendal_options(target))

    def open_file(key: str) -> BinaryIO:
        file: Any = operator.open(key, "rb")
        return io.BufferedReader(file)

    return open_file


ZIP_MEMBERS = Job(
    name="zip-members",
    title=f"zipfile: the directory and {READ_MEMBERS} random members of {MEMBERS} of 60 kB",
    conditions=AT_A_DISTANCE,
    size_bytes=MEMBERS * MEMBER_BYTES,
    quick_size_bytes=QUICK_MEMBERS * MEMBER_BYTES,
    write=write_archive,
    contestants={
        OURS: timed_members(aioprefetch),
        "s3fs": timed_members(s3fs),
        "obstore fsspec": timed_members(obstore_fsspec),
        "smart_open": timed_members(smart_open),
        "opendal": timed_members(opendal),
    },
    quick_contestants=(OURS, "s3fs", "smart_open"),
    columns=(WALL, CPU, GETS, OTHERS, SENT),
    compare_all=True,
    bars=(Bar(shape="zipfile, directory and 20 members, GETs", ours=OURS, number="gets", bar=26, aim=22, digits=0),),
)
