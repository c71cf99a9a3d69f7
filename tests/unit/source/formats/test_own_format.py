"""Formats of other packages: registered in one line, they are listed, inferred, planned, split and read like ours."""

import gzip
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pytest

from aioprefetch.errors import ConfigInvalid
from aioprefetch.operator.operator import Operator
from aioprefetch.source.formats import (
    FoundBatch,
    LineFormat,
    RecordFormat,
    Wanted,
    format_names,
    format_of,
    read_content,
    register_format,
)
from aioprefetch.source.formats.line_stream import line_ends
from aioprefetch.source.formats.records import JoinedRecords, LineEnds, Lines, ParseLines, line_starts, parse_joined
from aioprefetch.source.options import FormatOptions, ListOptions, PartitionOptions, ReadOptions
from aioprefetch.source.reading import ReadTask, infer_schema, list_files, plan_batch, read_items
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.spark.options import SOURCE_OPTIONS, check_format
from aioprefetch.values import Entry
from tests.unit.source.formats.written_files import new_operator

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64())])


class PairsFormat(LineFormat):
    """Lines such as ``name=3``."""

    name = "pairs"

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        return SCHEMA

    def parser(self, want: Wanted, path: str) -> ParseLines:
        return partial(self._records, want, line_ends(want.options))

    def likeness(self, data: bytes, options: FormatOptions) -> bytes | None:
        return None if b"\r" in data else b""

    def joined(self, texts: Sequence[bytes], want: Wanted) -> JoinedRecords | None:
        return parse_joined(texts, self.parser(want, ""))

    def _records(self, want: Wanted, ends: LineEnds, lines: Lines) -> FoundBatch:
        pairs = [lines.data[start:stop].decode().split("=") for start, stop in ends.spans(lines.data)]
        batch = pa.RecordBatch.from_pydict({"name": [a for a, _ in pairs], "size": [int(b) for _, b in pairs]}, SCHEMA)
        return FoundBatch(batch, line_starts(lines, ends) if want.offsets else None)


class PagesFormat(RecordFormat):
    """A directory with an object ``_index``, and pages: a dataset whose records are the words of the index."""

    name = "pages"
    compresses_within = True

    async def sample(
        self, operator: Operator, file: SourceFile, options: FormatOptions, read: ReadOptions
    ) -> pa.Schema:
        return pa.schema([("page", pa.string())])

    async def read(self, operator: Operator, item: FetchItem, want: Wanted) -> AsyncGenerator[FoundBatch, None]:
        index = SourceFile(f"{item.file.key}_index", (await operator.stat(f"{item.file.key}_index")).size or 0)
        names = (await read_content(operator, index, want.read.open_file)).decode().split()
        yield FoundBatch(pa.RecordBatch.from_pydict({"page": names}))

    def dataset_of(self, key: str) -> str | None:
        return key.removesuffix("_index") if key.endswith("/_index") else None

    def dataset_version(self, entry: Entry, directory: str) -> int:
        return int(entry.path.rpartition("-")[2]) if "page-" in entry.path else 0


@pytest.fixture
def pairs() -> Iterator[None]:
    remove = register_format(PairsFormat(), ".pairs")
    yield
    remove()


@pytest.fixture
def pages() -> Iterator[None]:
    remove = register_format(PagesFormat(), has_datasets=True)
    yield
    remove()


async def write_pairs(operator: Operator) -> list[dict[str, object]]:
    """A large file, small ones, and a compressed one; the rows of all of them."""
    rows: list[dict[str, object]] = [{"name": f"n{n:04}", "size": n} for n in range(2000)]
    texts = [f"{row['name']}={row['size']}\n".encode() for row in rows]
    await operator.write("a.pairs", b"".join(texts[:1500]))
    for number in range(5):
        await operator.write(f"b{number}.pairs", b"".join(texts[1500 + 20 * number : 1520 + 20 * number]))
    await operator.write("c.pairs.gz", gzip.compress(b"".join(texts[1600:])))
    return rows


