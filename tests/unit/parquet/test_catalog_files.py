"""``files=``: what a catalog says of files, and which of their rows are left."""

import datetime as dt
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioprefetch as ap
from aioprefetch import ScanFile
from aioprefetch.errors import (
    ConfigInvalid,
    InvalidArgument,
    InvalidRange,
    InvalidType,
    NotFound,
    ObjectChanged,
    Unsupported,
)
from aioprefetch.parquet.dataset.catalog import TableVersion
from aioprefetch.sync import BlockingOperator
from aioprefetch.values import Capability
from tests.files.dataset_files import asked, parquet_bytes
from tests.stores.gated_reader import Bench, bench, settle
from tests.stores.verb_layer import VerbLayer

pytestmark = pytest.mark.virtual

ODD = "t/y=1/[a]*?.parquet"
# A column with the name that the numbers of rows would have, and an index of pages.
TABLES = {
    path: pa.table({"a": range(start, start + 300), "row": [f"text {n}" for n in range(300)]})
    for path, start in ((ODD, 0), ("b", 300))
}
FILES = {path: parquet_bytes(t, row_group_size=50, write_page_index=True) for path, t in TABLES.items()}

NUMBERS = np.random.default_rng(0).integers(0, 1 << 60, 400_000)
BIG = parquet_bytes(pa.table({"a": NUMBERS}), row_group_size=100_000, compression="none")


@pytest.fixture
async def b() -> AsyncIterator[Bench]:
    async with bench() as made:
        for path, data in FILES.items():
            made.put(data, path)
        yield made
        gc.collect()
        await settle()
        assert made.runtime.budget.used_bytes == 0


ROWS = st.lists(st.integers(0, 299), max_size=300)
RANGES = st.lists(st.tuples(st.integers(0, 310), st.integers(0, 310)).map(lambda pair: tuple(sorted(pair))), max_size=3)


@given(RANGES | st.none(), ROWS | st.none(), ROWS | st.none(), st.integers(1, 400), st.booleans())
def test_the_rows_that_are_left(rows: Any, kept: Any, skipped: Any, batch_rows: int, has_filter: bool) -> None:
    """By numpy: ``rows``, ``keep`` and ``skip`` intersect, and numbers are those of the file."""
    keep = None if kept is None else np.isin(np.arange(300), kept)
    left = np.ones(300, bool) if keep is None else keep.copy()
    left[[] if skipped is None else skipped] = False
    if rows is not None:
        left &= np.any([[start <= n < stop for n in range(300)] for start, stop in [*rows, (0, 0)]], axis=0)
    if has_filter:
        left &= np.arange(300) % 3 == 0
    condition = pc.equal(pc.subtract(pc.field("at"), pc.multiply(pc.divide(pc.field("at"), 3), 3)), 0)
    with BlockingOperator(ap.Operator.from_uri("memory://catalog")) as op:
        op.write("b", FILES["b"])
        files = [ScanFile("b", rows=rows, keep=keep, skip=skipped)]
        scan = ap.parquet.scan(
            *(op.operator,),
            files=files,
            row_index_name="at",
            filters=condition if has_filter else None,
            batch_rows=batch_rows,
        )
        expected = TABLES["b"].append_column("at", pa.array(range(300), pa.int64())).filter(pa.array(left))
        assert scan.to_reader().read_all().equals(expected.combine_chunks())


async def test_what_is_not_wanted_is_not_requested(b: Bench) -> None:
    """A file of known size is one request; row groups without a row left are none."""
    files = [ScanFile(path, size=len(data)) for path, data in FILES.items()]
    found = await ap.parquet.read_table(b.operator, files=files)
    assert found.equals(pa.concat_tables(TABLES.values()))
    assert asked(b) == list(FILES)
    b.put(BIG, "big")
    b.calls.clear()
    some = ScanFile("big", skip=np.delete(np.arange(400_000), [100_003, 199_999]))
    found = await ap.parquet.read_table(b.operator, files=[some])
    assert found["a"].to_pylist() == [NUMBERS[row] for row in (100_003, 199_999)]
    assert sum(call.request.size or 0 for call in b.calls) < len(BIG) / 3, "one row group of four"


async def test_partition_values_are_those_of_the_catalog(b: Bench) -> None:
    day = dt.date(2024, 2, 3)
    files = [ScanFile(ODD, partition={"day": day, "n": "7"}), ScanFile("b", partition={"n": None, "day": None})]
    found = await ap.parquet.read_table(b.operator, files=files, columns=["a", "day", "n"])
    assert found.schema.types == [pa.int64(), pa.date32(), pa.string()]
    assert found["day"].to_pylist() == [day] * 300 + [None] * 300
    assert found["n"].to_pylist() == ["7"] * 300 + [None] * 300
    b.calls.clear()
    schema = pa.schema([("a", pa.int64()), ("n", pa.int16()), ("day", pa.date32())])
    found = await ap.parquet.read_table(b.operator, files=files, schema=schema, filters=[("n", "==", 7)], limit=2)
    assert found.to_pydict() == {"a": [0, 1], "n": [7, 7], "day": [day] * 2}
    assert asked(b) == [ODD], "files whose values do not match are not opened"
    schema = pa.schema([("a", pa.int64()), ("n", pa.time64("us"))])
    found = await ap.parquet.read_table(
        b.operator, files=[ScanFile("b", partition={"n": None})], schema=schema, limit=1
    )
    assert found.to_pylist() == [{"a": 300, "n": None}], "no text is a time, and none has to be"
    with pytest.raises(Unsupported, match="partition 'n' have no"):
        await ap.parquet.read_table(
            b.operator, files=[ScanFile(ODD, partition={"n": 1}), ScanFile("b", partition={"n": "x"})]
        )


