"""Who reads when the environment decides: two principals never have one name, and one has one wherever it can."""

import asyncio
import hashlib
import itertools
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.credentials import Secret, digest
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3, environment
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.testing import Fault, FaultServer, ReceivedRequest, Rule
from aioprefetch.values import PresignRequest, StatRequest

KEY = "aws_access_key_id = {}\naws_secret_access_key = c4nary\naws_session_token = c4nary\n"
ROLE = "role_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
SSO = "sso_session = s\nsso_account_id = 1\nsso_role_name = r\n"


def principal(**options: Any) -> str:
    """The principal of a recipe."""
    return S3(bucket="bucket", **options).info.principal


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write ``config`` or ``credentials``, where the environment of the tests points."""
    monkeypatch.setenv("HOME", str(tmp_path))
    numbers = itertools.count()

    def written(name: str, text: str) -> Path:
        # A new file each time, as editors make them; its time may be the same.
        fresh = tmp_path / f"{name}.{next(numbers)}"
        fresh.write_text(text)
        return fresh.replace(tmp_path / name)

    return written


Write = Callable[[str, str], Path]

# Files of one tenant and of another: (config, credentials), the profile in AWS_PROFILE, the options.
TENANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("", f"[default]\n{KEY}", {}),
    (f"[default]\n{KEY}", "", {}),
    ("", f"[work]\n{KEY}", {"profile": "work"}),
    (f"[profile 'my work']\n{KEY}", "", {"profile": "my work"}),
    (f"[profile work]\n{ROLE}", f"[base]\n{KEY}", {"profile": "work"}),
    ("[profile work]\nrole_arn = arn:{}\nsource_profile = base\n", f"[base]\n{KEY}", {"profile": "work"}),
    (f"[default]\n{SSO}[sso-session s]\nsso_start_url = https://{{}}\n", "", {}),
    ("[default]\ncredential_process = tool {}\n", "", {}),
    ("[default]\nrole_arn = arn:r\nweb_identity_token_file = /t/{}\n", "", {}),
    ("[default]\nrole_arn = arn:{}\ncredential_source = Ec2InstanceMetadata\n", "", {}),
]


@pytest.mark.parametrize(("config", "credentials", "options"), TENANTS)
def test_other_contents_of_the_same_files_are_another_principal(
    write: Write, config: str, credentials: str, options: dict[str, Any]
) -> None:
    """And the same contents, wherever they lie, the same one."""
    names = []
    for tenant in ("AKIAAAAA", "AKIABBBB", "AKIAAAAA"):
        write("config", config.replace("{}", tenant))
        write("credentials", credentials.replace("{}", tenant))
        names.append(principal(**options))
    first, second, again = names
    assert first == again
    assert first != second
    assert "AKIA" not in first
    assert "c4nary" not in first


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_SHARED_CREDENTIALS_FILE"),
        *("AWS_CONFIG_FILE", "HOME", "AWS_CREDENTIAL_FILE", "BOTO_CONFIG"),
    ],
)
def test_each_deciding_variable_changes_the_principal(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Unset, with one value, and with another."""
    names = {principal()}
    for value in ("/one", "/two"):
        monkeypatch.setenv(name, value)
        names.add(principal())
    assert len(names) == 3


def test_users_and_machines_whose_metadata_decide(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two instances have two roles. A key, a role by its name, and a task are the same wherever they are."""
    config = f"[default]\nregion = r\n[profile key]\n{KEY}[profile role]\nrole_arn = arn:r\nsource_profile = key\n"
    write("config", config.replace("{}", "AKIA1"))
    cases: list[tuple[dict[str, str], bool]] = [
        ({}, False),
        ({"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"}, False),
        ({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/1f6"}, True),
        ({"AWS_ROLE_ARN": "arn:r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, True),
        ({"AWS_PROFILE": "key"}, True),
        ({"AWS_PROFILE": "role"}, True),
    ]
    for variables, same in cases:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            names = set()
            for machine, user in (("a", 1), ("b", 1), ("a", 2)):
                patch.setattr(platform, "node", lambda machine=machine: machine)
                patch.setattr(os, "getuid", lambda user=user: user)
                environment._resolved.cache_clear()
                names.add(principal())
            assert len(names) == (1 if same else 3), variables


def test_an_explicit_profile_goes_before_variables(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for botocore; a name of a profile alone tells nothing."""
    write("credentials", f"[work]\n{KEY}".replace("{}", "AKIA1"))
    assert principal(profile="work") == f"profile:work:{digest('AKIA1')}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA2")
    assert principal(profile="work") == f"profile:work:{digest('AKIA1')}"
    assert principal() == f"environment:{digest('AKIA2')}"


@pytest.mark.parametrize(
    "text", ["no section\n", "[default\n", "[default]\n[default]\n", "\x00", "[profile 'x]\na=1\n"]
)
def test_a_broken_file_is_botocores_to_report(write: Write, text: str) -> None:
    write("config", text)
    assert principal().startswith("environment:")


