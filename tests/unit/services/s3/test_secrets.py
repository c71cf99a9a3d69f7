"""Where a secret may hide: in what hangs on an error, and in the lines that the libraries below us log."""

import asyncio
import contextlib
import html
import io
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from urllib.parse import quote

import pytest

import aioprefetch as ap
from aioprefetch import errors
from aioprefetch.credentials import RedactingFilter
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3 import errors as s3_errors
from aioprefetch.services.s3.key_source import redact_logs
from aioprefetch.services.s3.signed_targets import configuration_of
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest
from tests.probes.error_walk import everything, raised_by
from tests.stores.raw_server import Peer, RawServer, eventually
from tests.unit.services.s3.stores import CANARIES, KEY_BASE64, KEY_MD5, Address, Store, signed_by

OBJECTS = {"bucket/k": b"the object"}


def leaks(text: str) -> bool:
    """Whether a text holds a secret in any form in which it travels, or a signature."""
    forms = (CANARIES["session_token"], KEY_BASE64, KEY_MD5)
    return any(form in text for form in ("canary", *forms, *(quote(form, safe="") for form in forms)))


async def failures(store: Store) -> list[errors.Error]:
    """What each way to the store raises."""

    calls: list[Callable[[], Any]] = [
        lambda: store.get("k"),
        lambda: store.get("k", offset=2, size=3),
        lambda: store.get("k", suffix=3),
        lambda: store.stat("k"),
        lambda: store.page(),
        lambda: store.put("k", b"x"),
        lambda: store.accessor.copy(CopyRequest(path="k", target="l")),
        lambda: store.delete("k"),
        lambda: store.delete("k", "l"),
    ]
    caught = []
    for call in calls:
        try:
            await call()
        except errors.Error as error:
            caught.append(error)
    return caught


async def repeating(peer: Peer, how: Callable[[str], str]) -> None:
    """Answer with an error that repeats the request."""
    while (request := await peer.request()) is not None:
        body = f"<Error><Code>InvalidRequest</Code><Message>{how(request.decode())}</Message></Error>".encode()
        await peer.send(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


REPETITIONS: dict[str, Callable[[str], str]] = {
    "as XML": html.escape,
    "as JSON": lambda text: html.escape(json.dumps(text)),
    "as JSON with slashes": lambda text: html.escape(json.dumps(text).replace("/", "\\/")),
    "as a repr": lambda text: html.escape(repr(text.encode())),
    "as a URL": lambda text: quote(text, safe=""),
    "as HTML": lambda text: html.escape(html.escape(text)),
    "its end": lambda text: html.escape(text[-250:]),
}


@pytest.mark.parametrize("how", REPETITIONS)
async def test_a_server_that_repeats_the_request(store: Callable[..., Store], how: str) -> None:
    """Nothing of it stays: not in the message, not in a cause, not in a traceback with variables."""
    async with RawServer(lambda peer: repeating(peer, REPETITIONS[how])) as server:
        caught = await failures(store(Address(server), **CANARIES))
        assert any(b"canary" in request or b"canary".hex().encode() in request for request in sent(server))
    assert len(caught) == 9
    for error in caught:
        for text in everything(error):
            assert not leaks(text), text


def sent(server: RawServer) -> list[bytes]:
    """Every request that came."""
    return [request for peer in server.peers for request in peer.requests]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(raw=b"garbage\r\n\r\n"),
        Fault(drop=True),
        Fault(reset_before_head=True),
        Fault(close_after_bytes=3),
        Fault(hang_before_head=True),
        Fault(status=200, body=b"<Error><Code>InternalError</Code></Error>"),
        Fault(status=200, body=b"not XML", headers={"Last-Modified": "yesterday"}),
        Fault(status=301, location="http://127.0.0.1:9/?token=canary"),
        Fault(status=503),
        Fault(content_range="bytes 1-2/3", headers={"ETag": None}),
    ],
)
async def test_nothing_hangs_on_an_error(store: Callable[..., Store], fault: Fault) -> None:
    """What botocore and aiohttp raise holds the request with all its headers; what we raise holds none of it."""
    async with FaultServer(OBJECTS, [Rule(fault=fault, times=None)]) as server:
        caught = await failures(store(server, read_timeout_seconds=0.05, **CANARIES))
    assert caught
    for error in caught:
        for text in everything(error):
            assert not leaks(text), text


async def test_the_words_of_the_libraries_are_kept(store: Callable[..., Store]) -> None:
    """As the cause of ours: a search for a fault needs them."""
    async with FaultServer(OBJECTS) as server:
        with pytest.raises(errors.PermissionDenied) as caught:
            await store(server, access_key_id=None, secret_access_key=None).get("k")
    assert "botocore.exceptions.NoCredentialsError" in str(caught.value.__cause__)


