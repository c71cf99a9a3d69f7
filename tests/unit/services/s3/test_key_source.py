"""Where keys come from: botocore finds the same ones, for any profile, variables and files."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from aioprefetch.errors import ConfigInvalid, PermissionDenied
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.testing import FaultServer
from aioprefetch.values import ReadRequest
from tests.unit.services.s3.stores import Store, signed_by

VARIABLES = {"AWS_ACCESS_KEY_ID": "VARIABLE", "AWS_SECRET_ACCESS_KEY": "v"}
BOTH = "aws_access_key_id = {0}\naws_secret_access_key = {0}-secret\n"
PROCESS = 'credential_process = printf \'{"Version": 1, "AccessKeyId": "PROCESS", "SecretAccessKey": "p"}\'\n'

CASES: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "variables": ({}, VARIABLES, "", ""),
    "variables with a token": ({}, {**VARIABLES, "AWS_SESSION_TOKEN": "t"}, "", ""),
    "variables with both kinds of token": (
        {},
        {**VARIABLES, "AWS_SESSION_TOKEN": "t", "AWS_SECURITY_TOKEN": "s"},
        *("", ""),
    ),
    "variables before a profile of a variable": (
        {},
        {**VARIABLES, "AWS_PROFILE": "work"},
        *("", "[work]\n" + BOTH.format("CREDENTIALS")),
    ),
    "a profile of the recipe before variables": (
        {"profile": "work"},
        VARIABLES,
        *("", "[work]\n" + BOTH.format("CREDENTIALS")),
    ),
    "credentials": ({}, {}, "", "[default]\n" + BOTH.format("CREDENTIALS")),
    "credentials with a token": ({}, {}, "", "[default]\naws_session_token = t\n" + BOTH.format("CREDENTIALS")),
    "credentials before configuration": (
        *({}, {}),
        "[default]\n" + BOTH.format("CONFIGURATION"),
        "[default]\n" + BOTH.format("CREDENTIALS"),
    ),
    "configuration": ({}, {}, "[default]\n" + BOTH.format("CONFIGURATION"), ""),
    "two sections of one profile": (
        *({}, {}),
        "[profile default]\naws_session_token = t\n" + BOTH.format("A") + "[default]\n" + BOTH.format("B"),
        "",
    ),
    "configuration of a profile": (
        {},
        {"AWS_PROFILE": "my work"},
        "[profile 'my work']\n" + BOTH.format("CONFIGURATION"),
        "",
    ),
    "a profile of the older variable": (
        {},
        {"AWS_PROFILE": "a", "AWS_DEFAULT_PROFILE": "b"},
        *("", "[a]\n" + BOTH.format("A") + "[b]\n" + BOTH.format("B")),
    ),
    "a process": ({}, {}, "[default]\n" + PROCESS, ""),
    "credentials before a process": (
        *({}, {}),
        *("[default]\n" + PROCESS, "[default]\n" + BOTH.format("CREDENTIALS")),
    ),
    "a process before configuration": ({}, {}, "[default]\n" + PROCESS + BOTH.format("CONFIGURATION"), ""),
}


def by_botocore(profile: str | None) -> tuple[str, str, str | None]:
    """The keys that botocore finds."""
    credentials = botocore.session.Session(profile=profile).get_credentials()
    assert credentials is not None
    frozen = credentials.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


async def keys_of(runtime: Runtime, **options: Any) -> AccessKeys:
    """The keys that we find."""
    accessor = S3(bucket="bucket", **options).build(runtime)
    assert isinstance(accessor, S3Accessor)
    return await accessor.live.keys.get(ReadRequest(path="k"))


def given(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: str, credentials: str) -> None:
    """Set variables and write files."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(config)
    Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).write_text(credentials)


@pytest.mark.parametrize("case", CASES)
async def test_keys_are_those_of_botocore(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """In its order, with its token."""
    options, variables, config, credentials = CASES[case]
    given(monkeypatch, variables, config, credentials)
    keys = await keys_of(runtime, **options)
    assert (keys.key_id, keys.secret, keys.token) == by_botocore(options.get("profile"))


@pytest.mark.parametrize(
    ("variables", "config", "credentials", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": "A"}, "", "", "the credentials are not complete"),
        ({}, "", "[default]\naws_access_key_id = A\n", "the credentials are not complete"),
        ({"AWS_PROFILE": "none"}, "", "[default]\n" + BOTH.format("A"), "profile= and AWS_PROFILE"),
        ({}, "[default\n", "", "the AWS configuration file cannot be read"),
        ({"AWS_ACCESS_KEY_ID": "A\nX: 1", "AWS_SECRET_ACCESS_KEY": "s"}, "", "", "no header can carry"),
    ],
)
async def test_keys_that_cannot_be_used(
    runtime: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    config: str,
    credentials: str,
    said: str,
) -> None:
    """Botocore says so, where it does."""
    given(monkeypatch, variables, config, credentials)
    with pytest.raises(ConfigInvalid, match=said):
        await keys_of(runtime)


async def test_no_keys_at_all(runtime: Runtime) -> None:
    with pytest.raises(
        PermissionDenied, match=r"no credentials were found \(asked last: the metadata of the machine\): give"
    ):
        await keys_of(runtime)


async def test_keys_of_a_provider_are_asked_for_once(
    store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait, and also if the first of them is cancelled."""
    body = b'{"AccessKeyId": "CONTAINER", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}'
    async with FaultServer({"bucket/k": b"the object", "credentials": body}) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        opened = store(server, access_key_id=None, secret_access_key=None)
        first, *others = (asyncio.create_task(opened.get("k")) for _ in range(8))
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*others) == [b"the object"] * 7
        keys = [request.key for request in server.requests]
        assert keys.count("credentials") == 1
        assert all(signed_by(request).startswith("CONTAINER/") for request in server.requests[1:])
        assert {request.headers["x-amz-security-token"] for request in server.requests[1:]} == {"t"}
