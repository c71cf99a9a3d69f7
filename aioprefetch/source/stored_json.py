"""JSON from a store or a checkpoint, checked field by field, as it may have been edited, and with a checksum. Pure.

Functions that take a field raise ``ValueError`` with the fault. The caller turns it into an error that names the file.

With a checksum it stays JSON: ``{"crc32":"0a1b2c3d","body":…}``. The checksum covers the bytes of the body as they are
written, so that a truncated or edited object is recognised when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, TypeVar
from zlib import crc32

from aioprefetch.errors import Unsupported, UntrustedMetadata, excerpt

T = TypeVar("T")

# The limit of Arrow, Java and the names of a log.
INTEGER_MAX = (1 << 63) - 1


def parsed(data: bytes | str) -> Any:
    """The value of a JSON text. NaN, infinities and very deep nesting are refused."""
    try:
        return json.loads(data, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def fields_of(value: Any, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """Check an object with these fields, and no others."""
    if not isinstance(value, dict):
        raise ValueError(f"an object is needed, not {_kind(value)}")
    missing = [name for name in required if name not in value]
    unknown = [name for name in value if name not in required and name not in optional]
    if missing or unknown:
        raise ValueError(f"the fields {missing} are missing, and {_cut(unknown)} are unknown")
    return value


def texts(value: Any) -> dict[str, str]:
    """Check an object of texts, under any names."""
    if not isinstance(value, dict):
        raise ValueError(f"an object is needed, not {_kind(value)}")
    return {name: text(field) for name, field in value.items()}


def text(value: Any) -> str:
    """Check a text."""
    if type(value) is not str:
        raise ValueError(f"a text is needed, not {_kind(value)}")
    return value


def integer(value: Any, least: int = 0) -> int:
    """Check a whole number of 64 bits, at least ``least``. Booleans and ``1.0`` are refused."""
    if type(value) is not int or not least <= value <= INTEGER_MAX:
        raise ValueError(f"a whole number from {least} to {INTEGER_MAX} is needed, not {_kind(value)}")
    return value


def milliseconds(value: Any) -> int:
    """Check a time, which may lie before 1970."""
    return integer(value, -INTEGER_MAX - 1)


def flag(value: Any) -> bool:
    """Check a boolean."""
    if type(value) is not bool:
        raise ValueError(f"true or false is needed, not {_kind(value)}")
    return value


def optional(check: Callable[[Any], T], value: Any) -> T | None:
    """``None``, or a value that ``check`` accepts."""
    return None if value is None else check(value)


def each(check: Callable[[Any], T], value: Any) -> tuple[T, ...]:
    """A list of values that ``check`` accepts."""
    return tuple(check(item) for item in listed(value))


def listed(value: Any, count: int | None = None) -> list[Any]:
    """Check a list, of ``count`` values if that is given."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        size = "" if count is None else f" of {count} values"
        raise ValueError(f"a list{size} is needed, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """A short description of a value, for a message."""
    if isinstance(value, (dict, list)):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
        return f"a number of {value.bit_length()} bits"
    return excerpt(repr(value), 80)


def _cut(names: list[Any]) -> str:
    return f"{[excerpt(name, 40) if isinstance(name, str) else _kind(name) for name in names[:5]]}"


# --- with a checksum --------------------------------------------------------------------------------------------------

_BEGIN, _MIDDLE, _END = b'{"crc32":"', b'","body":', b"}\n"
_BODY = len(_BEGIN) + 8 + len(_MIDDLE)


def checksum(data: bytes | memoryview) -> str:
    """The checksum of bytes as eight hexadecimal digits."""
    return f"{crc32(data):08x}"


def to_bytes(value: Any) -> bytes:
    """JSON without spaces, with fields in their given order; ASCII, so that any key of any store is kept."""
    return json.dumps(value, separators=(",", ":")).encode()


def seal(body: Any) -> tuple[bytes, str]:
    """The bytes to write, and the checksum in them."""
    data = to_bytes(body)
    crc = checksum(data)
    return b"".join((_BEGIN, crc.encode(), _MIDDLE, data, _END)), crc


def unseal(sealed: bytes, *, path: str) -> tuple[Any, str]:
    """The body and its checksum. ``UntrustedMetadata`` for bytes that ``seal`` did not write."""
    data = sealed[_BODY : -len(_END)]
    crc = checksum(data)
    if sealed[:_BODY] != b"".join((_BEGIN, crc.encode(), _MIDDLE)) or not sealed.endswith(_END):
        raise damaged("it was cut short or edited: its checksum does not fit", path)
    try:
        return parsed(data), crc
    except ValueError as error:
        raise damaged("it holds no JSON, although its checksum fits", path) from error


def check_version(fields: Any, version: int, *, path: str) -> None:
    """``Unsupported`` for the format of a newer version of aioprefetch, ``UntrustedMetadata`` without a format."""
    try:
        stored = integer(fields.get("v") if isinstance(fields, dict) else None, 1)
    except ValueError as error:
        raise damaged(f"it has no version of a format: {error}", path) from error
    if stored > version:
        raise Unsupported(
            f"it is of format {stored}, and this version of aioprefetch reads formats up to {version}: update it",
            operation="read_state",
            path=path,
        )


def damaged(why: str, path: str) -> UntrustedMetadata:
    """The error for a damaged state. It names the remedy: the state never guesses, and never starts again by itself."""
    return UntrustedMetadata(
        f"the source's state is damaged: {why}. Put the object back from a copy; or give another state location and"
        " another checkpoint, which reads everything again",
        operation="read_state",
        path=path,
    )
