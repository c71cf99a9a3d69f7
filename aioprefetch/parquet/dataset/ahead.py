"""Work on the files that come next while one is read: its results in the order of the files, within limits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from aioprefetch.runtime.callers import entering
from aioprefetch.runtime.task_group import all_stopped

T = TypeVar("T")


class Job(NamedTuple, Generic[T]):
    """The work on one file, and the bytes that it may bring into memory."""

    start: Callable[[], Coroutine[Any, Any, T]]
    size_bytes: int


class Ahead(Generic[T]):
    """The results of jobs, in their order, while at most ``jobs_max`` of them are open, with ``bytes_max`` together.

    A job is open from its start until ``leave`` is called for it. Two are always let in, of any size: a file ends where
    the next one begins.
    ``aclose`` cancels what runs.
    """

    def __init__(self, jobs: Iterator[Job[T]], *, jobs_max: int, bytes_max: int) -> None:
        self._jobs = jobs
        self._jobs_max = jobs_max
        self._bytes_max = bytes_max
        self._running: deque[tuple[asyncio.Task[T], int]] = deque()
        self._next: Job[T] | None = next(jobs, None)
        self._open = 0
        self._open_bytes = 0
        self._room = asyncio.Event()
        self._closed = False

    async def next(self) -> tuple[T, Callable[[], None]] | None:
        """The result of the next job and its ``leave``, to be called once; ``None`` after the last."""
        self._launch()
        while not self._running:
            if self._next is None or self._closed:
                return None
            self._room.clear()
            await self._room.wait()
            self._launch()
        task, size = self._running.popleft()
        try:
            return await task, partial(self.leave, size)
        finally:
            del task  # The traceback of its error holds this frame.

    async def aclose(self) -> None:
        """Cancel the jobs that run, and wait for their ends."""
        self._closed = True
        self._room.set()
        tasks = [task for task, _ in self._running]
        self._running.clear()
        await all_stopped(tasks)

    def leave(self, size_bytes: int) -> None:
        """A job of this size is no longer open."""
        self._open -= 1
        self._open_bytes -= size_bytes
        self._launch()
        self._room.set()

    def _launch(self) -> None:
        while not self._closed and (job := self._next) is not None and self._has_room(job.size_bytes):
            self._open += 1
            self._open_bytes += job.size_bytes
            self._running.append((asyncio.create_task(job.start(), context=entering()), job.size_bytes))
            self._next = next(self._jobs, None)

    def _has_room(self, size_bytes: int) -> bool:
        return self._open < 2 or (self._open < self._jobs_max and self._open_bytes + size_bytes <= self._bytes_max)


async def in_order(starts: Iterable[Callable[[], Coroutine[Any, Any, T]]], width: int) -> AsyncGenerator[T, None]:
    """The results of jobs in their order; ``width`` jobs run at once."""
    ahead = Ahead((Job(start, 0) for start in starts), jobs_max=max(width, 1), bytes_max=0)
    try:
        while (found := await ahead.next()) is not None:
            result, leave = found
            leave()
            yield result
    finally:
        await ahead.aclose()
