"""Files to write: they appear at their end or not at all; text and compression are held to Python's own modules."""

import bz2
import gc
import gzip
import importlib
import io
import lzma
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO, assert_type

import pytest

from aioprefetch import Operator, sync
from aioprefetch.errors import (
    AlreadyExists,
    Closed,
    ConfigInvalid,
    InvalidArgument,
    InvalidType,
    MissingDependency,
    PermissionDenied,
    Unsupported,
)
from aioprefetch.sync import BlockingOperator, SyncFile, SyncWriteFile
from aioprefetch.sync.codecs import TextWriteFile
from aioprefetch.sync.write_file import PIECE_BYTES
from aioprefetch.testing.conformance.suite import checks
from aioprefetch.testing.fault_layer import FaultLayer, Injection
from tests.files.packed_files import ZSTD
from tests.profile import chosen, combinations

zstd = importlib.import_module(ZSTD)

TEXT = "Grüße, 世界\n" * 40_000 + "the end without a newline"
DATA = bytes(range(256)) * 20_000  # 5 MB: several pieces.
MODULES: dict[str, Any] = {"gzip": gzip, "bz2": bz2, "xz": lzma, "zstd": zstd}
CODECS: dict[str, Callable[[bytes], bytes]] = {name: module.decompress for name, module in MODULES.items()}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {name: module.compress for name, module in MODULES.items()}
SUFFIXES = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "zstd": ".zst"}
MODES = ["wb", "w", "xb", "x"]
FAILING = chosen(quick=[*zip([None, *CODECS], [*MODES, "w"], strict=True)], full=combinations([None, *CODECS], MODES))


@pytest.fixture(params=["memory", "fs"])
def blocking(request: pytest.FixtureRequest, random_name: Callable[[], str], tmp_path: Path) -> Iterator[Any]:
    uri = f"memory://{random_name()}" if request.param == "memory" else f"file://{tmp_path}"
    with BlockingOperator(Operator.from_uri(uri)) as operator:
        yield operator


@pytest.mark.parametrize("piece_bytes", [1, 7777, PIECE_BYTES, len(DATA)])
def test_bytes_written_in_pieces_are_there_after_the_block(blocking: BlockingOperator, piece_bytes: int) -> None:
    data = DATA[:5000] if piece_bytes == 1 else DATA
    with blocking.open("k", "wb") as file:
        for start in range(0, len(data), piece_bytes):
            assert file.write(data[start : start + piece_bytes]) == len(data[start : start + piece_bytes])
            assert file.tell() == min(start + piece_bytes, len(data))
        file.flush()
        assert not blocking.exists("k")
    assert file.closed
    assert file.metadata is not None
    assert (file.metadata.size, file.size) == (len(data), len(data))
    assert blocking.read("k") == data


