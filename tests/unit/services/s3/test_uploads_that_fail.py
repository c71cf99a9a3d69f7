"""Uploads over a server that misbehaves: parts side by side, lost responses, refused deletes."""

import asyncio
import contextlib
import hashlib

import pytest

from aioprefetch import Operator
from aioprefetch.errors import Error, PermissionDenied, Unavailable, Unexpected
from aioprefetch.services.s3 import S3
from aioprefetch.testing import Fault, FaultServer, ReceivedRequest, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.verbs.upload import PARTS_AT_ONCE
from tests.profile import chosen
from tests.reliability.scripted import NO_PAUSES

PART = 5 << 20
DATA = bytes(PART) + b"end"
BEGUN = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
DONE = b"<CompleteMultipartUploadResult><ETag>&quot;whole-2&quot;</ETag></CompleteMultipartUploadResult>"
PART_ETAG = hashlib.md5(b"part", usedforsecurity=False).hexdigest()
ETAG = hashlib.md5(bytes.fromhex(PART_ETAG) * 2, usedforsecurity=False).hexdigest() + "-2"


def is_begin(request: ReceivedRequest) -> bool:
    return request.method == "POST" and request.target.partition("?")[2].startswith("uploads")


def is_completion(request: ReceivedRequest) -> bool:
    return request.method == "POST" and "uploadId=" in request.target


BEGIN = Rule(fault=Fault(status=200, body=BEGUN), matches=is_begin)
PARTS = Rule(fault=Fault(status=200, body=b"", headers={"ETag": f'"{PART_ETAG}"'}), method="PUT", times=None)
COMPLETE = Rule(fault=Fault(status=200, body=DONE), matches=is_completion)
ABORT = Rule(fault=Fault(status=204), method="DELETE")
GONE = Rule(fault=Fault(status=404, code="NoSuchUpload"), matches=is_completion, times=None)


BEGINS = Rule(fault=Fault(status=200, body=BEGUN), matches=is_begin, times=None)
COMPLETES = Rule(fault=Fault(status=200, body=DONE), matches=is_completion, times=None)
ABORTS = Rule(fault=Fault(status=204), method="DELETE", times=None)


def ends(request: ReceivedRequest) -> bool:
    """Whether a request ends an upload."""
    return request.method == "DELETE" or is_completion(request)


def operator_of(server: FaultServer, **options: float) -> Operator:
    """The default stack over the server, with the smallest parts."""
    service = S3(
        bucket="bucket",
        endpoint_url=server.endpoint_url,
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
        part_bytes=PART,
    )
    return Operator(service, retry_seconds=5, **options)  # type: ignore[arg-type]


async def test_parts_are_in_flight_side_by_side() -> None:
    """All that one upload may have, before the first one is there."""
    hanging = Rule(fault=Fault(status=200, headers={"ETag": '"e"'}, hang_before_head=True), method="PUT", times=None)
    async with FaultServer({}, [BEGIN, hanging, ABORT]) as server, operator_of(server) as op:
        write = asyncio.create_task(op.write("k", bytes(PART * (PARTS_AT_ONCE + 2))))
        await server.wait_for_requests(1 + PARTS_AT_ONCE)
        assert [one.method for one in server.requests] == ["POST", *["PUT"] * PARTS_AT_ONCE]
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        assert (server.requests[-1].method, server.requests[-1].target) == ("DELETE", "/bucket/k?uploadId=u1")


@pytest.mark.parametrize(
    "fault", [Fault(status=500), Fault(status=503, code="SlowDown"), Fault(reset_before_head=True)]
)
async def test_a_part_that_fails_once_is_sent_again_alone(fault: Fault) -> None:
    failing = Rule(fault=fault, matches=lambda request: "partNumber=1" in request.target)
    async with FaultServer({}, [BEGIN, failing, PARTS, COMPLETE]) as server, operator_of(server) as op:
        assert (await op.write("k", DATA)).etag == "whole-2"
        parts = [one.target.partition("partNumber=")[2][:1] for one in server.requests if one.method == "PUT"]
        assert sorted(parts) == ["1", "1", "2"]
        # Where a kept connection breaks before the response, the transport sends the part on another one by itself.
        assert op.statistics["retries"] == 1 or fault.reset_before_head


