"""Text of an option into its value: sizes, counts, flags, lists, filters. Pure.

Messages name the option and show its value; no option whose value may be a secret is parsed here.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from aioprefetch.errors import ConfigInvalid, excerpt
from aioprefetch.source.columns.zones import zone_named
from aioprefetch.source.formats import format_named, format_names
from aioprefetch.source.formats.encodings import codec_name

Parse = Callable[[str, str], Any]

# Python also accepts digits of other scripts, underscores between digits, and numbers of any length.
_INTEGER = re.compile(r"[0-9]{1,18}")
_SECONDS = re.compile(r"([0-9]{1,18}\.?[0-9]{0,18}|\.[0-9]{1,18})(e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,18})\s*(|b|k|m|g|t)(|b|ib)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_FORMATS_OF_SPARK = {"json": "jsonl", "binaryfile": "binary"}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# Values of filters that JSON has no form for, each as an object with one key.
_TYPED: dict[str, Callable[[Any], Any]] = {
    "$date": dt.date.fromisoformat,
    "$timestamp": dt.datetime.fromisoformat,
    "$decimal": decimal.Decimal,
    "$binary": lambda text: base64.b64decode(text, validate=True),
}


def invalid(option: str, value: str, right: str) -> ConfigInvalid:
    """The error for a value that is not ``right``."""
    return ConfigInvalid(f"the option {option}={excerpt(value)!r} is not {right}", operation="configure")


def text(option: str, value: str) -> str:
    """The text itself."""
    if not value:
        raise invalid(option, value, "a text: leave the option away instead")
    return value


def any_text(option: str, value: str) -> str:
    """The text itself, which may be empty."""
    return value


def encoding(option: str, value: str) -> str:
    """The name of an encoding of text."""
    try:
        codec_name(value)
    except ConfigInvalid:
        raise invalid(
            option, value, "an encoding of text that Python has, such as utf-8, latin-1, cp1252 or utf-16"
        ) from None
    return value


def time_zone(option: str, value: str) -> str:
    """The name of a zone, or an offset."""
    try:
        zone_named(value)
    except ConfigInvalid:
        raise invalid(option, value, "a time zone such as Europe/Berlin, UTC or +02:00") from None
    return value


def size_bytes(option: str, value: str) -> int:
    """``1048576``, ``64m``, ``64 MB``, ``1g``: powers of 1024."""
    found = _SIZE.fullmatch(value.strip())
    if found is None or not int(found[1]):
        raise invalid(option, value, "a size above 0 such as 1048576, 64m or 1g")
    return int(found[1]) * _UNITS[found[2].lower()]


def count(option: str, value: str) -> int:
    """An integer of at least 1."""
    return _integer(option, value, 1)


def count_or_zero(option: str, value: str) -> int:
    """An integer of at least 0."""
    return _integer(option, value, 0)


def seconds(option: str, value: str) -> float:
    """A number of seconds, 0 or above."""
    if _SECONDS.fullmatch(value.strip()) is None:
        raise invalid(option, value, "a number of seconds such as 5 or 0.5")
    return float(value)


def flag(option: str, value: str) -> bool:
    """``true`` or ``false``."""
    found = _FLAGS.get(value.strip().lower())
    if found is None:
        raise invalid(option, value, "true or false")
    return found


def format_name(option: str, value: str) -> str:
    """The name of a format; ``json`` and ``binaryFile`` are Spark's names for two of them."""
    name = value.strip().lower()
    name = _FORMATS_OF_SPARK.get(name, name)
    try:
        return format_named(name).name
    except ConfigInvalid:
        raise invalid(option, value, f"one of {', '.join(format_names())}") from None


def choice(*values: str, **other_names: str) -> Parse:
    """One of ``values``, in any case; ``other_names``, in lower case, map to them."""

    def parse(option: str, value: str) -> str:
        given = value.strip().lower()
        found = other_names.get(given, given)
        if found not in values:
            raise invalid(option, value, f"one of {', '.join(values)}")
        return found

    return parse


