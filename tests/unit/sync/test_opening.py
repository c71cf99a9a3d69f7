"""Those who read files read through SyncFile, and ``open`` makes one from a URL."""

import io
import random
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from aioprefetch import sync
from aioprefetch.errors import ConfigInvalid, InvalidArgument, Unsupported
from aioprefetch.operator.operator import Operator
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.sync import BlockingOperator, run
from tests.profile import each_of

LINES = b"".join(b"line %d %s\n" % (number, b"x" * (number % 37)) for number in range(2000)) + b"no newline at the end"


def test_io_wrappers_read_through_it(blocking: BlockingOperator) -> None:
    blocking.write("lines", LINES)
    with io.BufferedReader(blocking.open("lines")) as buffered:
        assert buffered.peek(4)[:4] == b"line"
        assert buffered.read() == LINES
    with io.TextIOWrapper(io.BufferedReader(blocking.open("lines")), encoding="ascii") as text:
        assert text.readlines() == LINES.decode().splitlines(keepends=True)


def test_zipfile_reads_through_it(blocking: BlockingOperator) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/lines.txt", LINES)
        archive.writestr("noise", random.Random(1).randbytes(50_000))
    blocking.write("archive.zip", content.getvalue())
    with blocking.open("archive.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("a/lines.txt") == LINES
    assert blocking.statistics["stream_read_total_bytes"] <= len(content.getvalue())


@pytest.mark.parametrize("pre_buffer", [False, True])
def test_pyarrow_reads_parquet_through_it(blocking: BlockingOperator, pre_buffer: bool) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"number": range(20_000), "text": [str(number) for number in range(20_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1000)
    content = sink.getvalue().to_pybytes()
    blocking.write("t.parquet", content)
    with blocking.open("t.parquet") as file:
        assert pq.ParquetFile(file, pre_buffer=pre_buffer).read().equals(table)
    # Each byte once at most; the magic at the beginning of the file is not read.
    assert blocking.statistics["stream_read_total_bytes"] <= len(content) - 4


def test_pandas_reads_csv_through_it(blocking: BlockingOperator) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [(number, number * number) for number in range(5000)]
    blocking.write("t.csv", b"a,b\n" + b"".join(b"%d,%d\n" % row for row in rows))
    with blocking.open("t.csv") as file:
        frame = pandas.read_csv(file)
    assert frame["b"].tolist() == [square for _, square in rows]


def test_errors_of_the_store_pass_through_pyarrow(blocking: BlockingOperator) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    with blocking.open("missing.parquet") as file, pytest.raises(FileNotFoundError, match=r"missing\.parquet"):
        pq.ParquetFile(file)


def test_open_by_url_splits_the_options(random_name: Callable[[], str]) -> None:
    url = f"memory://{random_name()}/dir/a b.txt"
    root, path = sync.split_url(url)
    with BlockingOperator(Operator.from_uri(root)) as blocking:
        blocking.write(path, b"0123456789")
    with sync.open(url, block_bytes=4, memory_bytes=1 << 20, policy="random", size=8) as file:
        assert file.read() == b"01234567"
        assert file.name == url
        assert file.operator.options.block_bytes == 4
        runtime = run(runtime_of(file.operator))
    assert runtime.closed


async def runtime_of(operator: Operator) -> Runtime:
    return operator.runtime()


def test_open_by_path_takes_reader_options_only(operator: Operator) -> None:
    with pytest.raises(ConfigInvalid, match="'region' is not an option of a reader"):
        sync.open("k", operator=operator, region="eu-west-1")
    with pytest.raises(ConfigInvalid, match="unheard_of"):
        sync.open("memory://name/k", unheard_of=1)  # type: ignore[call-overload]


def test_a_misspelled_option_is_answered_with_the_one_that_is_meant(operator: Operator) -> None:
    for where in ({}, {"operator": operator}):
        with pytest.raises(ConfigInvalid, match=r"did you mean 'policy'\? .*footer_cache") as caught:
            sync.open("memory://name/k", polcy="random", **where)  # type: ignore[call-overload]
        assert ("disk_cache" in caught.value.message) is not bool(where)
    with pytest.raises(ConfigInvalid, match=r"called 'anonymous' here.*endpoint_url.*policy"):
        sync.open("s3://bucket/k", anon=True)  # type: ignore[call-overload]
    with pytest.raises(ConfigInvalid, match="did you mean 'policy'"):
        BlockingOperator(operator).open("k", polcy="random")  # type: ignore[call-overload]


def test_conditions_of_time_are_those_of_a_read(operator: Operator) -> None:
    """A reader holds to the version that it finds."""
    since: dict[str, Any] = {"if_modified_since": datetime.now(UTC)}
    for where in ({}, {"operator": operator}):
        with pytest.raises(ConfigInvalid, match=r"'if_modified_since' is an option of Operator\.read"):
            sync.open("memory://name/k", **since, **where)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="if_modified_since"):
        operator.reader("k", **since)


def test_a_file_is_open_for_reading_bytes(blocking: BlockingOperator, random_name: Callable[[], str]) -> None:
    blocking.write("k", b"0123")
    url = blocking.info.url + "/k"
    for mode in ("rb", "br"):
        with sync.open(url, mode) as file, sync.open(url, mode=mode) as named, blocking.open("k", mode) as other:
            assert file.read() == named.read() == other.read() == b"0123"
            assert file.mode == "rb"


@pytest.mark.parametrize("mode", ["r+b", "ab", "w+", "a", "x+b"])
def test_other_modes_are_unsupported_by_name(mode: str, blocking: BlockingOperator) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: sync.open("memory://name/k", mode),
        lambda: blocking.open("k", mode),
    )
    for call in calls:
        with pytest.raises(Unsupported, match=f"mode='{mode[0]}") as caught:
            call()
        assert (caught.value.operation, caught.value.path[-1]) == ("open", "k")


@each_of("mode", ["", "b", "rr", "rw", "rbt", "zb", 5, None])
def test_what_is_no_mode_is_an_invalid_argument(mode: Any) -> None:
    with pytest.raises(InvalidArgument, match="mode"):
        sync.open("memory://name/k", mode)


@each_of(
    "url", ["plain/path", "memory://name", "://x/y", "s3://bucket/", "unknown://a/b", "https://host/a#b", "https://[/k"]
)
def test_what_is_no_url_of_an_object_is_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid):
        sync.open(url)


@each_of(
    ("url", "parts"),
    [
        ("s3://bucket/a//b c%20+#?.parquet", ("s3://bucket", "a//b c%20+#?.parquet")),
        ("file:///srv/data/x%20", ("file:///srv/data", "x%20")),
        ("file:///x", ("file:///", "x")),
        ("https://host:8443/base/a%20b?sig=1", ("https://host:8443/base/?sig=1", "a b")),
        ("memory://name/k", ("memory://name", "k")),
    ],
)
def test_urls_are_split_into_store_and_path(url: str, parts: tuple[str, str]) -> None:
    assert sync.split_url(url) == parts


@each_of(
    ("url", "parts"),
    [
        ("s3://bucket/a/b", ("s3://bucket", "a/b")),
        ("file:///srv/data/x", ("file:///", "srv/data/x")),
        ("https://host:8443/base/a%20b?sig=1", ("https://host:8443/?sig=1", "base/a b")),
        ("https://host/a%2Fb/c", ("https://host/a%2Fb/", "c")),
        ("https://host/dir/", ("https://host/", "dir/")),
    ],
)
def test_the_store_of_a_url_may_be_all_of_its_origin(url: str, parts: tuple[str, str]) -> None:
    assert sync.split_url(url, at_origin=True) == parts
