"""What refuses a secret keeps none: tools print the variables of all frames of a traceback.

pytest does (``--showlocals``), rich, Sentry. The frames of callers are theirs; those of ours that were given a secret
are not part of the error.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.operator.operator import Operator
from aioprefetch.testing.conformance.suite import checks
from tests.probes.error_walk import everything, variables
from tests.profile import each_of

SECRET = "pl4ntedS3cretpl4ntedS3cretpl4nted"
KEYS: dict[str, Any] = {"access_key_id": "AKIA", "secret_access_key": SECRET, "region": "us-east-1"}
UNKNOWN: Any = {"bogus": 1, **KEYS}
PACKAGE = str(Path(ap.__file__).parent)

# An option that is refused, beside keys that are right.
BESIDE_KEYS: dict[str, dict[str, Any]] = {
    "unknown": {"bogus": 1},
    "size": {"block_bytes": "x"},
    "budget": {"memory_bytes": 1},
    "attempts": {"attempts_max": 0},
    "timeout": {"read_timeout_seconds": -1},
    "endpoint": {"endpoint_url": "ftp://x"},
    "anonymous": {"anonymous": True},
    "choice": {"signing": "x"},
    "token": {"session_token": 5},
    "file": {"ca_bundle": 3},
    "proxies": {"proxies": 3},
    "cache": {"disk_cache": 3},
}


def of_uri(uri: str, **options: Any) -> Callable[[], object]:
    return lambda: Operator.from_uri(uri, **options)


def of_s3(**options: Any) -> Callable[[], object]:
    return lambda: ap.services.S3(**{"bucket": "bkt", **options})


def of_fs(call: Callable[[ap.fsspec.S3FileSystem], object]) -> Callable[[], object]:
    return lambda: call(ap.fsspec.S3FileSystem(key="a", secret="b"))


DOORS: dict[str, Callable[[], object]] = {
    **{f"keys beside {name}": of_uri("s3://bkt", **KEYS, **option) for name, option in BESIDE_KEYS.items()},
    "keys and a bad bucket": of_uri("s3://B_AD", **KEYS),
    "secret key alone": of_uri("s3://bkt", secret_access_key=SECRET),
    "session token alone": of_uri("s3://bkt", session_token=SECRET),
    "secret key as bytes": of_uri("s3://bkt", access_key_id="A", secret_access_key=SECRET.encode()),
    "no provider": of_uri("s3://bkt", credentials={"secret_access_key": SECRET}),
    "key of SSE-C as text": of_uri("s3://bkt", sse_customer_key=SECRET),
    "key of SSE-C as bytes": of_uri("s3://bkt", sse_customer_key=SECRET.encode()),
    "user of an endpoint": of_uri("s3://bkt", endpoint_url=f"http://u:{SECRET}@h"),
    "user of a proxy": of_uri("s3://bkt", proxies={"ftp": f"http://u:{SECRET}@h"}),
    "keys in a URI": of_uri(f"s3://key:{SECRET}@bkt/p"),
    "keys with a slash in a URI": of_uri(f"s3a://key:{SECRET}/x@bkt/p"),
    "unknown scheme": of_uri(f"foo://u:{SECRET}@h/"),
    "password of a host": of_uri(f"http://u:{SECRET}@h:99999/"),
    "header of http": of_uri("https://h/", headers={"Authorization": f"Bearer {SECRET}\n"}),
    "name of a header": of_uri("https://h/", headers={"a b": SECRET}),
    "headers beside an option": of_uri("https://h/", headers={"Authorization": SECRET}, bogus=1),
    "auth of http": of_uri("https://h/", auth=("u:x", SECRET)),
    "auth of three": of_uri("https://h/", auth=("u", SECRET, "x")),
    "auth beside an option": of_uri("https://h/", auth=("u", SECRET), read_timeout_seconds=-1),
    "key of Google": of_uri("gs://bkt", service_account_key=SECRET, bogus=1),
    "key of Azure": of_uri("az://bkt", account_name="a", account_key=SECRET, bogus=1),
    "S3 itself": of_s3(bucket="B!", **KEYS),
    "S3 itself with half of the keys": of_s3(secret_access_key=SECRET),
    "S3 itself with an endpoint": of_s3(endpoint_url=f"http://u:{SECRET}@h"),
    "Http itself": lambda: ap.services.Http(f"https://u:{SECRET}@h:99999"),
    "Http itself with headers": lambda: ap.services.Http("https://h", headers={"a b": SECRET}),
    "a file of a URL": lambda: ap.sync.open(f"s3://key:{SECRET}@bkt/k"),
    "a file with options": lambda: ap.sync.open("s3://bkt/k", **UNKNOWN),
    "a file of no mode": lambda: ap.sync.open("s3://bkt/k", "zz", **KEYS),
    "a presigned URL to write": lambda: ap.sync.open(f"https://h/k?X-Amz-Signature={SECRET}", "wb"),
    "a copy of a URL": lambda: ap.sync.copy(f"s3://key:{SECRET}@bkt/k", "file:///tmp/x"),
    "a copy with options": lambda: ap.sync.copy("s3://bkt/k", "/tmp/x", src_options=UNKNOWN),
    "a copy on a loop": lambda: asyncio.run(ap.copy(f"s3://key:{SECRET}@bkt/k", "file:///tmp/x")),
    "a file system": lambda: ap.fsspec.S3FileSystem(endpoint_url=f"http://u:{SECRET}@h"),
    "a file system with options": lambda: ap.fsspec.S3FileSystem(key="a", secret=SECRET, bogus=1),
    "a file of a file system": of_fs(lambda fs: fs.open(f"s3://key:{SECRET}@bkt/k")),
    "a verb of a file system": of_fs(lambda fs: fs.info(f"s3://key:{SECRET}@bkt/k")),
    "a key of Hadoop's": (
        lambda: Operator.from_uri("s3://bkt").open_file("k").must("fs.s3a.secret.key", SECRET).build()
    ),
}


@checks("reliability:K01")
@each_of("door", DOORS)
def test_a_refusal_keeps_no_secret_in_its_frames(door: str) -> None:
    """Nor in its text, and those of what led to it."""
    with pytest.raises(ap.Error) as caught:
        DOORS[door]()
    assert [text for text in variables(caught.value, of=PACKAGE) if SECRET in text] == []
    assert not any(SECRET in text for text in everything(caught.value.with_traceback(None)))


VARIABLES = {
    "key alone": {"AWS_ACCESS_KEY_ID": "A", "AIOPREFETCH_SECRET_ACCESS_KEY": SECRET, "AIOPREFETCH_BLOCK_BYTES": "x"},
    "endpoint": {"AIOPREFETCH_ENDPOINT_URL": f"http://u:{SECRET}@h"},
    "endpoint of AWS": {"AWS_ENDPOINT_URL_S3": f"http://u:{SECRET}@h:99999"},
    "proxy": {"HTTPS_PROXY": f"http://u:{SECRET}@h:99999"},
}
PROFILES = {
    "half of the keys": f"[p]\naws_secret_access_key={SECRET}\n",
    "no such profile": f"[q]\naws_access_key_id=A\naws_secret_access_key={SECRET}\n",
    "no profile at all": f"aws_secret_access_key={SECRET}\n",
    "twice": f"[p]\naws_secret_access_key={SECRET}\naws_secret_access_key={SECRET}",
    "a code that a person types": f"[p]\nrole_arn=x\nmfa_serial=y\nsource_profile=p\naws_secret_access_key={SECRET}\n",
    "an endpoint": f"[p]\naws_access_key_id=A\naws_secret_access_key={SECRET}\nendpoint_url=http://u:{SECRET}@h:99999\n",
}


@pytest.mark.parametrize("given", [*VARIABLES, *PROFILES])
def test_nor_what_comes_from_the_environment(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables, and the files of AWS: they are found out when the operator is made, or at its first read."""
    for name in os.environ:
        if name.startswith(("AWS_", "AIOPREFETCH_ENDPOINT", "HTTPS_PROXY")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    files = tmp_path / "files"
    files.write_text(PROFILES.get(given, "[p]\naws_access_key_id=A\naws_secret_access_key=B\n"), "utf-8")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(files))
    for name, value in VARIABLES.get(given, {}).items():
        monkeypatch.setenv(name, value)

    async def read() -> None:
        async with Operator.from_uri("s3://bkt", profile="p", region="us-east-1", attempts_max=1) as operator:
            await operator.read("k")

    with pytest.raises(ap.Error) as caught:
        asyncio.run(read())
    assert [text for text in variables(caught.value, of=PACKAGE) if SECRET in text] == []
