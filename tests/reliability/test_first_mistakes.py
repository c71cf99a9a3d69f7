"""The mistakes of a first day: no credentials, a wrong endpoint, a wrong region, what is missing or is there already.

Each is a typed error that says what to do and where it happened, and shows no secret; at the doors of a loop and at
those without one.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSelector

from aioprefetch import Operator, errors, sync
from aioprefetch.arrow import filesystem
from aioprefetch.errors import Error
from aioprefetch.fsspec import S3FileSystem
from aioprefetch.parquet import read_table
from aioprefetch.sync import BlockingOperator
from aioprefetch.sync import open as open_file
from aioprefetch.testing import CountingS3Server
from tests.probes.error_walk import everything, raised_by
from tests.profile import each_of
from tests.stores.certificates import Authority
from tests.stores.raw_server import Peer, RawServer, answering, reply
from tests.stores.tls_servers import serving

SECRETS = ("CANARY-ID", "CANARY-SECRET", "CANARY-TOKEN")
KEYS: dict[str, Any] = dict(zip(("access_key_id", "secret_access_key", "session_token"), SECRETS, strict=True))
OPTIONS: dict[str, Any] = {"region": "eu-west-1", "attempts_max": 1, "connect_timeout_seconds": 5.0}

Call = Callable[[Operator], Awaitable[object]]
VERBS: dict[str, Call] = {
    "read": lambda operator: operator.read("dir/k"),
    "reader": lambda operator: operator.reader("dir/k").read(),
    "stat": lambda operator: operator.stat("dir/k"),
    "list": lambda operator: operator.list("dir/").collect(),
    "write": lambda operator: operator.write("dir/k", b"x"),
    "delete": lambda operator: operator.delete("dir/k"),
    "copy": lambda operator: operator.copy("dir/k", "dir/l"),
}


def opened(url: str, options: dict[str, Any]) -> object:
    """What a file by URL gives."""
    with open_file(f"{url}/dir/k", **options) as file:
        return file.read()


def listed(url: str, options: dict[str, Any]) -> object:
    """What a blocking listing gives."""
    with BlockingOperator(Operator.from_uri(url, **options)) as blocking:
        return list(blocking.list("dir/"))


def written(url: str, options: dict[str, Any]) -> object:
    """What a file to write gives."""
    with open_file(f"{url}/dir/k", "wb", **options) as file:
        return file.write(b"x")


# Doors without a loop, and the verb of a loop that each is like.
BLOCKING = {"read": opened, "list": listed, "write": written}


async def found_at(url: str, options: dict[str, Any], *, verbs: tuple[str, ...] = tuple(VERBS)) -> dict[str, Error]:
    """The error of each verb; the doors without a loop give the same."""
    found: dict[str, Error] = {}
    async with Operator.from_uri(url, **options) as operator:
        for verb in verbs:
            error = await raised_by(lambda verb=verb: VERBS[verb](operator))  # type: ignore[misc]
            assert error is not None, verb
            found[verb] = error
    for verb, door in BLOCKING.items():
        if verb in verbs:
            with pytest.raises(Error) as caught:
                await asyncio.to_thread(door, url, options)
            assert type(caught.value) is type(found[verb])
            assert caught.value.message == found[verb].message
            check(caught.value.with_traceback(None))  # The frames of the test hold the keys.
    for error in found.values():
        check(error)
    return found


def check(error: Error) -> None:
    """Operation, path and store are named, in one line, without a secret."""
    text = str(error)
    assert error.operation
    assert error.path or error.operation == "list"
    assert "\n" not in text
    assert [secret for secret in SECRETS for text in everything(error) if secret in text] == []


def page(status: str, body: str, kind: str = "text/html", *headers: str) -> bytes:
    """A response with a text."""
    lines = [f"Content-Type: {kind}".encode(), *(line.encode() for line in headers)]
    return reply(body.encode(), *lines, status=status.encode())


def refusal(status: str, code: str, more: str = "", *headers: str) -> bytes:
    """An error of S3, which repeats what was asked."""
    repeated = f"<AWSAccessKeyId>{SECRETS[0]}</AWSAccessKeyId>{more}"
    text = f"<Error><Code>{code}</Code><Message>as it is</Message>{repeated}</Error>"
    return page(status, text, "application/xml", *headers)


@asynccontextmanager
async def s3_at(*replies: bytes) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The URL of a bucket, and the options for a server that gives these answers."""
    async with RawServer(answering(*replies)) as server:
        yield "s3://bucket/prefix", {**OPTIONS, **KEYS, "endpoint_url": str(server.origin)}


