"""The changes in a page of a listing, compared with the known files. Pure.

The tail lists keys above the frontier, where no file is known: each is new. The sweep merges a page with the known
files of the same range, both sorted by key. Keys are compared as Python compares text, by code points: this is the
order of their bytes in UTF-8, and therefore the order of S3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from aioprefetch.source.cursor import Cursor, TailAndSweep
from aioprefetch.source.file_index import KnownFile
from aioprefetch.source.files import Change, ChangeKind, SourceFile
from aioprefetch.source.list.selection import Selection, file_of
from aioprefetch.values import Entry

ChangeSteps = list[tuple[Change, Cursor]]


@dataclass(slots=True)
class Compared:
    """Changes with the cursor after each, and the cursor after all of them.

    ``old`` and ``young`` count the listed files. ``left`` are the young files that were skipped, in the order of keys.
    """

    changes: ChangeSteps
    after: TailAndSweep
    old: int = 0
    young: int = 0
    left: Sequence[SourceFile] = ()


def compare_tail(
    cursor: TailAndSweep,
    entries: Sequence[Entry],
    selection: Selection,
    until_ms: int | None = None,
    *,
    stops: bool = False,
) -> Compared:
    """Compare a page of keys above the frontier, none of them known. Files younger than ``until_ms`` are skipped.

    Only a later sweep finds skipped files. Without sweeps (``stops``) the page ends before the first of them.
    """
    changes: ChangeSteps = []
    high, sweep_key, sweeps, sweep_end = cursor.high_modified_ms, cursor.sweep_key, cursor.sweeps, cursor.sweep_end
    frontier = cursor.frontier
    left: list[SourceFile] = []
    for entry in entries:
        key = entry.path
        if not selection.takes(key):
            frontier = key
            continue
        file = file_of(entry)
        modified = file.modified_ms
        if modified is not None:
            if high is None or modified > high:
                high = modified
            if until_ms is not None and modified > until_ms:
                left.append(file)
                if stops:
                    break
                frontier = key
                continue
        frontier = key
        changes.append((Change("new", file), TailAndSweep(key, sweep_key, sweeps, high, sweep_end)))
    after = replace(cursor, frontier=frontier, high_modified_ms=high)
    return Compared(changes, after, len(changes), len(left), left)


def compare_sweep(
    cursor: TailAndSweep,
    entries: Sequence[Entry],
    known_files: Sequence[KnownFile],
    through: str,
    selection: Selection,
    until_ms: int | None = None,
) -> Compared:
    """Compare all entries and all known files with keys above ``cursor.sweep_key`` and up to ``through``.

    The sweep ends if ``through`` reaches its end.
    """
    entries, known_files, same = _without_same(entries, known_files)
    files = [file_of(entry) for entry in entries if selection.takes(entry.path)]
    listed = files if until_ms is None else [file for file in files if not is_young(file, until_ms)]
    times = [file.modified_ms for file in files if file.modified_ms is not None]
    high = cursor.high_modified_ms
    if times:
        high = max(times) if high is None else max(high, *times)
    cursor = replace(cursor, high_modified_ms=high)
    changes: ChangeSteps = []
    left: list[SourceFile] = []
    for change in compare(files, known_files):
        if until_ms is None or change.kind == "gone" or not is_young(change.file, until_ms):
            changes.append((change, replace(cursor, sweep_key=change.file.key)))
        else:
            left.append(change.file)
    if through >= cursor.sweep_end:
        after = replace(cursor, sweep_key=None, sweep_end="", sweeps=cursor.sweeps + 1)
    else:
        after = replace(cursor, sweep_key=through)
    return Compared(changes, after, same + len(listed), len(files) - len(listed), left)


def _without_same(
    entries: Sequence[Entry], known_files: Sequence[KnownFile]
) -> tuple[Sequence[Entry], Sequence[KnownFile], int]:
    """Both lists without the files whose ETag is unchanged, and the number of these files.

    They are nearly all of a sweep, so no further objects are made of them.
    """
    present = {
        before.file.key: before for before in known_files if before.gone_ms is None and before.file.etag is not None
    }
    rest = []
    for entry in entries:
        before = present.get(entry.path)
        if before is not None and entry.etag == before.file.etag and entry.version in (None, before.file.version):
            del present[entry.path]
        else:
            rest.append(entry)
    same = len(entries) - len(rest)
    if not same:
        return entries, known_files, 0
    left = [
        before
        for before in known_files
        if before.gone_ms is not None or before.file.etag is None or before.file.key in present
    ]
    return rest, left, same


def compare(files: Iterable[SourceFile], known_files: Sequence[KnownFile]) -> Iterator[Change]:
    """The changes from known files to listed files, both sorted, over the same range of keys."""
    position, count = 0, len(known_files)
    for file in files:
        key = file.key
        while position < count and known_files[position].file.key < key:
            if known_files[position].gone_ms is None:
                yield Change("gone", known_files[position].file)
            position += 1
        before = None
        if position < count and known_files[position].file.key == key:
            before = known_files[position]
            position += 1
        kind = kind_of(file, before)
        if kind is not None:
            yield Change(kind, file)
    for rest in known_files[position:]:
        if rest.gone_ms is None:
            yield Change("gone", rest.file)


def kind_of(file: SourceFile, before: KnownFile | None) -> ChangeKind | None:
    """The kind of change of a listed file; ``None`` if it is unchanged.

    A key that was gone and has another version now is ``new``: another file of the same name.
    """
    if before is None:
        return "new"
    if file.is_same_version(before.file):
        return None if before.gone_ms is None else "returned"
    return "overwritten" if before.gone_ms is None else "new"


def is_young(file: SourceFile, until_ms: int) -> bool:
    """Whether a file is younger than that time, in the store's clock. A file without a time is not."""
    return file.modified_ms is not None and file.modified_ms > until_ms
