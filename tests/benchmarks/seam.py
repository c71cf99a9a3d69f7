"""What every client of the benchmarks is: a context over the store of a target."""

import contextlib
from collections.abc import Iterator
from typing import Any, Self

from tests.benchmarks.content import MIB
from tests.benchmarks.job import Target

# botocore's default.
CONNECTIONS = 10


class Client:
    """A library's client, for ``in_flight`` calls at once, of ranges of ``range_bytes``. ``options`` are its own.

    ``is_blocking``: its calls hold their thread, so that many at once go in as many threads. ``is_slow``: it sends
    fewer requests in a sample.
    """

    is_blocking = False
    is_slow = False
    get: Any
    read: Any
    put: Any
    size: Any
    count: Any
    file: Any

    def __init__(self, target: Target, in_flight: int = 1, range_bytes: int = MIB, **options: Any) -> None:
        self.target, self.in_flight, self.range_bytes, self.options = target, in_flight, range_bytes, options
        self.connections = max(in_flight, CONNECTIONS)
        self.stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.stack.__aexit__(*error)

    async def open(self) -> None:
        """Make what the calls need."""
        raise NotImplementedError

    def path(self, key: str) -> str:
        """A key behind its bucket, as file systems name objects."""
        return f"{self.target.bucket}/{key}"

    def chunks(self, key: str, read_bytes: int = MIB) -> Any:
        """Reads of a file in order, without an end."""
        return reads_of(self.file(key), read_bytes)


def reads_of(opened: Any, read_bytes: int) -> Iterator[Any]:
    """Reads of a file in order, without an end: who reads knows its size."""
    with opened as file:
        while True:
            yield file.read(read_bytes)


def whole_of(opened: Any) -> Any:
    """All of a file."""
    with opened as file:
        return file.read()
