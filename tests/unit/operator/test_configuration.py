"""URIs, options and variables: their order, invalid ones, and no secret in a message."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from aioprefetch import Operator
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidType
from aioprefetch.layers import LruCacheLayer, RetryLayer, TimeoutLayer
from aioprefetch.operator.from_uri import (
    OPERATOR_OPTIONS,
    _check_variable,
    configure,
    split_uri,
    store_options,
)
from aioprefetch.polars import scan_parquet
from aioprefetch.runtime.options import DiskCache
from aioprefetch.services import S3, Http, Memory
from aioprefetch.sync import open as open_file
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of

L = TypeVar("L")


@each_of("uri", ["", "x", "/data", "data", "gopher://x", "s3:/bucket", "://x", "C:\\data", None, 5, "file:/data"])
def test_an_unknown_scheme_names_the_supported(uri: Any) -> None:
    with pytest.raises(ConfigInvalid, match="supported: s3, s3a, http, https, file, memory") as caught:
        Operator.from_uri(uri)
    assert caught.value.operation == "configure"


@each_of(
    ("uri", "meant"),
    [("/data", "file:///data"), ("s3:/bucket/k", "s3://bucket/k"), ("file:/data", "file:///data"), ("x:/y", "")],
)
def test_a_uri_that_lacks_a_slash_is_answered_with_a_whole_one(uri: str, meant: str) -> None:
    with pytest.raises(ConfigInvalid, match="supported:") as caught:
        Operator.from_uri(uri)
    assert caught.value.message.endswith(f"; {meant!r} may be meant" if meant else "adl")


@each_of("opened", [Operator.from_uri, open_file, scan_parquet])
def test_a_url_that_became_a_path_is_no_local_file(opened: Callable[[Path], object]) -> None:
    """``Path("s3://bucket/k")`` has one slash: as a local path it would be missing, or a directory called ``s3:``."""
    with pytest.raises(ConfigInvalid, match=r"one slash after its scheme.*give the URL as a string, 's3://bucket/k'"):
        opened(Path("s3://bucket/k"))


def test_the_unknown_scheme_is_named() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("Gopher://x")
    supported = "s3, s3a, http, https, file, memory, gs, gcs, az, azure, abfs, abfss, adl"
    assert caught.value.message == f"unknown scheme 'gopher'; supported: {supported}"


def test_the_scheme_is_not_case_sensitive_and_the_rest_is() -> None:
    assert split_uri("MEMORY://Name/Prefix") == ("memory", "Name/Prefix")
    operator = Operator.from_uri("Memory://Name/Prefix/deep")
    assert (operator.info.name, operator.info.root) == ("Name", "Prefix/deep")


def test_a_secret_in_a_bad_uri_is_not_shown() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("gopher://user:CANARY@host/x?sig=CANARY")
    assert "CANARY" not in str(caught.value)


@checks("reliability:I22")
@each_of(
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
    ("uri", "name", "text"),
    [
        *(("file:///data", "MEMORY_BYTES", text) for text in ("much", "1.5", "64 MiB/s")),
        ("file:///data", "FOLLOW_SYMLINKS", "perhaps"),
        ("file:///data", "BUDGET_WAIT_SECONDS", "a minute"),
        ("s3://bucket", "ATTEMPTS_MAX", "4.5"),
        ("s3://bucket", "RETRY_SECONDS", "soon"),
        ("s3://bucket", "CONNECT_TIMEOUT_SECONDS", "5s"),
        ("s3://bucket", "PART_BYTES", "8 parts"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(
    uri: str, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIOPREFETCH_{name}", text)
    with pytest.raises(ConfigInvalid, match=f"AIOPREFETCH_{name}='{text}' is not "):
        Operator.from_uri(uri)


@pytest.mark.parametrize(
    ("name", "text"), [("SIGNING", "query"), ("ADDRESSING_STYLE", "dns"), ("CONCURRENCY", "0"), ("PART_BYTES", "1KiB")]
)
def test_a_variable_with_a_value_that_cannot_be_is_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIOPREFETCH_{name}", text)
    with pytest.raises(ConfigInvalid, match=name.lower()) as caught:
        Operator.from_uri("s3://bucket")
    assert caught.value.context == {"variables": f"AIOPREFETCH_{name}"}
    options: Any = {name.lower(): text}
    with pytest.raises(ConfigInvalid, match=name.lower()) as caught:
        Operator.from_uri("s3://bucket", **options)
    assert caught.value.context == {}


def test_a_variable_that_is_not_wrong_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the message tells its option among others."""
    monkeypatch.setenv("AIOPREFETCH_BLOCK_BYTES", "4MiB")
    monkeypatch.setenv("AIOPREFETCH_CONCURRENCY", "3")
    wrong: list[dict[str, Any]] = [{"blok": 1}, {"concurrency": -1}, {"retry_seconds": -1}]
    for options in wrong:
        with pytest.raises(ConfigInvalid) as caught:
            Operator.from_uri("memory://x", **options)
        assert "variables" not in caught.value.context, options
    monkeypatch.setenv("AIOPREFETCH_CONCURRENCY", "0")
    monkeypatch.setenv("AIOPREFETCH_PREFETCH_BLOCKS", "-1")
    with pytest.raises(ConfigInvalid) as caught:
        Operator.from_uri("memory://x")
    name = caught.value.message.split()[0].upper()  # One error tells one of them.
    assert caught.value.context == {"variables": f"AIOPREFETCH_{name}"}


