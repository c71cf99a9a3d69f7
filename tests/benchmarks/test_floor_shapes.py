"""The jobs of small objects, misses, streams, pressure and connections: what they check and count."""

from __future__ import annotations

import contextlib
import io
import urllib.request
import zipfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from tests.benchmarks import job as job_module
from tests.benchmarks.access_log import Request, Traffic
from tests.benchmarks.connections import broken_off
from tests.benchmarks.content import MIB, expected
from tests.benchmarks.job import WALL, Job, Sample, Target, run_job
from tests.benchmarks.local_files import local_store
from tests.benchmarks.long_streams import check_pages
from tests.benchmarks.many_readers import PRESSURE_READ_BYTES, measured, sent_over_read
from tests.benchmarks.misses import STRIDE_BYTES
from tests.benchmarks.moto_store import key_names, moto_store
from tests.benchmarks.new_objects import OBJECT_BYTES, read_each, read_each_blocking
from tests.benchmarks.parquet_open import sent_over_values
from tests.benchmarks.simulator import BUCKET, DIRECTLY, LOOPBACK
from tests.benchmarks.small_requests import act_on_each
from tests.benchmarks.zip_members import MEMBER_BYTES, member, read_members, write_archive


def a_get(*, asked: str, sent_bytes: int, connection: int) -> Request:
    return Request(
        method="GET",
        uri="/bench/object",
        status=206,
        start=0,
        end=1,
        range=asked,
        sent_bytes=sent_bytes,
        connection=connection,
    )


def with_holes(start: int, end: int) -> bytes:
    """The bytes ``[start, end)`` of an object whose pages beyond the first of each stride are holes."""
    found = bytearray(end)
    for page in range(0, end, STRIDE_BYTES):
        found[page : page + 4096] = expected(page, page + 4096)
    return bytes(found[start:end])


@pytest.mark.parametrize(("start", "end"), [(0, MIB), (1, MIB + 1), (4095, 2 * MIB), (STRIDE_BYTES - 8, STRIDE_BYTES)])
def test_pages_with_holes_are_looked_at_in_chunks_of_any_place(start: int, end: int) -> None:
    assert check_pages(with_holes(start, end), start) == end - start


def test_a_page_of_another_place_is_found_in_a_long_stream() -> None:
    with pytest.raises(AssertionError, match=r"^wrong bytes at 1048576"):
        check_pages(with_holes(0, MIB), MIB)


async def test_every_small_object_is_read_once_and_compared() -> None:
    whole, keys = expected(0, OBJECT_BYTES), [f"object-{number}" for number in range(100)]
    asked: list[str] = []

    async def get(key: str) -> bytes:
        asked.append(key)
        return whole

    def blocking(key: str) -> bytes:
        asked.append(key)
        return whole

    await read_each(get, keys, whole)
    read_each_blocking(blocking, keys, whole)
    assert Counter(asked) == dict.fromkeys(keys, 2)
    with pytest.raises(AssertionError, match=r"^other bytes in object-0$"):
        read_each_blocking(blocking, keys[:1], whole[1:] + b"x")


async def test_readers_under_pressure_are_checked_and_the_slowest_is_compared() -> None:
    """Chunks of any size; each reader has an object of its own."""
    target = Target(size_bytes=MIB, every_byte=True)
    opened: list[str] = []

    async def open_key(key: str) -> AsyncGenerator[bytes]:
        opened.append(key)
        for start in range(0, MIB, PRESSURE_READ_BYTES):
            yield expected(start, start + PRESSURE_READ_BYTES)

    found = await measured(open_key, 3, target)
    assert opened == ["object-0", "object-1", "object-2"]
    assert found["received_bytes"] == 3 * MIB
    assert found["slowest_over_median"] >= 1
    requests = [a_get(asked="bytes=0-", sent_bytes=MIB, connection=number) for number in range(6)]
    assert sent_over_read(found, requests, LOOPBACK) == {"sent_over_read": 2.0}

    async def short(key: str) -> AsyncGenerator[bytes]:
        yield expected(0, PRESSURE_READ_BYTES)

    with pytest.raises(ExceptionGroup) as failed:
        await measured(short, 1, target)
    assert failed.group_contains(AssertionError, match=r"^read 262144 bytes of 1048576 of object-0$")


