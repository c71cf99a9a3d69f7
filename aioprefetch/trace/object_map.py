"""The map of an object on the page of a trace, as SVG: what was fetched, used, fetched again, and who served it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from aioprefetch.display import bytes_text, counted, share_text
from aioprefetch.ranges import Range, joined
from aioprefetch.trace.byte_set import ByteSet
from aioprefetch.trace.traced import TIERS, TracedObject, TracedRequest

WIDTH = 1000
# More pieces than this are drawn as columns, each as high as its share of a part of the object.
PIECES_MAX = 250
COLUMNS = 250
# A piece that is narrower could not be seen.
PIECE_WIDTH_MIN = 1.5

HATCH = (
    '<svg width="0" height="0" aria-hidden="true" style="position:absolute"><defs>'
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" style="fill:var(--wasted-soft)"/><rect width="2.2" height="5" '
    'style="fill:var(--wasted)"/></pattern></defs></svg>'
)


def fetched_again(requests: Sequence[TracedRequest]) -> list[Range]:
    """The bytes of one object that came in more than one request."""
    again, reached = [], 0
    for start, end in sorted(request.received for request in requests):
        again.append((start, min(end, reached)))
        reached = max(reached, end)
    return joined(again)


def object_section(item: TracedObject, requests: Sequence[TracedRequest], *, knows_use: bool) -> str:
    """The heading, the figures and the map of one object. ``requests`` are those for its bytes.

    Unless ``knows_use``, ranges were joined: which bytes were used, and how many came again, is not said then.
    """
    name = html.escape(item.path)
    fetched, wasted = len(item.fetched), len(item.wasted)
    facts = [
        f"{bytes_text(item.received_bytes)} in {counted(item.counts['requests'], 'request')}",
        f"{share_text(fetched - wasted, fetched)} used" if fetched and knows_use else "",
        f"{bytes_text(wasted)} not used" if wasted and knows_use else "",
        f"{bytes_text(item.refetched_bytes)} came again" if item.refetched_bytes and knows_use else "",
        f"{counted(item.counts['reads'], 'read')}: {_tiers(item)}" if item.counts["reads"] else "",
        f"{bytes_text(item.counts['evicted_unused_bytes'])} evicted unread"
        if item.counts["evicted_unused_bytes"]
        else "",
    ]
    text = " · ".join(fact for fact in facts if fact)
    facts_text = f'<p class="quiet">{html.escape(text)}</p>'
    return f'<section class="object"><h3>{name}</h3>{facts_text}{_map(item, requests, knows_use)}</section>'


def _tiers(item: TracedObject) -> str:
    return ", ".join(f"{bytes_text(item.tier_bytes[tier])} from {tier}" for tier in TIERS if item.tier_bytes[tier])


def _map(item: TracedObject, requests: Sequence[TracedRequest], knows_use: bool) -> str:
    end = item.end
    if not end:
        return ""
    layers = [("used", item.fetched & item.used), ("wasted", item.wasted)]
    lanes = [("Fetched", 20, layers if knows_use else [("fetched", item.fetched)])]
    again = ByteSet(fetched_again(requests))
    if len(again):
        lanes.append(("Fetched again", 7, [("again", again)]))
    lanes += [(f"Read from {tier}", 7, [(tier, item.by_tier[tier])]) for tier in TIERS if len(item.by_tier[tier])]
    lines = []
    for title, height, layers in lanes:
        shares = ", ".join(
            f"{share_text(len(bytes_), end)} {'not used' if name == 'wasted' else name}" for name, bytes_ in layers
        )
        spoken = shares if knows_use else "parts"
        drawing = "".join(shapes(name, bytes_.ranges, end, height, below) for name, bytes_, below in _stacked(layers))
        lines.append(
            f'<span aria-hidden="true">{title}</span><svg viewBox="0 0 {WIDTH} {height}" height="{height}" '
            f'preserveAspectRatio="none" role="img" aria-label="{title}: {spoken} of {bytes_text(end)}">{drawing}</svg>'
        )
    lines.append(f'<span></span><div class="ends"><span>0</span><span>{end:,}</span></div>')
    return f'<div class="map">{"".join(lines)}</div>'


def _stacked(layers: Sequence[tuple[str, ByteSet]]) -> list[tuple[str, ByteSet, ByteSet]]:
    """Each layer with what lies below it, where shares are stacked."""
    stacked, below = [], ByteSet()
    for name, bytes_ in layers:
        stacked.append((name, bytes_, below))
        below = below | bytes_
    return stacked


def shapes(name: str, ranges: Sequence[Range], end: int, height: int, below: ByteSet) -> str:
    """Rectangles of the ranges in an object of ``end`` bytes; of many, the shares of columns, above ``below``."""
    if len(ranges) <= PIECES_MAX and len(below.ranges) <= PIECES_MAX:
        pieces = [(WIDTH * low / end, max(PIECE_WIDTH_MIN, WIDTH * (high - low) / end)) for low, high in ranges]
        return "".join(
            f'<rect class="{name}" x="{_number(min(left, WIDTH - width))}" width="{_number(width)}" height="{height}"/>'
            for left, width in pieces
        )
    whole, drawing, columns = ByteSet(ranges), [], min(COLUMNS, end)
    for column in range(columns):
        low, high = column * end // columns, (column + 1) * end // columns
        share, base = whole.count_in(low, high) / (high - low), below.count_in(low, high) / (high - low)
        if share:
            tall = max(1.0, height * share)
            left, width = WIDTH * low / end, WIDTH * (high - low) / end
            drawing.append(
                f'<rect class="{name}" x="{_number(left)}" width="{_number(width)}" '
                f'y="{_number(max(0.0, height * (1 - base) - tall))}" height="{_number(tall)}"/>'
            )
    return "".join(drawing)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
