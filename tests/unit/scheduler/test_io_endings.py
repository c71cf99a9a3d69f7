"""How reads of a scan end: failures, release, closing; whatever happens, nothing is left."""

import asyncio
import gc
import random
from contextlib import suppress
from typing import Any

import pytest

from aioprefetch.errors import Closed, Error, ObjectChanged, Unavailable
from aioprefetch.ranges import Range
from aioprefetch.scheduler.pages import PendingRead
from tests.probes.search import scenario_seeds
from tests.profile import chosen
from tests.stores.gated_reader import MIB, in_case, settle, with_etag
from tests.stores.scan_service import Mapping, Scene, scene


async def a_request_that_fails_fails_its_reads_alone(failing: int) -> None:
    ranges = [[(0, 10), (300_000, 300_010)], [(20, 30)], [(600_000, 600_010)], [(300_020, 300_030), (900_000, 900_005)]]
    async with scene(gap_bytes=100) as s:
        reads = [s.io.submit(one, row) for row, one in enumerate(ranges)]
        waits = [asyncio.create_task(read.wait()) for read in reads]
        await settle()
        assert len(s.bench.calls) == 4
        broken: Range = (-1, -1)
        if failing < 4:
            request = s.bench.calls[failing].request
            assert request.size is not None
            broken = (request.offset, request.offset + request.size)
            s.bench.calls[failing].fail(Unavailable("gone", operation="read", path="k", status="permanent"))
        await settle()
        await s.response()
        for read, wait, wanted in zip(reads, waits, ranges, strict=True):
            assert read.done
            if any(broken[0] <= start < broken[1] for start, _ in wanted):
                with pytest.raises(Unavailable, match="gone"):
                    await wait
                with pytest.raises(Unavailable):
                    _ = read.views
            else:
                await wait
                assert s.is_right(read, wanted)
            read.release()
        assert (s.held, s.used) == (0, 0)


async def test_a_request_that_fails_fails_its_reads_alone() -> None:
    for failing in chosen(quick=range(5), full=range(5)):
        with in_case(failing=failing):
            await a_request_that_fails_fails_its_reads_alone(failing)


async def test_each_waiter_has_an_error_of_its_own_which_may_go_unread() -> None:
    async with scene() as s:
        read = s.io.submit([(0, 10)], 0)
        waits = [asyncio.create_task(read.wait()) for _ in range(2)]
        s.io.submit([(200_000, 200_010)], 0)
        await settle()
        for call in s.bench.calls:
            call.fail(Unavailable("gone", status="permanent"))
        errors = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(error, Unavailable) for error in errors)
        assert errors[0] is not errors[1]
        assert (s.held, s.used) == (0, 0)
        del errors
        gc.collect()


async def test_a_failure_drops_what_else_was_queued_for_that_read() -> None:
    async with scene(slots=1, gap_bytes=0) as s:
        read = s.io.submit([(0, 10), (200_000, 200_010)], 0)
        other = s.io.submit([(400_000, 400_010)], 0)
        await settle()
        s.bench.calls[0].fail(Unavailable("gone", status="permanent"))
        await s.response()
        await s.response()
        assert s.sent == [(0, 10), (400_000, 400_010)]
        assert read.done
        assert other.done


async def test_another_version_is_never_mixed_in() -> None:
    async with scene() as s:
        read = s.io.submit([(0, 10)], 0)
        await settle()
        s.bench.put(b"x" * MIB)
        await s.response()
        with pytest.raises(ObjectChanged) as raised:
            await read.wait()
        assert raised.value.expected_etag == s.pinned.etag
        s.bench.gate.falsify = with_etag("other")
        read = s.io.submit([(0, 10)], 0)
        await s.response()
        with pytest.raises(ObjectChanged):
            await read.wait()


async def test_no_memory_is_an_error_of_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, owner: object) -> memoryview:
        raise MemoryError(f"no {size} bytes")

    monkeypatch.setattr("aioprefetch.scheduler.pending_read.lend_buffer", refuse)
    async with scene(is_open=True) as s:
        read = s.io.submit([(0, 10)], 0)
        with pytest.raises((MemoryError, Error)):
            await read.wait()


# --- giving up and closing --------------------------------------------------------------------------------------------


async def test_a_request_that_no_read_needs_is_broken_off() -> None:
    async with scene() as s:
        one, two = s.io.submit([(0, 10)], 0), s.io.submit([(20, 30)], 0)
        await settle()
        one.release()
        await settle()
        assert [call.cancelled for call in s.bench.calls] == [False]
        two.release()
        await settle()
        assert [call.cancelled for call in s.bench.calls] == [True]
        assert (s.held, s.used) == (0, 0)


async def test_a_read_released_before_it_was_sent_is_not_sent() -> None:
    async with scene() as s:
        s.io.submit([(0, 10)], 0).release()
        assert s.queued == 0
        await settle()
        assert s.sent == []


async def released_in_any_turn_it_leaves_nothing(turns: int) -> None:
    async with scene(is_open=True) as s:
        read = s.io.submit([(0, 10), (500_000, 900_000)], 0)
        await settle(turns)
        read.release()
        await settle()
        assert (s.held, s.used, s.service.in_flight) == (0, 0, 0)


