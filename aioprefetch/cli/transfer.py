"""``cp``, ``sync`` and ``rm``: objects copied between any two places, and removed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import click

from aioprefetch import progress
from aioprefetch.cli import EXIT_FAILED
from aioprefetch.cli.places import (
    Stores,
    bwlimit_option,
    command,
    literal_option,
    objects_of,
    pairs,
    place_argument,
    scheme_of,
    selection_of,
    stem_of,
    visit_each,
)
from aioprefetch.cli.printing import message_of, note, path_text, print_json, remark
from aioprefetch.cli.reading import PIECE_BYTES, write_out
from aioprefetch.display import bytes_text, counted, seconds_text
from aioprefetch.errors import Error, InvalidArgument, IsADirectory, NotFound, printable, redact
from aioprefetch.operator.copying import copy
from aioprefetch.plan.patterns import has_wildcard
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.sync import open as open_file
from aioprefetch.sync import run
from aioprefetch.transfer.sides import Selection, Side
from aioprefetch.values import Identity
from aioprefetch.verbs.listing import DELETE_PATHS
from aioprefetch.verbs.progress import CopyFailure, CopyProgress, CopyReport, CopyStep, ProgressBar, ProgressDisplay

RECURSIVE_HINT = "-r takes what is below it"
# Copies of single places that run at once, each of which has up to 32 objects in flight.
PLACES_AT_ONCE = 8

_Option = Callable[[Any], Any]


def _copy_options(function: Any) -> Any:
    for option in reversed(_COPY_OPTIONS):
        function = option(function)
    return function


_COPY_OPTIONS: tuple[_Option, ...] = (
    click.option("--glob", metavar="PATTERN", help="Of a directory only what matches, such as '**/*.csv'."),
    literal_option,
    click.option("--concurrency", metavar="N", type=click.IntRange(1), help="Objects that are copied at once (32)."),
    bwlimit_option,
    click.option("--src-o", "src_texts", multiple=True, metavar="NAME=VALUE", callback=pairs, help="-o for SRC alone."),
    click.option("--dst-o", "dst_texts", multiple=True, metavar="NAME=VALUE", callback=pairs, help="-o for DST alone."),
    click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be done, and do nothing."),
    click.option("-q", "--quiet", "is_quiet", is_flag=True, help="No progress."),
    click.option("--json", "as_json", is_flag=True, help="The report as one JSON object."),
)


@command(
    "cp",
    summary="Copy objects and directories between stores.",
    examples="""
aioprefetch cp s3://bucket/key .
aioprefetch cp -r data/ s3://bucket/data/
aioprefetch cp 's3://bucket/logs/*.gz' /tmp/logs/
tar cz data | aioprefetch cp - s3://bucket/data.tgz
aioprefetch cp -r --dst-o profile=other s3://a/x/ s3://b/x/
""",
)
@place_argument("sources", "SRC...", nargs=-1, required=True)
@place_argument("target", "DST")
@click.option("-r", "--recursive", "is_recursive", is_flag=True, help="Also directories: what is below them.")
@click.option("-n", "--no-clobber", "keeps", is_flag=True, help="An object that is there already counts as failed.")
@_copy_options
def cp(sources: Sequence[str], target: str, stores: Stores, is_recursive: bool, keeps: bool, **options: Any) -> int:
    """Copy objects, directories and what patterns match, between stores and local files.

    What is below a directory, or below the last / before a wildcard, goes below DST under the same names. A store
    copies by itself where it can. What is proven to be the same already is left out. A large download that was cut off
    goes on where it ended. - is standard input as the only SRC, and standard output as DST.
    """
    if "-" in (*sources, target):
        return _copy_stream(stores, sources, target, keeps=keeps, is_recursive=is_recursive, **options)
    for source in sources:
        _check_source(stores, source, is_recursive=is_recursive)
    how = {"overwrite": not keeps, "skip_same": False if keeps else None}
    return _copy(stores, sources, target, how, is_recursive=is_recursive, **options)


def _limit(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """A number of objects, or a share: a number with a point."""
    try:
        return None if text is None else int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise click.BadParameter("it is a number of objects, or a share such as 0.2", context, parameter) from None


@command(
    "sync",
    examples="""
