"""Numbers with units: never wrong by more than the digits that are shown."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioprefetch.display import bytes_text, count_text, seconds_text

SIZES = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.integers(-(10**18), 10**18))
@example(1023)
@example(1024)
@example((1 << 20) - 1)
def test_bytes(count: int) -> None:
    number, unit = bytes_text(count).split(" ")
    shown = float(number.replace(",", "")) * 2 ** SIZES[unit]
    assert abs(shown - count) <= 0.005 * abs(count)
    assert abs(float(number.replace(",", ""))) < 1024


@given(st.floats(-1e12, 1e12))
@example(0.0009996)
@example(0.9996)
@example(59.97)
@example(3599.9)
def test_seconds(seconds: float) -> None:
    shown = seconds_text(seconds)
    found = sum(
        float(number.replace(",", "")) * SECONDS[unit] for number, unit in re.findall(r"([\d.,e+-]+) (\w+)", shown)
    )
    assert abs(abs(found) - abs(seconds)) <= max(0.0051 * abs(seconds), 6e-10, 0.51 if abs(seconds) > 59 else 0)
    assert shown.startswith("-") == (seconds < 0)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(8 << 20), "8 MiB"),
        (bytes_text(-1536), "-1.5 KiB"),
        (seconds_text(0), "0 s"),
        (seconds_text(0.0123), "12.3 ms"),
        (seconds_text(185), "3 min 5 s"),
        (seconds_text(7800), "2 h 10 min"),
        (count_text(1234567), "1,234,567"),
        (count_text(10**25), "1e+25"),
    ],
)
def test_as_people_write_them(shown: str, expected: str) -> None:
    assert shown == expected
