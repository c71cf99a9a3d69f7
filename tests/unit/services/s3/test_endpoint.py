"""Where requests go: botocore's endpoints for any bucket, region and style, and what botocore is asked for."""

import os
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.utils import get_environ_proxies
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch.errors import ConfigInvalid
from aioprefetch.services.proxies import Proxies
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.endpoint import endpoint_of, why_asked
from aioprefetch.services.s3.signed_targets import configuration_of
from aioprefetch.services.s3.sigv4 import encoded_path
from aioprefetch.transport.origin import Origin
from tests.profile import each_of

KEYS: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "key"}
BUCKETS = ["plain", "with-dash", "a.b", "a_b", "1a2", "x" * 63, "bkt-s3alias"]
REGIONS = ["", "us-east-1", "eu-west-1", "ap-southeast-7", "cn-north-1", "us-gov-east-1"]
ADDRESSES = ["http://127.0.0.1:9000", "http://[::1]:9000"]
ENDPOINTS = [
    "",
    *("https://o.example", "http://o.example:88", "https://o.example/base"),
    *(*ADDRESSES, "http://localhost:9", "https://s3.eu-west-1.amazonaws.com"),
]
SESSION: Any = botocore.session.get_session()


class Sent(Exception):
    """Botocore would send a request."""


def by_botocore(bucket: str, region: str, endpoint_url: str, style: str, key: str | None) -> tuple[str, str]:
    """The URL to which botocore would send a request, and the region that it signs for."""
    sent: list[Any] = []

    def stop(request: Any, **_: Any) -> None:
        sent.append(request)
        raise Sent

    client: Any = SESSION.create_client(  # One session reads botocore's tables once.
        "s3",
        region_name=region or None,
        endpoint_url=endpoint_url or None,
        aws_access_key_id="id",
        aws_secret_access_key="key",
        config=Config(s3={"addressing_style": style}),
    )
    client.meta.events.register_first("before-send.s3", stop)
    with pytest.raises(Sent):
        client.list_objects_v2(Bucket=bucket) if key is None else client.get_object(Bucket=bucket, Key=key)
    client.close()
    scope = sent[0].headers["Authorization"].decode().partition("Credential=")[2].partition(",")[0]
    return sent[0].url.partition("?")[0], scope.split("/")[2]


@given(
    bucket=st.sampled_from(BUCKETS),
    region=st.sampled_from(REGIONS),
    endpoint_url=st.sampled_from(ENDPOINTS),
    style=st.sampled_from(["auto", "path", "virtual"]),
    key=st.none() | st.sampled_from(["k", "a//b +%~é(')*!", "/leading", "trailing/"]),
)
def test_endpoints_are_those_of_botocore(
    bucket: str, region: str, endpoint_url: str, style: str, key: str | None
) -> None:
    """Host, port and path, of keys and of the bucket, and the region of the signature."""
    ours = endpoint_of(bucket, region, endpoint_url, style)
    url = f"{ours.origin}{ours.bucket_path if key is None else ours.root + encoded_path(key)}"
    if bucket == "a.b" and endpoint_url in ADDRESSES:
        style = "path"  # Of the bucket and the address botocore makes a name that no host can have.
    assert (url, ours.region) == by_botocore(bucket, region, endpoint_url, style, key)


PLAIN: dict[str, Any] = {"bucket": "b-1", "region": "", "endpoint_url": "", "asked": (), "problem": ""}
SPECIAL = "a directory bucket, or an access point"
ARN = "arn:aws:s3:us-west-2:123456789012:accesspoint/ap"


