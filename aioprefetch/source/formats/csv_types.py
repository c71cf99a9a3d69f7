"""The schema of a sample of CSV: the types that Spark infers."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from aioprefetch.source.formats.conversion import NotConvertible, from_text
from aioprefetch.source.formats.csv_layout import Layout
from aioprefetch.source.formats.csv_parts import CsvParts, nulls_in
from aioprefetch.source.formats.csv_quoting import Quoting
from aioprefetch.source.formats.line_stream import line_ends
from aioprefetch.source.formats.lines import Lines
from aioprefetch.source.formats.record_format import Wanted
from aioprefetch.source.options import FormatOptions, ReadOptions

_ZEROS_IN_FRONT = re.compile(r"^([+-]?)0+(?=[0-9])")
_INTEGER = r"^\s*[+-]?[0-9]+\s*$"
_DECIMAL_DIGITS_MAX = 38
_CANDIDATES = (pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"))


def infer_csv(lines: Lines, layout: Layout, options: FormatOptions, quoting: Quoting, path: str) -> pa.Schema:
    """The schema of whole records: long (decimal where it is longer), double, boolean, date, timestamp, else string.

    A column that is always null is of the type null, for other files may tell more. Raises what reading them as texts
    would.
    """
    schema = pa.schema([(name, pa.string()) for name in layout.names])
    parts = CsvParts(layout, Wanted(schema, options, ReadOptions()), quoting, line_ends(options), path)
    found = parts.records(lines)
    if found is None:
        return pa.schema([(name, pa.null()) for name in layout.names])
    columns = zip(layout.names, found.batch.columns, strict=True)
    return pa.schema([(name, _kind(texts, options.null_value)) for name, texts in columns])


def _kind(texts: pa.StringArray, null_value: str) -> pa.DataType:
    values = pc.unique(pc.drop_null(nulls_in(texts, null_value)))
    if not len(values):
        return pa.null()
    if pc.all(pc.match_substring_regex(values, _INTEGER)).as_py():
        return _whole_number(values.to_pylist())
    return next((kind for kind in _CANDIDATES if _fits(values, kind)), pa.string())


def _whole_number(texts: list[str]) -> pa.DataType:
    # Python makes no integer of thousands of digits, and most of them may be zeros in front.
    numbers = [_ZEROS_IN_FRONT.sub(r"\1", text.strip()) for text in texts]
    digits = max(len(number.lstrip("+-")) for number in numbers)
    if digits > _DECIMAL_DIGITS_MAX:
        return pa.string()
    is_long = all(-(1 << 63) <= int(number) < 1 << 63 for number in numbers)
    return pa.int64() if is_long else pa.decimal128(digits, 0)


def _fits(values: pa.StringArray, kind: pa.DataType) -> bool:
    try:
        for text in values.to_pylist():
            from_text(text, kind, "")
    except NotConvertible:
        return False
    return True
