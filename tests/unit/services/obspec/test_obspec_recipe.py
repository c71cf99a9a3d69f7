"""The recipe: what it takes, what it tells, what travels in a pickle."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import pickle
import re
import sys
from typing import Any

import pytest
from obstore.store import AzureStore, GCSStore, HTTPStore, LocalStore, MemoryStore, S3Store

from aioprefetch import services
from aioprefetch.errors import ConfigInvalid
from aioprefetch.layers import RetryLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from tests.probes.programs import completed
from tests.profile import each_of
from tests.repository.doc_pages import code, rows_under
from tests.repository.source_tree import ROOT
from tests.unit.services.obspec.plain import GetOnly
from tests.unit.services.obspec.stores import SECRET

MADE: list["Closing"] = []
SERVICE_ACCOUNT = json.dumps(
    {"type": "service_account", "disable_oauth": True, "gcs_base_url": "http://host"}
    | dict.fromkeys(("private_key", "private_key_id", "client_email"), "")
)


class Closing(GetOnly):
    """A store that counts how often it was closed."""

    closed = 0

    async def aclose(self) -> None:
        """End it."""
        self.closed += 1


def make_closing() -> Closing:
    """A new store."""
    MADE.append(Closing())
    return MADE[-1]


def make_s3() -> S3Store:
    """A store whose keys lie in the environment."""
    return S3Store("bucket", access_key_id="an-id", secret_access_key=os.environ.get("OF_NOBODY", SECRET))


def make_nothing() -> object:
    """No store."""
    return object()


def make_failing() -> object:
    """Fails."""
    raise RuntimeError(SECRET)


def test_it_is_one_of_the_services() -> None:
    """By its public name."""
    assert services.ObspecStore is ObspecStore
    assert "ObspecStore" in services.__all__


@each_of(
    ("store", "options"),
    [
        (object(), {}),
        (None, {}),
        ("s3://bucket", {}),
        (GetOnly(), {"name": 5}),
        (GetOnly(), {"principal": None}),
        (GetOnly(), {"prefix": "a//b"}),
        (GetOnly(), {"prefix": "../a"}),
        (GetOnly(), {"prefix": 5}),
        (GetOnly(), {"part_bytes": 1000}),
        (GetOnly(), {"part_bytes": True}),
        (GetOnly(), {"capability": {"read": True}}),
    ],
)
def test_what_cannot_work_is_refused(store: Any, options: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(ConfigInvalid):
        ObspecStore(store, **options)


def test_a_function_that_makes_no_store_is_refused() -> None:
    """When it is asked what it can do; what it raised is the cause and not in the message."""
    for factory in (make_nothing, make_failing):
        with pytest.raises(ConfigInvalid) as caught:
            _ = Operator(ObspecStore(factory)).capability
        assert SECRET not in str(caught.value)


def s3(secret: str = SECRET, **options: Any) -> S3Store:
    """A store of a bucket that is nowhere."""
    return S3Store("bucket", access_key_id="an-id", secret_access_key=secret, **options)


def test_tenants_have_namespaces_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By keys, bucket, endpoint, prefixes, headers and environment; the same configuration has the same one."""
    stores: list[Any] = [
        s3(),
        s3("another"),
        s3(prefix="deep"),
        s3(endpoint="https://elsewhere.example"),
        s3(region="eu-west-1"),
        s3(client_options={"default_headers": {"x-tenant": "one"}}),
        S3Store("other", access_key_id="an-id", secret_access_key=SECRET),
        S3Store("bucket", skip_signature=True),
        s3(credential_provider=dict),
        s3(credential_provider=dict),
        AzureStore("bucket", account_name="one", skip_signature=True),
        AzureStore("bucket", account_name="two", skip_signature=True),
        GCSStore("bucket", skip_signature=True),
        LocalStore("/tmp"),
        LocalStore("/"),
        HTTPStore(f"https://host/?sig={SECRET}"),
        HTTPStore("https://host/?sig=another"),
        MemoryStore(),
        MemoryStore(),
        GetOnly(),
        GetOnly(),
    ]
    services_ = [ObspecStore(store) for store in stores] + [ObspecStore(s3(), prefix="p")]
    namespaces = {service.info.namespace for service in services_}
    assert len(namespaces) == len(services_)
    assert ObspecStore(s3()).info.namespace == ObspecStore(s3()).info.namespace
    assert ObspecStore(make_s3).info.namespace == ObspecStore(make_s3).info.namespace
    before = ObspecStore(s3()).info.namespace
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-principal")
    assert ObspecStore(s3()).info.namespace != before


def test_names_are_the_caller_s_to_give() -> None:
    """Both parts, so that two processes may share a cache on purpose."""
    one = ObspecStore(GetOnly(), name="data", principal="me").info
    assert (one.name, one.principal, one.url) == ("data", "me", "obspec://data")
    assert one.namespace == ObspecStore(GetOnly(), name="data", principal="me").info.namespace
    assert one.namespace != ObspecStore(GetOnly(), name="data", principal="you").info.namespace


def test_the_options_are_those_of_the_page() -> None:
    """Names in order, and defaults."""
    rows = rows_under(ROOT / "docs" / "guides" / "obspec.md", "## Options")
    documented = {code(row[0]): row[3] for row in rows}
    actual = inspect.signature(ObspecStore).parameters
    assert list(documented) == list(actual)
    assert documented.pop("store") == "required"
    assert documented.pop("part_bytes") == f"{actual['part_bytes'].default >> 20} MiB"
    assert {name: ast.literal_eval(code(cell)) for name, cell in documented.items()} == {
        name: actual[name].default for name in documented
    }


