"""Keys that were given as text stay in their process: elsewhere their first use says so, and no other keys are used."""

import json
import multiprocessing
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import boto3
import fsspec
import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.services.s3 import S3
from aioprefetch.spark.udf import WarmOperator
from tests.repository.source_tree import ROOT

CANARY = "canary/of/these/tests/0123456789+Canary/abc="
KEY_FILE = dict.fromkeys(("private_key", "private_key_id", "client_email"), CANARY) | {"disable_oauth": True}
KEYS: dict[str, Any] = {"access_key_id": CANARY, "secret_access_key": CANARY, "region": "us-east-1"}
# Other identities, in the process that unpickles.
AMBIENT = {
    "AWS_ACCESS_KEY_ID": "OTHER",
    "AWS_SECRET_ACCESS_KEY": "other",
    "HOME": "/nowhere",
    "AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI=",
    "AZURE_STORAGE_SAS_KEY": "sv=1&sig=other",
    "GOOGLE_SKIP_SIGNATURE": "true",
    "AZURE_SKIP_SIGNATURE": "true",
    "AWS_EC2_METADATA_DISABLED": "true",
}
USE = """
import asyncio, inspect, json, pickle, sys

def use(used):
    used = getattr(used, "operator", used)
    if hasattr(used, "cat_file"):
        used.cat_file("bucket/k")
    elif hasattr(used, "open_input_file"):
        used.open_input_file("k").read()
    elif inspect.iscoroutinefunction(used.read):
        asyncio.run(used.read("k"))
    else:
        used.read("k")

said = []
for pickled in pickle.load(sys.stdin.buffer):
    try:
        use(pickle.loads(pickled))
        said.append("it was read")
    except Exception as error:
        said.append(str(error))
print(json.dumps(said))
"""


