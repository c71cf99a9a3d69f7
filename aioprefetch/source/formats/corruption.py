"""What is wrong with the bytes of a file, as errors that name the file, the place and the value."""

from __future__ import annotations

import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata

# What decoders raise for bytes that nobody foresaw: it is about the file, and a policy for corrupt files is for it.
UNDECODABLE = (pa.ArrowException, RecursionError, UnicodeError, OverflowError)

# So much of a value goes into an error.
_SHOWN_CHARS_MAX = 80


def corrupt(message: str, *, path: str, offset: int, **facts: object) -> UntrustedMetadata:
    """A file that is not what its format, its compression or the schema says, at a byte ``offset`` of it."""
    return UntrustedMetadata(message, operation="read_items", path=path, context={"offset": offset, **facts})


def unknown_field(name: str, *, path: str, offset: int) -> Unsupported:
    """A field that the schema does not have, where ``unknown_fields`` is ``fail``."""
    return Unsupported(
        f"the field {name!r} is not in the schema: add it, or set unknown_fields to ignore or rescue",
        operation="read_items",
        path=path,
        context={"offset": offset, "field": name},
    )


def shown(value: object) -> str:
    """A value for an error, cut to what a person reads."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"
