"""A compressed stream decompressed piece by piece: what comes out at once is bounded, whatever the bytes claim."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import Protocol, TypeVar

from aioprefetch.errors import ConfigInvalid
from aioprefetch.source.formats.gzip_stream import GzipStream
from aioprefetch.source.formats.snappy_stream import SnappyStream
from aioprefetch.source.formats.zstd_stream import ZstdStream

T = TypeVar("T")

# Work on less than this costs less than handing it to a thread.
THREAD_BYTES = 64 << 10

# So much compressed data is handed to a thread at once, and more of what becomes more.
_SLICE_BYTES_MIN = 128 << 10
_SLICE_BYTES_MAX = 16 << 20

OffLoop = Callable[..., Awaitable[T]]


class Decompressor(Protocol):
    """Takes compressed bytes in pieces. Errors are ``UntrustedMetadata`` with the position in the compressed file."""

    def feed(self, data: bytes) -> None:
        """More bytes; only when ``take`` has given all of those before."""
        ...

    def take(self) -> bytes:
        """Up to about a MiB of what was decompressed; empty when more bytes are needed."""
        ...

    def finish(self) -> None:
        """The file has ended: raises if that is in the middle of something."""
        ...


_STREAMS: dict[str, Callable[[str], Decompressor]] = {"gzip": GzipStream, "zstd": ZstdStream, "snappy": SnappyStream}


def decompressor(compression: str, path: str) -> Decompressor:
    """A new one for the file at ``path``. ``MissingDependency`` when zstd is not installed."""
    make = _STREAMS.get(compression)
    if make is None:
        raise ConfigInvalid(
            f"compression={compression!r} is none of {', '.join(_STREAMS)}", operation="read_items", path=path
        )
    return make(path)


async def decompressed(
    pieces: AsyncIterable[bytes], compression: str, path: str, off_loop: OffLoop[bytes]
) -> AsyncGenerator[bytes, None]:
    """What a compressed stream holds, in pieces of about a MiB; ``off_loop`` runs the work in a thread.

    A thread cannot be cancelled: it gets little at once of what becomes less, such as thousands of empty members.
    """
    stream = decompressor(compression, path)
    size = _SLICE_BYTES_MIN
    async for piece in pieces:
        is_small = len(piece) < THREAD_BYTES
        at = 0
        while at < len(piece):
            part = piece[at : at + size]
            stream.feed(part)
            taken = 0
            while found := stream.take() if is_small else await off_loop(stream.take):
                taken += len(found)
                yield found
            at += len(part)
            size = min(2 * size, _SLICE_BYTES_MAX) if taken >= len(part) else _SLICE_BYTES_MIN
    stream.finish()


def decompressed_whole(data: bytes, compression: str, path: str, bytes_max: int) -> bytes | None:
    """All that the bytes of a whole file hold; ``None`` where that is more than ``bytes_max``."""
    stream = decompressor(compression, path)
    stream.feed(data)
    parts: list[bytes] = []
    left = bytes_max
    while found := stream.take():
        left -= len(found)
        if left < 0:
            return None
        parts.append(found)
    stream.finish()
    return b"".join(parts)