def test_connections_and_answers_that_were_broken_off() -> None:
    requests = [
        a_get(asked="bytes=0-99", sent_bytes=100, connection=7),
        a_get(asked="bytes=0-99", sent_bytes=99, connection=7),
        a_get(asked="bytes=0-99", sent_bytes=100, connection=8),
    ]
    assert Traffic.of(requests).connections == 2
    assert broken_off({"size_bytes": 200}, requests, LOOPBACK) == {"cut": 1}
    beyond = [a_get(asked="bytes=0-399", sent_bytes=200, connection=9)]
    assert broken_off({"size_bytes": 200}, beyond, LOOPBACK) == {"cut": 0}


def test_the_members_of_an_archive_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    write_archive(path, 5 * MEMBER_BYTES)
    with path.open("rb") as file:
        read_members(file, 5)
    other = path.read_bytes().replace(member(3), member(4))
    with pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"):
        read_members(io.BytesIO(other), 5)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("directory/member-00000", member(1))
    with path.open("rb") as file, pytest.raises(AssertionError, match=r"^other bytes in directory/member-00000$"):
        read_members(file, 1)


def test_the_bytes_sent_are_compared_with_those_of_the_values() -> None:
    requests = [a_get(asked="bytes=0-99", sent_bytes=100, connection=1)] * 3
    assert sent_over_values({"values_bytes": 200}, requests, LOOPBACK) == {"sent_over_values": 1.5}


async def test_every_key_is_asked_for_once_and_its_answer_compared() -> None:
    asked: list[str] = []

    async def act(key: str) -> int:
        asked.append(key)
        return 2

    await act_on_each(act, key_names(40), 2)
    assert asked == [f"keys/{number:05}" for number in range(40)]
    with pytest.raises(ExceptionGroup) as failed:
        await act_on_each(act, key_names(1), 3)
    assert failed.group_contains(AssertionError, match=r"^2 bytes for keys/00000$")


async def nothing(target: Target) -> Sample:
    return {}


def test_a_job_with_a_store_of_its_own_passes_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is up while the contestants run, and gone after them."""
    is_up: list[bool] = []
    given: list[Target] = []

    @contextlib.contextmanager
    def store() -> Iterator[str]:
        is_up.append(True)
        yield "http://a.store"
        is_up.pop()

    def one_sample(job: str, name: str, target: Target, **options: object) -> dict[str, float]:
        assert is_up
        given.append(target)
        return {"wall_seconds": 1.0}

    monkeypatch.setattr(job_module, "sample", one_sample)
    job = Job(name="j", title="t", contestants={"us": nothing}, columns=(WALL,), store=store)
    run_job(job, rounds=2, quick=True, pacing="kernel")
    assert given == [Target(endpoint_url="http://a.store", every_byte=True)] * 2
    assert not is_up


def test_the_store_of_moto_has_its_keys_and_ends() -> None:
    """Asked as a client with any keys would."""
    with moto_store(3) as endpoint_url:
        scope = "any/20260101/us-east-1/s3/aws4_request"
        signature = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none"
        request = urllib.request.Request(f"{endpoint_url}/{BUCKET}?list-type=2", headers={"Authorization": signature})
        with DIRECTLY.open(request, timeout=30) as response:
            listed = response.read().decode()
        assert [key in listed for key in (*key_names(3), "keys/00003")] == [True, True, True, False]
    with pytest.raises(OSError, match="refused"):
        DIRECTLY.open(request, timeout=30)


def test_local_files_are_those_of_every_object_and_go_away() -> None:
    with local_store() as url:
        directory = Path(url.removeprefix("file://"))
        with (directory / "object").open("rb") as file:
            file.seek(7 * MIB)
            assert file.read(MIB) == expected(7 * MIB, 8 * MIB)
        assert (directory / "check").samefile(directory / "object")
    assert not directory.exists()
