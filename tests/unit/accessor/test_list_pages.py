"""The pages of a listing one after the other: what is new in them, and when they do not go on."""

import pytest

from aioprefetch.accessor.list_pages import PAGES_IN_VAIN_MAX, Paging
from aioprefetch.errors import ProtocolError
from aioprefetch.operator.operator import Operator
from aioprefetch.services import Memory
from aioprefetch.values import Entry, ListRequest, ListUploadsRequest, Upload
from tests.stores.dict_store import DictStore

A, B, C = (Entry(path=name, size=1) for name in "abc")


def test_what_is_new_is_given_out_once() -> None:
    """Not again within a page, from the page before, or with a page that was there."""
    paging = Paging(ListRequest(path=""))
    assert paging.turn([A, B, A], "1") == [A, B]
    assert paging.turn([B, C], "2") == [C]
    assert paging.turn([A, B], "3") == []
    assert paging.request is not None
    assert paging.request.page_token == "3"
    assert paging.turn([C], None) == [C]  # Only the page before is known by its names.
    assert paging.request is None


def test_a_version_and_an_upload_have_names_of_their_own() -> None:
    versions = [Entry(path="a", size=1, version=name) for name in "12"]
    assert Paging(ListRequest(path="", versions=True)).turn(versions, None) == versions
    assert len(Paging(ListRequest(path="")).turn(versions, None)) == 1
    uploads = [Upload(path="a", upload_id=name) for name in "12"]
    assert Paging(ListUploadsRequest(path="")).turn(uploads, None) == uploads


@pytest.mark.parametrize("page", [[], [A], [A, B]])
def test_pages_in_vain_have_an_end(page: list[Entry]) -> None:
    """The limit counts those in a row."""
    paging = Paging(ListRequest(path="d/"))
    for number in range(PAGES_IN_VAIN_MAX - 1):
        paging.turn(page, f"{number}")
    paging.turn([C], "c")
    for number in range(PAGES_IN_VAIN_MAX - 1):
        paging.turn(page, f"again {number}")
    with pytest.raises(ProtocolError, match="nothing new") as caught:
        paging.turn(page, "last")
    assert (caught.value.operation, caught.value.path, caught.value.status) == ("list", "d/", "permanent")


def test_pages_of_which_something_was_left_out_may_be_any_number() -> None:
    """Where it is another thing each time."""
    paging = Paging(ListRequest(path=""))
    for number in range(2 * PAGES_IN_VAIN_MAX):
        paging.turn([], f"{number}", left_out=number + 1)
    for number in range(PAGES_IN_VAIN_MAX - 1):
        paging.turn([], f"again {number}", left_out=5)
    with pytest.raises(ProtocolError, match="nothing new"):
        paging.turn([], "last", left_out=5)


async def test_complete_says_that_it_left_something_out() -> None:
    """Names before ``start_after``, another number for each page; directories that were walked."""
    keys = dict.fromkeys(("a", "b", "c", "d/x/y", "d/z", "e"), b"")
    async with DictStore(keys, recursive=True).operator() as op, Operator(Memory()) as native:
        accessor, token, seen = op.accessor(), None, list[int]()
        while not seen or token is not None:
            page = await accessor.list_page(ListRequest(path="", start_after="z", page_token=token, recursive=True))
            assert page.entries == ()
            token = page.next_token
            seen.append(page.left_out)
        assert len({*seen, 0}) == 3
        await native.write("a", b"")
        assert (await native.accessor().list_page(ListRequest(path="", start_after="0"))).left_out == 0
    async with DictStore(keys).operator() as op:
        accessor, token, seen = op.accessor(), None, list[int]()
        while not seen or token is not None:
            page = await accessor.list_page(ListRequest(path="d/", page_token=token, recursive=True))
            token = page.next_token
            seen.append(page.left_out)
        assert len({*seen, 0}) == 3
