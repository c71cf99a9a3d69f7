"""The verbs beyond fsspec's own suites: slices, listings that are kept, what a path is, callbacks, deletes."""

import asyncio
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.callbacks import Callback
from fsspec.generic import GenericFileSystem

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor, Layer, WrappedAccessor
from aioprefetch.fsspec import AioPrefetchFileSystem, HttpFileSystem, LocalFileSystem, S3FileSystem
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.testing import FaultLayer, FaultServer, Injection, content
from aioprefetch.values import Request, WriteRequest
from tests.stores.stacks import MotoBucket
from tests.stores.verb_layer import Forward, VerbLayer
from tests.unit.fsspec.s3_words import Bucket

DATA = content(10_000)


class TestSlices:
    @pytest.mark.parametrize(
        ("start", "end"),
        [
            (None, None),
            (3, 9),
            (-5, None),
            (None, -3),
            (2, -3),
            (-9, -3),
            (9_990, 20_000),
            (20_000, 20_010),
            (7, 3),
            (0, 0),
        ],
    )
    def test_are_those_of_bytes(self, fs: AioPrefetchFileSystem, start: int | None, end: int | None) -> None:
        assert fs.cat_file("a", start, end) == DATA[start:end]
        assert fs.cat_ranges(["a", "a"], [start, 1], [end, 2]) == [DATA[start:end], DATA[1:2]]

    def test_head_and_tail_are_ranges(self, bucket: Bucket) -> None:
        path = f"{bucket.name}/top"
        assert (bucket.fs.head(path, 10), bucket.fs.tail(path, 10)) == (DATA[:10], DATA[-10:])
        assert [request.range for request in bucket.server.requests] == ["bytes=0-9", "bytes=-10"]

    def test_of_one_object_share_requests(self, bucket: Bucket) -> None:
        path = f"{bucket.name}/top"
        starts = list(range(0, 9_000, 100))
        found = bucket.fs.cat_ranges([path] * len(starts), starts, [start + 10 for start in starts])
        assert found == [DATA[start:][:10] for start in starts]
        assert bucket.requests() == ["GET 206"]
        bucket.fs.cat_ranges([path] * 3, [0, 100, 5_000], [10, 110, 5_010], max_gap=200)
        assert bucket.requests() == ["GET 206"] * 2

    @pytest.mark.parametrize("bounds", [(-9, -3), (2, -3), (0, 20_000)])
    def test_are_of_one_version(self, bounds: tuple[int, int]) -> None:
        """The object is overwritten after each request, by one of another size; a slice is of one of them."""
        sizes = iter(range(2_000, 20_000, 1_000))
        versions = {size: content(size, version=size) for size in range(1_000, 20_000, 1_000)}

        class Overwriting(WrappedAccessor):
            async def around(self, request: Request, forward: Forward) -> Any:
                try:
                    return await forward(request)
                finally:
                    await self.inner.write(WriteRequest(path="k"), versions[next(sizes)])

        class OverwritingLayer(Layer):
            def wrap(self, inner: Accessor, runtime: Runtime) -> Accessor:
                return Overwriting(inner)

        memory = ap.services.Memory()
        memory.store.put(WriteRequest(path="k"), versions[1_000])
        fs = AioPrefetchFileSystem(ap.Operator(memory).layer(OverwritingLayer(), inside=ap.layers.RetryLayer))
        expected = [data[slice(*bounds)] for data in versions.values()]
        assert fs.cat_file("k", *bounds) in expected
        first, second = fs.cat_ranges(["k", "k"], [bounds[0], 1], [bounds[1], 5])
        assert (first, second) in [(data[slice(*bounds)], data[1:5]) for data in versions.values()]
        fs.close()

    def test_do_not_believe_a_listing_that_is_kept(self, fs: AioPrefetchFileSystem) -> None:
        fs.ls("", detail=True)
        asyncio.run_coroutine_threadsafe(fs.place_of("a").operator.write("a", DATA[:100]), fs.loop).result()
        assert fs.cat_file("a", -20, -10) == DATA[80:90]

    def test_an_error_stands_in_the_place_of_its_range(self, fs: AioPrefetchFileSystem) -> None:
        first, second = fs.cat_ranges(["nothing", "a"], 0, 3)
        assert isinstance(first, FileNotFoundError)
        assert second == DATA[:3]
        with pytest.raises(FileNotFoundError):
            fs.cat_ranges(["nothing", "a"], 0, 3, on_error="raise")
        with pytest.raises(ValueError, match="differ in length"):
            fs.cat_ranges(["a"], [0, 1], 3)


