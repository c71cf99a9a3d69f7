"""Every operation, on moto and on rclone."""

from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from aioprefetch.errors import (
    ConditionNotMatch,
    InvalidArgument,
    InvalidPath,
    NotFound,
    Unsupported,
)
from aioprefetch.operator.operator import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.testing.bucket import Call
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, PresignRequest
from tests.stores.faulty_bucket import FAULTS, FaultyBucket
from tests.stores.key_server import Bent, KeyServer, Said, error
from tests.unit.services.s3.stores import Store

DATA = bytes(range(256)) * 4
KEYS = ["plain", "a b+c%d#e?f", "ü/日本", "100%25", "a&b=c;d,e'f\"g", "k" * 200 + "/" + "m" * 200]
# Keys that rclone cannot hold, since they are names of files there.
MOTO_KEYS = [*KEYS, "a//b", "/leading", "trailing/", "tab\there", "ctrl\x01", "ü" * 512]


async def test_a_missing_bucket_is_named(bucket: Store, store: Any) -> None:
    """The message says which bucket, and what to do."""
    elsewhere = store(bucket.server, "no-such-bucket")
    for call in (elsewhere.get("k"), elsewhere.page(), elsewhere.put("k", b"")):
        with pytest.raises(NotFound, match="no bucket 'no-such-bucket' here: create it, or check"):
            await call


@pytest.mark.parametrize("key", MOTO_KEYS)
async def test_odder_keys(moto: Store, key: str) -> None:
    """``//``, slashes at both ends, control characters and 1,024 bytes as well, alone and in a batch."""
    await moto.put(key, DATA)
    assert await moto.get(key) == DATA
    assert await moto.names(recursive=True) == [key]
    await moto.put("other", b"")
    await moto.put("another", b"")
    await moto.delete(key, "other", "another")
    assert await moto.names(recursive=True) == []


@checks("reliability:I09", "reliability:K15")
async def test_refused_keys(moto: Store) -> None:
    """They cost no request."""
    for path in ("a/../b", "./a", "..", "a/./\n", "nul\0", "k" * 1025):
        for call in (moto.get(path), moto.stat(path), moto.put(path, b"")):
            with pytest.raises(InvalidPath):
                await call
    for path in ("a/./\n", "nul\0", "k" * 1025):  # Others with dots are named in a body.
        with pytest.raises(InvalidPath):
            await moto.delete(path)
    assert moto.server.count() == 0


async def test_a_prefix_is_the_root(store: Any, s3_server: Any, moto: Store) -> None:
    """It is joined with one slash, counts against the length of a key, and appears in no path."""
    rooted = store(s3_server, moto.service.bucket, prefix="/deep/root/")
    await rooted.put("k", DATA)
    await rooted.put("d/k", DATA)
    await moto.put("deep/rooted", b"a neighbour")
    assert await moto.get("deep/root/k") == DATA
    assert (await rooted.stat("k")).path == "k"
    assert await rooted.names() == ["d/", "k"]
    assert await rooted.names(recursive=True, start_after="d/k") == ["k"]
    with pytest.raises(InvalidPath, match="1015 bytes of UTF-8, more than the 1014"):
        await rooted.get("k" * 1015)
    with pytest.raises(NotFound) as caught:
        await rooted.get("none")
    assert caught.value.path == "none"


async def test_create_dir_writes_over_nothing_that_it_may_not_see() -> None:
    """Who may write and not look makes a directory, and keeps an object with bytes that is there by its name."""
    async with FaultyBucket() as faulty, faulty.operator() as op:
        faulty.put("d/", DATA)
        faulty.fault, faulty.strikes = FAULTS["403"], lambda call: call.method in ("HEAD", "GET")
        await op.create_dir("d/")
        await op.create_dir("e/")
    assert faulty.objects == {"d/": DATA, "e/": b""}


async def test_create_dir_writes_over_nothing_that_appears_meanwhile() -> None:
    """An object that another client writes between the look and the marker stays as it is."""
    async with FaultyBucket() as faulty, faulty.operator() as op:

        def appears(call: Call) -> None:
            if call.verb == "PutObject":
                faulty.put("d/", DATA)

        faulty.on_call = appears
        await op.create_dir("d/")
    assert faulty.objects == {"d/": DATA}


@pytest.mark.parametrize("said", [error(501, "NotImplemented"), error(400, "InvalidArgument")], ids=["501", "400"])
async def test_create_dir_does_without_a_condition_that_the_store_refuses(said: Said) -> None:
    async with KeyServer({}, Bent("put", said, times=2)) as server, server.operator() as op:
        with pytest.raises((Unsupported, InvalidArgument)):
            await op.write("k", DATA, if_not_exists=True)
        await op.create_dir("d/")
        assert server.objects == {"d/": b""}
        server.bent = [Bent("put", said), Bent("head", Said(403), times=9), Bent("list", Said(403), times=9)]
        with pytest.raises((Unsupported, InvalidArgument)):  # There may be an object, which no look has shown.
            await op.create_dir("e/")
        assert server.objects == {"d/": b""}


