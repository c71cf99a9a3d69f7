"""The job ``import-first-byte``: what a cold process spends until it has the first bytes of an object."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from tests.benchmarks import cold_process
from tests.benchmarks.clients import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY
from tests.benchmarks.content import MIB
from tests.benchmarks.job import CPU, GETS, OTHERS, Column, Contestant, Job, Sample, Target
from tests.benchmarks.parquet_files import write_large
from tests.benchmarks.simulator import AT_A_DISTANCE

SCRIPT = Path(cold_process.__file__)


def cold(name: str) -> Contestant:
    """A process of its own, which has loaded nothing."""

    async def run(target: Target) -> Sample:
        place = (target.endpoint_url, target.bucket, target.key, REGION, ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        command = [sys.executable, "-P", str(SCRIPT), name, str(time.perf_counter()), *place]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        printed, complaint = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError((complaint.decode().strip().splitlines() or ["no message"])[-1])
        found: Sample = json.loads(printed.splitlines()[-1])
        return found

    return run


FIRST_BYTE = Job(
    name="import-first-byte",
    title="a cold process: from its start to the first 4 KiB of an object",
    conditions=AT_A_DISTANCE,
    size_bytes=MIB,
    quick_size_bytes=MIB,
    write=write_large,
    quick_contestants=("aioprefetch read", "aioprefetch file", "obstore"),
    contestants={name: cold(name) for name in cold_process.CONTESTANTS},
    columns=(
        Column(name="wall_seconds", heading="to first byte ms", unit=1e-3, digits=0, ratio=True),
        Column(name="import_seconds", heading="import ms", unit=1e-3, digits=0),
        Column(name="first_byte_seconds", heading="after import ms", unit=1e-3, digits=0),
        CPU,
        GETS,
        OTHERS,
        Column(name="sent_bytes", heading="KiB sent", unit=1024, digits=0),
        Column(name="imported_bytes", heading="RSS after import MiB", unit=MIB, digits=0),
        Column(name="peak_bytes", heading="peak RSS MiB", unit=MIB, digits=0),
    ),
)
