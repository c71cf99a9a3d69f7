"""The errors of a store as errors of ours.

obspec defines its errors by their names alone, so the tables go by the names of classes. obstore's ``GenericError`` has
the cause in its text: the status of the response, the kind of the failure, the error of the system. An error in no
table is ``Unexpected``, which is not tried again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from errno import errorcode
from typing import Any

from aioprefetch import errors
from aioprefetch.accessor.service_base import EXISTS_ALREADY
from aioprefetch.errors import Error, excerpt, redact
from aioprefetch.local_files.errors import TABLE as SYSTEM_ERRORS
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.values import ListRequest, ReadRequest, Request, StatRequest, WriteRequest

_FORKED = "the store broke off its work by itself; obstore does so in a forked child of a process that has used it"

# By the name of the class or of one of its bases.
BY_CLASS: Mapping[str, type[Error]] = {
    "FileNotFoundError": errors.NotFound,
    "NotFoundError": errors.NotFound,
    "AlreadyExistsError": errors.AlreadyExists,
    "FileExistsError": errors.AlreadyExists,
    "PreconditionError": errors.ConditionNotMatch,
    "NotModifiedError": errors.ConditionNotMatch,
    "PermissionDeniedError": errors.PermissionDenied,
    "PermissionError": errors.PermissionDenied,
    "UnauthenticatedError": errors.PermissionDenied,
    "InvalidPathError": errors.InvalidPath,
    "NotSupportedError": errors.Unsupported,
    "NotImplementedError": errors.Unsupported,
    "UnknownConfigurationKeyError": errors.ConfigInvalid,
    "IsADirectoryError": errors.IsADirectory,
    "NotADirectoryError": errors.NotADirectory,
    "TimeoutError": errors.TimedOut,
    "ConnectionError": errors.Unavailable,
    "JoinError": errors.Unavailable,
}
# The status of a response, where the text names it.
BY_STATUS: Mapping[int, type[Error]] = {
    401: errors.PermissionDenied,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    405: errors.Unsupported,
    408: errors.TimedOut,
    409: errors.ConditionNotMatch,
    412: errors.ConditionNotMatch,
    416: errors.RangeNotSatisfied,
    429: errors.Throttled,
    501: errors.Unsupported,
    503: errors.Throttled,
}
# The code in the body of a response says more than its status.
BY_CODE: Mapping[str, type[Error]] = {
    "ExpiredToken": errors.CredentialsExpired,
    "RequestExpired": errors.CredentialsExpired,
    "RequestTimeTooSkewed": errors.ClockSkew,
    "SlowDown": errors.Throttled,
    "ServerBusy": errors.Throttled,
    "RequestTimeout": errors.TimedOut,
    "OperationTimedOut": errors.TimedOut,
    "InternalError": errors.Unavailable,
}
# The failure of a request without a response, or of an incomplete body.
BY_FAILURE: Mapping[str, type[Error]] = {
    "Timeout": errors.TimedOut,
    "Connect": errors.Unavailable,
    "Request": errors.Unavailable,
    "Interrupted": errors.Unavailable,
    "Decode": errors.Unavailable,
    "Unknown": errors.Unavailable,
}

WORDS: Mapping[type[Error], str] = {
    errors.NotFound: "there is no such object",
    errors.AlreadyExists: EXISTS_ALREADY,
    errors.PermissionDenied: "the store refuses the caller: check the credentials that the store was made with",
    errors.CredentialsExpired: "the credentials have expired: make the store with new ones, or with a provider",
    errors.ClockSkew: "this machine's clock is wrong: set it",
    errors.InvalidPath: "the store cannot hold an object of that name",
    errors.Unsupported: "the store does not support this",
    errors.ConfigInvalid: "the store is not configured to work",
    errors.IsADirectory: "it is a directory",
    errors.NotADirectory: "a parent in the path is not a directory",
    errors.TimedOut: "the store did not respond in time",
    errors.Throttled: "the store asks for fewer requests",
    errors.Unavailable: "the request failed or broke off",
    errors.ProtocolError: "the response does not hold what was asked for",
}

_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_REQUEST_ID = re.compile(r"<RequestId>([\w-]{1,128})</RequestId>")
_FAILURE = re.compile(r"HttpError \{\s*kind: (\w+)")
_SYSTEM = re.compile(r"\(os error (\d+)\)")
_RANGE = re.compile(r"StartTooLarge|Wanted range starting at|<Code>InvalidRange</Code>")
_TOTAL = re.compile(r"<ActualObjectSize>(\d{1,19})<|object was only (\d{1,19}) bytes|length: (\d{1,19}),")
_WRONG_RESPONSE = re.compile(r"non-partial response when range requested|UnexpectedRange|Requested \d+\.\.\d+, got")
_IGNORED_RANGE = "non-partial response when range requested"
_DEBUG = "\n\nDebug source:"


class Explainer:
    """Makes our errors for one store. ``secrets`` returns the texts that no message may hold."""

    def __init__(self, secrets: Callable[[], Iterable[str]]) -> None:
        self._secrets = secrets

    def explain(self, error: BaseException, request: Request) -> Error:
        """The error for an exception of the store during ``request``. The cause is chained unless it holds a secret."""
        if isinstance(error, Error):  # Of an operator below, which knows the object by its key.
            error.operation, error.path, error.filename = request.operation, request.path, request.path or None
            for name in ("service", "hint"):
                error.context.pop(name, None)
            return error
        text = str(error)
        summary = self._scrubbed(text.partition(_DEBUG)[0])
        said = f"; it says: {excerpt(summary)}" if summary else ""
        kind = _kind_of(error, text, request)
        facts: dict[str, Any] = {"operation": request.operation, "path": request.path, "context": _facts(text)}
        explained = _condition(kind, request, facts, said)
        if explained is None:
            explained = _plain(kind, type(error).__name__, text, said, facts)
        if self._scrubbed(text) == text:
            explained.__cause__ = error
        explained.__suppress_context__ = True
        return explained

    def broken_off(self, request: Request) -> Error:
        """The error for a call that ended as if it were cancelled, although it was not cancelled."""
        return errors.Unexpected(_FORKED, operation=request.operation, path=request.path)

    def _scrubbed(self, text: str) -> str:
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return redact(text)


def _kind_of(error: BaseException, text: str, request: Request) -> type[Error]:
    """The class of our error."""
    summary = text.partition(_DEBUG)[0]
    code, status, failure, system = (pattern.search(text) for pattern in (_CODE, _STATUS, _FAILURE, _SYSTEM))
    if isinstance(request, ReadRequest) and _RANGE.search(text):
        return errors.RangeNotSatisfied
    if code is not None and code[1] in BY_CODE:
        return BY_CODE[code[1]]
    for cls in type(error).__mro__:
        if cls.__name__ in BY_CLASS:
            kind = BY_CLASS[cls.__name__]
            # A key in a listing is not an argument of the caller.
            unnameable = kind is errors.InvalidPath and isinstance(request, ListRequest)
            return errors.Unsupported if unnameable else kind
    if isinstance(error, ValueError) and "parse path" in summary:
        return errors.InvalidPath
    if _WRONG_RESPONSE.search(text):
        return errors.ProtocolError
    if status is not None:
        number = int(status[1])
        return BY_STATUS.get(number, errors.Unavailable if number >= 500 else errors.Unexpected)
    if failure is not None:
        return BY_FAILURE.get(failure[1], errors.Unexpected)
    if system is not None:
        return _system_kind(int(system[1]), request)
    return errors.Unexpected


def _system_kind(number: int, request: Request) -> type[Error]:
    kind = SYSTEM_ERRORS[number][0] if number in SYSTEM_ERRORS else errors.Unexpected
    below_a_file = kind is errors.NotADirectory and isinstance(request, ReadRequest | StatRequest)
    return errors.NotFound if below_a_file else kind


def _condition(kind: type[Error], request: Request, facts: dict[str, Any], said: str) -> Error | None:
    """The error for a condition of the request, ``None`` if the failure is about something else."""
    writing = request if isinstance(request, WriteRequest) else None
    if writing is not None and writing.if_match is not None and kind is errors.NotFound:
        return errors.ConditionNotMatch(f"there is no object with the ETag {writing.if_match!r}", **facts)
    is_new = getattr(request, "if_not_exists", False)
    if kind is errors.AlreadyExists and not is_new:
        # obstore raises this for each 409.
        return errors.ConditionNotMatch(f"another write of the object is going on{said}", status="temporary", **facts)
    if kind is errors.ConditionNotMatch:
        if is_new:
            return errors.AlreadyExists(WORDS[errors.AlreadyExists], **facts)
        wanted = getattr(request, "if_match", None)
        why = f"the object's ETag is not {wanted!r}" if wanted is not None else "the object is unchanged"
        return errors.ConditionNotMatch(why, **facts)
    return None


def _plain(kind: type[Error], name: str, text: str, said: str, facts: dict[str, Any]) -> Error:
    if kind is errors.RangeNotSatisfied:
        total = _total(text)
        size = f"; the object has {total} bytes" if total is not None else ""
        return errors.RangeNotSatisfied(f"the range starts at or beyond the end{size}", total=total, **facts)
    if kind is errors.Unexpected:
        return errors.Unexpected(f"the store raised {name}{said}", **facts)
    return kind(WORDS[kind] if kind is errors.NotFound else f"{WORDS[kind]}{said}", **facts)


def _total(text: str) -> int | None:
    match = _TOTAL.search(text)
    size = int(next(group for group in match.groups() if group is not None)) if match else None
    return size if size is not None and size <= OFFSET_MAX else None


def _facts(text: str) -> dict[str, object]:
    status, code, request_id, system = (p.search(text) for p in (_STATUS, _CODE, _REQUEST_ID, _SYSTEM))
    return {
        **({"http_status": int(status[1])} if status else {}),
        **({"code": code[1]} if code else {}),
        **({"request_id": request_id[1]} if request_id else {}),
        **({"range_ignored": True} if _IGNORED_RANGE in text else {}),
        **({"errno": errorcode.get(int(system[1]), system[1])} if system else {}),
    }
