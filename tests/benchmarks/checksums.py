"""The job ``checksums``: what it costs to check a GiB of memory, a mebibyte at a time as the disk tier does."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable

from tests.benchmarks.content import MIB, expected
from tests.benchmarks.job import Column, Contestant, Job, Sample, Target

PIECES = 256


def timed_checksum(checksum: Callable[[memoryview], object]) -> Contestant:
    """A checksum over each piece; seconds for a GiB."""

    async def run(target: Target) -> Sample:
        data = memoryview(expected(0, PIECES * MIB))
        began = time.process_time()
        for start in range(0, len(data), MIB):
            checksum(data[start : start + MIB])
        seconds = (time.process_time() - began) * 1024 / PIECES
        return {"seconds_per_gib": seconds, "rate": (1 << 30) / seconds}

    return run


def blake2b(data: memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()


CHECKSUMS = Job(
    name="checksums",
    title="checksums of 1 MiB pieces, CPU seconds for a GiB",
    quick_contestants=("zlib.crc32", "hashlib.blake2b"),
    contestants={
        "zlib.crc32": timed_checksum(zlib.crc32),
        "zlib.adler32": timed_checksum(zlib.adler32),
        "hashlib.blake2b": timed_checksum(blake2b),
        "hashlib.sha256": timed_checksum(sha256),
        "copy (for comparison)": timed_checksum(bytes),
    },
    columns=(
        Column(name="seconds_per_gib", heading="s per GiB", digits=3, ratio=True),
        Column(name="rate", heading="MiB/s", unit=MIB, digits=0),
    ),
)