def test_variables_that_do_not_go_with_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOPREFETCH_ACCESS_KEY_ID", "id")
    with pytest.raises(ConfigInvalid, match="without secret_access_key") as caught:
        Operator.from_uri("s3://bucket")
    assert caught.value.context == {"variables": "AIOPREFETCH_ACCESS_KEY_ID"}
    monkeypatch.setenv("AIOPREFETCH_BLOCK_BYTES", "4MiB")
    with pytest.raises(ConfigInvalid, match="memory_bytes must be at least block_bytes=4194304") as caught:
        Operator.from_uri("memory://x", memory_bytes="2MiB")
    assert caught.value.context == {"variables": "AIOPREFETCH_BLOCK_BYTES"}


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


def test_a_path_of_this_machine_is_a_store_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of a path, absolute or not, with any characters; text stays a URI."""
    monkeypatch.chdir(tmp_path)
    name = "a#b?c%20 d.txt"
    (tmp_path / name).write_bytes(b"bytes")
    for directory in (tmp_path, Path(), Path("x/..")):
        assert Operator.from_uri(directory).info.url == f"file://{tmp_path}"
    for file in (tmp_path / name, Path(name)):
        with open_file(file) as opened:
            assert opened.read() == b"bytes"
    with open_file(tmp_path / "written.txt", "w") as text:
        text.write("text")
    assert (tmp_path / "written.txt").read_text() == "text"
    with pytest.raises(InvalidType, match="a URL or path must be a string"):
        open_file(Path("k"), operator=Operator.from_uri("memory://x"))


def test_files_of_a_service_may_be_paths(tmp_path: Path) -> None:
    certificates = tmp_path / "ca.pem"
    assert S3(bucket="bucket", ca_bundle=certificates) == S3(bucket="bucket", ca_bundle=str(certificates))
    assert Http("https://h/", ca_bundle=certificates) == Http("https://h/", ca_bundle=str(certificates))
    assert Operator.from_uri("memory://x", disk_cache=tmp_path).options.disk_cache == DiskCache(str(tmp_path))


def test_a_path_is_shown_as_a_uri() -> None:
    with pytest.raises(ConfigInvalid, match="file:///data/x"):
        Operator.from_uri("/data/x")


@pytest.mark.parametrize(("text", "count"), [("1GB", 1 << 30), ("64 MiB", 64 << 20), ("16384k", 16 << 20)])
def test_a_size_may_be_text(text: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an option of the operator and of its service, as a variable, and in what opens a file."""
    for name in ("memory_bytes", "block_bytes", "drain_bytes"):
        options: dict[str, Any] = {"memory_bytes": 1 << 30, name: text}
        assert getattr(Operator.from_uri("memory://x", **options).options, name) == count
        assert getattr(Operator(Memory(), **options).options, name) == count
        with open_file("memory://x/k", **options) as file:
            assert getattr(file.operator.options, name) == count
    assert cast("S3", Operator.from_uri("s3://bucket", part_bytes=text).service).part_bytes == count
    assert Operator.from_uri("s3://bucket", part_bytes=text).capability.write_part_bytes == count
    assert Http("http://h/", skip_bytes_max=text).skip_bytes_max == count
    assert RetryLayer(progress_bytes=text).progress_bytes == count
    assert DiskCache("/cache", capacity_bytes=text) == DiskCache("/cache", capacity_bytes=count)
    cache = LruCacheLayer(cache=Operator.from_uri("memory://"), capacity_bytes=text, object_bytes_max=text)
    assert (cache.capacity_bytes, cache.object_bytes_max) == (count, count)
    monkeypatch.setenv("AIOPREFETCH_MEMORY_BYTES", text)
    assert Operator.from_uri("memory://x").options.memory_bytes == count


