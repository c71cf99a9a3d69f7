"""``delete_extra`` and ``dry_run``: what is deleted at a destination, when nothing is, and what would be done."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import InvalidArgument, InvalidType, NotFound, PermissionDenied, Unsupported
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Capability, Entry, ListPage, ListRequest
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import TREE, Tree, files_of, memory, put_tree, tree_of


class Listing(VerbLayer):
    """Counts the pages of listings, and puts their entries in another order."""

    def __init__(self, order: Callable[[tuple[Entry, ...]], tuple[Entry, ...]] = lambda entries: entries) -> None:
        self.order = order
        self.pages = 0

    def of(self, op: ap.Operator) -> ap.Operator:
        """The same store, with this layer."""
        return op.layer(self, inside=ap.layers.ErrorContextLayer)

    async def list_page(self, inner: Accessor, request: ListRequest) -> ListPage:
        self.pages += 1
        page = await inner.list_page(request)
        return replace(page, entries=self.order(page.entries))


def backwards(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return entries[::-1]


def last_first(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return (*entries[-1:], *entries[:-1])


class Undeletable(ap.services.Memory):
    """A store that does not delete."""

    @property
    def capability(self) -> Capability:
        return replace(super().capability, delete=False)


NAMES = st.sampled_from(["a", "b.csv", "c/d", "c/e.csv", "c/f/g.csv", "h i", "ü.csv", "z/[x]"])
TREES = st.dictionaries(NAMES, st.binary(max_size=3), max_size=6)


@settings(deadline=None)
@given(
    source=TREES,
    there=TREES,
    glob=st.sampled_from([None, "*.csv", "**/*.csv", "c/*"]),
    orders=st.tuples(*[st.sampled_from([tuple, backwards, last_first])] * 2),
    skip_same=st.booleans(),
)
def test_a_directory_becomes_what_its_source_is(
    source: Tree, there: Tree, glob: str | None, orders: tuple[Any, Any], skip_same: bool
) -> None:
    """Below the destination, as far as the glob reaches, in any order of listings; what lies beside it stays."""

    async def check() -> None:
        async with memory() as plain, memory() as plain_other:
            op, other = Listing(orders[0]).of(plain), Listing(orders[1]).of(plain_other)
            await put_tree(op, "x/", source)
            await put_tree(other, "y/", there)
            await put_tree(other, "beside/", TREE)
            chosen = await tree_of(op, "x/") if glob is None else await matching(op, "x/", glob)
            within = await tree_of(other, "y/") if glob is None else await matching(other, "y/", glob)
            sides: Any = (op, "x/"), (other, "y/")
            if not chosen:
                with pytest.raises(NotFound):
                    await ap.copy(*sides, glob=glob, delete_extra=True)
                assert await tree_of(other, "y/") == there
                return
            how: Any = {"glob": glob, "delete_extra": True, "skip_same": None if skip_same else False}
            plan = await ap.copy(*sides, **how, dry_run=True)
            assert await tree_of(other, "y/") == there
            report = await ap.copy(*sides, **how)
            assert await tree_of(other, "y/") == {p: d for p, d in there.items() if p not in within} | chosen
            assert await tree_of(other, "beside/") == TREE
            assert (report.copied, report.deleted, report.failures) == (len(chosen), len(within.keys() - chosen), ())
            assert {s.target for s in plan.steps if s.action == "delete"} == {f"y/{p}" for p in within.keys() - chosen}
            assert {(s.path, s.target, s.size) for s in plan.steps if s.action == "copy"} == {
                (f"x/{path}", f"y/{path}", len(data)) for path, data in chosen.items()
            }
            assert (plan.copied, plan.deleted, plan.bytes) == (report.copied, report.deleted, report.bytes)
            assert report.steps == ()

    asyncio.run(check())


async def matching(operator: ap.Operator, prefix: str, glob: str) -> Tree:
    found = await operator.list(prefix, recursive=True, glob=prefix + glob).collect()
    return {entry.path.removeprefix(prefix): await operator.read(entry.path) for entry in found}


async def test_what_the_glob_does_not_reach_stays() -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", {"a.csv": b"1", "c.txt": b"2"})
        await put_tree(other, "y/", {"b.csv": b"old", "c.txt": b"other", "d/e.csv": b"below"})
        await ap.copy((op, "x/"), (other, "y/"), glob="*.csv", delete_extra=True)
        assert await tree_of(other, "y/") == {"a.csv": b"1", "c.txt": b"other", "d/e.csv": b"below"}


async def test_files_are_deleted_too_and_a_dry_run_touches_nothing(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        out = tmp_path / "out"
        plan = await ap.copy((op, "x/"), out, delete_extra=True, dry_run=True)
        assert (plan.copied, plan.deleted, out.exists()) == (len(TREE), 0, False)
        assert (await ap.copy((op, "x/"), out, delete_extra=True)).copied == len(TREE)
        (out / "b" / "old").write_bytes(b"1")
        (out / "older").write_bytes(b"22")
        plan = await ap.copy((op, "x/"), out, delete_extra=True, dry_run=True, skip_same=True)
        assert sorted(step.target for step in plan.steps if step.action == "delete") == ["b/old", "older"]
        assert [step.size for step in plan.steps if step.target == "older"] == [2]
        assert (plan.skipped, plan.deleted, plan.copied) == (len(TREE), 2, 0)
        report = await ap.copy((op, "x/"), out, delete_extra=True, skip_same=True)
        assert (report.skipped, report.deleted) == (len(TREE), 2)
        assert files_of(out) == TREE
        assert "deleted=2" in repr(report)


@checks("reliability:W10")
async def test_nothing_is_deleted_after_a_failure() -> None:
    """For what could not be read may be what is there under another name."""
    deleted = 0
    for number in range(20):
        async with memory() as op, memory() as other:
            await put_tree(op, "x/", TREE)
            await put_tree(other, "y/", {"old": b"1"})
            plan = (Injection(occurrence=number, error=PermissionDenied),)
            source = op.layer(FaultLayer(plan), inside=ap.layers.ErrorContextLayer)
            try:
                report = await ap.copy((source, "x/"), (other, "y/"), delete_extra=True)
            except PermissionDenied:  # The listing.
                assert await other.exists("y/old")
                continue
            assert (report.deleted == 0) == bool(report.failures) == await other.exists("y/old")
            deleted += report.deleted
    assert 0 < deleted < 10


async def test_what_cannot_be_deleted_is_a_failure_of_its_own() -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREE)
        await put_tree(other, "y/", {"old": b"1", "older": b"2"})
        await put_tree(other, "y/", TREE)
        refused = other.layer(
            FaultLayer((Injection(operation="delete", error=PermissionDenied),)), inside=ap.layers.ErrorContextLayer
        )
        report = await ap.copy((op, "x/"), (refused, "y/"), delete_extra=True)
        assert (report.copied, report.deleted, report.failed) == (len(TREE), 0, 2)
        assert [(failure.path, failure.target) for failure in report.failures] == [("", "y/old"), ("", "y/older")]
        with pytest.raises(PermissionDenied) as caught:
            report.raise_failures()
        assert caught.value.context["failures"] == {"y/old": "PermissionDenied", "y/older": "PermissionDenied"}
        assert "y/old" in repr(report)


@checks("reliability:W23")
async def test_a_source_inside_of_the_destination_is_not_deleted_with_it(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/y/", TREE)
        with pytest.raises(InvalidArgument, match="lies inside of the destination"):
            await ap.copy((op, "x/y/"), (op, "x/"), delete_extra=True)
        assert await tree_of(op, "x/") == {f"y/{path}": data for path, data in TREE.items()}
        await ap.copy((op, "x/y/"), tmp_path / "in" / "side")
    with pytest.raises(InvalidArgument, match="lies inside of the destination"):
        await ap.copy(tmp_path / "in" / "side", tmp_path / "in", delete_extra=True)
    assert files_of(tmp_path / "in" / "side") == TREE


@checks("reliability:W33")
async def test_an_empty_source_deletes_nothing(tmp_path: Path) -> None:
    """A disk that is not mounted looks like that."""
    (tmp_path / "empty").mkdir()
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        with pytest.raises(NotFound, match="delete_extra deletes nothing"):
            await ap.copy(tmp_path / "empty", (op, "x/"), delete_extra=True)
        assert await tree_of(op, "x/") == TREE


async def test_what_is_refused(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        with pytest.raises(InvalidArgument, match="is one object"):
            await ap.copy((op, "x/z"), tmp_path / "z", delete_extra=True)
        no: Any = "no"
        for flag in ("delete_extra", "dry_run"):
            with pytest.raises(InvalidType, match=f"{flag} must be True or False"):
                await ap.copy((op, "x/"), tmp_path / "z", **{flag: no})
        keeps = ap.Operator(Undeletable())
        with pytest.raises(Unsupported, match="does not support delete"):
            await ap.copy((op, "x/"), (keeps, "y/"), delete_extra=True)
        assert await keeps.list("y/").collect() == []
        assert not (tmp_path / "z").exists()


async def test_a_dry_run_names_keys_that_no_file_can_have(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "x/", {"a": b"1", "b//c": b"2"})
        plan = await ap.copy((op, "x/"), tmp_path / "out", dry_run=True)
        assert [(failure.path, failure.error.kind) for failure in plan.failures] == [("x/b//c", "InvalidPath")]
        assert [step.path for step in plan.steps] == ["x/a"]


async def test_where_names_of_files_are_folded_a_file_keeps_its_old_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS ``A`` is written into the file ``a``, and the listing still has ``a``."""
    monkeypatch.setattr(sys, "platform", "darwin")
    async with memory() as op:
        await put_tree(op, "x/", {"A.csv": b"1", "u\u0308": b"2"})
        for name in ("a.csv", "ü", "other"):
            (tmp_path / name).write_bytes(b"0")
        report = await ap.copy((op, "x/"), tmp_path, delete_extra=True)
        assert report.deleted == 1
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("skip_same", [True, False])
@pytest.mark.parametrize(("orders", "listings"), [((tuple, tuple), [1, 1]), ((backwards, tuple), [2, 2])])
async def test_each_side_is_listed_once_where_both_have_the_same_order(
    orders: tuple[Any, Any], listings: list[int], skip_same: bool
) -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREE)
        await put_tree(other, "y/", {"a": b"1", "b/d/old": b"2", "zz": b"3"})
        source, target = map(Listing, orders)
        report = await ap.copy((source.of(op), "x/"), (target.of(other), "y/"), delete_extra=True, skip_same=skip_same)
        assert (report.copied, report.deleted, [source.pages, target.pages]) == (len(TREE), 3, listings)
        assert await tree_of(other, "y/") == TREE


