"""Copies from, to and within S3: which requests they take on moto, and that they work on rclone too."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

import aioprefetch as ap
from aioprefetch import Operator
from aioprefetch.errors import AlreadyExists, InvalidPath, NotFound
from aioprefetch.operator.options import UriOptions
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from tests.stores.gated_reader import MIB
from tests.stores.rclone_server import RcloneS3Server
from tests.unit.transfer.trees import TREE, files_of, memory, put_tree, tree_of

PART = 5 * MIB
LARGE = bytes(range(256)) * (23 * MIB // 256)  # Four parts and a half.


class Buckets:
    """Two buckets of a server of S3, by URL and as operators."""

    def __init__(self, server: Any, names: tuple[str, str]) -> None:
        self.server = server
        self.options: UriOptions = {
            "endpoint_url": server.endpoint_url,
            "access_key_id": server.access_key_id,
            "secret_access_key": server.secret_access_key,
            "region": "us-east-1",
            "part_bytes": PART,
        }
        self.names = names
        self.one, self.two = (Operator.from_uri(f"s3://{name}", **self.options) for name in names)

    def url(self, path: str, *, bucket: int = 0) -> str:
        return f"s3://{self.names[bucket]}/{path}"

    async def copy(self, source: Any, target: Any, **options: Any) -> ap.CopyReport:
        """Copy with the options on each side that is a URL of S3."""
        for name, side in (("src_options", source), ("dst_options", target)):
            if isinstance(side, str) and side.startswith("s3://"):
                options.setdefault(name, self.options)
        return await ap.copy(source, target, **options)


@asynccontextmanager
async def two_buckets(server: CountingS3Server | RcloneS3Server, name: Callable[[], str]) -> AsyncIterator[Buckets]:
    names = name(), name()
    for one in names:
        server.create_bucket(one)
    buckets = Buckets(server, names)
    async with buckets.one, buckets.two:
        yield buckets


@pytest.fixture
async def moto(s3_server: CountingS3Server, random_name: Callable[[], str]) -> AsyncIterator[Buckets]:
    async with two_buckets(s3_server, random_name) as buckets:
        yield buckets


@pytest.fixture
async def rclone(rclone_server: RcloneS3Server, random_name: Callable[[], str]) -> AsyncIterator[Buckets]:
    async with two_buckets(rclone_server, random_name) as buckets:
        yield buckets


@pytest.fixture(params=["moto", "rclone"])
def buckets(request: pytest.FixtureRequest) -> Buckets:
    found: Buckets = request.getfixturevalue(request.param)
    return found


def requests(moto: Buckets) -> list[str]:
    """The requests since the last reset: method, and what of an object or a bucket."""

    def kind(one: Any) -> str:
        query = parse_qs(one.query, keep_blank_values=True)
        for name in ("list-type", "uploads", "partNumber", "uploadId", "delete"):
            if name in query:
                return f"{one.method} {name}"
        return str(one.method)

    return [kind(one) for one in moto.server.requests]


async def test_a_tree_through_every_kind_of_place(buckets: Buckets, tmp_path: Path) -> None:
    """Files, two buckets, memory, and files again."""
    tree = {**TREE, "large": LARGE}
    tree.pop("b c/ü&+%20.txt")
    async with memory() as op:
        await put_tree(op, "x/", tree)
        await ap.copy((op, "x/"), tmp_path / "in")
        first = await buckets.copy(tmp_path / "in", buckets.url("p/"))
        assert first.failures == ()
        await buckets.copy(buckets.url("p/"), buckets.url("q/"))
        await buckets.copy(buckets.url("q/"), buckets.url("r/", bucket=1))
        await buckets.copy(buckets.url("r/", bucket=1), (op, "y/"))
        await buckets.copy(buckets.url("r/", bucket=1), tmp_path / "out")
        assert await tree_of(buckets.two, "r/") == await tree_of(op, "y/") == files_of(tmp_path / "out") == tree
        again = await buckets.copy(buckets.url("r/", bucket=1), tmp_path / "out")
    # The ETag that rclone gives a large object is the MD5 of all, and moto that of its parts: both are compared.
    assert (again.copied, again.skipped) == (0, len(tree))


async def test_a_copy_within_the_store_reads_nothing(moto: Buckets) -> None:
    """One listing and one request for each object; the second time two listings."""
    await put_tree(moto.one, "x/", TREE)
    moto.server.reset()
    report = await moto.copy(moto.url("x/"), moto.url("y/", bucket=1), skip_same=False)
    assert (report.copied, report.bytes) == (len(TREE), sum(map(len, TREE.values())))
    assert sorted(requests(moto)) == ["GET list-type", *["PUT"] * len(TREE)]
    assert moto.server.bytes_sent < 10_000  # The listing.
    assert await tree_of(moto.two, "y/") == TREE
    moto.server.reset()
    report = await moto.copy(moto.url("x/"), moto.url("y/", bucket=1), skip_same=True)
    assert report.skipped == len(TREE)
    assert requests(moto) == ["GET list-type", "GET list-type"]
    moto.server.reset()
    report = await moto.copy(moto.url("x/"), moto.url("y/", bucket=1))  # Proven by the ETags.
    assert report.skipped == len(TREE)
    assert requests(moto) == ["GET list-type", "GET list-type"]


async def test_one_object_within_the_store(moto: Buckets) -> None:
    await moto.one.write("k", b"bytes", content_type="text/x", user_metadata={"a": "b"})
    moto.server.reset()
    await moto.copy(moto.url("k"), moto.url("t", bucket=1))
    assert requests(moto) == ["HEAD", "HEAD", "PUT"]
    found = await moto.two.stat("t")
    assert (found.size, found.content_type, found.user_metadata) == (5, "text/x", {"a": "b"})


async def test_what_is_the_same_is_not_read(moto: Buckets, tmp_path: Path) -> None:
    """Down and up again; large objects by the digest of their parts."""
    await put_tree(moto.one, "x/", {**TREE, "large": LARGE})
    await moto.copy(moto.url("x/"), tmp_path)
    moto.server.reset()
    down = await moto.copy(moto.url("x/"), tmp_path)
    up = await moto.copy(tmp_path, moto.url("x/"))
    assert (down.skipped, up.skipped) == (len(TREE) + 1, len(TREE) + 1)
    assert requests(moto) == ["GET list-type", "GET list-type"]
    await moto.one.write("x/z", b"tsal")  # Of the same size, within a second.
    (tmp_path / "a.csv").write_bytes(b"tsrif")
    assert (await moto.copy(moto.url("x/"), tmp_path)).copied == 2
    assert (tmp_path / "z").read_bytes() == b"tsal"
    assert (tmp_path / "a.csv").read_bytes() == TREE["a.csv"]
    (tmp_path / "a.csv").write_bytes(b"tsrif")
    assert (await moto.copy(tmp_path, moto.url("x/"))).copied == 1
    assert await moto.one.read("x/a.csv") == b"tsrif"


async def test_a_small_object_is_one_get_and_one_put(moto: Buckets, tmp_path: Path) -> None:
    await put_tree(moto.one, "x/", TREE)
    moto.server.reset()
    async with memory() as op:
        await moto.copy(moto.url("x/"), tmp_path)
        objects = [name for name in requests(moto) if name != "GET list-type"]
        assert objects == ["GET"] * len(TREE)
        moto.server.reset()
        await moto.copy(tmp_path, moto.url("y/"))
        assert sorted(requests(moto)) == ["GET list-type", *["PUT"] * len(TREE)]
        assert await tree_of(moto.one, "y/") == TREE
        await moto.copy(moto.url("y/"), (op, "z/"))
        assert await tree_of(op, "z/") == TREE


async def test_a_large_object_goes_in_parts_both_ways(moto: Buckets, tmp_path: Path) -> None:
    async with memory(block_bytes=MIB) as op:
        await op.write("k", LARGE, content_type="text/x", user_metadata={"a": "b"})
        moto.server.reset()
        await moto.copy((op, "k"), moto.url("k"))
        assert sorted(requests(moto)) == ["POST uploadId", "POST uploads", *["PUT partNumber"] * 5]
        found = await moto.one.stat("k")
        assert (found.content_type, found.user_metadata) == ("text/x", {"a": "b"})
        options: UriOptions = {**moto.options, "block_bytes": MIB}
        moto.server.reset()
        await moto.copy(moto.url("k"), tmp_path / "f", src_options=options)
        assert (tmp_path / "f").read_bytes() == LARGE
        assert requests(moto)[0] == "HEAD"
        assert set(requests(moto)[1:]) == {"GET"}
        assert len(requests(moto)) > 10
        moto.server.reset()
        await moto.copy(moto.url("k"), (op, "back"), src_options=options)
        assert await op.read("back") == LARGE
        assert moto.server.bytes_sent == len(LARGE)


async def test_an_object_above_the_limit_of_one_copy_goes_in_parts(moto: Buckets) -> None:
    """Parts that the store copies; what describes the object goes along."""

    class Lowered(ap.WrappedAccessor):
        @property
        def capability(self) -> ap.Capability:
            known = self.inner.capability
            return ap.Capability(
                **{name: getattr(known, name) for name in known.__slots__}
                | {"copy_bytes_max": PART, "copy_part_bytes": PART}
            )

    class Limit(ap.Layer):
        def wrap(self, inner: Any, runtime: Any) -> Any:
            return Lowered(inner)

    op = moto.one.layer(Limit())
    await op.write("k", LARGE, content_type="text/x", cache_control="no-store", user_metadata={"a": "b"})
    moto.server.reset()
    await ap.copy((op, "k"), (op, "t"))
    assert sorted(requests(moto)) == ["HEAD", "HEAD", "HEAD", "POST uploadId", "POST uploads", *["PUT partNumber"] * 5]
    assert moto.server.bytes_sent < 10_000
    assert await op.read("t") == LARGE
    found = await op.stat("t")
    assert (found.content_type, found.cache_control, found.user_metadata) == ("text/x", "no-store", {"a": "b"})
    assert await op.abort_uploads() == 0


@checks("reliability:W16")
async def test_a_copy_that_must_not_replace_asks_the_store(moto: Buckets) -> None:
    await put_tree(moto.one, "x/", {"a": b"1", "empty": b""})
    await moto.copy(moto.url("x/"), moto.url("y/"), overwrite=False)
    assert await tree_of(moto.one, "y/") == {"a": b"1", "empty": b""}
    with pytest.raises(AlreadyExists):
        await moto.copy(moto.url("x/a"), moto.url("y/a"), overwrite=False)
    report = await moto.copy(moto.url("x/"), moto.url("y/"), overwrite=False)
    assert [type(one.error) for one in report.failures] == [AlreadyExists, AlreadyExists]
    assert await moto.one.abort_uploads() == 0


async def test_other_credentials_are_another_store(moto: Buckets) -> None:
    """The store would copy with the rights of one side alone: the bytes come here."""
    await moto.one.write("k", b"bytes")
    moto.server.reset()
    other: UriOptions = {**moto.options, "access_key_id": "other", "secret_access_key": "other"}
    await ap.copy(moto.url("k"), moto.url("t", bucket=1), src_options=moto.options, dst_options=other)
    assert requests(moto) == ["HEAD", "HEAD", "GET", "PUT"]
    assert await moto.two.read("t") == b"bytes"


async def test_a_prefix_of_an_operator_is_its_root(moto: Buckets) -> None:
    await put_tree(moto.one, "deep/x/", TREE)
    rooted = Operator.from_uri(f"s3://{moto.names[0]}/deep", **moto.options)
    target = Operator.from_uri(f"s3://{moto.names[1]}/root", **moto.options)
    async with rooted, target:
        moto.server.reset()
        await ap.copy((rooted, "x/"), (target, "y/"))
        assert "GET" not in requests(moto)
        assert await tree_of(moto.two, "root/y/") == TREE
        with pytest.raises(ap.InvalidArgument, match="lies inside"):
            await ap.copy((rooted, "x/"), (moto.one, "deep/x/y/"))


async def test_keys_that_no_file_can_have(moto: Buckets, tmp_path: Path) -> None:
    """Each is a failure by its name; objects of directories are not copied."""
    await put_tree(moto.one, "x/", {"a": b"right", "b//c": b"1", "/d": b"2"})
    await moto.one.create_dir("x/dir/")
    report = await moto.copy(moto.url("x/"), tmp_path)
    assert {failure.path: type(failure.error) for failure in report.failures} == {
        "x//d": InvalidPath,
        "x/b//c": InvalidPath,
    }
    assert files_of(tmp_path) == {"a": b"right"}


async def test_what_is_missing_is_said(moto: Buckets, tmp_path: Path) -> None:
    for path, error in (("k", NotFound), ("x/", NotFound), ("x/*", NotFound)):
        with pytest.raises(error):
            await moto.copy(moto.url(path), tmp_path)
    with pytest.raises(NotFound, match="bucket"):
        await ap.copy(f"s3://{moto.names[0]}-no/x/", tmp_path, src_options=moto.options)
    await moto.one.write("x/y", b"1")
    with pytest.raises(ap.IsADirectory):
        await moto.copy(moto.url("x"), tmp_path)
    assert os.listdir(tmp_path) == []


async def test_a_bucket_that_never_had_an_upload_has_none_to_abort(rclone: Buckets) -> None:
    assert await rclone.one.abort_uploads() == 0


def test_without_a_loop(moto: Buckets, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"bytes")
    report = ap.sync.copy(tmp_path, moto.url("x/"), dst_options=moto.options)
    assert report.copied == 1
    ap.sync.copy(moto.url("x/f"), f"{tmp_path}/g", src_options=moto.options)
    assert (tmp_path / "g").read_bytes() == b"bytes"


async def test_a_directory_is_moved_by_the_store(moto: Buckets) -> None:
    """Its bytes stay there, and markers of directories go along."""
    await put_tree(moto.one, "x/", TREE)
    await moto.one.create_dir("x/marked/")
    before = moto.one.statistics
    assert (await moto.one.move("x/", "y/")).size == sum(map(len, TREE.values()))
    done = moto.one.statistics
    assert done["action_http_get_request"] == before["action_http_get_request"]
    assert await tree_of(moto.one, "y/") == TREE
    assert [entry.path async for entry in moto.one.list("x/", recursive=True)] == []
    assert not await moto.one.exists("x/")
    assert await moto.one.exists("y/marked/")
