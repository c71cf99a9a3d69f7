"""Results for the terminal: a table for each job, and what is wanted of us beside what was measured."""

import math
from collections.abc import Sequence

from tests.benchmarks.job import MISSED
from tests.benchmarks.runner import Result


def cells(result: Result) -> list[list[str]]:
    """The table, its heading first: medians, and ratios against the base where a column wants them."""
    columns, medians = result.job.columns, result.medians()
    rows = [["contestant"]]
    for column in columns:
        rows[0] += [column.heading, "ratio"] if column.ratio else [column.heading]
    for name, numbers in medians.items():
        row = [name]
        for column in columns:
            median = numbers.get(column.name, math.nan)
            row.append("–" if math.isnan(median) else f"{median / column.unit:.{column.digits}f}")
            if column.ratio:
                ratio = result.ratio(name, column.name)
                row.append("–" if ratio is None else f"{ratio:.2f}")
        rows.append(row)
    return rows


def text(result: Result) -> str:
    """What was measured, where, and how often; the table; who failed."""
    job = result.job
    where = f"; {job.conditions}" if job.conditions else ""
    quick = "; quick: with every byte compared meanwhile, not to be quoted" if result.quick else ""
    failures = [f"{name} failed: {why}" for name, why in result.failures.items()]
    heading = f"{job.name}: {job.title}{where}; rounds: {result.rounds}{quick}"
    return "\n".join([heading, "", aligned(cells(result), left=1), *failures])


def bars_text(results: Sequence[Result]) -> str:
    """What is wanted of us; empty where nothing is."""
    rows = [["what", "ours", "beside", "job", "bar", "aim", "measured", "verdict"]]
    for result in results:
        for bar in result.job.bars:
            if bar.ours in result.samples:
                value, beside = bar.value(result.samples), " and ".join(bar.bases) or "–"
                limits = (bar.limit(bar.bar), bar.limit(bar.aim))
                measured = (bar.shown(value), bar.verdict(value))
                rows.append([bar.shape, bar.ours, beside, result.job.name, *limits, *measured])
    missed = sum(row[-1] == MISSED for row in rows)
    return f"{aligned(rows, left=4)}\n\n{missed} of {len(rows) - 1} missed" if len(rows) > 1 else ""


def aligned(rows: Sequence[Sequence[str]], *, left: int) -> str:
    """Rows with columns of one width: the first ``left`` of them to the left, numbers to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        padded = zip(row, widths, strict=True)
        lines.append(
            "  ".join(cell.ljust(w) if at < left else cell.rjust(w) for at, (cell, w) in enumerate(padded)).rstrip()
        )
    return "\n".join(lines)
