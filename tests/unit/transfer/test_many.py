"""Many objects at once: every request failing, every suspension cancelled, memory, order, and what is the same."""

import asyncio
import os
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore

import aioprefetch as ap
from aioprefetch.errors import Error, ObjectChanged, PermissionDenied, Unavailable, Unexpected
from aioprefetch.layers import RetryLayer
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from tests.profile import chosen
from tests.stores.gated_reader import KIB, MIB
from tests.stores.layer_stack import was_cancelled
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import TREE, files_of, memory, put_tree, tree_of

TREES = {**TREE, "large": bytes(range(256)) * 4096}  # 1 MiB: sixteen times what one request brings.
BLOCK = 32 * KIB


def faulty(op: ap.Operator, *plan: Injection, retries: bool = False) -> ap.Operator:
    """An operator over the same store, with faults next to it."""
    retry = RetryLayer(base_seconds=1e-6, attempts_max=4 if retries else 1)
    return op.layer(FaultLayer(plan, chunk_bytes=8 * KIB), inside=ap.layers.ErrorContextLayer).layer(retry)


def kinds(report: ap.CopyReport) -> dict[str, str]:
    return {failure.path: failure.error.kind for failure in report.failures}


@checks("reliability:W10")
@pytest.mark.parametrize(
    ("place", "point"),
    [
        ("memory", "reply"),  # Of a stat. A copy into a file asks for none: its requests end with their bodies.
        *product(("files", "memory"), chosen(quick=["call", 3000], full=["call", "head", 100, 3000])),
    ],
)
async def test_whichever_request_of_the_source_fails_only_its_object_is_missing(
    tmp_path: Path, place: str, point: Any
) -> None:
    failed = 0
    for number in range(30):
        async with memory(block_bytes=BLOCK) as op, memory() as other:
            await put_tree(op, "x/", TREES)
            source = faulty(op, Injection(occurrence=number, at=point, error=PermissionDenied))
            out = tmp_path / f"{number}"
            target: Any = out if place == "files" else (other, "y/")
            try:
                report = await ap.copy((source, "x/"), target, concurrency=1 + number % 2)
            except PermissionDenied:  # The listing itself.
                assert number == 0
                continue
            there = files_of(out) if place == "files" else await tree_of(other, "y/")
            missing = {path.removeprefix("x/") for path in kinds(report)}
            assert there == {path: data for path, data in TREES.items() if path not in missing}
            assert report.copied + report.failed == len(TREES)
            assert report.bytes == sum(map(len, there.values()))
            failed += report.failed
            assert report.failed <= 1
            assert op.runtime().budget.waiting == 0
    assert failed >= (1 if isinstance(point, int) else 4)


@checks("reliability:W10")
async def test_whichever_request_of_the_target_fails_only_its_object_is_missing() -> None:
    failed = 0
    for number in range(20):
        async with memory(block_bytes=BLOCK) as op, memory(block_bytes=BLOCK) as other:
            await put_tree(op, "x/", TREES)
            target = faulty(other, Injection(occurrence=number, error=PermissionDenied))
            try:
                report = await ap.copy((op, "x/"), (target, "y/"))
            except PermissionDenied:
                continue
            there = await tree_of(other, "y/")
            missing = {path.removeprefix("x/") for path in kinds(report)}
            assert there == {path: data for path, data in TREES.items() if path not in missing}
            failed += report.failed
    assert failed >= 5


async def test_what_fails_for_a_while_is_tried_again(tmp_path: Path) -> None:
    for number in range(12):
        async with memory(block_bytes=BLOCK) as op:
            await put_tree(op, "x/", TREES)
            source = faulty(op, Injection(occurrence=number, at=100, error=Unavailable), retries=True)
            report = await ap.copy((source, "x/"), tmp_path / f"{number}")
            assert report.failures == ()
            assert files_of(tmp_path / f"{number}") == TREES


@checks("reliability:W40")
@pytest.mark.parametrize("place", ["files", "memory"])
async def test_cancelled_anywhere_every_object_is_whole_or_not_there(tmp_path: Path, place: str) -> None:
    suspensions = [*range(1, 12), *range(12, 400, chosen(quick=17, full=3))]
    for suspension in suspensions:
        async with memory(block_bytes=BLOCK) as op, memory(block_bytes=BLOCK) as other:
            await put_tree(op, "x/", TREES)
            out = tmp_path / f"{suspension}"
            target: Any = out if place == "files" else (other, "y/")
            cancelled = await was_cancelled(ap.copy((faulty(op), "x/"), target), suspension)
            there = files_of(out) if place == "files" else await tree_of(other, "y/")
            assert there.items() <= TREES.items()
            assert op.runtime().budget.waiting == 0
            if not cancelled:
                assert there == TREES
                return
    raise AssertionError("it was never carried out to its end")


