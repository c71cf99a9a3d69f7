"""Files to write that nothing closes: they write nothing, inside any wrapper, and an error in the log says so."""

import gc
import gzip
import io
import json
import re
import sys
import tarfile
import weakref
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import fsspec
import numpy as np
import pytest

import aioprefetch as ap
from aioprefetch.fsspec import MemoryFileSystem
from aioprefetch.testing import CountingS3Server
from aioprefetch.testing.conformance.suite import checks
from tests.probes.programs import completed

NEVER_CLOSED = r"'.*k'.*never closed: no object is written.*with block"


def packed_text_of_fsspec(url: str, fs: Any) -> None:
    file = fsspec.open(url, "wt", compression="gzip").open()
    file.write("text")
    file.close()


def text_of_fsspec(url: str, fs: Any) -> None:
    fsspec.open(url, "wt").open().write("text")


def gzip_file(url: str, fs: Any) -> None:
    with gzip.open(fs.open(url, "wb"), "wb") as file:
        file.write(b"bytes")


def zip_file(url: str, fs: Any) -> None:
    with zipfile.ZipFile(fs.open(url, "wb"), "w") as file:
        file.writestr("name", b"bytes")


def tar_stream(url: str, fs: Any) -> None:
    with tarfile.open(fileobj=fs.open(url, "wb"), mode="w|gz") as file:
        file.addfile(tarfile.TarInfo("name"))


def json_document(url: str, fs: Any) -> None:
    json.dump([1], fs.open(url, "w", compression="gzip"))


def array(url: str, fs: Any) -> None:
    np.save(fs.open(url, "wb"), np.arange(3))


def text_of_python(url: str, fs: Any) -> None:
    io.TextIOWrapper(fs.open(url, "wb")).write("text")


def text_in_a_cycle(url: str, fs: Any) -> None:
    text: Any = io.TextIOWrapper(fs.open(url, "wb"))
    text.write("text")
    text.itself = text


def buffer_of_python(url: str, fs: Any) -> None:
    io.BufferedWriter(fs.open(url, "wb")).write(b"bytes")


class Owner:
    """Closes its file where it is collected."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()


def destructor(url: str, fs: Any) -> None:
    owner = Owner(fs.open(url, "w", compression="gzip"))
    owner.file.write("text")


def abandoned_generator(url: str, fs: Any) -> None:
    def writes() -> Iterator[None]:
        with fs.open(url, "w") as file:
            file.write("text")
            yield

    next(writes())


def by_url(url: str, fs: Any) -> None:
    ap.sync.open(url.removeprefix("aioprefetch+"), "wb").write(b"bytes")


def object_writer(url: str, fs: Any) -> None:
    async def write() -> None:
        await ap.Operator.from_uri("memory://other").writer("b/k").write(b"bytes")

    ap.sync.run(write())


LOST: list[Callable[[str, Any], None]] = [
    *(packed_text_of_fsspec, text_of_fsspec, gzip_file, zip_file, tar_stream, json_document, array, text_of_python),
    *(text_in_a_cycle, buffer_of_python, destructor, abandoned_generator, by_url, object_writer),
]


@checks("reliability:W43")
@pytest.mark.parametrize("use", LOST)
def test_a_file_that_is_let_go_writes_nothing_and_is_named_in_the_log_and_to_the_hook(
    use: Callable[[str, Any], None], unraisable: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    ap.fsspec.register()
    fs.pipe("b/other", b"1")
    use("aioprefetch+memory://b/k", fs)
    gc.collect()
    assert fs.find("b") == ["b/other"]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert unraisable == [caplog.records[0].getMessage()]
    assert re.search(NEVER_CLOSED, unraisable[0])
    fs.rm("b", recursive=True)
    fs.close()


def test_what_the_owner_closes_is_written_without_a_word(unraisable: list[str], caplog: Any) -> None:
    fs = MemoryFileSystem()
    ap.fsspec.register()
    url = "aioprefetch+memory://b/k"
    for close in (
        lambda: fs.open(url, "wb").close(),
        lambda: fsspec.open(url, "wt").open().close(),
        lambda: io.TextIOWrapper(fs.open(url, "wb")).close(),
        lambda: fs.open(url, "w", compression="gzip").close(),
        weakref.finalize(caplog, fs.open(url, "wb").close),
    ):
        close()
        gc.collect()
        assert fs.find("b") == ["b/k"]
        fs.rm(url)
    assert (unraisable, caplog.records) == ([], [])
    fs.close()


def test_a_lost_file_can_be_closed_and_not_committed(unraisable: list[str]) -> None:
    fs = MemoryFileSystem()

    def write() -> None:
        with fs.transaction:
            io.TextIOWrapper(fs.open("b/k", "wb")).write("text")

    with pytest.raises(ap.errors.Closed, match="discarded"):
        write()
    file = fs.open("b/k", "wb")
    text = io.TextIOWrapper(file)
    text.write("text")
    del text
    file.close()
    assert file.closed
    assert len(unraisable) == 2
    assert not fs.exists("b/k")
    fs.close()


PROGRAM = """
import io, tarfile, aioprefetch as ap
fs = ap.fsspec.S3FileSystem(endpoint_url={endpoint!r}, region="us-east-1", key="a", secret="b", part_bytes=5 << 20)
open_files = [fs.open("{bucket}/left", "w"), io.TextIOWrapper(fs.open("{bucket}/text", "wb"))]
open_files[0].write("x" * (6 << 20))
open_files[1].write("x")
tape = tarfile.open(fileobj=fs.open("{bucket}/tape", "wb"), mode="w|gz")
"""


def test_the_end_of_the_process_writes_nothing_says_so_and_leaves_no_upload(
    s3_server: CountingS3Server, random_name: Callable[[], str]
) -> None:
    bucket = random_name()
    s3_server.create_bucket(bucket)
    run = completed([sys.executable, "-c", PROGRAM.format(endpoint=s3_server.endpoint_url, bucket=bucket)])
    assert run.returncode == 0
    for name in ("left", "text", "tape"):
        said = [line for line in run.stderr.splitlines() if f"aioprefetch+s3://{bucket}/{name}'" in line]
        assert len(said) == 2, run.stderr
        assert said[1] == f"aioprefetch.errors.Closed: {said[0]}"
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    assert "Contents" not in client.list_objects_v2(Bucket=bucket)
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket)
