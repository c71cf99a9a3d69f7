"""What the events of requests say is what the server saw: each request once, also those that failed."""

import asyncio
import contextlib
from collections import Counter

import pytest

import aioprefetch as ap
from aioprefetch.errors import Error
from aioprefetch.runtime.events import REQUEST_EVENTS, Event
from aioprefetch.testing import Fault
from aioprefetch.trace.recording import Recording
from tests.reliability.scripted import OFFSET, Serve, once

FAULTS = (
    Fault(),
    Fault(status=503, code="SlowDown"),
    Fault(status=500),
    Fault(status=403, code="AccessDenied"),
    Fault(status=404, code="NoSuchKey"),
    Fault(status=403, code="ExpiredToken"),
    Fault(reset_after_bytes=1000),
    Fault(close_after_bytes=40_000),
    Fault(reset_before_head=True),
    Fault(drop=True),
    Fault(short_by_bytes=10),
    Fault(chunked=True),
    Fault(ignore_range=True),
    Fault(connection_close=True),
    Fault(content_range="bytes 0-9/10"),
    Fault(etag='"another"'),
)


def check(seen: list[Event]) -> list[Event]:
    """The requests that were started; each has one end, and at most one head, after its start."""
    started = [event for event in seen if event.name == "request.started"]
    for event in started:
        number = event.facts["request_id"]
        names = [other.name for other in seen if other.facts.get("request_id") == number]
        assert names[0] == "request.started"
        assert names[-1] in ("request.finished", "request.failed"), names
        assert names[1:-1] in ([], ["request.first_byte"]), names
    return started


def check_recording(recording: Recording, seen: list[Event]) -> None:
    """A trace has the same requests, with the same ends and bytes."""
    ends = [event for event in seen if event.name in ("request.finished", "request.failed")]
    cancelled = sum(event.facts.get("error") == "CancelledError" for event in ends)
    outcomes = Counter(request.outcome for request in recording.requests)
    names = Counter(event.name for event in ends)
    assert outcomes["finished"] == names["request.finished"]
    assert (outcomes["failed"], outcomes["cancelled"]) == (names["request.failed"] - cancelled, cancelled)
    assert outcomes.total() == recording.counts["request.started"]
    placed = [
        event.facts["bytes"]
        for event in ends
        if event.facts["operation"] == "read" and (event.facts["status"] or 200) < 300
    ]
    assert recording.fetched_bytes + recording.counts["unplaced_bytes"] == sum(placed)


async def test_events_count_what_the_server_counts(serve: Serve) -> None:
    """With a fault in the first request, and in one on a connection that was used before."""
    for fault in FAULTS:
        for index in (0, 2):
            seen: list[Event] = []
            async with contextlib.AsyncExitStack() as stack, serve(once(fault, index)) as scripted:
                operator, server = scripted.operator, scripted.server
                operator.events.subscribe(seen.append, *REQUEST_EVENTS)
                trace = stack.enter_context(ap.trace.record(operator))
                for _ in range(2):
                    with contextlib.suppress(Error):
                        await operator.read("k", offset=OFFSET, size=1000)
                with contextlib.suppress(Error):
                    await operator.stat("k")
                async with operator.reader("k") as reader:
                    with contextlib.suppress(Error):
                        await reader.read_at(OFFSET, 1000)
                    with contextlib.suppress(Error):
                        await reader.read_at(OFFSET, None)
            check_recording(trace.recording, seen)
            counted = [event.facts["method"] for event in check(seen)]
            assert counted == [request.method for request in server.requests], (index, fault)
            retried = sum(event.name == "request.retried" for event in seen)
            assert retried == operator.statistics["retries"]
            attempts = [event.facts["attempt"] for event in seen if event.name == "request.started"]
            assert sum(attempt > 1 for attempt in attempts) >= retried > max(attempts) - 2
            received = sum(event.facts["bytes"] for event in seen if event.name == "request.finished")
            assert received >= sum(
                event.facts["end"] - event.facts["start"]
                for event in seen
                if event.name == "request.finished" and event.facts["operation"] == "read"
            )


async def test_a_request_that_is_not_needed_any_more_has_failed(serve: Serve) -> None:
    seen: list[Event] = []
    async with serve(once(Fault(hang_before_head=True))) as scripted:
        scripted.operator.events.subscribe(seen.append, *REQUEST_EVENTS)
        reading = asyncio.ensure_future(scripted.operator.read("k"))
        await scripted.server.wait_for_requests(1)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert Counter(event.name for event in seen) == {"request.started": 1, "request.failed": 1}
        assert (seen[-1].facts["error"], seen[-1].facts["bytes"], seen[-1].facts["status"]) == (
            "CancelledError",
            0,
            None,
        )


async def test_requests_on_one_connection_have_its_number(serve: Serve) -> None:
    seen: list[Event] = []
    async with serve() as scripted:
        scripted.operator.events.subscribe(seen.append, "request.first_byte")
        for _ in range(3):
            await scripted.read()
        assert len({event.facts["connection"] for event in seen}) == len(
            {r.connection_id for r in scripted.server.requests}
        )
        assert {event.facts["status"] for event in seen} == {206}