class Overwritten(VerbLayer):
    """Overwrites ``x/large`` before its read of a number."""

    def __init__(self, op: ap.Operator, number: int) -> None:
        self.op, self.left = op, number

    async def read(self, inner: Any, request: Any, sink: Any) -> Any:
        if request.path == "x/large":
            if not self.left:
                await self.op.write("x/large", TREES["large"][::-1])
            self.left -= 1
        return await inner.read(request.first_part(), sink)


@checks("reliability:W11")
@pytest.mark.parametrize("place", ["files", "memory"])
async def test_an_object_that_changes_while_it_is_copied_is_a_failure(tmp_path: Path, place: str) -> None:
    """Between any two of its requests; none of its bytes are at the destination."""
    changed = 0
    for number in range(1, 8):
        async with memory(block_bytes=BLOCK) as op, memory() as other:
            tree = TREES | {"large": TREES["large"] * 6}  # A stream asks for a MiB at a time.
            await put_tree(op, "x/", tree)
            source = op.layer(Overwritten(op, number), inside=ap.layers.ErrorContextLayer)
            out = tmp_path / f"{number}"
            target: Any = out if place == "files" else (other, "y/")
            report = await ap.copy((source, "x/"), target)
            there = files_of(out) if place == "files" else await tree_of(other, "y/")
            if report.failures:
                changed += 1
                assert kinds(report) == {"x/large": "ObjectChanged"}
                error = report.failures[0].error
                assert isinstance(error, ObjectChanged)
                assert "reopen" not in str(error)  # That is for readers.
                assert there == {path: data for path, data in tree.items() if path != "large"}
            else:
                assert there["large"] == tree["large"]
    assert changed >= 2


class NoEtags(VerbLayer):
    """A store without ETags."""

    async def list_page(self, inner: ap.Accessor, request: Any) -> Any:
        page = await inner.list_page(request)
        return replace(page, entries=tuple(replace(entry, etag=None) for entry in page.entries))

    async def stat(self, inner: ap.Accessor, request: Any) -> Any:
        return replace(await inner.stat(request), etag=None)

    async def read(self, inner: ap.Accessor, request: Any, sink: Any) -> Any:
        await inner.write(ap.values.WriteRequest(path=request.path), b"longer than before")
        return await inner.read(request, sink)


async def test_an_object_without_an_etag_that_has_another_size_by_now_is_a_failure() -> None:
    """A part of it would be an object that never was."""
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", {"k": b"before"})
        report = await ap.copy((op.layer(NoEtags(), inside=ap.layers.ErrorContextLayer), "x/"), (other, "y/"))
        assert kinds(report) == {"x/k": "ObjectChanged"}
        assert await tree_of(other, "") == {}


@checks("reliability:W11")
async def test_an_object_that_was_overwritten_since_it_was_listed_is_the_newer_one(tmp_path: Path) -> None:
    async with memory(block_bytes=BLOCK) as op, memory() as other:
        await put_tree(op, "x/", TREES)

        def on_progress(progress: ap.CopyProgress) -> None:
            if progress.total is not None and not overwritten:
                overwritten.append(True)
                op_store.put(ap.values.WriteRequest(path="x/z"), b"newer")

        service = op.service
        assert isinstance(service, ap.services.Memory)
        op_store, overwritten = service.store, list[bool]()
        await ap.copy((op, "x/"), tmp_path, concurrency=1, on_progress=on_progress)
        await ap.copy((op, "x/"), (other, "y/"))
        assert (tmp_path / "z").read_bytes() in (b"newer", TREES["z"])
        assert await other.read("y/z") == b"newer"


async def test_the_first_failure_ends_it_where_the_caller_says_so(tmp_path: Path) -> None:
    async with memory(block_bytes=BLOCK) as op:
        await put_tree(op, "x/", {f"{number:03}": b"1" for number in range(200)})
        source = faulty(op, Injection(operation="read", path="x/005", error=PermissionDenied))
        with pytest.raises(PermissionDenied) as caught:
            await ap.copy((source, "x/"), tmp_path, stop_at_failure=True, concurrency=4)
        assert caught.value.path == "x/005"
        # The failing one begins as the last of four: two or more are there by then. Threads decide how many follow.
        assert 2 <= len(files_of(tmp_path)) < 200


