"""The verbs of Arrow's file system, one by one: what they find, change and refuse, over each kind of store."""

import asyncio
import contextlib
import datetime as dt
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileType

import aioprefetch as ap
from aioprefetch.accessor.protocols import Accessor
from aioprefetch.arrow.handler import Footers, ReadFile, WriteFile, wait_for_dropped
from aioprefetch.testing import CountingS3Server, FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.values import CopyRequest, ListRequest, Metadata, ReadRequest, RenameRequest, StatRequest, WriteRequest
from tests.stores.arrow_stores import STORES, filesystem_over
from tests.stores.s3_options import options_of
from tests.stores.verb_layer import VerbLayer


@pytest.fixture(params=STORES)
def fs(request: pytest.FixtureRequest, tmp_path: Path, s3_server: CountingS3Server) -> Iterator[Any]:
    with filesystem_over(request.param, tmp_path, s3_server) as filesystem:
        yield filesystem


@pytest.fixture
def memory(tmp_path: Path, s3_server: CountingS3Server) -> Iterator[Any]:
    with filesystem_over("memory", tmp_path, s3_server) as filesystem:
        yield filesystem


def write(fs: Any, path: str, data: bytes = b"data", **options: Any) -> None:
    with fs.open_output_stream(path, **options) as file:
        file.write(data)


def kinds(infos: list[Any]) -> dict[str, FileType]:
    return {info.path: info.type for info in infos}


def found(fs: Any, base: str = "", *, recursive: bool = True, **options: Any) -> dict[str, FileType]:
    return kinds(fs.get_file_info(FileSelector(base, recursive=recursive, **options)))


class TestInfo:
    def test_files_directories_and_what_is_missing(self, fs: Any) -> None:
        write(fs, "a/b/c.bin", b"12345")
        before = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=5)
        paths = ["a/b/c.bin", "a/b", "a/", "", "a/b/c", "a/b/c.bin/d", "none"]
        file, *others = fs.get_file_info(paths)
        assert (file.type, file.size, file.is_file) == (FileType.File, 5, True)
        assert before < file.mtime < before + dt.timedelta(minutes=10)
        directory, missing = FileType.Directory, FileType.NotFound
        assert [info.type for info in others] == [directory, directory, directory, missing, missing, missing]
        assert [info.path for info in others] == paths[1:]
        assert all(info.size is None for info in others)

    def test_an_object_comes_before_a_directory_of_its_name(self, memory: Any) -> None:
        write(memory, "both")
        write(memory, "both/below")
        assert memory.get_file_info("both").is_file
        assert found(memory, "both") == {"both/below": FileType.File}

    def test_a_selector_of_nothing_of_an_object_and_of_an_empty_directory(self, fs: Any) -> None:
        write(fs, "a/file")
        fs.create_dir("empty")
        with pytest.raises(ap.NotFound):
            found(fs, "none")
        assert found(fs, "none", allow_not_found=True) == {}
        for allowed in (False, True):
            with pytest.raises(ap.NotADirectory):
                found(fs, "a/file", allow_not_found=allowed)
        assert found(fs, "empty") == {}

    def test_many_paths_are_looked_at_side_by_side(self) -> None:
        op = ap.Operator(ap.services.Memory()).layer(FaultLayer())
        fs = ap.arrow.filesystem(op)
        infos = fs.get_file_info([f"none-{number}" for number in range(200)])
        assert {info.type for info in infos} == {FileType.NotFound}
        live: Any = ap.sync.run(_accessor(op))
        assert 32 <= live.in_flight_peak <= 64
        fs.handler.close()

    @pytest.mark.parametrize("read", [ds.dataset, pq.read_table])
    def test_a_url_is_explained(self, fs: Any, read: Callable[..., Any]) -> None:
        with pytest.raises(ap.NotFound, match=r"paths are relative to .*, and this one is a URL"):
            read("s3://bucket/t.parquet", filesystem=fs)

    @pytest.mark.parametrize("read", [ds.dataset, pq.read_table])
    @pytest.mark.parametrize("path", ["/hinted/t.parquet", "named/hinted/t.parquet"])
    def test_the_name_of_the_bucket_is_explained_where_the_rest_is_there(
        self, path: str, read: Callable[..., Any]
    ) -> None:
        fs = ap.arrow.filesystem(ap.Operator.from_uri("memory://named"))
        assert fs.get_file_info(path).type is FileType.NotFound
        pq.write_table(pa.table({"a": [1]}), "hinted/t.parquet", filesystem=fs)
        with pytest.raises(ap.NotFound, match=r"paths are relative to .*, so this may be 'hinted/t.parquet'"):
            read(path, filesystem=fs)
        fs.delete_file("hinted/t.parquet")

    def test_a_store_that_fails_is_no_missing_object(self) -> None:
        op = ap.Operator(ap.services.Memory(), attempts_max=1)
        fs = ap.arrow.filesystem(op.layer(FaultLayer((Injection(operation="stat", error=ap.PermissionDenied),))))
        with pytest.raises(ap.PermissionDenied):
            fs.get_file_info(["a", "b", "c"])
        fs.handler.close()


