"""Files of the file system: read, written, in transactions, pickled, in other processes and loops."""

import asyncio
import gc
import gzip
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from operator import methodcaller
from typing import Any

import fsspec
import pytest
from fsspec.transaction import Transaction

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem
from aioprefetch.testing import CountingS3Server, FaultServer, content
from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import run_program
from tests.repository.source_tree import ROOT

DATA = content(3 << 20)


@pytest.fixture
def fs(random_name: Callable[[], str]) -> Iterator[AioPrefetchFileSystem]:
    """A file system over a memory of its own, with one object."""
    fs = AioPrefetchFileSystem(ap.Operator.from_uri(f"memory://{random_name()}"))
    fs.pipe("k", DATA)
    yield fs
    fs.close()


class TestReading:
    def test_opening_sends_nothing_and_reading_one_request(self, s3_server: CountingS3Server) -> None:
        s3_server.create_bucket("opened")
        fs = fsspec.filesystem(
            "aioprefetch+s3", endpoint_url=s3_server.endpoint_url, region=s3_server.region, key="a", secret="b"
        )
        fs.pipe("opened/k", DATA)
        s3_server.reset()
        with fs.open("opened/k") as file:
            assert s3_server.requests == []
            assert file.read(10) == DATA[:10]
            assert file.seek(-10, 2) == len(DATA) - 10
            assert file.read() == DATA[-10:]
            assert file.size == len(DATA)
        assert [request.method for request in s3_server.requests] == ["GET"]
        fs.close()

    def test_text_compression_and_names(self, fs: AioPrefetchFileSystem) -> None:
        fs.pipe("t.gz", gzip.compress("ä\nb\n".encode()))
        with fs.open("t.gz", "rt", compression="gzip", encoding="utf-8") as file:
            assert file.readlines() == ["ä\n", "b\n"]
        with fs.open("k") as file:
            assert (file.path, file.full_name, file.info()["size"]) == ("k", "aioprefetch://k", len(DATA))
            assert file.details == fs.info("k")

    def test_what_is_missing_is_found_out_by_the_first_read(self, fs: AioPrefetchFileSystem) -> None:
        with fs.open("nothing") as file, pytest.raises(FileNotFoundError):
            file.read()

    def test_options_of_open(self, fs: AioPrefetchFileSystem) -> None:
        options: dict[str, Any] = {"block_size": 1 << 16, "cache_type": "none", "fill_cache": False}
        with fs.open("k", **options) as file:
            assert file.read(5) == DATA[:5]
        with pytest.raises(ap.ConfigInvalid, match="unknown option 'polcy'"):
            fs.open("k", polcy="random")

    def test_a_pickled_file_goes_on_where_it_was(self, fs: AioPrefetchFileSystem) -> None:
        with fs.open("k") as file:
            file.read(100)
            with pickle.loads(pickle.dumps(file)) as copy:
                assert copy.read(100) == DATA[100:200]
                fs.pipe("k", DATA[::-1])
            with pickle.loads(pickle.dumps(file)) as copy, pytest.raises(ap.ObjectChanged):
                copy.read_at(1 << 20, 10)

    def test_thousands_of_files_left_open_leave_nothing(self, fs: AioPrefetchFileSystem) -> None:
        """Not a thread, not a descriptor, and no warning: that is how fsspec's callers use them."""
        gc.collect()  # What tests before have left goes now, or meanwhile: there may be fewer in the end.
        descriptors = len(os.listdir("/dev/fd"))
        files = [fs.open("k") for _ in range(2000)]
        assert {file.read(1) for file in files[::20]} == {DATA[:1]}
        del files
        gc.collect()
        assert len(os.listdir("/dev/fd")) <= descriptors
        ap.sync.run(asyncio.sleep(0))
        statistics = fs.place_of("k").operator.statistics
        assert statistics["stream_read_opened"] == statistics["stream_read_closed"] == 100


