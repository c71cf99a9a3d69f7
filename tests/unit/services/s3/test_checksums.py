"""Checksums of what is written: the store verifies and keeps them. boto3 is the oracle, and moto the store."""

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3
import fsspec
import pytest
from boto3.s3.transfer import TransferConfig

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import ConfigInvalid, InvalidArgument, Unavailable, Unsupported
from aioprefetch.services.s3 import S3
from aioprefetch.testing import CountingS3Server, Fault, FaultServer, Rule
from aioprefetch.testing.s3_server import KeepAliveServer
from aioprefetch.values import Checksum, CopyPartRequest
from tests.reliability.scripted import NO_PAUSES

PART = 5 << 20
LARGE = bytes(range(256)) * (PART // 256) + b"end"
ALGORITHMS: tuple[Checksum, ...] = ("sha256", "crc32")


def plain(data: bytes, algorithm: Checksum) -> bytes:
    return hashlib.sha256(data).digest() if algorithm == "sha256" else zlib.crc32(data).to_bytes(4, "big")


def expected(data: bytes, algorithm: Checksum) -> str:
    """What S3 keeps of an object: the checksum, or that of those of its parts (moto leaves out their number)."""
    if len(data) <= PART:
        return base64.b64encode(plain(data, algorithm)).decode()
    parts = [plain(data[start : start + PART], algorithm) for start in range(0, len(data), PART)]
    return base64.b64encode(plain(b"".join(parts), algorithm)).decode()


@dataclass
class Bucket:
    """A bucket on moto, and boto3 for it."""

    name: str
    options: dict[str, Any]
    boto: Any

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def operator(self, **options: Any) -> Operator:
        return Operator.from_uri(self.url, **self.options, **options)

    def kept(self, key: str) -> dict[str, str]:
        """The checksums that the store has of an object, by algorithm."""
        head = self.boto.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
        names = {name: name.removeprefix("Checksum").lower() for name in head if name.startswith("Checksum")}
        return {short: head[name] for name, short in names.items() if short != "type"}


@pytest.fixture
def bucket(s3_server: CountingS3Server, random_name: Callable[[], str]) -> Bucket:
    options = {
        "endpoint_url": s3_server.endpoint_url,
        "region": "us-east-1",
        "access_key_id": "id",
        "secret_access_key": "secret",
        "part_bytes": PART,
    }
    boto = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="secret",
    )
    name = random_name()
    boto.create_bucket(Bucket=name)
    return Bucket(name, options, boto)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [0, 3, 300 << 10, len(LARGE)])
async def test_the_store_keeps_the_checksum_of_an_object(bucket: Bucket, algorithm: Checksum, size: int) -> None:
    data = LARGE[:size]
    async with bucket.operator() as op:
        await op.write("k", data, checksum=algorithm)
        assert bucket.kept("k") == {algorithm: expected(data, algorithm)}
        assert await op.read("k") == data
    bucket.boto.upload_fileobj(
        io.BytesIO(data),
        bucket.name,
        "by boto3",
        ExtraArgs={"ChecksumAlgorithm": algorithm.upper()},
        Config=TransferConfig(multipart_threshold=PART, multipart_chunksize=PART),
    )
    assert bucket.kept("by boto3") == bucket.kept("k")
    attributes = bucket.boto.get_object_attributes(Bucket=bucket.name, Key="k", ObjectAttributes=["Checksum"])
    assert attributes["Checksum"][f"Checksum{algorithm.upper()}"] == expected(data, algorithm)


async def test_an_operator_has_a_checksum_for_all_that_it_writes(bucket: Bucket, tmp_path: Path) -> None:
    """And a write may have another one."""
    (tmp_path / "file").write_bytes(LARGE)
    async with bucket.operator(checksum="sha256") as op:
        await op.write("bytes", b"x")
        await op.upload(tmp_path / "file", "uploaded")
        async with op.writer("written") as writer:
            await writer.write(LARGE)
        async with op.writer("other", checksum="crc32") as writer:
            await writer.write(LARGE)
        await op.create_dir("dir/")
    assert bucket.kept("bytes") == {"sha256": expected(b"x", "sha256")}
    assert bucket.kept("uploaded") == bucket.kept("written") == {"sha256": expected(LARGE, "sha256")}
    assert bucket.kept("other") == {"crc32": expected(LARGE, "crc32")}
    assert bucket.kept("dir/") == {"sha256": expected(b"", "sha256")}


