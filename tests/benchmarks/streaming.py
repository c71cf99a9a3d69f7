"""The jobs ``sequential`` (beside the peers, the ramp included) and ``ramp`` (a long object, after the ramp)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from tests.benchmarks.access_log import Request, Traffic
from tests.benchmarks.bars import Bar
from tests.benchmarks.clients import warm_obstore_store
from tests.benchmarks.content import MIB
from tests.benchmarks.job import (
    CPU,
    GETS,
    IN_FLIGHT,
    MEMORY,
    OTHERS,
    PEAK_RATIO,
    RATE,
    RATE_RATIO,
    SENT,
    SERVER_CPU,
    SHARE,
    WALL,
    Column,
    Comparison,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.simulator import AT_A_DISTANCE, LOOPBACK, Conditions
from tests.benchmarks.streams import (
    BLOCK_BYTES,
    PEERS,
    TUNED_PEERS,
    Stream,
    aioprefetch_reader,
    aioprefetch_stream,
    floor_blocks,
    timed,
)

OURS = "aioprefetch reader"
OVER = {name: Comparison(number="bytes_per_second", base=name) for name in PEERS}
WINDOW_REQUESTS = 9
# One of each kind: a stream, a reader, and the best cache.
QUICK_PEERS = ("obstore stream", "s3torchconnectorclient", "opendal", "s3fs adaptive")


def beside_the_best(medians: Mapping[str, Numbers]) -> str:
    """Our throughput over that of the fastest peer with default options: the median of the ratios of the rounds."""
    peers = {name: medians[name]["bytes_per_second"] for name in PEERS if name in medians}
    if not peers or OURS not in medians:
        return ""
    best = max(peers, key=lambda name: peers[name])
    ratio = medians[OURS][OVER[best].name]
    return f"{OURS} has {ratio:.1f} times the throughput of {best}, the fastest peer with default options."


SEQUENTIAL = Job(
    name="sequential",
    title="sequential reads of 1 MiB, from opening to the last byte",
    conditions=AT_A_DISTANCE,
    size_bytes=256 * MIB,
    quick_size_bytes=40 * MIB,
    contestants={
        OURS: timed(aioprefetch_reader()),
        "aioprefetch stream": timed(aioprefetch_stream),
        **{name: timed(chunks) for name, chunks in {**PEERS, **TUNED_PEERS}.items()},
    },
    quick_contestants=(OURS, *QUICK_PEERS),
    bars=(
        Bar(
            shape="stream of 256 MiB in 1 MiB reads, speed",
            ours=OURS,
            bases=("obstore stream",),  # several times as fast as its reader
            number="bytes_per_second",
            bar=5.0,
            aim=6.0,
            at_least=True,
        ),
        Bar(
            shape="stream of 256 MiB in 1 MiB reads, speed",
            ours=OURS,
            bases=("s3torchconnectorclient",),
            number="bytes_per_second",
            bar=0.95,
            aim=1.05,
            at_least=True,
        ),
    ),
    columns=(RATE, WALL, CPU, GETS, OTHERS, SENT, IN_FLIGHT, MEMORY),
    comparisons=tuple(OVER.values()),
    remark=beside_the_best,
)


# Of the peers those whose way of reading is not that of another one here.
NEAR = (
    "obstore reader",
    "opendal",
    "s3fs none",
    "s3fs readahead",
    "pyarrow input stream",
    "boto3 body",
    "aiohttp body",
)

STREAM = Job(
    name="stream",
    title="sequential reads of 1 MiB without delay",
    conditions=LOOPBACK,
    size_bytes=512 * MIB,
    quick_size_bytes=64 * MIB,
    contestants={
        "obstore stream": timed(PEERS["obstore stream"]),
        "aioprefetch stream": timed(aioprefetch_stream),
        OURS: timed(aioprefetch_reader()),
        "bare protocol, GETs of 8 MiB": timed(floor_blocks),
        **{name: timed(PEERS[name]) for name in NEAR},
    },
    quick_contestants=("obstore stream", "aioprefetch stream", OURS),
    columns=(
        RATE_RATIO,
        Column(name="cpu_per_gib", heading="CPU s/GiB", ratio=True),
        WALL,
        GETS,
        OTHERS,
        SENT,
        SHARE,
        PEAK_RATIO,
    ),
)


async def obstore_window(target: Target) -> Stream:
    """A window by hand over obstore: always as many ranges under way, given out in order. What can be had here."""
    import obstore

    store = await warm_obstore_store(target)
    yield b""
    starts = deque(range(0, target.size_bytes, BLOCK_BYTES))
    window: deque[asyncio.Task[obstore.Bytes]] = deque()

    async def fetch(start: int) -> obstore.Bytes:
        end = min(start + BLOCK_BYTES, target.size_bytes)
        return await obstore.get_range_async(store, target.key, start=start, end=end)

    while starts or window:
        while starts and len(window) < WINDOW_REQUESTS:
            window.append(asyncio.create_task(fetch(starts.popleft())))
        yield await window.popleft()


def after_the_ramp(sample: Sample, requests: Sequence[Request], conditions: Conditions) -> Numbers:
    """The throughput from when most requests were in flight to the last byte, against what that number can carry.

    n requests of B bytes at once carry n·B / (L + B/bandwidth): each takes the delay L and its own transfer. n and B
    are what the server saw: the most at once, and the mean size of those that started after the ramp. The steady
    figure ends when the last request starts; after that there are fewer and fewer in flight.
    """
    assert conditions.bandwidth is not None
    timeline: list[tuple[float, int]] = sample["timeline"]
    ramp_end = Traffic.of(requests).full_at
    gets = [one for one in requests if one.method == "GET" and one.start >= ramp_end]
    before = max((offset for when, offset in timeline if when <= ramp_end), default=0)
    last, size_bytes = timeline[-1]
    request_bytes = sum(one.sent_bytes for one in gets) / len(gets)
    in_flight = Traffic.of(requests).in_flight
    last_start = max(one.start for one in gets)
    at_last_start = max((offset for when, offset in timeline if when <= last_start), default=before)
    bound = in_flight * request_bytes / conditions.request_seconds(request_bytes)
    rate = (size_bytes - before) / (last - ramp_end)
    return {
        "ramp_seconds": ramp_end - min(one.start for one in requests),
        "ramp_bytes": before,
        "window_bytes": request_bytes,
        "bound": bound,
        "rate_after": rate,
        "steady_of_bound": (at_last_start - before) / max(last_start - ramp_end, 1e-3) / bound,
        "of_bound": rate / bound,
        "whole_of_bound": sample["bytes_per_second"] / bound,
    }


RAMP = Job(
    name="ramp",
    title="a long object: throughput after the ramp against n·B / (L + B/bandwidth)",
    conditions=AT_A_DISTANCE,
    size_bytes=1024 * MIB,
    quick_size_bytes=256 * MIB,
    contestants={
        OURS: timed(aioprefetch_reader()),
        f"obstore, {WINDOW_REQUESTS} ranges by hand": timed(obstore_window),
    },
    columns=(
        RATE,
        Column(name="rate_after", heading="after ramp", unit=MIB, digits=0),
        IN_FLIGHT,
        Column(name="window_bytes", heading="B MiB", unit=MIB, digits=1),
        Column(name="bound", heading="bound", unit=MIB, digits=0),
        Column(name="steady_of_bound", heading="steady", digits=3),
        Column(name="of_bound", heading="of bound", digits=3),
        Column(name="whole_of_bound", heading="with ramp", digits=3),
        Column(name="ramp_seconds", heading="ramp s"),
        CPU,
        SERVER_CPU,
        MEMORY,
    ),
    derive=after_the_ramp,
)
