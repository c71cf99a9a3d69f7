"""Jobs of one machine and of small things: local files, memory, disk, small requests, processes, archives."""

import contextlib
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.benchmarks import cold_process, works
from tests.benchmarks.content import MIB, write_object
from tests.benchmarks.job import (
    CHECK_OBJECT,
    CPU,
    CPU_PER_GIB,
    GETS,
    KIB_SENT,
    OBJECT,
    OTHERS,
    PEAK,
    PEAK_RATIO,
    RATE,
    SENT,
    WALL,
    Bar,
    Column,
    Job,
    costs_of,
)
from tests.benchmarks.jobs.ranges import SMALL
from tests.benchmarks.jobs.words import (
    CPU_EACH,
    MOUNTPOINT,
    OBSTORE,
    READ,
    READER,
    VIEW,
    WALL_SECONDS,
    in_threads,
)
from tests.benchmarks.moto_store import moto_store
from tests.benchmarks.processes import FILES, cold, rclone_store, sync
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions
from tests.benchmarks.tables import (
    write_doubles,
)
from tests.benchmarks.works import Shape


@contextlib.contextmanager
def local_store() -> Iterator[str]:
    """The URL of a directory of files that are in the page cache, and no longer to be written."""
    with tempfile.TemporaryDirectory(prefix="aioprefetch-bench-") as directory:
        path = Path(directory, OBJECT)
        write_object(path, 256 * MIB)
        write_object(Path(directory, "warm"), 64 << 10)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        os.link(path, Path(directory, CHECK_OBJECT))
        yield f"file://{directory}"


LOCAL = partial(Job, store=local_store, size_bytes=256 * MIB)
LOCAL_STORES = ("obstore LocalStore, blocking", "obstore LocalStore")
LOCAL_JOBS = (
    LOCAL(
        name="local-pages",
        title="4 KiB all over a file of 256 MiB in the page cache, 16 at once",
        contestants={
            name: works.ranges(name, SMALL)
            for name in (*LOCAL_STORES, READ, f"{READER}, random", f"{READER}, adaptive")
        },
        columns=costs_of("read", digits=1),
        bars=(
            Bar("local 4 KiB, op.read, CPU", READ, CPU_EACH, 1.0, 0.6, LOCAL_STORES),
            Bar("local 4 KiB, read_at miss, CPU", f"{READER}, random", CPU_EACH, 0.6, 0.2, LOCAL_STORES),
        ),
    ),
    LOCAL(
        name="local-whole",
        title="a file of 256 MiB in the page cache, at once and in reads of 1 MiB",
        contestants={
            "open().read()": works.whole("open().read()"),
            "aioprefetch read, whole": works.whole(READ),
            "aioprefetch view, whole": works.whole(VIEW),
            "aioprefetch reader, 1 MiB reads": works.stream(READER),
            "obstore LocalStore get": works.whole("obstore LocalStore"),
        },
        columns=(WALL, CPU, PEAK_RATIO),
        bars=(
            Bar("local 256 MiB, op.read, wall", "aioprefetch read, whole", WALL_SECONDS, 1.6, 1.2, ("open().read()",)),
            Bar(
                *("local 256 MiB, 1 MiB reads, wall", "aioprefetch reader, 1 MiB reads", WALL_SECONDS, 2.5, 1.5),
                ("open().read()",),
            ),
        ),
    ),
    Job(
        name="cache-hit",
        title="objects of 2 KiB that a cache in files holds, 32 at once, beside the store",
        conditions=LOOPBACK,
        size_bytes=works.SMALL_BYTES,
        copies=1064,
        contestants={
            **in_threads(
                ("obstore get_range", "obstore get_range, threads"),
                lambda name: works.objects(name, 1000, 32, by_range=True),
                32,
            ),
            "aioprefetch, LruCacheLayer": works.cache_hits,
        },
        columns=(*costs_of("object"), GETS),
        bars=(
            Bar(
                *("hit of 2 KiB in LruCacheLayer over file://, CPU", "aioprefetch, LruCacheLayer", CPU_EACH, 0.6, 0.3),
                ("obstore get_range", "obstore get_range, 32 threads"),
            ),
        ),
    ),
)
HITS = Job(
    name="hits",
    title="4 KiB reads of bytes in memory, one after another",
    store=lambda: contextlib.nullcontext("memory://bench"),
    contestants={
        name: works.hits(name)
        for name in (
            *(READER, "aioprefetch sync file", "aioprefetch operator", "fsspec readahead cache", OBSTORE, "opendal"),
        )
    },
    columns=(
        Column(name="wall_us", heading="wall µs", ratio=True),
        Column(name="cpu_us", heading="CPU µs", ratio=True),
    ),
    quick="all",
)
DISK = (
    Job(
        name="tiers",
        title="sequential reads of 1 MiB by where the bytes are",
        conditions=LOOPBACK,
        size_bytes=256 * MIB,
        quick_size_bytes=128 * MIB,
        checked_apart=True,
        contestants={
            "aioprefetch, memory": works.tier(1, memory_bytes=1024 * MIB),
            "aioprefetch, disk": works.tier(3, memory_bytes=1024 * MIB, on_disk=True, is_another=True),
            "aioprefetch, network": works.tier(0),
            "aioprefetch, network, written to disk": works.tier(0, on_disk=True),
        },
        columns=(RATE, WALL, CPU, GETS),
        quick="all",
    ),
    Job(
        name="checksums",
        title="checksums of 1 MiB pieces",
        contestants={
            "zlib.crc32": works.checksum(zlib.crc32),
            "zlib.adler32": works.checksum(zlib.adler32),
            "hashlib.blake2b": works.checksum(lambda data: hashlib.blake2b(data, digest_size=16).digest()),
            "hashlib.sha256": works.checksum(lambda data: hashlib.sha256(data).digest()),
            "copy (for comparison)": works.checksum(bytes),
        },
        columns=(replace(CPU_PER_GIB, digits=3, ratio=True), RATE),
    ),
)


