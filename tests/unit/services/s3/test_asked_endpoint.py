"""The endpoints for which botocore is asked: the hosts, paths and signatures of its own requests."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import botocore.session
import pytest
from botocore.config import Config

from aioprefetch import Operator
from aioprefetch.errors import ConfigInvalid, Unsupported
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.accessor import S3Accessor
from aioprefetch.services.s3.signed_targets import configuration_of
from aioprefetch.services.s3.sigv4 import AccessKeys, Signer, encoded_path, encoded_query
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import StatRequest
from tests.profile import few

KEYS: dict[str, Any] = {"access_key_id": "AKIA", "secret_access_key": "secret"}
ACCESS_POINT = "arn:aws:s3:us-west-2:123456789012:accesspoint/my-ap"
OUTPOST = "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-01234567890123456/accesspoint/my-ap"
LAMBDA = "arn:aws:s3-object-lambda:us-west-2:123456789012:accesspoint/my-ol"
DUALSTACK = {"AWS_USE_DUALSTACK_ENDPOINT": "true"}
FIPS = {"AWS_USE_FIPS_ENDPOINT": "true"}

# The recipe of a target, variables, a profile, and the host.
Target = tuple[dict[str, Any], dict[str, str], str, str]


def target(
    *where: str,
    variables: Mapping[str, str] | None = None,
    profile: str = "",
    domain: str = "amazonaws.com",
    **more: str,
) -> Target:
    bucket, region, host = where
    return {"bucket": bucket, "region": region, **more}, dict(variables or {}), profile, f"{host}.{domain}"


TARGETS: dict[str, Target] = {
    "access point": target(ACCESS_POINT, "us-west-2", "my-ap-123456789012.s3-accesspoint.us-west-2"),
    "access point elsewhere": target(ACCESS_POINT, "us-east-1", "my-ap-123456789012.s3-accesspoint.us-west-2"),
    "access point, FIPS": target(
        ACCESS_POINT, "us-west-2", "my-ap-123456789012.s3-accesspoint-fips.us-west-2", variables=FIPS
    ),
    "access point in China": target(
        "arn:aws-cn:s3:cn-north-1:123456789012:accesspoint:my-ap",
        "cn-north-1",
        "my-ap-123456789012.s3-accesspoint.cn-north-1",
        domain="amazonaws.com.cn",
    ),
    "outpost": target(OUTPOST, "us-west-2", "my-ap-123456789012.op-01234567890123456.s3-outposts.us-west-2"),
    "object lambda": target(LAMBDA, "us-west-2", "my-ol-123456789012.s3-object-lambda.us-west-2"),
    "alias of object lambda": target("ab-abcdefg111111--ol-s3", "us-west-2", "ab-abcdefg111111--ol-s3.s3.us-west-2"),
    "express": target("bkt--usw2-az1--x-s3", "us-west-2", "bkt--usw2-az1--x-s3.s3express-usw2-az1.us-west-2"),
    "dualstack": target("bkt", "eu-west-1", "bkt.s3.dualstack.eu-west-1", variables=DUALSTACK),
    "dualstack, a dot": target("a.b", "eu-west-1", "s3.dualstack.eu-west-1", variables=DUALSTACK),
    "dualstack of the profile": target(
        "bkt", "us-east-1", "bkt.s3.dualstack.us-east-1", profile="s3 =\n  use_dualstack_endpoint = true\n"
    ),
    "FIPS": target("bkt", "us-east-1", "bkt.s3-fips.us-east-1", variables=FIPS),
    "FIPS elsewhere": target("bkt", "ca-central-1", "bkt.s3-fips.ca-central-1", variables=FIPS),
    "FIPS in a path": target("bkt", "us-gov-west-1", "s3-fips.us-gov-west-1", variables=FIPS, addressing_style="path"),
    "FIPS, dualstack": target("bkt", "us-west-2", "bkt.s3-fips.dualstack.us-west-2", variables=FIPS | DUALSTACK),
    "accelerate": target("bkt", "eu-west-1", "bkt.s3-accelerate", profile="s3 =\n  use_accelerate_endpoint = true\n"),
    "accelerate by its URL": target(
        "bkt", "eu-west-1", "bkt.s3-accelerate", endpoint_url="https://s3-accelerate.amazonaws.com"
    ),
    "China": target("bkt", "cn-north-1", "bkt.s3.cn-north-1", domain="amazonaws.com.cn"),
    "China, dualstack": target(
        "bkt", "cn-northwest-1", "bkt.s3.dualstack.cn-northwest-1", variables=DUALSTACK, domain="amazonaws.com.cn"
    ),
    "GovCloud": target("bkt", "us-gov-east-1", "bkt.s3.us-gov-east-1"),
    "another partition": target("bkt", "us-iso-east-1", "bkt.s3.us-iso-east-1", domain="c2s.ic.gov"),
    "regional us-east-1": target(
        "bkt", "us-east-1", "bkt.s3.us-east-1", variables={"AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "regional"}
    ),
}


class Sent(Exception):
    """Botocore would send a request."""


def by_botocore(options: dict[str, Any], calls: dict[str, dict[str, Any]]) -> list[Any]:
    """The requests that botocore would send for calls of one client."""
    sent: list[Any] = []

    def stop(request: Any, **_: Any) -> None:
        sent.append(request)
        raise Sent

    session: Any = botocore.session.Session()
    session.set_config_variable("s3_disable_express_session_auth", True)
    style = options.get("addressing_style")
    client = session.create_client(
        "s3",
        region_name=options["region"],
        endpoint_url=options.get("endpoint_url"),
        aws_access_key_id=KEYS["access_key_id"],
        aws_secret_access_key=KEYS["secret_access_key"],
        config=Config(s3=None if style is None else {"addressing_style": style}),
    )
    client.meta.events.register_first("before-send.s3", stop)
    for method, parameters in calls.items():
        with pytest.raises(Sent):
            getattr(client, method)(Bucket=options["bucket"], **parameters)
    client.close()
    return sent


@pytest.mark.parametrize("name", few(TARGETS, lambda n, _: n % 5 == 1))  # A client of botocore takes its time.
def test_targets_are_those_of_botocore(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host, path and scope; and a request that botocore has signed has the same signature here."""
    options, variables, profile, host = TARGETS[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    if profile:
        Path(os.environ["AWS_CONFIG_FILE"]).write_text(f"[default]\n{profile}")
    endpoint = configuration_of(S3(**options, **KEYS)).endpoint
    assert endpoint.origin.host == host
    signer = Signer(AccessKeys("AKIA", "secret"), endpoint.region, endpoint.service)
    key = "a//b +%~é"
    calls: dict[str, dict[str, Any]] = {
        "get_object": {"Key": key},
        "head_object": {"Key": key, "VersionId": "v"},
        "put_object": {"Key": key, "Body": b"body"},
        "delete_object": {"Key": key},
        "list_objects_v2": {"Prefix": "a b/"},
        "create_multipart_upload": {"Key": key},
    }
    for parameters, theirs in zip(calls.values(), by_botocore(options, calls), strict=True):
        parts = urlsplit(theirs.url)
        path = endpoint.root + encoded_path(key) if "Key" in parameters else endpoint.bucket_path
        assert f"{endpoint.origin}{path}" == theirs.url.partition("?")[0]
        authorization = text_of(theirs.headers["Authorization"])
        names = authorization.partition("SignedHeaders=")[2].partition(",")[0].split(";")
        given = {one.lower(): text_of(value) for one, value in theirs.headers.items()}
        signed = {one: given.get(one, endpoint.origin.netloc) for one in names}
        headers = signer.headers_at(given["x-amz-date"], signed)
        query = encoded_query(dict(parse_qsl(parts.query, keep_blank_values=True)))
        ours = signer.signature(theirs.method, path, query, headers, given["x-amz-content-sha256"])
        assert headers.authorization + ours == authorization


def text_of(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize("name", ["FIPS", "dualstack", "China", "another partition"])
def test_the_endpoint_of_the_account(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, variables, _, host = TARGETS[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    endpoint = configuration_of(S3(**options, **KEYS), of_account=True).endpoint
    assert (endpoint.origin.host, endpoint.bucket_path) == (host.removeprefix("bkt."), "/")


async def test_it_is_asked_once_for_a_recipe(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an event says why."""
    heard: list[Any] = []
    runtime.events.subscribe(heard.append)
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    for _ in range(2):
        accessor = S3(bucket="bucket", region="us-east-1", **KEYS).build(runtime)
        assert isinstance(accessor, S3Accessor)
        await accessor.live.opened(StatRequest(path="k"))
    assert [(event.name, event.facts["why"]) for event in heard] == [("s3.endpoint_asked", "FIPS endpoints")]


@pytest.mark.parametrize(
    "options",
    [
        {"bucket": "mfzwi23gnjvgw.mrap"},
        {"bucket": "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap"},
        {"bucket": "arn:aws:s3::123456789012:accesspoint:mfzwi23gnjvgw.mrap", "endpoint_url": "https://h.example"},
    ],
)
async def test_an_access_point_of_several_regions_is_not_supported(options: dict[str, Any]) -> None:
    """The words name the way that is left. A bucket of that name elsewhere is one like any other."""
    async with Operator(S3(**options, **KEYS)) as op:
        for call in (op.read("k"), op.presign("k"), op.write("k", b""), op.list("").collect()):
            with pytest.raises(Unsupported, match="the access point of one region"):
                await call
    elsewhere = S3(bucket="a.mrap", endpoint_url="http://127.0.0.1:9", **KEYS)
    assert configuration_of(elsewhere).endpoint.root == "/a.mrap/"


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"bucket": "bkt", "region": "cn-north-1"}, FIPS),
        ({"bucket": ACCESS_POINT, "region": "eu-central-1"}, {"AWS_S3_USE_ARN_REGION": "false"}),
    ],
)
async def test_settings_without_an_endpoint(
    options: dict[str, Any], variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    async with Operator(S3(**options, **KEYS)) as op:
        with pytest.raises(ConfigInvalid, match="no endpoint for bucket="):
            await op.read("k")


@checks("reliability:I11")
@pytest.mark.parametrize(
    "bucket",
    ["arn:aws:s3:::bucket", "arn:aws:sqs:us-east-1:123456789012:queue", "arn:aws:s3:us-east-1:1:accesspoint/x", "arn:"],
)
def test_other_arns_are_refused(bucket: str) -> None:
    with pytest.raises(ConfigInvalid, match="ARN"):
        S3(bucket=bucket)


@pytest.mark.parametrize("separator", ["/", ":"])
@pytest.mark.parametrize("prefix", ["", "a/b"])
def test_an_arn_in_a_uri(separator: str, prefix: str) -> None:
    arn = f"arn:aws:s3:us-west-2:123456789012:accesspoint{separator}my-ap"
    op = Operator.from_uri(f"s3://{arn}/{prefix}", **KEYS)
    assert isinstance(op.service, S3)
    assert (op.service.bucket, op.service.prefix) == (arn, prefix)
