"""Schemas of Spark and of Arrow, as Spark's Python data sources demand them of each other.

Spark accepts a record batch only if its schema equals its own one exactly: order, types, and what may be null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

from aioprefetch.errors import ConfigInvalid, Unsupported, excerpt

# The type, not a field of that name.
_VARIANT = re.compile(r"(?:^|[:<,])variant(?=$|[>,])")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that batches of a DataFrame must have. ``Unsupported`` for a type that Arrow has no form for."""
    for field in schema.fields:
        if _VARIANT.search(field.dataType.simpleString()):
            raise Unsupported(
                f"the column {field.name!r} is a VARIANT, which only Spark's own readers know", operation="plan_batch"
            )
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise Unsupported(f"the schema cannot be read: {error.getMessage()}", operation="plan_batch") from error


def spark_schema(found: pa.Schema) -> StructType:
    """The schema of Spark for an inferred one. Everything is nullable, as with Spark's own files.

    A field without any value is a string. ``Unsupported`` names a field that Spark has no type for.
    """
    return StructType([StructField(field.name, _spark_type(field), nullable=True) for field in found])


def nullable(schema: StructType) -> StructType:
    """The same fields, nullable at every level."""
    return StructType(
        [StructField(one.name, _nullable(one.dataType), nullable=True, metadata=one.metadata) for one in schema.fields]
    )


def narrowed(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """The fields that ``columns`` name, in their order; all without it. ``ConfigInvalid`` names an unknown one.

    A name matches in any case if only one field matches, as in Spark.
    """
    return schema if columns is None else StructType([_field(schema, name) for name in columns])


def schema_from_json(text: str) -> StructType:
    """The option ``fileSchema``: the JSON of a StructType. ``ConfigInvalid`` for anything else."""
    try:
        return StructType.fromJson(json.loads(text))
    except Exception as error:  # The parser raises errors of many kinds.
        raise ConfigInvalid(
            f"fileSchema must be what StructType.json() gives, not {excerpt(text, 80)!r}", operation="configure"
        ) from error


def _field(schema: StructType, name: str) -> StructField:
    exact = [field for field in schema.fields if field.name == name]
    found = exact or [field for field in schema.fields if field.name.lower() == name.lower()]
    if len(found) == 1:
        return found[0]
    names = ", ".join(field.name for field in schema.fields)
    raise ConfigInvalid(f"columns: there is no field {name!r}, or several; there are {names}", operation="configure")


def _spark_type(field: pa.Field) -> DataType:
    try:
        return _nullable(from_arrow_type(field.type), nulls=StringType())
    except (PySparkException, ValueError) as error:
        raise Unsupported(
            f"the field {field.name!r} is {field.type}, for which Spark has no type; leave it out with columns=, or "
            "give a schema",
            operation="infer_schema",
        ) from error


def _nullable(kind: DataType, *, nulls: DataType | None = None) -> DataType:
    """The type with nulls allowed at every level, and with ``nulls`` in place of the null type."""
    if isinstance(kind, NullType):
        return nulls or kind
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType, nulls=nulls), containsNull=True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType, nulls=nulls), _nullable(kind.valueType, nulls=nulls), True)
    if isinstance(kind, StructType):
        return StructType(
            [StructField(one.name, _nullable(one.dataType, nulls=nulls), True, one.metadata) for one in kind.fields]
        )
    return kind
