"""Planning before items are read: the schema of a source without a given one, and the plan of a batch.

The schema comes from a sample of the files, spread over the listing. A plan has the files of a batch, cut into items if
that pays, packed into the partitions of its tasks. Footers are read here only where that saves more than it costs: with
filters, to leave out parts and whole files, and for files that are cut, to cut them between their parts. Tasks need the
footers of all other files anyway.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from aioprefetch.errors import Error, NotFound, UntrustedMetadata
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.events import logger
from aioprefetch.runtime.task_group import gather_all
from aioprefetch.source.columns.directories import (
    DirectoryColumns,
    DirectoryFilter,
    directories_of,
    directory_fields,
    names_of,
    with_directory_fields,
)
from aioprefetch.source.columns.schemas import united, with_texts_for_nulls
from aioprefetch.source.differences import warn_of_difference
from aioprefetch.source.fetch.partitioning import (
    check_partition_options,
    divide,
    partition_count,
    piece_bytes,
    pieces_of_item,
)
from aioprefetch.source.formats import RecordFormat, can_split, format_of, formats_with_datasets
from aioprefetch.source.formats.corruption import UNDECODABLE, undecodable
from aioprefetch.source.formats.record_format import FooterPlanning
from aioprefetch.source.formats.record_texts import texts_format
from aioprefetch.source.list.pages import Selection, file_of
from aioprefetch.source.options import FailureOptions, FormatOptions, ListOptions, PartitionOptions, ReadOptions
from aioprefetch.source.reading.task import reason_of
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.values import Entry
from aioprefetch.verbs.listing import Lister, list_literally

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
    failures: FailureOptions | None = None,
    keys_max: int | None = None,
) -> InferredSchema:
    """The schema of a sample of ``files``, unified as ``united`` does.

    The sample has ``options.sample_files`` files that are not empty, at even distances over the whole listing, with its
    first and its last file; the same files give the same sample. Without that number it has ``SAMPLE_FILES``, or as
    many up to ``SAMPLE_SMALL_FILES_MAX`` as have ``SAMPLE_SMALL_BYTES`` together. At most ``keys_max`` files are
    listed. Types are plain, timestamps in microseconds, all fields nullable; a field that is null in each file of JSON
    or CSV is a string. ``name=value`` directories are columns (``DirectoryColumns``); files outside of such directories
    have nulls there, which a warning says. Each file of the sample costs at most ``options.sample_bytes``, or a footer;
    they are read at once. A file that fails is left out as ``failures`` say. Settings of ``openFile`` in ``read``
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
    schemas = await _sampled(operator, sample, options, read or ReadOptions(), failures or FailureOptions())
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
    elif any(len(own) < len(schema) for _, own in with_fields):
        warn_of_difference("union")
    fields = columns.fields()
    if fields and columns.outside is not None:
        _warn_of_outside(columns, [field.name for field in fields])
    return InferredSchema(with_directory_fields(schema, fields), tuple(field.name for field in fields))


@dataclass(frozen=True, slots=True)
class SampledTexts:
    """The records of a sample of files, each file's by itself, and the fields of all their directories.

    ``is_empty``: there were no files.
    """

    texts: Sequence[pa.BinaryArray]
    directories: pa.Schema
    is_empty: bool


async def sample_texts(
    operator: Operator,
    files: AsyncIterable[SourceFile],
    options: FormatOptions,
    *,
    read: ReadOptions,
    has_schema: bool = False,
    keys_max: int | None = None,
) -> SampledTexts:
    """Records of a sample of ``files``, as ``infer_schema`` chooses it; headers are the first of each file's.

    Names and types of directories are as Spark has them. With a schema no file is read. Raises as a read does.
    """
    sample, columns, _ = await _listed(files, options, keys_max)

    async def texts_of(file: SourceFile) -> pa.BinaryArray:
        record_format = texts_format(format_of(file.key, options))
        return await record_format.sample_texts(operator, file, options, read)

    texts = [] if has_schema else await gather_all(partial(texts_of, file) for file in sample)
    return SampledTexts(texts, with_texts_for_nulls(pa.schema(columns.fields(narrow=True))), not sample)


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
    operator: Operator, sample: list[SourceFile], options: FormatOptions, read: ReadOptions, failures: FailureOptions
) -> list[tuple[SourceFile, pa.Schema]]:
    async def schema_of(file: SourceFile) -> tuple[SourceFile, pa.Schema]:
        try:
            try:
                return file, await format_of(file.key, options).sample(operator, file, options, read)
            except UNDECODABLE as error:
                raise undecodable(file.key, error) from error
        except Error as error:
            error.add_context(operation="infer_schema", path=file.key)
            reason = reason_of(error)
            if reason is None or failures.policies[reason] == "fail":
                raise
            logger.warning("%s tells no schema, on_%s=%s: %s", file.key, reason, failures.policies[reason], error)
            return file, pa.schema([])

    return await gather_all(partial(schema_of, file) for file in sample)


