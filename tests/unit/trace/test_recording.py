"""The model of a trace: what events make of it."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.runtime.events import FOLLOWED_MAX, Event, EventBus
from aioprefetch.trace.advice import advise
from aioprefetch.trace.page import page
from aioprefetch.trace.recording import Recording
from aioprefetch.values import ReadRequest
from tests.probes.calls import counted_calls
from tests.unit.trace.recordings import BEGIN, Script, end_request, runtime_of

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=15)


@given(RANGES, RANGES)
def test_bytes_are_fetched_used_wasted_and_fetched_again(
    fetched: list[tuple[int, int]], used: list[tuple[int, int]]
) -> None:
    """As counted byte by byte."""
    script = Script()
    for start, end in fetched:
        script.request("k", start, end)
    for number, (start, end) in enumerate(used):
        script.read("k", start, end, at=0.03, tier=("memory", "disk", "store")[number % 3])
    recording = script.recording()
    came = [number for start, end in fetched for number in range(start, end)]
    read = {number for start, end in used for number in range(start, end)}
    assert recording.fetched_bytes == len(came)
    assert recording.distinct_bytes == len(set(came))
    assert recording.wasted_bytes == len(set(came) - read)
    item = recording.object("k")
    assert item.refetched_bytes == len(came) - len(set(came))
    assert item.end == max([*came, *read], default=-1) + 1
    by_tier = {
        tier: {number for start, end in used[place::3] for number in range(start, end)}
        for place, tier in enumerate(("memory", "disk", "store"))
    }
    assert {tier: len(item.by_tier[tier]) for tier in by_tier} == {tier: len(by_tier[tier]) for tier in by_tier}


def test_a_request_has_its_times_and_its_bytes() -> None:
    script = Script()
    script.request("a/b", 100, 300, at=0.0, first=0.25, seconds=1.0, lane="prefetch")
    script.request("a/b", None, None, at=0.5, first=None, seconds=0.25, operation="stat", lane="control", status=200)
    first, second = script.recording().requests
    assert (first.number, first.path, first.lane, first.start, first.end) == (1, "a/b", "prefetch", 100, 300)
    assert (first.begun_at_seconds, first.first_byte_at_seconds, first.ended_at_seconds) == (0.0, 0.25, 1.0)
    assert (first.outcome, first.received_bytes, first.status, first.connection) == ("finished", 200, 206, "3")
    assert first.received == (100, 300)
    assert (second.number, second.operation, second.is_read, second.received_bytes) == (2, "stat", False, 0)
    assert second.seconds == 0.25


def test_the_last_bytes_of_an_object_are_where_the_response_says() -> None:
    """A request for a suffix begins with a negative start."""
    script = Script()
    asked = script.request("k", -8, None, seconds=None)
    recording = script.recording()
    (request,) = recording.requests
    assert (request.outcome, request.start, request.received, request.seconds) == ("open", -8, (0, 0), 0.0)
    asked.start, asked.end = 92, 100
    end_request(asked, 0.5)
    recording.settle()
    (request,) = recording.requests
    assert (request.start, request.end, request.received) == (92, 100, (92, 100))
    recording.pending.requests.append(script.request("k", -8, None, at=1.0, error="TimedOut", bytes=3))
    recording.settle()
    assert recording.fetched_bytes == 8
    assert recording.counts["unplaced_bytes"] == 3


def test_a_failed_request_keeps_the_bytes_that_came() -> None:
    script = Script()
    script.request("k", 0, 100, error="TimedOut", message="no byte for 20 s", bytes=40)
    script.retry("k", at=0.02, wait=0.1, error="TimedOut")
    script.request("k", 40, 100, at=0.15, attempt=2)
    recording = script.recording()
    failed, again = recording.requests
    assert (failed.outcome, failed.received, failed.error) == ("failed", (0, 40), "TimedOut: no byte for 20 s")
    assert again.retry_wait_seconds == pytest.approx(0.13)
    assert recording.fetched_bytes == recording.distinct_bytes == 100


def test_pauses_belong_to_the_attempts_that_end_them() -> None:
    """Two parts of an object are tried again side by side."""
    script = Script()
    for at, wait in ((0.0, 0.5), (0.1, 0.1)):
        script.request("k", 0, 10, at=at, seconds=0.1, error="Throttled")
        script.retry("k", at=at + 0.1, wait=wait)
        script.request("k", 0, 10, at=at + 0.1 + wait, attempt=2)
    waits = [request.retry_wait_seconds for request in script.recording().requests if request.attempt == 2]
    assert waits == pytest.approx([0.1, 0.5])


def test_reads_that_waited_are_kept() -> None:
    script = Script()
    script.request("k", 0, 10)
    script.read("k", 0, 10, at=0.5, waited=0.4)
    script.read("k", 0, 10, at=0.6, tier="memory")
    script.add(0.9, "budget.waited", "k", seconds=0.3, lane="prefetch")
    recording = script.recording()
    (wait,) = recording.waits
    assert [wait.begun_at_seconds, wait.ended_at_seconds, wait.seconds] == pytest.approx([0.1, 0.5, 0.4])
    assert wait.tier == "store"
    (wait,) = recording.memory_waits
    assert [wait.begun_at_seconds, wait.seconds] == pytest.approx([0.6, 0.3])
    assert recording.ended_at_seconds == pytest.approx(0.9)
    assert recording.counts["read.served"] == 2


@pytest.mark.cost
def test_the_repr_of_a_trace_makes_no_list_of_requests() -> None:
    """A debugger or a task shows it again and again."""
    with ap.sync.BlockingOperator(ap.Operator(ap.services.Memory())) as operator:
        operator.write("k", bytes(10))
        with ap.trace.record(operator) as trace:
            for _ in range(1000):
                operator.read("k")
        trace.advice  # noqa: B018 - what was taken is looked at once in any case
        with counted_calls(of_package=True) as calls:
            shown = repr(trace)
    assert shown == "<Trace of 1,000 requests, 10,000 bytes>"
    assert calls.number < 100


def test_a_recording_of_nothing_is_empty() -> None:
    recording = Recording()
    recording.settle()
    assert (recording.requests, recording.waits, recording.ended_at_seconds) == ([], [], 0.0)
    recording.pending.events.append(Event("of.another.kind", 1.0, "k", {}))
    recording.settle()
    assert (recording.requests, recording.counts.total()) == ([], 0)


def test_no_signature_is_kept() -> None:
    script = Script()
    script.request("k?X-Amz-Signature=CANARY", 0, 10, error="Refused", message="https://h/k?X-Amz-Signature=CANARY")
    script.retry("k", at=1, error="X-Amz-Security-Token=CANARY")
    recording = script.recording()
    kept = [*recording.requests, *recording.objects, *recording.retries]
    assert "CANARY" not in repr(kept)
    assert "CANARY" not in repr(recording.take_out())


def test_a_request_that_no_read_needs_is_cancelled() -> None:
    script = Script()
    script.request("k", 0, 100, error="CancelledError", bytes=30)
    (request,) = script.recording().requests
    assert (request.outcome, request.received) == ("cancelled", (0, 30))


class EndsBetweenLooks(ReportedRequest):
    """A request that ends on another thread, after the first look at whether it has."""

    looks: int

    @property
    def ended_at_seconds(self) -> float | None:
        self.looks += 1
        return None if self.looks == 1 else BEGIN + 1.0

    @ended_at_seconds.setter
    def ended_at_seconds(self, value: float | None) -> None:
        self.looks = 0


def test_a_request_that_ends_meanwhile_counts_once() -> None:
    recording = Recording()
    request = EndsBetweenLooks(runtime_of(EventBus()), ReadRequest(path="k", offset=0, size=10))
    request.begun_at_seconds, request.counted_bytes = BEGIN, 10
    recording.pending.requests.append(request)
    recording.settle()
    assert (recording.fetched_bytes, recording.requests[0].outcome, recording.requests[0].ended_at_seconds) == (
        0,
        "open",
        None,
    )
    for _ in range(2):
        recording.settle()
        assert (recording.fetched_bytes, recording.requests[0].outcome) == (10, "finished")


class LookedAtWhenEnded(ReportedRequest):
    """A request that another thread looks at as soon as it has ended."""

    recording: Recording
    end_seconds: float | None

    @property
    def ended_at_seconds(self) -> float | None:
        return self.end_seconds

    @ended_at_seconds.setter
    def ended_at_seconds(self, value: float | None) -> None:
        self.end_seconds = value
        if value is not None:
            self.recording.settle()


def test_a_request_that_has_ended_has_its_bytes() -> None:
    recording = Recording()
    request = LookedAtWhenEnded(runtime_of(EventBus()), ReadRequest(path="k", offset=0, size=10))
    request.recording = recording
    request.received_bytes = 10
    recording.pending.requests.append(request)
    request.finished()
    assert (recording.fetched_bytes, recording.requests[0].received_bytes) == (10, 10)


def test_a_long_recording_is_looked_at_in_small_steps() -> None:
    """What waits is bounded, one look is short, and nothing is left out or counted twice."""
    recording, bus, waiting = Recording(), EventBus(), []

    def look() -> None:
        waiting.append((len(recording.pending.requests), len(recording.pending.reads)))
        recording.settle(at_most=5000)

    bus.follow(recording.pending.requests, recording.pending.reads, look)
    count = FOLLOWED_MAX + 8000
    runtime = runtime_of(bus)
    for number in range(count):
        start = 10 * number
        request = ReportedRequest(runtime, ReadRequest(path="k", offset=start, size=10))
        request.received_bytes = 10
        request.finished()
        bus.publish_served("k", start, start + 10, "store", 0.0)
        if number % 2:
            bus.publish_served("k", start, start + 10, "memory")
    assert max(max(one) for one in waiting) == FOLLOWED_MAX + 1
    assert len(waiting) == 5
    recording.settle()
    assert (recording.counts["request.started"], recording.counts["read.served"]) == (count, count + count // 2)
    assert [request.start for request in recording.requests] == list(range(0, 10 * count, 10))
    assert (recording.fetched_bytes, recording.distinct_bytes, recording.wasted_bytes) == (10 * count, 10 * count, 0)


def test_events_without_requests_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of what is in memory may evict block after block."""
    waiting: list[int] = []
    settle = Recording.settle

    def looked(recording: Recording, at_most: int | None = None) -> None:
        waiting.append(len(recording.pending.events))
        settle(recording, at_most)

    monkeypatch.setattr(Recording, "settle", looked)
    with ap.sync.BlockingOperator(ap.Operator(ap.services.Memory())) as operator:
        with ap.trace.record(operator) as trace:
            for _ in range(FOLLOWED_MAX + 2):
                operator.events.publish("block.evicted", "k", start=0, end=10, unused=True)
        assert waiting == [FOLLOWED_MAX + 1]
        assert trace.recording.counts["block.evicted"] == FOLLOWED_MAX + 2


