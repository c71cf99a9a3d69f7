"""Pages out of listings without tokens: each entry once, whatever is lost, repeated or out of order."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from obstore.store import MemoryStore, S3Store

from aioprefetch.errors import InvalidArgument, ProtocolError, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.services.obspec import responses as listing_module
from aioprefetch.testing import CountingS3Server
from aioprefetch.values import ListPage, ListRequest
from tests.stores.stacks import MotoBucket
from tests.unit.services.obspec.plain import WHEN

NAMES = [f"d/{number:04}" for number in range(25)]


def meta(path: str) -> dict[str, Any]:
    """One line."""
    return {"path": path, "size": 1, "e_tag": "e", "version": None, "last_modified": WHEN}


class Deep:
    """Lists its keys in the order in which they were given, and can do nothing else but get."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        self.listings = 0

    async def get_async(self, path: str, *, options: Any = None) -> Any:
        raise FileNotFoundError(path)

    def list_async(self, prefix: str | None = None, *, offset: str | None = None) -> AsyncIterator[list[Any]]:
        """As obspec has it: a plain function that returns an iterator."""
        self.listings += 1
        under = f"{prefix}/" if prefix else ""
        return self.in_pages([key for key in self.keys if key.startswith(under) and (offset is None or key > offset)])

    async def in_pages(self, keys: list[str]) -> AsyncIterator[list[Any]]:
        for start in range(0, len(keys), 4):
            yield [meta(key) for key in keys[start : start + 4]]


class FromMemory(MemoryStore):
    """obstore's memory store, whose listing a test may replace."""

    lists: Any = None

    def list_async(self, *arguments: Any, **options: Any) -> Any:
        """Its own, or that of the test."""
        return (self.lists or super().list_async)(*arguments, **options)


async def pages(op: Operator, path: str = "d/", limit: int = 3, **options: Any) -> list[ListPage]:
    """All pages."""
    found: list[ListPage] = []
    token = None
    while True:
        request = ListRequest(path=path, page_entries_max=limit, page_token=token, recursive=True, **options)
        found.append(await op.accessor().list_page(request))
        token = found[-1].next_token
        if token is None:
            return found


def paths(found: list[ListPage]) -> list[str]:
    """The paths of all pages."""
    return [entry.path for page in found for entry in page.entries]


async def test_a_store_that_lists_in_no_order_is_listed_once() -> None:
    """Sorted in memory; folded, since it cannot list one level."""
    store = Deep([*reversed(NAMES), "d/sub/x", "d2", "other"])
    async with Operator.bare(ObspecStore(store)) as op:
        found = await pages(op)
        assert paths(found) == [*NAMES, "d/sub/x"]
        assert all(len(page.entries) <= 3 for page in found)
        assert store.listings == 1
        assert [entry.path async for entry in op.list("")] == ["d/", "d2", "other"]
        assert [entry.path async for entry in op.list("d/s")] == ["d/sub/"]
        assert [entry.path async for entry in op.list("d/", recursive=True, start_after="d/0023")] == [
            "d/0024",
            "d/sub/x",
        ]


