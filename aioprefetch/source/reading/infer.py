"""The schema of a source that nobody told: from the first few of its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable

import pyarrow as pa

from aioprefetch.errors import Error, NotFound, UntrustedMetadata
from aioprefetch.operator import Operator
from aioprefetch.source.columns.directories import directories_of, inferred_fields, with_directory_fields
from aioprefetch.source.columns.schema_union import united, with_texts_for_nulls
from aioprefetch.source.files import SourceFile
from aioprefetch.source.formats import format_of
from aioprefetch.source.options import FormatOptions, OnFailure, ReadOptions
from aioprefetch.source.reading.failures import reason_of
from aioprefetch.telemetry import logger

# In these a value is text in the end, and whatever does not go together may be read as that.
_TEXTUAL = ("jsonl", "csv")
# The paths of so many files are looked at for columns in directories: a page of a listing, which is there anyway.
_PATHS_MAX = 1000


async def infer_schema(
    operator: Operator,
    files: AsyncIterable[SourceFile],
    options: FormatOptions,
    *,
    read: ReadOptions | None = None,
    glob: str | None = None,
    on_corrupt: OnFailure = "fail",
) -> pa.Schema:
    """The schema of the first ``options.sample_files`` files that are not empty, as one: see ``united``.

    Types are plain ones, timestamps of microseconds, and everything is nullable; what is null in every file of JSON or
    CSV is a string. Where the paths of the first thousand
    files all have the same ``name=value`` directories, these are columns, too; see ``columns.directories``. Each file
    costs at most ``options.sample_bytes``, or a footer; they are read at once. Where a corrupt file is no failure it is
    passed over. Settings of ``openFile`` in ``read`` reach each.

    Raises ``NotFound``, naming URL and ``glob``, where there are no files, ``UntrustedMetadata`` where there are only
    empty ones, for a file that cannot be read, and for files whose types do not go together; ``ConfigInvalid`` where
    no format is told.
    """
    sample, paths, empty = await _first(files, options.sample_files)
    where = f"{operator.info.url}{'' if glob is None else f' with glob={glob!r}'}"
    if not sample:
        if not empty:
            raise NotFound(f"there are no files in {where}", operation="infer_schema")
        raise UntrustedMetadata(
            f"all of {empty} files in {where} are empty: they tell no schema, give one", operation="infer_schema"
        )
    schemas = await _sampled(operator, sample, options, read or ReadOptions(), on_corrupt)
    found = [(file.key, schema) for file, schema in schemas if len(schema)]
    if not found:
        raise UntrustedMetadata(
            f"none of {len(sample)} files in {where} tells a schema: give one",
            operation="infer_schema",
            path=sample[0].key,
        )
    are_textual = [format_of(key, options).name in _TEXTUAL for key, _ in found]
    schema = united(found, is_lenient=all(are_textual))
    if any(are_textual):
        schema = with_texts_for_nulls(schema)
    return with_directory_fields(schema, inferred_fields(map(directories_of, paths)))


async def _first(files: AsyncIterable[SourceFile], count: int) -> tuple[list[SourceFile], list[str], int]:
    """The first files that are not empty, more paths if they have columns, and how many empty files there were."""
    sample: list[SourceFile] = []
    paths: list[str] = []
    empty = 0
    async for file in files:
        if not file.size:
            empty += 1
            continue
        if len(sample) < count:
            sample.append(file)
        paths.append(file.key)
        if len(sample) >= count and (len(paths) >= _PATHS_MAX or not directories_of(file.key)):
            break
    return sample, paths, empty


async def _sampled(
    operator: Operator, sample: list[SourceFile], options: FormatOptions, read: ReadOptions, on_corrupt: OnFailure
) -> list[tuple[SourceFile, pa.Schema]]:
    async def one(file: SourceFile) -> tuple[SourceFile, pa.Schema]:
        try:
            return file, await format_of(file.key, options).sample(operator, file, options, read)
        except Error as error:
            error.add_context(operation="infer_schema", path=file.key)
            if on_corrupt == "fail" or reason_of(error) != "corrupt":
                raise
            logger.warning("%s tells no schema, on_corrupt=%s: %s", file.key, on_corrupt, error)
            return file, pa.schema([])

    tasks = [asyncio.ensure_future(one(file)) for file in sample]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