async def test_released_in_any_turn_it_leaves_nothing() -> None:
    """Also when the task of the request has not begun, and when its response is just being delivered."""
    for turns in chosen(quick=range(8), full=range(8)):
        with in_case(turns=turns):
            await released_in_any_turn_it_leaves_nothing(turns)


async def closed_in_any_turn_it_leaves_nothing(turns: int) -> None:
    async with scene(is_open=True, slots=1, gap_bytes=0) as s:
        reads = [s.io.submit([(100_000 * n, 100_000 * n + 50)], n) for n in range(5)]
        waits = [asyncio.create_task(read.wait()) for read in reads]
        await settle(turns)
        s.service.close()
        s.service.close()
        await settle()
        assert (s.held, s.used, s.service.in_flight) == (0, 0, 0)
        for wait in waits:
            try:
                await wait
            except Closed:
                continue
        for read in reads:
            read.release()
        with pytest.raises(Closed):
            s.io.submit([(0, 10)], 0)


async def test_closed_in_any_turn_it_leaves_nothing() -> None:
    for turns in chosen(quick=range(8), full=range(8)):
        with in_case(turns=turns):
            await closed_in_any_turn_it_leaves_nothing(turns)


async def test_closing_the_operator_ends_the_reads_of_its_scans() -> None:
    async with scene(slots=1, gap_bytes=0) as s:
        reads = [s.io.submit([(100_000 * n, 100_000 * n + 50)], n) for n in range(3)]
        await settle()
        await s.bench.operator.aclose()
        await settle()
        assert all(read.done for read in reads)
        for read in reads:
            with pytest.raises(Closed):
                await read.wait()


async def test_spawned_work_runs_and_ends_with_the_scan() -> None:
    ended = []
    async with scene() as s:

        async def work(name: str) -> None:
            try:
                await asyncio.get_running_loop().create_future() if name == "long" else None
            finally:
                ended.append(name)

        s.io.spawn(work("short"), name="test")
        s.io.spawn(work("long"), name="test")
        await settle()
        assert ended == ["short"]
        s.service.close()
        await settle()
        assert ended == ["short", "long"]
        s.io.spawn(work("late"), name="test")
        await settle()
        assert ended == ["short", "long"]


# --- arbitrary histories ----------------------------------------------------------------------------------------------


async def one_history(s: Scene, place: Mapping | None, chosen: random.Random) -> None:
    """Submissions, waits, releases, answers and failures in any order; what arrives is right, and all comes back."""
    reads: list[tuple[PendingRead, list[Range]]] = []
    waits: list[asyncio.Task[object]] = []
    for row in range(40):
        verb = chosen.choice(["submit", "submit", "promote", "wait", "release", "response", "response", "fail", "turn"])
        pending = [call for call in s.bench.calls if not call.ended]
        if verb == "submit":
            starts = [chosen.randrange(MIB - 30_000) for _ in range(chosen.randint(1, 3))]
            ranges = [(start, start + chosen.choice([0, 10, 3000, 30_000])) for start in starts]
            reads.append((s.io.submit(ranges, row, is_follow_up=chosen.random() < 0.2), ranges))
        elif verb in ("response", "fail") and pending:
            call = chosen.choice(pending)
            call.deliver(chosen.randrange(100))
            call.finish() if verb == "response" else call.fail(Unavailable("gone", status="permanent"))
        elif verb == "turn":
            await settle(chosen.randrange(6))
        elif reads and verb in ("promote", "wait", "release"):
            read, _ = reads.pop(chosen.randrange(len(reads))) if verb == "release" else chosen.choice(reads)
            read.release() if verb == "release" else read.promote()
            if verb == "wait":
                waits.append(asyncio.create_task(read.wait()))
    await s.response()
    for read, ranges in reads:
        with suppress(Unavailable):
            assert not read.done or s.is_right(read, ranges)
        read.release()
    for _ in range(3):
        await s.response()
    for result in await asyncio.gather(*waits, return_exceptions=True):
        assert not isinstance(result, BaseException) or isinstance(result, (Closed, Unavailable))
    assert (s.held, s.used, s.queued, s.service.in_flight) == (0, 0, 0, 0)
    assert place is None or place.live == []


async def any_history_gives_everything_back(seed: int) -> None:
    chosen = random.Random(seed)
    place = Mapping(MIB) if seed % 2 else None
    limits: dict[str, Any] = {"budget_bytes": chosen.choice([0, 1, 50_000, 10 * MIB]), "slots": chosen.randint(1, 5)}
    async with scene(memory=place, gap_bytes=chosen.choice([0, 20_000]), request_bytes_max=20_000, **limits) as s:
        await one_history(s, place, chosen)


@pytest.mark.scenario
async def test_any_history_gives_everything_back() -> None:
    for seed in scenario_seeds(quick=20, full=60):
        with in_case(seed=seed):
            await any_history_gives_everything_back(seed)
