"""The words and defaults of s3fs: calls as programs that were written for it make them."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import fsspec
import pandas as pd
import pytest
import s3fs
from fsspec.core import url_to_fs

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, S3FileSystem
from aioprefetch.testing import FaultServer
from tests.stores.stacks import MotoBucket
from tests.unit.fsspec.s3_words import Bucket


@pytest.fixture
def client(bucket: Bucket) -> Any:
    """boto3's, to see what is in the bucket."""
    kwargs = bucket.words["client_kwargs"]
    return boto3.client("s3", aws_access_key_id="a", aws_secret_access_key="b", **kwargs)


@pytest.fixture
def theirs(bucket: Bucket) -> s3fs.S3FileSystem:
    """s3fs over the same bucket."""
    return s3fs.S3FileSystem(**bucket.words, skip_instance_cache=True)


@pytest.fixture
def versioned(bucket: Bucket) -> str:
    """A bucket that keeps versions."""
    return MotoBucket(f"{bucket.name}v", versioned=True).name


class TestListings:
    def test_are_names_by_default_as_in_s3fs(self, bucket: Bucket, theirs: Any, data: bytes) -> None:
        for path in (bucket.name, f"s3://{bucket.name}/d", f"{bucket.name}/d/a"):
            assert sorted(bucket.fs.ls(path)) == sorted(theirs.ls(path))
        assert [bucket.fs.cat(path) for path in bucket.fs.ls(f"{bucket.name}/d")] == [data, data]

    def test_have_the_entries_of_s3fs(self, bucket: Bucket, theirs: Any) -> None:
        def entries(found: Any) -> Any:
            return sorted((each["Key"], each["Size"], each["name"], each["size"], each["type"]) for each in found)

        for fs_path in (bucket.name, f"{bucket.name}/d"):
            assert entries(bucket.fs.listdir(fs_path)) == entries(theirs.listdir(fs_path))
            found = bucket.fs.find(fs_path, prefix=None, detail=True)
            assert entries(found.values()) == entries(theirs.find(fs_path, detail=True).values())
        assert entries([bucket.fs.info(f"{bucket.name}/top")]) == entries([theirs.info(f"{bucket.name}/top")])

    def test_of_an_operator_have_details(self, fs: AioPrefetchFileSystem) -> None:
        assert [info["type"] for info in fs.ls("d")] == ["file", "directory"]


class TestVersions:
    def test_are_named_by_urls(self, bucket: Bucket, versioned: str) -> None:
        fs = S3FileSystem(**bucket.words, version_aware=True)
        for text in ("a\n1\n", "a\n2\n"):
            fs.pipe_file(f"{versioned}/k.csv", text.encode())
        first = fs.object_version_info(f"{versioned}/k.csv")[-1]["VersionId"]
        url = f"aioprefetch+s3://{versioned}/k.csv?versionId={first}"
        assert pd.read_csv(url, storage_options=bucket.words)["a"].tolist() == [1]
        with fsspec.open(url, **bucket.words) as file:
            assert file.read() == b"a\n1\n"
        aware, path = url_to_fs(url, **bucket.words)
        assert (aware.version_aware, path) == (True, url.removeprefix("aioprefetch+s3://"))
        assert not url_to_fs(f"aioprefetch+s3://{versioned}/k.csv", **bucket.words)[0].version_aware
        assert aware.split_path(url) == (versioned, "k.csv", first)
        assert not bucket.fs.version_aware

    def test_are_known_of_files(self, bucket: Bucket, versioned: str) -> None:
        fs, path = S3FileSystem(**bucket.words, version_aware=True), f"{versioned}/k"
        written: list[str | None] = []
        for data in (b"1", b""):
            with fs.open(path, "wb") as file:
                file.write(data)
                assert file.version_id is None
            written.append(file.version_id)
        assert None not in written
        assert len(set(written)) == 2
        with fs.open(path) as file:  # An empty one has no range, whose response would name it.
            assert (file.version_id, file.read()) == (written[1], b"")
        with fs.open(path, version_id=written[0]) as file:
            assert (file.version_id, file.read(), file.version_id) == (written[0], b"1", written[0])
        with bucket.fs.open(f"{bucket.name}/top") as file:
            assert file.version_id is None

    def test_of_a_bucket(self, bucket: Bucket, versioned: str) -> None:
        assert bucket.fs.is_bucket_versioned(versioned)
        assert not bucket.fs.is_bucket_versioned(bucket.name)
        with pytest.raises(FileNotFoundError):
            bucket.fs.is_bucket_versioned(f"{bucket.name}-missing")

    def test_in_a_path_that_takes_none_are_answered_with_the_option(self, bucket: Bucket) -> None:
        operator = bucket.fs.place_of(bucket.name).operator
        blocking, path = ap.sync.BlockingOperator(operator), "top?versionId=abc"
        with ap.sync.open(path, operator=operator) as file:
            for call in (file.read, lambda: blocking.read(path), lambda: blocking.stat(path)):
                with pytest.raises(ap.NotFound, match=r"'top' with version='abc'"):
                    call()


