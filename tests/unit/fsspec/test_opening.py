"""Files by mode, text and compression: what a failing block leaves is nothing, also where others close the file."""

import bz2
import gzip
import io
import itertools
import lzma
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import fsspec
import fsspec.implementations.memory
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, HttpFileSystem
from aioprefetch.testing import FaultLayer, Injection
from aioprefetch.testing.conformance.suite import checks
from tests.unit.fsspec.s3_words import Bucket

TEXT = "äöü\nline two\n" * 100
COMPRESSED: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "gzip": gzip.decompress,
    "bz2": bz2.decompress,
    "xz": lzma.decompress,
    "lzma": lzma.decompress,
}
CODECS = [*COMPRESSED, "zip"]


class Failure(Exception):
    """What goes wrong in a block."""


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("mode", ["wb", "w", "xt"])
class TestModes:
    def test_what_is_written_is_read(self, fs: AioPrefetchFileSystem, mode: str, compression: str | None) -> None:
        data: Any = TEXT if "b" not in mode else TEXT.encode()
        with fs.open("k", mode, compression=compression) as file:
            file.write(data[:7])
            file.write(data[7:])
            assert not fs.exists("k")
        if compression in COMPRESSED:
            assert COMPRESSED[compression](fs.cat("k")) == TEXT.encode()
        with fs.open("k", "r" if "b" not in mode else "rb", compression=compression) as file:
            assert file.read(5) == data[:5]
            assert file.read() == data[5:]

    def test_a_block_that_fails_leaves_nothing(
        self, fs: AioPrefetchFileSystem, mode: str, compression: str | None
    ) -> None:
        def write() -> None:
            with fs.open("k", mode, compression=compression) as file:
                file.write(TEXT if "b" not in mode else TEXT.encode())
                raise Failure

        with pytest.raises(Failure):
            write()
        assert not fs.exists("k")

    def test_a_transaction_ends_with_all_or_nothing(
        self, fs: AioPrefetchFileSystem, mode: str, compression: str | None
    ) -> None:
        def write(*, fails: bool) -> None:
            with fs.transaction:
                with fs.open("t/k", mode, compression=compression) as file:
                    file.write(TEXT if "b" not in mode else TEXT.encode())
                assert not fs.exists("t/k")
                if fails:
                    raise Failure

        with pytest.raises(Failure):
            write(fails=True)
        assert not fs.exists("t/k")
        write(fails=False)
        with fs.open("t/k", "rb", compression=compression) as file:
            assert file.read() == TEXT.encode()


class TestFilesThatOthersClose:
    """``fsspec.open`` and libraries close their files without a word about the block that has failed."""

    @pytest.mark.parametrize("compression", [None, "gzip"])
    @pytest.mark.parametrize("mode", ["wb", "w"])
    def test_by_fsspec(self, random_name: Callable[[], str], mode: str, compression: str | None) -> None:
        url = f"aioprefetch+memory://{random_name()}/k"
        fs = fsspec.filesystem("aioprefetch+memory")

        def write(*, fails: bool) -> None:
            with fsspec.open(url, mode, compression=compression) as file:
                file.write("text" if "b" not in mode else b"text")
                if fails:
                    raise Failure

        with pytest.raises(Failure):
            write(fails=True)
        assert not fs.exists(url)
        write(fails=False)
        with fsspec.open(url, "rb", compression=compression) as file:
            assert file.read() == b"text"

    def test_a_block_in_the_handler_of_an_error_writes(self, random_name: Callable[[], str]) -> None:
        url = f"aioprefetch+memory://{random_name()}/report"
        try:
            raise Failure("why")
        except Failure as error:
            with fsspec.open(url, "w") as file:
                file.write(str(error))
        with fsspec.open(url, "r") as file:
            assert file.read() == "why"

    def test_a_file_that_its_owner_closes_is_written(self, fs: AioPrefetchFileSystem) -> None:
        """Also after a failure: a log is kept."""
        file = fs.open("log", "w")
        try:
            file.write("begun, ")
            raise Failure
        except Failure:
            file.write("failed")
            file.close()
        assert fs.cat("log") == b"begun, failed"

    def test_by_pandas(self, random_name: Callable[[], str]) -> None:
        class Unwritable:
            def __str__(self) -> str:
                raise Failure

        url = f"aioprefetch+memory://{random_name()}/t.csv"
        fs = fsspec.filesystem("aioprefetch+memory")
        with pytest.raises(Failure):
            pd.DataFrame({"c": [*range(20_000), Unwritable()]}).to_csv(url, chunksize=1_000)
        assert not fs.exists(url)
        pd.DataFrame({"c": range(3)}).to_csv(url, index=False)
        assert pd.read_csv(url)["c"].tolist() == [0, 1, 2]

    def test_by_pyarrow(self, fs: AioPrefetchFileSystem) -> None:
        def write(*, fails: bool) -> None:
            table = pa.table({"c": range(10)})
            with pq.ParquetWriter("k.parquet", table.schema, filesystem=fs) as writer:
                writer.write_table(table)
                if fails:
                    raise Failure

        with pytest.raises(Failure):
            write(fails=True)
        assert not fs.exists("k.parquet")
        write(fails=False)
        assert pq.read_table("k.parquet", filesystem=fs).num_rows == 10


