"""Every error that aioprefetch raises, one tree.

``Error`` says what a person needs to act: the kind, the operation, the path, whether trying again can help, and an
ordered context. A class derives from Python's own exception for the same failure, where there is one, so ``except
FileNotFoundError`` keeps working::

    Error
    ├── NotFound                  FileNotFoundError
    ├── AlreadyExists             FileExistsError
    ├── IsADirectory              IsADirectoryError
    ├── NotADirectory             NotADirectoryError
    ├── IsSameFile                OSError
    ├── PermissionDenied          PermissionError
    │   ├── CredentialsExpired
    │   └── ClockSkew
    ├── RangeNotSatisfied         EOFError
    ├── ConditionNotMatch         OSError        a precondition of the caller does not hold
    ├── ObjectChanged             OSError        the object is no longer the version that was pinned
    ├── InvalidArgument           ValueError     an invalid argument
    │   ├── InvalidRange          ValueError
    │   ├── InvalidPath           ValueError
    │   ├── InvalidType           TypeError
    │   └── ConfigInvalid         ValueError     an option, a URI or a combination of them
    ├── Unsupported               io.UnsupportedOperation
    ├── Throttled                 OSError        the store asked for fewer requests
    ├── Unavailable               ConnectionError
    ├── TimedOut                  TimeoutError
    │   └── Stalled                              a body that stopped, or drips
    ├── BudgetExhausted           OSError        no memory, slot or retry token within the allowed time
    ├── ProtocolError             OSError        a response that HTTP or the store's protocol does not allow
    │   └── RedirectRefused
    ├── UntrustedMetadata         ValueError
    ├── StateConflict             OSError        a source's state that is another writer's, or another source's
    ├── Closed                    ValueError
    ├── SizeUnknown               OSError
    ├── WrongLoop                 RuntimeError
    ├── MissingDependency         ImportError
    └── Unexpected                OSError        a failure that no table lists

``status`` says whether another attempt may help: ``permanent`` (never), ``temporary`` (it may) and ``persistent``
(it was temporary, and the attempts are used up). The kind never decides it (after OpenDAL's error model).

No message, repr or pickle of an error holds a credential, a header or the query of a URL; only the attributes ``path``
and ``filename`` are what the caller gave. All have a bounded length: text that a server sent is cut.
"""

from __future__ import annotations

import copy
import errno as errno_codes
import io
import re
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from aioprefetch.values import ReadHead

Text = TypeVar("Text", str, str | None)
Raised = TypeVar("Raised", bound=BaseException)
Status = Literal["permanent", "temporary", "persistent"]

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class ErrorFields(TypedDict, total=False):
        """The fields of an error beside its message; ``Error`` documents them."""

        operation: str
        path: str
        status: Status | None
        context: dict[str, object] | None
        head: ReadHead | None
        received: int
        retry_after_seconds: float | None


