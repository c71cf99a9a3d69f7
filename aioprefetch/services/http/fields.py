"""The fields of a response's head, as text. Pure, no I/O."""

from __future__ import annotations

from aioprefetch.transport import ResponseHead


def field_of(head: ResponseHead, name: bytes) -> str | None:
    """A field as it came, each byte a character: ETags must go back to the byte. ``name`` in lower case."""
    value = head.fields.get(name)
    return None if value is None else value.decode("latin-1")


def text_of(head: ResponseHead, name: bytes) -> str | None:
    """A field for people, or with a path in it: as UTF-8 where it is that."""
    value = head.fields.get(name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def location_of(head: ResponseHead) -> str | None:
    """Where a redirect leads, as the server wrote it."""
    return text_of(head, b"location")
