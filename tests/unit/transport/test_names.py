"""Names and addresses: asked for once by all, forgotten when they do not serve, never link-local by surprise."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from aioprefetch.errors import Error, RedirectRefused, TimedOut, Unavailable
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.transport import connecting as resolving
from aioprefetch.transport.connecting import Resolver
from aioprefetch.transport.options import ClientOptions
from tests.stores.raw_server import client_of, get
from tests.stores.tls_servers import ok, serving, target_of

Info = tuple[int, int, int, str, Any]
NAMES = 16


class Names:
    """What the system's resolver says. ``asked`` has the names of hosts in the order in which they were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known: dict[str, list[str] | Exception] = {}
        self.was_asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def getaddrinfo(self, host: str, port: int, *more: Any, **kinds: Any) -> list[Info]:
        """In place of ``socket.getaddrinfo``."""
        self.asked.append(host)
        self.was_asked.set()
        self.may_answer.wait()
        found = self.known[host]
        if isinstance(found, Exception):
            raise found
        return [info_of(address, port) for address in found]


def info_of(address: str, port: int) -> Info:
    """An address as the system gives it."""
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """The names of one test; nothing else is resolved."""
    made = Names()
    real = socket.getaddrinfo

    def asked(host: Any, port: Any, *more: Any, **kinds: Any) -> Any:
        if isinstance(host, str) and host.endswith(".example"):
            return made.getaddrinfo(host, port, *more, **kinds)
        return real(host, port, *more, **kinds)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    yield made
    made.may_answer.set()


async def always_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with the host that it names."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        host = next(line for line in head.split(b"\r\n") if line.startswith(b"Host: "))
        writer.write(ok(host))


def has_ipv6() -> bool:
    """Whether this machine has ::1."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")
async def test_an_ipv6_address() -> None:
    """In brackets where HTTP wants it."""
    async with serving(always_ok, "::1") as port, client_of() as http:
        assert await get(http, target_of(f"http://[::1]:{port}/k")) == f"Host: [::1]:{port}".encode()


async def test_localhost_has_two_addresses_of_which_one_listens() -> None:
    """Each new connection begins with another one of them."""
    async with serving(always_ok) as port:
        for _ in range(4):
            async with client_of() as http:
                assert await get(http, target_of(f"http://localhost:{port}/k")) == f"Host: localhost:{port}".encode()


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
async def test_an_address_that_refuses(names: Names, address: str) -> None:
    """Whichever of the two comes first."""
    async with serving(always_ok) as port, client_of(connections_per_host_max=4) as http:
        names.known["two.example"] = [address, "127.0.0.1"]
        target = target_of(f"http://two.example:{port}/k")
        assert (
            await asyncio.gather(*(get(http, target) for _ in range(4))) == [f"Host: two.example:{port}".encode()] * 4
        )
    assert names.asked == ["two.example"]


@contextmanager
def deaf(address: str, port: int) -> Iterator[None]:
    """An address where connections are never made: those that wait to be accepted are too many already."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect((address, port))
        yield


async def test_an_address_that_never_answers(names: Names) -> None:
    """The next one is tried before it is given up."""
    async with serving(always_ok) as port:
        names.known["two.example"] = ["127.0.0.2", "127.0.0.1"]
        with deaf("127.0.0.2", port):
            for _ in range(2):
                async with client_of(next_address_seconds=0.02) as http:
                    found = await get(http, target_of(f"http://two.example:{port}/k"))
                    assert found == f"Host: two.example:{port}".encode()


async def test_no_address_ever_answers(names: Names) -> None:
    """It takes no longer than it may, and the name is asked for again."""
    async with serving(always_ok) as port, client_of(connect_timeout_seconds=0.1) as http:
        target = target_of(f"http://deaf.example:{port}/k")
        names.known["deaf.example"] = ["127.0.0.2"]
        with deaf("127.0.0.2", port), pytest.raises(TimedOut, match=r"connect_timeout_seconds=0\.1") as caught:
            await get(http, target)
        assert caught.value.is_temporary
        assert http.snapshot().open == 0
        names.known["deaf.example"] = ["127.0.0.1"]
        assert await get(http, target)
    assert names.asked == ["deaf.example"] * 2


async def test_a_name_is_resolved_again_after_a_refused_connection(names: Names) -> None:
    """The server has moved: the next attempt finds it."""
    async with serving(always_ok) as port, client_of() as http:
        target = target_of(f"http://moved.example:{port}/k")
        names.known["moved.example"] = ["127.0.0.2", "127.0.0.3"]
        with pytest.raises(Unavailable, match="ECONNREFUSED"):
            await get(http, target)
        names.known["moved.example"] = ["127.0.0.1"]
        assert await get(http, target)


@pytest.mark.parametrize(
    "failure", [socket.gaierror(socket.EAI_NONAME, "x"), socket.gaierror(socket.EAI_AGAIN, "x"), []]
)
async def test_an_unknown_name(names: Names, failure: Any) -> None:
    """It may be known a moment later."""
    async with serving(always_ok) as port, client_of() as http:
        target = target_of(f"http://new.example:{port}/k")
        names.known["new.example"] = failure
        with pytest.raises(Unavailable, match="could not be resolved") as caught:
            await get(http, target)
        assert (caught.value.is_temporary, caught.value.context) == (True, {"reason": "dns"})
        assert http.snapshot().open == 0
        names.known["new.example"] = ["127.0.0.1"]
        assert await get(http, target)


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 64}.invalid", ".invalid"])
async def test_a_name_that_cannot_be_asked_for(host: str) -> None:
    """Labels are neither empty nor longer than 63."""
    async with client_of() as http:
        with pytest.raises(Unavailable, match="could not be resolved"):
            await get(http, target_of(f"http://{host}:80/k"))


