"""Keys that another service gives: asked for again where that helps, and named where there are none."""

import asyncio
import hashlib
import itertools
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import botocore.credentials
import botocore.session
import botocore.utils
import pytest

import aioprefetch as ap
from aioprefetch.errors import ConfigInvalid, Error, PermissionDenied, TimedOut
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3, key_source
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.values import ReadRequest
from tests.profile import few_rows

CANARY = "canary-token"
CONTAINER = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
END = "2099-01-01T00:00:00Z"
FOUND = json.dumps(
    {"AccessKeyId": "FETCHED", "SecretAccessKey": CANARY, "Token": "t", "Expiration": END, "Code": "Success"}
)
ASSUMED = (
    "<AssumeRole{0}Response><AssumeRole{0}Result><Credentials><AccessKeyId>FETCHED</AccessKeyId><SecretAccessKey>s"
    f"</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{END}</Expiration></Credentials>"
    "</AssumeRole{0}Result></AssumeRole{0}Response>"
)
BY_SSO = json.dumps(
    {
        "roleCredentials": {
            "accessKeyId": "FETCHED",
            "secretAccessKey": "s",
            "sessionToken": "t",
            "expiration": 4_000_000_000_000,
        }
    }
)
DENIED = "<ErrorResponse><Error><Code>{}</Code><Message>not for you</Message></Error></ErrorResponse>"
BASE = "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
ROLE = "role_arn = arn:aws:iam::123456789012:role/r\n"
MFA = "mfa_serial = arn:aws:iam::123456789012:mfa/u\n"
SSO = (
    "sso_start_url = https://login.example\nsso_region = us-east-1\nsso_account_id = 123456789012\nsso_role_name = r\n"
)

Answer = tuple[int, str] | None