class TestNames:
    def test_of_arguments(self, bucket: Bucket, data: bytes) -> None:
        path = f"{bucket.name}/top"
        with bucket.fs.open(path) as file:
            assert file.seek(loc=-3, whence=2) == len(data) - 3
            assert file.read(length=2) == data[-3:-1]
        with bucket.fs.open(path, "wb", compression="gzip") as file:
            file.write(data)
        with bucket.fs.open(path, compression="gzip") as file:
            assert file.seek(0, whence=0) == 0
            assert file.read(size=3) == data[:3]
        with bucket.fs.open(path, "wb", chunksize=1, requester_pays=False) as file:
            file.write(data=b"1")
            with pytest.raises(ap.Unsupported):
                file.seek(0, whence=2)
        bucket.fs.pipe_file(path, data=b"123")
        assert bucket.fs.cat(path) == b"123"
        bucket.fs.touch(path, data=b"")
        assert bucket.fs.cat(path) == b""
        assert bucket.fs.find(bucket.name, prefix=None) == [f"{bucket.name}/{key}" for key in ("d/a", "d/b", "top")]

    def test_that_none_knows_are_ignored_with_one_warning_that_names_ours(self, bucket: Bucket) -> None:
        path = f"{bucket.name}/top"
        calls: dict[str, Callable[[], object]] = {
            "'block_bytes'": lambda: bucket.fs.open(path, "rb", blocksize=100, flavour="x").close(),
            "'storage_class'": lambda: bucket.fs.open(path, "wb", storage_clas="x", flavour="x").close(),
            "content_type": lambda: bucket.fs.pipe_file(path, b"1", flavour="x"),
        }
        for ours, call in calls.items():
            with pytest.warns(UserWarning, match=f"ignored.*{ours}") as warned:
                call()
            assert len(warned) == 1
        assert bucket.fs.cat(path) == b"1"

    @pytest.mark.parametrize("word", ["ACL", "acl", "Tagging", "ObjectLockMode"])
    def test_of_parameters_that_s3fs_would_send_are_refused(self, bucket: Bucket, word: str) -> None:
        given: dict[str, Any] = {word: "x"}
        calls: list[Callable[[], object]] = [
            lambda: bucket.fs.open(f"{bucket.name}/new", "wb", **given),
            lambda: bucket.fs.open(f"{bucket.name}/top", **given),
            lambda: bucket.fs.pipe_file(f"{bucket.name}/new", b"", **given),
        ]
        for call in calls:
            with pytest.raises(ap.ConfigInvalid, match=word):
                call()
        assert not bucket.fs.exists(f"{bucket.name}/new")

    def test_split_path(self, theirs: Any, bucket: Bucket) -> None:
        for path in ("s3://b/k/l", "b/k", "b", "b/", "s3://b/d/", "b/k?versionId=1"):
            assert bucket.fs.split_path(path) == tuple(theirs.split_path(path)), path


class TestDeletions:
    def test_of_a_bucket_by_its_name_are_refused(self, bucket: Bucket) -> None:
        for name in (bucket.name, f"{bucket.name}-missing"):
            with pytest.raises(IsADirectoryError, match="the path is empty"):
                bucket.fs.rm(name)
        blocking = ap.sync.BlockingOperator(bucket.fs.place_of(bucket.name).operator)
        with pytest.raises(IsADirectoryError):
            blocking.delete(["", "d/a", ("top", None)])
        assert bucket.fs.find(bucket.name) == [f"{bucket.name}/d/b"]


class TestUploads:
    def test_are_listed_and_aborted(self, bucket: Bucket, client: Any) -> None:
        for key in ("a b", "d/c"):
            client.create_multipart_upload(Bucket=bucket.name, Key=key)
        found = bucket.fs.list_multipart_uploads(bucket.name)
        wanted = client.list_multipart_uploads(Bucket=bucket.name)["Uploads"]
        assert [(each["Key"], each["UploadId"]) for each in found] == [
            (each["Key"], each["UploadId"]) for each in wanted
        ]
        assert all(each["Initiated"].tzinfo is not None for each in found)
        bucket.fs.clear_multipart_uploads(bucket.name)
        assert bucket.fs.list_multipart_uploads(bucket.name) == []
        assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket.name)