# --- where the store is ---------------------------------------------------------------------------------------------


async def test_nothing_listens_at_the_endpoint() -> None:
    options = {**OPTIONS, **KEYS, "endpoint_url": "http://127.0.0.1:1"}
    for verb, error in (await found_at("s3://bucket", options)).items():
        assert isinstance(error, errors.Unavailable)
        assert "no connection to http://127.0.0.1:1" in error.message
        assert "check host and port" in error.message
        assert error.context["service"] == "s3://bucket at http://127.0.0.1:1", verb
    for error in (await found_at("http://127.0.0.1:1", {"attempts_max": 1}, verbs=("read", "stat"))).values():
        assert isinstance(error, errors.Unavailable)
        assert "nothing listens there; check host and port, and that the server runs" in error.message


async def test_the_endpoint_has_no_name() -> None:
    url = "http://no-such-host.invalid:9000"
    options = {**OPTIONS, **KEYS, "endpoint_url": url, "allow_http": True}
    for error in (await found_at("s3://bucket", options, verbs=("read", "stat", "list", "write"))).values():
        assert isinstance(error, errors.Unavailable)
        assert f"the name of {url} could not be resolved; check its spelling and the network" in error.message
        assert url in str(error.context["service"])


async def test_the_endpoint_speaks_no_tls() -> None:
    """It is asked with TLS."""

    async def refuse(peer: Peer) -> None:
        await peer.send(page("400 Bad Request", "what?"))  # To any bytes.

    async with RawServer(refuse) as server:
        url = str(server.origin).replace("http://", "https://")
        options = {**OPTIONS, **KEYS, "endpoint_url": url}
        for error in (await found_at("s3://bucket", options, verbs=("read", "stat", "list", "write"))).values():
            assert isinstance(error, errors.ConfigInvalid)
            assert f"TLS with {url} failed" in error.message
            assert "it may not speak TLS at all: check scheme and port" in error.message
        for error in (await found_at(url, {"attempts_max": 1}, verbs=("read", "stat"))).values():
            assert isinstance(error, errors.ConfigInvalid)
            assert "check scheme and port" in error.message


@pytest.mark.parametrize(
    "says",
    [
        page("400 Bad Request", "<html><h1>400</h1>The plain HTTP request was sent to HTTPS port</html>"),  # nginx
        page("400 Bad Request", "Client sent an HTTP request to an HTTPS server.\n", "text/plain"),  # Go
        b"\x15\x03\x01\x00\x02\x02\x46",  # an alert of TLS
    ],
)
async def test_the_endpoint_speaks_tls_alone(says: bytes) -> None:
    """It is asked without."""
    async with s3_at(says) as (url, options):
        for error in (await found_at(url, options, verbs=("read", "list", "write"))).values():
            assert isinstance(error, errors.ConfigInvalid)
            assert "the server speaks TLS, and was asked without" in error.message
            assert "https://" in error.message
        for error in (await found_at(url, options, verbs=("stat",))).values():  # The answer to a HEAD has no text.
            assert "https://" in error.message


