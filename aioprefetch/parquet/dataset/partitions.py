"""Columns in paths: ``year=2024/month=05/part-0.parquet`` has the values of two, as Hive writes them. No I/O.

Names and values are those of ``pyarrow.dataset`` with ``partitioning="hive"``: a directory ``name=value`` gives a
value, both URL-decoded, the outermost one of a name counts, ``__HIVE_DEFAULT_PARTITION__`` and a missing directory are
null. A column whose values are all decimal numbers of 32 bits is ``int32``, any other is a string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aioprefetch.errors import InvalidPath, Unsupported
from aioprefetch.filters import Dnf, row_mask

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

    Columns that ``schema`` has are of its types; ``Unsupported`` where a value is not of that type.
    """

    def __init__(self, values: Sequence[Values], schema: pa.Schema | None = None) -> None:
        names = dict.fromkeys(name for of_file in values for name in of_file)
        columns = [_typed(name, [of_file.get(name) for of_file in values], schema) for name in names]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        self.schema: pa.Schema = pa.schema(fields)
        self._columns = dict(zip(names, columns, strict=True))
        self._files = len(values)

    def scalars(self, file: int) -> dict[str, pa.Scalar]:
        """The values of one file, by its number."""
        return {name: column[file] for name, column in self._columns.items()}

    def residual_filters(self, filters: Dnf, *, path: str) -> list[Dnf | None]:
        """For each file what is left of ``filters``: ``[]`` if no row matches, ``None`` if every row does.

        Clauses on partition columns are decided, by pyarrow itself, and gone; others stay. ``InvalidArgument`` for a
        value that does not go with its column.
        """
        left: list[Dnf | None] = [[] for _ in range(self._files)]
        for clauses in filters:
            decided = [clause for clause in clauses if clause[0] in self._columns]
            open_clauses = [clause for clause in clauses if clause[0] not in self._columns]
            for file, matches in enumerate(self._matching(decided, path)):
                alternatives = left[file]
                if not matches or alternatives is None:
                    continue
                if open_clauses:
                    alternatives.append(open_clauses)
                else:
                    left[file] = None
        return left

    def may_match(self, expression: pc.Expression, schema: pa.Schema) -> list[bool]:
        """For each file whether rows of it may match, by its path alone; all may where ``schema`` lacks a column."""
        import pyarrow.dataset as ds  # Imported late: it imports pandas if there is one, a third of a second.
        from pyarrow.fs import LocalFileSystem

        others = [field for field in schema if field.name not in self._columns]
        kind, nowhere = ds.ParquetFileFormat(), LocalFileSystem()  # Nothing is read: a fragment must have a home.
        fragments = [
            kind.make_fragment(str(file), nowhere, partition_expression=self.guarantee(file))
            for file in range(self._files)
        ]
        dataset = ds.FileSystemDataset(fragments, pa.schema([*others, *self.schema]), kind, nowhere)
        try:
            kept = {int(fragment.path) for fragment in dataset.get_fragments(filter=expression)}
        except (pa.ArrowException, ValueError, TypeError):
            return [True] * self._files
        return [file in kept for file in range(self._files)]

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
        names = list(dict.fromkeys(clause[0] for clause in clauses))
        table = pa.table({name: self._columns[name] for name in names})
        mask = row_mask(table, pq.filters_to_expression([list(clauses)]), path=path)
        return [bool(matches) for matches in mask.to_pylist()]


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
