"""How many objects ``delete_extra`` may delete: a rule by default, a number, or a share."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch.errors import InvalidArgument, InvalidType, NotFound
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.unit.transfer.test_extra import Listing, backwards
from tests.unit.transfer.trees import files_of, memory, put_tree, tree_of


def names(first: int, end: int) -> dict[str, bytes]:
    return {f"{number:03}": b"1" for number in range(first, end)}


@checks("reliability:W33")
@each_of(
    ("there", "stay", "delete_max", "is_allowed"),
    [
        (10, 0, None, True),  # Ten are few.
        (11, 0, None, False),
        (21, 10, None, False),
        (22, 11, None, True),  # Half of them is not more than half.
        (100, 50, None, True),
        (100, 49, None, False),
        (5, 0, 5, True),
        (5, 0, 4, False),
        (100, 0, 100, True),
        (100, 99, 0, False),
        (100, 100, 0, True),
        (2, 1, 1, True),  # One object, and not all of them.
        (2, 0, 1, False),
        (2, 0, 1.0, True),
        (1000, 0, 1.0, True),
        (100, 71, 0.29, True),
        (100, 70, 0.29, False),
        (4, 2, 0.5, True),
        (4, 1, 0.5, False),
        (3, 2, 0.0, False),
        (3, 3, 0.0, True),
    ],
)
@each_of("is_dry", [False, True])
async def test_the_limit(there: int, stay: int, delete_max: float | None, is_allowed: bool, is_dry: bool) -> None:
    """Beyond it nothing is deleted, and all is copied. A dry run says the same, and shows the steps."""
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", {**names(there - stay, there), "new": b"2"})
        await put_tree(other, "y/", names(0, there))
        await put_tree(other, "beside/", names(0, 50))
        how: Any = {"delete_extra": True, "delete_max": delete_max, "dry_run": is_dry}
        if is_allowed:
            assert (await ap.copy((op, "x/"), (other, "y/"), **how)).deleted == there - stay
            return
        with pytest.raises(InvalidArgument, match=rf"delete {there - stay} of {there:,} objects") as caught:
            await ap.copy((op, "x/"), (other, "y/"), **how)
        assert f"delete_max={there - stay} allows these, delete_max=1.0 any number" in str(caught.value)
        assert ("delete_max=" + str(delete_max) in str(caught.value)) == (delete_max is not None)
        report = caught.value.context["report"]
        assert isinstance(report, ap.CopyReport)
        assert (report.copied + report.skipped, report.failures) == (stay + 1, ())
        assert report.deleted == (there - stay if is_dry else 0)
        assert {step.target for step in report.steps if step.action == "delete"} == (
            {f"y/{name}" for name in names(0, there - stay)} if is_dry else set()
        )
        assert (await tree_of(other, "y/")).keys() == names(0, there).keys() | (set() if is_dry else {"new"})
        assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message


@checks("reliability:W23")
@each_of("orders", [(tuple, tuple), (backwards, tuple), (tuple, backwards), (backwards, backwards)])
@each_of("skip_same", [False, True])
async def test_what_the_run_has_copied_is_not_counted(orders: tuple[Any, Any], skip_same: bool) -> None:
    """A source of other names deletes everything, however many objects it brings."""
    async with memory() as plain, memory() as plain_other:
        op, other = Listing(orders[0]).of(plain), Listing(orders[1]).of(plain_other)
        await put_tree(op, "x/", names(100, 200))
        await put_tree(other, "y/", names(0, 30))
        sides: Any = (op, "x/"), (other, "y/")
        for is_dry in (True, False):
            with pytest.raises(InvalidArgument, match="delete 30 of 30 objects"):
                await ap.copy(*sides, delete_extra=True, dry_run=is_dry, skip_same=skip_same)
        assert (await tree_of(other, "y/")).keys() == {**names(0, 30), **names(100, 200)}.keys()


async def test_a_glob_counts_what_it_matches_at_the_destination() -> None:
    async with memory() as op, memory() as other:
        await put_tree(op, "x/", {"a.csv": b"1"})
        await put_tree(other, "y/", {f"{name}.csv": b"1" for name in names(0, 12)} | names(0, 100))
        with pytest.raises(InvalidArgument, match="delete 12 of 12 objects"):
            await ap.copy((op, "x/"), (other, "y/"), glob="*.csv", delete_extra=True)
        report = await ap.copy((op, "x/"), (other, "y/"), glob="*.csv", delete_extra=True, delete_max=12)
        assert report.deleted == 12


async def test_what_stays_below_what_was_passed_over_is_counted(tmp_path: Path) -> None:
    (tmp_path / "2025").symlink_to("nowhere")
    (tmp_path / "keep").write_bytes(b"1")
    async with memory() as op:
        await put_tree(op, "y/", {f"2025/{name}": b"1" for name in names(0, 30)} | names(0, 20))
        assert (await ap.copy(tmp_path, (op, "y/"), delete_extra=True)).deleted == 20


@checks("reliability:W33")
async def test_an_unmounted_volume_in_the_source(tmp_path: Path) -> None:
    for folder in ("disk", "volume"):
        (tmp_path / folder).mkdir()
        for name in names(0, 20):
            (tmp_path / folder / name).write_bytes(b"1")
    async with memory() as op:
        await ap.copy(tmp_path, (op, "y/"))
        before = await tree_of(op, "y/")
        for file in (tmp_path / "volume").iterdir():
            file.unlink()
        (tmp_path / "disk" / "000").unlink()
        with pytest.raises(InvalidArgument, match="delete 21 of 40 objects, more than half of them and more than 10"):
            await ap.copy(tmp_path, (op, "y/"), delete_extra=True)
        assert await tree_of(op, "y/") == before


@each_of("most", [True, False, "5", [1], 1j])
async def test_what_is_no_number_is_refused(most: Any) -> None:
    async with memory() as op:
        await put_tree(op, "x/", {"a": b"1"})
        with pytest.raises(InvalidType, match="delete_max must be None, a number of objects"):
            await ap.copy((op, "x/"), (op, "y/"), delete_extra=True, delete_max=most)
        assert not await op.exists("y/a")


@each_of("most", [-1, -0.1, 1.1, 5.0, math.nan, math.inf, -math.inf])
async def test_a_number_that_is_no_limit_is_refused(most: float) -> None:
    """Also where nothing would be deleted."""
    async with memory() as op:
        await put_tree(op, "x/", {"a": b"1"})
        for deletes in (True, False):
            with pytest.raises(InvalidArgument, match=r"a share from 0\.0 to 1\.0") as caught:
                await ap.copy((op, "x/"), (op, "y/"), delete_extra=deletes, delete_max=most)
            assert not isinstance(caught.value, InvalidType)
        assert not await op.exists("y/a")


def test_without_a_loop(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "new").write_bytes(b"1")
    (tmp_path / "out").mkdir()
    for name in names(0, 12):
        (tmp_path / "out" / name).write_bytes(b"2")
    sides = tmp_path / "in", tmp_path / "out"
    with pytest.raises(InvalidArgument, match="12 of 12") as caught:
        ap.sync.copy(*sides, delete_extra=True)
    report: Any = caught.value.context["report"]
    assert (report.copied, report.deleted) == (1, 0)
    with pytest.raises(InvalidArgument, match="more than delete_max=11"):
        ap.sync.copy(*sides, delete_extra=True, delete_max=11)
    assert ap.sync.copy(*sides, delete_extra=True, delete_max=12).deleted == 12
    assert files_of(tmp_path / "out") == {"new": b"1"}


async def test_an_empty_source_stays_an_error_of_its_own(tmp_path: Path) -> None:
    async with memory() as op:
        await put_tree(op, "y/", names(0, 3))
        with pytest.raises(NotFound):
            await ap.copy(tmp_path, (op, "y/"), delete_extra=True, delete_max=1.0)
        assert (await tree_of(op, "y/")).keys() == names(0, 3).keys()
