"""Complete: exact lengths, and what a service lacks is made up for by requests that can be counted."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import NotFound, ProtocolError, RangeNotSatisfied, Unavailable, Unsupported
from aioprefetch.layers import CompleteLayer, WrappedAccessor
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.testing import run_virtual
from aioprefetch.values import (
    Capability,
    CopyRequest,
    DeleteRequest,
    ListRequest,
    ReadReply,
    ReadRequest,
    Request,
    StatRequest,
    WriteRequest,
)


class Poor(WrappedAccessor):
    """A memory store that can do only what it says, and remembers what it was asked."""

    def __init__(self, inner: Any, capability: Capability) -> None:
        super().__init__(inner)
        self._capability = capability
        self.asked: list[Request] = []
        self.hide_total = False

    @property
    def capability(self) -> Capability:
        return self._capability

    async def around(self, request: Any, forward: Any) -> Any:
        self.asked.append(request)
        can = self._capability
        if isinstance(request, ReadRequest):
            assert request.suffix is None or can.read_suffix
        if isinstance(request, StatRequest):
            assert not request.path.endswith("/") or can.stat_directory
        if isinstance(request, ListRequest):
            assert not request.recursive or can.list_recursive
            assert request.start_after is None or can.list_start_after
        if isinstance(request, DeleteRequest):
            assert len(request.paths) <= can.delete_paths_max
        try:
            return await forward(request)
        except RangeNotSatisfied as error:
            if self.hide_total:
                error.total = None
            raise

    @property
    def words(self) -> list[str]:
        """Which operations were asked for."""
        return [request.operation for request in self.asked]


POOR = Capability(read=True, read_range=True, stat=True, list=True, write=True, delete=True, delete_paths_max=2)


def build(capability: Capability = POOR, **objects: bytes) -> tuple[Any, Poor, Memory]:
    """Complete over a poor store that holds ``objects`` ("_" in a name stands for "/")."""
    memory = Memory()
    for key, data in objects.items():
        memory.store.put(WriteRequest(path=key.replace("_", "/")), data)
    runtime = Runtime(RuntimeOptions())
    poor = Poor(memory.build(runtime), capability)
    return CompleteLayer().wrap(poor, runtime), poor, memory


async def read(accessor: Any, **fields: Any) -> bytes:
    """Read "k" into a sink, and once more as a stream: both must agree."""
    sink = CollectSink()
    await accessor.read(ReadRequest(path="k", **fields), sink)
    body = await accessor.open_read(ReadRequest(path="k", **fields))
    streamed = b""
    while chunk := await body.read_chunk():
        streamed += bytes(chunk)
    await body.aclose()
    assert streamed == sink.to_bytes()
    return streamed


@pytest.mark.parametrize("suffix", [1, 9, 10, 500])
async def test_a_suffix_by_way_of_stat(suffix: int) -> None:
    accessor, poor, _ = build(k=b"0123456789")
    assert await read(accessor, suffix=suffix) == b"0123456789"[-suffix:]
    assert poor.words == ["stat", "read"] * 2
    reads = [request for request in poor.asked if isinstance(request, ReadRequest)]
    assert all(request.if_match for request in reads)
    assert accessor.capability.read_suffix


async def test_what_a_service_can_do_is_left_to_it() -> None:
    accessor, poor, _ = build(dataclasses.replace(POOR, read_suffix=True), k=b"0123456789")
    assert await read(accessor, suffix=3) == b"789"
    assert poor.words == ["read", "read"]


@pytest.mark.parametrize("hide_total", [False, True])
@pytest.mark.parametrize("fields", [{}, {"offset": 5, "size": 3}, {"suffix": 4}, {"size": 2}])
async def test_every_range_of_an_empty_object_is_the_empty_one(fields: dict[str, int], hide_total: bool) -> None:
    accessor, poor, _ = build(k=b"")
    poor.hide_total = hide_total
    assert await read(accessor, **fields) == b""


@pytest.mark.parametrize("hide_total", [False, True])
async def test_a_range_beyond_the_end_tells_the_size(hide_total: bool) -> None:
    accessor, poor, _ = build(k=b"0123")
    poor.hide_total = hide_total
    with pytest.raises(RangeNotSatisfied) as caught:
        await accessor.read(ReadRequest(path="k", offset=4), CollectSink())
    assert caught.value.total == 4
    with pytest.raises(RangeNotSatisfied) as caught:
        await accessor.open_read(ReadRequest(path="k", offset=40, size=1))
    assert caught.value.total == 4


class Lying(Poor):
    """Delivers ``delta`` bytes more or fewer than the head says."""

    delta = 0

    async def read(self, request: ReadRequest, sink: Any) -> ReadReply:
        body = await self.inner.open_read(request)
        sink.begin(body.head)
        sink.feed(bytes(body.head.size + self.delta) if self.delta < 0 else bytes(body.head.size))
        return ReadReply(head=body.head, received=body.head.size)

    async def open_read(self, request: ReadRequest) -> Any:
        body = await self.inner.open_read(request)
        chunks = [bytes(3), bytes(body.head.size - 3 + self.delta), b""]

        class Body:
            head = body.head

            async def read_chunk(self) -> bytes:
                return chunks.pop(0)

            async def aclose(self) -> None: ...

        return Body()


@pytest.mark.parametrize("delta", [-2, 2])
async def test_a_body_has_exactly_the_bytes_of_its_head(delta: int) -> None:
    _, poor, memory = build(k=b"0123456789")
    lying = Lying(poor.inner, POOR)
    lying.delta = delta
    accessor = CompleteLayer().wrap(lying, Runtime(RuntimeOptions()))
    if delta < 0:
        with pytest.raises(ProtocolError):
            await accessor.read(ReadRequest(path="k"), CollectSink())
    body = await accessor.open_read(ReadRequest(path="k"))
    await body.read_chunk()
    if delta < 0:
        await body.read_chunk()
    with pytest.raises(Unavailable if delta < 0 else ProtocolError) as caught:
        await body.read_chunk()
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert memory.store.keys() == ["k"]


async def test_stat_of_directories_by_listing_one_entry() -> None:
    accessor, poor, _ = build(d_a=b"1", d_b=b"2")
    assert (await accessor.stat(StatRequest(path="d/"))).is_directory
    assert (await accessor.stat(StatRequest(path=""))).is_directory
    assert poor.words == ["list"]
    assert getattr(poor.asked[0], "page_entries_max", None) == 1
    with pytest.raises(NotFound):
        await accessor.stat(StatRequest(path="none/"))


async def test_copy_by_reading_and_writing() -> None:
    accessor, poor, memory = build(k=b"0123456789")
    await accessor.copy(CopyRequest(path="k", target="t"))
    assert memory.store.objects["t"].data == b"0123456789"
    assert poor.words == ["read", "write"]
    assert accessor.capability.copy
    with pytest.raises(NotFound):
        await accessor.copy(CopyRequest(path="none", target="u"))
    assert "u" not in memory.store.objects


async def test_a_copy_takes_the_metadata_along() -> None:
    accessor, poor, memory = build(dataclasses.replace(POOR, write_user_metadata=True, write_content_type=True))
    described: Any = {"content_type": "text/x", "cache_control": "no-store", "user_metadata": {"origin": "here"}}
    memory.store.put(WriteRequest(path="k", **described), b"0123")
    await accessor.copy(CopyRequest(path="k", target="t"))
    copied = memory.store.objects["t"]
    assert copied.data == b"0123"
    assert {name: getattr(copied.metadata, name) for name in described} == described
    assert poor.words == ["stat", "read", "write"]


@pytest.mark.parametrize("lacking", ["read", "write"])
async def test_a_copy_that_cannot_be_made_is_unsupported_before_anything_is_asked(lacking: str) -> None:
    accessor, poor, _ = build(dataclasses.replace(POOR, **{lacking: False}), k=b"0")
    with pytest.raises(Unsupported) as caught:
        await accessor.copy(CopyRequest(path="k", target="t"))
    assert (caught.value.operation, caught.value.path) == ("copy", "k")
    assert poor.words == []


async def test_a_copy_that_fails_says_so() -> None:
    accessor, _, _ = build()
    with pytest.raises(NotFound) as caught:
        await accessor.copy(CopyRequest(path="none", target="t"))
    assert (caught.value.operation, caught.value.path) == ("copy", "none")


async def test_streaming_writes_are_collected() -> None:
    accessor, poor, memory = build()
    body = await accessor.open_write(WriteRequest(path="w"))
    await body.write(b"ab")
    await body.write(memoryview(b"cd"))
    assert poor.words == []
    await body.close()
    assert memory.store.objects["w"].data == b"abcd"
    dropped = await accessor.open_write(WriteRequest(path="x"))
    await dropped.write(b"ab")
    await dropped.abort()
    assert "x" not in memory.store.objects


async def test_deletes_are_cut_to_what_the_service_takes() -> None:
    accessor, poor, memory = build(a=b"", b=b"", c=b"", d=b"", e=b"")
    await accessor.delete(DeleteRequest(path="a", paths=("a", "b", "c", "d", "none")))
    assert [len(request.paths) for request in poor.asked if isinstance(request, DeleteRequest)] == [2, 2, 1]
    assert memory.store.keys() == ["e"]


keys = st.sets(
    st.lists(st.sampled_from(["a", "b", "c d", "ü"]), min_size=1, max_size=4).map("/".join), min_size=0, max_size=12
)


@given(keys, st.sampled_from(["", "a/", "a/b/", "b"]), st.sampled_from([None, "a", "a/b", "b/a"]))
def test_recursive_lists_directory_by_directory(names: set[str], prefix: str, start_after: str | None) -> None:
    async def run() -> None:
        accessor, _, memory = build()
        for name in names:
            memory.store.put(WriteRequest(path=name), b"")
        request = ListRequest(path=prefix, recursive=True, start_after=start_after)
        found: list[str] = []
        while True:
            page = await accessor.list_page(request)
            found += [entry.path for entry in page.entries]
            if page.next_token is None:
                break
            request = dataclasses.replace(request, page_token=page.next_token)
        expected = [name for name in names if name.startswith(prefix) and name > (start_after or "")]
        assert sorted(found) == sorted(expected)

    run_virtual(run)
