"""Presigned URLs: used by a plain client, with headers of their response, signed by the clock of the store."""

import http.client
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from typing import Any, Literal
from urllib.parse import parse_qs, parse_qsl, urlsplit

import boto3
import pytest
from botocore.config import Config

from aioprefetch import Operator
from aioprefetch.errors import InvalidArgument, NotFound, Unsupported
from aioprefetch.services.s3 import S3
from aioprefetch.values import PresignRequest
from tests.profile import each_of
from tests.stores.key_server import Bent, KeyServer, Said
from tests.stores.rclone_server import RcloneS3Server
from tests.unit.services.s3.stores import Store

Method = Literal["GET", "HEAD", "PUT", "DELETE"]
KEYS: dict[str, Any] = {"access_key_id": "AKIA", "secret_access_key": "secret"}
SAVED = "attachment; filename=\"ü + 1.csv\"; filename*=UTF-8''%C3%BC"


def sent(url: str, method: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """The response to a client that knows the URL and nothing else."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body or None)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("key", ["k", "a b+c%d", "ü/日本", "x&y=z"])
async def test_a_plain_client_may_do_what_the_url_is_for(bucket: Store, key: str) -> None:
    """Write, look, read, delete; on moto, and on rclone, which checks signatures."""

    async def do(method: Method, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        url = await bucket.accessor.presign(PresignRequest(path=key, method=method))
        return await bucket.runtime.run_blocking(sent, url, method, body)

    assert (await do("PUT", b"content"))[0] == 200
    assert await bucket.get(key) == b"content"
    assert (await do("HEAD"))[1]["content-length"] == "7"
    assert (await do("GET"))[::2] == (200, b"content")
    assert (await do("DELETE"))[0] == 204
    with pytest.raises(NotFound):
        await bucket.stat(key)


async def test_a_url_is_for_its_method_and_key_alone(rclone: Store) -> None:
    await rclone.put("k", b"x")
    url = await rclone.accessor.presign(PresignRequest(path="k"))
    for method, other in (("PUT", url), ("GET", url.replace("/k?", "/l?"))):
        status, _, body = await rclone.runtime.run_blocking(sent, other, method)
        assert status in (400, 403), body
    assert isinstance(rclone.server, RcloneS3Server)


async def test_headers_of_the_response(moto: Store) -> None:
    """Those of the object yield to them."""
    await moto.put("k", b"x", content_type="text/plain", cache_control="no-store")
    async with Operator(moto.service) as op:
        url = await op.presign(
            "k", content_type="text/csv; charset=utf-8", content_disposition=SAVED, cache_control="max-age=60"
        )
        plain = await op.presign("k")
    _, headers, _ = await moto.runtime.run_blocking(sent, url, "GET")
    assert headers["content-type"] == "text/csv; charset=utf-8"
    assert headers["cache-control"] == "max-age=60"
    assert "attachment" in headers["content-disposition"]
    _, headers, _ = await moto.runtime.run_blocking(sent, plain, "GET")
    assert headers["content-type"].startswith("text/plain")


@each_of("token", [None, "to/ken+="])
@each_of("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_urls_are_those_of_botocore(method: Method, token: str | None) -> None:
    """All of its parameters, with the same signature for the same second."""
    service = S3(bucket="bkt", endpoint_url="http://127.0.0.1:9", region="eu-west-3", session_token=token, **KEYS)
    client = boto3.client(
        "s3",
        endpoint_url="http://127.0.0.1:9",
        region_name="eu-west-3",
        aws_access_key_id="AKIA",
        aws_secret_access_key="secret",
        aws_session_token=token,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    overrides: dict[str, Any] = {} if method in ("PUT", "DELETE") else {"content_disposition": SAVED}
    theirs: dict[str, Any] = {"ResponseContentDisposition": SAVED} if method == "GET" else {}
    if method == "HEAD":
        theirs = {"ResponseContentDisposition": SAVED}
    version = {} if method == "PUT" else {"VersionId": "v 1"}
    name = {"GET": "get_object", "HEAD": "head_object", "PUT": "put_object", "DELETE": "delete_object"}[method]
    parameters = {"Bucket": "bkt", "Key": "a b/é", **version, **theirs}
    async with Operator(service) as op:
        for _ in range(5):  # Both are of one second, unless it has just ended.
            ours = await op.presign("a b/é", method=method, version="v 1", expires_seconds=60, **overrides)
            expected = client.generate_presigned_url(name, Params=parameters, ExpiresIn=60)
            if parameters_of(ours) == parameters_of(expected):
                break
    assert ours.partition("?")[0] == expected.partition("?")[0]
    assert parameters_of(ours) == parameters_of(expected)
    client.close()


def parameters_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


@each_of("method", ["PUT", "DELETE"])
@each_of("name", ["content_type", "content_disposition", "cache_control"])
async def test_a_response_without_a_body_has_no_such_headers(method: Method, name: str) -> None:
    async with Operator(S3(bucket="bkt", endpoint_url="http://127.0.0.1:9", region="r", **KEYS)) as op:
        overrides: dict[str, Any] = {name: "x"}
        with pytest.raises(InvalidArgument, match="go with method='GET' or 'HEAD'"):
            await op.presign("k", method=method, **overrides)
        overrides = {name: "x\r\ny: z"}
        with pytest.raises(InvalidArgument):
            await op.presign("k", **overrides)


async def test_other_stores_refuse_them() -> None:
    from obstore.store import S3Store

    from aioprefetch.services import ObspecStore

    store = S3Store("bkt", access_key_id="a", secret_access_key="b", region="us-east-1")
    async with Operator(ObspecStore(store)) as op:
        assert await op.presign("k")
        with pytest.raises(Unsupported, match="headers of their response"):
            await op.presign("k", content_type="text/plain")


async def test_a_url_is_signed_by_the_clock_of_the_store() -> None:
    """Which a refusal has shown."""
    there = datetime.now(UTC) + timedelta(hours=3)
    skewed = Said(
        403,
        b"<Error><Code>RequestTimeTooSkewed</Code></Error>",
        {"Date": formatdate(there.timestamp(), usegmt=True)},
    )
    async with KeyServer({"a": b"one"}, Bent("get", skewed)) as server, server.operator() as op:
        assert await op.read("a") == b"one"
        stamp = parse_qs(urlsplit(await op.presign("a")).query)["X-Amz-Date"][0]
        signed_at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        assert abs(signed_at - there) < timedelta(minutes=5)