@each_of(
    ("facts", "why"),
    [
        ({}, ""),
        ({"region": "cn-north-1"}, ""),
        ({"region": "us-gov-west-1"}, ""),
        ({"region": "anything", "endpoint_url": "http://127.0.0.1:9"}, ""),
        ({"bucket": "name-s3alias"}, ""),
        ({"region": "us-iso-east-1"}, "a region of another partition"),
        ({"region": "eusc-de-east-1"}, "a region of another partition"),
        ({"region": "fips-us-east-1"}, "a region of another partition"),
        ({"region": "aws-global"}, "a region of another partition"),
        ({"bucket": "name--usw2-az1--x-s3"}, SPECIAL),
        ({"bucket": "name--ol-s3"}, SPECIAL),
        ({"bucket": "name--op-s3"}, SPECIAL),
        ({"bucket": ARN}, SPECIAL),
        ({"endpoint_url": "https://s3-accelerate.amazonaws.com"}, "transfer acceleration"),
        ({"endpoint_url": "https://s3-accelerate.dualstack.amazonaws.com"}, "transfer acceleration"),
        ({"asked": ("FIPS endpoints",)}, "FIPS endpoints"),
        ({"problem": "a profile that is in no configuration file"}, "a profile that is in no configuration file"),
    ],
)
def test_what_botocore_is_asked_for(facts: dict[str, Any], why: str) -> None:
    """Each row of the list, and what looks like one and is none."""
    assert why_asked(**{**PLAIN, **facts}) == why


SETTINGS = {
    "dual-stack endpoints": ("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint", "true"),
    "FIPS endpoints": ("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint", "true"),
    "transfer acceleration": ("", "s3.use_accelerate_endpoint", "true"),
    "regions of ARNs": ("AWS_S3_USE_ARN_REGION", "s3.use_arn_region", "True"),
    "a kind of endpoint for us-east-1": (
        "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT",
        "s3.us_east_1_regional_endpoint",
        "regional",
    ),
    "botocore's data from another folder": ("AWS_DATA_PATH", "data_path", "elsewhere"),
}
REFUSED = {
    "unsigned payloads": ("", "s3.payload_signing_enabled", "false"),
    "signatures for several regions": ("AWS_SIGV4A_SIGNING_REGION_SET", "sigv4a_signing_region_set", "*"),
    "another kind of signature": ("AWS_AUTH_SCHEME_PREFERENCE", "auth_scheme_preference", "sigv4a, sigv4"),
}


def profile_with(entry: str, value: str) -> str:
    """A file of AWS with one setting."""
    block, _, name = entry.rpartition(".")
    return f"[default]\n{block} =\n  {name} = {value}\n" if block else f"[default]\n{name} = {value}\n"


def asked(service: S3) -> tuple[str, ...]:
    return service.ambient(files=True).asked


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_found_in_variables_and_in_a_profile(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, entry, value = SETTINGS[name]
    service = S3(bucket="bucket", **KEYS)
    assert asked(service) == ()
    if variable:
        monkeypatch.setenv(variable, value)
        assert asked(service) == (name,)
        monkeypatch.delenv(variable)
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(profile_with(entry, value))
    assert asked(service) == (name,)


def test_settings_that_are_off_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """``false`` is what we do."""
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "false")
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(profile_with("s3.use_accelerate_endpoint", "false"))
    assert configuration_of(S3(bucket="bucket", **KEYS)).why_asked == ""


@pytest.mark.parametrize("name", REFUSED)
def test_settings_for_other_signatures_are_refused_by_their_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable, entry, value = REFUSED[name]
    service = S3(bucket="bucket", **KEYS)
    if variable:
        monkeypatch.setenv(variable, value)
        with pytest.raises(ConfigInvalid, match=variable):
            configuration_of(service)
        monkeypatch.delenv(variable)
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(profile_with(entry, value))
    with pytest.raises(ConfigInvalid, match=entry.rpartition(".")[2]):
        configuration_of(service)


@each_of(
    ("entry", "value"),
    [
        ("s3.payload_signing_enabled", "true"),
        ("auth_scheme_preference", "sigv4, sigv4a"),
        ("auth_scheme_preference", "httpBearerAuth"),
    ],
)
def test_settings_for_our_own_signatures_are_no_matter(entry: str, value: str) -> None:
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(profile_with(entry, value))
    assert configuration_of(S3(bucket="bucket", **KEYS)).why_asked == ""


