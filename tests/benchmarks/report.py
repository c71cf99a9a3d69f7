"""Records as a table for the terminal, and as Markdown for the documentation; and what they say of us and the peers."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.job import MISSED, is_ours, is_peer, is_rate
from tests.benchmarks.records import Record, bars_of, columns_of, median_of

# We lose where the best peer is better by more than what two runs differ.
NOTICEABLE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How contestants stand against the best peer in one number.

    ``times`` says how many times as good a contestant is as that peer: twice the throughput, or half the time, is 2.
    """

    number: str
    best_peer: str
    times: Mapping[str, float]


def standing(record: Record, number: str) -> Standing | None:
    """How contestants stand in a number, round by round; None where none of ours or no peer has it."""
    samples = {name: numbers[number] for name, numbers in record["samples"].items() if all(numbers.get(number, [None]))}
    medians = {name: statistics.median(values) for name, values in samples.items()}
    peers = [name for name in medians if is_peer(name)]
    if not peers or not any(is_ours(name) for name in medians):
        return None
    best = (max if is_rate(number) else min)(peers, key=lambda name: medians[name])
    times = {}
    for name, values in samples.items():
        pairs = list(zip(values, samples[best], strict=False))
        times[name] = statistics.median(own / peer if is_rate(number) else peer / own for own, peer in pairs)
    return Standing(number=number, best_peer=best, times=times)


def losses(record: Record) -> list[str]:
    """Where the best peer is noticeably better than one of ours, a sentence for each number that is compared."""
    said = []
    for index, column in enumerate(columns_of(record)):
        found = standing(record, column.name) if column.ratio or index == 0 else None
        if found is None:
            continue
        behind = {name: 1 / times for name, times in found.times.items() if is_ours(name) and times * NOTICEABLE < 1}
        if behind:
            how_much = ", ".join(f"{times:.1f} × as good as {name}" for name, times in behind.items())
            said.append(f"{column.heading}: {found.best_peer} is {how_much}")
    return said


def circumstances_line(measured: Mapping[str, Any]) -> str:
    """What a record depends on, in a line."""
    packages = ", ".join(f"{name} {version}" for name, version in measured["packages"].items())
    machine = ", ".join(part for part in (measured["processor"], f"{measured['cores']} cores") if part)
    server = f", nginx {measured['nginx']}" if measured["nginx"] else ""
    commit = f" at {measured['commit']}" if measured["commit"] else ""
    return f"{measured['date']}{commit}; {measured['python']}, {measured['kernel']}, {machine}; {packages}{server}"


def cells(record: Record) -> list[list[str]]:
    """The table, its heading first: medians, and ratios against the base where a column wants them."""
    columns = columns_of(record)
    heading = ["contestant"]
    for column in columns:
        heading += [column.heading, "ratio"] if column.ratio else [column.heading]
    rows = [heading]
    for name in record["samples"]:
        row = [name]
        for column in columns:
            median = median_of(record, name, column.name)
            row.append("–" if median is None else f"{median / column.unit:.{column.digits}f}")
            if column.ratio:
                ratio = record["ratios"][name].get(column.name)
                row.append("–" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return rows


def bar_cells(records: Sequence[Record]) -> list[list[str]]:
    """The table of what is wanted of us, its heading first; the heading alone where nothing is."""
    rows = [["what", "ours", "beside", "job", "bar", "aim", "measured", "verdict"]]
    for record in records:
        for bar, value in bars_of(record):
            beside = " and ".join(bar.bases) or "–"
            limits = (bar.limit(bar.bar), bar.limit(bar.aim))
            rows.append([bar.shape, bar.ours, beside, record["job"], *limits, bar.shown(value), bar.verdict(value)])
    return rows


def bars_text(records: Sequence[Record]) -> str:
    """What is wanted of us, for the terminal; empty where nothing is."""
    rows = bar_cells(records)
    missed = sum(row[-1] == MISSED for row in rows)
    return f"{_aligned(rows, left=4)}\n\n{missed} of {len(rows) - 1} missed" if len(rows) > 1 else ""


def bars_markdown(records: Sequence[Record]) -> str:
    """The same for a page of the documentation."""
    heading, *rows = bar_cells(records)
    return "\n".join([_line(heading), _line(["---"] * len(heading)), *map(_line, rows)]) if rows else ""


def text(record: Record) -> str:
    """For the terminal."""
    return "\n".join([title(record), "", _aligned(cells(record), left=1), *_with_space(remarks(record))])


def _aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Rows with columns of one width: the first ``left`` of them to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        padded = zip(row, widths, strict=True)
        lines.append(
            "  ".join(cell.ljust(w) if at < left else cell.rjust(w) for at, (cell, w) in enumerate(padded)).rstrip()
        )
    return "\n".join(lines)


def markdown(record: Record) -> str:
    """For a page of the documentation."""
    heading, *rows = cells(record)
    lines = [f"**{title(record)}**", "", _line(heading), _line(["---", *["---:"] * (len(heading) - 1)])]
    lines += [_line(row) for row in rows]
    return "\n".join([*lines, *_with_space(remarks(record))])


def title(record: Record) -> str:
    """What was measured, where, and how often."""
    conditions, rounds = record["conditions"], record["rounds"]
    where = f"; {conditions['text']}" if conditions else ""
    how_often = "one round" if rounds == 1 else f"medians of {rounds} rounds"
    quick = "; quick: with every byte compared meanwhile, not to be quoted" if record["quick"] and conditions else ""
    return f"{record['job']}: {record['title']}{where}; {how_often}{quick}"


def remarks(record: Record) -> list[str]:
    """What the medians mean, where we lose, and who failed."""
    failures = [f"{name} failed: {why}" for name, why in record["failures"].items()]
    lost = "; ".join(losses(record))
    return [line for line in (record["remark"], f"We lose. {lost}." if lost else "", *failures) if line]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _with_space(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []
