"""Globs against pathlib's idea of them, and listings that are lazy, end early and never go round in circles."""

from collections.abc import AsyncIterator
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioprefetch import Operator
from aioprefetch.errors import InvalidArgument, InvalidType, ProtocolError
from aioprefetch.layers import WrappedAccessor
from aioprefetch.plan.patterns import compile_glob
from aioprefetch.runtime.options import RuntimeOptions
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.memory import Memory
from aioprefetch.values import ListPage, ListRequest, WriteRequest
from aioprefetch.verbs.listing import Lister
from tests.profile import each_of
from tests.stores.faulty_bucket import FaultyBucket


def matches(glob: str, path: str) -> bool:
    """Whether a glob takes a path."""
    return compile_glob(glob).fullmatch(path) is not None


@each_of(
    ("glob", "yes", "no"),
    [
        ("*.txt", ["a.txt", ".txt"], ["d/a.txt", "a.txtx", "a_txt"]),
        ("**/*.txt", ["a.txt", "d/a.txt", "d/e/a.txt"], ["a.csv"]),
        ("d/**", ["d/a", "d/e/f", "d/"], ["d", "e/d/a"]),
        ("d/**/x", ["d/x", "d/a/x", "d/a/b/x"], ["dx", "d/ax"]),
        ("a?c", ["abc", "a.c"], ["ac", "a/c", "abbc"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "-x"]),
        ("[!a-c]x", ["dx", "-x"], ["ax", "/x"]),
        ("[]]x", ["]x"], ["x", "[x"]),
        ("[!]]x", ["ax"], ["]x"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("{a}-{", ["{a}-{"], ["a-{"]),
        ("[{]a,b}", ["{a,b}"], ["a", "b"]),
        ("[[]", ["["], ["]"]),
        ("[a&&b]", ["a", "&", "b"], ["c"]),
        ("[\\d]", ["\\", "d"], ["5"]),
        ("a+b.(c)", ["a+b.(c)"], ["aab.(c)"]),
        ("", [""], ["a"]),
        ("a\nb*", ["a\nbc"], ["a b"]),
    ],
)
def test_globs(glob: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not matches(glob, path)] == []
    assert [path for path in no if matches(glob, path)] == []


@given(st.text("ab*?[]!^-/.\\&|~{}()+", max_size=10), st.text("ab/.-[]", max_size=8))
def test_every_glob_is_understood_or_refused_by_name(glob: str, path: str) -> None:
    message = repr(glob)
    try:
        compile_glob(glob).fullmatch(path)
    except InvalidArgument as error:
        message = str(error)
    assert repr(glob) in message


@given(st.text("ab*?.", min_size=1, max_size=6), st.text("ab.", min_size=1, max_size=6))
def test_within_one_segment_it_is_what_pathlib_says(glob: str, name: str) -> None:
    if "**" not in glob and name not in (".", "..") and glob not in (".", ".."):
        assert matches(glob, name) == PurePosixPath(name).match(glob)


@each_of("glob", ["[a", "[!]", "[]", "d/[a-z/x", "*[", "{a,b}", "d/{a,b*}/x", "{,x}", "[z-a]"])
def test_what_is_no_pattern_is_refused_before_anything_is_listed(glob: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be understood") as caught:
        Operator(Memory()).list("d/", glob=glob)
    assert repr(glob) in caught.value.message
    assert caught.value.operation == "list"


@each_of("glob", [5, b"*", ["*"]])
def test_no_glob(glob: object) -> None:
    with pytest.raises(InvalidType):
        compile_glob(glob)  # type: ignore[arg-type]


@pytest.fixture
async def op() -> AsyncIterator[Operator]:
    """2,500 objects in three pages."""
    memory = Memory()
    for number in range(2500):
        memory.store.put(WriteRequest(path=f"d/{number:04}.{'txt' if number % 2 else 'csv'}"), b"")
    operator = Operator(memory)
    yield operator
    await operator.aclose()


async def test_pages_are_asked_for_when_they_are_needed(op: Operator) -> None:
    listing = op.list("d/")
    assert op.statistics["object_list_request"] == 0
    first = [await anext(listing) for _ in range(1000)]
    assert op.statistics["object_list_request"] == 1
    rest = [entry async for entry in listing]
    assert op.statistics["object_list_request"] == 3
    assert len({entry.path for entry in first + rest}) == 2500
    with pytest.raises(StopAsyncIteration):
        await anext(listing)


async def test_leaving_early_asks_for_no_more(op: Operator) -> None:
    async with op.list("d/") as listing:
        assert (await anext(listing)).path == "d/0000.csv"
    with pytest.raises(StopAsyncIteration):
        await anext(listing)
    assert op.statistics["object_list_request"] == 1


async def test_a_glob_filters_whole_paths(op: Operator) -> None:
    assert [entry.path async for entry in op.list("d/", glob="d/000?.txt")] == [
        f"d/000{n}.txt" for n in range(1, 10, 2)
    ]
    assert [entry.path async for entry in op.list("d/", glob="*.txt")] == []
    assert len([entry async for entry in op.list(recursive=True, glob="**/*.csv")]) == 1250
    assert [entry.path async for entry in op.list(glob="d/")] == ["d/"]


async def test_nothing_there_is_an_empty_listing(op: Operator) -> None:
    assert [entry async for entry in op.list("none/")] == []


@pytest.mark.parametrize("prefix", ["d/*.csv", "d/000?", "d/[0-9]", "**"])
async def test_a_pattern_in_the_prefix_is_no_silent_empty_listing(prefix: str, op: Operator) -> None:
    listing = op.list(prefix)
    with pytest.raises(InvalidArgument, match="glob=") as caught:
        await anext(listing)
    assert (caught.value.operation, caught.value.path) == ("list", prefix)
    with pytest.raises(StopAsyncIteration):
        await anext(listing)
    assert [entry async for entry in op.list(prefix, glob="**")] == []
    assert [entry async for entry in op.list(prefix, start_after="d/")] == []


async def test_a_url_as_prefix_is_no_silent_empty_listing(op: Operator) -> None:
    url = f"{op.info.url}/d/"
    for prefix, meant in ((url, ", so this may be 'd/'"), ("s3://bucket/d/", "")):
        listing = op.list(prefix)
        with pytest.raises(InvalidArgument) as caught:
            await anext(listing)
        assert caught.value.message.endswith(f"paths are relative to {op.info.url}, and this one is a URL{meant}")
        assert (caught.value.operation, caught.value.path) == ("list", prefix)
        with pytest.raises(StopAsyncIteration):
            await anext(listing)
        assert [entry async for entry in op.list(prefix, glob="**")] == []
    await op.write("s3://bucket/d/k", b"")
    assert [entry.path async for entry in op.list("s3://bucket/d/")] == ["s3://bucket/d/k"]
    assert [entry async for entry in op.list("no scheme://d/")] == []


async def test_keys_may_hold_what_a_pattern_does(op: Operator) -> None:
    for key in ("a*b/x", "a[b/x", "a?b/x"):
        await op.write(key, b"")
        assert [entry.path async for entry in op.list(key[:2])] == [key[:4]]
        assert [entry.path async for entry in op.list(key[:4])] == [key]
        listing = op.list(key[:4])
        await anext(listing)
        with pytest.raises(StopAsyncIteration):
            await anext(listing)
        await op.delete_all(key[:4])
        assert not await op.exists(key)


@pytest.mark.parametrize("prefix", ["a[b/", "a*/", "a?/", "a[b]/"])
async def test_deleting_what_is_not_there_is_no_error_whatever_its_name(prefix: str) -> None:
    """So that a delete whose response was lost can be repeated; and nothing but the name itself is meant."""
    async with Operator(Memory()) as operator:
        await operator.delete_all(prefix)
        await operator.write("ab/x", b"")
        await operator.write(f"{prefix}x", b"")
        for _ in range(2):
            await operator.delete_all(prefix)
            assert [entry.path async for entry in operator.list(recursive=True)] == ["ab/x"]


async def test_a_directory_that_no_key_stands_for_is_not_deleted() -> None:
    """Some servers of S3 refuse keys that end with a slash; the marker of another directory goes with it."""
    async with FaultyBucket() as bucket, bucket.operator() as op:
        for key in ("d/a", "d/b/c", "marked/", "marked/a"):
            bucket.put(key, b"")
        bucket.calls.clear()
        await op.delete_all("d/")
        assert not any(call.key == "d/" or b"<Key>d/</Key>" in call.body for call in bucket.calls)
        await op.delete_all("marked/")
        assert bucket.objects == {}


async def test_a_store_that_goes_round_in_circles_is_stopped() -> None:
    class Circle(WrappedAccessor):
        async def list_page(self, request: ListRequest) -> ListPage:
            return ListPage(entries=(), next_token="again")

    runtime = Runtime(RuntimeOptions())
    inner = Memory().build(runtime)
    with pytest.raises(ProtocolError) as caught:
        await anext(Lister(lambda: Circle(inner), lambda: runtime, ListRequest(path="d/"), None))
    assert (caught.value.operation, caught.value.path) == ("list", "d/")


async def test_a_listing_is_collected_into_a_list() -> None:
    """What is left of it; then it is over."""
    async with Operator.from_uri("memory://") as operator:
        for name in ("d/a", "d/b", "d/c", "e"):
            await operator.write(name, b"")
        entries = await operator.list("d/").collect()
        assert [entry.path for entry in entries] == ["d/a", "d/b", "d/c"]
        listing = operator.list("d/", glob="**")
        assert (await anext(listing)).path == "d/a"
        assert [entry.path for entry in await listing.collect()] == ["d/b", "d/c"]
        assert await listing.collect() == []
        assert await operator.list("nothing/").collect() == []


async def test_a_listing_that_fails_is_collected_as_an_error() -> None:
    """And the listing is over."""
    async with Operator.from_uri("memory://") as operator:
        listing = operator.list("s3://bucket/")
        with pytest.raises(InvalidArgument, match="is a URL"):
            await listing.collect()
        assert await listing.collect() == []
