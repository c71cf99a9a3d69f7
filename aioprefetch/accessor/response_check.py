"""The one check of every answer to a read, whichever service brought it. Pure, no I/O."""

from __future__ import annotations

from aioprefetch.accessor.http_headers import parse_content_range
from aioprefetch.errors import ConditionNotMatch, ProtocolError, excerpt
from aioprefetch.ranges import Range, resolve_range
from aioprefetch.values import ReadHead, ReadRequest, UncheckedHead

# Larger numbers have no place in a Content-Range: a signed 64-bit offset has as many digits.
TOTAL_DIGITS_MAX = 19


def check_reply(request: ReadRequest, answer: UncheckedHead) -> ReadHead:
    """The head of a 200 or 206, checked against its request, before the first byte of the body counts.

    Four kinds of wrong answer pass silently elsewhere: the whole object for a range, another range, a shorter body
    with consistent headers, another version. Raises ``ProtocolError``, or ``ConditionNotMatch`` also where a server
    did not look at a condition.
    """
    if request.if_match not in (None, "*", answer.etag):
        raise ConditionNotMatch(
            f"the object's ETag is {excerpt(answer.etag)!r}, not {excerpt(request.if_match)!r}",
            operation="read",
            path=request.path,
            context={"if_match": request.if_match, "etag": answer.etag},
        )
    if request.version is not None and answer.version not in (None, request.version):
        raise _wrong(request, answer, f"the answer is version {excerpt(answer.version)!r}, not {request.version!r}")
    if request.if_none_match is not None and request.if_none_match in ("*", answer.etag):
        raise ConditionNotMatch(
            f"the object's ETag is still {excerpt(answer.etag)!r}",
            operation="read",
            path=request.path,
            context={"etag": answer.etag},
        )
    total = _total_if_exact(request, answer)
    if total is not None:
        start, size = request.offset, request.size or 0
    else:
        start, size, total = _checked_range(request, answer)
    return ReadHead(
        start=start,
        size=size,
        total=total,
        etag=answer.etag,
        version=answer.version,
        last_modified=answer.last_modified,
        content_type=answer.content_type,
    )


def _total_if_exact(request: ReadRequest, answer: UncheckedHead) -> int | None:
    """The size of the object, if the answer holds to the byte the range that was asked for: as nearly all do."""
    size, text = request.size, answer.content_range
    if not size or text is None or request.suffix is not None or answer.status not in (200, 206):
        return None
    end = request.offset + size
    due = f"bytes {request.offset}-{end - 1}/"
    digits = text[len(due) :]
    if not text.startswith(due) or not digits.isdecimal() or len(digits) > TOTAL_DIGITS_MAX:
        return None
    total = int(digits)
    return total if total >= end and answer.content_length in (None, size) else None


def _checked_range(request: ReadRequest, answer: UncheckedHead) -> tuple[int, int, int | None]:
    """Start, size and total of an answer, checked step by step."""
    total: int | None
    # Some servers (rclone's S3, for one) answer a range with 200 and a correct Content-Range: that is obeyed too.
    if answer.status == 200 and answer.content_range is None:
        if answer.content_length is None:
            raise _wrong(request, answer, "the answer does not tell the length of its body")
        start, end, total = 0, answer.content_length, answer.content_length
    else:
        parsed = parse_content_range(answer.content_range or "")
        bounds, total = parsed or (None, None)
        if answer.status not in (200, 206) or bounds is None:
            raise _wrong(request, answer, f"a partial answer with Content-Range {excerpt(answer.content_range)!r}")
        start, end = bounds
        if answer.content_length not in (None, end - start):
            raise _wrong(
                request, answer, f"Content-Length {answer.content_length} contradicts {excerpt(answer.content_range)!r}"
            )
    if total is None and (request.size is None or request.suffix is not None):
        raise _wrong(
            request, answer, f"Content-Range {excerpt(answer.content_range)!r} does not tell where the object ends"
        )
    first, last = _expected(request, total)
    if (start, end) != (first, last):
        raise _wrong(
            request, answer, f"the answer holds [{start}, {end}) where [{first}, {last}) was due: Range was not obeyed"
        )
    return start, end - start, total


def _expected(request: ReadRequest, total: int | None) -> Range:
    if total is None:  # ``bytes a-b/*``: an answer to an exact range.
        return request.offset, request.offset + (request.size or 0)
    bounds = resolve_range(request.offset, request.size, request.suffix, total)
    return bounds or (request.offset, total)


def _wrong(request: ReadRequest, answer: UncheckedHead, why: str) -> ProtocolError:
    facts: dict[str, object] = {"range": request.describe(), "status": answer.status}
    return ProtocolError(why, operation="read", path=request.path, context=facts)
