"""An operator as a store of obspec: every protocol, for a loop and for none; conditions, ranges, errors."""

import asyncio
import io
import pickle
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import obspec
import pytest
from obspec import exceptions
from obspec_utils.protocols import ReadableStore

import aioprefetch as ap
from aioprefetch.obspec import OperatorStore, ReadResult
from aioprefetch.ranges import joined, subtract, total_length
from aioprefetch.runtime.events import Event
from aioprefetch.testing import Fault, FaultLayer, FaultServer, Injection, Rule, content
from aioprefetch.values import ReadRequest, StatRequest, WriteRequest
from tests.stores.part_store import PartStore

DATA = content(100_000)
MIB = 1 << 20
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def every_protocol(store: OperatorStore) -> None:
    """A type checker says whether the methods are those of the protocols."""
    get: obspec.Get = store
    get_async: obspec.GetAsync = store
    get_range: obspec.GetRange = store
    get_range_async: obspec.GetRangeAsync = store
    get_ranges: obspec.GetRanges = store
    get_ranges_async: obspec.GetRangesAsync = store
    head: obspec.Head = store
    head_async: obspec.HeadAsync = store
    listing: obspec.List = store
    list_async: obspec.ListAsync = store
    level: obspec.ListWithDelimiter = store
    level_async: obspec.ListWithDelimiterAsync = store
    put: obspec.Put = store
    put_async: obspec.PutAsync = store
    delete: obspec.Delete = store
    delete_async: obspec.DeleteAsync = store
    copy: obspec.Copy = store
    copy_async: obspec.CopyAsync = store
    rename: obspec.Rename = store
    rename_async: obspec.RenameAsync = store
    found = (get, get_range, get_ranges, head, listing, level, put, delete, copy, rename)
    found_async = (get_async, get_range_async, get_ranges_async, head_async, list_async, level_async)
    assert {*found, *found_async, put_async, delete_async, copy_async, rename_async} == {store}


def every_result(result: ReadResult) -> None:
    """The same of results."""
    for_none: obspec.GetResult = result
    for_a_loop: obspec.GetResultAsync = result
    assert {id(for_none), id(for_a_loop)} == {id(result)}


def test_every_protocol_is_there() -> None:
    store = ap.obspec.store(ap.Operator.from_uri("memory://every-protocol"))
    every_protocol(store)
    assert isinstance(store, ReadableStore)
    store.put("k", b"bytes")
    every_result(store.get("k"))
    store.close()


@pytest.fixture
async def store() -> AsyncIterator[OperatorStore]:
    """Over a memory of its own, whose outermost layer keeps the requests; chunks of 10 kB."""
    async with ap.Operator(ap.services.Memory()).layer(FaultLayer()) as op:
        await op.write("dir/k", DATA, content_type="text/x", user_metadata={"origin": "here"})
        yield OperatorStore(op, chunk_bytes=10_000)


def reads_of(store: OperatorStore) -> list[ReadRequest]:
    accessor: Any = store.operator.accessor()
    return [request for request in accessor.requests if isinstance(request, ReadRequest)]


