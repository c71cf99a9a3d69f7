"""``op.move`` of directories: all at the new place, nothing lost whichever request fails, and what is new stays."""

from pathlib import Path
from typing import Literal

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import InvalidArgument, IsADirectory, IsSameFile, NotFound, ObjectChanged, PermissionDenied
from aioprefetch.layers import ErrorContextLayer, RetryLayer
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, Metadata, WriteRequest
from tests.stores.layer_stack import was_cancelled
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import TREE, Tree, memory, put_tree, tree_of

OTHER: Tree = {"z": b"replaced", "there/k": b"stays"}


async def check_nothing_is_lost(op: Operator) -> None:
    """Each object is whole at its old place or at its new one, and what was at the target and had no new one stays."""
    old, new = await tree_of(op, "x/"), await tree_of(op, "y/")
    for path, data in TREE.items():
        assert old.get(path, data) == data
        assert path in old or new[path] == data
    assert new["there/k"] == b"stays"


@pytest.mark.parametrize("place", ["memory", "files"])
async def test_all_below_a_directory_is_moved(tmp_path: Path, place: str) -> None:
    async with memory() if place == "memory" else Operator.from_uri(tmp_path) as op:
        await put_tree(op, "x/", TREE)
        await put_tree(op, "y/", OTHER)
        await op.create_dir("x/nothing/in it/")
        moved = await op.move("x/", "y/")
        assert (moved.path, moved.is_directory, moved.size) == ("y/", True, sum(map(len, TREE.values())))
        assert await tree_of(op, "y/") == {**OTHER, **TREE}
        assert not await op.exists("x/")
        assert await op.exists("y/nothing/in it/") is await op.exists("y/nothing/")
        await op.move("y/", "deep/er")
        assert await tree_of(op, "deep/er/") == {**OTHER, **TREE}
        await op.move("deep/er/", "")
        assert set(TREE) < set(await tree_of(op, ""))


@checks("reliability:W10")
@pytest.mark.parametrize("point", ["call", "reply"])
async def test_whichever_request_fails_nothing_is_lost(point: Literal["call", "reply"]) -> None:
    for number in range(60):
        async with memory() as op:
            await put_tree(op, "x/", TREE)
            await put_tree(op, "y/", OTHER)
            layer = FaultLayer((Injection(occurrence=number, at=point, error=PermissionDenied),))
            failing = op.layer(layer, inside=ErrorContextLayer).layer(RetryLayer(attempts_max=1))
            try:
                await failing.move("x/", "y/")
            except PermissionDenied:
                await check_nothing_is_lost(op)
                if set(await tree_of(op, "x/")):
                    await op.move("x/", "y/")
            else:
                assert number > len(TREE) + 2
                assert await tree_of(op, "y/") == {**OTHER, **TREE}
                return
            assert await tree_of(op, "y/") == {**OTHER, **TREE}
    raise AssertionError("each request failed")


@checks("reliability:W40")
async def test_a_move_cancelled_anywhere_loses_nothing() -> None:
    for suspension in range(1, 200):
        async with memory() as op:
            await put_tree(op, "x/", TREE)
            await put_tree(op, "y/", OTHER)
            cancelled = await was_cancelled(op.move("x/", "y/"), suspension)
            await check_nothing_is_lost(op)
            if not cancelled:
                assert await tree_of(op, "x/") == {}
                return
    raise AssertionError("it was never carried out to its end")


class WritingMeanwhile(VerbLayer):
    """Overwrites each object once it was copied, and adds another one."""

    async def copy(self, inner: Accessor, request: CopyRequest) -> Metadata:
        copied = await inner.copy(request)
        if request.path in ("x/a.csv", "x/b/c.csv"):
            await inner.write(WriteRequest(path=request.path), b"newer")
            await inner.write(WriteRequest(path=f"{request.path}-added"), b"added")
        return copied


@checks("reliability:W12")
async def test_what_is_written_meanwhile_stays() -> None:
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        with pytest.raises(ObjectChanged, match="it is at its old place too") as caught:
            await op.layer(WritingMeanwhile(), inside=ErrorContextLayer).move("x/", "y/")
        assert (caught.value.operation, caught.value.path) == ("move", "x/a.csv")
        assert caught.value.context["changed"] == 2
        names = {"a.csv": b"newer", "b/c.csv": b"newer"}
        assert await tree_of(op, "x/") == {**names, **{f"{name}-added": b"added" for name in names}}
        assert await tree_of(op, "y/") == TREE


async def test_what_cannot_be_moved_is_refused_by_name() -> None:
    async with memory() as op:
        await put_tree(op, "x/", TREE)
        for source, target, error in (
            ("x/", "x/", IsSameFile),
            ("x/", "x/b/", InvalidArgument),
            ("none/", "y/", NotFound),
            ("none", "y", NotFound),
            ("x/z", "y/", IsADirectory),
            ("", "y/", IsADirectory),
        ):
            with pytest.raises(error) as caught:
                await op.move(source, target)
            assert caught.value.operation == "move"
        assert await tree_of(op, "") == {f"x/{path}": data for path, data in TREE.items()}


def test_a_blocking_operator_reads_what_is_there_afterwards() -> None:
    with ap.sync.BlockingOperator(memory()) as op:
        for path, data in (("x/k", b"moved"), ("y/k", b"there")):
            op.write(path, data)
            assert op.read_at(path, 0, 9) == data
        op.move("x/", "y/")
        assert op.read_at("y/k", 0, 9) == b"moved"
        with pytest.raises(NotFound):
            op.read_at("x/k", 0, 9)
