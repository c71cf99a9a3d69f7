"""Servers that let one wait: silence before and within a response, bytes that drip, connections never made, TLS."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from aioprefetch.errors import ConfigInvalid, Error, Stalled, TimedOut, Unavailable
from aioprefetch.layers import RetryLayer
from aioprefetch.layers.retry import NAME_FAILURES_MAX, NAME_FAILURES_SECONDS_MAX
from aioprefetch.operator.operator import Operator
from aioprefetch.testing import Fault, FaultServer
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content
from tests.profile import each_of
from tests.reliability.scripted import (
    ATTEMPTS,
    HANG_SECONDS,
    LENGTH,
    NO_PAUSES,
    OFFSET,
    PATIENT_HANG_SECONDS,
    SERVICES,
    Serve,
    Service,
    always,
    once,
    serve_over,
    service_for,
)
from tests.stores.certificates import self_signed

LAST = OFFSET + LENGTH - 1
# Far longer than all that is waited for here, on a machine that is busy.
PATIENCE_SECONDS = 30
QUICK = {"read_timeout_seconds": HANG_SECONDS, "connect_timeout_seconds": PATIENCE_SECONDS}
PATIENT = {"read_timeout_seconds": PATIENT_HANG_SECONDS, "connect_timeout_seconds": PATIENCE_SECONDS}
# Each service waits beside the other.
on_services = each_of("serve", [serve_over(kind) for kind in SERVICES], at_once=True)


def operator_for(kind: Service, url: str, **options: Any) -> Operator:
    """An Operator whose attempts follow each other at once."""
    return Operator(service_for(kind, url, **{**PATIENT, **options}), concurrency=1).layer(NO_PAUSES)


@checks("reliability:S35")
@on_services
async def test_a_response_that_does_not_begin_is_asked_for_again(serve: Serve) -> None:
    async with serve(once(Fault(hang_before_head=True)), **PATIENT) as scripted:
        await scripted.read()
        first, second = scripted.server.requests
        assert second.connection_id != first.connection_id
        assert scripted.operator.statistics["retries_timed_out"] == 1


@checks("reliability:S35")
@on_services
async def test_responses_that_never_begin(serve: Serve) -> None:
    """Each attempt has its own limit, and they are counted."""
    async with serve(always(Fault(hang_before_head=True)), **QUICK) as scripted, asyncio.timeout(PATIENCE_SECONDS):
        error = await scripted.fail(TimedOut, requests=ATTEMPTS)
        assert (error.status, error.received) == ("persistent", 0)


@checks("reliability:S35")
@on_services
async def test_the_deadline_holds_over_all_attempts(serve: Serve) -> None:
    """Long before any limit of an attempt."""
    async with serve(always(Fault(hang_before_head=True))) as scripted, asyncio.timeout(PATIENCE_SECONDS):
        await scripted.operator.stat("k")  # What an operator loads for its first request counts as well.
        error = await scripted.fail(TimedOut, requests=1, timeout_seconds=PATIENT_HANG_SECONDS)
        assert error.status == "permanent"


@checks("reliability:S36", "reliability:S37")
@each_of("cut", [0, 100, LENGTH - 1], at_once=True)
@on_services
async def test_a_body_that_stops_goes_on_elsewhere(serve: Serve, cut: int) -> None:
    async with serve(once(Fault(hang_after_bytes=cut)), **PATIENT) as scripted:
        await scripted.read()
        first, second = scripted.server.requests
        assert second.connection_id != first.connection_id
        assert scripted.ranges() == [(OFFSET, LAST), (OFFSET + cut, LAST)]
        assert second.headers.get("if-match")
        assert scripted.server.bytes_sent == LENGTH


@checks("reliability:S36", "reliability:S37")
@on_services
async def test_bodies_that_always_stop(serve: Serve) -> None:
    async with serve(always(Fault(hang_after_bytes=100)), **PATIENT) as scripted, asyncio.timeout(PATIENCE_SECONDS):
        error = await scripted.fail(Stalled, requests=ATTEMPTS)
        assert (error.received, error.status) == (100 * ATTEMPTS, "persistent")


DRIP = Fault(drip_bytes=1, drip_delay_seconds=HANG_SECONDS / 10)


@checks("reliability:S38")
@on_services
async def test_a_body_that_drips_goes_on_elsewhere(serve: Serve) -> None:
    """A byte now and then is no progress; what came is kept."""
    async with serve(once(DRIP), **PATIENT) as scripted, asyncio.timeout(PATIENCE_SECONDS):
        await scripted.read()
        first, second = scripted.server.requests
        assert second.connection_id != first.connection_id
        (_, last), (resumed, again) = scripted.ranges()
        assert last == again == LAST
        assert OFFSET < resumed < OFFSET + 1000
        assert scripted.operator.statistics["retries_timed_out"] == 1


@checks("reliability:S38")
@on_services
async def test_bodies_that_always_drip(serve: Serve) -> None:
    async with serve(always(DRIP), **PATIENT) as scripted, asyncio.timeout(PATIENCE_SECONDS):
        error = await scripted.fail(Stalled, requests=ATTEMPTS)
        assert 0 < error.received < 1000


@pytest.mark.parametrize("kind", SERVICES)
@checks("reliability:S41")
async def test_a_name_that_does_not_resolve(kind: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice at most, and within five seconds however long the pauses are; the error says what to look at."""
    lookups = []
    real = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in ("nowhere.example", b"nowhere.example"):
            return real(host, *rest, **more)
        lookups.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    options = {"allow_http": True} if kind == "s3" else {}
    async with operator_for(kind, "http://nowhere.example", **options) as operator, asyncio.timeout(PATIENCE_SECONDS):
        for operation, call in (("read", operator.read), ("stat", operator.stat)):
            with pytest.raises(Unavailable, match="resolve") as caught:
                await call("k")
            error = caught.value
            assert (error.operation, error.path, error.status) == (operation, "k", "persistent")
            assert (error.context["reason"], error.context["attempts"]) == ("dns", NAME_FAILURES_MAX)
        assert 2 <= len(lookups) <= 2 * NAME_FAILURES_MAX
        with pytest.raises(Unavailable) as caught:
            # A pause that is longer than the time allowed is not begun.
            await operator.layer(RetryLayer(base_seconds=3600, cap_seconds=3600)).read("k")
        assert caught.value.context["gave_up"] == f"{NAME_FAILURES_SECONDS_MAX:g} seconds to resolve the name"


