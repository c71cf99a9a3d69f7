"""Bar charts of the page's tables as SVG: one measure, and one base, the first peer of the table.

A bar to the left of the line is better than the base, one to the right is worse, on a scale of logarithms: half and
twice are as long. Colours follow the reader's light or dark. Written with the XML library of Python: decision 13 says
why.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.benchmarks.page import TABLES, Table, peer_in, times
from tests.benchmarks.records import Record

WIDTH, NAMES_WIDTH, MARGIN = 460, 130, 14
HEAD_HEIGHT, LABEL_HEIGHT, BAR_HEIGHT, ROW_GAP = 54, 18, 16, 10
# A bar that is longer ends here: the number beside it says how long it is.
SCALE_MAX = 16.0
# A table of fewer peers shows as much as a plot.
MIN_PEERS = 3
GRID = {1 / 8: "1/8", 1 / 2: "1/2", 1.0: "1", 2.0: "2", 8.0: "8"}
OURS = "aioprefetch"
STYLE = """
.card { fill: #ffffff } .text { fill: #24292f } .faint { fill: #57606a } .grid { fill: #d0d7de } .base { fill: #57606a }
.ours { fill: #1a7f5a } .peer { fill: #8c959f }
@media (prefers-color-scheme: dark) {
.card { fill: #1e2129 } .text { fill: #e6e8eb } .faint { fill: #aab2bd } .grid { fill: #3a404b } .base { fill: #aab2bd }
.ours { fill: #43c493 } .peer { fill: #7a8594 }
}
"""


def bars_of(table: Table, records: Sequence[Record]) -> list[tuple[str, dict[str, float]]]:
    """For each row with the table's measure and a base, by contestant, how much it takes over the base."""
    by_job = {record["job"]: record for record in records}
    found = []
    for row in table.rows:
        record = by_job.get(row.job)
        base = peer_in(record, table.peers[0]) if record else None
        if record is None or base is None or row.number:
            continue
        named = {OURS: row.ours} | {peer: name for peer in table.peers[1:] if (name := peer_in(record, peer))}
        values = {word: times(record, name, base, table.number) for word, name in named.items()}
        found.append((row.label.replace("`", ""), {word: one for word, one in values.items() if one is not None}))
    return found


def chart(table: Table, records: Sequence[Record]) -> str:
    """The SVG of a table."""
    rows = bars_of(table, records)
    height = HEAD_HEIGHT + MARGIN + sum(LABEL_HEIGHT + len(bars) * BAR_HEIGHT + ROW_GAP for _, bars in rows)
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height:g}", role="img")
    svg.attrib |= {"width": str(WIDTH), "height": str(height), "font-family": "sans-serif", "font-size": "13"}
    ET.SubElement(svg, "style").text = STYLE
    _shape(svg, "card", x=0, y=0, width=WIDTH, height=height)
    title = f"{table.measure[0].upper()}{table.measure[1:]}; {table.peers[0]} is 1, less is better"
    _text(svg, "text", title, x=MARGIN, y=MARGIN + 8, weight="bold")
    for value, word in GRID.items():
        _shape(svg, "base" if value == 1 else "grid", x=place_of(value), y=HEAD_HEIGHT - 8, width=1, height=height)
        _text(svg, "faint", word, x=place_of(value), y=HEAD_HEIGHT - 12, anchor="middle")
    top = float(HEAD_HEIGHT)
    for label, bars in rows:
        _text(svg, "text", label, x=MARGIN, y=top + 10, weight="bold")
        top += LABEL_HEIGHT
        for name, value in bars.items():
            _text(svg, "text", name, x=NAMES_WIDTH - 8, y=top + 11, anchor="end")
            _bar(svg, value, top, "ours" if name == OURS else "peer")
            top += BAR_HEIGHT
        top += ROW_GAP
    ET.indent(svg, "")
    return ET.tostring(svg, encoding="unicode") + "\n"


def place_of(value: float) -> float:
    """Where a value lies, in pixels from the left."""
    room = (WIDTH - NAMES_WIDTH) / 2 - 3 * MARGIN
    bounded = min(max(value, 1 / SCALE_MAX), SCALE_MAX)
    return (NAMES_WIDTH + WIDTH) / 2 + room * math.log(bounded) / math.log(SCALE_MAX)


def _bar(svg: ET.Element, value: float, y: float, kind: str) -> None:
    one, end = place_of(1.0), place_of(value)
    _shape(svg, kind, x=min(one, end), y=y, width=max(abs(end - one), 1.0), height=BAR_HEIGHT - 3)
    anchor, beside = ("start", end + 4) if value >= 1 else ("end", end - 4)
    _text(svg, "faint", f"{value:.0f}" if value >= 10 else f"{value:.2g}", x=beside, y=y + 11, anchor=anchor)


def _shape(svg: ET.Element, kind: str, **attributes: float) -> None:
    ET.SubElement(svg, "rect", {"class": kind, **_written(attributes)})


def _text(svg: ET.Element, kind: str, words: str, *, anchor: str = "", weight: str = "", **attributes: float) -> None:
    how = {"text-anchor": anchor, "font-weight": weight}
    given = {name: value for name, value in how.items() if value}
    ET.SubElement(svg, "text", {"class": kind, **given, **_written(attributes)}).text = words


def _written(attributes: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.1f}".removesuffix(".0") for name, value in attributes.items()}


def write_plots(directory: Path, records: Sequence[Record]) -> list[Path]:
    """Write the plots; the files."""
    written = []
    for table in TABLES:
        if len(table.peers) >= MIN_PEERS:
            written.append(directory / f"{table.name}.svg")
            written[-1].write_text(chart(table, records), "utf-8")
    return written