async def test_a_table_without_files(b: Bench) -> None:
    schema = pa.schema([("a", pa.int64()), ("p", pa.string())])
    found = await ap.parquet.read_table(b.operator, files=[], schema=schema, filters=[("p", "==", "x")])
    assert found.equals(schema.empty_table())
    assert not b.calls


PLACES: list[tuple[str, str, str | None]] = [
    ("memory://n", "memory://n/t/a b%20/f", "t/a b%20/f"),
    ("memory://n/t", "memory://n/t/f", "f"),
    ("memory://n/t", "memory://n/tt/f", None),
    ("memory://n", "memory://other/f", None),
    ("s3://bucket/p", "s3a://bucket/p/x=1//f", "x=1//f"),
    ("s3://bucket/p", "gs://bucket/p/f", None),
    ("s3://bucket", "s3://other/f", None),
    ("file:///", "/t/f", "t/f"),
    ("file:///t", "file:/t/f#?", "f#?"),
    ("file:///t", "file:///t", None),
    ("abfss://box@one.dfs.core.windows.net/p", "abfss://box@one.dfs.core.windows.net/p/f", "f"),
    ("abfss://box@one.dfs.core.windows.net/p", "abfss://box@two.dfs.core.windows.net/p/f", None),
]


@pytest.mark.parametrize(("uri", "url", "key"), PLACES)
def test_urls_of_a_table(uri: str, url: str, key: str | None) -> None:
    """They become keys of the operator, or are refused where it does not reach them."""
    options: dict[str, Any] = {"account_key": "a2V5"} if "@" in uri else {}
    operator = ap.Operator.from_uri(uri, **options)
    files = [ScanFile(url, table=TableVersion("version 7 of t"))]
    if key is None:
        with pytest.raises(ConfigInvalid, match=r"version 7 of t has files at .* does not reach"):
            ap.parquet.scan(operator, files=files)
    else:
        assert repr(key) in repr(ap.parquet.scan(operator, files=files))


@dataclass(frozen=True)
class WithoutConditions(VerbLayer):
    """A store that knows no ``If-Match``."""

    def adapt(self, capability: Capability) -> Capability:
        return replace(capability, read_if_match=False)


async def test_a_version_that_is_gone(b: Bench) -> None:
    for operator in (b.operator, b.operator.layer(WithoutConditions())):
        etag = (await operator.stat("b")).etag
        assert (await ap.parquet.read_table(operator, files=[ScanFile("b", etag=etag)])).num_rows == 300
        with pytest.raises(ObjectChanged):
            await ap.parquet.read_table(operator, files=[ScanFile("b", etag='"another"')])
    with pytest.raises(NotFound, match="none"):
        await ap.parquet.read_table(b.operator, files=[ScanFile("none", size=100)])


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([ScanFile("b", skip=[300])], {}, InvalidRange, "row 300 of 300"),
    ([ScanFile("b", skip=[-1])], {}, InvalidRange, "row -1 of 300"),
    ([ScanFile("b", skip=["x"])], {}, InvalidType, "skip must be a list of row numbers"),
    ([ScanFile("b", skip=[[1]])], {}, InvalidType, "skip must be a list of row numbers"),
    ([ScanFile("b", keep=[True])], {}, InvalidArgument, "keep= has 1 values"),
    ([ScanFile("b", keep=[1] * 300)], {}, InvalidType, "keep must be a list of booleans"),
    ([ScanFile("b", rows=(5, 3))], {}, InvalidRange, "0 <= start <= end"),
    ([ScanFile("b", partition=[1])], {}, InvalidType, "partition"),  # type: ignore[arg-type]
    ([ScanFile("b", size=-1)], {}, ConfigInvalid, "size must be at least 0"),
    (["b"], {}, InvalidType, "must have ScanFile"),
    (ScanFile("b"), {}, InvalidType, "a list of ScanFile"),
    ([], {}, ConfigInvalid, "files= is empty"),
    ([ScanFile("b")], {"rows": (0, 1)}, ConfigInvalid, r"ScanFile\(rows=\)"),
    ([ScanFile("b")], {"row_groups": [0]}, ConfigInvalid, "row_groups= is for one file"),
    ([ScanFile("b")], {"path": "b"}, ConfigInvalid, "either path or files="),
    (None, {}, ConfigInvalid, "either path or files="),
]


@pytest.mark.parametrize(("files", "options", "error", "why"), WRONG)
async def test_files_that_cannot_be_read(b: Bench, files: Any, options: Any, error: Any, why: str) -> None:
    with pytest.raises(error, match=why):
        await ap.parquet.read_table(b.operator, files=files, **options)