@pytest.mark.parametrize("kind", SERVICES)
@checks("reliability:S42")
async def test_a_refused_connection_is_tried_again(kind: Service) -> None:
    """The server that comes back is found."""
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with operator_for(kind, url) as operator:
            with pytest.raises(Unavailable) as caught:
                await operator.read("k")
            assert (caught.value.status, caught.value.context["attempts"]) == ("persistent", ATTEMPTS)


@contextmanager
def black_hole() -> Iterator[str]:
    """An address at which no server ever responds: the queue of its socket is full."""
    with closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = []
        try:
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(address)
                waiting.append(one)
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            for one in waiting:
                one.close()


@checks("reliability:S43")
@each_of("kind", SERVICES, at_once=True)
async def test_a_connection_that_is_never_made(kind: Service) -> None:
    """Each attempt has its own limit; other hosts do not wait with it."""
    async with FaultServer({"bucket/k": b"there"}) as server:
        with black_hole() as url:
            async with (
                operator_for(kind, url, connect_timeout_seconds=HANG_SECONDS) as operator,
                operator_for(kind, server.url) as other,
                asyncio.timeout(PATIENCE_SECONDS),
            ):
                reading = asyncio.create_task(operator.read("k"))
                assert await other.read("k") == b"there"
                with pytest.raises(TimedOut, match="connect_timeout_seconds") as caught:
                    await reading
                assert (caught.value.status, caught.value.context["attempts"]) == ("persistent", ATTEMPTS)
        await other.aclose()
        await server.wait_until_idle()


# The address and the days of a certificate for 127.0.0.1, and whether its authority is trusted.
CERTIFICATES = {
    "right": ("127.0.0.1", 1, True),
    "wrong-host": ("127.0.0.2", 1, True),
    "expired": ("127.0.0.1", -1, True),
    "self-signed": ("127.0.0.1", 1, False),
}


@pytest.mark.parametrize("name", CERTIFICATES)
@pytest.mark.parametrize("kind", SERVICES)
@checks("reliability:S44", "reliability:K10")
async def test_certificates_are_checked(kind: Service, name: str, tmp_path: Path) -> None:
    """A wrong one is a matter of configuration: no other attempt, and none without TLS."""
    address, days, trusted = CERTIFICATES[name]
    certificate = self_signed(tmp_path, address, days=days)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    options = {"ca_bundle": str(certificate)} if trusted else {}
    # A handshake takes longer than a response.
    limits = {"read_timeout_seconds": 5.0, "connect_timeout_seconds": 5.0}
    async with FaultServer({"bucket/k": content(1000)}, tls=context) as server:
        async with operator_for(kind, server.url, **options, **limits) as operator:
            if name == "right":
                assert await operator.read("k") == content(1000)
            else:
                with pytest.raises(Error) as caught:
                    await operator.read("k")
                assert type(caught.value) is ConfigInvalid
                assert caught.value.status == "permanent"
                assert server.requests == []
                assert server.connections <= 1
        await server.wait_until_idle()