async def test_local_directories_that_become_empty_are_removed(tmp_path: Path) -> None:
    """Others stay, also those that were empty before."""
    out = tmp_path / "out"
    async with memory() as op:
        await put_tree(op, "x/", {"b/kept": b"1"})
        for path in ("old/1", "old/deep/2", "old/deep/3", "b/old/4", "c/5"):
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(b"2")
        (out / "empty").mkdir()
        (out / "c" / "link").symlink_to("nowhere")  # No object, so that it stays.
        report = await ap.copy((op, "x/"), out, delete_extra=True, dry_run=True)
        assert (report.deleted, (out / "old" / "deep").is_dir()) == (5, True)
        assert (await ap.copy((op, "x/"), out, delete_extra=True)).deleted == 5
        assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_dir()} == {"b", "c", "empty"}
        assert (out / "c" / "link").is_symlink()
        assert (out / "b" / "kept").read_bytes() == b"1"


async def test_more_objects_than_one_request_deletes() -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", TREE)
        await put_tree(other, "y/", {f"old/{n}": b"1" for n in range(1100)})
        report = await ap.copy((op, "x/"), (other, "y/"), delete_extra=True, delete_max=1.0)
        assert report.deleted == 1100
        assert await tree_of(other, "y/") == TREE


def test_without_a_loop(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"1")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b").write_bytes(b"2")
    plan = ap.sync.copy(tmp_path / "in", tmp_path / "out", delete_extra=True, dry_run=True)
    assert [(step.action, step.target) for step in plan.steps] == [("copy", "a"), ("delete", "b")]
    assert ap.sync.copy(tmp_path / "in", tmp_path / "out", delete_extra=True).deleted == 1
    assert files_of(tmp_path / "out") == {"a": b"1"}
