"""Every request of every verb fails once, is broken off, and is repeated: typed errors, and nothing half done."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.fsspec.verbs import many, of_one
from aioprefetch.testing import FaultLayer, Injection, content
from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import run_program
from tests.profile import IS_FULL
from tests.stores.layer_stack import was_cancelled

DATA = content(300_000)
OBJECTS = {"a": DATA, "d/b": b"bb", "d/e/c": b"ccc", "d/e/f/g": b""}
# More requests than any of the verbs below sends.
REQUESTS_MAX = 100

Job = Callable[[AioPrefetchFileSystem, Path], object]


def read(fs: AioPrefetchFileSystem, folder: Path) -> object:
    with fs.open("a", block_size=1 << 16) as file:
        file.seek(-10, 2)
        tail = file.read()
        file.seek(0)
        return tail, file.read(100), file.read()


def write(fs: AioPrefetchFileSystem, folder: Path) -> object:
    with fs.open("w", "w", compression="gzip") as file:
        file.write("text")
    return fs.cat("w")[:2]


def put(fs: AioPrefetchFileSystem, folder: Path) -> object:
    return fs.put(f"{folder}/source/", "w/", recursive=True), fs.cat(["w/one", "w/below/two"])


def get(fs: AioPrefetchFileSystem, folder: Path) -> object:
    fs.get("d/", f"{folder}/got/", recursive=True)
    return sorted(str(path.relative_to(folder)) for path in (folder / "got").rglob("*"))


def transaction(fs: AioPrefetchFileSystem, folder: Path) -> object:
    with fs.transaction:
        for name in ("w/1", "w/2"):
            with fs.open(name, "wb") as file:
                file.write(DATA)
    return fs.find("w")


JOBS: dict[str, Job] = {
    "read": read,
    "write": write,
    "put": put,
    "get": get,
    "transaction": transaction,
    "cat": lambda fs, _: fs.cat(["a", "d/b"]),
    "cat_ranges": lambda fs, _: fs.cat_ranges(["a", "d/b", "a"], [0, 0, 200_000], [9, 1, 200_009], on_error="raise"),
    "questions": lambda fs, _: (fs.exists("d"), fs.isdir("d/e"), fs.isfile("a"), fs.exists("nothing")),
    "info": lambda fs, _: (fs.info("a")["size"], fs.info("d")["type"], fs.size("a"), fs.du("d")),
    "ls": lambda fs, _: (fs.ls("d", detail=False), fs.ls("a", detail=False)),
    "find": lambda fs, _: (fs.find("d"), fs.find("d", maxdepth=2, withdirs=True), fs.find("", prefix="d/")),
    "glob": lambda fs, _: (fs.glob("d/*"), fs.glob("**/c")),
    "cp": lambda fs, _: (fs.cp("d/", "w/", recursive=True), fs.cat("w/b")),
    "mv": lambda fs, _: (fs.mv("a", "w"), fs.cat("w")),
    "rm": lambda fs, _: (fs.rm("d", recursive=True), fs.find("")),
    "pipe": lambda fs, _: (fs.pipe({"w": DATA, "w2": b""}), fs.size("w")),
    "touch": lambda fs, _: (fs.touch("w"), fs.size("w")),
    "create": lambda fs, _: (fs.pipe_file("w", DATA, mode="create"), fs.cat("w")),
}


class Store:
    """A store in memory whose requests go by a plan, and a folder of its own."""

    def __init__(self, name: str, folder: Path, *plan: Injection, retries: bool = False) -> None:
        self.folder = folder
        self.service = ap.services.Memory(name)
        clean = ap.Operator.bare(self.service)
        self.clean = AioPrefetchFileSystem(clean)
        self.clean.pipe(OBJECTS)
        for path, data in {"source/one": DATA, "source/below/two": b"2"}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        if retries:
            clean = clean.layer(FaultLayer(plan)).layer(ap.layers.RetryLayer(base_seconds=1e-6))
        else:
            clean = clean.layer(FaultLayer(plan))
        self.fs = AioPrefetchFileSystem(clean)

    def close(self) -> None:
        """Release both."""
        self.fs.close()
        self.clean.close()


@pytest.fixture
def make(random_name: Callable[[], str], tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """A function that makes stores, each with objects and files of its own."""
    made: list[Store] = []

    def one(*plan: Injection, **options: Any) -> Store:
        name = random_name()
        store = Store(name, tmp_path / name, *plan, **options)
        made.append(store)
        return store

    yield one
    for store in made:
        store.close()


def whole(store: Store) -> None:
    """What is there is whole: no part of an object, no part of a file, no hidden rest of one."""
    contents = {*OBJECTS.values(), b"2", b"text"}
    store.clean.invalidate_cache()
    for path, data in store.clean.cat(store.clean.find("")).items():
        assert data in contents or data[:2] == b"\x1f\x8b", path
    for folder, _, names in os.walk(store.folder / "got"):
        for name in names:
            assert (Path(folder) / name).read_bytes() in contents, name


@checks("reliability:W10")
@pytest.mark.parametrize("name", JOBS)
def test_the_nth_request_fails_for_every_n(make: Callable[..., Store], name: str) -> None:
    job, right = JOBS[name], None
    for number in range(REQUESTS_MAX):
        store = make(Injection(error=ap.PermissionDenied, occurrence=number))
        try:
            result = job(store.fs, store.folder)
        except ap.PermissionDenied:
            whole(store)
            continue
        if right is None:
            untroubled = make()
            right = JOBS[name](untroubled.fs, untroubled.folder)
        assert result == right
        whole(store)
        if not was_struck(store):
            assert number > 0
            return
    pytest.fail("the job never ended without a failure")


def was_struck(store: Store) -> bool:
    """Whether the plan of a store has had its effect."""
    layer: Any = store.fs.place_of("").operator.layers[-1]
    (injection,) = layer.plan

    async def sent() -> int:
        accessor: Any = store.fs.place_of("").operator.accessor()
        return len(accessor.requests)

    return bool(ap.sync.run(sent()) > injection.occurrence)


@pytest.mark.parametrize("name", sorted(JOBS.keys() - {"create"}) if IS_FULL else ["read", "put", "find", "cp", "rm"])
def test_what_is_tried_again_is_no_failure(make: Callable[..., Store], name: str) -> None:
    untroubled = make()
    right = JOBS[name](untroubled.fs, untroubled.folder)
    for number in range(8):
        store = make(Injection(error=ap.Unavailable, occurrence=number), retries=True)
        assert JOBS[name](store.fs, store.folder) == right


@checks("reliability:W40")
@pytest.mark.parametrize("verb", ["_cat_file", "_info", "_ls", "_find", "_get_file", "_put_file", "_pipe_file"])
async def test_a_verb_is_cancelled_at_every_suspension(make: Callable[..., Store], verb: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(DATA)
    arguments: dict[str, tuple[Any, ...]] = {
        "_get_file": ("a", str(tmp_path / "got")),
        "_put_file": (str(tmp_path / "one"), "w"),
        "_pipe_file": ("w", DATA),
    }
    for suspension in range(1, REQUESTS_MAX):
        store = await asyncio.to_thread(make)
        fs = AioPrefetchFileSystem(store.fs.place_of("").operator, asynchronous=True)
        call: Callable[..., Any] = getattr(fs, verb)
        ended = not await was_cancelled(
            call(*arguments.get(verb, ("d",) if verb in ("_ls", "_find") else ("a",))), suspension
        )
        await asyncio.to_thread(whole, store)
        accessor: Any = store.fs.place_of("").operator.accessor()
        assert accessor.in_flight == 0
        if ended:
            await fs.aclose()
            return
        assert not [name for name in await asyncio.to_thread(os.listdir, tmp_path) if name.endswith(".part")]
        await fs.aclose()
    pytest.fail("the verb never ended")


async def test_a_verb_of_one_that_had_not_begun_does_not_begin_after_the_end() -> None:
    """Its task was made by a verb of many that has failed in the same turn."""
    begun: list[str] = []

    @of_one
    async def verb() -> None:
        begun.append("begun")

    async def verbs() -> None:
        async with many():
            tasks.append(asyncio.ensure_future(verb()))
            raise ZeroDivisionError

    tasks: list[asyncio.Future[None]] = []
    with pytest.raises(ZeroDivisionError):
        await verbs()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert begun == []


def test_a_wait_that_takes_too_long_is_broken_off(make: Callable[..., Store]) -> None:
    store = make(Injection(hang=True))
    with pytest.raises(ap.TimedOut, match=r"timeout_seconds=0\.01"):
        store.fs.cat("a", timeout=0.01)

    async def in_flight() -> int:
        accessor: Any = store.fs.place_of("").operator.accessor()
        return int(accessor.in_flight)

    assert ap.sync.run(in_flight()) == 0


def test_an_error_of_time_comes_out_as_it_is(make: Callable[..., Store]) -> None:
    store = make(Injection(error=ap.TimedOut))
    with pytest.raises(ap.TimedOut, match="injected"):
        store.fs.cat("a")


@checks("reliability:W43")
def test_an_interrupt_ends_the_work() -> None:
    """Ctrl-C while a verb waits: the request is given up before the program goes on."""
    program = """
import os, signal
import aioprefetch as ap
from aioprefetch.testing import FaultLayer, Injection

class Interrupt(FaultLayer):
    def wrap(self, inner, runtime):
        accessor = super().wrap(inner, runtime)
        strike = accessor.strike
        async def interrupting(chosen, at, request):
            os.kill(os.getpid(), signal.SIGINT)
            return await strike(chosen, at, request)
        accessor.strike = interrupting
        return accessor

signal.signal(signal.SIGINT, signal.default_int_handler)
op = ap.Operator.bare(ap.services.Memory("m")).layer(Interrupt((Injection(hang=True, times=None),)))
fs = ap.fsspec.AioPrefetchFileSystem(op)
for verb in (lambda: fs.cat("k"), lambda: fs.ls("d"), lambda: fs.pipe("k", b"1"), lambda: fs.open("k").read()):
    try:
        verb()
    except KeyboardInterrupt:
        async def in_flight():
            return op.accessor().in_flight
        print(ap.sync.run(in_flight()))
"""
    assert run_program(program) == "0\n" * 4
