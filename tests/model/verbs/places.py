"""The places in which the verbs are tried: stores whose objects a test sees and changes past all of them."""

import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from aioprefetch import Operator
from aioprefetch.services import Memory
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server
from aioprefetch.values import WriteRequest
from tests.model.verbs.tree import Meaning, Tree
from tests.stores.faulty_bucket import FaultyBucket
from tests.stores.planted_keys import PlantedBucket
from tests.stores.rclone_server import RcloneS3Server
from tests.stores.s3_options import options_of


class Place(Protocol):
    """A store whose objects a test sees and changes without a verb. ``url`` and ``options`` lead to it."""

    meaning: Meaning
    url: str
    options: dict[str, Any]

    def operator(self) -> Operator:
        """A new operator of it."""
        ...

    def tree(self) -> Tree:
        """Its objects, hidden files included."""
        ...

    async def plant(self, tree: Tree) -> None:
        """Put objects there, under any names."""
        ...

    def unfinished(self) -> int:
        """The number of uploads that have begun, and not come to an end."""
        ...


class _Place:
    url: str
    options: dict[str, Any]

    def operator(self) -> Operator:
        """A new operator of it."""
        return Operator.from_uri(self.url, **self.options)

    def unfinished(self) -> int:
        """None, unless a place counts them."""
        return 0


class MemoryPlace(_Place):
    """A store in memory."""

    meaning = Meaning()

    def __init__(self) -> None:
        name = _fresh_name()
        self.url, self.options = f"memory://{name}", dict[str, Any]()
        self.store = Memory(name).store

    def tree(self) -> Tree:
        return {key: stored.data for key, stored in self.store.objects.items()}

    async def plant(self, tree: Tree) -> None:
        for key, data in tree.items():
            self.store.put(WriteRequest(path=key), data)


class FilesPlace(_Place):
    """Files of a directory."""

    meaning = Meaning(directories=True)

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.url, self.options = f"file://{root}", dict[str, Any]()

    def tree(self) -> Tree:
        """Its files, hidden ones included, and as markers the directories that are empty."""
        tree: Tree = {}
        for folder, directories, names in os.walk(self.root):
            below = "" if folder == str(self.root) else f"{os.path.relpath(folder, self.root)}/"
            tree |= {below + name: Path(folder, name).read_bytes() for name in names}
            if below and not (directories or names):
                tree[below] = b""
        return tree

    async def plant(self, tree: Tree) -> None:
        for path, data in tree.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)


class BucketPlace(_Place):
    """A bucket over HTTP, on the running loop."""

    meaning = Meaning(none_match=False)

    def __init__(self, bucket: FaultyBucket) -> None:
        self.bucket = bucket
        self.url = f"s3://{bucket.name}"
        self.options = bucket.options

    def tree(self) -> Tree:
        return dict(self.bucket.objects)

    async def plant(self, tree: Tree) -> None:
        for path, data in tree.items():
            self.bucket.put(path, data)

    def unfinished(self) -> int:
        return len(self.bucket.uploads)


class MotoPlace(_Place):
    """A bucket of moto in this process, which looks at no condition on the source of a copy."""

    meaning = Meaning(conditions=False, none_match=False)

    def __init__(self, server: CountingS3Server, name: str) -> None:
        self._planted = PlantedBucket(server, name)
        self.url = self._planted.url
        self.options: dict[str, Any] = {**self._planted.options}

    def tree(self) -> Tree:
        return self._planted.objects()

    async def plant(self, tree: Tree) -> None:
        self._planted.plant(tree)

    def unfinished(self) -> int:
        return self._planted.uploads()


class RclonePlace(FilesPlace):
    """A bucket of rclone: each object is a file, and conditions are not looked at."""

    meaning = Meaning(directories=True, is_strict=False, conditions=False, none_match=False)

    def __init__(self, server: RcloneS3Server, name: str) -> None:
        server.create_bucket(name)
        self.root = server.root / name
        self.url = f"s3://{name}"
        self.options = {
            **options_of(server),
            "addressing_style": "path",
            "attempts_max": 1,
        }

    async def plant(self, tree: Tree) -> None:
        """Write objects by the server, which believes for an hour what it knows of its files."""
        with BlockingOperator(Operator.from_uri(self.url, **self.options)) as operator:
            for path, data in tree.items():
                operator.write(path, data)


def _fresh_name() -> str:
    return f"t{uuid.uuid4().hex[:16]}"


MEANINGS = {
    "memory": MemoryPlace.meaning,
    "files": FilesPlace.meaning,
    "bucket": BucketPlace.meaning,
    "moto": MotoPlace.meaning,
    "rclone": RclonePlace.meaning,
}


@asynccontextmanager
async def opened(name: str, server: Any = None) -> AsyncIterator[Any]:
    """A fresh place: ``memory``, ``files``, ``bucket``, or one of the ``server``: ``moto``, ``rclone``."""
    if name == "memory":
        place = MemoryPlace()
        yield place
        place.store.objects.clear()
    elif name == "files":
        with tempfile.TemporaryDirectory() as folder:
            yield FilesPlace(Path(folder, "root"))
    elif name == "bucket":
        async with FaultyBucket() as bucket:
            yield BucketPlace(bucket)
    elif name == "moto":
        yield MotoPlace(server, _fresh_name())
    else:
        rclone = RclonePlace(server, _fresh_name())
        yield rclone
        shutil.rmtree(rclone.root, ignore_errors=True)