class TestDirectories:
    def test_they_are_created_once(self, fs: Any) -> None:
        fs.create_dir("a/b/c")
        fs.create_dir("a/b/c")
        assert fs.get_file_info("a/b/c").type == FileType.Directory
        write(fs, "a/b/c/file")
        fs.create_dir("a/b/c", recursive=False)
        with pytest.raises(FileNotFoundError):
            fs.create_dir("x/y", recursive=False)
        with pytest.raises(NotADirectoryError):
            fs.create_dir("a/b/c/file/below", recursive=False)
        with pytest.raises(FileExistsError):
            fs.create_dir("a/b/c/file")
        fs.create_dir("")
        assert sorted(found(fs)) == ["a", "a/b", "a/b/c", "a/b/c/file"]

    def test_they_are_deleted_with_all_below_them(self, fs: Any) -> None:
        for path in ("a/1", "a/b/2", "a/b/c/3", "ab"):
            write(fs, path)
        fs.create_dir("a/empty/deep")
        fs.delete_dir("a")
        assert found(fs) == {"ab": FileType.File}
        with pytest.raises(FileNotFoundError):
            fs.delete_dir("a")
        with pytest.raises(NotADirectoryError):
            fs.delete_dir("ab")
        with pytest.raises(ap.InvalidPath, match="accept_root_dir"):
            fs.delete_dir("")

    def test_they_are_emptied_and_stay(self, fs: Any) -> None:
        for path in ("a/1", "a/b/2", "a/b/c/3", "ab"):
            write(fs, path)
        fs.delete_dir_contents("a")
        assert found(fs) == {"a": FileType.Directory, "ab": FileType.File}
        with pytest.raises(FileNotFoundError):
            fs.delete_dir_contents("none")
        fs.delete_dir_contents("none", missing_dir_ok=True)
        with pytest.raises(NotADirectoryError):
            fs.delete_dir_contents("ab")
        with pytest.raises(ValueError, match="accept_root_dir"):
            fs.delete_dir_contents("")
        fs.delete_dir_contents("", accept_root_dir=True)
        assert found(fs) == {}

    def test_what_is_emptied_is_the_same_directory_afterwards(self, tmp_path: Path) -> None:
        fs = ap.arrow.filesystem(ap.Operator.from_uri(tmp_path))
        write(fs, "a/b/1")
        (tmp_path / "a").chmod(0o700)
        before = (tmp_path / "a").stat()
        fs.delete_dir_contents("a")
        after = (tmp_path / "a").stat()
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
        fs.handler.close()


