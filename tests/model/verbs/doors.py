"""The doors through which a step is made, and the places in which its tree is looked at past all of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.values import WriteRequest
from tests.benches.faulty_bucket import FaultyBucket, etag_of
from tests.model.verbs.tree import Meaning, Step, Tree


class Place(Protocol):
    """A store whose objects a test sees and changes without a verb."""

    meaning: Meaning

    def operator(self) -> Operator:
        """An operator of it."""
        ...

    def tree(self) -> Tree:
        """Its objects."""
        ...

    async def plant(self, tree: Tree) -> None:
        """Put objects there."""
        ...


class MemoryPlace:
    """A store in memory."""

    meaning = Meaning()

    def __init__(self) -> None:
        self._operator = Operator(ap.services.Memory())

    def operator(self) -> Operator:
        """The operator of it."""
        return self._operator

    def tree(self) -> Tree:
        """Its objects."""
        accessor: Any = self._operator.accessor()
        while hasattr(accessor, "inner"):
            accessor = accessor.inner
        return {key: stored.data for key, stored in accessor.store.objects.items()}

    async def plant(self, tree: Tree) -> None:
        """Put objects there, under any names."""
        accessor: Accessor = self._operator.accessor()
        for path, data in tree.items():
            await accessor.write(WriteRequest(path=path), data)


class FilesPlace:
    """Files of a directory."""

    meaning = Meaning(directories=True)

    def __init__(self, root: Path) -> None:
        self.root = root

    def operator(self) -> Operator:
        """A new operator of it."""
        return Operator.from_uri(self.root)

    def tree(self) -> Tree:
        """Its files, hidden ones included."""
        found = [Path(folder, name) for folder, _, names in os.walk(self.root) for name in names]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}

    async def plant(self, tree: Tree) -> None:
        """Write files there."""
        for path, data in tree.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)


class BucketPlace:
    """A bucket over HTTP."""

    meaning = Meaning()

    def __init__(self, bucket: FaultyBucket) -> None:
        self.bucket = bucket

    def operator(self) -> Operator:
        """A new operator of it."""
        return self.bucket.operator()

    def tree(self) -> Tree:
        """Its objects."""
        return dict(self.bucket.objects)

    async def plant(self, tree: Tree) -> None:
        """Put objects there, under any names."""
        for path, data in tree.items():
            self.bucket.put(path, data)


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[Place]:
    """A fresh place: ``memory``, ``files`` or ``bucket``."""
    if name == "memory":
        yield MemoryPlace()
    elif name == "files":
        with tempfile.TemporaryDirectory() as root:
            yield FilesPlace(Path(root, "root"))
    else:
        async with FaultyBucket() as bucket:
            yield BucketPlace(bucket)


async def by_operator(op: Operator, step: Step) -> None:
    """Make a step by the verbs of an Operator, and raise what has failed of it."""
    conditions = {} if step.verb.endswith(("_tree", "_all", "_many")) else await _conditions(op, step)
    match step.verb:
        case "write":
            await op.write(step.path, step.data, **conditions)
        case "writer":
            async with op.writer(step.path, **conditions) as writer:
                await writer.write(step.data[:3])
                await writer.write(step.data[3:])
        case "upload":
            with tempfile.NamedTemporaryFile() as file:
                file.write(step.data)
                file.flush()
                await op.upload(file.name, step.path, **conditions)
        case "copy" | "move":
            await getattr(op, step.verb)(step.source, step.target, **conditions)
        case "delete":
            await op.delete(step.path, **conditions)
        case "delete_many":
            await op.delete(list(step.paths))
        case "delete_all":
            await op.delete_all(step.path)
        case "move_tree":
            await op.move(step.source, step.target, if_not_exists=step.if_not_exists)
        case "copy_tree":
            report = await ap.copy(
                (op, step.source),
                (op, step.target),
                glob=step.glob,
                overwrite=step.overwrite,
                delete_extra=step.delete_extra,
            )
            report.raise_failures()
        case _:
            raise AssertionError(step.verb)


async def _conditions(op: Operator, step: Step) -> dict[str, Any]:
    """The conditions of a step on one object, with the ETag that it has now."""
    conditions: dict[str, Any] = {}
    if step.arguments.get("if_not_exists"):
        conditions["if_not_exists"] = True
    if step.if_match == "other":
        conditions["if_match"] = etag_of(b"another")
    elif step.if_match == "current":
        path = step.source if step.verb in ("copy", "move") else step.path
        try:
            conditions["if_match"] = (await op.stat(path)).etag
        except ap.Error:
            conditions["if_match"] = etag_of(b"missing")
    return conditions
