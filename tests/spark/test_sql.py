"""The source in SQL, and what Spark shows of its errors: one sentence, first."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from aioprefetch.spark import register
from tests.repository.doc_pages import blocks_of
from tests.repository.source_tree import ROOT
from tests.spark.files import expected, records, rows, write_jsonl, write_parquet

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True, scope="module")
def registered(spark: SparkSession) -> None:
    register(spark)


def test_a_temporary_view_has_options_and_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", records(0, 5))
    options = f"path '{tmp_path}', filters '[[\"id\", \">\", 1]]'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW trips USING aioprefetch OPTIONS ({options})")
    assert rows(spark.sql("SELECT * FROM trips WHERE id < 4")) == expected(2, 4)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW trips (id bigint) USING aioprefetch OPTIONS ({options})")
    assert rows(spark.sql("SELECT sum(id) FROM trips")) == [(9,)]
    spark.catalog.dropTempView("trips")


def test_the_statements_of_the_guide(spark: SparkSession, tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [{"id": n, "pickup": f"p{n}", "distance": n} for n in range(30)])
    (block,) = [one for one in blocks_of(ROOT / "docs" / "guides" / "spark.md") if one.info == "sql"]
    text = block.content.replace("s3://bucket/trips", str(tmp_path))
    found = [spark.sql(statement).collect() for statement in text.split(";") if statement.strip()]
    assert found[-1] == [(9,)]
    spark.catalog.dropTempView("trips")


@pytest.mark.parametrize("columns", ["", "(id bigint)"])
def test_a_table_of_the_catalog_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path, columns: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", records(0, 5))

    def make_and_read() -> None:
        # With columns Spark makes the table, and asks for its rows without options.
        spark.sql(f"CREATE TABLE refused {columns} USING aioprefetch OPTIONS (path '{tmp_path}', format 'jsonl')")
        spark.sql("SELECT * FROM refused").collect()

    try:
        with pytest.raises(AnalysisException, match=r"hand no options to Python sources.* use CREATE TEMPORARY VIEW"):
            make_and_read()
    finally:
        spark.sql("DROP TABLE IF EXISTS refused")


def test_what_spark_shows_of_an_error_begins_with_its_sentence(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')

    def failing(path: Path, schema: str | None, **options: str) -> str:
        reader = spark.read.format("aioprefetch").options(**options)
        with pytest.raises(PySparkException) as caught:
            (reader if schema is None else reader.schema(schema)).load(str(path)).collect()
        return str(caught.value)

    at_planning = failing(tmp_path, None, column="id")
    assert "there is no option 'column'; did you mean columns?" in at_planning.splitlines()[0]
    at_listing = failing(tmp_path / "nowhere", "id bigint")
    assert "there are no files in" in at_listing.splitlines()[0]
    at_reading = failing(tmp_path, "id date")
    assert "'id' is not a valid date32" in at_reading.splitlines()[1]  # Spark's own sentence comes before it.
    assert "Traceback" not in at_planning + at_listing + at_reading
