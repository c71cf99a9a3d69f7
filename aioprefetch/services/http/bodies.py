"""The body of a response without a length: read ahead, into memory that the budget knows of."""

from __future__ import annotations

import asyncio

from aioprefetch.errors import BudgetExhausted, Unsupported
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import ReadHead, ReadRequest

CHUNK_BYTES = 1 << 20
# Memory is reserved in pieces of at least this much.
RESERVED_BYTES_MIN = 1 << 20
# So much of such a body is received at most.
UNSIZED_BYTES_MAX = 64 << 20


class UnsizedBytes:
    """Collects of a body what a request wants, as it arrives; ``release`` gives the memory back, twice is fine.

    What the budget has no room for is collected by one body at a time: the others wait with what they have, and would
    wait for each other for ever if none could get on.
    """

    def __init__(self, runtime: Runtime, request: ReadRequest) -> None:
        self.received = 0
        self._runtime = runtime
        self._request = request
        self._start = 0  # Where the first byte of ``_data`` is in the object.
        self._data = bytearray()
        self._reserved_bytes = 0
        self._alone: asyncio.Lock = runtime.shared("http bodies of unknown length", asyncio.Lock)
        self._is_alone = False

    @property
    def is_enough(self) -> bool:
        """Whether all that was asked for is there, whatever may follow."""
        request = self._request
        if request.size is None or request.suffix is not None:
            return False
        return self.received >= request.offset + request.size

    async def add(self, chunk: memoryview) -> None:
        """Take what is wanted of the next bytes.

        Raises ``Unsupported`` for a body without end, and ``BudgetExhausted`` when no memory comes free.
        """
        self.received += len(chunk)
        if self.received > UNSIZED_BYTES_MAX:
            raise Unsupported(
                f"the server tells no length, and such objects are read up to {UNSIZED_BYTES_MAX} bytes only: "
                "copy the object to a store that tells lengths and has ranges",
                operation="read",
                path=self._request.path,
            )
        suffix = self._request.suffix
        if suffix is None and not self._data:
            # What comes before the offset is not kept.
            skipped = max(0, len(chunk) - max(0, self.received - self._request.offset))
            chunk = chunk[skipped:]
            self._start = self.received - len(chunk)
        missing_bytes = len(self._data) + len(chunk) - self._reserved_bytes
        if missing_bytes > 0:
            await self._reserve(max(missing_bytes, RESERVED_BYTES_MIN))
        self._data += chunk
        if suffix is not None and len(self._data) > 2 * suffix + RESERVED_BYTES_MIN:
            self._start += len(self._data) - suffix
            del self._data[: len(self._data) - suffix]

    def view(self, start: int, end: int) -> memoryview:
        """Bytes of the object that were wanted."""
        return memoryview(self._data)[start - self._start : end - self._start] if start < end else memoryview(b"")

    def release(self) -> None:
        """Give the memory back."""
        self._runtime.budget.release(self._reserved_bytes)
        self._reserved_bytes = 0
        self._data = bytearray()
        if self._is_alone:
            self._is_alone = False
            self._alone.release()

    async def _reserve(self, size_bytes: int) -> None:
        budget = self._runtime.budget
        ticket = budget.request(size_bytes, "demand")
        if not ticket.granted:
            budget.cancel(ticket)
            if not self._is_alone:
                await self._wait()
            budget.charge(size_bytes)
        self._reserved_bytes += size_bytes

    async def _wait(self) -> None:
        limit_seconds = self._runtime.options.budget_wait_seconds
        try:
            with self._runtime.timer("memory_waits"):
                async with asyncio.timeout(limit_seconds):
                    await self._alone.acquire()
        except TimeoutError:
            raise BudgetExhausted(
                f"memory for a response without a length was not free within {limit_seconds} s; read fewer of them "
                "at once, release views, close readers or raise memory_bytes",
                operation="read",
                path=self._request.path,
            ) from None
        self._is_alone = True


class BufferedBody:
    """A part of a body that was collected."""

    def __init__(self, head: ReadHead, collected: UnsizedBytes) -> None:
        self.head = head
        self._view = collected.view(head.start, head.end)
        self._collected = collected

    async def read_chunk(self) -> memoryview:
        chunk, self._view = self._view[:CHUNK_BYTES], self._view[CHUNK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        self._view = memoryview(b"")
        self._collected.release()
