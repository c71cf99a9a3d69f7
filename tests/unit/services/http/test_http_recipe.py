"""The recipe: options are checked, secrets are in no repr, message or pickle."""

import hashlib
import pickle
import re
import subprocess
import sys
import time
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.credentials import Secret
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http import Http
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import DeleteRequest, ListRequest, PresignRequest, WriteRequest
from tests.profile import each_of
from tests.unit.services.http.reading import DATA, Servers, accessor_for, read

CANARY = "canary-9f3a"


@each_of(
    "options",
    [
        {"headers": ["a"]},
        {"headers": {"bad name": "x"}},
        {"headers": {"X-A": "line\r\nbreak"}},
        {"headers": {"X-A": 3}},
        {"headers": {"Range": "bytes=0-1"}},
        {"headers": {"accept-encoding": "gzip"}},
        {"headers": {"Authorization": "x"}, "auth": "token"},
        {"auth": ""},
        {"auth": ("user",)},
        {"auth": ("us:er", "p")},
        {"auth": ("user", 3)},
        {"auth": 3},
        {"follow_redirects": 1},
        {"skip_bytes_max": -1},
        {"skip_bytes_max": True},
        {"stat_method": "options"},
        {"connect_timeout_seconds": 0},
        {"read_timeout_seconds": float("inf")},
        {"read_timeout_seconds": "30"},
        {"proxies": "http://proxy"},
        {"proxies": {"ftp": "http://proxy"}},
        {"proxies": {"http": "proxy:3128"}},
    ],
)
def test_options_that_cannot_work(options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigInvalid):
        Http("https://host/", **options)


@each_of(
    ("url", "options"),
    [
        ("https://host/", {"headers": {"X-Api-Key": f"{CANARY}\n"}}),
        ("https://host/", {"headers": {"X-Api-Key": CANARY.encode()}}),
        ("https://host/", {"auth": (f"a:{CANARY}", "p")}),
        ("https://host/", {"auth": ("user", CANARY, "x")}),
        (f"https://user:{CANARY}@host/", {"auth": CANARY}),
        (f"https://user:{CANARY}@host:x/?sig={CANARY}", {}),
        (f"https://user:a/{CANARY}@host/", {}),
        (f"https://user:a?{CANARY}@host/", {}),
        ("https://host/", {"proxies": {"http": f"user:{CANARY}@proxy"}}),
    ],
)
def test_a_refused_option_shows_no_secret(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigInvalid) as caught:
        Http(url, **options)
    assert CANARY not in repr(caught.value)


SECRETIVE = [
    Http(f"https://user:{CANARY}@host/base"),
    Http(f"https://host/base?sig={CANARY}"),
    Http("https://host/base", auth=CANARY),
    Http("https://host/base", auth=("user", CANARY)),
    Http("https://host/base", headers={"X-Api-Key": CANARY, "Cookie": CANARY, "X-Plain": "plain"}),
    Http("https://host/base", headers={"X-Plain": Secret(CANARY)}),
    Http("https://host/base", proxies={"https": f"http://user:{CANARY}@proxy:3128"}),
]


@each_of("recipe", SECRETIVE)
def test_no_secret_in_repr_info_or_pickle(recipe: Http) -> None:
    pickled = pickle.dumps(recipe)
    for text in (repr(recipe), str(recipe), repr(recipe.info), recipe.info.url, repr(pickled)):
        assert CANARY not in text
    again = pickle.loads(pickled)
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert again.request_headers() == recipe.request_headers()


def test_a_literal_secret_stays_in_its_process() -> None:
    """Elsewhere its use is an error that says what to do, not a request without credentials."""
    program = (
        "import pickle, sys\n"
        "from aioprefetch.errors import PermissionDenied\n"
        "recipe = pickle.loads(sys.stdin.buffer.read())\n"
        "try: recipe.request_headers()\n"
        "except PermissionDenied as error: print(error)\n"
    )
    pickled = pickle.dumps(Http("https://host/", auth=CANARY))
    run = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True)
    assert b"env:NAME" in run.stdout
    assert CANARY.encode() not in run.stdout


def test_principals_tell_identities_apart() -> None:
    """A cache must not serve one tenant's bytes to another: whatever of ours the server can see counts."""
    recipes = [
        Http("https://host/"),
        Http("https://host/", auth="a-token"),
        Http("https://host/", auth="b-token"),
        Http("https://host/", auth=("a", "token")),
        Http("https://host/", headers={"X-Tenant": "a"}),
        Http("https://host/", headers={"X-Tenant": "b"}),
        Http("https://host/?sig=a"),
        Http("https://host/?sig=b"),
    ]
    assert len({recipe.info.namespace for recipe in recipes}) == len(recipes)
    assert recipes[0].info.principal == "anonymous"
    assert Http("https://host/", auth="a-token").info == recipes[1].info


@pytest.mark.cost
def test_a_principal_is_dear_to_guess() -> None:
    """It stands in plain in every entry of a cache: who reads that must not find a weak password by trying many."""
    began = time.thread_time()
    principal = Http("https://host/", auth=("user", f"password-{time.time_ns()}")).info.principal
    assert time.thread_time() - began > 0.005
    assert re.fullmatch("[0-9a-f]{16}", principal)


