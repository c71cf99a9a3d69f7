"""``head``, ``plan`` and ``scan`` beside what pyarrow reads, and the requests that a server counts."""

import csv
import datetime as dt
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aioprefetch.cli.inspecting import _limited
from tests.unit.cli.commands import Bucket, lines, objects, run

ROWS = 1000
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "name": [f"n{number % 7}" for number in range(ROWS)],
        "day": [dt.date(2026, 1, 1 + number % 28) for number in range(ROWS)],
        "raw": [b"\x01\xff"] * ROWS,
    }
)


def parquet_bytes(table: pa.Table = TABLE, group_rows: int = 100, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=group_rows, **options)
    return sink.getvalue()


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with a file of Parquet, a directory of two, files of Lance and a text."""
    lance = pytest.importorskip("lance")
    (tmp_path / "t.parquet").write_bytes(parquet_bytes())
    (tmp_path / "no_end").write_bytes(parquet_bytes())
    for number in (1, 2):
        directory = tmp_path / "d" / f"part={number}"
        directory.mkdir(parents=True)
        (directory / "f.parquet").write_bytes(parquet_bytes(TABLE.slice(number * 10, 10)))
    lance.write_dataset(TABLE, str(tmp_path / "t.lance"))
    (tmp_path / "text").write_text("".join(f"line {number}\n" for number in range(10_000)))
    return tmp_path


def test_head(tables: Path) -> None:
    for name, title in (("t.parquet", "Parquet"), ("no_end", "Parquet"), ("t.lance", "Lance dataset")):
        (shown,) = objects("head", "--json", "-n", 2, tables / name)
        assert (shown["format"], shown["row_count"]) == (title, ROWS)
        assert shown["columns"][2] == {"name": "day", "type": "date32[day]"}
        assert shown["rows"][1] == {"id": 1, "name": "n1", "day": "2026-01-02", "raw": "01ff"}
        assert len(shown["parts"]) == (10 if title == "Parquet" else 0)
        text = lines("head", "-n", 1, "--columns", "name,id", tables / name)
        assert text[-3:] == ["name  id", "----  --", "n0    0"]
    (data,) = (tables / "t.lance" / "data").iterdir()
    (shown,) = objects("head", "--json", "-n", 1, data)
    assert shown["parts"][0] == {"column": 0, "pages": 1, "rows": ROWS}
    assert f"{tables}/d/part=1/f.parquet: Parquet" in lines("head", f"{tables}/d/**/*.parquet")[0]
    metadata = pq.read_metadata(tables / "t.parquet")
    (shown,) = objects("head", "--json", "-n", 1, tables / "t.parquet")
    size = metadata.row_group(1).total_byte_size
    assert shown["parts"][1] == {"row_group": 1, "rows": 100, "uncompressed_bytes": size}
    text = lines("head", "-n", 1, "--columns", "name, id", tables / "t.parquet")
    assert text[0].startswith(f"{tables}/t.parquet: Parquet, 1,000 rows, 10 row groups, ")
    assert text[0].endswith(f", written by {metadata.created_by}")
    assert "row group  rows  uncompressed bytes" in text
    assert "nothing matches" in run("head", f"{tables}/none*", code=1).stderr
    assert lines("head", "-n", 2, tables / "text") == ["line 0", "line 1"]
    assert objects("head", "--json", "-n", 1, tables / "text") == [{"lines": ["line 0"]}]


def test_a_dataset_is_opened_by_one_listing(tables: Path, bucket: Bucket) -> None:
    directory = tables / "t.lance"
    names = {path: f"t.lance/{path.relative_to(directory)}" for path in directory.rglob("*") if path.is_file()}
    bucket.put(**{name.replace("/", "__"): path.read_bytes() for path, name in names.items()})
    for command in ("head", "scan", "plan"):
        bucket.server.reset()
        run(command, "--json", bucket.url("t.lance"))
        requests = [f"{request.method} {request.path}" for request in bucket.server.requests]
        assert [("list-type" in request.query) for request in bucket.server.requests].count(True) == 1
        assert requests.count(f"GET /{bucket.name}/t.lance") == 1


def test_names_in_a_file_are_escaped(tmp_path: Path) -> None:
    """A file that someone else wrote cannot control the terminal."""
    name = "a\x1b]0;title\x07"
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(pa.table({name: ["\x1b[31m"]})))
    for arguments in (["head"], ["plan", "--columns", name]):
        shown = run(*arguments, tmp_path / "t.parquet").output
        assert "\x1b" not in shown
        assert "\x07" not in shown
    text = run("head", tmp_path / "t.parquet").output
    assert text.count("a\\x1b]0;title\\x07") == 2
    assert "\\x1b[31m" in text


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    numbers = [1.5, float("nan"), float("inf"), float("-inf")]
    table = pa.table({"a": numbers, "b": [[number] for number in numbers], "c": [{"d": number} for number in numbers]})
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(table))
    expected = [{"a": number, "b": [number], "c": {"d": number}} for number in (1.5, None, None, None)]
    assert objects("scan", tmp_path / "t.parquet") == expected
    assert objects("head", "--json", tmp_path / "t.parquet")[0]["rows"] == expected


def test_a_limit_asks_for_no_batch_too_many() -> None:
    asked = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(9):
            asked.append(number)
            yield TABLE.slice(number * 10, 10).to_batches()[0]

    for limit, count in ((0, 0), (1, 1), (10, 1), (11, 2), (None, 9)):
        asked.clear()
        assert sum(batch.num_rows for batch in _limited(batches(), limit)) == (90 if limit is None else limit)
        assert len(asked) == count, limit


def test_head_refuses_what_has_no_rows_and_no_lines(tables: Path) -> None:
    for place in (tables / "d", f"{tables}/d/"):
        error = run("head", place, code=1).stderr
        assert f"it is a directory (IsADirectory); hint: head '{tables}/d/*.parquet' shows" in error
    (tables / "bytes").write_bytes(b"text\nand\0\xff")
    result = run("head", tables / "bytes", code=2)
    assert (result.stdout, "it is not a text" in result.stderr) == ("", True)
    assert run("head", "-n", 1, "--type", "text", tables / "bytes").stdout == "text\n"


def test_scan_is_what_pyarrow_reads(tables: Path) -> None:
    for name in ("t.parquet", "t.lance"):
        place = tables / name
        rows = objects("scan", "--columns", "id,day", place)
        assert rows == [{"id": row["id"], "day": str(row["day"])} for row in TABLE.select(["id", "day"]).to_pylist()]
        arrow = run("scan", "-f", "arrow", "--limit", 17, place).stdout_bytes
        assert pa.ipc.open_stream(arrow).read_all() == TABLE.slice(0, 17)
        parsed = list(csv.DictReader(lines("scan", "-f", "csv", "--columns", "id,name", "--limit", 3, place)))
        assert parsed == [{"id": str(number), "name": f"n{number}"} for number in range(3)]
        assert lines("scan", "--limit", 0, place) == []


def test_filters(tables: Path) -> None:
    for filters, expected in (
        (["id < 3"], [0, 1, 2]),
        (["id >= 995", "id!=997"], [995, 996, 998, 999]),
        (["day = 2026-01-03", "id < 40"], [2, 30]),
        (['name in ["n1", "n2"]', "id < 9"], [1, 2, 8]),
        (["name == n6", "id < 9"], [6]),
        (['[["id", "=", 4], ["name", "=", "n4"]]'], [4]),
        (['[[["id", "=", 4]], [["id", "=", 900]]]', "day > 2026-01-04"], [4, 900]),
    ):
        given = [text for clause in filters for text in ("--filter", clause)]
        for name in ("t.parquet", "t.lance"):
            assert [row["id"] for row in objects("scan", *given, tables / name)] == expected, filters
    assert [row["id"] for row in objects("scan", "--filter", "id > 3", "--limit", 2, tables / "t.parquet")] == [4, 5]
    assert len(lines("scan", tables / "d")) == len(lines("scan", f"{tables}/d/**/*.parquet")) == 20
    for arguments in (
        (tables / "text",),
        ("--filter", "id", tables / "t.parquet"),
        ("--filter", "none > 3", tables / "t.lance"),
        ("--columns", "none", tables / "t.parquet"),
    ):
        assert run("scan", *arguments, code=2).stderr.count("\n") == 1
    for text, message in (
        ("id = foo", "--filter: the column 'id' is int64, and \"foo\" is string (InvalidArgument)"),
        ('id in ["x"]', "--filter compares a column of int64 with a value of string (InvalidArgument)"),
        ("name = 2026-01-01", "--filter: the column 'name' is string, and 2026-01-01 is date32[day] (InvalidArgument)"),
    ):
        for name in ("t.parquet", "t.lance"):
            assert run("scan", "--filter", text, tables / name, code=2).stderr.strip().endswith(message), text
    error = run("scan", "--filter", "name = 3", "--filter", "id > 1", tables / "t.parquet", code=2).stderr
    assert "--filter compares a column of string with a value of int" in error


def test_a_plan_is_what_a_scan_asks_for(bucket: Bucket) -> None:
    """Requests and bytes, as the server counts them."""
    numbers = pa.array(range(600_000), pa.int64())
    wide = pa.table(dict.fromkeys("abc", numbers))
    bucket.put(t=parquet_bytes(wide, group_rows=50_000, use_dictionary=False, compression="none"))
    place = [bucket.url("t"), "-o", "block_bytes=1MiB"]
    (plan,) = objects("plan", "--json", "--columns", "b", "--filter", "a < 5000", *place)
    bucket.server.reset()
    assert len(lines("scan", "--columns", "b", "--filter", "a < 5000", "--type", "parquet", *place)) == 5000
    assert bucket.server.count("GET") == len(plan["requests"]) + plan["metadata_requests"]
    assert bucket.server.bytes_sent == plan["requested_bytes"] > plan["metadata_bytes"] > 0
    assert plan["requested_bytes"] >= plan["wanted_bytes"] > 0
    (plan,) = objects(
        "plan", "--json", "--range", "0:10", "--range", "20:30", "--range", "50MiB:51MiB", bucket.url("k")
    )
    assert [(part["start"], part["end"]) for part in plan["requests"]] == [(0, 30), (50 << 20, 51 << 20)]
    shown = lines("plan", "--columns", "b", *place)
    assert shown[-1].startswith(f"{len(shown)} requests for ")
    assert "(1 of them for metadata);" in shown[-1]


def test_a_plan_counts_what_comes_with_the_metadata(bucket: Bucket) -> None:
    """Small files come whole with their footers."""
    small = parquet_bytes()
    bucket.put(**{"d/1.parquet": small, "d/2.parquet": small})
    place = bucket.url("d/*.parquet")
    (plan,) = objects("plan", "--json", place)
    assert plan["requested_bytes"] == plan["metadata_bytes"] == 2 * len(small)
    assert 0 < plan["wanted_bytes"] < plan["requested_bytes"]
    assert (plan["requests"], plan["metadata_requests"], plan["dollars"]) == ([], 2, 8e-07)
    (shown,) = lines("plan", place)
    assert shown.startswith("2 requests for ")
    assert "(2 of them for metadata, which bring the data along)" in shown


def test_plans_that_cannot_be(tables: Path) -> None:
    (plan,) = objects("plan", "--json", "--columns", "id", tables / "t.lance")
    assert plan["metadata_requests"] == 2  # The manifest, and the metadata of a file.
    for arguments in ((tables / "text",), ("--range", "5:", "x"), ("--range", "0:5", "--columns", "a", "x")):
        assert run("plan", *arguments, code=2).stderr.count("\n") == 1
    assert "it is neither Parquet nor Lance" in run("plan", tables / "text", code=2).stderr
    assert "no column 'none'" in run("plan", "--filter", "none > 3", tables / "t.lance", code=2).stderr
    assert json.loads(run("plan", "--json", tables / "d").stdout)["metadata_requests"] == 2


def test_a_directory_of_a_table_needs_no_slash(bucket: Bucket) -> None:
    """Such as what Spark writes, whose name may end as that of a file does."""
    table = pa.table({"id": range(3)})
    bucket.put(**{"t.parquet/1.parquet": parquet_bytes(table), "plain/1.parquet": parquet_bytes(table)})
    for place in (bucket.url("t.parquet"), bucket.url("plain")):
        assert objects("scan", place) == [{"id": 0}, {"id": 1}, {"id": 2}]
        (plan,) = objects("plan", "--json", place)
        assert (plan["requests"], plan["wanted_bytes"] > 0) == ([], True)
        hint = f"IsADirectory); hint: head '{place}/*.parquet' shows the first file"
        assert hint in run("head", place, code=1).stderr
    assert "NotFound" in run("scan", bucket.url("none"), code=1).stderr


def test_what_csv_cannot_hold(tmp_path: Path) -> None:
    """Is named, with what to do."""
    table = pa.table({"id": [1], "list": [[1, 2]], "bytes": [b"\xff"]})
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(table))
    for columns, message in (
        ("id,list", "CSV has no nested columns: 'list' is list<element: int64> (InvalidArgument); hint: -f jsonl"),
        ("bytes", "CSV cannot hold this: Invalid UTF8 payload (InvalidArgument); hint: -f jsonl"),
    ):
        result = run("scan", "-f", "csv", "--columns", columns, tmp_path / "t.parquet", code=2)
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    assert lines("scan", "-f", "csv", "--columns", "id", tmp_path / "t.parquet") == ['"id"', "1"]