class TestWrites:
    def test_that_append_keep_what_describes_the_object(self, bucket: Bucket, client: Any) -> None:
        when = datetime(2030, 1, 2, tzinfo=UTC)
        kept = {
            "ContentLanguage": "de",
            "StorageClass": "STANDARD_IA",
            "CacheControl": "no-cache",
            "Metadata": {"a": "b"},
        }
        bucket.fs.pipe_file(f"{bucket.name}/k", b"1", **kept, Expires=when)
        before = client.head_object(Bucket=bucket.name, Key="k")
        with bucket.fs.open(f"{bucket.name}/k", "ab") as file:
            file.write(b"2")
        after = client.head_object(Bucket=bucket.name, Key="k")
        assert {name: after[name] for name in (*kept, "ExpiresString")} == {
            **kept,
            "ExpiresString": before["ExpiresString"],
        }
        assert before["ExpiresString"] == "Wed, 02 Jan 2030 00:00:00 GMT"
        assert bucket.fs.cat(f"{bucket.name}/k") == b"12"

    def test_of_a_name_with_a_slash_make_the_marker(self, bucket: Bucket, client: Any) -> None:
        bucket.fs.touch(f"{bucket.name}/sub/")
        bucket.fs.pipe_file(f"s3://{bucket.name}/piped/", b"")
        bucket.fs.pipe({f"{bucket.name}/piped/below/": b""})
        keys = {each["Key"] for each in client.list_objects_v2(Bucket=bucket.name)["Contents"]}
        assert keys == {"d/a", "d/b", "top", "sub/", "piped/", "piped/below/"}
        assert bucket.fs.isdir(f"{bucket.name}/sub")
        with pytest.raises(IsADirectoryError):
            bucket.fs.pipe_file(f"{bucket.name}/other/", b"1")


class TestRequesterPays:
    @pytest.fixture
    def server(self) -> Iterator[FaultServer]:
        server = FaultServer({"bucket/k": b"123"})
        ap.sync.run(server.__aenter__())
        yield server
        ap.sync.run(server.__aexit__(None, None, None))

    def test_of_open_is_obeyed(self, server: FaultServer) -> None:
        fs = S3FileSystem(endpoint_url=server.url, key="a", secret="b", region="us-east-1")
        paying = S3FileSystem(endpoint_url=server.url, key="a", secret="b", region="us-east-1", requester_pays=True)

        async def read(fs: S3FileSystem, pays: bool | None) -> None:
            async with await fs.open_async("bucket/k", requester_pays=pays) as file:
                await file.read()

        for each, pays, header in (
            (fs, None, None),
            (fs, True, "requester"),
            (paying, None, "requester"),
            (paying, False, None),
        ):
            before = len(server.requests)
            with each.open("bucket/k", requester_pays=pays) as file:
                assert file.read() == b"123"
            ap.sync.run(read(each, pays))
            headers = [request.headers.get("x-amz-request-payer") for request in server.requests[before:]]
            assert headers
            assert set(headers) == {header}
        for each in (fs, paying):
            each.close()

    def test_is_refused_where_nothing_can_be_paid(self, fs: AioPrefetchFileSystem) -> None:
        with pytest.raises(ap.ConfigInvalid, match="requester_pays"):
            fs.open("a", requester_pays=True)
        fs.open("a", requester_pays=False).close()


class TestAsynchronousFiles:
    def test_know_their_size(self, bucket: Bucket, data: bytes) -> None:
        async def read() -> None:
            async with await bucket.fs.open_async(f"{bucket.name}/top") as file:
                assert file.size == len(data)
                assert await file.read() == data

        bucket.requests()
        ap.sync.run(asyncio.wait_for(read(), 10))
        assert bucket.requests() == ["GET 206"]


class TestCheckedOpens:
    def test_ask_at_once_by_the_request_that_brings_the_bytes(self, bucket: Bucket, data: bytes) -> None:
        checking = S3FileSystem(**bucket.words, check_on_open=True)
        assert checking is not bucket.fs
        cases: list[tuple[S3FileSystem, dict[str, Any]]] = [(checking, {}), (bucket.fs, {"check_on_open": True})]
        for fs, options in cases:
            fs.pipe_file(f"{bucket.name}/d/a", data)
            bucket.requests()
            with fs.open(f"{bucket.name}/d/a", **options) as file:
                assert [request[:3] for request in bucket.requests()] == ["GET"]
                assert file.read() == data
                assert bucket.requests() == []
            with pytest.raises(FileNotFoundError, match="missing"):
                fs.open(f"{bucket.name}/missing", **options)
            with pytest.raises(FileNotFoundError, match="missing"):
                fs.open(f"{bucket.name}/missing", "r", compression="gzip", **options)
            with fs.open(f"{bucket.name}/new", "wb", **options) as file:
                file.write(b"1")
        bucket.requests()
        checking.open(f"{bucket.name}/missing", check_on_open=False).close()
        assert bucket.requests() == []

    def test_are_an_option_of_each_file_system(self, fs: AioPrefetchFileSystem) -> None:
        over = AioPrefetchFileSystem(fs.place_of("a").operator, check_on_open=True)
        with pytest.raises(FileNotFoundError):
            over.open("missing")
        by_url = AioPrefetchFileSystem("memory://other", check_on_open=True)
        with pytest.raises(FileNotFoundError):
            by_url.open("missing")
