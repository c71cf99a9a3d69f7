"""The two S3 servers respond, count requests, keep connections alive and leave nothing behind."""

import http.client
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import botocore.session
import pytest
from botocore.config import Config

from aioprefetch.testing import CountingS3Server
from tests.stores.rclone_server import RcloneS3Server

DATA = bytes(range(256)) * 4


def make_client(server: CountingS3Server | RcloneS3Server) -> Any:
    """A plain botocore client for a server."""
    return botocore.session.get_session().create_client(
        "s3",
        region_name=server.region,
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        config=Config(
            s3={"addressing_style": "path"},
            signature_version="s3v4",
            retries={"total_max_attempts": 1},
            response_checksum_validation="when_required",
        ),
    )


@pytest.fixture(params=["s3_server", "rclone_server"])
def server(request: pytest.FixtureRequest) -> Any:
    """Each of the two servers."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("key", ["plain", "a b+c%d#e?f", "ü/日本", "k" * 200 + "/" + "m" * 200])
def test_put_get_list(server: Any, random_name: Callable[[], str], key: str) -> None:
    """Both store and return bytes and ranges, under odd keys as well."""
    client, bucket = make_client(server), random_name()
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key=key, Body=DATA)
    reply = client.get_object(Bucket=bucket, Key=key, Range="bytes=10-19")
    with reply["Body"] as body:
        assert body.read() == DATA[10:20]
    assert reply["ContentRange"] == "bytes 10-19/1024"
    assert [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    client.close()


def test_requests_are_counted(random_name: Callable[[], str]) -> None:
    """Each request is in the record, with its range, condition, status and bytes."""
    with CountingS3Server() as server:
        client, bucket = make_client(server), random_name()
        client.create_bucket(Bucket=bucket)
        etag = client.put_object(Bucket=bucket, Key="a b", Body=DATA)["ETag"]
        server.reset()
        client.get_object(Bucket=bucket, Key="a b", Range="bytes=0-9", IfMatch=etag)["Body"].read()
        client.head_object(Bucket=bucket, Key="a b")
        client.close()
        get, head = server.requests
        assert (get.method, get.path, get.target) == ("GET", f"/{bucket}/a b", f"/{bucket}/a%20b")
        assert (get.range, get.if_match, get.status, get.body_bytes) == ("bytes=0-9", etag, 206, 10)
        assert (head.method, head.status, head.body_bytes) == ("HEAD", 200, 0)
        assert (server.count(), server.count("GET"), server.bytes_sent) == (2, 1, 10)


def test_connections_are_kept_alive_and_prompt(s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
    """Many requests share a connection, and none waits for a delayed acknowledgement (41 ms)."""
    client, bucket = make_client(s3_server), random_name()
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="k", Body=DATA)
    url = urlsplit(client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"}))
    client.close()
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
    connection.connect()
    kept = connection.sock
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        connection.request("GET", f"{url.path}?{url.query}", headers={"Range": "bytes=0-99"})
        assert connection.getresponse().read() == DATA[:100]
        seconds.append(time.perf_counter() - start)
    assert connection.sock is kept
    assert sorted(seconds)[10] < 0.03
    connection.close()


def test_stopping_ends_threads_with_a_connection_open() -> None:
    """An idle keep-alive connection does not hold the server up; the environment is as before."""
    before, environment = set(threading.enumerate()), dict(os.environ)
    with CountingS3Server() as server:
        url = urlsplit(server.endpoint_url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
        connection.request("GET", "/")
        connection.getresponse().read()
    connection.close()
    assert set(threading.enumerate()) <= before
    assert dict(os.environ) == environment
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.endpoint_url


def test_connections_are_counted() -> None:
    """Each opened connection counts once, with any number of requests."""
    before = set(threading.enumerate())
    with CountingS3Server() as server:
        url = urlsplit(server.endpoint_url)
        kept = [http.client.HTTPConnection(url.hostname or "", url.port, timeout=10) for _ in range(3)]
        for opened, connection in enumerate(kept, 1):
            for _ in range(3):
                connection.request("GET", "/")
                connection.getresponse().read()
            assert server.connections == opened
    for connection in kept:
        connection.close()
    assert set(threading.enumerate()) <= before


def test_the_count_of_connections_begins_again_with_the_record(random_name: Callable[[], str]) -> None:
    """A reset forgets connections and requests; connections of the server itself do not count."""
    with CountingS3Server() as server:
        server.create_bucket(random_name())
        assert server.connections == 0
        url = urlsplit(server.endpoint_url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
        for expected in (1, 0):
            connection.request("GET", "/")
            connection.getresponse().read()
            assert server.connections == expected
            server.reset()
        connection.close()
