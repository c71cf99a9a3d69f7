"""A file object that writes an object: it appears when the file is closed, or not at all."""

from __future__ import annotations

import atexit
import io
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsIndex

from aioprefetch.errors import Closed, InvalidType, Unsupported, redact
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.closing import refused
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.sync.file import kept_operators
from aioprefetch.sync.loop_thread import leak_in_child, loop_thread
from aioprefetch.verbs.unclosed import is_collected, report_unclosed
from aioprefetch.verbs.upload import checked_chunk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from aioprefetch.values import Metadata

# What is written is gathered to pieces of this size on the caller's thread before it crosses to the loop thread.
PIECE_BYTES = 1 << 20
CLOSE_SECONDS_MAX = 5.0
_ASYNC_WRITER = "write 'with'; with await there is 'async with op.writer(...) as writer'"


class Discarding:
    """A file whose ``with`` block writes no object if it fails."""

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refused("async with", _ASYNC_WRITER)
        __await__ = refused("await", _ASYNC_WRITER)

    def __exit__(
        self: Any, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard(error)


class SyncWriteFile(Discarding, io.BufferedIOBase):
    """A file to write, from its start to its end, over ``Operator.writer``. Opening it costs no request.

    Nothing is visible before ``close``. A ``with`` block that fails leaves nothing, and so does a file whose ``write``
    has failed, or that the collector or the end of the process finds unclosed, which the log and
    ``sys.unraisablehook`` say. Several threads may write, one at a time. It belongs to the process that opened it.
    """

    mode = "wb"

    _is_pending = False

    def __init__(
        self,
        operator: Operator,
        path: str,
        write_options: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        mode: str = "wb",
        owns_operator: bool = False,
        shares_runtime: bool = False,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        if not operator.capability.write:
            raise Unsupported(f"the {operator.info.scheme} service does not support write", operation="open", path=path)
        self.name = path if name is None else name
        self.mode = mode
        self._operator = operator
        self._path = path
        self._owns_operator = owns_operator
        self._shares_runtime = shares_runtime
        self._on_end = on_end
        self._thread = loop_thread()
        self._generation = fork_generation()
        self._writer = operator.writer(path, **(write_options or {}))
        self._lock = threading.RLock()
        self._gathered = bytearray()
        self._position = 0
        self._is_broken = False
        self._is_pending = True
        open_files[id(self)] = self

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._position}"
        return f"<{type(self).__module__}.{type(self).__qualname__} {redact(str(self.name))!r} {state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InvalidType(
            "an open file cannot be pickled; pickle the Operator and open the path again",
            operation="pickle",
            path=self._path,
        )

    def __enter__(self) -> Self:
        self._check("open")
        return self

    def __del__(self) -> None:
        # Not ``close``, as other files do: what an error left half written would appear.
        self.lose()

    def _dealloc_warn(self, source: object) -> None:
        """Python's own texts and buffers call this where their destructor is about to close the file."""
        self.lose()

    @property
    def operator(self) -> Operator:
        """The operator that the file writes by; of a file opened by a URL its own, which is closed with it."""
        return self._operator

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return self._position

    @property
    def metadata(self) -> Metadata | None:
        """The metadata of the object once it has appeared, ``None`` before."""
        return self._writer.metadata

    def writable(self) -> bool:
        """True. ``ValueError`` when closed, as for every file."""
        self._check("writable")
        return True

    def tell(self) -> int:
        """The bytes written so far."""
        self._check("tell")
        return self._position

    def seek(self, loc: int, whence: int = io.SEEK_SET) -> NoReturn:
        """Raise ``io.UnsupportedOperation``, also for the position where the file is: ``zipfile`` asks so."""
        self._refuse("seek")

    def read(self, length: int | None = -1) -> NoReturn:
        """Raise ``io.UnsupportedOperation``: the file is open for writing."""
        self._refuse("read")

    def truncate(self, size: int | None = None, /) -> NoReturn:
        """Raise ``io.UnsupportedOperation``: an object is written from its start to its end."""
        self._refuse("truncate")

    def fileno(self) -> NoReturn:
        """Raise ``io.UnsupportedOperation``: there is no descriptor."""
        self._refuse("fileno")

    def write(self, data: ReadableBuffer) -> int:
        """Append bytes; returns their number. ``InvalidType`` for what is not bytes, such as text."""
        self._check("write")
        chunk = checked_chunk(data, self._path)
        if not self._is_pending:  # It is lost, which was said, and what wraps it is at its end.
            return len(chunk)
        with self._lock:
            try:
                if len(self._gathered) + len(chunk) < PIECE_BYTES:
                    self._gathered += chunk
                else:
                    self._send()
                    self._thread.run(self._writer.write(chunk))
            except BaseException:  # KeyboardInterrupt too, at any point: bytes may be missing now.
                self._is_broken = True
                raise
            self._position += len(chunk)
        return len(chunk)

    def flush(self) -> None:
        """Do nothing: no reader of the store sees a part of an object."""
        if self.closed:
            self._check("flush")

    def close(self) -> None:
        """Let the object appear. May be called twice. If it fails, nothing is left behind.

        Raises ``AlreadyExists`` in mode ``xb`` where the object is there, and the errors of ``Operator.write``.
        """
        if self.closed:
            return
        if is_collected():
            self.lose()
        try:
            self._check("close")
            if self._is_pending:
                self._complete()
        except BaseException as error:
            self.discard(error)
            raise
        super().close()

    def discard(self, error: BaseException | None = None) -> None:
        """Write no object, and remove from the store what was sent. May be called twice.

        If that fails, ``error`` says what is left, and the name of the upload; without one its own error is raised.
        """
        super().close()
        if not self._is_pending:
            return
        if isinstance(error, GeneratorExit):  # The block is one of a generator that nothing will go on with.
            self._warn_unclosed()
        self._is_pending = False
        self._gathered = bytearray()
        if self._generation != fork_generation():
            leak_in_child(self._writer, self._lock)
            return
        writer = self._writer
        try:
            self._thread.run(writer.abort() if error is None else writer.__aexit__(type(error), error, None))
        finally:
            self._end()

    def lose(self, timeout_seconds: float = 0) -> None:
        """Write no object and say so, if nothing has closed it; wait so long at most until what was sent is removed."""
        if not self._is_pending or self._generation != fork_generation():
            return
        self._warn_unclosed()
        self._is_pending = False
        writer, release = self._writer, self._releasing()

        async def abandon() -> None:
            try:
                await writer.abort()
            finally:
                await release()

        self._thread.finish(abandon, timeout_seconds=timeout_seconds)

    # --- for subclasses -----------------------------------------------------------------------------------------

    def _warn_unclosed(self) -> None:
        """Say that the file was lost before it was closed."""
        report_unclosed(str(self.name))

    def _complete(self) -> None:
        """End a file that is closed."""
        self._commit()

    def _send(self) -> None:
        """Hand over what was gathered."""
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._thread.run(self._writer.write(gathered))

    def _commit(self) -> None:
        """Let the object appear, once."""
        with self._lock:
            if self._is_broken:
                raise Closed("a write of the file has failed: no object is written", operation="close", path=self._path)
            if self._writer.metadata is not None:
                return
            if not self._is_pending:
                raise Closed("the file was discarded: no object is written", operation="close", path=self._path)
            self._send()
            self._thread.run(self._writer.close())
            self._is_pending = False
            self._end()

    def _check(self, operation: str) -> None:
        """``Closed`` when it is, ``Unsupported`` in another process than that which opened it."""
        if self.closed:
            raise Closed("the file is closed", operation=operation, path=self._path)
        if self._generation != fork_generation():
            raise Unsupported(
                "a file open for writing stays in the process that opened it", operation=operation, path=self._path
            )

    def _refuse(self, operation: str) -> NoReturn:
        self._check(operation)
        raise Unsupported(
            f"{operation} does not apply: an object is written from its start to its end",
            operation=operation,
            path=self._path,
        )

    def _end(self) -> None:
        """Release what the file alone has used."""
        try:
            if self._on_end is not None:
                self._on_end()
        finally:
            self._thread.finish(self._releasing(), timeout_seconds=CLOSE_SECONDS_MAX)

    def _releasing(self) -> Callable[[], Any]:
        operator = self._operator if self._owns_operator else None
        is_kept = self._shares_runtime and self._writer.metadata is not None

        async def release() -> None:
            if operator is not None and is_kept:
                await kept_operators().take_over(operator)
            elif operator is not None:
                await operator.aclose()

        return release


open_files: weakref.WeakValueDictionary[int, SyncWriteFile] = weakref.WeakValueDictionary()


def lose_open_files() -> None:
    """Lose the files that are open at the end of the process, while there is a loop that removes what was sent."""
    deadline = time.monotonic() + CLOSE_SECONDS_MAX
    for file in list(open_files.values()):
        file.lose(max(0.0, deadline - time.monotonic()))


atexit.register(lose_open_files)
