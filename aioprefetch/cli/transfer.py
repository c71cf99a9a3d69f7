"""``cp`` and ``sync``: objects copied between any two places."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
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
from aioprefetch.errors import AlreadyExists, Error, InvalidArgument, IsADirectory, printable, redact
from aioprefetch.operator.copying import copy
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.sync import open as open_file
from aioprefetch.sync import run
from aioprefetch.verbs.progress import (
    CopyFailure,
    CopyProgress,
    CopyReport,
    CopyStep,
    ProgressBar,
    ProgressDisplay,
    copy_logger,
)

copy_logger.addHandler(logging.NullHandler())  # What was passed over is a note here.
RECURSIVE_HINT = "-r takes what is below it"
# How many places are copied at once; each has up to 32 objects in flight.
PLACES_AT_ONCE = 8

_Option = Callable[[Any], Any]


def _copy_options(function: Any) -> Any:
    for option in reversed(_COPY_OPTIONS):
        function = option(function)
    return function


def _metadata(context: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """Names and values of the user, which are kept as they are written."""
    pairs(context, parameter, texts)
    return dict(text.split("=", 1) for text in texts)


_COPY_OPTIONS: tuple[_Option, ...] = (
    click.option("--glob", metavar="PATTERN", help="Of a directory only what matches, such as '**/*.csv'."),
    click.option(
        "--include", multiple=True, metavar="PATTERN", help="Only what one of these matches: '*.csv', 'logs/'."
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Nothing that one of these matches."),
    click.option("--content-type", metavar="TYPE", help="The content type, instead of a guess by the name."),
    click.option("--cache-control", metavar="TEXT", help="How long caches may keep it, such as max-age=3600."),
    click.option("--storage-class", metavar="CLASS", help="Where it is kept, such as STANDARD_IA."),
    click.option(
        "--metadata", multiple=True, metavar="NAME=VALUE", callback=_metadata, help="Names of your own for it."
    ),
    literal_option,
    click.option("--concurrency", metavar="N", type=click.IntRange(1), help="Objects that are copied at once (32)."),
    bwlimit_option,
    click.option("--src-o", "src_texts", multiple=True, metavar="NAME=VALUE", callback=pairs, help="-o for SRC alone."),
    click.option("--dst-o", "dst_texts", multiple=True, metavar="NAME=VALUE", callback=pairs, help="-o for DST alone."),
    click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be done, and do nothing."),
    click.option("-q", "--quiet", "is_quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", "is_verbose", is_flag=True, help="A line for each object, and no progress."),
    click.option("--json", "as_json", is_flag=True, help="The report as one JSON object."),
)


@command(
    "cp",
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
@click.option("-n", "--no-clobber", "keeps", is_flag=True, help="Leave what is there already.")
@_copy_options
def cp(sources: Sequence[str], target: str, stores: Stores, is_recursive: bool, keeps: bool, **options: Any) -> int:
    """Copy objects, directories and what patterns match, between stores and local files.

    What is below a directory, or below the last / before a wildcard, goes below DST under the same names. A store
    copies by itself where it can. What is proven to be the same already is left out. A large download that was cut off
    goes on where it ended. - is standard input as the only SRC, and standard output as DST.
    """
    options = _with_write_options(options)
    if "-" in (*sources, target):
        return _copy_stream(stores, sources, target, keeps=keeps, is_recursive=is_recursive, **options)
    for source in sources:
        _check_source(stores, source, is_recursive=is_recursive)
    how = {"overwrite": not keeps, "skip_same": False if keeps else None}
    return _copy(stores, sources, target, how, is_recursive=is_recursive, keeps=keeps, **options)


def _with_write_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a copy, with the options of a write gathered in ``written``."""
    named = {name: options.pop(name) for name in ("content_type", "cache_control", "storage_class")}
    written = {name: value for name, value in named.items() if value is not None}
    if metadata := options.pop("metadata"):
        written["user_metadata"] = metadata
    return {**options, "written": written}


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
@click.option("--exact", "--checksum", "is_exact", is_flag=True, help="Leave out only what is proven to be the same.")
@click.option("--size-only", "by_size", is_flag=True, help="Leave out what has the same size, with any time.")
@click.option("--delete", "deletes", is_flag=True, help="Afterwards delete what DST has and SRC has not.")
@click.option(
    "--delete-max",
    "--max-delete",
    metavar="N",
    callback=_limit,
    help="Delete at most N objects, or a share such as 0.2.",
)
@_copy_options
def sync(
    source: str,
    target: str,
    stores: Stores,
    is_exact: bool,
    by_size: bool,
    deletes: bool,
    delete_max: Any,
    **options: Any,
) -> int:
    """Copy what is new or has changed below SRC. Without --delete, nothing is deleted at DST.

    Size and time tell what has changed, and ETags where they can be compared. --delete deletes after everything is
    copied, and only if nothing has failed; with --glob, only what the pattern matches at DST. More than half of that,
    if these are more than 10 objects, is an error, and nothing is deleted; --delete-max 1.0 lifts the limit. What SRC
    has and passes over, such as links, and what is below it, stays.
    """
    if is_exact and by_size:
        raise InvalidArgument("--exact and --size-only exclude each other", operation="copy")
    skips = "size" if by_size else None if is_exact else True
    how = {"skip_same": skips, "delete_extra": deletes, "delete_max": delete_max}
    return _copy(stores, [source], target, how, is_recursive=True, **_with_write_options(options))


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
    written: Mapping[str, Any],
    **others: object,
) -> int:
    """Copy standard input to an object, or objects to standard output; the exit code."""
    if (len(sources) > 1 and "-" in sources) or sources[0] == target or is_recursive or glob or is_dry:
        raise InvalidArgument("- is one SRC or DST alone, without -r, --glob and --dry-run", operation="copy")
    if others["include"] or others["exclude"] or (written and target == "-"):
        raise InvalidArgument("--include and --exclude are for directories, and - keeps no metadata", operation="copy")
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
    report = CopyReport(copied=1)
    try:
        with open_file(
            side.path, "xb" if keeps else "wb", operator=stores.operator_of(side, bwlimit), **written
        ) as file:
            while piece := sys.stdin.buffer.read(PIECE_BYTES):
                count += file.write(piece)
        report = replace(report, bytes=count)
    except AlreadyExists as error:
        report = _without_there(CopyReport(failures=(CopyFailure(path="", target=side.path, error=error),)))
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
    written: Mapping[str, Any],
    concurrency: int | None,
    bwlimit: Any,
    src_texts: Sequence[tuple[str, str]],
    dst_texts: Sequence[tuple[str, str]],
    is_dry: bool,
    is_quiet: bool,
    is_verbose: bool,
    as_json: bool,
    keeps: bool = False,
    **picked: Any,
) -> int:
    """Copy each source, and show how it went; the exit code is 1 if anything failed.

    ``written`` are options of each write, ``picked`` what is included and excluded. With ``keeps`` what is there
    already is left as it is.
    """
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
        "on_progress": None if is_quiet or is_verbose or as_json or is_dry else _bars(),
        "dry_run": is_dry,
        "literal": stores.is_literal,
        "dst_options": stores.options_of(target, dst_texts),
        "write_options": written,
        **picked,
        **how,
    }

    def copy_source(source: str) -> Coroutine[Any, Any, CopyReport]:
        own = {**options, "src_options": stores.options_of(source, src_texts)}
        return _copy_place(source, target, own, is_recursive=is_recursive)

    with _lines(is_error=as_json) if is_verbose else nullcontext():
        reports = run(_copy_all(sources, target, copy_source))
    steps: list[CopyStep] = []
    if is_dry:
        aim = stem_of(stores.side(target, dst_texts, follows=False))
        for source, report in zip(sources, reports, strict=True):
            steps += _placed(report, stem_of(stores.side(source, src_texts)), aim)
    total = _total(reports)
    if keeps:
        total = _without_there(total)
    _show_failures(total)
    _note_passed_over(total)
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
            if len(sources) == 1 and not isinstance(error, AlreadyExists):
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


