"""The outcome of a write with a condition, where the response does not tell it: one look at the object decides.

A response that is lost, a 5xx and a success without its result may come after the deed, and the same request would then
be refused for its own object. After these, and where it is refused when it is repeated:

* our bytes are there, by the ETag that follows from them and by size: success (another client's bytes look the same);
* nothing is there, or still what ``if_match`` names: it is sent again, once;
* anything else: ``Unavailable``, since it may have happened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable

from aioprefetch import errors
from aioprefetch.accessor.http_headers import unquote_etag
from aioprefetch.accessor.service_base import ServiceAccessor
from aioprefetch.errors import Error, cause_of, copy_of, has_changed_nothing
from aioprefetch.services.s3.responses import described
from aioprefetch.values import CopyRequest, Metadata, StatRequest, UploadedPart, WriteRequest

# The code of a response about an upload that was completed, or aborted.
GONE = "NoSuchUpload"
_MD5 = re.compile(r"[0-9a-f]{32}")


async def decided(
    accessor: ServiceAccessor,
    request: WriteRequest | CopyRequest,
    send: Callable[[], Awaitable[Metadata]],
    size: int | None,
    etag: Callable[[], str | None],
) -> Metadata:
    """The result of ``send``, or what is there if it has the ``size`` and the ``etag`` of what was sent.

    Without a condition there is a look where an upload is gone alone, which an earlier attempt may have completed.
    """
    path, before = request.path, request.if_match
    if isinstance(request, CopyRequest):  # Its ETag is the source's.
        path, before = request.target, None
    is_conditional, is_repeated = request.if_not_exists or before is not None, False
    while True:
        try:
            return await send()
        except Error as error:
            is_gone = error.context.get("code") == GONE
            is_refused = is_gone or isinstance(error, (errors.AlreadyExists, errors.ConditionNotMatch))
            is_open = is_repeated if is_refused else may_have_happened(error)
            if not (is_gone or (is_conditional and is_open)):
                raise
            failure = copy_of(error)
        try:
            try:
                found: Metadata | None = await accessor.stat(StatRequest(path=path, deadline=request.deadline))
            except errors.NotFound:
                found = None
            except Error:
                found = Metadata(path=path)
            there = None if found is None else found.etag or ""
            if found and found.size == size and there == await accessor.runtime.run_blocking(etag):
                return found if isinstance(request, CopyRequest) else described(request, there, found.version, size)
            is_undone = there == before
            if is_refused or (is_undone and is_repeated):
                raise failure
            if not is_undone:
                why = f"the {request.operation} may have happened, what is there does not tell: {failure.message}"
                raise errors.Unavailable(
                    why, status="persistent", operation=request.operation, path=request.path, context=failure.context
                ) from cause_of(failure)
        finally:
            del failure  # Its traceback holds this frame.
        is_repeated = True


def may_have_happened(error: Error) -> bool:
    """Whether a request that failed may have been carried out all the same."""
    is_open = isinstance(error, errors.Unavailable | errors.TimedOut | errors.ProtocolError)
    return error.is_temporary and is_open and not has_changed_nothing(error)


def etag_of_data(data: bytes | bytearray | memoryview) -> str:
    """The ETag of an object that is written at once, where that is its MD5."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def etag_of_parts(parts: Iterable[UploadedPart]) -> str | None:
    """The ETag of an object made of parts; ``None`` unless theirs are MD5 sums."""
    digests = [unquote_etag(part.etag) or "" for part in parts]
    if not all(map(_MD5.fullmatch, digests)):
        return None
    return f"{etag_of_data(bytes.fromhex(''.join(digests)))}-{len(digests)}"
