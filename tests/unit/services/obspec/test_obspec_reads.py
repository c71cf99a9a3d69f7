"""Reads over stores that have little, or lie: exact bytes, or a typed error before the first one."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from aioprefetch.accessor.sink import CollectSink
from aioprefetch.errors import (
    ConditionNotMatch,
    InvalidPath,
    ObjectChanged,
    ProtocolError,
    RangeNotSatisfied,
    Unavailable,
    Unsupported,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.values import Capability, ReadRequest
from tests.profile import each_of
from tests.unit.services.obspec.plain import GetOnly, Result


async def test_a_store_that_only_gets_is_read() -> None:
    """Whole, by ranges, by a suffix, by a reader; its size is asked by the same method."""
    store = GetOnly()
    async with Operator.bare(ObspecStore(store)) as op:
        assert await op.read("k") == b"0123456789"
        assert await op.read("k", offset=3, size=4) == b"3456"
        assert await op.read("k", offset=8) == b"89"
        assert await op.read("k", suffix=3) == b"789"
        assert (await op.stat("k")).size == 10
        assert store.options == [
            {"range": (0, 16 << 20)},
            {"range": (3, 7)},
            {"range": (8, 8 + (16 << 20))},
            {"range": {"suffix": 3}},
            {"head": True},
        ]
        async with op.reader("k") as reader:
            assert await reader.read_at(2, 3) == b"234"
        with pytest.raises(Unsupported):
            await op.write("k", b"")
        with pytest.raises(Unsupported):
            await op.delete("k")


def test_capability_is_found_from_the_methods() -> None:
    """One that only gets can do what a get can do."""
    assert ObspecStore(GetOnly()).capability == Capability(
        read=True,
        read_range=True,
        read_suffix=True,
        read_if_match=True,
        read_if_none_match=True,
        read_if_modified_since=True,
        read_if_unmodified_since=True,
        stat=True,
    )
    configured = Capability(read=True, stat=True)
    assert ObspecStore(GetOnly(), capability=configured).capability == configured


def changed(**facts: Any) -> Callable[[Result], None]:
    """Falsify the metadata of a response."""
    return lambda result: result.meta.update(facts)


def bounded(*bounds: Any) -> Callable[[Result], None]:
    """Falsify the range of a response."""

    def falsify(result: Result) -> None:
        result.range = bounds

    return falsify


@each_of(
    "lie",
    [
        bounded(4, 8),
        bounded(0, 10),
        bounded(3, 3),
        bounded(7, 3),
        bounded(-1, 3),
        bounded(3, 70),
        bounded(3.0, 7.0),
        bounded(None, None),
        bounded(3),
        changed(size=5),
        changed(size="10"),
        changed(size=-1),
        changed(size=None),
        changed(size=1 << 80),
    ],
)
async def test_a_range_that_was_not_asked_for_is_refused(lie: Callable[[Result], None]) -> None:
    """With none of its bytes delivered, and its stream never begun."""
    store = GetOnly()
    store.falsify = lie
    async with Operator.bare(ObspecStore(store)) as op:
        sink = CollectSink()
        with pytest.raises(ProtocolError) as caught:
            await op.accessor().read(ReadRequest(path="k", offset=3, size=4), sink)
    assert caught.value.is_temporary
    assert (caught.value.operation, caught.value.path, sink.received) == ("read", "k", 0)


async def test_a_body_is_exact() -> None:
    """A shorter one breaks off, a longer one is an error; what came before counts in neither."""
    store = GetOnly()
    async with Operator.bare(ObspecStore(store)) as op:
        store.falsify = lambda result: result.chunks.remove(b"56789")
        with pytest.raises(Unavailable, match="ended after 5 of 10"):
            await op.read("k")
        store.falsify = lambda result: result.chunks.append(b"more")
        assert await op.read("k") == b"0123456789"
        store.falsify = lambda result: result.chunks.insert(1, b"more")
        with pytest.raises(ProtocolError, match="more bytes than were asked for: over 10"):
            await op.accessor().read(ReadRequest(path="k"), sink := CollectSink())
        assert sink.to_bytes() == b"01234more"
    assert [result.closed for result in store.results] == [1, 1, 1]


async def test_another_version_is_refused() -> None:
    """By comparison where the store looks at no condition."""
    store = GetOnly()
    async with Operator.bare(ObspecStore(store)) as op:
        with pytest.raises(ConditionNotMatch):
            await op.read("k", if_match="e-2")
        assert await op.read("k", if_match="e-1") == b"0123456789"
        with pytest.raises(ConditionNotMatch):
            await op.accessor().read(ReadRequest(path="k", if_none_match="e-1"), CollectSink())
        async with op.reader("k", block_bytes=4) as reader:
            assert await reader.read_at(0, 4) == b"0123"
            store.etag = "e-3"
            with pytest.raises(ObjectChanged):
                await reader.read_at(8, 2)


@pytest.mark.parametrize(("etag", "sent"), [('"e-1"', '"e-2"'), ("e-1", "e-2")])
async def test_conditions_have_the_form_of_the_store(etag: str, sent: str) -> None:
    """Nothing is sent before its form is known, so that no store misunderstands it."""
    store = GetOnly(etag=etag)
    async with Operator.bare(ObspecStore(store)) as op:
        for _ in range(2):
            with pytest.raises(ConditionNotMatch):
                await op.read("k", if_match="e-2")
        first = {"range": (0, 16 << 20)}
        assert store.options == [first, first | {"if_match": sent}]


async def test_without_an_etag_time_and_size_tell_versions_apart() -> None:
    """As a weak ETag, which is compared and never sent."""
    store = GetOnly(etag=None)
    async with Operator.bare(ObspecStore(store)) as op:
        found = await op.stat("k")
        assert found.etag is not None
        assert found.etag.startswith("W/")
        assert await op.read("k", if_match=found.etag) == store.data
        store.data += b"x"
        with pytest.raises(ConditionNotMatch):
            await op.read("k", if_match=found.etag)
    assert all("if_match" not in options for options in store.options)


async def test_a_version_that_the_store_does_not_tell_is_refused() -> None:
    """Where the recipe says that it can do versions and it sends what is newest."""
    store = GetOnly()
    able = Capability(read=True, read_range=True, stat=True, read_version=True)
    async with Operator.bare(ObspecStore(store, capability=able)) as op:
        with pytest.raises(ProtocolError):
            await op.read("k", version="v-1")
        with pytest.raises(ProtocolError):
            await op.stat("k", version="v-1")
        assert store.options[0]["version"] == "v-1"


async def test_suffixes_of_stores_that_have_none() -> None:
    """By the size, if the recipe says so; pinned to the response that had the size."""
    store = GetOnly(etag='"e-1"')
    able = Capability(read=True, read_range=True, read_if_match=True, stat=True)
    async with Operator.bare(ObspecStore(store, capability=able)) as op:
        await op.read("k")
        assert await op.read("k", suffix=4) == b"6789"
    assert store.options[1:] == [{"head": True}, {"range": (6, 10), "if_match": '"e-1"'}]


@pytest.mark.parametrize(
    ("words", "data", "requests"),
    [
        ("<Code>InvalidRange</Code>", b"0123", ["read", "read"]),
        ("Received non-partial response when range requested", b"", ["read", "stat"]),
    ],
)
async def test_each_request_of_a_read_counts(words: str, data: bytes, requests: list[str]) -> None:
    """A suffix is refused, and the object read whole; a range is ignored, and the size asked for."""

    class Refusing(GetOnly):
        async def get_async(self, path: str, *, options: dict[str, Any] | None = None) -> Result:
            result = await super().get_async(path, options=options)
            if "range" in (options or {}):
                raise RuntimeError(words)
            return result

    async with Operator.bare(ObspecStore(store := Refusing(data))) as op:
        started: list[object] = []
        op.events.subscribe(lambda event: started.append(event.facts["operation"]), "request.started")
        assert await op.read("k", suffix=9) == data
        counts = op.statistics
        assert started == requests
        assert counts["action_http_get_request"] == requests.count("read")
        assert counts["action_http_head_request"] == requests.count("stat")
        assert counts["stream_read_total_bytes"] == len(data)
        assert len(store.options) == len(requests)


async def test_beyond_the_end() -> None:
    """A store that answers with nothing there is wrong; one that says so is believed."""

    class Refusing(GetOnly):
        async def get_async(self, path: str, *, options: dict[str, Any] | None = None) -> Result:
            if options and options.get("range", (0, 0))[0] >= 10:
                raise RuntimeError("Wanted range starting at 10, but object was only 10 bytes long")
            return await super().get_async(path, options=options)

    async with Operator.bare(ObspecStore(Refusing())) as op:
        with pytest.raises(RangeNotSatisfied) as caught:
            await op.read("k", offset=10, size=1)
        assert caught.value.total == 10
    async with Operator.bare(ObspecStore(GetOnly())) as op:
        with pytest.raises(ProtocolError):
            await op.read("k", offset=10, size=1)


@pytest.mark.parametrize("path", ["/k", "a//b", "a/../b"])
async def test_names_that_mean_another_object_are_refused(path: str) -> None:
    """Before any request: obstore would drop the slash."""
    store = GetOnly()
    async with Operator.bare(ObspecStore(store)) as op:
        with pytest.raises(InvalidPath):
            await op.read(path)
    assert store.options == []


async def test_a_refused_answer_is_let_go() -> None:
    """Also while the exception is kept: the connection ends with the last reference to the response."""
    store = GetOnly()
    store.falsify = changed(e_tag="e-2")
    async with Operator.bare(ObspecStore(store)) as op:
        with pytest.raises(ConditionNotMatch) as caught:
            await op.read("k", if_match="e-1")
        seen = weakref.ref(store.results.pop())
        gc.collect()
        assert caught.value.__traceback__ is not None
        assert seen() is None
