"""Ours, as clients: the ways to read a range, an object and a stream. A read of theirs must go over our transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from tests.benchmarks.content import MIB
from tests.benchmarks.job import Target
from tests.benchmarks.seam import Client

if TYPE_CHECKING:
    import aioprefetch as ap

# The default of our operator and of its peers; more where more are asked for.
CONCURRENCY = 64
READER_OPTIONS = ("policy",)


def our_words(target: Target) -> dict[str, Any]:
    """The options of our service of S3."""
    words: dict[str, Any] = target.given("endpoint_url", "region", "access_key_id", "secret_access_key")
    own = {"ca_bundle": target.ca_bundle} if target.ca_bundle else {}
    return {**words, **own, **({"allow_http": True} if target.endpoint_url.startswith("http:") else {})}


def recipe_of(target: Target, **options: Any) -> ap.Operator:
    """Our operator, with default options where ``options`` has no other."""
    import aioprefetch as ap

    if target.is_local:
        return ap.Operator.from_uri(target.endpoint_url, **options)
    return ap.Operator.from_uri(f"s3://{target.bucket}", **our_words(target), **options)


def check_transport(target: Target, statistics: Mapping[str, float]) -> None:
    """Raise AssertionError unless our own transport was used: what is measured is what it says."""
    assert target.is_local or statistics["transport_requests"] > 0, "nothing went over our own transport"


class Ours(Client):
    """``Operator.view``: the memory that the response was received into. A stream goes through a reader.

    ``options`` are those of a reader and of the operator.
    """

    async def open(self) -> None:
        operator = self.made()
        self.operator = await self.stack.enter_async_context(operator)
        self.read, self.put = operator.view, operator.write
        self.get = lambda key, start, end: operator.view(key, offset=start, size=end - start)

    def made(self) -> ap.Operator:
        """The recipe."""
        return recipe_of(self.target, concurrency=max(self.in_flight, CONCURRENCY), **self.operator_options)

    @property
    def reader_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name in READER_OPTIONS}

    @property
    def operator_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name not in READER_OPTIONS}

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        if error[0] is None:
            check_transport(self.target, self.operator.statistics)

    async def chunks(self, key: str, read_bytes: int = MIB) -> AsyncIterator[Any]:
        async with self.operator.reader(key, **self.reader_options) as reader:
            while True:  # without a name for the chunk, which would hold it while the next one is read
                yield await reader.read(read_bytes)

    async def size(self, key: str) -> Any:
        return (await self.operator.stat(key)).size

    async def count(self, prefix: str) -> int:
        return len([entry async for entry in self.operator.list(prefix)])


class OursRead(Ours):
    """``Operator.read``: bytes of one's own."""

    async def open(self) -> None:
        await super().open()
        operator = self.operator
        self.read = operator.read
        self.get = lambda key, start, end: operator.read(key, offset=start, size=end - start)


class OursVerbs(OursRead):
    """Requests that carry little: they take the way of no read."""

    async def __aexit__(self, *error: Any) -> None:
        await Client.__aexit__(self, *error)


class OursInto(Ours):
    """``Operator.read_into``: memory of the caller's, used again and again."""

    async def open(self) -> None:
        await super().open()
        self.buffers = [memoryview(bytearray(self.range_bytes)) for _ in range(self.in_flight)]
        self.get = self._get

    async def _get(self, key: str, start: int, end: int) -> memoryview:
        buffer = self.buffers.pop()
        # The caller looks at it before anything else runs.
        length = await self.operator.read_into(key, start, buffer[: end - start])
        self.buffers.append(buffer)
        return buffer[:length]


class OursRecorded(Ours):
    """``view`` while a trace is recorded."""

    async def open(self) -> None:
        import aioprefetch as ap

        await super().open()
        self.stack.enter_context(ap.trace.record(self.operator))


class OursHedged(Ours):
    """``view`` with HedgeLayer within Retry."""

    def made(self) -> ap.Operator:
        from aioprefetch.layers import HedgeLayer, RetryLayer

        return super().made().layer(HedgeLayer(), inside=RetryLayer)


class OursReader(Ours):
    """Ranges by ``read_at`` of one reader for each object; objects by a reader of their own, and one read."""

    async def open(self) -> None:
        await super().open()
        self.readers: dict[str, ap.RangeReader] = {}
        self.get, self.read = self._get, self._read

    async def _get(self, key: str, start: int, end: int) -> bytes:
        reader = self.readers.get(key)
        if reader is None:
            self.readers[key] = reader = self.operator.reader(key, **self.reader_options)
            await self.stack.enter_async_context(reader)
        return await reader.read_at(start, end - start)

    async def _read(self, key: str) -> bytes:
        async with self.operator.reader(key, **self.reader_options) as reader:
            return await reader.read_at(0, self.target.size_bytes)

    async def read_all(self, key: str) -> bytes:
        """``read()`` of a reader."""
        async with self.operator.reader(key, **self.reader_options) as reader:
            return await reader.read()


class OursStream(Ours):
    """The iterator of our reader, in its own chunks."""

    async def chunks(self, key: str, read_bytes: int = MIB) -> AsyncIterator[Any]:
        async with self.operator.reader(key) as reader, reader.stream(chunk_bytes=read_bytes) as stream:
            async for chunk in stream:
                yield chunk


class OursFile(Client):
    """``ap.sync.open`` of a URL."""

    is_blocking = True

    async def open(self) -> None:
        import aioprefetch as ap

        words, bucket = our_words(self.target), self.target.bucket
        self.file = lambda key: ap.sync.open(f"s3://{bucket}/{key}", **words, **self.options)


class OursBlocking(Client):
    """Our file over memory, for code without an event loop: hits are served on the caller's thread."""

    async def open(self) -> None:
        import aioprefetch as ap

        self.operator = ap.sync.BlockingOperator(recipe_of(self.target, **self.options))
        self.stack.enter_context(self.operator)

    async def put(self, key: str, data: bytes) -> None:
        self.operator.write(key, data)
        file = self.stack.enter_context(self.operator.open(key))

        async def get(key: str, start: int, end: int) -> bytes:
            return file.read_at(start, end - start)

        self.get = get
