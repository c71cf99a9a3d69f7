"""A source that is there under its very name is no pattern; ``glob=`` always is one."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import InvalidArgument, InvalidPath, IsADirectory, NotFound, PermissionDenied
from aioprefetch.testing import CountingS3Server, FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from tests.unit.transfer.trees import Tree, memory, put_tree, tree_of

NAMES: Tree = {
    "data[1].csv": b"it",
    "data1.csv": b"other",
    "d[1]/x": b"in it",
    "d1/x": b"beside",
    "q?": b"q",
    "qq": b"2",
}


@pytest.fixture(params=["memory", "file", "s3"])
async def op(
    request: pytest.FixtureRequest, tmp_path: Path, s3_server: CountingS3Server, random_name: Callable[[], str]
) -> AsyncIterator[Operator]:
    """A store with the names."""
    if request.param == "s3":
        s3_server.create_bucket(name := random_name())
        keys: Any = {"access_key_id": s3_server.access_key_id, "secret_access_key": s3_server.secret_access_key}
        made = Operator(ap.services.S3(bucket=name, endpoint_url=s3_server.endpoint_url, region="us-east-1", **keys))
    else:
        made = memory() if request.param == "memory" else Operator(ap.services.Fs(tmp_path))
    async with made as op:
        await put_tree(op, "", NAMES)
        yield op


@checks("reliability:W26")
async def test_the_object_or_the_directory_of_the_name_is_copied(op: Operator) -> None:
    async with memory() as to:
        await ap.copy((op, "data[1].csv"), (to, "a/"))
        await ap.copy((op, "q?"), (to, "b"))
        await ap.copy((op, "d[1]/"), (to, "c"))
        assert await tree_of(to, "") == {"a/data[1].csv": b"it", "b": b"q", "c/x": b"in it"}


async def test_a_directory_of_the_name_without_its_slash_is_no_pattern(op: Operator) -> None:
    """As of a plain name: files know directories, and stores say that there is one."""
    async with memory() as to:
        if op.info.scheme == "file":
            await ap.copy((op, "d[1]"), (to, ""))
            assert await tree_of(to, "") == {"x": b"in it"}
            return
        with pytest.raises(IsADirectory, match=r"d\[1\]/ copies what is below it"):
            await ap.copy((op, "d[1]"), (to, ""))
        assert await tree_of(to, "") == {}


async def test_without_it_the_name_is_a_pattern(op: Operator) -> None:
    await op.delete(["data[1].csv", "q?"])
    async with memory() as to:
        await ap.copy((op, "data[1].csv"), (to, "a/"))
        await ap.copy((op, "q?"), (to, "a/"))
        assert await tree_of(to, "") == {"a/data1.csv": b"other", "a/qq": b"2"}
        for name in ("data[1].csv", "q?"):
            with pytest.raises(NotFound):
                await ap.copy((op, name), (to, "a/"), literal=True)


async def test_a_glob_is_always_a_pattern(op: Operator) -> None:
    async with memory() as to:
        await ap.copy((op, ""), (to, ""), glob="data[1].csv")
        await ap.copy((op, "d[1]/"), (to, ""), glob="?")
        assert await tree_of(to, "") == {"data1.csv": b"other", "x": b"in it"}
        with pytest.raises(InvalidArgument, match="ends with /"):
            await ap.copy((op, "d[1]"), (to, ""), glob="?")
        await ap.copy((op, "d[1]"), (to, "literal"), glob="?", literal=True)
        assert await to.read("literal/x") == b"in it"
        listed = await op.list("", glob="data[1].csv").collect()
        assert [entry.path for entry in listed] == ["data1.csv"]


@checks("reliability:W26")
async def test_a_name_that_is_no_pattern_may_still_be_there() -> None:
    async with memory() as op, memory() as to:
        await put_tree(op, "", {"a[": b"1"})
        await ap.copy((op, "a["), (to, "b"))
        assert await to.read("b") == b"1"
        with pytest.raises(InvalidArgument, match=r"without its \]"):
            await ap.copy((op, "b["), (to, "b"))


@checks("reliability:W32")
@pytest.mark.parametrize("path", ["data[1].csv", "data[1].csv/"])
async def test_a_refusal_is_no_absence(path: str) -> None:
    """Of the object and of the directory: what may not be looked at may be there."""
    async with memory() as plain, memory() as to:
        await put_tree(plain, "", {"data1.csv": b"other"})
        refuse = FaultLayer((Injection(path=path, error=PermissionDenied, times=None),))
        op = plain.layer(refuse, inside=ap.layers.ErrorContextLayer)
        with pytest.raises(PermissionDenied):
            await ap.copy((op, "data[1].csv"), (to, "a/"))
        assert await tree_of(to, "") == {}


async def test_a_link_that_leads_nowhere_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "data[1].csv").symlink_to("nowhere")
    (tmp_path / "data1.csv").write_bytes(b"other")
    for follows in (False, True):
        async with Operator.from_uri(tmp_path, follow_symlinks=follows) as op, memory() as to:
            places: tuple[Any, ...] = ((op, "data[1].csv"), tmp_path / "data[1].csv")
            for place in places:
                with pytest.raises((InvalidPath, NotFound)):
                    await ap.copy(place, (to, "a/"))
            assert await tree_of(to, "") == {}


def test_without_a_loop(tmp_path: Path) -> None:
    (tmp_path / "data1.csv").write_bytes(b"other")
    with pytest.raises(NotFound):
        ap.sync.copy(tmp_path / "data[1].csv", tmp_path / "out/", literal=True)
    ap.sync.copy(f"{tmp_path}/data[1].csv", f"{tmp_path}/out/")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["data1.csv"]


async def test_a_path_that_is_an_object_is_no_pattern(tmp_path: Path) -> None:
    """A ``pathlib.Path`` names a file of this machine, there or not; the same as text is a pattern where it is not."""
    (tmp_path / "data1.csv").write_bytes(b"other")
    async with memory() as op:
        with pytest.raises(NotFound):
            await ap.copy(tmp_path / "data[1].csv", (op, "a/"))
        assert await tree_of(op, "a/") == {}
        await ap.copy(f"{tmp_path}/data[1].csv", (op, "b/"))
        assert await tree_of(op, "b/") == {"data1.csv": b"other"}
