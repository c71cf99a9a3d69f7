"""``rm`` and ``mv``: objects removed, or moved within their store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import click

from aioprefetch.cli import EXIT_FAILED
from aioprefetch.cli.places import (
    Stores,
    command,
    literal_option,
    objects_of,
    place_argument,
    scheme_of,
    selection_of,
    stem_of,
    visit_each,
)
from aioprefetch.cli.printing import note, path_text, print_json, remark
from aioprefetch.display import bytes_text, counted
from aioprefetch.errors import AlreadyExists, Error, InvalidArgument, NotFound
from aioprefetch.plan.patterns import has_wildcard
from aioprefetch.sync import run
from aioprefetch.transfer.sides import Selection, Side
from aioprefetch.values import Identity
from aioprefetch.verbs.listing import DELETE_PATHS

RECURSIVE_HINT = "-r takes what is below it"


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
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be removed, and remove nothing.")
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
    for place in places:
        if scheme_of(place) == "file" and place.rstrip("/").rpartition("/")[2] in (".", ".."):
            raise InvalidArgument(f"rm removes neither . nor ..: name the directory, not {place}", operation="delete")
    sides = [stores.side(place, follows=False) for place in places]
    for side in sides:
        if (what := _is_everything(side)) and not (is_sure or is_dry):
            raise InvalidArgument(f"{side.label} is {what}: give --yes as well to remove all of it", operation="delete")
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


def _is_everything(side: Side) -> str:
    """The words for a place that is a whole bucket, ``/`` or the home directory; ``""`` for any other."""
    prefix = side.path.rstrip("/" if side.is_literal else "*/")
    if has_wildcard(prefix):
        return ""
    if side.root is None:
        return "" if prefix else "a whole bucket"
    root = os.path.realpath(os.path.join(side.root, prefix))
    if root == os.path.realpath(os.path.expanduser("~")):
        return "the home directory"
    return "all of this machine" if root == os.sep else ""


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
    """Delete objects; returns what could not be deleted, and why."""
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


@command(
    "mv",
    examples="""
aioprefetch mv s3://bucket/old.csv s3://bucket/new.csv
aioprefetch mv s3://bucket/old/ s3://bucket/new/
""",
)
@place_argument("source", "SRC")
@place_argument("target", "DST")
@click.option("-n", "--no-clobber", "keeps", is_flag=True, help="Leave what is there already.")
def mv(source: str, target: str, stores: Stores, keeps: bool) -> int:
    """Move an object, or with / at its end all that is below a directory, within one store.

    Files and directories are renamed where the store can; elsewhere a source is deleted after a proof that its copy is
    there. An object goes into a DST that ends with / under its own name. Between two stores: cp, and then rm.
    """
    stores.check(source, target)
    one, other = stores.side(source, follows=False), stores.side(target, follows=False)
    paths = [one.path, other.path]
    if one.root is not None and other.root is not None:
        paths = [os.path.join(side.root or "", side.path).lstrip("/") for side in (one, other)]
        one = stores.side("/")
    elif one.operator.info != other.operator.info:
        raise InvalidArgument(f"{source} and {target} are of two stores: cp, and then rm", operation="move")
    if not paths[0].strip("/"):
        raise InvalidArgument(f"{source} is a whole store, which has no other name", operation="move")
    if (not paths[1] or paths[1].endswith("/")) and not paths[0].endswith("/"):
        paths[1] += paths[0].rpartition("/")[2]
    try:
        run(stores.operator_of(one).move(paths[0], paths[1], if_not_exists=keeps))
    except AlreadyExists as error:
        note(f"{path_text(error.path)} left as it was, because of -n")
    return 0
