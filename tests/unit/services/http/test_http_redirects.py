"""Redirects: up to five, never to a weaker or stranger place, and never with credentials to another origin."""

import socket
from typing import Any

import pytest

from aioprefetch import errors
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.values import StatRequest
from tests.unit.services.http.reading import DATA, LARGE, Servers, accessor_for, read, read_head

CANARY = "canary-77b1"


def redirect(location: str | None, status: int = 302, **conditions: Any) -> Rule:
    """A rule that always redirects."""
    return Rule(fault=Fault(status=status, location=location), **{"times": None, **conditions})


def same(url: str) -> str:
    """The same server under another name: another origin."""
    return url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_with_range_and_condition(servers: Servers, runtime: Runtime, status: int) -> None:
    other = await servers.start({"there": DATA})
    server = await servers.start(script=[redirect(f"{other.url}/there?sig=1", status)])
    accessor = accessor_for(server, runtime)
    head = await read_head(accessor, offset=5, size=10)
    assert await read(accessor, offset=1, size=1, if_match=head.etag) == DATA[1:2]
    assert [request.target for request in other.requests] == ["/there?sig=1"] * 2
    other.assert_ranges("bytes=5-14", "bytes=1-1")
    assert other.requests[1].headers["if-match"] == f'"{head.etag}"'
    assert runtime.counters["action_http_get_request"] == 4


async def test_a_head_is_redirected_too(servers: Servers, runtime: Runtime) -> None:
    other = await servers.start({"there": DATA})
    server = await servers.start(script=[redirect(f"{other.url}/there", 303)])
    found = await accessor_for(server, runtime).stat(StatRequest(path="k"))
    assert (found.path, found.size) == ("k", len(DATA))
    other.assert_requests("HEAD")


@pytest.mark.parametrize(
    "options",
    [
        {"auth": CANARY},
        {"auth": ("user", CANARY)},
        {"headers": {"X-Api-Key": CANARY, "X-Tenant": CANARY, "Cookie": CANARY, "Authorization": CANARY}},
    ],
)
async def test_no_credential_reaches_another_origin(
    servers: Servers, runtime: Runtime, options: dict[str, Any]
) -> None:
    """Neither in a header nor in the target, and not in the response to its challenge either."""
    other = await servers.start({"there": DATA})
    server = await servers.start(script=[redirect(f"{other.url}/there")])
    accessor = accessor_for(server, runtime, f"/base/?sig={CANARY}", **options)
    assert await read(accessor) == DATA
    assert CANARY in repr(server.requests[0])
    for request in other.requests:
        assert CANARY not in repr(request)
        assert not {"authorization", "x-api-key", "x-tenant", "cookie", "referer"} & request.headers.keys()
    other.add(Rule(fault=Fault(status=401, headers={"WWW-Authenticate": "Basic realm=x"}), times=None))
    with pytest.raises(errors.PermissionDenied, match="another origin") as caught:
        await read(accessor)
    assert caught.value.context["redirected_to"] == other.url
    assert CANARY not in repr(caught.value)
    assert not any(CANARY in repr(request) for request in other.requests)