class TestListings:
    def test_names_and_kinds(self, fs: AioPrefetchFileSystem) -> None:
        assert fs.ls("", detail=False) == ["a", "d", "x[1]"]
        assert {info["name"]: info["type"] for info in fs.ls("d")} == {"d/b": "file", "d/e": "directory"}
        assert fs.ls("a", detail=False) == ["a"]
        assert fs.find("d", withdirs=True) == ["d", "d/b", "d/e", "d/e/c", "d/e/f", "d/e/f/g"]
        assert fs.find("d", maxdepth=1) == ["d/b"]
        assert fs.find("a") == ["a"]
        assert fs.find("nothing") == []
        assert fs.glob("d/**") == ["d", "d/b", "d/e", "d/e/c", "d/e/f", "d/e/f/g"]
        assert fs.glob("d/?") == ["d/b", "d/e"]
        assert fs.du("d") == 5
        assert list(fs.walk("d", maxdepth=1)) == [("d", ["e"], ["b"])]
        with pytest.raises(IsADirectoryError):
            fs.modified("d")
        with pytest.raises(FileNotFoundError):
            fs.ls("nothing")

    def test_info_has_what_tells_versions_apart(self, fs: AioPrefetchFileSystem) -> None:
        info = fs.info("a")
        assert (info["name"], info["size"], info["type"]) == ("a", len(DATA), "file")
        assert info["ETag"].strip('"') == ap.sync.run(fs.place_of("a").operator.stat("a")).etag
        assert fs.modified("a") == fs.created("a") == info["LastModified"]
        before = fs.ukey("a"), fs.checksum("a")
        fs.pipe("a", b"another")
        assert before[0] != fs.ukey("a")
        assert before[1] != fs.checksum("a")

    def test_are_believed_until_something_is_written(self, bucket: Bucket) -> None:
        fs, name = bucket.fs, bucket.name
        assert fs.find(name) == [f"{name}/d/a", f"{name}/d/b", f"{name}/top"]
        assert bucket.requests() == ["GET 200"]
        assert fs.info(f"{name}/d/a")["size"] == len(DATA)
        assert fs.isdir(f"{name}/d")
        assert fs.ls(f"{name}/d", detail=False) == [f"{name}/d/a", f"{name}/d/b"]
        assert not fs.exists(f"{name}/d/nothing")
        assert bucket.requests() == []
        fs.pipe(f"{name}/d/c", b"")
        assert fs.exists(f"{name}/d/c")
        assert fs.ls(f"{name}/d", detail=False) == [f"{name}/d/a", f"{name}/d/b", f"{name}/d/c"]
        assert bucket.requests() == ["PUT 200", "HEAD 200", "GET 200"]
        fs.ls(f"{name}/d", refresh=True)
        fs.invalidate_cache()
        fs.ls(f"{name}/d")
        assert bucket.requests() == ["GET 200"] * 2

    def test_are_not_kept_where_that_is_switched_off(self, bucket: Bucket) -> None:
        fs = S3FileSystem(**bucket.words, use_listings_cache=False)
        for _ in range(2):
            fs.ls(bucket.name)
        assert bucket.requests() == ["GET 200"] * 2

    def test_a_path_that_is_missing_costs_two_requests(self, bucket: Bucket) -> None:
        assert not bucket.fs.exists(f"{bucket.name}/nothing")
        assert bucket.requests() == ["HEAD 404", "GET 200"]
        assert not bucket.fs.isdir(f"{bucket.name}/nothing")
        assert not bucket.fs.isfile(f"{bucket.name}/nothing")
        assert bucket.requests() == ["GET 200", "HEAD 404"]

    def test_a_directory_that_was_asked_about_is_listed_already(self, bucket: Bucket) -> None:
        path = f"{bucket.name}/d"
        assert bucket.fs.isdir(path)
        assert bucket.fs.ls(path, detail=False) == [f"{path}/a", f"{path}/b"]
        assert bucket.fs.info(f"{path}/a")["size"] == len(DATA)
        assert bucket.requests() == ["GET 200"]
        bucket.fs.invalidate_cache()
        assert bucket.fs.info(path)["type"] == "directory"
        assert len(bucket.fs.ls(path)) == 2
        assert bucket.requests() == ["HEAD 404", "GET 200"]

    def test_a_long_directory_is_not_listed_to_learn_that_it_is_there(self, random_name: Callable[[], str]) -> None:
        operator = ap.Operator.bare(ap.services.Memory(random_name())).layer(FaultLayer())
        fs = AioPrefetchFileSystem(operator)
        fs.pipe({f"long/{number:04}": b"" for number in range(1_001)})
        assert fs.isdir("long")
        assert len(fs.ls("long")) == 1_001

        async def pages() -> int:
            accessor: Any = operator.accessor()
            return sum(request.operation == "list" for request in accessor.requests)

        assert ap.sync.run(pages()) == 1 + 2
        fs.close()

    def test_a_marker_is_an_empty_directory(self, bucket: Bucket) -> None:
        fs, path = bucket.fs, f"{bucket.name}/made"
        ap.sync.run(fs.place_of(path).operator.create_dir("made/"))
        bucket.requests()
        assert fs.isdir(path)
        assert fs.ls(path) == []
        assert bucket.requests() == ["GET 200"]
        fs.rm(path, recursive=True)
        assert not fs.exists(path)

    def test_what_fails_is_no_answer(self, random_name: Callable[[], str]) -> None:
        """A store that does not respond has said nothing about what is there."""
        operator = ap.Operator.bare(ap.services.Memory(random_name()))
        fs = AioPrefetchFileSystem(operator.layer(FaultLayer((Injection(error=ap.Unavailable, times=None),))))
        for question in (fs.exists, fs.isdir, fs.isfile, fs.ls, fs.find, fs.info, fs.du):
            with pytest.raises(ap.Unavailable):
                question("d")
        with pytest.raises(ap.Unavailable):
            fs.find("", maxdepth=3)
        fs.close()

    def test_a_listing_that_a_write_overtakes_is_not_kept(self, random_name: Callable[[], str]) -> None:
        held = HeldListings()
        fs = AioPrefetchFileSystem(ap.Operator.bare(ap.services.Memory(random_name())).layer(held))
        fs.pipe("d/a", b"1")
        listing = getattr(fs, "_ls")  # noqa: B009 - the name of fsspec's protocol
        piping = getattr(fs, "_pipe_file")  # noqa: B009

        async def at_once() -> None:
            task = asyncio.create_task(listing("d"))
            await held.listed.wait()
            await piping("d/b", b"2")
            held.goes_on.set()
            assert len(await task) == 1

        ap.sync.run(at_once())
        assert fs.ls("d", detail=False) == ["d/a", "d/b"]
        fs.close()


