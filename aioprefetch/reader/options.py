"""The options of a reader, checked once, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

from aioprefetch.accessor.http_headers import unquote_etag
from aioprefetch.errors import ConfigInvalid, Error, InvalidType
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import ByteCount, Range, at_least, bytes_at_least, checked_ranges
from aioprefetch.reader.growth import Growth, GrowthName, find_growth
from aioprefetch.reader.policy import PLAIN, Policy, PolicyNames, find_policy
from aioprefetch.runtime.options import RuntimeOptions

ProgressCallback = Callable[[int], object]

# The default size of a stream's chunks: large enough that the cost of a chunk does not count.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The options of ``operator.reader()``. Sizes are in bytes.

    ``size``, ``etag`` and ``version`` are known to the caller. Reads end at a declared size, or with the object if it
    is shorter; an ETag or a version pins the object before the first request. ``split`` is the range that the caller is
    going to use: look-ahead ends with it, reads may continue. ``chunk_bytes`` is the chunk of streams
    (``buffer_bytes``). ``footer_bytes`` is the tail that the first request brings, ``None`` for the policy's
    (``footer_cache``: ``True`` is a block, a number that many bytes, ``False`` no tail under any policy).
    ``prefetch_blocks`` is the limit of a window, ``growth`` its strategy; without ``prefetch_enabled`` reads are plain
    ranged reads. ``on_progress`` is called with the number of bytes after each read.

    A long run through an object of more than half of ``memory_bytes`` recycles the blocks behind it, as long as the
    reader has not gone back: ``keep_behind=True`` keeps them, ``False`` recycles in objects of any size.

    ``total`` is the size of the whole object, which a reader of the same version had in a response: only an object of
    that size is read.
    """

    policy: Policy
    size: int | None
    etag: str | None
    version: str | None
    split: Range | None
    chunk_bytes: int
    footer_bytes: int | None
    block_bytes: int
    prefetch_blocks: int
    prefetch_enabled: bool
    growth: Growth
    keep_behind: bool | None
    on_progress: ProgressCallback | None
    total: int | None = None


def reader_options(
    path: str,
    *,
    policy: PolicyNames,
    size: int | None,
    etag: str | None,
    version: str | None,
    split: Range | None,
    buffer_bytes: ByteCount | None,
    footer_cache: bool | ByteCount | None,
    block_bytes: ByteCount | None,
    prefetch_blocks: int | None,
    prefetch_enabled: bool,
    prefetch_growth: GrowthName | Growth,
    keep_behind: bool | None,
    on_progress: ProgressCallback | None,
    limits: RuntimeOptions,
) -> ReaderOptions:
    """Check and complete the options. ``ConfigInvalid`` or ``InvalidArgument`` names the option and its value.

    Readers with the same options share them: a service opens many readers in the same way.
    """
    kind = (
        policy,
        buffer_bytes,
        footer_cache,
        block_bytes,
        prefetch_blocks,
        prefetch_enabled,
        prefetch_growth,
        keep_behind,
        limits.block_bytes,
        limits.memory_bytes,
        limits.prefetch_blocks,
    )
    try:
        options = _shared_options(*kind) if type(prefetch_growth) is str else None  # A caller's strategy is not kept.
    except (Error, TypeError):  # A value has no hash, or is invalid: the error below names the path too.
        options = None
    if options is None:
        options = _checked_options(path, *kind)
    if size is None and etag is None and version is None and split is None and on_progress is None:
        return options
    if not (on_progress is None or callable(on_progress)):
        raise InvalidType(f"on_progress must be callable, not {on_progress!r}", operation="reader", path=path)
    return replace(
        options,
        size=_at_least(0, size, "size", path),
        etag=unquote_etag(_text(etag, "etag", path)),
        version=_text(version, "version", path),
        split=None if split is None else checked_ranges([split], operation="reader", path=path)[0],
        on_progress=on_progress,
    )


def _checked_options(
    path: str,
    policy: PolicyNames,
    buffer_bytes: ByteCount | None,
    footer_cache: bool | ByteCount | None,
    block_bytes: ByteCount | None,
    prefetch_blocks: int | None,
    prefetch_enabled: bool,
    prefetch_growth: str | Growth,
    keep_behind: bool | None,
    default_block_bytes: int,
    memory_bytes: int,
    default_prefetch_blocks: int,
) -> ReaderOptions:
    """The options of one kind of readers, without what belongs to one object."""
    chosen = find_policy(policy, operation="reader", path=path)
    block = _bytes_at_least(1, block_bytes, "block_bytes", path) or default_block_bytes
    if block > memory_bytes:
        raise ConfigInvalid(
            f"block_bytes={block} is more than memory_bytes={memory_bytes} can hold", operation="reader", path=path
        )
    if isinstance(footer_cache, str):
        footer_cache = bytes_at_least(1, footer_cache, "footer_cache", operation="reader", path=path)
    if not (footer_cache is None or isinstance(footer_cache, int)):
        raise InvalidType(f"footer_cache must be a bool or bytes, not {footer_cache!r}", operation="reader", path=path)
    if type(prefetch_enabled) is not bool:
        raise InvalidType(f"prefetch_enabled must be a bool, not {prefetch_enabled!r}", operation="reader", path=path)
    if not (keep_behind is None or type(keep_behind) is bool):
        raise InvalidType(f"keep_behind must be a bool or None, not {keep_behind!r}", operation="reader", path=path)
    if type(footer_cache) is int and footer_cache > memory_bytes:
        raise ConfigInvalid(
            f"footer_cache={footer_cache} is more than memory_bytes={memory_bytes} can hold",
            operation="reader",
            path=path,
        )
    footer = footer_cache if type(footer_cache) is int else block if footer_cache is True else None
    if not prefetch_enabled:
        chosen = PLAIN
    if footer_cache is False and chosen.first == "tail":
        chosen = replace(chosen, first="exact" if chosen.fill == "exact" else "block")
    elif footer is not None:
        chosen = replace(chosen, first="tail")
    ahead = _at_least(0, prefetch_blocks, "prefetch_blocks", path)
    return ReaderOptions(
        policy=chosen,
        size=None,
        etag=None,
        version=None,
        split=None,
        chunk_bytes=_bytes_at_least(1, buffer_bytes, "buffer_bytes", path) or CHUNK_BYTES,
        footer_bytes=_at_least(1, footer, "footer_cache", path),
        block_bytes=block,
        prefetch_blocks=default_prefetch_blocks if ahead is None else ahead,
        prefetch_enabled=prefetch_enabled,
        growth=find_growth(prefetch_growth, operation="reader", path=path),
        keep_behind=keep_behind,
        on_progress=None,
    )


# Typed, because True equals 1 and is refused in its place.
_shared_options = lru_cache(maxsize=64, typed=True)(partial(_checked_options, ""))

# The names of what ``Operator.reader`` takes.
READER_OPTIONS = frozenset(inspect.signature(reader_options).parameters) - {"path", "limits"}


def _text(value: str | None, name: str, path: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidType(f"{name} must be a string, not {value!r}", operation="reader", path=path)


def _at_least(lowest: int, value: int | None, name: str, path: str) -> int | None:
    return None if value is None else at_least(lowest, value, name, operation="reader", path=path)


def _bytes_at_least(lowest: int, value: ByteCount | None, name: str, path: str) -> int | None:
    return None if value is None else bytes_at_least(lowest, value, name, operation="reader", path=path)
