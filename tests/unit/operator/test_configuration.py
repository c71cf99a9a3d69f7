"""URIs, options and variables: their order, invalid ones, and no secret in a message."""

import pickle
from typing import Any, TypeVar, cast

import pytest

from aioprefetch import Operator
from aioprefetch.errors import ConfigInvalid, InvalidArgument
from aioprefetch.layers import RetryLayer, TimeoutLayer
from aioprefetch.operator.from_uri import (
    _HINTS,
    _OTHER_NAMES,
    OPERATOR_OPTIONS,
    _check_variable,
    configure,
    service_options,
    split_uri,
    store_options,
    supported_schemes,
)
from aioprefetch.reader.options import READER_OPTIONS
from aioprefetch.services import S3
from aioprefetch.sync import open as open_file

L = TypeVar("L")


@pytest.mark.parametrize(
    "uri", ["", "x", "/data", "data", "gopher://x", "s3:/bucket", "://x", "C:\\data", None, 5, "file:/data"]
)
def test_an_unknown_scheme_names_the_supported(uri: Any) -> None:
    with pytest.raises(ConfigInvalid, match="supported: s3, s3a, http, https, file, memory") as caught:
        Operator.from_uri(uri)
    assert caught.value.operation == "configure"


def test_the_unknown_scheme_is_named() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("Gopher://x")
    assert caught.value.message == "unknown scheme 'gopher'; supported: s3, s3a, http, https, file, memory"


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
        *(("memory://x", {"budget_wait_seconds": value}) for value in (0, -1, "60", True, float("inf"), float("nan"))),
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
    monkeypatch.setenv("AIOPREFETCH_BUDGET_WAIT_SECONDS", "2.5")
    operator = Operator.from_uri("memory://x", memory_bytes=1 << 26, concurrency=None)
    assert operator.options.memory_bytes == 1 << 26
    assert operator.options.concurrency == 7
    assert operator.options.budget_wait_seconds == 2.5
    assert operator.options.block_bytes == 8 << 20


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MEMORY_BYTES", "much"),
        ("MEMORY_BYTES", "1.5"),
        ("FOLLOW_SYMLINKS", "perhaps"),
        ("BUDGET_WAIT_SECONDS", "a minute"),
    ],
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
    assert "CANARY" not in repr(operator) + repr(operator.service) + repr(operator.info)
    assert b"AIOPREFETCH_SECRET_ACCESS_KEY" in data


@pytest.mark.parametrize(
    "given", [{"access_key_id": "AKIA", "secret_access_key": "own"}, {"profile": "own"}, {"anonymous": True}]
)
def test_credentials_of_keywords_and_of_variables_do_not_mix(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of two principals. Other options still come from variables."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION"):
        monkeypatch.setenv(f"AIOPREFETCH_{name}", "of-a-variable")
    service = cast("S3", configure("s3://bucket", given)[0])
    names = ("access_key_id", "secret_access_key", "session_token", "profile")
    assert {name for name in names if getattr(service, name) is not None} == given.keys() - {"anonymous"}
    assert (service.anonymous, service.region) == (given.get("anonymous", False), "of-a-variable")