async def test_copy(bucket: Store) -> None:
    """The target has the content; the metadata names it and its ETag."""
    etag = (await bucket.put("a", DATA)).etag
    copied = await bucket.accessor.copy(CopyRequest(path="a", target="d/b"))
    assert (copied.path, copied.etag) == ("d/b", etag)
    assert await bucket.get("d/b") == DATA


async def test_a_batch_of_deletes_is_one_request(moto: Store) -> None:
    """1,000 keys per request."""
    await moto.delete(*(f"k{i}" for i in range(1001)))
    assert [request.method for request in moto.server.requests] == ["POST", "POST"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_presign(moto: Store, method: Any) -> None:
    """The URL names the key and carries a signature of version 4; making it costs no request."""
    url = await moto.accessor.presign(PresignRequest(path="a b", method=method, expires_seconds=60))
    assert url.startswith(f"{moto.service.endpoint_url}/{moto.service.bucket}/a%20b?")
    assert "X-Amz-Expires=60" in url
    assert "X-Amz-Signature=" in url
    assert moto.server.count() == 0


@pytest.mark.parametrize(
    ("endpoint", "style", "expected"),
    [
        (None, "auto", "https://a-bucket.s3.eu-west-1.amazonaws.com/k?"),
        (None, "virtual", "https://a-bucket.s3.eu-west-1.amazonaws.com/k?"),
        (None, "path", "https://s3.eu-west-1.amazonaws.com/a-bucket/k?"),
        ("https://objects.example", "virtual", "https://a-bucket.objects.example/k?"),
        ("https://objects.example", "path", "https://objects.example/a-bucket/k?"),
        ("http://127.0.0.1:9000", "auto", "http://127.0.0.1:9000/a-bucket/k?"),
    ],
)
async def test_addressing_styles(endpoint: str | None, style: Any, expected: str) -> None:
    """The bucket stands in the host or in the path, as asked; an address cannot have a bucket before it."""
    service = S3(
        bucket="a-bucket",
        endpoint_url=endpoint,
        region="eu-west-1",
        access_key_id="id",
        secret_access_key="secret",
        addressing_style=style,
    )
    async with Operator.bare(service) as operator:
        assert (await operator.presign("k")).startswith(expected)


async def test_presign_refusals(moto: Store, store: Any, s3_server: Any) -> None:
    """Too long a life, and identities that cannot sign."""
    with pytest.raises(InvalidArgument, match="between 1 and 604800"):
        await moto.accessor.presign(PresignRequest(path="k", expires_seconds=604801))
    unsigned = store(s3_server, moto.service.bucket, anonymous=True)
    with pytest.raises(Unsupported, match="presigned URLs"):
        await unsigned.accessor.presign(PresignRequest(path="k"))


async def test_versions(moto: Store) -> None:
    """A version is read although a newer one exists; an unknown one is not found."""
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_bucket_versioning(moto.service.bucket, "Enabled")
    old = await moto.put("k", b"old")
    new = await moto.put("k", b"new")
    assert old.version not in (None, new.version)
    assert await moto.get("k", version=old.version) == b"old"
    assert (await moto.stat("k", version=old.version)).etag == old.etag
    with pytest.raises(NotFound, match="no such version"):
        await moto.get("k", version="bogus")


async def test_requests_are_counted(moto: Store) -> None:
    """One GET and no HEAD for a read, and the counters agree with the server."""
    await moto.put("k", DATA)
    await moto.get("k", suffix=8)
    await moto.stat("k")
    await moto.page()
    await moto.accessor.copy(CopyRequest(path="k", target="c"))
    await moto.delete("k", "c")
    assert [one.method for one in moto.server.requests] == ["PUT", "GET", "HEAD", "GET", "PUT", "POST"]
    counters = {name: count for name, count in moto.runtime.counters.items() if count}
    assert counters == {
        "action_http_get_request": 1,
        "action_http_head_request": 1,
        "object_list_request": 1,
        "object_put_request": 1,
        "object_copy_request": 1,
        "object_delete_request": 1,
        "stream_read_total_bytes": 8,
        "stream_write_bytes": len(DATA),
        "transport_requests": 1,
        "transport_signatures": 1,
        "transport_connections_opened": 1,
    }


async def test_requests_are_timed(moto: Store) -> None:
    """To the head of the response; an error is a failure, but that nothing has changed is what was asked."""
    etag = (await moto.put("k", DATA)).etag
    await moto.get("k")
    with pytest.raises(NotFound):
        await moto.get("missing")
    with pytest.raises(ConditionNotMatch):
        await moto.get("k", if_none_match=etag)
    with pytest.raises(ConditionNotMatch):
        await moto.get("k", if_match="another")
    await moto.stat("k")
    counts = moto.runtime.statistics()
    assert [counts[f"action_http_{name}"] for name in ("get_request", "get_request.failures")] == [4, 2]
    for name in ("get", "head"):
        least, mean, most = (counts[f"action_http_{name}_request.{part}"] for part in ("min", "mean", "max"))
        assert 0 < least <= mean <= most
