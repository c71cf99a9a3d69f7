"""The names that a Lance schema gives to types, as Arrow types.

A name is a word with parameters after colons: ``timestamp:us:UTC``, ``fixed_size_list:float:128``. Lists and structs
take their contents from the schema's child fields (see ``schema``); everything else is in the name.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from aioprefetch.errors import Error, Unsupported, UntrustedMetadata

_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "duration:s": pa.duration("s"),
    "duration:ms": pa.duration("ms"),
    "duration:us": pa.duration("us"),
    "duration:ns": pa.duration("ns"),
}
_UNITS = ("s", "ms", "us", "ns")
_INT32_MAX = (1 << 31) - 1

# A fixed-size list of fixed-size lists of ...: what a name of a few kilobytes could nest.
_DEPTH_MAX = 32


def arrow_type(name: str, *, path: str = "", depth: int = 0) -> pa.DataType:
    """The type that a name stands for by itself: none of ``list``, ``struct``, ``map``.

    ``Unsupported`` for a type that is not known, ``UntrustedMetadata`` for parameters that cannot be.
    """
    if (plain := _PLAIN.get(name)) is not None:
        return plain
    word, _, parameters = name.partition(":")
    make = _PARAMETRIC.get(word)
    if make is None:
        raise Unsupported(f"the logical type {name[:100]!r} is not supported", path=path)
    if depth > _DEPTH_MAX:
        raise UntrustedMetadata(f"a logical type nests more than {_DEPTH_MAX} deep", path=path)
    try:
        return make(parameters, path, depth)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if isinstance(error, Error):
            raise
        raise UntrustedMetadata(f"the logical type {name[:100]!r} is damaged: {error}", path=path) from error


def list_size(name: str, *, path: str = "") -> int:
    """How many items a list of ``fixed_size_list:item:size`` holds."""
    size = name.rpartition(":")[2]
    if not size.isdecimal() or not size.isascii() or not 1 <= int(size[:12]) <= _INT32_MAX:
        raise UntrustedMetadata(f"the logical type {name[:100]!r} has no size of a list", path=path)
    return int(size)


def _timestamp(parameters: str, path: str, depth: int) -> pa.DataType:
    unit, _, zone = parameters.partition(":")
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is no unit of time")
    return pa.timestamp(unit, None if zone in ("", "-") else zone)


def _fixed_size_binary(parameters: str, path: str, depth: int) -> pa.DataType:
    width = int(parameters)
    if not 0 <= width <= _INT32_MAX:
        raise ValueError(f"{width} is no width")
    return pa.binary(width)


def _fixed_size_list(parameters: str, path: str, depth: int) -> pa.DataType:
    size = list_size(parameters, path=path)
    return pa.list_(arrow_type(parameters.rpartition(":")[0], path=path, depth=depth + 1), size)


def _decimal(parameters: str, path: str, depth: int) -> pa.DataType:
    bits, precision, scale = (int(part) for part in parameters.split(":"))
    match bits:
        case 128:
            return pa.decimal128(precision, scale)
        case 256:
            return pa.decimal256(precision, scale)
    raise ValueError(f"{bits} bits are no width of a decimal")


def _dictionary(parameters: str, path: str, depth: int) -> pa.DataType:
    values, indices, ordered = parameters.rsplit(":", 2)
    index_type = arrow_type(indices, path=path, depth=depth + 1)
    if not pa.types.is_integer(index_type):
        raise ValueError(f"{indices!r} cannot count")
    return pa.dictionary(index_type, arrow_type(values, path=path, depth=depth + 1), ordered == "true")


_PARAMETRIC: dict[str, Callable[[str, str, int], pa.DataType]] = {
    "timestamp": _timestamp,
    "fixed_size_binary": _fixed_size_binary,
    "fixed_size_list": _fixed_size_list,
    "decimal": _decimal,
    "dict": _dictionary,
}
