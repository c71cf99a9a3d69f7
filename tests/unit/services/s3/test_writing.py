"""Uploads in parts over moto: one put or parts, conditions, and nothing left behind."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from aioprefetch import Capability, Operator
from aioprefetch.errors import AlreadyExists, Closed, ConditionNotMatch, InvalidArgument
from aioprefetch.services.s3 import S3
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CompleteUploadRequest, PartRequest, WriteRequest
from tests.stores.verb_layer import VerbLayer

PART = 5 << 20
CHUNK = bytes(range(256)) * 4096  # 1 MiB


class Bucket:
    """An operator over a bucket of its own with the smallest parts that S3 allows, and what its server saw."""

    def __init__(self, server: CountingS3Server, name: str) -> None:
        self.server = server
        self.service = S3(
            bucket=name,
            prefix="p",
            endpoint_url=server.endpoint_url,
            access_key_id=server.access_key_id,
            secret_access_key=server.secret_access_key,
            part_bytes=PART,
        )
        self.op = Operator(self.service)

    def methods(self) -> list[str]:
        """The methods of the requests so far."""
        return [request.method for request in self.server.requests]


@pytest.fixture
async def bucket(s3_server: CountingS3Server, random_name: Callable[[], str]) -> AsyncIterator[Bucket]:
    name = random_name()
    s3_server.create_bucket(name)
    s3_server.reset()
    made = Bucket(s3_server, name)
    async with made.op:
        yield made


async def test_a_small_object_is_one_put(bucket: Bucket) -> None:
    """Nothing is sent before the end."""
    async with bucket.op.writer("k", content_type="text/x", user_metadata={"a": "b"}) as writer:
        await writer.write(b"hello ")
        await writer.write(bytearray(b"wor"))
        await writer.write(memoryview(b"ld"))
        assert bucket.methods() == []
    assert bucket.methods() == ["PUT"]
    found = await bucket.op.stat("k")
    assert writer.metadata is not None
    assert (writer.metadata.size, writer.metadata.etag, found.content_type) == (11, found.etag, "text/x")
    assert found.user_metadata == {"a": "b"}
    assert await bucket.op.read("k") == b"hello world"


@pytest.mark.parametrize("chunks", [5, 6, 23])
async def test_a_large_object_goes_in_parts(bucket: Bucket, chunks: int) -> None:
    """Parts of one size, the last one shorter; one part is one put."""
    async with bucket.op.writer("k", content_type="text/x") as writer:
        for _ in range(chunks):
            await writer.write(CHUNK)
    data = CHUNK * chunks
    parts = -(-len(data) // PART)
    assert bucket.methods() == (["PUT"] if parts == 1 else ["POST", *["PUT"] * parts, "POST"])
    assert bucket.op.statistics["stream_write_bytes"] == len(data)
    found = await bucket.op.stat("k")
    assert writer.metadata is not None
    assert (writer.metadata.etag, writer.metadata.size) == (found.etag, len(data))
    assert found.content_type == "text/x"
    assert await bucket.op.read("k") == data


@pytest.mark.parametrize("source", ["bytes", "bytearray", "one chunk", "iterator"])
async def test_whatever_it_comes_from_it_is_cut_into_parts(bucket: Bucket, source: str) -> None:
    data = CHUNK * 21
    if source == "one chunk":
        async with bucket.op.writer("k") as writer:
            await writer.write(data)
    else:
        given: Any = {"bytes": data, "bytearray": bytearray(data), "iterator": iter([CHUNK] * 21)}[source]
        assert (await bucket.op.write("k", given)).size == len(data)
    assert bucket.methods() == ["POST", *["PUT"] * 5, "POST"]
    assert await bucket.op.read("k") == data


async def test_a_failing_block_leaves_nothing(bucket: Bucket) -> None:
    writer = bucket.op.writer("k")

    async def fail() -> None:
        async with writer:
            await writer.write(CHUNK * 21)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await fail()
    assert not hasattr(caught.value, "__notes__")
    assert bucket.methods()[-1] == "DELETE"
    assert await bucket.op.abort_uploads() == 0
    assert not await bucket.op.exists("k")
    for call in (writer.write(b"x"), writer.close()):
        with pytest.raises(Closed):
            await call
    await writer.abort()


async def test_abort_before_anything_was_sent_costs_nothing(bucket: Bucket) -> None:
    async with bucket.op.writer("k") as writer:
        await writer.write(b"x")
        await writer.abort()
    assert bucket.methods() == []
    assert writer.metadata is None


async def test_conditions_hold_for_parts_too(bucket: Bucket) -> None:
    """They are checked when the object would appear, and the upload is removed."""
    first = await bucket.op.write("k", b"first")
    with pytest.raises(AlreadyExists):
        await bucket.op.write("k", CHUNK * 6, if_not_exists=True)
    with pytest.raises(ConditionNotMatch):
        await bucket.op.write("k", b"second", if_match="0" * 32)
    assert await bucket.op.read("k") == b"first"
    assert await bucket.op.abort_uploads() == 0
    await bucket.op.write("k", CHUNK * 6, if_match=first.etag)
    # moto does not look at it here.
    assert [request.if_match for request in bucket.server.requests if request.method == "POST"][-1] == f'"{first.etag}"'


class FewParts(VerbLayer):
    """A store that takes three parts for an object."""

    def adapt(self, capability: Capability) -> Capability:
        return replace(capability, write_parts_max=3)


async def test_too_many_parts(bucket: Bucket, tmp_path: Path) -> None:
    """S3 takes 10,000; the error says what to change."""
    op = bucket.op.layer(FewParts())
    with pytest.raises(InvalidArgument, match="make part_bytes larger"):
        await op.write("k", iter([CHUNK] * 21))
    assert await op.abort_uploads() == 0
    # Bytes that are all there are cut into larger parts, and so is a local file.
    await op.write("k", CHUNK * 21)
    assert await bucket.op.read("k") == CHUNK * 21
    (tmp_path / "file").write_bytes(CHUNK * 22)
    await op.upload(tmp_path / "file", "uploaded")
    assert await bucket.op.read("uploaded") == CHUNK * 22
    with (tmp_path / "file").open("rb") as file:
        file.seek(len(CHUNK))
        await op.write("rest", file)
    assert await bucket.op.read("rest") == CHUNK * 21


async def begun(bucket: Bucket, path: str = "k") -> CompleteUploadRequest:
    """An upload of two parts that only has to be completed."""
    accessor = bucket.op.accessor()
    upload_id = await accessor.begin_upload(WriteRequest(path=path))
    parts = [
        await accessor.write_part(PartRequest(path=path, upload_id=upload_id, number=number), data)
        for number, data in ((2, b"end"), (1, CHUNK * 5))
    ]
    return CompleteUploadRequest(path=path, upload_id=upload_id, parts=tuple(reversed(parts)))


async def test_uploads_left_behind_are_listed_and_aborted(bucket: Bucket) -> None:
    for path in ("a/1", "a/2", "b"):
        await begun(bucket, path)
    assert await bucket.op.abort_uploads("a/", older_than_seconds=100 * 366 * 86400) == 0  # moto dates all of them 2010
    assert await bucket.op.abort_uploads("a/") == 2
    assert await bucket.op.abort_uploads() == 1
    assert await bucket.op.abort_uploads() == 0


async def test_storage_class_reaches_the_store(bucket: Bucket) -> None:
    """Of a put and of an upload."""
    await bucket.op.write("small", b"x", storage_class="STANDARD_IA")
    await bucket.op.write("large", CHUNK * 6, storage_class="STANDARD_IA")
    stored = [
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket.service.bucket, f"p/{key}")
        for key in ("small", "large")
    ]
    classes = [found.storage_class for found in stored if found is not None]
    assert classes == ["STANDARD_IA"] * 2


@checks("reliability:W15")
async def test_two_writers_race_and_one_of_them_wins(bucket: Bucket) -> None:
    """Both have sent all their parts before either is completed. moto has no conditions for two at once."""
    writers = [bucket.op.writer("k", if_not_exists=True) for _ in range(2)]
    for number, writer in enumerate(writers):
        await writer.write(bytes([number]) * (PART + 1))
    await writers[1].close()
    with pytest.raises(AlreadyExists):
        await writers[0].close()
    assert await bucket.op.read("k") == bytes([1]) * (PART + 1)
    assert await bucket.op.abort_uploads() == 0
