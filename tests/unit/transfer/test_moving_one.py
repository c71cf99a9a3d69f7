"""``op.move`` of one object: it is deleted where it was only after a proof that it is where it should be."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from aioprefetch import Operator
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import (
    AlreadyExists,
    ConditionNotMatch,
    InvalidArgument,
    IsSameFile,
    NotFound,
    ObjectChanged,
    ProtocolError,
    Unsupported,
)
from aioprefetch.layers import CompleteLayer, ErrorContextLayer, Layer, RetryLayer, WrappedAccessor
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import (
    Capability,
    CopyRequest,
    DeleteRequest,
    Metadata,
    ReadReply,
    ReadRequest,
    StatRequest,
    WriteRequest,
)
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import memory, put_tree, tree_of

Copied = Callable[[Accessor, CopyRequest], Awaitable[Metadata]]


class CopyingLayer(VerbLayer):
    """A store whose copy is ``copied``, and whose deletions are ``deleted`` before they are done."""

    def __init__(self, copied: Copied, deleted: Callable[[Accessor, DeleteRequest], Awaitable[object]] | None = None):
        self.copied = copied
        self.deleted = deleted

    async def copy(self, inner: Accessor, request: CopyRequest) -> Metadata:
        return await self.copied(inner, request)

    async def delete(self, inner: Accessor, request: DeleteRequest) -> None:
        if self.deleted is not None:
            await self.deleted(inner, request)
        await inner.delete(request)


def over(op: Operator, copied: Copied) -> Operator:
    return op.layer(CopyingLayer(copied), inside=ErrorContextLayer).layer(RetryLayer(attempts_max=1))


async def nothing_copied(inner: Accessor, request: CopyRequest) -> Metadata:
    return Metadata(path=request.target)


async def another_copied(inner: Accessor, request: CopyRequest) -> Metadata:
    copied = await inner.copy(request)
    await inner.write(WriteRequest(path=request.target), b"other bytes of another size")
    return replace(copied, etag=None)


async def replaced_after(inner: Accessor, request: CopyRequest) -> Metadata:
    copied = await inner.copy(request)
    await inner.write(WriteRequest(path=request.target), b"six"[: copied.size])
    return copied


async def overwritten_after(inner: Accessor, request: CopyRequest) -> Metadata:
    copied = await inner.copy(request)
    await inner.write(WriteRequest(path=request.path), b"newer")
    return copied


@checks("reliability:W02")
@pytest.mark.parametrize("name", ["k", "d/"])
@pytest.mark.parametrize("copied", [nothing_copied, another_copied, replaced_after])
async def test_without_a_proof_nothing_is_deleted(name: str, copied: Copied) -> None:
    async with memory() as op:
        await put_tree(op, "", {"k": b"one", "d/k": b"two"})
        with pytest.raises(ProtocolError, match="the copy is not there") as refused:
            await over(op, copied).move(name, f"to/{name}")
        assert refused.value.operation == "move"
        assert (await op.read("k"), await op.read("d/k")) == (b"one", b"two")


@checks("reliability:W12")
async def test_what_is_overwritten_after_the_copy_stays() -> None:
    async with memory() as op:
        await op.write("k", b"old")
        with pytest.raises(ObjectChanged, match="at its old place too") as changed:
            await over(op, overwritten_after).move("k", "to")
        assert (changed.value.operation, changed.value.path) == ("move", "k")
        assert await tree_of(op, "") == {"k": b"newer", "to": b"old"}


@checks("reliability:W12")
@pytest.mark.parametrize("name", ["k", "d/"])
async def test_what_is_overwritten_at_the_last_moment_stays_where_the_store_can_tell(name: str) -> None:
    async def overwritten(inner: Accessor, request: DeleteRequest) -> None:
        for path in request.paths:
            if request.if_match and path in request.if_match:
                await inner.write(WriteRequest(path=path), b"newer")

    async with memory() as op:
        await put_tree(op, "", {"k": b"old", "d/k": b"old"})
        layer = CopyingLayer(lambda inner, request: inner.copy(request), overwritten)
        with pytest.raises(ObjectChanged, match="at its old place too"):
            await op.layer(layer, inside=ErrorContextLayer).move(name, f"to/{name}")
        assert await op.read(name + "k" if name == "d/" else name) == b"newer"


@checks("reliability:W16")
async def test_conditions_of_a_copy_and_of_a_move() -> None:
    async with memory() as op:
        etag = (await op.write("k", b"one")).etag
        await op.write("there", b"two")
        before = await tree_of(op, "")
        for verb in (op.copy, op.move):
            with pytest.raises(ConditionNotMatch):
                await verb("k", "to", if_match="another")
            with pytest.raises(AlreadyExists):
                await verb("k", "there", if_not_exists=True)
            with pytest.raises(IsSameFile):
                await verb("k", "k")
            with pytest.raises(Unsupported, match="version='v'"):
                await verb("k", "to", version="v")
            with pytest.raises(TypeError, match="if_matches"):
                await verb("k", "to", if_matches=etag)  # type: ignore[call-arg]
            assert await tree_of(op, "") == before
        await op.copy("k", "copy", if_match=etag, if_not_exists=True)
        await op.move("k", "moved", if_match=etag, if_not_exists=True)
        assert await tree_of(op, "") == {"copy": b"one", "moved": b"one", "there": b"two"}
        with pytest.raises(InvalidArgument, match="belong to one object"):
            await op.move("d/", "e/", if_match=etag)
        await put_tree(op, "", {"d/k": b"three", "k": b"four"})
        with pytest.raises(AlreadyExists):
            await op.move("d/", "", if_not_exists=True)
        assert (await op.read("d/k"), await op.read("k")) == (b"three", b"four")


@checks("reliability:W17")
async def test_a_deletion_of_one_version_of_the_bytes() -> None:
    async with memory() as op:
        etag = (await op.write("k", b"one")).etag
        with pytest.raises(ConditionNotMatch) as refused:
            await op.delete("k", if_match="another")
        assert (refused.value.operation, refused.value.path) == ("delete", "k")
        with pytest.raises(NotFound):
            await op.delete("none", if_match=etag)
        with pytest.raises(InvalidArgument, match="no if_match"):
            await op.delete(["k"], if_match=etag)
        assert await op.read("k") == b"one"
        await op.delete("k", if_match=etag)
        assert not await op.exists("k")


async def test_a_deletion_goes_on_with_the_condition_where_the_store_has_it() -> None:
    """What comes after the look stays."""

    async def overwritten(inner: Accessor, request: DeleteRequest) -> None:
        await inner.write(WriteRequest(path="k"), b"newer")

    async with memory() as op:
        etag = (await op.write("k", b"old")).etag
        layer = CopyingLayer(nothing_copied, overwritten)
        with pytest.raises(ConditionNotMatch):
            await op.layer(layer, inside=ErrorContextLayer).delete("k", if_match=etag)
        assert await op.read("k") == b"newer"


class Plain(VerbLayer):
    """A store without conditions, and without ETags if it ``hides`` them."""

    def __init__(self, *, hides: bool = False) -> None:
        self.hides = hides

    def adapt(self, capability: Capability) -> Capability:
        return replace(capability, copy_if_match=False, copy_if_not_exists=False, delete_if_match=False)

    async def stat(self, inner: Accessor, request: StatRequest) -> Metadata:
        found = await inner.stat(request)
        return replace(found, etag=None) if self.hides else found

    async def copy(self, inner: Accessor, request: CopyRequest) -> Metadata:
        assert (request.if_match, request.if_not_exists) == (None, False)
        copied = await inner.copy(request)
        return replace(copied, etag=None) if self.hides else copied

    async def delete(self, inner: Accessor, request: DeleteRequest) -> None:
        assert request.if_match is None
        await inner.delete(request)


@checks("reliability:W12")
@pytest.mark.parametrize("hides", [False, True])
async def test_the_second_look_alone_keeps_what_is_newer(hides: bool) -> None:
    """Of the same size; without ETags the time tells it."""
    async with memory() as op:
        await op.write("k", b"older")
        plain = over(op.layer(Plain(hides=hides), inside=ErrorContextLayer), overwritten_after)
        with pytest.raises(ObjectChanged, match="at its old place too"):
            await plain.move("k", "to")
        assert await tree_of(op, "") == {"k": b"newer", "to": b"older"}


@pytest.mark.parametrize("etag", ["same", "0" * 32])
async def test_an_object_of_the_same_etag_may_have_other_bytes(etag: str) -> None:
    """An ETag that is no digest, or of zeros, does not say that a target is the copy of a move before."""

    class OneEtagAccessor(WrappedAccessor):
        async def stat(self, request: StatRequest) -> Metadata:
            return replace(await self.inner.stat(replace(request, if_match=None)), etag=etag)

        async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
            return await self.inner.read(replace(request, if_match=None), sink)

        async def copy(self, request: CopyRequest) -> Metadata:
            return await self.inner.copy(replace(request, if_match=None))

    class OneEtag(Layer):
        def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
            return OneEtagAccessor(inner)

    async with memory() as op:
        await put_tree(op, "", {"k": b"one", "to": b"two"})
        with pytest.raises(AlreadyExists):
            await op.layer(OneEtag(), inside=ErrorContextLayer).move("k", "to", if_not_exists=True)
        assert await tree_of(op, "") == {"k": b"one", "to": b"two"}


@checks("reliability:W12")
async def test_a_store_without_conditions_moves_by_two_looks() -> None:
    async with memory() as op:
        plain = op.layer(Plain(), inside=CompleteLayer)
        await put_tree(op, "", {"k": b"one", "d/k": b"two"})
        await plain.move("k", "to")
        await plain.move("d/", "e/")
        assert await tree_of(op, "") == {"to": b"one", "e/k": b"two"}
        with pytest.raises(AlreadyExists):
            await plain.copy("to", "e/k", if_not_exists=True)
        etag = (await op.stat("to")).etag
        await plain.copy("to", "new", if_match=etag, if_not_exists=True)
        with pytest.raises(ConditionNotMatch):
            await plain.copy("to", "new", if_match="another")
        with pytest.raises(ConditionNotMatch):
            await plain.delete("to", if_match="another")
        await plain.delete("to", if_match=etag)
        assert await tree_of(op, "") == {"new": b"one", "e/k": b"two"}


@pytest.mark.parametrize("goes", [True, False])
async def test_a_target_that_changes_while_it_is_compared_is_there_already(goes: bool) -> None:
    class Meanwhile(Layer):
        def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
            return MeanwhileAccessor(inner)

    class MeanwhileAccessor(WrappedAccessor):
        async def copy(self, request: CopyRequest) -> Metadata:
            try:
                return await self.inner.copy(request)
            finally:
                if goes:
                    await op.delete("to")

        async def read(self, request: ReadRequest, sink: Sink) -> ReadReply:
            await op.write("to", b"three")
            return await self.inner.read(request, sink)

    async with memory() as op:
        await put_tree(op, "", {"k": b"equal", "to": b"equal"})
        with pytest.raises(AlreadyExists):
            await op.layer(Meanwhile(), inside=CompleteLayer).move("k", "to", if_not_exists=True)
        assert await tree_of(op, "") == {"k": b"equal", **({} if goes else {"to": b"three"})}
