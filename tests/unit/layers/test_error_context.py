"""ErrorContext: no error without operation, path, service and progress; no foreign exception; the cause is chained."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import Error, NotFound, RangeNotSatisfied, TimedOut, Unavailable, Unexpected
from aioprefetch.layers import ErrorContextLayer, LruCacheLayer, WrappedAccessor
from aioprefetch.layers.error_context import ErrorContextAccessor
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import Event
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.services.s3 import S3
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.values import (
    AbortUploadRequest,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListRequest,
    ListUploadsRequest,
    PartRequest,
    PresignRequest,
    ReadRequest,
    StatRequest,
    WriteRequest,
)
from tests.profile import each_of

OPERATIONS: dict[str, Callable[[Accessor], Awaitable[object]]] = {
    "stat": lambda a: a.stat(StatRequest(path="k")),
    "read": lambda a: a.read(ReadRequest(path="k", offset=2, size=5), CollectSink()),
    "list": lambda a: a.list_page(ListRequest(path="k")),
    "write": lambda a: a.write(WriteRequest(path="k"), b""),
    "open_write": lambda a: a.open_write(WriteRequest(path="k")),
    "begin_upload": lambda a: a.begin_upload(WriteRequest(path="k")),
    "write_part": lambda a: a.write_part(PartRequest(path="k", upload_id="u", number=1), b""),
    "copy_part": lambda a: a.copy_part(CopyPartRequest(path="k", upload_id="u", number=1, source="s", start=0, end=5)),
    "complete_upload": lambda a: a.complete_upload(CompleteUploadRequest(path="k", upload_id="u", parts=())),
    "abort_upload": lambda a: a.abort_upload(AbortUploadRequest(path="k", upload_id="u")),
    "list_uploads": lambda a: a.list_uploads(ListUploadsRequest(path="k")),
    "copy": lambda a: a.copy(CopyRequest(path="k", target="t")),
    "delete": lambda a: a.delete(DeleteRequest(path="k", paths=("k",))),
    "create_dir": lambda a: a.create_dir(CreateDirRequest(path="k")),
    "presign": lambda a: a.presign(PresignRequest(path="k")),
}

# What an operation is called in errors: the requests of a write are parts of it.
NAMES = {**dict.fromkeys(("open_write", "begin_upload", "write_part", "complete_upload"), "write"), "copy_part": "copy"}


class Failing(WrappedAccessor):
    """Raises one exception from everything."""

    error: BaseException

    async def around(self, request: Any, forward: Any) -> Any:
        raise self.error


class BreakingBody:
    """A body that takes some bytes, and then breaks."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.turns = 0

    async def write(self, chunk: bytes) -> None:
        self.turns += 1
        if self.turns > 1:
            raise self.error

    async def close(self) -> None:
        raise self.error

    async def abort(self) -> None: ...


class Breaking(WrappedAccessor):
    """Reads that break off after three bytes, and bodies that break."""

    error: BaseException

    async def read(self, request: ReadRequest, sink: Any) -> Any:
        whole = CollectSink()
        reply = await self.inner.read(request, whole)
        sink.begin(reply.head)
        sink.feed(b"abc")
        raise self.error

    async def open_write(self, request: WriteRequest) -> Any:
        return BreakingBody(self.error)


async def stack(kind: type[Failing] | type[Breaking], error: BaseException) -> tuple[Accessor, Runtime]:
    """ErrorContext over something that fails with ``error``."""
    runtime = Runtime(RuntimeOptions())
    memory = Memory("errors")
    memory.store.put(WriteRequest(path="k"), b"0123456789")
    inner = kind(memory.build(runtime))
    inner.error = error
    return ErrorContextLayer().wrap(inner, runtime), runtime


@each_of("name", OPERATIONS)
async def test_errors_of_ours_are_filled_in_and_stay_themselves(name: str) -> None:
    cause = OSError("wire")
    error = NotFound("no")
    error.__cause__ = cause
    accessor, _ = await stack(Failing, error)
    with pytest.raises(NotFound) as caught:
        await OPERATIONS[name](accessor)
    assert caught.value is error
    assert error.__cause__ is cause
    assert error.operation == NAMES.get(name, name)
    assert error.path == "k"
    assert error.context["service"] == "memory://errors"
    assert ("range" in error.context) == (error.operation == "read")


@each_of("name", OPERATIONS)
async def test_foreign_exceptions_become_unexpected_with_the_cause_chained(name: str) -> None:
    foreign = KeyError("what is this")
    accessor, _ = await stack(Failing, foreign)
    with pytest.raises(Unexpected) as caught:
        await OPERATIONS[name](accessor)
    assert caught.value.__cause__ is foreign
    assert (caught.value.operation, caught.value.path) == (NAMES.get(name, name), "k")
    assert "KeyError" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).path == "k"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
async def test_what_is_no_failure_passes_unchanged(error: BaseException) -> None:
    accessor, _ = await stack(Failing, error)
    for call in list(OPERATIONS.values())[:2]:
        with pytest.raises(type(error)) as caught:
            await call(accessor)
        assert caught.value is error


