"""The jobs ``resets-*``: bodies that break off in the middle, beside our own run without, the same way in the server.

The server sends a right head and a part of the body, then a reset or a plain close by turns, for 1 % or 5 % of the
requests; which ones, and how much of each body, follows from the number of the request. The ranges of the cut keys are
compared byte for byte before the clock starts, cuts included; while it runs, each page must be in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks import range_clients as clients
from tests.benchmarks.content import MIB, PAGE_BYTES
from tests.benchmarks.job import (
    CHECK_OBJECT,
    CPU_PER_GIB,
    GETS,
    OBJECT,
    PEAK,
    RATE_RATIO,
    SHARE,
    Column,
    Comparison,
    Contestant,
    Job,
    Numbers,
    Sample,
    Target,
)
from tests.benchmarks.range_jobs import LARGE, MEDIUM, VIEW
from tests.benchmarks.range_passes import Shape, per_range, timed_ranges
from tests.benchmarks.simulator import LOOPBACK

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# The share of clean throughput that has to be left.
LEAST = {1: 0.95, 5: 0.80}
WORDS_PER_PAGE = PAGE_BYTES // 8


CLEAN = f"{VIEW}, clean"
CUT = {percent: f"{VIEW}, {percent} % cut" for percent in LEAST}
OF_CLEAN = Comparison(number="bytes_per_second", base=CLEAN)


def every_page(part: ReadableBuffer, start: int) -> None:
    """The offset that each page begins with."""
    stamps = bytes(memoryview(part).cast("B").cast("Q")[::WORDS_PER_PAGE])
    expected = b"".join(at.to_bytes(8, "big") for at in range(start, start + len(memoryview(part)), PAGE_BYTES))
    assert stamps == expected, f"a page is not where it belongs in the range at {start}"


def with_cuts(contestant: Contestant, percent: int) -> Contestant:
    """The contestant on keys whose bodies are cut."""

    async def run(target: Target) -> Sample:
        return await contestant(replace(target, prefix=f"cut-{percent}/"))

    return run


def left_over(medians: Mapping[str, Numbers]) -> str:
    """The throughput with cuts over the clean one."""
    said = []
    for percent, least in LEAST.items():
        share = medians.get(CUT[percent], {}).get(OF_CLEAN.name)
        if share is not None:
            said.append(f"With {percent} % cut {share:.2f} of the clean throughput is left; {least:.2f} is wanted")
    return "; ".join(said)


def reset_job(shape: Shape) -> Job:
    """A job for a shape."""
    clean = timed_ranges(clients.aioprefetch_view, shape, verify=every_page)
    return Job(
        name=f"resets-{shape.slug}",
        title=f"{shape} in flight, 1 % and 5 % of the bodies cut in the middle",
        conditions=LOOPBACK,
        size_bytes=256 * MIB,
        quick_size_bytes=64 * MIB,
        links=[f"cut-{percent}/{key}" for percent in (0, *LEAST) for key in (OBJECT, CHECK_OBJECT)],
        contestants={CLEAN: with_cuts(clean, 0), **{name: with_cuts(clean, percent) for percent, name in CUT.items()}},
        quick_contestants=(CLEAN, CUT[5]),
        columns=(
            RATE_RATIO,
            Column(name="requests_per_second", heading="ranges/s", digits=0),
            Column(name="cpu_per_request", heading="CPU µs/range", unit=1e-6, digits=1, ratio=True),
            CPU_PER_GIB,
            Column(name="ranges", heading="ranges", digits=0),
            GETS,
            Column(name="cut", heading="cut", digits=0),
            Column(name="requests_per_range", heading="GETs/range", digits=3),
            Column(name="sent_per_byte", heading="sent/asked", digits=3),
            SHARE,
            PEAK,
        ),
        comparisons=(OF_CLEAN,),
        compare_all=True,
        derive=per_range,
        remark=left_over,
    )


# A number of requests that 1 % of is a whole number, and so long that pauses between attempts matter little.
RESET_JOBS = (reset_job(replace(LARGE, requests=400)), reset_job(replace(MEDIUM, requests=8_000)))