class Services:
    """A server for all of them. A path gives its answers in turn, then the last one; ``None`` drops the connection."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, list[Answer]] = {}
        self.asked: dict[str, int] = defaultdict(int)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1].partition("?")[0]
        length = [line.partition(":")[2] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
        await reader.readexactly(int(length[0]) if length else 0)
        answers = self.answers.get(path) or [(404, "")]
        answer = answers[min(self.asked[path], len(answers) - 1)]
        self.asked[path] += 1
        if answer is not None:
            status, body = answer
            writer.write(
                f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        writer.close()


@pytest.fixture
async def services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Services]:
    """The services, at the addresses of the environment; STS and SSO are asked once."""
    found = Services()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_ENDPOINT_URL_STS", "AWS_ENDPOINT_URL_SSO"):
        monkeypatch.setenv(name, found.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(botocore.utils.ContainerMetadataFetcher, "SLEEP_TIME", 0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield found
    server.close()
    await server.wait_closed()


async def keys_of(runtime: Runtime, **options: Any) -> AccessKeys:
    """The keys of a recipe without any, by one attempt of ours."""
    accessor = S3(bucket="bucket", **{"region": "us-east-1"} | options).build(runtime)
    assert isinstance(accessor, S3Accessor)
    return await accessor.live.keys.get(ReadRequest(path="k"))


def configured(text: str) -> None:
    """Write the configuration of AWS."""
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(text)


# --- attempts ---------------------------------------------------------------------------------------------------------

TOKEN, ROLES = "/latest/api/token", "/latest/meta-data/iam/security-credentials/"


def as_machine(services: Services, monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> None:
    """A machine with a role, whose service answers so before it gives the keys."""
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    services.answers = {TOKEN: [(200, "tok")], ROLES: [(200, "role")], f"{ROLES}role": [*answers, (200, FOUND)]}


# A page of another server is as good a token, or name of a role, as another.
FAILURES = [
    *(
        (place, failure)
        for place in (TOKEN, ROLES, f"{ROLES}role")
        for failure in ((500, ""), (503, ""), (200, ""), None)
    ),
    (f"{ROLES}role", (200, "<html>")),
]


@pytest.mark.parametrize(("place", "failure"), FAILURES, ids=str)
async def test_the_metadata_of_a_machine_is_asked_for_again(
    services: Services, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, failure: Answer, place: str
) -> None:
    """Three times, each of its requests."""
    as_machine(services, monkeypatch)
    services.answers[place][:0] = [failure, failure]
    assert (await keys_of(runtime)).key_id == "FETCHED"
    assert services.asked[place] == (1 if place == TOKEN and failure == (200, "") else 3)


@pytest.mark.parametrize(("variable", "entry", "attempts"), [("", "", 3), ("1", "", 1), ("", "2", 2), ("4", "1", 4)])
async def test_the_users_own_number_of_attempts_counts(
    services: Services, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, variable: str, entry: str, attempts: int
) -> None:
    """In a variable or in a file."""
    as_machine(services, monkeypatch, *[(500, "")] * 5)
    if variable:
        monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", variable)
    configured(f"[default]\nmetadata_service_num_attempts = {entry}\n" if entry else "")
    with pytest.raises(PermissionDenied, match=r"were found \(asked last: the metadata of the machine\)"):
        await keys_of(runtime)
    assert services.asked[f"{ROLES}role"] == attempts


def as_container(services: Services, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(CONTAINER, f"{services.url}/container")
    services.answers["/container"] = [(200, FOUND)]
    return "/container"


def as_web_identity(services: Services, monkeypatch: pytest.MonkeyPatch) -> str:
    token = Path(os.environ["HOME"]) / "token"
    token.write_text(f"{CANARY}-{CANARY}")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r")
    services.answers["/"] = [(200, ASSUMED.format("WithWebIdentity"))]
    return "/"


def as_role(services: Services, monkeypatch: pytest.MonkeyPatch) -> str:
    configured(f"[default]\n{ROLE}source_profile = base\n{BASE}")
    services.answers["/"] = [(200, ASSUMED.format(""))]
    return "/"


def as_sso(services: Services, monkeypatch: pytest.MonkeyPatch) -> str:
    configured(f"[default]\n{SSO}")
    cached = Path(os.environ["HOME"]) / ".aws/sso/cache"
    cached.mkdir(parents=True)
    name = hashlib.sha1(b"https://login.example").hexdigest()
    monkeypatch.setattr(botocore.credentials.SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(cached))
    (cached / f"{name}.json").write_text(json.dumps({"accessToken": CANARY, "expiresAt": END}))
    services.answers["/federation/credentials"] = [(200, BY_SSO)]
    return "/federation/credentials"


Setup = Callable[[Services, pytest.MonkeyPatch], str]
SETUPS: dict[str, tuple[Setup, str]] = {
    "container": (as_container, "the metadata of the container (AWS_CONTAINER_CREDENTIALS_FULL_URI)"),
    "web identity": (as_web_identity, "the web identity of AWS_WEB_IDENTITY_TOKEN_FILE"),
    "role": (as_role, "role_arn of profile default"),
    "sso": (as_sso, "sso_start_url of profile default"),
}


@pytest.mark.parametrize("setup", SETUPS)
async def test_other_services_are_asked_again(
    services: Services, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, setup: str
) -> None:
    """By botocore, as often as it is set to."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    path = SETUPS[setup][0](services, monkeypatch)
    services.answers[path][:0] = [(500, "")]
    assert (await keys_of(runtime)).key_id == "FETCHED"
    assert services.asked[path] == 2


# --- errors -----------------------------------------------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """The error and its causes, as they are shown."""
    return f"{error} {error.__cause__} {error.__context__}"


SAID: dict[str, tuple[Answer, bool]] = {
    "denied": ((403, DENIED.format("AccessDenied")), False),
    "expired": ((400, DENIED.format("ExpiredToken")), False),
    "throttled": ((400, DENIED.format("Throttling")), True),
    "down": ((503, ""), True),
    "dropped": (None, True),
}


