"""Copies that a store makes by itself: in one request, in parts above its limit, and what a failure leaves."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Accessor
from aioprefetch.errors import AlreadyExists, IsSameFile, ObjectChanged, PermissionDenied, Unavailable
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.testing import Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyPartRequest, DeleteRequest, UploadedPart, WriteRequest
from tests.profile import each_of
from tests.stores.gated_reader import settle
from tests.stores.layer_stack import was_cancelled
from tests.stores.part_store import PART_BYTES, Bed, part_bed
from tests.stores.verb_layer import VerbLayer

LARGE = bytes(range(250)) * 22  # Five parts and a half; in one request go two.


WRITE_REQUESTS = 8


async def by_verb(bed: Bed) -> object:
    return await bed.op.copy("k", "t")


async def by_copy(bed: Bed) -> object:
    return await ap.copy((bed.op, "k"), (bed.op, "t"))


WAYS = [by_verb, by_copy]


def operations(bed: Bed) -> list[str]:
    """The operations since the object was written."""
    return [request.operation for request in bed.faults.requests]


@each_of("way", WAYS)
@each_of("size", [0, 1, 2 * PART_BYTES])
async def test_an_object_up_to_the_limit_is_one_request(way: Any, size: int) -> None:
    async with part_bed() as bed:
        await bed.op.write("k", LARGE[:size])
        bed.faults.requests.clear()
        await way(bed)
        assert operations(bed).count("copy") == 1
        assert "read" not in operations(bed)
        assert "write" not in operations(bed)
        assert await bed.op.read("t") == LARGE[:size]


@pytest.mark.parametrize("way", WAYS)
async def test_a_larger_one_goes_in_parts(way: Any) -> None:
    """None of its bytes come here."""
    async with part_bed() as bed:
        await bed.op.write("k", LARGE)
        bed.faults.requests.clear()
        await way(bed)
        assert "read" not in operations(bed)
        # The verb does not know the size, and the store refuses it first.
        assert operations(bed).count("copy") == 6 + (way is by_verb)
        assert await bed.op.read("t") == LARGE
        assert bed.parts.uploads == {}
        # A store refuses a range that ends behind the object.
        ranges = sorted((one.start, one.end) for one in bed.faults.requests if isinstance(one, CopyPartRequest))
        starts = range(0, len(LARGE), PART_BYTES)
        assert ranges == [(start, min(start + PART_BYTES, len(LARGE))) for start in starts]


@checks("reliability:W16")
@pytest.mark.parametrize("size", [0, 1, len(LARGE)])
async def test_nothing_is_replaced_by_a_copy_that_must_not(size: int) -> None:
    """The store decides, when the object is to appear: another writer may have been faster."""
    async with part_bed() as bed:
        await bed.op.write("k", LARGE[:size])
        await ap.copy((bed.op, "k"), (bed.op, "t"), overwrite=False)
        assert await bed.op.read("t") == LARGE[:size]
        await bed.op.write("t", b"faster")
        with pytest.raises(AlreadyExists):
            await ap.copy((bed.op, "k"), (bed.op, "t"), overwrite=False)
        assert await bed.op.read("t") == b"faster"
        assert bed.parts.uploads == {}


async def test_an_object_is_not_copied_onto_itself() -> None:
    """The store would make a new one of it, part by part."""
    async with part_bed() as bed:
        await bed.op.write("k", LARGE)
        bed.faults.requests.clear()
        with pytest.raises(IsSameFile):
            await bed.op.copy("k", "k")
        assert "copy" not in operations(bed)


@checks("reliability:W08")
@pytest.mark.parametrize("way", WAYS)
async def test_whichever_request_fails_nothing_is_left(way: Any) -> None:
    for number in range(WRITE_REQUESTS, WRITE_REQUESTS + 30):
        async with part_bed([Injection(occurrence=number, error=PermissionDenied)]) as bed:
            await bed.op.write("k", LARGE)
            assert len(bed.faults.requests) == WRITE_REQUESTS
            try:
                await way(bed)
            except PermissionDenied:
                assert not await bed.op.exists("t")
                assert bed.parts.uploads == {}
                continue
            with suppress(PermissionDenied):  # The fault that the copy did not meet.
                await bed.op.exists("k")
            assert await bed.op.read("t") == LARGE
            assert number >= WRITE_REQUESTS + 9
            return
    raise AssertionError("it was never carried out to its end")


@pytest.mark.parametrize("way", WAYS)
async def test_a_part_that_fails_once_is_copied_again_alone(way: Any) -> None:
    plan = [Injection(operation="copy", occurrence=number, error=Unavailable) for number in (2, 4)]
    async with part_bed(plan) as bed:
        await bed.op.write("k", LARGE)
        await way(bed)
        assert await bed.op.read("t") == LARGE
        assert operations(bed).count("copy") == 8 + (way is by_verb)


@checks("reliability:W39")
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_anywhere_it_is_there_or_not(way: Any) -> None:
    for suspension in range(1, 500):
        async with part_bed() as bed:
            await bed.op.write("k", LARGE)
            cancelled = await was_cancelled(way(bed), suspension)
            await settle()
            assert bed.parts.uploads == {}
            assert await bed.op.exists("t") is False or await bed.op.read("t") == LARGE
            if not cancelled:
                assert await bed.op.read("t") == LARGE
                return
    raise AssertionError("it was never carried out to its end")


@dataclass(eq=False)
class Overwriting(VerbLayer):
    """Overwrites the source before a part is copied, or deletes it."""

    number: int
    deletes: bool = False

    async def copy_part(self, inner: Accessor, request: CopyPartRequest) -> UploadedPart:
        if not self.number and self.deletes:
            await inner.delete(DeleteRequest(path="k", paths=("k",)))
        elif not self.number:
            await inner.write(WriteRequest(path="k"), LARGE[::-1])
        self.number -= 1
        return await inner.copy_part(request)


@each_of("deletes", [False, True])
@checks("reliability:W11")
@each_of("number", range(6))
async def test_overwritten_or_deleted_between_its_parts_there_is_no_copy(number: int, deletes: bool) -> None:
    async with part_bed() as bed:
        await bed.op.write("k", LARGE)
        op = bed.op.layer(Overwriting(number, deletes), inside=ErrorContextLayer)
        with pytest.raises(ObjectChanged) as caught:
            await op.copy("k", "t")
        assert (caught.value.operation, caught.value.path) == ("copy", "k")
        assert not await bed.op.exists("t")
        assert bed.parts.uploads == {}
