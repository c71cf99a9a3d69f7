"""The memory service: named and private stores, roots, versions, conditions."""

import asyncio
import pickle

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, ConditionNotMatch, NotFound, Unsupported
from aioprefetch.services.memory import Memory
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, DeleteRequest, RenameRequest, WriteRequest


async def test_a_name_is_one_store_and_no_name_is_a_private_one() -> None:
    first, second = Operator(Memory("shared-name")), Operator.from_uri("memory://shared-name")
    await first.write("k", b"1")
    assert await second.read("k") == b"1"
    private, other = Operator(Memory()), Operator(Memory())
    await private.write("k", b"2")
    with pytest.raises(NotFound):
        await other.read("k")
    assert await private.layer(ap.layers.RetryLayer()).read("k") == b"2"
    assert private.info != other.info
    for operator in (first, second, private, other):
        await operator.aclose()


async def test_a_root_is_a_hidden_prefix() -> None:
    whole, rooted = Operator.from_uri("memory://rooted"), Operator.from_uri("memory://rooted/a/b/")
    await rooted.write("x/y", b"1")
    await rooted.write("z", b"2")
    await whole.write("a/bz", b"beside")
    assert await whole.read("a/b/x/y") == b"1"
    assert [entry.path async for entry in rooted.list()] == ["x/", "z"]
    assert [entry.path async for entry in rooted.list(recursive=True, start_after="x/y")] == ["z"]
    assert (await rooted.stat("z")).path == "z"
    assert (await rooted.copy("z", "w")).path == "w"
    await rooted.delete("z")
    assert [entry.path async for entry in whole.list(recursive=True)] == ["a/b/w", "a/b/x/y", "a/bz"]
    assert rooted.info.url == "memory://rooted/a/b"
    for operator in (whole, rooted):
        await operator.aclose()


async def test_a_write_is_a_new_version_and_a_read_sees_one() -> None:
    memory = Memory()
    operator = Operator(memory)
    first = await operator.write("k", bytearray(b"one"), user_metadata={"a": "b"}, content_type="x/y")
    view = await operator.view("k")
    second = await operator.write("k", b"other")
    assert first.etag != second.etag
    assert bytes(view) == b"one"
    with pytest.raises(ConditionNotMatch):
        await operator.write("k", b"3", if_match=first.etag)
    with pytest.raises(ConditionNotMatch):
        await operator.write("none", b"3", if_match="*")
    assert (await operator.write("k", b"3", if_match=second.etag)).size == 1
    with pytest.raises(AlreadyExists):
        await operator.write("k", b"4", if_not_exists=True)
    await operator.write("new", b"4", if_not_exists=True)
    assert dict(first.user_metadata) == {"a": "b"}
    assert (await operator.stat("k")).last_modified is not None
    await operator.aclose()


async def test_what_was_written_is_not_what_the_caller_changes_later() -> None:
    operator = Operator(Memory())
    data = bytearray(b"abc")
    await operator.write("k", data)
    data[:] = b"xyz"
    assert await operator.read("k") == b"abc"
    await operator.aclose()


def test_a_named_store_pickles_as_its_name() -> None:
    memory = Memory("by-name", "root")
    memory.store.put(WriteRequest(path="k"), b"not in the pickle")
    data = pickle.dumps(memory)
    assert b"not in the pickle" not in data
    assert pickle.loads(data).store is memory.store
    assert pickle.loads(data) == memory


async def test_a_loop_of_reads_lets_other_tasks_run() -> None:
    async with Operator(Memory()) as operator:
        await operator.write("k", bytes(10))

        async def read_often() -> None:
            for _ in range(100):
                await operator.read("k")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read_often(), 0.0)


async def test_one_of_many_copies_finds_no_target() -> None:
    async with Operator(Memory()) as operator:
        for number in range(10):
            await operator.write(f"{number}", b"%d" % number)
        copies = (CopyRequest(path=f"{number}", target="one", if_not_exists=True) for number in range(10))
        outcomes = await asyncio.gather(*map(operator.accessor().copy, copies), return_exceptions=True)
        assert [isinstance(outcome, AlreadyExists) for outcome in outcomes].count(True) == 9


@checks("reliability:W17")
async def test_a_changed_object_is_not_deleted_and_the_others_are() -> None:
    async with Operator(Memory()) as operator:
        etags = {path: (await operator.write(path, b"x")).etag or "" for path in ("a", "b", "c", "d")}
        del etags["d"]
        await operator.write("b", b"newer")
        request = DeleteRequest(path="a", paths=("a", "b", "gone", "c", "d"), if_match={**etags, "gone": "x"})
        with pytest.raises(ConditionNotMatch) as caught:
            await operator.accessor().delete(request)
        assert (caught.value.operation, caught.value.path) == ("delete", "b")
        assert caught.value.context["failures"] == {"b": "ConditionNotMatch"}
        assert [entry.path async for entry in operator.list()] == ["b"]


async def test_there_is_no_rename() -> None:
    async with Operator(Memory()) as operator:
        await operator.write("a", b"x")
        with pytest.raises(Unsupported):
            await operator.accessor().rename(RenameRequest(path="a", target="b"))