class TestObjects:
    def test_they_are_deleted(self, fs: Any) -> None:
        write(fs, "a/1")
        with pytest.raises(FileNotFoundError):
            fs.delete_file("a/2")
        with pytest.raises(IsADirectoryError):
            fs.delete_file("a")
        fs.delete_file("a/1")
        assert not fs.get_file_info("a/1").is_file

    def test_they_are_copied_and_moved(self, fs: Any) -> None:
        write(fs, "a/1", b"one")
        write(fs, "b/2", b"two")
        fs.copy_file("a/1", "c/3")
        fs.copy_file("a/1", "a/1")
        fs.move("a/1", "b/2")
        fs.move("b/2", "b/2")
        assert fs.open_input_file("b/2").read() == fs.open_input_file("c/3").read() == b"one"
        assert not fs.get_file_info("a/1").is_file
        for verb in (fs.copy_file, fs.move):
            with pytest.raises(FileNotFoundError):
                verb("a/1", "d")
            with pytest.raises(IsADirectoryError):
                verb("b/2", "c")
        with pytest.raises(IsADirectoryError):
            fs.copy_file("b", "d")

    def test_directories_are_moved_with_all_below_them(self, fs: Any) -> None:
        for path in ("a/1", "a/b/2", "full/3", "file"):
            write(fs, path)
        fs.create_dir("a/empty")
        for target, error in (("a/b/c", ValueError), ("full", FileExistsError), ("file", NotADirectoryError)):
            with pytest.raises(error):
                fs.move("a", target)
        fs.move("a", "x/y")
        assert sorted(found(fs, "x/y")) == ["x/y/1", "x/y/b", "x/y/b/2", "x/y/empty"]
        assert fs.get_file_info("a").type == FileType.NotFound
        assert fs.open_input_stream("x/y/b/2").read() == b"data"

    @pytest.mark.parametrize("number", range(6))
    def test_a_directory_whose_move_fails_stays_where_it_is(self, number: int) -> None:
        plan = (Injection(operation="copy", occurrence=number, error=ap.PermissionDenied),)
        op = ap.Operator(ap.services.Memory(), attempts_max=1)
        before, failing = ap.arrow.filesystem(op), ap.arrow.filesystem(op.layer(FaultLayer(plan)))
        for name in range(6):
            write(before, f"a/{name}", b"%d" % name)
        with pytest.raises(PermissionError):
            failing.move("a", "b")
        copies = {f"b/{name}" for name in range(6)} - {f"b/{number}"}
        assert set(found(before)) == {"a", "b", *copies, *(f"a/{name}" for name in range(6))}
        before.handler.close()

    @checks("reliability:W12")
    def test_what_others_write_below_a_directory_that_moves_stays(self, fs: Any) -> None:
        for path in ("a/1", "a/b/2"):
            write(fs, path)
        fs.create_dir("a/empty")
        moving = ap.arrow.filesystem(fs.handler.operator.layer(WritingMeanwhile("a/b/new", "a/empty/new")))
        moving.move("a", "x")
        assert [path for path, kind in found(fs).items() if kind == FileType.File] == [
            *("a/b/new", "a/empty/new", "x/1", "x/b/2")
        ]
        if not fs.handler.operator.capability.rename:  # Files move before the directories that are empty by then.
            assert fs.get_file_info("x/empty").type == FileType.Directory

    @checks("reliability:W10")
    def test_a_move_that_fails_leaves_each_object_at_one_place_or_at_both(self, fs: Any) -> None:
        verb = "rename" if fs.handler.operator.capability.rename else "copy"
        for path in ("a/1", "a/2", "a/b/3"):
            write(fs, path, path.encode())
        plan = (Injection(operation=verb, occurrence=2, error=ap.PermissionDenied),)
        operator = fs.handler.operator.layer(FaultLayer(plan))
        with pytest.raises(PermissionError):
            ap.arrow.filesystem(operator.layer(WritingMeanwhile("x/others"))).move("a", "x")
        written = {path for path, kind in found(fs).items() if kind == FileType.File}
        assert "x/others" in written
        for name in ("1", "2", "b/3"):
            places = {f"a/{name}", f"x/{name}"} & written
            assert {fs.open_input_file(place).read() for place in places} == {f"a/{name}".encode()}


