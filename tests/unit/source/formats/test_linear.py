"""The CPU time of a file grows linearly with its size, for any bytes in any pieces.

Four times the input may take eight times the CPU of this thread; quadratic work takes sixteen times.
"""

import gzip
import itertools
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.source.columns.casts import CannotCast, cast_plain
from aioprefetch.source.columns.directories import DirectoryColumns
from aioprefetch.source.formats import file_bytes as zstd_stream
from aioprefetch.source.formats.conversion import DEPTH_MAX, read_rows
from aioprefetch.source.formats.csv_records import Quoting, RecordCutter
from aioprefetch.source.formats.file_bytes import decompressor
from aioprefetch.source.formats.jsonl import infer_json
from aioprefetch.source.formats.record_format import Wanted
from aioprefetch.source.formats.records import LineCutter, LineEnds, Lines, Transcoder
from aioprefetch.source.options import FormatOptions, ReadOptions
from tests.files.packed_files import zstd
from tests.profile import each_of
from tests.unit.source.formats.written_files import new_operator, put, read

TEXT = pa.schema([("value", pa.string())])
_SNAPPY = pa.Codec("snappy")


def cpu_seconds(call: Callable[[], object]) -> float:
    """The minimum of some runs, since the others shared the CPU caches with other processes."""
    taken = []
    for _ in range(2):
        started = time.thread_time()
        call()
        taken.append(time.thread_time() - started)
    return min(taken)


def assert_linear(run: Callable[[int], object], size: int) -> None:
    once, four_times = cpu_seconds(lambda: run(size)), cpu_seconds(lambda: run(4 * size))
    assert four_times < 8 * once + 0.005, (once, four_times)


def decompress(kind: str, pieces: Iterable[bytes]) -> bytes:
    stream, parts = decompressor(kind, "k"), []
    for piece in pieces:
        stream.feed(piece)
        while found := stream.take():
            parts.append(found)
    stream.finish()
    return b"".join(parts)


SMALL_PARTS = {
    "empty members": ("gzip", b"", gzip.compress(b"", mtime=0)),
    "members of a byte": ("gzip", b"", gzip.compress(b"x", mtime=0)),
    "members with padding": ("gzip", b"", gzip.compress(b"x", mtime=0) + bytes(60)),
    "empty frames": ("zstd", b"", zstd.compress(b"")),
    "frames of a byte": ("zstd", b"", zstd.compress(b"x")),
    "skippable frames": ("zstd", b"", b"\x50\x2a\x4d\x18" + bytes(4)),
    "empty blocks": ("snappy", b"", bytes(4)),
    "blocks of a byte": ("snappy", b"", struct.pack(">II", 1, 3) + _SNAPPY.compress(b"x", asbytes=True)),
    "padding": ("snappy", b"\xff\x06\x00\x00sNaPpY", b"\xfe\x00\x00\x00"),
}


