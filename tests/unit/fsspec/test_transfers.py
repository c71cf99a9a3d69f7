"""Objects from and to files, between stores, and what is believed after a change that fails."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.callbacks import Callback
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, S3FileSystem
from aioprefetch.testing import CountingS3Server, FaultLayer, Injection, content
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import Capability
from tests.stores.part_store import PartStore
from tests.stores.stacks import MotoBucket
from tests.unit.fsspec.s3_words import Bucket

DATA = content(10_000)
PLACED = {"StorageClass": "STANDARD_IA", "SSEKMSKeyId": "alias/a-key", "ServerSideEncryption": "aws:kms"}


def stored(bucket: str, key: str) -> Any:
    """The object as moto holds it."""
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket, key)


class TestCopies:
    @pytest.fixture
    def placing(self, bucket: Bucket) -> Iterator[S3FileSystem]:
        """A file system whose writes name a class and a key."""
        fs = S3FileSystem(**bucket.words, s3_additional_kwargs=PLACED)
        yield fs
        fs.close()

    @pytest.mark.parametrize("is_own", [True, False])
    def test_have_the_class_and_the_key_of_the_writes(
        self, placing: S3FileSystem, bucket: Bucket, random_name: Callable[[], str], is_own: bool
    ) -> None:
        target = bucket.name if is_own else random_name()
        if not is_own:
            bucket.server.create_bucket(target)
        placing.cp_file(f"{bucket.name}/top", f"{target}/copied")
        found = stored(target, "copied")
        assert (found.storage_class, found.encryption, found.kms_key_id) == ("STANDARD_IA", "aws:kms", "alias/a-key")
        assert bucket.requests() == ["PUT 200"]

    def test_in_a_store_without_classes_are_refused(self, fs: AioPrefetchFileSystem) -> None:
        placing = AioPrefetchFileSystem(fs.place_of("a").operator, storage_class="STANDARD_IA")
        with pytest.raises(ap.Unsupported, match="storage_class"):
            placing.cp_file("a", "copied")
        assert not fs.exists("copied")

    @pytest.mark.parametrize("verb", ["cp_file", "cp", "mv"])
    def test_have_the_class_that_the_verb_names(self, bucket: Bucket, verb: str) -> None:
        source = f"{bucket.name}/top"
        getattr(bucket.fs, verb)(source, f"{bucket.name}/copied", StorageClass="STANDARD_IA")
        assert stored(bucket.name, "copied").storage_class == "STANDARD_IA"
        assert bucket.fs.exists(source) is (verb != "mv")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ContentType": "text/csv"}, "'content_type' is an option of Operator.write"),
            ({"ACL": "public-read"}, "for the bucket's policy to say"),
            ({"preserve_etag": True}, "the store chooses the ETag"),
        ],
    )
    def test_refuse_what_they_do_not_obey(self, bucket: Bucket, options: dict[str, Any], message: str) -> None:
        for verb in (bucket.fs.cp_file, bucket.fs.mv):
            with pytest.raises((ap.ConfigInvalid, ap.Unsupported), match=message):
                verb(f"{bucket.name}/top", f"{bucket.name}/copied", **options)
        assert bucket.fs.find(bucket.name) == [f"{bucket.name}/{key}" for key in ("d/a", "d/b", "top")]

    def test_of_a_version_keep_the_description(self, placing: S3FileSystem, bucket: Bucket) -> None:
        name = MotoBucket(f"{bucket.name}v", versioned=True).name
        described = {"ContentType": "text/csv", "CacheControl": "max-age=1", "Metadata": {"a": "b"}}
        bucket.fs.pipe_file(f"{name}/k", b"first", **described)
        bucket.fs.pipe_file(f"{name}/k", b"second")
        fs = S3FileSystem(**bucket.words, s3_additional_kwargs=PLACED, version_aware=True)
        fs.cp_file(fs.object_version_info(f"{name}/k")[-1]["name"], f"{name}/copied")
        found = ap.sync.BlockingOperator(fs.place_of(f"{name}/copied").operator).stat("copied")
        assert (found.content_type, found.cache_control, found.user_metadata) == ("text/csv", "max-age=1", {"a": "b"})
        assert stored(name, "copied").storage_class == "STANDARD_IA"
        fs.close()


class TestFiles:
    @pytest.mark.parametrize("is_alone", [True, False])
    def test_a_version_that_is_deleted_leaves_the_others(self, bucket: Bucket, is_alone: bool) -> None:
        name = MotoBucket(f"{bucket.name}v", versioned=True).name
        fs = S3FileSystem(**bucket.words, version_aware=True)
        for data in (b"first", b"second"):
            fs.pipe_file(f"{name}/k", data)
        second, first = (info["name"] for info in fs.object_version_info(f"{name}/k"))
        fs.rm_file(first) if is_alone else fs.rm([first])
        assert fs.cat_file(f"{name}/k") == b"second"
        assert [info["name"] for info in fs.object_version_info(f"{name}/k")] == [second]
        fs.close()

    def test_several_versions_are_deleted_by_one_request(self, bucket: Bucket, s3_server: CountingS3Server) -> None:
        name = MotoBucket(f"{bucket.name}v", versioned=True).name
        fs = S3FileSystem(**bucket.words, version_aware=True)
        for data in (b"first", b"second", b"third"):
            fs.pipe_file(f"{name}/k", data)
        third, second, first = (info["name"] for info in fs.object_version_info(f"{name}/k"))
        before = len(s3_server.requests)
        fs.rm([third, first])
        methods = [request.method for request in s3_server.requests[before:]]
        assert (methods.count("POST"), methods.count("DELETE")) == (1, 0)
        assert [info["name"] for info in fs.object_version_info(f"{name}/k")] == [second]
        fs.close()

    def test_a_version_is_got_as_an_object_is(self, bucket: Bucket, tmp_path: Path) -> None:
        """By a hidden file, and with the mode of the file that it replaces."""
        name = MotoBucket(f"{bucket.name}v", versioned=True).name
        fs = S3FileSystem(**bucket.words, version_aware=True)
        for data in (DATA, b"second"):
            fs.pipe_file(f"{name}/k", data)
        first = fs.object_version_info(f"{name}/k")[-1]["name"]
        seen: list[list[str]] = []

        class Looking(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                seen.append([path.name for path in tmp_path.iterdir() if not path.name.startswith(".")])
                super().relative_update(inc)

        target = tmp_path / "got"
        target.write_bytes(b"before")
        os.chmod(target, 0o600)
        fs.get_file(first, str(target), callback=(looking := Looking()))
        assert target.read_bytes() == DATA
        assert target.stat().st_mode & 0o777 == 0o600
        assert (looking.size, looking.value) == (len(DATA), len(DATA))
        assert {tuple(names) for names in seen} == {("got",)}
        fs.close()

    def test_a_file_that_is_put_is_cut_into_the_parts_that_the_store_takes(
        self, fs: AioPrefetchFileSystem, tmp_path: Path
    ) -> None:
        store = PartStore(parts_max=4)
        putting = AioPrefetchFileSystem(fs.place_of("a").operator.layer(store))
        (tmp_path / "file").write_bytes(DATA)
        putting.put_file(str(tmp_path / "file"), "put", callback=(seen := Callback()))
        assert sorted(store.sent) == [1, 2, 3, 4]
        assert (seen.size, seen.value) == (len(DATA), len(DATA))
        assert fs.cat("put") == DATA
        putting.close()

    @checks("reliability:W13")
    def test_a_file_that_is_written_to_while_it_is_put_is_no_object(
        self, fs: AioPrefetchFileSystem, tmp_path: Path
    ) -> None:
        source = tmp_path / "file"
        source.write_bytes(bytes(1 << 20))

        class Writing(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                with open(source, "ab") as file:
                    file.write(b"more")

        with pytest.raises(ap.ObjectChanged, match="while it was uploaded"):
            fs.put_file(str(source), "put", callback=Writing())
        with pytest.raises(ap.NotFound, match="missing"):
            fs.put_file(str(tmp_path / "missing"), "put")
        assert not fs.exists("put")


class TestMoves:
    def test_a_directory_is_not_passed_over(self, fs: AioPrefetchFileSystem) -> None:
        before = fs.find("")
        for move in (fs.mv, fs.move, fs.rename):
            with pytest.raises(IsADirectoryError, match="recursive=True"):
                move("d", "e")
        assert fs.find("") == before

    @checks("reliability:W30")
    def test_what_no_copy_was_made_of_stays(self, fs: AioPrefetchFileSystem) -> None:
        """Objects that share the name of a directory, and what lies deeper than ``maxdepth``."""
        for keeps in (True, False):
            if not keeps:
                fs.invalidate_cache()
            fs.pipe({"d": b"an object of that name", "data": b"1"})
            fs.mv("d*", "target/")
            assert (fs.cat("d"), fs.cat("target/data")) == (b"an object of that name", b"1")
            assert not fs.exists("data")
        fs.rm_file("d")
        fs.pipe("d/c", b"1")
        fs.mv("d", "levels", recursive=True, maxdepth=1)
        assert fs.find("levels") == ["levels/b", "levels/c"]
        assert fs.find("d") == ["d/e/c", "d/e/f/g"]
        fs.mv("d/e", "d/e/f", recursive=True)
        assert fs.find("d") == ["d/e/f/e/c", "d/e/f/e/f/g"]
        fs.mv("d/e/f/e", "d/f", recursive=True)
        fs.mv("d/f", "d/e", recursive=True)
        assert fs.find("d") == ["d/e/c", "d/e/f/g"]
        fs.mv(["d/e", "a"], ["lists/e", "lists/a"], recursive=True)
        assert fs.find("lists") == ["lists/a"]
        assert fs.find("d") == ["d/e/c", "d/e/f/g"]

    def test_an_object_and_a_directory_of_one_name_are_both_there(self, fs: AioPrefetchFileSystem) -> None:
        """Also where the listing above them is believed."""
        fs.pipe("d", b"1")
        for _ in range(2):
            assert (fs.info("d")["type"], fs.isfile("d"), fs.isdir("d")) == ("file", True, True)
            fs.invalidate_cache()
            fs.ls("")


def test_names_of_the_root_go_into_directories_as_others_do(random_name: Callable[[], str], tmp_path: Path) -> None:
    """An operator has keys without a directory above them, of which fsspec alone would cut nothing off."""
    objects = {"a": b"a", "d/b": b"b", "d/c": b"c", "d/e/f": b"f", "there/k": b"k"}
    cases: list[tuple[str, str, dict[str, Any]]] = [
        (source, target, options)
        for source in ("a", "a*", "d", "[d]")
        for target in ("new/", "there")
        for options in ({}, {"recursive": True}, {"recursive": True, "maxdepth": 1})
    ]
    for number, (source, target, options) in enumerate(cases):
        found: list[object] = []
        for prefix in ("", "root/"):
            fs = AioPrefetchFileSystem(ap.Operator.bare(ap.services.Memory(random_name())))
            fs.pipe({f"{prefix}{name}": data for name, data in objects.items()})
            folder = tmp_path / f"{number}{prefix}"
            (folder / "there").mkdir(parents=True)
            try:
                fs.cp(f"{prefix}{source}", f"{prefix}{target}", **options)
                fs.get(f"{prefix}{source}", f"{folder}/{target}", **options)
            except FileNotFoundError as error:
                found.append(type(error))
                continue
            copied = [name.removeprefix(prefix) for name in fs.find(prefix)]
            found.append((copied, sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))))
            fs.close()
        assert found[0] == found[1], (source, target, options)


class Unconditional(ap.services.Memory):
    """A store that cannot refuse to replace an object."""

    @property
    def capability(self) -> Capability:
        return replace(super().capability, write_if_not_exists=False)


class TestCreating:
    def test_is_refused_where_it_cannot_be_guarded(self, random_name: Callable[[], str]) -> None:
        fs = AioPrefetchFileSystem(ap.Operator(Unconditional(random_name())))
        with pytest.raises(ap.Unsupported, match="if_not_exists"), fs.open("new", "xb") as file:
            file.write(b"1")
        with pytest.raises(ap.Unsupported, match="if_not_exists"):
            fs.pipe_file("new", b"1", mode="create")
        assert not fs.exists("new")
        fs.close()


def listed(fs: AioPrefetchFileSystem) -> list[str]:
    """The entries of the directory, from a listing that is believed."""
    try:
        return list(fs.ls("d", detail=False))
    except FileNotFoundError:
        return []


class TestListings:
    @pytest.mark.parametrize(
        ("operation", "change"),
        [
            ("write", lambda fs: fs.pipe_file("d/new", b"")),
            ("copy", lambda fs: fs.cp_file("a", "d/new")),
            ("delete", lambda fs: fs.rm("d", recursive=True)),
            ("delete", lambda fs: fs.rm_file("d/b")),
        ],
    )
    def test_are_not_believed_after_a_change_whose_response_was_lost(
        self, fs: AioPrefetchFileSystem, operation: str, change: Callable[[Any], object]
    ) -> None:
        operator = fs.place_of("a").operator
        plan = (Injection(operation=operation, at="reply", error=ap.PermissionDenied, times=None),)
        failing = AioPrefetchFileSystem(operator.layer(FaultLayer(plan)), listings_expiry_time=None)
        before = listed(failing)
        with pytest.raises(ap.PermissionDenied):
            change(failing)
        clean = [name for name in fs.find("d", withdirs=True, maxdepth=1) if name != "d"]
        assert listed(failing) == clean != before
        failing.close()