async def test_the_inner_word_wins() -> None:
    error = Unavailable("no", operation="connect", path="other", context={"service": "inner"})
    accessor, _ = await stack(Failing, error)
    with pytest.raises(Unavailable):
        await OPERATIONS["stat"](accessor)
    assert (error.operation, error.path, error.context["service"]) == ("connect", "other", "inner")


@pytest.mark.parametrize("error", [Unavailable("broke"), OSError("wire")])
async def test_an_error_says_how_many_bytes_were_received_or_written(error: Exception) -> None:
    accessor, _ = await stack(Breaking, error)
    sink = CollectSink()
    with pytest.raises(Error) as caught:
        await accessor.read(ReadRequest(path="k", offset=2), sink)
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert (caught.value.received, caught.value.head) == (3, sink.head)
    assert caught.value.context["received"] == 3
    assert caught.value.context["range"] == "[2, end)"
    target = await accessor.open_write(WriteRequest(path="w"))
    await target.write(b"12345")
    for call in (lambda: target.write(b"6"), lambda: target.close()):
        with pytest.raises(Error) as failed:
            await call()
        assert failed.value.operation
        assert failed.value.path == "w" or failed.value is error
        assert failed.value.context["written"] == 5
    await target.abort()


async def test_a_streaming_write_that_fails_is_reported_with_its_error() -> None:
    """By ``write`` or ``close``, whichever fails first, and once; also a cancellation."""
    for error, name in ((Unavailable("broke"), "Unavailable"), (asyncio.CancelledError(), "CancelledError")):
        for chunks in (1, 2):
            accessor, runtime = await stack(Breaking, error)
            heard: list[Event] = []
            runtime.events.subscribe(heard.append, "request.finished", "request.failed")
            body = await accessor.open_write(WriteRequest(path="w"))
            await body.write(b"12345")
            with pytest.raises(type(error)):
                await (body.write(b"6") if chunks == 2 else body.close())
            assert [(event.name, event.facts["error"]) for event in heard] == [("request.failed", name)]
            await body.abort()
            assert len(heard) == 1
            await runtime.aclose()


@each_of(
    ("path", "says"),
    [
        ("memory://store/a/k", "paths are relative to memory://store/a, and this one is a URL, so this may be 'k'"),
        ("s3://store/a/d/k", "and this one is a URL, so this may be 'd/k'"),
        ("https://other/k?sig=CANARY", "paths are relative to memory://store/a, and this one is a URL"),
        ("/k", "paths are relative to memory://store/a, and this one begins with a slash, so this may be 'k'"),
        ("/store/a/k", "and this one begins with a slash, so this may be 'k'"),
        (
            "store/a/d/k",
            "paths are relative to memory://store/a, and this one begins with store/a/, so this may be 'd/k'",
        ),
        ("store/k", "and this one begins with store/, so this may be 'k'"),
        ("d/*.csv", "a path is taken as it stands: list(prefix, glob=...) finds what matches a pattern"),
    ],
)
async def test_a_url_in_place_of_a_path_is_found_out(path: str, says: str) -> None:
    async with Operator.from_uri("memory://store/a") as operator:
        for call in (operator.read(path), operator.stat(path), operator.reader(path).read(), operator.copy(path, "t")):
            with pytest.raises(NotFound) as caught:
                await call
            assert str(caught.value.context["hint"]).endswith(says)
            assert says in str(caught.value)
            assert "CANARY" not in str(caught.value.context)
        await operator.write(path, b"there")
        assert await operator.read(path) == b"there"
        await operator.delete(path)
        with pytest.raises(NotFound) as caught:
            await operator.read("k/s3://x")
        assert "hint" not in caught.value.context


async def test_the_hint_names_the_key_at_an_endpoint_too() -> None:
    """The endpoint says where the store is, and is no part of the URL that was given as a path."""
    service = S3(bucket="store", prefix="pre", endpoint_url="http://127.0.0.1:9", anonymous=True)
    runtime = Runtime(RuntimeOptions())
    layer = ErrorContextAccessor(service.build(runtime), runtime)
    explained = layer.explain(NotFound("there is no such object"), ReadRequest(path="s3://store/pre/k"))
    assert explained.context["hint"] == (
        "paths are relative to s3://store/pre at http://127.0.0.1:9, and this one is a URL, so this may be 'k'"
    )
    await runtime.aclose()


async def test_time_outs_and_errors_of_a_cache_name_the_service() -> None:
    """They arise beyond the layer that names it in all others."""
    hanging = Rule(fault=Fault(hang_before_head=True), key="hanging", times=None)
    async with FaultServer({"k": b"0123456789"}, [hanging]) as server, Operator.from_uri("memory://") as cache:
        layer = LruCacheLayer(cache=cache, capacity_bytes=1 << 20)
        for operator in (Operator.from_uri(server.url), Operator.from_uri(server.url).layer(layer)):
            async with operator:
                with pytest.raises(TimedOut) as late:
                    await operator.read("hanging", timeout_seconds=0.05)
                await operator.read("k")
                with pytest.raises(RangeNotSatisfied) as beyond:
                    await operator.read("k", offset=10)
            for error in (late.value, beyond.value):
                assert error.context["service"] == server.url
                assert (error.operation, bool(error.path)) == ("read", True)
        server.release()
