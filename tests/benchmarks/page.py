"""The page of the documentation, filled in from records: between two marks there are tables and plots, nothing else."""

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.job import ROOT
from tests.benchmarks.jobs import GROUPS
from tests.benchmarks.plots import chart
from tests.benchmarks.records import Record
from tests.benchmarks.report import circumstances_line, markdown

PAGE = ROOT / "docs" / "reference" / "performance.md"
PLOTS = ROOT / "docs" / "reference" / "plots"
RESULTS = PLOTS / "results.json"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
NOTHING = "Nothing has been measured on this version yet: `make bench` fills this in."


def filled(page: str, records: Sequence[Record]) -> str:
    """The page with these results between its marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables(records) or NOTHING}\n{END}{after}"


def tables(records: Sequence[Record]) -> str:
    """A heading for each group, its plot, and a table for each job."""
    parts: list[str] = []
    before = ""
    for name, title, of_group in grouped(records):
        parts.append(f"### {title}")
        if chart(of_group) is not None:
            parts.append(f"![{title}: how each contestant stands against the best peer](plots/{name}.svg)")
        for record in of_group:
            line = circumstances_line(record["measured"])
            if line != before:
                parts.append(f"Measured {line}.")
                before = line
            parts.append(markdown(record))
    return "\n\n".join(parts)


def grouped(records: Sequence[Record]) -> list[tuple[str, str, list[Record]]]:
    """Name, title and records of each group that has any, in the order of the page."""
    found = []
    for group in GROUPS:
        of_group = [record for record in records if record["group"] == group.name]
        if of_group:
            found.append((group.name, group.title, of_group))
    return found


def write_plots(directory: Path, records: Sequence[Record]) -> list[Path]:
    """Write a chart for each group that has peers; the files."""
    written = []
    for name, _, of_group in grouped(records):
        svg = chart(of_group)
        if svg is not None:
            path = directory / f"{name}.svg"
            path.write_text(svg, "utf-8")
            written.append(path)
    return written


def write_page(records: Sequence[Record]) -> None:
    """Fill in the page of the documentation."""
    PAGE.write_text(filled(PAGE.read_text("utf-8"), records), "utf-8")