# --- what is remembered ------------------------------------------------------------------------------------------


async def test_addresses_are_believed_for_a_while(
    names: Names, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beginning at another one each time, so that connections spread."""
    now = 100.0
    monkeypatch.setattr(runtime, "now", lambda: now)
    resolver = Resolver(runtime, ClientOptions(addresses_seconds_max=30))
    names.known["many.example"] = known = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    firsts = [(await resolver.resolve("many.example", 80))[0][4][0] for _ in range(6)]
    assert sorted(firsts) == sorted(known * 2)
    now += 29
    assert len(await resolver.resolve("many.example", 80)) == 3
    assert names.asked == ["many.example"]
    names.known["many.example"] = ["10.0.0.9"]
    now += 1
    assert [info[4][0] for info in await resolver.resolve("many.example", 80)] == ["10.0.0.9"]
    resolver.forget("many.example", 80)
    await resolver.resolve("many.example", 80)
    await resolver.resolve("many.example", 443)
    assert names.asked == ["many.example"] * 4


async def test_a_look_up_that_is_done_at_once_is_forgotten(
    names: Names, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of a thread may be from Python 3.14 on: its callbacks come after the next request for the name."""

    def at_once(_: object, call: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        done = runtime.loop.create_future()
        done.set_result(call(*arguments))
        return done

    monkeypatch.setattr(runtime.loop, "run_in_executor", at_once)
    resolver = Resolver(runtime, ClientOptions(addresses_seconds_max=0))
    for address in ("10.0.0.1", "10.0.0.2"):
        names.known["quick.example"] = [address]
        assert [info[4][0] for info in await resolver.resolve("quick.example", 80)] == [address]


async def test_who_asks_for_the_same_name_shares_the_response(names: Names, runtime: Runtime) -> None:
    """And may give up without taking it from the others."""
    resolver = Resolver(runtime, ClientOptions())
    names.known["slow.example"] = ["10.0.0.1"]
    names.may_answer.clear()
    waiting = [asyncio.ensure_future(resolver.resolve("slow.example", 80)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    names.may_answer.set()
    for one in waiting[1:]:
        assert [info[4][0] for info in await one] == ["10.0.0.1"]
    assert names.asked == ["slow.example"]


async def test_who_asks_for_the_same_name_shares_the_failure(names: Names, runtime: Runtime) -> None:
    resolver = Resolver(runtime, ClientOptions())
    names.known["slow.example"] = socket.gaierror(socket.EAI_FAIL, "x")
    names.may_answer.clear()
    waiting = [asyncio.ensure_future(resolver.resolve("slow.example", 80)) for _ in range(3)]
    await asyncio.sleep(0)
    names.may_answer.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in found] == [socket.gaierror] * 3
    assert names.asked == ["slow.example"]


async def test_closing_waits_for_no_name(names: Names, runtime: Runtime) -> None:
    """The thread that asks is left to itself."""
    names.known["slow.example"] = ["10.0.0.1"]
    names.may_answer.clear()
    async with client_of() as http:
        task = asyncio.ensure_future(get(http, target_of("http://slow.example:80/k")))
        await runtime.run_blocking(names.was_asked.wait)
    with pytest.raises(Error):
        await task


async def test_names_that_hang_hold_up_nothing_else(names: Names, runtime: Runtime) -> None:
    """They have threads of their own, and what times out says that it was the name."""
    names.may_answer.clear()
    async with serving(always_ok) as port, client_of(runtime, connect_timeout_seconds=0.1) as http:
        targets = [target_of(f"http://{number}.example:{port}/k") for number in range(NAMES)]
        found = await asyncio.gather(*(get(http, target) for target in targets), return_exceptions=True)
        for error in found:
            assert isinstance(error, TimedOut)
            assert "was not resolved within connect_timeout_seconds=0.1" in error.message
            assert error.context == {"reason": "dns"}
        assert http.snapshot().open == 0
        async with asyncio.timeout(5):
            assert await runtime.run_blocking(lambda: "free") == "free"
            assert await get(http, target_of(f"http://127.0.0.1:{port}/k"))
    assert len(names.asked) == NAMES


# --- link-local addresses ----------------------------------------------------------------------------------------

LINK_LOCAL = ["169.254.169.254", "fe80::1", "fe80::1%1", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200"]


@pytest.mark.parametrize("address", LINK_LOCAL)
async def test_a_name_that_leads_to_a_link_local_address(names: Names, runtime: Runtime, address: str) -> None:
    """Among others too, each time that it is asked for."""
    names.known["metadata.example"] = ["10.0.0.1", address]
    async with client_of(link_local_host="trusted.example") as http:
        for _ in range(2):
            with pytest.raises(RedirectRefused, match="link-local"):
                await get(http, target_of("http://metadata.example:80/k"))
    for options in (ClientOptions(refuses_link_local=False), ClientOptions(link_local_host="metadata.example")):
        found = await Resolver(runtime, options).resolve("metadata.example", 80)
        assert {info[4][0] for info in found} == {"10.0.0.1", address}


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]"])
async def test_a_link_local_address_itself(host: str) -> None:
    async with client_of() as http:
        with pytest.raises(RedirectRefused, match="link-local"):
            await get(http, target_of(f"http://{host}:80/k"))


async def test_an_address_is_no_question(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no thread."""
    monkeypatch.setattr(resolving, "in_thread", None)
    resolver = Resolver(runtime, ClientOptions())
    assert [info[4][:2] for info in await resolver.resolve("127.0.0.1", 80)] == [("127.0.0.1", 80)]
    assert [info[4][:2] for info in await resolver.resolve("::1", 80)] == [("::1", 80)]
