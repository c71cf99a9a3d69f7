"""Copies between stores that list in the order of keys, in no order, and directory by directory."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import AlreadyExists
from aioprefetch.values import Capability, Entry, ListPage, ListRequest, Metadata, StatRequest
from tests.stores.directory_bucket import DirectoryBucket
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import memory, put_tree, tree_of

NAMES = ["a-b", "a.b/c", "a.b/d/e", "a/b", "a/b.c/d", "a0", "b", "m/n/o", "z", "\uffee", "\U0001f600"]
TREE = {name: name.encode() for name in NAMES}
EXTRA = {"0": b"", "a.b/cc": b"1", "a/0/x": b"2", "zz/y": b"3", "\uffef": b"4"}


class OwnOrder(VerbLayer):
    """A store that lists in an order of its own, over pages of two entries, and counts ``requests``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.requests: Counter[str] = Counter()

    def adapt(self, capability: Capability) -> Capability:
        if self.kind == "walked":
            return replace(capability, list_recursive=False)
        return replace(capability, list_ordered=self.kind == "ordered")

    async def stat(self, inner: Accessor, request: StatRequest) -> Metadata:
        self.requests["stat"] += 1
        return await inner.stat(request)

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        entries = list((await inner.list_page(replace(request, page_token=None))).entries)
        if self.kind == "shuffled":
            entries = random.Random(len(entries)).sample(entries, len(entries))
        at = int(request.page_token or 0)
        self.requests["first page"] += at == 0 and request.path in ("x/", "y/")
        return ListPage(entries=tuple(entries[at : at + 2]), next_token=str(at + 2) if at + 2 < len(entries) else None)


KINDS = ["ordered", "shuffled", "walked"]


@pytest.fixture(params=KINDS)
def origin(request: pytest.FixtureRequest) -> OwnOrder:
    return OwnOrder(request.param)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> OwnOrder:
    return OwnOrder(request.param)


async def test_what_is_there_is_found_by_one_listing(origin: OwnOrder, place: OwnOrder) -> None:
    """Nothing is copied twice, or over what is there, and no object is asked for by itself."""
    async with memory() as plain, memory() as plain_other:
        op = plain.layer(origin, inside=ap.layers.ErrorContextLayer)
        other = plain_other.layer(place, inside=ap.layers.ErrorContextLayer)
        assert op.capability.list_ordered is (origin.kind == "ordered")
        await put_tree(plain, "x/", TREE)
        assert (await ap.copy((op, "x/"), (other, "y/"))).copied == len(TREE)
        for layer in (origin, place):
            layer.requests.clear()
        report = await ap.copy((op, "x/"), (other, "y/"), skip_same=True)
        assert (report.copied, report.skipped) == (0, len(TREE))
        report = await ap.copy((op, "x/"), (other, "y/"), overwrite=False)
        assert [type(failure.error) for failure in report.failures] == [AlreadyExists] * len(TREE)
        assert origin.requests == place.requests == {"first page": 2}


async def test_what_only_the_destination_has_is_deleted(origin: OwnOrder, place: OwnOrder) -> None:
    async with memory() as plain, memory() as plain_other:
        op = plain.layer(origin, inside=ap.layers.ErrorContextLayer)
        other = plain_other.layer(place, inside=ap.layers.ErrorContextLayer)
        await put_tree(plain, "x/", TREE)
        await put_tree(plain_other, "y/", {**EXTRA, "a/b": b"old"})
        await put_tree(plain_other, "beside/", TREE)
        report = await ap.copy((op, "x/"), (other, "y/"), delete_extra=True)
        assert (report.copied, report.deleted, report.failures) == (len(TREE), len(EXTRA), ())
        assert await tree_of(plain_other, "y/") == TREE
        assert await tree_of(plain_other, "beside/") == TREE
        assert origin.requests["first page"] == place.requests["first page"] == 1
        assert place.requests["stat"] <= 1  # The first look at what the destination is.


class _Untold(OwnOrder):
    def adapt(self, capability: Capability) -> Capability:
        return capability


@pytest.mark.parametrize("liar", ["source", "destination"])
async def test_an_order_that_is_promised_and_not_kept_is_found_out(liar: str) -> None:
    async with memory() as plain, memory() as plain_other:
        op, other = plain, plain_other
        if liar == "source":
            op = plain.layer(_Untold("shuffled"), inside=ap.layers.ErrorContextLayer)
        else:
            other = plain_other.layer(_Untold("shuffled"), inside=ap.layers.ErrorContextLayer)
        await put_tree(plain, "x/", TREE)
        await put_tree(plain_other, "y/", {**EXTRA, **TREE})
        report = await ap.copy((op, "x/"), (other, "y/"), delete_extra=True, delete_max=1.0)
        assert (report.copied, report.deleted) == (len(TREE), len(EXTRA))
        assert await tree_of(plain_other, "y/") == TREE


@pytest.mark.parametrize("to_bucket", [True, False])
async def test_a_directory_bucket(to_bucket: bool) -> None:
    async with DirectoryBucket() as bucket, bucket.operator() as op, memory() as other:
        sides: Any = [(other, "y/"), (op, "x/")] if to_bucket else [(op, "x/"), (other, "y/")]
        await put_tree(sides[0][0], sides[0][1], TREE)
        await put_tree(sides[1][0], sides[1][1], EXTRA)
        report = await ap.copy(*sides, delete_extra=True)
        assert (report.copied, report.deleted, report.failures) == (len(TREE), len(EXTRA), ())
        assert await tree_of(sides[1][0], sides[1][1]) == TREE
        bucket.calls.clear()
        report = await ap.copy(*sides, overwrite=False)
        assert [type(failure.error) for failure in report.failures] == [AlreadyExists] * len(TREE)
        assert {call.verb for call in bucket.calls} == {"List"}


def paths(entries: list[Entry]) -> list[str]:
    return [entry.path for entry in entries]


async def test_a_directory_bucket_takes_any_prefix_and_position() -> None:
    """It knows prefixes that end with a slash, and no key to start after."""
    async with DirectoryBucket() as bucket, bucket.operator() as op:
        for name, data in TREE.items():
            bucket.put(name, data)
        for prefix in ("", "a", "a.", "a/", "a/b", "a.b/d", "m/n/o", "none", "none/x"):
            for recursive in (False, True):
                for after in (None, "a.b/c", "a/", "b"):
                    options: Any = {"recursive": recursive, "start_after": after}
                    found = paths(await op.list(prefix, **options).collect())
                    async with memory() as plain:
                        await put_tree(plain, "", TREE)
                        assert sorted(found) == paths(await plain.list(prefix, **options).collect())
        assert paths(await op.list("a", recursive=True, glob="a/*.c/*").collect()) == ["a/b.c/d"]
        assert await op.exists("a.b/")
        await op.delete_all("a/")
        assert sorted(bucket.objects) == sorted(name for name in NAMES if not name.startswith("a/"))