async def test_the_hash_of_a_part_is_signed() -> None:
    async with FaultServer({}, [BEGIN, PARTS, COMPLETE]) as server, operator_of(server) as op:
        await op.write("k", DATA)
        hashes = {one.headers["x-amz-content-sha256"] for one in server.requests if one.method == "PUT"}
        assert hashes == {hashlib.sha256(part).hexdigest() for part in (DATA[:PART], DATA[PART:])}


@pytest.mark.parametrize("size", [3, len(DATA)])
async def test_class_and_key_go_with_the_request_that_makes_the_object(size: int) -> None:
    """The put of a small one, the beginning of an upload; S3 refuses them elsewhere."""
    headers = ("x-amz-storage-class", "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id")
    async with FaultServer({}, [BEGIN, PARTS, COMPLETE]) as server, operator_of(server) as op:
        async with op.writer("k", storage_class="GLACIER_IR", sse_kms_key_id="alias/a-key") as writer:
            await writer.write(DATA[-size:])
        first, *others = server.requests
        assert [first.headers.get(name) for name in headers] == ["GLACIER_IR", "aws:kms", "alias/a-key"]
        assert not [name for one in others for name in headers if name in one.headers]
        assert len(others) == (0 if size == 3 else 3)


@checks("reliability:W05")
async def test_a_completion_whose_response_was_lost_is_found_out() -> None:
    """The upload is gone, and the object is the one that its parts make."""
    lost = Rule(fault=Fault(reset_before_head=True), matches=is_completion)
    there = Rule(
        fault=Fault(status=200, body=b"", etag=ETAG, headers={"Content-Length": str(len(DATA))}), method="HEAD"
    )
    async with FaultServer({}, [BEGIN, PARTS, lost, GONE, there]) as server, operator_of(server) as op:
        written = await op.write("k", DATA, content_type="text/x")
        assert (written.etag, written.size, written.content_type) == (ETAG, len(DATA), "text/x")
        assert [one.method for one in server.requests] == ["POST", "PUT", "PUT", "POST", "POST", "HEAD"]


@pytest.mark.parametrize(("etag", "size"), [("0" * 32 + "-2", len(DATA)), (ETAG, 3)])
async def test_another_object_is_no_proof_of_a_completion(etag: str, size: int) -> None:
    lost = Rule(fault=Fault(reset_before_head=True), matches=is_completion)
    other = Rule(fault=Fault(status=200, body=b"", etag=etag, headers={"Content-Length": str(size)}), method="HEAD")
    async with FaultServer({}, [BEGIN, PARTS, lost, GONE, other, ABORT]) as server, operator_of(server) as op:
        with pytest.raises(Unexpected, match="upload is gone"):
            await op.write("k", DATA)


@checks("reliability:W08")
async def test_the_error_names_the_upload_where_the_abort_fails(caplog: pytest.LogCaptureFixture) -> None:
    """It says what stays in the store, and how it is removed."""
    script = [BEGIN, Rule(fault=Fault(status=403, code="AccessDenied"), times=None)]
    async with FaultServer({}, script) as server, operator_of(server) as op:
        with pytest.raises(PermissionDenied) as caught:
            await op.write("k", DATA)
        assert caught.value.context["upload_id"] == "u1"
        assert "abort_uploads('k')" in str(caught.value)
        assert "could not be removed" in caplog.text


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=503, code="SlowDown"), Fault(drop=True)])
async def test_the_nth_request_of_an_upload_fails_once(fault: Fault) -> None:
    """To begin, a part, the end: that request alone is sent again, and one upload becomes one object."""
    for number in range(4):
        script = [Rule(fault=fault, index=number), BEGIN, PARTS, COMPLETE]
        async with FaultServer({}, script) as server, operator_of(server).layer(NO_PAUSES) as op:
            written = await op.write("k", DATA)
            assert (written.etag, written.size) == ("whole-2", len(DATA))
            assert sorted(one.method for one in server.requests) in (
                ["POST", "POST", "POST", "PUT", "PUT"],
                ["POST", "POST", "PUT", "PUT", "PUT"],
            )


