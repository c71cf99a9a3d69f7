"""An error of a verb names that verb as its operation, whichever of the verb's requests has failed, in every store."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.layers import ErrorContextLayer, LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services import Fs, Memory
from aioprefetch.values import Request, WriteRequest
from tests.profile import in_turns
from tests.stores.dict_store import DictStore
from tests.stores.part_store import PartStore
from tests.stores.verb_layer import Forward, VerbLayer

DATA = bytes(range(250)) * 20  # Five parts of an upload.
KEYS = ("k", "d/a", "d/b", "d/e/c")
STORES = ("memory", "file", "dict", "parts", "cached")


class Refusing(VerbLayer):
    """Next to the service: the ``nth`` request is refused, or with 0 each one. ``count`` are all."""

    def __init__(self) -> None:
        self.nth = -1
        self.count = 0

    async def around(self, request: Request, forward: Forward) -> Any:
        self.count += 1
        if self.nth in (0, self.count):
            raise ap.PermissionDenied("refused")
        return await forward(request)


@asynccontextmanager
async def filled(store: str, folder: Path) -> AsyncIterator[tuple[Operator, Refusing]]:
    """A store with some objects and an upload left behind."""
    services: dict[str, Callable[[], Any]] = {"file": lambda: Fs(str(folder / "root")), "dict": DictStore}
    (folder / "root").mkdir(parents=True)
    (folder / "files").mkdir()
    for name in ("one", "two"):
        (folder / "files" / name).write_bytes(DATA)
    refusing = Refusing()
    parts = PartStore()
    op = Operator(services.get(store, Memory)(), attempts_max=1, block_bytes=2000, memory_bytes=1 << 20)
    if store == "parts":
        op = op.layer(parts, inside=ErrorContextLayer)
    op = op.layer(refusing, inside=ErrorContextLayer)
    async with Operator(Memory()) as cache, op if store != "cached" else op.layer(kept_in(cache)) as operator:
        for key in KEYS:
            await operator.write(key, DATA)
        if store == "parts":
            await operator.accessor().begin_upload(WriteRequest(path="k"))
        refusing.count = 0
        yield operator, refusing


def kept_in(cache: Operator) -> LruCacheLayer:
    """A cache that asks the store at each read."""
    return LruCacheLayer(cache=cache, capacity_bytes=1 << 20, revalidate_seconds=0)


async def read_by_reader(op: Operator, folder: Path) -> None:
    """Some bytes of a reader."""
    async with op.reader("k") as reader:
        await reader.read_at(10, 100)


async def read_open_file(op: Operator, folder: Path) -> None:
    """Some bytes of a file that was opened."""
    async with await op.open_file("k").build() as reader:
        await reader.read_at(10, 100)


async def write_by_writer(op: Operator, folder: Path) -> None:
    """An object in two pieces."""
    async with op.writer("new") as writer:
        await writer.write(DATA)
        await writer.write(DATA)


# Each call begins with its verb, which is the operation of its errors. These are reads.
READS = ("view", "read_into", "read_ranges", "view_ranges", "reader", "open_file")
CALLS: dict[str, Callable[[Operator, Path], Awaitable[object]]] = {
    "read": lambda op, folder: op.read("k", offset=5, size=10),
    "read of a suffix": lambda op, folder: op.read("k", suffix=10),
    "read of all": lambda op, folder: op.read("k"),
    "view": lambda op, folder: op.view("k", offset=5, size=10),
    "view of all": lambda op, folder: op.view("k"),
    "read_into": lambda op, folder: op.read_into("k", 5, bytearray(10)),
    "read_into of all": lambda op, folder: op.read_into("k", 0, bytearray(6000)),
    "read_ranges": lambda op, folder: op.read_ranges("k", [(0, 5), (2000, 2005)], gap_bytes=0),
    "view_ranges": lambda op, folder: op.view_ranges("k", [(0, 5), (2000, 2005)], gap_bytes=0),
    "reader": read_by_reader,
    "open_file": read_open_file,
    "download": lambda op, folder: op.download("k", folder / "file"),
    "download of a directory": lambda op, folder: op.download("d/", folder / "files"),
    "stat": lambda op, folder: op.stat("k"),
    "stat of a directory": lambda op, folder: op.stat("d/"),
    "check": lambda op, folder: op.check(),
    "exists": lambda op, folder: op.exists("k"),
    "exists of a directory": lambda op, folder: op.exists("d/"),
    "list": lambda op, folder: op.list("d/").collect(),
    "list of all": lambda op, folder: op.list(recursive=True, start_after="d/a").collect(),
    "write": lambda op, folder: op.write("new", DATA[:100]),
    "write in parts": lambda op, folder: op.write("new", DATA),
    "write of an iterator": lambda op, folder: op.write("new", iter((DATA, DATA))),
    "writer": write_by_writer,
    "upload": lambda op, folder: op.upload(folder / "files" / "one", "new"),
    "upload below": lambda op, folder: op.upload(folder / "files" / "one", "d/"),
    "upload of a directory": lambda op, folder: op.upload(folder / "files", "d/"),
    "abort_uploads": lambda op, folder: op.abort_uploads(),
    "copy": lambda op, folder: op.copy("k", "new"),
    "copy in parts": lambda op, folder: op.copy("k", "new", on_progress=lambda count: None),
    "move": lambda op, folder: op.move("k", "new"),
    "move of a directory": lambda op, folder: op.move("d/", "new/"),
    "delete": lambda op, folder: op.delete("k"),
    "delete of many": lambda op, folder: op.delete(["k", "d/a"]),
    "delete of a directory": lambda op, folder: op.delete("d/"),
    "delete under an ETag": lambda op, folder: op.delete("k", if_match="*"),
    "delete_all": lambda op, folder: op.delete_all("d/"),
    "delete_all of the root": lambda op, folder: op.delete_all(""),
    "create_dir": lambda op, folder: op.create_dir("new/"),
    "presign": lambda op, folder: op.presign("k"),
}
OF_THE_ROOT = ("check", "list of all", "abort_uploads", "delete_all of the root")


def operation_of(name: str) -> str:
    """The operation of a call's errors."""
    verb = name.split()[0]
    return "read" if verb in READS else {"writer": "write"}.get(verb, verb)


def test_every_verb_is_in_the_table() -> None:
    """All that is awaited, and what makes a reader, a writer or a listing."""
    made = {"reader", "open_file", "list", "writer"}
    verbs = {name for name, call in vars(Operator).items() if inspect.iscoroutinefunction(call) and name[0] != "_"}
    assert {name.split()[0] for name in CALLS} == (verbs | made) - {"aclose"}


@pytest.mark.parametrize(("name", "store"), in_turns(CALLS, STORES))
async def test_an_error_names_the_verb(store: str, name: str, tmp_path: Path) -> None:
    """Each request of it fails once, and all at once."""
    errors: dict[int, ap.Error] = {}
    for nth in range(100):
        async with filled(store, tmp_path / str(nth)) as (op, refusing):
            refusing.nth = nth
            try:
                await CALLS[name](op, tmp_path / str(nth))
            except ap.Error as error:
                errors[nth] = error
            if refusing.count < nth:
                break
    else:
        raise AssertionError("there are more requests than that")
    assert errors
    for nth, raised in errors.items():
        assert raised.operation == operation_of(name), (nth, str(raised))
        assert raised.path or name in OF_THE_ROOT, (nth, str(raised))
        assert operation_of(name) in str(raised)