class TestWriting:
    def test_an_object_appears_whole_when_the_file_closes(self, fs: AioPrefetchFileSystem) -> None:
        file = fs.open("w", "wb")
        for start in range(0, len(DATA), 100_000):
            assert file.write(DATA[start : start + 100_000]) == len(DATA[start : start + 100_000])
            assert file.tell() == start + len(DATA[start : start + 100_000])
            assert not fs.exists("w")
        file.close()
        file.close()
        assert fs.cat("w") == DATA
        with pytest.raises(ValueError, match="closed"):
            file.write(b"1")

    @checks("reliability:W43")
    def test_a_block_that_fails_leaves_nothing(self, fs: AioPrefetchFileSystem) -> None:
        def write() -> None:
            with fs.open("w", "wb") as file:
                file.write(DATA)
                raise KeyError

        with pytest.raises(KeyError):
            write()
        assert not fs.exists("w")
        assert fs.cat("k") == DATA

    def test_a_store_that_fails_raises_at_close_and_leaves_nothing(self) -> None:
        async def served() -> FaultServer:
            return await FaultServer({}).__aenter__()

        server = ap.sync.run(served())
        fs = AioPrefetchFileSystem("s3://bucket", endpoint_url=server.url, key="a", secret="b", attempts_max=1)
        file = fs.open("w", "wb")
        file.write(b"1")
        with pytest.raises(ap.Error):
            file.close()
        assert file.closed
        fs.close()
        ap.sync.run(server.__aexit__(None, None, None))

    def test_exclusive_files_do_not_replace(self, fs: AioPrefetchFileSystem) -> None:
        with pytest.raises(FileExistsError):
            fs.open("k", "xb")
        file = fs.open("w", "xb")
        file.write(b"1")
        fs.pipe("w", b"of another writer")
        with pytest.raises(FileExistsError):
            file.close()
        assert fs.cat("w") == b"of another writer"

    def test_descriptions_go_along(self, fs: AioPrefetchFileSystem) -> None:
        with fs.open("w", "wb", ContentType="text/x", Metadata={"a": "b"}) as file:
            file.write(b"1")
        found = ap.sync.run(fs.place_of("w").operator.stat("w"))
        assert (found.content_type, found.user_metadata) == ("text/x", {"a": "b"})
        with pytest.raises(ap.ConfigInvalid, match="unknown option"):
            fs.open("w", "wb", colour="red")

    def test_a_transaction_ends_with_all_or_nothing(self, fs: AioPrefetchFileSystem) -> None:
        with fs.transaction:
            for name in ("t/1", "t/2"):
                with fs.open(name, "wb") as file:
                    file.write(DATA)
            assert not fs.exists("t/1")
        assert (fs.cat("t/1"), fs.cat("t/2")) == (DATA, DATA)

        def fail() -> None:
            with fs.transaction:
                with fs.open("t/3", "wb") as file:
                    file.write(DATA)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert fs.ls("t", detail=False) == ["t/1", "t/2"]

    def test_a_file_by_itself_is_committed_or_discarded(self, fs: AioPrefetchFileSystem) -> None:
        for end in ("commit", "discard"):
            file = fs.open(end, "wb", autocommit=False)
            file.write(DATA)
            file.close()
            assert not fs.exists(end)
            getattr(file, end)()
        assert fs.cat("commit") == DATA
        assert not fs.exists("discard")
        with pytest.raises(ap.errors.Closed, match="discarded: no object"):
            file.commit()
        assert not fs.exists("discard")

    def test_after_a_failed_transaction_writes_are_written(
        self, fs: AioPrefetchFileSystem, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With each fsspec that is allowed: those before 2026.9 stay in a transaction that fails."""
        monkeypatch.setattr(Transaction, "complete", complete_of_old)
        file = fs.open("t/open", "wb")

        def write() -> None:
            with fs.transaction:
                fs.open("t/whole", "wb").close()
                nonlocal file
                file = fs.open("t/open", "wb")

        file.discard()
        with pytest.raises(ValueError, match="still open"):
            write()
        with fs.open("later", "wb") as file:
            file.write(b"1")
        assert (fs.cat("later"), fs.exists("t")) == (b"1", False)


def complete_of_old(self: Any, commit: bool = True) -> None:
    """``Transaction.complete`` of fsspec 2025.2, where a file fails."""
    while self.files:
        file = self.files.popleft()
        file.commit() if commit else file.discard()


class TestLoopsAndProcesses:
    async def test_verbs_that_block_work_where_a_loop_runs(self, fs: AioPrefetchFileSystem) -> None:
        """As in a notebook."""
        assert fs.cat("k") == DATA
        with fs.open("k") as file:
            assert file.read(3) == DATA[:3]

    async def test_the_session_of_s3fs_is_there_to_be_closed(self, fs: AioPrefetchFileSystem) -> None:
        its = AioPrefetchFileSystem(fs.place_of("k").operator, asynchronous=True)
        for _ in range(2):  # What was closed stays usable.
            session = await its.set_session()
            async with await its.open_async("k") as file:
                assert await file.read(5) == DATA[:5]
            await session.close()

    async def test_an_asynchronous_one_works_on_the_loop_that_awaits(self, fs: AioPrefetchFileSystem) -> None:
        operator = fs.place_of("k").operator
        its = AioPrefetchFileSystem(operator, asynchronous=True)
        assert its is not fs
        cat: Callable[..., object] = getattr(its, "_cat_file")  # noqa: B009 - the name of fsspec's protocol
        assert await cat("k", start=1, end=4) == DATA[1:4]  # type: ignore[misc]
        async with await its.open_async("k") as file:
            file.seek(5)
            assert (await file.read(5), file.tell()) == (DATA[5:10], 10)
        async with await its.open_async("w", "wb") as file:
            await file.write(b"12")
        assert fs.cat("w") == b"12"
        with pytest.raises(RuntimeError):
            its.cat("k")
        await its.aclose()

    def test_a_child_goes_on_after_a_fork(self) -> None:
        """In a process of its own, whose other threads pytest does not know."""
        program = """
import os, aioprefetch as ap, fsspec
ap.fsspec.register()
fs = ap.fsspec.AioPrefetchFileSystem(ap.Operator.from_uri("memory://forked"))
fs.pipe("k", b"123")
kept, by_url = fs.open("k"), fsspec.filesystem("aioprefetch+memory")
assert kept.read(1) == b"1" and by_url.cat("forked/k") == b"123"
for _ in range(3):
    child = os.fork()
    if child == 0:
        try:
            assert kept.read() == b"23" and fs.cat("k") == b"123" and by_url.find("forked") == ["forked/k"]
            with fs.open("w", "wb") as file:
                file.write(b"1")
            assert fsspec.filesystem("aioprefetch+memory").cat("forked/w") == b"1"
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
print(fs.find(""))
"""
        run = subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, check=False)
        assert (run.stdout, run.stderr) == (b"['k']\n", b"")

    @checks("reliability:C19")
    def test_a_child_goes_on_after_a_fork_with_connections_open(self) -> None:
        program = """
import os, aioprefetch as ap
from aioprefetch.testing import CountingS3Server
with CountingS3Server() as server:
    server.create_bucket("forked")
    fs = ap.fsspec.S3FileSystem(
        endpoint_url=server.endpoint_url, region=server.region, key="a", secret="b", memory_bytes=16 << 20)
    fs.pipe("forked/k", bytes(range(256)) * 40_000)
    kept = fs.open("forked/k")
    assert kept.read(3) == b"\\0\\1\\2"
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                assert kept.read(2) == b"\\3\\4" and fs.cat_file("forked/k", -1) == bytes([255])
                assert "forked/k" in fs.ls("forked", detail=False)
                with fs.open("forked/w", "w", compression="gzip") as file:
                    file.write("child")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with fs.open("forked/w", "r", compression="gzip") as file:
        print(file.read(), kept.read(2) == b"\\3\\4")
    fs.close()
"""
        assert run_program(program) == "child True\n"

    def test_a_spawned_process_reads_by_a_pickled_file_system(self, s3_server: CountingS3Server) -> None:
        s3_server.create_bucket("spawned")
        fs = fsspec.filesystem(
            "aioprefetch+s3",
            endpoint_url=s3_server.endpoint_url,
            region=s3_server.region,
            key="a",
            secret="b",
            pickle_secrets=True,
        )
        fs.pipe("spawned/k", DATA)
        with get_context("spawn").Pool(1) as pool:
            assert pool.apply(methodcaller("cat_file", "spawned/k", 1, 4), (fs,)) == DATA[1:4]
            pool.close()
            pool.join()
        fs.close()
