"""A file object over an object in a store, for everything in Python that reads files.

Resident bytes are served on the caller's thread. Only a read that has to fetch something crosses to the loop thread
and waits there.

The last file of a store leaves connections and credentials behind for the next one, for some seconds. Programs open
many files of one store by URL, one after the other. The runtime that such files share would close with each of them. So
the operator of the last one is kept, as a holder without a file. It keeps no bytes in memory.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar

from aioprefetch.accessor.counted_requests import latest_change
from aioprefetch.accessor.path_hints import hint_at_directory
from aioprefetch.credentials import hide_frames
from aioprefetch.errors import (
    Closed,
    Error,
    InvalidArgument,
    InvalidRange,
    InvalidType,
    NotFound,
    Unsupported,
    redact,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.ranges import ByteCount, checked_int, checked_range
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.closing import refused
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.family import KEPT_SECONDS
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.runtime.statistics import Counters, StatisticsSnapshot
from aioprefetch.sync.loop_thread import LoopThread, leak_in_child, loop_thread, process_lock
from aioprefetch.values import Metadata

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from aioprefetch.blocks.file import BlockFile
    from aioprefetch.reader.reader import RangeReader

T = TypeVar("T")

# The operators that are kept at once.
OPERATORS_MAX = 8


class KeptOperators:
    """The kept operators of one loop thread, the least recently used first. Everything runs on that thread."""

    def __init__(self, thread: LoopThread, *, kept_seconds: float = KEPT_SECONDS) -> None:
        self.thread = thread
        self._kept_seconds = kept_seconds
        self._kept: OrderedDict[int, tuple[Operator, asyncio.TimerHandle]] = OrderedDict()

    async def take_over(self, operator: Operator) -> None:
        """Close the operator of a file that was closed, or keep it if it is the last one with connections."""
        runtime = operator.runtime()
        if not runtime.gauged()["transport_connections_open"]:
            await operator.aclose()
            return
        # Operators that share a runtime are of one service object.
        kept, timer = self._kept.pop(id(operator.service), (None, None))
        if timer is not None:
            timer.cancel()
        later = self.thread.loop.call_later(self._kept_seconds, self._expire, id(operator.service))
        self._kept[id(operator.service)] = operator, later
        if kept is not None:
            await kept.aclose()
        if runtime.holders == 1:
            runtime.free_memory()
        while len(self._kept) > OPERATORS_MAX:
            _, (oldest, timer) = self._kept.popitem(last=False)
            timer.cancel()
            await oldest.aclose()

    def _expire(self, service_id: int) -> None:
        operator, _ = self._kept.pop(service_id)
        self.thread.keep(self.thread.loop.create_task(operator.aclose()))


_kept: KeptOperators | None = None


def kept_operators() -> KeptOperators:
    """The files of the loop thread of this process."""
    global _kept
    thread = loop_thread()
    kept = _kept
    if kept is None or kept.thread is not thread:
        if kept is not None:  # Of a thread that stayed behind at a fork.
            leak_in_child(kept)
        kept = _kept = KeptOperators(thread)
    return kept


# --- the file ---------------------------------------------------------------------------------------------------------

# Lines are searched in pieces of this size, copied out of the resident blocks once.
LINE_PIECE_BYTES = 128 << 10
CLOSE_SECONDS_MAX = 5.0
# How long what the read of a footer has learned holds for the next file.
FACTS_SECONDS = 5.0
# The end of a footer lies at most this far before the end of its object: formats put its length and a mark behind it.
TRAILER_BYTES_MAX = 64
_ASYNC_READER = "write 'with'; with await there is 'async with op.reader(...) as reader'"


class SyncFile(io.RawIOBase):
    """A read-only, seekable file. Opening and seeking cost no request, except ``SEEK_END`` while the size is unknown.

    Reads are full: they are short at the end of the object only. ``read_at``, ``view_at`` and ``read_ranges`` never
    move the cursor and may be used by many threads at once; reads through the cursor take turns. A forked child may
    continue using the file: it opens a reader of its own, pinned to the version that its parent has seen.

    Close it, or use ``with``: a file that is collected unclosed releases its memory with a ``ResourceWarning``.
    """

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refused("async with", _ASYNC_READER)
        __await__ = refused("await", _ASYNC_READER)

    mode = "rb"
    # Whether a file that is collected unclosed warns; the files of libraries that drop theirs do not.
    warns_unclosed = True

    # Whether a file that is not closed, and was read only at its end, as a view, leaves size and version to the
    # next one: Arrow reads a footer, drops the file, and opens it again for the data.
    leaves_facts = False

    _reader: RangeReader | None = None
    _position: int
    _footer: tuple[BlockFile, tuple[float, object]] | None = None  # Where these are left, and what.

    def __init__(
        self,
        operator: Operator,
        path: str,
        reader_options: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        owns_operator: bool = False,
        shares_runtime: bool = False,
    ) -> None:
        super().__init__()
        self.name = path if name is None else name
        self._operator = operator
        self._path = path
        self._options = dict(reader_options or {})
        self._on_progress: ProgressCallback | None = self._options.pop("on_progress", None)
        self._owns_operator = owns_operator
        self._shares_runtime = shares_runtime
        self._open_reader()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._position}"
        return f"<aioprefetch.sync.SyncFile {redact(str(self.name))!r} {state}>"

    def _repr_html_(self) -> str | None:
        return None if self._reader is None else self._reader._shown_at(self._position)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidType(
            "an open file cannot be pickled; pickle the Operator and open the path again",
            operation="pickle",
            path=self._path,
        )

    # At the end of the process the names of modules may be gone, but not the defaults of arguments.
    def __del__(self, warn: Any = warnings.warn, is_finalizing: Any = sys.is_finalizing) -> None:
        if self._reader is None or self.closed:
            return
        if self.warns_unclosed:
            warn(f"unclosed file {self!r}", ResourceWarning, source=self, stacklevel=2)
        if not is_finalizing():  # At the end of the process nothing is left that could close it, nor needs to.
            self._end(wait=False)

    @property
    def operator(self) -> Operator:
        """The operator that the file reads from; of a file opened by a URL its own, which is closed with it.

        It shares connections, memory and statistics with other files of the same options and principal.
        """
        return self._operator

    # Facts of the object

    @property
    def size(self) -> int:
        """The size of the object in bytes. While unknown it costs the first read, whose bytes are kept."""
        size = self._live("size").size
        return self._wait_for(self._find_size(by_tail=False)) if size is None else size

    @property
    def etag(self) -> str | None:
        """The pinned version of the object; ``None`` before the first read."""
        return None if self._reader is None else self._reader.etag

    @property
    def metadata(self) -> Metadata | None:
        """The object by the responses so far; ``None`` before the first read. See ``RangeReader.metadata``."""
        return None if self._reader is None else self._reader.metadata

    @property
    def statistics(self) -> StatisticsSnapshot:
        """The reader's statistics; they stay readable after ``close``."""
        return Counters().snapshot({}) if self._reader is None else self._reader.statistics

    def readable(self) -> bool:
        """True. ``ValueError`` when closed, as for every file."""
        self._live("readable")
        return True

    def seekable(self) -> bool:
        """True. ``ValueError`` when closed, as for every file."""
        self._live("seekable")
        return True

    def writable(self) -> bool:
        """False. ``ValueError`` when closed, as for every file."""
        self._live("writable")
        return False

    def write(self, data: object, /) -> NoReturn:
        """Raise ``io.UnsupportedOperation``: the file is open for reading."""
        self._refuse("write")

    def truncate(self, size: int | None = None, /) -> NoReturn:
        """Raise ``io.UnsupportedOperation``: the file is open for reading."""
        self._refuse("truncate")

    def fileno(self) -> NoReturn:
        """Raise ``io.UnsupportedOperation``: there is no descriptor."""
        self._refuse("fileno")

    def begin(self, *, at_end: bool = False) -> None:
        """Send the first request now, for the start of the object, or for its end: it brings size and version.

        ``NotFound`` and the other errors of the store close the file.
        """
        try:
            self._wait_for(self._find_size(by_tail=at_end))
        except BaseException:
            self._end(wait=False)
            raise

    # Positional reads: the cursor stays where it is

    def read_at(self, offset: int, size: int | None) -> bytes:
        """``size`` bytes from ``offset`` (``None``: to the end); fewer at the end of the object only.

        Raises ``InvalidRange`` for a negative offset or size, ``ObjectChanged`` when the object was overwritten since
        the first read, and the errors of the store.
        """
        return self._read(*self._range(offset, size))

    def view_at(self, offset: int, size: int | None) -> memoryview:
        """Read like ``read_at``; returns a read-only ``memoryview``.

        Without a copy where the bytes lie in one block, are at least an eighth of it, and views hold no more than half
        of ``memory_bytes``. Then the block stays in memory, and accounted, until the last slice of the view is gone.
        """
        return self._view(*self._range(offset, size))

    def read_ranges(
        self,
        ranges: Iterable[Sequence[int]],
        *,
        gap_bytes: ByteCount | None = None,
        request_bytes_max: ByteCount | None = None,
    ) -> list[bytes]:
        """The bytes of each ``(start, end)``, fetched together; neighbours share requests. See ``RangeReader``."""
        reader = self._live("read_ranges")
        parts = self._wait_for(reader.read_ranges(ranges, gap_bytes=gap_bytes, request_bytes_max=request_bytes_max))
        self._progress(sum(map(len, parts)))
        return parts

    def read_ranges_into(
        self, ranges: Iterable[Sequence[int]], buffers: Iterable[WriteableBuffer], **limits: ByteCount | None
    ) -> None:
        """Fill a buffer with the bytes of each ``(start, end)``; as ``RangeReader.read_ranges_into``."""
        targets = [*buffers]
        self._wait_for(self._live("read_ranges").read_ranges_into(ranges, targets, **limits))
        self._progress(sum(memoryview(target).nbytes for target in targets))

    # Reads through the cursor, one at a time

    # The names of the arguments are as in fsspec's files.
    def read(self, length: int | None = -1) -> bytes:
        """``length`` bytes from the cursor, or all that is left without one; fewer at the end of the object only."""
        with self._turn("read"):
            data = self._read(self._position, self._wanted(length))
            self._position += len(data)
            return data

    def readall(self) -> bytes:
        """All bytes from the cursor to the end of the object."""
        return self.read(-1)

    def read_buffer(self, size: int | None = -1, /) -> memoryview:
        """Like ``read``, as a view: a copy where ``view_at`` is one. Arrow calls this where a file has it."""
        with self._turn("read"):
            view = self._view(self._position, self._wanted(size))
            self._position += len(view)
            return view

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill any writable buffer from the cursor; how many bytes it took, fewer at the end of the object only."""
        with memoryview(buffer) as view:
            if view.readonly:
                raise InvalidType("readinto needs a writable buffer", operation="readinto", path=self._path)
            if not view.nbytes:
                self._live("readinto")
                return 0
            with view.cast("B") as target, self._turn("readinto"):
                count = self._fill(target)
                self._position += count
                return count

    def seek(self, loc: int, whence: int = io.SEEK_SET) -> int:
        """Move the cursor, beyond the end too; the new position. A negative one is a ``ValueError``."""
        with self._turn("seek"):
            target = self._base(whence) + checked_int(loc, "offset", operation="seek", path=self._path)
            if target < 0:
                raise InvalidRange(f"the position would be negative: {target}", operation="seek", path=self._path)
            self._live("seek")._count_seek(self._position, target)
            self._position = target
            return target

    def tell(self) -> int:
        """The position of the cursor."""
        self._live("tell")
        return self._position

    def readline(self, size: int | None = -1, /) -> bytes:
        """The bytes up to and with the next newline, at most ``size`` of them; ``b""`` at the end of the object."""
        with self._turn("readline"):
            limit = -1 if size is None else checked_int(size, "size", operation="readline", path=self._path)
            piece = self._line_piece
            line = self._next_line(limit)
            self._position += len(line)
            self._live("readline")._count_delivered(len(line), reads=self._line_piece is piece)
            return line

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """The lines that are left; with a ``hint``, only as many as that many bytes take."""
        if hint is None or hint <= 0:
            return io.BytesIO(self.read()).readlines()
        return super().readlines(hint)

    def close(self) -> None:
        """Release memory and connections, and the operator too if ``open`` made it. May be called twice.

        Reads that other threads wait for end with ``Closed``.
        """
        if not self.closed:
            if self._footer is not None:
                self._note_footer(None)
            self._end(wait=True)

    # Inside

    def _open_reader(self, before: RangeReader | None = None) -> None:
        self._thread = loop_thread()
        self._position = 0
        self._cursor = threading.RLock()
        self._line_piece, self._line_start = b"", 0
        reader = self._operator.reader(self._path, **self._options) if before is None else before._twin()
        self._reader = reader  # which sends nothing
        self._generation = fork_generation()

    def _live(self, operation: str) -> RangeReader:
        """The reader of this process, or ``Closed``."""
        reader = self._reader
        if reader is None or self.closed:
            raise Closed("the file is closed", operation=operation, path=self._path)
        return reader if self._generation == fork_generation() else self._reopen_in_child(reader)

    def _reopen_in_child(self, parent: RangeReader) -> RangeReader:
        with process_lock():
            if self._generation != fork_generation():
                position = self._position
                leak_in_child(parent, self._cursor)  # a thread that is not in this process may hold the lock
                self._open_reader(parent)
                self._position = position
        return self._live("read")

    def _turn(self, operation: str) -> threading.RLock:
        """The lock of the cursor, for this process."""
        self._live(operation)
        return self._cursor

    def _end(self, *, wait: bool) -> None:
        super().close()
        self._line_piece = b""
        reader, operator = self._reader, self._operator if self._owns_operator else None
        if self._generation != fork_generation():
            leak_in_child(reader)
            return

        async def release() -> None:
            try:
                if reader is not None:
                    await reader.aclose()
            finally:
                if operator is not None and self._shares_runtime and reader is not None and reader.size is not None:
                    await kept_operators().take_over(operator)
                elif operator is not None:
                    await operator.aclose()

        self._thread.finish(release, timeout_seconds=CLOSE_SECONDS_MAX if wait else 0)

    def _refuse(self, operation: str) -> NoReturn:
        self._live(operation)
        raise Unsupported(
            f"{operation} does not apply: the file is open for reading", operation=operation, path=self._path
        )

    def _range(self, offset: int, size: int | None) -> tuple[int, int | None]:
        return checked_range(offset, size, operation="read", path=self._path)

    def _wanted(self, size: int | None) -> int | None:
        """The number of bytes that a read at the cursor requests; ``None``: all bytes up to the end."""
        if size is None:
            return None
        number = checked_int(size, "size", operation="read", path=self._path)
        return None if number < 0 else number

    def _read(self, start: int, length: int | None) -> bytes:
        reader = self._live("read")
        if self._footer is not None:
            self._note_footer(None)
        if length == 0:
            return b""
        data = reader._peek(start, length)
        if data is None:
            data = self._wait_for(reader.read_at(start, length))
        self._progress(len(data))
        return data

    def _view(self, start: int, length: int | None) -> memoryview:
        reader = self._live("read")
        if self._footer is not None:
            self._note_footer(None if length is None else start + length)
        if length == 0:
            return memoryview(b"")
        view = reader._peek_view(start, length)
        if view is None:
            view = self._wait_for(reader.view_at(start, length))
        self._progress(len(view))
        return view

    def _fill(self, target: memoryview) -> int:
        if self._footer is not None:
            self._note_footer(None)
        count = self._live("readinto")._peek_into(self._position, target)
        if count is None:
            with self._view(self._position, len(target)) as source:
                target[: len(source)] = source
                return len(source)
        self._progress(count)
        return count

    def _note_footer(self, end: int | None) -> None:
        """A footer was read, which ends at ``end``; ``None``: the file is closed, or reads anything else."""
        if self._footer is not None:
            file, facts = self._footer
            is_footer = end is not None and end + TRAILER_BYTES_MAX >= file.size
            file.facts = facts if is_footer else None
            self._footer = self._footer if is_footer else None

    def _wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call on the loop thread; the error of a missing object says so where a directory has its name."""
        try:
            return self._thread.run(call)
        except Error as error:
            if isinstance(error, NotFound) and "hint" not in error.context:
                error.add_context(**self._thread.run(self._explained()))
            hide_frames(error)
            raise

    async def _explained(self) -> dict[str, Any]:
        missing = NotFound("")  # Not the error of the caller, whose traceback holds frames: no thread of ours gets it.
        advice = f"a listing of {self._path + '/'!r} shows what is below it"
        await hint_at_directory(self._operator.accessor(), missing, self._path, advice)
        return missing.context

    def _progress(self, count: int) -> None:
        # On the caller's thread: no code of the user runs on the loop's. A failure of it fails no read.
        if self._on_progress is not None and count:
            try:
                self._on_progress(count)
            except Exception:
                logger.exception("on_progress failed for %s", self.name)

    async def _find_size(self, *, by_tail: bool) -> int:
        reader = self._live("size")
        if not by_tail:
            return await reader.ensure_size()
        change, opened = latest_change(), reader._live("size").opened
        learns = self.leaves_facts and opened.size is None
        facts = opened.facts() if learns else None
        if facts is None:
            reader.seek(0, io.SEEK_END)  # so that the first request brings the tail, which is usually read next
            await reader.ensure_size()
            if learns and opened.is_shared and opened.file is not None:
                self._footer = opened.file, (opened.runtime.loop.time() + FACTS_SECONDS, change)
        else:
            facts.facts = None  # They are for one.
            opened.begin_with(facts)
        return await reader.ensure_size()

    def _base(self, whence: int) -> int:
        if whence == io.SEEK_SET:
            return 0
        if whence == io.SEEK_CUR:
            return self._position
        if whence == io.SEEK_END:
            size = self._live("seek").size
            return self._wait_for(self._find_size(by_tail=True)) if size is None else size
        raise InvalidArgument(f"whence must be 0, 1 or 2, not {whence!r}", operation="seek", path=self._path)

    def _next_line(self, limit: int) -> bytes:
        parts: list[bytes] = []
        position, left = self._position, limit
        while left:
            piece, at = self._piece(position)
            stop = len(piece) if left < 0 else min(len(piece), at + left)
            newline = piece.find(b"\n", at, stop)
            part = piece[at : stop if newline < 0 else newline + 1]
            parts.append(part)
            position += len(part)
            left -= len(part) if limit >= 0 else 0
            if newline >= 0 or not part:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _piece(self, position: int) -> tuple[bytes, int]:
        """Bytes that hold ``position``, and where in them it is; beyond the end of the object they end there."""
        at = position - self._line_start
        if not 0 <= at < len(self._line_piece):
            self._line_piece, self._line_start, at = self._read(position, LINE_PIECE_BYTES), position, 0
            # These bytes are not delivered yet: each line is counted when it is returned.
            self._live("readline")._count_delivered(-len(self._line_piece))
        return self._line_piece, at
