"""Redirects: over S3 none is followed; over plain HTTP a few, and no credential goes along."""

import pytest

from aioprefetch.errors import ConfigInvalid, Error, RedirectRefused
from aioprefetch.testing import Fault, FaultServer, Rule
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.oracle import content
from tests.reliability.scripted import SIZE, Serve, always

REDIRECTS = [301, 302, 303, 307, 308]
TOKEN = "canary-token-7f3a"
REDIRECTS_MAX = 5

PLACES = {
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "link-local-ipv6": "http://[fe80::1]/",
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1/k",
    "gopher": "gopher://127.0.0.1:1/x",
    "user": "http://user:password@127.0.0.1:1/",
    "nowhere": None,
}


@pytest.mark.parametrize("status", REDIRECTS)
@checks("reliability:S45")
async def test_a_foreign_origin_is_never_asked(serve_s3: Serve, status: int) -> None:
    """The session token stays with the store that it was meant for."""
    async with FaultServer({"bucket/k": content(SIZE, version=1)}) as foreign:
        fault = Fault(status=status, location=f"{foreign.url}/bucket/k")
        async with serve_s3(always(fault), session_token=TOKEN) as scripted:
            error = await scripted.fail(RedirectRefused, requests=1)
            assert error.status == "permanent"
            assert TOKEN not in repr(error)
        assert (foreign.requests, foreign.connections) == ([], 0)


@pytest.mark.parametrize("status", REDIRECTS)
@checks("reliability:S45", "reliability:K09")
async def test_no_credential_reaches_a_foreign_origin(serve_http: Serve, status: int) -> None:
    """A redirect of plain HTTP is followed, with range and condition and without anything secret."""
    async with FaultServer({"bucket/k": content(SIZE)}) as foreign:
        fault = Fault(status=status, location=f"{foreign.url}/bucket/k")
        options = {"auth": TOKEN, "headers": {"X-Api-Key": TOKEN, "Cookie": TOKEN}}
        async with serve_http(always(fault), **options) as scripted:
            await scripted.read()
            scripted.server.assert_requests("GET")
            (request,) = foreign.requests
            assert TOKEN in repr(scripted.server.requests)
            assert TOKEN not in repr(request)
            assert request.range == scripted.server.requests[0].range


@checks("reliability:S45", "reliability:K09")
async def test_a_foreign_origin_is_refused_where_redirects_are(serve_http: Serve) -> None:
    async with FaultServer({"bucket/k": content(SIZE)}) as foreign:
        fault = Fault(status=302, location=f"{foreign.url}/bucket/k")
        async with serve_http(always(fault), follow_redirects=False) as scripted:
            await scripted.fail(RedirectRefused, requests=1)
        assert foreign.connections == 0


@pytest.mark.parametrize("code", ["PermanentRedirect", ""])
@checks("reliability:S46")
async def test_a_redirect_that_names_no_region(serve_s3: Serve, code: str) -> None:
    """One request, although the SDK would look for the region again and again."""
    fault = Fault(status=301, body=f"<Error><Code>{code}</Code></Error>".encode() if code else b"")
    async with serve_s3(always(fault)) as scripted:
        await scripted.fail(RedirectRefused, requests=1)


@checks("reliability:S46")
async def test_a_stat_that_is_redirected(serve_s3: Serve) -> None:
    async with serve_s3() as scripted:
        scripted.server.add(Rule(fault=Fault(status=301), times=None))
        with pytest.raises(RedirectRefused):
            await scripted.operator.stat("k")
        scripted.server.assert_requests("HEAD")


@pytest.mark.parametrize("status", [301, 307, 400])
@checks("reliability:S47")
async def test_the_region_of_the_bucket_is_named(serve_s3: Serve, status: int) -> None:
    code = "AuthorizationHeaderMalformed" if status == 400 else "PermanentRedirect"
    fault = Fault(status=status, code=code, headers={"x-amz-bucket-region": "eu-north-7"})
    async with serve_s3(always(fault)) as scripted:
        with pytest.raises(Error) as caught:
            await scripted.operator.read("k")
        assert isinstance(caught.value, ConfigInvalid if status == 400 else RedirectRefused)
        assert "eu-north-7" in str(caught.value)
        assert caught.value.status == "permanent"
        assert scripted.server.count() <= 2
        assert scripted.server.connections == 1


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@checks("reliability:S48")
async def test_redirects_that_are_not_followed(serve: Serve, place: str | None) -> None:
    async with serve(always(Fault(status=302, location=place))) as scripted:
        await scripted.fail(RedirectRefused, requests=1)


@checks("reliability:S48")
async def test_a_loop_ends(serve: Serve) -> None:
    """Long before its twentieth turn."""
    async with serve(always(Fault(status=307, location="/bucket/k"))) as scripted:
        turns = 1 if scripted.service == "s3" else 1 + REDIRECTS_MAX
        await scripted.fail(RedirectRefused, requests=turns)