MOTO = partial(Job, store=partial(moto_store, works.KEYS), quick="few")
SMALL_REQUESTS = (
    MOTO(
        name="stat",
        title="size and ETag of an object, 16 at once, on moto's server",
        contestants=in_threads(
            (OBSTORE, "aioprefetch", "opendal", MOUNTPOINT, "aiobotocore"),
            lambda name: works.requests(name, "size", 400, 16),
            16,
        ),
        columns=costs_of("request")[:1],
        bars=(Bar("stat on moto's server, CPU", "aioprefetch", CPU_EACH, 0.8, 0.5, (OBSTORE,)),),
    ),
    MOTO(
        name="put",
        title="objects of 2 KiB written, 16 at once, on moto's server",
        contestants={
            name: works.requests(name, "put", 400, 16) for name in (OBSTORE, "aioprefetch", "opendal", "aiobotocore")
        },
        columns=costs_of("request")[:1],
        bars=(Bar("PUT of 2 KiB on moto's server, CPU", "aioprefetch", CPU_EACH, 0.8, 0.5, (OBSTORE,)),),
    ),
    MOTO(
        name="list",
        title="8,000 keys listed, on moto's server",
        contestants={name: works.listings(name) for name in (OBSTORE, "aioprefetch", MOUNTPOINT, "aiobotocore")},
        columns=(replace(costs_of("key")[0], digits=1),),
        bars=(Bar("LIST of 8,000 keys, CPU a key", "aioprefetch", CPU_EACH, 1.25, 1, (OBSTORE,)),),
    ),
)
IN_ENVIRONMENT = "aioprefetch read, keys in the environment"


def cold_job(name: str, conditions: Conditions, over: str, *ours: str) -> Job:
    """What a cold process spends until it has the first bytes of an object; ``ours`` are those that have a bar."""
    everyone = {
        **{one: cold(one) for one in cold_process.CONTESTANTS},
        IN_ENVIRONMENT: cold(READ, keys_in_environment=True),
    }
    # Those that can be given a certificate to trust without a setting of the whole process.
    names = (READ, "aioprefetch file", IN_ENVIRONMENT, OBSTORE, "aiobotocore") if conditions.tls else tuple(everyone)
    return Job(
        name=name,
        title="a cold process: from its start to the first 4 KiB of an object",
        conditions=conditions,
        size_bytes=MIB,
        write=write_doubles,
        contestants={one: everyone[one] for one in names},
        columns=(
            Column(name="wall_seconds", heading="to first byte ms", unit=1e-3, digits=0, ratio=True),
            Column(name="import_seconds", heading="import ms", unit=1e-3, digits=0),
            Column(name="first_byte_seconds", heading="after import ms", unit=1e-3, digits=0),
            *(CPU, GETS, OTHERS, KIB_SENT),
            Column(name="imported_bytes", heading="RSS after import MiB", unit=MIB, digits=0),
            Column(name="peak_bytes", heading="peak RSS MiB", unit=MIB, digits=0),
        ),
        bars=[
            Bar(f"process start to first byte, {over}, wall", one, WALL_SECONDS, 2.5, 1.8, (OBSTORE,)) for one in ours
        ],
        quick="few" if ours else "all",
    )


def sync_job(way: str, of_rclone: float) -> Job:
    """2,000 files of 4 kB to a store or from it, by the command lines of ours, rclone and s5cmd."""
    what, ours = f"sync of {FILES} small files, {way}", "aioprefetch sync"
    return Job(
        name=f"sync-{way}",
        title=f"sync of {FILES:,} files of 4 kB, {way}",
        store=rclone_store,
        contestants={name: sync(name, is_up=way == "up") for name in ("rclone sync", ours, "s5cmd sync")},
        columns=(WALL, CPU),
        rounds_max=3,
        bars=(
            Bar(what, ours, WALL_SECONDS, of_rclone, of_rclone / 2, ("rclone sync",)),
            Bar(what, ours, WALL_SECONDS, 0.8, 0.5, ("s5cmd sync",)),
        ),
    )


ZIP = Job(
    name="zip-members",
    title="zipfile: the directory and 20 random members of 4000 of 60 kB",
    conditions=AT_A_DISTANCE,
    size_bytes=4000 * works.MEMBER_BYTES,
    quick_size_bytes=400 * works.MEMBER_BYTES,
    write=works.write_archive,
    contestants={
        "aioprefetch sync.open": works.members("aioprefetch sync.open", 20),
        "s3fs": works.members("s3fs readahead", 20),
        "obstore fsspec": works.members("obstore fsspec", 20),
        "smart_open": works.members("smart_open", 20),
        "opendal": works.members("opendal file", 20),
    },
    columns=(WALL, CPU, GETS, OTHERS, SENT),
    bars=(Bar("zipfile, directory and 20 members, GETs", "aioprefetch sync.open", "gets", 26, 22, digits=0),),
    quick="all",
)
# Not one of the table: an object of the user's, by `make bench URL=s3://bucket/key`.
YOURS = Job(
    name="yours",
    title="the first 64 MiB of your object, and 64 ranges of 64 KiB, 8 at once",
    contestants=in_threads(
        (OBSTORE, READ, "s3fs", "pyarrow", "boto3"),
        lambda name: works.of_the_user(name, Shape(64 << 10, 8, 64), 64 * MIB),
        8,
    ),
    columns=(
        Column(name="in_order_per_second", heading="in order MiB/s", unit=MIB, digits=1, ratio=True),
        *(costs_of("range")[1], costs_of("range")[0], PEAK),
    ),
)