def _without_there(report: CopyReport) -> CopyReport:
    """The report of a copy that replaces nothing: what is there already has not failed."""
    left = tuple(one for one in report.failures if not isinstance(one.error, AlreadyExists))
    if count := len(report.failures) - len(left):
        note(f"{counted(count, 'object')} left as it was, because of -n")
    return replace(report, failures=left, skipped=report.skipped + count)


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
    if report.failures:
        parts.append(f"{report.failed:,} failed")
    remark("; ".join(parts))


@contextmanager
def _lines(*, is_error: bool) -> Iterator[None]:
    """Print a line for each object, on standard error where the output is JSON."""
    handler, level = logging.StreamHandler(sys.stderr if is_error else sys.stdout), copy_logger.level
    handler.addFilter(lambda record: record.levelno == logging.INFO)  # What was passed over is a note at the end.
    copy_logger.addHandler(handler)
    copy_logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        copy_logger.removeHandler(handler)
        copy_logger.setLevel(level)


def _note_passed_over(report: CopyReport) -> None:
    """Say what was not done, also where no person looks."""
    if report.passed_over:
        path, why = report.passed_over[0]
        hint = "; hint: --src-o follow_symlinks=true copies what links lead to" if "link" in why else ""
        note(f"{report.passed_over_count:,} passed over, such as {path_text(path)}: {why}{hint}")


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