class Error(Exception):
    """The root of the tree.

    Parameters
    ----------
    message
        A description of the failure and of the remedy.
    operation
        The operation that failed (``read``, ``stat``, ``list``, ...).
    path
        The path as the caller gave it, or ``""``.
    status
        See the module's docstring.
    context
        Further facts in order: ``range``, ``received``, ``service``, ``request_id``, ``attempts``, ...
    head
        The head of the response during whose body it failed, if the head had arrived.
    received
        Bytes of the body that had been delivered before the failure.
    retry_after_seconds
        How long the store asked to wait before another attempt.
    """

    status_default: ClassVar[Status] = "permanent"
    errno_default: ClassVar[int] = errno_codes.EIO
    errno: int | None
    strerror: str | None
    filename: Any

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        path: str = "",
        status: Status | None = None,
        context: dict[str, object] | None = None,
        head: ReadHead | None = None,
        received: int = 0,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.message = shortened(redact(message))
        super().__init__(self.message)
        self.operation = operation
        self.path = path
        self.status: Status = status or self.status_default
        self.context: dict[str, object] = dict(context or {})
        self.head = head
        self.received = received
        self.retry_after_seconds = retry_after_seconds
        self.errno = self.errno_default
        self.filename = path or None
        self.strerror = self.message

    @property
    def kind(self) -> str:
        """The name of the class: the word that logs and metrics use."""
        return type(self).__name__

    @property
    def is_temporary(self) -> bool:
        """Whether another attempt may succeed."""
        return self.status == "temporary"

    def add_context(self, *, operation: str = "", path: str = "", **facts: object) -> Error:
        """Add missing values and return the error itself. Values that are set are kept: the innermost context wins."""
        if not self.operation:
            self.operation = operation
        if not self.path and path:
            self.path = path
            self.filename = path
        for name, fact in facts.items():
            self.context.setdefault(name, fact)
        return self

    def __str__(self) -> str:
        """Where, what, what to do, and the facts: a traceback puts the name of the class before it."""
        path = repr(printable(shortened(redact(self.path)))) if self.path else ""
        where = " ".join(filter(None, (self.operation, path)))
        hint = self.context.get("hint")  # A sentence of ours; other facts may be text from a server.
        advice = f"; hint: {redact(str(hint))}" if hint else ""
        facts = [f"{name}: {excerpt(str(fact))}" for name, fact in self.context.items() if name != "hint"]
        said = f"{printable(self.message)}{advice} [{', '.join((self.status, *facts))}]"
        return f"{where}: {said}" if where else said

    def __repr__(self) -> str:
        return f"<{self.kind}: {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        state.pop("__notes__", None)
        state["context"] = {name: _plain(fact) for name, fact in self.context.items()}
        # OSError and ImportError keep these in slots of their own, outside __dict__.
        state |= {name: getattr(self, name) for name in ("errno", "filename", "strerror", "path")}
        return _rebuild, (type(self), self.message, state)


def _plain(fact: object) -> object:
    return fact if isinstance(fact, (int, float, bool, type(None))) else redact(str(fact))


def _rebuild(cls: type[Error], message: str, state: dict[str, object]) -> Error:
    error = cls.__new__(cls, message)
    Error.__init__(error, message)
    for name, fact in state.items():
        setattr(error, name, copy.copy(fact))
    return error


class NotFound(Error, FileNotFoundError):
    """The object, the directory or the bucket does not exist."""

    errno_default = errno_codes.ENOENT


class AlreadyExists(Error, FileExistsError):
    """Something is there already, and the call said that it must not be."""

    errno_default = errno_codes.EEXIST


class IsADirectory(Error, IsADirectoryError):
    """A directory was given where an object is needed."""

    errno_default = errno_codes.EISDIR


class NotADirectory(Error, NotADirectoryError):
    """An object was given where a directory is needed."""

    errno_default = errno_codes.ENOTDIR


class IsSameFile(Error, OSError):
    """Source and target of a copy are the same object."""

    errno_default = errno_codes.EINVAL


class PermissionDenied(Error, PermissionError):
    """The store knows the caller and refuses, or does not accept the credentials."""

    errno_default = errno_codes.EACCES


class CredentialsExpired(PermissionDenied):
    """The credentials were valid once and are not any more."""


class ClockSkew(PermissionDenied):
    """The signature's time is too far from the store's: this machine's clock is wrong."""


class RangeNotSatisfied(Error, EOFError):
    """The range starts at or beyond the end of the object, or more was demanded than there is.

    ``total`` is the object's size in bytes if the store sent it.
    """

    errno_default = errno_codes.ESPIPE

    def __init__(self, message: str, *, total: int | None = None, **fields: Unpack[ErrorFields]) -> None:
        super().__init__(message, **fields)
        self.total = total
        if total is not None:
            self.context.setdefault("total", total)


class ConditionNotMatch(Error, OSError):
    """A precondition given by the caller (``if_match``, ``if_none_match``, ``if_not_exists``) does not hold."""

    errno_default = errno_codes.EAGAIN


class ObjectChanged(Error, OSError):
    """The object was overwritten, truncated or deleted after its version was pinned.

    ``expected_etag`` is the pinned one, ``actual_etag`` the one the store has now (``None`` when it did not say).
    ``RangeReader.reopen()`` starts again with the new version.
    """

    errno_default = errno_codes.ESTALE

    def __init__(
        self,
        message: str,
        *,
        expected_etag: str | None = None,
        actual_etag: str | None = None,
        **fields: Unpack[ErrorFields],
    ) -> None:
        super().__init__(message, **fields)
        self.expected_etag = expected_etag
        self.actual_etag = actual_etag
        self.context.setdefault("expected_etag", expected_etag)
        self.context.setdefault("actual_etag", actual_etag)


