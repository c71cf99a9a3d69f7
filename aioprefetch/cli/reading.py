"""``cat``: bytes of objects on standard output; the formats of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import click

from aioprefetch.cli import EXIT_FAILED
from aioprefetch.cli.completion import place_argument
from aioprefetch.cli.places import Stores, command, objects_of, selection_of, visit_each
from aioprefetch.errors import InvalidArgument, NotFound, RangeNotSatisfied
from aioprefetch.operator.listing import has_wildcard
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.transfer.sides import Side
from aioprefetch.ranges import bytes_at_least
from aioprefetch.sync import open as open_file
from aioprefetch.sync import run

PIECE_BYTES = 1 << 20
# A range of at most this size is one request.
RANGE_BYTES_MAX = 8 << 20

T = TypeVar("T")

# Start and end as in a slice of Python: either may be missing, and a negative start counts from the end.
Slice = tuple[int | None, int | None]


KINDS = ("parquet", "lance", "text")
_ENDS = {".parquet": "parquet", ".parq": "parquet", ".pq": "parquet", ".lance": "lance"}
_SUFFIX_BYTES = 4
kind_option = click.option(
    "--type", "kind", type=click.Choice(KINDS), help="The format, where the file name does not tell it."
)


def kind_of(side: Side, kind: str | None, operator: Operator) -> str:
    """The format of a file: as it is given, as the end of its path says, or as its last bytes say."""
    path = (side.name or side.path or side.label).rstrip("/")
    by_end = next((kind for end, kind in _ENDS.items() if path.endswith(end)), None)
    if kind or by_end:
        return kind or by_end or ""
    if not side.path or side.path.endswith("/") or has_wildcard(side.path):
        return "parquet"
    end = run(operator.read(side.path, suffix=_SUFFIX_BYTES))
    return {b"PAR1": "parquet", b"LANC": "lance"}.get(end, "text")


def read_place(side: Side, read: Callable[[Side], T]) -> T:
    """Call ``read`` with a place, or with the directory of that name where a store has no such object.

    A table is often a directory that is named without ``/`` at its end, such as what Spark writes.
    """
    try:
        return read(side)
    except NotFound:
        operator, path = side.operator, side.path
        is_other = not path or path.endswith("/") or has_wildcard(path)
        if is_other or not operator.capability.list or not run(operator.exists(f"{path}/")):
            raise
    return read(replace(side, path=f"{path}/", label=f"{side.label}/"))


def slices_of(context: click.Context, parameter: click.Parameter, texts: Sequence[str] | str | None) -> list[Slice]:
    """The positions of each text of an option."""
    if isinstance(texts, str):
        texts = [texts]
    return [slice_of(context, parameter, text) for text in texts or ()]


def slice_of(context: click.Context, parameter: click.Parameter, text: str | None) -> Slice:
    """The positions of ``START:END``, as in a slice of Python, in bytes or with a unit."""
    if text is None:
        return None, None
    start, separator, end = text.partition(":")
    is_suffix = start.startswith("-")
    if not separator or end.startswith("-") or (is_suffix and end):
        raise click.BadParameter("a range is START:END, START:, :END or -COUNT:, the last bytes", context, parameter)
    try:
        first = _position(start.removeprefix("-")) if start else None
        last = _position(end) if end else None
    except InvalidArgument as error:
        raise click.BadParameter(error.message, context, parameter) from None
    if first is not None and last is not None and last < first:
        raise click.BadParameter(f"{text} ends before it begins", context, parameter)
    return -first if is_suffix and first is not None else first, last


def _position(text: str) -> int:
    return bytes_at_least(0, text, "range", operation="read", path="")


@command(
    "cat",
    examples="""
aioprefetch cat s3://bucket/log.txt | head
aioprefetch cat --range 0:4KiB s3://bucket/key | xxd
aioprefetch cat --range -8: s3://bucket/table.parquet
aioprefetch cat 's3://bucket/logs/2024-*.gz' | zcat
""",
)
@place_argument("places", "PLACE...", nargs=-1, required=True)
@click.option(
    "--range",
    "part",
    metavar="START:END",
    callback=slice_of,
    help="Bytes as a slice of Python: 0:100, 1MiB:, :4KiB; -8: is the last 8.",
)
def cat(places: Sequence[str], stores: Stores, part: Slice) -> int:
    """Write objects to standard output, one after the other."""
    stores.check(*places)
    failures = visit_each(map(stores.side, places), lambda side: write_out(stores, side, part))
    sys.stdout.buffer.flush()
    return EXIT_FAILED if failures else 0


def write_out(stores: Stores, side: Side, part: Slice = (None, None)) -> bool:
    """Write the objects of a place, or a part of each, to standard output; whether there was one."""
    operator, count = stores.operator_of(side), 0
    hint = f"cat '{side.label.rstrip('/')}/*' writes what is in it"
    if side.path and not side.path.endswith("/") and not has_wildcard(side.path):
        paths = iter([side.path])
    else:
        paths = (entry.path for entry in objects_of(selection_of(side, is_recursive=False, hint=hint)))
    for path in paths:
        count += 1
        _write(operator, path, part)
    return count > 0


def _write(operator: Operator, path: str, part: Slice) -> None:
    """Write an object, or a part of it. ``RangeNotSatisfied`` if the part begins at its end or beyond."""
    start, end = part
    out = sys.stdout.buffer
    if start is not None and -RANGE_BYTES_MAX <= start < 0:
        out.write(run(operator.view(path, suffix=-start)))
        return
    first = start or 0
    if end == first:  # No bytes, of an object that has to be there.
        run(operator.stat(path))
        return
    if end is not None and end - first <= RANGE_BYTES_MAX:
        out.write(run(operator.view(path, offset=first, size=end - first)))
        return
    split = None if end is None else (first, end)
    with open_file(path, operator=operator, policy="sequential", split=split) as file:
        if first < 0:
            first = max(0, file.seek(0, os.SEEK_END) + first)
        position = file.seek(first)
        while end is None or position < end:
            wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - position)
            piece = file.read_buffer(wanted)
            if not piece:
                if position == first > 0:
                    size, last = file.size, "end" if end is None else end
                    raise RangeNotSatisfied(
                        f"[{first}, {last}) starts at or beyond the end of the object's {size} bytes",
                        total=size,
                        operation="read",
                        path=path,
                    )
                return
            out.write(piece)
            position += len(piece)