def test_a_principal_is_made_once_and_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches outlive processes; and what an operator is called is asked often."""
    monkeypatch.setenv("HTTP_TEST_PASSWORD", CANARY)
    recipe = Http("https://host/", auth=("user", "env:HTTP_TEST_PASSWORD"))
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).info.principal)"
    found = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(recipe), capture_output=True, check=True)
    assert found.stdout.decode().strip() == recipe.info.principal
    monkeypatch.setattr(hashlib, "scrypt", None)
    assert pickle.loads(pickle.dumps(recipe)).info == recipe.info
    assert Http("https://host/", auth=("user", CANARY)).info.principal == recipe.info.principal
    monkeypatch.undo()
    assert Http("https://elsewhere/", auth=("user", CANARY)).info.principal != recipe.info.principal


def test_what_it_is_called() -> None:
    info = Http("https://host:8443/a/b/").info
    assert info.url == "https://host:8443/a/b"
    capability = Http("https://host").capability
    assert capability.read_range
    assert not any((capability.write, capability.list, capability.delete, capability.presign))


async def test_the_environment_is_read_when_a_request_is_made(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers.start()
    accessor = accessor_for(server, runtime, auth="env:HTTP_TEST_TOKEN")
    with pytest.raises(errors.ConfigInvalid, match="the token of auth is 'env:HTTP_TEST_TOKEN', but that"):
        await read(accessor)
    monkeypatch.setenv("HTTP_TEST_TOKEN", CANARY)
    assert await read(accessor) == DATA
    assert server.requests[0].headers["authorization"] == f"Bearer {CANARY}"


@checks("reliability:I10")
async def test_a_control_character_in_the_environment_is_refused(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await servers.start()
    monkeypatch.setenv("HTTP_TEST_TOKEN", f"{CANARY}\r\nX-Injected: 1")
    with pytest.raises(errors.ConfigInvalid) as caught:
        await read(accessor_for(server, runtime, auth="env:HTTP_TEST_TOKEN"))
    assert CANARY not in repr(caught.value)
    assert server.requests == []


async def test_what_a_request_carries(servers: Servers, runtime: Runtime) -> None:
    """Auth, headers and query of the recipe; no encoding, no cookie."""
    server = await servers.start()
    url = server.url.replace("http://", "http://us%40er:p%20w@") + "/base/?sig=a%2Fb&x"
    accessor = Http(url, headers={"X-Plain": "plain", "X-Api-Key": "key"}, proxies={}).build(runtime)
    assert await read(accessor, offset=1, size=2) == DATA[1:3]
    (request,) = server.requests
    assert request.target == "/base/k?sig=a%2Fb&x"
    assert request.headers["authorization"] == "Basic dXNAZXI6cCB3"
    assert request.headers["x-plain"] == "plain"
    assert request.headers["x-api-key"] == "key"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"] == "aioprefetch"
    assert request.headers["range"] == "bytes=1-2"


async def test_a_proxy_is_used_with_its_credentials(servers: Servers, runtime: Runtime) -> None:
    """The server behind it does not exist: only the proxy can answer."""
    proxy = await servers.start({"ttp://nowhere.invalid/base/k": DATA})
    url = proxy.url.replace("http://", "http://us%40er:pw@")
    accessor = Http("http://nowhere.invalid/base", proxies={"http": url}).build(runtime)
    assert await read(accessor) == DATA
    (request,) = proxy.requests
    assert request.target == "http://nowhere.invalid/base/k"
    assert request.headers["proxy-authorization"] == "Basic dXNAZXI6cHc="


async def test_proxies_come_from_the_environment(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the mapping is given, or the host is excepted."""
    proxy = await servers.start({"ttp://nowhere.invalid/k": DATA})
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert await read(Http("http://nowhere.invalid").build(runtime)) == DATA
    server = await servers.start()
    assert await read(Http(server.url + "/base").build(runtime)) == DATA
    assert (len(proxy.requests), len(server.requests)) == (1, 1)
    with pytest.raises(errors.Unavailable):
        await read(Http("http://nowhere.invalid", proxies={}).build(runtime))


async def test_writing_is_not_offered(servers: Servers, runtime: Runtime) -> None:
    accessor = accessor_for(await servers.start(), runtime)
    for operation in (
        lambda: accessor.write(WriteRequest(path="k"), b""),
        lambda: accessor.delete(DeleteRequest(path="k", paths=("k",))),
        lambda: accessor.list_page(ListRequest(path="")),
        lambda: accessor.presign(PresignRequest(path="k")),
        lambda: read(accessor, version="1"),
    ):
        with pytest.raises(errors.Unsupported):
            await operation()


def test_the_extra_is_loaded_by_the_first_build_alone() -> None:
    names = ("aiohappyeyeballs", "aiohttp", "httptools")
    program = f"import sys, aioprefetch.services.http; print([name for name in {names} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["aiohappyeyeballs", "httptools"])
async def test_a_missing_package_names_the_extra(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.MissingDependency, match=rf"{name}: .*aioprefetch\[http\]"):
        Http("https://host").build(runtime)