def character(option: str, value: str) -> str:
    r"""One character of ASCII; ``\t`` stands for a tab."""
    value = {"\\t": "\t", "\\\\": "\\"}.get(value, value)
    if len(value) != 1 or not value.isascii() or value in "\r\n":
        raise invalid(option, value, "one character of ASCII that ends no line")
    return value


def optional_character(option: str, value: str) -> str | None:
    """One character; ``None`` for an empty text."""
    return character(option, value) if value else None


def separator(option: str, value: str) -> str:
    r"""What ends a line; ``\n``, ``\r`` and ``\t`` may be written out."""
    for written, meant in (("\\r", "\r"), ("\\n", "\n"), ("\\t", "\t")):
        value = value.replace(written, meant)
    return text(option, value)


def names(option: str, value: str) -> tuple[str, ...]:
    """Names, separated by commas or as a JSON list. No name twice."""
    if value.lstrip().startswith("["):
        found = _json(option, value)
        listed = found if isinstance(found, list) else []
    else:
        listed = [name.strip() for name in value.split(",")]
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise invalid(option, value, "a list of names such as id,name or a JSON list of them")
    if len(set(listed)) < len(listed):
        raise invalid(option, value, "a list of different names")
    return tuple(listed)


def mapping(option: str, value: str) -> dict[str, str]:
    """A JSON object of texts. The value is never shown."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
        raise ConfigInvalid(f"the option {option} is not a JSON object of texts", operation="configure")
    return found


def filters(option: str, value: str) -> list[Any]:
    """A JSON list of ``[column, operator, value]``, or a list of such lists: the alternatives.

    ``{"$date": "2024-01-31"}``, ``{"$timestamp": "2024-01-31T12:00:00+00:00"}``, ``{"$decimal": "1.20"}`` and
    ``{"$binary": base64}`` are values that JSON lacks.
    """
    found = _json(option, value)
    if not isinstance(found, list) or not found or not all(isinstance(one, list) and one for one in found):
        raise invalid(option, value, 'a JSON list such as [["id", ">", 3], ["day", "=", {"$date": "2024-01-31"}]]')
    alternatives = found if all(isinstance(one, list) for one in found[0]) else [found]
    return [[_clause(option, value, clause) for clause in one] for one in alternatives]


def filters_to_text(given: Sequence[Any]) -> str:
    """The text that ``filters`` reads. ``TypeError`` for values of other types."""
    return json.dumps(list(given), default=_typed)


def _clause(option: str, value: str, clause: Any) -> tuple[str, str, Any]:
    if not isinstance(clause, list) or len(clause) != 3 or not isinstance(clause[0], str):
        raise invalid(option, value, 'a list of clauses such as ["id", ">", 3]')
    column, operator, operand = clause
    if isinstance(operand, list):
        return column, operator, [_operand(option, value, one) for one in operand]
    return column, operator, _operand(option, value, operand)


def _operand(option: str, value: str, operand: Any) -> Any:
    if not isinstance(operand, dict):
        return operand
    [(kind, written)] = operand.items() if len(operand) == 1 else [("", None)]
    try:
        return _TYPED[kind](written)
    except (KeyError, TypeError, ValueError, decimal.InvalidOperation):
        raise invalid(option, value, f"a filter: {operand!r} must be one of {', '.join(_TYPED)}") from None


def _typed(operand: Any) -> Any:
    if isinstance(operand, dt.datetime):
        return {"$timestamp": operand.isoformat()}
    if isinstance(operand, dt.date):
        return {"$date": operand.isoformat()}
    if isinstance(operand, decimal.Decimal):
        return {"$decimal": str(operand)}
    if isinstance(operand, (bytes, bytearray)):
        return {"$binary": base64.b64encode(operand).decode()}
    if isinstance(operand, (set, frozenset)):
        return sorted(operand)
    raise TypeError(f"a filter cannot compare with {type(operand).__name__}")


def _integer(option: str, value: str, least: int) -> int:
    if _INTEGER.fullmatch(value.strip()) is None or int(value) < least:
        raise invalid(option, value, f"an integer of at least {least}")
    return int(value)


def _json(option: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        raise invalid(option, value, "JSON") from None