aioprefetch sync data/ s3://bucket/data/
aioprefetch sync --glob '**/*.parquet' s3://bucket/tables/ /data/tables
aioprefetch sync --exact s3://bucket/data/ data/
aioprefetch sync --delete --dry-run site/ s3://bucket/site/
""",
)
@place_argument("source", "SRC")
@place_argument("target", "DST")
@click.option("--exact", "is_exact", is_flag=True, help="Leave out only what is proven to be the same.")
@click.option("--delete", "deletes", is_flag=True, help="Afterwards delete what DST has and SRC has not.")
@click.option("--delete-max", metavar="N", callback=_limit, help="Delete at most N objects, or a share such as 0.2.")
@_copy_options
def sync(
    source: str, target: str, stores: Stores, is_exact: bool, deletes: bool, delete_max: Any, **options: Any
) -> int:
    """Copy what is new or has changed below SRC. Without --delete, nothing is deleted at DST.

    Size and time tell what has changed, and ETags where they can be compared. --delete deletes after everything is
    copied, and only if nothing has failed; with --glob, only what the pattern matches at DST. More than half of that,
    if these are more than 10 objects, is an error, and nothing is deleted; --delete-max 1.0 lifts the limit. What SRC
    has and passes over, such as links, and what is below it, stays.
    """
    how = {"skip_same": None if is_exact else True, "delete_extra": deletes, "delete_max": delete_max}
    return _copy(stores, [source], target, how, is_recursive=True, **options)


def _copy_stream(
    stores: Stores,
    sources: Sequence[str],
    target: str,
    *,
    keeps: bool,
    is_recursive: bool,
    glob: str | None,
    src_texts: Sequence[tuple[str, str]],
    dst_texts: Sequence[tuple[str, str]],
    is_dry: bool,
    as_json: bool,
    bwlimit: Any,
    **_others: object,
) -> int:
    """Copy standard input to an object, or objects to standard output; the exit code."""
    if (len(sources) > 1 and "-" in sources) or sources[0] == target or is_recursive or glob or is_dry:
        raise InvalidArgument("- is one SRC or DST alone, without -r, --glob and --dry-run", operation="copy")
    if target == "-":
        if as_json or keeps:
            raise InvalidArgument("--json and -n are not for a copy to standard output", operation="copy")
        sides = (stores.side(source, src_texts) for source in sources)
        failures = visit_each(sides, partial(write_out, stores, bwlimit=bwlimit))
        sys.stdout.buffer.flush()
        return EXIT_FAILED if failures else 0
    side = stores.side(target, dst_texts)
    if not side.path or side.path.endswith("/"):
        hint = f"name the object: {side.label.rstrip('/')}/NAME"
        raise InvalidArgument("standard input has no name", path=side.label, context={"hint": hint})
    if sys.stdin is None:
        raise InvalidArgument("standard input is closed", operation="copy")
    began, count = time.monotonic(), 0
    with open_file(side.path, "xb" if keeps else "wb", operator=stores.operator_of(side, bwlimit)) as file:
        while piece := sys.stdin.buffer.read(PIECE_BYTES):
            count += file.write(piece)
    report = CopyReport(copied=1, bytes=count)
    if as_json:
        _show_json(report, time.monotonic() - began, None)
    else:
        _show(report, time.monotonic() - began)
    return 0


def _check_source(stores: Stores, source: str, *, is_recursive: bool) -> None:
    """``IsADirectory`` for a directory that is named without ``-r``; it needs no request."""
    is_local = scheme_of(source) == "file"
    if not is_recursive and (source.endswith("/") or (is_local and os.path.isdir(source.removeprefix("file://")))):
        raise IsADirectory("it is a directory", path=source, context={"hint": RECURSIVE_HINT})


def _copy(
    stores: Stores,
    sources: Sequence[str],
    target: str,
    how: Mapping[str, Any],
    *,
    is_recursive: bool,
    glob: str | None,
    concurrency: int | None,
    bwlimit: Any,
    src_texts: Sequence[tuple[str, str]],
    dst_texts: Sequence[tuple[str, str]],
    is_dry: bool,
    is_quiet: bool,
    as_json: bool,
) -> int:
    """Copy each source, and show how it went; the exit code is 1 if anything failed."""
    stores.check(*sources, target)
    if len(sources) > 1 and not (target.endswith("/") or (scheme_of(target) == "file" and os.path.isdir(target))):
        raise InvalidArgument(f"several sources go into a directory: {printable(redact(target))}/", operation="copy")
    if len(sources) > 1:
        _check_one_each(sources, partial(_names_of, stores, src_texts, glob, is_recursive=is_recursive))
    began = time.monotonic()
    options = {
        "glob": glob,
        "concurrency": concurrency,
        "bytes_per_second": bwlimit,
        "on_progress": None if is_quiet or as_json or is_dry else _bars(),
        "dry_run": is_dry,
        "literal": stores.is_literal,
        "dst_options": stores.options_of(target, dst_texts),
        **how,
    }

    def copy_source(source: str) -> Coroutine[Any, Any, CopyReport]:
        own = {**options, "src_options": stores.options_of(source, src_texts)}
        return _copy_place(source, target, own, is_recursive=is_recursive)

    reports = run(_copy_all(sources, target, copy_source))
    steps: list[CopyStep] = []
    if is_dry:
        aim = stem_of(stores.side(target, dst_texts, follows=False))
        for source, report in zip(sources, reports, strict=True):
            steps += _placed(report, stem_of(stores.side(source, src_texts)), aim)
    total = _total(reports)
    _show_failures(total)
    if as_json:
        _show_json(total, time.monotonic() - began, steps if is_dry else None)
    elif is_dry:
        _show_plan(total, steps)
    else:
        _show(total, time.monotonic() - began)
    return EXIT_FAILED if total.failures else 0


def _check_one_each(sources: Sequence[str], names_of: Callable[[str], Iterable[str]]) -> None:
    """``InvalidArgument`` if objects of two sources would have one name below the target."""
    seen: dict[str, str] = {}
    for source in sources:
        for name in names_of(source):
            other = seen.setdefault(name, source)
            if other != source:
                both = f"{printable(redact(other))} and {printable(redact(source))}"
                raise InvalidArgument(f"{both} would both be copied to {name!r} at the target", operation="copy")


def _names_of(stores: Stores, texts: Any, glob: str | None, source: str, *, is_recursive: bool) -> Iterator[str]:
    """The names that the objects of a source get below a target. It asks only for what the name alone does not say."""
    with suppress(Error):  # The copy says what is wrong.
        side = stores.side(source, texts)
        if not (is_recursive or glob or side.has_wildcard):
            yield side.name or side.path.rpartition("/")[2]
            return
        selection = selection_of(side, glob=glob, is_recursive=is_recursive)
        for found in objects_of(selection):
            below = found.path[len(selection.base) :]
            yield below if selection.single is None else side.name or below


async def _copy_place(source: str, target: str, options: Mapping[str, Any], *, is_recursive: bool) -> CopyReport:
    """Copy one source. A directory that is named without its slash costs one request more."""
    try:
        return await copy(source, target, **options)
    except IsADirectory:
        if not is_recursive or source.endswith("/"):
            raise
        return await copy(f"{source}/", target, **options)


async def _copy_all(
    sources: Sequence[str], target: str, copy_source: Callable[[str], Coroutine[Any, Any, CopyReport]]
) -> list[CopyReport]:
    """Copy all sources, some of them at once. One of several that fails leaves the others."""

    async def copy_one(source: str) -> CopyReport:
        try:
            return await copy_source(source)
        except Error as error:
            report = error.context.pop("report", None)
            if isinstance(report, CopyReport):  # All is copied, and nothing deleted.
                return replace(report, failures=(CopyFailure(path="", target=target, error=error),))
            if len(sources) == 1:
                raise
            return CopyReport(failures=(CopyFailure(path=source, target=target, error=error),))

    return await gather_all([partial(copy_one, source) for source in sources], at_once=PLACES_AT_ONCE)


def _total(reports: Sequence[CopyReport]) -> CopyReport:
    return CopyReport(
        copied=sum(report.copied for report in reports),
        skipped=sum(report.skipped for report in reports),
        bytes=sum(report.bytes for report in reports),
        bytes_skipped=sum(report.bytes_skipped for report in reports),
        deleted=sum(report.deleted for report in reports),
        passed_over_count=sum(report.passed_over_count for report in reports),
        passed_over=tuple(each for report in reports for each in report.passed_over),
        failures=tuple(failure for report in reports for failure in report.failures),
    )


def _placed(report: CopyReport, stem: str, target_stem: str) -> Iterator[CopyStep]:
    """The steps of a dry run, with places instead of paths."""
    for step in report.steps:
        yield replace(step, path=step.path and stem + step.path, target=target_stem + step.target)


def _show_failures(report: CopyReport) -> None:
    for failure in report.failures:
        path = redact(failure.path or failure.target)
        if failure.path and failure.target and not failure.error.context.get("service"):
            path += f" to {redact(failure.target)}"  # Either may be what fails.
        note(f"{path_text(path)}: {message_of(failure.error)} ({failure.error.kind})")


def _show_json(report: CopyReport, seconds: float, steps: Sequence[CopyStep] | None) -> None:
    """The report as JSON, with the steps of a dry run."""
    failures = [
        {
            "path": redact(each.path),
            "target": redact(each.target),
            "kind": each.error.kind,
            "message": message_of(each.error),
        }
        for each in report.failures
    ]
    names = ("copied", "skipped", "deleted", "passed_over_count", "failed", "bytes", "bytes_skipped")
    fields: dict[str, Any] = {name: getattr(report, name) for name in names}
    if steps is not None:
        fields["steps"] = [
            {"action": step.action, "source": step.path, "target": step.target, "size": step.size} for step in steps
        ]
    fields["passed_over"] = [{"path": path, "reason": why} for path, why in report.passed_over]
    print_json({**fields, "seconds": round(seconds, 3), "failures": failures})


def _show_plan(report: CopyReport, steps: Sequence[CopyStep]) -> None:
    """Print what would be copied and deleted, a line for each object."""
    for step in steps:
        if step.action == "copy":
            click.echo(path_text(f"copy {step.path} -> {step.target}"))
        elif step.action == "delete":
            click.echo(path_text(f"delete {step.target}"))
    parts = [f"{counted(report.copied, 'object')} to copy, {bytes_text(report.bytes)}"]
    if report.deleted:
        parts.append(f"{report.deleted:,} to delete")
    _remark(parts, report)


def _show(report: CopyReport, seconds: float) -> None:
    parts = [f"{counted(report.copied, 'object')} copied, {bytes_text(report.bytes)} in {seconds_text(seconds)}"]
    if report.deleted:
        parts.append(f"{report.deleted:,} deleted")
    _remark(parts, report)


def _remark(parts: list[str], report: CopyReport) -> None:
    if report.skipped:
        parts.append(f"{report.skipped:,} there already ({bytes_text(report.bytes_skipped)})")
    if report.passed_over:
        path, why = report.passed_over[0]
        parts.append(f"{report.passed_over_count:,} passed over, such as {path_text(path)}: {why}")
    if report.failures:
        parts.append(f"{report.failed:,} failed")
    remark("; ".join(parts))


class _LateBars(ProgressDisplay):
    """Bars that open when a copy begins: a directory without ``/`` at its end is looked for as an object first."""

    def __init__(self, display: ProgressDisplay) -> None:
        super().__init__()
        self._display = display

    def open(self, name: str) -> _LateBar:
        """The bar of a call, which is drawn with its first update."""
        return _LateBar(self._display, name)


class _LateBar:
    """The bar of one call."""

    def __init__(self, display: ProgressDisplay, name: str) -> None:
        self._display = display
        self._name = name
        self._bar: ProgressBar | None = None

    def update(self, progress: CopyProgress) -> None:
        """Show how far the call is."""
        if self._bar is None:
            self._bar = self._display.open(self._name)
        self._bar.update(progress)

    def close(self, error: BaseException | None) -> None:
        """End the bar, if it was drawn."""
        if self._bar is not None:
            self._bar.close(error)


def _bars() -> ProgressDisplay | None:
    """Bars with rate and time left on standard error, where that is a terminal and rich is installed."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console

        return _LateBars(progress.rich(console=Console(stderr=True), transient=True))
    except ImportError:
        return None


