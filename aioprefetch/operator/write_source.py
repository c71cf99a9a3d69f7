"""The sources of a write: bytes, files and iterators, each as a stream of large pieces.

Files are read by the part, and small items are put together. A source that blocks is read on a worker thread.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from aioprefetch.errors import InvalidType

# The size of a read from a file: a part of an upload.
FILE_PIECE_BYTES = 8 << 20
# Smaller items are put together: a step to another thread, or through the layers, costs more than copying this much.
PIECE_BYTES_MIN = 1 << 20

_ITEM = "data must yield bytes"

T = TypeVar("T")

BytesLike: TypeAlias = bytes | bytearray | memoryview


class ReadableFile(Protocol):
    """A file open for reading bytes; ``read`` may be asynchronous."""

    def read(self, size: int, /) -> Any:
        """The next bytes, ``b""`` at the end."""


WriteSource: TypeAlias = ReadableFile | Iterable[BytesLike] | AsyncIterable[BytesLike]


def bytes_of(data: object, path: str) -> BytesLike | None:
    """``data`` as bytes, copied only if it is not contiguous; ``None`` without the buffer protocol.

    ``InvalidType`` for a buffer that cannot be read, or that holds Python objects, which are addresses in this process.
    """
    if isinstance(data, bytes | bytearray):
        return data
    try:
        view = memoryview(data)  # type: ignore[arg-type]
        kind = view.format
    except TypeError:
        return None
    except (ValueError, BufferError) as error:
        raise _invalid(f"the buffer of a {type(data).__name__} cannot be read: {error}", path) from None
    if "O" in kind:
        raise _invalid(f"the {type(data).__name__} holds Python objects, not bytes", path)
    if not view.nbytes:
        return b""
    return view.cast("B") if view.c_contiguous else view.tobytes()


def is_asynchronous(data: object) -> bool:
    """Whether a source is read on an event loop, and not on a thread."""
    return hasattr(data, "__aiter__") or inspect.iscoroutinefunction(getattr(data, "read", None))


def left_bytes_of(data: Any) -> int:
    """The bytes that a local file has from its position on; 0 where its descriptor does not tell."""
    if is_asynchronous(data) or not hasattr(data, "fileno"):
        return 0
    try:
        status, position = os.fstat(data.fileno()), data.tell()
    except (AttributeError, OSError, TypeError, ValueError):  # A pipe, a file in memory, something else of that name.
        return 0
    return max(0, status.st_size - position) if stat.S_ISREG(status.st_mode) else 0


def pieces_of(data: Any, path: str) -> AsyncGenerator[BytesLike, None]:
    """The pieces of a source. Nothing is read before the first piece is awaited; ``InvalidType`` for anything else."""
    read = getattr(data, "read", None)
    if callable(read):
        if isinstance(data, io.TextIOBase) or isinstance(getattr(data, "encoding", None), str):
            raise _invalid("the file is open in text mode: open it with 'rb'", path)
        return _gathered(_read_here(read, path), path) if is_asynchronous(data) else _read_in_thread(read, path)
    if hasattr(data, "__aiter__"):
        return _gathered(data, path)
    if hasattr(data, "__iter__") and not isinstance(data, str | Mapping):
        return _iterated_in_thread(data, path)
    hint = ""
    if inspect.iscoroutine(data):
        data.close()
        hint = ": await it first"
    elif isinstance(data, str):
        hint = ": encode the text"
    elif isinstance(data, os.PathLike):
        hint = ": open the file with 'rb'"
    raise _invalid(f"data must be bytes, a binary file or an iterator of bytes, not {type(data).__name__}{hint}", path)


async def _gathered(items: AsyncIterable[object], path: str) -> AsyncGenerator[BytesLike, None]:
    gathered = bytearray()
    async for item in items:
        chunk = checked_chunk(item, path, _ITEM)
        if len(chunk) >= PIECE_BYTES_MIN:
            if gathered:
                yield gathered
                gathered = bytearray()
            yield chunk
            continue
        gathered += chunk  # A copy: its owner may fill the same buffer again.
        if len(gathered) >= PIECE_BYTES_MIN:
            yield gathered
            gathered = bytearray()
    if gathered:
        yield gathered


async def _read_here(read: Callable[[int], Any], path: str) -> AsyncGenerator[BytesLike, None]:
    while True:
        chunk = read(FILE_PIECE_BYTES)
        chunk = checked_chunk(await chunk if inspect.isawaitable(chunk) else chunk, path, _ITEM)
        if not chunk:
            return
        yield chunk


async def _read_in_thread(read: Callable[[int], Any], path: str) -> AsyncGenerator[BytesLike, None]:
    ended = False
    while not ended:
        piece, ended = await _in_thread(path, _next_of_file, read, path)
        if piece:
            yield piece


async def _in_thread(path: str, call: Callable[..., T], *args: object) -> T:
    """Run code of the user on a worker thread. A future cannot carry ``StopIteration``: it would never be done."""

    def guarded() -> T:
        try:
            return call(*args)
        except StopIteration as error:
            raise _invalid("the source raised StopIteration: at its end read() returns b''", path) from error

    return await asyncio.to_thread(guarded)


def _next_of_file(read: Callable[[int], Any], path: str) -> tuple[BytesLike, bool]:
    """On a worker thread: the next piece, and whether it is the last. Pipes and sockets return a little at a time."""
    gathered = bytearray()
    while len(gathered) < PIECE_BYTES_MIN:
        chunk = checked_chunk(read(FILE_PIECE_BYTES), path, _ITEM)
        if not chunk:
            return gathered, True
        if not gathered and len(chunk) >= PIECE_BYTES_MIN:
            return chunk, False
        gathered += chunk
    return gathered, False


async def _iterated_in_thread(items: Iterable[object], path: str) -> AsyncGenerator[BytesLike, None]:
    iterator: Iterator[object] = await _in_thread(path, iter, items)
    while pieces := await _in_thread(path, _next_items, iterator, path):
        for piece in pieces:
            yield piece


def _next_items(iterator: Iterator[object], path: str) -> list[BytesLike]:
    """On a worker thread: one piece, or two where a large item follows small ones; none at the end."""
    gathered = bytearray()
    for item in iterator:
        chunk = checked_chunk(item, path, _ITEM)
        if len(chunk) >= PIECE_BYTES_MIN:
            return [gathered, chunk] if gathered else [chunk]
        gathered += chunk  # A copy: its owner may fill the same buffer again.
        if len(gathered) >= PIECE_BYTES_MIN:
            break
    return [gathered] if gathered else []


def checked_chunk(chunk: object, path: str, wanted: str = "data must be bytes") -> BytesLike:
    """A piece of an object as bytes. ``InvalidType`` for anything else."""
    data = bytes_of(chunk, path)
    if data is None:
        if inspect.iscoroutine(chunk):
            chunk.close()
        hint = ": encode the text" if isinstance(chunk, str) else ""
        raise _invalid(f"{wanted}, not {type(chunk).__name__}{hint}", path)
    return data


def _invalid(message: str, path: str) -> InvalidType:
    return InvalidType(message, operation="write", path=path)
