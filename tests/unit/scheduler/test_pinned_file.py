"""A file is opened by one request for its tail; from then on one version of it is read, or an error raised."""

import pytest

from aioprefetch.errors import ConditionNotMatch, ConfigInvalid, NotFound, ObjectChanged, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.scheduler.pinned_file import TAIL_BYTES, PinnedFile
from aioprefetch.services.memory import Memory
from aioprefetch.values import ReadRequest, WriteRequest
from tests.stores.gated_reader import Bench, bench, with_etag, with_total

SIZE = 300_000


async def opened(b: Bench, **options: object) -> PinnedFile:
    """The file "k" of a bench, opened."""
    return await PinnedFile.open(b.operator.accessor(), b.runtime, "k", **options)  # type: ignore[arg-type]


async def test_one_suffix_request_brings_size_version_and_tail() -> None:
    async with bench(SIZE) as b:
        etag = b.put(b.data)
        file = await opened(b)
        assert [(c.request.suffix, c.request.size) for c in b.calls] == [(TAIL_BYTES, None)]
        assert b.gate.stats == []
        assert (file.path, file.size, file.tail_start) == ("k", SIZE, SIZE - TAIL_BYTES)
        assert file.etag == etag
        assert bytes(file.tail) == b.data[-TAIL_BYTES:]
        assert file.tail.readonly


async def test_a_small_file_is_all_tail() -> None:
    async with bench(100) as b:
        file = await opened(b)
        assert (file.tail_start, bytes(await file.read(0, 100))) == (0, b.data)
        assert len(b.calls) == 1


async def test_the_first_bytes_bring_the_version_of_the_rest() -> None:
    async with bench(SIZE) as b:
        etag = b.put(b.data)
        request = ReadRequest(path="k", offset=10, size=90)
        head, first, file = await PinnedFile.begin(b.operator.accessor(), b.runtime, request)
        assert b.ranges == [(10, 100)]
        assert (head.start, head.total, bytes(first), first.readonly) == (10, SIZE, b.data[10:100], True)
        assert file is not None
        assert (file.path, file.size, file.etag, bytes(file.tail)) == ("k", SIZE, etag, b"")
        assert bytes(await file.read(100, 200)) == b.data[100:200]
        b.put(b.data[::-1])
        with pytest.raises(ObjectChanged):
            await file.read(200, 300)


async def test_a_read_to_the_end_tells_the_size() -> None:
    async with bench(SIZE) as b:
        b.gate.falsify = with_total(None)
        accessor = b.operator.accessor()
        _, first, file = await PinnedFile.begin(accessor, b.runtime, ReadRequest(path="k", offset=SIZE - 5))
        assert file is not None
        assert (file.size, bytes(first)) == (SIZE, b.data[-5:])
        _, first, file = await PinnedFile.begin(accessor, b.runtime, ReadRequest(path="k", size=5))
        assert (file, bytes(first)) == (None, b.data[:5])


async def test_an_empty_object_is_a_file_without_bytes() -> None:
    async with bench(0) as b:
        file = await opened(b)
        assert (file.size, bytes(file.tail), file.tail_start) == (0, b"", 0)
        assert bytes(await file.read(0, 0)) == b""


async def test_an_empty_object_of_a_store_without_the_complete_layer() -> None:
    async with bench(0) as b:
        inner = Memory()
        inner.store.put(WriteRequest(path="k"), b"")
        file = await PinnedFile.open(inner.build(b.runtime), b.runtime, "k")
        assert file.size == 0


async def test_a_known_size_is_asked_for_as_a_plain_range() -> None:
    async with bench(SIZE) as b:
        file = await opened(b, known_size=SIZE, tail_bytes=1000)
        assert b.ranges == [(SIZE - 1000, SIZE)]
        assert bytes(file.tail) == b.data[-1000:]


@pytest.mark.parametrize("claimed", [SIZE - 1, SIZE + 1, SIZE + 5000, 1])
async def test_a_size_that_is_wrong_is_not_trusted(claimed: int) -> None:
    async with bench(SIZE) as b:
        with pytest.raises(UntrustedMetadata, match=str(claimed)):
            await opened(b, known_size=claimed, tail_bytes=1000)