class TestAppending:
    """The object is written again with what follows, by a reader and a writer."""

    def test_is_after_what_is_there(self, bucket: Bucket) -> None:
        fs, path = bucket.fs, f"{bucket.name}/log"
        for mode, text in (("a", "a"), ("at", "b"), ("a", "")):
            with fs.open(path, mode) as file:
                file.write(text)
        assert bucket.requests() == ["HEAD 404", "PUT 200", *["HEAD 200", "GET 206", "PUT 200"] * 2]
        with fs.open(path, "ab") as file:
            assert (file.tell(), file.write(b"c"), file.tell(), file.mode) == (2, 1, 3, "ab")
        assert fs.cat(path) == b"abc"

    def test_keeps_the_description(self, bucket: Bucket) -> None:
        bucket.fs.pipe_file(f"{bucket.name}/t.csv", b"1", ContentType="text/csv", Metadata={"a": "b"})
        given: list[dict[str, Any]] = [{}, {"content_type": "text/plain"}]
        for options in given:
            with bucket.fs.open(f"{bucket.name}/t.csv", "ab", **options) as file:
                file.write(b"2")
            found = ap.sync.BlockingOperator(bucket.fs.place_of(bucket.name).operator).stat("t.csv")
            assert found.content_type == options.get("content_type", "text/csv")
            assert found.user_metadata == {"a": "b"}

    @pytest.mark.parametrize("compression", [None, "gzip"])
    def test_of_compressed_text(self, fs: AioPrefetchFileSystem, compression: str | None) -> None:
        for text in ("one\n", "two\n"):
            with fs.open("log", "a", compression=compression) as file:
                file.write(text)
        with fs.open("log", "r", compression=compression) as file:
            assert file.read() == "one\ntwo\n"

    @checks("reliability:W18")
    @pytest.mark.parametrize(("path", "error"), [("a", ap.ConditionNotMatch), ("new", ap.AlreadyExists)])
    def test_loses_no_other_write(self, fs: AioPrefetchFileSystem, path: str, error: type[ap.Error]) -> None:
        file = fs.open(path, "ab")
        file.write(b"1")
        fs.pipe_file(path, b"of another writer")
        with pytest.raises(error):
            file.close()
        assert fs.cat(path) == b"of another writer"

    @checks("reliability:W18", "reliability:W43")
    @pytest.mark.parametrize("is_in_transaction", [False, True])
    def test_that_fails_changes_nothing(self, fs: AioPrefetchFileSystem, is_in_transaction: bool) -> None:
        def append() -> None:
            with fs.transaction if is_in_transaction else nullcontext():
                with fs.open("a", "ab") as file:
                    file.write(b"1")
                    if not is_in_transaction:
                        raise Failure
                raise Failure

        before = fs.cat("a")
        with pytest.raises(Failure):
            append()
        assert fs.cat("a") == before

    def test_that_cannot_read_leaves_nothing_open(self, fs: AioPrefetchFileSystem) -> None:
        plan = (Injection(operation="read", error=ap.PermissionDenied, times=None),)
        failing = AioPrefetchFileSystem(fs.place_of("a").operator.layer(FaultLayer(plan)))
        with pytest.raises(ap.PermissionDenied):
            failing.open("a", "ab")
        failing.close()

    def test_is_what_pandas_does_with_mode_a(self, fs: AioPrefetchFileSystem, random_name: Callable[[], str]) -> None:
        url = f"aioprefetch+memory://{random_name()}/t.csv"
        frame = pd.DataFrame({"a": [1, 2]})
        frame.to_csv(url, index=False)
        frame.to_csv(url, index=False, mode="a", header=False)
        assert list(pd.read_csv(url).a) == [1, 2, 1, 2]