def test_credentials_in_an_s3_uri_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("s3://AKIA:CANARY@bucket/key")
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "name", "says"),
    [
        ("s3://b", "endpont_url", "did you mean 'endpoint_url'?"),
        ("s3://b", "Endpoint-URL", "did you mean 'endpoint_url'?"),
        ("memory://b", "memory_byte", "did you mean 'memory_bytes'?"),
        ("s3://b", "anon", "called 'anonymous'"),
        ("s3://b", "key", "called 'access_key_id'"),
        ("s3://b", "aws_access_key_id", "called 'access_key_id'"),
        ("s3://b", "secret", "called 'secret_access_key'"),
        ("s3a://b", "token", "called 'session_token'"),
        ("s3://b", "endpoint", "called 'endpoint_url'"),
        ("s3://b", "region_name", "called 'region'"),
        ("https://h", "password", "called 'auth'"),
        ("file:///x", "default_block_size", "called 'block_bytes'"),
        ("s3://b", "client_kwargs", "options of their own, such as endpoint_url"),
        ("s3://b", "max_retries", "called 'attempts_max'"),
        ("memory://b", "retry_config", "RetryLayer"),
        ("s3://b", "connect_timeout", "called 'connect_timeout_seconds'"),
        ("https://h", "read_timeout", "called 'read_timeout_seconds'"),
        ("s3://b", "multipart_chunksize", "called 'part_bytes'"),
        ("s3://b", "timeout", "read_timeout_seconds"),
        ("s3://b", "policy", "'policy' is an option of Operator.reader"),
        ("memory://b", "cache_type", "'policy' is an option of Operator.reader"),
        ("s3://b", "connections_max", "of ap.services.S3"),
        ("file:///x", "fsync", "of ap.services.Fs"),
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_is_meant(uri: str, name: str, says: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri(uri, **{name: 1})
    assert repr(name) in caught.value.message
    assert says in caught.value.message
    assert caught.value.message.endswith(", ".join(sorted(store_options(uri.partition(":")[0]))))


def test_every_other_name_leads_to_an_option_that_there_is() -> None:
    known = READER_OPTIONS.union(*map(store_options, supported_schemes()))
    assert set(_OTHER_NAMES.values()) <= known
    assert not (_OTHER_NAMES.keys() | _HINTS.keys()) & known


@pytest.mark.parametrize("uri", ["gs://b/p", "gcs://b", "az://c", "abfss://c"])
def test_stores_of_obstores_are_shown_the_way(uri: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"ap\.services\.ObspecStore"):
        Operator.from_uri(uri)


def test_a_path_is_shown_as_a_uri() -> None:
    with pytest.raises(ConfigInvalid, match="file:///data/x"):
        Operator.from_uri("/data/x")


@pytest.mark.parametrize(
    ("text", "says"), [("1GB", "1 << 30"), ("64 MiB", "64 << 20"), ("512k", "512 << 10"), ("5", "")]
)
def test_a_size_is_a_number_of_bytes(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memory_bytes", "block_bytes"):
        with pytest.raises(ConfigInvalid, match="number of bytes") as caught:
            Operator.from_uri("memory://x", **{name: text})
        assert f"{name}={text!r}" in caught.value.message
        assert says in caught.value.message
    monkeypatch.setenv("AIOPREFETCH_MEMORY_BYTES", text)
    if says:
        with pytest.raises(ConfigInvalid, match=says):
            Operator.from_uri("memory://x")


URIS = {"s3": "s3://bucket", "http": "http://h/", "file": "file:///x", "memory": "memory://x"}
# What is right for an option, by type.
ALLOWED: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("region", "profile", "ca_bundle", "auth"), str),
    **dict.fromkeys(("anonymous", "allow_http", "request_payer", "follow_redirects", "follow_symlinks"), bool),
    **dict.fromkeys(("block_bytes", "prefetch_blocks", "concurrency", "attempts_max", "drain_bytes"), int),
    **dict.fromkeys(("budget_wait_seconds", "retry_seconds"), (int, float)),
    **dict.fromkeys(("connect_timeout_seconds", "read_timeout_seconds"), (int, float)),
}


@pytest.mark.parametrize("scheme", URIS)
def test_an_option_of_a_wrong_type_is_refused_by_name(scheme: str) -> None:
    for name in store_options(scheme):
        for value in (5, 1.5, True, "nonsense", b"x", ["x"], {"a": 1}, object()):
            right = ALLOWED.get(name, ())
            if isinstance(value, right) and (type(value) is not bool or right is bool):
                continue
            options: dict[str, Any] = {name: value}
            if name in ("access_key_id", "secret_access_key"):
                if isinstance(value, str):
                    continue
                options = {"access_key_id": value, "secret_access_key": value}
            with pytest.raises(InvalidArgument) as caught:
                Operator.from_uri(URIS[scheme], **options)
            assert caught.value.operation == "configure"


def test_every_scheme_knows_the_options_of_an_operator() -> None:
    service, rest = configure("memory://x", dict.fromkeys(OPERATOR_OPTIONS, 1))
    assert set(rest) == set(OPERATOR_OPTIONS)
    assert service.info.scheme == "memory"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("AIOPREFETCH_BLOKC_BYTES", "; did you mean AIOPREFETCH_BLOCK_BYTES?"),
        ("AIOPREFETCH_MAX_CONCURRENCY", "; did you mean AIOPREFETCH_CONCURRENCY?"),
        ("AIOPREFETCH_HEADERS", "; give headers= as an option"),
    ],
)
def test_a_variable_that_nothing_reads_is_warned_of_once(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "CANARY")
    _check_variable.cache_clear()
    for _ in range(3):
        Operator.from_uri("memory://x")
    assert [text for text in caplog.messages if variable in text] == [
        f"the environment variable {variable} is read by nothing{meant}"
    ]


def test_a_variable_that_is_like_no_option_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIOPREFETCH_NO_SKIPS", "1")
    _check_variable.cache_clear()
    Operator.from_uri("memory://x")
    assert caplog.messages == []


def test_variables_of_other_schemes_are_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (*service_options("s3"), *OPERATOR_OPTIONS):
        if name != "proxies":
            monkeypatch.setenv(f"AIOPREFETCH_{name.upper()}", "")
    _check_variable.cache_clear()
    Operator.from_uri("memory://x")
    assert [text for text in caplog.messages if "AIOPREFETCH_REGION" in text or "_BYTES" in text] == []


