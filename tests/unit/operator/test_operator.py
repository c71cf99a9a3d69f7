"""The front door: bad input is a typed error that names operation and path, and every verb does what it says."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import (
    ConditionNotMatch,
    ConfigInvalid,
    Error,
    InvalidType,
    IsADirectory,
    IsSameFile,
    NotFound,
    ObjectChanged,
    RangeNotSatisfied,
    TimedOut,
    Unavailable,
)
from aioprefetch.layers import (
    CompleteLayer,
    ConcurrentLimitLayer,
    ErrorContextLayer,
    Layer,
    LruCacheLayer,
    RetryLayer,
    TimeoutLayer,
    WrappedAccessor,
)
from aioprefetch.services.memory import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from aioprefetch.values import ReadRequest, WriteRequest
from tests.profile import each_of
from tests.stores.gated_reader import bench, settle

Call = Callable[[Operator], Awaitable[object]]


@pytest.fixture
async def op() -> AsyncIterator[Operator]:
    """An Operator over a private memory store with "k" in it."""
    operator = Operator(Memory())
    await operator.write("k", b"0123456789")
    yield operator
    await operator.aclose()


BAD: dict[str, tuple[Call, type[Error], str]] = {
    "negative offset": (lambda o: o.read("k", offset=-1), ap.errors.InvalidRange, "read"),
    "negative size": (lambda o: o.read("k", size=-1), ap.errors.InvalidRange, "read"),
    "negative suffix": (lambda o: o.read("k", suffix=-1), ap.errors.InvalidRange, "read"),
    "float offset": (lambda o: o.read("k", offset=1.0), InvalidType, "read"),  # type: ignore[arg-type]
    "bool size": (lambda o: o.read("k", size=True), InvalidType, "read"),
    "suffix and offset": (lambda o: o.read("k", offset=1, suffix=1), ConfigInvalid, "read"),
    "suffix and size": (lambda o: o.read("k", size=1, suffix=1), ConfigInvalid, "read"),
    "beyond the end": (lambda o: o.read("k", offset=10), RangeNotSatisfied, "read"),
    "time-out no number": (lambda o: o.read("k", timeout_seconds="1"), InvalidType, "read"),  # type: ignore[arg-type]
    "time-out negative": (lambda o: o.view("k", timeout_seconds=-1), ap.errors.InvalidArgument, "read"),
    "missing": (lambda o: o.read("none"), NotFound, "read"),
    "missing stat": (lambda o: o.stat("none"), NotFound, "stat"),
    "missing directory": (lambda o: o.stat("none/"), NotFound, "stat"),
    "a directory": (lambda o: o.read("dir/"), IsADirectory, "read"),
    "no path": (lambda o: o.read(""), IsADirectory, "read"),
    "path no string": (lambda o: o.read(b"k"), InvalidType, "read"),  # type: ignore[arg-type]
    "path no string and no key": (lambda o: o.read([]), InvalidType, "read"),  # type: ignore[arg-type]
    "path None": (lambda o: o.stat(None), InvalidType, "stat"),  # type: ignore[arg-type]
    "dot segment": (lambda o: o.read("a/../k"), ap.errors.InvalidPath, "read"),
    "NUL": (lambda o: o.write("a\0b", b""), ap.errors.InvalidPath, "write"),
    "surrogate": (lambda o: o.stat("\ud800"), ap.errors.InvalidPath, "stat"),
    "endless path": (lambda o: o.stat("x" * 5000), ap.errors.InvalidPath, "stat"),
    "write text": (lambda o: o.write("w", "text"), InvalidType, "write"),  # type: ignore[arg-type]
    "write None": (lambda o: o.write("w", None), InvalidType, "write"),  # type: ignore[arg-type]
    "write list of text": (lambda o: o.write("w", ["x"]), InvalidType, "write"),  # type: ignore[list-item]
    "write directory": (lambda o: o.write("d/", b""), IsADirectory, "write"),
    "write over": (lambda o: o.write("k", b"", if_not_exists=True), ap.errors.AlreadyExists, "write"),
    "write other": (lambda o: o.write("k", b"", if_match="x"), ConditionNotMatch, "write"),
    "copy to itself": (lambda o: o.copy("k", "k"), IsSameFile, "copy"),
    "copy missing": (lambda o: o.copy("none", "x"), NotFound, "copy"),
    "copy to directory": (lambda o: o.copy("k", "d/"), IsADirectory, "copy"),
    "create_dir file": (lambda o: o.create_dir("d"), ap.errors.NotADirectory, "create_dir"),
    "delete_all file": (lambda o: o.delete_all("d"), ap.errors.NotADirectory, "delete_all"),
    "delete None": (lambda o: o.delete(None), InvalidType, "delete"),  # type: ignore[arg-type]
    "presign": (lambda o: o.presign("k"), ap.errors.Unsupported, "presign"),
    "presign never": (lambda o: o.presign("k", expires_seconds=0), ap.errors.InvalidArgument, "presign"),
    "presign text": (lambda o: o.presign("k", expires_seconds="9"), InvalidType, "presign"),  # type: ignore[arg-type]
    "ranges None": (lambda o: o.read_ranges("k", None), InvalidType, "read_ranges"),  # type: ignore[arg-type]
    "ranges int": (lambda o: o.read_ranges("k", 5), InvalidType, "read_ranges"),  # type: ignore[arg-type]
    "ranges reversed": (lambda o: o.read_ranges("k", [(5, 1)]), ap.errors.InvalidRange, "read_ranges"),
    "ranges past the end": (lambda o: o.read_ranges("k", [(5, 11)]), RangeNotSatisfied, "read_ranges"),
    "ranges beyond the end": (lambda o: o.read_ranges("k", [(50, 60)]), RangeNotSatisfied, "read"),
    "ranges gap": (lambda o: o.read_ranges("k", [(5, 6)], gap_bytes=-1), ap.errors.ConfigInvalid, "read_ranges"),
    "ranges most": (
        lambda o: o.read_ranges("k", [(5, 6)], request_bytes_max=0),
        ap.errors.ConfigInvalid,
        "read_ranges",
    ),
    "into bytes": (lambda o: o.read_into("k", 0, b"xxx"), InvalidType, "read_into"),
    "into nothing": (lambda o: o.read_into("k", 0, None), InvalidType, "read_into"),
    "into beyond": (lambda o: o.read_into("k", 10, bytearray(1)), RangeNotSatisfied, "read"),
    "into negative": (lambda o: o.read_into("k", -1, bytearray(1)), ap.errors.InvalidRange, "read"),
    "if_match": (lambda o: o.read("k", if_match="x"), ConditionNotMatch, "read"),
    "into if_match": (lambda o: o.read_into("k", 0, bytearray(1), if_match="x"), ConditionNotMatch, "read"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_a_typed_error_with_operation_and_path(name: str, op: Operator) -> None:
    call, error, operation = BAD[name]
    before = dict(op.statistics)
    with pytest.raises(error) as caught:
        await asyncio.wait_for(call(op), 5)
    assert caught.value.operation == operation
    if error is not InvalidType and name not in ("no path", "surrogate"):
        assert caught.value.path
    if error is ap.errors.InvalidArgument:
        assert not isinstance(caught.value, ConfigInvalid)  # It is an argument, and no option of a recipe.
    if isinstance(caught.value, ap.errors.InvalidArgument):
        assert dict(op.statistics) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.list(None),
        lambda o: o.list("a\0b"),
        lambda o: o.list(glob=5),
        lambda o: o.list(glob="[z-a]"),
        lambda o: o.reader(""),
        lambda o: o.reader("d/../k"),
        lambda o: o.reader(5),
        lambda o: o.reader("k", policy="x"),
        lambda o: o.layer("x"),
        lambda o: o.layer(RetryLayer),
        lambda o: Operator(Memory(), disk_cache="x"),
        lambda o: Operator(Memory(), memory_bytes=0),
        lambda o: Operator.from_uri("gopher://x"),
        lambda o: Operator.from_uri(None),  # type: ignore[arg-type]
        lambda o: Operator.from_uri("memory://x", nonsense=1),  # type: ignore[call-arg]
    ],
)
async def test_plain_calls_refuse_at_once(call: Callable[[Operator], object], op: Operator) -> None:
    with pytest.raises(Error) as caught:
        call(op)
    assert isinstance(caught.value, ValueError | TypeError | OSError)
    assert caught.value.operation


async def test_a_path_is_checked_at_every_call(op: Operator) -> None:
    class Text(str):
        """A string of a user's own, which may not equal itself."""

        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            raise AssertionError("a path was compared")

        __hash__ = str.__hash__

    for _ in range(2):
        assert bytes(await op.view("k", size=1)) == b"0"
        with pytest.raises(IsADirectory):
            await op.view("k/", size=1)
        with pytest.raises(IsADirectory):
            await op.view(Text("k/"), size=1)


