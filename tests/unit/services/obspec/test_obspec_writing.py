"""Writes: an object whole or none, memory bounded, nothing left running."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore, S3Store

from aioprefetch.accessor.protocols import WriteBody
from aioprefetch.errors import AlreadyExists, Closed, ConditionNotMatch, ProtocolError, Unavailable
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.oracle import assert_same_bytes, content
from aioprefetch.values import DeleteRequest, WriteRequest
from tests.stores.stacks import MotoBucket
from tests.unit.services.obspec.plain import GetOnly

PART = 5 << 20
SECONDS_MAX = 20


class Taking(GetOnly):
    """Takes what is put, part by part, as a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[Any, dict[str, Any]]] = []
        self.taken: list[int] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.change = asyncio.Condition()
        self.cancelled = 0
        self.failure: Exception | None = None

    async def put_async(self, path: str, file: Any, **options: Any) -> dict[str, Any]:
        """As obspec has it."""
        self.puts.append((file, options))
        if isinstance(file, bytes):
            return {"e_tag": '"w-1"', "version": "v-1"}
        async for part in file:
            async with self.change:
                self.taken.append(len(part))
                self.change.notify_all()
            if self.failure is not None:
                raise self.failure
            try:
                await self.goes_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return {"e_tag": '"w-2"', "version": None}

    async def wait_for_parts(self, count: int) -> None:
        """Wait until this number of parts has been taken."""
        async with asyncio.timeout(SECONDS_MAX), self.change:
            await self.change.wait_for(lambda: len(self.taken) >= count)


def over(store: Any) -> Operator:
    """An operator with the smallest parts."""
    return Operator.bare(ObspecStore(store, part_bytes=PART))


async def test_what_fits_in_a_part_is_one_put() -> None:
    """With what describes it, in one piece."""
    store = Taking()
    async with over(store) as op:
        body = await op.accessor().open_write(WriteRequest(path="k", content_type="text/x", user_metadata={"a": "b"}))
        await body.write(b"one")
        await body.write(memoryview(b"two"))
        written = await body.close()
        with pytest.raises(Closed):
            await body.write(b"three")
    assert (written.size, written.etag, written.version, written.content_type) == (6, "w-1", "v-1", "text/x")
    assert store.puts == [(b"onetwo", {"attributes": {"Content-Type": "text/x", "a": "b"}})]


