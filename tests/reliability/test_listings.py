"""Listings that lie: pages that go round in circles, keys that come twice or from elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

import pytest

from aioprefetch.errors import Error, ProtocolError
from aioprefetch.layers.retry import PROTOCOL_ERRORS_MAX
from aioprefetch.testing import Fault, ReceivedRequest, Rule
from aioprefetch.testing.conformance.suite import checks
from tests.reliability.scripted import Scripted, Serve


def list_page(*keys: str, token: str | None = None, truncated: bool | None = None) -> bytes:
    """A page of ListObjectsV2, truncated where it names a next one, unless ``truncated`` is passed."""
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>1</Size><ETag>&quot;e&quot;</ETag>"
        "<LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
        for key in keys
    )
    is_truncated = token is not None if truncated is None else truncated
    following = f"<NextContinuationToken>{token}</NextContinuationToken>" if token is not None else ""
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{following}{contents}</ListBucketResult>"
    ).encode()


def responses(pages: Sequence[bytes], *, repeated: bool = False) -> list[Rule]:
    """The pages one after the other; the last one, or all of them, for ever."""

    def turn_of(number: int) -> Callable[[ReceivedRequest], bool]:
        def applies(request: ReceivedRequest) -> bool:
            turn = request.index % len(pages) if repeated else min(request.index, len(pages) - 1)
            return "list-type" in request.target and turn == number

        return applies

    xml = {"Content-Type": "application/xml"}
    return [
        Rule(fault=Fault(status=200, body=page, headers=xml), times=None, method="GET", matches=turn_of(number))
        for number, page in enumerate(pages)
    ]


async def names(scripted: Scripted, prefix: str = "") -> list[str]:
    """The paths of a listing; one without end is broken off."""
    async with asyncio.timeout(10):
        return [entry.path async for entry in scripted.operator.list(prefix, recursive=True)]


@checks("reliability:S61")
async def test_pages_follow_each_other(serve_s3: Serve) -> None:
    """What the others are compared with: two pages and an empty one between them."""
    pages = [list_page("a", token="1"), list_page(token="2"), list_page("b")]
    async with serve_s3(*responses(pages)) as scripted:
        assert await names(scripted) == ["a", "b"]
        assert scripted.server.count() == 3


@pytest.mark.parametrize("period", [1, 2, 3])
@checks("reliability:S61")
async def test_a_token_that_comes_again_is_a_loop(serve_s3: Serve, period: int) -> None:
    """At once, or after a way round."""
    pages = [list_page(token=f"t{number}") for number in range(period)]
    async with serve_s3(*responses(pages, repeated=True)) as scripted:
        with pytest.raises(ProtocolError) as caught:
            await names(scripted)
        assert caught.value.operation == "list"
        assert scripted.server.count() <= 2 * period + 2


@checks("reliability:S61")
async def test_a_page_that_is_not_the_last_and_names_no_next(serve_s3: Serve) -> None:
    """The rest of the listing is not silently left out."""
    async with serve_s3(*responses([list_page("a", truncated=True)])) as scripted:
        with pytest.raises(ProtocolError):
            await names(scripted)
        assert scripted.server.count() <= 2


@checks("reliability:S61", "reliability:P06")
async def test_a_key_in_two_pages_comes_once(serve_s3: Serve) -> None:
    pages = [list_page("a", "b", token="1"), list_page("b", "c", token="2"), list_page("c", "d")]
    async with serve_s3(*responses(pages)) as scripted:
        assert await names(scripted) == ["a", "b", "c", "d"]
        assert scripted.operator.statistics["list_duplicates"] == 2


@checks("reliability:S61")
async def test_pages_that_are_no_pages(serve_s3: Serve) -> None:
    """Neither a page of a portal nor half of a document is an empty listing."""
    for body in (b"<html>Welcome</html>", list_page("a")[:-40], b""):
        async with serve_s3(*responses([body])) as scripted:
            with pytest.raises(Error):
                await names(scripted)
            assert scripted.server.count() <= 4


@pytest.mark.parametrize("stranger", ["other/x", "di", "d/../secret", "/etc/passwd"])
@checks("reliability:S62")
async def test_a_key_outside_of_the_prefix_is_rejected(serve_s3: Serve, stranger: str) -> None:
    async with serve_s3(*responses([list_page("dir/a", stranger)])) as scripted:
        with pytest.raises(ProtocolError, match="holds") as caught:
            await names(scripted, "dir/")
        assert caught.value.context["strangers"] == scripted.operator.statistics["list_strangers"] == 1


@checks("reliability:S62")
async def test_strangers_are_counted_once_for_each_listing(serve_s3: Serve) -> None:
    """Not for each attempt. What came before them has been given out, and what comes beside them has not."""
    pages = [list_page("dir/a", token="1"), list_page("dir/b", "x", "y")]
    async with serve_s3(*responses(pages)) as scripted:
        listing = scripted.operator.list("dir/", recursive=True)
        assert (await anext(listing)).path == "dir/a"
        with pytest.raises(ProtocolError, match="holds"):
            await anext(listing)
        assert scripted.server.count() == 1 + PROTOCOL_ERRORS_MAX
        assert scripted.operator.statistics["list_strangers"] == 2


@checks("reliability:S62", "reliability:K15")
async def test_a_key_outside_of_the_root_is_rejected(serve_s3: Serve) -> None:
    """The prefix of the operator is a border of its own."""
    async with serve_s3(*responses([list_page("root/a", "rooted/b")]), prefix="root") as scripted:
        scripted.server.objects["bucket/root/k"] = scripted.data
        with pytest.raises(ProtocolError, match="holds"):
            await names(scripted)
        assert scripted.operator.statistics["list_strangers"] == 1