async def rows_of(operator: Operator, parts: list[list[FetchItem]], task: ReadTask) -> list[dict[str, object]]:
    return [row for items in parts async for batch in read_items(operator, items, task) for row in batch.to_pylist()]


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize("name", [None, "pairs"])
async def test_a_format_of_lines_is_inferred_split_decompressed_and_read(name: str | None) -> None:
    async with new_operator() as operator:
        rows = await write_pairs(operator)
        options = FormatOptions(format=name)
        found = await infer_schema(operator, list_files(operator, options), options)
        assert found.schema == SCHEMA
        partitioning = PartitionOptions(target_bytes=2000, slots=4)
        parts = await plan_batch(operator, ListOptions(), partitioning, options)
        pieces = [item for items in parts for item in items]
        assert sum(item.file.key == "a.pairs" for item in pieces) > 3
        assert [item.is_whole for item in pieces if item.file.key == "c.pairs.gz"] == [True]
        schema = pa.schema([*SCHEMA, ("_offset", pa.int64())])
        task = ReadTask(schema=schema, url=operator.info.url, metadata=("_offset",), format=options)
        read = await rows_of(operator, parts, task)
        assert sorted((row["name"], row["size"]) for row in read) == [(row["name"], row["size"]) for row in rows]
        assert {row["name"]: row["_offset"] for row in read}["n0001"] == len("n0000=0\n")


@pytest.mark.usefixtures("pages")
async def test_a_directory_can_be_one_file_of_a_format() -> None:
    async with new_operator() as operator:
        for key, data in {"t/_index": b"x y", "t/page-1": b"1", "t/page-7": b"7", "u.txt": b"u"}.items():
            await operator.write(key, data)
        options = FormatOptions(format="pages")
        files = [file async for file in list_files(operator, options)]
        assert [(file.key, file.version, file.size) for file in files] == [("t/", "7", 5), ("u.txt", None, 1)]
        task = ReadTask(schema=pa.schema([("page", pa.string())]), url=operator.info.url, format=options)
        assert await rows_of(operator, [[FetchItem(files[0])]], task) == [{"page": "x"}, {"page": "y"}]


@pytest.mark.usefixtures("pairs")
def test_the_options_of_spark_know_a_registered_format() -> None:
    assert SOURCE_OPTIONS["format"].row.read("Pairs", "format") == "pairs"
    check_format(["compression", "encoding", "inferSampleFiles", "path"], "pairs")
    with pytest.raises(ConfigInvalid, match="format=pairs has no use for these options: header is for csv"):
        check_format(["header", "encoding"], "pairs")


def test_a_format_is_known_until_it_is_removed() -> None:
    before = format_names()
    remove = register_format(PairsFormat(), ".pairs", ".csv.pairs")
    assert format_names() == (*before, "pairs")
    assert format_of("a/B.PAIRS.gz", FormatOptions()).name == "pairs"
    assert format_of("a.csv", FormatOptions()).name == "csv"
    remove()
    assert format_names() == before
    with pytest.raises(ConfigInvalid, match=r"the suffix of the key is of no format.*lance.*a\.pairs|a\.pairs.*of no"):
        format_of("a.pairs", FormatOptions())


@pytest.mark.parametrize(
    ("register", "reason"),
    [
        (lambda: register_format(PairsFormat(), "pairs"), "must be in lower case and begin with a dot"),
        (lambda: register_format(PairsFormat(), ".PAIRS"), "must be in lower case and begin with a dot"),
        (lambda: register_format(PairsFormat(), ".csv"), "'.csv' belongs to format=csv"),
        (lambda: register_format(format_of("a.csv", FormatOptions()), ".c"), "there is a format=csv already"),
    ],
)
def test_a_name_or_suffix_of_another_format_is_refused(register: Callable[[], object], reason: str) -> None:
    before = format_names()
    with pytest.raises(ConfigInvalid, match=reason):
        register()
    assert format_names() == before


def test_the_longest_suffix_counts() -> None:
    remove = register_format(PairsFormat(), ".pairs.csv")
    try:
        assert format_of("a.pairs.csv", FormatOptions()).name == "pairs"
        assert format_of("pairs.csv", FormatOptions()).name == "csv"
    finally:
        remove()
