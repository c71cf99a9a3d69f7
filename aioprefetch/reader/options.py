"""The options of a reader, checked once, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from aioprefetch.accessor.http_headers import unquote_etag
from aioprefetch.errors import ConfigInvalid, Error
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import COUNT_OR_ZERO, FLAG, SIZE, TEXT, Kind, Size, checked_options, option, table_of
from aioprefetch.ranges import ByteCount, Range, checked_ranges
from aioprefetch.reader.growth import Growth, GrowthName, find_growth
from aioprefetch.reader.policy import PLAIN, Policy, PolicyNames, find_policy
from aioprefetch.runtime.options import RuntimeOptions

ProgressCallback = Callable[[int], object]

# The default size of a stream's chunks: large enough that the cost of a chunk does not count.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The options of one reader, checked and complete; ``ReaderRows`` documents them. Sizes are in bytes.

    ``chunk_bytes`` is ``buffer_bytes``, ``footer_bytes`` the tail that the first request brings (``None``: the
    policy's), ``growth`` is ``prefetch_growth``. ``total`` is the size of the whole object, which a reader of the same
    version had in a response: only an object of that size is read.
    """

    policy: Policy
    chunk_bytes: int
    footer_bytes: int | None
    block_bytes: int
    prefetch_blocks: int
    prefetch_enabled: bool
    growth: Growth
    keep_behind: bool | None
    size: int | None = None
    etag: str | None = None
    version: str | None = None
    split: Range | None = None
    on_progress: ProgressCallback | None = None
    total: int | None = None


class _Found(Kind):
    """A value that a function finds or checks by itself."""

    def __init__(self, find: Callable[..., Any]) -> None:
        super().__init__()
        self._find = find

    def checked(self, value: Any, name: str, operation: str = "configure", path: str = "") -> Any:
        return self._find(value, operation=operation, path=path)


class _Footer(Size):
    """Whether the first request brings the tail, or how many bytes of it."""

    def checked(self, value: Any, name: str, operation: str = "configure", path: str = "") -> Any:
        return value if isinstance(value, bool) else super().checked(value, name, operation, path)


def _callback(value: Any) -> ProgressCallback:
    if not callable(value):
        raise TypeError(value)
    return value  # type: ignore[no-any-return]  # Its parameters are known when it is called.


class ReaderRows:
    """The options of a reader as callers give them.

    Parameters
    ----------
    policy
        The expected access: ``adaptive``, ``sequential``, ``random``, ``parquet``, and others. It says what a miss
        brings, how far to look ahead, and where the first request lies.
    size
        The size of the object in bytes, if it is known. Reads end there, or with the object if it is shorter.
    etag
        The ETag of the version to read, if it is known: it pins the version before the first request.
    version
        The version id to read, where the store keeps several versions.
    split
        The range ``(start, end)`` that the caller is going to use: nothing is fetched ahead beyond its end, until a
        block beyond it was read. The first request ends with it too.
    buffer_bytes
        The size of the chunks of ``stream``; 1 MiB by default.
    footer_cache
        Whether the first request brings the tail of the object: ``True`` is a block of it, a number that many bytes.
        ``False`` brings no tail under any policy.
    block_bytes
        The size of the blocks in which bytes are fetched and kept. By default the operator's.
    prefetch_blocks
        The maximum of blocks that are fetched ahead of a run of reads; 0 fetches nothing ahead. By default the
        operator's.
    prefetch_enabled
        ``False`` fetches nothing that no read has asked for.
    prefetch_growth
        How the window ahead of a run grows: ``stall``, ``geometric``, ``linear``, ``step``, or an object of yours.
    keep_behind
        Whether blocks behind a long run stay in memory; by default in objects up to half of ``memory_bytes``, and after
        the first seek backward. ``False`` keeps them only after one.
    on_progress
        Called with the number of bytes after each read. If it raises, that is logged and no read fails.
    """

    policy: PolicyNames = option(
        "adaptive",
        _Found(find_policy),
        also="openfile:read.policy hadoop:input.fadvise,experimental.input.fadvise,vectored.read.min.seek.size,"
        "vectored.read.max.merged.size fsspec:default_cache_type,cache_type"
        " other:caching,default_fill_cache,fill_cache,cache_options,read_ahead,readahead",
        hint="policy='adaptive' in place of readahead, 'random' of none, 'whole-file' of all, 'parquet' for footers",
    )
    size: int | None = option(None, COUNT_OR_ZERO, also="openfile:length")
    etag: str | None = option(None, TEXT)
    version: str | None = option(None, TEXT)
    split: Range | None = option(
        None, _Found(lambda pair, **place: checked_ranges([pair], **place)[0]), also="openfile:split.start,split.end"
    )
    buffer_bytes: ByteCount | None = option(None, SIZE, also="openfile:buffer.size")
    footer_cache: bool | ByteCount | None = option(
        None, _Footer(annotation="bool | ByteCount | None"), also="openfile:footer.cache"
    )
    block_bytes: ByteCount | None = option(None, SIZE, also="hadoop:prefetch.block.size")
    prefetch_blocks: int | None = option(None, COUNT_OR_ZERO, also="hadoop:prefetch.block.count,readahead.range")
    prefetch_enabled: bool = option(True, FLAG, also="hadoop:prefetch.enabled,input.stream.type")
    prefetch_growth: GrowthName | Growth = option("stall", _Found(find_growth))
    keep_behind: bool | None = option(None, FLAG)
    on_progress: ProgressCallback | None = option(None, Kind("callable", _callback))


