"""``aioprefetch.copy``: between any two of URLs, local paths and operators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from aioprefetch.credentials import bare
from aioprefetch.errors import ConfigInvalid, Error, InvalidArgument, InvalidType, printable, redact
from aioprefetch.layers import ThrottleLayer
from aioprefetch.operator.from_uri import check_local, followed, split_local, split_url
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import clone_with_hold, operator_at
from aioprefetch.options import COUNT
from aioprefetch.plan.patterns import has_wildcard, wildcard_at
from aioprefetch.ranges import ByteCount
from aioprefetch.runtime.threads import in_thread
from aioprefetch.transfer.many import CONCURRENCY, CopyOptions, SkipSame, copy_side, log_passed_over
from aioprefetch.transfer.sides import Side
from aioprefetch.verbs.arguments import checked_path
from aioprefetch.verbs.progress import CopyCallback, CopyReport, reported

if TYPE_CHECKING:
    from aioprefetch.operator.options import UriOptions
    from aioprefetch.verbs.requests import ObjectOptions

_FLAGS = ("skip_same", "overwrite", "stop_at_failure", "delete_extra", "dry_run")

Place: TypeAlias = str | os.PathLike[str] | tuple[Operator, str]


async def copy(
    src: Place,
    dst: Place,
    *,
    glob: str | None = None,
    concurrency: int | None = None,
    on_progress: CopyCallback | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    skip_same: SkipSame = None,
    overwrite: bool = True,
    stop_at_failure: bool = False,
    delete_extra: bool = False,
    delete_max: float | None = None,
    dry_run: bool = False,
    literal: bool = False,
    bytes_per_second: ByteCount | None = None,
    write_options: ObjectOptions | None = None,
    src_options: UriOptions | None = None,
    dst_options: UriOptions | None = None,
) -> CopyReport:
    """Copy an object, a directory or what a glob matches, from any store or local file to any other.

    A store copies by itself between places that are asked with the same options: in s3 also between buckets, and above
    5 GiB in parts. Otherwise bytes go through this process: ranges of one version of a large object, several at once,
    into the parts of an upload, in the memory of the two operators.

    One failure does not stop the others: the report has them all. The failure of a single object is raised, and so are
    ``NotFound`` (nothing is there, or the glob matches nothing), ``IsADirectory`` for a directory in the place of an
    object, ``IsSameFile``, ``InvalidArgument`` for a destination inside of its source, and the failure of a listing,
    when the copies that have begun are at their end. A source that is overwritten while it is copied is
    ``ObjectChanged``. Keys that no file can have (``..``, ``//``, ``/`` at an end) are ``InvalidPath``, and objects of
    directories (``dir/``) are not copied.

    Nothing half-written is ever under its name. A cancelled call waits for its threads and ends its uploads; objects
    that were copied stay. A large object that was half received into a local file leaves a hidden file beside its
    target, with a note of the ranges that it has (``.aioprefetch-….part`` and ``.done``): the next copy of the same
    version goes on with it.

    Parameters
    ----------
    src
        A URL (``s3://bucket/key``), a local path, or ``(operator, path)``: one object; a directory, with ``/`` at its
        end (a local one, or one of an operator of files, without it too); or a pattern with ``*``, ``?`` or ``[``
        (``[*]`` is the character itself). A name that is there is that name: a request asks for it before a pattern is
        believed. A symbolic link is followed where it is named here; those below a directory are passed over, and
        named in the report.
    dst
        Where it goes, written as ``src`` is. What is below a directory, or below the last ``/`` before the first
        wildcard, goes below ``dst`` under the same names. One object goes to the path ``dst`` itself, or into it where
        that ends with ``/`` or is a local directory.
    glob
        A pattern for what is below the directory ``src``: ``*.csv``, ``**/*.parquet``.
    include
        Patterns for what is below ``src``; at least one has to match. Without ``/`` one matches the last part of a
        name (``*.csv``), others the whole (``logs/**``; ``logs/`` is all that is below it).
    exclude
        Such patterns; none may match. ``delete_extra`` leaves what is not picked.
    concurrency
        Objects that are copied at once, 32 by default; fewer while the memory of the source's operator is in use.
    on_progress
        Called on the event loop with a ``CopyProgress``; or a display, such as ``aioprefetch.progress.tqdm()``. What
        it raises is logged, once.
    skip_same
        Leave out what is there already. ``None``, the default, leaves out what is proven to have the same bytes: by
        ETags where both sides are of s3, by the MD5 of a local file where the other side is. ``True`` leaves out what
        has the same size and looks the same by its time too: a local file with the time of the object, anywhere else a
        destination that was written after the source. ``"size"`` leaves out what has the same size, ``False`` nothing.
    overwrite
        ``False`` replaces nothing: what is there already is ``AlreadyExists``, the same or not.
    stop_at_failure
        Raise the first failure, and end the other copies.
    delete_extra
        When all is copied, and nothing has failed, delete below ``dst`` what ``src`` does not have; with a glob, only
        what the glob matches there. What ``src`` has and passes over, and what is below it, stays. A source without
        objects is ``NotFound`` then, and nothing is deleted.
    delete_max
        The most that ``delete_extra`` deletes: a number of objects, or as a float a share of the objects that were at
        the destination, where ``1.0`` lifts the limit. By default more than half of them, if these are more than 10, is
        too many. ``InvalidArgument`` beyond it, when all is copied and nothing is deleted; ``context["report"]`` of
        the error is the report. A dry run raises it too: its report has all steps.
    dry_run
        Copy and delete nothing: the report has the ``steps`` that would be made. Listings and ETags are asked for.
    literal
        Take ``src`` as a name, never as a pattern.
    bytes_per_second
        What each side may read and write in a second, as by ``ThrottleLayer``.
    write_options
        Options of each write, such as ``{"cache_control": "no-cache"}``, for a store that keeps them: they replace
        what the source says, and the bytes come through this process. What is left out as the same stays as it is.
    src_options
        Options of ``Operator.from_uri`` for the URL ``src``, a dictionary.
    dst_options
        Those for the URL ``dst``.
    """
    options = CopyOptions(
        concurrency=concurrency or CONCURRENCY,
        include=include,
        exclude=exclude,
        skip_same=skip_same,
        overwrite=overwrite,
        stop_at_failure=stop_at_failure,
        delete_extra=delete_extra,
        delete_max=delete_max,
        dry_run=dry_run,
        write_options=write_options,
    )
    _check_options(options, literal)
    if concurrency is not None:
        COUNT.checked(concurrency, "concurrency")
    async with AsyncExitStack() as stack:
        try:
            source_operator, source = await side_of(src, src_options, "src", follows=True, is_literal=literal)
            stack.push_async_callback(source_operator.aclose)
            target_operator, target = await side_of(dst, dst_options, "dst")
        except Error as error:
            bare(error, (src, dst))
            raise
        stack.push_async_callback(target_operator.aclose)
        if bytes_per_second is not None:
            layer = ThrottleLayer(bytes_per_second)  # type: ignore[arg-type]  # It keeps the number that a text means.
            source = replace(source, operator=source_operator.layer(layer))
            target = replace(target, operator=target_operator.layer(layer))
        reporter = stack.enter_context(reported(on_progress, "copy", source.label))
        report = await copy_side(source, target, options, glob=glob, on_progress=reporter)
    log_passed_over(report, source)
    return report


def _check_options(options: CopyOptions, is_literal: object) -> None:
    flags = {name: getattr(options, name) for name in _FLAGS} | {"literal": is_literal}
    for name, flag in flags.items():
        if not (isinstance(flag, bool) or (flag in (None, "size") and name == "skip_same")):
            values = "True, False, 'size' or None" if name == "skip_same" else "True or False"
            raise InvalidType(f"{name} must be {values}, not {flag!r}", operation="copy")
    most: object = options.delete_max
    what = f"delete_max must be None, a number of objects, or a share from 0.0 to 1.0, not {most!r}"
    if isinstance(most, bool) or not isinstance(most, int | float | None):
        raise InvalidType(what, operation="copy")
    if most is not None and not 0 <= most <= (1 if isinstance(most, float) else most):
        raise InvalidArgument(what, operation="copy")


async def side_of(
    place: object, options: UriOptions | None, name: str, *, follows: bool = False, is_literal: bool = False
) -> tuple[Operator, Side]:
    """The side of a URL, a local path, or a pair of an operator and a path; ``name`` is the argument's.

    The caller closes the operator.

    A local directory, a place that ends with ``/`` among them, is the root of its operator, so that links may lead to
    it, but none below it leads out. With ``follows`` a link to a file is that file under the name of the link.
    """
    if isinstance(place, tuple | list):
        return _side_of_pair(place, options, name, is_literal=is_literal)
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidType(
            f"{name} must be a URL, a local path or (operator, path), not {type(place).__name__}", operation="copy"
        )
    if not text:
        raise InvalidArgument(f"{name} is empty", operation="copy")
    scheme, separator, rest = text.partition("://")
    is_local = not separator or scheme.lower() == "file"
    if not separator:
        check_local(text, "copy")
    label = printable(redact(text))
    file_name = ""
    if is_local:
        file = rest if separator else text
        target = await in_thread(followed, file) if follows else file
        if target != file and not await in_thread(os.path.isdir, target):
            file, file_name = target, os.path.basename(file)
        store, path = await in_thread(_split_local, file)
    else:
        store, path = split_url(text, path_required=False)
    operator, _ = operator_at(store, options or {})
    is_name = is_literal or isinstance(place, os.PathLike)
    return operator, Side(operator=operator, path=path, label=label, name=file_name, is_literal=is_name)


def _side_of_pair(
    place: tuple[Any, ...] | list[Any], options: UriOptions | None, name: str, *, is_literal: bool
) -> tuple[Operator, Side]:
    if len(place) != 2 or not isinstance(place[0], Operator):
        raise InvalidType(f"{name} must be a URL, a local path or (operator, path)", operation="copy")
    if options:
        raise ConfigInvalid(
            f"{name}_options go with a URL; the operator of {name} has its own ({min(options)!r} was given)",
            operation="copy",
        )
    operator, path = clone_with_hold(place[0]), checked_path(place[1], "copy")
    label = f"{operator.info.url}/{printable(redact(path))}"
    return operator, Side(operator=operator, path=path, label=label, is_literal=is_literal)


def _split_local(text: str) -> tuple[str, str]:
    """The URL of the directory that is the root, and the path in it. On a thread, since it looks at files."""
    path = os.path.abspath(text)
    is_pattern = has_wildcard(path) and not os.path.lexists(path)
    if os.path.isdir(path) or (text.endswith("/") and not is_pattern):
        return split_local(f"{path}/")
    store, below = split_local(path, wildcard_at(path) if is_pattern else None)
    return store, below + ("/" if text.endswith("/") else "")