@command(
    "rm",
    examples="""
aioprefetch rm s3://bucket/key
aioprefetch rm --dry-run 's3://bucket/tmp/**/*.part'
aioprefetch rm -r s3://bucket/old/
""",
)
@place_argument("places", "PLACE...", nargs=-1, required=True)
@click.option("-r", "--recursive", "is_recursive", is_flag=True, help="Also directories, with all that is below them.")
@literal_option
@click.option("-f", "--force", "is_forced", is_flag=True, help="Ignore missing objects.")
@click.option("-n", "--dry-run", "is_dry", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--yes", "is_sure", is_flag=True, help="Really remove a whole bucket, / or the home directory.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON object.")
def rm(
    places: Sequence[str],
    stores: Stores,
    is_recursive: bool,
    is_forced: bool,
    is_dry: bool,
    is_sure: bool,
    as_json: bool,
) -> int:
    """Remove objects, what patterns match, and directories.

    A store that keeps versions keeps them. Removing a whole bucket, / or the home directory needs --yes as well.
    """
    stores.check(*places)
    sides = [stores.side(place, follows=False) for place in places]
    for side in sides:
        if _is_everything(side) and not (is_sure or is_dry):
            raise InvalidArgument(
                f"{side.label} is a whole bucket, / or the home directory: give --yes as well to remove all of it",
                operation="delete",
            )
    removal = _Removal(
        stores,
        is_recursive=is_recursive,
        is_forced=is_forced,
        is_dry=is_dry,
        as_json=as_json,
        is_single=len(sides) == 1,
    )
    failures = visit_each(sides, removal.remove) | removal.left
    removed, freed = removal.objects, removal.bytes
    if as_json:
        print_json({"removed": 0 if is_dry else removed, "found": removed, "bytes": freed, "failures": failures})
    elif not is_dry:
        remark(f"{counted(removed, 'object')} removed, {bytes_text(freed)}")
    return EXIT_FAILED if failures else 0


@dataclass(slots=True)
class _Removal:
    """A run of ``rm`` over its places: the numbers of removed objects and bytes; ``left`` has the errors of others."""

    stores: Stores
    is_recursive: bool
    is_forced: bool
    is_dry: bool
    as_json: bool
    is_single: bool
    objects: int = 0
    bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)
    # What a dry run has found for the places before: nothing of it is removed, so that it is found again.
    _found: set[Identity] = field(default_factory=set)

    def remove(self, side: Side) -> bool:
        """Remove what a place names; whether there was something, or need not be."""
        if (
            side.root is not None
            and not side.label.endswith("/")
            and os.path.islink(os.path.join(side.root, side.path).rstrip("/"))
        ):
            raise InvalidArgument(
                "it is a symbolic link, and rm removes files: end with / for what the link leads to, or use the rm of"
                " the system for the link itself",
                operation="delete",
                path=side.label,
            )
        try:
            selection = selection_of(side, is_recursive=self.is_recursive, hint=RECURSIVE_HINT)
        except NotFound:
            if self.is_forced:
                return True
            raise
        is_something = is_left = False
        for batch in _batches(selection):
            is_something = True
            is_left |= self._remove_batch(side, self._not_found_before(side, batch))
        is_directory = selection.single is None and selection.glob is None
        if is_directory and not is_something and not self.is_dry:
            is_something = run(side.operator.exists(selection.base or "/"))
        if is_directory and is_something and not (self.is_dry or is_left):
            _delete_directory(self.stores, side, selection.base)
        return is_something or self.is_forced

    def _not_found_before(self, side: Side, batch: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        if not self.is_dry or self.is_single:
            return batch
        found = dict(zip(run(_identities(side, [path for path, _ in batch])), batch, strict=True))
        fresh = [entry for key, entry in found.items() if key not in self._found]
        self._found.update(found)
        return fresh

    def _remove_batch(self, side: Side, batch: Sequence[tuple[str, int]]) -> bool:
        """Remove objects, or print them; whether some are left."""
        left: dict[str, str] = {}
        if self.is_dry:
            for path, _ in batch:
                click.echo(path_text(stem_of(side) + path), err=self.as_json)
        else:
            left = _delete(self.stores, side, [path for path, _ in batch])
        self.left |= {path_text(stem_of(side) + path): kind for path, kind in left.items()}
        self.objects += len(batch) - len(left)
        self.bytes += sum(size for path, size in batch if path not in left)
        return bool(left)


async def _identities(side: Side, paths: Sequence[str]) -> list[Identity]:
    accessor = side.operator.accessor()
    return [await accessor.identity(path) for path in paths]


def _is_everything(side: Side) -> bool:
    """Whether a place is a whole store, or such a directory of this machine that no one means it."""
    prefix = side.path.rstrip("/" if side.is_literal else "*/")
    if has_wildcard(prefix):
        return False
    if side.root is None:
        return not prefix
    root = os.path.realpath(os.path.join(side.root, prefix))
    return root in (os.sep, os.path.realpath(os.path.expanduser("~")))


def _batches(selection: Selection) -> Iterator[list[tuple[str, int]]]:
    """Paths and sizes, as many as one request deletes."""
    batch: list[tuple[str, int]] = []
    for entry in objects_of(selection):
        batch.append((entry.path, entry.size or 0))
        if len(batch) == DELETE_PATHS:
            yield batch
            batch = []
    if batch:
        yield batch


def _delete(stores: Stores, side: Side, paths: Sequence[str]) -> dict[str, str]:
    """Delete objects; those that are left, and why."""
    try:
        run(stores.operator_of(side).delete(paths))
    except Error as error:
        failures = error.context.get("failures")
        left = dict(failures) if isinstance(failures, Mapping) else dict.fromkeys(paths, error.kind)
        for path, kind in left.items():
            note(f"{path_text(stem_of(side) + path)}: {kind}")
        return left
    return {}


def _delete_directory(stores: Stores, side: Side, base: str) -> None:
    """Delete the directory itself, and those below it, when its objects are gone."""
    if base:
        run(stores.operator_of(side).delete_all(base))
    if base or side.root is None:
        return
    parent, name = os.path.split(side.root.rstrip("/"))
    if name and not os.path.islink(side.root):
        run(stores.operator_of(stores.side(f"{parent}/")).delete_all(f"{name}/"))
