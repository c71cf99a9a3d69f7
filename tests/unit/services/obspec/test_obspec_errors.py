"""Each failure of a store is an error of ours: the right word, temporary or not, no secret."""

import asyncio
import pickle
import traceback
from typing import Any

import pytest
from obstore import exceptions

from aioprefetch import errors
from aioprefetch.errors import Error
from aioprefetch.layers import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.services.obspec.errors import BY_CLASS, BY_CODE, BY_FAILURE, BY_STATUS, Explainer
from aioprefetch.values import CopyRequest, ListRequest, ReadRequest, Request, StatRequest, WriteRequest
from tests.probes.error_walk import everything, raised_by
from tests.profile import each_of
from tests.unit.services.obspec.plain import GetOnly
from tests.unit.services.obspec.stores import SECRET, response, s3_store, serving

READ = ReadRequest(path="k", offset=5, size=5)
Generic = exceptions.GenericError


def explained(error: Exception, request: Request = READ, secrets: tuple[str, ...] = ()) -> Error:
    """What an error becomes."""
    return Explainer(lambda: secrets).explain(error, request)


@each_of(
    ("error", "request_", "kind", "status"),
    [
        (FileNotFoundError("k"), READ, errors.NotFound, "permanent"),
        (exceptions.NotModifiedError(""), READ, errors.ConditionNotMatch, "permanent"),
        (exceptions.PreconditionError(""), READ, errors.ConditionNotMatch, "permanent"),
        (exceptions.PermissionDeniedError(""), READ, errors.PermissionDenied, "permanent"),
        (exceptions.UnauthenticatedError(""), READ, errors.PermissionDenied, "permanent"),
        (exceptions.NotSupportedError(""), READ, errors.Unsupported, "permanent"),
        (NotImplementedError(""), READ, errors.Unsupported, "permanent"),
        (exceptions.InvalidPathError(""), READ, errors.InvalidPath, "permanent"),
        (exceptions.InvalidPathError(""), ListRequest(path="k"), errors.Unsupported, "permanent"),
        (ValueError("Could not parse path: ..."), READ, errors.InvalidPath, "permanent"),
        (exceptions.JoinError(""), READ, errors.Unavailable, "temporary"),
        (exceptions.UnknownConfigurationKeyError(""), READ, errors.ConfigInvalid, "permanent"),
        (TimeoutError(), READ, errors.TimedOut, "temporary"),
        (ConnectionResetError(), READ, errors.Unavailable, "temporary"),
        (exceptions.AlreadyExistsError(""), READ, errors.ConditionNotMatch, "temporary"),
        (exceptions.AlreadyExistsError(""), CopyRequest(path="k", target="t"), errors.ConditionNotMatch, "temporary"),
        (
            exceptions.AlreadyExistsError(""),
            WriteRequest(path="k", if_not_exists=True),
            errors.AlreadyExists,
            "permanent",
        ),
        (
            exceptions.PreconditionError(""),
            WriteRequest(path="k", if_not_exists=True),
            errors.AlreadyExists,
            "permanent",
        ),
        (FileNotFoundError(""), WriteRequest(path="k", if_match="e"), errors.ConditionNotMatch, "permanent"),
        (Generic("Requested 0..4096, got 1..4097"), READ, errors.ProtocolError, "temporary"),
        (
            Generic("Received non-partial response when range requested"),
            READ,
            errors.ProtocolError,
            "temporary",
        ),
        (Generic("StartTooLarge { requested: 5, length: 5, }"), READ, errors.RangeNotSatisfied, "permanent"),
        (Generic("... status code: 416 Range ..."), READ, errors.RangeNotSatisfied, "permanent"),
        (Generic("Not a directory (os error 20)"), READ, errors.NotFound, "permanent"),
        (Generic("Not a directory (os error 20)"), StatRequest(path="k"), errors.NotFound, "permanent"),
        (Generic("Not a directory (os error 20)"), WriteRequest(path="k"), errors.NotADirectory, "permanent"),
        (Generic("Is a directory (os error 21)"), READ, errors.IsADirectory, "permanent"),
        (Generic("denied (os error 13)"), READ, errors.PermissionDenied, "permanent"),
        (Generic("status code: 500 Internal"), READ, errors.Unavailable, "temporary"),
        (Generic("status code: 502 Bad Gateway"), READ, errors.Unavailable, "temporary"),
        (Generic("status code: 418 teapot"), READ, errors.Unexpected, "permanent"),
        (Generic("status code: 400: <Code>ExpiredToken</Code>"), READ, errors.CredentialsExpired, "permanent"),
        (
            exceptions.PermissionDeniedError("<Code>RequestTimeTooSkewed</Code>"),
            READ,
            errors.ClockSkew,
            "permanent",
        ),
        (Generic("something else"), READ, errors.Unexpected, "permanent"),
        (ZeroDivisionError("in the store"), READ, errors.Unexpected, "permanent"),
    ],
)
def test_the_word_for_it(error: Exception, request_: Request, kind: type[Error], status: str) -> None:
    """By the name of the class, the status, the code, or the failure that the text tells."""
    made = explained(error, request_)
    assert (type(made), made.status) == (kind, status)
    assert (made.operation, made.path, made.__cause__) == (request_.operation, "k", error)
    assert type(pickle.loads(pickle.dumps(made))) is kind


