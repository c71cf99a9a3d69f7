"""Files that are missing, changed or corrupt, under each policy: left out as a whole, or named."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from aioprefetch.errors import (
    ConfigInvalid,
    CredentialsExpired,
    Error,
    NotFound,
    ObjectChanged,
    PermissionDenied,
    Unavailable,
    Unsupported,
    UntrustedMetadata,
)
from aioprefetch.source.options import FailureOptions, FormatOptions, ReadOptions
from aioprefetch.source.reading import ReadTask, quarantine_to
from aioprefetch.source.reading.task import reason_of
from aioprefetch.source.values import FetchItem
from aioprefetch.spark.operators import explaining
from aioprefetch.spark.settings import SourceSettings, SourceUrl
from aioprefetch.testing.conformance.suite import checks
from tests.profile import each_of
from tests.stores.source_files import URL, Shelf, jsonl, parquet

SCHEMA = pa.schema([("n", pa.int64())])
KINDS = ["jsonl", "parquet"]


def data_of(kind: str, first: int, count: int) -> bytes:
    if kind == "parquet":
        return parquet(pa.table({"n": range(first, first + count)}), row_group_size=max(count // 2, 1))
    return jsonl([{"n": number} for number in range(first, first + count)])


def broken(kind: str, first: int, count: int) -> bytes:
    """Good at the beginning, bad in the middle."""
    data = data_of(kind, first, count)
    if kind == "jsonl":
        lines = data.splitlines(keepends=True)
        lines[len(lines) // 2] = b'{"n": nothing}\n'
        return b"".join(lines)
    footer = int.from_bytes(data[-8:-4], "little") + 8
    middle = (len(data) - footer) // 2
    return data[:middle] + b"\xff" * (len(data) - footer - middle) + data[-footer:]


def task_of(policy: str, lines: list[str] | None = None, **read: Any) -> ReadTask:
    async def write(found: Sequence[str]) -> None:
        assert lines is not None
        lines.extend(found)

    failures: Any = FailureOptions(**{f"on_{reason}": policy for reason in ERRORS})  # type: ignore[arg-type]
    return ReadTask(
        schema=SCHEMA,
        url=URL,
        failures=failures,
        read=ReadOptions(**read),
        quarantine=None if lines is None else write,
    )


async def spoiled(shelf: Shelf, kind: str, how: str) -> list[FetchItem]:
    """Five files of three records, the middle one of which is spoiled."""
    files = [await shelf.put(f"{number}.{kind}", data_of(kind, number * 10, 3)) for number in range(5)]
    if how == "missing":
        await shelf.delete(files[2].key)
    elif how == "changed":
        await shelf.put(files[2].key, data_of(kind, 990, 3))
    elif how == "unreadable":
        shelf.seen.failing[files[2].key] = PermissionDenied("archived", context={"code": "InvalidObjectState"})
    else:
        files[2] = await shelf.put(files[2].key, broken(kind, 20, 3))
    return [FetchItem(file) for file in files]


GOOD = [{"n": number * 10 + row} for number in (0, 1, 3, 4) for row in range(3)]
ERRORS = {"missing": NotFound, "changed": ObjectChanged, "corrupt": UntrustedMetadata, "unreadable": PermissionDenied}


@checks("source:Q6", "reliability:P07")
@each_of("kind", KINDS)
@each_of("how", list(ERRORS))
async def test_a_spoiled_file_fails_the_batch_by_name(kind: str, how: str) -> None:
    async with Shelf() as shelf:
        items = await spoiled(shelf, kind, how)
        with pytest.raises(ERRORS[how]) as caught:
            await shelf.rows(items, task_of("fail"))
        assert isinstance(caught.value, Error)
        assert caught.value.path == f"2.{kind}"
        assert caught.value.context["file"] == f"{URL}/2.{kind}"


@checks("source:Q6")
@each_of("size", ["small", "large"])
@each_of("kind", KINDS)
@each_of("url", ["file:///data", URL])
async def test_a_changed_file_is_named_with_the_options_of_spark_that_help(url: str, kind: str, size: str) -> None:
    """Of a local file, which may still be written, the hint also says what its writer should do."""
    settings = SourceSettings(url=url, location=SourceUrl(url))
    async with Shelf() as shelf:
        file = await shelf.put(f"a.{kind}", data_of(kind, 0, 3 if size == "small" else 200_000))
        await shelf.put(f"a.{kind}", data_of(kind, 0, 5))
        with pytest.raises(ObjectChanged) as caught, explaining(settings):
            await shelf.rows([file], replace(task_of("fail"), url=url))
    assert caught.value.context["file"] == f"{url}/a.{kind}"
    assert "onChanged=skip with overwrites=reread" in str(caught.value)
    assert ("write it elsewhere, then rename it" in str(caught.value)) == url.startswith("file:")


@checks("source:Q6", "reliability:P07")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", list(ERRORS))
async def test_a_spoiled_file_is_left_out_whole_and_written_down(
    kind: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Shelf() as shelf:
        items = await spoiled(shelf, kind, how)
        assert await shelf.rows(items, task_of("skip")) == GOOD
        assert f"{URL}/2.{kind} is left out, on_{how}=skip" in caplog.text
        lines: list[str] = []
        again: list[str] = []
        assert await shelf.rows(items, task_of("quarantine", lines)) == GOOD
        assert await shelf.rows(items, task_of("quarantine", again, files_in_flight=1)) == GOOD
    assert lines == again  # A batch that is run again writes the same.
    (line,) = map(json.loads, lines)
    assert (line["file"], line["key"], line["reason"]) == (f"{URL}/2.{kind}", f"2.{kind}", how)
    assert (line["etag"], line["size"]) == (items[2].file.etag, items[2].file.size)
    assert ERRORS[how].__name__ in line["error"]


@pytest.mark.parametrize("how", list(ERRORS))
async def test_each_policy_is_for_its_own_reason(how: str) -> None:
    async with Shelf() as shelf:
        items = await spoiled(shelf, "parquet", how)
        others: Any = {f"on_{name}": "skip" for name in ERRORS if name != how}
        with pytest.raises(ERRORS[how]):
            await shelf.rows(items, ReadTask(schema=SCHEMA, url=URL, failures=FailureOptions(**others)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files_in_flight", [1, 8])
async def test_no_row_of_a_file_that_is_left_out_is_given(kind: str, files_in_flight: int) -> None:
    """It decodes to many batches before it turns out corrupt, with a window that holds them."""
    async with Shelf() as shelf:
        good = await shelf.put(f"good.{kind}", data_of(kind, 0, 5000))
        bad = await shelf.put(f"bad.{kind}", broken(kind, 10_000, 20_000))
        task = task_of("skip", batch_rows=100, files_in_flight=files_in_flight)
        for order in ([good, bad, good], [bad, good, good]):
            assert [row["n"] for row in await shelf.rows(order, task)] == [*range(5000)] * 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_too_large_to_be_held_back_is_left_out_all_the_same(kind: str) -> None:
    async with Shelf() as shelf:
        # Lines are parsed a MiB at a time.
        data = jsonl([{"n": n, "more": "x" * 2000} for n in range(2000)]) + b"{]" if kind == "jsonl" else None
        good = await shelf.put(f"good.{kind}", data[:-2] if data else data_of(kind, 0, 2000))
        bad = await shelf.put(f"bad.{kind}", data or broken(kind, 0, 100_000))
        small: Any = {"batch_rows": 100, "bytes_in_flight": 8 << 10}
        for order in ([good, bad], [bad, good]):
            assert [row["n"] for row in await shelf.rows(order, task_of("skip", **small))] == [*range(2000)]
        task = replace(task_of("fail", **small), failures=FailureOptions(on_missing="skip"))
        with pytest.raises(UntrustedMetadata) as caught:
            await shelf.rows([bad], task)
        assert any("more than half of bytes_in_flight" in note for note in caught.value.__notes__)


BAD_LINES: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "jsonl": ({}, [b'{"n": 1}', b"{", b'{"n": "x"}', b'{"n": 2, "m": "\xff"}', b'{"n": 3}', b"7"]),
    "csv": ({"header": True}, [b"n,m", b"1,a", b"x,a", b'2,"', b"2,\xff", b"3,c", b"4"]),
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("kind", BAD_LINES)
@pytest.mark.parametrize("multi_line", [False, True])
async def test_bad_records_are_left_out_and_counted_for_each_file(
    kind: str, end: bytes, multi_line: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options, lines = BAD_LINES[kind]
    if multi_line and kind == "jsonl":
        return
    bad = len(lines) - len(options) - 2
    data, notes = end.join(lines) + end, list[str]()
    task = replace(
        task_of("fail", notes),
        failures=FailureOptions(on_corrupt_record="skip"),
        format=FormatOptions(**options, multi_line=multi_line),
    )
    async with Shelf() as shelf:
        file = await shelf.put(f"a.{kind}", data)
        large = await shelf.put(f"b.{kind}", data + data[data.index(end) :] * 99)  # Of which quotes close each other.
        whole, cut = FetchItem(large), len(data) * 40 + 11
        parts = [whole] if multi_line else [replace(whole, end=cut), replace(whole, start=cut, end=large.size)]
        assert [row["n"] for row in await shelf.rows([file, file], task)] == [1, 3] * 2
        assert len(await shelf.rows(parts, task)) == (100 if multi_line else 200 if kind == "csv" else 101)
        with pytest.raises(UntrustedMetadata):
            await shelf.rows([file], replace(task, failures=FailureOptions()))
    notes_of = [line for line in map(json.loads, notes) if line["key"] == file.key]
    assert {(line["records"], line["etag"], line["reason"]) for line in notes_of} == {(bad, file.etag, "records")}
    assert f"a.{kind}: {bad} record(s) left out" in caplog.text


async def test_values_that_do_not_fit_the_schema_are_the_files_fault() -> None:
    async with Shelf() as shelf:
        files = [
            await shelf.put("0.parquet", parquet(pa.table({"n": [1]}))),
            await shelf.put("1.parquet", parquet(pa.table({"n": ["x"]}))),
            await shelf.put("2.parquet", parquet(pa.table({"n": pa.array([2**64 - 1], pa.uint64())}))),
            await shelf.put("3.parquet", parquet(pa.table({"N": pa.array([4], pa.int8())}))),
        ]
        assert await shelf.rows(files, task_of("skip")) == [{"n": 1}, {"n": 4}]
        for number in (1, 2):
            with pytest.raises(UntrustedMetadata, match="column 'n' is") as caught:
                await shelf.rows(files[number:], task_of("fail"))
            assert caught.value.path == f"{number}.parquet"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "lance"])
async def test_what_is_no_file_of_its_format_is_corrupt(kind: str) -> None:
    async with Shelf() as shelf:
        files = [await shelf.put(f"{n}.{kind}", data) for n, data in enumerate((b"PK\x03\x04zip", b"x" * 100, b"{"))]
        assert await shelf.rows(files, task_of("skip")) == []
        for file in files:
            with pytest.raises(UntrustedMetadata) as caught:
                await shelf.rows([file], task_of("fail"))
            assert caught.value.path == file.key


async def test_quarantine_replaces_what_an_earlier_run_wrote() -> None:
    async with Shelf() as shelf:
        items = await spoiled(shelf, "jsonl", "missing")
        for _ in range(2):
            failures = FailureOptions(on_missing="quarantine")
            write = quarantine_to(shelf.operator, "dead/7-0.jsonl")
            await shelf.rows(items, ReadTask(schema=SCHEMA, url=URL, failures=failures, quarantine=write))
        (line,) = (await shelf.operator.read("dead/7-0.jsonl")).splitlines()
        assert json.loads(line)["key"] == "2.jsonl"
        await shelf.rows(items[:2], ReadTask(schema=SCHEMA, url=URL, failures=failures, quarantine=None or write))
        assert await shelf.operator.exists("dead/7-0.jsonl")
    with pytest.raises(ConfigInvalid, match="nowhere to write"):
        ReadTask(schema=SCHEMA, url=URL, failures=FailureOptions(on_corrupt="quarantine"))


def test_what_concerns_more_than_one_file_has_no_policy() -> None:
    assert reason_of(NotFound("there is no bucket", context={"code": "NoSuchBucket"})) is None
    assert reason_of(NotFound("gone", context={"code": "NoSuchKey"})) == "missing"
    assert reason_of(Unavailable("down")) is None
    assert reason_of(Unsupported("no ranges", operation="read")) is None
    assert reason_of(Unsupported("encrypted", operation="footer")) == "corrupt"
    assert reason_of(RuntimeError("a bug")) is None
    deleted = ObjectChanged("deleted while it was read")
    deleted.__cause__ = NotFound("gone")
    assert reason_of(deleted) == "missing"


async def test_an_archived_file_is_named_with_the_option_that_helps() -> None:
    settings = SourceSettings(url=URL, location=SourceUrl(URL))
    async with Shelf() as shelf:
        items = await spoiled(shelf, "jsonl", "unreadable")
        with pytest.raises(PermissionDenied, match="onUnreadable=skip"), explaining(settings):
            await shelf.rows(items, task_of("fail"))


@pytest.mark.parametrize(
    ("context", "of_one"),
    [
        ({"code": "AccessDenied"}, True),
        ({"code": "InvalidObjectState", "http_status": 403}, True),
        ({"code": "KMS.DisabledException", "http_status": 400}, True),
        ({"http_status": 403}, True),
        ({"errno": "EACCES"}, True),
        ({"code": "SignatureDoesNotMatch", "http_status": 403}, False),
        ({"code": "InvalidAccessKeyId", "http_status": 403}, False),
        ({"http_status": 400}, False),
        ({}, False),
    ],
)
def test_a_refusal_of_keys_is_of_no_single_file(context: dict[str, object], of_one: bool) -> None:
    assert reason_of(PermissionDenied("no", context=context)) == ("unreadable" if of_one else None)
    assert reason_of(CredentialsExpired("no", context={"http_status": 400, "code": "ExpiredToken"})) is None


@pytest.mark.parametrize(
    ("code", "first", "rows"), [("AccessDenied", 0, None), ("AccessDenied", 9, 1), ("InvalidObjectState", 0, 1)]
)
async def test_the_first_ten_files_that_are_all_forbidden_are_an_error(code: str, first: int, rows: int | None) -> None:
    """It is the identity then. Archived files are what they are; one file that was read shows that others may be."""
    async with Shelf() as shelf:
        files = [await shelf.put(f"{number:02}.jsonl", jsonl([{"n": number}])) for number in range(12)]
        denied = PermissionDenied("no", context={"code": code})
        shelf.seen.failing |= {file.key: denied for number, file in enumerate(files) if number != (first or 11)}
        if rows is None:
            with pytest.raises(PermissionDenied) as caught:
                await shelf.rows(files, task_of("skip"))
            assert "first 10 files of the task are all forbidden" in caught.value.__notes__[0]
            assert caught.value.context["file"] == f"{URL}/09.jsonl"
        else:
            assert len(await shelf.rows(files, task_of("skip"))) == rows