class Door:
    """A server that counts who comes, and hangs up."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.callers = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            self.callers += 1
            caller.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


def s3(url: str, **options: Any) -> ap.Operator:
    given: dict[str, Any] = {"endpoint_url": url, "proxies": {}, "attempts_max": 1, **KEYS, **options}
    return ap.Operator.from_uri("s3://bucket", **given)


def over_http(url: str, **options: Any) -> ap.Operator:
    given: dict[str, Any] = {"proxies": {}, "attempts_max": 1, **options}
    return ap.Operator.from_uri(f"{url}/files", **given)


def gs(url: str, **options: Any) -> ap.Operator:
    return ap.Operator.from_uri("gs://bucket", endpoint_url=url, attempts_max=1, **options)


def az(url: str, **options: Any) -> ap.Operator:
    return ap.Operator.from_uri("az://bucket", endpoint_url=url, account_name="a", attempts_max=1, **options)


def file_system(scheme: str, **words: Any) -> Any:
    return fsspec.filesystem(f"aioprefetch+{scheme}", attempts_max=1, skip_instance_cache=True, **words)


def provider() -> Any:
    """A function without a name by which another process would find it."""
    return lambda: {"access_key_id": CANARY, "secret_access_key": CANARY, "token": CANARY}


NO_KEYS: dict[str, Any] = {"access_key_id": None, "secret_access_key": None}
# What travels, and what the error names.
KINDS: dict[str, tuple[Callable[[str], Any], str]] = {
    "s3": (s3, "access_key_id"),
    "s3, blocking": (lambda url: ap.sync.BlockingOperator(s3(url)), "access_key_id"),
    "s3, the secret": (lambda url: s3(url, access_key_id="env:HOME"), "secret_access_key"),
    "s3, a session": (lambda url: s3(url, credentials=boto3.Session(CANARY, CANARY), **NO_KEYS), "credentials="),
    "s3, a function": (lambda url: s3(url, credentials=provider(), **NO_KEYS), "credentials="),
    "s3, the customer's key": (
        lambda url: s3(url, sse_customer_key=CANARY[:32].encode(), **dict.fromkeys(NO_KEYS, "env:HOME")),
        "sse_customer_key",
    ),
    "s3, for Spark": (lambda url: WarmOperator(s3(url)), "access_key_id"),
    "s3, for Spark by its URL": (
        lambda url: WarmOperator("s3://bucket", {"endpoint_url": url, "attempts_max": 1, **KEYS}),
        "access_key_id",
    ),
    "s3, fsspec": (lambda url: file_system("s3", endpoint_url=url, key=CANARY, secret=CANARY), "access_key_id"),
    "s3, Arrow": (lambda url: ap.arrow.filesystem(s3(url)), "access_key_id"),
    "s3, fsspec over an operator": (lambda url: AioPrefetchFileSystem(s3(url)), "access_key_id"),
    "http, a token": (lambda url: over_http(url, auth=CANARY), "the token of auth"),
    "http, a password": (lambda url: over_http(url, auth=("user", CANARY)), "the password of auth"),
    "http, a user in the URL": (
        lambda url: over_http(url.replace("//", f"//user:{quote(CANARY, safe='')}@")),
        "the password of auth",
    ),
    "http, a header": (lambda url: over_http(url, headers={"X-Api-Key": CANARY}), "headers['X-Api-Key']"),
    "http, a query": (lambda url: ap.Operator.from_uri(f"{url}/files?sig={CANARY}"), "the query of base_url"),
    "http, a proxy": (
        lambda url: over_http(url, proxies={"http": url.replace("//", f"//user:{CANARY}@")}),
        "proxies['http']",
    ),
    "http, fsspec": (lambda url: AioPrefetchFileSystem(over_http(url, auth=CANARY)), "the token of auth"),
    "gs, a key file": (lambda url: gs(url, service_account_key=json.dumps(KEY_FILE)), "service_account_key"),
    "gs, a function": (lambda url: gs(url, credentials=provider()), "credentials="),
    "gs, fsspec": (
        lambda url: file_system("gs", endpoint_url=url, token=KEY_FILE),
        "service_account_key",
    ),
    "az, a key": (lambda url: az(url, account_key=CANARY), "account_key"),
    "az, a signature": (lambda url: az(url, sas_key=f"sv=1&sig={CANARY}"), "sas_key"),
    "az, a function": (lambda url: az(url, credentials=provider()), "credentials="),
    "az, fsspec": (
        lambda url: file_system("az", endpoint_url=url, account_name="a", sas_token=f"sv=1&sig={CANARY}"),
        "sas_key",
    ),
}


def used_elsewhere(pickled: list[bytes]) -> list[str]:
    """The errors of the first reads in a new process."""
    command, given = [sys.executable, "-c", USE], pickle.dumps(pickled)
    run = subprocess.run(command, input=given, env=AMBIENT, cwd=ROOT, capture_output=True, timeout=120, check=False)
    assert not run.stderr, run.stderr.decode()
    return [*map(str, json.loads(run.stdout))]


def test_the_first_use_elsewhere_says_what_is_missing(door: Door) -> None:
    """By ``PermissionDenied``, which names a remedy, before anything is sent; and no pickle holds the text."""
    url = f"http://127.0.0.1:{door.port}"
    pickled = [pickle.dumps(make(url)) for make, _ in KINDS.values()]
    assert CANARY.encode() not in b"".join(pickled)
    for (kind, (_, named)), said in zip(KINDS.items(), used_elsewhere(pickled), strict=True):
        assert " [permanent" in said, (kind, said)
        assert f": {named} " in said, (kind, said)
        assert "'env:NAME'" in said, (kind, said)
        assert CANARY not in said, kind
    assert door.callers == 0


def test_keys_of_that_process_stand_in_where_that_is_allowed(door: Door) -> None:
    url, options = f"http://127.0.0.1:{door.port}", {"attempts_max": 1, "fallback": "ambient"}
    made = [
        s3(url, fallback="ambient"),
        s3(url, credentials=boto3.Session(CANARY, CANARY), fallback="ambient", **NO_KEYS),
        WarmOperator("s3://bucket", {"endpoint_url": url, **options, **KEYS}),
        file_system("s3", endpoint_url=url, key=CANARY, secret=CANARY, fallback="ambient"),
    ]
    for number, said in enumerate(used_elsewhere([*map(pickle.dumps, made)])):
        assert "gave_up: attempts_max=1]" in said, (number, said)
    assert door.callers >= len(made)


@pytest.mark.parametrize("token", ["anon", "google_default"])
def test_a_word_of_gcsfs_that_is_no_secret_travels(token: str) -> None:
    fs = file_system("gs", token=token)
    assert pickle.loads(pickle.dumps(fs)).storage_options["token"] == token


def test_forks_keep_their_keys() -> None:
    """A pickle from before the fork, and one that the child makes."""
    service = S3(bucket="bucket", fallback=None, **KEYS)
    pickled = pickle.dumps(service)

    def look(results: Any) -> None:
        results.put([sorted(pickle.loads(data).known_secrets()) for data in (pickled, pickle.dumps(service))])

    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=look, args=(results,))
    child.start()
    assert results.get() == [[CANARY, CANARY]] * 2
    child.join()


@pytest.mark.parametrize("fallback", ["another", True, ""])
def test_another_fallback_is_refused(fallback: Any) -> None:
    with pytest.raises(ap.ConfigInvalid, match=r"fallback must be one of 'ambient', not "):
        s3("http://127.0.0.1:9", fallback=fallback)