async def test_without_the_option_nothing_is_asked_of_the_store(bucket: Bucket) -> None:
    async with bucket.operator() as op:
        await op.write("k", b"x")
    assert bucket.kept("k") == {}


def test_a_checksum_from_a_file_a_copy_and_a_variable(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    options: Any = {**bucket.options, "checksum": "sha256"}
    with ap.sync.open(f"{bucket.url}/opened", "wb", checksum="crc32", **bucket.options) as file:
        file.write(b"x")
    ap.sync.copy(tmp_path, f"{bucket.url}/copied/", dst_options=options)
    monkeypatch.setenv("AIOPREFETCH_CHECKSUM", "crc32")
    with ap.sync.open(f"{bucket.url}/variable", "wb", **bucket.options) as file:
        file.write(b"y")
    assert bucket.kept("opened") == {"crc32": expected(b"x", "crc32")}
    assert bucket.kept("copied/file") == {"sha256": expected(LARGE, "sha256")}
    assert bucket.kept("variable") == {"crc32": expected(b"y", "crc32")}


def test_the_words_of_s3fs(bucket: Bucket) -> None:
    """``s3_additional_kwargs``, a parameter of a call, and botocore's own setting."""
    words = {"key": "id", "secret": "secret", "endpoint_url": bucket.options["endpoint_url"]}
    fs = fsspec.filesystem(
        "aioprefetch+s3", s3_additional_kwargs={"ChecksumAlgorithm": "SHA256"}, skip_instance_cache=True, **words
    )
    fs.pipe_file(f"{bucket.name}/piped", b"x")
    fs.pipe_file(f"{bucket.name}/chosen", b"x", ChecksumAlgorithm="CRC32")
    with fs.open(f"{bucket.name}/opened", "wb", ChecksumAlgorithm="CRC32") as file:
        file.write(b"x")
    settings = {"request_checksum_calculation": "when_supported", "response_checksum_validation": "when_required"}
    by_setting = fsspec.filesystem("aioprefetch+s3", config_kwargs=settings, skip_instance_cache=True, **words)
    by_setting.pipe_file(f"{bucket.name}/set", b"x")
    assert bucket.kept("piped") == {"sha256": expected(b"x", "sha256")}
    assert bucket.kept("chosen") == bucket.kept("opened") == bucket.kept("set") == {"crc32": expected(b"x", "crc32")}
    with pytest.raises(ConfigInvalid, match="response_checksum_validation"):
        fsspec.filesystem("aioprefetch+s3", config_kwargs={"response_checksum_validation": "when_supported"}, **words)


async def test_a_bucket_under_object_lock(bucket: Bucket, random_name: Callable[[], str]) -> None:
    """It refuses an object without a checksum, with the advice to give one, and takes one with it."""
    locked = Bucket(random_name(), bucket.options, bucket.boto)
    bucket.boto.create_bucket(Bucket=locked.name, ObjectLockEnabledForBucket=True)
    bucket.boto.put_object_lock_configuration(
        Bucket=locked.name,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )
    async with locked.operator() as op:
        with pytest.raises(InvalidArgument, match=r"checksum='sha256' to the operator.*it says: Content-MD5") as caught:
            await op.write("k", b"x")
        assert caught.value.status == "permanent"
        for size, algorithm in ((1, "sha256"), (len(LARGE), "crc32")):
            await op.write(f"k{size}", LARGE[:size], checksum=algorithm)  # type: ignore[arg-type]
            assert bytes(await op.read(f"k{size}")) == LARGE[:size]


DEMANDS = [
    (
        "InvalidRequest",
        "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock",
    ),
    ("InvalidRequest", "Content-MD5 HTTP header is required for Put Part requests with Object Lock parameters"),
    ("MissingContentMD5", "Missing required header for this request: Content-Md5."),
]


@pytest.mark.parametrize(("code", "sentence"), DEMANDS)
async def test_the_sentences_of_stores_that_demand_a_checksum(store: Any, code: str, sentence: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>{sentence}</Message></Error>".encode()
    refusal = Rule(fault=Fault(status=400, body=body, headers={"Content-Type": "application/xml"}), times=None)
    async with FaultServer({}, [refusal]) as server:
        with pytest.raises(InvalidArgument, match="checksum='sha256'"):
            await store(server, region="us-east-1").put("k", b"x")
        with pytest.raises(Exception, match=r"required") as caught:
            await store(server, region="us-east-1", checksum="crc32").put("k", b"x")
        assert "checksum='sha256'" not in str(caught.value)


# --- on the wire ------------------------------------------------------------------------------------------------------


class VerifyingStore:
    """A store that verifies the checksums of bodies, and those in the completion of an upload, as S3 does.

    ``damages`` is how many of the next bodies have another first byte when they arrive.
    """

    def __init__(self) -> None:
        self.damages = 0
        self.requests: list[tuple[str, str]] = []
        self.objects: dict[str, bytes] = {}
        self._algorithm = ""
        self._parts: dict[str, tuple[str, bytes]] = {}
        self._server = KeepAliveServer(self, name="verifying")
        self.endpoint_url = self._server.url

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.stop()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body, method, query = environ["wsgi.input"].read(), environ["REQUEST_METHOD"], environ["QUERY_STRING"]
        if method == "PUT" and self.damages:
            self.damages -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        status, response = self._respond(environ, method, query, body)
        self.requests.append((method, status))
        start_response(status, [("ETag", '"e"'), ("Content-Type", "application/xml")])
        return [response]

    def _respond(self, environ: dict[str, Any], method: str, query: str, body: bytes) -> tuple[str, bytes]:
        refused = "400 Bad Request", b"<Error><Code>BadDigest</Code><Message>they differ</Message></Error>"
        if method == "POST" and query.startswith("uploads"):
            self._algorithm = environ["HTTP_X_AMZ_CHECKSUM_ALGORITHM"].lower()
            return "200 OK", b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
        if method == "POST":
            named = re.findall(r"<PartNumber>(\d+)</PartNumber>", body.decode())
            sums = re.findall(rf"<Checksum{self._algorithm.upper()}>(.+?)<", body.decode())
            if sums != [self._parts[number][0] for number in named]:
                return refused
            self.objects[environ["PATH_INFO"]] = b"".join(self._parts[number][1] for number in named)
            return "200 OK", b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        algorithm = environ["HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM"].lower()
        checksum = environ[f"HTTP_X_AMZ_CHECKSUM_{algorithm.upper()}"]
        if checksum != base64.b64encode(plain(body, algorithm)).decode():
            return refused
        if query:
            assert algorithm == self._algorithm
            self._parts[re.findall(r"partNumber=(\d+)", query)[0]] = (checksum, body)
        else:
            self.objects[environ["PATH_INFO"]] = body
        return "200 OK", b""


def over(server: FaultServer | VerifyingStore, **options: Any) -> Operator:
    if not options.get("anonymous"):
        options |= {"access_key_id": "id", "secret_access_key": "secret"}
    service = S3(bucket="bucket", endpoint_url=server.endpoint_url, region="us-east-1", part_bytes=PART, **options)
    return Operator(service, retry_seconds=5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [3, len(LARGE)])
async def test_a_store_that_verifies_takes_what_is_whole(algorithm: Checksum, size: int) -> None:
    """Of an upload each part has its checksum, and the completion those of all, in order."""
    with VerifyingStore() as server:
        async with over(server, checksum=algorithm) as op:
            await op.write("k", LARGE[:size])
            assert server.objects == {"/bucket/k": LARGE[:size]}


@pytest.mark.parametrize("size", [3, len(LARGE)])
async def test_a_body_that_arrives_damaged_is_sent_again(size: int) -> None:
    with VerifyingStore() as server:
        async with over(server, checksum="crc32").layer(NO_PAUSES) as op:
            server.damages = 1
            await op.write("k", LARGE[:size])
            assert server.objects == {"/bucket/k": LARGE[:size]}
            assert [status for method, status in server.requests if method == "PUT"].count("400 Bad Request") == 1


async def test_a_body_that_always_arrives_damaged_is_refused() -> None:
    with VerifyingStore() as server:
        async with over(server, checksum="sha256").layer(NO_PAUSES) as op:
            server.damages = 1000
            with pytest.raises(Unavailable, match=r"arrived damaged; it says: they differ"):
                await op.write("k", b"x")
            assert server.objects == {}


async def test_headers_of_a_checksum_are_signed_and_an_anonymous_write_has_one_too() -> None:
    there = Rule(fault=Fault(status=200, body=b"", headers={"ETag": '"e"'}), method="PUT", times=None)
    async with FaultServer({}, [there]) as server:
        for options in ({}, {"anonymous": True}):
            async with over(server, checksum="sha256", **options) as op:
                await op.write("k", b"x")
        signed, anonymous = server.requests
        digest = hashlib.sha256(b"x")
        assert signed.headers["x-amz-content-sha256"] == digest.hexdigest()
        assert "x-amz-checksum-sha256" in signed.headers["authorization"].partition("SignedHeaders=")[2]
        assert "authorization" not in anonymous.headers
        assert {one.headers["x-amz-checksum-sha256"] for one in (signed, anonymous)} == {
            base64.b64encode(digest.digest()).decode()
        }


async def test_parts_that_the_store_copies_bring_their_checksum(store: Any) -> None:
    result = b"<CopyPartResult><ETag>&quot;e&quot;</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32></CopyPartResult>"
    async with FaultServer({}, [Rule(fault=Fault(status=200, body=result), method="PUT")]) as server:
        accessor = store(server, region="us-east-1", checksum="crc32").accessor
        part = await accessor.copy_part(
            CopyPartRequest(path="k", upload_id="u", number=1, source="s", start=0, end=5, checksum=None)
        )
        assert (part.etag, part.checksum) == ('"e"', "AAAAAA==")


async def test_a_copy_within_the_store_asks_for_the_checksum(store: Any) -> None:
    result = b"<CopyObjectResult><ETag>&quot;e&quot;</ETag></CopyObjectResult>"
    async with FaultServer({}, [Rule(fault=Fault(status=200, body=result), method="PUT")]) as server:
        async with over(server, checksum="sha256") as op:
            await op.copy("a", "b")
        assert server.requests[0].headers["x-amz-checksum-algorithm"] == "SHA256"


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["md5", "SHA256", "", 5])
async def test_another_word_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigInvalid, match="checksum"):
        Operator.from_uri("s3://bucket", checksum=wrong)
    async with Operator.from_uri("s3://bucket") as op:
        with pytest.raises(InvalidArgument, match=r"checksum must be one of 'sha256', 'crc32'"):
            await op.write("k", b"", checksum=wrong)


@pytest.mark.parametrize("url", ["memory://checksums", "file:///tmp"])
async def test_services_without_it_refuse_it(url: str) -> None:
    async with Operator.from_uri(url) as op:
        assert not op.capability.write_checksum
        with pytest.raises(Unsupported, match="checksum='crc32'"):
            await op.write("k", b"", checksum="crc32")
        with pytest.raises(Unsupported, match="checksum='crc32'"):
            async with op.writer("k", checksum="crc32"):
                pass
    with pytest.raises(ConfigInvalid, match=r"checksum"):
        Operator.from_uri(url, checksum="crc32")


async def test_copies_between_operators_that_differ_in_it_are_the_stores(bucket: Bucket, s3_server: Any) -> None:
    async with bucket.operator() as source, bucket.operator(checksum="sha256") as target:
        await source.write("a", b"x")
        s3_server.reset()
        await ap.copy((source, "a"), (target, "b"))
        assert s3_server.count("GET") == 0