# --- the plan of a batch ----------------------------------------------------------------------------------------------

# For more files than this, tasks read the footers.
FOOTERS_MAX = 100_000
# Concurrent reads of footers.
_FOOTERS_IN_FLIGHT = 64


async def plan_batch(
    operator: Operator,
    listing: ListOptions,
    partitioning: PartitionOptions,
    format: FormatOptions,  # noqa: A002 - the common name
    *,
    files: AsyncIterable[SourceFile] | None = None,
    schema: pa.Schema | None = None,
    filters: Any = None,
    has_zone: bool = True,
    open_file: Mapping[str, str] | None = None,
) -> list[list[FetchItem]]:
    """The items of each task: one partition for each slot, or two for much work, of similar bytes, none empty.

    ``partition_count`` chooses their number. ``files`` replaces a listing. ``filters``
    refer to ``schema``; without a schema they leave nothing out. ``has_zone=False``: another zone may hold
    when items are read, so no time in a path leaves a file out. Settings of ``openFile`` apply to each file whose
    footer is read here. Empty files are left out, also for ``format="binary"``, as in Spark. ``ConfigInvalid`` for a
    file whose format is unknown.
    """
    check_partition_options(partitioning)
    if partitioning.split_files is None:
        partitioning = replace(partitioning, split_files=True)
    clauses = None if schema is None else filters
    directories = None
    if clauses is not None and schema is not None:
        decided = [field for field in schema if has_zone or not pa.types.is_timestamp(field.type)]
        directories = DirectoryFilter(clauses, pa.schema(decided), format.time_zone)
    if files is None:
        files = list_files(operator, format, listing, directories=directories)
    whole = [
        FetchItem(file)
        async for file in files
        if file.size and (directories is None or directories.may_match(file.key))
    ]
    count = partition_count(whole, partitioning)
    target_bytes = piece_bytes(whole, count, partitioning)

    def is_worth_it(item: FetchItem) -> bool:
        is_cut = partitioning.split_files is True and item.bytes > target_bytes
        return (clauses is not None or is_cut) and format_of(item.file.key, format).plans_by_footer

    async def plan(item: FetchItem) -> list[FetchItem]:
        own = None if schema is None else _own_fields(item.file, schema)
        planning = FooterPlanning(
            target_bytes=target_bytes, options=format, schema=own, filters=clauses, open_file=open_file or {}
        )
        return await format_of(item.file.key, format).plan(operator, item, planning)

    items = whole if len(whole) > FOOTERS_MAX else await _with_parts(whole, is_worth_it, plan)
    pieces = [piece for item in items for piece in cut_item(item, target_bytes, format, partitioning)]
    parts = divide(pieces, replace(partitioning, assign="size"), lambda _: False, count=count)
    return [joined(part) for part in parts]


def _own_fields(file: SourceFile, schema: pa.Schema) -> pa.Schema:
    """The fields that are read from the file itself, without those from its directories."""
    by_directories = directory_fields(names_of(directories_of(file.key)), schema)
    return pa.schema([field for field in schema if field.name not in by_directories]) if by_directories else schema


def cut_item(
    item: FetchItem, target_bytes: int, options: FormatOptions, partitioning: PartitionOptions
) -> list[FetchItem]:
    """The pieces of an item, each of at most ``target_bytes``, if its format and the options allow a split."""
    if not partitioning.split_files:
        return [item]
    return pieces_of_item(item, target_bytes, lambda file: can_split(file, options))


def joined(items: Iterable[FetchItem]) -> list[FetchItem]:
    """Items with neighbouring row groups of a file become one item, so that its footer is read once."""
    items_joined: list[FetchItem] = []
    for item in items:
        last = items_joined[-1] if items_joined else None
        if last is None or last.file != item.file or not last.row_groups or not item.row_groups:
            items_joined.append(item)
        else:
            items_joined[-1] = replace(last, end=item.end, row_groups=(*last.row_groups, *item.row_groups))
    return items_joined


# --- footers ----------------------------------------------------------------------------------------------------------