@checks("reliability:W08")
async def test_the_nth_request_of_an_upload_fails_permanently() -> None:
    """What was begun is aborted, and the error is the store's."""
    for number in range(4):
        refused = Rule(fault=Fault(status=403, code="AccessDenied"), index=number)
        async with FaultServer({}, [refused, BEGIN, PARTS, ABORT]) as server, operator_of(server) as op:
            with pytest.raises(PermissionDenied) as caught:
                await op.write("k", DATA)
            assert (caught.value.operation, caught.value.path) == ("write", "k")
            assert "upload_id" not in caught.value.context
            assert [one.target for one in server.requests if one.method == "DELETE"] == (
                ["/bucket/k?uploadId=u1"] if number else []
            )


@checks("reliability:W41")
async def test_an_upload_is_cancelled_at_any_step() -> None:
    """Each upload that was begun is completed or aborted, and the next write goes its own way."""
    for steps in range(0, chosen(quick=90, full=400), chosen(quick=10, full=3, search=1)):
        async with FaultServer({}, [BEGINS, PARTS, COMPLETES, ABORTS]) as server, operator_of(server) as op:
            task = asyncio.ensure_future(op.write("k", DATA))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            # A completion that is cancelled is followed by an abort, which finds nothing where it has worked.
            assert any(map(ends, server.requests)) == any(map(is_begin, server.requests))
            assert (await op.write("k", DATA)).etag == "whole-2"


@checks("reliability:W01")
async def test_a_part_without_an_etag_is_an_error() -> None:
    bare = Rule(fault=Fault(status=200, body=b"", headers={"ETag": None}), method="PUT", times=None)
    async with FaultServer({}, [BEGIN, bare, ABORT]) as server, operator_of(server) as op:
        with pytest.raises(Error, match="no ETag"):
            await op.write("k", DATA)


def deleted(*keys: str, more: bytes = b"") -> Rule:
    """The result of a batch that names these keys."""
    rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys).encode()
    return Rule(fault=Fault(status=200, body=b"<DeleteResult>%s%s</DeleteResult>" % (rows, more)), method="POST")


@checks("reliability:W09")
async def test_keys_that_are_not_deleted_are_named_each_with_its_reason() -> None:
    """The others of the batch, and the other batches, are deleted."""
    refused = (
        b"<Error><Key>b</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        b"<Error><Key>gone</Key><Code>NoSuchKey</Code></Error>"
    )
    numbered = [f"k{number}" for number in range(999)]
    script = [deleted("a", *numbered[:997], more=refused), deleted(*numbered[997:])]
    async with FaultServer({}, script) as server, operator_of(server) as op:
        with pytest.raises(PermissionDenied) as caught:
            await op.delete(["a", "b", "gone", *numbered])
        assert caught.value.path == "b"
        assert caught.value.context["failures"] == {"b": "PermissionDenied"}
        assert (caught.value.context["failed"], caught.value.context["of"]) == (1, 1002)
        assert [one.method for one in server.requests] == ["POST", "POST"]


async def test_a_key_that_is_slowed_down_is_deleted_by_another_attempt() -> None:
    slow = b"<Error><Key>b</Key><Code>SlowDown</Code></Error>"
    script = [deleted("a", more=slow), deleted("a", "b")]
    async with FaultServer({}, script) as server, operator_of(server) as op:
        await op.delete(["a", "b"])
        assert len(server.requests) == 2


async def test_two_requests_that_fail_as_a_whole_end_a_delete() -> None:
    async with (
        FaultServer({}, [Rule(fault=Fault(status=500), times=None)]) as server,
        operator_of(server, attempts_max=1) as op,
    ):
        with pytest.raises(Unavailable) as caught:
            await op.delete([f"k{number}" for number in range(2500)])
        assert caught.value.context["failed"] == 2500
        assert len(server.requests) == 2
