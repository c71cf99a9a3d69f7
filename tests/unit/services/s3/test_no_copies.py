"""Stores without CopyObject or UploadPartCopy: the bytes come here, and go there again."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, ObjectChanged, PermissionDenied, Unavailable, Unsupported
from aioprefetch.values import CopyRequest
from tests.profile import few_rows
from tests.stores.key_server import PART, Asked, Bent, KeyServer, Said, error

REFUSALS = {
    "501": error(501, "NotImplemented"),
    "bare 501": Said(501),
    "405": error(405, "MethodNotAllowed"),
    "bare 405": Said(405),
}
LARGE = bytes(range(256)) * (80 << 10)  # 20 MiB


async def copy(op: Operator) -> None:
    await op.copy("d/a", "d/b")


async def move(op: Operator) -> None:
    await op.move("d/a", "d/b")


async def copy_directory(op: Operator) -> None:
    await ap.copy((op, "d/"), (op, "e/"))


VERBS: dict[str, Callable[[Operator], Awaitable[None]]] = {"copy": copy, "move": move, "ap.copy": copy_directory}


@pytest.mark.parametrize(("length", "verb", "refusal"), few_rows(product([0, 3, len(LARGE)], VERBS, REFUSALS), 5))
async def test_the_bytes_come_here(length: int, verb: str, refusal: str) -> None:
    """All of them arrive, and a move deletes its source after that."""
    said, data = REFUSALS[refusal], LARGE if length == len(LARGE) else LARGE[:length]
    if verb == "move" and data is LARGE:
        return  # The server gives equal bytes one ETag, so its source looks overwritten.
    async with KeyServer({"d/a": data}, Bent("copy", said, times=9)) as server, server.operator() as op:
        await VERBS[verb](op)
        target = "e/a" if verb == "ap.copy" else "d/b"
        assert server.objects[target] == data
        assert ("d/a" in server.objects) == (verb != "move")
        assert server.verbs.count("copy") == 1
        assert not server.uploads


async def test_the_refusal_is_remembered() -> None:
    """For all operators of the recipe on this loop."""
    bent = Bent("copy", error(501, "NotImplemented"), times=9)
    async with KeyServer({"a": b"one"}, bent) as server, server.operator() as op:
        for target in "bcd":
            await op.copy("a", target)
        assert server.verbs.count("copy") == 1
        with pytest.raises(Unsupported) as refused:
            await op.accessor().copy(CopyRequest(path="a", target="e"))
        assert (refused.value.operation, refused.value.path) == ("copy", "a")


async def test_a_copy_that_must_replace_nothing_keeps_its_condition() -> None:
    """It goes in parts at a store of one's own, which may lack copies of parts."""
    bent = Bent("copypart", Said(501), times=9)
    async with KeyServer({"a": b"one", "b": b"two"}, bent) as server, server.operator() as op:
        with pytest.raises(AlreadyExists):
            await op.copy("a", "b", if_not_exists=True)
        await op.copy("a", "c", if_not_exists=True)
        assert server.objects == {"a": b"one", "b": b"two", "c": b"one"}
        assert not server.uploads


async def test_other_refusals_are_those_of_the_copy() -> None:
    bent = (Bent("copy", error(403, "AccessDenied"), times=9), Bent("copypart", error(403, "AccessDenied"), times=9))
    async with KeyServer({"a": b"one"}, *bent) as server, server.operator() as op:
        for if_not_exists in (False, True):
            with pytest.raises(PermissionDenied):
                await op.copy("a", "b", if_not_exists=if_not_exists)
        assert "get" not in server.verbs
        assert server.objects == {"a": b"one"}


@pytest.mark.parametrize("moment", ["before", "between"])
async def test_versions_are_not_mixed(moment: str) -> None:
    def overwritten(asked: Asked, right: Said) -> Said:
        server.put("a", LARGE[::-1])
        return server.done(asked)

    def first(asked: Asked, right: Said) -> Said:
        return server.done(asked)

    gets = [Bent("get", overwritten)] if moment == "before" else [Bent("get", first), Bent("get", overwritten)]
    async with KeyServer({"a": LARGE}, Bent("copy", Said(501), times=9), *gets) as server, server.operator() as op:
        with pytest.raises(ObjectChanged):
            await op.copy("a", "b")
        assert server.objects.keys() == {"a"}
        assert not server.uploads


async def test_a_copy_that_fails_or_is_cancelled_leaves_nothing() -> None:
    bent = (Bent("copy", Said(501), times=9), Bent("part", error(500, "InternalError"), times=99))
    async with KeyServer({"a": LARGE}, *bent) as server, server.operator() as op:
        with pytest.raises(Unavailable):
            await op.copy("a", "b")
        assert (list(server.objects), server.uploads) == (["a"], {})
        server.bent = []
        copying = asyncio.create_task(op.copy("a", "b"))
        while "part" not in server.verbs[-3:]:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert (list(server.objects), server.uploads) == (["a"], {})


async def test_progress_and_conditions_of_the_source() -> None:
    moved: list[Any] = []
    async with KeyServer({"a": LARGE}, Bent("copy", Said(501), times=9)) as server, server.operator() as op:
        etag = (await op.stat("a")).etag
        await op.copy("a", "b", if_match=etag, on_progress=moved.append)
        assert server.objects["b"] == LARGE
        assert len(LARGE) > 2 * PART
        assert moved
