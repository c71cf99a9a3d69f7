"""What the source is asked for under ``parser="spark"``: up to where Spark's own parsers begin."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from aioprefetch.errors import ConfigInvalid, NotFound, UntrustedMetadata
from aioprefetch.spark.hadoop import SessionSettings
from aioprefetch.spark.parser import load_parsed

FILES = {"k=1/a.csv": "a,b\n1,x\n", "k=2/b.csv": "a,b\n2,y\n"}
SCHEMA = StructType([StructField("a", IntegerType()), StructField("b", StringType())])
NO_SESSION = cast("SparkSession", None)


class Loaded(Exception):
    """The source was loaded; what follows needs a session."""


class Reader:
    """Takes down what a reader of Spark is given."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.texts: dict[str, str] = {}

    def schema(self, schema: StructType) -> "Reader":
        self.names = schema.names
        return self

    def options(self, **texts: str) -> "Reader":
        self.texts = texts
        return self

    def load(self) -> None:
        raise Loaded


def loaded(options: Mapping[str, str], schema: StructType | None = SCHEMA) -> tuple[list[str], dict[str, str]]:
    reader = Reader()
    with pytest.raises(Loaded):
        load_parsed(NO_SESSION, cast("DataFrameReader", reader), options, SessionSettings(), schema)
    return reader.names, reader.texts


@pytest.fixture
def path(tmp_path: Path) -> str:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "names", "texts"),
    [
        ({}, ["_record", "k"], {"format": "csv-records"}),
        ({"format": "csv", "header": "true"}, ["_record", "k"], {"header": "true"}),
        ({"format": "csv", "quote": "'", "sep": ";"}, ["_record", "k"], {"quote": None, "sep": None}),
        (
            {"format": "csv", "quote": "'", "sep": ";", "multiLine": "true"},
            ["_record", "k"],
            {"quote": "'", "sep": ";"},
        ),
        ({"format": "csv", "sep": "ab", "multiLine": "true", "lineSep": "|"}, ["_record", "k"], {"sep": "b"}),
        (
            {"format": "csv", "enforceSchema": "false", "header": "true"},
            ["_record", "k"],
            {"fileSchema": SCHEMA.json()},
        ),
        ({"format": "csv", "onCorruptRecord": "rescue"}, ["_record", "k"], {"oncorruptrecord": "rescue"}),
        ({"format": "csv", "metadataColumns": "_file"}, ["_record", "k", "_file"], {}),
        ({"format": "csv", "filters": '[["k", "=", 1]]'}, ["_record", "k"], {}),
    ],
)
def test_the_source_has_records_directories_and_metadata(
    path: str, options: Mapping[str, str], names: list[str], texts: Mapping[str, str | None]
) -> None:
    given, found = loaded({"path": path, **options})
    assert given == names
    assert {name: found.get(name) for name in texts} == texts


def test_a_stream_keeps_its_directories(path: str, tmp_path: Path) -> None:
    """Those of its first start, also where later files have others."""
    options = {"path": path, "format": "csv", "stateLocation": f"file://{tmp_path}/_state"}
    assert loaded(options)[0] == ["_record", "k"]
    for name in FILES:
        (tmp_path / name).unlink()
    assert loaded(options)[0] == ["_record", "k"]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"unknownFields": "fail"}, ConfigInvalid, "unknownFields"),
        ({"format": "parquet"}, ConfigInvalid, "for csv and json"),
        ({"format": "csv", "filters": '[["a", "=", 1]]'}, ConfigInvalid, r"where\(\) for a"),
        ({"pathGlobFilter": "*.none"}, NotFound, "give the format"),
        ({"format": "csv", "pathGlobFilter": "*.none", "schema": ""}, UntrustedMetadata, "tells a schema"),
    ],
)
def test_what_is_refused(path: str, options: dict[str, str], error: type[Exception], match: str) -> None:
    schema = SCHEMA if options.pop("schema", None) is None else None
    with pytest.raises(error, match=match):
        load_parsed(NO_SESSION, cast("DataFrameReader", Reader()), {"path": path, **options}, SessionSettings(), schema)
