"""A tree, and each call of a verb that changes something in it: what is spoiled, cancelled and killed."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import Error
from aioprefetch.verbs.download import RESUMABLE_BYTES_MIN
from tests.model.verbs.tree import Outcome, Step, Tree, check
from tests.stores.faulty_bucket import PART_BYTES

LARGE = b"large" * (PART_BYTES // 4)
TREE: Tree = {"a/x": b"one", "a/y/z": b"two", "a b": b"three", "b/x": b"four", "b/only": b"five", "[a]": b"six"}
NEW = {"data": b"new", "if_match": None}
CONDITIONS = {"if_not_exists": False, "if_match": None}
BELOW = {"source": "a/", "target": "b/", "glob": None, "overwrite": True}
STEPS = {
    "write": Step("write", {"path": "a b", **NEW, "if_not_exists": False}),
    "write new": Step("write", {"path": "new", **NEW, "if_not_exists": True}),
    "write the current": Step("write", {"path": "a b", **NEW, "if_not_exists": False, "if_match": "current"}),
    "write in parts": Step("write", {**NEW, "path": "a b", "data": LARGE, "if_not_exists": False}),
    "write new in parts": Step("write", {**NEW, "path": "new", "data": LARGE, "if_not_exists": True}),
    "writer": Step("writer", {**NEW, "path": "a b", "data": LARGE, "if_not_exists": False}),
    "upload": Step("upload", {"path": "a b", **NEW, "if_not_exists": False}),
    "copy": Step("copy", {"source": "a/x", "target": "b/x", **CONDITIONS}),
    "copy to nothing": Step("copy", {"source": "a/x", "target": "new", **CONDITIONS, "if_not_exists": True}),
    "move": Step("move", {"source": "a/x", "target": "b/x", **CONDITIONS}),
    "move to nothing": Step("move", {"source": "a/x", "target": "new", **CONDITIONS, "if_not_exists": True}),
    "delete": Step("delete", {"path": "a/x", "if_match": None}),
    "delete the current": Step("delete", {"path": "a/x", "if_match": "current"}),
    "delete many": Step("delete_many", {"paths": ("a/x", "a b", "none")}),
    "delete all": Step("delete_all", {"path": "a/"}),
    "copy tree": Step(
        "copy_tree", {"source": "a/", "target": "b/", "glob": None, "overwrite": True, "delete_extra": False}
    ),
    "sync": Step("copy_tree", {"source": "a/", "target": "b/", "glob": None, "overwrite": True, "delete_extra": True}),
    "move tree": Step("move_tree", {"source": "a/", "target": "b/", "if_not_exists": False}),
}

# Between a store and a local directory: what is in each. The long one is of the size whose download is gone on with.
LONG = bytes(range(256)) * (RESUMABLE_BYTES_MIN >> 8)
OBJECTS: Tree = {**TREE, "long": LONG}
FILES: Tree = {"b/x": b"old", "b/extra": b"more"}
LARGE_FILES: Tree = {"b/x": LARGE, "b/extra": b"more"}


@dataclass(frozen=True)
class Transfer:
    """A call between a store and a local directory: what stands in the directory before, and what it changes.

    ``changes`` are values by names, ``None`` for a name that is deleted; all others stay.
    """

    run: Callable[[Operator, Path], Coroutine[Any, Any, None]]
    changes: Mapping[str, bytes | None]
    is_up: bool = False

    @property
    def files(self) -> Tree:
        """What stands in the directory before."""
        return LARGE_FILES if self.is_up else FILES

    def check(self, files: Tree, objects: Tree, error: Error | None) -> None:
        """Raise ``AssertionError`` if the call, ended so, may not have left these."""
        before, after = (OBJECTS, objects) if self.is_up else (self.files, files)
        right = {name: data for name, data in {**before, **self.changes}.items() if data is not None}
        killed = frozenset(before[name] for name in self.changes if name in before)
        check(before, after, Outcome(right, killed=killed), error, Step("transfer"))
        assert (files if self.is_up else objects) == (self.files if self.is_up else OBJECTS), "its source was changed"


async def _download(op: Operator, local: Path) -> None:
    await op.download("a/x", local / "b/x")


async def _long_download(op: Operator, local: Path) -> None:
    await op.download("long", local / "b/x")


async def _upload(op: Operator, local: Path) -> None:
    await op.upload(local / "b/x", "a b")


def _between(*, is_up: bool, delete_extra: bool) -> Callable[[Operator, Path], Coroutine[Any, Any, None]]:
    async def copy(op: Operator, local: Path) -> None:
        files = f"{local}/b/"
        places: tuple[Any, Any] = (files, (op, "b/")) if is_up else ((op, "a/"), files)
        report = await ap.copy(*places, delete_extra=delete_extra)
        report.raise_failures()

    return copy


_DOWN = {"b/x": TREE["a/x"], "b/y/z": TREE["a/y/z"]}
TRANSFERS = {
    "download": Transfer(_download, {"b/x": TREE["a/x"]}),
    "resumable download": Transfer(_long_download, {"b/x": LONG}),
    "download of a directory": Transfer(_between(is_up=False, delete_extra=False), _DOWN),
    "sync to files": Transfer(_between(is_up=False, delete_extra=True), {**_DOWN, "b/extra": None}),
    "upload of a large file": Transfer(_upload, {"a b": LARGE}, is_up=True),
    "upload of a directory": Transfer(_between(is_up=True, delete_extra=False), LARGE_FILES, is_up=True),
    "sync of files": Transfer(_between(is_up=True, delete_extra=True), {**LARGE_FILES, "b/only": None}, is_up=True),
}