class TestGet:
    @pytest.mark.parametrize(
        ("wanted", "start", "end"),
        [
            (None, 0, 100_000),
            ((5, 25_000), 5, 25_000),
            ([5, 8], 5, 8),
            ((99_000, 200_000), 99_000, 100_000),
            ({"offset": 85_000}, 85_000, 100_000),
            ({"suffix": 15_000}, 85_000, 100_000),
            ({"suffix": 200_000}, 0, 100_000),
        ],
    )
    async def test_ranges(self, store: OperatorStore, wanted: Any, start: int, end: int) -> None:
        """The body at once and in chunks; the range that it has."""
        options: obspec.GetOptions = {} if wanted is None else {"range": wanted}
        result = await store.get_async("dir/k", options=options)
        assert (result.range, result.meta["size"], result.meta["path"]) == ((start, end), 100_000, "dir/k")
        assert bytes(await result.buffer_async()) == DATA[start:end]
        streamed = await store.get_async("dir/k", options=options)
        chunks = [bytes(chunk) async for chunk in streamed]
        assert b"".join(chunks) == DATA[start:end]
        assert len(chunks) == (1 if isinstance(wanted, dict) and "suffix" in wanted else -(-(end - start) // 10_000))

    async def test_what_was_read_is_reported(self, store: OperatorStore) -> None:
        """As a buffer, and in chunks."""
        seen: list[Event] = []
        store.operator.events.subscribe(seen.append, "read.served")
        await (await store.get_async("dir/k", options={"range": (5, 25_000)})).buffer_async()
        async for _ in await store.get_async("dir/k", options={"range": (5, 25_000)}):
            pass
        got = [(event.facts["start"], event.facts["end"]) for event in seen]
        assert subtract((0, len(DATA)), joined(got)) == [(0, 5), (25_000, len(DATA))]
        assert total_length(got) == 2 * 24_995

    async def test_a_small_object_is_one_request(self, store: OperatorStore) -> None:
        await store.put_async("small", b"bytes")
        result = await store.get_async("small")
        assert (bytes(await result.buffer_async()), len(reads_of(store))) == (b"bytes", 1)

    @pytest.mark.parametrize("wanted", [None, (0, 300_000), {"offset": 0}, {"suffix": 300_000}])
    async def test_an_object_of_one_block_is_one_request(self, wanted: Any) -> None:
        """As it is of a store of obstore."""
        data = content(300_000)
        async with ap.Operator(ap.services.Memory(), block_bytes=1 << 19).layer(FaultLayer()) as op:
            await op.write("k", data)
            store = OperatorStore(op)
            result = await store.get_async("k", options=None if wanted is None else {"range": wanted})
            assert await result.buffer_async() == data
            assert len(reads_of(store)) == 1

    async def test_many_gets_at_once_stay_within_the_memory(self) -> None:
        """Large first chunks are reserved until they are taken; others are of 1 MiB. All of them can be read."""
        data = content(20 * MIB)
        async with ap.Operator(ap.services.Memory(), memory_bytes=32 * MIB, block_bytes=8 * MIB).layer(
            FaultLayer()
        ) as op:
            await op.write("large", data)
            await op.write("small", b"bytes")
            store, budget = OperatorStore(op), op.runtime().budget
            results = await asyncio.gather(*(store.get_async("large") for _ in range(100)))
            assert sorted(request.size or 0 for request in reads_of(store)) == [MIB] * 96 + [8 * MIB] * 4
            assert budget.used_bytes == budget.limit_bytes
            assert bytes(await (await store.get_async("small")).buffer_async()) == b"bytes"
            for result in (results[0], results[-1]):
                assert await result.buffer_async() == data
            assert budget.used_bytes == 24 * MIB, "what was given belongs to its caller"
            results.clear()
            del result
            assert budget.used_bytes == 0
            small = [await store.get_async("small") for _ in range(100)]
            assert budget.used_bytes == 100 * len(b"bytes")
            small.clear()

    async def test_many_iterations_at_once_stay_within_the_memory(self) -> None:
        data = content(20 * MIB)
        async with ap.Operator(ap.services.Memory(), memory_bytes=32 * MIB, block_bytes=8 * MIB).layer(
            FaultLayer()
        ) as op:
            await op.write("large", data)
            store, budget = OperatorStore(op), op.runtime().budget
            bodies = [aiter(await store.get_async("large")) for _ in range(10)]
            firsts = [await anext(body) for body in bodies]
            assert sorted(map(len, firsts)) == [MIB] * 6 + [8 * MIB] * 4
            for body, first in zip(bodies, firsts, strict=True):
                rest = [bytes(chunk) async for chunk in body]
                assert b"".join([first, *rest]) == data
                assert budget.peak_bytes <= budget.limit_bytes
            del body, bodies
            assert budget.used_bytes == 0
            assert [len(chunk) async for chunk in await store.get_async("large")] == [8 * MIB, 8 * MIB, 4 * MIB]

    async def test_what_describes_it(self, store: OperatorStore) -> None:
        """All attributes without a body, type and encoding with one."""
        head = await store.get_async("dir/k", options={"head": True})
        assert head.attributes == {"Content-Type": "text/x", "origin": "here"}
        assert bytes(await head.buffer_async()) == b""
        result = await store.get_async("dir/k")
        assert result.attributes == {"Content-Type": "text/x"}
        assert result.meta == head.meta == await store.head_async("dir/k")
        etag = result.meta["e_tag"]
        assert etag is not None
        assert etag.startswith('"')

    @pytest.mark.parametrize("wanted", [(7, 7), (100_000, 100_001), {"suffix": 0}, {"offset": 100_000}])
    async def test_a_range_without_bytes_is_an_error(self, store: OperatorStore, wanted: Any) -> None:
        with pytest.raises((ap.RangeNotSatisfied, ap.InvalidRange)):
            await store.get_async("dir/k", options={"range": wanted})

    async def test_an_empty_object(self, store: OperatorStore) -> None:
        await store.put_async("empty", b"")
        result = await store.get_async("empty")
        assert (bytes(await result.buffer_async()), result.range) == (b"", (0, 0))
        assert [chunk async for chunk in await store.get_async("empty")] == [b""]
        with pytest.raises(ap.RangeNotSatisfied):
            await store.get_async("empty", options={"range": (0, 1)})

    async def test_a_body_is_taken_once(self, store: OperatorStore) -> None:
        result = await store.get_async("dir/k")
        await result.buffer_async()
        with pytest.raises(ap.InvalidArgument, match="taken"):
            await result.buffer_async()

    async def test_conditions(self, store: OperatorStore) -> None:
        """By ETag and by time, single and in lists; the exceptions are obspec's."""
        meta = await store.head_async("dir/k")
        etag, modified = meta["e_tag"], meta["last_modified"]
        day = timedelta(days=1)
        good: list[obspec.GetOptions] = [
            {"if_match": etag},
            {"if_match": "*"},
            {"if_match": f'"another", {etag}'},
            {"if_none_match": '"another"'},
            {"if_unmodified_since": modified},
            {"if_modified_since": modified - day},
            {"if_none_match": None},
        ]
        for options in good:
            assert len(await (await store.get_async("dir/k", options=options)).buffer_async()) == len(DATA)
        changed: list[obspec.GetOptions] = [
            {"if_match": '"another"'},
            {"if_match": '"one", "two"'},
            {"if_unmodified_since": modified - day},
            {"head": True, "if_match": '"another"'},
        ]
        for options in changed:
            with pytest.raises(exceptions.PreconditionError) as caught:
                await store.get_async("dir/k", options=options)
            assert isinstance(caught.value, ap.ConditionNotMatch)
        same: list[obspec.GetOptions] = [
            {"if_none_match": etag},
            {"if_none_match": "*"},
            {"if_none_match": f'"another",{etag}'},
            {"if_modified_since": modified},
            {"head": True, "if_modified_since": modified + day},
        ]
        for options in same:
            with pytest.raises(exceptions.NotModifiedError):
                await store.get_async("dir/k", options=options)

    async def test_conditions_of_both_kinds(self, store: OperatorStore) -> None:
        """The error is of the one that failed first; the time counts where no ETags are given beside it."""
        meta = await store.head_async("dir/k")
        etag, modified = meta["e_tag"], meta["last_modified"]
        day = timedelta(days=1)
        changed: list[obspec.GetOptions] = [
            {"if_match": '"another"', "if_none_match": '"third"'},
            {"if_match": '"another"', "if_none_match": etag},
            {"if_unmodified_since": modified - day, "if_modified_since": modified - 2 * day},
        ]
        same: list[obspec.GetOptions] = [
            {"if_match": etag, "if_none_match": etag},
            {"if_match": "*", "if_modified_since": modified},
            {"if_unmodified_since": modified, "if_modified_since": modified},
        ]
        good: list[obspec.GetOptions] = [
            {"if_match": etag, "if_unmodified_since": modified - day},
            {"if_none_match": '"another"', "if_modified_since": modified},
            {"if_match": etag, "if_modified_since": modified - day},
        ]
        heads: list[obspec.GetOptions] = [{}, {"head": True}]
        for extra in heads:
            for options in changed:
                with pytest.raises(exceptions.PreconditionError):
                    await store.get_async("dir/k", options={**options, **extra})
            for options in same:
                with pytest.raises(exceptions.NotModifiedError):
                    await store.get_async("dir/k", options={**options, **extra})
            for options in good:
                await store.get_async("dir/k", options={**options, **extra})

    @pytest.mark.parametrize("form", ["etag", "etags", "any", "time", "both"])
    async def test_an_unchanged_object_is_not_read(self, store: OperatorStore, form: str) -> None:
        """The condition goes with the read, or what describes the object is asked for instead."""
        meta = await store.head_async("dir/k")
        every: dict[str, obspec.GetOptions] = {
            "etag": {"if_none_match": meta["e_tag"]},
            "etags": {"if_none_match": f'"another", {meta["e_tag"]}'},
            "any": {"if_none_match": "*"},
            "time": {"if_modified_since": meta["last_modified"]},
            "both": {"if_match": meta["e_tag"], "if_modified_since": meta["last_modified"]},
        }
        with pytest.raises(exceptions.NotModifiedError):
            await store.get_async("dir/k", options=every[form])
        assert [one for one in reads_of(store) if not (one.if_none_match or one.if_modified_since)] == []

    @pytest.mark.parametrize("times", [1, 2, 3])
    async def test_an_object_that_is_overwritten_after_it_was_described(self, times: int) -> None:
        """The conditions are those of the newer one; one that changes each time is an error."""

        class Overwriting(ap.WrappedAccessor):
            async def stat(self, request: StatRequest) -> ap.Metadata:
                nonlocal times
                found = await self.inner.stat(request)
                if times:
                    times -= 1
                    await self.inner.write(WriteRequest(path=request.path), f"newer {times}".encode())
                return found

        class Overwrites(ap.Layer):
            def wrap(self, inner: Any, runtime: Any) -> Any:
                return Overwriting(inner)

        is_stable = times < 3
        async with ap.Operator(ap.services.Memory()).layer(Overwrites()) as op:
            await op.write("k", b"first")
            work = OperatorStore(op).get_async("k", options={"if_none_match": '"one", "two"'})
            if is_stable:
                assert bytes(await (await work).buffer_async()) == b"newer 0"
            else:
                with pytest.raises(ap.ObjectChanged):
                    await work

    @pytest.mark.parametrize("name", ["if_modified_since", "if_unmodified_since"])
    @pytest.mark.parametrize("extra", [{}, {"head": True}])
    async def test_a_time_needs_its_zone(self, store: OperatorStore, name: str, extra: Any) -> None:
        options: Any = {name: datetime(2026, 1, 1), **extra}
        with pytest.raises(ap.InvalidArgument, match="time zone"):
            await store.get_async("dir/k", options=options)

    @pytest.mark.parametrize("extra", [{}, {"head": True}])
    async def test_a_store_without_times_compares_none(self, extra: obspec.GetOptions) -> None:
        """It must not pass for one that is older than all."""
        timeless = Rule(fault=Fault(headers={"Last-Modified": None}), times=None)
        async with FaultServer({"k": DATA}, [timeless]) as server, ap.Operator.from_uri(server.url) as op:
            with pytest.raises(exceptions.NotSupportedError):
                await OperatorStore(op).get_async("k", options={"if_unmodified_since": WHEN, **extra})

    @pytest.mark.parametrize("takes", ["at once", "in chunks"])
    async def test_a_body_is_of_one_version(self, store: OperatorStore, takes: str) -> None:
        result = await store.get_async("dir/k")
        await store.operator.write("dir/k", DATA[::-1])

        async def take() -> None:
            if takes == "at once":
                await result.buffer_async()
            else:
                [chunk async for chunk in result]

        with pytest.raises((ap.ObjectChanged, ap.ConditionNotMatch)):
            await take()

    async def test_a_request_of_a_body_that_fails(self) -> None:
        for occurrence in range(1, 10):
            plan = (Injection(operation="read", occurrence=occurrence, error=ap.Unavailable),)
            async with ap.Operator(ap.services.Memory()).layer(FaultLayer(plan)) as op:
                await op.write("k", DATA)
                result = await OperatorStore(op, chunk_bytes=10_000).get_async("k")
                with pytest.raises(ap.Unavailable):
                    [chunk async for chunk in result]

    async def test_a_body_is_in_memory_once(self) -> None:
        """The first chunk, and the rest beside it in the memory of the result."""
        data = content(8 << 20)
        async with ap.Operator(ap.services.Memory()) as op:
            await op.write("k", data)
            store = OperatorStore(op, chunk_bytes=4 << 20)
            result = await store.get_async("k")
            tracemalloc.start()
            try:
                body = await result.buffer_async()
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (body == data, body.readonly) == (True, True)
            assert peak_bytes < len(data) * 1.4

    async def test_chunks_that_are_not_taken_are_not_read(self, store: OperatorStore) -> None:
        """One is read ahead, and ends with the iteration."""
        result = await store.get_async("dir/k")
        chunks = result.__aiter__()
        await anext(chunks)
        await chunks.aclose()
        accessor: Any = store.operator.accessor()
        assert (len(reads_of(store)) <= 2, accessor.in_flight) == (True, 0)

    async def test_a_store_without_etags(self) -> None:
        """Of a body of several responses nothing would prove one version: the rest is one response."""
        async with FaultServer({"k": DATA}) as server, ap.Operator.from_uri(server.url) as op:
            result = await OperatorStore(op, chunk_bytes=10_000).get_async("k")
            assert bytes(await result.buffer_async()) == DATA


class TestRanges:
    async def test_by_ends_and_by_lengths(self, store: OperatorStore) -> None:
        """Ranges that lie close together share a request, and are cut at the end."""
        assert bytes(await store.get_range_async("dir/k", start=5, end=9)) == DATA[5:9]
        assert bytes(await store.get_range_async("dir/k", start=99_990, length=50)) == DATA[-10:]
        before = len(reads_of(store))
        found = await store.get_ranges_async("dir/k", starts=[10, 0, 50_000], lengths=[5, 3, 10])
        assert list(map(bytes, found)) == [DATA[10:15], DATA[:3], DATA[50_000:50_010]]
        assert len(reads_of(store)) == before + 1
        found = await store.get_ranges_async("dir/k", starts=[99_990, 99_900], ends=[100_050, 99_910])
        assert list(map(bytes, found)) == [DATA[-10:], DATA[99_900:99_910]]
        assert len(reads_of(store)) == before + 2

    async def test_what_cannot_be_is_refused(self, store: OperatorStore) -> None:
        with pytest.raises(ap.InvalidRange):
            await store.get_range_async("dir/k", start=5, end=5)
        with pytest.raises(ap.RangeNotSatisfied):
            await store.get_range_async("dir/k", start=100_000, end=100_001)
        with pytest.raises(ap.InvalidArgument, match="either"):
            await store.get_range_async("dir/k", start=5)
        with pytest.raises(ap.InvalidArgument, match="either"):
            await store.get_range_async("dir/k", start=5, end=6, length=1)
        for ends in ([3], [3, 4, 5]):
            with pytest.raises(ap.InvalidArgument, match="each of starts"):
                await store.get_ranges_async("dir/k", starts=[1, 2], ends=ends)
            with pytest.raises(ap.InvalidArgument, match="each of starts"):
                await store.get_ranges_async("dir/k", starts=[1, 2], lengths=ends)
        with pytest.raises(exceptions.NotFoundError):
            await store.get_range_async("missing", start=0, end=1)


class Foreign:
    """A buffer that is neither bytes nor a view: as an array of numpy is."""

    def __new__(cls, data: bytes) -> Any:
        return np.frombuffer(data, "<u2")


class TestWriting:
    @pytest.mark.parametrize(
        "form", ["bytes", "view", "array", "file", "path", "iterator", "iterator of arrays", "get"]
    )
    async def test_every_form_of_data(self, store: OperatorStore, form: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(DATA)
        pieces = [DATA[:50_000], DATA[50_000:]]
        data: Any = {
            "bytes": DATA,
            "view": memoryview(DATA),
            "array": Foreign(DATA),
            "file": io.BytesIO(DATA),
            "path": tmp_path / "file",
            "iterator": iter(pieces),
            "iterator of arrays": map(Foreign, pieces),
            "get": await store.get_async("dir/k"),
        }[form]
        result = await store.put_async("new", data, use_multipart=True, chunk_size=5 << 20, max_concurrency=2)
        assert await store.operator.read("new") == DATA
        assert result == {"e_tag": (await store.head_async("new"))["e_tag"], "version": None}

    async def test_a_text_is_no_data(self, store: OperatorStore) -> None:
        with pytest.raises(ap.InvalidType, match="str"):
            await store.put_async("new", "text")
        with pytest.raises(exceptions.NotFoundError):
            await store.head_async("new")

    async def test_modes(self, store: OperatorStore) -> None:
        await store.put_async("new", b"one", mode="create")
        with pytest.raises(exceptions.AlreadyExistsError) as caught:
            await store.put_async("new", b"two", mode="create")
        assert isinstance(caught.value, ap.AlreadyExists)
        etag = (await store.head_async("new"))["e_tag"]
        await store.put_async("new", b"two", mode={"e_tag": etag})
        with pytest.raises(exceptions.PreconditionError):
            await store.put_async("new", b"three", mode={"e_tag": etag})
        assert await store.operator.read("new") == b"two"
        await store.put_async("new", b"three", mode="overwrite")
        wrong: Any = "append"
        with pytest.raises(ap.InvalidArgument, match="mode"):
            await store.put_async("new", b"four", mode=wrong)
        with pytest.raises(exceptions.NotSupportedError):
            await store.put_async("new", b"four", mode={"version": "7"})

    async def test_attributes(self, store: OperatorStore) -> None:
        with_body: obspec.Attributes = {"Content-Type": "a/b", "Content-Encoding": "gzip"}
        attributes: obspec.Attributes = {**with_body, "Cache-Control": "no-store", "mine": "yes"}
        await store.put_async("new", b"data", attributes=attributes)
        assert (await store.get_async("new")).attributes == with_body
        assert (await store.get_async("new", options={"head": True})).attributes == attributes
        with pytest.raises(exceptions.NotSupportedError):
            await store.put_async("new", b"data", attributes={"Content-Language": "en"})
        with pytest.raises(exceptions.NotSupportedError):
            await store.put_async("new", b"data", tags={"a": "b"})

    async def test_copy_rename_delete(self, store: OperatorStore) -> None:
        await store.copy_async("dir/k", "copy")
        await store.put_async("taken", b"bytes")
        with pytest.raises(exceptions.AlreadyExistsError):
            await store.copy_async("dir/k", "taken", overwrite=False)
        await store.copy_async("dir/k", "fresh", overwrite=False)
        assert (await store.get_async("fresh", options={"head": True})).attributes == {
            "Content-Type": "text/x",
            "origin": "here",
        }
        with pytest.raises(exceptions.AlreadyExistsError):
            await store.rename_async("copy", "taken", overwrite=False)
        await store.rename_async("copy", "moved")
        assert await store.operator.read("moved") == await store.operator.read("fresh") == DATA
        await store.delete_async("moved")
        await store.delete_async(["fresh", "taken", "missing"])
        assert [entry["path"] for page in [page async for page in store.list_async()] for entry in page] == ["dir/k"]
        with pytest.raises(exceptions.NotFoundError) as caught:
            await store.copy_async("missing", "copy")
        assert isinstance(caught.value, ap.NotFound)
        assert isinstance(exceptions.map_exception(caught.value), exceptions.NotFoundError)

    async def test_a_local_file_that_changes_meanwhile_is_no_object(self, tmp_path: Path) -> None:
        """Neither what it was nor what it became."""
        file = tmp_path / "file"
        file.write_bytes(bytes(20 << 20))

        class Growing(list[int]):
            """Notes the parts that were sent; the file grows with each of them."""

            def append(self, number: int) -> None:
                super().append(number)
                with file.open("ab") as opened:
                    opened.write(b"more")

        parts = PartStore(part_bytes=5 << 20, sent=Growing())
        async with ap.Operator(ap.services.Memory()).layer(parts) as op:
            with pytest.raises(ap.ObjectChanged):
                await OperatorStore(op).put_async("k", file)
            assert (bool(parts.sent), parts.uploads, await op.exists("k")) == (True, {}, False)


class TestListing:
    async def test_prefixes_are_whole_segments(self, store: OperatorStore) -> None:
        for path in ("dir/sub/a", "dir2/b", "c"):
            await store.put_async(path, b"x")

        async def listed(prefix: str | None = None, offset: str | None = None) -> list[str]:
            return [entry["path"] async for page in store.list_async(prefix, offset=offset) for entry in page]

        assert await listed() == ["c", "dir/k", "dir/sub/a", "dir2/b"]
        assert await listed("dir") == await listed("dir/") == ["dir/k", "dir/sub/a"]
        assert await listed("di") == []
        assert await listed(offset="dir/k") == ["dir/sub/a", "dir2/b"]
        level = await store.list_with_delimiter_async("dir")
        assert (level["common_prefixes"], [one["path"] for one in level["objects"]]) == (["dir/sub"], ["dir/k"])
        top = await store.list_with_delimiter_async()
        assert (top["common_prefixes"], [one["path"] for one in top["objects"]]) == (["dir", "dir2"], ["c"])
        assert top["objects"][0]["size"] == 1

    async def test_a_long_listing_comes_in_pages(self, store: OperatorStore) -> None:
        for number in range(1001):
            await store.put_async(f"many/{number:04}", b"")
        assert [len(page) async for page in store.list_async("many")] == [1000, 1]


def test_the_methods_that_block() -> None:
    """The same on the loop thread of the process."""
    with ap.obspec.store(ap.Operator.from_uri("memory://that-block")) as store:
        assert store.put("a/k", DATA)["version"] is None
        assert bytes(store.get("a/k").buffer()) == DATA
        assert b"".join(map(bytes, store.get("a/k"))) == DATA
        assert bytes(store.get_range("a/k", start=1, length=2)) == DATA[1:3]
        assert [bytes(one) for one in store.get_ranges("a/k", starts=[0], ends=[4])] == [DATA[:4]]
        assert store.head("a/k")["size"] == len(DATA)
        store.copy("a/k", "b")
        store.rename("b", "c")
        assert [[entry["path"] for entry in page] for page in store.list()] == [["a/k", "c"]]
        assert store.list_with_delimiter()["common_prefixes"] == ["a"]
        pages = store.list()
        next(pages)
        del pages
        store.delete(["a/k", "c"])
        assert list(store.list()) == []
        with pytest.raises(exceptions.NotFoundError):
            store.get("a/k")


async def test_they_may_be_called_where_a_loop_runs() -> None:
    """As in a cell of a notebook."""
    with ap.obspec.store(ap.Operator.from_uri("memory://in-a-notebook")) as store:
        store.put("k", DATA)
        assert b"".join(map(bytes, store.get("k"))) == DATA
        assert [len(page) for page in store.list()] == [1]


async def test_life() -> None:
    """It holds what it uses, gives it up, and pickles as its operator does."""
    async with ap.Operator.from_uri("memory://life-of-a-provider") as op:
        await op.write("k", b"bytes")
        async with ap.obspec.store(op) as store:
            assert bytes(await (await store.get_async("k")).buffer_async()) == b"bytes"
            copy = pickle.loads(pickle.dumps(store))
            assert bytes(await copy.get_range_async("k", start=0, end=2)) == b"by"
            assert (repr(store), op.runtime().holders) == ("<OperatorStore memory://life-of-a-provider>", 3)
            await copy.aclose()
        assert op.runtime().holders == 1
    wrong: Any = "s3://bucket"
    with pytest.raises(ap.InvalidType):
        ap.obspec.store(wrong)
