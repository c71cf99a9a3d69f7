"""Many objects copied or moved at once: as many as there are slots and memory for; what fails does not stop the others.

Memory: one copy has its own, each further one takes what it holds from the budget of the source while it runs. So a
copy of any number of objects of any size stays within the budget, and goes on with one object at a time where other
work leaves nothing of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Literal, TypeAlias

from aioprefetch.credentials import hiding_frames
from aioprefetch.errors import (
    AlreadyExists,
    Error,
    InvalidArgument,
    InvalidPath,
    InvalidType,
    Unexpected,
    Unsupported,
    copy_of,
    redact,
)
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.plan.merge import Merge
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.budget import Ticket
from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.task_group import PlainTaskGroup
from aioprefetch.runtime.threads import in_thread
from aioprefetch.transfer.extra_objects import ExtraObjects
from aioprefetch.transfer.object_copy import Comparison, Copier, ObjectCopier
from aioprefetch.transfer.sides import Places, Selection, Side, Store, check_places, is_there, picker, place_of, select
from aioprefetch.values import Entry, Metadata, ReadRequest
from aioprefetch.verbs.download import download
from aioprefetch.verbs.listing import Lister, list_literally
from aioprefetch.verbs.progress import (
    CopyCallback,
    CopyFailure,
    CopyProgress,
    CopyReport,
    Meter,
    copy_logger,
    reported,
)
from aioprefetch.verbs.ranged_read import first_bytes_of
from aioprefetch.verbs.requests import write_request
from aioprefetch.verbs.writer import upload_file

# --- copies -----------------------------------------------------------------------------------------------------------

# Small objects are waited for, and large ones share the requests anyway.
CONCURRENCY = 32
SkipSame: TypeAlias = bool | Literal["size"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """The options of ``aioprefetch.copy`` that say how objects are copied."""

    concurrency: int = CONCURRENCY
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    skip_same: SkipSame = None
    overwrite: bool = True
    stop_at_failure: bool = False
    delete_extra: bool = False
    delete_max: float | None = None
    dry_run: bool = False
    write_options: Mapping[str, object] | None = None


@hiding_frames
async def copy_side(
    source: Side,
    target: Side,
    options: CopyOptions,
    *,
    glob: str | None = None,
    on_progress: CopyCallback | None = None,
    copier: Copier | None = None,
) -> CopyReport:
    """Copy what one side names to the other; see ``aioprefetch.copy``. ``copier`` does so for each object."""
    if not target.operator.capability.write:
        scheme = target.operator.info.scheme
        raise Unsupported(f"the {scheme} service does not support write", operation="copy", path=target.label)
    try:
        selection = replace(await select(source, glob), picks=picker(options.include, options.exclude))
        placed = place_of(selection, target)
        written = options.write_options or {}
        copier = copier or ObjectCopier(source, placed, overwrite=options.overwrite, written=written)
        extra = ExtraObjects(selection, placed, delete_max=options.delete_max) if options.delete_extra else None
        if extra is not None:
            extra.check()
        places = await check_places(selection, placed, deletes_extra=options.delete_extra)
    except Error as error:
        error.operation = "copy"
        raise
    meter = Meter(on_progress, keeps_steps=options.dry_run)
    return await CopyRun(selection, placed, options, meter, copier, places, extra).run()


def log_passed_over(report: CopyReport, source: Side) -> None:
    """Say what a copy has left out, for a caller who does not look at the report."""
    if report.passed_over:
        words = "passed over %d below %s, such as %r: %s (follow_symlinks=True of the source follows links)"
        copy_logger.warning(words, report.passed_over_count, redact(source.label), *report.passed_over[0])


# Makes an operator of a URI.
OpenUri = Callable[[str], AbstractAsyncContextManager[Store]]


@hiding_frames
async def download_directory(
    operator: Store, path: str, target: object, open_uri: OpenUri, on_progress: ProgressCallback | None
) -> Metadata:
    """Copy what is below ``path`` into a local directory: all that can be, then the first failure is raised.

    If there is nothing but an object of this very name, the target is a file that gets it.
    """
    uri = _local_uri(target, path, "download")
    async with open_uri(uri) as local:
        sides = Side(operator=operator, path=path, label=path), Side(operator=local, path="", label=uri)
        try:
            return await _copy_directory("download", path, *sides, on_progress)
        except InvalidPath as error:
            file = uri.removeprefix("file://")
            if error.path != path or error.context.get("of") != 1 or await in_thread(os.path.isdir, file):
                raise
    request = ReadRequest(path=path, first_bytes=first_bytes_of(operator.options))
    return await download(operator.accessor(), operator.runtime(), request, file, on_progress)


@hiding_frames
async def upload_into(
    source: object,
    operator: Store,
    path: str,
    open_uri: OpenUri,
    options: Mapping[str, object],
    on_progress: ProgressCallback | None,
) -> Metadata:
    """Write a local file below the directory ``path`` under its own name, or copy what is in a local directory there.

    Of a directory all that can be is copied, then the first failure is raised.
    """
    uri = _local_uri(source, path, "upload")
    file = uri.removeprefix("file://")
    if await in_thread(os.path.isfile, file):
        request = write_request("upload", path + os.path.basename(file), options)
        return await upload_file((operator.accessor(), operator.runtime()), request, file, on_progress)
    if options:
        raise InvalidArgument(
            f"{min(options)} is an option for one object, and {path!r} is a directory", operation="upload", path=path
        )
    async with open_uri(uri) as local:
        sides = Side(operator=local, path="", label=uri), Side(operator=operator, path=path, label=path)
        return await _copy_directory("upload", path, *sides, on_progress)


def _local_uri(directory: object, path: str, operation: str) -> str:
    name = os.fspath(directory) if isinstance(directory, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InvalidType(f"the path of a local directory is needed, not {directory!r}", operation=operation, path=path)
    return f"file://{os.path.abspath(name)}"


async def _copy_directory(
    operation: str, path: str, source: Side, target: Side, on_progress: ProgressCallback | None
) -> Metadata:
    try:
        with reported(on_progress, operation, path) as reporter:

            def step(progress: CopyProgress) -> None:
                if reporter is not None and (reporter.shows_copies or progress.step_bytes):
                    reporter(progress if reporter.shows_copies else progress.step_bytes)

            report = await copy_side(source, target, CopyOptions(), on_progress=step)
            log_passed_over(report, source)
            report.raise_failures()
    except Error as error:
        error.operation = operation
        raise
    return Metadata(path=path, kind="directory", size=report.bytes + report.bytes_skipped)


class CopyRun:
    """One copy of a selection to a side. ``run`` ends when no request is in flight, however it ends."""

    def __init__(
        self,
        selection: Selection,
        target: Side,
        options: CopyOptions,
        meter: Meter,
        copier: Copier,
        places: Places,
        extra: ExtraObjects | None,
    ) -> None:
        self._selection = selection
        self._target = target
        self._meter = meter
        self._extra = extra
        self._options = options
        self._stop_at_failure = options.stop_at_failure or selection.single is not None
        self._copier = copier
        self._places = places
        runtime = selection.side.operator.runtime()
        by_size = options.skip_same == "size"
        self._comparison = Comparison(selection.side, target, runtime, by_time=bool(options.skip_same), by_size=by_size)
        self._budget = runtime.budget
        self._running: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._first_error: Error | None = None
        skips = self._comparison.has_proofs if options.skip_same is None else options.skip_same
        self._is_compared = skips or not options.overwrite

    async def run(self) -> CopyReport:
        """Copy everything. Raises the error of a listing, and with ``stop_at_failure`` the first of an object."""
        listing_error: Error | None = None
        there = self._there()
        async with PlainTaskGroup() as group:
            try:
                await self._start_all(group, there)
            except Exception as error:
                listing_error = _typed(error)  # What has begun comes to its end.
        try:
            if self._first_error is not None and self._stop_at_failure:
                raise copy_of(self._first_error)
            if listing_error is not None:
                report = self._meter.report()
                raise listing_error.add_context(operation="copy", copied=report.copied, failed=report.failed)
        finally:
            del listing_error  # Its traceback holds this frame.
        if self._extra is not None and there is not None and not self._meter.failures:
            await there.pass_rest()
            await self._extra.delete(self._meter, is_known=there.is_in_order, is_dry=self._options.dry_run)
        return self._meter.report()

    async def _start_all(self, group: asyncio.TaskGroup, there: Destination | None) -> None:
        async for found in self._selection.entries(self._passed_over):
            if found.path in self._places.made:
                continue
            path = self._target.path
            below = found.path[len(self._selection.base) :]
            if self._selection.single is None:
                path += below
            self._meter.found(found.size or 0)
            existing: Entry | Metadata | None = None
            if there is not None and (self._is_compared or there.is_in_order):
                existing = await there.find(path)
            if existing is not None and self._extra is not None:
                self._extra.kept()
            ticket = await self._admitted(found.size)
            if self._is_stopped():
                if ticket is not None:
                    self._budget.cancel(ticket)
                return
            task = group.create_task(
                self._copy(found, path, below, existing if self._is_compared else None), context=entering()
            )
            self._running.add(task)
            task.add_done_callback(partial(self._ended, ticket))
        self._meter.listed()

    def _passed_over(self, path: str, why: str) -> None:
        self._meter.passed_over(path, why)
        if self._extra is not None:
            self._extra.passed_over(path, why)

    def _there(self) -> Destination | None:
        """The objects at the destination, where they matter."""
        extra = self._extra
        if not self._is_compared and extra is None:
            return None
        is_listed = self._selection.single is None and self._target.operator.capability.list
        on_passed = None if extra is None else extra.passed
        return Destination(self._target, self._selection.side, is_listed=is_listed, on_passed=on_passed)

    def _is_stopped(self) -> bool:
        return self._stop_at_failure and self._first_error is not None

    # --- slots and memory ---------------------------------------------------------------------------------------

    async def _admitted(self, size: int | None) -> Ticket | None:
        """Wait for a slot, and for memory unless this copy is the only one; the ticket is the memory's."""
        while len(self._running) >= self._options.concurrency:
            await self._until_changed()
        own_bytes = self._copier.own_bytes if size is None else min(size, self._copier.own_bytes)
        if not self._running or not own_bytes:
            return None
        ticket = self._budget.request(own_bytes, "prefetch", on_grant=self._changed.set)
        try:
            while not ticket.granted and self._running:
                await self._until_changed()
        except BaseException:
            self._budget.cancel(ticket)
            raise
        if ticket.granted:
            return ticket
        self._budget.cancel(ticket)
        return None

    async def _until_changed(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _ended(self, ticket: Ticket | None, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if ticket is not None:
            self._budget.cancel(ticket)
        self._changed.set()

    # --- one object ---------------------------------------------------------------------------------------------

    async def _copy(self, found: Entry | Metadata, path: str, below: str, existing: Entry | Metadata | None) -> None:
        moved = 0

        def on_bytes(count: int) -> None:
            nonlocal moved
            moved += count
            self._meter.moved(count)

        if self._is_stopped():
            return
        try:
            if existing is not None and not self._options.overwrite:
                raise AlreadyExists(
                    "the destination is there already, and overwrite=False", operation="copy", path=path
                )
            if existing is not None and await self._comparison.is_same(found, existing):
                self._meter.skipped(found.path, path, found.size)
                return
            await self._places.check(self._selection, found.path, self._target, path)
            if self._options.dry_run:
                self._copier.check(found, path, below)
                on_bytes(found.size or 0)
            else:
                await self._copier.copy(found, path, below, on_bytes)
        except Exception as failure:
            self._failed(found.path, path, _typed(failure), moved)
            return
        self._meter.copied(found.path, path, found.size)

    def _failed(self, path: str, target: str, error: Error, moved_bytes: int) -> None:
        error = copy_of(error).add_context(operation="copy", path=path, target=target)
        self._meter.failed(CopyFailure(path=path, target=target, error=error), moved_bytes)
        if self._first_error is None:
            self._first_error = error
            if self._stop_at_failure:
                self._stop_others()

    def _stop_others(self) -> None:
        current = asyncio.current_task()
        for task in self._running:
            if task is not current:
                task.cancel()


def _typed(error: Exception) -> Error:
    """An error of another library, of a layer or of the system, as one of ours: it may not end the other copies."""
    if isinstance(error, Error):
        return error
    foreign = Unexpected(f"{type(error).__name__}: {error}")
    foreign.__cause__ = error
    return foreign


class Destination:
    """The objects at the destination, asked for in the order of the source.

    Where both list in the order of keys, the destination is listed beside the source, page by page. Otherwise it is
    listed whole before the first answer. One without listings is asked for each path; so is, from the first path out
    of order on, a destination beside a source that does not keep its promise.

    ``on_passed`` gets the entries that were not asked for. Those are all, and only those, while ``is_in_order``: the
    destination was listed, and neither the listing nor what was asked for went back.
    """

    def __init__(
        self, side: Side, source: Side, *, is_listed: bool, on_passed: Callable[[Entry], object] | None
    ) -> None:
        self._side = side
        self._lister: Lister | None = None
        if is_listed:
            self._lister = list_literally(side.operator, side.path, recursive=True)
        self.is_in_order = is_listed
        self._on_passed = on_passed or (lambda entry: None)
        self._is_ordered = side.operator.capability.list_ordered and source.operator.capability.list_ordered
        self._all: dict[str, Entry] | None = None
        self._there = Merge(attrgetter("path"), self._on_passed)
        self._last_listed = self._last_asked = ""

    async def find(self, path: str) -> Entry | Metadata | None:
        """The object at a path, or ``None``. Each path is asked for once."""
        if self._lister is not None and not self._is_ordered:
            return (await self._listed(self._lister)).pop(path, None)
        if self._lister is None or path < self._last_asked:
            self._lister, self.is_in_order = None, False
            return await is_there(self._side.operator, path)
        self._last_asked = path
        while self._there.is_before(path):
            await self._step(self._lister)
        return self._there.find(path)

    async def pass_rest(self) -> None:
        """Pass the entries that are left, if all has been in order."""
        if self._lister is None or not self.is_in_order:
            return
        if not self._is_ordered:
            for entry in (await self._listed(self._lister)).values():
                self._on_passed(entry)
        while self._is_ordered and not self._there.is_at_end:
            await self._step(self._lister)

    async def _listed(self, lister: Lister) -> dict[str, Entry]:
        if self._all is None:
            self._all = {entry.path: entry async for entry in lister}
        return self._all

    async def _step(self, lister: Lister) -> None:
        entry = await anext(lister, None)
        if entry is not None:
            self.is_in_order = self.is_in_order and self._last_listed < entry.path
            self._last_listed = entry.path
        self._there.put(entry)
