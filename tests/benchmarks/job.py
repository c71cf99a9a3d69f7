"""A row of the table of jobs: its contestants doing the same work, its columns, and what is wanted of us."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from tests.benchmarks.content import MIB, write_object
from tests.benchmarks.simulator import BUCKET, Conditions

ROOT = Path(__file__).parents[2]
OBJECT = "object"
# Small enough to cost nothing: a contestant reads it before its clock starts, so that connections, credentials and
# imports are not what is measured.
WARM_OBJECT = "warm"
WARM_BYTES = 64 << 10
# The object again under another key: what is read of it to compare every byte is not counted as traffic.
CHECK_OBJECT = "check"
UNCOUNTED = (f"/{WARM_OBJECT}", f"/{CHECK_OBJECT}")

Sample = dict[str, Any]
Numbers = dict[str, float]
# Names of our contestants begin so.
OURS = "aioprefetch"
WALL_SECONDS, CPU_EACH, RATE_EACH = "wall_seconds", "cpu_per_request", "requests_per_second"
REACHED, MET, MISSED, UNKNOWN = "aim", "met", "missed", "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a contestant is given: where the object is, how long, and whether each byte shall be compared.

    ``scratch`` is an empty directory for this sample alone. It goes away when the contestant's process has ended, so
    that a thread which still writes there disturbs no other. ``ca_bundle`` is the certificate to trust, empty without
    TLS; ``server_pid`` the process that serves. Keys that are empty are those of the environment.
    """

    endpoint_url: str = ""
    key: str = OBJECT
    size_bytes: int = 0
    every_byte: bool = False
    bucket: str = BUCKET
    scratch: str = ""
    ca_bundle: str = ""
    server_pid: int = 0
    region: str = "us-east-1"
    access_key_id: str = "benchmark"
    secret_access_key: str = "benchmark-secret"

    @property
    def is_local(self) -> bool:
        """Whether it is in files or in memory of this machine."""
        return self.endpoint_url.startswith(("file:", "memory:"))

    def given(self, endpoint: str, region: str, key: str, secret: str) -> dict[str, str]:
        """Place and keys, by a library's words for them; without those that are empty."""
        values = (self.endpoint_url, self.region, self.access_key_id, self.secret_access_key)
        return {word: value for word, value in zip((endpoint, region, key, secret), values, strict=True) if value}

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults: another tree may know no others."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