# --- more than is kept ----------------------------------------------------------------------------------------------


def test_bytes_of_requests_that_are_not_kept_are_counted() -> None:
    """Also of those that end later."""
    script = Script()
    for number in range(6):
        script.request("k", 10 * number, 10 * number + 10, error="TimedOut" if number == 5 else "", bytes=10)
    late = script.request("k", 60, 70, seconds=None)
    script.read("k", 0, 70, at=0.1)
    recording = script.recording(requests_max=3)
    assert (len(recording.requests), recording.counts["requests_not_kept"]) == (3, 4)
    assert recording.fetched_bytes == recording.distinct_bytes == 60
    end_request(late, 0.5)
    recording.settle()
    assert recording.fetched_bytes == recording.distinct_bytes == 70
    assert (recording.wasted_bytes, recording.refetched_bytes) == (0, 0)
    assert recording.ended_at_seconds == pytest.approx(0.5)


def test_objects_that_are_too_many_are_counted_together() -> None:
    script = Script()
    for number in range(50):
        path = f"k{number}" if number < 20 else "often"
        script.request(path, 100 * number, 100 * number + 10, at=number)
        script.read(path, 100 * number, 100 * number + 10, at=number + 0.1, tier="disk", waited=0.01)
    recording = script.recording(objects_max=2)
    assert list(recording.objects) == ["k0", "k1"]
    others = recording.others
    assert (others.counts["requests"], others.counts["reads"], others.received_bytes) == (48, 48, 480)
    assert (others.tier_bytes["disk"], len(others.fetched), len(others.used)) == (480, 0, 0)
    assert (recording.fetched_bytes, recording.distinct_bytes, recording.refetched_bytes) == (500, 20, 0)
    assert recording.waits[-1].path == "often"
    assert {advice.kind for advice in advise(recording)} <= {"one_at_a_time"}
    text = page(recording, title="", written_at=dt.datetime(2026, 11, 23, tzinfo=dt.UTC))
    assert "480 B in 48 requests were of further objects" in text