async def test_a_path_object_is_refused_with_what_to_give(op: Operator) -> None:
    path: Any = PurePosixPath("d") / "k"
    for call in (op.read, op.stat):
        with pytest.raises(InvalidType, match=r"not PurePosixPath: .*as_posix\(\)"):
            await call(path)
    with pytest.raises(InvalidType, match=r"as_posix\(\)"):
        op.reader(path)


async def test_reads(op: Operator) -> None:
    assert await op.read("k") == b"0123456789"
    assert await op.read("k", offset=8, size=10) == b"89"
    assert await op.read("k", suffix=3) == b"789"
    assert await op.read("k", suffix=30) == b"0123456789"
    assert bytes(await op.view("k", offset=2, size=3)) == b"234"
    assert (await op.view("k")).readonly
    etag = (await op.stat("k")).etag
    assert await op.read("k", if_match=etag, timeout_seconds=5) == b"0123456789"
    with pytest.raises(ConditionNotMatch):
        await op.read("k", if_none_match=etag)


async def test_ranges_share_requests() -> None:
    async with bench(1 << 20) as b:
        ranges = [(900, 1000), (0, 100), (50, 60), (0, 100), (500_000, 500_001)]
        assert await b.operator.read_ranges("k", ranges, gap_bytes=800) == [b.data[s:e] for s, e in ranges]
        assert sorted(b.ranges, key=str) == [(0, 1000), (500_000, 500_001)]
        views = await b.operator.view_ranges("k", [(0, 10), (1000, 900_000)], gap_bytes=5000)
        assert [len(view) for view in views] == [10, 899_000]
        assert all(view.readonly for view in views)
        assert len(views[0].obj) == 10  # type: ignore[arg-type]  # A copy: it does not pin the rest.


