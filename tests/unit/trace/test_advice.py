"""Each rule applies where it should, and nowhere else."""

from collections.abc import Callable

import pytest

from aioprefetch.trace.advice import RULES, advise, settings_for
from tests.unit.trace.recordings import KiB, MiB, Script


def quiet() -> Script:
    """Nothing to improve: one object in four requests at once, all of it read."""
    script = Script()
    for number in range(4):
        script.request("k", number * MiB, (number + 1) * MiB, at=0.001 * number)
    script.read("k", 0, 4 * MiB, at=0.1, waited=0.1)
    return script


def unused(*, lane: str = "demand", reader: int | None = 1) -> Script:
    script = Script()
    for number in range(4):
        script.request("k", number * MiB, (number + 1) * MiB, at=0.001 * number, lane=lane, reader_id=reader)
    script.read("k", 0, 3 * MiB // 2)
    return script


def fetched_again() -> Script:
    script = quiet()
    script.request("k", MiB, 2 * MiB)
    return script


def small(*, jumping: bool, size: int = 4 * KiB, count: int = 40, streams: int = 1) -> Script:
    """Small requests, side by side: one after the other in the object, in ``streams`` in turn, or in a mixed order."""
    script = Script()
    for number in range(count):
        start = size * (number * 7 % count if jumping else number // streams + number % streams * count)
        script.request("k", start, start + size, at=0.005 * number)
        script.read("k", start, start + size, at=0.005 * number + 0.02)
    return script


def alone(*, at_once: int = 1) -> Script:
    script = Script()
    for number in range(16):
        script.request("k", number * MiB, (number + 1) * MiB, at=0.02 * (number // at_once))
    script.read("k", 0, 16 * MiB, at=0.4)
    return script


def retried(*, count: int) -> Script:
    script = quiet()
    for number in range(count):
        script.retry("k", at=0.01 * number, wait=0.25)
    return script


def waiting_for_memory(*, seconds: float) -> Script:
    script = quiet()
    script.add(0.09, "budget.waited", "k", seconds=seconds, lane="demand")
    return script


def asking_for_sizes(*, count: int) -> Script:
    script = quiet()
    for number in range(count):
        script.request(f"k{number}", None, None, at=0.001 * number, operation="stat", lane="control")
    return script


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (unused, "wasted_bytes", "62 % of the bytes (2.5 MiB) were not used: read with policy='random'"),
        (lambda: unused(lane="prefetch"), "wasted_bytes", "most were prefetched"),
        (lambda: unused(reader=None), "wasted_bytes", "ask for the ranges that are needed"),
        (fetched_again, "refetched_bytes", "20 % of the bytes (1 MiB) came more than once"),
        (lambda: small(jumping=True), "seek_storm", "40 small requests jumped about in k: announce"),
        (lambda: small(jumping=False), "small_requests", "40 requests for k brought 4 KiB each"),
        (lambda: small(jumping=False, streams=7), "small_requests", "40 requests for k brought 4 KiB each"),
        (alone, "one_at_a_time", "requests ran one at a time for 80 % of the time"),
        (lambda: retried(count=3), "retries", "3 requests were sent again, most of them after Throttled, and 750 ms"),
        (lambda: waiting_for_memory(seconds=0.05), "memory_waits", "during 50 % of the time"),
        (lambda: asking_for_sizes(count=12), "metadata_requests", "12 requests asked for the size"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_the_rule_applies(make: Callable[[], Script], kind: str, words: str) -> None:
    """It alone, and it says what was seen and what to do."""
    assert [advice.kind for advice in advise(make().recording())] == [kind]
    assert words in str(advise(make().recording())[0])


@pytest.mark.parametrize(
    "make",
    [
        quiet,
        Script,
        lambda: small(jumping=True, count=19),
        lambda: small(jumping=True, size=128 * KiB),
        lambda: alone(at_once=2),
        lambda: retried(count=2),
        lambda: waiting_for_memory(seconds=0.005),
        lambda: asking_for_sizes(count=9),
    ],
    ids=["quiet", "empty", "few", "large", "two at once", "two retries", "short wait", "few sizes"],
)
def test_no_rule_applies(make: Callable[[], Script]) -> None:
    assert advise(make().recording()) == []


def test_every_rule_has_a_case() -> None:
    (cases,) = (mark for mark in test_the_rule_applies.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    assert {case[1] for case in cases.args[1]} == {rule.__name__ for rule in RULES}


def test_settings_grow_with_latency_and_bandwidth() -> None:
    """A block takes four times the wait for its first byte; there is a connection for each part of the rate."""
    near = settings_for(0.001, 100e6, 200e6)
    far = settings_for(0.08, 90e6, 1200e6)
    assert near == {"block_bytes": "1MiB", "prefetch_blocks": 3, "memory_bytes": "256MiB"}
    assert far == {"block_bytes": "32MiB", "prefetch_blocks": 15, "memory_bytes": "1920MiB"}
