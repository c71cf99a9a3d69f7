"""``ls``, ``stat``, ``du``, ``cat`` and ``presign``: what is there, its size and its bytes; formats of files."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, get_args

import click

from aioprefetch.cli import EXIT_FAILED
from aioprefetch.cli.places import (
    Stores,
    bwlimit_option,
    command,
    is_account,
    literal_option,
    objects_of,
    place_argument,
    selection_of,
    stem_of,
    visit_each,
)
from aioprefetch.cli.printing import fields_of, path_text, print_json, size_text
from aioprefetch.errors import InvalidArgument, IsADirectory, NotFound, RangeNotSatisfied
from aioprefetch.operator.operator import Operator
from aioprefetch.plan.patterns import compile_glob, literal_prefix, wildcard_at
from aioprefetch.ranges import bytes_at_least
from aioprefetch.sync import open as open_file
from aioprefetch.sync import run
from aioprefetch.sync.iteration import BlockingListing
from aioprefetch.transfer.sides import Side
from aioprefetch.values import Entry, Metadata, PresignMethod
from aioprefetch.verbs.listing import list_literally

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
    if not side.path or side.path.endswith("/") or side.has_wildcard:
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
        is_other = not path or path.endswith("/") or side.has_wildcard
        if is_other or not operator.capability.list or not run(operator.exists(f"{path}/")):
            raise
    return read(replace(side, path=f"{path}/", label=f"{side.label}/"))


# --- cat --------------------------------------------------------------------------------------------------------------


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
@literal_option
@click.option(
    "--range",
    "part",
    metavar="START:END",
    callback=slice_of,
    help="Bytes as a slice of Python: 0:100, 1MiB:, :4KiB; -8: is the last 8.",
)
@bwlimit_option
def cat(places: Sequence[str], stores: Stores, part: Slice, bwlimit: Any) -> int:
    """Write objects to standard output, one after the other."""
    failures = visit_each(map(stores.side, places), lambda side: write_out(stores, side, part, bwlimit))
    sys.stdout.buffer.flush()
    return EXIT_FAILED if failures else 0


def write_out(stores: Stores, side: Side, part: Slice = (None, None), bwlimit: Any = None) -> bool:
    """Write the objects of a place, or a part of each, to standard output; whether there was one."""
    operator, count = stores.operator_of(side, bwlimit), 0
    hint = f"cat '{side.label.rstrip('/')}/*' writes what is in it"
    if side.path and not side.path.endswith("/") and not side.has_wildcard:
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


# --- ls, stat and du --------------------------------------------------------------------------------------------------


@command(
    "ls",
    examples="""
