"""Lazy frames of polars over our scans: what is asked for, what is raised, and what is left behind."""

import asyncio
import io
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.ranges import joined, total_length
from aioprefetch.runtime.budget import MemoryBudget
from aioprefetch.testing import CountingS3Server, Fault, Rule
from tests.files.column_file import GROUPS, METADATA, NAMES, PARQUET, ROWS, WANTED
from tests.libraries.conftest import Store
from tests.probes.programs import run_program
from tests.stores.computed_store import KIB, MIB
from tests.stores.s3_options import options_of
from tests.stores.stored_object import KEY, StoredObject

ENGINES: list[Any] = ["in-memory", "streaming"]
EXPECTED = pl.read_parquet(PARQUET)
TAIL_BYTES = MIB
c = pl.col


def scanned(stored: StoredObject, **options: Any) -> pl.LazyFrame:
    return ap.polars.scan_parquet(stored.url, **stored.store, **options)


def over(stored: StoredObject, **options: Any) -> ap.Operator:
    """The operator of the bucket, for tests that look at its memory."""
    return ap.Operator.from_uri("s3://bucket", **stored.store, **options)


def by_polars(stored: StoredObject) -> pl.LazyFrame:
    return pl.scan_parquet(
        stored.url,
        storage_options=polars_options(stored.store),
    )


def polars_options(options: dict[str, Any]) -> dict[str, str]:
    """Options of a store in the words of polars."""
    names = ("region", "access_key_id", "secret_access_key")
    words = {f"aws_{name}": str(options[name]) for name in names}
    return {**words, "aws_endpoint_url": str(options["endpoint_url"]), "aws_allow_http": "true"}


async def memory_of(operator: ap.Operator) -> tuple[int, int]:
    """The bytes that are held on the loop of `ap.sync`, and the most that ever were."""
    for _ in range(20):
        await asyncio.sleep(0)
    budget = operator.runtime().budget
    return budget.used_bytes, budget.peak_bytes


async def _whole(budget: MemoryBudget) -> None:
    ticket = budget.request(budget.limit_bytes, "prefetch")
    await asyncio.wait_for(ticket.wait(), 10)
    budget.release(budget.limit_bytes)


def assert_released(operator: ap.Operator) -> None:
    """All memory comes back: polars drops its source on a thread of its own. No other call of polars helps."""

    async def wait() -> None:
        await _whole(operator.runtime().budget)

    ap.sync.run(wait())


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_first_rows_take_one_row_group_of_the_wanted_columns(store: Store, engine: Any) -> None:
    """The footer comes with the call, and not again."""
    stored = store(PARQUET)
    frame = scanned(stored)
    assert stored.ranges == [(len(PARQUET) - TAIL_BYTES, len(PARQUET))]
    assert frame.collect_schema() == EXPECTED.schema
    stored.forget()
    assert frame.select(NAMES).head(10).collect(engine=engine).equals(EXPECTED.select(NAMES).head(10))
    first = [chunk for chunk in WANTED if chunk[0] < METADATA.row_group(1).column(0).data_page_offset]
    assert sorted(stored.ranges) == first


QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "everything": lambda frame: frame,
    "columns": lambda frame: frame.select(NAMES),
    "the first rows": lambda frame: frame.head(10),
    "the first rows of columns": lambda frame: frame.select(NAMES).head(10),
    "a row group": lambda frame: frame.filter(c("row").is_between(3 * ROWS, 3 * ROWS + 5)).select("c1"),
    "no row": lambda frame: frame.filter(c("row") < 0),
    "a number": lambda frame: frame.select(c("c5").max()),
    "a column of some rows": lambda frame: frame.filter((c("row") == 5) | (c("row") == 7 * ROWS)).select("c9"),
}


@pytest.mark.parametrize("query", QUERIES)
def test_never_more_requests_than_polars_itself(store: Store, query: str) -> None:
    """The call is counted, too, and there is no HEAD. What is asked for side by side counts as one.

    Where polars bridges wide gaps, of three times the bytes that are wanted, we send a request for each side.
    """
    ours, its = store(PARQUET), store(PARQUET)
    found = QUERIES[query](scanned(ours)).collect()
    expected = QUERIES[query](by_polars(its)).collect()
    assert found.equals(expected)
    requests, bytes_sent = len(joined(ours.ranges)), sum(its.server.body_bytes_sent.values())
    assert requests <= len(its.server.requests) or ours.bytes_sent <= 0.7 * bytes_sent
    assert ours.bytes_sent <= bytes_sent + TAIL_BYTES


