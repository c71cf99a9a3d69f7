"""Advice: rules over a recording, each a sentence or ``None``; and settings for a store that was measured."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from aioprefetch.display import bytes_text, counted, seconds_text, share_text
from aioprefetch.trace.recording import Recording
from aioprefetch.trace.timeline import busy_seconds, in_flight, interval_of
from aioprefetch.trace.traced import TracedObject, TracedRequest

# Below this, waste is cheaper than another request.
WASTED_BYTES_MIN = 1 << 20
WASTED_SHARE_MIN = 0.3
REFETCHED_SHARE_MIN = 0.1
SMALL_REQUEST_BYTES = 128 << 10
SMALL_REQUESTS_MIN = 20
JUMPS_SHARE_MIN = 0.5
RETRIES_MIN = 3
RETRIES_SHARE_MIN = 0.02
REQUESTS_ALONE_MIN = 8
IN_FLIGHT_ALONE_MAX = 1.1
BUSY_SHARE_MIN = 0.5
MEMORY_WAIT_SHARE_MIN = 0.1
METADATA_REQUESTS_MIN = 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A finding: what the recording shows, and what to do about it. ``kind`` is the name of the rule."""

    kind: str
    finding: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.finding}: {self.remedy}"


Rule = Callable[[Recording], Advice | None]


def advise(recording: Recording) -> list[Advice]:
    """The advice of all rules that apply, the most useful first."""
    return [advice for rule in RULES if (advice := rule(recording)) is not None]


def wasted_bytes(recording: Recording) -> Advice | None:
    """Much of what was fetched was never read."""
    if not recording.knows_use:
        return None
    distinct, wasted = recording.distinct_bytes, recording.wasted_bytes
    if wasted < WASTED_BYTES_MIN or wasted < WASTED_SHARE_MIN * distinct:
        return None
    causes: Counter[str] = Counter()
    for request in recording.reads:
        causes[request.lane if request.reader else "no reader"] += unused_bytes(recording, request)
    remedies = {
        "demand": "read with policy='random', or with a smaller block_bytes",
        "prefetch": "most were prefetched: read with policy='random', or with a smaller prefetch_blocks",
        "no reader": "ask for the ranges that are needed, with read_ranges()",
    }
    return Advice(
        kind="wasted_bytes",
        finding=f"{share_text(wasted, distinct)} of the bytes ({bytes_text(wasted)}) were not used",
        remedy=remedies.get(causes.most_common(1)[0][0], remedies["demand"]),
    )


def refetched_bytes(recording: Recording) -> Advice | None:
    """Bytes came more than once."""
    if not recording.knows_use:
        return None
    again = recording.refetched_bytes
    if again < WASTED_BYTES_MIN or again < REFETCHED_SHARE_MIN * recording.fetched_bytes:
        return None
    return Advice(
        kind="refetched_bytes",
        finding=f"{share_text(again, recording.fetched_bytes)} of the bytes ({bytes_text(again)}) came more than once",
        remedy="give the operator more memory_bytes, or a disk_cache, and keep one reader open for each object",
    )


def seek_storm(recording: Recording) -> Advice | None:
    """Many small requests that jump about in an object."""
    item, requests = _most_small_requests(recording)
    if item is None or _jumps(requests) < JUMPS_SHARE_MIN:
        return None
    return Advice(
        kind="seek_storm",
        finding=f"{counted(len(requests), 'small request')} jumped about in {item.path}",
        remedy="announce the ranges with will_need(), or ask for them in one call of read_ranges()",
    )


def small_requests(recording: Recording) -> Advice | None:
    """Many small requests, one after the other."""
    item, requests = _most_small_requests(recording)
    if item is None or _jumps(requests) >= JUMPS_SHARE_MIN:
        return None
    median = statistics.median(request.received_bytes for request in requests)
    return Advice(
        kind="small_requests",
        finding=f"{counted(len(requests), 'request')} for {item.path} brought {bytes_text(int(median))} each",
        remedy="read with policy='sequential', or with a larger block_bytes",
    )


def retries(recording: Recording) -> Advice | None:
    """Requests failed and were sent again."""
    number = recording.counts["request.retried"]
    if number < RETRIES_MIN or number < RETRIES_SHARE_MIN * recording.counts["request.started"]:
        return None
    errors = Counter(retry.error.partition(":")[0] for retry in recording.retries if retry.error)
    cause = f", most of them after {errors.most_common(1)[0][0]}" if errors else ""
    waited = recording.counts["retry_wait_microseconds"] / 1e6
    return Advice(
        kind="retries",
        finding=f"{counted(number, 'request was', 'requests were')} sent again{cause},"
        f" and {seconds_text(waited)} passed between attempts",
        remedy="if the store asks for fewer requests, lower concurrency; if connections fail, look at the network",
    )