async def test_a_listing_that_fails_lets_what_has_begun_come_to_its_end(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", {f"{number:04}": b"1" for number in range(1500)})
        source = faulty(op, Injection(operation="list", occurrence=1, error=PermissionDenied))
        with pytest.raises(PermissionDenied) as caught:
            await ap.copy((source, "x/"), tmp_path)
        assert caught.value.context["copied"] == len(files_of(tmp_path)) == 1000


@pytest.mark.parametrize("place", ["files", "memory"])
@pytest.mark.parametrize("size", [100 * KIB, MIB, 6 * MIB])
async def test_memory_is_bounded_whatever_is_copied(tmp_path: Path, place: str, size: int) -> None:
    """By the budget, of which the source gives out no more than there is."""
    budget_bytes = 4 * MIB
    options = {"memory_bytes": budget_bytes, "block_bytes": 256 * KIB}
    async with memory(**options) as op, memory(**options) as other:
        tree = {f"{number}": os.urandom(1000) + bytes(size - 1000) for number in range(40 * MIB // size // 2)}
        await put_tree(op, "x/", tree)
        target: Any = tmp_path if place == "files" else (other, "y/")
        report = await ap.copy((op, "x/"), target)
        assert report.failures == ()
        assert (files_of(tmp_path) if place == "files" else await tree_of(other, "y/")) == tree
        budget = op.runtime().budget
        assert budget.peak_bytes <= budget_bytes + MIB  # Demand may exceed it by one chunk of a stream.


async def test_as_many_at_once_as_the_caller_says(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", {f"{number}": b"1" for number in range(50)})
        for concurrency in (1, 7):
            running = most = 0
            are_there = asyncio.Event()

            class Counting(ap.WrappedAccessor):
                async def read(self, request: Any, sink: Any) -> Any:
                    nonlocal running, most
                    running += 1
                    most = max(most, running)
                    if running == concurrency:  # noqa: B023 - of this turn
                        are_there.set()  # noqa: B023
                    await are_there.wait()  # noqa: B023
                    for _ in range(20):  # More would come meanwhile.
                        await asyncio.sleep(0)
                    running -= 1
                    return await self.inner.read(request, sink)

            class Counted(ap.Layer):
                def wrap(self, inner: Any, runtime: Any) -> Any:
                    return Counting(inner)

            source = op.layer(Counted(), inside=ap.layers.ErrorContextLayer)
            await ap.copy((source, "x/"), tmp_path / f"{concurrency}", concurrency=concurrency)
            assert most == concurrency


# --- what is the same -------------------------------------------------------------------------------------------------


async def test_what_is_there_is_not_copied_again(tmp_path: Path) -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREES)
        for target in (tmp_path, (other, "y/"), (op, "y/")):
            assert (await ap.copy((op, "x/"), target)).copied == len(TREES)
            again = await ap.copy((op, "x/"), target, skip_same=True)
            assert (again.copied, again.skipped) == (0, len(TREES))
            assert again.bytes_skipped == sum(map(len, TREES.values()))
            for skip_same in (None, False):  # Nothing proves that the bytes are the same.
                assert (await ap.copy((op, "x/"), target, skip_same=skip_same)).copied == len(TREES)
            assert (await ap.copy((op, "x/z"), target, skip_same=True)).skipped == 1
        assert (await ap.copy(tmp_path, (other, "z/"), skip_same=True)).copied == len(TREES)
        assert (await ap.copy(tmp_path, (other, "z/"), skip_same=True)).skipped == len(TREES)


@checks("reliability:W45")
async def test_another_object_of_the_same_size_is_never_left_out_by_itself(tmp_path: Path) -> None:
    """Although the one at the destination was written after it: only the caller can say that time is enough."""
    async with memory() as op, memory() as other:
        await put_tree(op, "", {"one": b"1" * 100, "two": b"2" * 100})
        for target in (tmp_path / "f", (other, "k")):
            await ap.copy((op, "one"), target)
            await ap.copy((op, "two"), target)
        assert (tmp_path / "f").read_bytes() == await other.read("k") == b"2" * 100


@checks("reliability:W45")
async def test_what_was_written_since_is_copied_again(tmp_path: Path) -> None:
    """Of the same size too, and at once."""
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREES)
        for target in (tmp_path, (other, "y/")):
            await ap.copy((op, "x/"), target)
        for data in (b"tsal", b"longer than before"):
            await op.write("x/z", data)
            for target in (tmp_path, (other, "y/")):
                assert (await ap.copy((op, "x/"), target, skip_same=True)).copied == 1
            assert (tmp_path / "z").read_bytes() == await other.read("y/z") == data


async def test_a_local_file_that_was_changed_by_itself_is_replaced(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", TREES)
        await ap.copy((op, "x/"), tmp_path)
        (tmp_path / "z").write_bytes(b"mine")
        assert (await ap.copy((op, "x/"), tmp_path, skip_same=True)).copied == 1
        assert files_of(tmp_path) == TREES


async def test_a_file_has_the_time_of_its_object(tmp_path: Path) -> None:
    async with memory() as op:
        await op.write("k", b"bytes")
        await ap.copy((op, "k"), tmp_path / "f")
        modified = (await op.stat("k")).last_modified
        assert modified is not None
        assert (tmp_path / "f").stat().st_mtime_ns // 1000 == round(modified.timestamp() * 1e6)


class Reversed(VerbLayer):
    """Lists backwards."""

    async def list_page(self, inner: ap.Accessor, request: Any) -> Any:
        page = await inner.list_page(request)
        return ap.values.ListPage(entries=page.entries[::-1], next_token=page.next_token)


async def test_a_source_in_another_order_asks_for_each_object() -> None:
    """The listing of the destination beside it has passed them."""
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREES)
        backwards = op.layer(Reversed(), inside=ap.layers.ErrorContextLayer)
        assert (await ap.copy((backwards, "x/"), (other, "y/"))).copied == len(TREES)
        assert (await ap.copy((backwards, "x/"), (other, "y/"), skip_same=True)).skipped == len(TREES)


async def test_a_destination_that_lists_in_an_order_of_its_own(tmp_path: Path) -> None:
    """As obstore's local store does."""
    async with memory() as op, ap.Operator(ap.services.ObspecStore(LocalStore(tmp_path))) as other:
        await put_tree(op, "x/", TREES)
        assert (await ap.copy((op, "x/"), (other, "y/"))).copied == len(TREES)
        assert files_of(tmp_path / "y") == TREES
        for file in (tmp_path / "y").rglob("*"):  # The time of a file may lie a tick before that of its object.
            os.utime(file, (time.time() + 1, time.time() + 1))
        assert (await ap.copy((op, "x/"), (other, "y/"), skip_same=True)).skipped == len(TREES)
        assert (await ap.copy((other, "y/"), (op, "z/"))).copied == len(TREES)
        assert await tree_of(op, "z/") == TREES


# --- a tree in is a tree out ------------------------------------------------------------------------------------------

NAME = st.text(st.sampled_from("ab.é -+%"), min_size=1, max_size=4).filter(lambda name: name.strip(".") != "")
TREES_DRAWN = st.dictionaries(
    st.lists(NAME, min_size=1, max_size=3).map("/".join), st.binary(max_size=300), min_size=1, max_size=12
).filter(lambda tree: not any(path.startswith(f"{other}/") for path in tree for other in tree))


@given(tree=TREES_DRAWN, changes=TREES_DRAWN, sizes=st.integers(0, 200 * KIB))
@settings(max_examples=chosen(quick=60, full=300))
def test_a_tree_in_is_a_tree_out(tmp_path_factory: pytest.TempPathFactory, tree: Any, changes: Any, sizes: int) -> None:
    """From memory over files to memory, twice: what was there stays, what is newer is replaced, no more appears."""
    directory = tmp_path_factory.mktemp("tree")

    async def model() -> None:
        async with memory(block_bytes=BLOCK) as op, memory(block_bytes=BLOCK) as other:
            expected = {**tree, "sized": bytes(sizes)}
            await put_tree(op, "in/", expected)
            await ap.copy((op, "in/"), directory / "out")
            assert files_of(directory / "out") == expected
            second = {
                path: data
                for path, data in changes.items()
                if not any(path.startswith(f"{one}/") or one.startswith(f"{path}/") for one in expected)
            }
            await put_tree(op, "in/", second)
            report = await ap.copy((op, "in/"), directory / "out", skip_same=True)
            expected |= second
            assert report.failures == ()
            assert report.copied == len(second)
            assert files_of(directory / "out") == expected
            await ap.copy(directory / "out", (other, "back"))
            assert await tree_of(other, "back/") == expected

    asyncio.run(model())


def test_an_error_of_a_report_is_one_of_ours() -> None:
    failure = ap.CopyFailure(path="a", target="b", error=Error("why"))
    with pytest.raises(Error, match="why"):
        ap.CopyReport(failures=(failure,)).raise_failures()
    ap.CopyReport().raise_failures()


class Leaking(VerbLayer):
    """Raises an error that is not one of ours for one path, as a layer of a user may."""

    def __init__(self, path: str, operation: str) -> None:
        self.path, self.operation = path, operation

    async def around(self, request: Any, forward: Any) -> Any:
        if (request.operation, request.path) == (self.operation, self.path):
            raise OSError("the disk is on fire")
        return await forward(request)


async def test_a_foreign_error_is_the_failure_of_its_object_alone() -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREE)
        report = await ap.copy((op, "x/"), (other.layer(Leaking("y/a.csv", "write")), "y/"))
        assert kinds(report) == {"x/a.csv": "Unexpected"}
        assert isinstance(report.failures[0].error.__cause__, OSError)
        assert "OSError: the disk is on fire" in str(report.failures[0].error)
        assert await tree_of(other, "y/") == {path: data for path, data in TREE.items() if path != "a.csv"}
        with pytest.raises(Unexpected, match="the disk is on fire"):
            await ap.copy((op.layer(Leaking("x/", "list")), "x/"), (other, "z/"))