async def test_longer_ones_are_drawn_part_by_part() -> None:
    """No more than two parts wait here while the store takes its time."""
    store = Taking()
    store.goes_on.clear()
    async with over(store) as op:
        body = await op.accessor().open_write(WriteRequest(path="k"))
        writing = asyncio.create_task(body.write(bytes(10 * PART)))
        await store.wait_for_parts(1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not writing.done()
        assert len(store.taken) == 1
        store.goes_on.set()
        await asyncio.wait_for(writing, SECONDS_MAX)
        await body.write(b"end")
        written = await body.close()
        assert op.statistics["stream_write_bytes"] == 10 * PART + 3
    assert (written.size, written.etag) == (10 * PART + 3, "w-2")
    assert store.taken == [PART] * 10 + [3]


async def test_a_failed_upload_raises_its_error() -> None:
    """At the next write, or at the end; no part waits for ever."""
    store = Taking()
    store.failure = ConnectionResetError("gone")
    async with over(store) as op:
        body = await op.accessor().open_write(WriteRequest(path="k"))
        with pytest.raises(Unavailable) as caught:
            await asyncio.wait_for(body.write(bytes(10 * PART)), SECONDS_MAX)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(body.close(), SECONDS_MAX)
        assert (caught.value.operation, caught.value.path) == ("write", "k")
        await body.abort()


@pytest.mark.parametrize("parts", [1, 3])
async def test_a_store_that_takes_no_more_parts_is_found_out(parts: int) -> None:
    """It says that all is well, and the object is not whole."""

    class Sated(Taking):
        async def put_async(self, path: str, file: Any, **options: Any) -> dict[str, Any]:
            await anext(file)
            return {"e_tag": '"w-1"', "version": None}

    async with over(Sated()) as op:
        body = await op.accessor().open_write(WriteRequest(path="k"))
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(_write(body, bytes(parts * PART + 1)), SECONDS_MAX)
        await body.abort()


async def _write(body: WriteBody, data: bytes) -> None:
    await body.write(data)
    await body.close()


async def test_an_aborted_upload_ends_at_once() -> None:
    """While the store waits for a part, and while it takes one."""
    for busy in (False, True):
        store = Taking()
        async with over(store) as op:
            body = await op.accessor().open_write(WriteRequest(path="k"))
            await body.write(bytes(PART + 1))
            await store.wait_for_parts(1)
            if busy:
                store.goes_on.clear()
                closing = asyncio.create_task(body.close())
                await store.wait_for_parts(2)
                closing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await closing
            await asyncio.wait_for(body.abort(), SECONDS_MAX)
            await asyncio.wait_for(body.abort(), SECONDS_MAX)
        assert store.cancelled == busy


async def test_closing_the_operator_ends_an_upload() -> None:
    """And its writer hears of it."""
    store = Taking()
    store.goes_on.clear()
    op = over(store)
    body = await op.accessor().open_write(WriteRequest(path="k"))
    await body.write(bytes(PART + 1))
    await store.wait_for_parts(1)
    await op.aclose()
    with pytest.raises(Closed):
        await body.close()
    await body.abort()
    assert store.cancelled == 1


async def test_conditions_go_with_one_put() -> None:
    """However long the object is: uploads in parts have none."""
    store = Taking()
    async with over(store) as op:
        for request in (WriteRequest(path="k", if_not_exists=True), WriteRequest(path="k", if_match="e-1")):
            body = await op.accessor().open_write(request)
            await body.write(bytes(2 * PART))
            await body.close()
    assert [(len(data), options) for data, options in store.puts] == [
        (2 * PART, {"mode": "create"}),
        (2 * PART, {"mode": {"e_tag": '"e-1"'}}),
    ]


async def test_what_is_missing_stops_no_deletion() -> None:
    """Where a store stops at it; a directory is no object, least of all the one without its slash."""

    class Stopping(GetOnly):
        keys = frozenset({"a", "b", "dir"})

        async def delete_async(self, paths: list[str]) -> None:
            for path in paths:
                if path not in self.keys:
                    raise FileNotFoundError(path)
                self.keys -= {path}

    store = Stopping()
    async with Operator.bare(ObspecStore(store)) as op:
        await op.delete("missing")
        await op.accessor().delete(DeleteRequest(path="a", paths=("a", "missing", "b", "dir/")))
        await op.delete("dir/")
        assert op.statistics["object_delete_request"] == 1 + 4  # The first stops, and each is asked for by itself.
    assert store.keys == {"dir"}


async def pieces(count: int) -> AsyncIterator[bytes]:
    """A number of megabytes."""
    data = content(count << 20)
    for start in range(0, len(data), 1 << 20):
        yield data[start : start + (1 << 20)]


@pytest.mark.parametrize("kind", ["memory", "local"])
async def test_obstore_s_own_stores_take_a_stream(kind: str, tmp_path: Any) -> None:
    """In order and whole; a failing source leaves nothing, and no task of obstore's."""
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path)

    async def failing() -> AsyncIterator[bytes]:
        async for piece in pieces(12):
            yield piece
        raise ArithmeticError("the source failed")

    async with over(store) as op:
        await op.write("k", pieces(17))
        assert_same_bytes(await op.read("k"), content(17 << 20))
        with pytest.raises(ArithmeticError):
            await op.write("partial", failing())
        assert [entry.path async for entry in op.list("")] == ["k"]


async def test_an_aborted_upload_leaves_no_parts(s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
    """obstore aborts the multipart upload when its source fails."""
    bucket = MotoBucket(random_name())
    store = S3Store(
        bucket.name,
        endpoint=s3_server.endpoint_url,
        region="us-east-1",
        access_key_id="a",
        secret_access_key="b",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )

    def requests(method: str) -> int:
        return sum(request.method == method and bucket.name in request.target for request in s3_server.requests)

    async with over(store) as op:
        body = await op.accessor().open_write(WriteRequest(path="k"))
        async for piece in pieces(17):
            await body.write(piece)
        await body.abort()
        assert bucket.get("k") is None
        assert requests("DELETE") == 1
        await op.accessor().write(WriteRequest(path="k", if_not_exists=True), b"1")
        with pytest.raises(AlreadyExists):
            await op.accessor().write(WriteRequest(path="k", if_not_exists=True), b"2")
        with pytest.raises(ConditionNotMatch):
            await op.accessor().write(WriteRequest(path="k", if_match="another"), b"2")
        assert bucket.get("k") == b"1"