@each_of("status", BY_STATUS)
def test_every_status_of_the_table(status: int) -> None:
    """In the words of obstore."""
    made = explained(Generic(f"Server returned non-2xx status code: {status} Words: "))
    assert type(made) is BY_STATUS[status]
    assert made.context["http_status"] == status


@each_of("failure", BY_FAILURE)
def test_every_failure_of_the_table_is_temporary(failure: str) -> None:
    """No response, or a body that broke off: it may work the next time."""
    made = explained(Generic(f"HTTP error\n\nDebug source:\n HttpError {{\n    kind: {failure},"))
    assert type(made) is BY_FAILURE[failure]
    assert made.is_temporary


def test_the_names_of_the_tables_are_those_of_obstore() -> None:
    """None of its errors is unknown, but for those whose text says what happened."""
    names = {name for name in dir(exceptions) if name.endswith("Error")} - {"BaseError", "GenericError"}
    assert names <= set(BY_CLASS)
    assert all(code.isalpha() for code in BY_CODE)


def test_the_size_is_in_the_error() -> None:
    """As each store writes it."""
    for text in (
        "<Code>InvalidRange</Code><ActualObjectSize>10</ActualObjectSize>",
        "Wanted range starting at 20, but object was only 10 bytes long",
        "StartTooLarge {\n requested: 20,\n length: 10,\n }",
    ):
        made = explained(Generic(text))
        assert isinstance(made, errors.RangeNotSatisfied)
        assert made.total == 10


def test_messages_are_short_and_hold_no_secret() -> None:
    """Neither the message, nor the text of the cause, nor the debugging part of it."""
    text = f"HTTP error for https://user:pw@host/k?sig=abc: {SECRET} {'x' * 5000}\n\nDebug source:\n{SECRET}"
    made = explained(Generic(text), secrets=(SECRET,))
    shown = "".join(traceback.format_exception(made))
    assert len(str(made)) < 600
    for secret in (SECRET, "sig=abc", "pw@", "Debug"):
        assert secret not in shown
    assert made.__cause__ is None
    assert explained(Generic("harmless")).__cause__ is not None


@each_of(
    ("status", "kind"),
    [
        ("500 x", errors.Unavailable),
        ("503 x", errors.Throttled),
        ("429 x", errors.Throttled),
        ("403 x", errors.PermissionDenied),
        ("401 x", errors.PermissionDenied),
        ("404 x", errors.NotFound),
        ("405 x", errors.Unsupported),
    ],
)
async def test_what_obstore_makes_of_a_response(status: str, kind: type[Error]) -> None:
    """With obstore itself, so that a change of its texts shows."""

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(status, b"<Error><Code>Some</Code><RequestId>r-1</RequestId></Error>"))

    async with serving(handler) as port, Operator.bare(ObspecStore(s3_store(port))) as op:
        with pytest.raises(kind) as caught:
            await op.read("k", offset=5, size=5)
    assert caught.value.context["http_status"] == int(status[:3])
    assert caught.value.context["request_id"] == "r-1"
    assert caught.value.is_temporary == kind("").is_temporary


