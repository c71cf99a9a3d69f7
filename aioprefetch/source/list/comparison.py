"""What the pages of a listing mean, compared with what is known. Pure.

The tail looks at keys that nobody has decided on: each file is new. The sweep merges a page with the known files of
its keys, both in the order of their keys. Keys are compared as Python compares text, by code points, which is the order
of their bytes in UTF-8, and so the order of S3.
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
    """Changes with the cursor after each, and the cursor after all. ``old`` and ``young`` count the files listed.

    ``left`` are the changes that were passed over because they are young, in the order of their keys.
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
    """A page of keys above the frontier: no file of it is known. Those younger than ``until_ms`` are passed over.

    Only a sweep finds those later: where there will be none (``stops``), the page ends before the first of them.
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
    known: Sequence[KnownFile],
    through: str,
    selection: Selection,
    until_ms: int | None = None,
) -> Compared:
    """The entries and the known files with keys above ``cursor.sweep_key`` and up to ``through``: all there are.

    The sweep ends where ``through`` is its end.
    """
    entries, known, same = _without_same(entries, known)
    files = [file_of(entry) for entry in entries if selection.takes(entry.path)]
    listed = files if until_ms is None else [file for file in files if not is_young(file, until_ms)]
    times = [file.modified_ms for file in files if file.modified_ms is not None]
    high = cursor.high_modified_ms
    if times:
        high = max(times) if high is None else max(high, *times)
    cursor = replace(cursor, high_modified_ms=high)
    changes: ChangeSteps = []
    left: list[SourceFile] = []
    for change in compare(files, known):
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
    entries: Sequence[Entry], known: Sequence[KnownFile]
) -> tuple[Sequence[Entry], Sequence[KnownFile], int]:
    """Both without the files whose ETag says that nothing happened to them, and how many those are.

    That is nearly all of a sweep, and nothing has to be made of them.
    """
    there = {one.file.key: one for one in known if one.gone_ms is None and one.file.etag is not None}
    rest = []
    for entry in entries:
        one = there.get(entry.path)
        if one is not None and entry.etag == one.file.etag and entry.version in (None, one.file.version):
            del there[entry.path]
        else:
            rest.append(entry)
    same = len(entries) - len(rest)
    if not same:
        return entries, known, 0
    left = [one for one in known if one.gone_ms is not None or one.file.etag is None or one.file.key in there]
    return rest, left, same


def compare(files: Iterable[SourceFile], known: Sequence[KnownFile]) -> Iterator[Change]:
    """What differs between files that are there and those that are known, both sorted, over the same range of keys."""
    position, count = 0, len(known)
    for file in files:
        key = file.key
        while position < count and known[position].file.key < key:
            if known[position].gone_ms is None:
                yield Change("gone", known[position].file)
            position += 1
        before = None
        if position < count and known[position].file.key == key:
            before = known[position]
            position += 1
        kind = kind_of(file, before)
        if kind is not None:
            yield Change(kind, file)
    for one in known[position:]:
        if one.gone_ms is None:
            yield Change("gone", one.file)


def kind_of(file: SourceFile, before: KnownFile | None) -> ChangeKind | None:
    """What happened to a file that is there; ``None``: nothing.

    A key that was seen to be gone and has another version now is ``new``: it is another file of that name.
    """
    if before is None:
        return "new"
    if file.is_same_version(before.file):
        return None if before.gone_ms is None else "returned"
    return "overwritten" if before.gone_ms is None else "new"


def is_young(file: SourceFile, until_ms: int) -> bool:
    """Whether a file came after that time, in the store's clock. One without a time did not."""
    return file.modified_ms is not None and file.modified_ms > until_ms