class TestReading:
    def test_files_and_streams(self, fs: Any) -> None:
        data = bytes(range(256)) * 4096 * 3
        write(fs, "a/1", data)
        with fs.open_input_file("a/1") as file:
            assert (file.size(), file.seekable(), file.readable(), file.writable()) == (len(data), True, True, False)
            assert file.read_at(1000, 2_000_000) == data[2_000_000:2_001_000]
            assert file.read_at(10, len(data) - 4) == data[-4:]
            file.seek(-5, 2)
            assert (file.read(2), file.tell(), file.read()) == (data[-5:-3], len(data) - 3, data[-3:])
            file.seek(0)
            assert file.read() == data
        with fs.open_input_stream("a/1") as stream:
            assert stream.read(7) + stream.read() == data

    @pytest.mark.parametrize("verb", ["open_input_file", "open_input_stream"])
    def test_what_is_no_object_is_refused_when_it_is_opened(self, fs: Any, verb: str) -> None:
        write(fs, "a/1")
        with pytest.raises(FileNotFoundError):
            getattr(fs, verb)("a/2")
        with pytest.raises(IsADirectoryError):
            getattr(fs, verb)("a")
        with pytest.raises(IsADirectoryError):
            getattr(fs, verb)("")

    def test_a_closed_file_says_so(self, memory: Any) -> None:
        write(memory, "k")
        file = memory.open_input_file("k")
        file.close()
        assert file.closed
        with pytest.raises(ValueError, match="closed"):
            file.read()

    def test_an_open_sees_what_was_written_before_it(self, fs: Any) -> None:
        """No fact of a listing or an earlier file is believed: each open asks, and gets no byte a second time."""
        write(fs, "k", b"first version")
        fs.get_file_info(FileSelector(""))
        assert fs.open_input_file("k").read() == b"first version"
        write(fs, "k", b"second one")
        assert fs.open_input_file("k").read() == fs.open_input_stream("k").read() == b"second one"

    def test_an_object_that_is_overwritten_while_it_is_open(self, fs: Any) -> None:
        first, second = bytes(4 << 20), bytes(5 << 20)
        write(fs, "k", first)
        with fs.open_input_file("k") as file:
            write(fs, "k", second)
            assert file.read_at(10, len(first) - 10) == bytes(10)  # It came with the first response.
            with pytest.raises(ap.ObjectChanged):
                file.read_at(10, 0)
        assert fs.open_input_file("k").size() == len(second)

    def test_a_dataset_that_keeps_the_footer_of_another_version(self, fs: Any) -> None:
        """Arrow opens the file again and reads the data by the footer that it has: that would be other values."""
        table = pa.table({"id": range(100_000)})
        pq.write_table(table, "t.parquet", filesystem=fs)
        dataset = ds.dataset("t.parquet", filesystem=fs)
        assert dataset.to_table().equals(table)
        pq.write_table(table.slice(1), "t.parquet", filesystem=fs)
        for _ in range(2):
            with pytest.raises(ap.ObjectChanged, match="make the dataset again"):
                dataset.to_table()
        assert fs.open_input_stream("t.parquet").read(4) == b"PAR1"
        assert ds.dataset("t.parquet", filesystem=fs).to_table().equals(table.slice(1))
        assert pq.read_table(fs.open_input_file("t.parquet")).equals(table.slice(1))

    def test_requests(self) -> None:
        op = ap.Operator(ap.services.Memory()).layer(FaultLayer())
        fs = ap.arrow.filesystem(op)
        size = 20 << 20
        write(fs, "k", bytes(size))
        live: Any = ap.sync.run(_accessor(op))

        def since(count: int) -> list[Any]:
            return [
                (request.offset, request.size, request.suffix) if isinstance(request, ReadRequest) else type(request)
                for request in live.requests[count:]
            ]

        count = len(live.requests)
        file = fs.open_input_file("k")
        file.size()
        file.read_at(1000, size - 1000)
        assert since(count) == [(0, None, 1 << 20)]
        count = len(live.requests)
        fs.open_input_stream("k").read(10)
        assert since(count)[0] == (0, 8 << 20, None)
        count = len(live.requests)
        fs.get_file_info(FileSelector("", recursive=True))
        fs.get_file_info("k")
        assert since(count) == [ListRequest, StatRequest]
        fs.handler.close()

    def test_views_are_the_memory_of_blocks(self, memory: Any) -> None:
        """Two reads of the same bytes are at the same address: nothing was copied."""
        write(memory, "k", bytes(2 << 20))
        file = memory.open_input_file("k")
        file.read()
        one, other = file.read_buffer(1 << 20), None
        file.seek(0)
        one, other = file.read_buffer(1 << 20), file.read_at(1, 0)
        file.seek(0)
        again = file.read_buffer(1 << 20)
        assert (one.address == again.address, other) == (True, b"\0")


