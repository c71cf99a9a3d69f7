"""What is wanted of us beside a family of peers, in a sentence: the share of its fastest member's time we may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.benchmarks.job import Column, Comparison, Job, Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``ours`` takes at most ``at_most`` times the wall time of the fastest of ``peers``; ``name`` is what they are.

    ``None``: no definite share is wanted, the ratio is shown all the same.
    """

    name: str
    ours: str
    peers: Sequence[str]
    at_most: float | None

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The ratios that the sentence is made of."""
        return tuple(Comparison(number="wall_seconds", base=peer) for peer in self.peers)

    def column(self) -> Column:
        """The ratio against the first of the peers, which is the one that people write."""
        return self.comparisons[0].column(f"× {self.name}")

    def said(self, medians: Mapping[str, Numbers]) -> str:
        """The sentence: the median of the ratios of the rounds; empty where one of the two did not run."""
        seconds = {peer: medians[peer]["wall_seconds"] for peer in self.peers if peer in medians}
        if not seconds or self.ours not in medians:
            return ""
        fastest = min(seconds, key=lambda peer: seconds[peer])
        name = Comparison(number="wall_seconds", base=fastest).name
        if name not in medians[self.ours]:
            return ""
        ratio = medians[self.ours][name]
        said = f"{ratio:.2f} of the wall of {fastest}"
        if self.at_most is None:
            return said
        return f"{said} ({self.at_most:.2f} is wanted{'' if ratio <= self.at_most else ': too much'})"


def comparisons_of(wanted: Sequence[Wanted]) -> tuple[Comparison, ...]:
    """The ratios of all of them, each once."""
    return tuple(dict.fromkeys(comparison for one in wanted for comparison in one.comparisons))


def remark_of(wanted: Sequence[Wanted]) -> Callable[[Mapping[str, Numbers]], str]:
    """A remark of a job: one sentence for each contestant of ours that something is wanted of."""

    def remark(medians: Mapping[str, Numbers]) -> str:
        said: dict[str, list[str]] = {}
        for one in wanted:
            sentence = one.said(medians)
            if sentence:
                said.setdefault(one.ours, []).append(sentence)
        return " ".join(f"{ours} takes {', '.join(parts)}." for ours, parts in said.items())

    return remark


def with_wanted(job: Job, wanted: Sequence[Wanted]) -> Job:
    """The job with a column for each ratio that is wanted, and a line that says it under its table."""
    own_remark, our_remark = job.remark, remark_of(wanted)

    def remark(medians: Mapping[str, Numbers]) -> str:
        return " ".join(said for said in (our_remark(medians), own_remark(medians)) if said)

    return replace(
        job,
        columns=(job.columns[0], *(one.column() for one in wanted), *job.columns[1:]),
        comparisons=comparisons_of(wanted),
        remark=remark,
    )