async def test_two_versions_in_one_call_are_found_out() -> None:
    async with bench(1 << 20) as b:
        b.gate.open = False
        task = asyncio.create_task(b.operator.read_ranges("k", [(0, 10), (500_000, 500_010)], gap_bytes=0))
        await settle()
        b.calls[0].finish()
        await settle()
        b.put(bytes(1 << 20))
        b.calls[1].finish()
        with pytest.raises(ObjectChanged) as caught:
            await task
        assert caught.value.operation == "read_ranges"


@checks("reliability:C09")
async def test_one_failed_range_cancels_the_others_and_is_raised_as_it_is() -> None:
    async with bench(1 << 20) as b:
        b.gate.open = False
        ranges = [(0, 10), (300_000, 300_010), (600_000, 600_010)]
        task = asyncio.create_task(b.operator.read_ranges("k", ranges, gap_bytes=0))
        await settle()
        b.calls[1].fail(NotFound("gone", operation="read", path="k"))
        with pytest.raises(NotFound, match="gone"):
            await task
        assert [call.cancelled for call in b.calls] == [True, False, True]


@pytest.mark.virtual
async def test_a_call_that_takes_too_long_is_timed_out() -> None:
    memory = Memory()
    memory.store.put(WriteRequest(path="k"), b"x")
    slow = FaultLayer((Injection(operation="read", at="call", hang=True, times=None),))
    operator = Operator(memory).layer(slow, inside=ErrorContextLayer)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(TimedOut) as caught:
        await operator.read("k", timeout_seconds=3)
    assert loop.time() - began == pytest.approx(3, abs=0.1)
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    await operator.aclose()


async def test_a_cancelled_write_leaves_nothing(op: Operator) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield b"x"

    task = asyncio.create_task(op.write("w", endless()))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not await op.exists("w")


async def test_delete_all_takes_many_pages(op: Operator) -> None:
    memory = Memory()
    for number in range(2500):
        memory.store.put(WriteRequest(path=f"d/{number}"), b"")
    memory.store.put(WriteRequest(path="other"), b"")
    operator = Operator(memory)
    await operator.delete_all("d/")
    assert memory.store.keys() == ["other"]
    await operator.aclose()