async def _with_parts(
    items: Sequence[FetchItem],
    is_worth_it: Callable[[FetchItem], bool],
    plan: Callable[[FetchItem], Awaitable[list[FetchItem]]],
) -> list[FetchItem]:
    """The items in their order, each whose footer is worth reading replaced by the parts that ``plan`` gives."""
    parts = [[item] for item in items]
    wanted = iter([place for place, item in enumerate(items) if is_worth_it(item)])

    async def read_some() -> None:
        for place in wanted:
            try:
                parts[place] = await plan(items[place])
            except Error as error:
                if reason_of(error) is None:
                    raise  # The task meets the same error, and applies the policy for it.

    await gather_all([read_some] * _FOOTERS_IN_FLIGHT)
    return [piece for pieces in parts for piece in pieces]


# --- files ------------------------------------------------------------------------------------------------------------


def _is_of_time(entry: Entry, listing: ListOptions) -> bool:
    modified, after, before = entry.last_modified, listing.modified_after, listing.modified_before
    return modified is None or ((after is None or modified > after) and (before is None or modified < before))


async def list_files(
    operator: Operator,
    options: FormatOptions,
    listing: ListOptions | None = None,
    *,
    glob: str | None = None,
    directories: DirectoryFilter | None = None,
) -> AsyncGenerator[SourceFile, None]:
    """The files below the root that ``listing`` or ``glob`` choose, empty ones included, without directories.

    A directory that holds a dataset is one file, if it matches: its key ends with ``/`` (the key of the root is empty),
    its version is the latest of the dataset, and its size covers all its objects, which are not listed themselves.
    Where there may be datasets and the store lists in no order, all entries are in memory, to be sorted.
    Directories below which no file can match ``directories`` are not listed, where few of their neighbours can.
    """
    listing = listing or ListOptions(glob=glob)
    selection = Selection(listing.glob, hidden_files=listing.hidden_files)
    formats = formats_with_datasets(options)
    dataset: SourceFile | None = None
    dataset_format: RecordFormat | None = None
    is_ordered = not formats or operator.capability.list_ordered
    listed: Lister | AsyncGenerator[Entry, None] = list_literally(operator, selection.prefix, recursive=True)
    if directories is not None:
        listed = _walked(operator, selection.prefix, directories)
    elif not is_ordered:
        listed = _sorted(list_literally(operator, selection.prefix, recursive=True))
    async with aclosing(listed) as entries:
        async for entry in entries:
            if dataset is not None and not entry.path.startswith(dataset.key):
                if _takes(selection, dataset):
                    yield dataset
                dataset = None
            if dataset is None and formats:
                dataset, dataset_format = _dataset_of(entry.path, formats)
            if dataset is not None and dataset_format is not None:
                version = max(int(dataset.version or 0), dataset_format.dataset_version(entry, dataset.key))
                dataset = replace(dataset, size=dataset.size + (entry.size or 0), version=str(version))
            elif selection.takes(entry.path) and _is_of_time(entry, listing):
                yield file_of(entry)
    if dataset is not None and _takes(selection, dataset):
        yield dataset


async def _walked(operator: Operator, prefix: str, filter_: DirectoryFilter) -> AsyncGenerator[Entry, None]:
    """All files below a prefix in the order of keys, without those in directories that cannot match.

    A level is listed with a delimiter. Where most of its directories can match, a listing of all below is cheaper.
    """
    directory = prefix[: prefix.rfind("/") + 1]
    level = [entry async for entry in list_literally(operator, directory) if entry.path.startswith(prefix)]
    inner = [entry.path for entry in level if entry.is_directory]
    matching = [path for path in inner if filter_.may_match(f"{path}file")]
    if 2 * len(matching) > len(inner):
        level = await list_literally(operator, prefix, recursive=True).collect()
    for entry in sorted(level, key=lambda entry: entry.path):
        if not entry.is_directory:
            yield entry
        elif entry.path in matching:
            async with aclosing(_walked(operator, entry.path, filter_)) as below:
                async for one in below:
                    yield one


async def _sorted(listed: Lister) -> AsyncGenerator[Entry, None]:
    for entry in sorted(await listed.collect(), key=lambda entry: entry.path):
        yield entry


def _takes(selection: Selection, dataset: SourceFile) -> bool:
    return not dataset.key or selection.takes(dataset.key[:-1])


def _dataset_of(key: str, formats: Sequence[RecordFormat]) -> tuple[SourceFile, RecordFormat] | tuple[None, None]:
    """The dataset that an object proves, as a file without any object so far, and its format."""
    for each in formats:
        directory = each.dataset_of(key)
        if directory is not None:
            return SourceFile(directory, 0, None, "0"), each
    return None, None
