"""Clauses 24 to 32: what a status is good for, and what of it is looked at."""

import pickle
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from aioprefetch import Entry, Metadata
from aioprefetch.errors import ConfigInvalid, ObjectChanged
from tests.unit.operator.open_file.clauses import Scene, clause


@clause(24, "M")
async def _(scene: Scene) -> None:
    """None is accepted, and says nothing."""
    reader = await scene.builder(length=100).with_status(None).build()
    assert reader.size == 100


@clause(25, "M")
async def _(scene: Scene) -> None:
    """The last element of the paths must be the same."""
    for path in ("a/k2", "k/a", "K", "k ", "s3a://bucket/k2"):
        builder = scene.builder("a/k").with_status(Metadata(path=path, size=5))
        with pytest.raises(ConfigInvalid) as caught:
            builder.build()
        assert repr(path) in str(caught.value)
        assert (caught.value.operation, caught.value.path) == ("open_file", "a/k")


@clause(26, "N")
async def _(scene: Scene) -> None:
    """Nothing else of them is compared."""
    for path in ("k", "/k", "elsewhere/k", "s3a://bucket/a/b/k", "viewfs://mount/k", "hdfs://host:9000//k"):
        assert (await scene.builder().with_status(Metadata(path=path, size=7)).build()).size == 7


@clause(27, "S")
async def _(scene: Scene) -> None:
    """The comparison waits for build(), so a wrong status can be replaced."""
    builder = scene.builder().with_status(Metadata(path="other", size=5))
    assert (await builder.with_status(Metadata(path="k", size=6)).build()).size == 6


@clause(28, "N")
async def _(scene: Scene) -> None:
    """No class of a status is required."""

    @dataclass
    class Status:
        path: str
        length: int

    class Derived(Status):
        pass

    found = await scene.store.operator.stat("k")
    listed = [entry async for entry in scene.store.operator.list()]
    statuses = [
        *(found, pickle.loads(pickle.dumps(found)), *listed, Entry(path="k", size=len(scene.data))),
        *(Status("x/k", len(scene.data)), Derived("k", len(scene.data))),
        SimpleNamespace(path="k", size=len(scene.data), etag=None, version=3, is_directory=lambda: True),
        {"name": "bucket/k", "size": len(scene.data), "type": "file", "ETag": f'"{found.etag}"', "VersionId": None},
        {"path": "k", "size": len(scene.data), "e_tag": found.etag, "version": None},
        {"Key": "k", "Size": len(scene.data), "ETag": f'"{found.etag}"'},
        SimpleNamespace(path="s3://bucket/k", size=lambda: 5),
    ]
    for status in statuses:
        reader = await scene.builder().with_status(status).build()
        assert await reader.read() == scene.data
        await reader.aclose()


@clause(29, "Y")
async def _(scene: Scene) -> None:
    """The ETag of a status pins the object: another version is not read."""
    status = await scene.store.operator.stat("k")
    reader = await scene.builder().with_status(status).build()
    assert reader.etag == status.etag
    scene.store.put(bytes(len(scene.data)))
    with pytest.raises(ObjectChanged):
        await reader.read_at(0, 5)
    versioned = await scene.builder().with_status({"path": "k", "size": 5, "VersionId": "v7"}).build()
    assert versioned.version == "v7"


@clause(30)
async def _(scene: Scene) -> None:
    """The status of a directory is a FileNotFoundError, when it is awaited."""
    directories = [
        Metadata(path="k/", kind="directory"),
        Entry(path="k/", kind="directory", size=0),
        SimpleNamespace(path="k", isdir=True, length=0),
        {"name": "k", "size": 0, "type": "directory"},
        {"path": "s3://bucket/k/", "size": 0},
    ]
    for status in directories:
        for path in ("k", "k/"):
            pending = scene.builder(path).with_status(status).build()
            with pytest.raises(FileNotFoundError, match="directory"):
                await pending
    assert scene.requests == (0, 0)


@clause(31)
async def _(scene: Scene) -> None:
    """The path that was opened is the one that is read."""
    scene.store.put(b"another object", "elsewhere/k")
    reader = await scene.builder().with_status(Metadata(path="elsewhere/k", size=14)).build()
    assert await reader.read() == scene.data[:14]
    assert {call.request.path for call in scene.store.calls} == {"k"}


@clause(32, "Y")
async def _(scene: Scene) -> None:
    """With a status no request asks for what it tells."""
    status = Metadata(path="k", size=len(scene.data))
    for known in (status, await scene.store.operator.stat("k")):
        before = scene.requests
        reader = await scene.builder().with_status(known).build()
        assert (reader.seek(-10, 2), reader.size) == (len(scene.data) - 10, len(scene.data))
        assert scene.requests == before
        assert await reader.read() == scene.data[-10:]
        assert scene.requests == (before[0] + 1, before[1])
        await reader.unbuffer()
        await reader.aclose()