class CanAll(GetOnly):
    """A store from elsewhere that has every method."""

    copy_async = delete_async = list_async = put_async = GetOnly.get_async


def test_capabilities_are_those_of_the_page() -> None:
    """Of each store of obstore's; what the table leaves out is the same for all."""
    rows = rows_under(ROOT / "docs" / "guides" / "obspec.md", "## What each store can do")
    stores: list[Any] = [
        s3(),
        AzureStore("c", account_name="a", account_key="YWJj"),
        GCSStore("bucket", config={"service_account_key": SERVICE_ACCOUNT}),
        HTTPStore("https://host/"),
        LocalStore("/tmp"),
        MemoryStore(),
        CanAll(),
    ]
    found = [dataclasses.asdict(ObspecStore(store).capability) for store in stores]
    differing = {name: ["yes" if one[name] else "no" for one in found] for name in found[0]}
    differing = {name: cells for name, cells in differing.items() if len(set(cells)) > 1}
    assert {code(row[0]): list(row[1:]) for row in rows} == differing


def test_nothing_shows_a_secret() -> None:
    """Neither repr nor information, whatever the store's own repr shows."""
    for store in (s3(), HTTPStore(f"https://user:{SECRET}@host/x?sig={SECRET}")):
        service = ObspecStore(store)
        assert SECRET not in repr(service) + repr(service.info) + repr(Operator(service))


def test_a_store_is_not_pickled() -> None:
    """Its own pickle would hold its keys: this is what the refusal is for."""
    assert SECRET.encode() in pickle.dumps(s3())
    for store in (s3(), MemoryStore(), GetOnly()):
        with pytest.raises(ConfigInvalid, match="function"):
            pickle.dumps(Operator(ObspecStore(store)))


def test_a_function_is_pickled_by_its_name() -> None:
    """With all that was said beside it, and the random part that stands for what is not known."""
    service = ObspecStore(make_closing, prefix="p", part_bytes=6 << 20)
    data = pickle.dumps(service)
    twin = pickle.loads(data)
    assert (twin.store, twin.prefix, twin.part_bytes) == (make_closing, "p", 6 << 20)
    assert twin.info == service.info
    assert SECRET.encode() not in pickle.dumps(Operator(ObspecStore(make_s3)))


def test_a_function_that_may_hold_a_secret_is_not_pickled() -> None:
    """Arguments and closures would travel along with some picklers."""

    def local() -> S3Store:
        return s3(SECRET)

    for factory in (local, lambda: s3(SECRET), functools.partial(s3, SECRET)):
        with pytest.raises(ConfigInvalid, match="by name"):
            pickle.dumps(ObspecStore(factory))


async def test_each_runtime_has_a_store_of_its_own() -> None:
    """Made at its first use, shared by what is derived, closed with it; one more is asked what it can do."""
    MADE.clear()
    op = Operator(ObspecStore(make_closing))
    for closed in (1, 2):
        async with op:
            assert await op.read("k") == b"0123456789"
            assert await op.layer(RetryLayer()).read("k", size=1) == b"0"
        assert len(MADE) == 1 + closed
        assert sum(store.closed for store in MADE) == closed


async def test_a_closed_operator_opens_again() -> None:
    """With the store that was given, which stays the caller's to close."""
    store = Closing()
    op = Operator(ObspecStore(store))
    for _ in range(2):
        async with op:
            assert await op.read("k") == b"0123456789"
    assert store.closed == 0


FORKING = """
import asyncio, os, sys
from obstore.store import MemoryStore
import aioprefetch as ap

op = ap.Operator.bare(ap.services.ObspecStore(MemoryStore()))

async def use():
    try:
        await op.write("k", b"1")
    except ap.WrongLoop:
        return 7
    return 0

if sys.argv[1] == "used":
    assert asyncio.run(use()) == 0
child = os.fork()
if child == 0:
    os._exit(asyncio.run(use()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(("parent", "outcome"), [("used", "7"), ("unused", "0")])
def test_a_forked_child_gets_an_error(parent: str, outcome: str) -> None:
    """obstore's threads did not come along: without this its calls end as if they were cancelled."""
    command = [sys.executable, "-c", FORKING, parent]
    run = completed(command)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == outcome


def test_no_optional_package_is_needed() -> None:
    """The service works by names: neither obspec nor obstore is imported for it."""
    program = (
        "import sys, asyncio, aioprefetch as ap\n"
        "from tests.unit.services.obspec import plain\n"
        "async def main():\n"
        "    async with ap.Operator(ap.services.ObspecStore(plain.GetOnly())) as op:\n"
        "        print(await op.read('k'))\n"
        "asyncio.run(main())\n"
        "print([name for name in ('obspec', 'obstore') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program]
    run = completed(command)
    assert (run.returncode, run.stdout.splitlines()) == (0, ["b'0123456789'", "[]"]), run.stderr


def test_a_principal_of_a_store_is_dear_to_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in entries of caches, and the keys that it is made of may be words. It costs that once."""
    calls: list[int] = []
    scrypt = hashlib.scrypt

    def counted(*arguments: Any, **options: Any) -> bytes:
        calls.append(options["n"])
        return scrypt(*arguments, **options)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    first = ObspecStore(s3("a word of this test")).info.principal
    assert ObspecStore(s3("a word of this test")).info.principal == first
    assert calls == [1 << 12]
    assert re.fullmatch("[0-9a-f]{16}", first)
