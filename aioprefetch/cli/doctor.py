"""``doctor``: where credentials were found, what a store does, how fast it is, and the settings that follow."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import secrets
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

import click

from aioprefetch.cli import EXIT_FAILED
from aioprefetch.cli.conformance import check_conformance
from aioprefetch.cli.places import Stores, command, place_argument
from aioprefetch.cli.printing import choose_display, message_of, print_json
from aioprefetch.display import bytes_text, seconds_text
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, NotFound, Unsupported, printable, redact
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import bytes_at_least
from aioprefetch.services import S3
from aioprefetch.sync import run
from aioprefetch.trace.advice import settings_for
from aioprefetch.verbs.listing import list_literally

LATENCY_READS = 7
PARALLEL_READS = 8
PART_BYTES = 8 << 20
# How many objects to list in search of a large one to measure with.
ENTRIES_MAX = 1000
CLOCK_SECONDS_MAX = 5.0
# Signatures are refused from 15 minutes on; the store's date has whole seconds.
CLOCK_SLACK_SECONDS = 30.0
MIB = 1 << 20

Outcome = Literal["ok", "warning", "failed", "skipped"]


class Checks:
    """The checks of one store, in order."""

    def __init__(self) -> None:
        self.results: list[tuple[str, Outcome, str]] = []
        self.facts: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}

    def add(self, name: str, outcome: Outcome, text: str, **facts: Any) -> None:
        """Add the result of a check, and what a program may want of it."""
        self.results.append((name, outcome, printable(redact(text))))
        self.facts |= facts

    def guarded(self, name: str) -> Guard:
        """A block whose failure is the result of a check."""
        return Guard(self, name)


class Guard:
    """``async with``: a failure of the library within the block is the result of a check, and goes no further."""

    def __init__(self, checks: Checks, name: str) -> None:
        self._checks = checks
        self._name = name

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Unsupported):
            self._checks.add(self._name, "skipped", message_of(error))
        elif isinstance(error, Error):
            self._checks.add(self._name, "failed", f"{error.kind}: {message_of(error)}")
        return isinstance(error, Error)


@command(
    "doctor",
    examples="""