@each_of("status", ["400 x", "403 x", "404 x", "418 x", "500 x", "503 x", "301 x", "garbage", ""])
async def test_no_secret_hangs_on_any_error(status: str) -> None:
    """From a store that repeats the request with its key, by each operation: not on causes, contexts or frames."""

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        repeated = head + f"{SECRET} X-Amz-Signature={SECRET}".encode()
        body = b"<Error><Code>InvalidRequest</Code><Message>%s</Message></Error>" % repeated
        writer.write(response(status, body, Location=f"http://127.0.0.1:1/?sig={SECRET}") if status else b"")
        if not status:
            raise ConnectionError

    async with serving(handler) as port, Operator.bare(ObspecStore(s3_store(port))) as op:
        caught = [
            await raised_by(lambda: op.read("k", offset=5, size=5)),
            await raised_by(lambda: op.stat("k")),
            await raised_by(lambda: listed(op)),
            await raised_by(lambda: op.write("k", b"x")),
            await raised_by(lambda: op.copy("k", "t")),
        ]
    for error in caught:
        assert error is not None
        for text in everything(error):
            assert SECRET not in text


async def listed(operator: Operator) -> list[Any]:
    """All entries."""
    return [entry async for entry in operator.list("")]


async def test_no_connection_is_temporary() -> None:
    """No server listens there."""
    async with Operator.bare(ObspecStore(s3_store(1))) as op:
        with pytest.raises(errors.Unavailable) as caught:
            await op.read("k")
    assert caught.value.is_temporary


async def test_a_broken_body_is_resumed() -> None:
    """By Retry, at the byte where it broke, pinned to the version."""
    data = bytes(range(256)) * 400
    ranges: list[bytes] = []

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"range:"))
        ranges.append(wanted.split(b"=")[1])
        first, last = (int(part) for part in ranges[-1].split(b"-"))
        body = data[first : last + 1]
        head_ = response(
            "206 Partial Content",
            Content_Range=f"bytes {first}-{last}/{len(data)}",
            Content_Length=str(len(body)),
            ETag='"e-1"',
            Last_Modified="Wed, 21 Oct 2015 07:28:00 GMT",
        )
        if len(ranges) == 1:
            writer.write(head_ + body[:1000])
            await writer.drain()
            raise ConnectionError
        assert b'if-match: "e-1"' in head.lower()
        writer.write(head_ + body)

    async with serving(handler) as port, Operator(ObspecStore(s3_store(port))).layer(RetryLayer(base_seconds=0)) as op:
        assert await op.read("k", offset=0, size=100_000) == data[:100_000]
    assert ranges[0] == b"0-99999"
    assert len(ranges) == 2


@pytest.mark.parametrize("data", [b"", b"0123456789"])
async def test_a_server_that_ignores_ranges(data: bytes) -> None:
    """All of an empty object is what was asked for; of any other one it is a wrong response."""

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = response("200 OK", data, ETag='"e"')
        writer.write(whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if head.startswith(b"HEAD") else whole)

    async with serving(handler) as port, Operator.bare(ObspecStore(s3_store(port))) as op:
        wanted: tuple[dict[str, Any], ...] = ({"offset": 2, "size": 3}, {"suffix": 3})
        for options in wanted:
            if data:
                with pytest.raises(errors.ProtocolError):
                    await op.read("k", **options)
            else:
                assert await op.read("k", **options) == b""


class BreakingOff(GetOnly):
    """Ends each call as if it were cancelled, as obstore does in a forked child."""

    async def get_async(self, path: str, *, options: dict[str, Any] | None = None) -> Any:
        raise asyncio.CancelledError


async def test_a_call_that_breaks_off_by_itself_cancels_no_caller() -> None:
    """It is an error, since it was not asked for."""
    async with Operator.bare(ObspecStore(BreakingOff())) as op:
        with pytest.raises(errors.Unexpected, match="broke off"):
            await op.read("k")