def one_at_a_time(recording: Recording) -> Advice | None:
    """Requests followed each other although the store could have served them at once."""
    reads = recording.reads
    busy, total = busy_seconds(in_flight(interval_of(request, recording.ended_at_seconds) for request in reads))
    if len(reads) < REQUESTS_ALONE_MIN or not busy or total / busy > IN_FLIGHT_ALONE_MAX:
        return None
    if busy < BUSY_SHARE_MIN * recording.ended_at_seconds:
        return None
    return Advice(
        kind="one_at_a_time",
        finding=f"requests ran one at a time for {share_text(busy, recording.ended_at_seconds)} of the time",
        remedy="read from several tasks, ask for several ranges with read_ranges(), or raise prefetch_blocks",
    )


def memory_waits(recording: Recording) -> Advice | None:
    """Requests waited for memory."""
    busy, _ = busy_seconds(in_flight((wait.begun_at_seconds, wait.ended_at_seconds) for wait in recording.memory_waits))
    if not busy or busy < MEMORY_WAIT_SHARE_MIN * recording.ended_at_seconds:
        return None
    return Advice(
        kind="memory_waits",
        finding=f"requests waited for memory during {share_text(busy, recording.ended_at_seconds)} of the time",
        remedy="give the operator more memory_bytes, or open fewer readers at once",
    )


def metadata_requests(recording: Recording) -> Advice | None:
    """Many requests brought no bytes of an object."""
    stats = sum(request.operation == "stat" for request in recording.requests)
    if stats < METADATA_REQUESTS_MIN or stats < len(recording.reads):
        return None
    return Advice(
        kind="metadata_requests",
        finding=f"{counted(stats, 'request')} asked for the size of an object, and brought none of its bytes",
        remedy="pass size= and etag= from a listing to the reader; the first read brings them too",
    )


RULES: tuple[Rule, ...] = (
    wasted_bytes,
    refetched_bytes,
    seek_storm,
    small_requests,
    one_at_a_time,
    retries,
    memory_waits,
    metadata_requests,
)


def settings_for(latency_seconds: float, connection_bytes: float, total_bytes: float) -> dict[str, str | int]:
    """Options for a store with such a time to the first byte and such rates, in bytes per second.

    A block takes one connection four times as long as its first byte, so that waiting is a fifth of the time; as many
    blocks are fetched ahead as connections are needed for the whole rate, and one for the wait; memory holds the blocks
    of four such readers.
    """
    block_bytes = 1 << min(25, max(20, round(math.log2(max(4 * latency_seconds * connection_bytes, 1)))))
    connections = max(1, math.ceil(total_bytes / max(connection_bytes, 1)))
    prefetch_blocks = min(64, max(2, connections + 1))
    memory_bytes = max(256 * MIB, 4 * block_bytes * prefetch_blocks)
    return {
        "block_bytes": f"{block_bytes // MIB}MiB",
        "prefetch_blocks": prefetch_blocks,
        "memory_bytes": f"{memory_bytes // MIB}MiB",
    }


def unused_bytes(recording: Recording, request: TracedRequest) -> int:
    """The bytes that one request brought and that no read used."""
    start, end = request.received
    item = recording.objects.get(request.path)
    if item is None or start == end:
        return 0
    return end - start - item.used.count_in(start, end)


def _most_small_requests(recording: Recording) -> tuple[TracedObject | None, list[TracedRequest]]:
    """The object with the most small requests, where these are many and most of its requests."""
    by_path: dict[str, list[TracedRequest]] = {}
    number: Counter[str] = Counter()
    for request in recording.reads:
        if request.path not in recording.objects:  # One of too many objects.
            continue
        number[request.path] += 1
        if request.outcome == "finished" and request.received_bytes < SMALL_REQUEST_BYTES:
            by_path.setdefault(request.path, []).append(request)
    path, requests = max(by_path.items(), key=lambda item: len(item[1]), default=("", []))
    if len(requests) < SMALL_REQUESTS_MIN or 2 * len(requests) < number[path]:
        return None, []
    return recording.objects[path], requests


def _jumps(requests: list[TracedRequest]) -> float:
    """The share of requests that do not begin where another one of the last few ended."""
    jumps = 0
    ends = [request.received[1] for request in requests]
    for index, (_, request) in enumerate(pairwise(requests)):
        jumps += (request.start or 0) not in ends[max(0, index - 7) : index + 1]
    return jumps / max(1, len(requests) - 1)