async def test_a_server_that_speaks_tls_alone_with_an_authority_of_its_own(tmp_path: Path) -> None:
    """Asked without TLS it hangs up, as OpenSSL's servers do."""
    authority = Authority(tmp_path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    says: dict[str, tuple[type[errors.Error], tuple[str, ...]]] = {
        "http": (errors.Unavailable, ("as servers do that speak TLS alone: their URLs begin with https://",)),
        "https": (errors.ConfigInvalid, ("is not trusted", "ca_bundle")),
    }
    async with serving(serve, ssl=authority.context("127.0.0.1")) as port:
        for scheme, (kind, texts) in says.items():
            options = {**OPTIONS, **KEYS, "endpoint_url": f"{scheme}://127.0.0.1:{port}"}
            for error in (await found_at("s3://bucket", options, verbs=("read", "stat", "list"))).values():
                assert isinstance(error, kind)
                assert all(text in error.message for text in texts), error


CONSOLE = "<!DOCTYPE html><html><head><title>Console</title></head><body>Log in</body></html>"
# The class of a read, and of the other requests that have a response with a body.
FOREIGN: list[tuple[str, str, str, type[Error], type[Error]]] = [
    ("404 Not Found", CONSOLE, "text/html", errors.NotFound, errors.ConfigInvalid),
    ("404 Not Found", '{"detail": "Not Found"}', "application/json", errors.NotFound, errors.ConfigInvalid),
    ("403 Forbidden", CONSOLE, "text/html", errors.PermissionDenied, errors.PermissionDenied),
    ("400 Bad Request", CONSOLE, "text/html", errors.ConfigInvalid, errors.ConfigInvalid),
    ("405 Method Not Allowed", CONSOLE, "text/html", errors.ConfigInvalid, errors.ConfigInvalid),
    ("501 Unsupported method", CONSOLE, "text/html", errors.Unsupported, errors.Unsupported),
    ("200 OK", CONSOLE, "text/html", errors.ProtocolError, errors.ProtocolError),
]


@each_of(("status", "body", "kind", "of_read", "of_others"), FOREIGN)
async def test_the_endpoint_is_no_store_of_s3(
    status: str, body: str, kind: str, of_read: type[Error], of_others: type[Error]
) -> None:
    """A console, a website, a proxy: each response with a body names ``endpoint_url`` as what to check."""
    async with s3_at(page(status, body, kind)) as (url, options):
        found = await found_at(url, options, verbs=("read", "reader", "list", "write", "delete"))
        for verb, error in found.items():
            assert type(error) is (of_read if verb in ("read", "reader") else of_others), verb
            assert "endpoint_url" in error.message
            assert str(error.context["service"]).endswith(str(options["endpoint_url"]))
        (of_stat,) = (await found_at(url, options, verbs=("stat",))).values()
        assert not isinstance(of_stat, errors.Unexpected)


async def test_the_endpoint_is_no_server_of_http() -> None:
    """It answers at once, and is not waited for."""
    async with s3_at(b"SSH-2.0-OpenSSH_9.2\r\n") as (url, options):
        for error in (await found_at(url, options, verbs=("read", "stat", "list", "write"))).values():
            assert isinstance(error, errors.ProtocolError)
            assert "the response is not HTTP: check the port" in error.message


async def test_the_endpoint_leads_elsewhere() -> None:
    """A redirect is not followed, and what it leads to is named, without its query."""
    to = f"Location: https://other.example/bucket/k?X-Amz-Signature={SECRETS[1]}"
    async with s3_at(page("301 Moved Permanently", "", "text/html", to)) as (url, options):
        for error in (await found_at(url, options, verbs=("read", "stat", "list", "write"))).values():
            assert isinstance(error, errors.RedirectRefused)
            assert "check endpoint_url; it leads to https://other.example" in error.message


# --- region, bucket and keys ----------------------------------------------------------------------------------------


async def test_the_region_is_another_one() -> None:
    """Both answers of AWS name the right one."""
    elsewhere = "x-amz-bucket-region: ap-south-1"
    async with s3_at(refusal("301 Moved Permanently", "PermanentRedirect", "", elsewhere)) as (url, options):
        for error in (await found_at(url, options)).values():
            assert isinstance(error, errors.RedirectRefused)
            assert "set region='ap-south-1'" in error.message
    malformed = refusal("400 Bad Request", "AuthorizationHeaderMalformed", "<Region>ap-south-1</Region>", elsewhere)
    async with s3_at(malformed) as (url, options):
        for error in (await found_at(url, options)).values():
            assert isinstance(error, errors.ConfigInvalid)
            assert "set region='ap-south-1'" in error.message


async def test_the_bucket_is_missing() -> None:
    """A HEAD cannot tell it from a missing object, and says so."""
    async with s3_at(refusal("404 Not Found", "NoSuchBucket")) as (url, options):
        for verb, error in (await found_at(url, options)).items():
            assert isinstance(error, errors.NotFound)
            if verb == "stat":
                assert "there is no such object, or no bucket 'bucket'" in error.message
            else:
                assert "there is no bucket 'bucket' here: create it, or check bucket, region and endpoint_url" in str(
                    error
                )


@each_of(
    ("code", "says"),
    [
        ("InvalidAccessKeyId", "check access_key_id, endpoint_url, and whether the key needs a session_token"),
        ("SignatureDoesNotMatch", "check secret_access_key, and region if it is not AWS"),
        ("AccessDenied", "check its permissions (reading takes s3:GetObject"),
        ("InvalidToken", "the session_token does not belong to the keys"),
        ("ExpiredToken", "the credentials have expired: give new ones"),
    ],
)
async def test_the_keys_are_refused(code: str, says: str) -> None:
    async with s3_at(refusal("403 Forbidden", code)) as (url, options):
        for error in (await found_at(url, options, verbs=("read", "list", "write", "delete"))).values():
            assert isinstance(error, errors.PermissionDenied)
            assert says in error.message


@pytest.mark.parametrize("endpoint_url", [None, "http://127.0.0.1:1"])
async def test_there_are_no_keys(endpoint_url: str | None) -> None:
    """Nothing is sent; the error says where keys may come from, and names the store, AWS too."""
    options = {**OPTIONS, "endpoint_url": endpoint_url}
    for error in (await found_at("s3://bucket", options)).values():
        assert isinstance(error, errors.PermissionDenied)
        for word in ("access_key_id", "profile", "AWS_ACCESS_KEY_ID", "anonymous=True"):
            assert word in error.message
        at = endpoint_url or "https://bucket.s3.eu-west-1.amazonaws.com"
        assert error.context["service"] == f"s3://bucket at {at}"


@each_of(
    ("given", "says"),
    [
        ({"access_key_id": "CANARY-ID"}, "access_key_id is given without secret_access_key"),
        ({"session_token": "CANARY-TOKEN"}, "session_token is given without access_key_id"),
        ({"anonymous": True, **KEYS}, "anonymous=True sends no credentials"),
        ({"endpoint_url": "127.0.0.1:9000"}, "must begin with http:// or https://"),
        ({"endpoint_url": "http://user:CANARY-SECRET@host"}, "keys are given as access_key_id and secret_access_key"),
        ({"endpoint_url": "http://store.example:9000", **KEYS}, "use https://, or allow_http=True"),
        ({"region": "Europe West"}, "one looks like 'eu-west-1'"),
        ({"ca_bundle": ""}, "ca_bundle must be the path of a file"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(given: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.ConfigInvalid) as caught:
        Operator.from_uri("s3://bucket", **given)
    assert says in caught.value.message
    with pytest.raises(errors.ConfigInvalid) as without_loop:
        open_file("s3://bucket/k", **given)
    assert without_loop.value.message == caught.value.message
    found = everything(caught.value.with_traceback(None))  # The frames of the test hold the keys.
    assert [text for text in found if "CANARY-SECRET" in text or "CANARY-TOKEN" in text] == []


@each_of(
    ("region", "address"),
    [
        ("us-east-1", "https://bucket.s3.amazonaws.com"),
        ("cn-north-1", "https://bucket.s3.cn-north-1.amazonaws.com.cn"),
        ("elsewhere-1", "AWS, region elsewhere-1"),
    ],
)
def test_a_bucket_of_aws_has_an_address(region: str, address: str) -> None:
    """It names the store in errors, and is no part of its identity."""
    info = Operator.from_uri("s3://bucket/p", region=region, anonymous=True).info
    assert info.location == f"s3://bucket/p at {address}"
    assert info.endpoint == ""
    assert address not in info.namespace


# --- what is there, and what is not ----------------------------------------------------------------------------------


@pytest.fixture
async def places(tmp_path: Path) -> AsyncIterator[dict[str, Operator]]:
    """A memory store and a directory, each with ``dir/k``."""
    found = {"memory": Operator.from_uri("memory://"), "file": Operator.from_uri(tmp_path)}
    for operator in found.values():
        await operator.write("dir/k", b"bytes")
    yield found
    for operator in found.values():
        await operator.aclose()


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_a_directory_stands_where_a_file_should(places: dict[str, Operator], store: str) -> None:
    operator = places[store]
    kind = errors.NotFound if store == "memory" else errors.IsADirectory
    with pytest.raises(kind):
        await operator.read("dir")
    for call in (operator.read("dir/"), operator.write("dir/", b"x")):
        with pytest.raises(errors.IsADirectory, match=r"an object is needed; list\(\) shows those below it"):
            await call
    with pytest.raises(errors.IsADirectory, match=r"an object is needed; aioprefetch\.copy copies"):
        await operator.copy("dir/", "x")
    with open_file("dir/", operator=operator) as file, pytest.raises(errors.IsADirectory, match="director"):
        file.read()
    for url in ("s3://bucket", "file:///", "memory://name/"):
        with pytest.raises(errors.ConfigInvalid, match="names no object, but a store or a directory"):
            open_file(url)


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_a_pattern_matches_nothing(places: dict[str, Operator], store: str) -> None:
    """A listing is empty, a table has to have a file, and a path is never a pattern."""
    operator = places[store]
    assert await operator.list("dir/", glob="dir/*.parquet").collect() == []
    with pytest.raises(errors.NotFound, match=r"no file matches this glob; \* and \? stay within a directory"):
        await read_table(operator, "dir/*.parquet")
    with pytest.raises(errors.NotFound, match="the directory has no files"):
        await read_table(operator, "none/")
    with pytest.raises(errors.NotFound, match="and this one is a URL"):
        await read_table(operator, "s3://bucket/table/")
    with pytest.raises(errors.NotFound) as caught:
        await operator.read("dir/*")
    assert caught.value.context["hint"] == (
        "a path is taken as it stands: list(prefix, glob=...) finds what matches a pattern"
    )
    with pytest.raises(errors.InvalidArgument, match="a pattern is given as glob="):
        await operator.list("dir/*.csv").collect()


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_a_destination_is_there_already(places: dict[str, Operator], store: str) -> None:
    """It is kept as it is."""
    operator = places[store]

    async def by_writer() -> None:
        async with operator.writer("dir/k", if_not_exists=True) as writer:
            await writer.write(b"other")

    def by_file() -> None:
        with open_file("dir/k", "xb", operator=operator) as file:
            file.write(b"other")

    says = r"there already; without if_not_exists \(mode 'x' of a file\) it would be replaced"
    for call in (operator.write("dir/k", b"other", if_not_exists=True), by_writer(), asyncio.to_thread(by_file)):
        with pytest.raises(errors.AlreadyExists, match=says) as caught:
            await call
        assert caught.value.path == "dir/k"
    assert await operator.read("dir/k") == b"bytes"


async def test_a_destination_of_s3_is_there_already() -> None:
    async with (
        s3_at(refusal("412 Precondition Failed", "PreconditionFailed")) as (url, options),
        Operator.from_uri(url, **options) as operator,
    ):
        with pytest.raises(errors.AlreadyExists, match="it would be replaced"):
            await operator.write("k", b"", if_not_exists=True)


async def test_a_local_place_is_missing_or_taken(places: dict[str, Operator], tmp_path: Path) -> None:
    operator = places["memory"]
    with pytest.raises(errors.NotFound, match=r"the directory of the target, .*, does not exist"):
        await operator.download("dir/k", tmp_path / "none" / "file")
    with pytest.raises(errors.IsADirectory, match="a directory stands where the path needs a file"):
        await operator.download("dir/k", tmp_path)
    with pytest.raises(FileNotFoundError):
        await operator.upload(tmp_path / "none", "k")
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["dir"]


def test_what_a_bridge_finds_missing_names_the_endpoint(s3_server: CountingS3Server, random_name: Any) -> None:
    """Of a request that succeeded, as a listing without entries does: the address may be the mistake."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    keys: dict[str, Any] = {"access_key_id": "testing", "secret_access_key": "testing", "region": s3_server.region}
    operator = Operator.from_uri(f"s3://{bucket}", endpoint_url=s3_server.endpoint_url, **keys)
    files = S3FileSystem(endpoint_url=s3_server.endpoint_url, key="testing", secret="testing")
    arrow = filesystem(operator)
    files.pipe(f"{bucket}/there", b"x")
    calls: list[Callable[[], object]] = [
        lambda: files.info(f"{bucket}/missing"),
        lambda: files.ls(f"{bucket}/missing"),
        lambda: files.rm(f"{bucket}/missing", recursive=True),
        lambda: files.open(f"{bucket}/there", "xb"),
        lambda: files.pipe_file(f"{bucket}/there", b"y", mode="create"),
        lambda: arrow.get_file_info(FileSelector("missing")),
        lambda: arrow.copy_file("missing", "k"),
        lambda: arrow.move("missing", "k"),
        lambda: arrow.delete_dir("missing"),
        lambda: sync.run(read_table(operator, "missing/*.parquet")),
        lambda: sync.run(read_table(operator, "missing/")),
        lambda: sync.copy((operator, "missing/*"), (operator, "k/")),
        lambda: sync.copy((operator, "missing/"), (operator, "k/")),
    ]
    for call in calls:
        with pytest.raises((errors.NotFound, errors.AlreadyExists)) as caught:
            call()
        assert caught.value.context["service"] == f"s3://{bucket} at {s3_server.endpoint_url}"
    sync.run(operator.aclose())