def test_the_buffer_of_the_caller_may_change_after_the_call(blocking: BlockingOperator) -> None:
    buffer = bytearray(PIECE_BYTES // 2)
    with blocking.writer("k", content_type="text/x") as file:
        for number in range(5):
            buffer[:] = bytes([number]) * len(buffer)
            file.write(buffer)
        file.write(memoryview(b"a-b-c")[::2])
    expected = b"".join(bytes([number]) * len(buffer) for number in range(5)) + b"abc"
    assert blocking.read("k") == expected


def drop(files: list[Any]) -> None:
    """Forget files, those too that refer to themselves, as the codecs of Python 3.12 and later do."""
    files.clear()
    gc.collect()


@pytest.mark.parametrize(("compression", "mode"), FAILING)
def test_a_failing_block_leaves_nothing(
    blocking: BlockingOperator, mode: str, compression: Any, unraisable: list[str]
) -> None:
    """Nor does a file that is collected unclosed: Python's own would write what it has."""
    blocking.write("old", b"old")
    for path in ("new", "old") if "w" in mode else ("new",):
        file = blocking.open(path, mode, compression=compression)

        def fail(file: Any = file) -> None:
            with file:
                file.write("begun" if "b" not in mode else b"begun")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert file.closed
        files = [blocking.open(path, mode, compression=compression)]
        files[0].write("begun" if "b" not in mode else b"begun")
        del file
        drop(files)
        assert "no object is written" in unraisable.pop()
    assert not blocking.exists("new")
    assert blocking.read("old") == b"old"


@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-16", "latin-1"])
def test_text_is_encoded_as_pythons_own(
    blocking: BlockingOperator, newline: str | None, encoding: str | None, tmp_path: Path
) -> None:
    text = TEXT if encoding != "latin-1" else TEXT.replace("世界", "Welt")
    with open(tmp_path / "own", "w", encoding=encoding or "utf-8", newline=newline) as own:
        own.write(text)
    with blocking.open("k", "w", encoding=encoding, newline=newline) as file:
        assert (file.mode, file.writable(), file.readable()) == ("w", True, False)
        file.write(text)
    assert blocking.read("k") == (tmp_path / "own").read_bytes()
    with (
        open(tmp_path / "own", encoding=encoding or "utf-8", newline=newline) as own,
        blocking.open("k", "r", encoding=encoding, newline=newline) as read,
    ):
        assert list(read) == list(own)
        assert read.seek(0) == 0
        assert own.seek(0) == 0
        assert read.read(10) == own.read(10)


def test_text_that_cannot_be_encoded_is_as_errors_says(blocking: BlockingOperator) -> None:
    with blocking.open("k", "w", encoding="ascii", errors="replace") as file:
        file.write("ü!")
    assert blocking.read("k") == b"?!"
    strict = blocking.open("n", "w", encoding="ascii")

    def fail() -> None:
        with strict:
            strict.write("ü!")

    with pytest.raises(UnicodeEncodeError):
        fail()
    assert not blocking.exists("n")


@pytest.mark.parametrize("compression", CODECS)
def test_compressed_objects_go_both_ways_between_ours_and_pythons(blocking: BlockingOperator, compression: Any) -> None:
    path = f"k{SUFFIXES[compression]}"
    for given, data in zip(list[Any]([compression, "infer"]), (DATA, DATA[:700_000]), strict=True):
        with blocking.open(path, "wb", compression=given) as file:
            for start in range(0, len(data), 300_000):
                file.write(data[start : start + 300_000])
            assert file.tell() == len(data)
        assert CODECS[compression](blocking.read(path)) == data
        with blocking.open(path, "w", compression=given, newline="\r\n") as text:
            text.write(TEXT)
        assert CODECS[compression](blocking.read(path)) == TEXT.replace("\n", "\r\n").encode()
        blocking.write(path, COMPRESS[compression](TEXT.encode()))
        with blocking.open(path, "r", compression=given) as text:
            assert list(text) == list(io.StringIO(TEXT))
        read: Any = blocking.open(path, "rb", compression=given)
        with read:
            assert read.seek(100) == 100
            assert read.read(5) == TEXT.encode()[100:105]
            assert read.tell() == 105
            assert read.readline() == TEXT.encode()[105:].partition(b"\n")[0] + b"\n"
            buffer = bytearray(10)
            read.seek(0)
            assert read.readinto(buffer) == 10
            assert bytes(buffer) == TEXT.encode()[:10]
        assert read.closed


def test_bytes_are_taken_as_they_are_unless_a_codec_is_asked_for(blocking: BlockingOperator) -> None:
    with blocking.open("k.gz", "wb") as file:
        file.write(b"plain")
    with blocking.open("k.gz") as read:
        assert read.read() == b"plain"
    with blocking.open("k.txt", "w", compression="infer") as text:
        text.write("plain")
    assert blocking.read("k.txt") == b"plain"


@pytest.mark.parametrize("compression", CODECS)
def test_a_compressed_object_that_is_cut_off_is_no_end(blocking: BlockingOperator, compression: str) -> None:
    path = f"k{SUFFIXES[compression]}"
    blocking.write(path, COMPRESS[compression](DATA[:1_000_000])[:-10])
    with blocking.open(path, "rb", compression="infer") as file, pytest.raises(EOFError):
        file.read()


@pytest.mark.parametrize("mode", ["rb", "w"])
def test_without_zstd_the_error_names_the_package(
    blocking: BlockingOperator, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, ZSTD, None)
    blocking.write("k.zst", b"there")
    with pytest.raises(MissingDependency, match=r"pip install backports\.zstd"):
        blocking.open("k.zst", mode, compression="infer")
    assert blocking.read("k.zst") == b"there"


def test_exclusive_modes_refuse_to_replace(blocking: BlockingOperator) -> None:
    with blocking.open("k", "xb") as file:
        file.write(b"first")
    late = blocking.open("n", "x")
    late.write("second")
    blocking.write("n", b"first")
    with pytest.raises(FileExistsError) as caught:
        late.close()
    assert isinstance(caught.value, AlreadyExists)
    with pytest.raises(AlreadyExists):
        blocking.open("k", "x").close()
    assert blocking.read("k") == blocking.read("n") == b"first"


def test_by_a_url_with_the_options_of_the_store_and_of_the_write(random_name: Callable[[], str]) -> None:
    url = f"memory://{random_name()}/dir/k"
    with sync.open(url, "w", memory_bytes=64 << 20, content_type="text/x", user_metadata={"a": "b"}) as file:
        file.write("hello")
    with sync.open(url, "r") as read:
        assert read.read() == "hello"
    with BlockingOperator(Operator.from_uri(url.rpartition("/dir")[0])) as operator:
        found = operator.stat("dir/k")
    assert (found.content_type, found.user_metadata) == ("text/x", {"a": "b"})
    with pytest.raises(ConfigInvalid, match="called 'content_type'"):
        sync.open(url, "wb", contenttype="x")  # type: ignore[call-overload]
    with pytest.raises(ConfigInvalid, match="policy"):
        sync.open(url, "wb", policy="random")


def test_what_a_file_to_write_does_not_do(blocking: BlockingOperator) -> None:
    file: Any = blocking.open("k", "wb")
    assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
    file.write(b"abc")
    calls: tuple[Callable[[], object], ...] = (
        *(lambda: file.read(), lambda: file.seek(3), lambda: file.truncate(0), lambda: file.fileno()),
        *(lambda: file.readline(), lambda: next(file)),
    )
    for call in calls:
        with pytest.raises(io.UnsupportedOperation):
            call()
    for wrong in ("text", 5, None):
        with pytest.raises(InvalidType):
            file.write(wrong)
    file.close()
    file.close()
    assert blocking.read("k") == b"abc"
    for call in (lambda: file.write(b"x"), file.flush, file.tell, file.writable):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_open_files_refuse_to_be_pickled(blocking: BlockingOperator) -> None:
    given: list[dict[str, Any]] = [{}, {"compression": "gzip"}]
    for options in given:
        for mode in ("wb", "w"):
            file: Any = blocking.open("k", mode, **options)
            with pytest.raises(InvalidType, match="open the path again"):
                pickle.dumps(file)
            file.discard()
    assert not blocking.exists("k")


@pytest.mark.parametrize("mode", ["r", "w", "rb", "wb"])
def test_options_that_do_not_fit_are_refused_before_anything_opens(blocking: BlockingOperator, mode: str) -> None:
    blocking.write("k", b"x")
    for compression in ("lz4", "GZIP", ""):
        with pytest.raises(InvalidArgument, match="compression="):
            blocking.open("k", mode, compression=compression)  # type: ignore[call-overload]
    if "b" in mode:
        given: list[dict[str, Any]] = [{"encoding": "utf-8"}, {"errors": "strict"}, {"newline": ""}]
        for options in given:
            with pytest.raises(ValueError, match="goes with text, and mode="):
                blocking.open("k", mode, **options)
    else:
        with pytest.raises(LookupError):
            blocking.open("k", mode, encoding="no-such-encoding")
        with pytest.raises(ValueError, match="newline"):
            blocking.open("k", mode, newline="x")
    assert blocking.read("k") == b"x"


def test_a_write_through_a_file_is_seen_by_the_next_read_at(blocking: BlockingOperator) -> None:
    blocking.write("k", b"first")
    assert blocking.read_at("k", 0, 5) == b"first"
    with blocking.open("k", "wb") as file:
        file.write(b"other")
    assert blocking.read_at("k", 0, 5) == b"other"


def test_threads_write_one_at_a_time(blocking: BlockingOperator) -> None:
    with blocking.open("k", "wb") as file:
        pieces = [bytes([number]) * (PIECE_BYTES // 3) for number in range(12)]
        threads = [threading.Thread(target=file.write, args=(piece,)) for piece in pieces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    data, step = blocking.read("k"), PIECE_BYTES // 3
    assert sorted(data[start : start + step] for start in range(0, len(data), step)) == pieces


def test_a_child_process_leaves_the_file_to_its_parent(blocking: BlockingOperator) -> None:
    file = blocking.open("k", "wb")
    file.write(b"parent")
    child = os.fork()
    if not child:
        status = 1
        try:
            file.write(b"child")
        except Unsupported:
            status = 0
        del file
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    file.close()
    assert blocking.read("k") == b"parent"


def test_a_file_whose_write_has_failed_writes_no_object(random_name: Callable[[], str]) -> None:
    """Also where the error was swallowed: bytes are missing."""
    operator = Operator.from_uri(f"memory://{random_name()}").layer(FaultLayer((Injection(error=PermissionDenied),)))
    with BlockingOperator(operator) as blocking:
        file = blocking.open("k", "wb")
        file.write(b"begun")
        with pytest.raises(PermissionDenied):
            file.write(bytes(PIECE_BYTES))
        with pytest.raises(Closed, match="no object"):
            file.close()
        assert file.closed
        assert not blocking.exists("k")


def test_its_type_and_repr(blocking: BlockingOperator) -> None:
    with blocking.open("k", "wb") as file:
        assert isinstance(file, SyncWriteFile)
        assert (file.name, file.mode) == ("k", "wb")
        assert "'k' at 0" in repr(file)
    assert "closed" in repr(file)


def test_the_type_of_a_file_goes_by_its_mode(blocking: BlockingOperator) -> None:
    """For type checkers, and when it runs."""
    with blocking.open("k", "w") as text:
        assert_type(text, TextWriteFile)
        text.write("text")
    with blocking.open("k.gz", "wb", compression="infer") as packed:
        assert_type(packed, IO[bytes])
        packed.write(b"packed")
    with blocking.open("k", "wb") as file:
        assert_type(file, SyncWriteFile)
        file.write(b"text")
    with blocking.open("k", "r", encoding="ascii") as read:
        assert_type(read, TextIO)
        assert read.readline() == "text"
    with blocking.open("k.gz", compression="gzip") as unpacked:
        assert_type(unpacked, IO[bytes])
        assert unpacked.read() == b"packed"
    with blocking.open("k") as plain:
        assert_type(plain, SyncFile)
    with sync.open("k", "rt", operator=blocking.operator) as by_operator:
        assert_type(by_operator, TextIO)
    with sync.open("k", operator=blocking.operator, compression="infer") as bytes_of_it:
        assert_type(bytes_of_it, IO[bytes])
    with sync.open("k", "w", operator=blocking.operator) as written:
        assert_type(written, TextWriteFile)


@checks("reliability:W43")
@pytest.mark.parametrize("compression", CODECS)
def test_a_codec_that_was_interrupted_writes_no_object(
    blocking: BlockingOperator, compression: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the interruption was swallowed: the codec has taken a part of the piece."""
    file: Any = blocking.open("k", "wb", compression=compression)
    file.write(DATA[:1_000_000])
    classes = {"gzip": gzip.GzipFile, "bz2": bz2.BZ2File, "xz": lzma.LZMAFile, "zstd": zstd.ZstdFile}
    codec: Any = classes[compression]
    write = codec.write

    def interrupted(self: Any, data: Any) -> int:
        write(self, data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(codec, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.write(DATA[:1_000_000])
    monkeypatch.undo()
    with pytest.raises(Closed, match="no object"):
        file.close()
    assert file.closed
    assert not blocking.exists("k")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_what_is_not_bytes_is_refused_and_the_file_goes_on(blocking: BlockingOperator, compression: Any) -> None:
    with blocking.open("k", "wb", compression=compression) as file:
        file.write(b"one ")
        with pytest.raises(InvalidType, match="data must be bytes, not str: encode the text"):
            file.write("text")
        file.write(b"two")
    with blocking.open("k", compression=compression) as written:
        assert written.read() == b"one two"


@pytest.mark.parametrize("by", ["write", "flush", "close"])
def test_text_that_was_interrupted_on_its_way_writes_no_object(
    blocking: BlockingOperator, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python drops the text that it has gathered when the file below does not take it."""
    file = blocking.open("k", "w")
    file.write("a few words")
    write = SyncWriteFile.write

    def interrupted(self: SyncWriteFile, data: Any) -> int:
        monkeypatch.setattr(SyncWriteFile, "write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(SyncWriteFile, "write", interrupted)
    arguments = (TEXT,) if by == "write" else ()
    with pytest.raises(KeyboardInterrupt):
        getattr(file, by)(*arguments)
    if by != "close":
        with pytest.raises(Closed, match="no object"):
            file.close()
    assert file.closed
    file.close()
    assert not blocking.exists("k")


def test_a_store_that_cannot_write_is_refused_when_the_file_is_opened() -> None:
    with pytest.raises(Unsupported, match="the http service does not support write") as refused:
        sync.open("http://127.0.0.1:9/k", "wb")
    assert (refused.value.operation, refused.value.path) == ("open", "k")