Contestant = Callable[[Target], Coroutine[Any, Any, Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table: ``name`` in the numbers, divided by ``unit``; ``ratio`` adds one against the base."""

    name: str
    heading: str
    unit: float = 1.0
    digits: int = 2
    ratio: bool = False


WALL = Column(name="wall_seconds", heading="wall s", ratio=True)
CPU = Column(name="cpu_seconds", heading="CPU s", ratio=True)
GETS = Column(name="gets", heading="GETs", digits=0)
OTHERS = Column(name="others", heading="HEADs", digits=0)
SENT = Column(name="sent_bytes", heading="MiB sent", unit=MIB, digits=1)
SENT_OVER_READ = Column(name="sent_over_read", heading="sent ÷ read", digits=3)
IN_FLIGHT = Column(name="in_flight", heading="in flight", digits=0)
RATE = Column(name="bytes_per_second", heading="MiB/s", unit=MIB, digits=0)
RATE_RATIO = replace(RATE, ratio=True)
CPU_PER_GIB = Column(name="cpu_per_gib", heading="CPU s/GiB")
SHARE = Column(name="server_share", heading="nginx busy")
PEAK = Column(name="memory_peak_bytes", heading="peak MiB", unit=MIB, digits=0)
PEAK_RATIO = replace(PEAK, ratio=True)
MEMORY = Column(name="memory_growth_bytes", heading="RSS + MiB", unit=MIB, digits=0)
REQUESTS_EACH = Column(name="requests_per_item", heading="requests each", digits=3)


def costs_of(one: str, *, digits: int = 0) -> tuple[Column, Column]:
    """The columns of a job of many equal requests: the CPU of each, and how many there are in a second."""
    return (
        Column(name="cpu_per_request", heading=f"CPU µs/{one}", unit=1e-6, digits=digits, ratio=True),
        Column(name="requests_per_second", heading=f"{one}s/s", digits=0, ratio=True),
    )


@dataclass(frozen=True, slots=True)
class Bar:
    """``number`` of ``ours``, over that of a contestant in ``bases``, is at most ``bar``, better ``aim``.

    Without ``bases`` it is the number itself, shown in ``unit``. With several the one beside which we stand worst
    counts. ``at_least`` turns it round, for rates. ``shape`` says what is done.
    """

    shape: str
    ours: str
    number: str
    bar: float
    aim: float
    bases: tuple[str, ...] = ()
    at_least: bool = False
    unit: float = 1.0
    digits: int = 2

    def value(self, samples: Mapping[str, Sequence[Mapping[str, float]]]) -> float | None:
        """The median over the rounds; None where we or one of the bases did not run."""
        own = samples.get(self.ours, ())
        if not self.bases:
            values = [one[self.number] for one in own if self.number in one]
            return statistics.median(values) if values else None
        medians = []
        for base in self.bases:
            numbers = zip(own, samples.get(base, ()), strict=False)
            pairs = [(one[self.number], other[self.number]) for one, other in numbers if other.get(self.number)]
            if not pairs:
                return None
            medians.append(statistics.median(us / them for us, them in pairs))
        return min(medians) if self.at_least else max(medians)

    def reaches(self, value: float, limit: float) -> bool:
        """Whether a value is as good as a limit."""
        return value >= limit if self.at_least else value <= limit

    def limit(self, limit: float) -> str:
        """A limit as it is shown."""
        return f"{'≥' if self.at_least else '≤'} {limit / self.unit:g}"

    def shown(self, value: float | None) -> str:
        """What was measured as it is shown."""
        return UNKNOWN if value is None else f"{value / self.unit:.{self.digits}f}"

    def verdict(self, value: float | None) -> str:
        """Whether the aim is reached, the bar met, or missed."""
        if value is None:
            return UNKNOWN
        if self.reaches(value, self.aim):
            return REACHED
        return MET if self.reaches(value, self.bar) else MISSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is measured. Without ``conditions`` there is no simulator; ``store`` then gives the endpoint of another one.

    ``write`` makes the object in a file, of about the size passed. The first contestant is the base of the ratios.
    ``quick`` says who goes in a quick run: all, none, or those of the bars, else the base and the first of ours.
    ``links`` are further keys of the object, ``copies`` how many there are of it. ``rounds_max`` bounds the rounds of a
    job that takes long. ``checked_apart``: every byte is compared in a round of its own, which is not measured.
    ``loop`` is the package whose event loop runs. ``elsewhere`` has contestants that are those of another tree: its
    root, and their name there.
    """

    name: str
    title: str
    contestants: Mapping[str, Contestant]
    columns: Sequence[Column]
    conditions: Conditions | None = None
    store: Callable[[], AbstractContextManager[str]] | None = None
    size_bytes: int = 0
    quick_size_bytes: int = 0
    copies: int = 0
    write: Callable[[Path, int], None] = write_object
    rounds_max: int | None = None
    checked_apart: bool = False
    links: Sequence[str] = ()
    loop: str = "asyncio"
    bars: Sequence[Bar] = ()
    elsewhere: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    quick: Literal["all", "few", "none"] = "few"

    @property
    def barred(self) -> list[str]:
        """The contestants that the bars name, in the order of the table."""
        named = {name for bar in self.bars for name in (bar.ours, *bar.bases)}
        return [name for name in self.contestants if name in named]

    @property
    def quick_names(self) -> list[str]:
        """Who goes in a quick run."""
        names = list(self.contestants)
        if self.quick != "few":
            return names if self.quick == "all" else []
        return self.barred or list(dict.fromkeys([names[0], *filter(is_ours, names)]))[:2]

    def with_only(self, names: Sequence[str]) -> Job:
        """The job with some of its contestants."""
        return replace(self, contestants={name: self.contestants[name] for name in names})


def is_ours(name: str) -> bool:
    """Whether a contestant is aioprefetch."""
    return name.startswith(OURS)


def is_rate(number: str) -> bool:
    """Whether more of it is better."""
    return number.endswith("_per_second")


# Beside another tree what was fast may be slower by this share, which two runs differ by.
TOLERATED = 0.05


def beside_before(job: Job, root: Path) -> Job:
    """The job with only our contestants, each beside the same in the tree at ``root``; all ratios are compared."""
    ours = [name for name in job.contestants if is_ours(name)]
    bars = []
    for name in ours:
        for column in job.columns:
            rate = is_rate(column.name)
            bar, shape = 1 - TOLERATED if rate else 1 + TOLERATED, f"{job.name}, {column.heading}"
            bars += [Bar(shape, name, column.name, bar, 1.0, (f"{name}, before",), rate)] if column.ratio else []
    return replace(
        job,
        contestants={one: job.contestants[name] for name in ours for one in (name, f"{name}, before")},
        elsewhere={f"{name}, before": (root.resolve(), name) for name in ours},
        bars=bars,
    )