async def test_keys_that_a_provider_found_are_known_too(
    store: Callable[..., Store], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token in a file is no option of ours, and is cut out of what a store repeats all the same."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=canary-id\naws_secret_access_key=canary-secret\naws_session_token=canary-token\n"
    )
    none = {"access_key_id": None, "secret_access_key": None}
    async with RawServer(lambda peer: repeating(peer, lambda text: "canary-token canary-secret")) as server:
        caught = await failures(store(Address(server), **none))
    assert len(caught) == 9
    for error in caught:
        assert not leaks("".join(everything(error)))


@pytest.fixture
def lines() -> Iterator[Callable[[], str]]:
    """Everything that is logged at DEBUG, as a handler at the root writes it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream.getvalue
    root.setLevel(level)
    root.removeHandler(handler)


STS = b"""<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>NEW</AccessKeyId>
<SecretAccessKey>canary-of-the-role</SecretAccessKey><SessionToken>canary-token-of-the-role</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


@checks("reliability:K02")
async def test_debug_lines_hold_no_secret(
    store: Callable[..., Store], lines: Callable[[], str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore logs what it signs and what it is answered where it assumes a role: all without what opens anything."""
    (tmp_path / "credentials").write_text(
        "[of]\naws_access_key_id=canary-id\naws_secret_access_key=canary-secret\naws_session_token=canary-token\n"
    )
    (tmp_path / "config").write_text("[profile work]\nsource_profile=of\nrole_arn=arn:aws:iam::123456789012:role/r\n")
    sts = Rule(fault=Fault(status=200, body=STS), method="POST", times=None)
    async with FaultServer(OBJECTS, [sts]) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        assert await store(server, profile="work", region="us-east-1").get("k") == OBJECTS["bucket/k"]
        assert signed_by(server.requests[-1]).startswith("NEW/")
    text = lines()
    assert "CanonicalRequest" in text  # It was there to be leaked.
    assert "AssumeRoleResult" in text
    assert not [line for line in text.splitlines() if "canary-" in line and "canary-id" not in line]


async def test_the_text_of_an_exception_is_logged_without_it(lines: Callable[[], str]) -> None:
    """A handler that keeps exceptions would keep the request."""

    class Knows:
        def without_secrets(self, text: str) -> str:
            return text.replace("known", "***")

    knows = Knows()
    redact_logs(knows)
    logger = logging.getLogger("botocore.endpoint")
    records: list[logging.LogRecord] = []
    logger.addFilter(lambda record: records.insert(0, record) or True)  # type: ignore[func-returns-value]
    try:
        raise ValueError("known, X-Amz-Security-Token: s3cr3t")
    except ValueError:
        logger.debug("it failed for %s", "known", exc_info=True)
    finally:
        logger.removeFilter(logger.filters[-1])
    assert "it failed for ***" in lines()
    assert "ValueError: ***, X-Amz-Security-Token: ***" in lines()
    assert records[0].exc_info is None


def test_a_line_that_cannot_be_formatted_is_logged_as_it_stands() -> None:
    """The filter loses no record, and shows no argument."""
    record = logging.LogRecord("botocore", logging.DEBUG, "f", 1, "%d %d", ("canary",), None)
    assert RedactingFilter().filter(record)
    assert record.getMessage() == "%d %d"


async def test_a_line_of_the_applications_own_server_is_left_as_it_is(
    store: Callable[..., Store], lines: Callable[[], str]
) -> None:
    """Loggers of aiohttp's server, also those made before the client: arguments stay, and so does the text."""
    names = (
        "aiohttp",
        "aiohttp.access",
        "aiohttp.server",
        "aiohttp.web",
        "aiohttp.internal",
        "aiohttp.clients_of_mine",
    )
    records: list[logging.LogRecord] = []
    for name in names:
        logging.getLogger(name)
    async with FaultServer(OBJECTS) as server:
        with pytest.raises(errors.PermissionDenied):
            await store(server, access_key_id=None, secret_access_key=None).get("k")
    for name in names:
        logger = logging.getLogger(name)
        logger.addFilter(keep := lambda record: records.append(record) or True)  # type: ignore[func-returns-value]
        logger.info("%s %s", "GET", "http://h/?token=canary", extra={"own": 1})
        logger.removeFilter(keep)
    assert [record.args for record in records] == [("GET", "http://h/?token=canary")] * len(names)
    assert all(isinstance(logger_filter, RedactingFilter) is False for name in names for logger_filter in filters(name))
    assert any(isinstance(one, RedactingFilter) for one in filters("aiohttp.client"))
    assert lines().count("token=canary") == len(names)


def filters(name: str) -> list[Any]:
    """The filters of a logger."""
    return list(logging.getLogger(name).filters)


def test_the_forms_of_a_secret_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each of the hundred lines that a library logs at DEBUG."""
    made: list[str] = []
    forms = s3_errors._forms
    monkeypatch.setattr(s3_errors, "_forms", lambda secret: made.append(secret) or forms(secret))  # type: ignore[func-returns-value]
    names = ("access_key_id", "secret_access_key", "session_token")
    keys: dict[str, Any] = {name: f"{name} of this test alone" for name in names}
    explainer = s3_errors.Explainer(S3(bucket="bucket", **keys), "someone")
    for _ in range(3):
        assert "alone" not in explainer.without_secrets("".join(keys.values()))
    assert sorted(made) == sorted(keys.values())


def test_a_configuration_does_not_show_the_customers_key() -> None:
    shown = repr(configuration_of(S3(bucket="bucket", endpoint_url="https://localhost:9", **CANARIES)))
    assert not leaks(shown)


async def test_the_variables_of_a_traceback_hold_no_signature(store: Callable[..., Store]) -> None:
    """As tools show them for a timeout of the caller."""
    async with FaultServer(OBJECTS, [Rule(fault=Fault(hang_before_head=True), times=None)]) as server:
        opened = store(server, **CANARIES)
        for call in (lambda: opened.get("k"), lambda: opened.stat("k"), lambda: opened.put("k", b"x")):
            task: asyncio.Task[object] = asyncio.ensure_future(call())
            await eventually(lambda: server.count() > 0)
            server.requests.clear()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
            assert "fetch" in shown
            assert not any(text in shown for text in ("session+token", "Signature=", KEY_BASE64))


def named_by(name: str, **options: Any) -> S3:
    """A recipe whose secrets stand in variables: ``NAME_KEY_ID`` and ``NAME_SECRET`` for the keys."""
    keys = {"access_key_id": f"env:{name}_KEY_ID", "secret_access_key": f"env:{name}_SECRET"}
    return S3(bucket="bucket", endpoint_url="http://localhost:9", region="r", **{**keys, **options})


@contextlib.contextmanager
def variables_of_failing_frames() -> Iterator[list[str]]:
    """The local variables of each frame of ours that an exception passes, as a debugger sees them."""
    shown: list[str] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == "exception":
            shown.append(repr(frame.f_locals))
        return trace if "aioprefetch" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield shown
    finally:
        sys.settrace(before)


OTHER_PRINCIPALS = {
    "named": (lambda: named_by("MY"), ("MY_KEY_ID", "MY_SECRET")),
    "variables": (
        lambda: S3(bucket="bucket", endpoint_url="http://localhost:9", region="r"),
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ),
}


@pytest.mark.parametrize(("recipe", "variables"), OTHER_PRINCIPALS.values(), ids=OTHER_PRINCIPALS)
async def test_keys_of_another_principal_stay_out_of_its_error(
    monkeypatch: pytest.MonkeyPatch, recipe: Callable[[], S3], variables: tuple[str, str]
) -> None:
    """The variables change between two reads: no frame of the refusal holds the new secret."""
    key_id, secret = variables
    monkeypatch.setenv(key_id, "first")
    monkeypatch.setenv(secret, "of-the-first")
    async with ap.Operator(recipe()) as operator:
        operator.accessor()
        monkeypatch.setenv(key_id, "second")
        monkeypatch.setenv(secret, CANARIES["secret_access_key"])
        with variables_of_failing_frames() as shown:
            error = await raised_by(lambda: operator.read("k"))
    assert isinstance(error, errors.PermissionDenied)
    assert "make a new Operator" in str(error)
    assert not any(leaks(text) for text in everything(error))
    assert any("'principal': " in text for text in shown)
    assert [text for text in shown if leaks(text)] == []


CONFIGURATIONS: dict[str, Callable[[], object]] = {
    "a proxy that is not a URL": lambda: configuration_of(
        named_by("MY", proxies={"http": "env:BAD_PROXY", "https": "http://h:1"})
    ),
    "a proxy without a variable": lambda: configuration_of(
        named_by("MY", proxies={"http": "env:MISSING", "https": "env:PROXY"})
    ),
    "a customer's key that is not base64": lambda: configuration_of(named_by("MY", sse_customer_key="env:TEXT")),
    "a customer's key that is too short": lambda: configuration_of(named_by("MY", sse_customer_key="env:SHORT")),
}


@pytest.mark.parametrize("configure", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
async def test_a_configuration_that_cannot_be_used_does_not_show_its_secrets(
    monkeypatch: pytest.MonkeyPatch, configure: Callable[[], object]
) -> None:
    values = {
        "BAD_PROXY": "http://user:canary@h:port",
        "PROXY": "http://user:canary@h:1",
        "TEXT": "canary of a customer",
        "SHORT": "canary00",
        "MY_KEY_ID": "id",
        "MY_SECRET": "canary",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    async def call() -> object:
        return configure()

    error = await raised_by(call)
    assert isinstance(error, errors.ConfigInvalid)
    assert not any(leaks(text) for text in everything(error))
