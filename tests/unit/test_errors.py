"""The error tree: Python's own words, pickling, copying, redaction, and lines that cannot be forged."""

import copy
import errno
import io
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch import errors
from aioprefetch.errors import Error, NotFound, ObjectChanged, RangeNotSatisfied, Unexpected, printable, redact
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import ReadHead
from tests.profile import each_of

CLASSES = [getattr(errors, name) for name in errors.__all__]

PYTHON_WORDS: dict[str, type[BaseException]] = {
    "NotFound": FileNotFoundError,
    "AlreadyExists": FileExistsError,
    "IsADirectory": IsADirectoryError,
    "NotADirectory": NotADirectoryError,
    "IsSameFile": OSError,
    "PermissionDenied": PermissionError,
    "CredentialsExpired": PermissionError,
    "ClockSkew": PermissionError,
    "RangeNotSatisfied": EOFError,
    "ConditionNotMatch": OSError,
    "ObjectChanged": OSError,
    "InvalidArgument": ValueError,
    "InvalidRange": ValueError,
    "InvalidPath": ValueError,
    "InvalidType": TypeError,
    "ConfigInvalid": ValueError,
    "Unsupported": io.UnsupportedOperation,
    "Throttled": OSError,
    "Unavailable": ConnectionError,
    "TimedOut": TimeoutError,
    "Stalled": TimeoutError,
    "BudgetExhausted": OSError,
    "ProtocolError": OSError,
    "RedirectRefused": OSError,
    "UntrustedMetadata": ValueError,
    "StateConflict": OSError,
    "Closed": ValueError,
    "SizeUnknown": OSError,
    "WrongLoop": RuntimeError,
    "MissingDependency": ImportError,
    "Unexpected": OSError,
}
TEMPORARY = {"Throttled", "Unavailable", "TimedOut", "Stalled", "ProtocolError"}


def full(cls: type[Error]) -> Error:
    """An error of a class with every field set."""
    return cls(
        "it went wrong",
        operation="read",
        path="dir/key",
        status="persistent",
        context={"range": "[0, 5)", "attempts": 3, "cause": ValueError("not plain")},
        head=ReadHead(start=0, size=5, total=9, etag="e"),
        received=2,
        retry_after_seconds=1.5,
    )


def test_every_class_but_the_root_has_its_python_word() -> None:
    assert {cls.__name__ for cls in CLASSES} == {*PYTHON_WORDS, "Error"}


@each_of("cls", CLASSES)
def test_an_error_of_each_class(cls: type[Error]) -> None:
    """Python's word, the status by default, and what pickles and copies keep."""
    with pytest.raises(PYTHON_WORDS.get(cls.__name__, Exception)) as caught:
        raise full(cls)
    assert isinstance(caught.value, Error)
    assert caught.value.kind == cls.__name__
    check_defaults(cls)
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        check_pickle(full(cls), protocol)
    check_copy(full(cls))


def check_defaults(cls: type[Error]) -> None:
    """The status says whether another attempt may help."""
    error = cls("no")
    assert error.status == ("temporary" if cls.__name__ in TEMPORARY else "permanent")
    assert error.is_temporary == (cls.__name__ in TEMPORARY)
    assert isinstance(error.errno, int)
    assert errno.errorcode[error.errno]


def check_pickle(error: Error, protocol: int) -> None:
    """All fields survive; a cause need not be picklable."""
    error.__cause__ = OSError(io.BytesIO())
    twin = pickle.loads(pickle.dumps(error, protocol))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    for name in ("message", "operation", "path", "status", "head", "received", "retry_after_seconds"):
        assert getattr(twin, name) == getattr(error, name), (name, protocol)
    assert (twin.errno, twin.filename, twin.strerror) == (error.errno, "dir/key", "it went wrong")
    assert twin.args == error.args == ("it went wrong",)
    assert list(twin.context) == list(error.context)
    assert twin.context["attempts"] == 3
    assert twin.context["cause"] == "not plain"


def check_copy(error: Error) -> None:
    """A copy is independent of its original."""
    twin = copy.copy(error)
    assert twin is not error
    assert type(twin) is type(error)
    twin.add_context(more=1)
    assert "more" not in error.context
    assert str(copy.deepcopy(error)) == str(error)