def test_a_predicate_reads_the_row_groups_that_it_may_match(store: Store) -> None:
    stored = store(PARQUET)
    frame = scanned(stored)
    stored.forget()
    found = frame.filter(c("row").is_between(3 * ROWS + 10, 3 * ROWS + 19)).select(NAMES).collect()
    assert found.equals(EXPECTED.select(NAMES).slice(3 * ROWS + 10, 10))
    assert len(stored.ranges) <= len(NAMES) + 1
    assert stored.bytes_sent <= 1.1 * (total_length(WANTED) // GROUPS + 8 * ROWS)
    stored.forget()
    assert frame.filter(c("row") < 0).collect().is_empty()
    assert stored.bytes_sent == 0, "the file is still the same: that is all that was asked"


def test_a_frame_that_runs_again_asks_whether_the_file_is_the_same(store: Store) -> None:
    """One request without a body, before those for data."""
    stored = store(PARQUET)
    frame = scanned(stored).select("c1").head(1)
    frame.collect()
    stored.forget()
    frame.collect()
    asked, data = stored.server.requests[-2:]
    assert "if-none-match" in asked.headers
    assert "if-match" in data.headers
    assert len(stored.ranges) == 2


def test_two_uses_of_one_frame_read_once(store: Store) -> None:
    stored = store(PARQUET)
    frame = scanned(stored).select("row", "c1")
    stored.forget()
    both = frame.join(frame, on="row").select(pl.len()).collect()
    assert both.item() == GROUPS * ROWS
    assert stored.bytes_sent <= 1.1 * GROUPS * ROWS * 8


def test_many_files_on_a_server(s3_server: CountingS3Server, random_name: Callable[[], str]) -> None:
    """A listing and a request a file; for the first rows the first file alone is read again, where it was not kept."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    options = options_of(s3_server)
    frames = []
    with ap.sync.BlockingOperator(ap.Operator.from_uri(f"s3://{bucket}", **options)) as operator:
        for year in (2023, 2024, 2025):
            frames.append(pl.DataFrame({"x": range(year, year + 50), "noise": [f"{year}"] * 50}))
            sink = io.BytesIO()
            frames[-1].write_parquet(sink)
            operator.write(f"t/year={year}/part-0.parquet", sink.getvalue())
        operator.write("t/_SUCCESS", b"")
    s3_server.reset()
    frame = ap.polars.scan_parquet(f"s3://{bucket}/t/**/*.parquet", **options)
    assert [request.method for request in s3_server.requests] == ["GET"] * 4
    s3_server.reset()
    assert frame.head(3).collect()["x"].to_list() == [2023, 2024, 2025]
    assert frame.filter(c("year") == 2024).select("x").collect().equals(frames[1].select("x"))
    assert frame.collect().drop("year").equals(pl.concat(frames))
    assert [request.method for request in s3_server.requests] == ["GET"] * 3, "a listing each: small files are kept"
    s3_server.reset()
    schema = pa.schema([("x", pa.int64()), ("year", pa.int32())])
    choice: dict[str, Any] = {"schema": schema, "extra_columns": "ignore", "memory_bytes": 65 << 20}
    first = ap.polars.scan_parquet(f"s3://{bucket}/t/", **choice, **options)
    assert s3_server.requests == []
    assert first.head(3).collect().to_dict(as_series=False) == {"x": [2023, 2024, 2025], "year": [2023] * 3}
    assert [request.method for request in s3_server.requests] == ["GET"] * 2, "the listing and the first file"


MANY: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "columns": lambda frame: frame.select("c1", "c7", "year"),
    "a partition": lambda frame: frame.filter(c("year") == 2024).select("c1"),
    "the first rows": lambda frame: frame.head(10),
    "a row group": lambda frame: frame.filter(c("row") < 5).select("c1", "year"),
}


@pytest.mark.parametrize("query", MANY)
def test_many_files_are_listed_once_more_than_by_polars(
    s3_server: CountingS3Server, random_name: Callable[[], str], query: str
) -> None:
    """By the query, which does not believe the listing of the call. The call, listings and HEADs are counted."""
    bucket = random_name()
    s3_server.create_bucket(bucket)
    options = options_of(s3_server)
    with ap.sync.BlockingOperator(ap.Operator.from_uri(f"s3://{bucket}", **options)) as operator:
        for year in (2023, 2024):
            operator.write(f"t/year={year}/part-0.parquet", PARQUET)
    s3_server.reset()
    found = MANY[query](ap.polars.scan_parquet(f"s3://{bucket}/t/", **options)).collect()
    ours = s3_server.count()
    s3_server.reset()
    expected = MANY[query](pl.scan_parquet(f"s3://{bucket}/t/", storage_options=polars_options(options))).collect()
    assert found.equals(expected.cast(found.schema))
    assert ours <= s3_server.count() + 1


# --- versions and errors ----------------------------------------------------------------------------------------------


def packed(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_parquet(sink, compression="uncompressed", row_group_size=ROWS)
    return sink.getvalue()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_is_overwritten_before_the_query_is_read_as_it_is_now(store: Store, engine: Any) -> None:
    stored = store(PARQUET)
    frame = scanned(stored)
    later = EXPECTED.with_columns(c("c1") + 1).reverse()
    stored.server.objects[KEY] = packed(later)
    assert frame.collect(engine=engine).equals(later)
    stored.server.objects[KEY] = packed(EXPECTED.with_columns(c("c1").cast(pl.String)))
    with pytest.raises(ap.Unsupported, match="call scan_parquet again"):
        frame.collect(engine=engine)


def test_a_file_that_is_overwritten_while_it_is_read_is_an_error(store: Store) -> None:
    stored = store(PARQUET)
    later = packed(EXPECTED.reverse())

    def overwrite(frame: pl.DataFrame) -> pl.DataFrame:
        stored.server.objects[KEY] = later
        return frame

    frame = scanned(stored, budget_bytes=MIB, batch_rows=4096).select("row", "c1")
    with pytest.raises(ap.ObjectChanged):
        frame.map_batches(overwrite, streamable=True).collect(engine="streaming")


@pytest.mark.parametrize("engine", ENGINES)
def test_the_nth_request_fails(store: Store, engine: Any) -> None:
    """For every n the error is ours, and nothing is held afterwards."""
    stored = store(PARQUET)
    failed, places = 0, set()
    for number in range(40):
        operator = over(stored, memory_bytes=64 * MIB)
        stored.server.behave()
        stored.server.add(Rule(fault=Fault(status=403, code="AccessDenied"), index=stored.server.count() + number))
        try:
            found = ap.polars.scan_parquet("key", operator=operator).select(NAMES).collect(engine=engine)
        except ap.PermissionDenied as error:
            failed += 1
            places.add(error.path)
        else:
            assert found.equals(EXPECTED.select(NAMES))
            assert failed == number > 2
            assert places == {"key"}
            break
        finally:
            assert_released(operator)
            ap.sync.run(operator.aclose())
    else:
        raise AssertionError("it never came to an end")


def test_what_is_wrong_is_said_at_the_call(store: Store) -> None:
    stored = store(b"no Parquet at all")
    with pytest.raises(ap.UntrustedMetadata):
        scanned(stored)
    with pytest.raises(ap.NotFound):
        ap.polars.scan_parquet("s3://bucket/none", **stored.store)
    with pytest.raises(ap.ConfigInvalid, match="access_key_id"):
        ap.polars.scan_parquet(stored.url, access_key="k")  # type: ignore[call-arg]


# --- memory, and leaving early ----------------------------------------------------------------------------------------


def test_memory_is_bounded_over_the_whole_file(store: Store) -> None:
    """37 MB through a budget of 4, each batch gone before the next ones come."""
    stored = store(PARQUET)
    operator = over(stored, memory_bytes=8 * MIB, block_bytes=MIB)
    frame = ap.polars.scan_parquet("key", operator=operator, batch_rows=4096, budget_bytes=4 * MIB)
    sums = frame.select(pl.all().sum()).collect(engine="streaming")
    expected = EXPECTED.select(pl.all().sum())
    assert sums.to_dicts()[0] == pytest.approx(expected.to_dicts()[0])
    used, peak = ap.sync.run(memory_of(operator))
    assert used == 0
    assert peak <= 8 * MIB
    ap.sync.run(operator.aclose())


def test_a_query_that_has_enough_ends_the_scan(store: Store) -> None:
    """The streaming engine stops asking: what is not read by then never is."""
    stored = store(PARQUET)
    operator = over(stored, memory_bytes=8 * MIB, block_bytes=MIB)
    frame = ap.polars.scan_parquet("key", operator=operator, batch_rows=4096, budget_bytes=4 * MIB)
    stored.forget()
    found = frame.filter(c("c1") >= 0, c("row") % 2 == 0).head(5).collect(engine="streaming")
    assert found["row"].to_list() == [0, 2, 4, 6, 8]
    assert_released(operator)
    assert stored.bytes_sent <= 16 * MIB
    ap.sync.run(operator.aclose())


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_that_are_left_end_the_scan(store: Store, engine: Any) -> None:
    stored = store(PARQUET)
    operator = over(stored, memory_bytes=8 * MIB, block_bytes=MIB)
    frame = ap.polars.scan_parquet("key", operator=operator, batch_rows=4096, budget_bytes=4 * MIB)
    batches = iter(frame.collect_batches(engine=engine, lazy=True))
    assert next(batches).height
    del batches
    assert_released(operator)
    ap.sync.run(operator.aclose())


# --- loops, threads, processes ----------------------------------------------------------------------------------------


async def test_where_a_loop_runs(store: Callable[[bytes], StoredObject]) -> None:
    """As in a notebook: the query stands in the loop's way, as any query of polars does, and comes to its end."""
    stored = await asyncio.to_thread(store, PARQUET)
    frame = scanned(stored).select("row").head(5)
    assert frame.collect()["row"].to_list() == [0, 1, 2, 3, 4]
    assert (await frame.collect_async())["row"].to_list() == [0, 1, 2, 3, 4]


def test_many_threads_share_a_frame(store: Store) -> None:
    stored = store(PARQUET)
    frame = scanned(stored)

    def total(name: str) -> float:
        return float(frame.select(c(name).sum()).collect().item())

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(total, EXPECTED.columns * 2))
    assert found == pytest.approx([EXPECTED[name].sum() for name in EXPECTED.columns * 2])


