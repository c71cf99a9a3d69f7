"""Files that a catalog names, with what it says of each: partition values, and the rows that are left."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidRange, InvalidType
from aioprefetch.parquet.dataset.files import DatasetFile, Named, Source
from aioprefetch.parquet.footer import Footer
from aioprefetch.ranges import Range, at_least, intersected, joined, subtract
from aioprefetch.row_ranges import RowNumbers
from aioprefetch.scan import row_ranges
from aioprefetch.values import ServiceInfo
from aioprefetch.verbs.arguments import checked_path

# A URL, and no path of this machine.
HAS_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True, eq=False)
class TableVersion:
    """The version of a table whose files ``delta_files`` or ``iceberg_files`` gave.

    ``text`` names it in errors. ``ways`` say how columns are matched (see ``FieldIds``), with ``name_mapping`` in files
    without ids. ``filtered`` are columns that filters read, and the result does not have.
    """

    text: str
    ways: tuple[str, ...] = ()
    name_mapping: str | None = None
    filtered: Sequence[pa.Field] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ScanFile:
    """A file of a table that a catalog such as Delta or Iceberg lists.

    Rows are counted as they are stored in the file, from 0. ``rows``, ``keep`` and ``skip`` intersect.

    Parameters
    ----------
    path
        A key in the store of the operator, as it is: never a pattern.
    size
        In bytes. A file of at most a block is then one request.
    etag
        The version that the catalog means: another one is ``ObjectChanged``. Without it the file's current one is read.
    partition
        Values of columns that the file does not store, by their names; ``None`` is null. The path is not looked at.
        Another column is read from the file, although other files have a value of it here.
    rows
        ``(start, stop)``, or a list of such ranges.
    keep
        A boolean for each row of the file: a list, or an array of numpy or Arrow.
    skip
        The numbers of rows that were deleted: a list, or an array of numpy or Arrow, in any order.
    table
        Set by ``delta_files`` and ``iceberg_files``. Then ``path`` is a URL, and the operator must reach it.
    """

    path: str
    size: int | None = None
    etag: str | None = None
    partition: Mapping[str, Any] | None = None
    rows: Sequence[int] | Iterable[Sequence[int]] | None = None
    keep: Any = None
    skip: Any = None
    table: TableVersion | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CatalogFile(DatasetFile):
    """A ``ScanFile``, checked."""

    partition: Mapping[str, Any] | None = None
    rows: Sequence[Range] | None = None
    keep: Any = None
    skip: RowNumbers | None = None
    table: TableVersion | None = None

    @property
    def is_masked(self) -> bool:
        """Whether single rows are left out. Then ``wanted_rows`` sorts them, which a thread should do."""
        return self.keep is not None or self.skip is not None

    def wanted_rows(self, footer: Footer) -> tuple[list[Range] | None, RowNumbers | None]:
        """The ranges of rows to read, ``None`` for all, and the numbers of rows in them that are dropped when read.

        ``InvalidArgument`` for a mask of another length, ``InvalidRange`` for numbers that the file does not have.
        """
        dropped = self._dropped(footer)
        rows = None if self.rows is None else joined((min(a, footer.rows), min(b, footer.rows)) for a, b in self.rows)
        if dropped is None:
            return rows, None
        groups = list(zip(footer.first_rows[:-1], footer.first_rows[1:], strict=True))
        counts = np.diff(np.searchsorted(dropped, footer.first_rows))
        empty = [group for group, count in zip(groups, counts.tolist(), strict=True) if count == group[1] - group[0]]
        left = subtract((0, footer.rows), empty)
        return left if rows is None else intersected(rows, left), dropped

    def _dropped(self, footer: Footer) -> RowNumbers | None:
        found = [] if self.skip is None else [self.skip]
        if self.skip is not None and self.skip.size:
            lowest, highest = int(self.skip.min()), int(self.skip.max())
            if lowest < 0 or highest >= footer.rows:
                wrong = lowest if lowest < 0 else highest
                raise InvalidRange(f"skip= has row {wrong} of {footer.rows} rows", operation="scan", path=self.path)
        if self.keep is not None:
            if len(self.keep) != footer.rows:
                raise InvalidArgument(
                    f"keep= has {len(self.keep)} values, and the file {footer.rows} rows",
                    operation="scan",
                    path=self.path,
                )
            found.append(np.flatnonzero(~self.keep))
        return np.unique(np.concatenate(found)) if found else None


def catalog_files(files: object, store: ServiceInfo) -> tuple[Source, list[CatalogFile]]:
    """The files of a caller, checked. ``InvalidType``, ``InvalidArgument``, and ``ConfigInvalid`` for another store."""
    if isinstance(files, (str, bytes, ScanFile)) or not isinstance(files, Iterable):
        raise InvalidType(f"files must be a list of ScanFile, not {files!r:.200}", operation="scan")
    found = [_checked(file, store) for file in files]
    return Source(tuple(Named(file.path) for file in found), is_list=True), found


def _checked(file: object, store: ServiceInfo) -> CatalogFile:
    if not isinstance(file, ScanFile):
        raise InvalidType(f"files must have ScanFile, not {file!r:.200}", operation="scan")
    path = checked_path(file.path if file.table is None else _key(file.path, file.table, store), "scan")
    if file.partition is not None and not isinstance(file.partition, Mapping):
        raise InvalidType(
            f"partition must map names to values, not {file.partition!r:.200}", operation="scan", path=path
        )
    skip = None if file.skip is None else _array(file.skip, "skip", "iu", path)
    return CatalogFile(
        path,
        size=None if file.size is None else at_least(0, file.size, "size", operation="scan", path=path),
        etag=file.etag,
        partition=None if file.partition is None else dict(file.partition),
        rows=None if file.rows is None else row_ranges(file.rows, path=path),
        keep=None if file.keep is None else _array(file.keep, "keep", "b", path),
        skip=None if skip is None else skip.astype(np.int64),
        table=file.table,
    )


# Other words of a scheme, as tables have them.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", **dict.fromkeys(("azure", "abfs", "abfss", "wasb", "wasbs"), "az")}


def _key(url: str, table: TableVersion, store: ServiceInfo) -> str:
    """The key in a store of a file of a table, by its URL without escapes, or its path on this machine."""
    scheme, _, rest = url.partition(":") if HAS_SCHEME.match(url) else ("file", "", url)
    name, slash, key = rest.removeprefix("//").partition("/") if rest.startswith("//") else ("", "/", rest.lstrip("/"))
    scheme, (name, _, account) = _SCHEMES.get(scheme, scheme), name.partition("@")
    if slash and (scheme, name) == (store.scheme, store.name) and account.partition(".")[0] in store.endpoint:
        for root in (store.root, os.path.realpath(store.root) if scheme == "file" else store.root):
            above = f"{root.strip('/')}/".lstrip("/")
            if key.startswith(above):
                return key.removeprefix(above)
    raise ConfigInvalid(
        f"{table.text} has files at {url}, which this operator does not reach: it reads {store.url}", operation="scan"
    )


def _array(given: Any, name: str, kinds: str, path: str) -> Any:
    """An array of one dimension; empty ones have no type of their own."""
    found = np.asarray(given)
    if found.ndim != 1 or (found.size and found.dtype.kind not in kinds):
        what = "row numbers" if name == "skip" else "booleans"
        raise InvalidType(f"{name} must be a list of {what}, not {given!r:.200}", operation="scan", path=path)
    # A copy, since the caller may change the original before the scan begins.
    return found.copy() if found.size else np.empty(0, np.int64 if name == "skip" else np.bool_)
