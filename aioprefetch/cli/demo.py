"""``aioprefetch demo``: pyarrow reads a Parquet file through a naive reader and through ours, with request counts.

Without a URL the file is in an embedded S3 server, which counts the requests. With a URL the file is the user's own,
and the two clients count their requests.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aioprefetch.cli.places import Stores, command, place_argument
from aioprefetch.cli.printing import Display, choose_display, print_json
from aioprefetch.errors import MissingDependency, UntrustedMetadata, printable, redact
from aioprefetch.operator.operator import Operator
from aioprefetch.services import S3
from aioprefetch.sync import BlockingOperator, SyncFile, split_url
from aioprefetch.trace import record

if TYPE_CHECKING:
    from aioprefetch.testing.s3_server import CountingS3Server


BUCKET = "aioprefetch-demo"
KEY = "sample.parquet"
NAIVE = "drops its buffer on seek"
OURS = "aioprefetch"

# The sample: random doubles do not compress, so each of the 600 column chunks has the same, known size.
ROW_GROUPS = 50
COLUMNS = 12
ROWS_PER_GROUP = 148


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCount:
    """The number of requests to a server, and the bytes of its response bodies."""

    gets: int = 0
    heads: int = 0
    others: int = 0
    body_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the file: its cost and its table."""

    count: RequestCount
    seconds: float
    table: Any

    def figures(self) -> dict[str, float]:
        """The numbers, for JSON."""
        return {
            "gets": self.count.gets,
            "heads": self.count.heads,
            "bytes": self.count.body_bytes,
            "seconds": round(self.seconds, 4),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both readings of one object of ``size`` bytes."""

    url: str
    size: int
    counted_by: str
    naive: Reading
    ours: Reading

    @property
    def is_equal(self) -> bool:
        """Whether both readers gave the same table."""
        return bool(self.naive.table.equals(self.ours.table))

    @property
    def ratio(self) -> float:
        """The number of GETs of the naive reader for each GET of ours."""
        return self.naive.count.gets / max(1, self.ours.count.gets)


@command(
    "demo",
    examples="""
aioprefetch demo
aioprefetch demo --traces pictures
aioprefetch demo s3://bucket/file.parquet
aioprefetch demo --json --row-groups 5 data.parquet
""",
)
@place_argument("url", "[PLACE]", required=False)
@click.option("--row-groups", "row_groups_max", metavar="N", type=click.IntRange(1), default=50, help="Read at most N.")
@click.option(
    "--traces", "folder", metavar="FOLDER", help="Write the pictures of both readings: naive.html, aioprefetch.html."
)
@click.option("--json", "as_json", is_flag=True, help="Only the numbers, as one JSON object.")
def demo(url: str | None, stores: Stores, row_groups_max: int, folder: str | None, as_json: bool) -> int:
    """Compare pyarrow on a naive reader and on ours.

    Without a PLACE, a Parquet object, the file is in an embedded S3 server. The exit code is 1 when the tables differ
    or the embedded file took more than one GET.
    """
    display = choose_display(silent=as_json)
    pictures = Pictures(folder)
    if url is None:
        comparison = compare_embedded(display, pictures)
        good = comparison.is_equal and comparison.ours.count.gets == 1
    else:
        comparison = compare_own(url, stores.options_of(url), display, pictures, row_groups_max)
        good = comparison.is_equal
    if as_json:
        print_json(describe(comparison))
    else:
        show(comparison, display)
        for path in pictures.written:
            display.say(f"The trace is in {printable(path)}.")
    return 0 if good else 1


@contextlib.contextmanager
def demo_server(bucket: str) -> Iterator[CountingS3Server]:
    """An S3 server with one empty bucket on a free loopback port, which stops at the end of the block."""
    try:
        from aioprefetch.testing.s3_server import CountingS3Server
    except ImportError as error:
        raise MissingDependency(
            "the embedded S3 server needs moto: pip install 'aioprefetch[demo]'; or give the URL of your own file",
            operation="demo",
        ) from error
    with CountingS3Server() as server:
        server.create_bucket(bucket)
        yield server


def take_count(server: CountingS3Server) -> RequestCount:
    """The requests since the last call."""
    gets, heads = server.count("GET"), server.count("HEAD")
    count = RequestCount(gets=gets, heads=heads, others=server.count() - gets - heads, body_bytes=server.bytes_sent)
    server.reset()
    return count


def sample_parquet() -> bytes:
    """A Parquet file of about 800 KiB with 50 row groups of 12 columns, identical in every run."""
    pa, pq = _pyarrow()
    noise = random.Random(12)
    rows = ROW_GROUPS * ROWS_PER_GROUP
    columns = {f"column_{index:02}": [noise.random() for _ in range(rows)] for index in range(COLUMNS)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=ROWS_PER_GROUP, use_dictionary=False, compression="none")
    return bytes(sink.getvalue())


def _pyarrow() -> tuple[Any, Any]:
    """The modules ``pyarrow`` and ``pyarrow.parquet``."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency("the demo needs pyarrow: pip install 'aioprefetch[demo]'", operation="demo") from error
    return pa, pq


class Pictures:
    """Records the readings, and writes a page for each into a folder, if there is one."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self.written: list[str] = []

    @contextlib.contextmanager
    def of(self, name: str, operator: BlockingOperator) -> Iterator[None]:
        """Record a block that reads with ``operator``."""
        if self._folder is None:
            yield
            return
        with record(operator) as trace:
            yield
        os.makedirs(self._folder, exist_ok=True)
        trace.write_html(path := os.path.join(self._folder, f"{name}.html"), title=name)
        self.written.append(path)


def compare_embedded(display: Display, pictures: Pictures) -> Comparison:
    """Write the sample into an embedded S3 server and read it twice; the server counts."""
    content = sample_parquet()
    with demo_server(BUCKET) as server:
        display.say(
            f"A Parquet file of {ROW_GROUPS} row groups × {COLUMNS} columns, {len(content):,} bytes, "
            f"in an embedded S3 server at {server.endpoint_url}"
        )
        count = partial(take_count, server)
        with BlockingOperator(embedded_operator(server)) as operator:
            operator.write(KEY, content)
            server.reset()
            with pictures.of("naive", operator):
                naive = read_naively(operator, KEY, len(content), display, count, ROW_GROUPS)
            with pictures.of("aioprefetch", operator), operator.open(KEY) as file:
                ours = read_table(file, OURS, display, count, ROW_GROUPS)
    return Comparison(f"s3://{BUCKET}/{KEY}", len(content), "server", naive, ours)


def embedded_operator(server: CountingS3Server) -> Operator:
    """An operator for the demo's server. It ignores the variables, profiles and proxies of the environment."""
    service = S3(
        bucket=BUCKET,
        endpoint_url=server.endpoint_url,
        region=server.region,
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
        addressing_style="path",
        proxies={},
    )
    return Operator(service)


def compare_own(
    url: str, options: Mapping[str, Any], display: Display, pictures: Pictures, row_groups_max: int
) -> Comparison:
    """Read an object of the user twice. Each client counts its requests."""
    root, path = split_url(url if "://" in url else f"file://{os.path.abspath(url)}")
    with BlockingOperator(Operator.from_uri(root, **options)) as operator:
        size = operator.stat(path).size or 0
        label = printable(redact(url))
        display.say(f"{label}: {size:,} bytes; at most {row_groups_max} row groups are read")
        before = client_count(operator)
        with pictures.of("naive", operator):
            naive = read_naively(operator, path, size, display, lambda: client_count(operator, before), row_groups_max)
    with (
        BlockingOperator(Operator.from_uri(root, **options)) as operator,
        pictures.of("aioprefetch", operator),
        operator.open(path) as file,
    ):
        ours = read_table(file, OURS, display, lambda: client_count(operator), row_groups_max)
    return Comparison(label, size, "client", naive, ours)


def read_naively(
    operator: BlockingOperator,
    path: str,
    size: int,
    display: Display,
    count: Callable[[], RequestCount],
    groups: int,
) -> Reading:
    """Read through the reader that drops its buffer on seek."""

    def fetch(start: int, end: int) -> bytes:
        return operator.read(path, offset=start, size=end - start)

    with DropOnSeekReader(fetch, size) as file:
        return read_table(file, NAIVE, display, count, groups)


def read_table(
    file: DropOnSeekReader | SyncFile, title: str, display: Display, count: Callable[[], RequestCount], groups: int
) -> Reading:
    """Let pyarrow read the first row groups, without its own coalescing."""
    pa, pq = _pyarrow()
    began = time.perf_counter()
    try:
        parquet = pq.ParquetFile(file, pre_buffer=False)
        total = min(groups, parquet.metadata.num_row_groups)
        with display.progress(title, total) as advance:
            parts = []
            for index in range(total):
                parts.append(parquet.read_row_group(index))
                advance()
        table = pa.concat_tables(parts) if parts else parquet.schema_arrow.empty_table()
    except pa.ArrowInvalid as error:
        raise UntrustedMetadata(f"not a Parquet file that pyarrow can read: {error}", operation="demo") from error
    return Reading(count(), time.perf_counter() - began, table)


def client_count(operator: BlockingOperator, before: RequestCount | None = None) -> RequestCount:
    """The requests of an operator since ``before``."""
    counters = operator.statistics
    base = before or RequestCount()
    return RequestCount(
        gets=counters["action_http_get_request"] - base.gets,
        heads=counters["action_http_head_request"] - base.heads,
        body_bytes=counters["stream_read_total_bytes"] - base.body_bytes,
    )


def describe(comparison: Comparison) -> dict[str, Any]:
    """The result as a JSON object."""
    return {
        "url": comparison.url,
        "size": comparison.size,
        "counted_by": comparison.counted_by,
        "naive": comparison.naive.figures(),
        "aioprefetch": comparison.ours.figures(),
        "ratio": round(comparison.ratio, 2),
        "equal": comparison.is_equal,
    }


def show(comparison: Comparison, display: Display) -> None:
    """Print the result."""
    rows = [
        (
            title,
            f"{reading.count.gets:,}",
            f"{reading.count.heads:,}",
            f"{reading.count.body_bytes:,}",
            f"{reading.seconds:.3f}",
        )
        for title, reading in ((NAIVE, comparison.naive), (OURS, comparison.ours))
    ]
    display.table((f"counted by the {comparison.counted_by}", "GETs", "HEADs", "bytes", "seconds"), rows)
    verdict = "Both readers gave the same table" if comparison.is_equal else "THE TABLES DIFFER"
    display.say(f"{verdict}. {comparison.ratio:,.0f} × fewer GETs.")


READ_AHEAD_BYTES = 8 << 10  # the default of both buffered readers named above

FetchRange = Callable[[int, int], bytes]


class DropOnSeekReader(io.RawIOBase):
    """The reader that the demo compares with: it drops its buffer on every seek.

    This is what a plain range reader under a buffered one does (OpenDAL's reader inside a ``BufReader``, Python's
    ``io.BufferedReader`` over a file whose seek closes its stream): read-ahead helps until the first seek, and a
    Parquet reader seeks before each column chunk. The connection stays open and there is no needless copy.

    The file has ``size`` bytes; ``fetch(start, end)`` brings a range with one request.
    """

    mode = "rb"

    def __init__(self, fetch: FetchRange, size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._buffer = b""

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move, and drop what was read ahead."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        self._buffer = b""
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Read from the buffer, and fetch what is missing plus some read-ahead."""
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > len(self._buffer):
            start = self._position + len(self._buffer)
            missing = wanted - len(self._buffer)
            self._buffer += self._fetch(start, min(self._size, start + max(missing, READ_AHEAD_BYTES)))
        data, self._buffer = self._buffer[:wanted], self._buffer[wanted:]
        self._position += len(data)
        return data