async def test_an_object_that_should_be_empty_or_not() -> None:
    async with bench(0) as b:
        with pytest.raises(UntrustedMetadata):
            await opened(b, known_size=7)
        b.put(b"1234567")
        with pytest.raises(UntrustedMetadata):
            await opened(b, known_size=0)


async def test_what_is_missing_or_another_version_is_said_so() -> None:
    async with bench(SIZE) as b:
        with pytest.raises(NotFound):
            await PinnedFile.open(b.operator.accessor(), b.runtime, "nothing")
        with pytest.raises(ConditionNotMatch):
            await opened(b, if_match="another")
        with pytest.raises(ConditionNotMatch):
            await opened(b, if_none_match=b.put(b.data))
        with pytest.raises(ConfigInvalid):
            await opened(b, tail_bytes=0)


async def test_reads_out_of_the_tail_cost_nothing_and_copy_nothing() -> None:
    async with bench(SIZE) as b:
        file = await opened(b, tail_bytes=1000)
        view = file.resident(SIZE - 1000, SIZE - 10)
        assert view is not None
        assert view.obj is file.tail.obj
        assert bytes(view) == b.data[-1000:-10]
        assert bytes(await file.read(SIZE - 5, SIZE)) == b.data[-5:]
        room = bytearray(7)
        await file.read_into(SIZE - 7, memoryview(room))
        assert bytes(room) == b.data[-7:]
        assert len(b.calls) == 1
        assert file.resident(SIZE - 1001, SIZE) is None
        assert file.resident(SIZE - 10, SIZE + 1) is None
        assert file.resident(SIZE, SIZE - 1) is None


async def test_other_reads_are_one_pinned_request() -> None:
    async with bench(SIZE) as b:
        file = await opened(b, tail_bytes=1000)
        assert bytes(await file.read(10, 20_000)) == b.data[10:20_000]
        room = bytearray(500)
        await file.read_into(SIZE - 1200, memoryview(room))
        assert bytes(room) == b.data[SIZE - 1200 : SIZE - 700]
        assert b.ranges[1:] == [(10, 20_000), (SIZE - 1200, SIZE - 700)]
        assert {call.request.if_match for call in b.calls[1:]} == {file.etag}
        assert bytes(await file.read(50, 50)) == b""
        await file.read_into(50, memoryview(bytearray()))
        assert len(b.calls) == 3


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, SIZE + 1), (SIZE + 1, SIZE + 1)])
async def test_a_range_that_leaves_the_file_is_not_trusted(start: int, end: int) -> None:
    async with bench(SIZE) as b:
        file = await opened(b)
        with pytest.raises(UntrustedMetadata, match="300000"):
            await file.read(start, end)
        assert len(b.calls) == 1


async def test_an_object_that_was_overwritten_or_deleted_has_changed() -> None:
    async with bench(SIZE) as b:
        file = await opened(b)
        b.put(b.data[:-1] + b"!")
        with pytest.raises(ObjectChanged, match="overwritten") as raised:
            await file.read(0, 10)
        assert raised.value.expected_etag == file.etag
        b.put(b"short")
        with pytest.raises(ObjectChanged):
            await file.read(1000, 1010)
        b.store.remove("k")
        with pytest.raises(ObjectChanged, match="deleted"):
            await file.read(0, 10)
        assert b.operator.statistics["stream_read_version_mismatches"] == 3


async def test_a_store_that_ignores_conditions_is_compared() -> None:
    async with bench(SIZE) as b:
        file = await opened(b)
        for lie in (with_etag("other"), with_etag(None), with_total(SIZE + 1)):
            b.gate.falsify = lie
            with pytest.raises(ObjectChanged):
                await file.read(0, 10)


async def test_it_reads_through_a_whole_stack() -> None:
    service = Memory()
    service.store.put(WriteRequest(path="k"), bytes(range(200)))
    async with Operator(service) as operator:
        runtime: Runtime = operator.runtime()
        file = await PinnedFile.open(operator.accessor(), runtime, "k", tail_bytes=10)
        assert bytes(await file.read(5, 15)) == bytes(range(5, 15))
