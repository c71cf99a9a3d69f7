"""Parquet files of Spark: types of its own, and dates of the old calendar.

Before October 1582, Spark below 3.0 (and later versions in ``LEGACY`` mode) count days by the Julian calendar; before
1900 they use the writer's local clock. Such values would be read days or minutes off, so they are refused. Spark itself
reads them.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.errors import Unsupported
from aioprefetch.parquet import Footer

_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_VERSION = b"org.apache.spark.version"
_LEGACY_DATE_TIME = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"
_INT96 = 3
# From these times on, both calendars and all local clocks agree.
_FIRST_DATE = dt.date(1582, 10, 15)
_FIRST_TIME = dt.datetime(1900, 1, 1)


def check_types(footer: Footer, columns: Iterable[str] | None = None) -> None:
    """Raise ``Unsupported`` for a column (of ``columns``, or any) that is a VARIANT or an interval in Spark."""
    spark_types = _spark_types(_key_values(footer))
    for name in footer.schema.names if columns is None else columns:
        kind = spark_types.get(name)
        if kind is not None:
            raise Unsupported(
                f"column {name!r} is {kind} as Spark wrote it, which is read by Spark alone: give a schema without it",
                operation="footer",
                path=footer.path,
                context={"column": name},
            )


@dataclass(frozen=True, slots=True)
class Calendar:
    """The values of a file that may be of the old calendar: dates and instants, or instants of 96 bits."""

    path: str
    is_legacy: bool
    is_legacy_int96: bool

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise ``Unsupported`` for a column with values of the old calendar."""
        if not self.is_legacy and not self.is_legacy_int96:
            return
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if self._is_old(column):
                raise Unsupported(
                    f"column {name!r} has dates before 1582-10-15, or times before 1900, in the old calendar of Spark: "
                    "write them again with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and "
                    "int96RebaseModeInWrite=CORRECTED, or leave the column out",
                    operation="scan",
                    path=self.path,
                    context={"column": name},
                )

    def _is_old(self, array: pa.Array) -> bool:
        kind = array.type
        if pa.types.is_date(kind):
            return self.is_legacy and _is_below(array, pa.scalar(_FIRST_DATE, kind))
        if pa.types.is_timestamp(kind):
            # A time without a zone has 96 bits, or is local and never of the old calendar.
            is_legacy = self.is_legacy_int96 if kind.tz is None else self.is_legacy
            first = _FIRST_TIME if kind.tz is None else _FIRST_TIME.replace(tzinfo=dt.UTC)
            return is_legacy and _is_below(array, pa.scalar(first, kind))
        if pa.types.is_struct(kind):
            return any(map(self._is_old, array.flatten()))
        if pa.types.is_map(kind):
            return self._is_old(array.keys) or self._is_old(array.items)
        return pa.types.is_list(kind) and self._is_old(array.flatten())


def calendar_of(footer: Footer) -> Calendar:
    """The calendar of a file."""
    metadata = _key_values(footer)
    version = re.match(rb"(\d+)\.(\d+)", metadata.get(_VERSION, b""))
    numbers = None if version is None else (int(version[1]), int(version[2]))
    is_legacy = numbers is not None and (numbers < (3, 0) or _LEGACY_DATE_TIME in metadata)
    is_legacy_int96 = numbers is not None and (numbers < (3, 1) or _LEGACY_INT96 in metadata)
    return Calendar(footer.path, is_legacy, is_legacy_int96 and _INT96 in footer.shape.physical_types)


def _is_below(array: pa.Array, first: pa.Scalar) -> bool:
    least = pc.min(array)
    return bool(least.is_valid and pc.less(least, first).as_py())


def _key_values(footer: Footer) -> dict[bytes, bytes]:
    return footer.metadata.metadata or {}


def _spark_types(metadata: dict[bytes, bytes]) -> dict[str, str]:
    """The top-level columns that are, or contain, a type that only Spark reads."""
    text = metadata.get(_SCHEMA, b"")
    if b"variant" not in text and b"interval" not in text:
        return {}
    try:
        fields = json.loads(text)["fields"]
        kinds = {field["name"]: _special_in(field["type"]) for field in fields}
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def _special_in(kind: Any) -> str | None:
    """The first such type within a Spark type in JSON form."""
    if isinstance(kind, str):
        return kind.upper() if kind == "variant" or "interval" in kind else None
    if kind["type"] == "struct":
        parts = [field["type"] for field in kind["fields"]]
    else:
        parts = [kind[part] for part in ("elementType", "keyType", "valueType", "sqlType") if part in kind]
    return next((special for part in parts if (special := _special_in(part)) is not None), None)
