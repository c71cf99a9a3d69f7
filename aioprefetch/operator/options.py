"""The options of the doors, for type checkers: nothing loads this module at run time.

A function of yours that hands options on is typed by them, too: ``**options: Unpack[UriOptions]``. The classes of rows
are made by ``python -m tests.repository.option_files``.
"""

from __future__ import annotations

import os
from typing import TypedDict

from aioprefetch.ranges import ByteCount, Range
from aioprefetch.reader.growth import Growth, GrowthName
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.reader.policy import PolicyNames
from aioprefetch.runtime.options import DiskCache
from aioprefetch.services.uri_options import StoreOptions
from aioprefetch.verbs.requests import MoveOptions, ObjectOptions, WriteOptions

# generated: types


class BlockOptions(TypedDict, total=False):
    """The blocks of an operator, for all of its readers, and those of one reader."""

    block_bytes: ByteCount | None
    prefetch_blocks: int | None


class LimitOptions(TypedDict, total=False):
    """The options of every operator beside ``BlockOptions``; ``Operator`` documents them."""

    memory_bytes: ByteCount | None
    concurrency: int | None
    disk_cache: DiskCache | str | os.PathLike[str] | None
    budget_wait_seconds: float | None
    drain_bytes: ByteCount | None
    attempts_max: int | None
    retry_seconds: float | None


class ReadingOptions(TypedDict, total=False):
    """The options of a reader beside ``BlockOptions``; ``ReaderRows`` documents them."""

    policy: PolicyNames
    size: int | None
    etag: str | None
    version: str | None
    split: Range | None
    buffer_bytes: ByteCount | None
    footer_cache: bool | ByteCount | None
    prefetch_enabled: bool
    prefetch_growth: GrowthName | Growth
    keep_behind: bool | None
    on_progress: ProgressCallback | None


# end of generated


class CopyOptions(MoveOptions, total=False):
    """The options of a copy within one store."""

    on_progress: ProgressCallback | None
    """Called with numbers of bytes; it costs a request for the size."""


class UploadOptions(WriteOptions, total=False):
    """The options of ``Operator.upload``."""

    on_progress: ProgressCallback | None
    """Called with the number of bytes after each part."""


class UriOptions(StoreOptions, LimitOptions, BlockOptions, total=False):
    """The options of ``Operator.from_uri``."""


class OpenOptions(ReadingOptions, BlockOptions, total=False):
    """The options of ``Operator.reader``, and of a file to read."""


class AnyFileOptions(OpenOptions, WriteOptions, total=False):
    """The options of a file to read or to write."""


class ReadUrlOptions(UriOptions, ReadingOptions, total=False):
    """The options of ``ap.sync.open`` to read."""


class WriteUrlOptions(UriOptions, ObjectOptions, total=False):
    """The options of ``ap.sync.open`` to write."""


class AnyUrlOptions(UriOptions, ReadingOptions, ObjectOptions, total=False):
    """The options of ``ap.sync.open`` in any mode."""


class RangesOptions(TypedDict, total=False):
    """The options of ``Operator.read_ranges``."""

    gap_bytes: ByteCount | None
    """Ranges with a gap of at most this between them share a request; 1 MiB by default."""
    request_bytes_max: ByteCount | None
    """The maximum size of a request; 16 MiB by default."""
    if_match: str | None
    """The ETag that the object must have."""
    version: str | None
    """The version of the object, where the store keeps several."""
