"""When a response is too slow, against a plain model; and how often the timer looks."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.transport.connection import StallTimer
from aioprefetch.transport.options import ClientOptions

FIRST, STALL, RATE = 8.0, 4.0, 10.0


@dataclass
class Model:
    """Keeps all arrivals, and looks at each window of the body by itself."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)
    window_from: float = 0.0

    def is_thin(self, now: float) -> bool:
        """Whether the window that ends now brought less than the rate. Another one begins then."""
        if now - self.window_from < STALL:
            return False
        brought = sum(count for when, count in self.arrivals if self.window_from <= when)
        thin = brought < max(1.0, RATE * (now - self.window_from))
        self.arrivals.clear()
        self.window_from = now
        return thin


def is_too_slow(pace: StallTimer, now: float, received: int) -> bool:
    return pace.is_too_slow(now, received, first_byte_seconds=FIRST, stall_seconds=STALL, bytes_per_second_min=RATE)


@given(
    head_after=st.integers(0, 40),
    steps=st.lists(
        st.tuples(st.sampled_from(["look", "arrive", "pause"]), st.integers(0, 12), st.integers(0, 120)), max_size=40
    ),
    begun=st.integers(0, 1000),
)
def test_it_agrees_with_the_model(head_after: int, steps: list[tuple[str, int, int]], begun: int) -> None:
    """Times are in quarters of a second, so that floats are exact."""
    now = float(begun)
    pace = StallTimer()
    pace.begin(now)
    for quarter in range(head_after):
        assert is_too_slow(pace, now + quarter / 4, 0) == (quarter / 4 >= FIRST)
    now += head_after / 4
    pace.begin_window(now, 0)
    model, received = Model(window_from=now), 0
    for kind, quarters, count in steps:
        now += quarters / 4
        if kind == "look":
            assert is_too_slow(pace, now, received) == model.is_thin(now)
        elif kind == "arrive":
            received += count
            model.arrivals.append((now, count))
        else:  # The reader pauses it for as long; what came before counts no more.
            pace.begin_window(now, received)
            model = Model(window_from=now)


@given(rate=st.integers(11, 1000), looks=st.integers(1, 50))
def test_a_steady_body_above_the_rate_is_never_too_slow(rate: int, looks: int) -> None:
    pace = StallTimer()
    pace.begin_window(0.0, 0)
    assert not any(is_too_slow(pace, float(second), rate * second) for second in range(looks))


@given(rate=st.integers(0, 9), faster=st.integers(0, 100_000))
def test_a_drip_is_found_within_two_windows(rate: int, faster: int) -> None:
    """However much came before it."""
    pace = StallTimer()
    pace.begin_window(0.0, 0)
    found = [second for second in range(1, 10) if is_too_slow(pace, float(second), faster + rate * second)]
    assert found
    assert found[0] <= 2 * STALL


@pytest.mark.parametrize(("received", "is_thin"), [(50, True), (79, True), (80, False)])
def test_the_rate_holds_for_all_the_time_that_was_waited(received: int, is_thin: bool) -> None:
    """A look that comes late, here after two windows, does not halve what is due."""
    pace = StallTimer()
    pace.begin(0.0)
    pace.begin_window(0.0, 0)
    assert is_too_slow(pace, 2 * STALL, received) == is_thin


def test_without_a_least_rate_one_byte_is_enough() -> None:
    pace = StallTimer()
    pace.begin_window(0.0, 5)

    def slow(now: float, received: int) -> bool:
        return pace.is_too_slow(now, received, first_byte_seconds=1, stall_seconds=1, bytes_per_second_min=0)

    assert not slow(1.0, 6)
    assert slow(2.0, 6)


@given(first=st.floats(0.01, 1000), stall=st.floats(0.01, 1000), idle=st.floats(0.01, 1000))
def test_connections_are_checked_often_enough(first: float, stall: float, idle: float) -> None:
    options = ClientOptions(first_byte_timeout_seconds=first, stall_timeout_seconds=stall, idle_seconds_max=idle)
    assert 0 < options.look_seconds <= min(first, stall, idle) / 4
