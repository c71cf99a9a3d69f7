"""Bar charts of records as SVG: how each contestant stands against the best peer, a chart for each group of jobs.

A bar to the right of the line is better than the best peer, one to the left is worse, on a scale of logarithms: twice
as good and half as good are as long. Written with the XML library of Python; why: docs/decisions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from tests.benchmarks.job import is_ours, is_peer
from tests.benchmarks.records import Record, columns_of
from tests.benchmarks.report import Standing, standing

WIDTH, NAMES_WIDTH, VALUES_WIDTH = 860, 250, 70
BAR_HEIGHT, ROW_GAP, HEAD_HEIGHT, MARGIN = 10, 6, 58, 16
# A bar that is longer ends here: the number beside it says how long it is.
SCALE_MAX = 32.0
GRID = {1 / 16: "1/16", 1 / 4: "1/4", 1.0: "1", 4.0: "4", 16.0: "16"}
OUR_COLOURS, PEER_COLOURS, OTHER_COLOURS = ("#1a7f5a", "#8fd0b5"), ("#5b6b7b", "#b9c3cd"), ("#c9a227", "#eadba3")
CPU_NUMBERS = ("cpu_per_request", "cpu_seconds", "cpu_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The bars of one job: for each contestant and number, how many times as good as the best peer it is."""

    title: str
    conditions: str
    standings: Sequence[Standing]
    headings: Sequence[str]
    names: Sequence[str]

    @property
    def height(self) -> float:
        """Of all its rows, in pixels."""
        return HEAD_HEIGHT + len(self.names) * (len(self.standings) * BAR_HEIGHT + ROW_GAP) + MARGIN


def panel_of(record: Record) -> Panel | None:
    """The first number of the table, and CPU where it has that too; None where there is nothing to compare."""
    columns = columns_of(record)
    numbers = {columns[0].name: columns[0].heading}
    numbers |= dict([(column.name, column.heading) for column in columns if column.name in CPU_NUMBERS][:1])
    found = {heading: standing(record, number) for number, heading in numbers.items()}
    standings = {heading: one for heading, one in found.items() if one is not None}
    if not standings:
        return None
    return Panel(
        title=f"{record['job']}: {record['title']}",
        conditions=record["conditions"]["text"] if record["conditions"] else "no store",
        standings=tuple(standings.values()),
        headings=tuple(standings),
        names=[name for name in record["samples"] if any(name in one.times for one in standings.values())],
    )


def chart(records: Sequence[Record]) -> str | None:
    """The SVG of a group; None where no job of it has a peer."""
    panels = [panel for panel in map(panel_of, records) if panel is not None]
    if not panels:
        return None
    height = sum(panel.height for panel in panels) + MARGIN
    svg = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height:g}", role="img")
    svg.set("font-family", "sans-serif")
    svg.set("font-size", "11")
    _shape(svg, "rect", width=WIDTH, height=height, fill="#ffffff")
    top = float(MARGIN)
    for panel in panels:
        _draw(svg, panel, top)
        top += panel.height
    ET.indent(svg, "")
    return ET.tostring(svg, encoding="unicode") + "\n"


def place_of(times: float) -> float:
    """Where a value lies, in pixels from the left."""
    middle = (NAMES_WIDTH + WIDTH - VALUES_WIDTH) / 2
    half = middle - NAMES_WIDTH - VALUES_WIDTH
    bounded = min(max(times, 1 / SCALE_MAX), SCALE_MAX)
    return middle + half * math.log(bounded) / math.log(SCALE_MAX)


def _draw(svg: ET.Element, panel: Panel, top: float) -> None:
    _text(svg, panel.title, x=MARGIN, y=top + 10, weight="bold", fill="#1f2933")
    legend = "; ".join(
        f"{shade}: {heading}, 1 is {one.best_peer}"
        for shade, heading, one in zip(("dark", "light"), panel.headings, panel.standings, strict=False)
    )
    _text(svg, f"{panel.conditions}; {legend}; longer to the right is better", x=MARGIN, y=top + 25, fill="#52606d")
    first = top + HEAD_HEIGHT - 8
    for value, label in GRID.items():
        x = place_of(value)
        colour = "#1f2933" if value == 1 else "#e1e5ea"
        _shape(svg, "line", x1=x, x2=x, y1=first, y2=top + panel.height - MARGIN, stroke=colour)
        _text(svg, label, x=x, y=first - 2, anchor="middle", fill="#7b8794")
    y = top + HEAD_HEIGHT
    for name in panel.names:
        rows = len(panel.standings) * BAR_HEIGHT
        weight = "bold" if is_ours(name) else "normal"
        _text(svg, name, x=NAMES_WIDTH - 8, y=y + rows / 2 + 4, anchor="end", weight=weight, fill="#1f2933")
        for index, one in enumerate(panel.standings):
            if name in one.times:
                _bar(svg, one.times[name], y + index * BAR_HEIGHT, _colours(name)[index])
        y += rows + ROW_GAP


def _bar(svg: ET.Element, times: float, y: float, colour: str) -> None:
    one, end = place_of(1.0), place_of(times)
    _shape(svg, "rect", x=min(one, end), y=y, width=max(abs(end - one), 1.0), height=BAR_HEIGHT - 1, fill=colour)
    anchor, beside = ("start", end + 4) if times >= 1 else ("end", end - 4)
    _text(svg, _times(times), x=beside, y=y + BAR_HEIGHT - 1, anchor=anchor, fill="#52606d", size=9)


def _colours(name: str) -> tuple[str, str]:
    if is_ours(name):
        return OUR_COLOURS
    return PEER_COLOURS if is_peer(name) else OTHER_COLOURS


def _times(value: float) -> str:
    """A factor as people write it: 1/4 is written 0.25."""
    return f"{value:.0f} ×" if value >= 10 else f"{value:.2g} ×"


def _shape(svg: ET.Element, kind: str, **attributes: object) -> None:
    ET.SubElement(svg, kind, _written(attributes))


def _text(
    svg: ET.Element,
    words: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    size: int | None = None,
    **attributes: object,
) -> None:
    element = ET.SubElement(svg, "text", _written(attributes))
    element.text = words
    if anchor != "start":
        element.set("text-anchor", anchor)
    if weight != "normal":
        element.set("font-weight", weight)
    if size is not None:
        element.set("font-size", str(size))


def _written(attributes: Mapping[str, object]) -> dict[str, str]:
    return {name: f"{value:.1f}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
