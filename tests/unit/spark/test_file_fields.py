"""The fields of files beside the schema of a reader: for filters, unknown fields, CSV without names."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from aioprefetch.errors import ConfigInvalid
from aioprefetch.spark.schema import FileFields, file_fields_of_batch, with_metadata
from aioprefetch.spark.settings import parse_options

FIELDS = {"a": LongType(), "b": StringType(), "c": DoubleType()}


def struct(*names: str) -> StructType:
    return StructType([StructField(name, FIELDS[name]) for name in names])


def fields(schema: StructType, **options: str) -> FileFields:
    """Those of a source that cannot be reached: nothing is inferred."""
    return file_fields_of_batch(parse_options({"path": "s3://none/d", **options}), schema)


def test_a_schema_of_the_user_is_all_that_is_known() -> None:
    assert fields(struct("a"), unknownFields="fail") == FileFields()


def test_the_schema_of_the_files_has_what_is_known_and_what_filters_need() -> None:
    everything = struct("a", "b", "c")
    found = fields(struct("b"), fileSchema=everything.json(), filters='[["c", ">", 1]]')
    assert found == FileFields(struct("c"), everything)
    assert fields(struct("b", "a"), fileSchema=everything.json()) == FileFields(None, everything)


@pytest.mark.parametrize("text", ["", "a long", "[]", '{"type": "struct"}'])
def test_a_schema_of_the_files_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigInvalid, match="fileSchema"):
        fields(struct("a"), fileSchema=text)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"metadataColumns": "_file,_offset"}, r"add _file string, _offset bigint to"),
        ({"unknownFields": "rescue"}, r"add _rescued string to"),
    ],
)
def test_a_schema_without_the_columns_that_were_asked_for_is_refused(options: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigInvalid, match=missing):
        fields(struct("a"), **options)
    settings = parse_options({"path": "s3://none/d", **options})
    assert fields(with_metadata(struct("a"), settings), **options) == FileFields()


def test_everything_in_a_schema_of_the_users_may_be_null_as_in_sparks_readers() -> None:
    inner = StructType([StructField("x", LongType(), nullable=False)])
    given = StructType(
        [StructField("a", ArrayType(inner, containsNull=False), nullable=False, metadata={"comment": "c"})]
    )
    found = with_metadata(given, parse_options({"path": "s3://none/d"}))
    wanted = StructType([StructField("x", LongType())])
    assert found == StructType([StructField("a", ArrayType(wanted), metadata={"comment": "c"})])