class HeldListings(VerbLayer):
    """Listings arrive when they are let go on."""

    def __init__(self) -> None:
        self.listed, self.goes_on = asyncio.Event(), asyncio.Event()

    async def around(self, request: Request, forward: Forward) -> Any:
        response = await forward(request)
        if request.operation == "list":
            self.listed.set()
            await self.goes_on.wait()
        return response


class TestBuckets:
    def test_are_made_listed_and_deleted(self, bucket: Bucket, random_name: Callable[[], str]) -> None:
        fs, name = bucket.fs, random_name()
        assert not fs.exists(name)
        with pytest.raises(FileNotFoundError, match=name):
            fs.ls(name)
        fs.mkdir(name)
        assert fs.exists(name)
        assert fs.isdir(name)
        assert fs.ls(name) == []
        assert {bucket.name, name} <= set(fs.ls("s3://", detail=False))
        assert fs.info(name)["type"] == "directory"
        with pytest.raises(FileExistsError, match=name):
            fs.mkdir(name)
        fs.makedirs(name, exist_ok=True)
        fs.pipe(f"{name}/k", b"1")
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir(name)
        fs.rm(name, recursive=True)
        fs.rmdir(name)
        assert not fs.exists(name)
        assert name not in fs.ls("", detail=False)
        with pytest.raises(FileNotFoundError):
            fs.rmdir(name)

    def test_in_a_region_are_made_there(self, bucket: Bucket, random_name: Callable[[], str]) -> None:
        words = {**bucket.words, "client_kwargs": {**bucket.words["client_kwargs"], "region_name": "eu-central-1"}}
        fs = S3FileSystem(**words)
        fs.mkdir(name := random_name())
        assert fs.ls(name) == []
        fs.close()

    def test_of_memory_are_there_with_what_is_in_them(self, random_name: Callable[[], str]) -> None:
        fs, name = fsspec.filesystem("aioprefetch+memory"), random_name()
        fs.mkdir(name)
        fs.pipe(f"{name}/k", b"1")
        assert name in fs.ls("", detail=False)
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir(name)
        fs.rm(f"{name}/k")
        fs.rmdir(name)

    def test_that_cannot_be_made_here_say_so(self) -> None:
        fs = HttpFileSystem()
        with pytest.raises(ap.Unsupported, match="name an existing bucket"):
            fs.ls("")

    def test_are_not_walked_all_at_once(self, bucket: Bucket) -> None:
        bucket.fs.invalidate_cache()
        assert bucket.fs.isdir("")
        assert bucket.name in bucket.fs.glob("*")
        with pytest.raises(ap.Unsupported, match="name a bucket"):
            bucket.fs.find("")
        with pytest.raises(ap.InvalidArgument, match="begin with a bucket"):
            bucket.fs.cat("")


