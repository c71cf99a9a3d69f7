"""What is wanted of us, in numbers: a bar to reach, and an aim beyond it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REACHED, MET, MISSED, UNKNOWN = "aim", "met", "missed", "–"


@dataclass(frozen=True, slots=True, kw_only=True)
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
            found = [one[self.number] for one in own if self.number in one]
            return statistics.median(found) if found else None
        medians = []
        for base in self.bases:
            pairs = zip(own, samples.get(base, ()), strict=False)
            ratios = [one[self.number] / other[self.number] for one, other in pairs if other.get(self.number)]
            if not ratios:
                return None
            medians.append(statistics.median(ratios))
        return min(medians) if self.at_least else max(medians)

    def reaches(self, value: float, limit: float) -> bool:
        """Whether a value is as good as a limit."""
        return value >= limit if self.at_least else value <= limit

    def limit(self, limit: float) -> str:
        """A limit as it is shown."""
        return f"{'≥' if self.at_least else '≤'} {limit / self.unit:g}"

    def verdict(self, value: float | None) -> str:
        """Whether the aim is reached, the bar met, or missed."""
        if value is None:
            return UNKNOWN
        if self.reaches(value, self.aim):
            return REACHED
        return MET if self.reaches(value, self.bar) else MISSED
