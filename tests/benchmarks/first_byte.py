"""The jobs ``*first-byte*``: what a cold process spends until it has the first bytes of an object.

The clock starts before the process is made and stops when the bytes are there: the interpreter's start, imports, the
client, the connection, the signature and the response count; the end of the process does not. Modules are compiled
already, as those of an installed package are: each sample first runs its contestant once, uncounted, and keeps what
that compiled in a directory of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import cold_process
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY
from tests.benchmarks.content import MIB
from tests.benchmarks.job import CHECK_OBJECT, CPU, GETS, KIB_SENT, OTHERS, Column, Contestant, Job, Sample, Target
from tests.benchmarks.parquet_files import write_large
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, LOOPBACK_TLS

SCRIPT = Path(cold_process.__file__)
READ, FILE, OBSTORE = "aioprefetch read", "aioprefetch file", "obstore"
IN_ENVIRONMENT = "aioprefetch read, keys in the environment"


def cold(name: str, *, keys_in_environment: bool = False) -> Contestant:
    """A process of its own, which has loaded nothing."""

    async def run(target: Target) -> Sample:
        keys = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
        passed = ("", "") if keys_in_environment else tuple(keys.values())
        environment = environment_that_compiles(os.environ, Path(target.scratch, "compiled"))
        environment |= keys if keys_in_environment else {}

        async def process(key: str) -> Sample:
            place = (target.endpoint_url, target.bucket, key, REGION, *passed, target.ca_bundle)
            return await sample_of_process(name, place, environment)

        await process(CHECK_OBJECT)  # the same object under a key whose traffic is not counted
        return await process(target.key)

    return run


def environment_that_compiles(runner: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The environment with compiled modules kept in a directory, even where the runner wants none kept."""
    kept = {name: value for name, value in runner.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(directory)}


async def sample_of_process(name: str, place: Sequence[str], environment: Mapping[str, str]) -> Sample:
    """Run a contestant in a process; what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(SCRIPT), name, str(time.perf_counter()), *place),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    printed, complaint = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError((complaint.decode().strip().splitlines() or ["no message"])[-1])
    found: Sample = json.loads(printed.splitlines()[-1])
    return found


def bars(*ours: str, over: str) -> tuple[Bar, ...]:
    """What is wanted."""
    return tuple(
        Bar(
            shape=f"process start to first byte, {over}, wall",
            ours=name,
            bases=(OBSTORE,),
            number="wall_seconds",
            bar=2.5,
            aim=1.8,
        )
        for name in ours
    )


FIRST_BYTE = Job(
    name="import-first-byte",
    title="a cold process: from its start to the first 4 KiB of an object",
    conditions=AT_A_DISTANCE,
    size_bytes=MIB,
    quick_size_bytes=MIB,
    write=write_large,
    quick_contestants=(READ, FILE, OBSTORE),
    contestants={
        **{name: cold(name) for name in cold_process.CONTESTANTS},
        IN_ENVIRONMENT: cold(READ, keys_in_environment=True),
    },
    columns=(
        Column(name="wall_seconds", heading="to first byte ms", unit=1e-3, digits=0, ratio=True),
        Column(name="import_seconds", heading="import ms", unit=1e-3, digits=0),
        Column(name="first_byte_seconds", heading="after import ms", unit=1e-3, digits=0),
        CPU,
        GETS,
        OTHERS,
        KIB_SENT,
        Column(name="imported_bytes", heading="RSS after import MiB", unit=MIB, digits=0),
        Column(name="peak_bytes", heading="peak RSS MiB", unit=MIB, digits=0),
    ),
)
FIRST_BYTE_NEAR = replace(
    FIRST_BYTE,
    name="first-byte",
    conditions=LOOPBACK,
    quick_contestants=(),  # what fails here fails at a distance too
    bars=bars(READ, IN_ENVIRONMENT, FILE, over="plain"),
)
FIRST_BYTE_TLS = replace(
    FIRST_BYTE,
    name="first-byte-tls",
    conditions=LOOPBACK_TLS,
    # Those that can be given a certificate to trust without a setting of the whole process.
    contestants={name: FIRST_BYTE.contestants[name] for name in (READ, FILE, IN_ENVIRONMENT, OBSTORE, "aiobotocore")},
    quick_contestants=(READ, OBSTORE),
    bars=bars(READ, IN_ENVIRONMENT, over="TLS"),
)
COLD_JOBS = (FIRST_BYTE, FIRST_BYTE_NEAR, FIRST_BYTE_TLS)