aioprefetch ls s3://bucket/prefix/
aioprefetch ls -lh 's3://bucket/tables/**/*.parquet'
aioprefetch ls -R --json data/ | jq .size
""",
)
@place_argument("places", "PLACE...", nargs=-1, required=True)
@literal_option
@click.option("-l", "--long", "is_long", is_flag=True, help="Also size and time.")
@click.option("-h", "--human", "is_human", is_flag=True, help="Sizes such as 1.5 MiB.")
@click.option("-R", "--recursive", "is_recursive", is_flag=True, help="Also what lies in directories.")
@click.option("-t", "order", flag_value="time", help="The newest first.")
@click.option("-S", "order", flag_value="size", help="The largest first.")
@click.option("-a", "--all", is_flag=True, expose_value=False, hidden=True)  # All are shown in any case.
@click.option("--json", "as_json", is_flag=True, help="One JSON object on each line.")
def ls(
    places: Sequence[str],
    stores: Stores,
    is_long: bool,
    is_human: bool,
    is_recursive: bool,
    order: str | None,
    as_json: bool,
) -> int:
    """List objects and directories.

    Names below a directory are relative to it; what matches a pattern, and all names where there are several places,
    are printed as places. A scheme alone, such as s3://, has the buckets. The exit code is 1 if one of the places is
    not there; an empty bucket or directory is.
    """
    if is_recursive and any(map(is_account, places)):
        raise InvalidArgument("-R is for one bucket, or several that are named")
    sides = (stores.account(place) if is_account(place) else stores.side(place) for place in places)

    def show(side: Side) -> bool:
        count, is_whole = 0, len(places) > 1
        if is_account(side.label):
            entries = _buckets(stores, side, is_whole=is_whole)
        else:
            entries = _listed(side, is_recursive=is_recursive, is_whole=is_whole)
        for entry, name in sorted(entries, key=_ORDERS[order], reverse=True) if order else entries:
            count += 1
            if as_json:
                print_json(fields_of(side, entry, side.label if is_account(side.label) else None))
            elif is_long:
                size = "" if entry.size is None else size_text(entry.size, is_human=is_human)
                time = "" if entry.last_modified is None else entry.last_modified.isoformat(timespec="seconds")
                click.echo(f"{size:>12}  {time:25}  {name}")
            else:
                click.echo(name)
        return count > 0 or (not is_account(side.label) and _is_there(side))

    return EXIT_FAILED if visit_each(sides, show) else 0


_ORDERS: dict[str, Callable[[tuple[Entry | Metadata, str]], float]] = {
    "time": lambda item: item[0].last_modified.timestamp() if item[0].last_modified else -math.inf,
    "size": lambda item: -1 if item[0].size is None else item[0].size,
}


def _is_there(side: Side) -> bool:
    """Whether a place that has no entries is an empty bucket or directory."""
    if side.has_wildcard:
        return False
    if not side.path:
        return side.root is None or os.path.isdir(side.root)
    return run(side.operator.exists(f"{side.path.rstrip('/')}/"))


def _buckets(stores: Stores, side: Side, *, is_whole: bool) -> Iterator[tuple[Entry | Metadata, str]]:
    """The buckets of an account, and the name of each; see ``_listed``."""
    for entry in stores.buckets_of(side):
        yield entry, path_text(f"{side.label if is_whole else ''}{entry.path}")


def _listed(side: Side, *, is_recursive: bool, is_whole: bool) -> Iterator[tuple[Entry | Metadata, str]]:
    """The entries of a place, and the name of each: with ``is_whole`` as a place, else as it is in its directory."""
    path, is_deep, pattern = side.path, is_recursive, None
    prefix = path if not path or path.endswith("/") else f"{path}/"
    is_pattern = side.has_wildcard
    if prefix != path:
        with suppress(NotFound):
            metadata = run(side.operator.stat(path))
            if not metadata.is_directory:
                is_named = side.name or side.label.endswith(path)  # No label has what follows a ``?``.
                yield metadata, path_text(side.label if is_named else stem_of(side) + path)
                return
            is_pattern = False
    if is_pattern and not run(side.operator.exists(prefix)):
        prefix, pattern = literal_prefix(path), _pattern(path, is_recursive=is_recursive)
        rest = path[wildcard_at(path) :]
        is_deep = is_recursive or "/" in rest.rstrip("/") or "**" in rest
    stem, cut = (stem_of(side), 0) if is_whole or pattern is not None else ("", len(prefix))
    with BlockingListing(list_literally(side.operator, prefix, recursive=is_deep)) as entries:
        for entry in entries:
            if pattern is None or pattern.fullmatch(entry.path):
                # An object may have the name of the directory itself.
                yield entry, path_text(stem + entry.path[cut:] or side.label)


def _pattern(glob: str, *, is_recursive: bool) -> re.Pattern[str]:
    """A pattern that matches directories by their name too, and all entries in them where these are wanted."""
    return re.compile(f"(?:{compile_glob(glob).pattern})(?:/{'.*' if is_recursive else ''})?", re.DOTALL)


@command(
    "stat",
    examples="""