@pytest.mark.parametrize("store", [Deep(NAMES), FromMemory()], ids=["sorted here", "as it comes"])
async def test_a_token_works_again_and_without_its_listing(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked twice, or when the listing that was begun has been given up."""
    if isinstance(store, MemoryStore):
        for name in NAMES:
            store.put(name, b"x")
    async with Operator.bare(ObspecStore(store)) as op:
        first = await op.accessor().list_page(ListRequest(path="d/", page_entries_max=3, recursive=True))
        again = ListRequest(path="d/", page_entries_max=3, recursive=True, page_token=first.next_token)
        assert [paths([await op.accessor().list_page(again)]) for _ in range(3)] == [NAMES[3:6]] * 3
        monkeypatch.setattr(listing_module, "LISTINGS_KEPT_MAX", 0)
        assert paths(await pages(op)) == NAMES
        with pytest.raises(InvalidArgument):
            await op.accessor().list_page(ListRequest(path="d/", page_token="of another service"))


async def test_a_store_that_breaks_its_order_is_found_out() -> None:
    """An entry may be missing then, so it is no listing; nor is it tried again."""
    store = FromMemory()
    store.lists = lambda prefix, **options: Deep([]).in_pages(["d/b", "d/a"])
    async with Operator.bare(ObspecStore(store)) as op:
        with pytest.raises(ProtocolError) as caught:
            await pages(op)
    assert not caught.value.is_temporary


async def test_a_store_that_ignores_where_to_begin() -> None:
    """What came before is left out here, and nothing is drawn from behind the prefix."""

    async def lines() -> AsyncIterator[list[Any]]:
        for path in ("d/0", *(f"d/a{number}" for number in range(9)), "d/b"):
            yield [meta(path)]
        pytest.fail("it goes on behind the prefix")

    store = FromMemory()
    store.lists = lambda prefix, **options: lines()
    async with Operator.bare(ObspecStore(store)) as op:
        assert paths(await pages(op, "d/a")) == [f"d/a{number}" for number in range(9)]
        token = (await op.accessor().list_page(ListRequest(path="d/a", page_entries_max=2, recursive=True))).next_token
        again = ListRequest(path="d/a", page_entries_max=2, recursive=True, page_token=token)
        assert [paths([await op.accessor().list_page(again)]) for _ in range(2)] == [["d/a2", "d/a3"]] * 2
        assert paths(await pages(op, "d/a", start_after="d/a6")) == ["d/a7", "d/a8"]


async def test_listings_left_half_way_are_given_up() -> None:
    """The oldest first: it is listed again."""
    store = Deep(NAMES)
    async with Operator.bare(ObspecStore(store)) as op:
        accessor = op.accessor()
        request = ListRequest(path="d/", page_entries_max=2, recursive=True)
        tokens = [(await accessor.list_page(request)).next_token for _ in range(listing_module.LISTINGS_KEPT_MAX + 1)]
        for token, more in ((tokens[-1], 0), (tokens[0], 1)):
            before = store.listings
            page = await accessor.list_page(replace(request, page_token=token))
            assert paths([page]) == NAMES[2:4]
            assert store.listings == before + more


@pytest.mark.parametrize("line", [{"size": 1}, {"path": "d/k"}, {"path": "d/k", "size": -1}, {"path": 5, "size": 1}, 7])
async def test_a_line_that_makes_no_sense_is_an_error(line: object) -> None:
    """And not an entry."""

    async def lines() -> AsyncIterator[list[Any]]:
        yield [line]

    store = FromMemory()
    store.lists = lambda prefix, **options: lines()
    async with Operator.bare(ObspecStore(store)) as op:
        with pytest.raises(ProtocolError):
            await pages(op)


async def test_a_store_that_lists_one_level_only() -> None:
    """Is walked by Complete, directory by directory."""

    class Levels:
        get_async = Deep.get_async

        async def list_with_delimiter_async(self, prefix: str | None = None) -> Any:
            levels: dict[str | None, Any] = {
                None: {"common_prefixes": ["a"], "objects": [meta("z")]},
                "a": {"common_prefixes": ["a/b"], "objects": [meta("a/1")]},
                "a/b": {"common_prefixes": [], "objects": [meta("a/b/2")]},
            }
            return levels[prefix]

    async with Operator.bare(ObspecStore(Levels())) as op:
        assert [entry.path async for entry in op.list("")] == ["a/", "z"]
        assert sorted([entry.path async for entry in op.list("", recursive=True)]) == ["a/1", "a/b/2", "z"]
        with pytest.raises(Unsupported):
            await ObspecStore(Levels()).build(op.runtime()).list_page(ListRequest(path="", recursive=True))


async def test_a_long_listing_is_streamed(s3_server: CountingS3Server, random_name: Any) -> None:
    """One request for a thousand entries, and none for pages that have come already; it ends behind the prefix."""
    bucket = MotoBucket(random_name())
    names = [f"d/{number:05}" for number in range(2500)]
    for name in [*names, *(f"e/{number:05}" for number in range(2500))]:
        bucket.put(name, b"")
    store = S3Store(
        bucket.name,
        endpoint=s3_server.endpoint_url,
        region="us-east-1",
        skip_signature=True,
        client_options={"allow_http": True},
    )

    def listings() -> int:
        return sum(bucket.name in request.target for request in s3_server.requests)

    async with Operator.bare(ObspecStore(store)) as op:
        assert paths(await pages(op, limit=100)) == names
        assert listings() == 3
        # What is below the parent of a prefix is not listed from its beginning.
        assert paths(await pages(op, "d/0249", limit=1000)) == names[2490:]
        assert listings() == 4
