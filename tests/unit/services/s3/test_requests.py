"""What requests carry, and what becomes of odd results: uploads, copies, deletions, lists of uploads, buckets."""

import re
from dataclasses import replace
from typing import Any

import pytest

from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, InvalidArgument, IsADirectory, ProtocolError, Throttled, Unavailable
from aioprefetch.services.s3 import S3
from aioprefetch.services.s3.errors import ErrorResponse
from aioprefetch.values import (
    AbortUploadRequest,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    DeleteRequest,
    ListUploadsRequest,
    ServiceInfo,
    UploadedPart,
    WriteRequest,
)
from tests.stores.key_server import Asked, Bent, KeyServer, Said, error
from tests.unit.services.s3.stores import Store

KEY = b"a customer's key of 32 bytes !!!"
SSE = "server-side-encryption-customer-"


class KeyedServer(KeyServer):
    """Its operators have a customer's key, and one of a checksum."""

    def operator(self, **options: Any) -> Operator:
        given = super().operator(**options).service
        assert isinstance(given, S3)
        return Operator(
            S3(
                bucket=self.bucket,
                endpoint_url=given.endpoint_url,
                region="us-east-1",
                access_key_id="id",
                secret_access_key="secret",
                sse_customer_key=KEY,
                request_payer=True,
                checksum="sha256",
            )
        )


async def test_the_key_of_a_customer_goes_where_bytes_are_read_or_written() -> None:
    """That of the source with copies too; who pays is in all of them."""
    async with KeyedServer({"a": b"one", "b": b"two"}) as server, server.operator() as op:
        accessor = op.accessor()
        upload = await accessor.begin_upload(WriteRequest(path="k"))
        await accessor.copy_part(CopyPartRequest(path="k", upload_id=upload, number=1, source="a", start=0, end=3))
        part = UploadedPart(number=1, etag='"e"', size=3, checksum="c2hh")
        await accessor.complete_upload(CompleteUploadRequest(path="k", upload_id=upload, parts=(part,)))
        other = await accessor.begin_upload(WriteRequest(path="l"))
        await accessor.abort_upload(AbortUploadRequest(path="l", upload_id=other))
        await accessor.copy(CopyRequest(path="a", target="c"))
        await accessor.delete(DeleteRequest(path="a", paths=("a", "b")))
        by_verb = {asked.verb: asked for asked in server.asked}
        for verb, asked in by_verb.items():
            names = {name for name in asked.headers if SSE in name}
            assert len(names) == {"copy": 6, "copypart": 6, "abort": 0, "deletes": 0}.get(verb, 3), verb
            assert asked.headers["x-amz-request-payer"] == "requester"
        assert by_verb["begin"].headers["x-amz-checksum-algorithm"] == "SHA256"
        assert by_verb["copy"].headers["x-amz-checksum-algorithm"] == "SHA256"
        assert by_verb["copypart"].headers["x-amz-copy-source-range"] == "bytes=0-2"
        assert by_verb["complete"].body == (
            b'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Part><ETag>"e"</ETag>'
            b"<PartNumber>1</PartNumber><ChecksumSHA256>c2hh</ChecksumSHA256></Part></CompleteMultipartUpload>"
        )


async def test_an_upload_is_begun_once_where_a_connection_was_stale() -> None:
    """The first request may have begun one: each has a connection of its own."""
    async with KeyServer({"a": b"one"}) as server, server.operator() as op:
        await op.stat("a")
        before = op.statistics["transport_connections_opened"]
        await op.accessor().begin_upload(WriteRequest(path="k"))
        assert op.statistics["transport_connections_opened"] == before + 1
        await op.copy("a", "b")
        await op.delete(["a", "b"])
        assert op.statistics["transport_connections_opened"] == before + 1


async def test_an_upload_that_is_gone_is_aborted() -> None:
    async with KeyServer() as server, server.operator() as op:
        await op.accessor().abort_upload(AbortUploadRequest(path="k", upload_id="none"))
        assert server.verbs == ["abort"]


@pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
@pytest.mark.parametrize("verb", ["copy", "begin", "complete", "deletes", "copypart"])
async def test_an_error_with_the_status_of_a_success(verb: str, code: str) -> None:
    """S3 sends the head before it is done. The error counts, and is tried again."""
    within = Said(200, f"\n\n<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode().strip())
    async with KeyServer({"a": b"one", "b": b"two"}, Bent(verb, within, times=1)) as server, server.operator() as op:
        bare = Operator.bare(op.service)
        accessor = bare.accessor()
        upload = "" if verb == "begin" else await accessor.begin_upload(WriteRequest(path="k"))
        calls = {
            "copy": lambda: accessor.copy(CopyRequest(path="a", target="c")),
            "begin": lambda: accessor.begin_upload(WriteRequest(path="k")),
            "complete": lambda: accessor.complete_upload(
                CompleteUploadRequest(path="k", upload_id=upload, parts=(UploadedPart(number=1, etag="e", size=0),))
            ),
            "deletes": lambda: accessor.delete(DeleteRequest(path="a", paths=("a", "b"))),
            "copypart": lambda: accessor.copy_part(
                CopyPartRequest(path="k", upload_id=upload, number=1, source="a", start=0, end=3)
            ),
        }
        with pytest.raises((Unavailable, Throttled)) as refused:
            await calls[verb]()  # type: ignore[no-untyped-call]
        assert refused.value.context["code"] == code
        await bare.aclose()


async def test_a_copy_of_an_access_point_names_the_object_in_it() -> None:
    arn = "arn:aws:s3:us-west-2:123456789012:accesspoint/my-ap"
    source = ServiceInfo(scheme="s3", name=arn, root="r", endpoint="", region="us-west-2", principal="p")
    async with KeyServer({}, Bent("copy", error(404, "NoSuchKey"), times=9)) as server, server.operator() as op:
        for store in (source, ServiceInfo(scheme="s3", name="other", root="", endpoint="", region="", principal="p")):
            with pytest.raises(FileNotFoundError):
                await op.accessor().copy(CopyRequest(path="a b", target="k", store=store))
        sent = [asked.headers["x-amz-copy-source"] for asked in server.asked]
        assert sent == [
            "arn%3Aaws%3As3%3Aus-west-2%3A123456789012%3Aaccesspoint/my-ap/object/r/a%20b",
            "other/a%20b",
        ]


async def test_a_copy_at_aws_may_have_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stores of one's own this one obeys; where that is not known, such a copy goes in parts."""
    async with KeyServer({"a": b"one", "b": b"two"}) as server, server.operator() as op:
        monkeypatch.setattr(S3, "capability", replace(op.service.capability, copy_if_not_exists=True))
        async with Operator.bare(op.service) as bare:
            with pytest.raises(AlreadyExists):
                await bare.accessor().copy(CopyRequest(path="a", target="b", if_not_exists=True))
        assert server.asked[-1].headers["if-none-match"] == "*"
        assert server.objects["b"] == b"two"


ODD = ["a&b", "<c>", 'd"e', "f'g", "h;i", "é", "&amp;", "]]>", " j ", "m%20n", "o+p"]


async def test_any_key_in_a_document() -> None:
    """What XML would read in another way is escaped, and comes back as it was."""

    def named(asked: Asked, right: Said) -> Said:
        keys = re.findall(r"<Key>(.*?)</Key>", asked.body.decode())
        return Said(200, f"<R>{''.join(f'<Deleted><Key>{key}</Key></Deleted>' for key in keys)}</R>".encode())

    async with KeyServer({}, Bent("deletes", named)) as server, server.operator() as op:
        await op.delete(ODD)
        assert server.verbs == ["deletes"]


# --- lists of uploads -------------------------------------------------------------------------------------------------


def uploads(*keys: str, more: str = "", encoding: str = "") -> Said:
    rows = "".join(
        f"<Upload><Key>{key}</Key><UploadId>u</UploadId><Initiated>2030-01-01T00:00:00.000Z</Initiated></Upload>"
        for key in keys
    )
    truncated = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
    return Said(200, f"<R>{truncated}{more}{encoding}{rows}</R>".encode())


async def page_of(op: Operator, **fields: Any) -> Any:
    return await op.accessor().list_uploads(ListUploadsRequest(path="d/", **fields))


async def test_uploads_are_listed_page_by_page() -> None:
    """Keys that were encoded for XML are decoded, strangers are left out, and a token leads on."""
    more = "<NextKeyMarker>d/a+b%0A</NextKeyMarker><NextUploadIdMarker>v</NextUploadIdMarker>"
    first = uploads("d/x%20y", "d/z", "other/k", more=more, encoding="<EncodingType>url</EncodingType>")
    async with KeyServer({}, Bent("list", first), Bent("list", uploads("d/last"))) as server, server.operator() as op:
        page = await page_of(op)
        assert [one.path for one in page.uploads] == ["d/x y", "d/z"]
        assert page.uploads[0].started.isoformat() == "2030-01-01T00:00:00+00:00"
        assert server.asked[0].query == {"uploads": [""], "encoding-type": ["url"], "prefix": ["d/"]}
        assert [one.path for one in (await page_of(op, page_token=page.next_token)).uploads] == ["d/last"]
        assert server.asked[1].query["key-marker"] == ["d/a b\n"]
        assert server.asked[1].query["upload-id-marker"] == ["v"]


async def test_a_list_of_uploads_without_an_end_is_refused() -> None:
    more = "<NextKeyMarker>d/a</NextKeyMarker><NextUploadIdMarker>v</NextUploadIdMarker>"
    async with KeyServer({}, Bent("list", uploads("d/a", more=more), times=99)) as server, server.operator() as op:
        token = (await page_of(op)).next_token
        with pytest.raises(ProtocolError, match="names itself"):
            await page_of(op, page_token=token)
        with pytest.raises(InvalidArgument, match="page token"):
            await page_of(op, page_token="not one of ours")


async def test_what_is_not_a_list_of_uploads() -> None:
    """A page of a portal; and rclone's word for a bucket that never had one."""
    async with KeyServer({}, Bent("list", Said(200, b"<html/>"), times=99)) as server, server.operator() as op:
        with pytest.raises(ProtocolError, match="not a list of uploads"):
            await page_of(op)
        server.bent = [Bent("list", error(404, "NoSuchUpload"))]
        assert (await page_of(op)).uploads == ()


# --- buckets ----------------------------------------------------------------------------------------------------------


async def test_buckets_are_made_listed_and_deleted(s3_server: Any, store: Any, random_name: Any) -> None:
    """None of it is counted: no object is asked for."""
    made: Store = store(s3_server, random_name())
    buckets = made.service.buckets(made.runtime)
    await buckets.create()
    assert made.service.bucket in await buckets.names()
    with pytest.raises(AlreadyExists):
        await store(s3_server, made.service.bucket, region="eu-west-1").service.buckets(made.runtime).create()
    await made.put("k", b"x")
    with pytest.raises(IsADirectory):
        await buckets.delete()
    await made.delete("k")
    await buckets.delete()
    assert made.service.bucket not in await buckets.names()
    counters = made.runtime.counters
    assert (counters["object_list_request"], counters["object_delete_request"]) == (0, 1)


@pytest.mark.parametrize(("region", "named"), [("us-east-1", False), ("eu-west-1", True)])
async def test_a_bucket_is_made_in_its_region(region: str, named: bool) -> None:
    async with KeyServer({}, Bent("put", Said(200), times=9)) as server, server.operator() as op:
        given = op.service
        assert isinstance(given, S3)
        keys: dict[str, Any] = {"access_key_id": "id", "secret_access_key": "secret"}
        service = S3(bucket="bkt", endpoint_url=given.endpoint_url, region=region, **keys)
        await service.buckets(op.runtime()).create()
        location = b"<LocationConstraint>eu-west-1</LocationConstraint>"
        assert (location in server.asked[0].body) == named
        assert bool(server.asked[0].body) == named


async def test_lists_of_buckets_go_on_and_end() -> None:
    def rows(*names: str, token: str = "") -> Said:
        buckets = "".join(f"<Bucket><Name>{name}</Name></Bucket>" for name in names)
        more = f"<ContinuationToken>{token}</ContinuationToken>" if token else ""
        return Said(200, f"<R><Buckets>{buckets}</Buckets>{more}</R>".encode())

    pages = Bent("list", rows("b", token="t")), Bent("list", rows("a"))
    async with KeyServer({}, *pages) as server, server.operator() as op:
        assert isinstance(op.service, S3)
        buckets = op.service.buckets(op.runtime())
        assert await buckets.names() == ["a", "b"]
        assert server.asked[1].query == {"continuation-token": ["t"]}
        server.bent = [Bent("list", rows("a", token="t"), times=99)]
        with pytest.raises(ProtocolError, match="names itself"):
            await buckets.names()
        server.bent = [Bent("list", Said(200, b"<html/>"), times=99)]
        with pytest.raises(ProtocolError, match="not a list of buckets"):
            await buckets.names()


def test_the_name_of_a_request_comes_from_whichever_place_has_one() -> None:
    for headers, fields in (({"x-amz-request-id": "R"}, {}), ({"x-amzn-requestid": "R"}, {}), ({}, {"RequestId": "R"})):
        assert ErrorResponse.of_fields(400, headers, fields).request_id == "R"
