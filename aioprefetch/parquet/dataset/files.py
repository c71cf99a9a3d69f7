"""Parquet files that are one table: a directory, the matches of a glob, a list; and the columns that their paths name.

**Files** are found by one listing each. Names that begin with ``.``, or with ``_`` and have no ``=``, are passed over,
files and directories alike, as all readers of tables do: what is there are markers (``_SUCCESS``), summaries
(``_metadata``) and unfinished writes (``_temporary``). So are the empty objects ``name_$folder$``, with which Hadoop
marks directories on S3.

**Columns in paths**: ``year=2024/month=05/part-0.parquet`` has the values of two, as Hive writes them. Names and values
follow ``pyarrow.dataset`` with ``partitioning="hive"``: a directory ``name=value`` gives a value, both
URL-decoded, the outermost one of a name counts, ``__HIVE_DEFAULT_PARTITION__`` and a missing directory are null. A
column whose values are all decimal numbers of 32 bits is ``int32``, any other is a string.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch import arrow_compute as pc
from aioprefetch.accessor.path_hints import hint_at_path
from aioprefetch.errors import InvalidPath, InvalidType, IsADirectory, NotFound, Unsupported
from aioprefetch.expressions import ExpressionTree
from aioprefetch.filters import Dnf, Filters, row_mask
from aioprefetch.operator.operator import Operator
from aioprefetch.parquet.footer import seen_size
from aioprefetch.plan.patterns import compile_glob, has_wildcard, literal_prefix
from aioprefetch.ranges import Range, intersected, joined
from aioprefetch.values import Entry
from aioprefetch.verbs.arguments import checked_path
from aioprefetch.verbs.listing import list_literally

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
        """The path, if it is the only one and its text looks like an object."""
        if self.is_list or (first := self.names[0]).is_glob or first.is_directory:
            return None
        return first.path

    def __str__(self) -> str:
        """For errors and ``repr``: the path, or the first of a list."""
        first, more = self.names[0].path if self.names else "", len(self.names) - 1
        return f"{first} and {more} more" if more > 0 else first


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
    """The files of a source: of directories and globs ordered by path, of a list in its order.

    ``NotFound`` for a directory or a glob without any file. A path in a list is not looked up: reading it will tell.
    """
    files: list[DatasetFile] = []
    for name in source.names:
        if name.is_glob:
            files += await _matches(operator, name.path)
        elif name.is_directory:
            files += await directory_files(operator, name.path)
        else:
            files.append(DatasetFile(name.path, size=seen_size(operator, name.path)))
    return files


async def directory_files(operator: Operator, directory: str) -> list[DatasetFile]:
    """The visible files below a directory, ordered by path. ``NotFound`` without any."""
    async with list_literally(operator, directory, recursive=True) as entries:
        files = [
            _listed(entry, directory)
            async for entry in entries
            if not entry.is_directory and is_visible(entry.path, directory)
        ]
    if not files:
        why = "the directory has no files, apart from names that begin with _ or ."
        raise hint_at_path(NotFound(why, operation="scan", path=directory), operator.info)
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
        raise NotFound(
            "no file matches this glob; * and ? stay within a directory, ** crosses them, and glob.escape(path) takes"
            " such characters as they are",
            operation="scan",
            path=glob,
            context={"service": operator.info.location},
        )
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
    """The files below ``path``, which was read as an object in vain. Raises ``error`` without any."""
    try:
        if not operator.capability.list:
            raise error
        try:
            return await directory_files(operator, f"{path}/")
        except NotFound:
            raise error from None
    finally:
        del error  # Its traceback holds this frame.


# --- columns in paths -------------------------------------------------------------------------------------------------

NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

_NUMBER = re.compile(r"-?[0-9]+")
_INT32_MAX = (1 << 31) - 1

Values = Mapping[str, str | None]


def path_values(path: str, base: str = "") -> dict[str, str | None]:
    """The values in the directories of ``path`` below ``base``, outermost first. ``InvalidPath`` if it is not UTF-8."""
    from urllib.parse import unquote_to_bytes

    def decoded(text: str) -> str:
        try:
            return unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise InvalidPath(
                f"the partition {text!r} is not UTF-8 after URL decoding; partitioning=None reads the files without it",
                operation="scan",
                path=path,
            ) from None

    values: dict[str, str | None] = {}
    for directory in path.removeprefix(base).split("/")[:-1]:
        name, equals, value = directory.partition("=")
        if equals and decoded(name) not in values:
            values[decoded(name)] = None if value == NULL_VALUE else decoded(value)
    return values


class Partitions:
    """The partition columns of a list of files: one row for each file, in their order.

    Columns that ``schema`` has are of its types; ``Unsupported`` where a value is not of that type. ``others`` are
    columns that batches get beside those of partitions and files. Texts that paths do not have, ``are_exact``, stay
    texts, and others have the types of their values; a value that they lack is that of the file, and not null.
    """

    def __init__(
        self,
        values: Sequence[Mapping[str, Any]],
        schema: pa.Schema | None = None,
        others: Sequence[pa.Field] = (),
        *,
        are_exact: bool = False,
    ) -> None:
        names = dict.fromkeys(name for of_file in values for name in of_file)
        typed = _exactly_typed if are_exact else _typed
        columns = [typed(name, [of_file.get(name) for of_file in values], schema) for name in names]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        self.schema: pa.Schema = pa.schema([*fields, *others])
        self._columns = dict(zip(names, columns, strict=True))
        self._decided = self._columns
        self._given: Sequence[Collection[str]] = [self._columns] * len(values)
        if are_exact:
            self._given = [of_file.keys() for of_file in values]
            every = set(names).intersection(*self._given)
            self._decided = {name: self._columns[name] for name in names if name in every}
        self._files = len(values)

    def scalars(self, file: int) -> dict[str, pa.Scalar]:
        """The values of one file, by its number."""
        return {name: self._columns[name][file] for name in self._given[file]}

    def residual_filters(self, filters: Dnf, *, path: str) -> list[Dnf | None]:
        """For each file what is left of ``filters``: ``[]`` if no row matches, ``None`` if every row does.

        Clauses on partition columns are decided, by pyarrow itself, and gone; others stay. ``InvalidArgument`` for a
        value that does not go with its column.
        """
        left: list[Dnf | None] = [[] for _ in range(self._files)]
        for clauses in filters:
            decided = [clause for clause in clauses if clause[0] in self._decided]
            open_clauses = [clause for clause in clauses if clause[0] not in self._decided]
            for file, matches in enumerate(self._matching(decided, path)):
                alternatives = left[file]
                if not matches or alternatives is None:
                    continue
                if open_clauses:
                    alternatives.append(open_clauses)
                else:
                    left[file] = None
        return left

    def may_hold(self, filters: Filters, *, path: str) -> list[bool]:
        """For each file whether rows of it may match alternatives of clauses, or an expression."""
        if isinstance(filters, pc.Expression):
            return self.may_match(filters, path=path)
        return [left != [] for left in self.residual_filters(filters, path=path)]

    def may_match(self, expression: pc.Expression, *, path: str) -> list[bool]:
        """For each file whether rows of it may match, by its path alone; all may where columns go by position.

        ``InvalidArgument`` for a value that does not go with its column.
        """
        tree = ExpressionTree.of(expression)
        decided = None if tree is None else tree.about(self._decided)
        return [True] * self._files if decided is None else self._true_of(decided, path)

    def guarantee(self, file: int) -> pc.Expression | None:
        """The facts that the path tells of all rows of a file, by its number; ``None`` without partition columns."""
        found: pc.Expression | None = None
        for name, value in self.scalars(file).items():
            said = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
            found = said if found is None else found & said
        return found

    def _matching(self, clauses: Sequence[tuple[str, str, object]], path: str) -> list[bool]:
        if not clauses or not self._files:
            return [True] * self._files
        return self._true_of(pq.filters_to_expression([list(clauses)]), path)

    def _true_of(self, expression: pc.Expression, path: str) -> list[bool]:
        mask = row_mask(pa.table(self._decided), expression, rows=self._files, path=path)
        return [bool(matches) for matches in mask.to_pylist()]


def _exactly_typed(name: str, values: Sequence[Any], schema: pa.Schema | None) -> pa.Array:
    kind = schema.field(name).type if schema is not None and name in schema.names else None
    known = [value for value in values if value is not None]
    if kind is not None and known and all(isinstance(value, str) for value in known):
        return _typed(name, values, schema)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise Unsupported(
            f"the values of partition {name!r} have no type in common: {error}", operation="scan"
        ) from error


def _typed(name: str, values: Sequence[str | None], schema: pa.Schema | None) -> pa.Array:
    if schema is not None and name in schema.names:
        kind = schema.field(name).type
        try:
            return pa.array(values, pa.string()).cast(kind)
        except (pa.ArrowException, ValueError) as error:
            raise Unsupported(
                f"the values of {name!r} in paths are not {kind}, as in schema=: {error}", operation="scan"
            ) from error
    known = [value for value in values if value is not None]
    if known and all(_NUMBER.fullmatch(value) and -_INT32_MAX - 1 <= int(value) <= _INT32_MAX for value in known):
        return pa.array([None if value is None else int(value) for value in values], pa.int32())
    return pa.array(values, pa.string())


def whole_files(sizes: Sequence[int | None], block_bytes: int, bytes_max: int) -> list[bool]:
    """For each file whether it comes whole with its footer: the first ones of at most a block, ``bytes_max`` in all."""
    left = bytes_max
    whole = []
    for size in sizes:
        whole.append(size is not None and size <= min(block_bytes, left))
        left -= size if size is not None and whole[-1] else 0
    return whole


def rows_of_files(rows: Sequence[Range], counts: Sequence[int]) -> list[list[Range]]:
    """The share of each file of ``counts`` rows in ``rows``, which count through all files; from its first row on."""
    wanted = joined(rows)
    shares, base = [], 0
    for count in counts:
        share = intersected(wanted, [(base, base + count)])
        shares.append([(start - base, end - base) for start, end in share])
        base += count
    return shares
