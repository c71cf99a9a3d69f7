"""A service whose listing does not go on, or holds what was not asked for: each door ends, with the right names."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.accessor.list_pages import PAGES_IN_VAIN_MAX
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.layers import ErrorContextLayer, LruCacheLayer
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Entry, ListPage, ListRequest, ListUploadsRequest, UploadPage, WriteRequest
from tests.profile import in_turns
from tests.stores.dict_store import DictAccessor, DictStore
from tests.stores.part_store import PartAccessor, PartStore

KEYS = ("d/a", "d/b", "d/c", "d/e/f", "d/e/g", "d/h", "other")
BELOW = [key for key in KEYS if key.startswith("d/")]

Fault = Callable[[ListRequest, ListPage, int], ListPage]
# What becomes of a page, by its number: each of these listings would never end.
ENDLESS: dict[str, Fault] = {
    "one token": lambda request, page, count: replace(page, next_token="0"),
    "one token, nothing": lambda request, page, count: ListPage(entries=(), next_token="0"),
    "its own token": lambda request, page, count: replace(page, next_token=request.page_token or "0"),
    "new tokens": lambda request, page, count: replace(page, next_token=f"0.{count}"),
    "new tokens, nothing": lambda request, page, count: ListPage(entries=(), next_token=f"0.{count}"),
    "new tokens, the directory itself": lambda request, page, count: ListPage(
        entries=(Entry(path=request.path, kind="directory"),), next_token=f"0.{count}"
    ),
    "new tokens, two pages": lambda request, page, count: replace(page, next_token=f"{3 * (count % 2)}.{count}"),
}
# What a page holds beside its entries, and the listing is right nevertheless.
BESIDE: dict[str, Fault] = {
    "nothing": lambda request, page, count: page,
    "the directory itself": lambda request, page, count: replace(
        page, entries=(Entry(path=request.path, kind="directory"), *page.entries)
    ),
    "the directory itself without its slash": lambda request, page, count: replace(
        page, entries=(Entry(path=request.path.rstrip("/"), kind="directory"), *page.entries)
    ),
    "each entry twice": lambda request, page, count: replace(page, entries=page.entries * 2),
    "an empty page": lambda request, page, count: page if request.page_token else ListPage(entries=(), next_token="00"),
}


@dataclass(eq=False)
class Looping(DictStore):
    """A dictionary whose pages go through ``fault``."""

    fault: Fault = BESIDE["nothing"]
    pages: int = 0

    def build(self, runtime: Runtime) -> Accessor:
        """The live service."""
        return LoopingAccessor(self, runtime)


class LoopingAccessor(DictAccessor):
    """The live service."""

    def __init__(self, store: Looping, runtime: Runtime) -> None:
        super().__init__(store, runtime)
        self._looping = store

    async def list_page(self, request: ListRequest) -> ListPage:
        self._looping.pages += 1
        await asyncio.sleep(0)  # As each request to a store.
        begin = request.page_token and request.page_token.partition(".")[0]
        page = await super().list_page(replace(request, page_token=begin))
        return self._looping.fault(request, page, self._looping.pages)


async def listed(op: Operator, folder: Path) -> list[str]:
    """As it comes."""
    return [entry.path async for entry in op.list("d/", recursive=True)]


async def listed_after(op: Operator, folder: Path) -> list[str]:
    """From the beginning on, which the service does not know as such."""
    return [entry.path async for entry in op.list("d/", recursive=True, start_after="d/")]


async def one_level(op: Operator, folder: Path) -> list[str]:
    """One level at a time, by the caller."""
    found: list[str] = []
    directories = ["d/"]
    while directories:
        async for entry in op.list(directories.pop()):
            (directories if entry.is_directory else found).append(entry.path)
    return found


async def deleted(op: Operator, folder: Path) -> list[str]:
    """What is gone after a removal of all."""
    service: Any = op.service
    await op.delete_all("d/")
    return [key for key in KEYS if key not in service.objects]


async def copied(op: Operator, folder: Path) -> list[str]:
    """What a copy has."""
    await ap.copy((op, "d/"), folder / "copy", on_progress=lambda progress: None)
    return [f"d/{path.relative_to(folder / 'copy')}" for path in (folder / "copy").rglob("*") if path.is_file()]


async def moved(op: Operator, folder: Path) -> list[str]:
    """What has another name after a move."""
    service: Any = op.service
    await op.move("d/", "new/")
    return [f"d/{key[4:]}" for key in service.objects if key.startswith("new/")]


async def found_by_fsspec(op: Operator, folder: Path) -> list[str]:
    """What fsspec finds."""
    fsspec = pytest.importorskip("aioprefetch.fsspec")
    return await asyncio.to_thread(lambda: list(fsspec.AioPrefetchFileSystem(op).find("d")))


async def selected_by_arrow(op: Operator, folder: Path) -> list[str]:
    """What a selector of Arrow finds."""
    arrow = pytest.importorskip("pyarrow.fs")

    def select() -> list[str]:
        infos = ap.arrow.filesystem(op).get_file_info(arrow.FileSelector("d", recursive=True))
        return [info.path for info in infos if info.is_file]

    return await asyncio.to_thread(select)


DOORS = {
    door.__name__: door
    for door in (listed, listed_after, one_level, deleted, copied, moved, found_by_fsspec, selected_by_arrow)
}


@pytest.fixture(params=[True, False], ids=["recursive", "walked"])
def store(request: pytest.FixtureRequest) -> Looping:
    """A store of some keys."""
    return Looping(dict.fromkeys(KEYS, b"data"), recursive=request.param)


async def assert_ends(store: Looping, door: str, fault: str, folder: Path) -> None:
    """With an error, after what is new in it."""
    store.fault = ENDLESS[fault]
    async with asyncio.timeout(60), store.operator() as op:
        with pytest.raises(Exception, match=r"same page of a listing twice|brought nothing new") as caught:
            await DOORS[door](op, folder)
        assert isinstance(caught.value, ap.ProtocolError | OSError)


@pytest.mark.parametrize(("door", "fault"), in_turns(DOORS, [fault for fault in ENDLESS if "new tokens" not in fault]))
@checks("reliability:S61")
async def test_a_token_that_comes_again_ends_a_listing(store: Looping, door: str, fault: str, tmp_path: Path) -> None:
    await assert_ends(store, door, fault, tmp_path)
    assert store.pages < 100


@pytest.mark.parametrize("door", ["deleted", "copied", "found_by_fsspec"])
@checks("reliability:S61")
async def test_pages_that_come_again_by_new_tokens_end_a_listing(door: str, tmp_path: Path) -> None:
    store = Looping(dict.fromkeys(KEYS, b"data"), recursive=True)
    await assert_ends(store, door, "new tokens", tmp_path)
    assert store.pages <= 2 * PAGES_IN_VAIN_MAX


@pytest.mark.parametrize("fault", [fault for fault in ENDLESS if "new tokens" in fault])
@checks("reliability:S61")
async def test_pages_without_anything_new_end_a_listing(fault: str, tmp_path: Path) -> None:
    """Empty ones are followed for long, since a store goes through keys that were deleted, and not for ever."""
    store = Looping(dict.fromkeys(KEYS, b"data"))
    await assert_ends(store, "listed", fault, tmp_path)
    assert PAGES_IN_VAIN_MAX <= store.pages <= PAGES_IN_VAIN_MAX + 2


@pytest.mark.parametrize(("door", "fault"), in_turns(DOORS, list(BESIDE)))
@checks("reliability:S61")
async def test_what_a_page_holds_beside_is_left_out(store: Looping, door: str, fault: str, tmp_path: Path) -> None:
    store.fault = BESIDE[fault]
    async with asyncio.timeout(30), store.operator() as op:
        assert sorted(await DOORS[door](op, tmp_path)) == BELOW


@pytest.mark.parametrize("door", DOORS)
@checks("reliability:S62")
async def test_a_name_from_elsewhere_ends_a_listing(store: Looping, door: str, tmp_path: Path) -> None:
    """And nothing of that name is touched."""
    stranger = Entry(path="other", size=4)
    store.fault = lambda request, page, count: replace(page, entries=(*page.entries, stranger))
    async with asyncio.timeout(30), store.operator() as op:
        with pytest.raises(Exception, match=r"the listing of 'd/.*' holds 'other'"):
            await DOORS[door](op, tmp_path)
    assert "other" in store.objects


@pytest.mark.parametrize("claims", [True, False])
@checks("reliability:S61")
async def test_what_comes_before_start_after_is_left_out(store: Looping, claims: bool) -> None:
    """Of a store that knows no such thing, or forgets it."""
    store.can |= {"list_start_after"} if claims else set()
    async with store.operator() as op:
        for after in ("d/b", "d/e/", "d/e/f", "d/z"):
            names = [entry.path async for entry in op.list("d/", recursive=True, start_after=after)]
            assert sorted(names) == [key for key in BELOW if key > after]


@pytest.mark.parametrize(
    ("fault", "verbs"), [("one token, nothing", ("stat", "exists")), ("new tokens, nothing", ("stat",))]
)
@checks("reliability:S61")
async def test_the_look_for_a_directory_ends(fault: str, verbs: tuple[str, ...]) -> None:
    store = Looping(dict.fromkeys(KEYS, b"data"), fault=ENDLESS[fault])
    async with asyncio.timeout(30), store.operator() as op:
        for call in (getattr(op, verb) for verb in verbs):
            with pytest.raises(ap.ProtocolError) as caught:
                await call("d/")
            assert caught.value.operation == call.__name__


class EndlessUploads(PartStore):
    """Lists the same uploads again and again, by one token or new ones; ``aborted`` are those that were aborted."""

    __hash__ = object.__hash__

    def __init__(self, *, has_new_tokens: bool) -> None:
        super().__init__()
        self.has_new_tokens = has_new_tokens
        self.aborted: list[str] = []

    def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
        """The live layer."""
        return EndlessUploadsAccessor(inner, self)


class EndlessUploadsAccessor(PartAccessor):
    """The live layer."""

    def __init__(self, inner: Accessor, store: EndlessUploads) -> None:
        super().__init__(inner, store)
        self._endless = store
        self._count = itertools.count(1)

    async def list_uploads(self, request: ListUploadsRequest) -> UploadPage:
        page = await super().list_uploads(request)
        return replace(page, next_token=str(next(self._count)) if self._endless.has_new_tokens else "0")

    async def abort_upload(self, request: Any) -> None:
        self._endless.aborted.append(request.upload_id)


@pytest.mark.parametrize("has_new_tokens", [True, False])
@checks("reliability:S61")
async def test_uploads_that_are_listed_for_ever(has_new_tokens: bool) -> None:
    """Each is aborted once, whether or not the store forgets it."""
    uploads = EndlessUploads(has_new_tokens=has_new_tokens)
    async with asyncio.timeout(30), Operator(Memory()).layer(uploads, inside=ErrorContextLayer) as op:
        begun = [await op.accessor().begin_upload(WriteRequest(path="k")) for _ in range(3)]
        with pytest.raises(ap.ProtocolError) as caught:
            await op.abort_uploads()
        assert caught.value.operation == "abort_uploads"
        assert uploads.aborted == begun


@pytest.mark.parametrize("fault", ["one token", "one token, nothing", "its own token"])
@checks("reliability:S61")
async def test_a_cache_whose_store_lists_for_ever(store: Looping, fault: str) -> None:
    """Reads do without it, and its listing ends."""
    store.fault = ENDLESS[fault]
    async with asyncio.timeout(30), store.operator() as cache, Operator(Memory()) as plain:
        layer = LruCacheLayer(cache=cache, capacity_bytes=1 << 20)
        async with plain.layer(layer) as op:
            await op.write("k", b"data")
            assert [await op.read("k") for _ in range(3)] == [b"data"] * 3
            failures = op.statistics["cache_failures"]
    assert failures > 0
    assert store.pages < 100
