"""The lister over our own services: their order is that of keys, whatever the names."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.source.list.tail_sweep_lister import TailSweepLister
from aioprefetch.source.options import ListOptions
from aioprefetch.values import ListPage, ListRequest, WriteRequest
from tests.stores.dict_index import Consumer, DictIndex
from tests.stores.verb_layer import VerbLayer

NAMES = ["a", "a-b", "a.b/c", "a/b", "a/b-c", "a/b/c", "a0", "Z", "é", "z", "ÿ/x", "\uffee", "\U0001f600", "m/n/o/p"]
OPTIONS = ListOptions(interval_seconds=0.0, ahead_pages=2, sweep_pages=3)


class SmallPagesLayer(VerbLayer):
    """Pages of two entries."""

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        changed = ListRequest(
            path=request.path,
            recursive=request.recursive,
            start_after=request.start_after,
            page_token=request.page_token,
            page_entries_max=2,
        )
        return await inner.list_page(changed)


@pytest.fixture(params=["memory", "memory-root", "fs"])
async def operator(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Operator]:
    """An empty store."""
    uri = {
        "memory": f"memory://{tmp_path.name}",
        "memory-root": f"memory://{tmp_path.name}/r/s",
        "fs": f"file://{tmp_path}",
    }
    async with Operator.from_uri(uri[request.param]).layer(SmallPagesLayer()) as operator:
        yield operator


async def test_every_name_is_found_once_in_the_order_of_bytes(operator: Operator) -> None:
    """New, late and gone ones; in triggers of any size."""
    names = [name for name in NAMES if name != "a"] if operator.info.scheme == "file" else NAMES
    names = [name for name in names if not (operator.info.scheme == "file" and name == "a/b")]
    for name in names[::2]:
        await operator.write(name, b"x")
    known = DictIndex()
    one = Consumer(TailSweepLister(operator, OPTIONS, known), known)
    found = [change.file.key for change in await one.until_idle(room=3)]
    assert found == sorted(names[::2], key=lambda name: name.encode())
    for name in names[1::2]:
        await operator.write(name, b"x")
    assert {change.kind for change in await one.through()} == {"new"}
    assert sorted(known.files) == sorted(names)
    await operator.delete(names[4])
    await operator.write(names[6], b"changed")
    reported = {change.file.key: change.kind for change in await one.through()}
    assert reported == {names[4]: "gone", names[6]: "overwritten"}
    await one.feed.aclose()  # type: ignore[attr-defined]


async def test_directory_markers_made_by_hand_are_skipped(operator: Operator) -> None:
    """At the end of a page, of the listing, and at the frontier."""
    for number in range(6):
        await operator.create_dir(f"d{number}/")
        await operator.write(f"e{number}", b"x")
    await operator.create_dir("f/")
    known = DictIndex()
    one = Consumer(TailSweepLister(operator, OPTIONS, known), known)
    await one.until_idle(room=1)
    await one.through()
    await operator.write("f/g", b"x")
    await operator.write("d3/late", b"x")
    await one.through()
    assert sorted(known.files) == ["d3/late", *(f"e{number}" for number in range(6)), "f/g"]
    assert one.reported == {"new": 8}
    await one.feed.aclose()  # type: ignore[attr-defined]


async def test_the_order_of_python_text_is_that_of_utf_8(operator: Operator) -> None:
    assert sorted(NAMES) == sorted(NAMES, key=lambda name: os.fsencode(name))
    assert WriteRequest.operation == "write"
