"""Trees of keys and bytes, and the places that tests copy them between."""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.verbs.listing import list_literally

Tree = dict[str, bytes]

TREE: Tree = {
    "a.csv": b"first",
    "b/c.csv": b"second, longer",
    "b/d/e.parquet": bytes(range(256)) * 40,
    "b/empty": b"",
    "b c/ü&+%20.txt": b"names",
    "z": b"last",
}


async def put_tree(operator: Operator, prefix: str, tree: Mapping[str, bytes]) -> None:
    """Write objects below a prefix. Files that are written from now on have later times."""
    for path, data in tree.items():
        await operator.write(prefix + path, data)
    wait_for_a_tick()


def wait_for_a_tick() -> None:
    """Wait until a file written now has a later time than all before: the clock of files moves every 1–10 ms."""
    now = time.time_ns()
    with tempfile.TemporaryFile() as file:
        while os.fstat(file.fileno()).st_ctime_ns <= now:
            os.utime(file.fileno())


async def tree_of(operator: Operator, prefix: str) -> Tree:
    """The objects below a prefix."""
    listed = [entry.path async for entry in list_literally(operator, prefix, recursive=True) if not entry.is_directory]
    return {path.removeprefix(prefix): await operator.read(path) for path in listed}


def files_of(directory: Path) -> Tree:
    """All files below a directory, hidden ones included."""
    found: Tree = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def memory(**options: object) -> Operator:
    """An operator over a private store in memory."""
    return Operator(ap.services.Memory(), **options)  # type: ignore[arg-type]
