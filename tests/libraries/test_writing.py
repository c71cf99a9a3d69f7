"""Tables that other libraries write through our files: what they wrote is what they read back, and nothing half."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from aioprefetch import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.sync import BlockingOperator
from aioprefetch.testing import CountingS3Server

ROWS = 300_000


@pytest.fixture(params=["memory", "s3"])
def blocking(
    request: pytest.FixtureRequest, random_name: Callable[[], str], s3_server: CountingS3Server
) -> Iterator[Any]:
    name = random_name()
    if request.param == "memory":
        operator = Operator.from_uri(f"memory://{name}")
    else:
        s3_server.create_bucket(name)
        service = S3(
            bucket=name,
            endpoint_url=s3_server.endpoint_url,
            access_key_id=s3_server.access_key_id,
            secret_access_key=s3_server.secret_access_key,
            part_bytes=5 << 20,
        )
        operator = Operator(service)
    with BlockingOperator(operator) as made:
        yield made


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Some megabytes, which no codec makes much smaller."""
    numbers = np.random.default_rng(7).integers(0, 1 << 62, size=(ROWS, 3))
    return pd.DataFrame(numbers, columns=["a", "b", "c"]).assign(text="Grüße")


@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_pandas_writes_csv(blocking: BlockingOperator, frame: pd.DataFrame, mode: str, compression: Any) -> None:
    with blocking.open("t.csv", mode, compression=compression) as file:
        frame.to_csv(file, index=False, mode=mode)
        assert not blocking.exists("t.csv")
    with blocking.open("t.csv", "r", compression=compression) as file:
        pd.testing.assert_frame_equal(pd.read_csv(file), frame)
    if compression is None:
        own = io.StringIO()
        frame.to_csv(own, index=False)
        assert blocking.read("t.csv") == own.getvalue().encode()


@pytest.mark.parametrize("engine", ["pandas", "pyarrow"])
def test_parquet_is_written_by_pandas_and_pyarrow(blocking: BlockingOperator, frame: pd.DataFrame, engine: str) -> None:
    with blocking.open("t.parquet", "wb") as file:
        if engine == "pandas":
            frame.to_parquet(file, index=False)
        else:
            pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), file, row_group_size=50_000)
    with blocking.open("t.parquet") as file:
        pd.testing.assert_frame_equal(pd.read_parquet(file), frame, check_dtype=False)


def test_a_parquet_writer_that_fails_leaves_nothing(blocking: BlockingOperator, frame: pd.DataFrame) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)

    def fail() -> None:
        with blocking.open("t.parquet", "wb") as file, pq.ParquetWriter(file, table.schema) as writer:
            writer.write_table(table)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not blocking.exists("t.parquet")
    assert blocking.abort_uploads() == 0


def test_arrow_json_numpy_and_zip_write_to_a_file(blocking: BlockingOperator, tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3]})
    with blocking.open("t.csv", "wb") as file:
        pyarrow.csv.write_csv(table, file)
    with blocking.open("t.csv") as read:
        assert pyarrow.csv.read_csv(read).equals(table)
    with blocking.open("t.json", "w") as text:
        json.dump({"ü": [1, 2]}, text, ensure_ascii=False)
    with blocking.open("t.json", "r") as text:
        assert json.load(text) == {"ü": [1, 2]}
    with blocking.open("t.npy", "wb") as file:
        np.save(file, np.arange(1000))
    with blocking.open("t.npy") as read:
        assert np.array_equal(np.load(read), np.arange(1000))
    with blocking.open("t.zip", "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"x" * 10_000)
        archive.writestr("b", b"y")
    with blocking.open("t.zip") as read, zipfile.ZipFile(read) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a", "b"]