class TestWhatIsRefused:
    @pytest.mark.parametrize("mode", ["a+", "ab+", "r+b", "w+"])
    def test_both_ways(self, fs: AioPrefetchFileSystem, mode: str) -> None:
        with pytest.raises(ap.Unsupported, match="an object is read or written, not both"):
            fs.open("a", mode)

    async def test_appending_that_is_awaited(self, fs: AioPrefetchFileSystem) -> None:
        with pytest.raises(ap.Unsupported, match="nothing is appended"):
            await fs.open_async("a", "ab")

    def test_appending_where_nothing_is_written(self) -> None:
        with pytest.raises(ap.Unsupported, match="does not support write"):
            HttpFileSystem().open("http://127.0.0.1:1/a", "ab")

    def test_modes_and_options_that_do_not_fit(self, fs: AioPrefetchFileSystem) -> None:
        for mode in ("z", "rw", "rbt", ""):
            with pytest.raises(ap.InvalidArgument, match="is not a mode"):
                fs.open("a", mode)
        with pytest.raises(ap.InvalidArgument, match="option of a text"):
            fs.open("a", "rb", encoding="utf-8")
        with pytest.raises(ap.InvalidArgument, match="'infer', 'bz2', 'gzip'"):
            fs.open("a", compression="gz")
        with pytest.raises(LookupError):
            fs.open("w", "w", encoding="no-such-encoding")
        assert not fs.exists("w")

    def test_a_transaction_with_an_open_file_writes_nothing(self, fs: AioPrefetchFileSystem) -> None:
        def write() -> None:
            with fs.transaction:
                with fs.open("t/1", "wb") as file:
                    file.write(b"1")
                fs.open("t/2", "w").write("buffered")

        with pytest.raises(ap.Closed, match="still open at the end of its transaction"):
            write()
        assert not fs.exists("t")
        with fs.transaction, fs.open("t/1", "wb") as file:
            file.write(b"1")
        assert fs.cat("t/1") == b"1"


def test_a_text_has_newlines_and_encodings(fs: AioPrefetchFileSystem) -> None:
    with fs.open("k", "w", encoding="utf-16", newline="\r\n") as file:
        file.write("a\nb\n")
    assert fs.cat("k") == "a\r\nb\r\n".encode("utf-16")
    with fs.open("k", "r", encoding="utf-16") as file:
        assert isinstance(file, io.TextIOBase)
        assert list(file) == ["a\n", "b\n"]


class TestTexts:
    """As fsspec's own file system in memory has them: the text, or the kind of the failure."""

    DATA = (b"a\r\nb\nc\rd", "ä\nö".encode(), "ä\nö".encode("utf-16"), b"\xe4\n", b"\xef\xbb\xbfa\n")
    TEXTS = (("a\nb\r\n", "ä\n"), ("\ud800",), ("a", "\r", "\nb"), ("x" * 200_000, "ä\n"))
    ENCODINGS = ("utf-8", "utf-16", "utf-8-sig", "ascii", "no-such-encoding", "rot13")
    ERRORS = (None, "ignore", "xmlcharrefreplace", "no-such-handler")
    NEWLINES = (None, "", "\r", "\r\n", "x")

    def test_are_read_and_written_by_every_option(self, fs: AioPrefetchFileSystem) -> None:
        theirs = fsspec.implementations.memory.MemoryFileSystem()
        for encoding, errors, newline in itertools.product(self.ENCODINGS, self.ERRORS, self.NEWLINES):
            options = {"encoding": encoding, "errors": errors, "newline": newline}
            for data in self.DATA:
                found = [read_text(one, data, options) for one in (fs, theirs)]
                assert found[0] == found[1], (data, options)
            for texts in self.TEXTS:
                found = [written_text(one, texts, options) for one in (fs, theirs)]
                assert found[0] == found[1], (texts, options)


def read_text(fs: Any, data: bytes, options: dict[str, Any]) -> object:
    fs.pipe_file("/texts/read", data)
    try:
        with fs.open("/texts/read", "rt", **options) as file:
            return file.readline(), file.read(3), file.readlines(), file.newlines, file.seek(0), file.read()
    except Exception as error:
        return kind_of(error)


def written_text(fs: Any, texts: tuple[str, ...], options: dict[str, Any]) -> object:
    try:
        with fs.open("/texts/written", "wt", **options) as file:
            counts = [file.write(text) for text in texts]
        return counts, fs.cat_file("/texts/written")
    except Exception as error:
        return kind_of(error)


def kind_of(error: Exception) -> type[Exception]:
    return next(kind for kind in (UnicodeError, LookupError, ValueError, Exception) if isinstance(error, kind))


def test_infer_goes_by_the_name(fs: AioPrefetchFileSystem) -> None:
    codecs: dict[str, Callable[[bytes], bytes]] = {"k.gz": gzip.decompress, "k.bz2": bz2.decompress, "k.txt": bytes}
    for name, codec in codecs.items():
        with fs.open(name, "w", compression="infer") as file:
            file.write("abc")
        assert codec(fs.cat(name)) == b"abc"
