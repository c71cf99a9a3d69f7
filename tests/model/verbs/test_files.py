"""Links, names of one file, FIFOs, modes: no value of a file is lost, and none is shown to more users."""

import asyncio
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import Error
from aioprefetch.fsspec import LocalFileSystem
from tests.model.verbs.doors import by_operator
from tests.model.verbs.places import MemoryPlace, opened
from tests.model.verbs.tree import Step
from tests.probes.search import searched

NAMES = ("a", "b", "d/a", "d/b", "e/a", "e/b", "e/d/a")
MODES = (0o600, 0o640, 0o644, 0o700, 0o444)
# What a name is: a file with a mode, a name more of a file, a link to a file or a directory, a FIFO.
KINDS = st.one_of(
    st.sampled_from(MODES),
    st.sampled_from(MODES),
    st.sampled_from([("hard", "a"), ("hard", "d/a"), ("link", "a"), ("link", "d"), ("link", "d/a"), ("link", "none")]),
    st.just("fifo"),
)
PLANS = st.dictionaries(st.sampled_from([*NAMES, "l", "e/l"]), KINDS, min_size=1, max_size=6)
PATHS = st.sampled_from([*NAMES, "l", "l/a", "l/b", "e/l", "e/l/a"])
DIRECTORIES = st.sampled_from(["d/", "e/", "l/", "e/l/", "new/", "e/d/"])
EXAMPLES = 30


@st.composite
def file_steps(draw: st.DrawFn) -> Step:
    """A copy or a move, of a file or a directory."""
    verb = draw(st.sampled_from(["copy", "move", "move", "copy_tree", "move_tree"]))
    of = DIRECTORIES if verb.endswith("tree") else PATHS
    names = {"source": draw(of), "target": draw(of)}
    if verb == "copy_tree":
        return Step(verb, {**names, "glob": None, "overwrite": draw(st.booleans()), "delete_extra": False})
    conditions = {} if verb == "move_tree" else {"if_match": None}
    return Step(verb, {**names, **conditions, "if_not_exists": draw(st.booleans())})


def make_files(root: Path, plan: dict[str, Any]) -> None:
    """Make what a plan has; what has no place in it is left out."""
    for number, (name, kind) in enumerate(sorted(plan.items(), key=lambda item: isinstance(item[1], tuple))):
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "fifo":
                os.mkfifo(path)
            elif isinstance(kind, int):
                path.write_bytes(f"value {number}".encode())
                path.chmod(kind)
                os.utime(path, (number, number))
            elif kind[0] == "hard":
                os.link(root / kind[1], path)
            else:
                path.symlink_to(os.path.relpath(root / kind[1], path.parent))
        except OSError:  # A file stands where a directory is needed, or there is no such file.
            continue


Look = dict[str, tuple[int, bytes, float]]


def look(root: Path) -> Look:
    """The kind with the mode, the bytes and the time of each name; the bytes of a link are where it leads."""
    found: Look = {}
    for folder, directories, names in os.walk(root):
        for name in [*names, *directories]:
            path = Path(folder, name)
            status = path.lstat()
            data = b""
            if stat.S_ISREG(status.st_mode):
                data = path.read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                data = b"-> " + os.fsencode(os.readlink(path))
            if not stat.S_ISDIR(status.st_mode):
                found[str(path.relative_to(root))] = (status.st_mode, data, status.st_mtime)
    return found


def values(found: Look) -> set[bytes]:
    return {data for mode, data, _ in found.values() if stat.S_ISREG(mode)}


def _ends(root: Path, path: str) -> set[bytes]:
    """The values of a path, or below a directory."""
    real = Path(os.path.realpath(root / path))
    if real.is_file():
        return {real.read_bytes()}
    return {one.read_bytes() for one in real.rglob("*") if one.is_file()} if real.is_dir() else set()


def replaced(root: Path, step: Step) -> set[bytes]:
    """The values that a step may replace: those at the target, except the source itself."""
    if not step.verb.endswith("tree"):
        taken = _ends(root, step.target)
        return taken if (root / step.source).is_dir() else taken - _ends(root, step.source)
    source = Path(os.path.realpath(root / step.source))
    if source.is_file():  # fsspec takes it for the file.
        return _ends(root, step.target) - _ends(root, step.source)
    below = [str(one.relative_to(source)) for one in source.rglob("*")] if source.is_dir() else []
    taken = {value for name in below for value in _ends(root, step.target + name)}
    return taken - _ends(root, step.source)