@each_of("name", SMALL_PARTS)
def test_many_small_parts_of_a_compressed_file_in_one_piece(name: str) -> None:
    kind, head, part = SMALL_PARTS[name]
    size = {"gzip": 128 << 10, "zstd": 8 << 10, "snappy": 32 << 10}[kind]
    assert_linear(lambda count: decompress(kind, [head + part * (count // len(part))]), size)


@pytest.mark.parametrize("name", [name for name, (kind, _, _) in SMALL_PARTS.items() if kind != "snappy"])
def test_small_parts_are_given_little_more_than_their_own_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decompressor copies unused input: a member of 20 bytes must not cost 32 KiB."""
    kind, head, part = SMALL_PARTS[name]
    given = 0

    class Counted:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def decompress(self, data: bytes, room: int) -> bytes:
            nonlocal given
            given += len(data)
            found: bytes = self.inner.decompress(data, room)
            return found

    make = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda bits: Counted(make(bits)))
    counted = SimpleNamespace(ZstdError=zstd.ZstdError, ZstdDecompressor=lambda: Counted(zstd.ZstdDecompressor()))
    monkeypatch.setattr(zstd_stream, "_zstd", lambda path: counted)
    data = head + part * 1000
    decompress(kind, [data])
    assert len(data) / 4 <= given <= 1000 * (len(part) + 256)


async def test_a_file_of_empty_members_is_read() -> None:
    parts = {".gz": gzip.compress(b""), ".zst": zstd.compress(b""), ".snappy": bytes(4)}
    lines = {".gz": gzip.compress(b"x\n"), ".zst": zstd.compress(b"x\n"), ".snappy": struct.pack(">II", 2, 4)}
    lines[".snappy"] += _SNAPPY.compress(b"x\n", asbytes=True)
    async with new_operator() as operator:
        for suffix, part in parts.items():
            file = await put(operator, f"a.txt{suffix}", part * 3000 + lines[suffix] + part * 5000)
            assert [row["value"] for row in (await read(operator, file, TEXT)).rows] == ["x"]


# --- long lines, and many pieces ------------------------------------------------------------------------------------


@each_of("separator", [None, b"|", b"<>"])
@each_of(("start", "end"), [(0, None), (50, None), (0, 100), (50, 100)])
def test_a_line_that_comes_in_many_pieces(separator: bytes | None, start: int, end: int | None) -> None:
    def run(count: int) -> None:
        cutter = LineCutter(LineEnds(separator), path="k", start=start, end=end)
        cutter.push(b"x" * 60 + (separator or b"\n"))
        for _ in range(count):
            cutter.push(b"xxxx")
        cutter.finish()

    assert_linear(run, 4000)


def test_a_line_that_crosses_the_end_of_its_range_is_joined_once() -> None:
    cutter = LineCutter(LineEnds(None), path="k", start=0, end=10)
    for _ in range(1000):
        assert cutter.push(b"x" * 7) is None
    found = cutter.push(b"y\r")
    assert found is None
    found = cutter.push(b"\nnext\n")
    assert found is not None
    assert (found.data, found.offset, cutter.is_done) == (b"x" * 7000 + b"y\r\n", 0, True)


QUOTING = Quoting(delimiter=",", quote='"', escape=None, multi_line=True)


@pytest.mark.parametrize("piece", [b"xxxx", b'x\n""', b'","', b"\n\n"], ids=["text", "quotes", "fields", "lines"])
@pytest.mark.parametrize("begin", [b'a,"', b"a,"], ids=["open", "closed"])
def test_a_record_of_csv_that_comes_in_many_pieces(begin: bytes, piece: bytes) -> None:
    def run(count: int) -> None:
        cutter = RecordCutter(QUOTING, path="k")
        for one in itertools.chain([begin], itertools.repeat(piece, count)):
            cutter.push(one)

    assert_linear(run, 4000)


@each_of("text", [b'a,"x""y",b\n', b'a"b,"c"d\n', b'"', b'"a', b'"\n', b'\\"', b"a\n"])
@each_of("escape", [None, "\\"])
def test_quotes_of_any_kind(text: bytes, escape: str | None) -> None:
    quoting = Quoting(delimiter=",", quote='"', escape=escape, multi_line=True)

    def run(count: int) -> None:
        data = text * count
        quoting.fault(data)
        quoting.spans(data)
        quoting.doubled(data)

    assert_linear(run, 10_000)


@each_of("encoding", ["utf-7", "utf-16", "shift_jis", "iso2022_jp", "gb18030"])
def test_text_of_several_bytes_a_character_in_many_pieces(encoding: str) -> None:
    """A base64 section of UTF-7 may end only with the line."""
    text = "あ" * 20_000
    data = text.encode(encoding)

    def run(count: int) -> bytes:
        transcoder = Transcoder(encoding, "k")
        return b"".join([transcoder.push(data[at : at + 3]) for at in range(0, min(count, len(data)), 3)])

    assert text.encode().startswith(run(300))
    assert_linear(run, 8000)


def test_a_sample_of_records_each_with_a_name_of_its_own() -> None:
    def run(count: int) -> None:
        data = b"".join(b'{"k%d":{"k%d":1}}\n' % (number, number) for number in range(count))
        assert len(infer_json(Lines(data, 0), LineEnds(None), "k")) == count

    assert_linear(run, 3000)


JSON_ENDS = {"none": b"", "a closing quote": b'"', "half of an escape": b"\\"}


@pytest.mark.parametrize("end", JSON_ENDS)
@pytest.mark.parametrize(
    "text", [b'\\"', b"\\\\", b'"', b'[{"', b"x"], ids=["escaped", "escapes", "quotes", "deep", "text"]
)
def test_strings_in_json_that_is_nested_too_deep(text: bytes, end: str) -> None:
    """The depth of nesting is counted outside of strings, even if the last string is not closed."""
    want = Wanted(TEXT, FormatOptions(), ReadOptions())

    def run(count: int) -> None:
        lines = Lines(b'{"value":' + b"[" * DEPTH_MAX + b'"' + text * count + JSON_ENDS[end], 0)
        with pytest.raises(UntrustedMetadata):
            infer_json(lines, LineEnds(None), "k")
        with pytest.raises(UntrustedMetadata):
            read_rows(lines, LineEnds(None), want, "k")

    assert_linear(run, 4000)


# --- long numbers -----------------------------------------------------------------------------------------------------


@each_of("text", ["{}x", "{}.", ".{}x", "{}e{}", "1e{}x"])
def test_a_long_text_that_is_nearly_a_decimal(text: str) -> None:
    def run(count: int) -> None:
        with pytest.raises(CannotCast):
            cast_plain(pa.array([text.replace("{}", "1" * count)]), pa.decimal128(38, 10))

    assert_linear(run, 5000)


@each_of("text", ["{}x", "0.{}x", ".{}x", "1e{}x"])
def test_a_directory_whose_value_is_nearly_a_number(text: str) -> None:
    def run(count: int) -> None:
        columns = DirectoryColumns()
        columns.add(f"day={text.replace('{}', '1' * count)}/f")
        assert columns.fields() == [pa.field("day", pa.string())]

    assert_linear(run, 5000)