@each_of("text", ["much", "1.5", "-1", "64 MiB/s", "1e6", "0.1 KiB", ""])
def test_a_text_that_is_no_size_is_answered_with_one(text: str) -> None:
    """By each door, with option and value."""
    doors: dict[str, Callable[[], object]] = {
        "memory_bytes": lambda: Operator.from_uri("memory://x", memory_bytes=text),
        "block_bytes": lambda: Operator.from_uri("memory://x").reader("k", block_bytes=text),
        "buffer_bytes": lambda: Operator.from_uri("memory://x").reader("k", buffer_bytes=text),
        "footer_cache": lambda: Operator.from_uri("memory://x").reader("k", footer_cache=text),
        "part_bytes": lambda: S3(bucket="bucket", part_bytes=text),
        "skip_bytes_max": lambda: Http("http://h/", skip_bytes_max=text),
        "progress_bytes": lambda: RetryLayer(progress_bytes=text),
        "capacity_bytes": lambda: DiskCache("/cache", capacity_bytes=text),
    }
    for name, door in doors.items():
        with pytest.raises(ConfigInvalid, match="a number of bytes, such as 67108864 or '64 MiB'") as caught:
            door()
        assert name in caught.value.message
        assert f"={text!r}" in caught.value.message


URIS = {"s3": "s3://bucket", "http": "http://h/", "file": "file:///x", "memory": "memory://x"}
# What is right for an option, by type.
ALLOWED: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("region", "profile", "ca_bundle", "auth"), str),
    **dict.fromkeys(
        ("anonymous", "allow_http", "request_payer", "follow_redirects", "follow_symlinks", "decode"), bool
    ),
    **dict.fromkeys(("block_bytes", "prefetch_blocks", "concurrency", "attempts_max", "drain_bytes"), int),
    **dict.fromkeys(("budget_wait_seconds", "retry_seconds"), (int, float)),
    **dict.fromkeys(("connect_timeout_seconds", "read_timeout_seconds"), (int, float)),
}


@each_of("scheme", URIS)
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
        ("AIOPREFETCH_PROXIES", "; give proxies= as an option"),
    ],
)
def test_a_variable_that_nothing_reads_is_warned_of_once(
    variable: str, meant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "CANARY")
    _check_variable.cache_clear()
    for _ in range(3):
        Operator.from_uri("memory://x")
        Operator.from_uri("s3://bucket")
        Operator.from_uri("https://host/")
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
    for name in store_options("s3"):
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


@each_of(
    ("uri", "name", "value"),
    [
        *(("memory://x", "attempts_max", value) for value in (0, -1, 1.5, True, "4")),
        *(("memory://x", "retry_seconds", value) for value in (-1, "60", True, float("inf"), float("nan"))),
        *(("s3://bucket", "connect_timeout_seconds", value) for value in (0, -1, "5", True)),
        *(("http://h/", "read_timeout_seconds", value) for value in (0, -1, "5", True)),
        *(("s3://bucket", "part_bytes", value) for value in (0, (5 << 20) - 1, "8 MiB each", True)),
    ],
)
def test_wrong_values_of_retry_timeouts_and_parts(uri: str, name: str, value: Any) -> None:
    """Option and value are named, by ``from_uri`` and by ``ap.sync.open``."""
    for attempt in (lambda: Operator.from_uri(uri, **{name: value}), lambda: open_file(f"{uri}k/k", **{name: value})):
        with pytest.raises(ConfigInvalid) as caught:
            attempt()
        assert name in caught.value.message
        assert repr(value) in caught.value.message


@pytest.mark.parametrize("uri", ["file:///x", "memory://x"])
def test_a_store_without_connections_has_no_timeouts_and_no_parts(uri: str) -> None:
    for name in ("connect_timeout_seconds", "read_timeout_seconds", "part_bytes"):
        with pytest.raises(ConfigInvalid, match=f"unknown option '{name}'"):
            Operator.from_uri(uri, **{name: 8 << 20})  # type: ignore[arg-type]


def test_no_layer_ends_a_wait_that_the_options_allow() -> None:
    """A long wait for a response is a matter of the service, and its Timeout grows with it."""
    timeout = layer_of(Operator.from_uri("s3://b-1", connect_timeout_seconds=50, read_timeout_seconds=90), TimeoutLayer)
    assert (timeout.timeout_seconds, timeout.stall_seconds) == (140.0, 90.0)
    assert layer_of(Operator.from_uri("s3://b-1", read_timeout_seconds=1), TimeoutLayer) == TimeoutLayer()
    assert layer_of(Operator.from_uri("memory://x"), TimeoutLayer) == TimeoutLayer()
