"""Arrow's file system over each store beside Arrow's own over a directory: sequences of verbs, and their errors.

Where a store has no directories, one that was not created is gone with what was in it, and one is made by writing into
it. The model does the same by hand; otherwise it is ``LocalFileSystem`` as it stands.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from pyarrow.fs import FileSelector

from aioprefetch.testing import CountingS3Server
from tests.profile import chosen
from tests.stores.arrow_stores import STORES, filesystem_over

STEPS = chosen(quick=80, full=600)
SEEDS = chosen(quick=range(1), full=range(4), search=range(24))
NAMES = ("a", "b", "c")
PATHS = [*NAMES, *(f"{one}/{other}" for one in NAMES for other in NAMES), "a/b/c", "b/c/a"]

# The classes that a caller tells apart. Arrow has no others for what is at a path.
ERRORS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, ValueError, OSError)

Verb = Callable[[Any], object]


def outcome(verb: Verb, fs: Any) -> object:
    """What a verb returns, or the class of its error."""
    try:
        return verb(fs)
    except ERRORS as error:
        return next(kind for kind in ERRORS if isinstance(error, kind))


def is_as_wanted(found: object, wanted: object, *, below_object: bool) -> bool:
    """Whether an outcome is the same. Where Arrow has an ``OSError`` alone, ours may say which.

    Nothing is below an object of a store: what is looked for there is not found.
    """
    if wanted is OSError:
        return isinstance(found, type) and issubclass(found, OSError)
    return found == wanted or (below_object and (found, wanted) == (FileNotFoundError, NotADirectoryError))


def listing(fs: Any, base: str = "", *, recursive: bool = True) -> list[tuple[str, str, int | None]]:
    infos = fs.get_file_info(FileSelector(base, recursive=recursive))
    return sorted((info.path, info.type.name, info.size) for info in infos)


def info(fs: Any, path: str) -> tuple[str, int | None]:
    found = fs.get_file_info(path)
    return found.type.name, found.size


def write(fs: Any, path: str, data: bytes) -> None:
    with fs.open_output_stream(path) as stream:
        stream.write(data)


def read(fs: Any, path: str) -> bytes:
    with fs.open_input_file(path) as file:
        data: bytes = file.read()
        return data


def stream(fs: Any, path: str) -> bytes:
    with fs.open_input_stream(path) as file:
        data: bytes = file.read()
        return data


class Model:
    """``LocalFileSystem``, where directories come and go as in a store that has none."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fs = pafs.SubTreeFileSystem(str(directory), pafs.LocalFileSystem())

    def is_file(self, path: str) -> bool:
        return (self.directory / path).is_file()

    def is_directory(self, path: str) -> bool:
        return (self.directory / path).is_dir()

    def holds(self, verb: str, path: str) -> bool:
        """Whether there is something that the verb can take from a path."""
        return self.is_file(path) or (verb == "move" and self.is_directory(path))

    def make_parents(self, path: str) -> None:
        """As writing an object does."""
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)

    def has_object_above(self, path: str) -> bool:
        parts = path.split("/")
        return any(self.is_file("/".join(parts[:count])) for count in range(1, len(parts)))


def verbs(chance: random.Random, model: Model) -> tuple[str, Verb]:
    """A verb and its arguments, and how it is called."""
    path, other = chance.choice(PATHS), chance.choice(PATHS)
    data = chance.randbytes(chance.randrange(40))
    is_recursive = chance.random() < 0.5
    choices: dict[str, Verb] = {
        f"info {path}": lambda fs: info(fs, path),
        f"list {path} {is_recursive}": lambda fs: listing(fs, path, recursive=is_recursive),
        f"read {path}": lambda fs: read(fs, path),
        f"stream {path}": lambda fs: stream(fs, path),
        f"delete_file {path}": lambda fs: fs.delete_file(path),
        f"delete_dir {path}": lambda fs: fs.delete_dir(path),
        f"delete_dir_contents {path}": lambda fs: fs.delete_dir_contents(path, missing_dir_ok=is_recursive),
        f"create_dir {path} {is_recursive}": lambda fs: fs.create_dir(path, recursive=is_recursive),
        f"copy_file {path} {other}": lambda fs: fs.copy_file(path, other),
        f"move {path} {other}": lambda fs: fs.move(path, other),
        f"write {path}": lambda fs: write(fs, path, data),
        f"write again {path}": lambda fs: write(fs, path, data),
    }
    name = chance.choice(list(choices))
    return name, choices[name]


def is_beyond_the_model(name: str, model: Model) -> bool:
    """What stores without directories allow, and what Arrow leaves to the implementation."""
    verb, *arguments = name.replace("write again", "write").split()
    path, target = arguments[0], arguments[-1]
    if verb in ("write", "create_dir") and model.has_object_above(path):
        return True  # Keys may lie below keys.
    if verb == "write":
        return model.is_directory(path)  # As above.
    if verb in ("copy_file", "move"):
        # Kinds that differ, a target below an object or in the source, a missing parent: the implementation decides.
        if (
            model.has_object_above(target)
            or path == target
            or target.startswith(f"{path}/")
            or path.startswith(f"{target}/")
        ):
            return True
        return model.is_directory(target)
    return False


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("seed", SEEDS)
def test_sequences_of_verbs(kind: str, seed: int, tmp_path: Path, s3_server: CountingS3Server) -> None:
    chance = random.Random(seed)
    (tmp_path / "model").mkdir()
    model = Model(tmp_path / "model")
    done: list[str] = []
    with filesystem_over(kind, tmp_path, s3_server) as fs:
        # Directories that were created stay.
        for name in NAMES:
            for one in (fs, model.fs):
                one.create_dir(name)
                for below in NAMES:
                    one.create_dir(f"{name}/{below}")
        for _ in range(STEPS // (4 if kind == "moto" else 1)):
            name, verb = verbs(chance, model)
            if is_beyond_the_model(name, model):
                continue
            verb_name, *arguments = name.replace("write again", "write").split()
            if verb_name == "write" or (verb_name in ("copy_file", "move") and model.holds(verb_name, arguments[0])):
                model.make_parents(arguments[-1])
            done.append(name)
            wanted, found = outcome(verb, model.fs), outcome(verb, fs)
            below_object = any(map(model.has_object_above, arguments[:2]))
            assert is_as_wanted(found, wanted, below_object=below_object), (done[-1], found, wanted, done[-10:])
            for directory in [] if kind == "files" else directories_of(model):
                fs.create_dir(directory)  # What is left empty stays in the model.
            assert listing(fs) == listing(model.fs), done[-10:]
    assert len(done) > 10


def directories_of(model: Model) -> list[str]:
    return [str(path.relative_to(model.directory)) for path in model.directory.rglob("*") if path.is_dir()]