@pytest.mark.parametrize(
    ("config", "variables", "endpoint"),
    [
        ("[default]\nendpoint_url = https://a\n", {}, "https://a"),
        (
            "[default]\nservices = s\n[services s]\ns3 =\n  endpoint_url = https://b\nsts =\n  endpoint_url = https://c\n",
            {},
            "https://b",
        ),
        ("[default]\nendpoint_url = https://a\n", {"AWS_ENDPOINT_URL": "https://d"}, "https://d"),
        ("", {"AWS_ENDPOINT_URL": "https://d", "AWS_ENDPOINT_URL_S3": "https://e"}, "https://e"),
        ("[profile p]\nendpoint_url = https://f\n", {"AWS_PROFILE": "p"}, "https://f"),
        ("[default]\nendpoint_url = https://a\nignore_configured_endpoint_urls = true\n", {}, ""),
        ("", {"AWS_ENDPOINT_URL": "https://d", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, ""),
        ("[default]\nendpoint_url = https://u:c4nary@h\n", {}, "https://h"),
    ],
)
def test_the_endpoint_in_a_file_belongs_to_the_namespace(
    write: Write, monkeypatch: pytest.MonkeyPatch, config: str, variables: dict[str, str], endpoint: str
) -> None:
    """The one that botocore finds, for ambient keys and for given ones."""
    elsewhere = S3(bucket="bucket").info.namespace
    write("config", config)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = S3(bucket="bucket").info
    assert found.endpoint == endpoint
    assert (found.namespace == elsewhere) == (not endpoint and "AWS_PROFILE" not in variables and not config)


async def test_endpoint_and_region_are_those_of_botocore(write: Write, runtime: Runtime) -> None:
    """Endpoint, region and key."""
    write("config", "[default]\nendpoint_url = http://127.0.0.1:9\nregion = r-1\n")
    write("credentials", f"[default]\n{KEY}".replace("{}", "AKIA1"))
    service = S3(bucket="bucket")
    accessor = service.build(runtime)
    assert isinstance(accessor, S3Accessor)
    assert (service.info.endpoint, service.info.region) == ("http://127.0.0.1:9", "r-1")
    url = await accessor.presign(PresignRequest(path="k"))
    assert url.startswith("http://127.0.0.1:9/bucket/k?")
    assert "X-Amz-Credential=AKIA1" in url
    assert "%2Fr-1%2Fs3%2F" in url


async def test_a_cache_keeps_the_bytes_of_principals_apart(write: Write, tmp_path: Path) -> None:
    """Not even one that is never revalidated, for keys that come from a file; and the owner still has them."""
    denied = Rule(fault=Fault(status=403, code="AccessDenied"), matches=signed_by_b, times=None)
    (tmp_path / "cache").mkdir()
    async with FaultServer({"bucket/k": b"of tenant A"}, [denied]) as server:
        for tenant in "ABA":
            write("credentials", f"[default]\n{KEY}".replace("{}", f"AKIATENANT{tenant}"))
            cache = ap.Operator.from_uri((tmp_path / "cache").as_uri())
            layer = ap.layers.LruCacheLayer(cache=cache, revalidate_seconds=None)
            async with cache, ap.Operator.from_uri("s3://bucket", endpoint_url=server.url).layer(layer) as operator:
                read = asyncio.create_task(operator.read("k"))
                if tenant == "A":
                    assert await read == b"of tenant A"
                else:
                    with pytest.raises(ap.PermissionDenied):
                        await read
        # Theirs, the other's, and none for the second reading of the first.
        assert len(server.requests) == 2
    stored = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert b"of tenant A" in stored
    assert b"AKIA" not in stored
    assert b"c4nary" not in stored


async def test_renewed_keys_of_another_are_refused(write: Write, tmp_path: Path) -> None:
    """The file changes while an Operator is open, and the first tenant's keys end: nothing comes under his name."""
    (tmp_path / "cache").mkdir()
    expired = Rule(fault=Fault(status=400, code="ExpiredToken"), matches=lambda request: not signed_by_b(request))
    async with FaultServer({"bucket/k": b"of tenant B"}) as server:
        write("credentials", f"[default]\n{KEY}".replace("{}", "AKIATENANTA"))
        cache = ap.Operator.from_uri((tmp_path / "cache").as_uri())
        layer = ap.layers.LruCacheLayer(cache=cache, revalidate_seconds=None)
        operator = ap.Operator.from_uri("s3://bucket", endpoint_url=server.url).layer(layer)
        async with cache, operator:
            assert not await operator.exists("other")
            write("credentials", f"[default]\n{KEY}".replace("{}", "AKIATENANTB"))
            server.add(expired)
            for _ in range(2):
                with pytest.raises(ap.PermissionDenied, match="make a new Operator"):
                    await operator.read("k")
        async with ap.Operator.from_uri("s3://bucket", endpoint_url=server.url) as renewed:
            assert await renewed.read("k") == b"of tenant B"
    stored = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert b"of tenant B" not in stored


async def test_a_failure_looks_at_no_file(write: Write, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks is known since the operator was connected: an error names him without asking the disk on the loop."""
    write("credentials", f"[default]\n{KEY}".replace("{}", "AKIA1"))
    denied = Rule(fault=Fault(status=403, code="AccessDenied"), times=None)
    async with FaultServer({"bucket/k": b"x"}, [denied]) as server:
        accessor = S3(bucket="bucket", endpoint_url=server.url).build(runtime)
        with pytest.raises(ap.PermissionDenied):
            await accessor.stat(StatRequest(path="k"))
        looked: list[str] = []
        monkeypatch.setattr(environment, "state_of", looked.append)
        with pytest.raises(ap.PermissionDenied, match="identity 'environment:"):
            await accessor.stat(StatRequest(path="k"))
        assert not looked


def signed_by_b(request: ReceivedRequest) -> bool:
    """Whether a request is the other tenant's."""
    return "AKIATENANTB" in request.target + request.headers.get("authorization", "")


def test_a_stored_fingerprint_is_slow_to_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in every entry of a cache, and a password may be a word."""
    calls = []
    scrypt = hashlib.scrypt

    def counted(*arguments: Any, **options: Any) -> bytes:
        calls.append(options["n"])
        return scrypt(*arguments, **options)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    first = Secret("a password of this test").fingerprint()
    assert Secret("a password of this test").fingerprint() == first
    assert calls == [1 << 12]
