"""Times without a zone, in CSV and JSON, are those of the zone of the options: gaps and overlaps as in Java."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid, UntrustedMetadata
from aioprefetch.source.columns.casts import instants, parsed_instants, warn_of_no_zone, zone_of
from aioprefetch.source.options import FormatOptions
from aioprefetch.source.reading import ReadTask, read_items
from aioprefetch.source.values import FetchItem
from tests.profile import each_of
from tests.unit.source.formats.written_files import new_operator, put, read

INSTANT = pa.timestamp("us", "UTC")
ZONES = ["America/New_York", "Europe/Paris", "Asia/Kolkata", "Australia/Lord_Howe", "UTC", "+05:30", "GMT-3"]

# Texts, and the times that Spark reads in New York.
TEXTS = {
    "2020-01-05": "2020-01-05 05:00:00",
    "2020-01-05 10:11:12.123456": "2020-01-05 15:11:12.123456",
    "2020-07-05T10:11:12": "2020-07-05 14:11:12",
    "2020-03-08 02:30:00": "2020-03-08 07:30:00",  # Clocks were put forward: 03:30.
    "2020-11-01 01:30:00": "2020-11-01 05:30:00",  # This time occurred twice: the earlier one counts.
    "1883-11-18 00:00:00": "1883-11-18 04:56:02",
    "2060-07-05 00:00:00": "2060-07-05 04:00:00",
    "2020-01-05T10:11:12Z": "2020-01-05 10:11:12",
    "2020-01-05 10:11:12+02:00": "2020-01-05 08:11:12",
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "nested"])
async def test_local_times_are_those_of_spark(kind: str) -> None:
    for texts in (list(TEXTS), *([one] * 2 for one in TEXTS)):
        schema = pa.schema([("t", INSTANT), ("ntz", pa.timestamp("us"))])
        if kind == "csv":
            data = "t,ntz\n" + "".join(f"{one},2020-01-01\n" for one in texts)
        elif kind == "jsonl":
            data = "".join(f'{{"t":"{one}","ntz":"2020-01-01"}}\n' for one in texts)
        else:
            schema = pa.schema([("t", pa.list_(INSTANT))])
            data = "".join(f'{{"t":["{one}"]}}\n' for one in texts)
        async with new_operator() as operator:
            file = await put(operator, "a.csv" if kind == "csv" else "a.jsonl", data.encode())
            rows = (await read(operator, file, schema, header=True, time_zone="America/New_York")).rows
        found = [row["t"][0] if kind == "nested" else row["t"] for row in rows]
        assert found == [datetime.fromisoformat(TEXTS[one]).replace(tzinfo=UTC) for one in texts]
        assert all(row.get("ntz", datetime(2020, 1, 1)) == datetime(2020, 1, 1) for row in rows)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(ZONES),
    st.lists(st.none() | st.datetimes(datetime(1850, 1, 1), datetime(2200, 1, 1)), max_size=4),
    st.sampled_from(["s", "ms", "us"]),
)
def test_pyarrow_and_python_agree_on_local_times(name: str, times: list[datetime | None], unit: Any) -> None:
    floor = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    times = [None if one is None else one - timedelta(microseconds=one.microsecond % floor) for one in times]
    zone = zone_of(FormatOptions(time_zone=name))
    found = instants(pa.array(times, pa.timestamp(unit)), pa.timestamp(unit, "UTC"), zone)
    expected = [None if one is None else one.replace(tzinfo=zone).astimezone(UTC) for one in times]
    assert found.type == pa.timestamp(unit, "UTC")
    assert found.to_pylist() == expected
    if unit == "us":
        texts = pa.array([None if one is None else str(one) for one in times], pa.string())
        assert parsed_instants(texts, INSTANT, zone).to_pylist() == expected


# Both ends of the calendar in UTC, in microseconds, and the offset from UTC of each zone at that moment.
ENDS = {"0001-01-01 00:00:00": -62_135_596_800_000_000, "9999-12-31 23:59:59.5": 253_402_300_799_500_000}
OFFSETS_SECONDS = {
    "UTC": (0, 0), "-05:00": (-18_000, -18_000), "+14:00": (50_400, 50_400), "America/New_York": (-17_762, -18_000),
    "Asia/Tokyo": (33_539, 32_400), "Pacific/Kiritimati": (-37_760, 50_400),
}  # fmt: skip


@each_of("zone", OFFSETS_SECONDS)
@each_of("name", ["a.csv", "a.jsonl", "nested.jsonl", "zoned.csv", "slow.csv"])
async def test_both_ends_of_the_calendar_are_read_in_every_zone(name: str, zone: str) -> None:
    """In UTC they may lie in the year 0 or 10000, which no ``datetime`` has."""
    wanted = [time - offset * 1_000_000 for time, offset in zip(ENDS.values(), OFFSETS_SECONDS[zone], strict=True)]
    texts, schema, kind = list(ENDS), AT, pa.int64()
    if name == "zoned.csv":
        texts = ["0001-01-01 00:00:00+05:00", "9999-12-31 23:59:59.5-05:00", "2024-1-1 00:00:00Z"]
        wanted = [ENDS[one] - 3_600_000_000 * hours for one, hours in zip(ENDS, (5, -5), strict=True)]
        wanted.append(1_704_067_200_000_000)
    elif name == "slow.csv":  # As pyarrow does not write it: read one by one.
        texts = [*ENDS, "2024-1-1 00:00:00Z"]
        wanted.append(1_704_067_200_000_000)
    text = "".join(f"{one}\n" for one in texts)
    if name == "nested.jsonl":
        schema, kind = pa.schema([("l", pa.list_(INSTANT))]), pa.list_(pa.int64())
        text = "".join(f'{{"l": ["{one}"]}}\n' for one in texts)
    elif name == "a.jsonl":
        text = "".join(f'{{"at": "{one}"}}\n' for one in texts)
    async with new_operator() as operator:
        file = await put(operator, name, text.encode())
        task = ReadTask(schema=schema, url="memory://x", format=FormatOptions(time_zone=zone))
        async with aclosing(read_items(operator, [FetchItem(file)], task)) as batches:
            [batch] = [one async for one in batches]
    found = batch.column(0).cast(kind).to_pylist()
    assert found == ([[one] for one in wanted] if name == "nested.jsonl" else wanted)


def test_times_at_the_end_of_the_calendar_and_in_gaps_leave_the_others_as_they_are() -> None:
    zone = ZoneInfo("America/New_York")
    usual = [datetime(2024, 1, 1) + timedelta(hours=hours) for hours in range(9000)]
    odd = [datetime(9999, 12, 31, 23), None, datetime(2024, 3, 10, 2, 30), datetime(1700, 1, 1)]
    found = instants(pa.array([*usual, *odd], pa.timestamp("us")), INSTANT, zone)
    assert found[:9000].to_pylist() == [one.replace(tzinfo=zone).astimezone(UTC) for one in usual]
    wanted = [253_402_315_200_000_000, None, 1_710_055_800_000_000, -8_520_318_238_000_000]
    assert found[9000:].cast(pa.int64()).to_pylist() == wanted


@each_of(
    ("kind", "zone"),
    [
        *((kind, zone) for kind in ("csv", "mixed.csv") for zone in ("UTC", "Europe/Berlin")),
        *((kind, "Europe/Berlin") for kind in ("jsonl", "nested.jsonl")),  # Under UTC pyarrow reads those alone.
    ],
)
@each_of("offset", ["+18:00", "-1800", "+18", "+18:01", "-19:00", "+1900", "-23"])
async def test_offsets_end_where_those_of_java_do(kind: str, zone: str, offset: str) -> None:
    is_nested = kind == "nested.jsonl"
    text = f"2024-07-01 12:00:00{offset}"
    data = {"csv": f"{text}\n", "mixed.csv": f"{text}\n2024-7-1\n", "jsonl": f'{{"at": "{text}"}}'}.get(
        kind, f'{{"l": ["{text}"]}}'
    )
    schema = pa.schema([("l", pa.list_(INSTANT))]) if is_nested else AT
    async with new_operator() as operator:
        file = await put(operator, f"a.{kind}", data.encode())
        if offset in ("+18:00", "-1800", "+18"):
            (row, *_) = (await read(operator, file, schema, time_zone=zone)).rows
            found = row["l"][0] if is_nested else row["at"]
            assert found == datetime(2024, 7, 1, 12, tzinfo=UTC) - timedelta(hours=-18 if offset[0] == "-" else 18)
        else:
            with pytest.raises(UntrustedMetadata, match="is not a valid timestamp"):
                await read(operator, file, schema, time_zone=zone)


def test_names_of_zones() -> None:
    for name in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00"):
        assert zone_of(FormatOptions(time_zone=name)) is UTC
    assert zone_of(FormatOptions(time_zone="Europe/Paris")) == ZoneInfo("Europe/Paris")
    for name in ("Mars/Base", "", "America", "../etc/passwd", "+99:00"):
        with pytest.raises(ConfigInvalid, match="no time zone"):
            zone_of(FormatOptions(time_zone=name))


async def test_an_unknown_zone_is_refused_in_every_format_of_text() -> None:
    async with new_operator() as operator:
        for key in ("a.csv", "a.jsonl"):
            file = await put(operator, key, b'{"t":1}\n')
            with pytest.raises(ConfigInvalid, match="no time zone 'Mars/Base'"):
                await read(operator, file, pa.schema([("t", pa.string())]), time_zone="Mars/Base")


LOCAL = "2024-07-01 12:00:00"
AT = pa.schema([("at", INSTANT)])
NESTED = pa.schema([("l", pa.list_(pa.struct([("ät", INSTANT)]))), ("s", pa.string())])


@pytest.mark.parametrize(
    ("name", "schema", "text", "warns"),
    [
        ("a.csv", AT, LOCAL, True),
        ("a.csv", AT, f"{LOCAL}\n{LOCAL}Z", True),
        ("a.csv", AT, f"{LOCAL}+02:00", False),
        ("a.csv", pa.schema([("at", pa.string())]), LOCAL, False),
        ("a.csv", pa.schema([("at", pa.timestamp("us"))]), LOCAL, False),
        ("a.json", AT, f'{{"at": "{LOCAL}"}}', True),
        ("a.json", AT, '{"at": "2024-07-01"}', True),
        ("a.json", AT, f'{{"at": "{LOCAL}Z"}}', False),
        ("a.json", AT, f'{{"at": "2024-07-01T12:00:00.5-05:00", "other": "{LOCAL}"}}', False),
        ("a.json", NESTED, f'{{"l": [{{"\\u00e4t": "{LOCAL}"}}]}}', True),
        ("a.json", NESTED, f'{{"l": [{{"ät": null}}], "s": "{LOCAL}"}}', False),
    ],
)
async def test_a_missing_zone_is_warned_of_once(
    name: str, schema: pa.Schema, text: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_no_zone.cache_clear()
    async with new_operator() as operator:
        file = await put(operator, name, text.encode())
        await read(operator, file, schema, time_zone="UTC")
        assert not caplog.records
        for _ in range(2):
            await read(operator, file, schema)
    assert [one.getMessage().partition(",")[0] for one in caplog.records] == (
        ["times without a zone are read as UTC"] if warns else []
    )
    warn_of_no_zone.cache_clear()