class TestDeletes:
    def test_of_many_is_one_request(self, bucket: Bucket) -> None:
        bucket.fs.rm([f"{bucket.name}/d/a", f"{bucket.name}/top"])
        assert bucket.requests() == ["POST 200"]
        assert bucket.fs.find(bucket.name) == [f"{bucket.name}/d/b"]

    def test_of_a_directory_is_a_listing_and_one_request_for_its_marker_too(self, bucket: Bucket) -> None:
        ap.sync.BlockingOperator(bucket.fs.place_of(f"{bucket.name}/d").operator).create_dir("d/")
        bucket.requests()
        bucket.fs.rm(f"{bucket.name}/d", recursive=True)
        assert bucket.requests() == ["GET 200", "POST 200"]
        assert bucket.fs.find(bucket.name, withdirs=True) == [f"{bucket.name}/top"]

    def test_of_a_directory_takes_what_is_below(self, fs: AioPrefetchFileSystem) -> None:
        fs.rm("d", recursive=True)
        assert fs.find("") == ["a", "x[1]"]
        for options in ({}, {"maxdepth": 1}):
            with pytest.raises(FileNotFoundError):
                fs.rm("d", recursive=True, **options)

    def test_real_directories_go_too(self, tmp_path: Path) -> None:
        fs = LocalFileSystem()
        root = str(tmp_path)
        fs.makedirs(f"{root}/a/b/c")
        fs.pipe(f"{root}/a/b/file", b"1")
        with pytest.raises(FileExistsError):
            fs.mkdir(f"{root}/a/b")
        fs.makedirs(f"{root}/a/b", exist_ok=True)
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir(f"{root}/a")
        fs.rmdir(f"{root}/a/b/c")
        fs.rm(f"{root}/a", recursive=True)
        assert list(tmp_path.iterdir()) == []
        fs.close()