aioprefetch stat s3://bucket/key
aioprefetch stat --json 'data/*.parquet'
""",
)
@place_argument("places", "PLACE...", nargs=-1, required=True)
@literal_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on each line.")
def stat(places: Sequence[str], stores: Stores, as_json: bool) -> int:
    """Show size, ETag, version, time and type of objects."""
    is_first = True

    def show(side: Side) -> bool:
        nonlocal is_first
        count = 0
        for entry in _with_metadata(side):
            count += 1
            fields = fields_of(side, entry)
            if as_json:
                print_json(fields)
                continue
            if not is_first:
                click.echo()
            is_first = False
            for name, value in fields.items():
                click.echo(f"{name.replace('_', ' ') + ':':20} {path_text(str(value))}")
        return count > 0

    return EXIT_FAILED if visit_each(map(stores.side, places), show) else 0


def _with_metadata(side: Side) -> Iterator[Metadata]:
    """The metadata of the objects of a place, or of the directory that it is."""
    path = side.path
    if not path or path.endswith("/"):
        if side.root is not None and not os.path.isdir(side.root):
            raise NotFound("there is no such directory", path=side.label)
        yield run(side.operator.stat(path or "/"))
        return
    try:
        selection = selection_of(side, is_recursive=False)
    except IsADirectory:
        yield run(side.operator.stat(f"{path}/"))
        return
    for entry in objects_of(selection):
        yield entry if isinstance(entry, Metadata) else run(side.operator.stat(entry.path))


@command(
    "du",
    examples="""
aioprefetch du -h s3://bucket/tables/
aioprefetch du --depth 1 data/
aioprefetch du --json 's3://bucket/**/*.parquet'
""",
)
@place_argument("places", "PLACE...", nargs=-1, required=True)
@literal_option
@click.option("-h", "--human", "is_human", is_flag=True, help="Sizes such as 1.5 MiB.")
@click.option(
    "-d", "--depth", default=0, metavar="N", type=click.IntRange(0), help="Also directories down to this depth."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on each line.")
def du(places: Sequence[str], stores: Stores, is_human: bool, depth: int, as_json: bool) -> int:
    """Add up the sizes of objects: bytes, number of objects, place."""

    def add_up(side: Side) -> bool:
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        selection = selection_of(side)
        for entry in objects_of(selection):
            directories = entry.path[len(selection.base) :].split("/")[:-1]
            for level in range(min(depth, len(directories)) + 1):
                total = sums["/".join(directories[:level])]
                total[0] += entry.size or 0
                total[1] += 1
        for name in sorted(sums, key=lambda name: (not name, name)):
            size, count = sums[name]
            if as_json:
                print_json({"place": side.label, "directory": name, "size": size, "objects": count})
            else:
                shown = path_text(f"{stem_of(side)}{selection.base}{name}/") if name else side.label
                click.echo(f"{size_text(size, is_human=is_human):>14}  {count:>9}  {shown}")
        return bool(sums)

    return EXIT_FAILED if visit_each(map(stores.side, places), add_up) else 0


@command(
    "presign",
    examples="""
aioprefetch presign --expires 3600 s3://bucket/key
""",
)
@place_argument("places", "PLACE...", nargs=-1, required=True)
@click.option("--expires", "seconds", metavar="SECONDS", type=float, default=900.0, help="How long it is valid (900).")
@click.option("--method", type=click.Choice(get_args(PresignMethod)), default="GET", help="What it is for (GET).")
def presign(places: Sequence[str], stores: Stores, seconds: float, method: PresignMethod) -> int:
    """Print a URL for each object, to read it without keys.

    All who have the URL may use it until it expires: treat it as a secret. No request is sent: whether the object is
    there shows when the URL is used.
    """

    def show(side: Side) -> bool:
        click.echo(run(stores.operator_of(side).presign(side.path, expires_seconds=seconds, method=method)))
        return True

    return EXIT_FAILED if visit_each(map(stores.side, places), show) else 0