@pytest.mark.parametrize(("failure", "setup"), few_rows(itertools.product(SAID, SETUPS), 3))
async def test_a_failure_names_what_was_asked(
    services: Services, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, failure: str, setup: str
) -> None:
    """It is one of the credentials, not one of the store, and another attempt follows where that may help."""
    answer, is_temporary = SAID[failure]
    prepare, asked = SETUPS[setup]
    path = prepare(services, monkeypatch)
    if answer is not None and setup == "sso":
        code = answer[1].partition("<Code>")[2].partition("<")[0]
        answer = answer[0], json.dumps({"__type": code, "message": "not for you"})
    services.answers[path] = [answer]
    with pytest.raises(PermissionDenied) as caught:
        await keys_of(runtime)
    assert type(caught.value) is PermissionDenied
    assert caught.value.message.startswith(f"the credentials could not be fetched (asked: {asked})")
    assert (caught.value.status == "temporary") == (is_temporary or setup == "container")
    assert CANARY not in shown(caught.value)
    assert not any(word in caught.value.message for word in ("s3:GetObject", "the store", "bucket"))


ROUND = f"[default]\n{ROLE}source_profile = a\n[profile a]\n{ROLE}source_profile = default\n"
BROKEN: dict[str, tuple[str, dict[str, str], type[Error], str]] = {
    "a process that fails": (
        "[default]\ncredential_process = false\n",
        {},
        PermissionDenied,
        "could not be fetched (asked: credential_process of profile default)",
    ),
    "a process that says nothing": (
        "[default]\ncredential_process = true\n",
        {},
        PermissionDenied,
        "could not be fetched (asked: credential_process of profile default)",
    ),
    "a role of a role": (ROUND, {}, ConfigInvalid, "a profile of AWS cannot give credentials"),
    "a role of nothing": (f"[default]\n{ROLE}source_profile = none\n", {}, ConfigInvalid, "a profile of AWS cannot"),
    "no login": (f"[default]\n{SSO}", {}, PermissionDenied, "(asked: sso_start_url of profile default): log in again"),
    "a token that is too short": (
        "",
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "short", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/r"},
        PermissionDenied,
        "could not be fetched (asked: the web identity of AWS_WEB_IDENTITY_TOKEN_FILE)",
    ),
    "no token": (
        "",
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "missing", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/r"},
        PermissionDenied,
        "could not be fetched (asked: the web identity of AWS_WEB_IDENTITY_TOKEN_FILE)",
    ),
    "the end of a line in a token": (
        "",
        {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/x",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "line",
        },
        PermissionDenied,
        "could not be fetched (asked: the metadata of the container (AWS_CONTAINER_CREDENTIALS_FULL_URI))",
    ),
    "a host that is not allowed": (
        "",
        {CONTAINER: "http://example.com/x"},
        PermissionDenied,
        "could not be fetched (asked: the metadata of the container (AWS_CONTAINER_CREDENTIALS_FULL_URI))",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_cannot_give_keys_is_named(
    services: Services, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    config, variables, kind, said = BROKEN[case]
    configured(config)
    (tmp_path / "short").write_text("a")
    (tmp_path / "line").write_text(f"{CANARY}\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name.endswith("_FILE") else value)
    with pytest.raises(kind) as caught:
        await keys_of(runtime)
    assert said in caught.value.message
    assert caught.value.operation == "read"
    assert CANARY not in shown(caught.value)


async def test_a_provider_that_is_late_is_named(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FaultServer({}, [Rule(fault=Fault(hang_before_head=True), times=None)]) as server:
        monkeypatch.setenv(CONTAINER, f"{server.url}/container")
        with pytest.raises(TimedOut, match=r"within 0.4 seconds; asked: the metadata of the container \(AWS_CONT"):
            await keys_of(runtime, connect_timeout_seconds=0.2, read_timeout_seconds=0.2)
        await server.wait_until_idle()


# --- codes that a person reads from a device --------------------------------------------------------------------------

VARIABLES = {"AWS_ACCESS_KEY_ID": "VARIABLE", "AWS_SECRET_ACCESS_KEY": "s"}
ONE = f"[profile p]\n{ROLE}{MFA}source_profile = base\n{BASE}"
SELF = f"[profile p]\n{ROLE}{MFA}source_profile = p\naws_access_key_id = A\naws_secret_access_key = s\n"
CHAIN = f"[profile p]\n{ROLE}source_profile = q\n[profile q]\n{ROLE}{{}}source_profile = base\n{BASE}"
# The configuration, variables and the profile of the recipe; the profile that takes a code, "" for none.
CODES: dict[str, tuple[str, dict[str, str], str | None, str]] = {
    "a role": (ONE, {}, "p", "profile p"),
    "of a variable": (
        f"[profile p]\n{ROLE}{MFA}source_profile = base\n{BASE}",
        {"AWS_PROFILE": "p"},
        None,
        "profile p",
    ),
    "of the default": (f"[default]\n{ROLE}{MFA}source_profile = base\n{BASE}", {}, None, "profile default"),
    "a role of keys of its own": (SELF, {}, "p", "profile p"),
    "a role of a role": (CHAIN.format(MFA), {}, "p", "profile q"),
    "a role of variables": (
        f"[profile p]\n{ROLE}{MFA}credential_source = Environment\n",
        VARIABLES,
        "p",
        "profile p",
    ),
    "before a web identity of variables": (
        f"[default]\n{ROLE}{MFA}source_profile = base\n{BASE}",
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/r"},
        None,
        "profile default",
    ),
    "roles without": (CHAIN.format(""), {}, "p", ""),
    "no role": (f"[profile p]\n{MFA}aws_access_key_id = A\naws_secret_access_key = s\n", {}, "p", ""),
    "a source with keys": (
        f"[profile p]\n{ROLE}source_profile = q\n[profile q]\n{ROLE}{MFA}source_profile = base\n"
        f"aws_access_key_id = A\naws_secret_access_key = s\n{BASE}",
        {},
        "p",
        "",
    ),
    "a source without a role": (f"[profile p]\n{ROLE}source_profile = base\n{BASE}{MFA}", {}, "p", ""),
    "variables first": (f"[default]\n{ROLE}{MFA}source_profile = base\n{BASE}", VARIABLES, None, ""),
    "a web identity": (f"[profile p]\n{ROLE}{MFA}web_identity_token_file = /t\n", {}, "p", ""),
}


@pytest.mark.parametrize("case", CODES)
async def test_a_code_is_never_asked_for(
    services: Services, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Where botocore would ask for one it is not asked itself."""
    config, variables, profile, code_of = CODES[case]
    configured(config)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    services.answers["/"] = [(200, ASSUMED.format(""))]
    assert bool(code_of) == would_prompt(monkeypatch, profile)
    if not code_of:
        assert not S3(bucket="bucket", profile=profile).ambient(files=True).mfa
        return
    monkeypatch.setattr(key_source.ProviderChain, "load", None)
    with pytest.raises(PermissionDenied) as caught:
        await keys_of(runtime, profile=profile)
    assert caught.value.message.startswith(f"{code_of} takes an MFA code (mfa_serial)")
    assert "credentials=" in caught.value.message
    assert caught.value.status == "permanent"
    assert services.asked == {}


def would_prompt(monkeypatch: pytest.MonkeyPatch, profile: str | None) -> bool:
    """Whether botocore would, for these files and variables."""
    serials: list[str] = []
    original = botocore.credentials.AssumeRoleCredentialFetcher.__init__

    def noted(fetcher: Any, *args: Any, **kwargs: Any) -> None:
        serials.extend(name for name in kwargs.get("extra_args") or () if name == "SerialNumber")
        original(fetcher, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(botocore.credentials.AssumeRoleCredentialFetcher, "__init__", noted)
        assert botocore.session.Session(profile=profile).get_credentials() is not None
    return bool(serials)


async def test_a_session_may_ask_for_one(services: Services, runtime: Runtime) -> None:
    """It is the caller's, who knows who sits there."""
    configured(f"[default]\n{ROLE}{MFA}source_profile = base\n{BASE}")
    session = botocore.session.Session()
    session.set_credentials("GIVEN", "s")
    assert (await keys_of(runtime, credentials=session)).key_id == "GIVEN"


async def test_the_error_comes_from_the_operator_too(services: Services) -> None:
    """At the first read, once: it is permanent."""
    configured(ONE)
    async with ap.Operator.from_uri("s3://bucket", endpoint_url=services.url, proxies={}, profile="p") as op:
        for call in (
            lambda: op.read("k"),
            lambda: op.list().collect(),
            lambda: op.write("k", b""),
            lambda: op.presign("k"),
        ):
            with pytest.raises(PermissionDenied, match="takes an MFA code"):
                await call()
    assert services.asked == {}
