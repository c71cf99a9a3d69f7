"""The end of a response is its end, not its last byte: where no byte comes, no reader waits for one."""

from __future__ import annotations

import asyncio
import io
import itertools
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.accessor.sink import CollectSink, Sink
from aioprefetch.errors import ConditionNotMatch, ProtocolError, RangeNotSatisfied
from aioprefetch.layers.lru_cache import LruCacheLayer
from aioprefetch.layers.lru_cache.object_memory import Reservation
from aioprefetch.reader.policy import POLICIES
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadReply, ReadRequest
from tests.stores.gated_reader import in_case
from tests.unit.layers.lru_cache.harness import Bed, Gate, after, read, settle

EMPTY = ReadHead(start=0, size=0, total=0, etag="e")

# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x" * 100], ids=["empty", "bytes"])
@pytest.mark.parametrize("fields", [{}, {"offset": 3}, {"suffix": 7}, {"size": 1000}], ids=str)
async def test_an_object_that_has_no_memory_is_read_past_the_cache(
    fields: dict[str, Any], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the memory is refused, of however few bytes, the read gets its bytes from the store."""
    monkeypatch.setattr(Reservation, "take", lambda self, size_bytes: size_bytes == 1)
    bed = Bed()
    bed.put("k", data)
    async with asyncio.timeout(5):
        expected = data[fields.get("offset", 0) :] if "suffix" not in fields else data[-fields["suffix"] :]
        assert await read(bed.stack(), "k", **fields) == expected
    await bed.aclose()


async def test_an_empty_object_needs_no_memory() -> None:
    bed = Bed()
    bed.put("empty", b"")
    bed.put("big", b"x" * 10)
    budget = bed.runtime.budget
    gate, body = Gate("read"), Gate("chunk")
    bed.source.before = gate
    stack = bed.stack()
    reading = asyncio.create_task(read(stack, "empty"))
    await gate.reached.wait()
    held = [budget.request(budget.limit_bytes + 1, "demand"), budget.request(1, "demand")]
    assert [ticket.granted for ticket in held] == [True, False]
    bed.source.before = body
    big = asyncio.create_task(read(stack, "big"))  # It has the one overdraft that there is.
    await body.reached.wait()
    gate.opened.set()
    async with asyncio.timeout(5):
        assert await reading == b""
    await settle()
    assert bed.counters == {"misses": 2, "fills": 1}
    body.opened.set()
    assert await big == b"x" * 10
    await settle()
    for ticket in held:
        budget.cancel(ticket)
    await bed.aclose()


# --- a fill -----------------------------------------------------------------------------------------------------------


class Odd(ap.WrappedAccessor):
    """A store that does what a test says instead of reading."""

    def __init__(self, inner: ap.Accessor, answer: Callable[[Sink], None]) -> None:
        super().__init__(inner)
        self._answer = answer

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        await asyncio.sleep(0)
        self._answer(sink)
        return ReadReply(head=EMPTY, received=0)


def not_modified_after_a_part(sink: Sink) -> None:
    sink.begin(ReadHead(start=0, size=1000, total=1000, etag="e"))
    sink.feed(b"x" * 10)
    raise ConditionNotMatch("it is as it was", operation="read", path="k")


def out_of_range_after_a_part(sink: Sink) -> None:
    sink.begin(ReadHead(start=0, size=1000, total=1000, etag="e"))
    raise RangeNotSatisfied("there is nothing", total=1000, operation="read", path="k")


def too_short(sink: Sink) -> None:
    sink.begin(ReadHead(start=0, size=1000, total=1000, etag="e"))
    sink.feed(b"x" * 10)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda sink: None, ProtocolError),
        (too_short, ProtocolError),
        (not_modified_after_a_part, ConditionNotMatch),
        (out_of_range_after_a_part, RangeNotSatisfied),
    ],
    ids=["no head", "too short", "304 in the middle", "416 in the middle"],
)
@pytest.mark.parametrize("is_stale", [False, True])
async def test_a_fill_ends_with_its_response_whatever_that_was(
    answer: Callable[[Sink], None], error: type[ap.Error], is_stale: bool
) -> None:
    """The cache next to the store, with nothing between that would have noticed."""
    bed = Bed()
    bed.put("k", b"v" * 100)
    layer = LruCacheLayer(cache=bed.holder)
    if is_stale:
        assert await read(layer.wrap(bed.source, bed.runtime), "k") == b"v" * 100
        await settle()
    odd = layer.wrap(Odd(bed.source, answer), bed.runtime)
    async with asyncio.timeout(5):
        reads = [asyncio.create_task(odd.read(ReadRequest(path="k"), CollectSink())) for _ in range(3)]
        results = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(result) for result in results] == [error] * 3
    await settle()
    await bed.aclose()


# --- through operators, on the virtual clock --------------------------------------------------------------------------


@dataclass(frozen=True)
class Far(ap.Layer):
    """Answers after a while: for ``empty`` sooner than for others. ``refuses``: an empty object has no ranges (416)."""

    refuses: int | None = None

    def wrap(self, inner: ap.Accessor, runtime: Runtime) -> ap.Accessor:
        return FarAccessor(inner, self)


class FarAccessor(ap.WrappedAccessor):
    """The live layer."""

    def __init__(self, inner: ap.Accessor, layer: Far) -> None:
        super().__init__(inner)
        self._layer = layer

    async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
        is_empty = request.path.startswith("empty")
        await after(0.3 if is_empty else 1)
        if is_empty and self._layer.refuses is not None:
            total = self._layer.refuses if self._layer.refuses == 0 else None
            raise RangeNotSatisfied("there is nothing", total=total, operation="read", path=request.path)
        return await self.inner.read(request, sink)


REFUSES = [None, 0, 1]  # 200, 416 with the size, 416 without


@pytest.mark.virtual
@pytest.mark.parametrize("refuses", REFUSES)
async def test_memory_that_runs_out_before_the_head_of_an_empty_object(refuses: int | None) -> None:
    """Others have taken all of it, queue for more, and one of them has the only overdraft."""
    store = ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}", memory_bytes=1 << 20, block_bytes=1 << 18)
    async with store, ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache:
        far = store.layer(Far(refuses), inside=ap.layers.CompleteLayer)
        cached = far.layer(LruCacheLayer(cache=cache))
        await store.write("empty", b"")
        for number in range(12):
            await store.write(f"o{number}", bytes(1 << 19))
        empty = asyncio.create_task(cached.read("empty"))
        await after(0.05)

        async def one(number: int) -> int:
            async with far.reader(f"o{number}") as reader:
                return len(await reader.read_at(0, 1 << 18))

        others = [asyncio.create_task(one(number)) for number in range(1, 12)]
        big = asyncio.create_task(cached.read("o0"))
        async with asyncio.timeout(60):
            assert await empty == b""
            assert await big == bytes(1 << 19)
            assert await asyncio.gather(*others) == [1 << 18] * 11


Read = Callable[[ap.Operator, str], Awaitable[object]]


async def of_stream(op: ap.Operator, path: str) -> bytes:
    async with op.reader(path) as reader:
        return b"".join([bytes(chunk) async for chunk in reader.stream()])


async def of_copy(op: ap.Operator, path: str) -> bytes:
    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as target:
        await ap.copy((op, path), (target, "k"))
        return await target.read("k")


async def of_buffer(op: ap.Operator, path: str) -> bytes:
    return bytes(await op.read_into(path, 0, bytearray(10)))


def of_reader(policy: Any) -> Read:
    async def read_twice(op: ap.Operator, path: str) -> bytes:
        async with op.reader(path, policy=policy) as reader:
            assert await reader.read_at(1 << 20, 10) == b""
            assert await reader.read_ranges([(0, 0)]) == [b""]
            return await reader.read_at(0, 10)

    return read_twice


READS: list[Read] = [
    lambda op, path: op.read(path),
    lambda op, path: op.read(path, offset=100),
    lambda op, path: op.read(path, offset=5, size=10),
    lambda op, path: op.read(path, suffix=10),
    lambda op, path: op.view(path),
    *(of_buffer, of_stream, of_copy),
    *(of_reader(policy) for policy in POLICIES),
]


@pytest.mark.virtual
@pytest.mark.parametrize("refuses", REFUSES)
@pytest.mark.parametrize("is_cached", [False, True], ids=["bare", "cached"])
async def test_no_read_of_an_empty_object_waits(is_cached: bool, refuses: int | None) -> None:
    """The first time, again, beside another one, while it is written, and in full memory."""
    options: dict[str, Any] = {"memory_bytes": 1 << 16, "block_bytes": 1 << 13, "budget_wait_seconds": 5.0}
    async with (
        ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}", **options) as store,
        ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache,
    ):
        op = store.layer(Far(refuses), inside=ap.layers.CompleteLayer)
        if is_cached:
            op = op.layer(LruCacheLayer(cache=cache, revalidate_seconds=0.5))
        budget = store.runtime().budget
        for number, one in enumerate(READS):
            path = f"empty{number}"
            await store.write(path, b"")
            with in_case(read=number):
                async with asyncio.timeout(4):
                    assert not await one(op, path)
                    assert not any(await asyncio.gather(*(one(op, path) for _ in range(3))))
                    await store.write(path, b"")
                    assert not await one(op, path)
                held = budget.request(budget.limit_bytes - budget.used_bytes, "demand")
                async with asyncio.timeout(4):
                    assert not await one(op, path)
                budget.cancel(held)


@pytest.mark.virtual
async def test_readers_beside_writes_and_evictions_all_end() -> None:
    """Of empty objects and others, through a cache that holds three of them: 200, 304 and gone, in every order."""
    store = ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}", memory_bytes=1 << 14, block_bytes=1 << 12)
    async with store, ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache:
        layer = LruCacheLayer(cache=cache, capacity_bytes=3000, object_bytes_max=1000, revalidate_seconds=0)
        far = store.layer(Far(), inside=ap.layers.CompleteLayer)
        sizes = {"empty": 0, "empty2": 0, "small": 900, "small2": 1000, "large": 9000}
        for path, size in sizes.items():
            await store.write(path, bytes(size))

        async def worker(number: int) -> None:
            op = (far, far.layer(layer))[number % 2]
            for path in itertools.islice(itertools.cycle(sizes), number, number + 20):
                with suppress(ap.ObjectChanged):
                    assert len(await op.read(path)) == sizes[path]
                    async with op.reader(path) as reader:
                        assert len(await reader.read_at(0, 1 << 20)) == sizes[path]
                if number == 4:
                    await op.write(path, bytes(sizes[path]))

        async with asyncio.timeout(500):
            await asyncio.gather(*(worker(number) for number in range(5)))


async def test_an_empty_object_beside_blocks_on_the_disk(tmp_path: Path) -> None:
    """It has no block file, also while others are written, read and lost."""
    options: dict[str, Any] = {"memory_bytes": 1 << 14, "block_bytes": 1 << 12, "disk_cache": tmp_path / "blocks"}
    async with ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}", **options) as op, asyncio.timeout(60):
        await op.write("empty", b"")
        await op.write("large", bytes(1 << 16))
        for number in range(6):
            async with op.reader("large") as reader, op.reader("empty") as empty:
                assert len(await reader.read()) == 1 << 16
                assert await empty.read() == b""
            if number == 3:
                for path in (tmp_path / "blocks").rglob("*"):
                    if path.is_file():
                        path.write_bytes(b"")


# --- scans ------------------------------------------------------------------------------------------------------------


def parquet_of(tables: Sequence[pa.Table]) -> bytes:
    """A file with a row group for each table."""
    file = io.BytesIO()
    with pq.ParquetWriter(file, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return file.getvalue()


SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
NO_ROWS = SCHEMA.empty_table()
ROWS = pa.table({"a": list(range(1000)), "s": ["x" * 100] * 1000}, schema=SCHEMA)


@pytest.mark.virtual
@pytest.mark.parametrize("is_cached", [False, True], ids=["bare", "cached"])
@pytest.mark.parametrize(
    "tables", [[NO_ROWS], [NO_ROWS, ROWS], [ROWS, NO_ROWS, ROWS, NO_ROWS]], ids=["none", "before", "between"]
)
async def test_scans_of_row_groups_without_rows_end(tables: list[pa.Table], is_cached: bool) -> None:
    """In full memory too."""
    async with (
        ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}", memory_bytes=1 << 18, block_bytes=1 << 14) as store,
        ap.Operator.from_uri(f"memory://{uuid.uuid4().hex}") as cache,
    ):
        await store.write("t/k.parquet", parquet_of(tables))
        await store.write("t/none.parquet", parquet_of([NO_ROWS]))
        op = store.layer(Far(), inside=ap.layers.CompleteLayer)
        op = op.layer(LruCacheLayer(cache=cache)) if is_cached else op
        budget = store.runtime().budget
        for path, held_bytes in itertools.product(("t/k.parquet", "t/*.parquet", "t/none.parquet"), (0, 1 << 18)):
            held = budget.request(held_bytes, "demand")
            async with asyncio.timeout(100):
                batches = [batch async for batch in ap.parquet.scan(op, path)]
            assert sum(batch.num_rows for batch in batches) == (0 if "none" in path else sum(map(len, tables)))
            budget.cancel(held)
