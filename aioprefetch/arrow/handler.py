"""The file system: Arrow's verbs and files over one operator, for any thread that is not the loop's own."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem

from aioprefetch import directories
from aioprefetch.accessor.path_hints import hint_at_path
from aioprefetch.errors import InvalidArgument, IsADirectory, NotFound, ObjectChanged, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator, same_stack
from aioprefetch.runtime.events import logger
from aioprefetch.sync import SyncFile, SyncWriteFile
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.values import Entry, Metadata

T = TypeVar("T")

# How many files, the last ones read, have their versions remembered.
FOOTERS_MAX = 1 << 16
# How long the end of a program waits for files that Arrow has not closed: files being written, and files read,
# which the program itself may keep.
EXIT_SECONDS_MAX = 1.0
EXIT_READ_SECONDS_MAX = 0.1
# How long after such a file Arrow has dropped what belongs to it.
DROP_SECONDS = 0.05


class Footers:
    """The version of each file whose end was read last. Arrow keeps footers, and opens the file again for its data.

    Without locks, which a fork might leave locked: each operation is one step of the interpreter.
    """

    def __init__(self) -> None:
        self._versions: OrderedDict[str, str] = OrderedDict()

    def keep(self, path: str, version: str | None) -> None:
        """Remember the version whose footer was given out."""
        if version is not None:
            self._versions[path] = version
            if len(self._versions) > FOOTERS_MAX:
                with contextlib.suppress(KeyError):
                    self._versions.popitem(last=False)

    def other(self, path: str, version: str | None) -> str | None:
        """The version whose footer was given out last, if that was another one."""
        kept = self._versions.get(path)
        return None if kept == version else kept


class ReadFile(SyncFile):
    """A ``SyncFile`` that Arrow drops without closing: then it is closed without a word, on any thread.

    Arrow reads it by ``seek`` and ``read_buffer``, one thread at a time, and keeps the views that it gets.

    A file whose footer was of another version, and that is first read elsewhere than at its start or end, is read by
    what that footer said: ``ObjectChanged``. Its bytes would be decoded as others than they are.
    """

    warns_unclosed = False
    leaves_facts = True

    def __init__(self, operator: Operator, path: str, footers: Footers) -> None:
        super().__init__(operator, path)
        _read_files[id(self)] = self
        self._footers = footers
        self._other_footer: str | None = None  # The version of a footer that Arrow may read by.

    def begin(self, *, at_end: bool = False) -> None:
        """Send the first request: for the end of the object, which most formats need first, or for its start."""
        super().begin(at_end=at_end)
        self._other_footer = self._footers.other(self._path, self.etag)

    def _end(self, *, wait: bool) -> None:
        super()._end(wait=wait)
        if not wait:
            _dropped_at[:] = [time.monotonic()]

    def _read(self, start: int, length: int | None) -> bytes:
        self._check_footer(start, length)
        return super()._read(start, length)

    def _view(self, start: int, length: int | None) -> memoryview:
        self._check_footer(start, length)
        return super()._view(start, length)

    def _check_footer(self, start: int, length: int | None) -> None:
        is_at_end = length is None or start + length >= (self._live("read").size or 0)
        if self._other_footer is not None and start and not is_at_end:
            raise ObjectChanged(
                "the object was overwritten after its footer was read: make the dataset again, or read the table again",
                operation="read",
                path=self._path,
                expected_etag=self._other_footer,
                actual_etag=self.etag,
            )
        self._other_footer = None
        if is_at_end:
            self._footers.keep(self._path, self.etag)


class WriteFile(SyncWriteFile):
    """A ``SyncWriteFile`` that writes nothing if Arrow drops it, as it does when the write of a table has failed."""

    def __init__(self, operator: Operator, path: str, options: Mapping[str, Any]) -> None:
        super().__init__(operator, path, options)
        _written_files[id(self)] = self

    def _warn_unclosed(self) -> None:
        logger.error("%s was dropped before it was closed: no object is written", self.name)
        _dropped_at[:] = [time.monotonic()]


_written_files: weakref.WeakValueDictionary[int, WriteFile] = weakref.WeakValueDictionary()
_read_files: weakref.WeakValueDictionary[int, ReadFile] = weakref.WeakValueDictionary()
_dropped_at: list[float] = []  # The time of the last drop, if there was one.


def wait_for_dropped(
    timeout_seconds: float = EXIT_SECONDS_MAX, read_seconds_max: float = EXIT_READ_SECONDS_MAX
) -> None:
    """Wait until Arrow has dropped its files: of writes that failed, and of tables that were read a moment before.

    It drops each on a thread of its own, after the call that used it has returned, and the file system after it. If
    that happens while the interpreter ends, the process aborts or hangs.
    """
    _wait_for_none_of(_written_files, timeout_seconds)
    _wait_for_none_of(_read_files, read_seconds_max)
    if _dropped_at:
        time.sleep(max(0.0, _dropped_at[0] + DROP_SECONDS - time.monotonic()))


def _wait_for_none_of(files: weakref.WeakValueDictionary[int, Any], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline and any(map(_is_open, files.valuerefs())):
        time.sleep(0.001)


def _is_open(reference: weakref.ref[Any]) -> bool:
    file = reference()
    return file is not None and not file.closed


atexit.register(wait_for_dropped)
# A child has none of Arrow's threads, which would drop them.
os.register_at_fork(after_in_child=_written_files.clear)
os.register_at_fork(after_in_child=_read_files.clear)


# --- the file system --------------------------------------------------------------------------------------------------

CLOSE_SECONDS_MAX = 10.0

# Arrow's words for what describes an object, as options of a write. Other names are the user's own metadata.
_DESCRIBED: Mapping[str, str] = {
    "content-type": "content_type",
    "content-encoding": "content_encoding",
    "content-disposition": "content_disposition",
    "content-language": "content_language",
    "cache-control": "cache_control",
    "expires": "expires",
}
# Words that Arrow's own S3 file system knows, and for which there is nothing here.
_REFUSED = ("acl",)


def filesystem(operator: Operator) -> PyFileSystem:
    """A ``pyarrow.fs.FileSystem`` over an operator, whose keys are the paths: ``"dir/table.parquet"``.

    It may be used from any thread, after a fork, and where an event loop runs, which stands still meanwhile as in any
    blocking call. It pickles as its operator does, with references instead of secrets. ``OperatorHandler`` says what
    its verbs do; it is the ``handler`` of the file system. ``InvalidType`` for anything but an operator.
    """
    return PyFileSystem(OperatorHandler(operator))


class OperatorHandler(FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The verbs of Arrow's file systems over an operator. Paths are its keys, of directories without the slash.

    Errors as in ``aioprefetch.errors``: ``NotFound`` is a ``FileNotFoundError``, ``IsADirectory`` an
    ``IsADirectoryError``, and so on. Where the store has no directories, those are there by what is in them;
    ``create_dir`` writes an empty object that stands for one. Requests go over the loop thread of ``aioprefetch.sync``.
    """

    def __init__(self, operator: Operator) -> None:
        self.operator = checked_operator(operator, "configure")
        self._footers = Footers()

    def __repr__(self) -> str:
        return f"<OperatorHandler {self.operator!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operator,)

    def __eq__(self, other: object) -> bool:
        """Whether both reach the same objects as the same principal, by the same layers: Arrow then copies within."""
        if not isinstance(other, OperatorHandler):
            return NotImplemented
        own, others = self.operator, other.operator
        return own is others or (own.info.namespace == others.info.namespace and same_stack(own.layers, others.layers))

    def __hash__(self) -> int:
        return hash(self.operator.info.namespace)

    def close(self) -> None:
        """Release the connections and the memory of the loop thread. The file system stays usable."""
        loop_thread().finish(self.operator.aclose, timeout_seconds=CLOSE_SECONDS_MAX)

    def get_type_name(self) -> str:
        """The name of the kind of file system; Arrow puts ``py::`` before it."""
        return f"aioprefetch+{self.operator.info.scheme}"

    def normalize_path(self, path: str) -> str:
        """The path itself: keys may begin with a slash, and ``SubTreeFileSystem`` needs the one at the end."""
        return path

    # --- what is there --------------------------------------------------------------------------------------------

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """The object, or otherwise the directory, at each path, side by side. Missing ones are not an error.

        But for URLs, at which nothing is, and for paths that begin with a slash or the name of the bucket where without
        it something is there: they raise ``NotFound``, which says that paths are relative to the store.
        """
        found = _run(directories.find_all(self.operator, paths))
        for path, metadata in zip(paths, found, strict=True):
            meant = path.lstrip("/").removeprefix(f"{self.operator.info.name}/")
            if metadata is None and ("://" in path or (meant != path and self.get_file_info([meant])[0].type)):
                missing = NotFound("there is no such object or directory", operation="stat", path=path)
                raise hint_at_path(missing, self.operator.info)
        return [_info(path, metadata) for path, metadata in zip(paths, found, strict=True)]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """The entries of a directory; all below it with ``recursive``.

        ``NotFound`` if it does not exist, unless ``allow_not_found``; ``NotADirectory`` for an object.
        """
        base = _key(selector.base_dir)
        entries = _run(directories.below(self.operator, base, recursive=selector.recursive))
        if entries is None and not selector.allow_not_found:
            raise directories.missing(self.operator, "directory", "list", selector.base_dir)
        return [_info(entry.path, entry) for entry in entries or ()]

    # --- changes --------------------------------------------------------------------------------------------------

    def create_dir(self, path: str, recursive: bool) -> None:
        """Create a directory; an existing one is kept. ``AlreadyExists`` if an object has the name.

        Without ``recursive`` it is ``NotFound`` if the parent is missing.
        """
        _run(directories.create(self.operator, _key(path), recursive=recursive))

    def delete_dir(self, path: str) -> None:
        """Delete a directory and all below it. ``NotFound``, ``NotADirectory``; ``InvalidPath`` for the root."""
        _run(directories.remove(self.operator, _key(path)))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Delete all below a directory, which stays. ``NotFound`` if it does not exist, unless ``missing_dir_ok``."""
        key = _key(path)
        if not key:
            raise InvalidArgument(
                "to delete all objects of the root, say accept_root_dir=True", operation="delete_dir_contents"
            )
        _run(directories.empty(self.operator, key, missing_allowed=missing_dir_ok))

    def delete_root_dir_contents(self) -> None:
        """Delete all objects."""
        _run(directories.empty(self.operator, "", missing_allowed=False))

    def delete_file(self, path: str) -> None:
        """Delete an object. ``NotFound`` if it does not exist, ``IsADirectory`` for a directory."""
        _run(directories.delete(self.operator, path))

    def move(self, src: str, dest: str) -> None:
        """Move an object, or a directory with all below it, within the store where it can copy by itself.

        An object at ``dest`` is replaced by an object; a directory replaces nothing, or an empty directory.
        """
        _run(directories.move(self.operator, _key(src), _key(dest)))

    def copy_file(self, src: str, dest: str) -> None:
        """Copy an object, within the store where it can. One at ``dest`` is replaced."""
        _run(directories.copy(self.operator, src, _key(dest)))

    # --- files ----------------------------------------------------------------------------------------------------

    def open_input_file(self, path: str) -> pa.PythonFile:
        """Open an object to read at any position, by a GET of its last MiB, which most formats need first.

        Never a HEAD, and no GET yet if a file has read that end in the last five seconds and was dropped: the first
        read then proves that the object is the same. If the object is overwritten while the file is open, the next
        request is ``ObjectChanged``; so is a read by the footer of a version before, which Arrow keeps.
        ``NotFound`` if there is nothing, ``IsADirectory`` for a directory.
        """
        return self._opened(path, at_end=True)

    def open_input_stream(self, path: str) -> pa.PythonFile:
        """Open an object to read from its start, by a GET of its first block. As ``open_input_file`` otherwise."""
        return self._opened(path, at_end=False)

    def open_output_stream(self, path: str, metadata: Mapping[bytes, bytes] | None) -> pa.PythonFile:
        """Write an object, which appears whole when the stream is closed, and replaces an existing one.

        ``metadata`` may have ``Content-Type``, ``Content-Encoding``, ``Content-Disposition`` and ``Cache-Control``;
        other names become metadata of the user. If a write fails, or the stream is dropped without closing, no object
        is written.
        """
        options = _write_options(metadata, path)
        return pa.PythonFile(WriteFile(self.operator, _key(path), options), mode="w")

    def open_append_stream(self, path: str, metadata: Mapping[bytes, bytes] | None) -> NoReturn:
        """Raise ``Unsupported``: an object is written whole."""
        raise Unsupported(
            "objects cannot be appended to: write another object, or this one again by open_output_stream",
            operation="open_append_stream",
            path=path,
        )

    def _opened(self, path: str, *, at_end: bool) -> pa.PythonFile:
        key = _run(directories.key_of(self.operator, path)) if path.endswith("/") else path
        file = ReadFile(self.operator, key, self._footers)
        try:
            file.begin(at_end=at_end)
        except NotFound:
            if _run(directories.find_directory(self.operator, key)) is None:
                raise
            raise IsADirectory(
                "the path is a directory's; ds.dataset reads the files in it", operation="open", path=path
            ) from None
        return pa.PythonFile(file, mode="r")


def _key(path: str) -> str:
    """The key of a path of Arrow, in which a slash at the end says nothing."""
    return path.rstrip("/")


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    return loop_thread().run(coroutine)


def _info(path: str, found: Metadata | Entry | None) -> FileInfo:
    if found is None:
        return FileInfo(path, FileType.NotFound)
    kind = FileType.Directory if found.is_directory else FileType.File
    return FileInfo(path, kind, size=None if found.is_directory else found.size, mtime=found.last_modified)


def _write_options(metadata: Mapping[bytes, bytes] | None, path: str) -> dict[str, Any]:
    """The options of a write that Arrow's metadata stand for."""
    options: dict[str, Any] = {}
    user_metadata: dict[str, str] = {}
    try:
        texts = {name.decode(): value.decode() for name, value in dict(metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"metadata is not UTF-8: {error}", operation="write", path=path) from None
    for name, value in texts.items():
        described = _DESCRIBED.get(name.lower())
        if name.lower() in _REFUSED:
            raise Unsupported(f"metadata {name!r} has no place here", operation="write", path=path)
        if described is None:
            user_metadata[name] = value
        else:
            options[described] = value
    return options | ({"user_metadata": user_metadata} if user_metadata else {})