def test_ranges_that_are_too_many_are_joined() -> None:
    """Large sets are joined, small ones stay exact. Each byte that came is still in its set."""
    script = Script()
    script.request("few", 5, 10)
    script.request("few", 20, 30)
    for number in range(2000):
        start = 100 * (number * 7 % 2000)
        script.request("many", start, start + 10, at=1 + number)
    recording = script.recording(ranges_max=400)
    assert recording.object("few").fetched.ranges == [(5, 10), (20, 30)]
    many = recording.object("many")
    assert many.fetched.kept_ranges <= 500
    assert sum(many.fetched.count_in(100 * number, 100 * number + 10) for number in range(2000)) == 20_000
    assert (many.end, many.received_bytes, many.refetched_bytes) == (199_910, 20_000, 0)
    assert recording.counts["ranges_joined"] > 0


def test_the_bytes_that_reads_used_are_joined_once_for_all_requests() -> None:
    """A page asks for them for each request."""
    script = Script()
    for number in range(50):
        script.request("k", 100 * number, 100 * number + 50)
        script.read("k", 100 * number, 100 * number + 10, at=0.1)
    recording = script.recording()
    item = recording.object("k")
    used = item.used
    assert (len(used), item.used is used) == (500, True)
    assert (recording.requests is recording.requests, recording.waits is recording.waits) == (True, True)
    recording.pending.reads.append(("k", 10, 20, "store", 0.0, BEGIN + 0.2, ""))
    recording.settle()
    assert len(item.used) == 510