class TestTransfers:
    def test_callbacks_see_sizes_and_bytes(self, fs: AioPrefetchFileSystem, tmp_path: Path) -> None:
        up, down = Callback(), Callback()
        (tmp_path / "source.csv").write_bytes(DATA)
        fs.put_file(str(tmp_path / "source.csv"), "put.csv", callback=up)
        fs.get_file("put.csv", str(tmp_path / "got"), callback=down)
        assert (up.size, up.value, down.size, down.value) == (len(DATA),) * 4
        assert (tmp_path / "got").read_bytes() == DATA
        assert fs.info("put.csv")["ContentType"] == "text/csv"
        fs.get_file("a", into := io.BytesIO())
        assert into.getvalue() == DATA

    @pytest.mark.parametrize("size", [0, len(DATA)])
    def test_callbacks_see_the_size_before_the_bytes(
        self, fs: AioPrefetchFileSystem, tmp_path: Path, size: int
    ) -> None:
        """A bar without a size shows no share."""
        seen: list[tuple[int | None, int]] = []
        fs.pipe("object", DATA[:size])
        callback = Callback(hooks={"see": lambda size, value, **_: seen.append((size, value))})
        fs.get_file("object", str(tmp_path / "got"), callback=callback)
        assert seen == ([(size, 0), (size, size)] if size else [(0, 0)])

    def test_an_object_is_moved_with_no_more_requests_than_it_takes(self, bucket: Bucket) -> None:
        """Both names may be those of directories. It is looked at, copied, looked at again, and deleted."""
        bucket.fs.mv(f"{bucket.name}/top", f"{bucket.name}/moved")
        assert bucket.requests() == [*["GET 200"] * 2, "HEAD 200", "PUT 200", "HEAD 200", "DELETE 204"]

    def test_of_a_glob_ask_only_for_what_is_below_each(self, bucket: Bucket, tmp_path: Path) -> None:
        bucket.fs.get(f"{bucket.name}/d/*", f"{tmp_path}/got/", recursive=True)
        assert bucket.requests().count("HEAD 200") == 0
        assert sorted(path.name for path in (tmp_path / "got").iterdir()) == ["a", "b"]

    def test_between_two_stores(self, random_name: Callable[[], str]) -> None:
        fs = fsspec.filesystem("aioprefetch+memory")
        source, target = random_name(), random_name()
        fs.pipe(f"{source}/k", DATA)
        fs.cp(f"{source}/k", f"{target}/k")
        fs.mv(f"{target}/k", f"{target}/moved")
        assert fs.find(target) == [f"{target}/moved"]
        assert fs.cat(f"{target}/moved") == DATA

    def test_what_is_not_copied_is_not_deleted(self, bucket: Bucket) -> None:
        with pytest.raises(FileNotFoundError, match="nosuchbucket"):
            bucket.fs.mv(f"{bucket.name}/d/", "nosuchbucket/d/", recursive=True)
        with pytest.raises(FileNotFoundError, match="nosuchbucket"):
            bucket.fs.mv(f"{bucket.name}/top", "nosuchbucket/top")
        assert bucket.fs.find(bucket.name) == [f"{bucket.name}/{key}" for key in ("d/a", "d/b", "top")]

    @pytest.mark.parametrize("keeps", [True, False])
    def test_directories_move_with_and_without_listings(self, bucket: Bucket, keeps: bool, tmp_path: Path) -> None:
        fs, name = S3FileSystem(**bucket.words, use_listings_cache=keeps), bucket.name
        fs.pipe(f"{name}/d/below/c", DATA)
        fs.mv(f"{name}/d", f"{name}/moved", recursive=True)
        assert fs.find(name) == [f"{name}/{key}" for key in ("moved/a", "moved/b", "moved/below/c", "top")]
        fs.get(f"{name}/moved", str(tmp_path / "got"), recursive=True)
        assert sorted(path.name for path in (tmp_path / "got").rglob("*")) == ["a", "b", "below", "c"]
        fs.put(str(tmp_path / "got"), f"{name}/back", recursive=True)
        assert fs.du(f"{name}/back") == 3 * len(DATA)
        fs.close()

    def test_a_file_is_not_got_into_a_directory_of_its_name(self, fs: AioPrefetchFileSystem, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError):
            fs.get_file("a", str(tmp_path))
        with pytest.raises(FileNotFoundError):
            fs.get_file("nothing", str(tmp_path / "nothing"))
        assert list(tmp_path.iterdir()) == []

    def test_between_buckets_no_byte_comes_here(self, bucket: Bucket, random_name: Callable[[], str]) -> None:
        bucket.server.create_bucket(other := random_name())
        bucket.requests()
        bucket.fs.cp_file(f"{bucket.name}/top", f"{other}/top")
        assert bucket.requests() == ["PUT 200"]
        assert bucket.fs.cat(f"{other}/top") == DATA

    def test_touch(self, fs: AioPrefetchFileSystem) -> None:
        fs.touch("new", truncate=False)
        assert fs.cat("new") == b""
        with pytest.raises(ap.Unsupported, match="truncate=True"):
            fs.touch("a", truncate=False)
        fs.touch("a")
        assert fs.size("a") == 0


class TestPaths:
    @pytest.mark.parametrize(
        "url", ["s3://bucket/k", "s3a://bucket/k", "aioprefetch+s3://bucket/k", "/bucket/k/", "bucket/k"]
    )
    def test_of_s3(self, url: str) -> None:
        fs = S3FileSystem(anon=True)
        place = fs.place_of(url)
        assert (place.operator.info.url, place.key, place.base) == ("s3://bucket", "k", "bucket/")
        assert fs.unstrip_protocol("bucket/k") == "aioprefetch+s3://bucket/k"

    def test_of_http_are_urls(self) -> None:
        fs = HttpFileSystem()
        place = fs.place_of("https://host/a%20b/c?token=1")
        assert (place.operator.info.url, place.key) == ("https://host", "a b/c")
        assert fs.place_of("https://host/a%2Fb/c%2Fd").key == "c/d"
        assert not fs.isdir("https://host/a")

    def test_many_stores_are_not_kept_for_ever(self) -> None:
        fs = HttpFileSystem()
        first = fs.place_of("https://host/k?token=first").operator
        for number in range(100):
            fs.place_of(f"https://host/k?token={number}")
        assert fs.place_of("https://host/k?token=first").operator is not first


