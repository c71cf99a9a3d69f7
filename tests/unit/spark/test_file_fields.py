"""The fields of files beside the schema of a reader: for filters, unknown fields, CSV without names."""

import json
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from aioprefetch.errors import ConfigInvalid
from aioprefetch.spark.schema import FileFields, Inferred, batch_fields, file_fields, projected, with_metadata
from aioprefetch.spark.settings import parse_options

FIELDS = {"a": LongType(), "b": StringType(), "c": DoubleType()}


def struct(*names: str) -> StructType:
    return StructType([StructField(name, FIELDS[name]) for name in names])


def fields(schema: StructType, path: str = "memory://no-files/d", **options: str) -> FileFields:
    """Those of a source without files: nothing is inferred."""
    return file_fields(parse_options({"path": path, **options}), schema, None, batch_fields)


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
        ({"metadataColumns": "_metadata"}, r"add _metadata struct<file_path:string,.*,offset:bigint> to"),
        ({"unknownFields": "rescue"}, r"add _rescued string to"),
    ],
)
def test_a_schema_without_the_columns_that_were_asked_for_is_refused(options: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigInvalid, match=missing):
        fields(struct("a"), **options)
    settings = parse_options({"path": "s3://none/d", **options})
    assert fields(with_metadata(struct("a"), settings), **options) == FileFields()


def test_a_struct_of_metadata_may_have_some_of_its_fields_and_no_others() -> None:
    options = {"metadataColumns": "_metadata"}
    some = StructType([StructField("offset", LongType()), StructField("file_name", StringType())])
    assert fields(StructType([StructField("_metadata", some)]), **options) == FileFields()
    wrong = StructType([StructField("_metadata", some.add("file_nam", StringType()))])
    with pytest.raises(ConfigInvalid, match="add _metadata struct"):
        fields(wrong, **options)


@pytest.mark.parametrize(
    ("name", "options", "instead"),
    [
        ("_file", {"metadataColumns": "true"}, "metadataColumns=_metadata"),
        ("_offset", {"metadataColumns": "_etag,_offset"}, "metadataColumns=_metadata"),
        ("_Etag", {"metadataColumns": "_etag"}, "metadataColumns=_metadata"),
        ("_metadata", {"metadataColumns": "_metadata"}, "metadataColumns=true"),
        ("_rescued", {"unknownFields": "rescue"}, "unknownFields to ignore"),
    ],
)
def test_fields_of_files_with_names_of_added_columns_are_named_when_planned(
    tmp_path: Path, name: str, options: dict[str, str], instead: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, name: 7}))
    settings = parse_options({"path": str(tmp_path), **options})
    given = with_metadata(StructType([StructField("id", LongType())]), settings)
    for plan in (
        lambda: fields(given, str(tmp_path), **options),
        lambda: projected(batch_fields(settings), settings),
    ):
        with pytest.raises(ConfigInvalid, match=rf"have a field '{name.lower()}'.*{instead}"):
            plan()
    others = {"metadataColumns": "_mtime", "unknownFields": "fail"}
    settings = parse_options({"path": str(tmp_path), **others})
    assert projected(batch_fields(settings), settings).names == ["id", name, "_mtime"]
    assert fields(projected(batch_fields(settings), settings), str(tmp_path), **others) == FileFields()


def test_columns_of_metadata_are_named_only_where_they_are_asked_for() -> None:
    inferred = Inferred(struct("a"))
    for options, names in (({"metadataColumns": "_file"}, ["_file", "a"]), ({}, None)):
        settings = parse_options({"path": "s3://none/d", "columns": "_file,a", **options})
        if names is None:
            with pytest.raises(ConfigInvalid, match="no field '_file'"):
                projected(inferred, settings)
        else:
            assert projected(inferred, settings).names == names


def test_everything_in_a_schema_of_the_users_may_be_null_as_in_sparks_readers() -> None:
    inner = StructType([StructField("x", LongType(), nullable=False)])
    given = StructType(
        [StructField("a", ArrayType(inner, containsNull=False), nullable=False, metadata={"comment": "c"})]
    )
    found = with_metadata(given, parse_options({"path": "s3://none/d"}))
    wanted = StructType([StructField("x", LongType())])
    assert found == StructType([StructField("a", ArrayType(wanted), metadata={"comment": "c"})])
