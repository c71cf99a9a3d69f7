"""Copies that the store makes by itself: in one request, or in parts where an object is too large for that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import ConditionNotMatch, Error, IsSameFile, NotFound, ObjectChanged, RangeNotSatisfied
from aioprefetch.layers.error_context import hint_at_directory
from aioprefetch.operator.arguments import check_file
from aioprefetch.operator.multipart import MultipartBody
from aioprefetch.operator.progress import reported
from aioprefetch.operator.writer import abort_after
from aioprefetch.reader.options import ProgressCallback
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.values import (
    Capability,
    CopyPartRequest,
    CopyRequest,
    Metadata,
    ServiceInfo,
    StatRequest,
    WriteRequest,
)

# What describes an object beside its bytes. A copy in one request keeps it by itself.
DESCRIPTIONS = ("content_type", "content_encoding", "content_disposition", "cache_control", "user_metadata")
# What says how an object is stored. A copy does not keep it: the store chooses, unless an option names it.
PLACEMENT = ("storage_class", "sse_kms_key_id", "checksum")
NO_PLACEMENT: Mapping[str, Any] = {}
# The codes by which S3 refuses to copy an object that is too large for one request.
_TOO_LARGE = ("InvalidRequest", "EntityTooLarge")


async def copy_object(
    connected: tuple[Accessor, Runtime],
    operation: str,
    source: str,
    target: str,
    on_progress: ProgressCallback | None = None,
) -> Metadata:
    """``copy_by_server`` within one store, for a verb that errors name. ``IsADirectory`` for a directory.

    ``on_progress`` costs a request for the size.
    """
    for path in (source, target):
        check_file(path, operation, "aioprefetch.copy copies what is below a directory")
    if source == target:
        raise IsSameFile("source and target are the same object", operation=operation, path=source)
    try:
        with reported(on_progress, operation, source) as reporter:
            size: int | None = None
            if reporter is not None:
                size = (await connected[0].stat(StatRequest(path=source))).size or 0
                reporter.expect(size)
            return await copy_by_server(connected, source, target, size=size, on_bytes=reporter)
    except Error as error:
        error.operation = operation
        if isinstance(error, NotFound):
            await hint_at_directory(connected[0], error, source, "aioprefetch.copy copies what is below it")
        raise


async def copy_by_server(
    connected: tuple[Accessor, Runtime],
    path: str,
    target: str,
    *,
    source: Accessor | None = None,
    store: ServiceInfo | None = None,
    size: int | None = None,
    if_not_exists: bool = False,
    placement: Mapping[str, Any] = NO_PLACEMENT,
    on_bytes: ProgressCallback | None = None,
) -> Metadata:
    """Let the store copy an object, without its bytes coming here.

    ``source`` is the accessor of ``path`` and ``store`` its identity, where that is another store than the target's.
    ``placement`` has the options of ``PLACEMENT`` of the target; without them the store chooses. ``on_bytes`` gets the
    numbers of bytes of each part that was copied, or the ``size`` of all of it.
    An object of more than ``copy_bytes_max``, or one that must not replace another, goes in parts of one version:
    ``ObjectChanged`` if it is overwritten meanwhile, and then nothing is left.
    """
    accessor, runtime = connected
    limit = accessor.capability.copy_bytes_max
    is_large = bool(limit) and size is not None and size > limit
    refused: Error | None = None
    if not (is_large or if_not_exists):
        try:
            copied = await accessor.copy(CopyRequest(path=path, target=target, store=store, size=size, **placement))
            if on_bytes is not None:
                on_bytes(size or 0)
            return copied
        except Error as error:
            if not limit or size is not None or error.context.get("code") not in _TOO_LARGE:
                raise
            refused = error
    try:
        metadata = await (source or accessor).stat(StatRequest(path=path))
        if refused is not None and (metadata.size or 0) <= limit:
            raise refused
        described: dict[str, Any] = {name: getattr(metadata, name) for name in DESCRIPTIONS}
        request = WriteRequest(path=target, if_not_exists=if_not_exists, **described, **placement)
        return await _copy_in_parts(accessor, runtime, metadata, request, store, on_bytes)
    except Error as error:
        error.operation = "copy"  # Not the stat or the write within the copy.
        raise


def description_of(metadata: Metadata, capability: Capability) -> dict[str, Any]:
    """The description of an object as options of a write, as far as the target keeps one."""
    described: dict[str, Any] = {}
    if capability.write_content_type:
        described = {name: getattr(metadata, name) for name in DESCRIPTIONS if name != "user_metadata"}
    if capability.write_user_metadata:
        described["user_metadata"] = metadata.user_metadata
    return described


async def _copy_in_parts(
    accessor: Accessor,
    runtime: Runtime,
    metadata: Metadata,
    request: WriteRequest,
    store: ServiceInfo | None,
    on_bytes: ProgressCallback | None,
) -> Metadata:
    if not metadata.size:
        return await accessor.write(request, b"")
    body = MultipartBody(accessor, runtime, request)
    part = CopyPartRequest(
        path=request.path,
        upload_id="",
        number=0,
        source=metadata.path,
        start=0,
        end=metadata.size,
        if_match=metadata.etag,
        store=store,
    )
    try:
        try:
            await body.copy(part, on_bytes)
        except (ConditionNotMatch, NotFound, RangeNotSatisfied) as error:
            raise ObjectChanged(
                "the object was overwritten while its parts were copied",
                expected_etag=metadata.etag,
                operation="copy",
                path=metadata.path,
            ) from error
        return await body.close()
    except BaseException as error:
        await abort_after(error, body, request.path)
        raise