async def test_credentials_stay_with_a_redirect_to_the_same_origin(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start({"there": DATA}, [redirect("/there", key="base/k")])
    assert await read(accessor_for(server, runtime, auth=CANARY)) == DATA
    assert server.requests[1].headers["authorization"] == f"Bearer {CANARY}"


async def test_credentials_do_not_come_back_with_the_way_back(servers: Servers, runtime: Runtime) -> None:
    """Another origin must not choose what they are used for."""
    other = await servers.start()
    server = await servers.start({"chosen": DATA}, [redirect(f"{other.url}/x", key="base/k")])
    other.add(redirect(f"{server.url}/chosen"))
    assert await read(accessor_for(server, runtime, auth=CANARY)) == DATA
    assert [request.headers.get("authorization") for request in server.requests] == [f"Bearer {CANARY}", None]


async def test_another_name_or_port_is_another_origin(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start({"there": DATA})
    server.add(redirect(f"{same(server.url)}/there", key="base/k"))
    assert await read(accessor_for(server, runtime, auth=CANARY)) == DATA
    assert "authorization" not in server.requests[1].headers


async def chain(servers: Servers, length: int) -> FaultServer:
    """``/base/k`` is that many redirects away from the object."""
    rules = [redirect(f"/hop{n + 1}", key=f"hop{n}") for n in range(1, length)]
    return await servers.start({f"hop{length}": DATA}, [redirect("/hop1", key="base/k"), *rules])


async def test_five_redirects_are_followed_and_six_are_not(servers: Servers, runtime: Runtime) -> None:
    assert await read(accessor_for(await chain(servers, 5), runtime)) == DATA
    server = await chain(servers, 6)
    with pytest.raises(errors.RedirectRefused, match="more than 5") as caught:
        await read(accessor_for(server, runtime))
    assert (caught.value.operation, caught.value.path, caught.value.status) == ("read", "k", "permanent")
    assert len(server.requests) == 6


async def test_a_loop_ends(servers: Servers, runtime: Runtime) -> None:
    server = await servers.start()
    server.add(redirect("/base/k"))
    with pytest.raises(errors.RedirectRefused):
        await read(accessor_for(server, runtime))
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    "location",
    [
        None,
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://user:pass@127.0.0.1/",
        "http://127.0.0.1:bad/",
    ],
)
async def test_places_that_are_refused(servers: Servers, runtime: Runtime, location: str | None) -> None:
    """After one request, without a connection to the place."""
    server = await servers.start(script=[redirect(location)])
    with pytest.raises(errors.RedirectRefused) as caught:
        await read(accessor_for(server, runtime))
    assert (caught.value.operation, caught.value.path) == ("read", "k")
    assert len(server.requests) == 1


async def test_a_name_that_leads_to_a_link_local_address_is_refused(
    servers: Servers, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metadata service has a name too, and anybody can give it another."""
    asked: list[str] = []

    real = socket.getaddrinfo

    def resolve(host: str, port: int, **more: Any) -> list[Any]:
        if not host.endswith(".example"):
            return list(real(host, port, **more))
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    server = await servers.start(script=[redirect("http://metadata.example/")])
    with pytest.raises(errors.RedirectRefused, match="link-local"):
        await read(accessor_for(server, runtime))
    assert asked == ["metadata.example"]


@pytest.mark.parametrize("location", ["/there?sig=canary-77b1", "http://b.example/x?sig=canary-77b1"])
async def test_redirects_can_be_refused_altogether(servers: Servers, runtime: Runtime, location: str) -> None:
    """The error says where they lead, but not with which query."""
    server = await servers.start(script=[redirect(location)])
    with pytest.raises(errors.RedirectRefused, match="follow_redirects") as caught:
        await read(accessor_for(server, runtime, follow_redirects=False))
    assert CANARY not in repr(caught.value)
    assert location.partition("?")[0] in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [300, 304, 305, 306])
async def test_other_statuses_of_that_hundred_lead_nowhere(servers: Servers, runtime: Runtime, status: int) -> None:
    other = await servers.start()
    server = await servers.start(script=[redirect(f"{other.url}/x", status)])
    with pytest.raises((errors.ProtocolError, errors.ConditionNotMatch)):
        await read(accessor_for(server, runtime))
    assert other.requests == []


async def test_a_redirect_with_a_body_is_broken_off(servers: Servers, runtime: Runtime) -> None:
    """However long it is."""
    fault = Fault(status=302, location="/there", body=LARGE)
    server = await servers.start({"there": DATA}, [Rule(fault=fault, key="base/k")])
    assert await read(accessor_for(server, runtime)) == DATA
    assert server.bytes_sent < len(LARGE)