aioprefetch doctor s3://bucket/prefix/
aioprefetch doctor --json s3://bucket/large-object
aioprefetch doctor --write s3://bucket/scratch/
aioprefetch doctor --conformance --yes s3://bucket/scratch/
""",
)
@place_argument("place", "PLACE")
@click.option(
    "--write", "writes", is_flag=True, help="Also check conditional writes, by a small object that is removed."
)
@click.option("--bytes", "sample_bytes", default="64MiB", metavar="SIZE", help="Bytes to read, at most (64MiB).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--conformance", is_flag=True, help="Run all checks of verbs and reads below a new directory in PLACE.")
@click.option("--yes", "is_sure", is_flag=True, help="Really write there; it is removed at the end.")
@click.option("--lacks", multiple=True, metavar="TRAIT", help="What the store is known to lack (several).")
def doctor(
    place: str,
    stores: Stores,
    writes: bool,
    sample_bytes: str,
    as_json: bool,
    conformance: bool,
    is_sure: bool,
    lacks: Sequence[str],
) -> int:
    """Check a store: credentials, clock, what it supports, latency and bandwidth, and the settings that follow.

    PLACE is an object, or a directory, where one object is read. No credentials are shown. The exit code is 1 if a
    check has failed.
    """
    side = stores.side(place)
    limit = bytes_at_least(1, sample_bytes, "--bytes", operation="read", path="")
    checks = Checks()
    if conformance:
        check_conformance(place, stores, checks, is_sure=is_sure, lacks=lacks)
    else:
        run(_check_store(stores.operator_of(side), side.path, checks, limit, writes=writes))
    is_failed = any(outcome == "failed" for _, outcome, _ in checks.results)
    if as_json:
        results = [{"check": name, "outcome": outcome, "text": text} for name, outcome, text in checks.results]
        print_json({"place": side.label, "checks": results, **checks.facts, "settings": checks.settings})
        return EXIT_FAILED if is_failed else 0
    display = choose_display(silent=False)
    display.table(("check", "result", "detail"), checks.results, text_columns=3)
    if checks.settings:
        display.say("")
        display.say("Settings for this store from here: options of an operator, or -o on the command line.")
        for name, value in checks.settings.items():
            display.say(f"  {name}={value}")
    return EXIT_FAILED if is_failed else 0


async def _check_store(operator: Operator, path: str, checks: Checks, limit: int, *, writes: bool) -> None:
    _describe(operator, checks)
    await _check_clock(operator, checks)
    sample = await _sample(operator, path, checks)
    if sample is not None:
        await _check_reads(operator, *sample, checks)
        await _measure(operator, *sample, limit, checks)
    if writes:
        directory = path if not path or path.endswith("/") else path[: path.rfind("/") + 1]
        await _check_writes(operator, f"{directory}aioprefetch-doctor-{secrets.token_hex(8)}", checks)
    else:
        checks.add("conditional writes", "skipped", "--write checks them")


def _describe(operator: Operator, checks: Checks) -> None:
    """The store and the credentials, by their place alone."""
    info, service = operator.info, operator.service
    checks.add("store", "ok", info.location, url=info.url, region=info.region)
    if not isinstance(service, S3):
        places = {"file": "the rights of this user", "memory": "none are needed"}
        text = places.get(info.scheme, f"from the options, variables and files of {info.scheme}://")
        checks.add("credentials", "ok", text)
        return
    settings = service.ambient(files=True)
    checks.add("credentials", "warning" if settings.problem else "ok", settings.problem or service.keys_place())
    checks.add("region", "ok", info.region or settings.region or "not set: us-east-1, or found by the first request")
    is_auto = service.addressing_style == "auto"
    checks.add(
        "addressing", "ok", "auto: virtual hosts on AWS, paths elsewhere" if is_auto else service.addressing_style
    )
    if settings.asked and not info.endpoint:
        checks.add("endpoint", "ok", f"chosen by botocore, because of {', '.join(settings.asked)}")
    if settings.refused:
        checks.add("requests", "failed", f"not supported: {', '.join(settings.refused)}")


async def _check_clock(operator: Operator, checks: Checks) -> None:
    """The difference of the clocks, by the date of any response."""
    info = operator.info
    url = info.endpoint if "://" in info.endpoint else ""
    if not url and info.scheme in ("s3", "s3a"):
        url = f"https://s3.{info.region or 'us-east-1'}.amazonaws.com"
    if not url and info.scheme in ("http", "https"):
        url = info.url
    if not url:
        checks.add("clock", "skipped", "no server is asked")
        return
    try:
        offset_seconds = await asyncio.to_thread(_clock_offset_seconds, url)
    except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
        checks.add("clock", "skipped", f"the store did not say its time: {type(error).__name__}")
        return
    good = abs(offset_seconds) <= CLOCK_SLACK_SECONDS
    text = f"{round(offset_seconds):+} s from this machine's" + ("" if good else ": set the clock of this machine")
    checks.add("clock", "ok" if good else "warning", text, clock_offset_seconds=round(offset_seconds, 1))


def _clock_offset_seconds(url: str) -> float:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with contextlib.closing(kind(parts.hostname or "", parts.port, timeout=CLOCK_SECONDS_MAX)) as connection:
        connection.request("HEAD", "/")
        response = connection.getresponse()
        response.read()
        return (parsedate_to_datetime(response.headers["Date"]) - datetime.now(UTC)).total_seconds()


async def _sample(operator: Operator, path: str, checks: Checks) -> tuple[str, int] | None:
    """The object to read, and its size: the named one, or the largest among the first in the listing."""
    if path and not path.endswith("/"):
        async with checks.guarded("object"):
            try:
                metadata = await operator.stat(path)
            except NotFound:
                if not operator.capability.list or not await operator.exists(f"{path}/"):
                    raise
                return await _sample(operator, f"{path}/", checks)
            if metadata.is_directory:
                return await _sample(operator, f"{path}/", checks)
            checks.add("object", "ok", f"{path}, {bytes_text(metadata.size or 0)}", size=metadata.size)
            return path, metadata.size or 0
        return None
    async with checks.guarded("list"):
        largest, count = None, 0
        async with list_literally(operator, path, recursive=True) as entries:
            async for entry in entries:
                count += 1
                if not entry.is_directory and (largest is None or (entry.size or 0) > (largest.size or 0)):
                    largest = entry
                if count == ENTRIES_MAX:
                    break
        if largest is None:
            checks.add("list", "warning", "there are no objects: name one to have reads checked")
            return None
        checks.add("list", "ok", f"reads {largest.path}, {bytes_text(largest.size or 0)}", size=largest.size)
        return largest.path, largest.size or 0
    return None


async def _check_reads(operator: Operator, path: str, size: int, checks: Checks) -> None:
    """Ranges, suffix ranges and If-Match, each by a request."""
    if not size:
        checks.add("reads", "skipped", "the object is empty")
        return
    async with checks.guarded("ranges"):
        first = await operator.read(path, size=1)
        checks.add("ranges", "ok" if len(first) == 1 else "failed", "of bytes from a position")
    async with checks.guarded("suffix ranges"):
        last, same = await operator.read(path, suffix=1), await operator.read(path, offset=size - 1, size=1)
        checks.add("suffix ranges", "ok" if last == same else "failed", "the last bytes without knowing the size")
    async with checks.guarded("If-Match"):
        try:
            await operator.read(path, size=1, if_match='"ffffffffffffffffffffffffffffffff"')
        except ConditionNotMatch as error:
            if operator.info.scheme in ("file", "memory"):
                checks.add("If-Match", "ok", "another version is refused here")
            elif "if_match" in error.context:
                checks.add("If-Match", "warning", "the store ignores it; the ETag of each response is compared instead")
            else:
                checks.add("If-Match", "ok", "another version is refused")
        else:
            checks.add("If-Match", "failed", "bytes of another version were given out")


async def _measure(operator: Operator, path: str, size: int, limit: int, checks: Checks) -> None:
    """Latency and bandwidth, and the settings that follow from them."""
    if not size:
        return
    async with checks.guarded("latency"):
        times: list[float] = []
        for number in range(LATENCY_READS):
            began = time.perf_counter()
            await operator.read(path, offset=number * (size - 1) // LATENCY_READS, size=1)
            times.append(time.perf_counter() - began)
        latency = statistics.median(times)
        checks.add("latency", "ok", f"{seconds_text(latency)} to the first byte", first_byte_seconds=round(latency, 6))
        part = min(PART_BYTES, size, max(1, limit // 2))
        began = time.perf_counter()
        await operator.view(path, size=part)
        single = part / max(time.perf_counter() - began - latency, 1e-6)
        count = max(1, min(PARALLEL_READS, (limit - part) // part))
        began = time.perf_counter()
        await asyncio.gather(
            *(operator.view(path, offset=min(number * part, size - part), size=part) for number in range(count))
        )
        together = count * part / max(time.perf_counter() - began - latency, 1e-6)
        rough = ", roughly: the object is small" if part < MIB else ""
        text = f"{bytes_text(int(single))}/s by one connection, {bytes_text(int(together))}/s by {count}{rough}"
        facts = {"connection_bytes_per_second": int(single), "bytes_per_second": int(together)}
        checks.add("bandwidth", "ok", text, **facts)
        if part >= MIB:
            checks.settings |= settings_for(latency, single, together)


async def _check_writes(operator: Operator, path: str, checks: Checks) -> None:
    """Conditional writes of an object of a few bytes, which is removed."""
    async with checks.guarded("conditional writes"):
        try:
            await operator.write(path, b"aioprefetch doctor", if_not_exists=True)
            try:
                await operator.write(path, b"aioprefetch doctor again", if_not_exists=True)
            except AlreadyExists:
                checks.add("conditional writes", "ok", "an object that is there is not replaced")
            else:
                checks.add("conditional writes", "failed", "an object was replaced although it was there")
        finally:
            await operator.delete(path)