def _rows(pickled: bytes) -> int:
    frame: pl.LazyFrame = pickle.loads(pickled)
    return int(frame.select(pl.len()).collect().item())


def test_a_frame_travels_to_another_process(tmp_path: Path) -> None:
    """Pickled, and as polars serializes it; without the version that it would have begun with."""
    EXPECTED.head(1000).write_parquet(tmp_path / "a.parquet")
    frame = ap.polars.scan_parquet(tmp_path / "a.parquet")
    assert pl.LazyFrame.deserialize(io.BytesIO(frame.serialize())).collect().equals(EXPECTED.head(1000))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_rows, pickle.dumps(frame)).result() == 1000


def test_no_secret_travels(store: Store) -> None:
    stored = store(PARQUET)
    frame = scanned(stored)
    dumped = pickle.dumps(frame) + frame.serialize()
    assert stored.store["secret_access_key"].encode() not in dumped
    assert stored.store["secret_access_key"] not in frame.explain()


FORKED = """
import os, pathlib
import aioprefetch as ap, polars as pl
frame = ap.polars.scan_parquet(pathlib.Path({path!r}))
pid = os.fork()
if pid == 0:
    assert frame.select(pl.len()).collect(engine="in-memory").item() == 1000
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
print(frame.select(pl.len()).collect().item())
"""