def test_tls_within_tls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that speaks TLS is for stores that do not."""
    with pytest.raises(ConfigInvalid, match="proxies"):
        configuration_of(S3(bucket="bucket", proxies={"https": "https://proxy:3128"}, **KEYS))
    monkeypatch.setenv("https_proxy", "https://proxy:3128")
    with pytest.raises(ConfigInvalid, match="HTTPS_PROXY"):
        configuration_of(S3(bucket="bucket", **KEYS))
    plain = S3(bucket="bucket", endpoint_url="http://127.0.0.1:9", proxies={"http": "https://proxy:3128"}, **KEYS)
    assert configuration_of(plain).proxy is not None


def test_region_style_and_authorities_of_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the recipe and the variables have none of their own."""
    Path(os.environ["AWS_CONFIG_FILE"]).write_text(
        "[default]\nregion = eu-west-3\nca_bundle = /of/the/profile\ns3 =\n  addressing_style = path\n"
    )
    found = configuration_of(S3(bucket="bucket", **KEYS))
    assert (str(found.endpoint.origin), found.endpoint.root) == ("https://s3.eu-west-3.amazonaws.com", "/bucket/")
    assert (found.endpoint.region, found.ca_bundle) == ("eu-west-3", "/of/the/profile")
    own = configuration_of(S3(bucket="bucket", region="eu-west-1", addressing_style="virtual", **KEYS))
    assert str(own.endpoint.origin) == "https://bucket.s3.eu-west-1.amazonaws.com"
    monkeypatch.setenv("AWS_CA_BUNDLE", "/of/a/variable")
    assert configuration_of(S3(bucket="bucket", **KEYS)).ca_bundle == "/of/a/variable"


@pytest.mark.parametrize("region", ["us-east-1\n", " eu-west-1", "us-east-1\r\nX-Injected: 1\r\nx: "])
def test_a_region_of_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch, region: str) -> None:
    """It stands in the headers of each request."""
    monkeypatch.setenv("AWS_REGION", region)
    with pytest.raises(ConfigInvalid, match="region"):
        configuration_of(S3(bucket="plain", endpoint_url="http://localhost:9", **KEYS))


@pytest.mark.parametrize("url", ["localhost:9000", "http://localhost:x", "myhost", "http://" + "ü" * 64])
def test_an_endpoint_of_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(ConfigInvalid, match="endpoint_url"):
        configuration_of(S3(bucket="plain", **KEYS))


def test_a_host_beyond_ascii_is_sent_as_it_is_resolved() -> None:
    assert endpoint_of("plain", "", "http://bücher.example:9000", "path").origin.netloc == "xn--bcher-kva.example:9000"


@pytest.mark.parametrize("no_proxy", ["127.0.0.1:9000,minio:9000", "minio", "[::2]", "::2", "[::2]:9000", "elsewhere"])
@pytest.mark.parametrize("host", ["minio", "::2"])
def test_hosts_without_a_proxy_are_those_of_botocore(monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str) -> None:
    """And an IPv6 address without its brackets."""
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    origin = Origin("http", host, 9000)
    is_bypassed = not get_environ_proxies(f"{origin}/x") or no_proxy == host
    assert (Proxies(None).of(origin) is None) == is_bypassed


@pytest.mark.parametrize(
    ("no_proxy", "host", "is_bypassed"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8, 192.168.0.0/16", "192.168.7.7", True),
        ("10.1.2.3/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", "10.0.0.1", False),
        ("10.0.0.0/8", "ten.example", False),
        ("*.example.com", "s3.example.com", True),
        ("*.Example.com", "a.b.EXAMPLE.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "notexample.com", False),
        ("nonsense/8", "nonsense", False),
        ("*", "anything", True),
    ],
)
def test_networks_and_stars_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str, is_bypassed: bool
) -> None:
    """As curl, Go and requests read them; urllib and botocore do not."""
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert (Proxies(None).of(Origin("http", host, 9000)) is None) == is_bypassed
