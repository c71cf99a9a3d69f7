"""Bounds of pages as Arrow values: bytes in Parquet's PLAIN encoding, compared as the column's Arrow type compares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from aioprefetch.parquet.footer import Footer

_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BOOLEAN": 1}
_DTYPES = {"INT32": "<i4", "INT64": "<i8", "FLOAT": "<f4", "DOUBLE": "<f8", "BOOLEAN": "u1"}
_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


class BoundsReader:
    """Reads the bounds of one top-level leaf; types whose order or encoding is not plain are not read."""

    def __init__(self, footer: Footer, leaf: int) -> None:
        column = footer.metadata.schema.column(leaf)
        kind = footer.schema.field(footer.schema.get_field_index(footer.shape.paths[leaf][0])).type
        self.type = kind.value_type if pa.types.is_dictionary(kind) else kind
        self._physical: str = column.physical_type
        self._logical: dict[str, Any] = json.loads(column.logical_type.to_json())
        self.is_float = pa.types.is_floating(self.type)
        self._is_bytes = self._logical.get("Type") in ("String", "None", "Enum", "JSON", "BSON") and (
            pa.types.is_string(self.type)
            or pa.types.is_large_string(self.type)
            or pa.types.is_binary(self.type)
            or pa.types.is_large_binary(self.type)
            or pa.types.is_fixed_size_binary(self.type)
            or pa.types.is_string_view(self.type)
            or pa.types.is_binary_view(self.type)
        )

    def scalar(self, value: Any) -> pa.Scalar:
        """The value of a filter, to compare bounds with. Raises what pyarrow does for one that is none."""
        if isinstance(value, pa.Scalar):
            value = value.as_py() if self._is_bytes else value
        if self._is_bytes:
            return pa.scalar(value.encode() if isinstance(value, str) else bytes(value), pa.large_binary())
        return value if isinstance(value, pa.Scalar) else pa.scalar(value)

    def read(self, bounds: Sequence[bytes], null_pages: Sequence[bool]) -> pa.Array | None:
        """Bounds as an array, null for pages of nulls; ``None`` where this type's bounds are not read.

        Raises ``ValueError`` or an error of pyarrow's for bytes that are no such values.
        """
        if self._is_bytes:
            # Cut strings may end within a character. Bytes compare as the strings do.
            values = [None if null else bytes(one) for one, null in zip(bounds, null_pages, strict=True)]
            return pa.array(values, pa.large_binary())
        if pa.types.is_decimal(self.type):
            return self._decimals(bounds, null_pages)
        width = _WIDTHS.get(self._physical)
        if width is None:
            return None
        if any(len(one) != width and not null for one, null in zip(bounds, null_pages, strict=True)):
            raise ValueError(f"bounds of another width than {self._physical} has")
        blank = bytes(width)
        raw = b"".join(blank if null else bytes(one) for one, null in zip(bounds, null_pages, strict=True))
        return self._typed(np.frombuffer(raw, _DTYPES[self._physical]), np.array(null_pages, bool))

    def _typed(self, numbers: Any, nulls: Any) -> pa.Array | None:
        kind = self.type
        if self._physical == "BOOLEAN":
            return pa.array(numbers != 0, mask=nulls) if pa.types.is_boolean(kind) else None
        if self._physical in ("FLOAT", "DOUBLE"):
            return pa.array(numbers, mask=nulls) if self.is_float else None
        if pa.types.is_integer(kind):
            if not self._logical.get("isSigned", True):
                numbers = numbers.view("<u4" if self._physical == "INT32" else "<u8")
            return pa.array(numbers, mask=nulls)
        if pa.types.is_date(kind) and self._physical == "INT32":
            return pa.array(numbers, mask=nulls).view(pa.date32()).cast(kind)
        unit = _TIME_UNITS.get(self._logical.get("timeUnit", ""))
        if unit is None:
            return None
        if pa.types.is_timestamp(kind):
            return pa.array(numbers, mask=nulls).view(pa.timestamp(unit, kind.tz)).cast(kind)
        if pa.types.is_time(kind):
            time = pa.time32(unit) if self._physical == "INT32" else pa.time64(unit)
            return pa.array(numbers, mask=nulls).view(time).cast(kind)
        return None

    def _decimals(self, bounds: Sequence[bytes], null_pages: Sequence[bool]) -> pa.Array | None:
        if self._physical not in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY", "BYTE_ARRAY"):
            return None
        order: Literal["little", "big"] = "little" if self._physical.startswith("INT") else "big"
        values: list[Decimal | None] = []
        for one, null in zip(bounds, null_pages, strict=True):
            if null:
                values.append(None)
                continue
            number = int.from_bytes(one, order, signed=True)
            digits = tuple(int(digit) for digit in str(abs(number)))
            values.append(Decimal((int(number < 0), digits, -self.type.scale)))
        return pa.array(values, self.type)