def check_modes(before: Look, after: Look, step: Step) -> None:
    """A file that was moved has its mode and its time; a copy is for no one whom its source is not for."""
    widest: dict[bytes, int] = {}
    for mode, data, _ in before.values():
        widest[data] = widest.get(data, 0) | stat.S_IMODE(mode)
    for name, (mode, data, time) in after.items():
        if stat.S_ISREG(mode) and before.get(name) != after[name]:
            extra = stat.S_IMODE(mode) & ~widest[data]
            assert not extra, f"{step}: {name} has {mode:o}, more than {widest[data]:o}"
            if step.verb.startswith("move"):
                was = {(one[0], one[2]) for one in before.values() if one[1] == data}
                assert (mode, time) in was, f"{step}: {name} is {mode:o} of {time}, and was {was}"


async def by_links(root: Path, step: Step, *, follows: bool) -> None:
    async with Operator.from_uri(root, follow_symlinks=follows) as op:
        await by_operator(op, step)


async def by_fsspec(root: Path, step: Step) -> None:
    def made() -> None:
        fs = LocalFileSystem(skip_instance_cache=True)
        verb = fs.mv if step.verb.startswith("move") else fs.copy
        verb(f"{root}/{step.source}", f"{root}/{step.target}", recursive=step.verb.endswith("tree"))
        fs.close()

    await asyncio.to_thread(made)


WAYS: dict[str, Callable[[Path, Step], Any]] = {
    "operator": lambda root, step: by_links(root, step, follows=False),
    "following": lambda root, step: by_links(root, step, follows=True),
    "fsspec": by_fsspec,
}


@pytest.mark.parametrize("way", WAYS)
def test_copies_and_moves_of_files(way: str) -> None:
    def check(plan: dict[str, Any], step: Step) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "root")
            root.mkdir()
            make_files(root, plan)
            before, may_go = look(root), replaced(root, step)
            error: Exception | None = None
            try:
                asyncio.run(WAYS[way](root, step))
            except (Error, OSError) as failure:
                error = failure
            after = look(root)
            lost = values(before) - values(after) - may_go
            assert not lost, f"{step} lost {lost}: {before} -> {after} ({error!r})"
            assert not [name for name in after if ".aioprefetch" in name], f"{step} left {[*after]}"
            check_modes(before, after, step)

    searched(check, PLANS, file_steps(), examples=EXAMPLES)


def test_what_a_source_passes_over_stays_at_the_target() -> None:
    """A copy with ``delete_extra`` of files, links and FIFOs to a store that has objects at and below their names."""

    async def in_place(root: Path, keys: list[str], most: float | None) -> None:
        async with opened("memory") as place:
            assert isinstance(place, MemoryPlace)
            await place.plant({f"to/{key}": f"there {key}".encode() for key in keys})
            files = look(root)
            kept = {f"to/{name}" for name, (mode, _, _) in files.items() if not stat.S_ISREG(mode)}
            written = {f"to/{name}": data for name, (mode, data, _) in files.items() if stat.S_ISREG(mode)}
            before = place.tree()
            async with Operator.from_uri(place.url) as op:
                try:
                    await ap.copy(root, (op, "to/"), delete_extra=True, delete_max=most)
                    is_done = True
                except Error:
                    is_done = False
            after = place.tree()
            unknown = {key for key in before if any(key == name or key.startswith(f"{name}/") for name in kept)}
            extra = before.keys() - written.keys() - unknown
            assert not is_done or after == {**{key: before[key] for key in unknown}, **written}
            if not is_done:
                assert not written or len(extra) > (most or 0) or most is None
                assert before.keys() <= after.keys()

    def check(plan: dict[str, Any], keys: list[str], most: float | None) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "root")
            root.mkdir()
            make_files(root, plan)
            asyncio.run(in_place(root, keys, most))

    keys = st.lists(st.sampled_from([*NAMES, "l", "l/a", "e/l/b", "a/x"]), max_size=5, unique=True)
    searched(check, PLANS, keys, st.sampled_from([None, 0, 1, 1.0]), examples=EXAMPLES)
