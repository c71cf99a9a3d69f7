"""With one slot the requests of a scan are the document's row-major order, and pylance's, on the same server's log.

pylance leaves ties (pages of several columns that begin with the same row) open; ours go by column. Of strings and
lists the pages of ends are compared: what is behind them, pylance reads when it has them, and that is not in order.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import aioprefetch as ap
from aioprefetch.testing import CountingS3Server, RecordedRequest
from tests.files.lance_files import peer_reader, write_file

ROWS = 40_000
# Bytes of a row in the first buffer of each column; 0 is a column (the items of lists) that is left out.
WIDTHS = {"numbers": (2, 8, 64), "ends": (8, 8, 8, 0)}
TAIL_BYTES = 1 << 16  # what either reader asks for first, for the metadata
BUCKET = "order"
KEY = "t.lance"

PEER = """
import sys
from lance.file import LanceFileReader
options = {"endpoint": sys.argv[1], "allow_http": "true", "aws_access_key_id": "a", "aws_secret_access_key": "b",
           "region": "us-east-1"}
print(LanceFileReader(sys.argv[2], storage_options=options).read_all(batch_size=1024).to_table().num_rows)
"""


@dataclass(frozen=True)
class Page:
    """A page and where its one buffer begins."""

    first_row: int
    column: int
    start: int


@pytest.fixture(scope="module", params=list(WIDTHS))
def kind(request: pytest.FixtureRequest) -> str:
    """Which columns the file has."""
    return str(request.param)


@pytest.fixture(scope="module")
def data(kind: str) -> bytes:
    """Three columns of 1, 5 and 40 or so pages; or numbers, strings and lists."""
    random = np.random.default_rng(5)
    if kind == "ends":
        texts = [f"{row} " * (1 + row % 9) for row in range(ROWS)]
        lists = [list(range(row % 4)) for row in range(ROWS)]
        table = pa.table({"id": range(ROWS), "text": texts, "lists": pa.array(lists, pa.list_(pa.int64()))})
        return write_file(table, data_cache_bytes=3 << 16, batch_rows=500)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(random.random(ROWS * 16, dtype=np.float32)), 16)
    table = pa.table(
        {"score": pa.array(random.integers(0, 99, ROWS), pa.int16()), "id": pa.array(range(ROWS)), "vector": vectors}
    )
    return write_file(table, data_cache_bytes=3 << 16, batch_rows=500)


@pytest.fixture(scope="module")
def pages(data: bytes, kind: str, tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    """The pages in the order of the document, by pylance's own metadata; not those that come with the file's tail."""
    found = []
    for number, column in enumerate(peer_reader(data, tmp_path_factory.mktemp("order")).metadata().columns):
        first, width = 0, WIDTHS[kind][number]
        for page in column.pages if width else ():
            found.append(Page(first, number, page.buffers[0].position))
            first += page.buffers[0].size // width
        assert first == ROWS or not width
    found = [page for page in found if page.start < len(data) - TAIL_BYTES]
    return sorted(found, key=lambda page: (page.first_row, page.column))


@pytest.fixture(scope="module")
def server(data: bytes) -> Iterator[CountingS3Server]:
    """A server that keeps a log, with the file."""
    with CountingS3Server() as made:
        made.create_bucket(BUCKET)
        operator = ap.Operator.from_uri(f"s3://{BUCKET}", **options_of(made))
        with ap.sync.BlockingOperator(operator) as blocking:
            blocking.write(KEY, data)
        yield made


def options_of(server: CountingS3Server) -> dict[str, Any]:
    """How an Operator finds the server."""
    return {"endpoint_url": server.endpoint_url, "region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"}


def page_order(log: list[RecordedRequest], pages: list[Page], kind: str) -> list[Page]:
    """The pages in the order in which requests asked for them; a request for several asks in the order of rows.

    Where bytes of strings or items lie between the pages, only a request that begins with a page is for that page: a
    later one comes along with what lies before it.
    """
    order: list[Page] = []
    for request in log:
        if request.method != "GET" or request.range is None or not request.range.startswith("bytes="):
            continue
        first, _, last = request.range.removeprefix("bytes=").partition("-")
        if first and last:
            most = int(last) if kind == "numbers" else int(first)
            order += [page for page in pages if int(first) <= page.start <= most and page not in order]
    return order


async def test_our_order_is_the_documents(server: CountingS3Server, pages: list[Page], kind: str) -> None:
    assert len({page.column for page in pages}) == 3
    assert len(pages) > 20
    server.reset()
    async with ap.Operator.from_uri(f"s3://{BUCKET}", **options_of(server)) as operator:
        scan = ap.lance.scan(operator, KEY, slots=1, gap_bytes=0, request_bytes_max=1 << 16)
        assert sum([batch.num_rows async for batch in scan]) == ROWS
    order = page_order(server.requests, pages, kind)
    assert order == [page for page in pages if page in order]
    assert len(order) == len(pages) if kind == "numbers" else len(order) > len(pages) * 3 // 4


def test_pylances_order_is_the_same_but_for_ties(server: CountingS3Server, pages: list[Page], kind: str) -> None:
    server.reset()
    run = subprocess.run(
        [sys.executable, "-c", PEER, server.endpoint_url, f"s3://{BUCKET}/{KEY}"],
        env={**os.environ, "LANCE_IO_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parent,
    )
    assert run.stdout.strip() == str(ROWS), run.stderr
    order = page_order(server.requests, pages, kind)
    assert len(order) == len(pages) if kind == "numbers" else len(order) > len(pages) * 3 // 4
    assert [page.first_row for page in order] == [page.first_row for page in pages if page in order]
