"""Copies of obspec within S3, which makes them by itself."""

from collections.abc import Callable

import obspec
import pytest
from obspec import exceptions

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server, content
from tests.stores.s3_options import options_of

ATTRIBUTES: obspec.Attributes = {"Content-Type": "text/x", "Cache-Control": "max-age=1", "a": "b"}


async def test_a_copy_that_must_not_replace_reads_nothing(
    s3_server: CountingS3Server, random_name: Callable[[], str]
) -> None:
    """What describes the object goes along, and what is there stays."""
    bucket, data = random_name(), content(100_000)
    s3_server.create_bucket(bucket)
    op = ap.Operator.from_uri(
        f"s3://{bucket}",
        **options_of(s3_server),
    )
    async with op, ap.obspec.store(op) as store:
        await store.put_async("k", data, attributes=ATTRIBUTES)
        await store.put_async("taken", b"bytes")
        s3_server.reset()
        await store.copy_async("k", "new", overwrite=False)
        assert "GET" not in {request.method for request in s3_server.requests}
        assert s3_server.bytes_sent < len(data) // 10
        with pytest.raises(exceptions.AlreadyExistsError):
            await store.copy_async("k", "taken", overwrite=False)
        assert (await store.get_async("new", options={"head": True})).attributes == ATTRIBUTES
        assert await op.read("new") == data
        assert (await op.read("taken"), await op.abort_uploads()) == (b"bytes", 0)
