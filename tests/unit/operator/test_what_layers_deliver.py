"""What a layer delivers is compared with what it promised and with what was asked for, through every door."""

import asyncio
import io
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.accessor.response_check import check_range
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.layers.retry import RetryAccessor
from aioprefetch.reader.policy import POLICIES, PolicyName
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Injection, Rule
from aioprefetch.values import ReadHead, ReadReply, ReadRequest
from tests.profile import each_of, in_turns
from tests.stores.gated_reader import in_case
from tests.stores.verb_layer import VerbLayer

BLOCK = 4096
SIZES = [1000, 5 * BLOCK + 7]

# --- layers that deliver wrongly --------------------------------------------------------------------------------------

Deliver = Callable[[Sink, ReadHead, bytes], ReadReply]


def replied(head: ReadHead) -> ReadReply:
    """The reply to a read with this head."""
    return ReadReply(head=head, received=head.size)


def promised(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    """Deliver as many bytes as the head says."""
    sink.begin(head)
    sink.feed((data + bytes(100))[: head.size])
    return replied(head)


def too_little(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    sink.begin(head)
    sink.feed(data[:-10])
    return replied(head)


def nothing(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    sink.begin(head)
    return replied(head)


def too_much(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    sink.begin(head)
    sink.feed(data + b"x" * 10)
    return replied(head)


def unbegun(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    return replied(head)


def bytes_before_the_head(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    sink.feed(data)
    return replied(head)


def memory_before_the_head(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    sink.writable()[:1] = data[:1]
    sink.advance(1)
    return replied(head)


def another_place(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    return promised(sink, replace(head, start=head.start + 1, size=head.size), data)


def less_promised(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    return promised(sink, replace(head, size=max(0, head.size - 10)), data)


def more_promised(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    return promised(sink, replace(head, size=head.size + 10), data)


def nothing_promised(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    return promised(sink, replace(head, size=0), data)


# Those below deliver all of it, and what is wrong is seen when the read returns.
def more_counted(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    sink.begin(head)
    sink.feed(data)
    sink.advance(10)
    return replied(head)


def another_start_in_the_reply(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    promised(sink, head, data)
    return replied(replace(head, start=head.start + 1, size=head.size - 1))


def another_size_in_the_reply(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    promised(sink, head, data)
    return replied(replace(head, size=head.size - 1))


def another_total_in_the_reply(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    promised(sink, head, data)
    assert head.total is not None
    return replied(replace(head, total=head.total + 1))


def another_version_in_the_reply(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
    promised(sink, head, data)
    return replied(replace(head, etag="another"))


SEEN_AT_ONCE: list[Deliver] = [
    *(too_little, nothing, too_much, unbegun, bytes_before_the_head, memory_before_the_head),
    *(another_place, less_promised, more_promised, nothing_promised),
]
SEEN_AT_THE_END: list[Deliver] = [
    *(more_counted, another_start_in_the_reply, another_size_in_the_reply, another_total_in_the_reply),
    another_version_in_the_reply,
]


@dataclass(frozen=True)
class Faulty(VerbLayer):
    """Reads what was asked for, and delivers it in its own way."""

    deliver: Deliver

    async def read(self, inner: ap.Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        whole = CollectSink()
        head = (await inner.read(request, whole)).head
        return self.deliver(sink, head, whole.to_bytes())


@dataclass(frozen=True)
class Plain(ap.Layer):
    """Changes nothing."""

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return ap.WrappedAccessor(inner)


# --- all that reads ---------------------------------------------------------------------------------------------------

Door = Callable[[ap.Operator, Path], Awaitable[Any]]


def of_reader(policy: Any) -> Door:
    """Read to the end by a reader."""

    async def read(op: ap.Operator, tmp: Path) -> bytes:
        async with op.reader("k", policy=policy) as reader:
            return await reader.read_at(0, 1 << 20)

    return read


async def stream(op: ap.Operator, tmp: Path) -> bytes:
    async with op.reader("k") as reader:
        return b"".join([bytes(chunk) async for chunk in reader.stream()])


async def download(op: ap.Operator, tmp: Path) -> bytes:
    await op.download("k", tmp / "target")
    return (tmp / "target").read_bytes()


async def copy_to_store(op: ap.Operator, tmp: Path) -> bytes:
    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as target:
        try:
            await ap.copy((op, "k"), (target, "k"))
        except ap.Error:
            assert not await target.exists("k")
            raise
        return await target.read("k")


async def copy_to_file(op: ap.Operator, tmp: Path) -> bytes:
    await ap.copy((op, "k"), str(tmp / "copy"))
    return (tmp / "copy").read_bytes()


async def copy_of_directory(op: ap.Operator, tmp: Path) -> bytes:
    report = await ap.copy((op, ""), str(tmp / "directory"))
    if report.failures:
        raise report.failures[0].error
    return (tmp / "directory" / "k").read_bytes()


async def read_into(op: ap.Operator, tmp: Path) -> bytes:
    buffer = bytearray(1 << 20)
    return bytes(buffer[: await op.read_into("k", 0, buffer)])


async def through_cache(op: ap.Operator, tmp: Path) -> bytes:
    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache:
        cached = op.layer(ap.layers.LruCacheLayer(cache=cache))
        data = await cached.read("k")
        assert await cached.read("k") == data
        await cached.aclose()
    return data


async def past_cache(op: ap.Operator, tmp: Path) -> bytes:
    """By a relay, and by requests for the rest."""
    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache:
        return await op.layer(ap.layers.LruCacheLayer(cache=cache, object_bytes_max=500)).read("k")


async def reader_through_cache(op: ap.Operator, tmp: Path) -> bytes:
    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache:
        data: bytes = await of_reader("adaptive")(op.layer(ap.layers.LruCacheLayer(cache=cache)), tmp)
        return data


def on_thread(call: Callable[[ap.Operator], bytes]) -> Door:
    """A door that waits."""

    def run(op: ap.Operator, tmp: Path) -> Awaitable[bytes]:
        return asyncio.to_thread(call, op)

    return run


def of_file(op: ap.Operator) -> bytes:
    with ap.sync.BlockingOperator(op) as blocking, blocking.open("k") as file:
        data = file.read()
        assert isinstance(data, bytes)
        return data


def of_fsspec(op: ap.Operator) -> bytes:
    data = ap.fsspec.AioPrefetchFileSystem(op).cat_file("k")
    assert isinstance(data, bytes)
    return data


def of_arrow(op: ap.Operator) -> bytes:
    with ap.arrow.filesystem(op).open_input_file("k") as file:
        return bytes(file.read())


def of_obspec(op: ap.Operator) -> bytes:
    return bytes(ap.obspec.store(op).get("k").buffer())


DOORS: dict[str, Door] = {
    "read": lambda op, tmp: op.read("k"),
    "range": lambda op, tmp: op.read("k", offset=0, size=1 << 20),
    "suffix": lambda op, tmp: op.read("k", suffix=1 << 20),
    "view": lambda op, tmp: op.view("k"),
    "read_into": read_into,
    **{policy: of_reader(policy) for policy in POLICIES},
    "stream": stream,
    "download": download,
    "copy_to_store": copy_to_store,
    "copy_to_file": copy_to_file,
    "copy_of_directory": copy_of_directory,
    "through_cache": through_cache,
    "past_cache": past_cache,
    "reader_through_cache": reader_through_cache,
    "file": on_thread(of_file),
    "fsspec": on_thread(of_fsspec),
    "arrow": on_thread(of_arrow),
    "obspec": on_thread(of_obspec),
}
# Those that use no byte before the read has returned, of objects of any size.
READ_AT_ONCE = (
    *("read", "range", "suffix", "view", "read_into", "download"),
    *("copy_to_file", "copy_of_directory", "past_cache", "fsspec", "obspec"),
)


async def stored(size: int) -> tuple[ap.Operator, bytes]:
    """A store with one object."""
    op = ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}", block_bytes=BLOCK, memory_bytes=64 * BLOCK)
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    await op.write("k", data)
    return op, data


def names(error: ap.ProtocolError) -> bool:
    """Whether an error names the layer, and not the store."""
    return error.path == "k" and "layer: Faulty" in str(error) and "service" not in error.context


@pytest.mark.parametrize(("door", "size"), in_turns(DOORS, SIZES))
async def test_wrong_bytes_are_an_error_that_names_the_layer(door: str, size: int, tmp_path: Path) -> None:
    """Never a success, a hang, or a word about memory."""
    op, _ = await stored(size)
    async with op, asyncio.timeout(60):
        for deliver in SEEN_AT_ONCE:
            with in_case(deliver=deliver.__name__), pytest.raises(ap.ProtocolError) as refused:
                await DOORS[door](op.layer(Faulty(deliver)), tmp_path)
            assert "layer: Faulty" in str(refused.value), deliver
            if "cache" not in door:  # It says which store it is before, too.
                assert names(refused.value), deliver


@pytest.mark.parametrize(("door", "size"), in_turns(DOORS, SIZES))
async def test_what_is_wrong_at_the_end_is_an_error_unless_all_bytes_were_there(
    door: str, size: int, tmp_path: Path
) -> None:
    """A reader uses bytes as they arrive, so it may have its right ones before. A read of its own is refused."""
    op, data = await stored(size)
    async with op, asyncio.timeout(60):
        for deliver in SEEN_AT_THE_END:
            read = op.layer(Faulty(deliver))
            with in_case(deliver=deliver.__name__):
                if door in READ_AT_ONCE or (door == "copy_to_store" and size == SIZES[0]):
                    with pytest.raises(ap.ProtocolError, match="layer: Faulty"):
                        await DOORS[door](read, tmp_path)
                else:
                    assert await DOORS[door](read, tmp_path) == data
                with pytest.raises(ap.ProtocolError, match="layer: Faulty"):
                    await read.read_ranges("k", [(0, 10), (900, 1000)], gap_bytes=0)


@pytest.mark.parametrize(("door", "size"), in_turns((door for door in DOORS if door != "reader_through_cache"), SIZES))
async def test_within_complete_it_is_an_error_that_names_the_store(door: str, size: int, tmp_path: Path) -> None:
    """A service that does it is seen in the same way."""
    op, _ = await stored(size)
    quick = op.layer(ap.layers.RetryLayer(base_seconds=0.0))
    async with op, asyncio.timeout(60):
        for deliver in SEEN_AT_ONCE:
            read = quick.layer(Faulty(deliver), inside=ap.layers.CompleteLayer)
            # Where Retry goes on behind what was promised nothing is, which it takes for another version.
            expected = (ap.ProtocolError, ap.ObjectChanged)
            with in_case(deliver=deliver.__name__), pytest.raises(expected, match="service: memory://") as refused:
                await DOORS[door](read, tmp_path)
            assert "layer" not in refused.value.context, deliver


@pytest.mark.parametrize("layers", [(), (Plain(),)], ids=["bare", "layered"])
@pytest.mark.parametrize(("door", "size"), in_turns(DOORS, [0, *SIZES]))
async def test_what_is_right_is_read(door: str, size: int, layers: tuple[ap.Layer, ...], tmp_path: Path) -> None:
    op, data = await stored(size)
    read = op
    for layer in layers:
        read = read.layer(layer)
    async with op, read, asyncio.timeout(60):
        assert await DOORS[door](read, tmp_path) == data


@each_of("inside", [None, ap.layers.CompleteLayer])
@each_of("policy", POLICIES)
async def test_an_empty_object_needs_a_head_too(policy: str, inside: type[ap.Layer] | None) -> None:
    op, _ = await stored(0)
    quick = ap.layers.RetryLayer(base_seconds=0.0)
    async with op, op.layer(quick).layer(Faulty(unbegun), inside=inside) as read, asyncio.timeout(60):
        with pytest.raises(ap.ProtocolError):
            await of_reader(policy)(read, Path())
        with pytest.raises(ap.ProtocolError):
            await read.read("k")


@pytest.mark.parametrize("deliver", [too_little, nothing, too_much, unbegun], ids=lambda deliver: deliver.__name__)
async def test_a_scan_names_the_layer(deliver: Deliver) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(300_000))}), file, use_dictionary=False, compression="none")

    def only_pages(sink: Sink, head: ReadHead, data: bytes) -> ReadReply:
        assert head.total is not None
        return (promised if head.end == head.total else deliver)(sink, head, data)

    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as op:
        await op.write("k", file.getvalue())
        for layer in (Faulty(deliver), Faulty(only_pages)):
            async with op.layer(layer) as read, asyncio.timeout(60):
                with pytest.raises(ap.ProtocolError, match="layer: Faulty"):
                    [batch async for batch in ap.parquet.scan(read, "k")]


# --- which layer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Innocent(Plain):
    """Another layer that changes nothing."""


@pytest.mark.parametrize("deliver", SEEN_AT_ONCE + SEEN_AT_THE_END, ids=lambda deliver: deliver.__name__)
async def test_of_several_layers_the_one_is_named_that_did_it(deliver: Deliver) -> None:
    op, _ = await stored(1000)
    async with op, op.layer(Plain()).layer(Faulty(deliver)).layer(Innocent()) as read:
        with pytest.raises(ap.ProtocolError) as refused:
            await read.read("k")
        assert names(refused.value)
        assert refused.value.context["layer"] == "Faulty"


async def test_what_the_store_does_is_not_the_fault_of_a_layer() -> None:
    fault = Rule(fault=Fault(content_range="bytes 5-14/1000"), times=None)
    async with FaultServer({"bkt/k": bytes(1000)}, [fault]) as server:
        op = ap.Operator.from_uri(f"{server.url}/bkt").layer(ap.layers.RetryLayer(attempts_max=1)).layer(Plain())
        async with op:
            with pytest.raises(ap.ProtocolError) as refused:
                await op.read("k", offset=0, size=10)
            assert "layer" not in refused.value.context
            assert "service" in refused.value.context


async def test_a_layer_within_retry_is_tried_twice() -> None:
    """As every response against the protocol, at the byte that was not delivered."""
    op, _ = await stored(1000)
    quick = ap.layers.RetryLayer(base_seconds=0.0)
    async with op, op.layer(quick).layer(Faulty(too_little), inside=ap.layers.RetryLayer) as read:
        with pytest.raises(ap.ProtocolError, match=r"990 bytes where .* 1000 .* range: \[990, 1000\).*layer: Faulty"):
            await read.read("k")


@pytest.mark.parametrize("inside", [None, ap.layers.RetryLayer])
async def test_a_read_that_goes_on_is_compared_as_a_whole(inside: type[ap.Layer] | None) -> None:
    """Its second response begins elsewhere than it was asked for at first."""
    op, data = await stored(1000)
    broken = FaultLayer((Injection(operation="read", at=300, error=ap.Unavailable),))
    quick = ap.layers.RetryLayer(base_seconds=0.0)
    cut = op.layer(quick).layer(broken, inside=ap.layers.ConcurrentLimitLayer).layer(Plain(), inside=inside)
    async with op, cut:
        assert await cut.read("k", offset=100, size=800) == data[100:900]


async def test_the_layers_of_an_operator_cost_no_call_for_it() -> None:
    op, _ = await stored(10)
    async with op:
        assert isinstance(op.accessor(), RetryAccessor)


# --- layers that may do what they do ----------------------------------------------------------------------------------


class Doubled(VerbLayer):
    """Serves each object twice in one."""

    async def read(self, inner: ap.Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        whole = CollectSink()
        etag = (await inner.read(ReadRequest(path=request.path), whole)).head.etag
        data = 2 * whole.to_bytes()
        head = check_range(request, total=len(data), etag=etag)
        sink.begin(head)
        await sink.pour(memoryview(data)[head.start : head.end])
        return replied(head)


@pytest.mark.parametrize("size", [0, *SIZES])
@pytest.mark.parametrize("door", [door for door in DOORS if "copy" not in door])
async def test_a_layer_may_change_sizes(door: str, size: int, tmp_path: Path) -> None:
    """With a head of its own. (Copies compare the size with the one that the store has listed.)"""
    op, data = await stored(size)
    async with op, op.layer(Doubled()) as read, asyncio.timeout(60):
        assert await DOORS[door](read, tmp_path) == 2 * data


@dataclass(frozen=True)
class TooShort(VerbLayer):
    """Drops the last ten bytes of each read of more."""

    async def read(self, inner: ap.Accessor, request: ReadRequest, sink: Sink) -> ReadReply:
        whole = CollectSink()
        reply = await inner.read(request, whole)
        return (too_little if reply.received > 10 else promised)(sink, reply.head, whole.to_bytes())


@pytest.mark.parametrize("policy", ["random", "adaptive"])
async def test_bytes_of_local_files_are_counted_too(policy: PolicyName, tmp_path: Path) -> None:
    """Of each read past the blocks; the first request has brought 64 KiB."""
    data = bytes(range(250)) * 4000
    (tmp_path / "k").write_bytes(data)
    short = ap.Operator.from_uri(tmp_path).layer(TooShort())
    async with short, short.reader("k", policy=policy) as reader:
        assert await reader.read_at(0, 10) == data[:10]
        for start in range(90_000, 900_000, 90_000):
            with pytest.raises(ap.ProtocolError, match="4086"):
                await reader.read_at(start, 4096)
