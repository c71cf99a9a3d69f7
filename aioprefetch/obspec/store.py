"""``OperatorStore``: the methods of obspec's protocols, each for a loop and for none."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from obspec import Attributes, GetOptions, ListResult, ObjectMeta, PutMode, PutResult

from aioprefetch.accessor.http_headers import is_weak, quote_etag
from aioprefetch.errors import (
    ConditionNotMatch,
    InvalidArgument,
    InvalidRange,
    NotFound,
    ObjectChanged,
    RangeNotSatisfied,
    Unsupported,
)
from aioprefetch.obspec.result import (
    UNRESERVED_BYTES,
    Conditions,
    ReadResult,
    as_obspec,
    blocking,
    meta_of,
    meta_of_head,
    translated,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import checked_operator, clone_with_hold
from aioprefetch.ranges import ByteCount, bytes_at_least, checked_ranges
from aioprefetch.runtime.buffers import Lease
from aioprefetch.runtime.closing import AsyncClosing, Closing
from aioprefetch.scheduler.pinned_file import PinnedFile
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.values import Metadata, ReadHead, ReadRequest
from aioprefetch.verbs.arguments import check_file
from aioprefetch.verbs.listing import Lister, list_literally
from aioprefetch.verbs.ranged_read import view_ranges_cut

P = ParamSpec("P")
T = TypeVar("T")

LIST_ENTRIES = 1000
# An object that is overwritten between its metadata and its bytes is described again so often.
ATTEMPTS_MAX = 3
# By the names of HTTP, as obspec has them, the options of a write, which are the fields of metadata too.
_DESCRIPTIONS = {
    "Content-Type": "content_type",
    "Content-Encoding": "content_encoding",
    "Content-Disposition": "content_disposition",
    "Cache-Control": "cache_control",
}


def _blocks(
    method: Callable[Concatenate[OperatorStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[OperatorStore, P], T]:
    """The twin of an asynchronous method that blocks."""

    @wraps(method)
    def call(store: OperatorStore, /, *positional: P.args, **named: P.kwargs) -> T:
        return loop_thread().run(method(store, *positional, **named))

    call.__name__ = method.__name__.removesuffix("_async")
    call.__qualname__ = method.__qualname__.removesuffix("_async")
    call.__doc__ = f"``{method.__name__}`` that blocks."
    return call


class OperatorStore(AsyncClosing, Closing):
    """The objects of an operator with the methods of all protocols of obspec.

    ``Get``, ``GetRange``, ``GetRanges``, ``Head``, ``List``, ``ListWithDelimiter``, ``Put``, ``Delete``, ``Copy``,
    ``Rename``, and the ``…Async`` protocol of each.

    Methods without ``_async`` block; they run on the loop thread of ``aioprefetch.sync``. Errors are from
    aioprefetch, and where obspec has the name, also exceptions of obspec. It pickles as its operator does.
    Several ranges are merged, a long body is read in parallel, and one result is of one version of its object.

    The operator stays the caller's; ``aclose`` gives up what this store uses on the running loop, ``close`` what its
    blocking methods use.

    ``chunk_bytes``, by default the operator's ``block_bytes``, is the size of the first bytes of a body, which come
    with what describes the object, and of each later chunk when it is iterated. Chunks of more than 1 MiB are reserved
    in ``memory_bytes`` until they are taken, and come by 1 MiB while it is full.
    """

    __enter__, __exit__ = Closing.__enter__, Closing.__exit__

    # For ``services.ObspecStore``: the attributes of an object come without its body.
    describes_by_get = True

    def __init__(self, operator: Operator, *, chunk_bytes: ByteCount | None = None) -> None:
        self._operator = clone_with_hold(checked_operator(operator, "open"))
        size = operator.options.block_bytes if chunk_bytes is None else chunk_bytes
        self._chunk_bytes = bytes_at_least(1, size, "chunk_bytes", operation="open", path="")

    @property
    def operator(self) -> Operator:
        """The operator that it reads and writes through."""
        return self._operator

    def __repr__(self) -> str:
        return f"<OperatorStore {self._operator.info.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._operator, self._chunk_bytes)

    async def aclose(self) -> None:
        """Give up the connections and memory of the running loop."""
        await self._operator.aclose()

    def close(self) -> None:
        """Give up the connections and memory that the methods that block have used."""
        loop_thread().run(self.aclose())

    # --- get ----------------------------------------------------------------------------------------------------

    async def get_async(self, path: str, *, options: GetOptions | None = None) -> ReadResult:
        """An object, or a part of it, with what describes it. The first request brings both.

        ``NotModifiedError`` and ``PreconditionError`` for a condition that does not hold, ``NotFoundError`` without
        an object, ``RangeNotSatisfied`` for a range that is empty or starts beyond the end. Several ETags, and
        conditions of both kinds, cost a request for the metadata before it.
        """
        chosen: Mapping[str, Any] = {name: value for name, value in (options or {}).items() if value is not None}
        conditions = Conditions(path, chosen)
        if chosen.get("head"):
            return await translated(self._head_result(path, chosen, conditions))
        return await translated(self._get(path, chosen, conditions))

    get = _blocks(get_async)

    async def _get(self, path: str, options: Mapping[str, Any], conditions: Conditions) -> ReadResult:
        operator = self._operator
        request, lease = self._reserved(self._request(path, options))
        try:
            head, first = await self._first_read(request, conditions)
        except RangeNotSatisfied as error:
            if "range" in options or error.total not in (0, None):
                raise
            return await self._head_result(path, options, conditions)  # The object is empty.
        if head.total is None:
            metadata = await operator.stat(path, version=request.version)
            total = head.end if metadata.size is None else metadata.size
        else:
            total = head.total
        meta = meta_of_head(head, total, path)
        attributes: Attributes = {} if head.content_type is None else {"Content-Type": head.content_type}
        if head.content_encoding is not None:
            attributes["Content-Encoding"] = head.content_encoding
        end = _end_of(options.get("range"), head, total)
        if "range" in options and end <= head.start:
            raise RangeNotSatisfied("the range is empty", total=total, operation="read", path=path)
        if lease is not None:
            lease.shrink(len(first))
        chunk_bytes = self._chunk_bytes
        return ReadResult(operator, meta, attributes, (head.start, end), first, chunk_bytes=chunk_bytes, lease=lease)

    def _reserved(self, request: ReadRequest) -> tuple[ReadRequest, Lease | None]:
        """The request for a first chunk, smaller if there is no memory for it; and the memory of a large one."""
        if request.size is None or request.size <= UNRESERVED_BYTES:
            return request, None
        lease = self._operator.runtime().budget.lease(request.size)
        return (replace(request, size=UNRESERVED_BYTES) if lease is None else request), lease

    async def _first_read(self, request: ReadRequest, conditions: Conditions) -> tuple[ReadHead, memoryview]:
        """The first bytes of an object for which the conditions hold."""
        operator, attempt = self._operator, 0
        while True:
            attempt += 1
            if is_sent := conditions.can_be_sent(operator.capability):
                sent = replace(request, **conditions.fields())
            else:
                described = await operator.stat(request.path, version=request.version)
                conditions.check(described)
                is_strong = described.etag is not None and not is_weak(described.etag)
                sent = replace(request, if_match=described.etag if is_strong else None)
            try:
                begun = await PinnedFile.begin(operator.accessor(), operator.runtime(), sent)
            except ConditionNotMatch as error:
                if is_sent:
                    raise as_obspec(error, unmodified=conditions.can_say_unchanged) from error
                if attempt == ATTEMPTS_MAX:
                    raise ObjectChanged(
                        "the object was overwritten between its metadata and its bytes, again and again",
                        expected_etag=sent.if_match,
                        operation="read",
                        path=request.path,
                    ) from error
            else:
                return begun.head, begun.first

    def _request(self, path: str, options: Mapping[str, Any]) -> ReadRequest:
        """The request for the first chunk."""
        wanted = options.get("range")
        offset, size, suffix = 0, self._chunk_bytes, None
        if isinstance(wanted, Mapping) and "suffix" in wanted:
            suffix = wanted["suffix"]
            if suffix <= 0:
                raise InvalidRange("the range is empty", operation="read", path=path)
        elif isinstance(wanted, Mapping):
            offset = wanted["offset"]
        elif wanted is not None:
            (span,) = checked_ranges([wanted], operation="read", path=path)
            if span[0] == span[1]:
                raise InvalidRange("the range is empty", operation="read", path=path)
            offset, size = span[0], min(size, span[1] - span[0])
        if offset < 0:
            raise InvalidRange(f"offset must not be negative, not {offset}", operation="read", path=path)
        return ReadRequest(
            path=path,
            offset=offset,
            size=None if suffix is not None else size,
            suffix=suffix,
            version=options.get("version"),
        )

    async def _head_result(self, path: str, options: Mapping[str, Any], conditions: Conditions) -> ReadResult:
        metadata = await self._operator.stat(path, version=options.get("version"))
        if metadata.is_directory:
            raise NotFound("there is no such object, but a directory", operation="stat", path=path)
        conditions.check(metadata)
        meta = meta_of(metadata, path)
        nothing = memoryview(b"")
        return ReadResult(
            self._operator, meta, _attributes_of(metadata), (0, 0), nothing, chunk_bytes=self._chunk_bytes
        )

    async def get_range_async(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> memoryview:
        """The bytes ``[start, end)`` of an object, cut at its end. ``RangeNotSatisfied`` if none are there."""
        (view,) = await self.get_ranges_async(
            path,
            starts=[start],
            ends=None if end is None else [end],
            lengths=None if length is None else [length],
        )
        return view

    get_range = _blocks(get_range_async)

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Sequence[memoryview]:
        """The bytes of several ranges of one version of an object; close ones share a request."""
        if (ends is None) == (lengths is None):
            raise InvalidArgument("give either ends or lengths", operation="read_ranges", path=path)
        if len(starts) != len(ends if ends is not None else lengths or ()):
            raise InvalidArgument("each of starts needs its end or length", operation="read_ranges", path=path)
        stops = ends if ends is not None else [start + size for start, size in zip(starts, lengths or (), strict=True)]
        ranges = checked_ranges(list(zip(starts, stops, strict=True)), operation="read_ranges", path=path)
        if any(start == end for start, end in ranges):
            raise as_obspec(InvalidRange("a range is empty", operation="read_ranges", path=path))
        accessor, runtime = self._operator.accessor(), self._operator.runtime()
        return await translated(view_ranges_cut(accessor, runtime, path, ranges))

    get_ranges = _blocks(get_ranges_async)

    # --- head and list ------------------------------------------------------------------------------------------

    async def head_async(self, path: str) -> ObjectMeta:
        """The metadata of an object."""
        return (await translated(self._head_result(path, {}, Conditions(path, {})))).meta

    head = _blocks(head_async)

    async def list_async(
        self, prefix: str | None = None, *, offset: str | None = None
    ) -> AsyncGenerator[Sequence[ObjectMeta], None]:
        """All objects below a directory, in lists. ``offset`` is exclusive."""
        found: list[ObjectMeta] = []
        lister = list_literally(self._operator, _directory(prefix), recursive=True, start_after=offset)
        async for entry in _listed(lister):
            if not entry.is_directory:
                found.append(meta_of(entry, entry.path))
            if len(found) == LIST_ENTRIES:
                yield found
                found = []
        if found:
            yield found

    def list(self, prefix: str | None = None, *, offset: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """``list_async`` that blocks."""
        return blocking(self.list_async(prefix, offset=offset))

    async def list_with_delimiter_async(self, prefix: str | None = None) -> ListResult[Sequence[ObjectMeta]]:
        """The objects and directories directly below a directory."""
        prefixes: list[str] = []
        objects: list[ObjectMeta] = []
        async for entry in _listed(list_literally(self._operator, _directory(prefix))):
            if entry.is_directory:
                prefixes.append(entry.path.rstrip("/"))
            else:
                objects.append(meta_of(entry, entry.path))
        return {"common_prefixes": prefixes, "objects": objects}

    list_with_delimiter = _blocks(list_with_delimiter_async)

    # --- writing ------------------------------------------------------------------------------------------------

    async def put_async(
        self,
        path: str,
        file: Any,
        *,
        attributes: Attributes | None = None,
        tags: dict[str, str] | None = None,
        mode: PutMode | None = None,
        use_multipart: bool | None = None,
        chunk_size: int = 0,
        max_concurrency: int = 0,
    ) -> PutResult:
        """Store an object from a buffer, a file, a local path, or an iterator of buffers; it appears whole.

        The size and number of parts are the operator's: ``use_multipart``, ``chunk_size`` and ``max_concurrency`` are
        hints that it does not need. ``Unsupported`` for tags, ``AlreadyExistsError`` and ``PreconditionError`` by
        ``mode``.
        """
        if tags:
            raise as_obspec(Unsupported("tags are not supported", operation="write", path=path))
        options = _write_options(path, attributes or {}, mode)
        if isinstance(file, os.PathLike):
            check_file(path, "write")
            metadata = await translated(self._operator.upload(file, path, **options))
        else:
            metadata = await translated(self._operator.write(path, _data_of(file), **options))
        return {
            "e_tag": None if metadata.etag is None else quote_etag(metadata.etag),
            "version": metadata.version,
        }

    put = _blocks(put_async)

    async def delete_async(self, paths: str | Sequence[str]) -> None:
        """Delete one object or several, in bulk where the store can. Missing ones are ignored."""
        await translated(self._operator.delete(paths))

    delete = _blocks(delete_async)

    async def copy_async(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Copy an object and what describes it; with ``overwrite=False`` only where none is, which the store decides.

        The store copies by itself where it can.
        """
        await translated(self._operator.copy(from_, to, if_not_exists=not overwrite))

    copy = _blocks(copy_async)

    async def rename_async(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Move an object as ``Operator.move`` does: it is at one of both names whenever that is cut off, or at both."""
        await translated(self._operator.move(from_, to, if_not_exists=not overwrite))

    rename = _blocks(rename_async)


def _rebuild(kind: type[OperatorStore], operator: Operator, chunk_bytes: int) -> OperatorStore:
    return kind(operator, chunk_bytes=chunk_bytes)


async def _listed(lister: Lister) -> AsyncIterator[Any]:
    async with lister:
        while True:
            try:
                entry = await translated(anext(lister))
            except StopAsyncIteration:
                return
            yield entry


def _directory(prefix: str | None) -> str:
    """A prefix of obspec is one of whole segments."""
    text = (prefix or "").rstrip("/")
    return f"{text}/" if text else ""


def _end_of(wanted: Any, head: ReadHead, total: int) -> int:
    """The end of the range that is wanted; the first chunk may end before."""
    if isinstance(wanted, Mapping):
        return head.end if "suffix" in wanted else total
    return total if wanted is None else min(total, int(wanted[1]))


def _attributes_of(metadata: Metadata) -> Attributes:
    attributes: Attributes = dict(metadata.user_metadata)
    for header, name in _DESCRIPTIONS.items():
        value = getattr(metadata, name)
        if value is not None:
            attributes[header] = value
    return attributes


def _write_options(path: str, attributes: Attributes, mode: PutMode | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    own: dict[str, str] = {}
    for name, value in attributes.items():
        if name in _DESCRIPTIONS:
            options[_DESCRIPTIONS[name]] = value
        elif name == "Content-Language":
            raise as_obspec(Unsupported("Content-Language is not supported", operation="write", path=path))
        else:
            own[name] = value
    if own:
        options["user_metadata"] = own
    if isinstance(mode, Mapping):
        if mode.get("e_tag") is None:
            raise as_obspec(Unsupported("an update needs the ETag of the object", operation="write", path=path))
        options["if_match"] = mode["e_tag"]
    elif mode == "create":
        options["if_not_exists"] = True
    elif mode not in (None, "overwrite"):
        raise InvalidArgument(f"mode={mode!r} must be 'create', 'overwrite' or a version", operation="write", path=path)
    return options


def _data_of(file: Any) -> Any:
    """The data in a form that ``Operator.write`` takes: buffers other than bytes as views, one by one."""
    if hasattr(file, "read") or isinstance(file, bytes | bytearray | memoryview | str):
        return file  # A text is refused by the operator.
    if hasattr(file, "__aiter__"):
        return _views_async(file)
    try:
        return memoryview(file).cast("B")
    except TypeError:
        return (memoryview(item).cast("B") for item in file) if hasattr(file, "__iter__") else file


async def _views_async(items: Any) -> AsyncIterator[memoryview]:
    async for item in items:
        yield memoryview(item).cast("B")


def store(operator: Operator) -> OperatorStore:
    """The objects of an operator with the methods of obspec's protocols. See ``OperatorStore``."""
    return OperatorStore(operator)
