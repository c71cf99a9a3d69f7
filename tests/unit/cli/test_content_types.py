"""The content type of what is written: by its name, through every door, and never by the files of a machine."""

import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import cpu

import aioprefetch as ap
from aioprefetch.accessor.content_types import content_type_of
from aioprefetch.cli import main
from tests.profile import each_of
from tests.unit.cli.commands import Bucket

HTML = "text/html"
NONE = "binary/octet-stream"  # What S3 says where none was sent.


@each_of(
    ("path", "kind", "unpacked"),
    [
        ("a/b.parquet", "application/vnd.apache.parquet", "application/vnd.apache.parquet"),
        ("B.JSON", "application/json", "application/json"),
        ("a.tar.gz", "application/gzip", "application/x-tar"),
        ("a.tgz", "application/gzip", "application/x-tar"),
        ("a.csv.zst", "application/zstd", "text/csv"),
        ("a.csv.br", None, "text/csv"),
        (".gz", None, None),
        ("gz", None, None),
        ("a.gz/b", None, None),
        ("c/0/0", None, None),
        ("a.", None, None),
        ("dir.json/", None, None),
    ],
)
def test_the_end_of_a_name_tells_the_type(path: str, kind: str | None, unpacked: str | None) -> None:
    assert content_type_of(path) == kind
    assert content_type_of(path, is_unpacked=True) == unpacked


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory with a page in it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "page.html").write_bytes(b"<p>")
    return tmp_path / "site"


async def by_writer(op: ap.Operator, **options: Any) -> None:
    async with op.writer("page.html", **options) as writer:
        await writer.write(b"<p>")


async def by_parts(op: ap.Operator, **options: Any) -> None:
    async with op.writer("page.html", **options) as writer:
        await writer.write(bytes(6 << 20))


DOORS: dict[str, Callable[..., Awaitable[object]]] = {
    "write": lambda op, **options: op.write("page.html", b"<p>", **options),
    "write of pieces": lambda op, **options: op.write("page.html", iter([b"<p>"]), **options),
    "writer": by_writer,
    "writer of parts": by_parts,
}


@pytest.mark.parametrize("door", DOORS)
async def test_a_write_without_a_type_has_that_of_its_name(bucket: Bucket, door: str) -> None:
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({}, HTML, None),
        ({"content_type": None}, HTML, None),
        ({"content_type": ""}, NONE, None),
        ({"content_type": "text/x"}, "text/x", None),
        ({"content_encoding": "gzip"}, HTML, "gzip"),
    ]
    async with ap.Operator.from_uri(bucket.url(), part_bytes=5 << 20) as op:
        for options, kind, coding in cases:
            await DOORS[door](op, **options)
            found = await op.stat("page.html")
            assert (found.content_type, found.content_encoding) == (kind, coding)
        await op.write("data.csv.gz", b"x")
        found = await op.stat("data.csv.gz")
        assert (found.content_type, found.content_encoding) == ("application/gzip", None)


async def test_a_packed_page_that_is_sent_unpacked_has_the_type_of_the_page() -> None:
    async with ap.Operator.from_uri("memory://") as op:
        await op.write("page.html.gz", b"x", content_encoding="gzip")
        assert (await op.stat("page.html.gz")).content_type == HTML


def test_every_door_writes_the_same_type(bucket: Bucket, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the files of the machine say something else, which may be anything."""
    monkeypatch.setattr(mimetypes, "guess_type", lambda *names, **options: ("application/x-of-this-machine", "gzip"))
    page, run = str(local / "page.html"), ap.sync.run
    fs = ap.fsspec.S3FileSystem(skip_instance_cache=True)
    op = ap.Operator.from_uri(bucket.url())
    store = ap.obspec.store(op)
    arrow = ap.arrow.filesystem(op)

    def to_arrow() -> None:
        with arrow.open_output_stream("9/page.html") as stream:
            stream.write(b"<p>")

    def to_file(text: str, *mode: str) -> None:
        with ap.sync.open(bucket.url(f"{text}/page.html"), *mode) as file:
            file.write("<p>" if mode == ("w",) else b"<p>")

    def to_fsspec() -> None:
        with fs.open(bucket.url("8/page.html"), "wb") as file:
            file.write(b"<p>")

    doors: list[Callable[[], object]] = [
        lambda: ap.sync.BlockingOperator(op).write("0/page.html", b"<p>"),
        lambda: run(op.upload(page, "1/page.html")),
        lambda: run(ap.copy(page, bucket.url("2/"))),
        lambda: run(ap.copy(f"{local}/", bucket.url("3/"))),
        lambda: to_file("4", "w"),
        lambda: to_file("5", "wb"),
        lambda: fs.pipe_file(bucket.url("6/page.html"), b"<p>"),
        lambda: fs.put(page, bucket.url("7/page.html")),
        to_fsspec,
        to_arrow,
        lambda: store.put("10/page.html", b"<p>"),
        lambda: main(["cp", page, bucket.url("11/")]),
        lambda: main(["sync", "-q", str(local), bucket.url("12/")]),
    ]
    for door in doors:
        door()
    with ap.sync.BlockingOperator(op) as blocking:
        found = [blocking.stat(f"{number}/page.html").content_type for number in range(len(doors))]
        assert found == [HTML] * len(doors)
        zarr = ap.zarr.Store(op)
        for key, kind in (("zarr.json", "application/json"), ("c/0/0", NONE)):  # A chunk has no end to tell.
            run(zarr.set(key, cpu.Buffer.from_bytes(b"{}")))
            assert blocking.stat(key).content_type == kind


async def test_a_copy_has_the_type_of_its_source(bucket: Bucket) -> None:
    async with ap.Operator.from_uri(bucket.url()) as op, ap.Operator.from_uri("memory://") as memory:
        await op.write("a.html", b"x", content_type="text/x")
        await op.copy("a.html", "b.json")
        await ap.copy((op, "a.html"), (memory, "c.json"))
        assert {(await op.stat("b.json")).content_type, (await memory.stat("c.json")).content_type} == {"text/x"}