class Outer(Layer):
    """A layer of no known type."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def wrap(self, inner: Any, runtime: object) -> Any:
        return inner


def test_a_layer_replaces_its_own_kind_or_goes_outermost() -> None:
    base = Operator(Memory())
    kinds = [type(layer) for layer in base.layers]
    assert kinds == [ErrorContextLayer, CompleteLayer, TimeoutLayer, ConcurrentLimitLayer, RetryLayer]
    derived = base.layer(Outer("first"))
    assert [type(layer) for layer in derived.layers] == [*kinds, Outer]
    again = derived.layer(RetryLayer()).layer(Outer("second"))
    assert [type(layer) for layer in again.layers] == [*kinds, Outer]
    outer = again.layers[-1]
    assert isinstance(outer, Outer)
    assert outer.name == "second"
    assert len(base.layers) == 5
    assert repr(again).index("Outer") < repr(again).index("RetryLayer") < repr(again).index("ErrorContextLayer")


def test_a_layer_is_placed_directly_inside_another() -> None:
    base = Operator(Memory("placed"))
    placed = base.layer(Outer("first"), inside=RetryLayer)
    order = [ErrorContextLayer, CompleteLayer, TimeoutLayer, ConcurrentLimitLayer, Outer, RetryLayer]
    assert [type(layer) for layer in placed.layers] == order
    moved = placed.layer(Outer("second"), inside=CompleteLayer)
    order = [ErrorContextLayer, Outer, CompleteLayer, TimeoutLayer, ConcurrentLimitLayer, RetryLayer]
    assert [type(layer) for layer in moved.layers] == order
    replaced = moved.layer(Outer("third"))  # without `inside` it takes the place of the layer of its type
    assert [type(layer) for layer in replaced.layers] == order
    assert [layer.name for layer in replaced.layers if isinstance(layer, Outer)] == ["third"]
    assert type(base.layer(Outer(), inside=ErrorContextLayer).layers[0]) is Outer
    unpickled = pickle.loads(pickle.dumps(moved))
    assert [type(layer) for layer in unpickled.layers] == [type(layer) for layer in moved.layers]


class CountingLayer(Layer):
    """Counts the calls that pass it."""

    def __init__(self) -> None:
        self.calls = 0

    def wrap(self, inner: Accessor, runtime: object) -> Accessor:
        return CountingAccessor(inner, self)


class CountingAccessor(WrappedAccessor):
    def __init__(self, inner: Accessor, layer: CountingLayer) -> None:
        super().__init__(inner)
        self._layer = layer

    async def around(self, request: Any, forward: Callable[[Any], Awaitable[Any]]) -> Any:
        self._layer.calls += 1
        return await forward(request)


@pytest.mark.virtual
async def test_a_layer_inside_retry_runs_for_each_attempt() -> None:
    """Outermost it sees one read; inside of Retry it sees every attempt."""
    plan = (Injection(operation="stat", times=2, error=Unavailable),)
    for inside, calls in ((RetryLayer, 3), (None, 1)):
        counting = CountingLayer()
        operator = Operator(Memory()).layer(FaultLayer(plan), inside=TimeoutLayer).layer(counting, inside=inside)
        await operator.create_dir("d/")
        counting.calls = 0
        await operator.stat("d/")
        assert counting.calls == calls, inside
        await operator.aclose()


@each_of("inside", [LruCacheLayer, Outer, RetryLayer(), "RetryLayer", 5])
def test_a_layer_that_is_not_there_is_named_with_those_that_are(inside: Any) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.bare(Memory()).layer(Outer(), inside=inside)
    assert "CompleteLayer, ErrorContextLayer" in str(caught.value)
    assert (inside.__name__ if isinstance(inside, type) else repr(inside)) in str(caught.value)
    assert caught.value.operation == "configure"


@checks("reliability:C38")
def test_a_timeout_outside_of_retry_is_refused() -> None:
    bare = Operator.bare(Memory())
    with pytest.raises(ConfigInvalid, match="within RetryLayer"):
        bare.layer(RetryLayer()).layer(TimeoutLayer())
    with pytest.raises(ConfigInvalid, match="within RetryLayer"):
        Operator(Memory()).layer(RetryLayer(), inside=TimeoutLayer)
    assert len(bare.layer(TimeoutLayer()).layer(RetryLayer()).layers) == 4


async def test_derived_operators_share_a_runtime(op: Operator) -> None:
    derived = op.layer(Outer())
    assert derived.runtime() is op.runtime()
    assert await derived.read("k") == b"0123456789"
    assert derived.statistics == op.statistics


async def test_used_after_closing_it_starts_a_new_runtime(op: Operator) -> None:
    async with op as same:
        assert same is op
        runtime = op.runtime()
    assert runtime.closed
    assert await op.read("k") == b"0123456789"
    assert op.runtime() is not runtime


def test_an_operator_of_the_default_stack_knows_what_it_can() -> None:
    operator = Operator(Memory("cap"))
    assert operator.capability.read_suffix
    assert operator.capability.copy
    assert operator.info.url == "memory://cap"
    assert repr(operator).startswith("<Operator memory://cap [")
    assert ReadRequest(path="k").is_whole


@pytest.mark.parametrize(
    ("kind", "times", "left"),
    [
        (ap.errors.Unavailable, 1, range(1000)),
        (ap.errors.PermissionDenied, 2, range(2000)),  # A response, which says nothing about the others.
        (ap.errors.Unavailable, 2, range(4500)),
    ],
)
async def test_a_request_that_fails_as_a_whole_does_not_end_the_others(kind: Any, times: int, left: range) -> None:
    store = Operator(ap.services.Memory())
    paths = [f"k{number:04}" for number in range(4500)]
    for path in paths:
        await store.write(path, b"x")
    plan = (Injection(operation="delete", occurrence=0, times=times, error=kind),)
    op = Operator.bare(store.service).layer(FaultLayer(plan))
    with pytest.raises(kind) as failure:
        await op.delete(iter(paths))
    assert (failure.value.context["failed"], failure.value.context["of"]) == (len(left), 4500)
    named = failure.value.context["failures"]
    assert list(named) == [paths[number] for number in left]
    assert set(named.values()) == {kind.__name__}
    assert [entry.path async for entry in store.list()] == list(named)


DOORS: dict[str, Callable[[Any], object]] = {
    "parquet.scan": lambda operator: ap.parquet.scan(operator, "t/"),
    "lance.scan": lambda operator: ap.lance.scan(operator, "t/"),
    "BlockingOperator": lambda operator: ap.sync.BlockingOperator(operator),
    "sync.open rb": lambda operator: ap.sync.open("k", operator=operator),
    "sync.open wb": lambda operator: ap.sync.open("k", "wb", operator=operator),
    "zarr.Store": lambda operator: ap.zarr.Store(operator),
    "obspec.store": lambda operator: ap.obspec.store(operator),
    "arrow.filesystem": lambda operator: ap.arrow.filesystem(operator),
    "asgi.RangeApp": lambda operator: ap.asgi.RangeApp(operator),
}


async def test_whatever_reads_by_an_operator_refuses_other_things() -> None:
    verbs: list[Callable[[Any], Awaitable[object]]] = [
        lambda operator: ap.parquet.footer(operator, "k"),
        lambda operator: ap.parquet.plan(operator, "k"),
        lambda operator: ap.parquet.plan_files(operator, "k/"),
        lambda operator: ap.parquet.count_rows(operator, "k"),
        lambda operator: ap.parquet.count_rows(operator, "k", filters=[("a", "=", 1)]),
        lambda operator: ap.parquet.read_table(operator, "k"),
        lambda operator: ap.lance.open_file(operator, "k"),
        lambda operator: ap.lance.open_dataset(operator, "k"),
        lambda operator: ap.lance.plan(operator, "k"),
        lambda operator: ap.lance.read_table(operator, "k"),
    ]
    with ap.sync.BlockingOperator(Operator(Memory())) as blocking:
        for verb in verbs:
            with pytest.raises(InvalidType, match=r"an Operator is needed, not str; Operator.from_uri makes one"):
                await verb("memory://name")
            with pytest.raises(InvalidType, match=r"not BlockingOperator; it has one: give its .operator"):
                await verb(blocking)


@each_of("door", DOORS)
def test_whatever_needs_an_operator_refuses_other_things_at_once(door: str) -> None:
    with pytest.raises(InvalidType, match=r"an Operator is needed, not str; Operator.from_uri makes one of a URL"):
        DOORS[door]("memory://name")
    with (
        ap.sync.BlockingOperator(Operator(Memory())) as blocking,
        pytest.raises(InvalidType, match=r"not BlockingOperator; it has one: give its .operator"),
    ):
        DOORS[door](blocking)
    with pytest.raises(InvalidType, match="an Operator is needed, not int"):
        DOORS[door](3)


@pytest.mark.parametrize("verb", ["copy", "move"])
async def test_a_directory_is_no_object_to_copy_and_the_error_says_what_copies_it(verb: str) -> None:
    op = Operator(Memory())
    await op.write("k", b"x")
    for source, target in (("d/", "e"), ("k", "e/")):
        if (verb, source) == ("move", "d/"):
            continue  # It moves directories, too.
        advice = {"copy": r"aioprefetch.copy copies what is below a directory", "move": "is all that is below it"}
        with pytest.raises(IsADirectory, match=advice[verb]) as refused:
            await getattr(op, verb)(source, target)
        assert refused.value.operation == verb
    for source, target, kind in (("k", "k", IsSameFile), ("missing", "e", NotFound)):
        with pytest.raises(kind) as failed:
            await getattr(op, verb)(source, target)
        assert (failed.value.operation, failed.value.path) == (verb, source)


async def test_a_condition_on_a_missing_object_says_that_there_is_none() -> None:
    with pytest.raises(ConditionNotMatch, match="there is no such object"):
        await Operator(Memory()).write("k", b"x", if_match="e")
