"""Complete: exact lengths, and what a service lacks is made up for by requests that can be counted."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import (
    ConditionNotMatch,
    NotFound,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Unsupported,
)
from aioprefetch.layers import CompleteLayer, WrappedAccessor
from aioprefetch.layers.complete import CompleteAccessor
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.testing import run_virtual
from aioprefetch.testing.conformance.suite import checks
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
from tests.profile import each_of


class Poor(WrappedAccessor):
    """A memory store that can do only what it says, and remembers what it was asked."""

    def __init__(self, inner: Any, capability: Capability) -> None:
        super().__init__(inner)
        self._capability = capability
        self.asked: list[Request] = []
        self.hide_total = self.refuses_empty = False

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
            refuses = self.refuses_empty and isinstance(request, ReadRequest)
            if refuses and not (await self.inner.stat(StatRequest(path=request.path))).size:
                raise RangeNotSatisfied("416", total=0, operation="read", path=request.path)
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
    """The bytes of "k"."""
    sink = CollectSink()
    reply = await accessor.read(ReadRequest(path="k", **fields), sink)
    assert reply.head == sink.head
    return sink.to_bytes()


@pytest.mark.parametrize("suffix", [1, 9, 10, 500])
async def test_a_suffix_by_way_of_stat(suffix: int) -> None:
    accessor, poor, _ = build(k=b"0123456789")
    assert await read(accessor, suffix=suffix) == b"0123456789"[-suffix:]
    assert poor.words == ["stat", "read"]
    assert accessor.capability.read_suffix


async def test_what_a_service_can_do_is_left_to_it() -> None:
    accessor, poor, _ = build(dataclasses.replace(POOR, read_suffix=True), k=b"0123456789")
    assert await read(accessor, suffix=3) == b"789"
    assert poor.words == ["read"]


@each_of("hide_total", [False, True])
@each_of("fields", [{}, {"offset": 5, "size": 3}, {"suffix": 4}, {"size": 2}])
async def test_every_range_of_an_empty_object_is_the_empty_one(fields: dict[str, int], hide_total: bool) -> None:
    accessor, poor, memory = build(k=b"")
    poor.hide_total = hide_total
    assert await read(accessor, **fields) == b""
    poor.refuses_empty = True
    assert await read(accessor, **fields) == b""
    assert await read(accessor, **fields, if_match=memory.store.objects["k"].metadata.etag) == b""
    with pytest.raises(ConditionNotMatch):
        await read(accessor, **fields, if_match="other")


@pytest.mark.parametrize("hide_total", [False, True])
async def test_a_range_beyond_the_end_tells_the_size(hide_total: bool) -> None:
    accessor, poor, _ = build(k=b"0123")
    poor.hide_total = hide_total
    with pytest.raises(RangeNotSatisfied) as caught:
        await accessor.read(ReadRequest(path="k", offset=4), CollectSink())
    assert caught.value.total == 4
    with pytest.raises(RangeNotSatisfied) as caught:
        await accessor.read(ReadRequest(path="k", offset=40, size=1), CollectSink())
    assert caught.value.total == 4


class Lying(Poor):
    """Delivers fewer bytes than the head says, and a reply as if nothing were missing."""

    async def read(self, request: ReadRequest, sink: Any) -> ReadReply:
        whole = CollectSink()
        reply = await self.inner.read(request, whole)
        sink.begin(reply.head)
        sink.feed(whole.to_bytes()[:-2])
        return reply


async def test_a_body_has_exactly_the_bytes_of_its_head() -> None:
    _, poor, memory = build(k=b"0123456789")
    accessor = CompleteLayer().wrap(Lying(poor.inner, POOR), Runtime(RuntimeOptions()))
    with pytest.raises(ProtocolError, match="8 bytes where its head says 10") as caught:
        await accessor.read(ReadRequest(path="k"), CollectSink())
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert memory.store.keys() == ["k"]


@pytest.mark.parametrize("if_match", ["*", "etag"])
async def test_if_match_is_compared_where_the_service_cannot(if_match: str) -> None:
    accessor, poor, memory = build(k=b"0123456789")
    etag = if_match if if_match == "*" else memory.store.objects["k"].metadata.etag
    assert await read(accessor, if_match=etag, offset=4) == b"456789"
    assert all(request.if_match is None for request in poor.asked if isinstance(request, ReadRequest))
    sink = CollectSink()
    with pytest.raises(ConditionNotMatch) as caught:
        await accessor.read(ReadRequest(path="k", if_match="other"), sink)
    assert caught.value.context["etag"] == memory.store.objects["k"].metadata.etag
    assert (sink.head, sink.received) == (None, 0)


@each_of("can_compare", [True, False])
@each_of("has_etag", [True, False])
@each_of("before", [b"0123456789", b""])
@each_of("after", [b"98765432109876543210", b"9"])
async def test_an_object_that_changes_after_the_stat_of_a_suffix_is_asked_for_again(
    after: bytes, before: bytes, has_etag: bool, can_compare: bool
) -> None:
    """Its end is that of the version whose size is known, by the ETag or by the size."""
    capability = dataclasses.replace(POOR, read_if_match=can_compare)
    accessor, poor, memory = build(capability, k=before)
    forward = poor.around

    async def change_after_stat(request: Any, call: Any) -> Any:
        response = await forward(request, call)
        if request.operation != "stat":
            return response
        if memory.store.objects["k"].data == before:
            memory.store.put(WriteRequest(path="k"), after)
        return response if has_etag else dataclasses.replace(response, etag=None)

    poor.around = change_after_stat  # type: ignore[assignment, method-assign]
    with pytest.raises(ObjectChanged, match="between the requests") as caught:
        await read(accessor, suffix=3)
    assert caught.value.is_temporary
    assert await read(accessor, suffix=3) == after[-3:]


async def test_a_condition_of_the_caller_on_a_suffix_stays_his() -> None:
    accessor, _, memory = build(dataclasses.replace(POOR, read_if_none_match=True), k=b"0123456789")
    etag = memory.store.objects["k"].metadata.etag
    for conditions in ({"if_match": "other"}, {"if_none_match": etag}):
        with pytest.raises(ConditionNotMatch):
            await read(accessor, suffix=3, **conditions)
    assert await read(accessor, suffix=3, if_match=etag) == b"789"


async def test_the_end_of_a_version_is_that_of_its_own_size() -> None:
    accessor, poor, _ = build(dataclasses.replace(POOR, read_version=True), k=b"0123456789")
    await read(accessor, suffix=3, version="old")
    assert [getattr(request, "version", None) for request in poor.asked] == ["old", "old"]


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


async def test_a_copy_reads_one_part_at_a_time() -> None:
    for data in (b"", b"012", b"0123", b"0123456789"):
        _, poor, memory = build(k=data)
        accessor = CompleteAccessor(poor, copy_part_bytes=4)
        await accessor.copy(CopyRequest(path="k", target="t"))
        assert memory.store.objects["t"].data == data
        reads = [request for request in poor.asked if isinstance(request, ReadRequest)]
        assert [(part.offset, part.size) for part in reads] == [(at, 4) for at in range(0, len(data) or 1, 4)]


@checks("reliability:W11")
async def test_the_parts_of_a_copy_are_pinned_to_the_first() -> None:
    _, poor, memory = build(dataclasses.replace(POOR, read_if_match=True), k=b"0123456789")
    await CompleteAccessor(poor, copy_part_bytes=4).copy(CopyRequest(path="k", target="t"))
    etag = memory.store.objects["k"].metadata.etag
    assert [one.if_match for one in poor.asked if isinstance(one, ReadRequest)] == [None, etag, etag]


@checks("reliability:W11")
@pytest.mark.parametrize("capability", [POOR, dataclasses.replace(POOR, read_if_match=True)])
@pytest.mark.parametrize("has_etag", [True, False])
async def test_a_copy_never_mixes_two_versions(capability: Capability, has_etag: bool) -> None:
    """Pinned by the ETag, or without one by the size and ``Last-Modified``; nothing is written."""
    _, poor, memory = build(capability, k=b"0123456789")
    inner_read = poor.read

    async def read_then_change(request: ReadRequest, sink: CollectSink) -> ReadReply:
        whole = CollectSink()
        reply = await inner_read(request, whole)
        head = reply.head if has_etag else dataclasses.replace(reply.head, etag=None)
        sink.begin(head, path="k")
        sink.feed(whole.to_view())
        memory.store.put(WriteRequest(path="k"), b"abcdefghij" if has_etag else b"abcdefghijk")
        return ReadReply(head=head, received=head.size)

    poor.read = read_then_change  # type: ignore[assignment, method-assign]
    with pytest.raises(ObjectChanged) as caught:
        await CompleteAccessor(poor, copy_part_bytes=4).copy(CopyRequest(path="k", target="t"))
    assert (caught.value.operation, caught.value.path) == ("copy", "k")
    assert (caught.value.expected_etag is not None) == has_etag
    assert "t" not in memory.store.objects


@checks("reliability:W11")
@pytest.mark.parametrize("has_etag", [True, False])
async def test_a_copy_is_of_the_version_that_was_described(has_etag: bool) -> None:
    accessor, poor, memory = build(dataclasses.replace(POOR, write_user_metadata=True), k=b"0123456789")
    inner_stat = poor.stat

    async def stat_then_change(request: StatRequest) -> Any:
        found = await inner_stat(request)
        memory.store.put(WriteRequest(path="k"), b"abc")
        return found if has_etag else dataclasses.replace(found, etag=None)

    poor.stat = stat_then_change  # type: ignore[method-assign]
    with pytest.raises(ObjectChanged) as caught:
        await accessor.copy(CopyRequest(path="k", target="t"))
    assert (caught.value.operation, caught.value.path) == ("copy", "k")
    assert "t" not in memory.store.objects


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
