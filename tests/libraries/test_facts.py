"""What one open of an object has learned serves the next, and no byte without a response that proves it."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import aioprefetch as ap
from aioprefetch.fsspec import AioPrefetchFileSystem, S3FileSystem
from aioprefetch.sync.loop_thread import loop_thread
from aioprefetch.testing import CountingS3Server
from tests.stores.planted_keys import PlantedBucket

KEY = "t.parquet"
Open = Callable[[], Any]


def parquet_of(rows: int, seed: int = 1) -> bytes:
    """A table of five columns."""
    random = np.random.default_rng(seed)
    file = io.BytesIO()
    pq.write_table(pa.table({f"c{number}": random.random(rows) for number in range(5)}), file)
    return file.getvalue()


SMALL, OTHER, LARGE = parquet_of(100), parquet_of(2_000, seed=2), parquet_of(80_000)


@pytest.fixture
def planted(s3_server: CountingS3Server, random_name: Callable[[], str]) -> PlantedBucket:
    planted = PlantedBucket(s3_server, random_name())
    planted.plant({KEY: SMALL})
    return planted


class Door:
    """A file system by which pandas and pyarrow read the object."""

    def __init__(self, planted: PlantedBucket, *, is_arrow: bool, **options: Any) -> None:
        self.planted = planted
        operator = ap.Operator.from_uri(planted.url, **{**planted.options, **options})
        fs = AioPrefetchFileSystem(operator, skip_instance_cache=True)
        self.fs: Any = ap.arrow.filesystem(operator) if is_arrow else fs
        self.close = fs.close
        planted.server.reset()

    def open(self) -> Any:
        """A file whose end is known to be wanted, as by a library that reads footers."""
        file = self.fs.open_input_file(KEY) if hasattr(self.fs, "open_input_file") else self.fs.open(KEY)
        file.seek(0, os.SEEK_END)
        return file

    def requests(self) -> list[tuple[str, str | None, bool, int]]:
        """Method, range, whether it has ``If-Match``, and status of the requests since the last call."""
        found = [(one.method, one.range, one.if_match is not None, one.status) for one in self.planted.server.requests]
        self.planted.server.reset()
        return found


@pytest.fixture(params=["fsspec", "arrow"])
def door(request: pytest.FixtureRequest, planted: PlantedBucket) -> Iterator[Door]:
    door = Door(planted, is_arrow=request.param == "arrow")
    yield door
    door.close()


def column(table: bytes) -> Any:
    return pq.read_table(io.BytesIO(table), columns=["c1"])


def footer_read(door: Door, data: bytes = SMALL) -> None:
    """Read the end of the object as Arrow does, and drop the file."""
    file = door.open()
    file.seek(len(data) - 8)
    assert bytes(file.read_buffer(8)) == data[-8:]


def read_at(door: Door, offset: int, size: int, data: bytes = SMALL) -> None:
    file = door.open()
    assert file.tell() == len(data)
    file.seek(offset)
    assert file.read(size) == data[offset : offset + size]


class TestRequests:
    @pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
    def test_of_a_column(self, door: Door, data: bytes) -> None:
        """One HEAD, one read of the tail, and then the column, which proves the version. Twice the same."""
        door.planted.plant({KEY: data})
        for tail in ("GET 206", "GET 304"):
            assert pd.read_parquet(KEY, columns=["c1"], filesystem=door.fs)["c1"].sum() > 0
            (head, *requests) = door.requests()
            if head[0] != "HEAD":  # Which fsspec's file system has asked for a moment before.
                assert tail == "GET 304"
                requests.insert(0, head)
            assert [f"{method} {status}" for method, _, _, status in requests[:1]] == [tail]
            assert requests[0][1] == "bytes=-1048576"
            assert {(method, *rest) for method, _, *rest in requests[1:]} == {("GET", True, 206)}

    def test_by_a_url(self, planted: PlantedBucket) -> None:
        ap.fsspec.register()
        planted.plant({KEY: LARGE})
        planted.server.reset()
        words = {"skip_instance_cache": True, **planted.options}
        frame = pd.read_parquet(f"aioprefetch+{planted.url}/{KEY}", columns=["c1"], storage_options=words)
        assert len(frame) == 80_000
        assert [request.method for request in planted.server.requests] == ["HEAD", "GET", "GET"]

    def test_of_what_is_there_is_one_byte(self, door: Door) -> None:
        footer_read(door)
        door.requests()
        read_at(door, 4, 10)
        assert door.requests() == [("GET", "bytes=4-4", True, 206)]

    def test_are_asked_again_by_a_third_file(self, door: Door) -> None:
        footer_read(door)
        read_at(door, 4, 10)
        door.requests()
        read_at(door, 4, 10)
        assert [(method, status) for method, _, _, status in door.requests()] == [("GET", 304)]

    @pytest.mark.parametrize(
        "how", ["only the size", "closed", "read elsewhere", "read", "readinto", "late", "written", "own write"]
    )
    def test_nothing_is_left(self, door: Door, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        file = door.open()
        if how != "only the size":
            file.seek(len(SMALL) - 8)
            file.read_buffer(8)
        if how == "closed":
            file.close()
        elif how == "read elsewhere":
            file.seek(4)
            file.read_buffer(10)
        elif how in ("read", "readinto"):
            file.seek(len(SMALL) - 8)
            file.read(8) if how == "read" else file.readinto(bytearray(8))
        elif how == "late":
            loop = loop_thread().loop
            later = loop.time() + 5
            monkeypatch.setattr(loop, "time", lambda: later)
        elif how == "written":
            with ap.sync.BlockingOperator(ap.Operator.from_uri("memory://elsewhere")) as other:
                other.write("k", b"")
        elif how == "own write":
            with ap.sync.BlockingOperator(ap.Operator.from_uri(door.planted.url, **door.planted.options)) as other:
                other.write(KEY, OTHER)
        door.requests()
        footer_read(door, OTHER if how == "own write" else SMALL)
        requests = door.requests()
        assert [method for method, _, _, _ in requests] == ["GET"]
        assert requests[0][1] == "bytes=-1048576"

    def test_of_a_file_that_names_a_version(self, planted: PlantedBucket) -> None:
        door = Door(planted, is_arrow=False)
        footer_read(door)
        etag = door.fs.info(KEY)["ETag"].strip('"')
        door.requests()
        with door.fs.open(KEY, etag=etag) as file:
            assert file.seek(0, os.SEEK_END) == len(SMALL)
        assert [(method, status) for method, _, _, status in door.requests()] == [("GET", 206)]
        door.close()

    def test_where_listings_are_not_kept(self, planted: PlantedBucket) -> None:
        fs = S3FileSystem(**planted.options, use_listings_cache=False, skip_instance_cache=True)
        planted.server.reset()
        for _ in range(2):
            file = fs.open(f"{planted.name}/{KEY}")
            file.seek(-8, os.SEEK_END)
            assert bytes(file.read_buffer(8)) == SMALL[-8:]
        assert [request.status for request in planted.server.requests] == [206, 304]
        fs.close()

    def test_where_blocks_may_be_on_a_disk(self, planted: PlantedBucket, tmp_path: Path) -> None:
        """From there they are served without a request: so one byte is asked for before."""
        planted.plant({KEY: LARGE})
        door = Door(planted, is_arrow=False, disk_cache=str(tmp_path))
        footer_read(door, LARGE)
        door.requests()
        read_at(door, 4, 10, LARGE)
        assert door.requests()[0][1:] == ("bytes=4-4", True, 206)
        footer_read(door, LARGE)
        planted.plant({KEY: OTHER})
        with pytest.raises(ap.ObjectChanged):
            read_at(door, 4, 10, LARGE)
        door.close()


class TestOthersWrite:
    def test_between_two_calls(self, door: Door) -> None:
        """Each call sees what was written before it, and not what an earlier one has learned."""
        for data in (SMALL, OTHER, LARGE, SMALL):
            door.planted.plant({KEY: data})
            assert pq.read_table(KEY, columns=["c1"], filesystem=door.fs).equals(column(data))
            assert pq.read_metadata(KEY, filesystem=door.fs).num_columns == 5
            assert pq.ParquetFile(KEY, filesystem=door.fs).read(["c1"]).equals(column(data))
            file = door.open()
            file.seek(4)
            file.read(10)

    def test_between_the_size_and_the_first_read(self, door: Door) -> None:
        """The size was given out, and is another one now: no byte of either version. The next file is right."""
        footer_read(door)
        door.planted.plant({KEY: OTHER})
        file = door.open()
        assert file.tell() == len(SMALL)
        for offset in (4, len(SMALL) - 8):
            file.seek(offset)
            with pytest.raises(ap.ObjectChanged):
                file.read(8)
        footer_read(door, OTHER)
        read_at(door, 4, 10, OTHER)

    def test_between_footer_and_data(self, door: Door) -> None:
        """Data of another version is not decoded by the footer that is there."""
        for data in (SMALL, LARGE):
            door.planted.plant({KEY: data})
            dataset = pq.ParquetDataset(KEY, filesystem=door.fs)
            assert len(dataset.schema) == 5
            door.planted.plant({KEY: OTHER})
            with pytest.raises(ap.ObjectChanged):
                dataset.read(["c1"])

    def test_without_a_question_for_the_size(self, planted: PlantedBucket) -> None:
        """Then nothing that was learned is used. Arrow's own files ask for it."""
        door = Door(planted, is_arrow=False)
        footer_read(door)
        planted.plant({KEY: OTHER})
        assert door.fs.open(KEY).read() == OTHER
        with ap.sync.BlockingOperator(door.fs.place_of(KEY).operator) as op:
            footer_read(door, OTHER)
            planted.plant({KEY: SMALL})
            assert ap.arrow.filesystem(op.operator).open_input_stream(KEY).read() == SMALL
        door.close()

    def test_between_files_that_were_read(self, door: Door) -> None:
        """Not closed, and not read as by Arrow's readers of tables: they leave nothing."""
        opened = door.fs.open_input_file if hasattr(door.fs, "open_input_file") else door.fs.open
        for data in (SMALL, OTHER, SMALL + b"more", LARGE):
            door.planted.plant({KEY: data})
            assert opened(KEY).read() == data
            file = opened(KEY)
            file.seek(-8, os.SEEK_END)
            assert file.read(8) == data[-8:]

    def test_of_the_same_size(self, door: Door) -> None:
        footer_read(door)
        door.planted.plant({KEY: SMALL[:50] + b"?" + SMALL[51:]})
        file = door.open()
        file.seek(40)
        with pytest.raises(ap.ObjectChanged):
            file.read(20)

    @pytest.mark.parametrize("data", [SMALL, LARGE], ids=["resident", "missing"])
    def test_deletion(self, door: Door, data: bytes) -> None:
        """The first read says that it is gone, also where its bytes are in memory."""
        door.planted.plant({KEY: data})
        footer_read(door, data)
        with ap.sync.BlockingOperator(ap.Operator.from_uri(door.planted.url, **door.planted.options)) as raw:
            leaves = door.open()  # Takes what was left.
            raw.delete(KEY)
        leaves.seek(4)
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                leaves.read(10)
        with pytest.raises(FileNotFoundError):
            door.open()

    def test_entries_that_were_asked_for(self, planted: PlantedBucket) -> None:
        fs = Door(planted, is_arrow=False).fs
        assert fs.info(KEY)["size"] == len(SMALL)
        planted.plant({KEY: OTHER})
        assert fs.open(KEY).read() == fs.cat_file(KEY) == OTHER
        assert pd.read_parquet(KEY, columns=["c1"], filesystem=fs)["c1"].tolist() == column(OTHER)["c1"].to_pylist()
        fs.close()


def test_a_dataset_of_several_files(door: Door) -> None:
    """What is read through by one file leaves nothing: overwritten, it is read in its new version."""
    names = [f"many/{number}.parquet" for number in range(3)]
    door.planted.plant(dict.fromkeys(names, SMALL))
    assert ds.dataset("many", filesystem=door.fs).to_table().num_rows == 300
    door.planted.plant({names[1]: OTHER, names[2]: OTHER})
    assert ds.dataset("many", filesystem=door.fs).to_table().num_rows == 4_100