def test_own_fields_survive_pickling() -> None:
    changed = pickle.loads(pickle.dumps(ObjectChanged("x", expected_etag="a", actual_etag=None, path="p")))
    assert (changed.expected_etag, changed.actual_etag) == ("a", None)
    ended = pickle.loads(pickle.dumps(RangeNotSatisfied("x", total=7)))
    assert ended.total == 7
    assert ended.context == {"total": 7}


def test_the_innermost_context_wins() -> None:
    error = NotFound("no", operation="stat", context={"service": "inner"})
    assert error.add_context(operation="read", path="k", service="outer", attempts=2) is error
    assert (error.operation, error.path, error.filename) == ("stat", "k", "k")
    assert error.context == {"service": "inner", "attempts": 2}


def test_message_is_for_people() -> None:
    """The advice follows the sentence; the class is named by what shows it: a traceback, or the repr."""
    context: dict[str, object] = {"service": "memory://x", "hint": "it is 'b a'", "attempts": 1}
    error = NotFound("there is no such object", operation="stat", path="a b", context=context)
    said = "stat 'a b': there is no such object; hint: it is 'b a' [permanent, service: memory://x, attempts: 1]"
    assert (str(error), repr(error)) == (said, f"<NotFound: {said}>")
    assert str(NotFound("gone", status="persistent")) == "gone [persistent]"


SECRET = "SECRETVALUE"


@each_of(
    "url",
    [
        f"https://host/k?X-Amz-Signature={SECRET}",
        f"https://host?sig={SECRET}",
        f"https://user:{SECRET}@host/k",
        f"https://{SECRET}@host/k?a=b",
        f"https://user:a@{SECRET}@host/k",
        f"s3://AKIA:{SECRET}@bucket/key",
        f"https://host/k#frag?token={SECRET}",
        f"http://u:{SECRET}@proxy:3128 https://host/x?y={SECRET}",
    ],
)
def test_no_secret_of_a_url_gets_out(url: str) -> None:
    """Neither message, repr, context nor pickle holds a query or user information."""
    assert SECRET not in redact(f"GET {url} failed")
    error = Unexpected(f"GET {url} failed", context={"url": url, "cause": RuntimeError(url)})
    error.add_context(proxy=url)
    for text in (str(error), repr(error), error.strerror, *map(str, error.args), pickle.dumps(error).decode("latin-1")):
        assert text is not None
        assert SECRET not in text


def test_redaction_keeps_what_helps() -> None:
    assert redact("GET https://user:pw@host:9000/bucket/key?sig=x failed") == "GET https://host:9000/bucket/key failed"
    assert redact("why? because a@b") == "why? because a@b"


@given(st.text())
def test_a_path_is_one_printable_line(path: str) -> None:
    shown = str(NotFound("no", path=path, context={"key": path}))
    assert shown.isprintable()
    assert printable(path).isprintable()
    if path.isprintable():
        assert printable(path) == path


@checks("reliability:K31")
def test_a_key_cannot_forge_a_log_line() -> None:
    error = NotFound("no", path="k\n2026 ERROR all is lost\x1b[31m\u2028")
    assert len(str(error).splitlines()) == 1
    assert "\x1b" not in str(error)
    assert pickle.loads(pickle.dumps(error)).path == error.path


def test_a_copy_has_cause_and_notes_and_no_frames() -> None:
    """Another exception is handed out as it is."""
    cause = OSError("cause")
    try:
        raise errors.Unavailable("m", operation="read", path="k", context={"attempts": 3}) from cause
    except errors.Unavailable as caught:
        caught.add_note("a note")
        error = caught
    twin = errors.copy_of(error)
    assert twin is not error
    assert (str(twin), twin.__cause__, twin.__notes__, twin.__traceback__) == (str(error), cause, ["a note"], None)
    twin.add_note("another")
    assert error.__notes__ == ["a note"]
    assert errors.copy_of(cause) is cause


def test_what_an_error_is_raised_from() -> None:
    cause = OSError("cause")
    ours = errors.Unavailable("m")
    ours.__cause__ = cause
    assert errors.cause_of(ours) is cause
    assert errors.cause_of(cause) is cause
    assert errors.cause_of(KeyboardInterrupt()) is None
