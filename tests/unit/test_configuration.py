"""URIs, options and variables: who wins, what is refused, and that no secret shows."""

import pickle
from typing import Any

import pytest

from aioprefetch import Operator
from aioprefetch.configuration import OPERATOR_OPTIONS, SERVICE_OPTIONS, configure, split_uri
from aioprefetch.errors import ConfigInvalid


@pytest.mark.parametrize(
    "uri", ["", "x", "/data", "data", "gopher://x", "s3:/bucket", "://x", "C:\\data", None, 5, "file:/data"]
)
def test_an_unknown_scheme_names_the_known(uri: Any) -> None:
    with pytest.raises(ConfigInvalid, match="s3://") as caught:
        Operator.from_uri(uri)
    assert caught.value.operation == "configure"


def test_the_scheme_is_not_case_sensitive_and_the_rest_is() -> None:
    assert split_uri("MEMORY://Name/Prefix") == ("memory", "Name/Prefix")
    operator = Operator.from_uri("Memory://Name/Prefix/deep")
    assert (operator.info.name, operator.info.root) == ("Name", "Prefix/deep")


def test_a_secret_in_a_bad_uri_is_not_shown() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("gopher://user:CANARY@host/x?sig=CANARY")
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://", {}),
        ("s3:///key", {}),
        ("s3://b", {"nonsense": 1}),
        ("s3://b", {"headers": {}}),
        ("file://relative/path", {}),
        ("memory://x", {"region": "x"}),
        ("memory://x", {"memory_bytes": "1"}),
        ("memory://x", {"block_bytes": 0}),
        ("memory://x", {"disk_cache": "relative/path"}),
    ],
)
def test_options_that_cannot_be(uri: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri(uri, **options)
    assert caught.value.operation
    for name in options:
        assert name in str(caught.value)


def test_keywords_win_over_variables_and_none_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPREFETCH_MEMORY_BYTES", str(1 << 25))
    monkeypatch.setenv("AIOPREFETCH_CONCURRENCY", "7")
    operator = Operator.from_uri("memory://x", memory_bytes=1 << 26, concurrency=None)
    assert operator.options.memory_bytes == 1 << 26
    assert operator.options.concurrency == 7
    assert operator.options.block_bytes == 8 << 20


@pytest.mark.parametrize(
    ("name", "text"), [("MEMORY_BYTES", "much"), ("MEMORY_BYTES", "1.5"), ("FOLLOW_SYMLINKS", "perhaps")]
)
def test_a_variable_that_makes_no_sense_is_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIOPREFETCH_{name}", text)
    with pytest.raises(ConfigInvalid, match=f"AIOPREFETCH_{name}='?{text}"):
        Operator.from_uri("file:///data")


def test_a_variable_of_another_service_does_not_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPREFETCH_REGION", "x")
    monkeypatch.setenv("AIOPREFETCH_ANONYMOUS", "perhaps")
    monkeypatch.setenv("AIOPREFETCH_BLOCK_BYTES", "")
    assert configure("memory://x", {})[1] == {}


def test_secrets_of_the_environment_stay_references(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AIOPREFETCH_{name}", f"CANARY-{name}")
    monkeypatch.setenv("AIOPREFETCH_REGION", "eu-x-1")
    operator = Operator.from_uri("s3://bucket/p")
    data = pickle.dumps(operator)
    assert b"CANARY" not in data
    assert "CANARY" not in repr(operator) + repr(operator._service) + repr(operator.info)
    assert b"AIOPREFETCH_SECRET_ACCESS_KEY" in data


def test_credentials_in_an_s3_uri_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("s3://AKIA:CANARY@bucket/key")
    assert "CANARY" not in str(caught.value)


def test_every_scheme_knows_the_options_of_an_operator() -> None:
    assert set(SERVICE_OPTIONS) >= {"s3", "s3a", "http", "https", "file", "memory"}
    service, rest = configure("memory://x", dict.fromkeys(OPERATOR_OPTIONS, 1))
    assert set(rest) == set(OPERATOR_OPTIONS)
    assert service.info.scheme == "memory"