def test_a_child_runs_the_query_after_a_fork(tmp_path: Path) -> None:
    """With a loop of its own. (polars has run no query before: its threads do not survive a fork.)"""
    path = tmp_path / "a.parquet"
    EXPECTED.head(1000).write_parquet(path)
    assert run_program(FORKED.format(path=str(path))).strip() == "1000"


def test_a_thousand_frames_leave_nothing(tmp_path: Path) -> None:
    EXPECTED.head(10).write_parquet(tmp_path / "a.parquet")
    operator = ap.Operator.from_uri(f"file://{tmp_path}")
    for _ in range(1000):
        assert ap.polars.scan_parquet("a.parquet", operator=operator).head(1).collect(engine="in-memory").height == 1
    used, _ = ap.sync.run(memory_of(operator))
    assert used == 0
    ap.sync.run(operator.aclose())


def test_small_pages_of_an_index_are_all_that_the_first_rows_take(store: Store) -> None:
    """With a page index the first rows are the first page of each column."""
    sink = io.BytesIO()
    pq.write_table(
        EXPECTED.select("row", "c1", "c2").to_arrow(),
        sink,
        row_group_size=GROUPS * ROWS,
        write_page_index=True,
        use_dictionary=False,
        compression="none",
        data_page_size=8 * KIB,
    )
    stored = store(sink.getvalue())
    frame = scanned(stored)
    stored.forget()
    assert frame.head(10).collect()["row"].to_list() == list(range(10))
    assert stored.bytes_sent <= 128 * KIB