READER_OPTIONS = frozenset(table_of(ReaderRows))
# They say which object is read; by the others it is how, and readers with the same of these share their options.
_OF_OBJECT = ("size", "etag", "version", "split", "on_progress")
_HOW = tuple(name for name in table_of(ReaderRows) if name not in _OF_OBJECT)


def reader_options(
    path: str, limits: RuntimeOptions, how: tuple[Any, ...], of_object: tuple[Any, ...]
) -> ReaderOptions:
    """Check and complete the options, each in the order of the rows; the last one of ``how`` but one is the growth.

    ``ConfigInvalid`` or ``InvalidType`` names the option and its value. A service opens many readers in the same way.
    """
    operators = limits.block_bytes, limits.memory_bytes, limits.prefetch_blocks
    try:  # A caller's strategy is not kept.
        options = _shared_options("", *operators, *how) if type(how[-2]) is str else None
    except (Error, TypeError):  # A value has no hash, or is invalid: the error below names the path too.
        options = None
    if options is None:
        options = _checked_options(path, *operators, *how)
    if of_object == _NOTHING:
        return options
    given = {name: value for name, value in zip(_OF_OBJECT, of_object, strict=True) if value is not None}
    values = checked_options(ReaderRows, given, "reader", path)
    if "etag" in values:
        values["etag"] = unquote_etag(values["etag"])
    return replace(options, **values)


_NOTHING = (None,) * len(_OF_OBJECT)


def _checked_options(
    path: str, operators_block_bytes: int, memory_bytes: int, operators_blocks: int, *how: Any
) -> ReaderOptions:
    """The options of one kind of readers, without what belongs to one object."""
    values = checked_options(ReaderRows, dict(zip(_HOW, how, strict=True)), "reader", path)
    block = operators_block_bytes if values["block_bytes"] is None else values["block_bytes"]
    footer_cache, ahead = values["footer_cache"], values["prefetch_blocks"]
    for name, size in (("block_bytes", block), ("footer_cache", footer_cache)):
        if type(size) is int and size > memory_bytes:
            raise ConfigInvalid(
                f"{name}={size} is more than memory_bytes={memory_bytes} can hold", operation="reader", path=path
            )
    chosen = PLAIN if not values["prefetch_enabled"] else values["policy"]
    footer = block if footer_cache is True else footer_cache or None
    if footer_cache is False and chosen.first == "tail":
        chosen = replace(chosen, first="exact" if chosen.fill == "exact" else "block")
    elif footer is not None:
        chosen = replace(chosen, first="tail")
    return ReaderOptions(
        policy=chosen,
        chunk_bytes=values["buffer_bytes"] or CHUNK_BYTES,
        footer_bytes=footer,
        block_bytes=block,
        prefetch_blocks=operators_blocks if ahead is None else ahead,
        prefetch_enabled=values["prefetch_enabled"],
        growth=values["prefetch_growth"],
        keep_behind=values["keep_behind"],
    )


# Typed, because True equals 1 and is refused in its place.
_shared_options = lru_cache(maxsize=64, typed=True)(_checked_options)