class TestWriting:
    def test_an_object_appears_when_its_stream_is_closed(self, fs: Any) -> None:
        stream = fs.open_output_stream("a/b/1")
        stream.write(b"12")
        stream.write(pa.py_buffer(b"34"))
        stream.flush()
        assert stream.tell() == 4
        assert not fs.get_file_info("a/b/1").is_file
        stream.close()
        stream.close()
        assert fs.open_input_file("a/b/1").read() == b"1234"

    def test_metadata_describes_the_object(self, memory: Any) -> None:
        described = {
            "Content-Type": "text/csv",
            "content-encoding": "identity",
            "Content-Disposition": "inline",
            "Cache-Control": "no-store",
            "Content-Language": "de",
            "expires": "Wed, 21 Oct 2026 07:28:00 GMT",
            "owner": "me",
        }
        write(memory, "k", metadata=described)
        op = memory.handler.operator
        metadata = ap.sync.run(op.stat("k"))
        assert (metadata.content_type, metadata.content_encoding) == ("text/csv", "identity")
        assert (metadata.content_disposition, metadata.cache_control) == ("inline", "no-store")
        assert (metadata.content_language, metadata.expires) == ("de", "Wed, 21 Oct 2026 07:28:00 GMT")
        assert metadata.user_metadata == {"owner": "me"}

    def test_metadata_that_cannot_be_kept_is_refused(self, memory: Any) -> None:
        with pytest.raises(ap.Unsupported, match="ACL"):
            memory.open_output_stream("k", metadata={"ACL": "x"})
        with pytest.raises(ap.InvalidArgument, match="UTF-8"):
            memory.open_output_stream("k", metadata={b"name": b"\xff"})

    def test_nothing_is_appended(self, memory: Any) -> None:
        write(memory, "k")
        with pytest.raises(ap.Unsupported, match="open_output_stream"):
            memory.open_append_stream("k")

    @checks("reliability:W43")
    def test_a_stream_that_is_dropped_writes_nothing(self, fs: Any, caplog: pytest.LogCaptureFixture) -> None:
        stream = fs.open_output_stream("k")
        stream.write(bytes(3 << 20))
        del stream
        assert fs.get_file_info("k").type == FileType.NotFound
        assert "dropped before it was closed" in caplog.text

    def test_a_directory_is_no_object(self, fs: Any) -> None:
        with pytest.raises(IsADirectoryError):
            fs.open_output_stream("")

    def test_each_failing_request_of_a_write_leaves_no_object(self, s3_server: CountingS3Server) -> None:
        """The first request of an upload in parts fails, the second, and so on, until there is none left to fail."""
        s3_server.create_bucket("arrow-failing")
        options = options_of(s3_server)
        for number in range(20):
            plan = tuple(
                Injection(operation=operation, occurrence=number, error=ap.PermissionDenied)
                for operation in ("write", "begin_upload", "complete_upload")
            )
            op = ap.Operator.from_uri("s3://arrow-failing", attempts_max=1, part_bytes=5 << 20, **options)
            fs = ap.arrow.filesystem(op.layer(FaultLayer(plan)))
            error = write_in_pieces(fs, "k", pieces=11)
            info = fs.get_file_info("k")
            uploads = ap.sync.run(op.abort_uploads())
            fs.handler.close()
            if error is None:
                break
            assert isinstance(error, ap.PermissionDenied)
            assert (info.type, uploads) == (FileType.NotFound, 0)
        assert number >= 2
        assert (info.size, uploads) == (11 << 20, 0)


def write_in_pieces(fs: Any, path: str, *, pieces: int) -> Exception | None:
    """Write pieces of 1 MiB; the first error, if one was raised."""
    stream = fs.open_output_stream(path)
    try:
        for _ in range(pieces):
            stream.write(bytes(1 << 20))
        stream.close()
    except Exception as error:
        with contextlib.suppress(ap.Closed):
            stream.close()
        return error
    return None