def test_signed_urls_name_object_and_time(bucket: Bucket) -> None:
    url = bucket.fs.sign(f"{bucket.name}/top", expiration=77)
    assert f"{bucket.name}/top" in url
    assert "X-Amz-Expires=77" in url


def test_versions_are_read_by_their_ids(bucket: Bucket) -> None:
    """moto's id of an object without versions is ``null``."""
    fs = S3FileSystem(**bucket.words, version_aware=True)
    assert fs.cat_file(f"{bucket.name}/top?versionId=null") == DATA
    with fs.open(f"{bucket.name}/top", version_id="null") as file:
        assert file.read() == DATA
    assert all("versionId=null" in request.query for request in bucket.server.requests)


class TestOtherFileSystems:
    """fsspec's own, over and beside ours."""

    @pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedRandom:ResourceWarning")  # The cache closes none.
    def test_a_cache_of_blocks_before_ours(self, bucket: Bucket, tmp_path: Path) -> None:
        """What was read once is read from the disk; a file closes as others do, and text goes over it."""
        options = {"target_options": bucket.words, "cache_storage": str(tmp_path)}
        fs = fsspec.filesystem("blockcache", target_protocol="aioprefetch+s3", **options)
        bucket.fs.pipe(f"{bucket.name}/short", DATA[:1_000])
        for turn in range(2):
            with fs.open(f"{bucket.name}/top", block_size=1_000) as file:
                file.seek(2_500)
                buffer = bytearray(100)
                assert (file.read(10), file.readinto(buffer)) == (DATA[2_500:2_510], 100)
                assert buffer == DATA[2_510:2_610]
                assert (file.seek(-5, 2), file.read(), file.read()) == (9_995, DATA[-5:], b"")
            assert file.closed
            gets = [request for request in bucket.server.requests if request.method == "GET" and "top" in request.path]
            assert bool(gets) is not bool(turn)
            bucket.requests()
        with fs.open(f"{bucket.name}/short", "rt", encoding="latin-1", newline="") as text:
            assert text.read() == DATA[:1_000].decode("latin-1")

    @pytest.mark.parametrize("cache", ["simplecache", "filecache"])
    def test_caches_over_ours(self, random_name: Callable[[], str], cache: str, tmp_path: Path) -> None:
        url = f"aioprefetch+memory://{random_name()}/k"
        options: dict[str, Any] = {cache: {"cache_storage": str(tmp_path)}}
        fsspec.filesystem("aioprefetch+memory").pipe(url, DATA)
        for _ in range(2):
            with fsspec.open(f"{cache}::{url}", **options) as file:
                assert file.read() == DATA

    def test_archives_and_directories_in_ours(self, random_name: Callable[[], str]) -> None:
        name = random_name()
        with fsspec.open(f"aioprefetch+memory://{name}/a.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("inside/k", DATA)
        with fsspec.open(f"zip://inside/k::aioprefetch+memory://{name}/a.zip") as file:
            assert file.read() == DATA
        inside = fsspec.filesystem("dir", path=name, fs=fsspec.filesystem("aioprefetch+memory"))
        assert inside.ls("", detail=False) == ["a.zip"]
        assert inside.cat_file("a.zip", 0, 2) == b"PK"

    def test_references_into_ours(self, random_name: Callable[[], str]) -> None:
        url = f"aioprefetch+memory://{random_name()}/k"
        fsspec.filesystem("aioprefetch+memory").pipe(url, DATA)
        references = {"whole": [url], "part": [url, 5, 10], "another": [url, 100, 7]}
        fs = fsspec.filesystem("reference", fo=references, remote_protocol="aioprefetch+memory", asynchronous=False)
        assert fs.cat(["part", "another", "whole"]) == {"part": DATA[5:15], "another": DATA[100:107], "whole": DATA}

    def test_copies_across_protocols(self, bucket: Bucket, random_name: Callable[[], str]) -> None:
        target = f"aioprefetch+memory://{random_name()}/d"
        options = {"aioprefetch+s3": bucket.words}
        generic = GenericFileSystem(default_method="options", storage_options=options)
        generic.cp(f"aioprefetch+s3://{bucket.name}/top", f"{target}/top")
        assert fsspec.filesystem("aioprefetch+memory").cat(f"{target}/top") == DATA


@pytest.fixture
def http_server() -> Iterator[FaultServer]:
    """A server with one object."""
    server = FaultServer({"d/a b.csv": b"1,2"})
    ap.sync.run(server.__aenter__())
    yield server
    ap.sync.run(server.__aexit__(None, None, None))


def test_urls_of_http_are_single_objects(http_server: FaultServer) -> None:
    """There is nothing to list, and what asks for a list of one URL gets it."""
    fs, url = HttpFileSystem(), f"{http_server.url}/d/a%20b.csv"
    assert fs.find(url) == fs.ls(url, detail=False) == fs.glob(url) == [url]
    assert fs.info(url)["name"] == url
    assert fs.cat(url) == b"1,2"
    assert fs.cat_ranges([url, url], [0, 2], [1, 3]) == [b"1", b"2"]
    assert not fs.exists(f"{http_server.url}/nothing")
    with pytest.raises(ap.Unsupported):
        fs.ls(http_server.url)
    with fs.open(url, block_size=0) as stream:  # As is usual for servers without ranges.
        assert stream.read() == b"1,2"
    fs.close()


class TestVersions:
    @pytest.fixture
    def versioned(self, bucket: Bucket) -> Iterator[S3FileSystem]:
        """A file system over a bucket that keeps versions: three of ``k``, of which the last one is a delete marker."""
        name = MotoBucket(f"{bucket.name}v", versioned=True).name
        fs = S3FileSystem(**bucket.words, version_aware=True)
        fs.pipe(f"{name}/d/k", b"first")
        fs.pipe(f"{name}/d/k", b"second")
        fs.rm(f"{name}/d/k")
        bucket.name = name
        yield fs
        fs.close()

    def test_are_listed_read_and_deleted_by_their_names(self, versioned: S3FileSystem, bucket: Bucket) -> None:
        fs, path = versioned, f"{bucket.name}/d/k"
        assert not fs.exists(path)
        listed = fs.ls(f"{bucket.name}/d", detail=True, versions=True)
        assert [fs.cat_file(info["name"]) for info in listed] == [b"second", b"first"]
        assert [info["IsLatest"] for info in listed] == [False, False]
        marker, second, first = fs.object_version_info(path)
        assert (marker["IsDeleteMarker"], marker["IsLatest"]) == (True, True)
        assert [info["VersionId"] for info in (second, first)] == [info["VersionId"] for info in listed]
        assert fs.info(first["name"])["size"] == 5
        assert fs.cat_file(path, version_id=first["VersionId"]) == b"first"
        with fs.open(path, version_id=first["VersionId"]) as file:
            assert file.read() == b"first"
        fs.rm_file(marker["name"])
        assert fs.cat(path) == b"second"
        fs.rm_file(second["name"])
        assert fs.cat(path) == b"first"
        assert len(fs.object_version_info(path)) == 1
        assert fs.ls(path, detail=True, versions=True) == fs.object_version_info(path)

    def test_are_copied_as_an_object(self, versioned: S3FileSystem, bucket: Bucket, tmp_path: Path) -> None:
        fs, path = versioned, f"{bucket.name}/d/k"
        first = fs.object_version_info(path)[-1]["name"]
        fs.cp_file(first, f"{bucket.name}/copied")
        fs.get_file(first, str(tmp_path / "got"))
        assert fs.cat(f"{bucket.name}/copied") == (tmp_path / "got").read_bytes() == b"first"
        with pytest.raises(ap.InvalidArgument, match="a version is not written"):
            fs.open(first, "wb")

    def test_are_refused_where_there_are_none(self, fs: AioPrefetchFileSystem, versioned: S3FileSystem) -> None:
        with pytest.raises(ap.Unsupported):
            fs.ls("d", versions=True)
        with pytest.raises(FileNotFoundError):
            versioned.object_version_info("nosuchbucket/k")
