"""``gs://`` and ``az://``: recipes that make obstore's stores, without secrets in sight."""

import os
import pickle
import sys
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.operator.from_uri import BUILT_IN
from tests.unit.services.obspec.stores import serving
from tests.unit.services.obspec.test_obspec_clouds import DATA, Cloud

KEY = "c2VjcmV0LWtleS1mb3ItdGVzdHM="


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("gs://bucket/a/b", "gs://bucket/a/b"),
        ("gcs://bucket", "gs://bucket"),
        ("az://container/a/", "az://container/a"),
        ("azure://container", "az://container"),
        ("abfss://container@account.dfs.core.windows.net/a", "az://container/a"),
        ("adl://container", "az://container"),
    ],
)
def test_a_uri_names_a_container_and_a_prefix(uri: str, url: str) -> None:
    options: dict[str, Any] = {} if "@" in uri or uri.startswith("g") else {"account_name": "account"}
    op = ap.Operator.from_uri(uri, anonymous=True, memory_bytes=64 << 20, **options)
    assert op.info.url == url
    assert op.capability.read
    assert op.options.memory_bytes == 64 << 20


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_reads_by_uri(scheme: str) -> None:
    cloud = Cloud()
    async with serving(cloud) as port:
        options: dict[str, Any] = {"account_name": "account", "account_key": KEY} if scheme == "az" else {}
        uri, address = f"{scheme}://container", f"http://127.0.0.1:{port}"
        op = ap.Operator.from_uri(uri, endpoint_url=address, anonymous=None if options else True, **options)
        async with op, op.reader("k") as reader:
            assert await reader.read_at(10, 20) == DATA[10:30]
            assert await op.read("k", offset=5, size=3) == DATA[5:8]


async def a_token() -> dict[str, Any]:
    """As obstore's providers return it."""
    return {"token": "GIVEN", "expires_at": None}


@pytest.mark.parametrize("scheme", ["gs", "az"])
async def test_a_provider_of_credentials_is_asked(scheme: str) -> None:
    """A copy of the operator asks it too."""
    cloud = Cloud()
    async with serving(cloud) as port:
        options: dict[str, Any] = {"account_name": "account"} if scheme == "az" else {}
        address = f"http://127.0.0.1:{port}"
        op = ap.Operator.from_uri(
            f"{scheme}://container", endpoint_url=address, allow_http=True, credentials=a_token, **options
        )
        copy = pickle.loads(pickle.dumps(op))
        assert copy.info == op.info
        for each in (op, copy):
            async with each:
                assert await each.read("k", offset=5, size=3) == DATA[5:8]
        assert all("authorization: bearer given" in head.lower() for head in cloud.heads)


def test_what_is_no_provider_is_refused() -> None:
    for given in ("text", {"token": "x"}, 5):
        with pytest.raises(ap.ConfigInvalid, match="credentials must be a provider of obstore"):
            ap.Operator.from_uri("gs://bucket", credentials=given)


def test_secrets_travel_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPREFETCH_ACCOUNT_KEY", KEY)
    given: list[dict[str, Any]] = [{"account_key": KEY}, {"account_key": "env:AIOPREFETCH_ACCOUNT_KEY"}, {}]
    for options in given:
        op = ap.Operator.from_uri("az://container/p", account_name="account", **options)
        assert KEY not in repr(op) + repr(op.service) + repr(op.info)
        data = pickle.dumps(op)
        assert KEY.encode() not in data
        copy = pickle.loads(data)
        assert (copy.info, copy.capability) == (op.info, op.capability)


def test_a_reference_without_a_value_is_named() -> None:
    op = ap.Operator.from_uri("az://container", account_name="a", account_key="env:NOT_SET_FOR_TESTS")
    with pytest.raises(ap.ConfigInvalid, match="NOT_SET_FOR_TESTS"):
        op.capability  # noqa: B018


@pytest.mark.parametrize("uri", ["gs://", "az:///p", "gs://bucket?sig=secret", "az://container#x"])
def test_what_names_no_container_is_refused(uri: str) -> None:
    with pytest.raises(ap.ConfigInvalid) as caught:
        ap.Operator.from_uri(uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", [scheme for scheme in BUILT_IN if scheme[0] in "ag"])
def test_without_obstore_the_extra_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ap.MissingDependency, match=r"aioprefetch\[obspec\]"):
        ap.Operator.from_uri(f"{scheme}://container")


@pytest.mark.parametrize(
    ("uri", "options", "said"),
    [
        ("az://container", {}, "Account must be specified.*account.*options.*AZURE_"),
        ("az://container", {"account_name": "a", "account_key": "not base64!"}, "Invalid Access Key"),
        ("az://container", {"account_name": "a", "sas_key": "hidden%%"}, "SAS"),
        ("gs://bucket", {"service_account_key": "{hidden"}, "service account"),
        ("gs://bucket", {"service_account": "/not/there.json"}, "/not/there.json.*No such file.*GOOGLE_"),
    ],
)
def test_options_that_cannot_work_are_explained(
    uri: str, options: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what obstore says of them; its error is not chained, since it may quote a secret."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(ap.ConfigInvalid, match=said) as caught:
        ap.Operator.from_uri(uri, **options).capability  # noqa: B018
    error = caught.value
    assert "hidden" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_a_secret_that_obstore_quotes_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **options: Any) -> None:
        raise ValueError(f"bad: {options['config']}")

    monkeypatch.setattr("obstore.store.AzureStore", refuse)
    with pytest.raises(ap.ConfigInvalid, match=r"bad: .*<account_key>") as caught:
        ap.Operator.from_uri("az://container", account_name="a", account_key=KEY).capability  # noqa: B018
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("uri", ["gs://bucket", "az://container"])
def test_keys_go_over_plain_http_to_this_machine_alone(uri: str) -> None:
    """As for S3; without keys anywhere."""
    account: dict[str, Any] = {"account_name": "a"} if uri.startswith("az") else {}
    for allow_http in (None, False):
        with pytest.raises(ap.ConfigInvalid, match=r"would send credentials without encryption.*allow_http=True"):
            ap.Operator.from_uri(uri, endpoint_url="http://store.example", allow_http=allow_http, **account)
    with pytest.raises(ap.ConfigInvalid, match="without encryption"):
        ap.Operator.from_uri(uri, endpoint_url="http://127.0.0.1:9", allow_http=False, **account)
    ap.Operator.from_uri(uri, endpoint_url="http://store.example", anonymous=True, **account)
    ap.Operator.from_uri(uri, endpoint_url="http://store.example", allow_http=True, **account)
    ap.Operator.from_uri(uri, endpoint_url="http://127.0.0.1:9", **account)


def test_misspelt_options_are_answered() -> None:
    with pytest.raises(ap.ConfigInvalid, match="its parts are options: AccountName is account_name"):
        ap.Operator.from_uri("az://container", connection_string="x")  # type: ignore[call-arg]
    with pytest.raises(ap.ConfigInvalid, match="without the name of a project"):
        ap.Operator.from_uri("gs://bucket", project="x")  # type: ignore[call-arg]
    with pytest.raises(ap.ConfigInvalid, match="did you mean 'account_key'"):
        ap.Operator.from_uri("az://container", acount_key="x")  # type: ignore[call-arg]
    with pytest.raises(ap.ConfigInvalid, match="it is called 'anonymous' here"):
        ap.Operator.from_uri("gs://bucket", skip_signature=True)  # type: ignore[call-arg]
