"""The front door: an Operator is an immutable recipe of service, layers and options, used by its verbs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from aioprefetch.accessor.protocols import Accessor, Layer, Service
from aioprefetch.accessor.request_events import served
from aioprefetch.accessor.sink import BufferSink, writable_bytes
from aioprefetch.credentials import frameless
from aioprefetch.errors import ConfigInvalid, InOperation, InvalidArgument, NotFound
from aioprefetch.operator.from_uri import configured
from aioprefetch.operator.stack import bare_stack, check_order, default_stack, live_stack, with_layer
from aioprefetch.ranges import ByteCount, Range, checked_ranges
from aioprefetch.runtime.closing import AsyncClosing
from aioprefetch.runtime.events import EventBus
from aioprefetch.runtime.family import Member, RuntimeFamily
from aioprefetch.runtime.options import DiskCache, RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import StatisticsSnapshot
from aioprefetch.values import CreateDirRequest, ReadRequest
from aioprefetch.verbs.arguments import Arguments, check_directory, check_file, checked_path
from aioprefetch.verbs.ranged_read import ParallelFill, collecting, first_bytes_of, read_merged
from aioprefetch.verbs.requests import (
    LocalPath,
    MoveOptions,
    ObjectName,
    PresignOptions,
    ReadOptions,
    StatOptions,
    WriteOptions,
    copy_options,
    list_request,
    presign_request,
    read_request,
    stat_request,
    write_request,
)

if TYPE_CHECKING:  # They load at their first use.
    from aioprefetch.operator.open_file import OpenFileBuilder
    from aioprefetch.operator.options import CopyOptions, RangesOptions, UploadOptions, UriOptions
    from aioprefetch.reader import RangeReader
    from aioprefetch.reader.growth import Growth, GrowthName
    from aioprefetch.reader.options import ProgressCallback
    from aioprefetch.reader.policy import PolicyNames
    from aioprefetch.values import Capability, Metadata, ServiceInfo
    from aioprefetch.verbs.listing import Lister
    from aioprefetch.verbs.upload import BytesLike, WriteSource
    from aioprefetch.verbs.writer import ObjectWriter


class Operator(AsyncClosing):
    """Reads, lists and writes one store.

    An Operator is a recipe: it holds no connection, pickles (literal secrets become references), and may be used on any
    number of event loops, in threads and after a fork. The live parts are made at the first use on a loop and shared by
    this Operator, those made from it with ``layer``, and unpickled copies: its family. ``aclose`` (or ``async with``)
    gives them up on the running loop, and the last of the family closes them; the recipe stays usable.

    Parameters
    ----------
    service
        Where the objects are: one of ``aioprefetch.services``.
    memory_bytes
        The one budget for cached blocks, prefetch and requests in flight.
    block_bytes
        The size of the blocks in which readers fetch and keep bytes. 8 MiB keeps a connection busy long enough that its
        first byte does not count, and brings a small object whole. Below 64 KiB a block costs more than its bytes.
    prefetch_blocks
        The maximum of blocks that a run of reads is fetched ahead of; 0 fetches nothing ahead. Eight requests beside
        the one being read hide 30 ms at 500 MiB/s.
    concurrency
        The maximum of requests in flight; prefetch takes at most one less.
    drain_bytes
        A response that no read needs is received to its end if at most this much is missing, so that its connection is
        kept, and cancelled otherwise. 0 cancels every such response.
    disk_cache
        An absolute path of a local directory that keeps the blocks that were fetched, for other processes too, or a
        ``DiskCache``.
    budget_wait_seconds
        How long a read waits for memory before it is ``BudgetExhausted``.
    attempts_max
        How often an operation is tried at most, the first time included: see ``RetryLayer``.
    retry_seconds
        How long after its first attempt an operation is tried again.
    """

    def __init__(
        self,
        service: Service,
        *,
        memory_bytes: ByteCount = 256 << 20,
        block_bytes: ByteCount = 8 << 20,
        prefetch_blocks: int = 8,
        concurrency: int = 64,
        disk_cache: DiskCache | str | os.PathLike[str] | None = None,
        budget_wait_seconds: float = 60.0,
        drain_bytes: ByteCount = 1 << 20,
        attempts_max: int = 4,
        retry_seconds: float = 60.0,
    ) -> None:
        options = RuntimeOptions(
            memory_bytes=memory_bytes,  # type: ignore[arg-type]  # They keep the numbers that texts mean.
            block_bytes=block_bytes,  # type: ignore[arg-type]
            prefetch_blocks=prefetch_blocks,
            concurrency=concurrency,
            disk_cache=disk_cache,  # type: ignore[arg-type]  # It keeps the cache that a path means.
            budget_wait_seconds=budget_wait_seconds,
            drain_bytes=drain_bytes,  # type: ignore[arg-type]
        )
        stack = default_stack(service, attempts_max=attempts_max, retry_seconds=retry_seconds)
        self._assemble(service, stack, Member(RuntimeFamily(options)))

    def _assemble(self, service: Service, layers: tuple[Layer, ...], member: Member) -> None:
        check_order(layers)
        if not hasattr(service, "build"):
            raise ConfigInvalid(
                f"a service is needed, not {type(service).__name__}; for a URI there is Operator.from_uri",
                operation="configure",
            )
        self._service = service
        self._layers = layers
        self._member = member
        self._family = member.family
        self._first_bytes = first_bytes_of(self._family.options)

    @classmethod
    def _of(cls, service: Service, layers: tuple[Layer, ...], member: Member) -> Self:
        operator = cls.__new__(cls)
        operator._assemble(service, layers, member)
        return operator

    @classmethod
    @frameless
    def from_uri(cls, uri: str | os.PathLike[str], **options: Unpack[UriOptions]) -> Operator:
        """An Operator for ``s3://bucket/prefix`` (also ``s3a://``), ``file:///root``, ``memory://name``, ``https://…``.

        A ``pathlib.Path`` is a local directory. Options are the service's and the constructor's; missing ones
        come from ``AIOPREFETCH_*`` variables. ``ConfigInvalid`` names an unknown scheme, option or value.
        """
        return configured(uri, options, lambda service, others: cls(service, **others))

    @classmethod
    def bare(cls, service: Service, *, options: RuntimeOptions | None = None) -> Self:
        """An Operator with ErrorContext and Complete alone: no retry, no limits, no time-outs.

        ``options`` is the ``aioprefetch.runtime.options.RuntimeOptions`` of its runtime; by default the constructor's
        defaults.
        """
        return cls._of(service, bare_stack(), Member(RuntimeFamily(options or RuntimeOptions())))

    def layer(self, layer: Layer, *, inside: type[Layer] | None = None) -> Self:
        """An Operator with ``layer`` in its stack, and the same runtime.

        It takes the place of the layer of the same type, or becomes the outermost. ``inside``
        places it directly inside another layer instead: ``op.layer(x, inside=ap.layers.RetryLayer)`` runs ``x`` once
        for each attempt. ``ConfigInvalid`` for other objects, and for an ``inside`` that is not in the stack.
        """
        layers = with_layer(self._layers, layer, inside=inside)
        return self._of(self._service, layers, Member(self._family, self._member))

    # --- description -------------------------------------------------------------------------------------------

    @property
    def info(self) -> ServiceInfo:
        """The identity of the store, without secrets."""
        return self._service.info

    @property
    def service(self) -> Service:
        """The recipe of the store below the layers; its repr holds no secret."""
        return self._service

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers around the service, innermost first."""
        return self._layers

    @property
    def capability(self) -> Capability:
        """The operations that this stack supports."""
        capability = self._service.capability
        for layer in self._layers:
            capability = layer.adapt(capability)
        return capability

    @property
    def options(self) -> RuntimeOptions:
        """The limits it runs under."""
        return self._family.options

    @property
    def events(self) -> EventBus:
        """Its events in this process, on all loops, of all Operators of the family: ``op.events.subscribe(call)``."""
        return self._family.events

    @property
    def statistics(self) -> StatisticsSnapshot:
        """Counts since the first use in this process, on all loops, of all Operators of the family; and the gauges."""
        return self._family.statistics()

    def __repr__(self) -> str:
        layers = ", ".join(type(layer).__name__ for layer in reversed(self._layers))
        return f"<Operator {self.info.url} [{layers}]>"

    def _repr_html_(self) -> str:
        from aioprefetch.display.tables import operator_html

        return operator_html(self.info.location, self._service, self._layers[::-1], self.options, self.statistics)

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = self._service, self._layers
        return type(self)._restored, (*recipe, *self._member.pickled(recipe, self.info))

    @classmethod
    def _restored(cls, service: Service, layers: tuple[Layer, ...], *names: Any) -> Self:
        member = Member.unpickled(service.info, *names)
        return cls._of(*member.recipe((service, layers)), member)

    def __truediv__(self, key: str) -> Any:
        """The ``ap.Path`` of a key: ``op / "k"``. Its room is above this one."""
        import importlib

        return importlib.import_module("aioprefetch.path").Path.of(self, key)

    # --- reading ------------------------------------------------------------------------------------------------

    async def read(
        self,
        path: str,
        *positional: Never,
        offset: int = 0,
        size: int | None = None,
        suffix: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> bytes:
        """The bytes ``[offset, offset + size)`` of an object, to its end without ``size``, or its last ``suffix``.

        A range that crosses the end is cut there; one at or beyond the end of an object that is not empty is
        ``RangeNotSatisfied``; an empty range costs no request. Raises ``NotFound``, ``ConditionNotMatch`` where a
        condition does not hold, and ``TimedOut`` after ``timeout_seconds``.

        Up to two blocks come in one request. More comes in several at once, into the memory of the result and of one
        version: an object that is overwritten meanwhile is ``ObjectChanged``. If the store sends neither a version id
        nor a strong ETag, the first request ends at its head, and another one is for all bytes.
        """
        request = read_request(self._first_bytes, path, offset, size, suffix, options, positional)
        if request is None:
            return b""
        sink, reading = collecting(*self._connect(), request)
        await reading
        return sink.to_bytes()

    async def view(
        self,
        path: str,
        *positional: Never,
        offset: int = 0,
        size: int | None = None,
        suffix: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> memoryview:
        """Read like ``read``; returns a read-only view of the memory that received the response."""
        request = read_request(self._first_bytes, path, offset, size, suffix, options, positional)
        if request is None:
            return memoryview(b"")
        sink, reading = collecting(*self._connect(), request)
        await reading
        return sink.to_view()

    async def read_into(self, path: str, offset: int, buffer: Any, **options: Unpack[ReadOptions]) -> int:
        """Fill ``buffer`` (writable, with the buffer protocol) from ``offset`` on; returns the number of bytes.

        Options as for ``read``. If it fails or is cancelled, the content of the buffer is undefined.
        """
        target = writable_bytes(buffer, operation="read_into", path=path)
        request = read_request(self._first_bytes, path, offset, len(target), None, options)
        if request is None:
            return 0
        accessor, runtime = self._connect()
        accessor = served(accessor, runtime) if runtime.events.wants_reads else accessor
        if request.first_bytes is None:
            await accessor.read(request, sink := BufferSink(target))
            return sink.received
        await (reading := ParallelFill(accessor, runtime, request, target)).run()
        return reading.filled

    async def download(
        self, path: str, target: LocalPath, *, version: str | None = None, on_progress: ProgressCallback | None = None
    ) -> Metadata:
        """Write an object, or a ``version`` of it, into the local file ``target``, as a long ``read`` reads it.

        The file appears whole, with the mode of the file it replaces, or not at all. ``NotFound`` without its
        directory, ``InvalidPath`` for a link or device. ``on_progress`` gets the numbers of bytes written. What a call
        that fails or is cancelled has of a large object stays in a hidden file beside the target for the next one.
        ``dir/`` goes below the directory ``target``, as by ``aioprefetch.copy``; ``failures`` are in the first error.
        """
        if isinstance(path, str) and path.endswith("/") and version is None:
            from aioprefetch.transfer.many import download_directory

            return await download_directory(self, path, target, Operator.from_uri, on_progress)
        from aioprefetch.verbs.download import download

        request = read_request(self._first_bytes, path, 0, None, options={"version": version})
        assert request is not None
        return await download(*self._connect(), request, target, on_progress)

    async def read_ranges(
        self, path: str, ranges: Iterable[Sequence[int]], **options: Unpack[RangesOptions]
    ) -> list[bytes]:
        """The bytes of each ``(start, end)`` in the order given, neighbours merged into one request.

        Ranges up to ``gap_bytes`` (1 MiB) apart share a request of up to ``request_bytes_max`` (16 MiB). Overlaps and
        duplicates are served; a range that ends past the end of the object is ``RangeNotSatisfied``, an ``EOFError``;
        responses of two versions are ``ObjectChanged``.
        """
        return [bytes(view) for view in await self.view_ranges(path, ranges, **options)]

    async def view_ranges(
        self,
        path: str,
        ranges: Iterable[Sequence[int]],
        *,
        gap_bytes: ByteCount | None = None,
        request_bytes_max: ByteCount | None = None,
        if_match: str | None = None,
        version: str | None = None,
    ) -> list[memoryview]:
        """Like ``read_ranges``; returns views. A small part of a merged response is copied to pin little memory."""
        check_file(path, "read_ranges", is_read=True)
        arguments = Arguments("read_ranges", path)
        request = ReadRequest(
            path=path, if_match=arguments.etag("if_match", if_match), version=arguments.version(version)
        )
        return await read_merged(
            *self._connect(),
            request,
            checked_ranges(ranges, operation="read_ranges", path=path),
            gap_bytes=gap_bytes,
            request_bytes_max=request_bytes_max,
        )

    def reader(
        self,
        path: str,
        *,
        policy: PolicyNames = "adaptive",
        size: int | None = None,
        etag: str | None = None,
        version: str | None = None,
        split: Range | None = None,
        buffer_bytes: ByteCount | None = None,
        footer_cache: bool | ByteCount | None = None,
        block_bytes: ByteCount | None = None,
        prefetch_blocks: int | None = None,
        prefetch_enabled: bool = True,
        prefetch_growth: GrowthName | Growth = "stall",
        keep_behind: bool | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> RangeReader:
        """Open an object for many reads, from any number of tasks. Sends nothing: the first read fixes the version.

        ``async with op.reader("k", policy="random") as reader: await reader.read_at(offset, size)``. ``policy`` is the
        expected access: ``sequential``, ``random``, ``whole-file``, ``parquet``, or ``adaptive``, which detects it.
        Blocks of ``block_bytes`` (8 MiB; also text, "1 MiB") are fetched and kept, up to ``prefetch_blocks`` (8) ahead
        of a run. ``size`` in bytes, ``etag`` and ``version`` are known facts of the object, ``split`` the range to use.
        A missing object is ``NotFound`` at the first read. ``InvalidArgument`` for an invalid option.
        """
        import aioprefetch.reader.options  # Not ``from``, which costs each reader four times as much.
        import aioprefetch.reader.reader

        check_file(path, "reader", is_read=True)
        if not (etag is version is None):
            arguments = Arguments("reader", path)
            etag, version = arguments.etag("etag", etag), arguments.version(version)
        options = aioprefetch.reader.options.reader_options(
            path,
            self._family.options,
            (
                policy,
                buffer_bytes,
                footer_cache,
                block_bytes,
                prefetch_blocks,
                prefetch_enabled,
                prefetch_growth,
                keep_behind,
            ),
            (size, etag, version, split, on_progress),
        )
        made = aioprefetch.reader.reader.RangeReader
        return made(path, options, self._connect, url=lambda: f"{self.info.url}/{path}")

    def open_file(self, path: str) -> OpenFileBuilder:
        """A reader by Hadoop's keys: ``await op.open_file("k").opt(key, value).build()``. See ``OpenFileBuilder``."""
        from aioprefetch.operator.open_file import OpenFileBuilder

        return OpenFileBuilder(checked_path(path, "open_file"), self.reader, self.options)

    # --- everything else ----------------------------------------------------------------------------------------

    async def stat(self, path: str, **options: Unpack[StatOptions]) -> Metadata:
        """Metadata of an object, or of a directory when ``path`` ends with ``/``. ``NotFound`` if it does not exist."""
        return await self.accessor().stat(stat_request(path, options))

    async def check(self) -> None:
        """Ask the store for one entry, or where it cannot list for any object; the error says what is wrong.

        ``NotFound`` without the bucket. A root of local files need not be there: the first write makes it.
        """
        from aioprefetch.verbs.listing import check_store

        await check_store(self.accessor())

    async def exists(self, path: str) -> bool:
        """Whether an object (or, with a trailing ``/``, a directory) is there."""
        with InOperation("exists"), suppress(NotFound):
            await self.stat(path)
            return True
        return False

    def list(
        self,
        prefix: str = "",
        *,
        recursive: bool = False,
        start_after: str | None = None,
        glob: str | None = None,
        versions: bool = False,
        limit: int | None = None,
    ) -> Lister:
        """The entries whose path begins with ``prefix``, or none: ``async for entry in operator.list("dir/")``.

        Keys below the next ``/`` are folded into a directory entry unless ``recursive``. A directory does not list
        itself, but it lists an object with bytes that has its name. ``start_after`` is exclusive.

        ``glob`` filters whole paths, with the prefix as a part: ``list("t/", glob="t/*.parquet")``, with
        ``recursive`` if it crosses directories. In a prefix ``*``, ``?`` and ``[`` stand for themselves; a listing
        of such a prefix, or of a URL, that finds nothing ends with ``InvalidArgument``, unless ``glob`` is given
        (``**`` takes all).

        With ``versions`` each version and delete marker of an object is an entry, the newest first; ``read``, ``stat``
        and ``delete`` take its ``version``. ``Unsupported`` where the store cannot list them.

        The listing is over after ``limit`` entries, and without a glob the store is asked for no more than these.
        """
        from aioprefetch.plan.patterns import compile_glob
        from aioprefetch.verbs.listing import Lister

        request = list_request(prefix, recursive=recursive, start_after=start_after, versions=versions)
        pattern, is_literal = None if glob is None else compile_glob(glob), not (glob is start_after is None)
        return Lister(self.accessor, self.runtime, request, pattern, limit=limit, is_literal=is_literal)

    async def write(self, path: str, data: BytesLike | WriteSource, **options: Unpack[WriteOptions]) -> Metadata:
        """Write an object from bytes, a binary file or an iterator of bytes; it appears whole or not at all.

        A file is anything with ``read``, from its position on: it is read 8 MiB at a time, on a worker thread unless
        its ``read`` is asynchronous. Iterators may be asynchronous too; others run on a worker thread. ``InvalidType``
        for a file open in text mode, and for an item that is not bytes. In s3 more than ``part_bytes`` goes in parts,
        several at a time.

        Raises ``AlreadyExists`` under ``if_not_exists``, ``ConditionNotMatch`` under ``if_match``. If it fails or is
        cancelled nothing is left behind (an attempt whose response was lost may have succeeded).
        """
        from aioprefetch.verbs.writer import write_data

        request = write_request("write", path, options)
        return await write_data(self._connect(), request, data)

    def writer(self, path: str, **options: Unpack[WriteOptions]) -> ObjectWriter:
        """Write an object piece by piece: ``async with op.writer("k") as w: await w.write(b"...")``; without I/O.

        It appears when the block ends, whole; a block that fails or is cancelled leaves nothing. See ``ObjectWriter``.
        """
        from aioprefetch.verbs.writer import ObjectWriter

        return ObjectWriter(self._connect, write_request("writer", path, options))

    async def upload(self, source: LocalPath, path: str, **options: Unpack[UploadOptions]) -> Metadata:
        """Write an object from the local file ``source``; to ``dir/`` under its own name, or all that a directory has.

        Options and errors as for ``write``, and the like for the file; ``ObjectChanged`` if it changes meanwhile.
        ``on_progress`` gets the numbers of bytes as they are handed to the requests.
        """
        on_progress = options.pop("on_progress", None)
        if isinstance(path, str) and path.endswith("/"):
            from aioprefetch.transfer.many import upload_into

            return await upload_into(source, self, path, Operator.from_uri, options, on_progress)
        from aioprefetch.verbs.writer import upload_file

        return await upload_file(self._connect(), write_request("upload", path, options), source, on_progress)

    async def abort_uploads(self, prefix: str = "", *, older_than_seconds: float | None = None) -> int:
        """Abort the uploads of objects below ``prefix`` that were never completed; returns their number.

        Their parts cost. Some had no response to their beginning, and some are of writers at work: leave these out by
        ``older_than_seconds``. 0 where a store keeps none (memory, files), ``Unsupported`` where it cannot list them.
        """
        from aioprefetch.verbs.listing import abort_uploads

        checked_path(prefix, "abort_uploads")
        if older_than_seconds is not None:
            older_than_seconds = Arguments("abort_uploads", prefix).seconds("older_than_seconds", older_than_seconds)
        return await abort_uploads(*self._connect(), prefix, older_than_seconds)

    async def copy(self, source: str, target: str, **options: Unpack[CopyOptions]) -> Metadata:
        """Copy an object within the store, which does it by itself where it can, in s3 above 5 GiB in parts.

        ``if_match`` and ``version`` are the source's (``ConditionNotMatch``); with ``if_not_exists`` nothing is
        replaced (``AlreadyExists``). ``on_progress`` gets the numbers of bytes copied, which costs a request.
        """
        from aioprefetch.verbs.writer import copy_object

        return await copy_object(self._connect(), "copy", source, target, **copy_options("copy", source, options))

    async def move(self, source: str, target: str, **conditions: Unpack[MoveOptions]) -> Metadata:
        """Move an object to ``target``, which it replaces, or of ``dir/`` all that is below it.

        Files are renamed. Elsewhere all is copied, and a source is deleted after a proof that its copy is there: after
        a failure or a cancellation it is at the source, at both, or at the target. What is overwritten meanwhile stays
        (``ObjectChanged``), as what is new below ``dir/`` does. Conditions: see ``copy``; a ``version`` moves alone.
        """
        from aioprefetch.transfer.moving import move

        chosen = copy_options("move", checked_path(source, "move"), conditions)
        return await move(self, source, checked_path(target, "move"), **chosen)

    async def delete(
        self, path: str | Iterable[ObjectName], *, version: str | None = None, if_match: str | None = None
    ) -> None:
        """Delete an object (or, with a trailing ``/``, an empty directory), or several. Missing objects are ignored.

        Objects below a directory are never deleted (``delete_all`` does): file systems refuse to delete a directory
        that is not empty (``IsADirectory``); elsewhere its marker goes, if there is one, and the objects below it stay.

        Several go in requests for 1000 each, where the store has such. All that can be deleted is; then the first
        error is raised, with ``failures`` in its context: each path that is left, and why.

        ``version`` (of several ``[(path, version)]``) is deleted permanently; without it a store that keeps versions
        keeps all, behind a delete marker. ``if_match`` is the ETag that one object has to have (``ConditionNotMatch``).
        """
        from aioprefetch.verbs.listing import delete_object, delete_paths

        if isinstance(path, str):
            await delete_object(self.accessor(), checked_path(path, "delete", dots_allowed=True), version, if_match)
            return
        if version is not None or if_match is not None:
            raise InvalidArgument("several take [(path, version)], and no if_match", operation="delete")
        await delete_paths(self.accessor(), path)

    async def delete_all(self, prefix: str) -> None:
        """Delete every object below the directory ``prefix``, and the directory. A missing directory is ignored."""
        from aioprefetch.verbs.listing import delete_below

        check_directory(prefix, "delete_all", dots_allowed=True)
        with InOperation("delete_all"):
            await delete_below(self, prefix)

    async def create_dir(self, path: str) -> None:
        """Create a directory and its parents. ``path`` ends with ``/``. An existing directory is kept."""
        check_directory(path, "create_dir")
        await self.accessor().create_dir(CreateDirRequest(path=path))

    async def presign(self, path: str, **options: Unpack[PresignOptions]) -> str:
        """A URL whose bearer may do ``method`` with the object until it expires. Treat it as a secret."""
        return await self.accessor().presign(presign_request(path, **options))

    # --- live parts -----------------------------------------------------------------------------------------

    def runtime(self) -> Runtime:
        """The runtime of the running loop."""
        return self._connect()[1]

    def accessor(self) -> Accessor:
        """The live stack on the running loop."""
        return self._connect()[0]

    def _connect(self) -> tuple[Accessor, Runtime]:
        live: tuple[Accessor, Runtime] | None = self._member.live
        if live is not None and live[1].is_usable():
            return live
        runtime = self._family.current(self._member)
        accessor = live_stack(runtime, self._service, self._layers)
        self._family.events.store = self._service.info.url
        live = self._member.live = (accessor, runtime)
        return live

    async def aclose(self) -> None:
        """Stop using the connections, memory and background work of the running loop; the last user closes them.

        Users are the operators of the family, each from its first use on; those made from this one by ``layer`` stop
        with it. Closing needs no response from the network; open readers fail with ``Closed`` when the last user
        has stopped. The next use starts again.
        """
        await self._member.leave()
