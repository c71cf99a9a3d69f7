"""The files of a dataset: what a path, a glob, a directory or a list of them stands for. One listing of each.

Names that begin with ``.``, or with ``_`` and have no ``=``, are passed over, files and directories alike, as all
readers of tables do: what is there are markers (``_SUCCESS``), summaries (``_metadata``) and unfinished writes
(``_temporary``). So are the empty objects ``name_$folder$``, with which Hadoop marks directories on S3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from glob import escape
from typing import TYPE_CHECKING

from aioprefetch.errors import InvalidType, IsADirectory, NotFound
from aioprefetch.layers.error_context import hint_at_path
from aioprefetch.operator.arguments import checked_path
from aioprefetch.operator.listing import compile_glob, has_wildcard, list_literally, literal_prefix

if TYPE_CHECKING:
    from aioprefetch.operator.operator import Operator
    from aioprefetch.values import Entry

_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file of a dataset: what a listing says of it, and the directory below which it has partitions."""

    path: str
    base: str = ""
    size: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """One path of a caller: a glob; a directory, which is empty or ends with a slash; or an object, or perhaps none."""

    path: str
    is_glob: bool = False

    @property
    def is_directory(self) -> bool:
        return not self.is_glob and (not self.path or self.path.endswith("/"))


@dataclass(frozen=True, slots=True)
class Source:
    """The paths of a caller: one, or a list."""

    names: tuple[Named, ...]
    is_list: bool = False

    @property
    def one_file(self) -> str | None:
        """The path, if it is one and names an object as far as its text tells."""
        first = self.names[0]
        return None if self.is_list or first.is_glob or first.is_directory else first.path

    def __str__(self) -> str:
        """For errors and ``repr``: the path, or the first of a list."""
        first, more = self.names[0].path, len(self.names) - 1
        return f"{first} and {more} more" if more else first


def checked_source(source: object, operation: str = "scan") -> Source:
    """A path, or a list of paths. ``InvalidType`` for others, ``InvalidPath`` for what no store takes."""
    if isinstance(source, str) or not isinstance(source, Iterable) or isinstance(source, bytes):
        return Source((_named(source, operation),))
    paths = tuple(_named(path, operation) for path in source)
    if not paths:
        raise InvalidType("a list of files must name at least one", operation=operation)
    return Source(paths, is_list=True)


def _named(path: object, operation: str) -> Named:
    checked = checked_path(path, operation)
    if not has_wildcard(checked):
        return Named(checked)
    # A glob that ``glob.escape`` made of a path is that path: nothing is listed for it.
    literal = literal_prefix(checked)
    return Named(literal) if checked == escape(literal) else Named(checked, is_glob=True)


async def find_files(operator: Operator, source: Source) -> list[DatasetFile]:
    """The files of a source: those of each directory and glob ordered by path, those of a list in its order.

    ``NotFound`` for a directory or a glob without any file. A path in a list is not looked up: reading it will tell.
    """
    files: list[DatasetFile] = []
    for name in source.names:
        if name.is_glob:
            files += await _matches(operator, name.path)
        elif name.is_directory:
            files += await directory_files(operator, name.path)
        else:
            files.append(DatasetFile(name.path))
    return files


async def directory_files(operator: Operator, directory: str) -> list[DatasetFile]:
    """The visible files below a directory, ordered by path. ``NotFound`` if there are none."""
    async with list_literally(operator, directory, recursive=True) as entries:
        files = [
            _listed(entry, directory)
            async for entry in entries
            if not entry.is_directory and is_visible(entry.path, directory)
        ]
    if not files:
        error = NotFound(
            "the directory has no files, apart from names that begin with _ or .", operation="scan", path=directory
        )
        raise hint_at_path(error, operator.info)
    return sorted(files, key=_by_path)


async def _matches(operator: Operator, glob: str) -> list[DatasetFile]:
    if glob.endswith("/"):
        glob += "**"  # Directories were meant, that is what is in them.
    pattern, prefix = compile_glob(glob), literal_prefix(glob)
    directory = prefix[: prefix.rfind("/") + 1]
    names_hidden = any(segment.startswith(_HIDDEN) for segment in glob[len(directory) :].split("/"))
    async with list_literally(operator, prefix, recursive=True) as entries:
        files = [
            _listed(entry, "")
            async for entry in entries
            if not entry.is_directory
            and pattern.fullmatch(entry.path)
            and (names_hidden or is_visible(entry.path, directory))
        ]
    if not files:
        error = NotFound(
            "no file matches this glob; * and ? stay within a directory, ** crosses them, and glob.escape(path) takes"
            " such characters as they are",
            operation="scan",
            path=glob,
        )
        raise error.add_context(service=operator.info.location)
    return sorted(files, key=_by_path)


def is_visible(path: str, directory: str = "") -> bool:
    """Whether no name below ``directory`` is hidden, and the path names a file."""
    names = path.removeprefix(directory).split("/")
    is_file = bool(names[-1]) and not names[-1].endswith("_$folder$")
    return is_file and not any(name.startswith(".") or (name.startswith("_") and "=" not in name) for name in names)


def _listed(entry: Entry, base: str) -> DatasetFile:
    return DatasetFile(entry.path, base, entry.size, entry.etag)


def _by_path(file: DatasetFile) -> str:
    return file.path


async def files_instead(operator: Operator, path: str, error: NotFound | IsADirectory) -> list[DatasetFile]:
    """The files below ``path``, which was read as an object in vain. Raises ``error`` if there are none either."""
    if not operator.capability.list:
        raise error
    try:
        return await directory_files(operator, f"{path}/")
    except NotFound:
        raise error from None
