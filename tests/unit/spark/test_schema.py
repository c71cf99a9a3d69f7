"""Schemas of Spark and Arrow, to and fro; what pushed filters may say; and partitions as plain data."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from aioprefetch.errors import ConfigInvalid, Unsupported
from aioprefetch.source.values import FetchItem, SourceFile
from aioprefetch.spark.readers import ItemsPartition
from aioprefetch.spark.schema import arrow_schema, narrowed, spark_schema
from aioprefetch.testing.conformance.suite import checks


def fields(**kinds: str | DataType) -> StructType:
    """A schema by names of types; ``fromDDL`` would need a session."""
    schema = StructType()
    for name, kind in kinds.items():
        schema = schema.add(name, kind)
    return schema


FOUND = pa.schema(
    [
        pa.field("b", pa.bool_()),
        pa.field("i", pa.int64(), nullable=False),
        pa.field("d", pa.decimal128(12, 2)),
        pa.field("s", pa.string(), metadata={"PARQUET:field_id": "3"}),
        pa.field("x", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("wall", pa.timestamp("us")),
        pa.field("never", pa.null()),
        pa.field("list", pa.list_(pa.field("item", pa.null()))),
        pa.field("map", pa.map_(pa.string(), pa.struct([pa.field("f", pa.float32(), nullable=False)]))),
    ]
)


def test_an_inferred_schema_has_nulls_everywhere_and_strings_for_what_was_never_seen() -> None:
    assert spark_schema(FOUND) == fields(
        b="boolean", i="long", d="decimal(12,2)", s="string", x="binary", day="date", at="timestamp",
        wall="timestamp_ntz", never="string", list=ArrayType(StringType()),
        map=MapType(StringType(), StructType([StructField("f", FloatType())])),
    )  # fmt: skip


def test_arrow_schemas_are_what_spark_compares_with() -> None:
    given = fields(at="timestamp", wall="timestamp_ntz", a=ArrayType(IntegerType())).add("n", "long", nullable=False)
    schema = arrow_schema(given)
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert schema.field("wall").type == pa.timestamp("us")
    assert schema.field("a").type == pa.list_(pa.field("element", pa.int32()))
    assert not schema.field("n").nullable


def test_a_type_that_the_other_side_does_not_know_is_named() -> None:
    with pytest.raises(Unsupported, match="'odd'"):
        spark_schema(pa.schema([("odd", pa.month_day_nano_interval())]))


def test_projection_finds_names_in_any_case() -> None:
    schema = fields(Id="integer", name="string", NAME="string")
    assert narrowed(schema, ["id"]).names == ["Id"]
    assert narrowed(schema, ["NAME", "Id"]).names == ["NAME", "Id"]
    for name in ("nome", "Name"):
        with pytest.raises(ConfigInvalid, match=name):
            narrowed(schema, [name])


@checks("reliability:K07")
def test_a_partition_is_small_plain_data() -> None:
    items = [
        FetchItem(SourceFile(f"landing/2026/part-{n:05}.jsonl", n, f'"{n:032x}"', None, 1_700_000_000_000 + n))
        for n in range(1000)
    ]
    partition = ItemsPartition(items, root="s3://b/x", label="7-0")
    pickled = pickle.dumps(partition)
    assert len(pickled) < 64 << 10
    assert pickle.loads(pickled).items() == items
    assert "1000 items" in repr(partition)
    odd = [FetchItem(SourceFile("\udcff/é", 1), 3, 5, (1, 2))]
    assert ItemsPartition(odd, root="", label="").items() == odd


def test_variants_are_refused_and_fields_of_that_name_are_not() -> None:
    inner = StructType([StructField("variant", IntegerType()), StructField("v", ArrayType(VariantType()))])
    with pytest.raises(Unsupported, match=r"'s' is a VARIANT"):
        arrow_schema(StructType([StructField("s", inner)]))
    assert arrow_schema(StructType([StructField("s", StructType(inner.fields[:1]))])).names == ["s"]
