"""Errors about the content of a file, with the file, the position and the value."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from aioprefetch.errors import Error, Unsupported, UntrustedMetadata, excerpt, printable
from aioprefetch.runtime.events import logger

# The errors of decoders for invalid bytes. They are about the file, so the policy for corrupt files applies.
UNDECODABLE = (pa.ArrowException, RecursionError, UnicodeError, OverflowError)

# The maximum length of a value in an error.
_SHOWN_CHARACTERS_MAX = 80


def corrupt(message: str, *, path: str, offset: int, **facts: object) -> UntrustedMetadata:
    """The error for a file that contradicts its format, compression or schema at byte ``offset``."""
    return UntrustedMetadata(message, operation="read_items", path=path, context={"offset": offset, **facts})


def undecodable(path: str, error: Exception) -> Exception:
    """The error for a file that a decoder rejects.

    An error of ours, and a ``MemoryError``, which says nothing about the file, are returned unchanged.
    """
    if isinstance(error, (MemoryError, Error)):
        return error
    return UntrustedMetadata(f"the file cannot be decoded: {error}", operation="read_items", path=path)


def unknown_field(name: str, *, path: str, offset: int) -> Unsupported:
    """The error for a field that the schema lacks, under ``unknown_fields="fail"``."""
    return Unsupported(
        f"the field {name!r} is not in the schema: add it, or set unknown_fields to ignore or rescue",
        operation="read_items",
        path=path,
        context={"offset": offset, "field": name},
    )


def warn_of_unknown(names: Iterable[str], *, path: str) -> None:
    """Warn about the dropped fields of a file, under ``unknown_fields="warn"``."""
    listed = ", ".join(repr(shown(name)) for name in names)
    logger.warning(
        "%s has fields that the schema does not have, and they are left out: %s. Give a schema that has them, or set "
        "unknown_fields to ignore, fail or rescue",
        printable(path),
        listed,
    )


def shown(value: object) -> str:
    """A value as an error quotes it: redacted, on one line, of bounded length."""
    return excerpt(value if isinstance(value, str) else repr(value), _SHOWN_CHARACTERS_MAX)