class InvalidArgument(Error, ValueError):
    """An invalid argument; no request was sent."""

    errno_default = errno_codes.EINVAL


class InvalidRange(InvalidArgument):
    """A negative or reversed range, or a position below zero."""


class InvalidPath(InvalidArgument):
    """A path that the service cannot hold, or that would leave its root."""


class InvalidType(InvalidArgument, TypeError):
    """A value of the wrong type: a float or a bool where an integer is needed, ``None`` in a list of ranges."""


class ConfigInvalid(InvalidArgument):
    """A URI, an option or a combination of options that cannot work; the message names key and value."""


class Unsupported(Error, io.UnsupportedOperation):
    """The service cannot do it, and doing something else silently would give another result."""

    errno_default = errno_codes.ENOTSUP


class Throttled(Error, OSError):
    """The store asked for fewer requests."""

    status_default: ClassVar[Status] = "temporary"
    errno_default = errno_codes.EBUSY


class Unavailable(Error, ConnectionError):
    """The store did not respond, cut off its response, or responded with a failure of its own."""

    status_default: ClassVar[Status] = "temporary"
    errno_default = errno_codes.ECONNABORTED


class TimedOut(Error, TimeoutError):
    """No response, no byte or no slot within the time allowed."""

    status_default: ClassVar[Status] = "temporary"
    errno_default = errno_codes.ETIMEDOUT


class Stalled(TimedOut):
    """A body stopped arriving."""


class BudgetExhausted(Error, OSError):
    """Memory or a retry token was not to be had within the time allowed."""

    errno_default = errno_codes.ENOBUFS


class ProtocolError(Error, OSError):
    """A response that the protocol does not allow: none of its bytes were delivered."""

    status_default: ClassVar[Status] = "temporary"
    errno_default = errno_codes.EPROTO


class RedirectRefused(ProtocolError):
    """The store responded with a redirect that must not be followed."""

    status_default: ClassVar[Status] = "permanent"


class UntrustedMetadata(Error, ValueError):
    """Sizes, offsets or names from outside that contradict other metadata."""

    errno_default = errno_codes.EBADMSG


class StateConflict(Error, OSError):
    """The durable state of a file source belongs to another writer, another source or another checkpoint."""

    errno_default = errno_codes.EBUSY


class Closed(Error, ValueError):
    """The reader or the operator is closed."""

    errno_default = errno_codes.EBADF


class SizeUnknown(Error, OSError):
    """The position depends on the object's size, which no response has brought yet."""

    errno_default = errno_codes.EAGAIN


class WrongLoop(Error, RuntimeError):
    """A reader was used on another event loop, thread or process than the one it belongs to."""

    errno_default = errno_codes.EPERM


class MissingDependency(Error, ImportError):  # type: ignore[misc]  # its own path is optional, ours is not
    """An optional package is not installed; the message names the extra that brings it."""

    errno_default = errno_codes.EINVAL


class Unexpected(Error, OSError):
    """A failure that no table of the services lists; the cause is chained."""


__all__ = [
    "AlreadyExists",
    "BudgetExhausted",
    "ClockSkew",
    "Closed",
    "ConditionNotMatch",
    "ConfigInvalid",
    "CredentialsExpired",
    "Error",
    "InvalidArgument",
    "InvalidPath",
    "InvalidRange",
    "InvalidType",
    "IsADirectory",
    "IsSameFile",
    "MissingDependency",
    "NotADirectory",
    "NotFound",
    "ObjectChanged",
    "PermissionDenied",
    "ProtocolError",
    "RangeNotSatisfied",
    "RedirectRefused",
    "SizeUnknown",
    "Stalled",
    "StateConflict",
    "Throttled",
    "TimedOut",
    "Unavailable",
    "Unexpected",
    "Unsupported",
    "UntrustedMetadata",
    "WrongLoop",
]


