"""What is wrong with the bytes of a file, as errors that name the file, the place and the value."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from aioprefetch.errors import Unsupported, UntrustedMetadata, excerpt, printable
from aioprefetch.runtime.events import logger

# What decoders raise for bytes that nobody foresaw: it is about the file, and a policy for corrupt files is for it.
UNDECODABLE = (pa.ArrowException, RecursionError, UnicodeError, OverflowError)

# An error quotes at most this much of a value.
_SHOWN_CHARACTERS_MAX = 80


def corrupt(message: str, *, path: str, offset: int, **facts: object) -> UntrustedMetadata:
    """A file that is not what its format, its compression or the schema says, at a byte ``offset`` of it."""
    return UntrustedMetadata(message, operation="read_items", path=path, context={"offset": offset, **facts})


def undecodable(path: str, error: Exception) -> Exception:
    """A file that no decoder takes. Want of memory says nothing about it, and stays what it is."""
    if isinstance(error, MemoryError):
        return error
    return UntrustedMetadata(f"the file cannot be decoded: {error}", operation="read_items", path=path)


def unknown_field(name: str, *, path: str, offset: int) -> Unsupported:
    """A field that the schema does not have, where ``unknown_fields`` is ``fail``."""
    return Unsupported(
        f"the field {name!r} is not in the schema: add it, or set unknown_fields to ignore or rescue",
        operation="read_items",
        path=path,
        context={"offset": offset, "field": name},
    )


def warn_of_unknown(names: Iterable[str], *, path: str) -> None:
    """Say which fields of a file are left out, where ``unknown_fields`` is ``warn``."""
    listed = ", ".join(repr(shown(name)) for name in names)
    logger.warning(
        "%s has fields that the schema does not have, and they are left out: %s. Give a schema that has them, or set "
        "unknown_fields to ignore, fail or rescue",
        printable(path),
        listed,
    )


def shown(value: object) -> str:
    """A value of a file as an error quotes it: redacted, on one line, of bounded length."""
    return excerpt(value if isinstance(value, str) else repr(value), _SHOWN_CHARACTERS_MAX)
