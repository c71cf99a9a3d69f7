"""The README's lines of Spark, on files: they read the index that they name, and each record by its range."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.repository.doc_pages import blocks_of
from tests.repository.source_tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RECORDS = {("one", 0): b"first", ("one", 5): b"second", ("two", 3): b"third"}


def test_the_lines_of_spark_run(spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").write_bytes(b"firstsecond")
    (tmp_path / "two").write_bytes(b"...third...")
    index = [{"key": key, "offset": offset, "size": len(data), "more": 0.5} for (key, offset), data in RECORDS.items()]
    pq.write_table(pa.Table.from_pylist(index), tmp_path / "index.parquet")
    (block,) = [block for block in blocks_of(ROOT / "README.md") if block.info == "python no-run"]
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block.content.replace("s3://bucket", tmp_path.as_uri()), block.where, "exec"), names)
    assert "record" in capsys.readouterr().out
    found = {(row["key"], bytes(row["record"])) for row in names["records"].collect()}
    assert found == {(key, data) for (key, _), data in RECORDS.items()}