# Redaction: credentials that no message may hold. Each function takes time linear in the length of its text, because
# texts come from servers.

# The maximum lengths of a foreign text within a message, and of a message or a path in it.
QUOTED_CHARACTERS_MAX = 200
MESSAGE_CHARACTERS_MAX = 4096
# A longer text is cut before it is searched.
TEXT_CHARACTERS_MAX = 16 << 10

# Each pattern begins at a word boundary and does not backtrack, so that a hostile text costs linear time.
# They are compiled at the first text that needs them, since that takes milliseconds.
_URL = r"\b(\w++://)([^\s/?#]*+)([^\s?#]*+)(?:[?#]\S*+)?"
# Characters of a URL, encoded once or more often, or as JSON has them.
_PERCENT = r"%(?:25){0,3}+"
# Between the name of a header, parameter or field and its value: as in a header, a URL, JSON, XML, HTML, or a repr.
_BETWEEN = (
    rf"(?:[\s:=>,(\[{{\"'\\]|{_PERCENT}(?:3[ad]|2[02])|u00(?:3[ade]|2[27])"
    r"|&(?:quot|apos|lt|gt|#\d{1,3}|#x[0-9a-f]{1,2});|\bb(?=\\?[\"'])){1,16}+"
)
# A comma or a bracket may be a part of it. JSON escapes some characters that end it: & " ' < >.
_VALUE = r"(?:[^\s&<>\"'\\]|\\/|\\{1,2}u00(?!2[267]|3[ce])[0-9a-f]{2})++"
_NAMES = (
    r"x-amz-(?:signature|credential|security-token|(?:copy-source-)?server-side-encryption-customer-key(?:-md5)?)"
    r"|x-amz-s3session-token|(?:copysource)?ssecustomerkey(?:md5)?"
    r"|x-amz-sso_bearer_token|x-aws-ec2-metadata-token"
    # Options of ours have such names too: redact only where a value follows.
    r"|(?:secret_?access_?key|(?:secret|private|account|shared)_?key|client_?secret"
    r"|(?:access|auth|bearer|id|refresh|security|session|web_?identity)_?token)"
    rf"(?=[\s\"'\\]{{0,3}}(?:[:=>]|{_PERCENT}3[ad]))"
)
# A name begins where no word goes on, or after an encoded character, as in ``%3Fx-amz-signature%3D``.
_AFTER_CODE = r"(?<=%[0-9a-f]{2})|(?<=%25[0-9a-f]{2})|(?<=%2525[0-9a-f]{2})|(?<=\\u00[0-9a-f]{2})"
_BEGIN = rf"(?:(?<![a-z0-9])|{_AFTER_CODE})"
_SIGNED = rf"{_BEGIN}((?:{_NAMES}){_BETWEEN}){_VALUE}"
_SIGNATURE = rf"(?:(?<!\w)|{_AFTER_CODE})(signature(?:provided)?{_BETWEEN})[0-9a-f]{{16,}}+"
_AUTHORIZATION = (
    rf"(?<!\w)((?:proxy-)?authorization{_BETWEEN}(?:aws4-hmac-sha256|aws|basic|bearer|digest|negotiate|token)"
    rf"(?:\s|%20|\+){{1,4}}+(?:credential=)?){_VALUE}"
)
# Parameters of a query, which may be a part of an object's path: of shared access signatures, CloudFront, and services.
_PARAMETER = (
    rf"((?:[?&;]|{_PERCENT}(?:3f|26|3b)|\\u00(?:3f|26|3b))"
    r"(?:sig|signature|(?:[a-z]{1,16}[_-])?(?:token|key|secret)|apikey|auth|passw(?:or)?d|pwd|credentials?)"
    rf"(?:=|{_PERCENT}3d|\\u003d)){_VALUE}"
)
# In a run of its characters, behind what comes before it: each run is looked at once.
_JSON_WEB_TOKEN = r"(?<![\w-])((?:(?!eyj)[\w-])*+)eyj[\w-]{10,}+\.eyj[\w-]{4,}+\.[\w-]{0,}+"
# Few texts have one of these words, and looking for a word is cheap.
_SECRETS = (
    (("x-amz-", "ssecustomerkey", "secret", "token", "key"), _SIGNED),
    (("signature",), _SIGNATURE),
    (("authorization",), _AUTHORIZATION),
    (("sig", "token", "key", "passw", "pwd", "secret", "auth", "credential"), _PARAMETER),
    (("eyj",), _JSON_WEB_TOKEN),
)