class TestOneFileSystem:
    def test_equal_file_systems_reach_the_same_objects(self) -> None:
        first, second = ap.Operator.from_uri("memory://one"), ap.Operator.from_uri("memory://two")
        fs = ap.arrow.filesystem(first)
        assert fs == ap.arrow.filesystem(first) == ap.arrow.filesystem(ap.Operator.from_uri("memory://one"))
        assert fs != ap.arrow.filesystem(second)
        assert fs != ap.arrow.filesystem(first.layer(FaultLayer()))
        assert fs != pafs.LocalFileSystem()
        assert len({fs.handler, ap.arrow.filesystem(first).handler, ap.arrow.filesystem(second).handler}) == 2
        assert fs.handler != first
        private = ap.Operator(ap.services.Memory()), ap.Operator(ap.services.Memory())
        assert ap.arrow.filesystem(private[0]) != ap.arrow.filesystem(private[1])

    def test_its_name_and_its_paths(self, memory: Any) -> None:
        assert memory.type_name == "py::aioprefetch+memory"
        assert memory.normalize_path("a//b/") == "a//b/"
        assert memory.normalize_path("/a") == "/a"
        assert "memory://" in repr(memory.handler)

    def test_it_takes_an_operator_alone(self) -> None:
        with pytest.raises(TypeError, match="from_uri"):
            ap.arrow.filesystem("s3://bucket")  # type: ignore[arg-type]

    def test_it_pickles_without_secrets(self, s3_server: CountingS3Server) -> None:
        op = ap.Operator.from_uri(
            "s3://bucket", endpoint_url=s3_server.endpoint_url, access_key_id="id", secret_access_key="verysecret"
        )
        fs = ap.arrow.filesystem(op)
        pickled = pickle.dumps(fs)
        assert b"verysecret" not in pickled
        assert pickle.loads(pickled) == fs
        assert "verysecret" not in repr(fs.handler)

    def test_copies_between_file_systems(self, fs: Any, tmp_path: Path) -> None:
        """Arrow's ``copy_files``, both ways; within one file system it is a copy of the store."""
        (tmp_path / "in").mkdir()
        for name in ("1", "2"):
            (tmp_path / "in" / name).write_bytes(name.encode() * 2_000_000)
        local = pafs.LocalFileSystem()
        pafs.copy_files(str(tmp_path / "in"), "up", source_filesystem=local, destination_filesystem=fs)
        pafs.copy_files("up", "again", source_filesystem=fs, destination_filesystem=fs)
        (tmp_path / "out").mkdir()
        pafs.copy_files("again", str(tmp_path / "out"), source_filesystem=fs, destination_filesystem=local)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1", "2"]
        assert (tmp_path / "out" / "2").read_bytes() == b"2" * 2_000_000

    def test_a_part_of_it_is_a_file_system_too(self, fs: Any) -> None:
        part = pafs.SubTreeFileSystem("a/b", fs)
        write(part, "c/1")
        assert sorted(found(fs)) == ["a", "a/b", "a/b/c", "a/b/c/1"]
        assert sorted(found(part)) == ["c", "c/1"]

    @pytest.mark.parametrize("base", ["t", "t/"])
    def test_a_dataset_is_written_and_read_at_the_root_of_a_part(self, fs: Any, base: str) -> None:
        part = pafs.SubTreeFileSystem(base, fs)
        table = pa.table({"a": [1, 2, 3]})
        ds.write_dataset(table, "", filesystem=part, format="parquet")
        assert ds.dataset("", filesystem=part, format="parquet").to_table() == table
        assert ds.dataset(base, filesystem=fs, format="parquet").to_table() == table


class TestThreadsAndLoops:
    async def test_it_may_be_called_where_a_loop_runs(self, memory: Any) -> None:
        """As in a cell of a notebook: the loop stands still meanwhile."""
        write(memory, "a/1")
        assert memory.open_input_file("a/1").read() == b"data"
        assert sorted(found(memory)) == ["a", "a/1"]
        await asyncio.sleep(0)

    def test_many_threads(self, memory: Any) -> None:
        wrong: list[object] = []

        def work(number: int) -> None:
            try:
                data = b"%d" % number * 50_000
                write(memory, f"t/{number}", data)
                read = [memory.open_input_file(f"t/{number}").read() for _ in range(3)]
                assert read == [data] * 3
                memory.move(f"t/{number}", f"u/{number}")
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert wrong == []
        assert len(found(memory, "u")) == 64


class WritingMeanwhile(VerbLayer):
    """Objects are written by others, before the first copy or rename."""

    def __init__(self, *paths: str) -> None:
        self.paths = list(paths)

    async def copy(self, inner: Accessor, request: CopyRequest) -> Metadata:
        await self._write(inner)
        return await inner.copy(request)

    async def rename(self, inner: Accessor, request: RenameRequest) -> Metadata:
        await self._write(inner)
        return await inner.rename(request)

    async def _write(self, inner: Accessor) -> None:
        while self.paths:
            await inner.write(WriteRequest(path=self.paths.pop()), b"others")


async def _accessor(op: ap.Operator) -> object:
    return op.accessor()


@pytest.mark.parametrize("is_read", [True, False])
def test_the_end_of_a_program_waits_for_a_file_that_is_still_open(is_read: bool) -> None:
    """Arrow drops it on a thread of its own. A closed one that a caller still has is not waited for."""

    def opened(path: str) -> ReadFile | WriteFile:
        return ReadFile(op.operator, path, Footers()) if is_read else WriteFile(op.operator, path, {})

    with ap.sync.BlockingOperator(ap.Operator(ap.services.Memory())) as op:
        closed, held = opened("closed"), [opened("k")]
        closed.close()
        waiting = threading.Thread(target=wait_for_dropped, args=(60.0, 60.0))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        held.clear()
        waiting.join(30.0)
        assert not waiting.is_alive()
