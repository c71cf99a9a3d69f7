"""``bench``: a short run against an object of the user, beside those other libraries that are installed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import click

from aioprefetch.cli import EXIT_FAILED
from aioprefetch.cli.places import Stores, command, place_argument
from aioprefetch.cli.printing import choose_display, note, print_json
from aioprefetch.credentials import Secret
from aioprefetch.display import bytes_text, seconds_text
from aioprefetch.errors import InvalidArgument, printable, redact
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import bytes_at_least
from aioprefetch.services import S3
from aioprefetch.sync import run

PEERS = ("obstore", "s3fs", "pyarrow", "boto3")
# Ranges at random places: their size and number, and the callers that read them at once.
RANGE_BYTES = 64 << 10
RANGES = 64
CALLERS = 8

ReadRange = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one library: the bytes of a read in order per second, and times of ranges in seconds."""

    name: str
    bytes_per_second: float
    range_seconds: float
    ranges_per_second: float

    def fields(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {
            "bytes_per_second": int(self.bytes_per_second),
            "range_seconds": round(self.range_seconds, 6),
            "ranges_per_second": round(self.ranges_per_second, 1),
        }


@command(
    "bench",
    summary="Compare reads of your object with other libraries.",
    examples="""
aioprefetch bench s3://bucket/large-object
aioprefetch bench --bytes 512MiB --peer obstore --peer s3fs s3://bucket/large-object
aioprefetch bench --json data.bin
""",
)
@place_argument("place", "PLACE")
@click.option("--bytes", "sample", default="64MiB", metavar="SIZE", help="The bytes to read in order, at most (64MiB).")
@click.option("--rounds", default=3, metavar="N", type=click.IntRange(1), help="Runs, of which the median counts (3).")
@click.option("--peer", "peers", multiple=True, type=click.Choice(PEERS), help="Only these beside ours.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bench(place: str, stores: Stores, sample: str, rounds: int, peers: Sequence[str], as_json: bool) -> int:
    """Measure reads of your own object, beside obstore, s3fs, pyarrow and boto3 as far as they are installed.

    Each reads the beginning of the object in order, and 64 ranges of 64 KiB by 8 callers. All run in this process, one
    after the other: the figures say what to expect from here, and not more.
    """
    stores.check(place)
    operator, path = stores.operator(place)
    limit = bytes_at_least(RANGE_BYTES, sample, "--bytes", operation="read", path=path)
    size = run(operator.stat(path)).size or 0
    if size < 2 * RANGE_BYTES:
        raise InvalidArgument(f"the object has {size} bytes, and {2 * RANGE_BYTES} are needed", path=path)
    length = min(size, limit)
    chance = random.Random(17)  # The same places for all.
    starts = [chance.randrange(size - RANGE_BYTES) for _ in range(RANGES)]
    figures = [run(_measure_ours(operator, path, length, starts, rounds))]
    failures: dict[str, str] = {}
    for name in peers or PEERS:
        try:
            with _peer(name, operator, path) as read_range:
                figures.append(_measure_peer(name, read_range, length, starts, rounds))
        except ImportError:
            if name in peers:
                failures[name] = "not installed"
        except _NotForThisStore:
            if name in peers:
                failures[name] = f"not for {operator.info.scheme}://"
        except Exception as error:
            failures[name] = printable(redact(f"{type(error).__name__}: {error}"))[:200]
    if as_json:
        shown = {each.name: each.fields() for each in figures}
        print_json({"size": size, "bytes": length, "libraries": shown, "failures": failures})
    else:
        _show(figures, length)
        for name, why in failures.items():
            note(f"{name}: {why}")
    return EXIT_FAILED if set(failures) & set(peers) else 0


def _show(figures: Sequence[Figures], length: int) -> None:
    display = choose_display(silent=False)
    rows = []
    for each in figures:
        rate = f"{bytes_text(int(each.bytes_per_second))}/s"
        rows.append((each.name, rate, seconds_text(each.range_seconds), f"{each.ranges_per_second:,.0f}"))
    columns = ("library", f"{bytes_text(length)} in order", f"{RANGE_BYTES >> 10} KiB, median", "ranges/s")
    display.table(columns, rows)


async def _measure_ours(operator: Operator, path: str, length: int, starts: Sequence[int], rounds: int) -> Figures:
    await operator.read(path, size=1)  # Connections and modules are there for the others, too.
    whole: list[float] = []
    times: list[float] = []
    walls: list[float] = []
    slots = asyncio.Semaphore(CALLERS)

    async def read_range(start: int) -> None:
        async with slots:
            began = time.perf_counter()
            await operator.read(path, offset=start, size=RANGE_BYTES)
            times.append(time.perf_counter() - began)

    for _ in range(rounds):
        began = time.perf_counter()
        await operator.view(path, size=length)
        whole.append(time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*map(read_range, starts))
        walls.append(time.perf_counter() - began)
    return _figures("aioprefetch", length, whole, times, walls)


def _measure_peer(name: str, read_range: ReadRange, length: int, starts: Sequence[int], rounds: int) -> Figures:
    read_range(0, 1)
    whole: list[float] = []
    times: list[float] = []
    walls: list[float] = []

    def read_one(start: int) -> None:
        began = time.perf_counter()
        read_range(start, start + RANGE_BYTES)
        times.append(time.perf_counter() - began)

    with ThreadPoolExecutor(CALLERS, thread_name_prefix="aioprefetch-bench") as pool:
        for _ in range(rounds):
            began = time.perf_counter()
            read_range(0, length)
            whole.append(time.perf_counter() - began)
            began = time.perf_counter()
            list(pool.map(read_one, starts))
            walls.append(time.perf_counter() - began)
    return _figures(f"{name} {version(name)}", length, whole, times, walls)


def _figures(name: str, length: int, whole: Sequence[float], times: Sequence[float], walls: Sequence[float]) -> Figures:
    return Figures(
        name=name,
        bytes_per_second=length / statistics.median(whole),
        range_seconds=statistics.median(times),
        ranges_per_second=RANGES / statistics.median(walls),
    )


class _NotForThisStore(Exception):
    """A library that has no such store."""


@contextlib.contextmanager
def _peer(name: str, operator: Operator, path: str) -> Iterator[ReadRange]:
    """The function of a library that reads the bytes from start to end, each time by requests."""
    service = operator.service
    if isinstance(service, S3):
        key = f"{service.prefix}/{path}" if service.prefix else path
        with _S3_PEERS[name](service, operator.info.endpoint, operator.info.region or "us-east-1", key) as read_range:
            yield read_range
    elif operator.info.scheme == "file" and name in _FILE_PEERS:
        with _FILE_PEERS[name](f"{operator.info.url.removeprefix('file://').rstrip('/')}/{path}") as read_range:
            yield read_range
    else:
        raise _NotForThisStore(name)


def _revealed(secret: object) -> str | None:
    """A key that options or variables give; ``None`` leaves it to the library's own search."""
    return secret.reveal() if isinstance(secret, Secret) else None


@contextlib.contextmanager
def _obstore_s3(service: S3, endpoint: str, region: str, key: str) -> Iterator[ReadRange]:
    import obstore
    from obstore.store import S3Store

    given = {
        "access_key_id": _revealed(service.access_key_id),
        "secret_access_key": _revealed(service.secret_access_key),
        "session_token": _revealed(service.session_token),
        "endpoint": endpoint or None,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    if service.anonymous:
        options["skip_signature"] = True
    client: Any = {"allow_http": True} if endpoint.startswith("http:") else {}
    store = S3Store(service.bucket, region=region, client_options=client, **options)
    yield lambda start, end: obstore.get_range(store, key, start=start, end=end)


@contextlib.contextmanager
def _s3fs(service: S3, endpoint: str, region: str, key: str) -> Iterator[ReadRange]:
    import s3fs

    system = s3fs.S3FileSystem(
        key=_revealed(service.access_key_id),
        secret=_revealed(service.secret_access_key),
        token=_revealed(service.session_token),
        profile=service.profile,
        anon=service.anonymous,
        client_kwargs={"region_name": region, **({"endpoint_url": endpoint} if endpoint else {})},
        skip_instance_cache=True,
    )
    yield lambda start, end: system.cat_file(f"{service.bucket}/{key}", start=start, end=end)


@contextlib.contextmanager
def _pyarrow_s3(service: S3, endpoint: str, region: str, key: str) -> Iterator[ReadRange]:
    import pyarrow.fs

    scheme, _, host = endpoint.rpartition("://")
    given = {
        "access_key": _revealed(service.access_key_id),
        "secret_key": _revealed(service.secret_access_key),
        "session_token": _revealed(service.session_token),
        "scheme": scheme,
        "endpoint_override": host,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    system = pyarrow.fs.S3FileSystem(region=region, anonymous=service.anonymous, **options)
    with system.open_input_file(f"{service.bucket}/{key}") as file:
        yield lambda start, end: file.read_at(end - start, start)


@contextlib.contextmanager
def _boto3(service: S3, endpoint: str, region: str, key: str) -> Iterator[ReadRange]:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    session = boto3.Session(
        aws_access_key_id=_revealed(service.access_key_id),
        aws_secret_access_key=_revealed(service.secret_access_key),
        aws_session_token=_revealed(service.session_token),
        profile_name=service.profile,
    )
    config = Config(signature_version=UNSIGNED) if service.anonymous else Config(max_pool_connections=CALLERS)
    client = session.client("s3", endpoint_url=endpoint or None, region_name=region, config=config)
    with contextlib.closing(client):
        yield lambda start, end: client.get_object(Bucket=service.bucket, Key=key, Range=f"bytes={start}-{end - 1}")[
            "Body"
        ].read()


@contextlib.contextmanager
def _obstore_file(path: str) -> Iterator[ReadRange]:
    import obstore
    from obstore.store import LocalStore

    directory, _, name = path.rpartition("/")
    store = LocalStore(prefix=directory)
    yield lambda start, end: obstore.get_range(store, name, start=start, end=end)


@contextlib.contextmanager
def _pyarrow_file(path: str) -> Iterator[ReadRange]:
    import pyarrow.fs

    with pyarrow.fs.LocalFileSystem().open_input_file(path) as file:
        yield lambda start, end: file.read_at(end - start, start)


_S3_PEERS = {"obstore": _obstore_s3, "s3fs": _s3fs, "pyarrow": _pyarrow_s3, "boto3": _boto3}
_FILE_PEERS = {"obstore": _obstore_file, "pyarrow": _pyarrow_file}