def copy_of(error: Raised) -> Raised:
    """A copy of an error of ours, for one of those who get it; an exception of another kind is returned as it is.

    It has no traceback, and facts of the context that are neither numbers nor text become text.

    An exception that is raised several times collects the tracebacks of all, and layers add context to it. An error an
    object keeps must not hold the frames of that object's methods: see ``cause_of``.
    """
    if not isinstance(error, Error):
        return error
    twin = copy.copy(error)
    twin.__cause__ = error.__cause__
    if notes := getattr(error, "__notes__", None):
        twin.__notes__ = [*notes]
    return twin


class InOperation:
    """``with InOperation("copy"):`` an error within is one of this operation, and not of a step of it.

    ``facts`` are what is added to its context, where it does not have them.
    """

    __slots__ = ("facts", "operation")

    def __init__(self, operation: str, **facts: Any) -> None:
        self.operation = operation
        self.facts = facts

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error):
            error.operation = self.operation
            error.add_context(**self.facts)


def cause_of(error: BaseException) -> BaseException | None:
    """The cause of the error of ours that is raised in place of ``error``: a foreign exception itself, or its cause.

    It is for ``raise explained(error) from cause_of(error)``, where no local holds the new error. The traceback of an
    error holds the frames that it passed, so a frame that holds the error is a cycle: its locals live until the garbage
    collector runs, and on Python 3.12 and 3.13 of all callers too.
    """
    is_foreign = isinstance(error, Exception) and not isinstance(error, Error)
    return error if is_foreign else error.__cause__


def is_bucket_missing(error: Error) -> bool:
    """Whether a ``NotFound`` is about the bucket or container: then it says nothing about one object."""
    return error.context.get("code") in ("NoSuchBucket", "ContainerNotFound")


def has_changed_nothing(error: Error) -> bool:
    """Whether a change that failed has certainly not been made, so that it may be repeated with its conditions."""
    return isinstance(error, Throttled) or error.context.get("written") is False


def redact(text: str) -> str:
    """``text`` without possible bearer credentials: query and user of each URL, signatures, tokens, keys.

    Of a text with more than ``TEXT_CHARACTERS_MAX`` characters only the beginning is kept.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        text = _cut(text)
    if "://" in text:
        text = _compiled(_URL).sub(_without_credentials, text)
    words = text.lower()
    for hints, pattern in _SECRETS:
        if any(hint in words for hint in hints):
            text = _compiled(pattern).sub(r"\1***", text)
    return text


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def excerpt(text: Text, characters_max: int = QUOTED_CHARACTERS_MAX) -> Text:
    """A foreign text as it may stand in a message: redacted, on one line, of at most ``characters_max`` characters.

    ``None`` stays ``None``, so that ``{excerpt(etag)!r}`` distinguishes it from a text.
    """
    if text is None:
        return text
    # Redacted before it is cut: half of a secret must not remain. No character becomes less than one of the line.
    return shortened(printable(redact(text)[: characters_max + 1]), characters_max)


def printable(path: str) -> str:
    """A path as one line of text: control characters escaped, so that a key cannot forge a log line."""
    if path.isprintable():
        return path
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)


def shortened(text: str, characters_max: int = MESSAGE_CHARACTERS_MAX) -> str:
    """The beginning of a text, with a sign that there was more."""
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _without_credentials(url: re.Match[str]) -> str:
    return url[1] + url[2].rpartition("@")[2] + url[3]


def _cut(text: str) -> str:
    """The beginning of a long text. User information whose ``@`` was cut off is removed too."""
    kept = text[:TEXT_CHARACTERS_MAX]
    _, separator, authority = kept.rpartition("://")
    if separator and not re.search(r"[\s/?#]", authority):
        kept = kept[: len(kept) - len(authority)]
    return kept