# The options of retry, timeouts and parts: where they apply, a value, and the place where it arrives.
LATER: list[tuple[str, str, Any]] = [
    ("memory://x", "attempts_max", 7),
    ("file:///x", "attempts_max", 1),
    ("s3://bucket", "retry_seconds", 2.5),
    ("http://h/", "retry_seconds", 0.5),
    ("s3://bucket", "connect_timeout_seconds", 2.5),
    ("s3a://bucket", "read_timeout_seconds", 75.5),
    ("https://h/", "connect_timeout_seconds", 90.5),
    ("https://h/", "read_timeout_seconds", 0.5),
    ("s3://bucket", "part_bytes", 64 << 20),
]


def arrived(operator: Operator, name: str) -> Any:
    """The value of an option, where it works."""
    if name == "attempts_max":
        return layer_of(operator, RetryLayer).attempts_max
    if name == "retry_seconds":
        return layer_of(operator, RetryLayer).total_seconds
    return getattr(operator.service, name)


def layer_of(operator: Operator, kind: type[L]) -> L:
    """The layer of a type in the stack."""
    return next(layer for layer in operator.layers if isinstance(layer, kind))


@pytest.mark.parametrize(("uri", "name", "value"), LATER)
def test_options_of_retry_timeouts_and_parts(uri: str, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a keyword, as a variable, and in ``ap.sync.open``; ``None`` is the default."""
    assert arrived(Operator.from_uri(uri, **{name: value}), name) == value
    default = arrived(Operator.from_uri(uri), name)
    assert arrived(Operator.from_uri(uri, **{name: None}), name) == default != value
    with open_file(f"{uri.rstrip('/')}/dir/k", **{name: value}) as file:
        assert arrived(file.operator, name) == value
    monkeypatch.setenv(f"AIOPREFETCH_{name.upper()}", str(value))
    assert arrived(Operator.from_uri(uri), name) == value
    assert arrived(Operator.from_uri(uri, **{name: default}), name) == default
    with open_file(f"{uri.rstrip('/')}/dir/k") as file:
        assert arrived(file.operator, name) == value


def test_the_defaults_are_those_of_the_design() -> None:
    operator = Operator.from_uri("s3://bucket")
    found = {name: arrived(operator, name) for _, name, _ in LATER}
    assert found == {
        "attempts_max": 4,
        "retry_seconds": 60.0,
        "connect_timeout_seconds": 5.0,
        "read_timeout_seconds": 20.0,
        "part_bytes": 8 << 20,
    }


@pytest.mark.parametrize(
    ("uri", "name", "value"),
    [
        *(("memory://x", "attempts_max", value) for value in (0, -1, 1.5, True, "4")),
        *(("memory://x", "retry_seconds", value) for value in (-1, "60", True, float("inf"), float("nan"))),
        *(("s3://bucket", "connect_timeout_seconds", value) for value in (0, -1, "5", True)),
        *(("http://h/", "read_timeout_seconds", value) for value in (0, -1, "5", True)),
        *(("s3://bucket", "part_bytes", value) for value in (0, (5 << 20) - 1, "8 MiB", True)),
    ],
)
def test_wrong_values_of_retry_timeouts_and_parts(uri: str, name: str, value: Any) -> None:
    """Option and value are named, by ``from_uri`` and by ``ap.sync.open``."""
    for attempt in (lambda: Operator.from_uri(uri, **{name: value}), lambda: open_file(f"{uri}k/k", **{name: value})):
        with pytest.raises(ConfigInvalid) as caught:
            attempt()
        assert name in caught.value.message
        assert repr(value) in caught.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ATTEMPTS_MAX", "4.5"),
        ("RETRY_SECONDS", "soon"),
        ("CONNECT_TIMEOUT_SECONDS", "5s"),
        ("READ_TIMEOUT_SECONDS", "x"),
        ("PART_BYTES", "8MB"),
    ],
)
def test_wrong_variables_of_retry_timeouts_and_parts(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIOPREFETCH_{name}", text)
    with pytest.raises(ConfigInvalid, match=f"AIOPREFETCH_{name}='{text}'"):
        Operator.from_uri("s3://bucket")


@pytest.mark.parametrize("uri", ["file:///x", "memory://x"])
def test_a_store_without_connections_has_no_timeouts_and_no_parts(uri: str) -> None:
    for name in ("connect_timeout_seconds", "read_timeout_seconds", "part_bytes"):
        with pytest.raises(ConfigInvalid, match=f"unknown option '{name}'"):
            Operator.from_uri(uri, **{name: 8 << 20})


def test_no_layer_ends_a_wait_that_the_options_allow() -> None:
    """A long wait for a response is a matter of the service, and its Timeout grows with it."""
    timeout = layer_of(Operator.from_uri("s3://b-1", connect_timeout_seconds=50, read_timeout_seconds=90), TimeoutLayer)
    assert (timeout.timeout_seconds, timeout.stall_seconds) == (140.0, 90.0)
    assert layer_of(Operator.from_uri("s3://b-1", read_timeout_seconds=1), TimeoutLayer) == TimeoutLayer()
    assert layer_of(Operator.from_uri("memory://x"), TimeoutLayer) == TimeoutLayer()
