"""The schema of a source without a given one: from a sample of its files, spread over the listing."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from aioprefetch.errors import Error, NotFound, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.source.columns.directories import DirectoryColumns, with_directory_fields
from aioprefetch.source.columns.schema_union import united, with_texts_for_nulls
from aioprefetch.source.files import SourceFile
from aioprefetch.source.formats import format_of
from aioprefetch.source.formats.corruption import UNDECODABLE, undecodable
from aioprefetch.source.options import FormatOptions, OnFailure, ReadOptions
from aioprefetch.source.reading.failures import reason_of

# The default number of files in a sample; small files are all read up to a limit.
SAMPLE_FILES = 10
SAMPLE_SMALL_FILES_MAX = 100
SAMPLE_SMALL_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """A schema, and the names of its fields whose values stand in directories."""

    schema: pa.Schema
    directories: tuple[str, ...] = ()


async def infer_schema(
    operator: Operator,
    files: AsyncIterable[SourceFile],
    options: FormatOptions,
    *,
    read: ReadOptions | None = None,
    glob: str | None = None,
    on_corrupt: OnFailure = "fail",
    keys_max: int | None = None,
) -> InferredSchema:
    """The schema of a sample of ``files``, unified as ``united`` does.

    The sample has ``options.sample_files`` files that are not empty, at even distances over the whole listing, with its
    first and its last file; the same files give the same sample. Without that number it has ``SAMPLE_FILES``, or as
    many up to ``SAMPLE_SMALL_FILES_MAX`` as have ``SAMPLE_SMALL_BYTES`` together. At most ``keys_max`` files are
    listed. Types are plain, timestamps in microseconds, all fields nullable; a field that is null in each file of JSON
    or CSV is a string. ``name=value`` directories are columns (``DirectoryColumns``); files outside of such directories
    have nulls there, which a warning says. Each file of the sample costs at most ``options.sample_bytes``, or a footer;
    they are read at once. A corrupt file is left out unless ``on_corrupt="fail"``. Settings of ``openFile`` in ``read``
    apply to each file.

    Raises ``NotFound``, naming URL and ``glob``, if there are no files; ``UntrustedMetadata`` if all files are empty,
    for a file that cannot be read, for types that cannot be unified, and for directories of different names;
    ``ConfigInvalid`` for a file whose format is unknown.
    """
    sample, columns, empty = await _listed(files, options, keys_max)
    where = f"{operator.info.url}{'' if glob is None else f' with glob={glob!r}'}"
    if not sample:
        if not empty:
            raise NotFound(f"there are no files in {where}", operation="infer_schema")
        raise UntrustedMetadata(
            f"all of {empty} files in {where} are empty: they tell no schema, give one", operation="infer_schema"
        )
    schemas = await _sampled(operator, sample, options, read or ReadOptions(), on_corrupt)
    with_fields = [(file.key, schema) for file, schema in schemas if len(schema)]
    if not with_fields:
        raise UntrustedMetadata(
            f"none of {len(sample)} files in {where} tells a schema: give one",
            operation="infer_schema",
            path=sample[0].key,
        )
    are_textual = [format_of(key, options).is_textual for key, _ in with_fields]
    schema = united(with_fields, is_lenient=all(are_textual))
    if any(are_textual):
        schema = with_texts_for_nulls(schema)
    fields = columns.fields()
    if fields and columns.outside is not None:
        _warn_of_outside(columns, [field.name for field in fields])
    return InferredSchema(with_directory_fields(schema, fields), tuple(field.name for field in fields))


def _warn_of_outside(columns: DirectoryColumns, names: list[str]) -> None:
    logger.warning(
        "%d file(s) such as %r are in no name=value directory, as %r is: their %s is what they hold themselves, or "
        "null. Leave them out by a glob if they are not part of the table",
        columns.outside_count,
        columns.outside,
        columns.within,
        ", ".join(names),
    )


async def _listed(
    files: AsyncIterable[SourceFile], options: FormatOptions, keys_max: int | None
) -> tuple[list[SourceFile], DirectoryColumns, int]:
    """A sample of the files that are not empty, the columns of all their paths, and the number of empty files."""
    spread = _Spread(max(options.sample_files or 0, SAMPLE_SMALL_FILES_MAX))
    columns = DirectoryColumns()
    empty = 0
    async for file in files:
        if not file.size:
            empty += 1
            continue
        spread.add(file)
        columns.add(file.key)
        if keys_max is not None and spread.count + empty >= keys_max:
            break
    count = options.sample_files or _sample_count(spread.taken(SAMPLE_SMALL_FILES_MAX), options.sample_bytes)
    return spread.taken(count), columns, empty


def _sample_count(files: list[SourceFile], sample_bytes: int) -> int:
    """The number of files in a sample, by their bytes, where the options do not give it."""
    each_bytes = sum(min(file.size, sample_bytes) for file in files) / max(1, len(files))
    return max(SAMPLE_FILES, min(SAMPLE_SMALL_FILES_MAX, int(SAMPLE_SMALL_BYTES / max(1, each_bytes))))


class _Spread:
    """Files at even distances of a listing of unknown length, with its first and its last file."""

    def __init__(self, wanted_max: int) -> None:
        self.count = 0
        self._kept_max = 4 * wanted_max
        self._kept: list[SourceFile] = []
        self._step = 1
        self._last: SourceFile | None = None

    def add(self, file: SourceFile) -> None:
        """Add a file. Whenever the kept files exceed the limit, each second file is dropped."""
        if self.count % self._step == 0:
            self._kept.append(file)
            if len(self._kept) > self._kept_max:
                self._kept = self._kept[::2]
                self._step *= 2
        self.count += 1
        self._last = file

    def taken(self, count: int) -> list[SourceFile]:
        """At most ``count`` of the files; for one file the last, which is the newest where names have dates."""
        if self._last is None:
            return []
        kept = self._kept if self._kept[-1] is self._last else [*self._kept, self._last]
        if len(kept) <= count:
            return list(kept)
        if count == 1:
            return kept[-1:]
        return [kept[place * (len(kept) - 1) // (count - 1)] for place in range(count)]


async def _sampled(
    operator: Operator, sample: list[SourceFile], options: FormatOptions, read: ReadOptions, on_corrupt: OnFailure
) -> list[tuple[SourceFile, pa.Schema]]:
    async def schema_of(file: SourceFile) -> tuple[SourceFile, pa.Schema]:
        try:
            try:
                return file, await format_of(file.key, options).sample(operator, file, options, read)
            except UNDECODABLE as error:
                raise undecodable(file.key, error) from error
        except Error as error:
            error.add_context(operation="infer_schema", path=file.key)
            if on_corrupt == "fail" or reason_of(error) != "corrupt":
                raise
            logger.warning("%s tells no schema, on_corrupt=%s: %s", file.key, on_corrupt, error)
            return file, pa.schema([])

    return await gather_all(partial(schema_of, file) for file in sample)
